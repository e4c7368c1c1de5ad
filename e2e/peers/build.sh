#!/usr/bin/env bash
# Builds the programs that tests run against the product: h2spec, and the client and server that gRPC for Go is
# tested with. Versions are those of go.mod. The last line of stdout is the directory that holds them; nothing is
# done if they are there already. INGRESS_PEERS, where set, wins. Cold about two minutes on two cores.
set -euo pipefail

programs=(h2spec grpc-client grpc-server)
if [ -n "${INGRESS_PEERS:-}" ]; then
  for program in "${programs[@]}"; do
    [ -x "$INGRESS_PEERS/$program" ] || { echo "INGRESS_PEERS=$INGRESS_PEERS has no $program" >&2; exit 1; }
  done
  echo "$INGRESS_PEERS"
  exit 0
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
key=$(sha256sum "$here/go.sum" | cut -c1-16)
root=${XDG_CACHE_HOME:-$HOME/.cache}/tak-os-ingress/peers
out=$root/$key

if [ ! -x "$out/grpc-server" ]; then
  command -v go >/dev/null || { echo "the peers are built with Go: install it, or set INGRESS_PEERS to a directory with ${programs[*]}" >&2; exit 1; }
  mkdir -p "$root"
  partial=$(mktemp -d "$root/.partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  cd "$here"
  export CGO_ENABLED=0 GOFLAGS=-mod=readonly
  go build -trimpath -ldflags "-s -w" -o "$partial/h2spec" github.com/summerwind/h2spec/cmd/h2spec >&2
  go build -trimpath -ldflags "-s -w" -o "$partial/grpc-client" google.golang.org/grpc/interop/client >&2
  go build -trimpath -ldflags "-s -w" -o "$partial/grpc-server" google.golang.org/grpc/interop/server >&2
  chmod 755 "$partial"
  rm -rf "$out"
  # Two builds at once: the first to rename wins, and the second finds what it needs.
  mv -T "$partial" "$out" 2>/dev/null || [ -x "$out/grpc-server" ]
fi
echo "$out"
