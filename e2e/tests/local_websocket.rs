//! WebSocket: the handshake, frames both ways, and the end of the tunnel.

mod common;

use std::time::Duration;

use common::{HOST, Ingress, everything_to, h2, serve, serve_with, service, status_of};
use ingress_e2e::client::{H2Conn, RawConn};
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// What RFC 6455 section 1.3 computes from [`KEY`].
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A frame of up to 125 bytes (RFC 6455 section 5.2).
fn frame(opcode: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let mut out = vec![0x80 | opcode, payload.len() as u8 | if mask.is_some() { 0x80 } else { 0 }];
    out.extend(mask.unwrap_or_default().iter().take(if mask.is_some() { 4 } else { 0 }));
    let mask = mask.unwrap_or_default();
    out.extend(payload.iter().enumerate().map(|(i, byte)| byte ^ mask[i % 4]));
    out
}

/// Reads one masked frame: opcode and payload.
async fn read_frame(stream: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let opcode = stream.read_u8().await? & 15;
    let length = stream.read_u8().await?;
    assert!(length & 0x80 != 0, "a client's frames are masked");
    let mut mask = [0; 4];
    stream.read_exact(&mut mask).await?;
    let mut payload = vec![0; usize::from(length & 0x7f)];
    stream.read_exact(&mut payload).await?;
    payload.iter_mut().enumerate().for_each(|(i, byte)| *byte ^= mask[i % 4]);
    Ok((opcode, payload))
}

/// A WebSocket backend: greets, sends each message back in capitals, closes when told to. The handshake it received is
/// the greeting.
async fn backend(mut stream: TcpStream) {
    let Ok(head) = read_head(&mut stream).await else { return };
    let lower = head.to_ascii_lowercase();
    let value =
        |name: &str| lower.lines().find_map(|l| l.strip_prefix(&format!("{name}: ")).map(str::to_owned));
    let key = head
        .lines()
        .find_map(|line| line.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case("sec-websocket-key")));
    let digest = openssl::sha::sha1(
        format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key.map_or("", |(_, v)| v)).as_bytes(),
    );
    let switch = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {}\r\n\r\n",
        openssl::base64::encode_block(&digest)
    );
    let hello = format!("{:?} {:?}", value("connection"), value("upgrade"));
    // The first frame rides with the head.
    let first = [switch.as_bytes(), &frame(1, hello.as_bytes(), None)].concat();
    if stream.write_all(&first).await.is_err() {
        return;
    }
    while let Ok((opcode, payload)) = read_frame(&mut stream).await {
        let opcode = if opcode == PING { PONG } else { opcode };
        let answer = frame(opcode, &payload.to_ascii_uppercase(), None);
        if stream.write_all(&answer).await.is_err() || opcode == CLOSE {
            return;
        }
    }
}

fn handshake(connection: &str, upgrade: &str) -> String {
    format!(
        "GET /chat HTTP/1.1\r\nHost: {HOST}\r\nConnection: {connection}\r\nUpgrade: {upgrade}\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    )
}

/// Reads exactly these bytes.
async fn expect(conn: &mut RawConn, want: &[u8]) {
    let mut got = Vec::new();
    while got.len() < want.len() {
        let more = conn.read_some().await.unwrap();
        assert!(!more.is_empty(), "the tunnel ended after {got:?}");
        got.extend(more);
    }
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(want));
}

const GREETING: &str = r#"Some("upgrade") Some("websocket")"#;

