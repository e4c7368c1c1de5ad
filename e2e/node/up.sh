#!/usr/bin/env bash
# Control plane, two nodes (NODES=1: one, which takes every Pod), CoreDNS and a client host; returns when all are ready.
set -euo pipefail
# shellcheck source=env.sh
. "$(dirname "$0")/env.sh"
mkdir -p "$RUN"/{log,pid,data}

if [ ! -e "/run/netns/$NETNS" ]; then
  ip netns add "$NETNS"
  ip -n "$NETNS" link set lo up
  # With an address of its own: else it would take another when a node comes or goes, and the others' neighbour tables would be wrong.
  ip -n "$NETNS" link add br0 address 02:00:00:00:00:01 type bridge
  ip -n "$NETNS" addr add "$NET.1/24" dev br0
  ip -n "$NETNS" link set br0 up
  # Routing comes before the translation of Service addresses, so that there must be some route: it ends in the bridge.
  ip -n "$NETNS" route add default dev br0
  ns sysctl -qw net.ipv4.ip_forward=1
fi
"$here/pki.sh"
P=$RUN/pki
start etcd etcd --name e2e --data-dir "$RUN/data" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster e2e=http://127.0.0.1:2380
start kube-apiserver kube-apiserver --etcd-servers http://127.0.0.1:2379 --secure-port $API_PORT --advertise-address $NET.1 \
  --client-ca-file "$P/ca.crt" --tls-cert-file "$P/apiserver.crt" --tls-private-key-file "$P/apiserver.key" \
  --service-account-issuer https://kubernetes.default.svc.cluster.local \
  --service-account-signing-key-file "$P/sa.key" --service-account-key-file "$P/sa.pub" \
  --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --service-cluster-ip-range 10.96.0.0/16 \
  --kubelet-client-certificate "$P/apiserver-kubelet-client.crt" --kubelet-client-key "$P/apiserver-kubelet-client.key" \
  --kubelet-certificate-authority "$P/ca.crt" --kubelet-preferred-address-types InternalIP
until_true 120 "the API server" ns kubectl get --raw /readyz
start kube-controller-manager kube-controller-manager --kubeconfig "$RUN/kube-controller-manager.kubeconfig" \
  --bind-address 127.0.0.1 --leader-elect=false --use-service-account-credentials --kube-api-qps 500 --kube-api-burst 1000 \
  --root-ca-file "$P/ca.crt" --service-account-private-key-file "$P/sa.key" --service-cluster-ip-range 10.96.0.0/16
start kube-scheduler kube-scheduler --kubeconfig "$RUN/kube-scheduler.kubeconfig" --bind-address 127.0.0.1 --leader-elect=false
until_true 60 "the ServiceAccount default" ns kubectl get serviceaccount default
"$here/node.sh" 1
if [ "${NODES:-2}" = 2 ]; then
  "$here/node.sh" 2
  # Node 1 is what control-plane nodes are: tainted.
  ns kubectl label node node1 node-role.kubernetes.io/control-plane= --overwrite >/dev/null
  ns kubectl taint node node1 node-role.kubernetes.io/control-plane=:NoSchedule --overwrite >/dev/null
fi

client=$NETNS-client
if [ ! -e "/run/netns/$client" ]; then
  ip netns add "$client"
  ip -n "$client" link set lo up
  ip -n "$client" link add eth0 type veth peer name vclient netns "$NETNS"
  ip -n "$NETNS" link set vclient master br0 up
  ip -n "$client" addr add "$NET.250/24" dev eth0
  ip -n "$client" link set eth0 up
fi
ns kubectl apply -f "$here/coredns.yaml" >/dev/null
ns kubectl -n kube-system rollout status deployment/coredns --timeout=120s
