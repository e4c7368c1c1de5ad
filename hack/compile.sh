#!/usr/bin/env bash
# Builds everything that the tests run, with one set of features for all, so that no crate is built twice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh
cargo build --locked --workspace
cargo test --locked --workspace --no-run
