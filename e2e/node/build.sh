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
# Go itself knows what is up to date.
(cd "$here/coredns" && go build -trimpath -ldflags "-s -w" -o "$out/coredns" .)
for program in pause backend; do (cd "$here/images" && go build -trimpath -ldflags "-s -w" -o "$out/$program" "./$program"); done

"$here/program-image.sh" registry.k8s.io/pause:3.6 "$out/pause" "$out/images/pause.tar"
for program in backend coredns; do "$here/program-image.sh" "docker.io/library/$program:1" "$out/$program" "$out/images/$program.tar"; done
echo "$out"
