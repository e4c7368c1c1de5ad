//! What a trusted proxy says of the client it speaks for.

use http::{HeaderMap, HeaderName, HeaderValue};
use ingress_core::route::host::HostBuf;
use ingress_core::{Ranges, RequestHost};
use std::net::{IpAddr, SocketAddr};

/// What the nearest proxy in `--trusted-proxies` says of a request. What it does not say, or not in
/// a form that has one meaning, is as the connection has it.
#[derive(Debug, PartialEq, Eq)]
pub struct Via {
    /// The client's address: the nearest one that is not a trusted proxy's.
    pub ip: IpAddr,
    /// The same as a header value.
    pub client: HeaderValue,
    /// Whether the client spoke TLS.
    pub https: Option<bool>,
    /// The authority that the client asked for.
    pub host: Option<HeaderValue>,
    /// The port that the client connected to.
    pub port: Option<u16>,
}

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const PORT: HeaderName = HeaderName::from_static("x-forwarded-port");

impl Via {
    /// Reads the headers of a request whose connection is a trusted peer's; `None` from all others,
    /// whatever they send.
    pub fn read(headers: &HeaderMap, peer: IpAddr, trusted: &Ranges) -> Option<Box<Self>> {
        if trusted.is_empty() || !trusted.contains(peer) {
            return None;
        }
        let ip = client(headers, peer, trusted);
        Some(Box::new(Self {
            ip,
            client: HeaderValue::from_str(&ip.to_string()).ok()?,
            https: last(headers, &PROTO).and_then(|proto| {
                let is = |name: &str| proto.eq_ignore_ascii_case(name);
                if is("https") { Some(true) } else { is("http").then_some(false) }
            }),
            host: last(headers, &HOST).and_then(|host| {
                RequestHost::parse(host.as_bytes(), &mut HostBuf::default()).ok()?;
                HeaderValue::from_str(host).ok()
            }),
            port: last(headers, &PORT).and_then(|port| {
                let digits = port.bytes().all(|b| b.is_ascii_digit());
                port.parse().ok().filter(|port| digits && *port > 0)
            }),
        }))
    }
}

/// From the right, the nearest hop's word first: past the trusted proxies to the first address that
/// is none of theirs. What stands left of it was sent by that client and proves nothing; an entry that
/// is no address ends the way at the hop that wrote it.
fn client(headers: &HeaderMap, peer: IpAddr, trusted: &Ranges) -> IpAddr {
    let mut nearest = peer;
    for value in headers.get_all(FOR).iter().rev() {
        for entry in value.as_bytes().rsplit(|b| *b == b',') {
            let Some(ip) = address(entry.trim_ascii()) else { return nearest };
            nearest = ip;
            if !trusted.contains(ip) {
                return ip;
            }
        }
    }
    nearest
}

/// An address as proxies write it: plain, in brackets, or with a port.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry).ok()?;
    let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
    let ip = bare.parse::<IpAddr>().or_else(|_| entry.parse::<SocketAddr>().map(|at| at.ip())).ok()?;
    Some(ip.to_canonical())
}

/// The nearest hop's word.
fn last<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let value = headers.get_all(name).iter().next_back()?.to_str().ok()?;
    value.rsplit(',').next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn trusted() -> Ranges {
        "10.0.0.0/8,2001:db8:1::/48".parse().unwrap()
    }

    #[test]
    fn the_client_is_the_nearest_address_that_is_no_trusted_proxy() {
        for (fields, client) in [
            (&[][..], "10.0.0.1"),
            (&["203.0.113.9"], "203.0.113.9"),
            (&["198.51.100.1, 203.0.113.9"], "203.0.113.9"),
            (&["198.51.100.1", "203.0.113.9"], "203.0.113.9"),
            (&["198.51.100.1, 203.0.113.9, 10.1.1.1"], "203.0.113.9"),
            (&["203.0.113.9", "10.1.1.1,10.2.2.2"], "203.0.113.9"),
            (&["203.0.113.9,10.1.1.1", "2001:db8:1::5"], "203.0.113.9"),
            (&["10.3.3.3, 10.1.1.1"], "10.3.3.3"),
            (&["203.0.113.9:4711"], "203.0.113.9"),
            (&["[2001:db8::9]:4711"], "2001:db8::9"),
            (&["[2001:db8::9]"], "2001:db8::9"),
            (&["::ffff:203.0.113.9"], "203.0.113.9"),
            (&["::ffff:10.1.1.1"], "10.1.1.1"),
            // What is no address ends the way: the hop that wrote it is the last that is known.
            (&["203.0.113.9, unknown"], "10.0.0.1"),
            (&["203.0.113.9, unknown, 10.1.1.1"], "10.1.1.1"),
            (&["203.0.113.9,"], "10.0.0.1"),
            (&[""], "10.0.0.1"),
            (&["127.0.0.1, 203.0.113.9"], "203.0.113.9"),
        ] {
            let fields: Vec<_> = fields.iter().map(|value| ("x-forwarded-for", *value)).collect();
            let via = Via::read(&headers(&fields), "10.0.0.1".parse().unwrap(), &trusted()).unwrap();
            assert_eq!(
                (via.ip.to_string().as_str(), via.client.to_str().unwrap()),
                (client, client),
                "{fields:?}"
            );
        }
    }

    #[test]
    fn nobody_else_is_believed() {
        let headers = headers(&[("x-forwarded-for", "203.0.113.9"), ("x-forwarded-proto", "https")]);
        for peer in ["192.0.2.1", "2001:db8::1", "127.0.0.1"] {
            assert_eq!(Via::read(&headers, peer.parse().unwrap(), &trusted()), None);
        }
        assert_eq!(Via::read(&headers, "10.0.0.1".parse().unwrap(), &Ranges::default()), None);
    }

    #[test]
    fn the_rest_counts_where_it_has_one_meaning() {
        let read = |fields: &[(&'static str, &'static str)]| {
            let via = Via::read(&headers(fields), "10.0.0.1".parse().unwrap(), &trusted()).unwrap();
            (via.https, via.port, via.host.map(|host| host.to_str().unwrap().to_owned()))
        };
        assert_eq!(read(&[]), (None, None, None));
        let all = [
            ("x-forwarded-proto", "HTTPS"),
            ("x-forwarded-port", "8443"),
            ("x-forwarded-host", "a.example:8443"),
        ];
        assert_eq!(read(&all), (Some(true), Some(8443), Some("a.example:8443".into())));
        assert_eq!(read(&[("x-forwarded-proto", "https, http")]).0, Some(false), "the nearest hop's word");
        let odd = [("x-forwarded-proto", "ftp"), ("x-forwarded-port", "0"), ("x-forwarded-host", "a b")];
        assert_eq!(read(&odd), (None, None, None));
        assert_eq!(read(&[("x-forwarded-port", "+80")]).1, None);
    }
}
