//! Time and size: what one client can take, and how it is told.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{HOST, everything_to, serve_with};
use ingress_e2e::client::{H2Conn, RawConn};
use ingress_e2e::origin::{Origin, Reply, read_head};
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[tokio::test]
async fn an_idle_connection_is_closed_after_every_request() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--client-keepalive-timeout=1s"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for _ in 0..3 {
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
    }
    assert!(conn.closed_within(DEADLINE).await, "it would stay for ever after the first request");
    let mut h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.get(HOST, "/").await.unwrap().status, 200);
    assert!(h2.closed_within(DEADLINE).await);
}

#[tokio::test]
async fn a_request_that_stops_half_way_gets_408() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--client-read-timeout=300ms"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send("GET / HTTP/1.1\r\nHost: app").await.unwrap();
    assert_eq!(conn.read_response().await.unwrap().status, 408, "in the head");
    assert!(conn.closed_within(DEADLINE).await);
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 10\r\n\r\nhalf")).await.unwrap();
    assert_eq!(conn.read_response().await.unwrap().status, 408, "in the body");
    assert!(conn.closed_within(DEADLINE).await);
}

#[tokio::test]
async fn a_head_has_a_deadline_however_it_trickles() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--client-header-timeout=1s"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send("GET / HTTP/1.1\r\nHost: ").await.unwrap();
    let mut over = false;
    for _ in 0..200 {
        // One more byte each time: no pause is ever long.
        conn.send("a").await.ok();
        over = conn.closed_within(Duration::from_millis(50)).await;
        if over {
            break;
        }
    }
    assert!(over);
    let timed_out =
        product.metric_sum("tak_ingress_unmatched_requests_total", &[("reason", "client_timeout")]);
    assert_eq!(timed_out.await as u64, 1);
}

#[tokio::test]
async fn a_client_without_a_whole_hello_loses_its_place() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--tls-handshake-timeout=300ms"]).await;
    for sent in [&b""[..], b"\x16\x03\x01\x02\x00", b"\x16"] {
        let mut conn = RawConn::connect(product.https()).await.unwrap();
        conn.send(sent).await.unwrap();
        assert!(conn.closed_within(DEADLINE).await, "{sent:?}");
    }
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.get(HOST, "/").await.unwrap().status, 200);
}

#[tokio::test]
async fn a_body_beyond_the_limit_gets_413_and_never_makes_a_whole_request() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--max-request-body-size=1Mi"]).await;
    let (fits, large) = (vec![b'x'; 1 << 20], vec![b'x'; (1 << 20) + 1]);
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    assert_eq!(conn.request("POST", HOST, "/", &[], &fits).await.unwrap().status, 200);
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    assert_eq!(conn.request("POST", HOST, "/", &[], &large).await.unwrap().status, 413);
    let head = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(head + &format!("{:x}\r\n", large.len())).await.unwrap();
    conn.send(&large).await.ok();
    conn.send("\r\n0\r\n\r\n").await.ok();
    assert_eq!(conn.read_response().await.unwrap().status, 413, "counted while it streams");
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.request("POST", HOST, "/", &[], &large).await.unwrap().status, 413);
    assert_eq!(origin.requests(), 1, "whole requests at the backend");
}

#[tokio::test]
async fn a_larger_response_streams_with_its_length() {
    const SIZE: usize = 3 << 20;
    let origin = Origin::http(|_| Reply::new(200, vec![b'x'; SIZE])).await;
    let product = serve_with(everything_to(&origin), &["--response-buffer-size=64Ki"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let answer = conn.get(HOST, "/").await.unwrap();
    assert_eq!((answer.header("content-length"), answer.body.len()), (Some(SIZE.to_string().as_str()), SIZE));
}

#[tokio::test]
async fn a_held_response_frees_the_backend_whatever_the_clients_speed() {
    const SIZE: usize = 20 << 20;
    let written = Arc::new(AtomicBool::new(false));
    let origin = Origin::raw({
        let written = written.clone();
        move |mut stream: TcpStream| {
            let written = written.clone();
            async move {
                let _ = read_head(&mut stream).await;
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                if stream.write_all(&vec![b'x'; SIZE]).await.is_ok() {
                    written.store(true, Ordering::SeqCst);
                }
                let _ = read_head(&mut stream).await;
            }
        }
    })
    .await;
    let product = serve_with(everything_to(&origin), &["--response-buffer-size=32Mi"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
    // The client reads nothing, and yet the backend gets rid of all of it: far more than the
    // kernel's and the engine's own buffers take.
    eventually(DEADLINE, async || written.load(Ordering::SeqCst).then_some(())).await;
    let answer = conn.read_response().await.unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, SIZE));
}
