#!/usr/bin/env bash
# `make conformance`: the Gateway API's own suite against the image of this checkout, run as the DaemonSet of default/ on a real node
# in a network namespace on this machine. Skipped, by name, where the machine cannot. See e2e/conformance/README.md.
#
#   hack/conformance.sh                all of it; the report is left in $CARGO_TARGET_DIR/conformance
#   hack/conformance.sh -run NAME      one test, with its whole output (NAME as in the report, HTTPRouteMatching)
#   hack/conformance.sh list           the names
#   hack/conformance.sh down           ends a cluster that KEEP=1 left
#
# KEEP=1     the cluster stays, and the next run takes it: only a changed program is rolled out
# BINARY     another program than this checkout's build
# FEATURES   instead of what the GatewayClass says it supports; `all` for every one
# CHANNEL    experimental (default) or standard CRDs
# ADDRESSES  own (default): the Pod is in the network of its node and gives each Gateway one of the node's addresses;
#            shared: the DaemonSet as it ships, all Gateways at the address of its Service
# ARGS       further flags of the suite, such as -debug
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/env.sh
. hack/env.sh
SUITE="conformance: the Gateway API suite"
# shellcheck source=e2e/node/machine.sh
. e2e/node/machine.sh

# Ports of the listeners in the suite's manifests, but those of TCP and UDP routes.
PORTS=(80 443 8080 8090 8443 6443 7443 8883)
# The load balancer's, and those of the node that Gateways get; the last one is asked for by the test of addresses of one's choice.
ADDRESS=10.123.0.200
OWN=$(printf '10.123.0.%d,' {101..180} | sed 's/,$//') UNUSABLE=10.123.0.99
out=$CARGO_TARGET_DIR/conformance
kept=${TMPDIR:-/tmp}/tak-os-ingress-conformance

test='' crds=() profiles=()
case ${ADDRESSES:=own} in
  own) form=(--host-network) usual=() ;;
  shared)
    # The first two set Gateways with equal listeners apart, the rest is claimed with addresses alone: ADR 13 and 21.
    form=() usual=(fail=HTTPRouteMultipleGateways fail=TLSRouteHostnameIntersection skip=GatewayStaticAddresses)
    for name in GatewayFrontendClientCertificateValidation GatewayFrontendClientCertificateValidationInsecureFallback \
      GatewayFrontendInvalidDefaultClientCertificateValidation GatewayInvalidFrontendClientCertificateValidation; do
      usual+=("skip=$name")
    done
    ;;
  *) echo "conformance: ADDRESSES=$ADDRESSES: own or shared" >&2; exit 2 ;;
esac
case ${CHANNEL:=experimental} in
  experimental) ;;
  # they have no field retry
  standard) usual+=(skip=HTTPRouteRetry) ;;
  *) echo "conformance: CHANNEL=$CHANNEL: experimental or standard" >&2; exit 2 ;;
esac
case ${1:-} in
  '') ;;
  -run) test=${2:?a name: hack/conformance.sh list} ;;
  list | down) ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
if [ "${1:-}" = list ]; then
  grep -rhoP 'ShortName: +"\K[^"]+' "$(cd e2e/conformance && go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api/conformance)/tests" | sort
  exit
fi
machine_can
BIN=$(e2e/node/build.sh | tail -1)
export BIN NODES=1
if [ "${1:-}" = down ]; then
  RUN=$kept NETNS=takconformance e2e/node/down.sh
  rm -rf "$kept"
  exit
fi
suite=$(e2e/conformance/build.sh | tail -1)
binary=$(machine_binary)
if [ "${KEEP:-}" = 1 ]; then
  machine_begin "$kept" takconformance
else
  machine_begin "$(mktemp -d "${TMPDIR:-/tmp}/tak-os-ingress-conformance.XXXXXX")" "takconf$$"
fi
ns() { nsenter --net="/run/netns/$NETNS" env KUBECONFIG="$RUN/admin.kubeconfig" PATH="$BIN:$PATH" "$@"; }

