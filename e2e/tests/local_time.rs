//! How long each side may take, and what the other is told when it takes longer.

mod common;

use std::time::Duration;

use common::{HOST, Ingress, everything_to, serve, serve_with, service};
use ingress_e2e::client::{self, H2Conn, RawConn};
use ingress_e2e::dns::DnsServer;
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

// ------------------------------------------------------------------ clients

#[tokio::test]
async fn a_client_that_pauses_gets_408_wherever_it_pauses() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--client-read-timeout=500ms"]).await;
    let post = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\n");
    for (place, sent) in [
        ("in the request line", "GET / HT".to_owned()),
        ("in a field", "GET / HTTP/1.1\r\nHost: app".into()),
        ("before the end of the head", format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n")),
        ("before a body of known length", format!("{post}Content-Length: 10\r\n\r\n")),
        ("in a body of known length", format!("{post}Content-Length: 10\r\n\r\nhalf")),
        ("before a chunk", format!("{post}Transfer-Encoding: chunked\r\n\r\n")),
        ("in a chunk", format!("{post}Transfer-Encoding: chunked\r\n\r\n5\r\nhe")),
        ("before the last chunk", format!("{post}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")),
    ] {
        for before in 0..2 {
            let mut conn = RawConn::connect(product.http()).await.unwrap();
            for _ in 0..before {
                assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
            }
            conn.send(&sent).await.unwrap();
            let answer = conn.read_response().await.unwrap();
            let said = (answer.status, answer.header("connection"), answer.header("server"));
            assert_eq!(
                said,
                (408, Some("close"), Some("tak-os-ingress")),
                "{place}, {before} requests before"
            );
            assert!(conn.closed_within(DEADLINE).await, "{place}");
        }
    }
    eventually(DEADLINE, async || (origin.open_connections() <= 8).then_some(())).await;
    assert_eq!(origin.requests(), 8, "no request was made whole");
}

#[tokio::test]
async fn a_steady_upload_may_take_long() {
    let origin = Origin::echo().await;
    let args = ["--client-read-timeout=1s", "--client-header-timeout=1s"];
    let product = serve_with(everything_to(&origin), &args).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 8\r\n\r\n")).await.unwrap();
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        conn.send("x").await.unwrap();
    }
    let answer = conn.read_response().await.unwrap();
    assert_eq!((answer.status, answer.json()["body"].as_str()), (200, Some("xxxxxxxx")));
}

#[tokio::test]
async fn a_connection_that_sends_nothing_is_closed_without_a_word() {
    let origin = Origin::echo().await;
    let args = ["--client-read-timeout=1s", "--tls-handshake-timeout=1s"];
    let product = serve_with(everything_to(&origin), &args).await;
    for addr in [product.http(), product.https()] {
        let mut conns = Vec::new();
        for _ in 0..100 {
            conns.push(RawConn::connect(addr).await.unwrap());
        }
        assert_eq!(client::get(product.http(), HOST, "/").await.status, 200, "others are served");
        for mut conn in conns {
            assert!(conn.closed_within(DEADLINE).await);
            assert!(conn.read_some().await.unwrap_or_default().is_empty());
        }
    }
}

#[tokio::test]
async fn the_idle_limit_runs_after_each_request_anew() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--client-keepalive-timeout=2s"]).await;
    for requests in 1..=3 {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        for i in 0..requests {
            if i > 0 {
                // Shorter than the limit, but together longer.
                assert!(!conn.closed_within(Duration::from_millis(1200)).await, "request {i} of {requests}");
            }
            assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200, "request {i} of {requests}");
        }
        assert!(conn.closed_within(DEADLINE).await, "after {requests} requests");
    }
}

/// The first bytes that a TLS client sends.
async fn hello() -> Vec<u8> {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let connector =
        openssl::ssl::SslConnector::builder(openssl::ssl::SslMethod::tls_client()).unwrap().build();
    let ssl = connector.configure().unwrap().into_ssl(HOST).unwrap();
    let mut stream = tokio_openssl::SslStream::new(ssl, near).unwrap();
    let mut bytes = Vec::with_capacity(1 << 16);
    tokio::select! {
        _ = std::pin::Pin::new(&mut stream).connect() => panic!("nobody answers"),
        n = far.read_buf(&mut bytes) => assert!(n.unwrap() > 0),
    }
    bytes
}

