#!/usr/bin/env bash
# `make image`: an image file of this checkout, without a container engine. BINARY takes another build than the release one
# (then the size is not judged), IMAGE another name, OUT another file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
name=${IMAGE:-registry.gitlab.com/tak-os-platform/tak-os-containers/tak-os-ingress:$version}
out=${OUT:-$CARGO_TARGET_DIR/image/tak-os-ingress-$version-$(uname -m).tar}
limit=(--max-mib 25)
if [ -n "${BINARY:-}" ]; then
  binary=$BINARY limit=()
else
  cargo build --locked --release --bin tak-os-ingress
  binary=$CARGO_TARGET_DIR/release/tak-os-ingress
fi
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
created=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
[ -z "$(git status --porcelain 2>/dev/null)" ] || revision+=-dirty

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")"
hack/rootfs.sh "$binary" "$work/rootfs"
hack/image.py "$work/rootfs" "$out" "$name" --version "$version" --revision "$revision" --created "$created" "${limit[@]}"
