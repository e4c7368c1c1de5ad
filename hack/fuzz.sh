#!/usr/bin/env bash
# fuzz.sh build            builds the program of fuzz/
# fuzz.sh run [TARGET...]  and runs each target, or these, for FUZZ_SECONDS (60); stops at the first finding
# fuzz.sh keep [TARGET...] adds to fuzz/corpus the found inputs that reach code which no kept input reaches
# What is found on the way lies in $CACHE/fuzz. Only our own crates are built anew: all others come from the ordinary build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

what=${1:-run}
[ $# = 0 ] || shift
case $what in build | run | keep) ;; *) echo "fuzz.sh takes build, run or keep" >&2; exit 2 ;; esac

RUSTC_WORKSPACE_WRAPPER=$PWD/hack/fuzz-rustc.sh \
  cargo build --locked --workspace --features tak-os-ingress-fuzz/libfuzzer --bin fuzz
[ "$what" != build ] || exit 0

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls fuzz/corpus)
for target in "${targets[@]}"; do
  found=$CACHE/fuzz/$target
  mkdir -p "$found"
  options=(-max_len=4096 -timeout=120 -rss_limit_mb=2048 -artifact_prefix="$CACHE/fuzz/$target-")
  [ "$target" != secret ] || options+=(-max_len=16384)
  [ ! -e "fuzz/dict/$target" ] || options+=(-dict="fuzz/dict/$target")
  echo "==> $target: $what"
  export FUZZ_TARGET=$target
  if [ "$what" = keep ]; then
    "$CARGO_TARGET_DIR/debug/fuzz" "${options[@]}" -merge=1 -use_counters=0 "fuzz/corpus/$target" "$found"
  else
    "$CARGO_TARGET_DIR/debug/fuzz" "${options[@]}" -max_total_time="${FUZZ_SECONDS:-60}" -print_final_stats=1 \
      "$found" "fuzz/corpus/$target"
  fi
done
