#!/usr/bin/env bash
# node.sh I: a real node, that is containerd, kubelet and kube-proxy. Node 1 lives beside the control plane, others in a network
# namespace of their own with a cable to node 1's bridge. All processes of a node are in one PID and mount namespace: when its first
# process ends, the kernel ends the rest and drops every mount.
set -euo pipefail
# shellcheck source=env.sh
. "$(dirname "$0")/env.sh"
I=$1 name=node$1 ip=$NET.$1 pods=10.244.$(($1 - 1)).0/24
N=$RUN/$name P=$RUN/pki
mkdir -p "$N"/{cni,kubelet,containerd} "$RUN"/{log,pid}
"$here/pki.sh" "$I"
begin=$(date +%s)

netns=$NETNS
if [ "$I" != 1 ]; then
  netns=$NETNS-$name
  if [ ! -e "/run/netns/$netns" ]; then
    ip netns add "$netns"
    ip -n "$netns" link set lo up
    ip -n "$netns" link add eth0 type veth peer name "v$name" netns "$NETNS"
    ip -n "$NETNS" link set "v$name" master br0 up
    ip -n "$netns" addr add "$ip/24" dev eth0
    ip -n "$netns" link set eth0 up
    ip -n "$netns" route add default via $NET.1
    nsenter --net="/run/netns/$netns" sysctl -qw net.ipv4.ip_forward=1
    for ((j = 1; j < I; j++)); do # Pods of either node reach those of the other
      other=$NETNS
      [ $j = 1 ] || other=$NETNS-node$j
      ip -n "$netns" route replace 10.244.$((j - 1)).0/24 via $NET.$j
      ip -n "$other" route replace "$pods" via "$ip"
    done
  fi
fi

if ! alive "$name-init"; then
  START_IN="--net=/run/netns/$netns" start "$name-unshare" \
    unshare --mount --propagation slave --pid --fork --kill-child=KILL --mount-proc "$BIN/pause"
  until_true 10 "the first process of $name" pgrep -P "$(cat "$RUN/pid/$name-unshare")" -x pause
  pgrep -P "$(cat "$RUN/pid/$name-unshare")" -x pause >"$RUN/pid/$name-init"
fi
START_IN="-t $(cat "$RUN/pid/$name-init") -m -p -n"
export START_IN
# shellcheck disable=SC2086
in_node() { nsenter $START_IN "$@"; }
in_node sh -c 'mountpoint -q /run/containerd || { mkdir -p /run/containerd; mount -t tmpfs none /run/containerd; mount -t tmpfs none /var/log; mount --make-rshared /; }'

# A kubelet sets these for the whole machine where they differ. Here it finds what it wants in plain files, and sets nothing.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=$N/sysctl/${setting%%=*}
  mkdir -p "${file%/*}"
  echo "${setting#*=}" >"$file"
  in_node sh -c "grep -q ' /proc/sys/${setting%%=*} ' /proc/self/mounts || mount --bind '$file' '/proc/sys/${setting%%=*}'"
done

# A cgroup of the node's own.
cgroup=/$NETNS-$name
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  mkdir -p "/sys/fs/cgroup$cgroup"
else
  for hierarchy in /sys/fs/cgroup/*/; do
    case $hierarchy in */unified/) continue ;; esac
    mkdir -p "$hierarchy$cgroup"
    if [ -e "$hierarchy/cpuset.cpus" ]; then for f in cpuset.cpus cpuset.mems; do cat "$hierarchy/$f" >"$hierarchy$cgroup/$f"; done; fi
  done
fi

cat >"$N/cni/10-e2e.conflist" <<Y
{"cniVersion": "0.4.0", "name": "e2e", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$N/ipam", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}
Y
cat >"$N/containerd.toml" <<Y
version = 2
root = "$N/containerd"
state = "/run/containerd/e2e"
oom_score = 0
[grpc]
  address = "$N/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.6"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$N/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
Y
: >"$N/resolv.conf"
cat >"$N/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: $cgroup
failSwapOn: false
oomScoreAdj: 0
containerRuntimeEndpoint: unix://$N/containerd.sock
clusterDomain: cluster.local
clusterDNS: [$DNS]
resolvConf: $N/resolv.conf
podLogsDir: /var/log/pods
volumePluginDir: $N/volumeplugins
address: $ip
healthzBindAddress: 127.0.0.1
tlsCertFile: $P/$name-server.crt
tlsPrivateKeyFile: $P/$name-server.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $P/ca.crt}}
authorization: {mode: Webhook}
evictionHard: {memory.available: "1Mi", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 4s
nodeStatusReportFrequency: 10s
syncFrequency: 10s
enforceNodeAllocatable: [pods]
Y
cat >"$N/kube-proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: $RUN/$name-proxy.kubeconfig}
clusterCIDR: 10.244.0.0/16
hostnameOverride: $name
oomScoreAdj: 0
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
Y
alive "$name-containerd" || start "$name-containerd" containerd -c "$N/containerd.toml"
images=(ctr -a "$N/containerd.sock" -n k8s.io images)
until_true 30 "containerd of $name" "${images[@]}" list
for image in "$BIN"/images/*.tar "$RUN"/images/*.tar; do
  in_node "${images[@]}" import "$image" >/dev/null
done
alive "$name-kubelet" || start "$name-kubelet" kubelet --config "$N/kubelet.yaml" --kubeconfig "$RUN/$name.kubeconfig" \
  --hostname-override "$name" --node-ip "$ip" --root-dir "$N/kubelet" --v=2
alive "$name-kube-proxy" || start "$name-kube-proxy" kube-proxy --config "$N/kube-proxy.yaml"
# Ready, and said so by this kubelet: an older node of this name keeps its condition for a while.
ready() {
  local said
  said=$(ns kubectl get node "$name" -o 'jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{end}')
  [ "${said% *}" = True ] && [ "$(date -d "${said#* }" +%s)" -ge "$begin" ]
}
until_true 60 "$name ready" ready || { tail -20 "$RUN/log/$name-kubelet.log" >&2; exit 1; }
echo "$name is ready"