#[tokio::test]
async fn a_handshake_that_stops_after_the_hello_loses_its_place() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--tls-handshake-timeout=2s"]).await;
    let hello = hello().await;
    let mut conn = RawConn::connect(product.https()).await.unwrap();
    conn.send(hello).await.unwrap();
    assert!(!conn.read_some().await.unwrap().is_empty(), "the server's part of the handshake");
    assert!(conn.closed_within(DEADLINE).await, "the engine by itself would wait for a minute");
    // One that was finished lives on.
    let mut done = RawConn::connect_tls(product.https(), Some(HOST), &["http/1.1"]).await.unwrap();
    assert!(!done.closed_within(Duration::from_millis(2500)).await);
    assert_eq!(done.get(HOST, "/").await.unwrap().status, 200);
}

const BIG: usize = 32 << 20;

/// Answers with [`BIG`] bytes, as long as somebody takes them.
async fn endless() -> Origin {
    Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BIG}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.write_all(&vec![b'x'; BIG]).await;
    })
    .await
}

async fn narrow(addr: std::net::SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(256 << 10).unwrap();
    socket.connect(addr).await.unwrap()
}

#[tokio::test]
async fn a_client_that_does_not_read_is_let_go() {
    let origin = endless().await;
    let product = serve_with(everything_to(&origin), &["--client-write-timeout=1s"]).await;
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let mut plain = RawConn::from_tcp(narrow(product.http()).await).unwrap();
    plain.send(&request).await.unwrap();
    let mut tls = RawConn::connect_tls(product.https(), Some(HOST), &["http/1.1"]).await.unwrap();
    tls.send(&request).await.unwrap();
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    let (answer, _) = h2.send_head("GET", HOST, "/", &[], true).await.unwrap();
    eventually(DEADLINE, async || (origin.accepts() == 3).then_some(())).await;
    eventually(DEADLINE, async || (origin.open_connections() == 0).then_some(())).await;
    for mut conn in [plain, tls] {
        assert!(conn.read_response().await.is_err(), "cut");
    }
    let mut body = answer.await.unwrap().into_body();
    let mut last = Ok(());
    while let Some(data) = body.data().await {
        last = data.map(|data| drop(body.flow_control().release_capacity(data.len())));
        if last.is_err() {
            break;
        }
    }
    assert!(last.is_err(), "reset");
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_waited_for() {
    let origin = endless().await;
    for size in ["64Ki", "64Mi"] {
        let args = ["--client-write-timeout=1s", &format!("--response-buffer-size={size}")];
        let product = serve_with(everything_to(&origin), &args).await;
        let mut conn = RawConn::from_tcp(narrow(product.http()).await).unwrap();
        conn.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
        assert_eq!(conn.read_head().await.unwrap().status, 200);
        // Together it takes much longer than the limit; no pause does.
        for _ in 0..16 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            conn.read_exact(BIG / 16).await.unwrap();
        }
    }
}

// ------------------------------------------------------------------ backends

fn web() -> Ingress {
    Ingress::new("web").prefix(HOST, "/", "web")
}

/// A product whose route has these timeouts: connect, read, send.
async fn timed(origin: std::net::SocketAddr, timeouts: [&str; 3]) -> Product {
    let [connect, read, send] = timeouts;
    let ingress = web()
        .set("proxy-connect-timeout", connect)
        .set("proxy-read-timeout", read)
        .set("proxy-send-timeout", send);
    serve([ingress.yaml(), service("web", &[origin])]).await
}

#[tokio::test]
async fn the_connect_timeout_bounds_tcp() {
    // Nobody accepts, and the queue is full: the kernel does not answer any more.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let full: TcpListener = socket.listen(1).unwrap();
    let addr = full.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(addr)).await
    {
        queued.push(stream);
    }
    // With and without the stream of ours that keeps short send timeouts.
    for send in ["300", "1"] {
        let product = timed(addr, ["1", "0", send]).await;
        assert_eq!(client::get(product.http(), HOST, "/").await.status, 504);
        let timeouts = [("reason", "timeout"), ("ingress", "web")];
        let errors = async || product.metric_sum("tak_ingress_upstream_errors_total", &timeouts).await;
        eventually(DEADLINE, async || (errors().await == 1.0).then_some(())).await;
        assert_eq!(product.metric_sum("tak_ingress_upstream_retries_total", &[]).await, 0.0);
    }
}

