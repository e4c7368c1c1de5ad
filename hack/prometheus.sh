#!/usr/bin/env bash
# Prometheus and promtool for the tests of dashboards and alerts: prints the directory that holds both. They come out of
# the system's package without being installed: the package would start a service on port 9090.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

out=$CACHE/tools/prometheus
if [ ! -x "$out/usr/bin/prometheus" ] || [ ! -x "$out/usr/bin/promtool" ]; then
  for need in apt-get dpkg-deb; do
    command -v $need >/dev/null || { echo "no Prometheus here, and no $need to fetch it with" >&2; exit 1; }
  done
  partial=$(mktemp -d)
  trap 'rm -rf "$partial"' EXIT
  chmod 755 "$partial"
  (cd "$partial" && apt-get download -qq prometheus >&2) || { apt-get update -qq >&2; (cd "$partial" && apt-get download -qq prometheus >&2); }
  mkdir -p "$out"
  dpkg-deb -x "$partial"/prometheus_*.deb "$out"
fi
echo "$out/usr/bin"
