//! Where one message ends and the next begins.

mod common;

use std::time::Duration;

use common::{HOST, Ingress, everything_to, get, serve, service, status_in, status_of};
use ingress_e2e::client::{self, H2Conn, RawConn};
use ingress_e2e::origin::{Origin, Reply, read_head};
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// What a request may be answered with so that no two servers can disagree about it.
#[track_caller]
fn assert_refused(status: u16, what: &str) {
    assert!([400, 501].contains(&status), "{what:?}: {status}");
}

#[tokio::test]
async fn two_framings_are_refused_and_nothing_is_smuggled() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let smuggled = "GET /admin HTTP/1.1\r\nHost: app.example.com\r\n\r\n";
    for fields in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
        "transfer-encoding: CHUNKED\r\ncontent-length: 0\r\n",
    ] {
        let request = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n0\r\n\r\n{smuggled}");
        let answer = client::raw(product.http(), request).await;
        assert_eq!(status_in(&answer), 400, "{fields:?}");
        let answers = String::from_utf8_lossy(&answer).matches("HTTP/1.1 ").count();
        assert_eq!(answers, 1, "{fields:?}: the connection ends with the first answer");
    }
    assert_eq!(origin.accepts(), 0, "nothing was forwarded");
}

#[tokio::test]
async fn odd_transfer_encodings_are_refused() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for (version, fields) in [
        ("1.1", "Transfer-Encoding: identity, chunked"),
        ("1.1", "Transfer-Encoding: chunked, identity"),
        ("1.1", "Transfer-Encoding: chunked, chunked"),
        ("1.1", "Transfer-Encoding: gzip, chunked"),
        ("1.1", "Transfer-Encoding: identity"),
        ("1.1", "Transfer-Encoding: gzip"),
        ("1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
        ("1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"),
        ("1.1", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked"),
        ("1.1", "Transfer-Encoding: xchunked"),
        ("1.1", "Transfer-Encoding: chunked;q=1"),
        ("1.1", "Transfer-Encoding: \"chunked\""),
        ("1.1", "Transfer-Encoding: \x0bchunked"),
        ("1.1", "Transfer-Encoding: chunked\x0b"),
        ("1.1", "Transfer-Encoding: ,chunked"),
        ("1.1", "Transfer-Encoding: chunked,"),
        ("1.1", "Transfer-Encoding:"),
        ("1.1", "Transfer_Encoding: chunked\r\nTransfer-Encoding: x"),
        ("1.0", "Transfer-Encoding: chunked"),
    ] {
        let request = format!("POST / HTTP/{version}\r\nHost: {HOST}\r\n{fields}\r\n\r\n0\r\n\r\n");
        assert_refused(status_of(product.http(), request).await, &format!("HTTP/{version} {fields}"));
    }
    assert_eq!(origin.accepts(), 0, "nothing was forwarded");
}

#[tokio::test]
async fn odd_content_lengths_are_refused() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for fields in [
        "Content-Length: 1\r\nContent-Length: 1",
        "Content-Length: 1\r\nContent-Length: 2",
        "Content-Length: 1, 1",
        "Content-Length: +1",
        "Content-Length: -1",
        "Content-Length: 0x1",
        "Content-Length: 1a",
        "Content-Length: 1 1",
        "Content-Length: 1;",
        "Content-Length: \"1\"",
        "Content-Length:",
        "Content-Length: 99999999999999999999999999",
    ] {
        let request = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n\r\nx");
        assert_refused(status_of(product.http(), request).await, fields);
    }
    assert_eq!(origin.accepts(), 0, "nothing was forwarded");
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for head in [
        "GET / HTTP/1.1\nHost: app.example.com\n\n",
        "GET / HTTP/1.1\r\nHost: app.example.com\n\r\n",
        "GET / HTTP/1.1\nHost: app.example.com\r\n\r\n",
        "GET / HTTP/1.1\r\nX-A: 1\n\tb\r\nHost: app.example.com\r\n\r\n",
        "GET / HTTP/1.1\rHost: app.example.com\r\r",
        "GET / HTTP/1.1 \r\nHost: app.example.com\r\n\r\n",
        "GET\t/\tHTTP/1.1\r\nHost: app.example.com\r\n\r\n",
        " GET / HTTP/1.1\r\nHost: app.example.com\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/1.1.1\r\nHost: app.example.com\r\n\r\n",
        "GET / HTTP/3.0\r\nHost: app.example.com\r\n\r\n",
        "GET / HTTP/0.9\r\nHost: app.example.com\r\n\r\n",
        "GET / http/1.1\r\nHost: app.example.com\r\n\r\n",
        "GET / ICAP/1.0\r\nHost: app.example.com\r\n\r\n",
        "G\x01T / HTTP/1.1\r\nHost: app.example.com\r\n\r\n",
        "G(T / HTTP/1.1\r\nHost: app.example.com\r\n\r\n",
        "{\"not\": \"http\"}\r\n\r\n",
        "\x00\x01\x02\x03\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let status = status_of(product.http(), head).await;
        // 505 says it better where the version is the fault.
        assert!([400, 505].contains(&status), "{head:?}: {status}");
    }
    let connect = "CONNECT app.example.com:443 HTTP/1.1\r\nHost: app.example.com:443\r\n\r\n";
    let status = status_of(product.http(), connect).await;
    assert!((400..=501).contains(&status), "CONNECT: {status}");
    assert_eq!(origin.accepts(), 0, "nothing was forwarded");
}

