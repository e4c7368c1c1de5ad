#!/usr/bin/env bash
# Builds what the tests of cert-manager run: its controllers and its HTTP-01 solver (cmd), Pebble, which is an ACME server, with
# its DNS server, and puts cert-manager's CRDs beside them (crds.yaml). Versions are those of go.mod. The last line of stdout is
# the directory that holds them; what is there already is not built again. INGRESS_ACME, where set, wins. Cold about four
# minutes on two cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../../kept.sh
. "$here/../../kept.sh"

programs=(cert-manager acmesolver pebble pebble-challtestsrv crds.yaml)
kept_given INGRESS_ACME "${programs[@]}"

build() { # PROGRAM FILE
  local package
  cd "$here"
  case $1 in
    crds.yaml)
      local crd
      for crd in "$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)"/deploy/crds/*cert-manager.io_*.yaml; do
        printf -- '---\n' && cat "$crd"
      done >"$2"
      # found like the programs
      chmod +x "$2"
      return
      ;;
    pebble*) package=github.com/letsencrypt/pebble/v2/cmd/$1 ;;
    *) package=./cmd/$1 ;;
  esac
  go build -trimpath -ldflags "-s -w" -o "$2" "$package"
}
out=$(kept_in acme "$here")
kept_make "$out" INGRESS_ACME "${programs[@]}"
echo "$out"
