#!/usr/bin/env bash
# `make release`: the release build, optimised by a profile of the training load (e2e/examples/training_load.rs).
# The profile is kept by the hash of the sources it was taken from. PGO=off builds without one.
# The last line of stdout is the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

say() { echo "release: $*" >&2; }
build() { cargo build --locked --release --bin tak-os-ingress "$@"; }
plain() {
  say "$1"
  build
  echo "$CARGO_TARGET_DIR/release/tak-os-ingress"
  exit 0
}

[ "${PGO:-on}" != off ] || plain "PGO=off: no profile"

# llvm-profdata reads only what a compiler of its own LLVM wrote.
llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
find_profdata() {
  local candidate
  for candidate in "$(rustc --print sysroot)"/lib/rustlib/*/bin/llvm-profdata "llvm-profdata-$llvm" llvm-profdata; do
    if "$candidate" merge --version 2>/dev/null | grep -q "LLVM version $llvm\."; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}
profdata=$(find_profdata) || {
  say "llvm-profdata $llvm is not here: trying rustup, then apt"
  rustup component add llvm-tools >/dev/null 2>&1 || {
    root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    "${root[@]}" apt-get update -qq >/dev/null 2>&1 && "${root[@]}" apt-get install -y -qq --no-install-recommends "llvm-$llvm" >/dev/null 2>&1
  } || true
  profdata=$(find_profdata) || plain "no llvm-profdata $llvm (rustup component add llvm-tools, or the package llvm-$llvm): building without a profile"
}

key=$({
  rustc -V
  find Cargo.toml Cargo.lock rust-toolchain.toml src proxy controller e2e/examples/training_load.rs -type f -not -path '*/tests/*' |
    LC_ALL=C sort | xargs sha256sum
} | sha256sum | cut -c1-16)
pgo=$CACHE/pgo
profile=$pgo/$key.profdata
if [ ! -s "$profile" ]; then
  say "build with counters"
  RUSTFLAGS="-Cprofile-generate=$pgo/raw" build --target-dir "$pgo/target"
  cargo build --locked --workspace --examples
  raw=$(mktemp -d "$pgo/raw.XXXXXX")
  trap 'rm -rf "$raw"' EXIT
  say "training load"
  LLVM_PROFILE_FILE="$raw/%m-%p.profraw" TAK_INGRESS_BIN=$pgo/target/release/tak-os-ingress \
    "$CARGO_TARGET_DIR/debug/examples/training_load"
  ls "$raw"/*.profraw >/dev/null || { say "the program wrote no profile"; exit 1; }
  "$profdata" merge -o "$profile.partial" "$raw"
  find "$pgo" -maxdepth 1 -name '*.profdata' -delete
  mv "$profile.partial" "$profile"
fi
say "build with the profile"
RUSTFLAGS="-Cprofile-use=$profile" build
echo "$CARGO_TARGET_DIR/release/tak-os-ingress"
