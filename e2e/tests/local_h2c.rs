//! HTTP/2 without TLS: what begins with its preface on a plain port is served as HTTP/2, with the limits of any other
//! connection, and nothing else is.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::h2::{END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame, read_frame};
use common::{HOST, Ingress, connect_from, everything_to, serve, serve_with, service, status_of};
use ingress_e2e::client::{H2Conn, RawConn};
use ingress_e2e::origin::Origin;
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

async fn connect(product: &Product) -> H2Conn {
    H2Conn::connect(product.http()).await.unwrap()
}

/// A connection on which these bytes were sent.
async fn sent(product: &Product, bytes: &[u8]) -> RawConn {
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(bytes).await.unwrap();
    conn
}

async fn unmatched(product: &Product, reason: &str, count: f64) {
    let labels = [("reason", reason)];
    let counted = || product.metric_sum("tak_ingress_unmatched_requests_total", &labels);
    eventually(DEADLINE, async || (counted().await == count).then_some(())).await;
}

#[tokio::test]
async fn a_plain_connection_that_begins_with_the_preface_is_http2() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let conn = connect(&product).await;
    let answers = tokio::join!(conn.get(HOST, "/a"), conn.request("POST", HOST, "/b", &[], b"hello"));
    for answer in [answers.0.unwrap(), answers.1.unwrap()] {
        assert_eq!(answer.status, 200);
        assert_eq!(answer.echoed("x-forwarded-proto"), ["http"]);
        assert_eq!(answer.echoed("x-forwarded-port"), ["80"]);
        assert_eq!(answer.echoed("x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(answer.echoed("host"), [HOST]);
    }
    // What the connection is decides, whatever scheme the client names.
    let request = http::Request::get(format!("https://{HOST}/c")).body(()).unwrap();
    let (answer, _) = conn.sender().ready().await.unwrap().send_request(request, true).unwrap();
    let mut body = tokio::time::timeout(DEADLINE, answer).await.unwrap().unwrap().into_body();
    let echo: serde_json::Value = serde_json::from_slice(&body.data().await.unwrap().unwrap()).unwrap();
    assert!(echo.to_string().contains(r#"["x-forwarded-proto","http"]"#), "{echo}");
    let logged = || product.log().into_iter().find(|entry| entry["path"] == "/c");
    let entry = eventually(DEADLINE, async || logged()).await;
    assert_eq!((&entry["protocol"], &entry["scheme"]), (&"HTTP/2.0".into(), &"http".into()));
    assert!(entry.get("tls_version").is_none() && entry.get("sni").is_none(), "{entry}");
}

#[tokio::test]
async fn the_preface_may_come_in_any_pieces() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for at in [1, 3, 14, 18, 23] {
        let mut stream = TcpStream::connect(product.http()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&PREFACE[..at]).await.unwrap();
        // The proxy has read the first piece when it answers somebody who came later.
        assert_eq!(connect(&product).await.get(HOST, "/").await.unwrap().status, 200);
        stream.write_all(&[&PREFACE[at..], &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
        let (kind, flags, id, _) = read_frame(&mut stream).await.unwrap();
        assert_eq!((kind, flags, id), (SETTINGS, 0, 0), "after {at} octets");
    }
}

#[tokio::test]
async fn what_only_begins_like_the_preface_is_http1() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    // Methods that begin like it, in one piece and in two.
    for (begun, rest, method) in [
        ("PRI ", "/ HTTP/1.1\r\n", "PRI"),
        ("P", "OST / HTTP/1.1\r\nContent-Length: 0\r\n", "POST"),
        ("PR", "OPFIND / HTTP/1.1\r\n", "PROPFIND"),
    ] {
        for pause in [false, true] {
            let mut conn = sent(&product, begun.as_bytes()).await;
            if pause {
                assert_eq!(connect(&product).await.get(HOST, "/").await.unwrap().status, 200);
            }
            conn.send(format!("{rest}Host: {HOST}\r\n\r\n")).await.unwrap();
            let answer = conn.read_response().await.unwrap();
            let line = answer.json()["request_line"].to_string();
            assert_eq!((answer.status, line), (200, format!("\"{method} / HTTP/1.1\"")));
            assert_eq!(conn.get(HOST, "/next").await.unwrap().status, 200, "the connection goes on");
        }
    }
    let asked = origin.requests();
    let host = format!("Host: {HOST}\r\n\r\n");
    for bad in [
        format!("PRI * HTTP/2.0\r\n{host}"),
        format!("PRI * HTTP/2.0\r\n\r\nGET / HTTP/1.1\r\n{host}"),
        format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r GET / HTTP/1.1\r\n{host}"),
        format!("PRI * HTTP/1.1\r\n{host}"),
        format!("PRI / HTTP/2.0\r\n{host}"),
        "\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
        "pri * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
        "PRI * HTTP/2.0\n\nSM\n\n".into(),
    ] {
        assert_eq!(status_of(product.http(), &bad).await, 400, "{bad:?}");
    }
    // Nor is it HTTP/2 behind a request, or where TLS has agreed on something else.
    let first = format!("GET / HTTP/1.1\r\n{host}");
    let mut conn = sent(&product, first.as_bytes()).await;
    assert_eq!(conn.read_response().await.unwrap().status, 200);
    conn.send(PREFACE).await.unwrap();
    assert_eq!(conn.read_response().await.unwrap().status, 400);
    let mut conn = sent(&product, &[first.as_bytes(), PREFACE].concat()).await;
    assert_eq!(conn.read_response().await.unwrap().status, 200);
    assert_eq!(conn.read_response().await.unwrap().status, 400);
    let mut conn = RawConn::connect_tls(product.https(), Some(HOST), &["http/1.1"]).await.unwrap();
    conn.send(PREFACE).await.unwrap();
    assert_eq!(conn.read_response().await.unwrap().status, 400);
    assert_eq!(origin.requests(), asked + 2);
}

#[tokio::test]
async fn a_preface_or_a_head_that_does_not_end_is_let_go() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--client-header-timeout=1s"]).await;
    let block = common::h2::get(HOST, "/");
    let open = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(HEADERS, END_STREAM, 1, &block)].concat();
    for begun in [&PREFACE[..1], &PREFACE[..23], &open] {
        let mut conn = sent(&product, begun).await;
        assert!(conn.closed_within(DEADLINE).await, "{begun:?}");
    }
    // Octets that come one by one do not move the limit.
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let mut trickle = PREFACE[..23].chunks(1).cycle();
    let ended = async {
        while conn.send(trickle.next().unwrap()).await.is_ok()
            && !conn.closed_within(Duration::from_millis(200)).await
        {}
    };
    tokio::time::timeout(DEADLINE, ended).await.unwrap();
    unmatched(&product, "client_timeout", 4.0).await;
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn a_flood_of_resets_ends_the_connection() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = sent(&product, &[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await;
    let block = common::h2::get(HOST, "/");
    let mut ended = false;
    for n in 0..20_000 {
        let mut piece = frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &block);
        piece.extend(frame(RST_STREAM, 0, 2 * n + 1, &[0, 0, 0, 8]));
        if conn.send(piece).await.is_err() {
            ended = true;
            break;
        }
    }
    assert!(ended || conn.closed_within(DEADLINE).await, "the flood went through");
    assert_eq!(connect(&product).await.get(HOST, "/").await.unwrap().status, 200);
}

#[tokio::test]
async fn an_upload_that_stalls_is_408_and_an_idle_connection_ends_with_goaway() {
    let origin = Origin::echo().await;
    let args = ["--client-read-timeout=1s", "--client-keepalive-timeout=1s"];
    let product = serve_with(everything_to(&origin), &args).await;
    let conn = connect(&product).await;
    let (answer, mut body) = conn.send_head("POST", HOST, "/", &[], false).await.unwrap();
    body.send_data(Bytes::from_static(b"x"), false).unwrap();
    assert_eq!(tokio::time::timeout(DEADLINE, answer).await.unwrap().unwrap().status(), 408);

    let mut idle = TcpStream::connect(product.http()).await.unwrap();
    idle.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    let goaway = async {
        loop {
            let (kind, _, _, payload) = read_frame(&mut idle).await.unwrap();
            if kind == GOAWAY {
                return payload;
            }
        }
    };
    assert_eq!(tokio::time::timeout(DEADLINE, goaway).await.unwrap(), [0; 8], "no stream, no error");
}

#[tokio::test]
async fn it_keeps_its_place_and_is_counted_once() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--max-connections=1"]).await;
    let connections = async |count: f64| {
        let open = async || product.metric_value("tak_ingress_client_connections").await;
        eventually(DEADLINE, async || (open().await == Some(count)).then_some(())).await;
    };
    for _ in 0..3 {
        let served = async || {
            let conn = H2Conn::connect(product.http()).await.ok()?;
            let answer = conn.get(HOST, "/").await.ok()?;
            (answer.status == 200).then_some(conn)
        };
        let conn = eventually(DEADLINE, served).await;
        connections(1.0).await;
        let mut more = RawConn::connect(product.http()).await.unwrap();
        assert!(more.closed_within(DEADLINE).await, "the place is taken");
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
        drop(conn);
        connections(0.0).await;
    }
}

#[tokio::test]
async fn plain_http2_is_sent_to_https_like_plain_http1() {
    let origin = Origin::echo().await;
    let product = serve([
        Ingress::new("web").prefix(HOST, "/", "web").tls(&[HOST], "cert").yaml(),
        Ingress::new("acme").exact(HOST, "/.well-known/acme-challenge/token", "web").yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    let conn = connect(&product).await;
    let answer = conn.request("POST", HOST, "/a?b", &[], b"x").await.unwrap();
    let location = format!("https://{HOST}/a?b");
    assert_eq!((answer.status, answer.header("location")), (308, Some(&*location)));
    let answer = conn.get(HOST, "/.well-known/acme-challenge/token").await.unwrap();
    assert_eq!((answer.status, answer.echoed("x-forwarded-proto")), (200, vec!["http".to_owned()]));
    assert_eq!(conn.get("other.example.com", "/").await.unwrap().status, 404);
    assert_eq!(conn.request("GET", HOST, "/", &[("host", "x.example.com")], b"").await.unwrap().status, 400);
}

#[tokio::test]
async fn the_proxy_protocol_comes_before_the_preface() {
    let origin = Origin::echo().await;
    let args = ["--trusted-proxies=127.0.0.2", "--proxy-protocol"];
    let product = serve_with(everything_to(&origin), &args).await;
    let mut stream = connect_from("127.0.0.2", product.http()).await;
    stream.write_all(b"PROXY TCP4 203.0.113.9 198.51.100.1 56324 80\r\n").await.unwrap();
    let conn = H2Conn::from_tcp(stream).await.unwrap();
    for _ in 0..2 {
        assert_eq!(conn.get(HOST, "/").await.unwrap().echoed("x-forwarded-for"), ["203.0.113.9"]);
    }
    // Without it the peer is not served, and from others it is no request.
    let mut stream = RawConn::from_tcp(connect_from("127.0.0.2", product.http()).await).unwrap();
    stream.send([PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    assert!(stream.closed_within(DEADLINE).await);
    assert_eq!(stream.read_some().await.unwrap_or_default(), b"");
    let header = b"PROXY TCP4 203.0.113.9 198.51.100.1 56324 80\r\n";
    assert_eq!(status_of(product.http(), [&header[..], PREFACE].concat()).await, 400);
    let direct = connect(&product).await.get(HOST, "/").await.unwrap();
    assert_eq!(direct.echoed("x-forwarded-for"), ["127.0.0.1"]);
}
