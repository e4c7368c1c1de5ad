#!/usr/bin/env bash
# `make e2e-node`: the image of this checkout as the DaemonSet of default/ on two real nodes, in network namespaces on this machine,
# with cert-manager and an ACME server. Skipped, by name, where the machine cannot. Takes the release build if it is newer than the
# sources, else the development build; BINARY names another. Arguments select tests: hack/e2e-node.sh renewal
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh
SUITE="e2e-node: node_certificates, node_daemonset and node_install"
# shellcheck source=e2e/node/machine.sh
. e2e/node/machine.sh

machine_can
BIN=$(e2e/node/build.sh | tail -1)
INGRESS_ACME=$(e2e/testbed/acme/build.sh | tail -1)
export BIN INGRESS_ACME
binary=$(machine_binary)
machine_begin "$(mktemp -d "${TMPDIR:-/tmp}/tak-os-ingress-nodes.XXXXXX")" "takingress$$"
for tag in one two; do
  IMAGE=registry.example.com/tak-os-ingress:$tag OUT=$RUN/images/$tag.tar BINARY=$binary hack/image.sh
done
e2e/node/program-image.sh docker.io/library/acmesolver:1 "$INGRESS_ACME/acmesolver" "$RUN/images/acmesolver.tar"
e2e/node/up.sh
# All of them, whatever fails.
TAK_INGRESS_NODES=$RUN cargo test --locked --workspace --no-fail-fast \
  --test node_certificates --test node_daemonset --test node_install -- --ignored --nocapture "$@"
