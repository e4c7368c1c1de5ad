//! The admin port, metrics, logs, and what the command line refuses.

mod common;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use common::{HOST, Ingress, everything_to, get, join, serve, serve_with, service, status_of};
use ingress_e2e::client::{self, H2Conn, RawConn};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::{Product, run_product};
use ingress_e2e::{DEADLINE, TempDir, eventually};
use serde_json::Value;

/// A line of the log for which this holds.
async fn logged(product: &Product, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(DEADLINE, async || product.log().into_iter().find(&holds)).await
}

/// The access log's line about a path.
async fn record(product: &Product, path: &str) -> Value {
    logged(product, |line| line["path"] == path && line.get("status").is_some()).await
}

/// A request is counted when it is over, which its client may see first.
async fn counted(product: &Product, name: &str, labels: &[(&str, &str)], want: f64) {
    let name = format!("tak_ingress_{name}");
    let sum = async || product.metric_sum(&name, labels).await;
    eventually(DEADLINE, async || (sum().await == want).then_some(())).await;
}

async fn admin(product: &Product, path: &str) -> client::Response {
    client::get(product.metrics_addr(), "localhost", path).await
}

#[tokio::test]
async fn health_is_ok_whatever_the_state_of_backends_and_certificates() {
    let product = serve([
        Ingress::new("web").prefix(HOST, "/", "missing").tls(&[HOST], "missing").yaml(),
        "kind: [broken".to_owned(),
    ])
    .await;
    for (path, body) in [("/healthz", "OK"), ("/readyz", "OK")] {
        let answer = admin(&product, path).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, body), "{path}");
    }
    let answer = client::tls_get(product.https(), HOST, HOST, "/", None).await;
    assert_eq!((answer.status, admin(&product, "/healthz").await.status), (502, 200));
}

#[tokio::test]
async fn readiness_ends_with_the_signal_and_health_does_not() {
    let origin = Origin::echo().await;
    let args = ["--shutdown-delay=30s", "--shutdown-timeout=30s"];
    let product = serve_with(everything_to(&origin), &args).await;
    product.signal(libc::SIGTERM);
    eventually(DEADLINE, async || (admin(&product, "/readyz").await.status == 503).then_some(())).await;
    let answer = admin(&product, "/readyz").await;
    assert!(answer.text().contains("shutting down"), "{}", answer.text());
    assert_eq!(admin(&product, "/healthz").await.status, 200);
    assert_eq!(client::get(product.http(), HOST, "/").await.status, 200, "within the delay");
}

#[tokio::test]
async fn metrics_come_as_text_and_as_openmetrics() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    assert_eq!(client::get(product.http(), HOST, "/").await.status, 200);
    counted(&product, "requests_total", &[], 1.0).await;

    let plain = admin(&product, "/metrics").await;
    assert_eq!(plain.status, 200);
    assert!(
        plain.header("content-type").is_some_and(|t| t.starts_with("text/plain; version=0.0.4")),
        "{plain:?}"
    );
    let text = plain.text();
    let series = "tak_ingress_requests_total{code=\"200\",host=\"app.example.com\",ingress=\"web\",method=\"GET\",namespace=\"shop\"} 1";
    assert!(text.lines().any(|line| line == series), "{text}");
    assert!(text.contains("# TYPE tak_ingress_requests_total counter") && !text.contains("# EOF"));

    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let mut conn = RawConn::connect(product.metrics_addr()).await.unwrap();
    let open = conn.request("GET", "localhost", "/metrics", &[("Accept", accept)], b"").await.unwrap();
    assert!(
        open.header("content-type")
            .is_some_and(|t| t.starts_with("application/openmetrics-text; version=1.0.0"))
    );
    let text = open.text();
    assert!(
        text.contains("# TYPE tak_ingress_requests counter") && text.lines().any(|line| line == series),
        "{text}"
    );
    assert!(text.ends_with("# EOF\n"));

    // Every line is a comment or a sample.
    for line in plain.text().lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(
            value.parse::<f64>().is_ok() && name.chars().next().is_some_and(char::is_alphabetic),
            "{line}"
        );
    }
}

