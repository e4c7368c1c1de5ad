#!/usr/bin/env bash
# Lays out everything that the image holds: rootfs.sh BINARY FOLDER. The Dockerfile and `make image` both use it.
# The binary is linked to the C library of the machine that built it, so that comes along, and nothing else of that machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# = 2 ] || { echo "rootfs.sh takes a binary and a folder" >&2; exit 2; }
binary=$1 root=$2
[ -x "$binary" ] || { echo "rootfs: $binary is not there; make release builds it" >&2; exit 1; }
rm -rf "$root"
mkdir -p "$root"/{etc/ssl/certs,usr/bin,usr/share/doc/tak-os-ingress}

# Names of functions stay, for backtraces; line tables are two thirds of the file.
strip --strip-debug -o "$root/usr/bin/tak-os-ingress" "$binary"
chmod 755 "$root/usr/bin/tak-os-ingress"

# What the loader would load, at the paths where it looks, and the loader itself.
libraries=$(ldd "$binary") || libraries=''
while read -r path; do
  mkdir -p "$root$(dirname "$path")"
  strip --strip-debug -o "$root$path" "$path" 2>/dev/null || cp -L "$path" "$root$path"
  chmod 755 "$root$path"
done < <(sed -n -e 's/^.* => \(\/[^ ]*\) (.*$/\1/p' -e 's/^[[:space:]]*\(\/[^ ]*\) (.*$/\1/p' <<<"$libraries")

install -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
# Names first from the Pod's own hosts file, as everywhere.
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
echo 'nonroot:x:65532:65532:nonroot:/:/usr/bin/tak-os-ingress' >"$root/etc/passwd"
echo 'nonroot:x:65532:' >"$root/etc/group"
install -m 644 LICENSE "$root/usr/share/doc/tak-os-ingress/LICENSE"
hack/sbom.py "$root/usr/share/doc/tak-os-ingress"
chmod -R u+rwX,go+rX,go-w "$root"
