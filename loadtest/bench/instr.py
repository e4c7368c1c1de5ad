#!/usr/bin/env python3
"""instr.py: user-space instructions and heap allocations per request, under valgrind's callgrind.

Unlike time, these repeat to about 1 % on a noisy machine, so they suit a regression
gate and the hunt for what a change costs.  System calls are not counted here.

  instr.py --peers nginx,haproxy --peer peers/tak-os-ingress.json [--scenarios h1_1k,h1s_1k] [--top 25]
"""
import argparse, collections, json, os, re, subprocess, sys, tempfile, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench

ALLOC = re.compile(r"^(malloc|calloc|realloc|posix_memalign|aligned_alloc|_rjem_(malloc|calloc|realloc|mallocx|rallocx|posix_memalign|aligned_alloc)"
                   r"|mi_\w*(malloc|zalloc|calloc|realloc)\w*)$")


def parse(path):
    names, selfc, incl = {}, collections.Counter(), collections.Counter()
    calls, allocs = collections.Counter(), 0
    cur = cfn = None
    incall = False

    def nm(s):
        m = re.match(r"\((\d+)\)(?: (.*))?", s)
        if m[2]:
            names[m[1]] = m[2]
        return names.get(m[1], m[1])
    for l in open(path, errors="replace"):
        if l.startswith("fn="):
            cur = nm(l[3:].rstrip())
        elif l.startswith("cfn="):
            cfn = nm(l[4:].rstrip())
        elif l.startswith("calls="):
            n = int(l[6:].split()[0])
            calls[cfn] += n
            if ALLOC.match(cfn) and not ALLOC.match(cur or ""):
                allocs += n
            incall = True
        elif l[:1].isdigit() or l[:1] in "+-*":
            p = l.split()
            if len(p) < 2:
                continue
            if incall:
                if cur != cfn:
                    incl[cfn] += int(p[1])
                incall = False
            else:
                selfc[cur] += int(p[1])
    return sum(selfc.values()), allocs, selfc, incl, calls


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--peers", default="nginx,haproxy")
    ap.add_argument("--peer", action="append", default=[])
    ap.add_argument("--scenarios", default="h1_1k")
    ap.add_argument("--requests", type=int, default=2000)
    ap.add_argument("--top", type=int, default=0, help="also the functions with the highest inclusive cost")
    ap.add_argument("--base-port", type=int, default=18780)
    ap.add_argument("--json")
    a = ap.parse_args()
    gens = {n: bench.BUILTIN[n] for n in a.peers.split(",") if n}
    for f in a.peer:
        spec = json.load(open(f))
        gens[spec["name"]] = bench.from_file(spec)
    out = {}
    with tempfile.TemporaryDirectory(prefix="ingress-instr-") as work:
        env = bench.Env(work, a.base_port)
        try:
            env.backend()
            for s in a.scenarios.split(","):
                sc = dict(bench.S[s], name=s)
                for name, gen in gens.items():
                    ports = (env.port(), env.port(), env.port())
                    argv, log, extra = gen(env, sc["variant"], 1, 1, ports)
                    if name == "nginx":
                        c = argv[2]
                        t = open(c).read().replace("daemon off;", "daemon off; master_process off;")
                        open(c, "w").write(t)
                    cg = f"{work}/cg.{s}.{name}"
                    p = env.procs.start(["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={cg}"] + argv,
                                        "0", log or f"{work}/out", dict(extra, OPENSSL_ia32cap="~0x20000000000000"))
                    if not bench.wait_port(ports[0], 90, p):
                        print(f"{name} did not start", file=sys.stderr)
                        env.procs.stop(p)
                        continue
                    time.sleep(1)
                    peer = bench.Peer(name, p, None, *ports)
                    bench.run_client(env, sc, peer, a.requests, 1, 60)       # warm-up
                    subprocess.run(["callgrind_control", "-i", "on", str(p.pid)], capture_output=True)
                    r = bench.run_client(env, sc, peer, a.requests, 1, 120)
                    subprocess.run(["callgrind_control", "-i", "off", str(p.pid)], capture_output=True)
                    p.terminate()
                    p.wait(60)
                    env.procs.stop(p)
                    tot, allocs, selfc, incl, calls = parse(cg)
                    n = max(1, r["done"])
                    out.setdefault(s, {})[name] = {"instructions": tot / n, "allocations": allocs / n, "errors": r["errors"]}
                    print(f"{s:10} {name:12} {tot / n:10.0f} instructions/request  {allocs / n:6.1f} allocations/request  errors {r['errors']}", flush=True)
                    for k, v in incl.most_common(a.top):
                        print(f"    {v / n:9.0f} {100 * v / tot:5.1f}% {calls[k] / n:7.2f}x {k[:120]}")
        finally:
            env.procs.close()
    if a.json:
        json.dump(out, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
