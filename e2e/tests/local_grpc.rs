//! gRPC and other backends that speak HTTP/2.

mod common;

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::{HOST, Ingress, NAMESPACE, everything_to, join, serve, serve_with, service};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use ingress_e2e::client::{self, H2Conn, RawConn};
use ingress_e2e::h2_origin::{H2Origin, answer, read_all};
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, RunningProcess, TempDir, eventually, peers};

const SERVICE_NAMES: [&str; 2] = ["web.shop.svc.cluster.local", "web.shop.svc"];
const CALL: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

fn web(protocol: &str) -> Ingress {
    Ingress::new("web").prefix(HOST, "/", "web").set("backend-protocol", protocol)
}

async fn serve_h2(protocol: &str, origin: &H2Origin) -> Product {
    serve([web(protocol).yaml(), service("web", &[origin.addr()])]).await
}

async fn connect(product: &Product) -> H2Conn {
    H2Conn::connect_tls(product.https(), HOST).await.unwrap()
}

/// One message as it stands in a body: not compressed, its length, its bytes.
fn message(text: &str) -> Bytes {
    let mut out = vec![0];
    out.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    out.into()
}

fn status_trailers(status: &str) -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), status.parse().unwrap())])
}

/// Answers every call with one message and status 0, once its body has ended.
async fn unary(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (_, whole) = read_all(&mut request.into_body()).await;
    assert!(whole);
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut stream = respond.send_response(head, false).unwrap();
    stream.send_data(message("pong"), false).unwrap();
    stream.send_trailers(status_trailers("0")).unwrap();
}

/// The cases that gRPC's own implementations are tested against each other with.
const INTEROP: [&str; 15] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "custom_metadata",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "rpc_soak",
];

/// Starts the server of gRPC for Go and waits until it listens.
async fn go_server(args: &[String]) -> (RunningProcess, SocketAddr) {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let mut command = Command::new(peers::program("grpc-server"));
    command.arg(format!("-port={port}")).args(args);
    let server = RunningProcess::spawn("grpc-server", command);
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    eventually(DEADLINE, async || tokio::net::TcpStream::connect(addr).await.ok()).await;
    (server, addr)
}

