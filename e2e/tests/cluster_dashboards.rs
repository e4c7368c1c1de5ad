//! Every query of the dashboard, asked of a real Prometheus that scrapes the product under load.

mod cluster_scene;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cluster_scene::{
    Ingress, account, backend, join, namespace, reaches, serve, service, service_name, shared,
};
use ingress_e2e::dns::DnsServer;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::{RunningProcess, TempDir, client, eventually};
use serde_json::Value;

/// How long it may take until every query has an answer. Ten scrapes, a second apart, are enough.
const ANSWERED: Duration = Duration::from_secs(120);

const PLAIN: &str = "plain.dash.example.com";
const TLS: &str = "tls.dash.example.com";
const LIMITED: &str = "limited.dash.example.com";
const DEAD: &str = "dead.dash.example.com";

struct Prometheus {
    addr: SocketAddr,
    _process: RunningProcess,
    _dir: TempDir,
}

impl Prometheus {
    async fn start(programs: &Path, target: SocketAddr) -> Self {
        let dir = TempDir::new("prometheus");
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n- job_name: tak-os-ingress\n  \
             static_configs: [{{targets: ['{target}']}}]\n"
        );
        let config = dir.write("prometheus.yml", config);
        let mut command = Command::new(programs.join("prometheus"));
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()));
        command.arg(format!("--web.listen-address={port}")).arg("--log.level=warn");
        command.stdin(Stdio::null()).current_dir(dir.path());
        let process = RunningProcess::spawn("Prometheus", command);
        let prometheus = Self { addr: port, _process: process, _dir: dir };
        eventually(Duration::from_secs(30), async || {
            let ready = client::try_get(port, "localhost", "/-/ready").await;
            ready.is_ok_and(|answer| answer.status == 200).then_some(())
        })
        .await;
        prometheus
    }

    /// The finite values of a query now. Panics if it is none.
    async fn values(&self, query: &str) -> Vec<f64> {
        let encoded: String = query.bytes().map(|b| format!("%{b:02X}")).collect();
        let answer = client::get(self.addr, "localhost", &format!("/api/v1/query?query={encoded}")).await;
        let body: Value = serde_json::from_str(&answer.text()).unwrap();
        assert_eq!(body["status"], "success", "{query}\n{body}");
        let result = body["data"]["result"].as_array().unwrap().iter();
        let values = result.filter_map(|sample| sample["value"][1].as_str()?.parse().ok());
        values.filter(|value: &f64| value.is_finite()).collect()
    }
}

/// Title and query of every panel, with the variables at "all".
fn panels() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards/tak-os-ingress.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "10s");
            let query = query.replace("$instance", ".*").replace("$host", ".*");
            assert!(!query.contains("=~\"$"), "an unknown variable in {query}");
            found.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    found
}

/// One round of everything that panels are about.
async fn traffic(product: &Product) {
    for _ in 0..20 {
        client::get(product.http(), PLAIN, "/a?b=c").await;
    }
    client::get(product.http(), DEAD, "/").await;
    // One a minute is allowed.
    client::get(product.http(), LIMITED, "/").await;
    client::get(product.http(), LIMITED, "/").await;
    let preflight = format!(
        "OPTIONS / HTTP/1.1\r\nHost: {LIMITED}\r\nConnection: close\r\nOrigin: https://a.example\r\n\
         Access-Control-Request-Method: PUT\r\n\r\n"
    );
    client::raw(product.http(), preflight).await;
    client::get(product.http(), "nobody.example.com", "/").await;
    // One that is taken, one that is too large.
    for length in [5_000, 50_000] {
        let head = format!(
            "POST /upload HTTP/1.1\r\nHost: {PLAIN}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        client::raw(product.http(), head + &"x".repeat(length)).await;
    }
    client::tls_get(product.https(), TLS, TLS, "/", None).await;
    client::served_certificate(product.https(), Some("nobody.example.com")).await;
}

#[tokio::test]
#[ignore = "needs Prometheus: hack/dashboards.sh brings it"]
async fn no_panel_is_empty_under_load() {
    let programs =
        std::env::var_os("TAK_INGRESS_PROMETHEUS").expect("TAK_INGRESS_PROMETHEUS names its folder");
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let web = backend(&dns, "dash", "web", [127, 0, 0, 2]).await;
    dns.set(&service_name("dash", "dead"), [[127, 0, 0, 3].into()]);
    let leaf = Ca::new().leaf(&[TLS], KeyKind::EcP256Sec1);
    let ingress = Ingress::new("dash", "web")
        .annotation("proxy-read-timeout", "soon")
        .annotation("backend-keepalive", "false")
        .prefix(PLAIN, "/", "web", "http")
        .prefix(TLS, "/", "web", "http")
        .prefix(DEAD, "/", "dead", "http")
        .tls(&[TLS], "tls");
    let limited = Ingress::new("dash", "limited")
        .annotation("limit-rpm", "1")
        .annotation("enable-cors", "true")
        .prefix(LIMITED, "/", "web", "http");
    let objects = [
        namespace("dash"),
        limited.yaml(),
        service("dash", "web", &[("http", web.port())]),
        service("dash", "dead", &[("http", 1)]),
        tls_secret_yaml("dash", "tls", &leaf),
        ingress.yaml(),
    ];
    cluster.apply(&join(objects)).await;
    let kubeconfig = account(cluster, "dashboards").await;
    let product = serve(&kubeconfig, &dns, &["--max-request-body-size=10Ki"]).await;
    reaches(&product, PLAIN, "/", "web").await;
    let prometheus = Prometheus::start(&PathBuf::from(programs), product.metrics_addr()).await;

    let mut open = panels();
    assert!(open.len() > 40, "{}", open.len());
    let mut round = 0;
    let end = tokio::time::Instant::now() + ANSWERED;
    while !open.is_empty() {
        assert!(tokio::time::Instant::now() < end, "without an answer under load: {open:#?}");
        traffic(&product).await;
        // Something to translate.
        round += 1;
        let more =
            Ingress::new("dash", "more").prefix("more.dash.example.com", &format!("/{round}"), "web", "http");
        cluster.apply(&more.yaml()).await;
        let mut left = Vec::new();
        for (title, query) in open {
            if prometheus.values(&query).await.is_empty() {
                left.push((title, query));
            }
        }
        open = left;
    }
    // And they say what happened, not just something.
    let failed = prometheus
        .values(r#"max_over_time((sum(tak_ingress_upstream_errors_total{reason="connect"}))[1m:1s])"#);
    assert!(failed.await.iter().all(|n| *n >= 1.0));
    // What is scraped is documented.
    let documented =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md")).unwrap();
    for line in product.metrics().await.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(documented.contains(&format!("| `{name}` |")), "{name} is not in docs/metrics.md");
    }
}