# A cluster, this one or a new one.
for image in "$suite"/images/*.tar; do ln -f "$image" "$RUN/images/" 2>/dev/null || cp "$image" "$RUN/images/"; done
tag=$(sha256sum <"$binary" | cut -c1-12)
image=registry.example.com/tak-os-ingress:$tag
fresh=''
if ! ns kubectl get --raw /readyz >/dev/null 2>&1; then
  fresh=1
  e2e/node/down.sh
  rm -rf "$RUN"/{data,pid,log}
fi
if [ ! -s "$RUN/images/product-$tag.tar" ]; then
  rm -f "$RUN"/images/product-*.tar
  IMAGE=$image OUT=$RUN/images/product-$tag.tar BINARY=$binary hack/image.sh
  [ -n "$fresh" ] || e2e/node/import.sh 1 "$RUN/images/product-$tag.tar"
fi
[ -z "$fresh" ] || e2e/node/up.sh
for file in "$suite/crds/$CHANNEL"/gateway.*.yaml; do crds+=(-f "$file"); done
ns kubectl apply --server-side --force-conflicts "${crds[@]}" >/dev/null
ns kubectl wait --for=condition=Established crd --all --timeout=30s >/dev/null

# The product as it ships, with the ports that the suite asks for.
flags=$("$binary" --help)
has() { grep -q -e "$1" <<<"$flags"; }
arguments=()
has --gateway-listener-ports && arguments+=("--gateway-listener-ports=$(IFS=, && echo "${PORTS[*]}")")
if [ "$ADDRESSES" = own ]; then
  arguments+=("--gateway-addresses=$OWN")
  for own in ${OWN//,/ }; do ip -n "$NETNS" addr replace "$own/32" dev br0; done
fi
hack/render.sh "$image" --type=LoadBalancer >"$RUN/rendered.yaml"
e2e/conformance/ports.py "${form[@]}" "$RUN/rendered.yaml" "${PORTS[@]}" -- "${arguments[@]}" >"$RUN/product.yaml"
ns kubectl apply -f default/000-namespace.yaml >/dev/null
# Its Pod Security Standard, restricted, knows no network of the node.
[ "$ADDRESSES" = shared ] || ns kubectl label namespace tak-os-ingress pod-security.kubernetes.io/enforce=privileged --overwrite >/dev/null
# What another program said that it supports must not count.
[ -n "$fresh" ] || ns kubectl delete -f e2e/conformance/class.yaml --ignore-not-found >/dev/null
ns kubectl apply -f default/010-rbac.yaml -f "$RUN/product.yaml" -f e2e/conformance/class.yaml >/dev/null
ns kubectl -n tak-os-ingress patch service tak-os-ingress --subresource=status --type=merge \
  -p "{\"status\":{\"loadBalancer\":{\"ingress\":[{\"ip\":\"$ADDRESS\"}]}}}" >/dev/null
ns kubectl -n tak-os-ingress rollout status daemonset/tak-os-ingress --timeout=180s

mkdir -p "$out"
call=(-test.run '^TestConformance$' -test.v -test.timeout 20m -gateway-class=tak-os
  -usable-address="${OWN##*,}" -unusable-address=$UNUSABLE)
[ "${KEEP:-}" != 1 ] || call+=(-cleanup-base-resources=false)
case ${FEATURES:-} in
  '') ;;
  all) call+=(-all-features) ;;
  *) call+=("-supported-features=$FEATURES") ;;
esac
# shellcheck disable=SC2206 # several words
call+=(${ARGS:-})
if [ -n "$test" ]; then
  # The suite says the same many times a second while it waits.
  ns "$suite/conformance.test" "${call[@]}" -run-test="$test" 2>&1 | grep --line-buffered -v -e '^ *--- SKIP' -e 'explicitly skipped' -e '^=== ' |
    awk '{ said = $0; gsub(/[0-9-]+T[0-9:.]+Z/, "", said); if (!(said in seen)) print; seen[said] = 1; fflush() }'
  exit
fi
# A profile asks for all of its core features, claimed or not.
ns kubectl wait --for=condition=Accepted gatewayclass/tak-os --timeout=60s >/dev/null
claimed=${FEATURES:-$(ns kubectl get gatewayclass tak-os -o jsonpath='{.status.supportedFeatures[*].name}')}
for kind in HTTP GRPC TLS; do
  if [[ ",${claimed// /,}," =~ ,(all|${kind}Route), ]]; then profiles+=("GATEWAY-$kind"); fi
done
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
status=0
# Waited for, and not run in front: a signal to this script is heard at once.
nsenter --net="/run/netns/$NETNS" env KUBECONFIG="$RUN/admin.kubeconfig" PATH="$BIN:$PATH" \
  "$suite/conformance.test" "${call[@]}" -conformance-profiles="$(IFS=, && echo "${profiles[*]}")" -report-output="$out/report.yaml" \
  -organization=TAK-OS -project=tak-os-ingress -url=https://gitlab.com/tak-os-platform/tak-os-containers/tak-os-ingress \
  -version="$version" -contact=@tak-os >"$out/log.txt" 2>&1 &
echo $! >"$RUN/pid/conformance.test"
wait $! || status=$?
rm -f "$RUN/pid/conformance.test"
e2e/conformance/compare.py e2e/conformance/expected.txt "$out/log.txt" $status "${usual[@]}"
