#!/usr/bin/env bash
# The tests of e2e/tests against the binary, a few at a time: each starts processes of its own.
# Arguments go to the test programs (`hack/e2e.sh name_of_a_test`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

e2e/testbed/build.sh >/dev/null
e2e/peers/build.sh >/dev/null
e2e/peers/oauth2-proxy/build.sh >/dev/null
cargo build --locked --workspace
# What cannot be had here is left out by name.
declare -A missing=()
for part in providers/node-oidc providers/keycloak browser; do
  e2e/testbed/parts.sh $part >/dev/null || missing[$part]=yes
done
e2e/testbed/build.sh kube-controller-manager >/dev/null || missing[kube-controller-manager]=yes
e2e/testbed/acme/build.sh >/dev/null || missing[acme]=yes
# Where ACME asks.
python3 -c 'import socket; socket.socket().bind(("127.80.0.1", 80))' || missing[port-80]=yes
left_out() { # PART WHAT
  [ -n "${missing[$1]:-}" ] || return 1
  echo "NOT RUN: $2, without $1, see above" >&2
}
# Chosen by name and not by package: that would build the dependencies again, with fewer features.
tests=() skips=()
for file in e2e/tests/*.rs; do
  case $(basename "$file") in
    cluster_cert_manager.rs)
      if left_out acme "$file"; then continue; fi
      if left_out kube-controller-manager "$file: certificates_go_with_their_ingress"; then
        skips+=(--skip certificates_go_with_their_ingress)
      fi
      if left_out port-80 "$file: acme_certificates_are_issued"; then skips+=(--skip acme_certificates_are_issued); fi
      ;;
    cluster_rbac.rs)
      if left_out acme "$file: one_pod_of_two_writes"; then skips+=(--skip one_pod_of_two_writes); fi
      ;;
    provider_oidc.rs) if left_out providers/node-oidc "$file"; then continue; fi ;;
    provider_keycloak.rs)
      if left_out providers/keycloak "$file"; then continue; fi
      if left_out browser "$file: a_real_browser"; then skips+=(--skip a_real_browser); fi
      ;;
  esac
  tests+=(--test "$(basename "$file" .rs)")
done
if [ -n "${TAK_INGRESS_GUIDES:-}" ]; then
  cargo test --locked --workspace --test cluster_install -- --test-threads 1 --ignored "$@"
else
  echo "e2e: the tests of the guides' own text are skipped: TAK_INGRESS_GUIDES does not name their folder"
fi
cargo test --locked --workspace --no-fail-fast "${tests[@]}" -- --test-threads "${E2E_THREADS:-2}" "${skips[@]}" "$@"
