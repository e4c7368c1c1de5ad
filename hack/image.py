#!/usr/bin/env python3
"""Packs a folder into an image file without a container engine.

usage: image.py ROOTFS OUT.tar NAME:TAG --version V --revision R --created EPOCH [--max-mib N] [--entrypoint PATH]
                [--user UID:GID]

The file is an OCI image layout and, at once, what `docker load` reads: `ctr images import`, `podman load`, `docker load`,
`skopeo copy oci-archive:OUT.tar docker://…` all take it. The same folder gives the same bytes.
"""
import argparse, datetime, gzip, hashlib, io, json, os, platform, sys, tarfile

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
# vfs_cap_data, revision 2, effective: NET_BIND_SERVICE (10) permitted. A process that is not root gets the right to
# ports below 1024 only through its file, within what the Pod's securityContext allows.
NET_BIND_SERVICE = b"\x01\0\0\x02" + (1 << 10).to_bytes(4, "little") + b"\0" * 12
BINARY = "usr/bin/tak-os-ingress"


def arguments():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("rootfs")
    p.add_argument("out")
    p.add_argument("name")
    p.add_argument("--version", required=True)
    p.add_argument("--revision", required=True)
    p.add_argument("--created", type=int, required=True)
    p.add_argument("--arch", default=ARCH.get(platform.machine(), platform.machine()))
    p.add_argument("--entrypoint", default="/" + BINARY)
    p.add_argument("--user", default="65532:65532")
    p.add_argument("--max-mib", type=float)
    return p.parse_args()


def layer(root, created):
    """An uncompressed tar of the folder, sorted, owned by root."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as t:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in folders + sorted(files):
                path = os.path.join(folder, name)
                info = t.gettarinfo(path, os.path.relpath(path, root))
                info.uid = info.gid = 0
                info.uname = info.gname = ""
                info.mtime = created
                if info.name == BINARY:
                    info.pax_headers = {"SCHILY.xattr.security.capability": NET_BIND_SERVICE.decode("ascii")}
                t.addfile(info, open(path, "rb") if info.isreg() else None)
    return out.getvalue()


def main():
    a = arguments()
    repository, _, tag = a.name.rpartition(":")
    if not repository or "/" in tag:
        sys.exit(f"image: {a.name}: a name and a tag are wanted")
    when = datetime.datetime.fromtimestamp(a.created, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    plain = layer(a.rootfs, a.created)
    packed = gzip.compress(plain, 9, mtime=0)
    sha = lambda data: hashlib.sha256(data).hexdigest()
    blobs = {}

    def blob(data, kind):
        blobs[sha(data)] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{sha(data)}", "size": len(data)}

    label = "org.opencontainers.image."
    config = {
        "created": when,
        "architecture": a.arch,
        "os": "linux",
        "config": {
            "User": a.user,
            "ExposedPorts": {"80/tcp": {}, "443/tcp": {}, "9090/tcp": {}},
            "Env": ["SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
            "Entrypoint": [a.entrypoint],
            "Labels": {
                label + "title": "tak-os-ingress",
                label + "description": "A Kubernetes ingress controller and proxy in one process",
                label + "version": a.version,
                label + "revision": a.revision,
                label + "created": when,
                label + "licenses": "Apache-2.0",
                label + "source": "https://gitlab.com/tak-os-platform/tak-os-containers/tak-os-ingress",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha(plain)}"]},
        "history": [{"created": when, "created_by": "hack/image.py"}],
    }
    dump = lambda value: json.dumps(value, sort_keys=True).encode()
    packed_ref = blob(packed, "layer.v1.tar+gzip")
    config_ref = blob(dump(config), "config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config_ref, "layers": [packed_ref]}
    entry = blob(dump(manifest), "manifest.v1+json")
    entry["platform"] = {"architecture": a.arch, "os": "linux"}
    # The first name is what containerd and Docker call it, the second is the reference inside a layout.
    entry["annotations"] = {"io.containerd.image.name": a.name, label + "ref.name": tag}
    path = lambda ref: "blobs/sha256/" + ref["digest"].removeprefix("sha256:")
    files = {
        "oci-layout": dump({"imageLayoutVersion": "1.0.0"}),
        "index.json": dump({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}),
        "manifest.json": dump([{"Config": path(config_ref), "RepoTags": [a.name], "Layers": [path(packed_ref)]}]),
        **{f"blobs/sha256/{digest}": data for digest, data in blobs.items()},
    }
    mib = len(packed) / (1 << 20)
    if a.max_mib and mib > a.max_mib:
        sys.exit(f"image: {mib:.1f} MiB compressed, at most {a.max_mib:g} are accepted")
    with tarfile.open(a.out, "w", format=tarfile.USTAR_FORMAT) as t:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o644, a.created
            t.addfile(info, io.BytesIO(data))
    print(f"{a.out}: {a.name} for linux/{a.arch}, {mib:.1f} MiB compressed, {len(plain) / (1 << 20):.1f} MiB unpacked")


if __name__ == "__main__":
    main()
