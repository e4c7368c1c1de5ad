#!/usr/bin/env bash
# import.sh I FILE...: puts images onto node I, which runs.
set -euo pipefail
# shellcheck source=env.sh
. "$(dirname "$0")/env.sh"
I=$1
shift
for image; do
  nsenter -t "$(cat "$RUN/pid/node$I-init")" -m -p -n ctr -a "$RUN/node$I/containerd.sock" -n k8s.io images import "$image" >/dev/null
done
