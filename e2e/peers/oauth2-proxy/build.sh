#!/usr/bin/env bash
# Builds oauth2-proxy, at the version of go.mod. The last line of stdout is the directory that holds it; nothing is done if it is
# there already. INGRESS_OAUTH2_PROXY, where set, wins. Cold about three minutes on two cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../../kept.sh
. "$here/../../kept.sh"

kept_given INGRESS_OAUTH2_PROXY oauth2-proxy

build() { # PROGRAM FILE
  (cd "$here" && go build -trimpath -ldflags "-s -w" -o "$2" github.com/oauth2-proxy/oauth2-proxy/v7)
}
out=$(kept_in oauth2-proxy "$here")
kept_make "$out" INGRESS_OAUTH2_PROXY oauth2-proxy
echo "$out"