#[tokio::test]
async fn frames_go_both_ways_whatever_the_spelling_of_the_handshake() {
    let origin = Origin::raw(backend).await;
    let product = serve(everything_to(&origin)).await;
    for (tls, connection, upgrade) in [
        (false, "Upgrade", "websocket"),
        (false, "keep-alive, Upgrade", "WebSocket"),
        (false, "upgrade,keep-alive", "WEBSOCKET"),
        (true, "keep-alive, Upgrade", "websocket"),
    ] {
        let mut conn = match tls {
            true => RawConn::connect_tls(product.https(), Some(HOST), &["http/1.1"]).await.unwrap(),
            false => RawConn::connect(product.http()).await.unwrap(),
        };
        conn.send(handshake(connection, upgrade)).await.unwrap();
        let answer = conn.read_head().await.unwrap();
        assert_eq!(
            (answer.status, answer.header("sec-websocket-accept")),
            (101, Some(ACCEPT)),
            "{connection}"
        );
        assert!(answer.header("upgrade").is_some_and(|v| v.eq_ignore_ascii_case("websocket")), "{answer:?}");
        assert!(answer.header("connection").is_some_and(|v| v.eq_ignore_ascii_case("upgrade")), "{answer:?}");
        expect(&mut conn, &frame(1, GREETING.as_bytes(), None)).await;
        for (i, text) in ["one", "", "three three three"].into_iter().enumerate() {
            conn.send(frame(1, text.as_bytes(), Some([1, 2, 3, i as u8]))).await.unwrap();
            expect(&mut conn, &frame(1, text.to_ascii_uppercase().as_bytes(), None)).await;
        }
        conn.send(frame(CLOSE, b"", Some([9; 4]))).await.unwrap();
        expect(&mut conn, &frame(CLOSE, b"", None)).await;
        assert!(conn.closed_within(Duration::from_secs(2)).await, "the backend's end ends the tunnel");
    }
}

#[tokio::test]
async fn frames_right_behind_the_handshake_are_not_lost() {
    let origin = Origin::raw(backend).await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let early = [handshake("Upgrade", "websocket").as_bytes(), &frame(1, b"early", Some([7; 4]))].concat();
    conn.send(early).await.unwrap();
    assert_eq!(conn.read_head().await.unwrap().status, 101);
    expect(&mut conn, &[frame(1, GREETING.as_bytes(), None), frame(1, b"EARLY", None)].concat()).await;
}

#[tokio::test]
async fn tunnels_are_counted_and_end_with_the_client() {
    let origin = Origin::raw(backend).await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(handshake("Upgrade", "websocket")).await.unwrap();
    assert_eq!(conn.read_head().await.unwrap().status, 101);
    let open = async || product.metric_value("tak_ingress_upgraded_tunnels").await;
    assert_eq!((open().await, origin.open_connections()), (Some(1.0), 1));
    drop(conn);
    eventually(DEADLINE, async || {
        (open().await == Some(0.0) && origin.open_connections() == 0).then_some(())
    })
    .await;
    assert_eq!(product.metric_sum("tak_ingress_requests_total", &[("code", "101")]).await, 1.0);
}

#[tokio::test]
async fn a_backend_that_declines_answers_for_itself() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(handshake("Upgrade", "websocket")).await.unwrap();
    let answer = conn.read_response().await.unwrap();
    assert_eq!((answer.status, answer.echoed("upgrade")), (200, vec!["websocket".into()]));
}

