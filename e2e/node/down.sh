#!/usr/bin/env bash
# down.sh I ends node I; without an argument everything ends, and all that was left on the machine goes.
# shellcheck source=env.sh
. "$(dirname "$0")/env.sh"

node_down() {
  local name=node$1
  [ -e "$RUN/pid/$name-init" ] || return 0
  kill -KILL "$(cat "$RUN/pid/$name-init")" 2>/dev/null
  until_true 10 "the end of $name" bash -c "! kill -0 $(cat "$RUN/pid/$name-unshare") 2>/dev/null"
  rm -f "$RUN/pid/$name-"*
  for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*/; do
    [ ! -d "$hierarchy/$NETNS-$name" ] || find "$hierarchy/$NETNS-$name" -depth -type d -exec rmdir {} \; 2>/dev/null
  done
  [ "$1" = 1 ] || ip netns del "$NETNS-$name" 2>/dev/null
}
if [ $# = 1 ]; then
  node_down "$1"
  exit 0
fi
for file in "$RUN"/pid/node*-init; do
  [ ! -e "$file" ] || { file=${file##*/node}; node_down "${file%-init}"; }
done
for name in kube-scheduler kube-controller-manager kube-apiserver etcd; do stop $name; done
ip netns del "$NETNS-client" 2>/dev/null
ip netns del "$NETNS" 2>/dev/null
exit 0
