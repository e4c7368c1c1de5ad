# shellcheck shell=bash
# Sourced by the build.sh scripts below: programs that tests run and that are built here, once, with Go.

# kept_given VARIABLE PROGRAM...: where the variable is set it names the directory that holds the programs. Says so and ends.
kept_given() {
  local variable=$1 program
  local given=${!variable:-}
  shift
  [ -n "$given" ] || return 0
  for program; do
    [ -x "$given/$program" ] || { echo "$variable=$given has no $program" >&2; exit 1; }
  done
  echo "$given"
  exit 0
}

# kept_in NAME MODULE: where the programs of a Go module are kept, by the hash of its go.sum and of its own sources (src/testbed.rs
# finds them there).
kept_in() {
  local sources
  sources=$(LC_ALL=C && shopt -s nullglob && cat "$2/go.sum" "$2"/*.go "$2"/cmd/*/*.go | sha256sum | cut -c1-16)
  echo "${XDG_CACHE_HOME:-$HOME/.cache}/tak-os-ingress/$1/$sources"
}

# kept_make DIRECTORY VARIABLE PROGRAM...: calls `build PROGRAM FILE` for each that is missing. Of two at once the second finds
# what it needs, or replaces it by the same.
kept_make() {
  local out=$1 variable=$2 program partial
  shift 2
  local missing=()
  for program; do [ -x "$out/$program" ] || missing+=("$program"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v go >/dev/null || { echo "$* are built with Go: install it, or set $variable to a directory that has them" >&2; exit 1; }
  mkdir -p "$out"
  partial=$(mktemp -d "${out%/*}/.partial.XXXXXX")
  # shellcheck disable=SC2064 # the name of now
  trap "rm -rf '$partial'" EXIT
  export CGO_ENABLED=0 GOFLAGS=-mod=readonly
  for program in "${missing[@]}"; do build "$program" "$partial/$program" >&2; done
  for program in "${missing[@]}"; do mv -f "$partial/$program" "$out/$program"; done
}
