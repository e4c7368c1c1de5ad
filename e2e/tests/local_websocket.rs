//! WebSocket: the handshake, frames both ways, and the end of the tunnel.

mod common;

use std::time::Duration;

use common::{HOST, Ingress, everything_to, serve, service};
use ingress_e2e::client::RawConn;
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// What RFC 6455 section 1.3 computes from [`KEY`].
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
const CLOSE: u8 = 8;

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

#[tokio::test]
async fn an_idle_tunnel_ends_at_the_read_timeout() {
    let origin = Origin::raw(backend).await;
    let product = serve([
        Ingress::new("web").prefix(HOST, "/", "web").set("proxy-read-timeout", "1").yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(handshake("Upgrade", "websocket")).await.unwrap();
    assert_eq!(conn.read_head().await.unwrap().status, 101);
    assert!(conn.closed_within(Duration::from_secs(5)).await, "one second of silence was allowed");
    eventually(DEADLINE, async || (origin.open_connections() == 0).then_some(())).await;
}
