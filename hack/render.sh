#!/usr/bin/env bash
# Fills in the Orbit template default/020-daemonset.yaml for a cluster without Orbit and writes it to stdout, or to --out.
# The template itself is not touched. On an error nothing is written, and the exit status is 1 (2 for a bad call).
#
#   hack/render.sh IMAGE [--type=ClusterIP|NodePort|LoadBalancer] [--external-ips=IP,IP] [--out=FILE] [--template=FILE]
#
# ClusterIP, the default, gives an internal Service. NodePort and LoadBalancer keep externalTrafficPolicy: Local.
set -euo pipefail

usage() { echo "render: $*; usage: render.sh IMAGE [--type=TYPE] [--external-ips=IP,IP] [--out=FILE] [--template=FILE]" >&2; exit 2; }
fail() { echo "render: $*" >&2; exit 1; }

template=$(dirname "${BASH_SOURCE[0]}")/../default/020-daemonset.yaml
image='' type=ClusterIP ips='' out=''
for argument in "$@"; do
  case $argument in
    --type=*) type=${argument#*=} ;;
    --external-ips=*) ips=${argument#*=} ;;
    --out=*) out=${argument#*=} ;;
    --template=*) template=${argument#*=} ;;
    -*) usage "$argument: no such option" ;;
    *) [ -z "$image" ] || usage "one image, not $image and $argument"; image=$argument ;;
  esac
done
[ -n "$image" ] || usage "the image is missing"
[[ $image =~ ^[a-z0-9]([a-z0-9.:_/-]*[a-z0-9])?(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@sha256:[0-9a-f]{64})?$ ]] ||
  usage "$image is not an image like registry.example.com/name:tag"
case $type in ClusterIP | NodePort | LoadBalancer) ;; *) usage "--type=$type: accepted: ClusterIP, NodePort, LoadBalancer" ;; esac
[[ $ips =~ ^[0-9a-fA-F.:,]*$ ]] || usage "--external-ips=$ips: accepted: IP addresses separated by commas"
[[ $image != *:latest ]] || echo "render: note: $image may be another image tomorrow; a rollback needs a fixed tag" >&2

# ExternalIPs, as the template writes it, is no field of a Service; externalTrafficPolicy is refused on an internal one.
edits=(-e "s|<!tak-os-ingress!>|$image|g" -e 's|<!tak-os-ingress-hash!>|"manual"|g')
if [ -n "$ips" ]; then edits+=(-e "s|ExternalIPs:.*|externalIPs: [${ips//,/, }]|"); else edits+=(-e '/ExternalIPs:/d'); fi
if [ "$type" = ClusterIP ]; then edits+=(-e '/externalTrafficPolicy:/d'); else edits+=(-e "s|type: ClusterIP\$|type: $type|"); fi
manifest=$(sed "${edits[@]}" "$template")

if left=$(grep -n '<!' "$template" | grep -v -e '<!tak-os-ingress!>' -e '<!tak-os-ingress-hash!>' -e 'ExternalIPs:'); then
  while IFS= read -r line; do echo "render: $template:$line: nothing is known to put in place of this placeholder" >&2; done <<<"$left"
  exit 1
fi
[[ $manifest != *'<!'* ]] || fail "a placeholder is left, in a line that has two: $(grep -m1 '<!' <<<"$manifest")"

if [ -n "$out" ]; then printf '%s\n' "$manifest" >"$out"; else printf '%s\n' "$manifest"; fi