#[tokio::test]
async fn the_families_of_the_reference_are_there() {
    let origin = Origin::echo().await;
    let leaf = Ca::new().leaf(&[HOST], KeyKind::EcP256Sec1);
    let product = serve([
        Ingress::new("web")
            .prefix(HOST, "/", "web")
            .tls(&[HOST], "tls")
            .set("proxy-read-timeout", "x")
            .yaml(),
        Ingress::new("down").prefix("down.example.com", "/", "none").yaml(),
        service("web", &[origin.addr()]),
        tls_secret_yaml("shop", "tls", &leaf),
    ])
    .await;
    assert_eq!(client::tls_get(product.https(), HOST, HOST, "/", None).await.status, 200);
    assert_eq!(client::get(product.http(), "down.example.com", "/").await.status, 502);
    assert_eq!(client::get(product.http(), "unknown.example.com", "/").await.status, 404);
    client::served_certificate(product.https(), Some("unknown.example.com")).await;
    let families = [
        "requests_total",
        "request_duration_seconds_count",
        "upstream_connect_duration_seconds_count",
        "upstream_response_duration_seconds_count",
        "request_size_bytes_count",
        "response_size_bytes_count",
        "unmatched_requests_total",
        "upstream_errors_total",
        "client_connections",
        "active_requests",
        "upgraded_tunnels",
        "tls_handshakes_total",
        "tls_fallback_certificate_total",
        "certificate_not_after_timestamp_seconds",
        "routes",
        "object_errors",
        "snapshot_generation",
        "snapshot_build_duration_seconds_count",
        "snapshot_last_success_timestamp_seconds",
        "watch_synced",
        "build_info",
    ];
    counted(&product, "requests_total", &[], 2.0).await;
    counted(&product, "unmatched_requests_total", &[("reason", "no_host")], 1.0).await;
    let text = product.metrics().await;
    let names: Vec<_> = text.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    for family in families {
        assert!(names.contains(&format!("tak_ingress_{family}").as_str()), "{family}");
    }
    for family in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
        assert!(names.contains(&family), "{family}");
    }
}

#[tokio::test]
async fn admin_paths_of_the_public_ports_are_the_applications_own() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let own = [
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        product.http().to_string(),
        product.metrics_addr().to_string(),
        "tak-os-ingress.tak-os-ingress.svc".to_owned(),
        "other.example.com".to_owned(),
    ];
    for path in ["/metrics", "/healthz", "/readyz", "/debug/snapshot"] {
        for host in &own {
            assert_eq!(client::get(product.http(), host, path).await.status, 404, "{host}{path}");
            assert_eq!(
                client::tls_get(product.https(), HOST, host, path, None).await.status,
                404,
                "{host}{path}"
            );
        }
        let answer = client::get(product.http(), HOST, path).await;
        assert_eq!(
            (answer.status, answer.json()["request_line"].as_str()),
            (200, Some(&*format!("GET {path} HTTP/1.1")))
        );
    }
}

#[tokio::test]
async fn the_admin_port_answers_its_paths_alone_and_survives_odd_clients() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let addr = product.metrics_addr();
    for path in ["/", "/metrics/", "/etc/passwd", "/../metrics"] {
        assert_eq!(admin(&product, path).await.status, 404, "{path}");
    }
    let mut conn = RawConn::connect(addr).await.unwrap();
    for method in ["POST", "PUT", "DELETE"] {
        let answer = conn.request(method, "localhost", "/metrics", &[], b"").await.unwrap();
        assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    assert_eq!(conn.request("HEAD", "localhost", "/healthz", &[], b"").await.unwrap().status, 200);

    // Held open, silent: others are still served.
    let mut held = Vec::new();
    for _ in 0..32 {
        let mut conn = RawConn::connect(addr).await.unwrap();
        conn.send("GET /metrics HTT").await.unwrap();
        held.push(conn);
    }
    let huge = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let refused = status_of(addr, huge).await;
    assert!([0, 400, 431].contains(&refused), "{refused}");
    assert_eq!(admin(&product, "/healthz").await.text(), "OK");
}

