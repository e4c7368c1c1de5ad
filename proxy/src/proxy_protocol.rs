//! The PROXY protocol, versions 1 and 2: a load balancer that passes bytes on says in front of them
//! whose they are (haproxy.org, `proxy-protocol.txt`).
//!
//! A header is read from peers that are trusted, and from them it must come: to guess whether there is
//! one would let a client behind such a peer write its own. From everybody else it is not read, so it
//! is a malformed request, or no TLS.

use ingress_core::Ranges;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{GetProxyDigest, GetSocketDigest};
use pingora_http::ResponseHeader;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};

/// What every header of version 2 begins with.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The longest line of version 1, line end included.
const MAX_LINE: usize = 107;

/// What is taken of a header of version 2 behind its first 16 bytes: addresses and all extensions.
const MAX_BLOCK: usize = 4096;

/// The address that a header named, carried by the stream's digest.
struct Announced(IpAddr);

/// Reads the header if the peer is one to send it, and notes in the stream whose bytes follow. No
/// limit in time means that of the engine for handshakes.
pub async fn expect<S>(stream: &mut S, trusted: &Ranges, limit: Option<Duration>) -> io::Result<()>
where
    S: AsyncRead + GetProxyDigest + GetSocketDigest + Unpin + Send + ?Sized,
{
    let digest = stream.get_socket_digest();
    let peer = digest.as_ref().and_then(|d| d.peer_addr()?.as_inet()).map(|a| a.ip());
    if !peer.is_some_and(|ip| trusted.contains(ip)) {
        return Ok(());
    }
    let limit = limit.unwrap_or(Duration::from_secs(60));
    let source =
        tokio::time::timeout(limit, read(stream)).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))?;
    if let Some(ip) = source {
        // The digest is the one place that the engine carries through TLS; its response has no meaning.
        let response = ResponseHeader::build_no_case(200, Some(0)).map_err(io::Error::other)?;
        stream.set_proxy_digest(ProxyDigest::new(Box::new(response), Some(Box::new(Announced(ip)))));
    }
    Ok(())
}

/// The address that a header named, if one was read from the stream with this digest.
pub fn announced(digest: &ProxyDigest) -> Option<IpAddr> {
    digest.user_data.as_ref()?.downcast_ref::<Announced>().map(|Announced(ip)| *ip)
}

/// Reads exactly one header. `None`: the connection is the peer's own, a health check.
async fn read(stream: &mut (impl AsyncRead + Unpin + ?Sized)) -> io::Result<Option<IpAddr>> {
    // No header of either version is shorter than this.
    let mut start = [0; SIGNATURE.len()];
    if stream.read(&mut start[..1]).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut start[1..]).await.map_err(|_| broken())?;
    if start == *SIGNATURE {
        let mut rest = [0; 4];
        stream.read_exact(&mut rest).await.map_err(|_| broken())?;
        let [command, family, high, low] = rest;
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > MAX_BLOCK {
            return Err(broken());
        }
        let mut block = vec![0; length];
        stream.read_exact(&mut block).await.map_err(|_| broken())?;
        return binary(command, family, &block).ok_or_else(broken);
    }
    let mut line = Vec::with_capacity(MAX_LINE);
    line.extend_from_slice(&start);
    // Byte by byte, so that nothing behind the line is taken; the stream below reads in blocks.
    while !line.ends_with(b"\r\n") {
        if line.len() == MAX_LINE || !line.starts_with(b"PROXY ") {
            return Err(broken());
        }
        line.push(stream.read_u8().await.map_err(|_| broken())?);
    }
    text(&line).ok_or_else(broken)
}

