#!/usr/bin/env python3
"""ports.py [--host-network] MANIFEST PORT... -- ARGUMENT...: the rendered manifest with these ports on the Service and arguments on
the DaemonSet; with --host-network its Pods are in the network of their node, where two of them cannot have one port."""
import re, sys

host_network = sys.argv[1] == "--host-network"
manifest, *rest = sys.argv[1 + host_network :]
ports, arguments = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
text = open(manifest).read()
have = set(re.findall(r"^    port: (\d+)$", text, re.M))
more = "".join(
    f"  - name: port-{port}\n    port: {port}\n    targetPort: {port}\n    protocol: TCP\n" for port in ports if port not in have
)
first = re.search(r"^  ports:\n", text, re.M)
text = text[: first.end()] + more + text[first.end() :]
added = "".join(f"        - {argument}\n" for argument in arguments)
text, n = re.subn(r"(^        args:\n)", lambda m: m.group(1) + added, text, flags=re.M)
if not n:
    sys.exit(f"{manifest}: no args")
if host_network:
    for old, new in [
        (r"^      serviceAccountName: .*\n", r"\g<0>      hostNetwork: true\n      dnsPolicy: ClusterFirstWithHostNet\n"),
        (r"maxSurge: 1$", "maxSurge: 0"),
        (r"maxUnavailable: 0$", "maxUnavailable: 1"),
    ]:
        text, n = re.subn(old, new, text, flags=re.M)
        if n != 1:
            sys.exit(f"{manifest}: {old} stands there {n} times")
print(text, end="")
