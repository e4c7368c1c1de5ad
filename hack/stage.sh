#!/usr/bin/env bash
# stage.sh NAME COMMAND...: runs the command, says how long it took, and notes that in $STAGES if set.
set -euo pipefail
name=$1
shift
echo "==> $name"
begin=$SECONDS
status=0
"$@" || status=$?
took=$((SECONDS - begin))
verdict=ok
[ $status = 0 ] || verdict="failed with status $status"
echo "==> $name: $verdict, $took s"
[ -z "${STAGES:-}" ] || printf '%-11s %6d s  %s\n' "$name" "$took" "$verdict" >>"$STAGES"
exit $status