fn broken() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// A line of version 1. The outer `None` is a line that is none.
fn text(line: &[u8]) -> Option<Option<IpAddr>> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix("\r\n")?.strip_prefix("PROXY ")?;
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Some(None);
    }
    let mut words = line.split(' ');
    let family = words.next()?;
    let mut address = || -> Option<IpAddr> {
        let word = words.next()?;
        match family {
            "TCP4" => word.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            "TCP6" => word.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let (source, _destination) = (address()?, address()?);
    let port = |word: &str| word.bytes().all(|b| b.is_ascii_digit()) && word.parse::<u16>().is_ok();
    (port(words.next()?) && port(words.next()?) && words.next().is_none()).then_some(Some(source))
}

/// What follows the signature of version 2. The outer `None` is a header that is none, or one that
/// speaks of no TCP connection.
fn binary(command: u8, family: u8, block: &[u8]) -> Option<Option<IpAddr>> {
    match (command, family) {
        // LOCAL: the peer speaks for itself; what else is said does not count.
        (0x20, _) => Some(None),
        // PROXY over something that has no address.
        (0x21, 0x00) => Some(None),
        // Source and destination, then the ports; extensions may follow.
        (0x21, 0x11) if block.len() >= 12 => {
            let octets: [u8; 4] = block.get(..4)?.try_into().ok()?;
            Some(Some(IpAddr::from(octets)))
        }
        (0x21, 0x21) if block.len() >= 36 => {
            let octets: [u8; 16] = block.get(..16)?.try_into().ok()?;
            Some(Some(IpAddr::from(octets)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of these bytes, and how many are left.
    async fn reads(bytes: &[u8]) -> Option<(Option<IpAddr>, usize)> {
        let mut rest = bytes;
        let source = read(&mut rest).await.ok()?;
        Some((source, rest.len()))
    }

    fn v2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let mut header = Vec::from(SIGNATURE);
        header.extend([command, family]);
        header.extend((block.len() as u16).to_be_bytes());
        header.extend(block);
        header
    }

    #[tokio::test]
    async fn lines_of_version_1() {
        let ip = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        for (line, source) in [
            ("PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n", Some(ip("192.0.2.7"))),
            ("PROXY TCP6 2001:db8::7 2001:db8::1 56324 443\r\n", Some(ip("2001:db8::7"))),
            ("PROXY TCP6 ::ffff:192.0.2.7 ::1 0 65535\r\n", Some(ip("::ffff:192.0.2.7"))),
            ("PROXY UNKNOWN\r\n", Some(None)),
            ("PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", Some(None)),
            ("PROXY UNKNOWNX\r\n", None),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\n", None),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 56324 65536\r\n", None),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 56324 +443\r\n", None),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 56324 \r\n", None),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 56324\r\n", None),
            ("PROXY TCP4 192.0.2.7 198.51.100.1 56324 443 1\r\n", None),
            ("PROXY TCP4  192.0.2.7 198.51.100.1 56324 443\r\n", None),
            ("PROXY TCP4 2001:db8::7 2001:db8::1 56324 443\r\n", None),
            ("PROXY TCP6 192.0.2.7 198.51.100.1 56324 443\r\n", None),
            ("PROXY TCP4 192.0.2.07 198.51.100.1 56324 443\r\n", None),
            ("PROXY UDP4 192.0.2.7 198.51.100.1 56324 443\r\n", None),
            ("proxy TCP4 192.0.2.7 198.51.100.1 56324 443\r\n", None),
            ("GET / HTTP/1.1\r\nHost: app.example.com\r\n\r\n", None),
            ("PROXY TCP4 192.0.2.7", None),
            ("", None),
        ] {
            let sent = format!("{line}GET /");
            let want = source.map(|source| (source, 5));
            assert_eq!(reads(if line.is_empty() { b"" } else { sent.as_bytes() }).await, want, "{line:?}");
        }
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(MAX_LINE));
        assert_eq!(reads(long.as_bytes()).await, None);
    }

    #[tokio::test]
    async fn headers_of_version_2() {
        let v4 = [192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 4, 1, 0xbb];
        let mut v6 = Vec::from("2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend([0; 20]);
        let extended = [&v4[..], &[4, 0, 1, 0]].concat();
        let (four, six) = ("192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap());
        for (header, source) in [
            (v2(0x21, 0x11, &v4), Some(Some(four))),
            (v2(0x21, 0x11, &extended), Some(Some(four))),
            (v2(0x21, 0x21, &v6), Some(Some(six))),
            (v2(0x21, 0x00, &[]), Some(None)),
            (v2(0x20, 0x00, &[]), Some(None)),
            (v2(0x20, 0x11, &v4), Some(None)),
            (v2(0x21, 0x11, &v4[..11]), None),
            (v2(0x21, 0x21, &v4), None),
            (v2(0x21, 0x12, &v4), None),
            (v2(0x21, 0x31, &[0; 216]), None),
            (v2(0x11, 0x11, &v4), None),
            (v2(0x22, 0x11, &v4), None),
            (v2(0x21, 0x11, &[0; MAX_BLOCK + 1]), None),
            (SIGNATURE.to_vec(), None),
        ] {
            let mut sent = header.clone();
            sent.extend(b"GET /");
            let want = source.map(|source| (source, 5));
            assert_eq!(reads(if header.len() == 12 { &header } else { &sent }).await, want, "{header:?}");
        }
    }
}
