#!/usr/bin/env bash
# Fetches the identity provider that the tests provider_* run, at the versions that package-lock.json pins.
# The last line of stdout is the directory that holds it. Nothing is done if it is there already. Without node and npm: a line
# on stderr that says so, exit status 3.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for program in node npm; do
  command -v "$program" >/dev/null || { echo "$program is not installed" >&2; exit 3; }
done
key=$(cat "$here"/node-oidc/package-lock.json "$here"/node-oidc/op.mjs | sha256sum | cut -c1-16)
root=${XDG_CACHE_HOME:-$HOME/.cache}/tak-os-ingress/testbed
out=$root/providers-$key
if [ ! -f "$out/op.mjs" ]; then
  mkdir -p "$root"
  partial=$(mktemp -d "$root/.partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  cp "$here"/node-oidc/package.json "$here"/node-oidc/package-lock.json "$partial"
  (cd "$partial" && npm ci --no-audit --no-fund --ignore-scripts >&2)
  cp "$here"/node-oidc/op.mjs "$partial"
  chmod 755 "$partial"
  rm -rf "$out"
  # Two builds at once: the first to rename wins, and the second finds what it needs.
  mv -T "$partial" "$out" 2>/dev/null || [ -f "$out/op.mjs" ]
fi
echo "$out"
