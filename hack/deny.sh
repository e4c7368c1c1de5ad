#!/usr/bin/env bash
# cargo-deny with the rules of deny.toml. `deny.sh install` only makes sure that the program is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

version=0.20.2
if [ "$(cargo-deny --version 2>/dev/null)" != "cargo-deny $version" ]; then
  build=$(mktemp -d)
  trap 'rm -rf "$build"' EXIT
  CARGO_TARGET_DIR=$build cargo install "cargo-deny@$version" --locked --root "$CACHE/tools"
fi
[ "${1:-}" != install ] || exit 0

deny() { cargo deny --locked --workspace "$@"; }
deny check bans licenses sources

# The advisory database comes over the network: without it the other rules still hold.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
databases=("${CARGO_HOME:-$HOME/.cargo}"/advisory-dbs/*/.git)
if timeout 120 cargo deny fetch db >"$log" 2>&1; then
  deny check advisories
elif [ -e "${databases[0]}" ]; then
  echo "advisories: the database could not be renewed, the copy on this machine is used"
  deny check --disable-fetch advisories
else
  echo "advisories: skipped, the database is not on this machine and could not be fetched"
fi