#[tokio::test]
async fn series_do_not_grow_with_what_clients_send() {
    let origin = Origin::echo().await;
    let product = serve([
        Ingress::new("wild").prefix("*.apps.example.com", "/", "web").prefix(HOST, "/only", "web").yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let mut send = async |method: &str, host: &str, path: &str| {
        conn.request(method, host, path, &[], b"").await.unwrap().status
    };
    let series = async || {
        let text = product.metrics().await;
        // How a handshake ends whose client leaves at once is a matter of time; those series are few and fixed.
        let lines = text.lines().filter(|l| !l.starts_with('#') && !l.contains("_tls_handshakes_total{"));
        lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect::<BTreeSet<_>>()
    };
    let (mut matched, mut unmatched, mut before) = (0.0, 0.0, BTreeSet::new());
    // The first round makes the series that there are; the second must add none.
    for (round, requests) in [(0, 1), (1, 1000)] {
        for n in 0..requests {
            let unique = format!("n{round}-{n}");
            assert_eq!(send("GET", &format!("{unique}.example.org"), &format!("/{unique}")).await, 404);
            assert_eq!(send("GET", HOST, &format!("/{unique}?{unique}")).await, 404);
            unmatched += 2.0;
            if n < 500 {
                let host = format!("{unique}.apps.example.com");
                assert_eq!(send("GET", &host, &format!("/{unique}")).await, 200);
                assert_eq!(send(&format!("BREW{n}"), &host, "/").await, 200);
                matched += 2.0;
            }
            if n < 50 {
                let name = format!("{unique}.example.org");
                client::served_certificate(product.https(), Some(&name)).await;
            }
        }
        counted(&product, "requests_total", &[("host", "*.apps.example.com")], matched).await;
        counted(&product, "unmatched_requests_total", &[], unmatched).await;
        let now = series().await;
        assert!(round == 0 || now == before, "new: {:?}", now.difference(&before));
        before = now;
    }
    let text = product.metrics().await;
    assert!(!text.contains("n1-") && !text.contains("BREW"));
}

#[tokio::test]
async fn each_process_counts_its_own_requests() {
    let origin = Origin::echo().await;
    let (one, other) = (serve(everything_to(&origin)).await, serve(everything_to(&origin)).await);
    for product in [&one, &one, &one, &other] {
        assert_eq!(client::get(product.http(), HOST, "/").await.status, 200);
    }
    counted(&one, "requests_total", &[], 3.0).await;
    counted(&other, "requests_total", &[], 1.0).await;
}

#[tokio::test]
async fn counters_of_a_stable_route_only_grow_across_reloads() {
    const RELOADS: usize = 50;
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let labels = [("ingress", "web"), ("code", "200")];
    let generation = async || product.metric_value("tak_ingress_snapshot_generation").await.unwrap();
    let (mut last, mut sent) = (0.0, 0.0);
    for i in 0..RELOADS {
        let before = generation().await;
        let name = format!("passing-{i}");
        let host = format!("{name}.example.com");
        product.write_manifest("passing.yaml", &Ingress::new(&name).prefix(&host, "/", "web").yaml());
        // Traffic goes on until the change serves.
        while generation().await == before {
            assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
            sent += 1.0;
            let count = product.metric_sum("tak_ingress_requests_total", &labels).await;
            assert!(count >= last, "{count} after {last}");
            last = count;
        }
        let status = async || client::get(product.http(), &host, "/").await.status;
        eventually(DEADLINE, async || (status().await == 200).then_some(())).await;
    }
    let count = async || product.metric_sum("tak_ingress_requests_total", &labels).await;
    eventually(DEADLINE, async || (count().await == sent).then_some(())).await;
}

#[tokio::test]
async fn credentials_never_reach_a_log() {
    const SECRETS: [&str; 6] =
        ["s3cret-auth", "s3cret-cookie", "s3cret-query", "s3cret-proxy", "s3cret-body", "s3cret-user"];
    let origin = Origin::http(|_| Reply::new(200, "hi").header("Set-Cookie", "id=s3cret-cookie")).await;
    let product = serve([
        Ingress::new("web").prefix(HOST, "/", "web").yaml(),
        Ingress::new("closed").prefix(HOST, "/closed", "web").set("auth-type", "basic").yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    let fields = "Authorization: Basic s3cret-auth\r\nCookie: id=s3cret-cookie\r\nProxy-Authorization: s3cret-proxy\r\n\
                  Referer: https://app.example.com/x?token=s3cret-query\r\nX-Auth-Request-User: s3cret-user\r\n";
    let rest = format!("Host: {HOST}\r\n{fields}Connection: close\r\n");
    let requests = [
        format!("GET /ok?token=s3cret-query HTTP/1.1\r\n{rest}\r\n"),
        format!("GET /closed?token=s3cret-query HTTP/1.1\r\n{rest}\r\n"),
        format!("GET /x#y HTTP/1.1\r\n{rest}\r\n"),
        format!("GET / HTTP/1.1\r\n{rest}Broken : 1\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{rest} folded\r\n\r\n"),
        format!("GET / HTTP/9.9\r\n{rest}\r\n"),
        format!("GET /a b HTTP/1.1\r\n{rest}\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{rest}\r\n"),
        format!("POST / HTTP/1.1\r\n{rest}Transfer-Encoding: chunked\r\n\r\nzz\r\ns3cret-body\r\n"),
        format!("GET /?s3cret-query HTTP/1.1\r\n{rest}X: {}\r\n\r\n", "x".repeat(100_000)),
        format!("{rest}\r\n"),
        "s3cret-auth\r\ns3cret-cookie\r\n\r\n".to_owned(),
    ];
    for request in &requests {
        client::raw(product.http(), request).await;
    }
    client::raw(product.https(), &requests[0]).await;
    assert_eq!(client::get(product.http(), HOST, "/barrier").await.status, 200);
    record(&product, "/barrier").await;
    assert!(record(&product, "/ok").await["referer"] == "https://app.example.com/x", "without its query");
    let logs = product.log_text() + &product.stderr();
    for secret in SECRETS {
        assert!(!logs.contains(secret), "{secret} in {logs}");
    }
}

#[tokio::test]
async fn the_access_log_has_one_record_a_request() {
    let origin = Origin::http(|_| Reply::new(201, "hello")).await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let headers = [("User-Agent", "test/1 \"quoted\""), ("Referer", "https://elsewhere.example/x?y=1")];
    let answer = conn.request("POST", "APP.example.com:81", "/first?q=1", &headers, b"abc").await.unwrap();
    assert_eq!(answer.status, 201);
    let line = record(&product, "/first").await;
    for (field, want) in [
        ("client", "127.0.0.1".into()),
        ("method", "POST".into()),
        ("scheme", "http".into()),
        ("host", "APP.example.com:81".into()),
        ("path", "/first".into()),
        ("protocol", "HTTP/1.1".into()),
        ("status", 201.into()),
        ("bytes_in", 3.into()),
        ("bytes_out", 5.into()),
        ("upstream", origin.addr().to_string().into()),
        ("upstream_status", 201.into()),
        ("upstream_reused", false.into()),
        ("route", "ingress/shop/web".into()),
        ("user_agent", "test/1 \"quoted\"".into()),
        ("referer", "https://elsewhere.example/x".into()),
        ("rejected_by", Value::Null),
        ("upstream_error", Value::Null),
        ("tls_version", Value::Null),
        ("query", Value::Null),
    ] {
        assert_eq!(line[field], want, "{field} in {line}");
    }
    for field in ["duration_ms", "upstream_connect_ms", "upstream_ms"] {
        assert!(line[field].as_f64().is_some_and(|ms| (0.0..10_000.0).contains(&ms)), "{field} in {line}");
    }
    assert!(
        line["rule"].is_string() && line["request_id"].as_str().is_some_and(|id| id.len() == 16),
        "{line}"
    );
    let time = line["time"].as_str().unwrap();
    assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{time}");

    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.get(HOST, "/second").await.unwrap().status, 201);
    let line = record(&product, "/second").await;
    for (field, want) in [
        ("scheme", "https"),
        ("protocol", "HTTP/2.0"),
        ("tls_version", "TLSv1.3"),
        ("sni", HOST),
        ("host", HOST),
    ] {
        assert_eq!(line[field], want, "{field} in {line}");
    }
    let records = product.log().iter().filter(|line| line.get("request_id").is_some()).count();
    assert_eq!(records, 2);
}

#[tokio::test]
async fn the_access_log_says_who_refused() {
    let origin = Origin::echo().await;
    let leaf = Ca::new().leaf(&["tls.example.com"], KeyKind::EcP256Sec1);
    let product = serve([
        Ingress::new("web").prefix(HOST, "/web", "web").prefix(HOST, "/down", "none").yaml(),
        Ingress::new("auth").prefix(HOST, "/auth", "web").set("auth-type", "basic").yaml(),
        Ingress::new("list").prefix(HOST, "/list", "web").set("allowlist-source-range", "10.0.0.0/8").yaml(),
        Ingress::new("tls").prefix("tls.example.com", "/", "web").tls(&["tls.example.com"], "tls").yaml(),
        service("web", &[origin.addr()]),
        tls_secret_yaml("shop", "tls", &leaf),
    ])
    .await;
    for (host, path, status, by, upstream_error, route) in [
        ("unknown.example.com", "/a", 404, "no_host", Value::Null, Value::Null),
        (HOST, "/b", 404, "no_path", Value::Null, Value::Null),
        (HOST, "/auth", 501, "auth_not_configured", Value::Null, "ingress/shop/auth".into()),
        (HOST, "/list", 403, "access", Value::Null, "ingress/shop/list".into()),
        (HOST, "/down", 502, "no_service", "dns".into(), "ingress/shop/web".into()),
        ("tls.example.com", "/tls", 308, "redirect", Value::Null, "ingress/shop/tls".into()),
    ] {
        assert_eq!(client::get(product.http(), host, path).await.status, status, "{path}");
        let line = record(&product, path).await;
        assert_eq!((&line["status"], &line["rejected_by"]), (&status.into(), &by.into()), "{line}");
        assert_eq!((&line["upstream_error"], &line["route"]), (&upstream_error, &route), "{line}");
    }
}

#[tokio::test]
async fn query_strings_are_logged_when_asked_for() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--access-log-query"]).await;
    assert_eq!(client::get(product.http(), HOST, "/x?a=b&c").await.status, 200);
    assert_eq!(record(&product, "/x").await["query"], "a=b&c");
}

#[tokio::test]
async fn the_access_log_can_be_turned_off() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--access-log=false"]).await;
    assert_eq!(client::get(product.http(), HOST, "/quiet").await.status, 200);
    product.signal(libc::SIGTERM);
    // Every line is out when the process has ended.
    assert!(product.wait_exit(DEADLINE).await.success());
    logged(&product, |line| line["message"] == "shutting down").await;
    assert!(!product.log_text().contains("/quiet"), "{}", product.log_text());
}

/// Runs to the end: status 2, nothing on stdout, one line on stderr, which is returned.
async fn refused(args: &[&str]) -> String {
    let (status, stdout, stderr) = run_product(args).await;
    assert_eq!(status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(stdout, "", "{args:?}: nothing was started");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    stderr
}

#[tokio::test]
async fn a_bad_flag_is_one_line_and_status_2() {
    for (flag, value, accepted) in [
        ("--http-port", "abc", "0 to 65535"),
        ("--https-port", "65536", "0 to 65535"),
        ("--max-header-size", "64k", "Ki"),
        ("--client-read-timeout", "60", "s"),
        ("--log-level", "loud", "info"),
        ("--access-log", "maybe", "true"),
        ("--default-tls-secret", "nameonly", "namespace/name"),
        ("--manifests", "/no/such/folder", "folder"),
    ] {
        let line = refused(&[&format!("{flag}={value}")]).await;
        assert!(line.contains(flag) && line.contains(value) && line.contains(accepted), "{line}");
    }
    let line = refused(&["--http-prot=80"]).await;
    assert!(line.contains("--http-prot") && line.contains("--http-port"), "{line}");
    assert!(refused(&["serve"]).await.contains("serve"));
}

#[tokio::test]
async fn a_busy_port_is_one_line_and_status_2() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let dir = TempDir::new("empty");
    let manifests = format!("--manifests={}", dir.path().display());
    for flag in ["--http-port", "--https-port", "--metrics-port"] {
        let busy = format!("{flag}={port}");
        let others = ["--http-port=0", "--https-port=0", "--metrics-port=0", "--bind-address=127.0.0.1"];
        let line = refused(&[&others[..], &[&manifests, &busy]].concat()).await;
        assert!(line.contains(flag) && line.contains(&port), "{line}");
    }
}

#[tokio::test]
async fn flags_also_come_from_the_environment_and_the_last_one_counts() {
    let origin = Origin::echo().await;
    let yaml = join([
        Ingress::new("web").class(Some("mine")).prefix(HOST, "/", "web").yaml(),
        service("web", &[origin.addr()]),
    ]);
    let from_env =
        Product::builder().manifests_yaml(&yaml).env("TAK_INGRESS_INGRESS_CLASS", "mine").start().await;
    from_env.ready().await;
    assert_eq!(client::get(from_env.http(), HOST, "/").await.status, 200);
    let last = Product::builder()
        .manifests_yaml(&yaml)
        .arg("--ingress-class=other")
        .arg("--ingress-class")
        .arg("mine");
    let last = last.start().await;
    last.ready().await;
    assert_eq!(client::get(last.http(), HOST, "/").await.status, 200);
}

#[tokio::test]
async fn help_and_version_end_well() {
    for arg in ["--help", "--version"] {
        let (status, stdout, stderr) = run_product(&[arg]).await;
        assert!(status.success() && stderr.is_empty(), "{arg}: {stderr}");
        assert!(
            stdout.contains(if arg == "--help" { "--ingress-class" } else { "tak-os-ingress " }),
            "{stdout}"
        );
    }
}

async fn demo() -> Product {
    let product = Product::builder().arg("demo").start().await;
    product.ready().await;
    product
}

#[tokio::test]
async fn the_demo_serves_a_page_over_http_and_https() {
    let product = demo().await;
    let answer = client::get(product.http(), "demo.localhost", "/hello").await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().starts_with("GET /hello\n"), "{}", answer.text());
    let host = "secure.localhost";
    let answer = client::tls_get(product.https(), host, host, "/hello", None).await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("x-forwarded-proto: https"), "{}", answer.text());
    let served = client::served_certificate(product.https(), Some(host)).await;
    assert_eq!(served.names(), [host], "its own certificate, not the fallback");
}

#[tokio::test]
async fn the_demo_redirects_to_the_port_that_it_listens_on() {
    let product = demo().await;
    let answer = client::get(product.http(), "secure.localhost", "/x").await;
    let want = format!("https://secure.localhost:{}/x", product.https().port());
    assert_eq!((answer.status, answer.header("location")), (308, Some(want.as_str())));
}

#[tokio::test]
async fn the_demo_tells_what_to_try() {
    let product = demo().await;
    let told = async || Some(product.stderr()).filter(|text| text.contains("curl"));
    let text = eventually(Duration::from_secs(5), told).await;
    for addr in [product.http(), product.https()] {
        assert!(text.contains(&format!(":{}", addr.port())), "the port {} in {text}", addr.port());
    }
}

#[tokio::test]
async fn both_signals_end_the_process_well() {
    let origin = Origin::echo().await;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let product = serve(everything_to(&origin)).await;
        assert_eq!(status_of(product.http(), get(HOST, "/")).await, 200);
        product.signal(signal);
        assert_eq!(product.wait_exit(DEADLINE).await.code(), Some(0));
    }
}
