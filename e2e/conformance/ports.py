#!/usr/bin/env python3
"""ports.py MANIFEST PORT... -- ARGUMENT...: the rendered manifest with these ports on the Service and arguments on the DaemonSet."""
import re, sys

manifest, *rest = sys.argv[1:]
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
print(text, end="")
