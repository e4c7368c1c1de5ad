#!/usr/bin/env bash
# Dashboards and alerts: `dashboards.sh write` makes the JSON anew; without an argument it checks that the JSON is what the
# generator makes, that Grafana's schema takes it, that alerts fire on what they are for, and that no panel is empty when a
# real Prometheus scrapes the product under load.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

json=dashboards/tak-os-ingress.json
made=$(mktemp)
trap 'rm -f "$made"' EXIT
(cd dashboards/tools && go run ./generate) >"$made"
if [ "${1:-}" = write ]; then
  cat "$made" >"$json"
  exit 0
fi
diff -u "$json" "$made" || { echo "$json is not what the generator makes: hack/dashboards.sh write" >&2; exit 1; }
(cd dashboards/tools && go run ./lint ../*.json)

if ! programs=$(hack/prometheus.sh); then
  echo "dashboards: the tests of alerts and no_panel_is_empty_under_load are skipped: there is no Prometheus"
  exit 0
fi
(cd dashboards && "$programs/promtool" check rules ./*.rules.yaml && "$programs/promtool" test rules ./*.rules.test.yaml)
e2e/testbed/build.sh >/dev/null
cargo build --locked --workspace
TAK_INGRESS_PROMETHEUS=$programs cargo test --locked --workspace --test cluster_dashboards -- --ignored
