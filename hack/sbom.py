#!/usr/bin/env python3
"""Writes what the binary is made of into a folder: sbom.cdx.json (CycloneDX 1.5), licences.txt (one crate a line) and
NOTICE.txt (the texts of their licences).

usage: sbom.py FOLDER

It asks cargo alone, offline: the crates that the lock file pins for this platform, without those that only tests use.
"""
import collections, glob, hashlib, json, os, platform, re, subprocess, sys, uuid

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}[platform.machine()]
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def metadata():
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={TARGET}"]
    for offline in (["--offline"], []):     # a machine that has built the binary has all that is asked for
        run = subprocess.run(command + offline, cwd=ROOT, capture_output=True, text=True)
        if run.returncode == 0:
            return json.loads(run.stdout)
    sys.exit(f"sbom: cargo metadata failed:\n{run.stderr}")


def checksums():
    found = {}
    for package in open(f"{ROOT}/Cargo.lock").read().split("[[package]]")[1:]:
        field = dict(re.findall(r'^(\w+) = "([^"]*)"$', package, re.M))
        if "checksum" in field:
            found[field["name"], field["version"]] = field["checksum"]
    return found


def texts(package):
    """The licence files of a crate, by name."""
    folder = os.path.dirname(package["manifest_path"])
    names = [n for n in os.listdir(folder) if re.match(r"(?i)(licen[cs]e|copying|notice|unlicense)", n)]
    for name in sorted(names):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            yield name, open(path, errors="replace").read().strip() + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    meta, sums = metadata(), checksums()
    packages = {p["id"]: p for p in meta["packages"]}
    root = next(p for p in meta["packages"] if p["name"] == "tak-os-ingress")
    nodes = {n["id"]: n for n in meta["resolve"]["nodes"]}

    # What is linked in, and what only helps to build it (the C sources of OpenSSL come as such a crate).
    edges, todo, linked = collections.defaultdict(set), [(root["id"], True)], {}
    while todo:
        node, runs = todo.pop()
        if linked.get(node, False) or (node in linked and not runs):
            continue
        linked[node] = runs
        for dep in nodes[node]["deps"]:
            kinds = {k["kind"] for k in dep["dep_kinds"]} - {"dev"}
            if not kinds:
                continue
            edges[node].add(dep["pkg"])
            proc_macro = any("proc-macro" in t["kind"] for t in packages[dep["pkg"]]["targets"])
            todo.append((dep["pkg"], runs and None in kinds and not proc_macro))

    def ref(package):
        return f"pkg:cargo/{package['name']}@{package['version']}"

    def component(package):
        field = {
            "type": "application" if package is root else "library",
            "bom-ref": ref(package),
            "name": package["name"],
            "version": package["version"],
            "purl": ref(package),
            "licenses": [{"expression": (package["license"] or "NOASSERTION").replace("/", " OR ")}],
            "scope": "required" if linked[package["id"]] else "excluded",
        }
        key = package["name"], package["version"]
        if key in sums:
            field["hashes"] = [{"alg": "SHA-256", "content": sums[key]}]
        if package["repository"]:
            field["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        if package is root:
            del field["scope"]
        return field

    own = [packages[i] for i in linked if i != root["id"]]
    own.sort(key=lambda p: (p["name"], p["version"]))
    components = [component(p) for p in own]
    source = next((p for p in own if p["name"] == "openssl-src"), None)
    if source:
        version = source["version"].split("+")[1]
        components.append({"type": "library", "bom-ref": f"pkg:generic/openssl@{version}", "name": "openssl", "version": version,
                           "purl": f"pkg:generic/openssl@{version}", "licenses": [{"expression": "Apache-2.0"}], "scope": "required",
                           "cpe": f"cpe:2.3:a:openssl:openssl:{version}:*:*:*:*:*:*:*"})
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(root)},
        "components": components,
        "dependencies": [{"ref": ref(packages[i]), "dependsOn": sorted(ref(packages[d]) for d in edges[i])}
                         for i in sorted(linked, key=lambda i: ref(packages[i]))],
    }
    digest = hashlib.sha256(json.dumps(bom, sort_keys=True).encode()).digest()
    bom["serialNumber"] = f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}"
    json.dump(bom, open(f"{out}/sbom.cdx.json", "w"), indent=1)

    linked_in = [p for p in own if linked[p["id"]] or p["name"] == "openssl-src"]
    with open(f"{out}/licences.txt", "w") as f:
        for p in linked_in:
            f.write(f"{p['name']} {p['version']}: {(p['license'] or 'see NOTICE.txt').replace('/', ' OR ')}\n")
    by_text = collections.OrderedDict()
    for p in linked_in:
        for name, text in texts(p) if p["source"] == CRATES_IO else ():
            by_text.setdefault(text, []).append(f"{p['name']} {p['version']} ({name})")
    with open(f"{out}/NOTICE.txt", "w") as f:
        for text, users in by_text.items():
            f.write("=" * 100 + "\n" + "\n".join(users) + "\n" + "-" * 100 + "\n" + text + "\n")
    print(f"sbom: {len(components)} components in {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
