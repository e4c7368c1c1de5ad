#!/usr/bin/env bash
# `make test`: every stage in order, the first failure ends it, the times stand at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

STAGES=$(mktemp)
export STAGES
background=
finish() {
  local status=$?
  # The job's own children end with it: it leads a process group.
  [ -z "$background" ] || kill -- "-$background" 2>/dev/null || true
  echo
  echo "Stage times"
  cat "$STAGES"
  rm -f "$STAGES"
  exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

hack/stage.sh deps hack/deps.sh test

# The first build leaves cores idle while it links and configures: the testbed and the tools are built beside it.
log=$CACHE/testbed.log
mkdir -p "$CACHE"
set -m
(
  nice -n 5 e2e/testbed/build.sh && nice -n 5 e2e/peers/build.sh && nice -n 5 e2e/peers/oauth2-proxy/build.sh &&
    # e2e.sh says which of these are missing
    { nice -n 5 e2e/testbed/build.sh kube-controller-manager && nice -n 5 e2e/testbed/acme/build.sh || true; } &&
    { for part in providers/node-oidc providers/keycloak browser; do nice -n 5 e2e/testbed/parts.sh $part || true; done; } &&
    nice -n 5 hack/deny.sh install &&
    cd dashboards/tools && nice -n 5 go build -o /dev/null ./...
) >"$log" 2>&1 </dev/null &
background=$!
set +m
hack/stage.sh compile hack/compile.sh
echo "==> waiting for the testbed ($log)"
begin=$SECONDS
wait "$background" || { background=; cat "$log" >&2; echo "the testbed could not be built" >&2; exit 1; }
background=
printf '%-10s %6d s  %s\n' "testbed" $((SECONDS - begin)) "waited for after compile" >>"$STAGES"

hack/stage.sh check make --no-print-directory check
hack/stage.sh fuzz hack/fuzz.sh build
hack/stage.sh unit make --no-print-directory unit
hack/stage.sh e2e make --no-print-directory e2e
# Where what nodes are made of was built before, by `make conformance` or `make e2e-node`: on a cold machine it takes minutes more.
if compgen -G "$CACHE/testbed/*/kubelet" >/dev/null; then
  hack/stage.sh conformance hack/conformance.sh
else
  echo "conformance: the Gateway API suite is skipped: its node is not built here (make conformance)"
fi
hack/stage.sh dashboards make --no-print-directory dashboards
hack/stage.sh loadtest make --no-print-directory loadtest
