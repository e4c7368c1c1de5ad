#!/usr/bin/env python3
"""auth.py: what authentication costs.

  auth.py instructions     of this product under callgrind: the same request on an open route, with a session,
                           with a bearer token, with a password
  auth.py side-by-side     CPU time a request with a session: this product, and nginx with auth_request to oauth2-proxy
  auth.py guessing         latency of an open route while wrong passwords come in on another

TAK_INGRESS_BIN names the binary. A real provider (e2e/testbed/parts.sh providers/node-oidc) gives the sessions;
oauth2-proxy is that of e2e/peers/oauth2-proxy/build.sh. Ratios within one run are what counts.
"""
import argparse, asyncio, base64, collections, http.client, json, os, re, socket, ssl, statistics, subprocess, sys, tempfile, time
import urllib.parse as url
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench
import instr

ROOT = os.path.abspath(os.path.join(bench.HERE, "../.."))
SECRET = "web-secret/+1"
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
APP, OPEN, BASIC = (f"{name}.{bench.DOMAIN}" for name in ("app", "open", "basic"))
CALLBACKS = [f"https://{APP}/_tak/oauth2/callback", f"https://{APP}/oauth2/callback"]


def last_line(*script):
    return subprocess.run([os.path.join(ROOT, *script[:1]), *script[1:]], check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")[-2]


def provider(env):
    """The issuer of a node-oidc-provider that has started."""
    out = f"{env.work}/provider.out"
    op = last_line("e2e/testbed/parts.sh", "providers/node-oidc") + "/op.mjs"
    env.procs.start(["node", op], bench.CLIENT_CORE, out, {"REDIRECT_URIS": ",".join(CALLBACKS), "ACCESS_TTL": "7200"})
    for _ in range(600):
        port = re.search(r"^listening (\d+)", open(out).read() if os.path.exists(out) else "", re.M)
        if port:
            return f"http://127.0.0.1:{port[1]}"
        time.sleep(0.1)
    sys.exit("the provider does not listen")


def log_in(https, path="/1k"):
    """Cookies of a session at the proxy that listens there: what a browser does, as far as it matters."""
    jars, at = {}, f"https://{APP}{path}"
    context = ssl._create_unverified_context()
    form = None
    for _ in range(20):
        u = url.urlsplit(at)
        if u.scheme == "https":
            raw = socket.create_connection(("127.0.0.1", https), 20)
            conn = http.client.HTTPSConnection(u.hostname, timeout=20)
            conn.sock = context.wrap_socket(raw, server_hostname=u.hostname)
        else:
            conn = http.client.HTTPConnection(u.netloc, timeout=20)
        jar = jars.setdefault(u.netloc, {})
        headers = {"Cookie": "; ".join(f"{k}={v}" for k, v in jar.items())} if jar else {}
        if form:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        conn.request("POST" if form else "GET", u.path + (f"?{u.query}" if u.query else ""), form, headers)
        answer = conn.getresponse()
        body = answer.read().decode(errors="replace")
        for line in answer.headers.get_all("Set-Cookie") or []:
            name, _, value = line.split(";")[0].partition("=")
            jar.pop(name, None)
            if value and "Max-Age=0" not in line:
                jar[name] = value
        conn.close()
        form = None
        if answer.status in (302, 303):
            at = url.urljoin(at, answer.headers["Location"])
        elif "/interaction/" in at and answer.status == 200:
            form = "prompt=login&login=alice&password=any" if 'value="login"' in body else "prompt=consent"
        elif answer.status == 200:
            return "; ".join(f"{k}={v}" for k, v in jar.items() if "login" not in k and "csrf" not in k)
        else:
            sys.exit(f"no login: {answer.status} at {at}: {body[:300]}")
    sys.exit(f"no login, at last at {at}")


def manifests(env, issuer):
    folder = f"{env.work}/auth-manifests"
    os.makedirs(folder, exist_ok=True)
    meta = lambda name, notes=None: {"namespace": "bench", "name": name, **({"annotations": notes} if notes else {})}
    ours = "ingress.tak-os.org/"

    def ingress(name, host, notes):
        path = {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}}
        return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": meta(name, {ours + "ssl-redirect": "false", **notes}),
                "spec": {"ingressClassName": "bench", "tls": [{"hosts": [host], "secretName": "cert"}], "rules": [{"host": host, "http": {"paths": [path]}}]}}
    hashed = subprocess.run([os.environ["TAK_INGRESS_BIN"], "hash-password", "--user", "alice"], input="secret\n", check=True, stdout=subprocess.PIPE, text=True).stdout
    documents = [
        {"apiVersion": "v1", "kind": "Service", "metadata": meta("web"), "spec": {"ports": [{"name": "http", "port": 80}]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {**meta("web-0"), "labels": {"kubernetes.io/service-name": "web"}},
         "addressType": "IPv4", "ports": [{"name": "http", "port": env.b0}], "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}]},
        {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": meta("cert"),
         "stringData": {"tls.crt": open(f"{env.work}/ecdsa.crt").read(), "tls.key": open(f"{env.work}/ecdsa.key").read()}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta("oidc"), "stringData": {
            "oidc_issuer_url": issuer, "client_id": "web", "client_secret": SECRET, "cookie_secret": KEY, "allowed_groups": "ops",
            "introspection_url": f"{issuer}/token/introspection", "pass_access_token": "false"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta("passwords"), "stringData": {"auth": hashed}},
        ingress("app", APP, {"k8s.tak-os.com/oauth2-secret": "oidc"}),
        ingress("open", OPEN, {}),
        ingress("basic", BASIC, {ours + "auth-type": "basic", ours + "auth-secret": "passwords"}),
    ]
    with open(f"{folder}/all.yaml", "w") as f:
        f.write("\n---\n".join(json.dumps(d) for d in documents))
    return folder


def product(env, issuer, wrap=(), more=()):
    ports = (env.port(), env.port())
    argv = [*wrap, os.environ["TAK_INGRESS_BIN"], f"--manifests={manifests(env, issuer)}", "--ingress-class=bench", f"--http-port={ports[0]}",
            f"--https-port={ports[1]}", "--metrics-port=0", "--bind-address=127.0.0.1", "--threads=1", "--access-log=false", *more]
    p = env.procs.start(argv, "0", f"{env.work}/product.out", {"OPENSSL_ia32cap": "~0x20000000000000"} if wrap else {})
    if not bench.wait_port(ports[0], 120, p):
        sys.exit(f"the product does not listen: {open(f'{env.work}/product.out').read()[-2000:]}")
    for _ in range(600):
        conn = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=20)
        conn.request("GET", "/1k", headers={"Host": OPEN})
        if conn.getresponse().status == 200:
            return p, *ports
        time.sleep(0.1)
    sys.exit("the product serves nothing")


def classic(env, issuer):
    """nginx with auth_request to oauth2-proxy: processes, ports, in the same shape as product()."""
    d = f"{env.work}/classic"
    os.makedirs(d, exist_ok=True)
    http, https, helper = env.port(), env.port(), env.port()
    program = last_line("e2e/peers/oauth2-proxy/build.sh") + "/oauth2-proxy"
    options = [f"--http-address=127.0.0.1:{helper}", "--provider=oidc", f"--oidc-issuer-url={issuer}", "--client-id=web", f"--client-secret={SECRET}",
               f"--cookie-secret={KEY}", f"--redirect-url={CALLBACKS[1]}", "--email-domain=*", "--allowed-group=ops", "--code-challenge-method=S256", "--reverse-proxy",
               "--trusted-proxy-ip=127.0.0.1/32", "--set-xauthrequest", "--skip-provider-button", "--upstream=static://202",
               "--request-logging=false", "--auth-logging=false", "--standard-logging=false"]
    oauth = env.procs.start([program, *options], "0", f"{d}/oauth2-proxy.out", {"GOMAXPROCS": "1"})
    if not bench.wait_port(helper, 30, oauth):
        sys.exit("oauth2-proxy does not listen: " + open(f"{d}/oauth2-proxy.out").read()[-2000:])
    ask = """proxy_set_header Host $http_host; proxy_set_header X-Forwarded-Proto https; proxy_set_header X-Forwarded-Uri $request_uri;
    proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Auth-Request-Redirect $request_uri; proxy_buffer_size 32k; proxy_buffers 8 32k; proxy_busy_buffers_size 64k;"""
    common = "proxy_http_version 1.1; proxy_set_header Connection '';"
    listen = f"listen 127.0.0.1:{http}; listen 127.0.0.1:{https} ssl; ssl_certificate {env.work}/ecdsa.crt; ssl_certificate_key {env.work}/ecdsa.key;"
    forwarded = "proxy_set_header Host $http_host; proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto $scheme;"
    with open(f"{d}/nginx.conf", "w") as f:
        f.write(f"""
daemon off; worker_processes 1; pid {d}/pid; error_log {d}/err crit;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 100000000; large_client_header_buffers 8 32k; tcp_nodelay on;
  client_body_temp_path {d}/t1; proxy_temp_path {d}/t2; fastcgi_temp_path {d}/t3; uwsgi_temp_path {d}/t4; scgi_temp_path {d}/t5;
  upstream app {{ server 127.0.0.1:{env.b0}; keepalive 64; keepalive_requests 100000000; }}
  upstream oauth {{ server 127.0.0.1:{helper}; keepalive 64; keepalive_requests 100000000; }}
  server {{ server_name {OPEN}; {listen} location / {{ proxy_pass http://app; {common} {forwarded} }} }}
  server {{ server_name {APP}; {listen}
    location /oauth2/ {{ proxy_pass http://oauth; {common} {ask} }}
    location = /oauth2/auth {{ internal; proxy_pass http://oauth; {common} {ask} proxy_pass_request_body off; proxy_set_header Content-Length ''; }}
    location / {{ auth_request /oauth2/auth; error_page 401 =302 https://{APP}/oauth2/start?rd=$request_uri;
      auth_request_set $user $upstream_http_x_auth_request_user; auth_request_set $groups $upstream_http_x_auth_request_groups;
      proxy_pass http://app; {common} {forwarded} proxy_set_header X-Auth-Request-User $user; proxy_set_header X-Auth-Request-Groups $groups; }} }} }}
""")
    nginx = env.procs.start(["nginx", "-c", f"{d}/nginx.conf", "-e", f"{d}/err"], "0", f"{d}/out")
    if not bench.wait_port(http, 20, nginx):
        sys.exit("nginx does not listen: " + open(f"{d}/out").read())
    return (nginx, oauth), http, https


def load(port, host, n, headers=(), clients=8):
    """Sends n requests; all must be answered 200."""
    argv = ["taskset", "-c", bench.CLIENT_CORE, "h2load", "--h1", "-t1", f"-c{clients}", f"-n{n}", f"--connect-to=127.0.0.1:{port}"]
    for name, value in headers:
        argv += ["-H", f"{name}: {value}"]
    out = subprocess.run(argv + [f"http://{host}/1k"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900).stdout
    if f"status codes: {n} 2xx" not in out:
        sys.exit(f"{host}: not all is well:\n{out}")


def basic(password):
    return "Basic " + base64.b64encode(f"alice:{password}".encode()).decode()


def instructions(env, n):
    issuer = provider(env)
    cg = f"{env.work}/cg"
    # cut where callgrind is told to dump: one file for each kind of request
    wrap = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={cg}")
    p, http, https = product(env, issuer, wrap)
    cookie = log_in(https)
    control = lambda *what: subprocess.run(["callgrind_control", *what, str(p.pid)], stdout=subprocess.DEVNULL, check=True)
    kinds = [("open", OPEN, []), ("open, with the cookie", OPEN, [("Cookie", cookie)]), ("session", APP, [("Cookie", cookie)]),
             ("password", BASIC, [("Authorization", basic("secret"))])]
    first = None
    for i, (name, host, headers) in enumerate(kinds):
        load(http, host, 500, headers)
        control("-z")
        control("-i", "on")
        load(http, host, n, headers)
        control("-i", "off")
        control("-d", name.split(",")[0])
        time.sleep(1)
        total, allocations, *_ = instr.parse(f"{cg}.{i + 1}")
        first = first or total
        print(f"{name:24} {total / n:9.0f} instructions  {allocations / n:6.1f} allocations a request  x {total / first:.3f}", flush=True)


def side_by_side(env, n, rounds):
    issuer = provider(env)
    p, http, https = product(env, issuer)
    both, chttp, chttps = classic(env, issuer)
    ours, theirs = log_in(https), log_in(chttps)
    cases = [("open, this product", [p], http, OPEN, []), ("session, this product", [p], http, APP, [("Cookie", ours)]),
             ("open, nginx", both[:1], chttp, OPEN, []), ("session, nginx and oauth2-proxy", both, chttp, APP, [("Cookie", theirs)])]
    took = {name: [] for name, *_ in cases}
    for name, _, port, host, headers in cases:
        load(port, host, n // 10, headers)
    for _ in range(rounds):
        for name, processes, port, host, headers in cases:
            pids = [q for each in processes for q in bench.tree(each.pid)]
            before = bench.cpu_of(pids)
            load(port, host, n, headers)
            took[name].append(bench.cpu_delta(before, bench.cpu_of(pids))[0] / n * 1e6)
    first = took[cases[0][0]]
    for name, *_ in cases:
        ratios = [a / b for a, b in zip(took[name], first)]
        print(f"{name:34} {statistics.median(took[name]):7.1f} us a request  x {statistics.median(ratios):.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"cookies: {len(ours)} and {len(theirs)} bytes")


def latency(port, host, seconds):
    """Latencies of one request after the other on a kept connection, in ms, sorted."""
    conn, took, end = http.client.HTTPConnection("127.0.0.1", port, timeout=20), [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        conn.request("GET", "/1k", headers={"Host": host})
        answer = conn.getresponse()
        answer.read()
        assert answer.status == 200
        took.append((time.perf_counter() - begin) * 1000)
        time.sleep(0.002)
    return sorted(took)


async def guess(port, seconds, each_second, header):
    """Wrong passwords, each another and on a connection of its own, at this rate whatever becomes of them: how many had which status.
    Or as many requests without any."""
    seen = collections.Counter()

    async def one(i):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /1k HTTP/1.1\r\nHost: {BASIC}\r\n{header}: {basic(f'wrong-{i}')}\r\nConnection: close\r\n\r\n".encode())
            seen[int((await reader.read()).split()[1])] += 1
            writer.close()
        except (OSError, IndexError):
            seen["no answer"] += 1
    begin, tasks = time.perf_counter(), []
    for i in range(int(seconds * each_second)):
        tasks.append(asyncio.create_task(one(i)))
        await asyncio.sleep(max(0, begin + (i + 1) / each_second - time.perf_counter()))
    await asyncio.gather(*tasks)
    print(dict(seen))


def guessing(env, rounds):
    """The throttle is off: all guesses come from one address here, and would else be answered without a hash."""
    p, http, _ = product(env, "http://127.0.0.1:1", more=["--auth-throttle-failures=0"])
    at = lambda took, part: took[min(len(took) - 1, int(len(took) * part))]
    p99 = {"quiet": [], "requests": [], "guesses": []}
    for _ in range(rounds):
        line = []
        for kind, all_p99 in p99.items():
            beside = None
            if kind != "quiet":
                header = "Authorization" if kind == "guesses" else "X-Nothing"
                beside = subprocess.Popen([sys.executable, __file__, "guess", "--port", str(http), "--header", header], stdout=subprocess.PIPE, text=True)
                time.sleep(1)
            took = latency(http, OPEN, 10)
            seen = beside.communicate()[0].strip() if beside else ""
            all_p99.append(at(took, .99))
            line.append(f"{kind} {seen} p50 {at(took, .5):.2f} p99 {at(took, .99):.2f} ms")
        print("; ".join(line), flush=True)
    ratio = lambda other: statistics.median(a / b for a, b in zip(p99["guesses"], p99[other]))
    print(f"p99 beside 200 guesses a second: x {ratio('quiet'):.2f} of quiet, x {ratio('requests'):.2f} of beside as many requests without a password")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["instructions", "side-by-side", "guessing", "guess"])
    ap.add_argument("--port", type=int, help="of guess, which guessing runs")
    ap.add_argument("--header", default="Authorization", help="of guess")
    ap.add_argument("--requests", type=int)
    ap.add_argument("--rounds", type=int, default=7)
    ap.add_argument("--base-port", type=int, default=18980)
    a = ap.parse_args()
    if a.what == "guess":
        return asyncio.run(guess(a.port, 12, 200, a.header))
    with tempfile.TemporaryDirectory(prefix="ingress-auth-") as work:
        env = bench.Env(work, a.base_port)
        try:
            env.backend()
            if a.what == "instructions":
                instructions(env, a.requests or 2000)
            elif a.what == "side-by-side":
                side_by_side(env, a.requests or 20000, a.rounds)
            else:
                guessing(env, a.rounds)
        finally:
            env.procs.close()


if __name__ == "__main__":
    main()
