#!/usr/bin/env bash
# `make e2e-node`: the image of this checkout as the DaemonSet of default/ on two real nodes, in network namespaces on this machine.
# Skipped, by name, where the machine cannot. Takes the release build if it is newer than the sources, else the development build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh
SUITE="e2e-node: node_daemonset"
# shellcheck source=e2e/node/machine.sh
. e2e/node/machine.sh

machine_can
BIN=$(e2e/node/build.sh | tail -1)
export BIN
binary=$(machine_binary)
machine_begin "$(mktemp -d "${TMPDIR:-/tmp}/tak-os-ingress-nodes.XXXXXX")" "takingress$$"
for tag in one two; do
  IMAGE=registry.example.com/tak-os-ingress:$tag OUT=$RUN/images/$tag.tar BINARY=$binary hack/image.sh
done
e2e/node/up.sh
TAK_INGRESS_NODES=$RUN cargo test --locked --workspace --test node_daemonset -- --ignored --nocapture "$@"
