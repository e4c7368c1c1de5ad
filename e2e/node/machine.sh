# shellcheck shell=bash
# Sourced by hack/e2e-node.sh and hack/conformance.sh at the root of the checkout, with SUITE set: what both need before a cluster.
PATH=$PATH:/usr/sbin:/sbin

skip() { echo "$SUITE is skipped: $*"; exit 0; }

# Ends the script, by name, where the machine cannot run nodes.
machine_can() {
  local need missing=()
  [ "$(id -u)" = 0 ] || skip "it needs root"
  for need in containerd:containerd runc:runc iptables:iptables /usr/lib/cni/bridge:containernetworking-plugins ip:iproute2 python3:python3 openssl:openssl curl:curl; do
    case $need in
      /*) [ -e "${need%%:*}" ] || missing+=("${need#*:}") ;;
      *) command -v "${need%%:*}" >/dev/null || missing+=("${need#*:}") ;;
    esac
  done
  [ ${#missing[@]} = 0 ] || skip "packages are missing: ${missing[*]}"
  unshare --mount --net --pid --fork true 2>/dev/null || skip "namespaces cannot be made here"
}

# The program that goes into the image: BINARY, or the release build if it is newer than the sources, else the development build.
machine_binary() {
  local binary=${BINARY:-$CARGO_TARGET_DIR/release/tak-os-ingress}
  if [ -z "${BINARY:-}" ] && { [ ! -x "$binary" ] || [ -n "$(find Cargo.lock src proxy controller -newer "$binary" -print -quit)" ]; }; then
    cargo build --locked --workspace >&2
    binary=$CARGO_TARGET_DIR/debug/tak-os-ingress
  fi
  echo "$binary"
}

# machine_begin FOLDER NAMESPACE: RUN and NETNS of a cluster that ends with the script. With KEEP=1 it stays for the next run.
machine_begin() {
  machine_sweep
  RUN=$1 NETNS=$2
  export RUN NETNS
  mkdir -p "$RUN/images"
  [ "${KEEP:-}" = 1 ] || echo "$$ $NETNS" >"$RUN/owner"
  trap machine_end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}
# Ends clusters whose script was killed before it could.
machine_sweep() {
  local owner pid netns
  for owner in "${TMPDIR:-/tmp}"/tak-os-ingress-*/owner; do
    [ -e "$owner" ] || continue
    read -r pid netns <"$owner"
    if ! kill -0 "$pid" 2>/dev/null; then
      RUN=${owner%/owner} NETNS=$netns e2e/node/down.sh
      rm -rf "${owner%/owner}"
    fi
  done
}
machine_end() {
  local status=$?
  kill "$(cat "$RUN/pid/conformance.test" 2>/dev/null)" 2>/dev/null || true
  if [ "${KEEP:-}" = 1 ]; then
    echo "$SUITE: the cluster stays: nsenter --net=/run/netns/$NETNS env KUBECONFIG=$RUN/admin.kubeconfig PATH=$BIN:\$PATH kubectl …" >&2
    exit $status
  fi
  e2e/node/down.sh
  rm -f "$RUN/owner"
  # On a failure the logs stay.
  if [ $status = 0 ]; then rm -rf "$RUN"; else echo "$SUITE: logs are in $RUN/log" >&2; fi
  exit $status
}
