//! Request bodies: the limit that a client really hears of, and `Expect: 100-continue`.

mod common;

use common::{HOST, Ingress, everything_to, serve, serve_with, service};
use ingress_e2e::client::{H2Conn, RawConn};
use ingress_e2e::origin::{Origin, Reply, read_head};
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Far more than the buffers of the kernel take, so that a client that only writes is stuck unless it is read from.
const SIZE: usize = 6 << 20;

fn post(fields: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n")
}

#[tokio::test]
async fn a_client_that_only_writes_still_hears_of_413() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--max-request-body-size=1Mi"]).await;
    let chunk = [format!("{SIZE:x}\r\n").as_bytes(), &vec![b'x'; SIZE], b"\r\n0\r\n\r\n"].concat();
    for (fields, body) in [
        (format!("Content-Length: {SIZE}\r\n"), &vec![b'x'; SIZE]),
        ("Transfer-Encoding: chunked\r\n".into(), &chunk),
    ] {
        for tls in [false, true] {
            let mut conn = match tls {
                true => RawConn::connect_tls(product.https(), Some(HOST), &["http/1.1"]).await.unwrap(),
                false => RawConn::connect(product.http()).await.unwrap(),
            };
            conn.send(post(&fields)).await.unwrap();
            conn.send(body).await.unwrap_or_else(|e| panic!("{fields}: all of it can be sent: {e:#}"));
            let answer = conn.read_response().await.unwrap();
            assert_eq!((answer.status, answer.header("connection")), (413, Some("close")), "{fields}");
            assert!(conn.closed_within(DEADLINE).await);
        }
    }
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    for length in [vec![("content-length", SIZE.to_string())], vec![]] {
        let fields: Vec<_> = length.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let answer = h2.request("POST", HOST, "/", &fields, &vec![b'x'; SIZE]).await.unwrap();
        assert_eq!(answer.status, 413, "{fields:?}");
    }
    assert_eq!(h2.get(HOST, "/").await.unwrap().status, 200, "its connection goes on");
    assert_eq!(origin.requests(), 1, "whole requests at the backend");
}

#[tokio::test]
async fn an_answer_of_our_own_bounds_what_it_reads() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--max-request-body-size=1Mi"]).await;
    // It would go on for ever: the connection ends although the client does not stop.
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(post("Transfer-Encoding: chunked\r\n")).await.unwrap();
    let chunk = [&b"10000\r\n"[..], &[b'x'; 0x10000], b"\r\n"].concat();
    let mut sent = 0;
    while conn.send(&chunk).await.is_ok() {
        sent += chunk.len();
        assert!(sent < 1 << 30, "it reads and reads");
    }
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn continue_comes_from_the_backend_and_the_upload_follows() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for _ in 0..2 {
        conn.send(post("Content-Length: 5\r\nExpect: 100-continue\r\n")).await.unwrap();
        assert_eq!(conn.read_head().await.unwrap().status, 100);
        conn.send("hello").await.unwrap();
        let answer = conn.read_response().await.unwrap();
        assert_eq!((answer.status, answer.json()["body"].as_str()), (200, Some("hello")));
        assert_eq!(answer.echoed("expect"), ["100-continue"], "RFC 9110 section 10.1.1: passed on");
    }
    // Nobody has to wait for it.
    let sent = post("Content-Length: 5\r\nExpect: 100-continue\r\n") + "hello";
    conn.send(sent).await.unwrap();
    assert_eq!(conn.read_response().await.unwrap().json()["body"], "hello");
}

#[tokio::test]
async fn an_upload_that_is_refused_never_starts() {
    let origin = Origin::echo().await;
    let product = serve_with(
        [
            Ingress::new("web").prefix(HOST, "/", "web").yaml(),
            Ingress::new("auth").prefix(HOST, "/auth", "web").set("auth-type", "basic").yaml(),
            service("web", &[origin.addr()]),
        ],
        &["--max-request-body-size=1Ki"],
    )
    .await;
    for (target, host, length, status) in [
        ("/", HOST, 2000, 413),
        ("/", "other.example.com", 5, 404),
        ("/a/../b", HOST, 5, 400),
        ("/auth", HOST, 5, 501),
    ] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
        );
        conn.send(head).await.unwrap();
        let answer = conn.read_response().await.unwrap();
        assert_eq!((answer.status, answer.interim.len()), (status, 0), "{target}");
        // The next bytes could be the body or a request: nobody could tell.
        assert_eq!(answer.header("connection"), Some("close"), "{target}");
        assert!(conn.closed_within(DEADLINE).await, "{target}");
    }
    assert_eq!(origin.accepts(), 0);
}

#[tokio::test]
async fn a_backend_may_refuse_an_upload_before_it_starts() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno").await;
        let _ = read_head(&mut stream).await;
    })
    .await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(post("Content-Length: 5\r\nExpect: 100-continue\r\n")).await.unwrap();
    let answer = conn.read_response().await.unwrap();
    assert_eq!((answer.status, answer.text().as_str(), answer.interim.len()), (401, "no", 0));
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(conn.closed_within(DEADLINE).await);
}

#[tokio::test]
async fn a_backend_that_never_says_continue_is_504() {
    let origin =
        Origin::raw(async |mut stream: TcpStream| while read_head(&mut stream).await.is_ok() {}).await;
    let ingress = Ingress::new("web").prefix(HOST, "/", "web").set("proxy-read-timeout", "1");
    let product = serve([ingress.yaml(), service("web", &[origin.addr()])]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(post("Content-Length: 5\r\nExpect: 100-continue\r\n")).await.unwrap();
    assert_eq!(conn.read_response().await.unwrap().status, 504, "the client did what it was told");
    eventually(DEADLINE, async || (origin.open_connections() == 0).then_some(())).await;
}

#[tokio::test]
async fn an_http_1_0_client_hears_nothing_in_between() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let head = read_head(&mut stream).await.unwrap_or_default().to_lowercase();
        let expect = head.contains("expect:");
        let _ = stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").await;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{expect:5}");
        let _ = stream.write_all(answer.as_bytes()).await;
    })
    .await;
    let product = serve(everything_to(&origin)).await;
    for (version, interim) in [("1.0", &[][..]), ("1.1", &[103])] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let fields = "Content-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\nhi";
        conn.send(format!("POST / HTTP/{version}\r\nHost: {HOST}\r\n{fields}")).await.unwrap();
        let answer = conn.read_response().await.unwrap();
        assert_eq!((answer.status, &answer.interim[..]), (200, interim), "HTTP/{version}");
        assert_eq!(answer.text().trim(), (version == "1.1").to_string(), "HTTP/{version}: Expect passed on");
    }
}

#[tokio::test]
async fn an_early_answer_of_the_backend_ends_an_upload() {
    let origin = Origin::http(|_| Reply::new(200, "ok")).await;
    let early = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        let _ = stream
            .write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
            .await;
    })
    .await;
    let product = serve([
        Ingress::new("web").prefix(HOST, "/", "web").prefix(HOST, "/early", "early").yaml(),
        service("web", &[origin.addr()]),
        service("early", &[early.addr()]),
    ])
    .await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let answer = conn.request("POST", HOST, "/early", &[], &vec![b'x'; SIZE]).await.unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (413, "no"));
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    assert_eq!(conn.request("POST", HOST, "/", &[], b"hello").await.unwrap().status, 200);
}
