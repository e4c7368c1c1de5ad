//! What is tried again, and what never is: a request is repeated only if nothing of it can have been acted on, or if
//! acting twice does no harm and nothing has come back.

mod common;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use common::{HOST, Ingress, everything_to, serve, serve_with, service};
use ingress_e2e::client::{self, RawConn};
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

/// Requests by `METHOD PATH`, each time that one arrives.
type Seen = Arc<Mutex<HashMap<String, usize>>>;

/// A backend that answers `/` well, and anything else with `bytes` and the end of the connection.
async fn breaking(bytes: &'static str) -> (Origin, Seen) {
    let seen = Seen::default();
    let note = seen.clone();
    let origin = Origin::raw(move |mut stream: TcpStream| {
        let note = note.clone();
        async move {
            while let Ok(head) = read_head(&mut stream).await {
                let request = head.split(" HTTP").next().unwrap_or("").to_owned();
                if head.to_lowercase().contains("content-length: 5") {
                    let _ = stream.read_exact(&mut [0; 5]).await;
                }
                let good = request.ends_with(" /");
                *note.lock().unwrap().entry(request).or_default() += 1;
                if !good {
                    let _ = stream.write_all(bytes.as_bytes()).await;
                    return;
                }
                let _ = stream.write_all(OK.as_bytes()).await;
            }
        }
    })
    .await;
    (origin, seen)
}

async fn retries(product: &Product) -> f64 {
    product.metric_sum("tak_ingress_upstream_retries_total", &[("ingress", "web")]).await
}

#[tokio::test]
async fn only_what_may_be_repeated_is_and_only_before_an_answer_has_begun() {
    // What the backend sends before it hangs up; the method; whether the connection was kept; how often it may see it.
    for (sent, method, kept, times) in [
        ("", "GET", true, 2),
        ("", "PUT", true, 2),
        ("", "POST", true, 1),
        ("", "GET", false, 1),
        ("", "POST", false, 1),
        ("HTTP/1.1 200 OK\r\nX-Half: ", "GET", true, 1),
        ("HTTP/1.1 200 OK\r\nX-Half: ", "POST", true, 1),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "GET", true, 1),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "GET", true, 1),
        ("garbage\r\n\r\n", "GET", true, 1),
    ] {
        let (origin, seen) = breaking(sent).await;
        let product = serve_with(everything_to(&origin), &["--threads=1"]).await;
        if kept {
            assert_eq!(client::get(product.http(), HOST, "/").await.status, 200);
        }
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let body = if method == "GET" { &b""[..] } else { b"hello" };
        match conn.request(method, HOST, "/breaks", &[], body).await {
            Ok(answer) => assert_eq!(answer.status, 502, "{method} {sent:?}"),
            Err(e) => assert!(sent.contains("\r\n\r\n"), "only a begun answer is cut: {e:#}"),
        }
        let arrived = seen.lock().unwrap()[&format!("{method} /breaks")];
        assert_eq!(arrived, times, "{method}, kept: {kept}, after {sent:?}");
        assert_eq!(retries(&product).await, (times - 1) as f64, "{method} {sent:?}");
    }
}

/// An address where connections are refused for as long as the socket lives: bound, but not listening.
fn refusing(last: u8) -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 1, last], 0).into()).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

#[tokio::test]
async fn attempts_are_few_however_many_addresses_there_are() {
    let dead: Vec<_> = (1..=8).map(refusing).collect();
    let addrs: Vec<_> = dead.iter().map(|(_, addr)| *addr).collect();
    let web = Ingress::new("web").prefix(HOST, "/", "web");
    let product = serve([web.yaml(), service("web", &addrs)]).await;
    for requests in 1..=3 {
        assert_eq!(client::get(product.http(), HOST, "/").await.status, 502);
        assert_eq!(retries(&product).await, f64::from(requests * 2), "three attempts for one request");
    }
    let connect = [("reason", "connect"), ("ingress", "web")];
    let errors = async || product.metric_sum("tak_ingress_upstream_errors_total", &connect).await;
    eventually(DEADLINE, async || (errors().await == 3.0).then_some(())).await;
}

#[tokio::test]
async fn a_body_that_was_begun_is_not_sent_twice_unless_all_of_it_is_kept() {
    // The connection was kept and breaks; the engine keeps the first 64 KiB of a body for another attempt.
    for (size, times) in [(1000, 2), (1 << 20, 1)] {
        let seen = Seen::default();
        let note = seen.clone();
        let origin = Origin::raw(move |mut stream: TcpStream| {
            let note = note.clone();
            async move {
                while let Ok(head) = read_head(&mut stream).await {
                    let length = head.to_lowercase();
                    let length =
                        length.split("content-length: ").nth(1).and_then(|l| l.lines().next()?.parse().ok());
                    let mut body = vec![0; length.unwrap_or(0)];
                    let _ = stream.read_exact(&mut body).await;
                    let times = {
                        let mut seen = note.lock().unwrap();
                        let count = seen.entry(head.split(' ').next().unwrap_or("").to_owned()).or_default();
                        *count += 1;
                        *count
                    };
                    if head.starts_with("PUT") && times == 1 {
                        return;
                    }
                    let _ = stream.write_all(OK.as_bytes()).await;
                }
            }
        })
        .await;
        let product = serve_with(everything_to(&origin), &["--threads=1"]).await;
        assert_eq!(client::get(product.http(), HOST, "/").await.status, 200);
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let answer = conn.request("PUT", HOST, "/", &[], &vec![b'x'; size]).await.unwrap();
        assert_eq!(answer.status, if times == 2 { 200 } else { 502 }, "{size} bytes");
        assert_eq!(seen.lock().unwrap()["PUT"], times, "{size} bytes");
    }
}
