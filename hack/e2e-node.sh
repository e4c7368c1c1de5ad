#!/usr/bin/env bash
# `make e2e-node`: the image of this checkout as the DaemonSet of default/ on two real nodes, in network namespaces on this machine.
# Skipped, by name, where the machine cannot. Takes the release build if it is newer than the sources, else the development build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh
PATH=$PATH:/usr/sbin:/sbin

skip() { echo "e2e-node: node_daemonset is skipped: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "it needs root"
missing=()
for need in containerd:containerd runc:runc iptables:iptables /usr/lib/cni/bridge:containernetworking-plugins ip:iproute2 python3:python3 openssl:openssl curl:curl; do
  case $need in
    /*) [ -e "${need%%:*}" ] || missing+=("${need#*:}") ;;
    *) command -v "${need%%:*}" >/dev/null || missing+=("${need#*:}") ;;
  esac
done
[ ${#missing[@]} = 0 ] || skip "packages are missing: ${missing[*]}"
unshare --mount --net --pid --fork true 2>/dev/null || skip "namespaces cannot be made here"

BIN=$(e2e/node/build.sh | tail -1)
cargo build --locked --workspace
binary=$CARGO_TARGET_DIR/release/tak-os-ingress
if [ ! -x "$binary" ] || [ -n "$(find Cargo.lock src proxy controller -newer "$binary" -print -quit)" ]; then
  binary=$CARGO_TARGET_DIR/debug/tak-os-ingress
fi
RUN=$(mktemp -d "${TMPDIR:-/tmp}/tak-os-ingress-nodes.XXXXXX")
NETNS=takingress$$
export BIN RUN NETNS
finish() {
  local status=$?
  e2e/node/down.sh
  # On a failure the logs stay.
  if [ $status = 0 ]; then rm -rf "$RUN"; else echo "e2e-node: logs are in $RUN/log" >&2; fi
  exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$RUN/images"
for tag in one two; do
  IMAGE=registry.example.com/tak-os-ingress:$tag OUT=$RUN/images/$tag.tar BINARY=$binary hack/image.sh
done
e2e/node/up.sh
TAK_INGRESS_NODES=$RUN cargo test --locked --workspace --test node_daemonset -- --ignored --nocapture "$@"
