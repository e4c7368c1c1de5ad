#!/usr/bin/env bash
# Builds what a node needs beside the control plane of ../testbed: controller-manager, scheduler, kubelet and kube-proxy of the
# same versions, CoreDNS, and the images that Pods run. The last line of stdout is the directory that holds them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
# shellcheck source=../../hack/env.sh
. hack/env.sh

out=$(KUBEBUILDER_ASSETS='' e2e/testbed/build.sh kube-controller-manager kube-scheduler kubelet kube-proxy)
export CGO_ENABLED=0 GOFLAGS=-mod=readonly
[ -x "$out/coredns" ] || (cd "$here/coredns" && go build -trimpath -ldflags "-s -w" -o "$out/coredns" .)
for program in pause backend; do (cd "$here/images" && go build -trimpath -ldflags "-s -w" -o "$out/$program" "./$program"); done

# image NAME:TAG PROGRAM: an image of one static program.
image() {
  local root
  root=$(mktemp -d)
  mkdir -p "$root/usr/bin" "$root/tmp" "$out/images"
  cp "$out/$2" "$root/usr/bin/$2"
  hack/image.py "$root" "$out/images/$2.tar" "$1" --version 1 --revision none --created 0 --entrypoint "/usr/bin/$2" >/dev/null
  rm -rf "$root"
}
image registry.k8s.io/pause:3.6 pause
image docker.io/library/backend:1 backend
image docker.io/library/coredns:1 coredns
echo "$out"
