#!/usr/bin/env bash
# Builds the kube-apiserver, the etcd and the kubectl of the cluster tests, from the versions that tools/go.mod pins.
# The last line of stdout is the directory that holds them. What is there already is not built again;
# KUBEBUILDER_ASSETS, where set, wins. Cold about ten minutes on two cores, warm a few seconds.
set -euo pipefail

programs=(kube-apiserver etcd kubectl)
if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  for program in "${programs[@]}"; do
    [ -x "$KUBEBUILDER_ASSETS/$program" ] || { echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no $program" >&2; exit 1; }
  done
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/tools" && pwd)
key=$(sha256sum "$tools/go.sum" | cut -c1-16)
root=${XDG_CACHE_HOME:-$HOME/.cache}/tak-os-ingress/testbed
out=$root/$key

missing=()
for program in "${programs[@]}"; do [ -x "$out/$program" ] || missing+=("$program"); done
if [ ${#missing[@]} -gt 0 ]; then
  command -v go >/dev/null || { echo "the testbed is built with Go: install it, or set KUBEBUILDER_ASSETS to a directory with ${programs[*]}" >&2; exit 1; }
  mkdir -p "$root"
  partial=$(mktemp -d "$root/.partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  cd "$tools"
  export CGO_ENABLED=0 GOFLAGS=-mod=readonly
  version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
  minor=${version#v1.}
  minor=${minor%%.*}
  flags="-s -w"
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor -X $package.gitTreeState=clean"
  done
  for program in "${missing[@]}"; do
    case $program in
      etcd) go build -trimpath -ldflags "-s -w" -o "$partial/etcd" go.etcd.io/etcd/server/v3 >&2 ;;
      *) go build -trimpath -ldflags "$flags" -o "$partial/$program" "k8s.io/kubernetes/cmd/$program" >&2 ;;
    esac
  done
  # Program by program, each at once: of two builds the second finds what it needs, or replaces it by the same.
  mkdir -p "$out"
  for program in "${missing[@]}"; do mv -f "$partial/$program" "$out/$program"; done
fi
echo "$out"
