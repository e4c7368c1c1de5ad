#!/usr/bin/env python3
"""gate.py RESULTS.json GOALS.json [PROXY]: exit 1 if a measured ratio misses its goal.

RESULTS.json comes from `bench.py run --json`.  GOALS.json is a list of
{"scenario", "key" (cpu_us | rps | p99_us), "ref", "max" or "min"}; a goal whose
scenario was not run is reported as such and does not fail the gate.
"""
import json, os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench


def main():
    res, goals = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
    proxy = sys.argv[3] if len(sys.argv) > 3 else "tak-os-ingress"
    best, bad = bench.best_speed(res), 0
    for g in goals:
        by = res.get(g["scenario"], {})
        name = f"{g['scenario']:11} {g['key']:7} x {g['ref']:8}"
        errs = sum(r["errors"] + r["non2xx"] for r in by.get(proxy, []))
        if proxy not in by or g["ref"] not in by:
            print(f"{name}  not run")
            continue
        v, mark = bench.ratio(by[proxy], by[g["ref"]], best, g["key"])
        # a ratio over noisy runs may miss by 10 % before it counts
        slack = 1.10 if mark else 1.03
        ok = errs == 0 and v > 0 and v <= g.get("max", 1e9) * slack and v >= g.get("min", 0) / slack
        bad += not ok
        lim = f"<= {g['max']}" if "max" in g else f">= {g['min']}"
        print(f"{name}  {v:.2f}{mark:1} goal {lim:8} {'ok' if ok else 'MISSED'}" + (f" ({errs} errors)" if errs else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
