#!/usr/bin/env bash
# Builds the kube-apiserver and the etcd that the cluster tests run, from the versions that tools/go.mod pins.
# The last line of stdout is the directory that holds them. Nothing is done if they are there already;
# KUBEBUILDER_ASSETS, where set, wins. Cold about ten minutes on two cores, warm a few seconds.
set -euo pipefail

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  for program in kube-apiserver etcd; do
    [ -x "$KUBEBUILDER_ASSETS/$program" ] || { echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no $program" >&2; exit 1; }
  done
  echo "$KUBEBUILDER_ASSETS"
  exit 0
fi

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/tools" && pwd)
key=$(sha256sum "$tools/go.sum" | cut -c1-16)
root=${XDG_CACHE_HOME:-$HOME/.cache}/tak-os-ingress/testbed
out=$root/$key

if [ ! -x "$out/kube-apiserver" ] || [ ! -x "$out/etcd" ]; then
  command -v go >/dev/null || { echo "the testbed is built with Go: install it, or set KUBEBUILDER_ASSETS to a directory with kube-apiserver and etcd" >&2; exit 1; }
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
  go build -trimpath -ldflags "$flags" -o "$partial/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver >&2
  go build -trimpath -ldflags "-s -w" -o "$partial/etcd" go.etcd.io/etcd/server/v3 >&2
  chmod 755 "$partial"
  rm -rf "$out"
  # Two builds at once: the first to rename wins, and the second finds what it needs.
  mv -T "$partial" "$out" 2>/dev/null || [ -x "$out/etcd" ]
fi
echo "$out"
