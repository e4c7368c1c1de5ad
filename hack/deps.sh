#!/usr/bin/env bash
# Installs what building (`deps.sh build`) or testing (`deps.sh test`, the default) needs and this machine lacks.
# Debian 12 or newer and Ubuntu 22.04 or newer; elsewhere it names what is missing. Run again, it does nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh

purpose=${1:-test}
case $purpose in build | test) ;; *) echo "deps.sh takes build or test" >&2; exit 2 ;; esac

say() { echo "deps: $*"; }
fail() { echo "deps: $*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif have sudo; then sudo "$@"
  else fail "this needs root, or sudo: $*"
  fi
}

apt_lists_fresh=
apt_update() {
  have apt-get || fail "no apt-get here; install by hand: $*"
  [ -n "$apt_lists_fresh" ] || as_root apt-get update -qq
  apt_lists_fresh=1
}
apt_install() {
  apt_update "$@"
  say "apt-get install $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
# The version that apt would install, without its epoch; empty if there is none.
candidate() { apt-cache policy "$1" | sed -n 's/^  Candidate: \([0-9]*:\)\{0,1\}//p' | grep -v '^(none)' || true; }

# Programs, each with the package that has it.
missing=()
want() { # PROGRAM-OR-FILE PACKAGE
  case $1 in
    /*) [ -e "$1" ] || missing+=("$2") ;;
    *) have "$1" || missing+=("$2") ;;
  esac
}
want cc build-essential
want make build-essential
want /usr/include/stdio.h build-essential
# A bare perl lacks modules that building OpenSSL needs.
perl -MIPC::Cmd -MFindBin -MFile::Compare -e 1 2>/dev/null || missing+=(perl)
want pkg-config pkg-config
want curl curl
want git git
want /etc/ssl/certs/ca-certificates.crt ca-certificates
if [ "$purpose" = test ]; then
  want openssl openssl
  want jq jq
  want python3 python3
fi
if [ ${#missing[@]} -gt 0 ]; then
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
  apt_install "${missing[@]}"
fi

# For the identity providers and the browser that logins are tested with, and for nodes, which only root can start. Tests of what
# cannot be had are left out by name.
if [ "$purpose" = test ]; then
  missing=()
  want node nodejs
  want npm npm
  want java default-jre-headless
  want mvn maven
  want chromium chromium
  want certutil libnss3-tools
  if [ "$(id -u)" = 0 ]; then
    want containerd containerd
    want runc runc
    want iptables iptables
    want /usr/lib/cni/bridge containernetworking-plugins
    want ip iproute2
  fi
  [ ${#missing[@]} = 0 ] || (
    apt_update "${missing[@]}"
    for package in "${missing[@]}"; do
      # Ubuntu's is a script that asks for a snap
      if [[ $(candidate "$package") = "" || $(candidate "$package") = *snap* ]]; then
        say "no package $package here"
      else
        apt_install "$package"
      fi
    done
  ) || say "not everything of ${missing[*]} could be installed"
fi

# Rust, at the version of rust-toolchain.toml.
channel=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
rust_ready() {
  have cargo && [ "$(rustc --version 2>/dev/null | cut -d' ' -f2)" = "$channel" ] &&
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1
}
if ! have rustup && ! rust_ready; then
  apt_update rustup
  if [ -n "$(candidate rustup)" ]; then
    apt_install rustup
  else
    say "no rustup package here: running the installer of rustup.rs"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
      sh -s -- -y --quiet --no-modify-path --profile minimal --default-toolchain none ||
      fail "rustup could not be installed: install Rust $channel with rustfmt and clippy by hand"
  fi
fi
if ! rust_ready; then
  say "Rust $channel"
  rustup toolchain install "$channel" --profile minimal --component rustfmt --component clippy
  rust_ready || fail "Rust $channel with rustfmt and clippy is still not there"
fi

# Go, for the API server and the etcd of the cluster tests. Anything from 1.21 on fetches the version of their go.mod.
[ "$purpose" = test ] && [ -z "${KUBEBUILDER_ASSETS:-}" ] || exit 0
tools=e2e/testbed/tools
wanted=$(sed -n 's/^go \([0-9.]*\)$/\1/p' $tools/go.mod)
minor() { sed -n 's/^\(go\)\{0,1\}1\.\([0-9]*\).*/\2/p'; }
go_minor() { { GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true; } | minor; }

install_go() {
  apt_update golang-go
  if [ "$(candidate golang-go | minor)" -ge 21 ] 2>/dev/null; then
    apt_install golang-go
    return
  fi
  local newest
  newest=$(apt-cache pkgnames golang-1. | sed -n 's/^golang-1\.\([0-9]*\)-go$/\1/p' | sort -n | tail -1)
  if [ "${newest:-0}" -ge 21 ]; then
    apt_install "golang-1.$newest-go"
    mkdir -p "$CACHE/bin"
    ln -sfn "/usr/lib/go-1.$newest/bin/go" "$CACHE/bin/go"
    return
  fi
  local codename mirror
  codename=$(. /etc/os-release && echo "$ID-${VERSION_CODENAME:-}")
  [ "$codename" = debian-bookworm ] || fail "no Go from 1.21 on in this system's packages: install Go $wanted by hand"
  # shellcheck disable=SC2016 # apt fills it in
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' | head -1)
  say "adding bookworm-backports to apt's sources"
  echo "deb ${mirror:?} bookworm-backports main" |
    as_root tee /etc/apt/sources.list.d/tak-os-ingress-backports.list >/dev/null
  apt_lists_fresh=
  apt_update golang-go
  apt_install -t bookworm-backports golang-go
}
[ "$(go_minor)" -ge 21 ] 2>/dev/null || install_go
(cd $tools && go version >/dev/null) || fail "Go $wanted is needed for $tools and could not be fetched"
