//! Frames of HTTP/2 as bytes, for clients that do what no library would do.

use std::io;

use ingress_e2e::client::{Tls, TlsStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// A frame (RFC 9113 section 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// Reads one frame: kind, flags, stream, payload.
pub async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await?;
    let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Ok((head[3], head[4], id, payload))
}

/// Fields without any compression (RFC 7541 section 6.2.2), names and values up to 126 octets.
pub fn literal_fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.extend([0, name.len() as u8]);
        out.extend(name.as_bytes());
        out.push(value.len() as u8);
        out.extend(value.as_bytes());
    }
    out
}

/// The fields of a GET.
pub fn get(authority: &str, path: &str) -> Vec<u8> {
    literal_fields(&[(":method", "GET"), (":scheme", "https"), (":path", path), (":authority", authority)])
}

/// A TLS connection on which the client's preface with these settings was sent.
pub async fn connect(addr: std::net::SocketAddr, sni: &str, settings: &[(u16, u32)]) -> TlsStream {
    let mut stream = Tls::new().sni(sni).alpn(&["h2", "http/1.1"]).connect(addr).await.unwrap();
    assert_eq!(stream.ssl().selected_alpn_protocol(), Some(&b"h2"[..]));
    let payload: Vec<u8> =
        settings.iter().flat_map(|(id, v)| [&id.to_be_bytes()[..], &v.to_be_bytes()].concat()).collect();
    let opening = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &payload)[..]].concat();
    stream.write_all(&opening).await.unwrap();
    stream
}