/// Bodies that break off with a chunk that cannot be read.
const BROKEN: [&str; 11] = [
    "5\nhello\r\n0\r\n\r\n",
    "5;a=\nb\r\nhello\r\n0\r\n\r\n",
    "0x5\r\nhello\r\n0\r\n\r\n",
    "5 \r\nhello\r\n0\r\n\r\n",
    "-1\r\nhello\r\n0\r\n\r\n",
    "+5\r\nhello\r\n0\r\n\r\n",
    "11111111111111115\r\nhello\r\n0\r\n\r\n",
    "5\r\nhelloworld\r\n0\r\n\r\n",
    "5\r\nhello0\r\n\r\n",
    "g\r\nhello\r\n0\r\n\r\n",
    "\r\nhello\r\n0\r\n\r\n",
];

#[tokio::test]
async fn a_broken_chunk_never_makes_a_whole_request() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut accepted = Vec::new();
    for body in BROKEN {
        let before = origin.requests();
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        conn.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n{body}"))
            .await
            .unwrap();
        let closed = conn.closed_within(Duration::from_secs(2)).await;
        if !closed || origin.requests() > before {
            accepted.push(body);
        }
    }
    assert_eq!(accepted, [""; 0], "taken for whole, or the connection goes on");
}

#[tokio::test]
async fn a_broken_chunk_is_answered_with_400() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut others = Vec::new();
    for body in BROKEN {
        let request = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        let status = status_of(product.http(), request).await;
        if status != 400 {
            others.push((body, status));
        }
    }
    assert_eq!(others, [], "0: closed without an answer");
}

#[tokio::test]
async fn bodies_of_both_framings_arrive_whole() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for (spelling, chunks) in [
        ("chunked", "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"),
        ("Chunked", "5;name=value\r\nhello\r\n06\r\n world\r\n0\r\n\r\n"),
        ("CHUNKED", "B\r\nhello world\r\n0\r\nX-Trailer: 1\r\n\r\n"),
    ] {
        let head = format!("POST /x HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: {spelling}\r\n\r\n");
        conn.send(head + chunks).await.unwrap();
        let answer = conn.read_response().await.unwrap();
        assert_eq!((answer.status, answer.json()["body"].as_str()), (200, Some("hello world")), "{spelling}");
        assert_eq!(answer.echoed("transfer-encoding"), ["chunked"], "written anew");
    }
    let large = vec![b'x'; 3 << 20];
    let answer = conn.request("PUT", HOST, "/x", &[], &large).await.unwrap();
    assert_eq!((answer.status, answer.json()["body_bytes"].as_u64()), (200, Some(3 << 20)));
    assert_eq!(answer.echoed("content-length"), ["3145728"]);

    conn.send(format!(
        "PUT /e HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    ))
    .await
    .unwrap();
    assert_eq!(conn.read_head().await.unwrap().status, 100);
    conn.send("hello").await.unwrap();
    assert_eq!(conn.read_response().await.unwrap().json()["body"], "hello");

    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    let answer = h2.request("POST", HOST, "/x", &[], &large).await.unwrap();
    assert_eq!((answer.status, answer.json()["body_bytes"].as_u64()), (200, Some(3 << 20)));
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let origin = Origin::http(|request| Reply::new(200, request.target())).await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let plain = |path| format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let post = format!("POST /two HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 3\r\n\r\nabc");
    conn.send([plain("/one"), post, plain("/three"), plain("/four")].concat()).await.unwrap();
    for path in ["/one", "/two", "/three", "/four"] {
        let answer = conn.read_response().await.unwrap_or_else(|e| panic!("{path}: {e:#}"));
        assert_eq!((answer.status, answer.text().as_str()), (200, path));
    }
    assert_eq!(origin.requests(), 4);

    // What stands behind a request that is refused is not read as one.
    let refused = "GET /x#y HTTP/1.1\r\nHost: app.example.com\r\n\r\n".to_owned();
    let answer = client::raw(product.http(), [plain("/one"), refused, plain("/two")].concat()).await;
    let text = String::from_utf8_lossy(&answer);
    let statuses: Vec<_> = text.match_indices("HTTP/1.1 ").map(|(at, _)| &text[at + 9..at + 12]).collect();
    assert_eq!((statuses, origin.requests()), (vec!["200", "400"], 5));
}

#[tokio::test]
async fn only_websocket_is_an_upgrade() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let settings = "HTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    let key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (method, fields) in [
        ("GET", format!("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n{settings}")),
        ("GET", format!("Connection: Upgrade\r\nUpgrade: H2C\r\n{settings}")),
        ("GET", format!("Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n{key}")),
        ("GET", format!("Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n{key}")),
        ("GET", format!("Upgrade: websocket\r\n{key}")),
        ("GET", "Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n".into()),
        ("POST", format!("Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n{key}")),
    ] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        conn.send(format!("{method} / HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n")).await.unwrap();
        let answer = conn.read_response().await.unwrap();
        assert_eq!(answer.status, 200, "{fields:?}: a plain answer");
        for name in ["upgrade", "http2-settings", "connection"] {
            assert_eq!(answer.echoed(name), [""; 0], "{fields:?}");
        }
        assert_eq!(conn.get(HOST, "/next").await.unwrap().status, 200, "{fields:?}: no tunnel");
    }
}

