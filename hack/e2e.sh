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
left_out() { # PART WHAT
  [ -n "${missing[$1]:-}" ] || return 1
  echo "NOT RUN: $2, without $1, see above" >&2
}
# Chosen by name and not by package: that would build the dependencies again, with fewer features.
tests=() skips=()
for file in e2e/tests/*.rs; do
  case $(basename "$file") in
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
