//! The way to the backend: protocol, connections, and what a client is told when it fails.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{
    HOST, Ingress, NAMESPACE, everything_to, join, serve, serve_with, service, service_object, slice,
};
use ingress_e2e::client::{self, H2Conn, RawConn};
use ingress_e2e::dns::DnsServer;
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::pki::{Ca, KeyKind, LeafOptions};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, TempDir, eventually};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// An address where connections are refused for as long as the socket lives: bound, but not listening.
fn refusing(ip: [u8; 4]) -> (TcpSocket, std::net::SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((ip, 0).into()).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

fn web() -> Ingress {
    Ingress::new("web").prefix(HOST, "/", "web")
}

async fn errors(product: &Product, reason: &str) -> f64 {
    product.metric_sum("tak_ingress_upstream_errors_total", &[("reason", reason), ("ingress", "web")]).await
}

/// A 502 or 504 of the proxy's own, and its reason in the metrics.
async fn assert_fails(product: &Product, status: u16, reason: &str) {
    let answer = client::get(product.http(), HOST, "/").await;
    assert_eq!(
        (answer.status, answer.header("server")),
        (status, Some("tak-os-ingress")),
        "{}",
        answer.text()
    );
    eventually(DEADLINE, async || (errors(product, reason).await == 1.0).then_some(())).await;
}

const SERVICE_NAMES: [&str; 2] = ["web.shop.svc.cluster.local", "web.shop.svc"];

#[tokio::test]
async fn an_https_backend_of_an_unknown_authority_is_refused() {
    let leaf = Ca::new().leaf(&SERVICE_NAMES, KeyKind::EcP256Sec1);
    let origin = Origin::echo_tls(&leaf.cert_pem, &leaf.key_pem).await;
    let product =
        serve([web().set("backend-protocol", "https").yaml(), service("web", &[origin.addr()])]).await;
    assert_fails(&product, 502, "tls").await;
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn an_https_backend_is_verified_by_authority_and_service_name() {
    let ca = Ca::new();
    let dir = TempDir::new("ca");
    let bundle = dir.write("ca.pem", ca.pem());
    let right = ca.leaf(&SERVICE_NAMES, KeyKind::EcP256Sec1);
    let wrong = ca.leaf(&["other.shop.svc.cluster.local", HOST], KeyKind::EcP256Sec1);
    // a common name proves nothing (RFC 9525 section 2), nor does a wildcard for a part of a label
    let options = LeafOptions { common_name: SERVICE_NAMES[1].into(), ..LeafOptions::default() };
    let common = ca.leaf_with(&[], KeyKind::EcP256Sec1, &options);
    let part = ca.leaf(&[&format!("w*{}", &SERVICE_NAMES[1][3..])], KeyKind::EcP256Sec1);
    for (leaf, status) in [(right, 200), (wrong, 502), (common, 502), (part, 502)] {
        let origin = Origin::echo_tls(&leaf.cert_pem, &leaf.key_pem).await;
        let yaml = join([web().set("backend-protocol", "HTTPS").yaml(), service("web", &[origin.addr()])]);
        let product = Product::builder().manifests_yaml(&yaml).env("SSL_CERT_FILE", &bundle).start().await;
        product.ready().await;
        assert_eq!(client::get(product.http(), HOST, "/").await.status, status);
        assert_eq!(origin.requests(), usize::from(status == 200));
    }
}

#[tokio::test]
async fn verification_is_turned_off_for_one_ingress_alone() {
    let leaf = Ca::new().leaf(&["unrelated.example"], KeyKind::Rsa2048Pkcs8);
    let origin = Origin::echo_tls(&leaf.cert_pem, &leaf.key_pem).await;
    let lax = web().prefix("lax.example.com", "/", "web");
    let product = serve([
        lax.set("backend-protocol", "https").set("proxy-ssl-verify", "false").yaml(),
        Ingress::new("strict").prefix(HOST, "/strict", "web").set("backend-protocol", "https").yaml(),
        Ingress::new("typo")
            .prefix(HOST, "/typo", "web")
            .set("backend-protocol", "https")
            .set("proxy-ssl-verify", "no")
            .yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    for (host, path, status) in [
        (HOST, "/", 200),
        ("lax.example.com", "/", 200),
        (HOST, "/strict", 502),
        (HOST, "/", 200),
        (HOST, "/strict", 502),
        (HOST, "/typo", 502),
    ] {
        assert_eq!(client::get(product.http(), host, path).await.status, status, "{host}{path}");
    }
}

#[tokio::test]
async fn the_annotation_does_not_change_the_port() {
    let leaf = Ca::new().leaf(&SERVICE_NAMES, KeyKind::EcP256Sec1);
    let plain = Origin::echo_on(([127, 0, 0, 5], 0)).await.named("plain");
    let tls = Origin::echo_tls_on(([127, 0, 0, 5], 0), &leaf.cert_pem, &leaf.key_pem).await.named("tls");
    let path = |path: &str| json!({"path": path, "pathType": "Prefix"});
    let product = serve([
        Ingress::new("web")
            .rule(HOST, path("/number"), "web", json!({"number": 443}))
            .rule(HOST, path("/name"), "web", json!({"name": "secure"}))
            .rule(HOST, path("/wrong"), "web", json!({"number": 80}))
            .set("backend-protocol", "https")
            .set("proxy-ssl-verify", "false")
            .set("proxy-connect-timeout", "1")
            .yaml(),
        Ingress::new("plain").rule(HOST, path("/plain"), "web", json!({"name": "http"})).yaml(),
        service_object(
            NAMESPACE,
            "web",
            json!([{"name": "http", "port": 80}, {"name": "secure", "port": 443}]),
        ),
        slice(NAMESPACE, "web", 0, &[("http", plain.addr()), ("secure", tls.addr())]),
    ])
    .await;
    for (path, want) in [("/number", "tls"), ("/name", "tls"), ("/plain", "plain")] {
        let answer = client::get(product.http(), HOST, path).await;
        assert_eq!((answer.status, answer.origin().as_str()), (200, want), "{path}");
    }
    let wrong = client::get(product.http(), HOST, "/wrong").await.status;
    assert!([502, 504].contains(&wrong), "TLS to the port without TLS: {wrong}");
    assert_eq!(plain.requests(), 1);
}

#[tokio::test]
async fn a_refused_connection_is_502() {
    let (_socket, addr) = refusing([127, 0, 0, 1]);
    let product = serve([web().yaml(), service("web", &[addr])]).await;
    assert_fails(&product, 502, "connect").await;
}

#[tokio::test]
async fn a_service_without_endpoints_is_502() {
    let product = serve([web().yaml(), service("web", &[])]).await;
    assert_fails(&product, 502, "dns").await;
}

#[tokio::test]
async fn a_missing_service_or_port_is_502_and_comes_back_by_itself() {
    let origin = Origin::echo().await;
    let path = json!({"path": "/port", "pathType": "Prefix"});
    let ingress = web().rule(HOST, path, "web", json!({"number": 81}));
    let product = serve([ingress.yaml()]).await;
    assert_eq!(client::get(product.http(), HOST, "/").await.status, 502, "not 404: the route is there");
    product.write_manifest("service.yaml", &service("web", &[origin.addr()]));
    let status = async |path| client::get(product.http(), HOST, path).await.status;
    eventually(Duration::from_secs(5), async || (status("/").await == 200).then_some(())).await;
    assert_eq!(status("/port").await, 502);
    product.remove_manifest("service.yaml");
    eventually(Duration::from_secs(5), async || (status("/").await == 502).then_some(())).await;
}

#[tokio::test]
async fn a_silent_backend_is_504_at_the_read_timeout() {
    let origin =
        Origin::raw(async |mut stream: TcpStream| while read_head(&mut stream).await.is_ok() {}).await;
    let product =
        serve([web().set("proxy-read-timeout", "1").yaml(), service("web", &[origin.addr()])]).await;
    let start = Instant::now();
    assert_fails(&product, 504, "timeout").await;
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(950) && took < Duration::from_secs(5), "{took:?}");
    eventually(DEADLINE, async || (origin.open_connections() == 0).then_some(())).await;
    assert_eq!(origin.accepts(), 1, "a request that was sent is not sent again after a timeout");
}

#[tokio::test]
async fn a_backend_that_stalls_half_way_is_cut_and_not_completed() {
    for body in ["Content-Length: 10\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"] {
        let origin = Origin::raw(move |mut stream: TcpStream| async move {
            let _ = read_head(&mut stream).await;
            let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{body}").as_bytes()).await;
            let _ = read_head(&mut stream).await;
        })
        .await;
        let product =
            serve([web().set("proxy-read-timeout", "1").yaml(), service("web", &[origin.addr()])]).await;
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let error = conn.get(HOST, "/").await.expect_err("half a response");
        assert!(format!("{error:#}").contains("closed"), "{error:#}");
        let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
        assert!(h2.get(HOST, "/").await.is_err(), "a stream of HTTP/2 is reset");
    }
}

#[tokio::test]
async fn steady_traffic_outlives_the_read_timeout() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").await;
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(400)).await;
            let _ = stream.write_all(b"x").await;
        }
    })
    .await;
    let product =
        serve([web().set("proxy-read-timeout", "1").yaml(), service("web", &[origin.addr()])]).await;
    let answer = client::get(product.http(), HOST, "/").await;
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "xxxxx"),
        "two seconds, never one without a byte"
    );
}