#[tokio::test]
async fn the_connect_timeout_bounds_the_name_too() {
    let dns = DnsServer::start().await;
    dns.set_silent(true);
    let path = json!({"path": "/", "pathType": "Prefix"});
    let ingress = Ingress::new("web")
        .rule(HOST, path, "web", json!({"number": 80}))
        .set("proxy-connect-timeout", "1")
        .set("proxy-read-timeout", "0");
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": common::NAMESPACE, "name": "web"},
        "spec": {"type": "ExternalName", "externalName": "slow.example.org", "ports": [{"name": "http", "port": 80}]},
    });
    let servers = format!("--dns-servers={}", dns.addr());
    let product = serve_with([ingress.yaml(), service.to_string()], &[&servers]).await;
    assert_eq!(client::get(product.http(), HOST, "/").await.status, 504);
}

/// A backend that reads the head, and then neither reads nor writes.
async fn deaf() -> Origin {
    Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        std::future::pending::<()>().await
    })
    .await
}

/// Uploads more than all buffers on the way take: the status of the answer.
async fn upload(product: &Product) -> u16 {
    const SIZE: usize = 32 << 20;
    let stream = TcpStream::connect(product.http()).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let sending = tokio::spawn(async move {
        let head = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {SIZE}\r\n\r\n");
        let _ = write.write_all(head.as_bytes()).await;
        let _ = write.write_all(&vec![b'x'; SIZE]).await;
        write
    });
    let mut answer = Vec::new();
    let got = tokio::time::timeout(DEADLINE, read.read_buf(&mut answer)).await;
    sending.abort();
    match got {
        Ok(Ok(_)) => common::status_in(&answer),
        Ok(Err(e)) => panic!("{e}"),
        Err(_) => 0,
    }
}

#[tokio::test]
async fn a_backend_that_takes_nothing_is_504_whichever_timeout_is_left() {
    for (read, send) in [("300", "1"), ("0", "1"), ("1", "0"), ("1", "300"), ("1", "1")] {
        let origin = deaf().await;
        let product = timed(origin.addr(), ["60", read, send]).await;
        if (read, send) != ("1", "300") {
            assert_eq!(upload(&product).await, 504, "read {read}, send {send}");
        } else {
            // Without an upload there is nothing to send, and the read timeout alone decides.
            assert_eq!(client::get(product.http(), HOST, "/").await.status, 504);
        }
        assert_eq!(origin.accepts(), 1, "not sent again");
    }
}

#[tokio::test]
async fn the_send_timeout_counts_pauses_and_not_the_whole() {
    const SIZE: usize = 24 << 20;
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        let mut buffer = vec![0; SIZE / 12];
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            if stream.read_exact(&mut buffer).await.is_err() {
                return;
            }
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    })
    .await;
    let product = timed(origin.addr(), ["60", "0", "1"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    assert_eq!(conn.request("POST", HOST, "/", &[], &vec![b'x'; SIZE]).await.unwrap().text(), "ok");
}

#[tokio::test]
async fn what_a_backend_said_before_it_stopped_taking_still_counts() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno").await;
        std::future::pending::<()>().await
    })
    .await;
    for (read, send) in [("0", "1"), ("300", "1"), ("1", "0")] {
        let product = timed(origin.addr(), ["60", read, send]).await;
        assert_eq!(upload(&product).await, 403, "read {read}, send {send}");
    }
}

#[tokio::test]
async fn a_client_that_stalls_its_upload_is_408_and_not_the_backends_fault() {
    let origin = deaf().await;
    let product = timed(origin.addr(), ["60", "1", "300"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 10\r\n\r\nhalf")).await.unwrap();
    assert_eq!(conn.read_response().await.unwrap().status, 408);
    assert_eq!(product.metric_sum("tak_ingress_upstream_errors_total", &[("ingress", "web")]).await, 0.0);
}

#[tokio::test]
async fn a_client_that_leaves_is_499_and_its_request_ends_at_the_backend() {
    let silent = async |mut stream: TcpStream| while read_head(&mut stream).await.is_ok() {};
    let origin = Origin::raw(silent).await;
    let product = timed(origin.addr(), ["0", "0", "0"]).await;
    for tls in [false, true] {
        let path = if tls { "/tls" } else { "/plain" };
        let mut conn = match tls {
            true => RawConn::connect_tls(product.https(), Some(HOST), &["http/1.1"]).await.unwrap(),
            false => RawConn::connect(product.http()).await.unwrap(),
        };
        conn.send(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
        eventually(DEADLINE, async || (origin.open_connections() == 1).then_some(())).await;
        drop(conn);
        eventually(DEADLINE, async || (origin.open_connections() == 0).then_some(())).await;
        let status = async || {
            let log = product.log();
            log.iter().find(|entry| entry["path"] == path).map(|entry| entry["status"].clone())
        };
        assert_eq!(eventually(DEADLINE, status).await, 499);
    }
}
