#!/bin/sh
# rustc for the workspace's own crates while fuzzing: with libFuzzer's coverage counters and comparisons, optimised, and
# with every assertion. These are flags of the stable compiler; no sanitizer is used, since the readers are safe Rust.
rustc=$1
shift
exec "$rustc" "$@" --cfg fuzzing -Copt-level=2 -Cdebug-assertions=on -Coverflow-checks=on \
  -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
