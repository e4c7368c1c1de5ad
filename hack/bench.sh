#!/usr/bin/env bash
# `make bench`: the release build beside other proxies, see loadtest/bench/README.md. ARGS go to `bench.py run`;
# TAK_INGRESS_BIN takes another build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

missing=()
for need in gcc:gcc h2load:nghttp2-client nginx:nginx-light taskset:util-linux openssl:openssl python3:python3; do
  PATH=$PATH:/usr/sbin command -v "${need%%:*}" >/dev/null || missing+=("${need#*:}")
done
[ -e /usr/include/openssl/ssl.h ] || missing+=(libssl-dev)
[ ${#missing[@]} = 0 ] || { echo "bench: missing packages: ${missing[*]}" >&2; exit 1; }
peers=nginx
for peer in haproxy caddy; do
  if PATH=$PATH:/usr/sbin command -v $peer >/dev/null; then peers+=,$peer; else echo "bench: without $peer, which is not installed"; fi
done
more=(--peer loadtest/bench/peers/tak-os-ingress.json)
[ -z "${ENVOY:-}" ] || more+=(--peer loadtest/bench/peers/envoy.json)
[ -z "${TRAEFIK:-}" ] || more+=(--peer loadtest/bench/peers/traefik.json)

if [ -z "${TAK_INGRESS_BIN:-}" ]; then
  cargo build --locked --release --bin tak-os-ingress
  TAK_INGRESS_BIN=$CARGO_TARGET_DIR/release/tak-os-ingress
fi
export TAK_INGRESS_BIN
if [ $# -gt 0 ]; then set -- "$@"; else set -- --scenarios h1_1k,h1s_1k,h2_1k --rounds 5 --scale 0.25; fi
exec loadtest/bench/bench.py run --peers "$peers" "${more[@]}" "$@"