#[tokio::test]
async fn a_handshake_with_a_body_is_refused() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for framing in
        ["Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
    {
        let head = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n");
        assert_eq!(status_of(product.http(), head + framing).await, 400, "{framing:?}");
    }
    assert_eq!(origin.accepts(), 0);
}

#[tokio::test]
async fn a_101_that_nobody_asked_for_opens_no_tunnel() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nSECRET";
        let _ = stream.write_all(switch.as_bytes()).await;
        let _ = tokio::time::timeout(DEADLINE, read_head(&mut stream)).await;
    })
    .await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"))
        .await
        .unwrap();
    match conn.read_response().await {
        Ok(answer) => assert_eq!((answer.status, answer.text().contains("SECRET")), (502, false)),
        Err(error) => assert!(!format!("{error:#}").contains("SECRET"), "{error:#}"),
    }
}

/// Answers by path with heads and bodies as they stand, on one connection for as long as the peer likes.
async fn bodiless(mut stream: TcpStream) {
    while let Ok(head) = read_head(&mut stream).await {
        let answer = match head.split(' ').nth(1).unwrap_or("") {
            "/length" => "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n",
            "/chunked404" => "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n",
            "/204" => "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
            "/204length" => "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
            "/304" => "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nContent-Length: 1234\r\n\r\n",
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

const BODILESS: [(&str, &str, u16); 6] = [
    ("HEAD", "/length", 200),
    ("HEAD", "/chunked404", 404),
    ("GET", "/204", 204),
    ("GET", "/204length", 204),
    ("GET", "/304", 304),
    ("HEAD", "/other", 200),
];

#[tokio::test]
async fn answers_without_a_body_end_at_once() {
    let origin = Origin::raw(bodiless).await;
    let product = serve(everything_to(&origin)).await;
    for (method, path, status) in BODILESS {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let answer = conn.request(method, HOST, path, &[], b"").await.unwrap();
        assert_eq!(answer.status, status, "{method} {path}");
        if status == 204 {
            assert_eq!(
                (answer.header("transfer-encoding"), answer.header("content-length")),
                (None, None),
                "{path}"
            );
        }
        if path == "/length" {
            assert_eq!(answer.header("content-length"), Some("1234"));
        }
        // A stray byte of a body would be read as the head of this one.
        let next = conn.get(HOST, "/next").await.unwrap_or_else(|e| panic!("after {method} {path}: {e:#}"));
        assert_eq!((next.status, next.text().as_str()), (200, "hi"), "after {method} {path}");
    }
}

#[tokio::test]
async fn answers_without_a_body_end_at_once_over_http2() {
    let origin = Origin::raw(bodiless).await;
    let product = serve(everything_to(&origin)).await;
    let conn = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    for (method, path, status) in BODILESS {
        let answer = conn.request(method, HOST, path, &[], b"").await;
        let answer = answer.unwrap_or_else(|e| panic!("{method} {path}: {e:#}"));
        assert_eq!((answer.status, answer.body.len()), (status, 0), "{method} {path}");
    }
    assert_eq!(conn.get(HOST, "/next").await.unwrap().text(), "hi");
}

#[tokio::test]
async fn an_http_1_0_client_gets_no_chunks() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        while read_head(&mut stream).await.is_ok() {
            let answer =
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await;
    let product = serve(everything_to(&origin)).await;
    for connection in ["", "Connection: keep-alive\r\n"] {
        let request = format!("GET / HTTP/1.0\r\nHost: {HOST}\r\n{connection}\r\n");
        let answer = String::from_utf8(client::raw(product.http(), request).await).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!((status_in(answer.as_bytes()), body), (200, "hello world"), "{answer}");
        assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{head}");
    }
    // The same answer to HTTP/1.1 keeps its framing, and the connection.
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for _ in 0..2 {
        let answer = conn.get(HOST, "/").await.unwrap();
        assert_eq!(
            (answer.header("transfer-encoding"), answer.text().as_str()),
            (Some("chunked"), "hello world")
        );
    }
}

#[tokio::test]
async fn an_http_1_0_connection_ends_with_its_answer() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let answer = client::raw(product.http(), format!("GET / HTTP/1.0\r\nHost: {HOST}\r\n\r\n")).await;
    assert_eq!(status_in(&answer), 200);
}

#[tokio::test]
async fn a_body_up_to_the_end_of_the_connection_arrives_whole() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        let _ = read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello ").await;
        let _ = stream.write_all(b"world").await;
    })
    .await;
    let product = serve(everything_to(&origin)).await;
    let h1 = client::get(product.http(), HOST, "/").await;
    assert_eq!((h1.status, h1.text().as_str()), (200, "hello world"));
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap().get(HOST, "/").await.unwrap();
    assert_eq!((h2.status, h2.text().as_str()), (200, "hello world"));
}

