#!/usr/bin/env bash
# `make release`: the release build, with profile-guided optimisation where this machine has an llvm-profdata of the
# compiler's own LLVM (about a fifth fewer instructions a request); without one, the same code without profile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

major=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
profdata=${LLVM_PROFDATA:-$(command -v "llvm-profdata-$major" || true)}
if [ -z "$profdata" ]; then
  echo "no llvm-profdata-$major here (package llvm-$major): building without a profile" >&2
  cargo build --locked --release --bin tak-os-ingress
  echo "$CARGO_TARGET_DIR/release/tak-os-ingress"
  exit
fi

raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
build() { RUSTFLAGS="$1" CARGO_TARGET_DIR="$CACHE/pgo" cargo build --locked --release --bin tak-os-ingress; }
# Both builds share a directory, so that OpenSSL and the build scripts are made once.
build "-Cprofile-generate=$raw"
TAK_INGRESS_BIN="$CACHE/pgo/release/tak-os-ingress" cargo run --locked --workspace --example training_load
"$profdata" merge -o "$CACHE/pgo/tak-os-ingress.profdata" "$raw"
build "-Cprofile-use=$CACHE/pgo/tak-os-ingress.profdata"
mkdir -p "$CARGO_TARGET_DIR/release"
cp "$CACHE/pgo/release/tak-os-ingress" "$CARGO_TARGET_DIR/release/tak-os-ingress"
echo "$CARGO_TARGET_DIR/release/tak-os-ingress"
