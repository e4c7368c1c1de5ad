#!/usr/bin/env bash
# Builds the conformance suite of the Gateway API and the images that its manifests name, and lays its CRDs beside them
# (crds/standard, crds/experimental). Versions are those of go.mod. The last line of stdout is the directory that holds them; what
# is there is not built again; GATEWAY_CONFORMANCE, where set, wins. Cold about three minutes on two cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../kept.sh
. "$here/../kept.sh"

programs=(conformance.test echo-basic coredns)
kept_given GATEWAY_CONFORMANCE "${programs[@]}"

build() { # PROGRAM FILE
  case $1 in
    conformance.test) (cd "$here" && go test -c -trimpath -ldflags "-s -w" -o "$2" .) ;;
    echo-basic) (cd "$here" && go build -trimpath -ldflags "-s -w" -o "$2" sigs.k8s.io/gateway-api/conformance/echo-basic) ;;
    # The cluster's own, which has the plugin that the suite asks for.
    coredns) (cd "$here/../node/coredns" && go build -trimpath -ldflags "-s -w" -o "$2" .) ;;
  esac
}
out=$(kept_in conformance "$here")
kept_make "$out" GATEWAY_CONFORMANCE "${programs[@]}"
[ -d "$out/crds" ] || cp -r --no-preserve=mode "$(cd "$here" && go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd" "$out/crds"

# The tags that the manifests of this version name.
for tag in v1.5.1 v1.6.0-dev.2 v1.6.0-dev.3; do
  "$here/../node/program-image.sh" "registry.k8s.io/gateway-api/echo-basic:$tag" "$out/echo-basic" "$out/images/echo-basic-$tag.tar"
done
# Its Pod asks for port 53 with all capabilities but that one dropped.
"$here/../node/program-image.sh" registry.k8s.io/coredns/coredns:v1.12.2 "$out/coredns" "$out/images/coredns.tar" 0:0
echo "$out"
