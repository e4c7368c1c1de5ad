#!/usr/bin/env bash
# Checks the k6 scripts against k6's type declarations. The packages are pinned by loadtest/package-lock.json.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

command -v npm >/dev/null || { echo "loadtest: the type check of the k6 scripts is skipped: there is no npm"; exit 0; }
work=$CACHE/tools/loadtest
mkdir -p "$work"
if ! cmp -s loadtest/package-lock.json "$work/package-lock.json" || [ ! -d "$work/node_modules" ]; then
  rm -rf "$work/node_modules"
  cp loadtest/package.json loadtest/package-lock.json "$work/"
  (cd "$work" && npm ci --no-audit --no-fund --silent)
fi
rm -rf "$work/k6"
cp -r loadtest/k6 loadtest/tsconfig.json "$work/"
(cd "$work" && node_modules/.bin/tsc --project tsconfig.json)
echo "loadtest: $(find loadtest/k6 -name '*.js' | wc -l) scripts are sound"
