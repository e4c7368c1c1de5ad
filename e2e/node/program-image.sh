#!/usr/bin/env bash
# program-image.sh NAME:TAG PROGRAM OUT.tar [UID:GID]: an image of one static program. Made again only when the program has changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
name=$1 program=$2 out=$3 user=${4:-65532:65532}
sum="$(sha256sum <"$program") $name $user"
[ ! -s "$out" ] || [ "$(cat "$out.sum" 2>/dev/null)" != "$sum" ] || exit 0
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/usr/bin" "$root/tmp" "$(dirname "$out")"
cp "$program" "$root/usr/bin/"
chmod 1777 "$root/tmp"
hack/image.py "$root" "$out.partial" "$name" --version 1 --revision none --created 0 --user "$user" \
  --entrypoint "/usr/bin/$(basename "$program")" >/dev/null
mv "$out.partial" "$out"
echo "$sum" >"$out.sum"