#[tokio::test]
async fn a_handshake_goes_through_the_routes_policies() {
    let origin = Origin::raw(backend).await;
    let product = serve([
        Ingress::new("web").prefix(HOST, "/", "web").set("auth-type", "basic").yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(handshake("Upgrade", "websocket")).await.unwrap();
    assert_eq!((conn.read_response().await.unwrap().status, origin.accepts()), (501, 0));
}

/// [`HOST`] with Prefix `/` leads to `origin`, with further annotations.
async fn tunnels_to(origin: &Origin, annotations: &[(&str, &str)], args: &[&str]) -> Product {
    let ingress = Ingress::new("web").prefix(HOST, "/", "web");
    let ingress = annotations.iter().fold(ingress, |ingress, (key, value)| ingress.set(key, value));
    serve_with([ingress.yaml(), service("web", &[origin.addr()])], args).await
}

/// An open tunnel.
async fn tunnel(product: &Product) -> RawConn {
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(handshake("Upgrade", "websocket")).await.unwrap();
    assert_eq!(conn.read_head().await.unwrap().status, 101);
    conn
}

/// Switches, and leaves the rest to a script.
async fn switch(stream: &mut TcpStream) {
    let _ = read_head(stream).await;
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let _ = stream.write_all(switch.as_bytes()).await;
}

/// Takes in what comes, and says nothing.
async fn listener(mut stream: TcpStream) {
    switch(&mut stream).await;
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes).await.is_ok_and(|n| n > 0) {}
}

/// As [`backend`], in as few system calls as can be: greeting and head in one packet, then an echo.
async fn quick_backend(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    let mut have = 0;
    while !bytes[..have].ends_with(b"\r\n\r\n") {
        match stream.read(&mut bytes[have..]).await {
            Ok(n) if n > 0 => have += n,
            _ => return,
        }
    }
    let first = [
        &b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"[..],
        b"\x81\x05hello",
    ]
    .concat();
    let mut out = first;
    while stream.write_all(&out).await.is_ok() {
        match stream.read(&mut bytes).await {
            Ok(n) if n > 0 => out = bytes[..n].to_vec(),
            _ => return,
        }
    }
}

/// One handshake and one message there and back; what went wrong.
async fn exchange(product: std::net::SocketAddr) -> Result<(), String> {
    let mut stream = TcpStream::connect(product).await.map_err(|e| e.to_string())?;
    stream.write_all(handshake("Upgrade", "websocket").as_bytes()).await.map_err(|e| e.to_string())?;
    let mut got = Vec::new();
    let mut read_until = async |stream: &mut TcpStream, end: &[u8]| {
        while !got.ends_with(end) {
            match tokio::time::timeout(DEADLINE, stream.read_buf(&mut got)).await {
                Ok(Ok(n)) if n > 0 => {}
                other => return Err(format!("{other:?} after {:?}", String::from_utf8_lossy(&got))),
            }
        }
        Ok(())
    };
    read_until(&mut stream, b"\x81\x05hello").await?;
    stream.write_all(b"\x81\x82\0\0\0\0hi").await.map_err(|e| e.to_string())?;
    read_until(&mut stream, b"\x81\x82\0\0\0\0hi").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_handshakes_with_a_backend_that_speaks_first() {
    const HANDSHAKES: usize = 10_000;
    const AT_ONCE: usize = 8;
    let origin = Origin::raw(quick_backend).await;
    let product = serve_with(everything_to(&origin), &["--access-log=false"]).await;
    let mut clients = JoinSet::new();
    for _ in 0..AT_ONCE {
        let addr = product.http();
        clients.spawn(async move {
            let mut failed = Vec::new();
            for _ in 0..HANDSHAKES / AT_ONCE {
                failed.extend(exchange(addr).await.err());
            }
            failed
        });
    }
    let failed = clients.join_all().await.concat();
    assert!(failed.is_empty(), "{} of {HANDSHAKES} tunnels ended early: {:?}", failed.len(), failed.first());
    assert_eq!(product.metric_sum("tak_ingress_requests_total", &[("code", "101")]).await, HANDSHAKES as f64);
}

#[tokio::test]
async fn an_idle_tunnel_ends_at_the_read_timeout() {
    let origin = Origin::raw(backend).await;
    let product = tunnels_to(&origin, &[("proxy-read-timeout", "1")], &[]).await;
    let mut conn = tunnel(&product).await;
    assert!(conn.closed_within(DEADLINE).await, "one second of silence was allowed");
    eventually(DEADLINE, async || (origin.open_connections() == 0).then_some(())).await;
    // That is an end like another, and no fault of the backend.
    assert_eq!(product.metric_sum("tak_ingress_upstream_errors_total", &[]).await, 0.0);
}

#[tokio::test]
async fn a_silent_tunnel_is_the_routes_matter_and_not_the_clients() {
    let origin = Origin::raw(backend).await;
    let args = ["--client-read-timeout=300ms", "--client-keepalive-timeout=1s", "--client-header-timeout=1s"];
    // 300 seconds by default, and none at all.
    for annotations in [&[][..], &[("proxy-read-timeout", "0"), ("proxy-send-timeout", "1")]] {
        let product = tunnels_to(&origin, annotations, &args).await;
        let mut conn = tunnel(&product).await;
        expect(&mut conn, &frame(1, GREETING.as_bytes(), None)).await;
        assert!(!conn.closed_within(Duration::from_secs(2)).await, "{annotations:?}");
        conn.send(frame(1, b"still there", Some([1; 4]))).await.unwrap();
        expect(&mut conn, &frame(1, b"STILL THERE", None)).await;
    }
}

#[tokio::test]
async fn traffic_of_one_side_alone_keeps_a_tunnel_open() {
    let seconds = [("proxy-read-timeout", "3")];
    let pushing = Origin::raw(async |mut stream: TcpStream| {
        switch(&mut stream).await;
        for _ in 0..20 {
            let _ = stream.write_all(&frame(1, b"tick", None)).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    let product = tunnels_to(&pushing, &seconds, &["--client-read-timeout=300ms"]).await;
    let mut conn = tunnel(&product).await;
    expect(&mut conn, &frame(1, b"tick", None).repeat(20)).await;

    let quiet = Origin::raw(listener).await;
    let product = tunnels_to(&quiet, &seconds, &["--client-read-timeout=300ms"]).await;
    let mut conn = tunnel(&product).await;
    for _ in 0..20 {
        conn.send(frame(1, b"tick", Some([3; 4]))).await.unwrap();
        assert!(!conn.closed_within(Duration::from_millis(200)).await);
    }
    assert!(conn.closed_within(DEADLINE).await, "and silence ends it");
}

#[tokio::test]
async fn a_ping_counts_as_traffic() {
    let origin = Origin::raw(backend).await;
    let product = tunnels_to(&origin, &[("proxy-read-timeout", "3")], &[]).await;
    let mut conn = tunnel(&product).await;
    expect(&mut conn, &frame(1, GREETING.as_bytes(), None)).await;
    for _ in 0..8 {
        assert!(!conn.closed_within(Duration::from_millis(500)).await);
        conn.send(frame(PING, b"", Some([5; 4]))).await.unwrap();
        expect(&mut conn, &frame(PONG, b"", None)).await;
    }
}

#[tokio::test]
async fn a_backend_that_stops_reading_ends_the_tunnel_at_the_send_timeout() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        switch(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    // Without a read timeout only the send timeout can end it.
    let timeouts = [("proxy-read-timeout", "0"), ("proxy-send-timeout", "1")];
    let product = tunnels_to(&origin, &timeouts, &[]).await;
    let mut conn = tunnel(&product).await;
    let block = vec![0x80; 1 << 20];
    let flood = async { while conn.send(&block).await.is_ok() {} };
    tokio::time::timeout(DEADLINE, flood).await.expect("the tunnel ends while the client is sending");
    let open = async || product.metric_value("tak_ingress_upgraded_tunnels").await;
    eventually(DEADLINE, async || (open().await == Some(0.0)).then_some(())).await;
}

#[tokio::test]
async fn a_tunnel_is_one_record_with_its_bytes() {
    let origin = Origin::raw(backend).await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = tunnel(&product).await;
    let greeting = frame(1, GREETING.as_bytes(), None);
    expect(&mut conn, &greeting).await;
    let message = frame(1, b"count me", Some([1, 2, 3, 4]));
    conn.send(&message).await.unwrap();
    let answer = frame(1, b"COUNT ME", None);
    expect(&mut conn, &answer).await;
    drop(conn);
    let record =
        eventually(DEADLINE, async || product.log().into_iter().find(|entry| entry["path"] == "/chat")).await;
    assert_eq!((&record["status"], &record["upstream_status"]), (&101.into(), &101.into()), "{record}");
    assert_eq!(record["bytes_in"], message.len(), "{record}");
    assert_eq!(record["bytes_out"], greeting.len() + answer.len(), "{record}");
    assert!(record.get("rejected_by").is_none(), "{record}");
    assert_eq!(product.metric_value("tak_ingress_active_requests").await, Some(0.0));
}

#[tokio::test]
async fn only_a_get_of_http_1_1_becomes_a_tunnel() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let fields = format!(
        "Host: {HOST}\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"
    );
    for (line, extra) in [
        ("GET /chat HTTP/1.0", "Connection: Upgrade\r\n"),
        ("GET /chat HTTP/1.0", "Connection: keep-alive, Upgrade\r\n"),
        ("HEAD /chat HTTP/1.1", "Connection: Upgrade\r\n"),
        ("PUT /chat HTTP/1.1", "Connection: Upgrade\r\nContent-Length: 0\r\n"),
        ("OPTIONS /chat HTTP/1.1", "Connection: Upgrade\r\n"),
        ("DELETE /chat HTTP/1.1", "Connection: Upgrade\r\n"),
        ("GET /chat HTTP/1.1", "Connection: close\r\n"),
    ] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        conn.send(format!("{line}\r\n{fields}{extra}\r\n")).await.unwrap();
        let answer = conn.read_head().await.unwrap();
        assert_eq!(answer.status, 200, "{line} {extra:?}: a plain answer");
    }
    for head in origin.heads() {
        let head = head.to_ascii_lowercase();
        assert!(!head.contains("\r\nupgrade:") && !head.contains("connection: upgrade"), "{head}");
    }
    let connect = format!("CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n");
    let accepts = origin.accepts();
    assert!(matches!(status_of(product.http(), connect).await, 400 | 405));
    assert_eq!(origin.accepts(), accepts);
}

const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];
/// RFC 7541 appendix A.
const INDEXED_STATUS_404: u8 = 0x8d;
/// SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441 section 3).
const ENABLE_CONNECT_PROTOCOL: u16 = 8;

#[tokio::test]
async fn http2_offers_no_tunnel_and_refuses_one_clearly() {
    let origin = Origin::raw(backend).await;
    let product = serve(everything_to(&origin)).await;
    // What a browser offers; for its WebSocket it then opens a second connection, which is not HTTP/2.
    let mut stream = h2::connect(product.https(), HOST, &[]).await;
    let (kind, flags, _, settings) = h2::read_frame(&mut stream).await.unwrap();
    assert_eq!((kind, flags), (h2::SETTINGS, 0), "the server's preface");
    for setting in settings.chunks(6) {
        let id = u16::from_be_bytes([setting[0], setting[1]]);
        assert!(id != ENABLE_CONNECT_PROTOCOL || setting[2..] == [0; 4], "{settings:?}");
    }

    let extended = h2::literal_fields(&[
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", HOST),
        ("sec-websocket-version", "13"),
    ]);
    for (id, fields, end) in [(1, extended, 0), (3, h2::get("nobody", "/"), h2::END_STREAM)] {
        stream.write_all(&h2::frame(h2::HEADERS, h2::END_HEADERS | end, id, &fields)).await.unwrap();
        let (kind, payload) = loop {
            let read = tokio::time::timeout(DEADLINE, h2::read_frame(&mut stream)).await.expect("an answer");
            let (kind, _, stream_id, payload) = read.expect("the connection serves on");
            if stream_id == id && matches!(kind, h2::HEADERS | h2::RST_STREAM) {
                break (kind, payload);
            }
        };
        match id {
            1 => assert_eq!((kind, payload), (h2::RST_STREAM, PROTOCOL_ERROR.to_vec())),
            _ => assert_eq!((kind, payload[0]), (h2::HEADERS, INDEXED_STATUS_404)),
        }
    }
    // An ordinary CONNECT, which asks for a proxy of another kind.
    let conn = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    let request = http::Request::builder().method("CONNECT").uri(format!("{HOST}:443")).body(()).unwrap();
    let (answer, _) = conn.sender().ready().await.unwrap().send_request(request, false).unwrap();
    assert_eq!(answer.await.unwrap().status(), 405);
    assert_eq!(origin.accepts(), 0, "nothing reached the backend");

    let mut second = RawConn::connect_tls(product.https(), Some(HOST), &["http/1.1"]).await.unwrap();
    assert_eq!(second.served().unwrap().alpn.as_deref(), Some("http/1.1"));
    second.send(handshake("Upgrade", "websocket")).await.unwrap();
    assert_eq!(second.read_head().await.unwrap().status, 101);
}
