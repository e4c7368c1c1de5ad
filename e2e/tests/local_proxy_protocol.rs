//! The PROXY protocol: read from trusted peers, who must speak it, and from nobody else.

mod common;

use std::time::Duration;

use common::{HOST, client_from, connect_from, everything_to, get, serve_with, status_in};
use ingress_e2e::client::{H2Conn, RawConn, Tls};
use ingress_e2e::origin::Origin;
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::AsyncWriteExt;

const PROXY: &str = "127.0.0.2";
const V1: &str = "PROXY TCP4 203.0.113.9 198.51.100.1 56324 443\r\n";

/// A header of version 2 for IPv6, with an extension behind the addresses.
fn v2(source: &str) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\x00\x28".to_vec();
    header.extend(source.parse::<std::net::Ipv6Addr>().unwrap().octets());
    header.extend([0; 20]);
    header.extend([4, 0, 1, 0]);
    header
}

async fn product(origin: &Origin) -> Product {
    let args = ["--trusted-proxies=127.0.0.2", "--proxy-protocol", "--client-header-timeout=2s"];
    serve_with(everything_to(origin), &args).await
}

/// A connection from the trusted peer on which these bytes were sent.
async fn proxied(product: &Product, header: impl AsRef<[u8]>) -> RawConn {
    let mut conn = client_from(PROXY, product.http()).await;
    conn.send(header).await.unwrap();
    conn
}

#[tokio::test]
async fn a_trusted_peer_names_the_client_on_both_ports() {
    let origin = Origin::echo().await;
    let product = product(&origin).await;
    for (header, client) in [
        (V1.as_bytes().to_vec(), "203.0.113.9"),
        (v2("2001:db8::9"), "2001:db8::9"),
        (v2("::ffff:203.0.113.9"), "203.0.113.9"),
        // The peer's own connection: a health check.
        (b"PROXY UNKNOWN\r\n".to_vec(), PROXY),
        (b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00".to_vec(), PROXY),
    ] {
        let mut conn = proxied(&product, &header).await;
        for _ in 0..2 {
            let answer = conn.get(HOST, "/").await.unwrap();
            assert_eq!(answer.echoed("x-forwarded-for"), [client]);
            assert_eq!(answer.echoed("x-real-ip"), [client]);
        }
        for alpn in ["http/1.1", "h2"] {
            let mut stream = connect_from(PROXY, product.https()).await;
            stream.write_all(&header).await.unwrap();
            let stream = Tls::new().sni(HOST).alpn(&[alpn]).handshake(stream).await.unwrap();
            let answer = match alpn {
                "h2" => H2Conn::from_tls(stream).await.unwrap().get(HOST, "/").await.unwrap(),
                _ => RawConn::from_tls(stream).unwrap().get(HOST, "/").await.unwrap(),
            };
            assert_eq!(answer.echoed("x-forwarded-for"), [client], "{alpn}");
        }
    }
    // One byte at a time is the same.
    let mut conn = client_from(PROXY, product.http()).await;
    for byte in V1.bytes() {
        conn.send([byte]).await.unwrap();
    }
    assert_eq!(conn.get(HOST, "/").await.unwrap().echoed("x-forwarded-for"), ["203.0.113.9"]);
}

#[tokio::test]
async fn from_everybody_else_it_is_no_request() {
    let origin = Origin::echo().await;
    let product = product(&origin).await;
    for header in [V1.as_bytes().to_vec(), v2("2001:db8::9")] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        conn.send(&header).await.unwrap();
        // What is refused at the first bytes may be closed before the rest is written.
        conn.send(get(HOST, "/")).await.ok();
        assert!(conn.closed_within(DEADLINE).await);
        assert_eq!(status_in(&conn.read_some().await.unwrap_or_default()), 400);
        let mut stream = connect_from("127.0.0.1", product.https()).await;
        stream.write_all(&header).await.unwrap();
        assert!(Tls::new().sni(HOST).handshake(stream).await.is_err());
    }
    assert_eq!(origin.requests(), 0);
    // Without a header they are served, with the address that they have.
    let answer = client_from("127.0.0.3", product.http()).await.get(HOST, "/").await.unwrap();
    assert_eq!(answer.echoed("x-forwarded-for"), ["127.0.0.3"]);
}

#[tokio::test]
async fn a_client_behind_a_trusted_peer_cannot_write_a_header_of_its_own() {
    let origin = Origin::echo().await;
    let product = product(&origin).await;
    // The peer's header comes first; what follows it is the client's, and is no request.
    let mut conn = proxied(&product, V1).await;
    conn.send(format!("PROXY TCP4 192.0.2.66 198.51.100.1 1 443\r\n{}", get(HOST, "/"))).await.ok();
    assert!(conn.closed_within(DEADLINE).await);
    assert_eq!(status_in(&conn.read_some().await.unwrap_or_default()), 400);
    assert_eq!(origin.requests(), 0);
    // Headers of HTTP are not believed either: the address that was named is no trusted proxy's.
    let mut conn = proxied(&product, V1).await;
    let forged = [("X-Forwarded-For", "192.0.2.66"), ("X-Real-IP", "192.0.2.66")];
    let answer = conn.request("GET", HOST, "/", &forged, b"").await.unwrap();
    assert_eq!(answer.echoed("x-forwarded-for"), ["203.0.113.9"]);
    assert_eq!(answer.echoed("x-real-ip"), ["203.0.113.9"]);
    assert!(!answer.text().contains("192.0.2.66"));
}

#[tokio::test]
async fn a_trusted_peer_without_a_whole_header_is_not_served() {
    let origin = Origin::echo().await;
    let product = product(&origin).await;
    let request = get(HOST, "/");
    for sent in [
        request.as_bytes(),
        b"PROXY TCP4 203.0.113.9 198.51.100.1 56324\r\n",
        b"PROXY TCP4 203.0.113.9 ",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
        b"\r\n\r\n\0\r\nQUIT",
    ] {
        let mut conn = proxied(&product, sent).await;
        assert!(conn.closed_within(DEADLINE).await, "{sent:?}");
        assert_eq!(conn.read_some().await.unwrap_or_default(), b"", "{sent:?}");
    }
    assert_eq!(origin.requests(), 0);
    let refused = async || {
        let count =
            product.metric_sum("tak_ingress_unmatched_requests_total", &[("reason", "proxy_protocol")]).await;
        (count as u64 == 5).then_some(())
    };
    eventually(DEADLINE, refused).await;
    // A connection that only looks whether the port is open is nobody's mistake.
    let mut conn = client_from(PROXY, product.http()).await;
    conn.finish().await.unwrap();
    assert!(conn.closed_within(Duration::from_secs(10)).await);
    eventually(DEADLINE, refused).await;
}

#[tokio::test]
async fn without_the_flag_no_header_is_read() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--trusted-proxies=127.0.0.2"]).await;
    let mut conn = proxied(&product, V1).await;
    conn.send(get(HOST, "/")).await.ok();
    assert!(conn.closed_within(DEADLINE).await);
    assert_eq!(status_in(&conn.read_some().await.unwrap_or_default()), 400);
    assert_eq!(origin.requests(), 0);
}
