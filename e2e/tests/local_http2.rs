//! HTTP/2 clients: time limits, limits of streams and resets, and what may not reach a backend.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{HOST, Ingress, everything_to, serve, serve_with, service};
use ingress_e2e::client::{H2Conn, RawConn, Response};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// A block of header fields in the plainest form that HPACK has.
fn block(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let pseudo = [(":method", method), (":scheme", "https"), (":authority", HOST), (":path", path)];
    let mut out = Vec::new();
    for (name, value) in pseudo.iter().chain(fields) {
        out.push(0);
        for text in [name, value] {
            assert!(text.len() < 127);
            out.push(u8::try_from(text.len()).unwrap());
            out.extend(text.as_bytes());
        }
    }
    out
}

/// A connection whose frames the test writes itself.
struct Frames(RawConn);

impl Frames {
    /// After the prefaces of both sides.
    async fn connect(product: &Product) -> Self {
        let mut conn = Self(Self::raw(product).await);
        conn.0.send([PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
        conn.0.send(frame(SETTINGS, 1, 0, &[])).await.unwrap();
        conn
    }

    async fn raw(product: &Product) -> RawConn {
        let conn = RawConn::connect_tls(product.https(), Some(HOST), &["h2"]).await.unwrap();
        assert_eq!(conn.served().unwrap().alpn.as_deref(), Some("h2"));
        conn
    }

    /// The next frame: kind, flags, stream, payload.
    async fn next(&mut self) -> anyhow::Result<(u8, u8, u32, Vec<u8>)> {
        let head = self.0.read_exact(9).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
        Ok((head[3], head[4], stream, self.0.read_exact(length as usize).await?))
    }

    /// Reads until a frame of this kind.
    async fn until(&mut self, kind: u8) -> (u8, u32, Vec<u8>) {
        loop {
            let (found, flags, stream, payload) = self.next().await.expect("a frame");
            if found == kind {
                return (flags, stream, payload);
            }
        }
    }

    /// Repeats a piece of a flood until the connection is closed; panics if it never is.
    async fn flood(mut self, most: usize, mut piece: impl FnMut(usize) -> Vec<u8>) -> usize {
        for n in 0..most {
            if self.0.send(piece(n)).await.is_err() {
                return n;
            }
            if n % 50 == 49 && self.0.closed_within(Duration::from_millis(20)).await {
                return n;
            }
        }
        assert!(self.0.closed_within(DEADLINE).await, "the connection survived {most}");
        most
    }
}

async fn connect(product: &Product) -> H2Conn {
    H2Conn::connect_tls(product.https(), HOST).await.unwrap()
}

async fn upload(
    conn: &H2Conn,
    pieces: usize,
    pause: Duration,
    end: bool,
) -> anyhow::Result<http::StatusCode> {
    let (response, mut body) = conn.send_head("POST", HOST, "/", &[], false).await?;
    for _ in 0..pieces {
        body.send_data(Bytes::from_static(b"x"), false)?;
        tokio::time::sleep(pause).await;
    }
    if end {
        body.send_data(Bytes::new(), true)?;
    }
    Ok(tokio::time::timeout(DEADLINE, response).await??.status())
}

#[tokio::test]
async fn a_stalled_upload_is_408_and_costs_no_other_stream() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--client-read-timeout=1s"]).await;
    let conn = connect(&product).await;
    let (stalled, steady) = tokio::join!(
        upload(&conn, 1, Duration::ZERO, false),
        upload(&conn, 10, Duration::from_millis(250), true),
    );
    assert_eq!(stalled.unwrap(), 408);
    assert_eq!(steady.unwrap(), 200, "it took longer, but never paused for long");
    assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
    // The backend has not been handed half a body as a whole one.
    assert_eq!(origin.requests(), 2);
    let entry =
        eventually(DEADLINE, async || product.log().into_iter().find(|entry| entry["status"] == 408)).await;
    assert_eq!(entry["rejected_by"], "client_timeout");
}

#[tokio::test]
async fn an_idle_connection_ends_with_goaway_and_a_busy_one_stays() {
    let origin = Origin::http(|_| {
        std::thread::sleep(Duration::from_millis(2500));
        Reply::new(200, "late")
    })
    .await;
    let product = serve_with(everything_to(&origin), &["--client-keepalive-timeout=1s"]).await;
    let mut idle = Frames::connect(&product).await;
    let busy = connect(&product).await;
    let late = busy.get(HOST, "/");
    let goaway = async {
        let (_, _, payload) = idle.until(GOAWAY).await;
        assert_eq!(payload, [0; 8], "no stream, no error");
        assert!(idle.0.closed_within(DEADLINE).await);
    };
    let (late, ()) = tokio::join!(late, goaway);
    assert_eq!(late.unwrap().text(), "late");
    let mut busy = busy;
    assert!(busy.closed_within(DEADLINE).await, "it is idle now");
}

#[tokio::test]
async fn a_preface_or_a_head_that_does_not_end_is_let_go() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--client-header-timeout=1s"]).await;
    let open = frame(HEADERS, END_STREAM, 1, &block("GET", "/", &[]));
    for begun in [&b""[..], &PREFACE[..10], &[PREFACE, &frame(SETTINGS, 0, 0, &[]), &open].concat()] {
        let mut conn = Frames::raw(&product).await;
        conn.send(begun).await.unwrap();
        assert!(conn.closed_within(DEADLINE).await, "{begun:?}");
    }
    let timeouts =
        || product.metric_sum("tak_ingress_unmatched_requests_total", &[("reason", "client_timeout")]);
    eventually(DEADLINE, async || (timeouts().await == 3.0).then_some(())).await;
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn streams_at_once_are_bounded() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--http2-max-concurrent-streams=2"]).await;
    let mut conn = Frames::connect(&product).await;
    let (_, _, settings) = conn.until(SETTINGS).await;
    let of = |id: u16| {
        let found = settings.chunks(6).find(|s| s[..2] == id.to_be_bytes());
        found.map(|s| u32::from_be_bytes(s[2..].try_into().unwrap()))
    };
    assert_eq!(of(3), Some(2), "SETTINGS_MAX_CONCURRENT_STREAMS");
    assert_eq!(of(4), Some(256 << 10), "SETTINGS_INITIAL_WINDOW_SIZE");
    assert_eq!(of(8).unwrap_or(0), 0, "SETTINGS_ENABLE_CONNECT_PROTOCOL");
    for stream in [1, 3, 5] {
        conn.0.send(frame(HEADERS, END_HEADERS, stream, &block("POST", "/", &[]))).await.unwrap();
    }
    let (_, stream, reason) = conn.until(RST_STREAM).await;
    assert_eq!((stream, reason), (5, vec![0, 0, 0, 7]), "REFUSED_STREAM");
}

