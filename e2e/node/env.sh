# shellcheck shell=bash
# Sourced by the scripts beside it: a control plane and real nodes, all in network namespaces of their own, out of which no packet
# finds a way. RUN holds all state; NETNS is the namespace of node 1 and the control plane.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
RUN=${RUN:?a folder for certificates, data, logs and process ids}
BIN=${BIN:?the folder that build.sh names}
NETNS=${NETNS:-takingress}
NET=10.123.0          # node I is $NET.I, the client $NET.250, the load balancer's address $NET.200
API_PORT=16443        # 6443 is one of the ports that Gateways listen to in tests
DNS=10.96.0.10
export KUBECONFIG=$RUN/admin.kubeconfig
PATH=$BIN:$PATH:/usr/sbin:/sbin

# Not `ip netns exec`: it mounts /sys anew, which hides the cgroups.
ns() { nsenter --net="/run/netns/$NETNS" "$@"; }

# start NAME COMMAND...: in the background, with log and process id. START_IN takes other namespaces than NETNS.
start() {
  local name=$1 pid child
  shift
  # shellcheck disable=SC2086 # several words
  setsid nsenter ${START_IN:---net=/run/netns/$NETNS} "$@" >>"$RUN/log/$name.log" 2>&1 </dev/null &
  pid=$!
  # nsenter forks into a PID namespace: the program is its child.
  if [[ ${START_IN:-} == *-p* ]]; then
    for _ in $(seq 40); do child=$(pgrep -P "$pid") && { pid=$child; break; }; sleep 0.05; done
  fi
  echo "$pid" >"$RUN/pid/$name"
}
alive() { [ -e "$RUN/pid/$1" ] && kill -0 "$(cat "$RUN/pid/$1")" 2>/dev/null; }
stop() {
  local pid
  pid=$(cat "$RUN/pid/$1" 2>/dev/null) || return 0
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
  kill -KILL "$pid" 2>/dev/null || true
  rm -f "$RUN/pid/$1"
}
# until_true SECONDS WHAT COMMAND...
until_true() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { echo "not within the time: $what" >&2; return 1; }
    sleep 0.2
  done
}