#[tokio::test]
async fn the_wrong_protocol_for_a_port_ends_at_once() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let hello = b"\x16\x03\x01\x00\x31\x01\x00\x00\x2d\x03\x03RAWBYTESRAWBYTESRAWBYTESRAWBYTES\x00\x00\x06\x13\x01\x13\x02\x13\x03\x01\x00";
    let proxy = format!("PROXY TCP4 203.0.113.9 203.0.113.1 56324 443\r\n{}", get(HOST, "/RAWBYTES"));
    for (addr, bytes) in [
        (product.https(), get(HOST, "/RAWBYTES").into_bytes()),
        (product.http(), hello.to_vec()),
        (product.http(), proxy.clone().into_bytes()),
        (product.https(), proxy.into_bytes()),
    ] {
        let mut conn = RawConn::connect(addr).await.unwrap();
        conn.send(&bytes).await.unwrap();
        // No request line follows a ClientHello: its sender waits, the proxy must not.
        let closed = conn.closed_within(Duration::from_secs(3)).await;
        assert!(closed, "{:?} at {addr} stays open", String::from_utf8_lossy(&bytes));
    }
    assert_eq!(origin.accepts(), 0);
    assert_eq!(client::get(product.http(), HOST, "/barrier").await.status, 200);
    eventually(DEADLINE, async || product.log_text().contains("/barrier").then_some(())).await;
    assert!(!product.log_text().contains("RAWBYTES"), "{}", product.log_text());
    assert!(!product.stderr().contains("RAWBYTES") && !product.stderr().contains("panicked"));
}

#[tokio::test]
async fn answers_of_two_backends_never_mix() {
    // One backend says less than it sends: what it sent too much must not become the answer to the next request.
    let liar = Origin::raw(async |mut stream: TcpStream| {
        while read_head(&mut stream).await.is_ok() {
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await;
    let product =
        serve([Ingress::new("web").prefix(HOST, "/", "web").yaml(), service("web", &[liar.addr()])]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for _ in 0..10 {
        let answer = conn.get(HOST, "/").await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, "hi"));
    }
}

#[tokio::test]
async fn a_pipelined_request_is_read_as_strictly_as_the_first() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let first = format!("POST /1 HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5\r\n\r\nhello");
    let chunked = format!("POST /2 HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let whole = format!("{first}{chunked}5\r\nworld\r\n0\r\n\r\nGET /3 HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(whole).await.unwrap();
    for (line, body) in [("POST /1", "hello"), ("POST /2", "world"), ("GET /3", "")] {
        let answer = conn.read_response().await.unwrap();
        assert_eq!(answer.status, 200, "{line}");
        let echo = answer.json();
        assert_eq!(echo["request_line"], format!("{line} HTTP/1.1"));
        assert_eq!(echo["body"].as_str().unwrap_or_default(), body, "{line}");
    }
    for second in [
        format!("GET /a b HTTP/1.1\r\nHost: {HOST}\r\n\r\n"),
        format!("{chunked}5;a=\nb\r\nworld\r\n0\r\n\r\n"),
    ] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        conn.send(format!("{first}{second}")).await.unwrap();
        assert_eq!(conn.read_response().await.unwrap().status, 200);
        assert_eq!(conn.read_response().await.unwrap().status, 400, "{second:?}");
    }
}