async fn interop(product: &Product, ca_file: &std::path::Path) {
    for case in INTEROP {
        let mut command = Command::new(peers::program("grpc-client"));
        command
            .args(["-server_host=127.0.0.1", "-use_tls", "-use_test_ca", "-soak_iterations=20"])
            .arg(format!("-server_host_override={HOST}"))
            .arg(format!("-server_port={}", product.https().port()))
            .arg(format!("-ca_file={}", ca_file.display()))
            .arg(format!("-test_case={case}"));
        let run = tokio::task::spawn_blocking(move || command.output().unwrap());
        let output = tokio::time::timeout(Duration::from_secs(60), run).await.expect(case).unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn go_clients_call_go_servers() {
    let ca = Ca::new();
    let dir = TempDir::new("grpc");
    let ca_file = dir.write("ca.pem", ca.pem());
    let own = ca.leaf(&[HOST], KeyKind::EcP256Sec1);
    let backend = ca.leaf(&SERVICE_NAMES, KeyKind::EcP256Sec1);
    let cert = dir.write("cert.pem", &backend.cert_pem);
    let key = dir.write("key.pem", &backend.key_pem);
    let tls = [
        "-use_tls".into(),
        format!("-tls_cert_file={}", cert.display()),
        format!("-tls_key_file={}", key.display()),
    ];
    for (protocol, args) in [("grpc", &[][..]), ("grpcs", &tls[..])] {
        let (_server, addr) = go_server(args).await;
        let yaml = join([
            web(protocol).tls(&[HOST], "cert").yaml(),
            service("web", &[addr]),
            tls_secret_yaml(NAMESPACE, "cert", &own),
        ]);
        let product = Product::builder().manifests_yaml(&yaml).env("SSL_CERT_FILE", &ca_file).start().await;
        product.ready().await;
        interop(&product, &ca_file).await;
    }
}

#[tokio::test]
async fn trailers_and_trailers_alone_arrive() {
    let origin = H2Origin::start(async |request: Request<RecvStream>, respond: SendResponse<Bytes>| {
        if request.uri().path() == "/shop.Cart/Get" {
            unary(request, respond).await;
        } else {
            let fields =
                [("content-type", "application/grpc"), ("grpc-status", "5"), ("grpc-message", "no cart")];
            answer(respond, 200, &fields, "");
        }
    })
    .await;
    let product = serve_h2("grpc", &origin).await;
    let conn = connect(&product).await;
    let good = conn.request("POST", HOST, "/shop.Cart/Get", &CALL, &message("ping")).await.unwrap();
    assert_eq!((good.status, good.trailer("grpc-status")), (200, Some("0")));
    assert_eq!(good.body, message("pong"));
    let bad = conn.request("POST", HOST, "/shop.Cart/Lose", &CALL, &message("ping")).await.unwrap();
    assert_eq!(
        (bad.status, bad.header("grpc-status"), bad.header("grpc-message")),
        (200, Some("5"), Some("no cart"))
    );
    let headers = origin.last_headers();
    assert_eq!(headers["te"], "trailers");
    assert_eq!(headers["x-forwarded-proto"], "https");
    assert!(!headers.contains_key("connection") && !headers.contains_key("transfer-encoding"));
}

#[tokio::test]
async fn trailers_are_asked_for_when_the_client_can_take_them() {
    let origin = H2Origin::start(async |_, respond| answer(respond, 200, &[], "x")).await;
    let product = serve_h2("h2c", &origin).await;
    let conn = connect(&product).await;
    for (te, forwarded) in [(&[][..], None), (&[("te", "trailers")], Some("trailers"))] {
        assert_eq!(conn.request("GET", HOST, "/", te, b"").await.unwrap().status, 200);
        assert_eq!(origin.last_headers().get("te").map(|v| v.to_str().unwrap()), forwarded);
    }
    let mut old = RawConn::connect(product.http()).await.unwrap();
    old.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: TE\r\nTE: gzip, trailers\r\n\r\n"))
        .await
        .unwrap();
    assert_eq!(old.read_response().await.unwrap().status, 200);
    assert_eq!(origin.last_headers()["te"], "trailers");
}

#[tokio::test]
async fn a_call_that_the_proxy_refuses_ends_with_a_status() {
    let origin = H2Origin::start(unary_of).await;
    let dead = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let product = serve_with(
        [
            web("grpc").prefix(HOST, "/dead", "dead").yaml(),
            service("web", &[origin.addr()]),
            service("dead", &[dead]),
        ],
        &["--max-request-body-size=1Ki"],
    )
    .await;
    let conn = connect(&product).await;
    let call = async |host: &str, path: &str, body: &[u8]| {
        let answer = conn.request("POST", host, path, &CALL, body).await.unwrap();
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/grpc")), "{path}");
        assert_eq!(answer.header("server"), Some("tak-os-ingress"), "{path}");
        answer.header("grpc-status").unwrap().to_owned()
    };
    assert_eq!(call(HOST, "/dead", b"").await, "14", "UNAVAILABLE");
    assert_eq!(call("other.example.com", "/", b"").await, "12", "UNIMPLEMENTED");
    assert_eq!(call(HOST, "/", &[0; 2000]).await, "8", "RESOURCE_EXHAUSTED");
    // Anything else is told in HTTP's words, and so are metrics and log.
    assert_eq!(conn.get(HOST, "/dead").await.unwrap().status, 502);
    let code = [("code", "502"), ("ingress", "web")];
    let counted = async || {
        let sum = product.metric_sum("tak_ingress_requests_total", &code).await;
        (sum == 2.0).then_some(())
    };
    eventually(DEADLINE, counted).await;
}

async fn unary_of(request: Request<RecvStream>, respond: SendResponse<Bytes>) {
    let (_, whole) = read_all(&mut request.into_body()).await;
    if whole {
        answer(respond, 200, &[("content-type", "application/grpc"), ("grpc-status", "0")], "");
    }
}

#[tokio::test]
async fn a_tls_backend_without_http2_is_not_called() {
    let leaf = Ca::new().leaf(&SERVICE_NAMES, KeyKind::EcP256Sec1);
    let origin = Origin::echo_tls(&leaf.cert_pem, &leaf.key_pem).await;
    let product =
        serve([web("grpcs").set("proxy-ssl-verify", "false").yaml(), service("web", &[origin.addr()])]).await;
    for _ in 0..2 {
        let answer = client::get(product.http(), HOST, "/").await;
        assert_eq!((answer.status, answer.header("server")), (502, Some("tak-os-ingress")));
    }
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn a_certificate_of_another_service_is_refused() {
    let ca = Ca::new();
    let dir = TempDir::new("ca");
    let bundle = dir.write("ca.pem", ca.pem());
    for (names, status) in [(SERVICE_NAMES, "0"), (["other.shop.svc.cluster.local", HOST], "14")] {
        let leaf = ca.leaf(&names, KeyKind::EcP256Sec1);
        let origin = H2Origin::start_tls(&leaf.cert_pem, &leaf.key_pem, unary_of).await;
        let yaml = join([web("grpcs").yaml(), service("web", &[origin.addr()])]);
        let product = Product::builder().manifests_yaml(&yaml).env("SSL_CERT_FILE", &bundle).start().await;
        product.ready().await;
        let answer = connect(&product).await.request("POST", HOST, "/a.B/C", &CALL, b"").await.unwrap();
        assert_eq!(answer.header("grpc-status"), Some(status));
        assert_eq!(origin.requests(), usize::from(status == "0"));
    }
}

#[tokio::test]
async fn a_websocket_handshake_for_an_http2_backend_is_refused() {
    let origin = H2Origin::start(async |_, respond| answer(respond, 200, &[], "x")).await;
    let product = serve_h2("h2c", &origin).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(format!(
        "GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ))
    .await
    .unwrap();
    let answer = conn.read_response().await.unwrap();
    assert_eq!(answer.status, 501);
    assert!(answer.text().contains("HTTP/2"), "{}", answer.text());
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn old_clients_are_served_from_an_http2_backend() {
    let origin = H2Origin::start(async |request: Request<RecvStream>, respond: SendResponse<Bytes>| {
        let path = request.uri().path().to_owned();
        let host = request.uri().authority().unwrap().to_string();
        let (body, _) = read_all(&mut request.into_body()).await;
        let text = format!("{host} {}", String::from_utf8_lossy(&body));
        let length = text.len().to_string();
        let fields = [("content-length", length.as_str())];
        answer(respond, 200, if path == "/length" { &fields } else { &[] }, &text);
    })
    .await;
    let product = serve_h2("h2c", &origin).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for path in ["/length", "/none"] {
        let answer = conn.request("POST", HOST, path, &[], b"hello").await.unwrap();
        assert_eq!((answer.status, answer.text()), (200, format!("{HOST} hello")), "{path}");
    }
    let chunked = format!("POST /none HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
    conn.send(chunked + "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(conn.read_response().await.unwrap().text(), format!("{HOST} abcde"));
    // HTTP/1.0 knows no chunks: it gets a length, or an error it can read.
    for (path, status) in [("/length", 200), ("/none", 502)] {
        let mut oldest = RawConn::connect(product.http()).await.unwrap();
        oldest.send(format!("GET {path} HTTP/1.0\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
        assert_eq!(oldest.read_response().await.unwrap().status, status, "{path}");
    }
}

#[tokio::test]
async fn a_call_that_the_backend_did_not_look_at_is_made_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let origin = H2Origin::start(move |request, mut respond: SendResponse<Bytes>| {
        let first = seen.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            match first {
                true => respond.send_reset(Reason::REFUSED_STREAM),
                false => unary_of(request, respond).await,
            }
        }
    })
    .await;
    let product = serve_h2("grpc", &origin).await;
    let conn = connect(&product).await;
    let answer = conn.request("POST", HOST, "/a.B/C", &CALL, &message("once")).await.unwrap();
    assert_eq!(answer.header("grpc-status"), Some("0"));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_call_that_broke_is_not_made_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let origin = H2Origin::start(move |_, mut respond: SendResponse<Bytes>| {
        seen.fetch_add(1, Ordering::SeqCst);
        async move { respond.send_reset(Reason::INTERNAL_ERROR) }
    })
    .await;
    let product = serve_h2("grpc", &origin).await;
    let conn = connect(&product).await;
    let answer = conn.request("POST", HOST, "/a.B/C", &CALL, &message("once")).await.unwrap();
    assert_eq!(answer.header("grpc-status"), Some("14"));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn streams_share_connections_unless_told_otherwise() {
    let origin = H2Origin::start(async |_, respond| answer(respond, 200, &[], "x")).await;
    for (keepalive, connections) in [("true", 1), ("false", 3)] {
        let product =
            serve([web("h2c").set("backend-keepalive", keepalive).yaml(), service("web", &[origin.addr()])])
                .await;
        let conn = connect(&product).await;
        let before = origin.accepts();
        for _ in 0..3 {
            assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
        }
        assert_eq!(origin.accepts() - before, connections, "{keepalive}");
        let kept = usize::from(keepalive == "true");
        eventually(DEADLINE, async || (origin.open_connections() == kept).then_some(())).await;
    }
}

/// Answers once the body has ended, or never, by the path.
async fn slow(request: Request<RecvStream>, respond: SendResponse<Bytes>) {
    let never = request.uri().path() == "/never";
    let (body, whole) = read_all(&mut request.into_body()).await;
    if never || !whole {
        std::future::pending::<()>().await;
    }
    answer(respond, 200, &[], &body.len().to_string());
}

const PAUSE: Duration = Duration::from_millis(250);

#[tokio::test]
async fn the_read_timeout_is_silence_of_both_sides_for_http2_clients() {
    let origin = H2Origin::start(slow).await;
    let product =
        serve([web("h2c").set("proxy-read-timeout", "1").yaml(), service("web", &[origin.addr()])]).await;
    let conn = connect(&product).await;
    // An upload that goes on for longer than the limit, with pauses that are shorter.
    let (response, mut body) = conn.send_head("POST", HOST, "/", &[], false).await.unwrap();
    for _ in 0..10 {
        body.send_data(Bytes::from_static(b"x"), false).unwrap();
        tokio::time::sleep(PAUSE).await;
    }
    body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
    // A body that has ended, one that has not, and none at all: then silence.
    assert_eq!(conn.request("POST", HOST, "/never", &[], b"x").await.unwrap().status, 504);
    assert_eq!(conn.get(HOST, "/never").await.unwrap().status, 504);
    let (response, mut body) = conn.send_head("POST", HOST, "/never", &[], false).await.unwrap();
    body.send_data(Bytes::from_static(b"x"), false).unwrap();
    let head = tokio::time::timeout(DEADLINE, response).await.unwrap().unwrap();
    assert_eq!(head.status(), 504);
    let call = conn.request("POST", HOST, "/never", &CALL, b"x").await.unwrap();
    assert_eq!(call.header("grpc-status"), Some("14"));
}

#[tokio::test]
async fn the_read_timeout_is_silence_of_both_sides_for_old_clients() {
    let origin = H2Origin::start(slow).await;
    let product =
        serve([web("h2c").set("proxy-read-timeout", "1").yaml(), service("web", &[origin.addr()])]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 10\r\n\r\n")).await.unwrap();
    for _ in 0..10 {
        conn.send("x").await.unwrap();
        tokio::time::sleep(PAUSE).await;
    }
    assert_eq!(conn.read_response().await.unwrap().text(), "10");
    // The bound is one request's: a pause between two is none.
    tokio::time::sleep(Duration::from_millis(1300)).await;
    assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
    assert_eq!(conn.get(HOST, "/never").await.unwrap().status, 504);
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(format!("POST /never HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 10\r\n\r\nx")).await.unwrap();
    assert_eq!(conn.read_response().await.unwrap().status, 504);
}

#[tokio::test]
async fn a_quiet_call_outlives_the_clients_read_timeout() {
    let origin = H2Origin::start(async |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
        // A conversation whose first word is the client's, and is long in coming.
        let mut body = request.into_body();
        body.data().await.unwrap().unwrap();
        let mut stream = respond.send_response(Response::new(()), false).unwrap();
        while let Some(Ok(data)) = body.data().await {
            stream.send_data(data, false).unwrap();
        }
        stream.send_trailers(status_trailers("0")).unwrap();
    })
    .await;
    let product =
        serve_with([web("grpc").yaml(), service("web", &[origin.addr()])], &["--client-read-timeout=1s"])
            .await;
    let conn = connect(&product).await;
    let (response, mut body) = conn.send_head("POST", HOST, "/a.B/C", &CALL, false).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1800)).await;
    body.send_data(message("hello"), false).unwrap();
    let mut answer = tokio::time::timeout(DEADLINE, response).await.unwrap().unwrap().into_body();
    for text in ["one", "two"] {
        // Each word comes back before the next is said: nothing is held on the way.
        body.send_data(message(text), false).unwrap();
        let echo = tokio::time::timeout(DEADLINE, answer.data()).await.unwrap().unwrap().unwrap();
        assert_eq!(echo, message(text));
        tokio::time::sleep(Duration::from_millis(1300)).await;
    }
    body.send_data(Bytes::new(), true).unwrap();
    let trailers = tokio::time::timeout(DEADLINE, answer.trailers()).await.unwrap().unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
}

#[tokio::test]
async fn trailers_of_a_request_do_no_harm() {
    let h2 = H2Origin::start(slow).await;
    let h1 = Origin::echo().await;
    for product in [serve_h2("h2c", &h2).await, serve(everything_to(&h1)).await] {
        let conn = connect(&product).await;
        let (response, mut body) = conn.send_head("POST", HOST, "/", &[], false).await.unwrap();
        body.send_data(Bytes::from_static(b"abc"), false).unwrap();
        body.send_trailers(HeaderMap::from_iter([(
            http::HeaderName::from_static("x-sum"),
            "1".parse().unwrap(),
        )]))
        .unwrap();
        let head = tokio::time::timeout(DEADLINE, response).await.unwrap().unwrap();
        assert_eq!(head.status(), 200);
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn an_upload_that_the_backend_does_not_take_ends() {
    let origin = H2Origin::start(async |request: Request<RecvStream>, respond: SendResponse<Bytes>| {
        let _unread = (request, respond);
        std::future::pending::<()>().await;
    })
    .await;
    let ingress = web("h2c").set("proxy-send-timeout", "1").set("proxy-read-timeout", "1");
    let product =
        serve_with([ingress.yaml(), service("web", &[origin.addr()])], &["--client-write-timeout=1s"]).await;
    let active = async || product.metric_sum("tak_ingress_active_requests", &[]).await;
    let body = vec![0; 1 << 20];

    let conn = connect(&product).await;
    let modern = conn.request("POST", HOST, "/", &[], &body).await;
    assert!(modern.is_err() || modern.unwrap().status == 504);
    eventually(DEADLINE, async || (active().await == 0.0).then_some(())).await;

    let mut old = RawConn::connect(product.http()).await.unwrap();
    let answer = old.request("POST", HOST, "/", &[], &body).await;
    assert!(answer.is_err() || answer.unwrap().status == 504);
    eventually(DEADLINE, async || (active().await == 0.0).then_some(())).await;
    assert_eq!(origin.requests(), 2);
}
