#!/usr/bin/env bash
# `make demo`: starts the bundled example and asks it for a page through HTTP and HTTPS.
# On a terminal it then goes on serving; otherwise, or with DEMO_ONCE=1, it stops.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

# A release build that is as new as the sources will do; else the quicker development build.
binary=$CARGO_TARGET_DIR/release/tak-os-ingress
sources=(Cargo.toml Cargo.lock src proxy controller)
if [ ! -x "$binary" ] || [ -n "$(find "${sources[@]}" -newer "$binary" -print -quit)" ]; then
  cargo build --locked --bin tak-os-ingress
  binary=$CARGO_TARGET_DIR/debug/tak-os-ingress
fi

"$binary" demo &
pid=$!
trap 'kill -TERM $pid 2>/dev/null || true; wait $pid 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ask() { curl --noproxy '*' --silent --show-error --max-time 10 "$@"; }
for ((i = 0; ; i++)); do
  if ask --fail --output /dev/null http://127.0.0.1:9090/readyz 2>/dev/null; then break; fi
  if ! kill -0 $pid 2>/dev/null; then
    status=0
    wait $pid || status=$?
    exit $((status == 0 ? 1 : status))
  fi
  ((i < 300)) || { echo "the demo is not ready after 30 seconds" >&2; exit 1; }
  sleep 0.1
done
# Another process may hold the port that answered.
kill -0 $pid

show() {
  echo
  echo "\$ curl $*"
  ask --fail-with-body --write-out '\n(%{http_code}, HTTP/%{http_version})\n' "${@//\'/}"
}
show -H "'Host: demo.localhost'" http://127.0.0.1:8080/
show -k --resolve secure.localhost:8443:127.0.0.1 https://secure.localhost:8443/

if [ -t 0 ] && [ -z "${DEMO_ONCE:-}" ]; then
  echo
  echo "The demo goes on serving; Ctrl-C ends it."
  trap 'exit 0' INT
  wait $pid
fi
