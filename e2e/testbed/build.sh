#!/usr/bin/env bash
# Builds the kube-apiserver, the etcd and the kubectl of the cluster tests, from the versions that tools/go.mod pins; further
# programs of Kubernetes by name. The last line of stdout is the directory that holds them. What is there already is not
# built again; KUBEBUILDER_ASSETS, where set, wins. Cold about ten minutes on two cores, warm a few seconds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../kept.sh
. "$here/../kept.sh"

programs=(kube-apiserver etcd kubectl "$@")
kept_given KUBEBUILDER_ASSETS "${programs[@]}"

tools=$here/tools
build() { # PROGRAM FILE
  local package=k8s.io/kubernetes/cmd/$1 flags="-s -w" version minor stamped
  cd "$tools"
  case $1 in
    etcd) package=go.etcd.io/etcd/server/v3 ;;
    *)
      version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
      minor=${version#v1.}
      for stamped in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $stamped.gitVersion=$version -X $stamped.gitMajor=1 -X $stamped.gitMinor=${minor%%.*} -X $stamped.gitTreeState=clean"
      done
      ;;
  esac
  go build -trimpath -ldflags "$flags" -o "$2" "$package"
}
out=$(kept_in testbed "$tools")
kept_make "$out" KUBEBUILDER_ASSETS "${programs[@]}"
echo "$out"
