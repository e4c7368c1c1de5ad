#!/usr/bin/env bash
# Fetches parts of the testbed that are not built from Go: `parts.sh providers/node-oidc`, `providers/keycloak`, `browser`. What
# a part is made of lies in the folder of that name, versions included; it is kept by the hash of that folder's files
# (src/testbed.rs finds it there). The last line of stdout is the directory that holds it; nothing is done if it is there
# already. Where a program is missing: a line on stderr that says so, exit status 3.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

part=${1:?a part}
need() {
  local program
  for program; do
    command -v "$program" >/dev/null || { echo "$part: $program is not installed" >&2; exit 3; }
  done
}
case $part in
  providers/node-oidc) need node npm ;;
  providers/keycloak) need java mvn tar ;;
  browser)
    need node npm certutil chromium
    version=$(node --version)
    version=${version#v}
    [ "${version%%.*}" -ge 20 ] || { echo "$part: node 20 or newer is needed, this is $version" >&2; exit 3; }
    ;;
  *) echo "there is no part $part" >&2; exit 2 ;;
esac

npm_part() { npm ci --no-audit --no-fund --ignore-scripts; }

# The server is configured once, and its database made and filled, which takes most of a start: tests start from a copy.
keycloak_part() {
  local release version sum archive home=$PWD/keycloak
  read -r version sum <release
  release=org.keycloak:keycloak-quarkus-dist:$version:tar.gz
  mvn -q -B dependency:copy -Dartifact="$release" -DoutputDirectory="$PWD" -Dmdep.useBaseVersion=true
  archive=keycloak-quarkus-dist-$version.tar.gz
  echo "$sum  $archive" | sha256sum --check --quiet
  mkdir keycloak
  tar -xzf "$archive" --strip-components=1 -C keycloak
  rm "$archive"
  "$home/bin/kc.sh" build --db=dev-file
  "$home/bin/kc.sh" import --optimized --file=realm.json
}

folder=$here/$part
key=$(cd "$folder" && LC_ALL=C && cat -- * | sha256sum | cut -c1-16)
root=${XDG_CACHE_HOME:-$HOME/.cache}/tak-os-ingress/testbed
out=$root/${part##*/}-$key
if [ ! -f "$out/complete" ]; then
  mkdir -p "$root"
  partial=$(mktemp -d "$root/.partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  cp "$folder"/* "$partial"
  case $part in
    providers/keycloak) (cd "$partial" && keycloak_part >&2) ;;
    *) (cd "$partial" && npm_part >&2) ;;
  esac
  chmod 755 "$partial"
  touch "$partial/complete"
  # Two at once: the first to rename wins, and the second finds what it needs.
  mv -T "$partial" "$out" 2>/dev/null || [ -f "$out/complete" ]
fi
echo "$out"
