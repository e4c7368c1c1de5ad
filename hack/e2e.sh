#!/usr/bin/env bash
# The tests of e2e/tests against the binary, a few at a time: each starts processes of its own.
# Arguments go to the test programs (`hack/e2e.sh name_of_a_test`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

e2e/testbed/build.sh >/dev/null
e2e/peers/build.sh >/dev/null
cargo build --locked --workspace
# Chosen by name and not by package: that would build the dependencies again, with fewer features.
tests=()
providers=yes
e2e/testbed/providers/build.sh >/dev/null || providers=
for file in e2e/tests/*.rs; do
  case $(basename "$file") in
    provider_*) [ "$providers" ] || { echo "NOT RUN: $file, see above" >&2; continue; } ;;
  esac
  tests+=(--test "$(basename "$file" .rs)")
done
if [ -n "${TAK_INGRESS_GUIDES:-}" ]; then
  cargo test --locked --workspace --test cluster_install -- --test-threads 1 --ignored "$@"
else
  echo "e2e: the tests of the guides' own text are skipped: TAK_INGRESS_GUIDES does not name their folder"
fi
cargo test --locked --workspace --no-fail-fast "${tests[@]}" -- --test-threads "${E2E_THREADS:-2}" "$@"