/// The others are served, and the backend was not asked for more than a fraction of the flood.
async fn assert_survived(product: &Product, origin: &Origin, most: usize) {
    assert_eq!(connect(product).await.get(HOST, "/").await.unwrap().status, 200);
    assert!(origin.accepts() < most, "{} connections to the backend", origin.accepts());
    eventually(DEADLINE, async || {
        (product.metric_sum("tak_ingress_active_requests", &[]).await == 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let origin = Origin::echo().await;
    let silent = Origin::raw(async |stream| {
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let product = serve([
        Ingress::new("web").prefix(HOST, "/", "web").prefix(HOST, "/silent", "silent").yaml(),
        service("web", &[origin.addr()]),
        service("silent", &[silent.addr()]),
    ])
    .await;
    let head = block("GET", "/silent", &[]);
    // At once, before the engine has looked at the stream; and each when the backend is at work on it.
    for behind in [0, 1] {
        let seen = Frames::connect(&product)
            .await
            .flood(20_000, |n| {
                let stream = |n: usize| 2 * u32::try_from(n).unwrap() + 1;
                let mut piece = frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &head);
                if n >= behind {
                    piece.extend(frame(RST_STREAM, 0, stream(n - behind), &[0, 0, 0, 8]));
                }
                std::thread::sleep(Duration::from_millis(3 * behind as u64));
                piece
            })
            .await;
        assert!(seen < 5000, "{seen} streams");
    }
    assert_survived(&product, &silent, 5000).await;
}

#[tokio::test]
async fn resets_that_the_client_provokes_end_the_connection() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let head = block("POST", "/", &[]);
    let seen = Frames::connect(&product)
        .await
        .flood(20_000, |n| {
            let stream = 2 * u32::try_from(n).unwrap() + 1;
            let mut piece = frame(HEADERS, END_HEADERS, stream, &head);
            piece.extend(frame(WINDOW_UPDATE, 0, stream, &[0; 4]));
            piece
        })
        .await;
    assert!(seen < 5000, "{seen} streams");
    assert_survived(&product, &origin, 5000).await;
}

#[tokio::test]
async fn a_head_without_end_is_not_collected() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let before = product.rss_kib();
    let mut filler = Vec::new();
    for n in 0..100 {
        filler.extend(
            block("GET", "/", &[("x-filler", &format!("{n:0100}"))]).split_off(block("GET", "/", &[]).len()),
        );
    }
    let first = frame(HEADERS, 0, 1, &block("GET", "/", &[]));
    let seen = Frames::connect(&product)
        .await
        .flood(20_000, |n| if n == 0 { first.clone() } else { frame(CONTINUATION, 0, 1, &filler) })
        .await;
    assert!(seen < 5000, "{seen} frames");
    assert!(product.rss_kib() < before + 32 * 1024);
    // Empty frames cost nothing to send.
    let seen = Frames::connect(&product)
        .await
        .flood(20_000, |n| if n == 0 { first.clone() } else { frame(CONTINUATION, 0, 1, &[]) })
        .await;
    assert!(seen < 5000, "{seen} frames");
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn a_length_that_does_not_fit_the_data_is_refused() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let cases = [
        ("3", Some(&b"0123456789"[..]), END_HEADERS),
        ("10", Some(b"abc"), END_HEADERS),
        ("10", None, END_HEADERS | END_STREAM),
    ];
    for (length, body, flags) in cases {
        let mut conn = Frames::connect(&product).await;
        let head = block("POST", "/", &[("content-length", length)]);
        conn.0.send(frame(HEADERS, flags, 1, &head)).await.unwrap();
        if let Some(data) = body {
            conn.0.send(frame(DATA, END_STREAM, 1, data)).await.unwrap();
        }
        loop {
            match conn.next().await.unwrap() {
                (RST_STREAM | GOAWAY, ..) => break,
                // 400 of the static table is one octet.
                (HEADERS, _, 1, block) if block[0] == 0x8c => break,
                (HEADERS, _, 1, block) => panic!("{length}: answered {block:?}"),
                _ => {}
            }
        }
    }
    assert_eq!(connect(&product).await.get(HOST, "/").await.unwrap().status, 200);
    assert_eq!(origin.requests(), 1, "the good one alone");
}

#[tokio::test]
async fn cookie_crumbs_are_one_field_for_the_backend() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let crumbs = [("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "_session=x; c=3")];
    let answer = connect(&product).await.request("GET", HOST, "/", &crumbs, b"").await.unwrap();
    assert_eq!(answer.echoed("cookie"), ["a=1; b=2; _session=x; c=3"]);
}

#[tokio::test]
async fn an_empty_last_frame_ends_a_body_once() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let conn = connect(&product).await;
    for _ in 0..10 {
        assert_eq!(upload(&conn, 2, Duration::ZERO, true).await.unwrap(), 200);
    }
    // A second end of a chunked body would have broken each kept connection. The next request may come before the one of
    // the last is back, and then has another.
    assert!(origin.accepts() < 10 && origin.requests() == 10, "{} connections", origin.accepts());
}

#[tokio::test]
async fn a_large_upload_is_not_held_back() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let body = vec![7; 20 << 20];
    let answer = connect(&product).await.request("POST", HOST, "/", &[], &body).await.unwrap();
    assert_eq!((answer.status, answer.json()["body_bytes"].as_u64()), (200, Some(20 << 20)));
}

#[tokio::test]
async fn what_has_no_body_ends_at_its_head() {
    let dead = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let origin = Origin::echo().await;
    let product = serve([
        Ingress::new("web").prefix(HOST, "/", "web").prefix(HOST, "/dead", "dead").yaml(),
        service("web", &[origin.addr()]),
        service("dead", &[dead]),
    ])
    .await;
    let conn = connect(&product).await;
    for (method, path, status) in [("HEAD", "/", 200), ("HEAD", "/dead", 502), ("GET", "/dead", 502)] {
        // Reading to the end fails where the stream is reset behind its head.
        let answer: Response = conn.request(method, HOST, path, &[], b"").await.unwrap();
        assert_eq!((answer.status, answer.body.is_empty()), (status, method == "HEAD"), "{method} {path}");
    }
}

#[tokio::test]
async fn a_tunnel_through_http2_is_refused() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let conn = connect(&product).await;
    let request = http::Request::builder().method("CONNECT").uri(HOST).body(()).unwrap();
    let (response, _body) = conn.sender().ready().await.unwrap().send_request(request, false).unwrap();
    let answer = tokio::time::timeout(DEADLINE, response).await.unwrap().unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.headers()["server"].to_str().unwrap()),
        (405, "tak-os-ingress")
    );
    assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
}
