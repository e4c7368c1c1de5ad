# shellcheck shell=bash
# Sourced by the Makefile's recipes and the scripts beside it: where things are kept, and which programs come first.

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/tak-os-ingress
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}
export PATH="$CACHE/bin:$CACHE/tools/bin:${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
# Debian's Go does not fetch the toolchain that a go.mod names unless told to.
export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}
# Cargo would take make's job server for its own.
unset MAKEFLAGS MFLAGS