#[tokio::test]
async fn a_zero_is_no_timeout_and_not_an_instant_one() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
    })
    .await;
    let ingress =
        web().set("proxy-connect-timeout", "0").set("proxy-read-timeout", "0").set("proxy-send-timeout", "0");
    let product = serve([ingress.yaml(), service("web", &[origin.addr()])]).await;
    assert_eq!(client::get(product.http(), HOST, "/").await.status, 200);
}

#[tokio::test]
async fn a_backend_that_does_not_shake_hands_is_504_at_the_connect_timeout() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
    })
    .await;
    let ingress = web().set("backend-protocol", "https").set("proxy-connect-timeout", "1");
    let product = serve([ingress.yaml(), service("web", &[origin.addr()])]).await;
    let start = Instant::now();
    assert_fails(&product, 504, "timeout").await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test]
async fn connections_are_kept_unless_told_otherwise() {
    let (kept, fresh) = (Origin::echo().await, Origin::echo().await);
    let documents = [
        Ingress::new("kept").prefix("kept.example.com", "/", "kept").yaml(),
        Ingress::new("fresh")
            .prefix("fresh.example.com", "/", "fresh")
            .set("backend-keepalive", "false")
            .yaml(),
        service("kept", &[kept.addr()]),
        service("fresh", &[fresh.addr()]),
    ];
    let product = serve_with(documents, &["--threads=1"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for _ in 0..20 {
        for host in ["kept.example.com", "fresh.example.com"] {
            let answer = conn.get(host, "/").await.unwrap();
            let close = host.starts_with("fresh").then_some("close".to_owned());
            assert_eq!((answer.status, answer.echoed("connection")), (200, Vec::from_iter(close)), "{host}");
        }
    }
    assert_eq!((kept.requests(), kept.accepts()), (20, 1));
    assert_eq!((fresh.requests(), fresh.accepts()), (20, 20));
}

/// A backend that reads whole requests and hangs up on those that `hangs_up` picks by their number.
async fn moody(hangs_up: fn(usize) -> bool) -> (Origin, Arc<AtomicUsize>) {
    let requests = Arc::<AtomicUsize>::default();
    let count = requests.clone();
    let origin = Origin::raw(move |mut stream: TcpStream| {
        let count = count.clone();
        async move {
            while let Ok(head) = read_head(&mut stream).await {
                if head.starts_with("POST") {
                    let _ = stream.read_exact(&mut [0; 5]).await;
                }
                if hangs_up(count.fetch_add(1, Ordering::SeqCst)) {
                    return;
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
            }
        }
    })
    .await;
    (origin, requests)
}

#[tokio::test]
async fn a_post_is_never_delivered_twice() {
    // On a new connection, then on one that was kept.
    let (always, requests) = moody(|_| true).await;
    let product = serve(everything_to(&always)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let answer = conn.request("POST", HOST, "/", &[], b"hello").await.unwrap();
    assert_eq!((answer.status, requests.load(Ordering::SeqCst)), (502, 1));

    let (later, requests) = moody(|n| n >= 1).await;
    let product = serve_with(everything_to(&later), &["--threads=1"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    assert_eq!(conn.request("POST", HOST, "/", &[], b"hello").await.unwrap().status, 200);
    let answer = conn.request("POST", HOST, "/", &[], b"hello").await.unwrap();
    assert_eq!((answer.status, requests.load(Ordering::SeqCst), later.accepts()), (502, 2, 1));
}

#[tokio::test]
async fn a_get_on_a_kept_connection_that_breaks_is_tried_again() {
    // The second request meets a connection that goes away under it; the third is its repetition.
    let (origin, requests) = moody(|n| n == 1).await;
    let product = serve_with(everything_to(&origin), &["--threads=1"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
    }
    assert_eq!((requests.load(Ordering::SeqCst), origin.accepts()), (3, 2));
}

#[tokio::test]
async fn kept_connections_that_the_backend_closed_are_not_used() {
    // It announces nothing, and is gone after each answer.
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        let _ = stream.read_exact(&mut [0; 5]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
    })
    .await;
    let product = serve_with(everything_to(&origin), &["--threads=1"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for i in 0..20 {
        let method = if i % 2 == 0 { "GET" } else { "POST" };
        let answer = conn.request(method, HOST, "/", &[], b"hello").await.unwrap();
        assert_eq!(answer.status, 200, "{method} number {i}");
        eventually(DEADLINE, async || (origin.open_connections() == 0).then_some(())).await;
    }
    assert_eq!(origin.accepts(), 20);
}

#[tokio::test]
async fn a_refused_endpoint_costs_no_request() {
    let origin = Origin::echo().await;
    let (_socket, dead) = refusing([127, 0, 0, 6]);
    let product = serve([web().yaml(), service("web", &[dead, origin.addr()])]).await;
    for i in 0..20 {
        let method = if i % 2 == 0 { "GET" } else { "POST" };
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let answer = conn.request(method, HOST, "/", &[], b"hello").await.unwrap();
        assert_eq!(answer.status, 200, "{method} number {i}");
        assert_eq!(answer.json()["body"], "hello");
    }
    assert_eq!(origin.requests(), 20);
    let retries = product.metric_sum("tak_ingress_upstream_retries_total", &[("ingress", "web")]).await;
    assert!(retries >= 1.0, "{retries}");
}

#[tokio::test]
async fn endpoints_share_the_requests() {
    let origins = [Origin::echo().await, Origin::echo().await, Origin::echo().await];
    let product = serve([web().yaml(), service("web", &origins.each_ref().map(Origin::addr))]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for _ in 0..30 {
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
    }
    let shares = origins.each_ref().map(Origin::requests);
    assert!(shares.iter().all(|share| (5..=15).contains(share)), "{shares:?}");
}

#[tokio::test]
async fn a_backend_that_answers_no_http_is_502() {
    for answer in [
        "garbage\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "HTTP/1.1\r\n\r\n",
        "HTTP/1.1 abc OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi!",
        "",
        "HTTP/1.1 200 OK\r\nX-Half: ",
    ] {
        let origin = Origin::raw(move |mut stream: TcpStream| async move {
            let _ = read_head(&mut stream).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        })
        .await;
        let product = serve(everything_to(&origin)).await;
        let got = client::get(product.http(), HOST, "/").await;
        assert_eq!(
            (got.status, got.header("server")),
            (502, Some("tak-os-ingress")),
            "{answer:?}: {}",
            got.text()
        );
        assert!(!got.text().contains("garbage"), "{}", got.text());
    }
}

#[tokio::test]
async fn a_space_before_a_colon_of_the_backends_is_not_passed_on() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX-A : 1\r\nContent-Length : 2\r\n\r\nhi").await;
    })
    .await;
    let product = serve(everything_to(&origin)).await;
    let answer = client::get(product.http(), HOST, "/").await;
    // RFC 9112 section 5.1: a proxy removes it, or refuses the response.
    match answer.status {
        200 => assert_eq!((answer.header("x-a"), answer.text().as_str()), (Some("1"), "hi")),
        status => assert_eq!(status, 502),
    }
}

#[tokio::test]
async fn a_connection_that_ends_with_a_502_says_so() {
    let (_socket, addr) = refusing([127, 0, 0, 1]);
    let product = serve([web().yaml(), service("web", &[addr])]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let answer = conn.get(HOST, "/").await.unwrap();
    assert_eq!(answer.status, 502);
    if answer.header("connection") != Some("close") {
        assert_eq!(conn.get(HOST, "/").await.expect("the connection was said to stay").status, 502);
    }
}

/// [`HOST`] leads to a Service of type ExternalName.
fn external(name: &str, port: u16) -> [String; 2] {
    let path = json!({"path": "/", "pathType": "Prefix"});
    let ingress = Ingress::new("web").rule(HOST, path, "web", json!({"number": port}));
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": "web"},
        "spec": {"type": "ExternalName", "externalName": name, "ports": [{"name": "http", "port": port}]},
    });
    [ingress.yaml(), service.to_string()]
}

#[tokio::test]
async fn an_external_name_stands_in_for_service_dns() {
    let origin = Origin::echo().await;
    let dns = DnsServer::start().await;
    dns.set("outside.example.org", [origin.addr().ip()]);
    let servers = format!("--dns-servers={}", dns.addr());
    let product = serve_with(external("outside.example.org", origin.port()), &[&servers]).await;
    assert_eq!(client::get(product.http(), HOST, "/").await.status, 200);
    dns.remove("outside.example.org");
    let product = serve_with(external("outside.example.org", origin.port()), &[&servers]).await;
    assert_fails(&product, 502, "dns").await;
}

#[tokio::test]
async fn an_external_name_does_not_lead_to_denied_addresses() {
    let origin = Origin::echo().await;
    let dns = DnsServer::start().await;
    dns.set("sly.example.org", [origin.addr().ip()]);
    let servers = format!("--dns-servers={}", dns.addr());
    let args = [&*servers, "--deny-backend-cidrs=127.0.0.0/8,::1,169.254.0.0/16"];
    for name in ["sly.example.org", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost"] {
        let product = serve_with(external(name, origin.port()), &args).await;
        assert_eq!(client::get(product.http(), HOST, "/").await.status, 502, "{name}");
    }
    assert_eq!(origin.accepts(), 0);
}

#[tokio::test]
async fn denied_addresses_are_not_dialled() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--deny-backend-cidrs=127.0.0.0/8"]).await;
    assert_eq!(client::get(product.http(), HOST, "/").await.status, 502);
    assert_eq!(origin.accepts(), 0);
}
