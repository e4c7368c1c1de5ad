#!/usr/bin/env bash
# Builds the programs that tests run against the product: h2spec, and the client and server that gRPC for Go is
# tested with. Versions are those of go.mod. The last line of stdout is the directory that holds them; nothing is
# done if they are there already. INGRESS_PEERS, where set, wins. Cold about two minutes on two cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../kept.sh
. "$here/../kept.sh"

programs=(h2spec grpc-client grpc-server)
kept_given INGRESS_PEERS "${programs[@]}"

build() { # PROGRAM FILE
  local package
  case $1 in
    h2spec) package=github.com/summerwind/h2spec/cmd/h2spec ;;
    *) package=google.golang.org/grpc/interop/${1#grpc-} ;;
  esac
  (cd "$here" && go build -trimpath -ldflags "-s -w" -o "$2" "$package")
}
out=$(kept_in peers "$here")
kept_make "$out" INGRESS_PEERS "${programs[@]}"
echo "$out"
