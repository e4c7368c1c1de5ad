//! Host names: what a request asks for and what a rule declares.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest host name we accept (RFC 1035 section 2.3.4, with room for brackets).
pub const MAX_HOST: usize = 255;

/// Scratch space for a lower-cased host, so that the hot path allocates nothing.
pub struct HostBuf([u8; MAX_HOST]);

impl Default for HostBuf {
    fn default() -> Self {
        Self([0; MAX_HOST])
    }
}

/// Lower-cases ASCII into `buf` where needed. `None` if the name is too long.
pub(crate) fn lower<'a>(name: &'a str, buf: &'a mut HostBuf) -> Option<&'a str> {
    if name.len() > MAX_HOST {
        return None;
    }
    if !name.bytes().any(|b| b.is_ascii_uppercase()) {
        return Some(name);
    }
    let out = &mut buf.0[..name.len()];
    out.copy_from_slice(name.as_bytes());
    out.make_ascii_lowercase();
    std::str::from_utf8(out).ok()
}

/// Not a host name, or not a port behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHost {
    /// Nothing there.
    #[error("host is empty")]
    Empty,
    /// Longer than 255 octets.
    #[error("host is longer than {MAX_HOST} octets")]
    TooLong,
    /// An octet that no host name holds, an empty label, or an unbalanced bracket.
    #[error("host holds an octet or label that no host name has")]
    Syntax,
    /// A port that is not a number up to 65535.
    #[error("port is not a number up to 65535")]
    Port,
    /// A `*` anywhere but as the whole first label.
    #[error("a wildcard must be the whole first label, as in *.example.com")]
    Wildcard,
}

/// The authority of a request: host without port and trailing dot in lower case, and the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHost<'a> {
    /// What routes are looked up by.
    pub host: &'a str,
    /// The port the client named, if any.
    pub port: Option<u16>,
}

impl<'a> RequestHost<'a> {
    /// Parses a `Host` header or `:authority` (RFC 9110 section 7.2): port and one trailing dot are
    /// not part of the name, case does not matter, an empty port is none.
    pub fn parse(raw: &'a [u8], buf: &'a mut HostBuf) -> Result<Self, InvalidHost> {
        let text = std::str::from_utf8(raw).map_err(|_| InvalidHost::Syntax)?;
        let (name, port) = if text.starts_with('[') {
            let end = text.find(']').ok_or(InvalidHost::Syntax)?;
            let (name, rest) = text.split_at(end + 1);
            match rest.strip_prefix(':') {
                Some(p) => (name, p),
                None if rest.is_empty() => (name, ""),
                None => return Err(InvalidHost::Syntax),
            }
        } else {
            text.split_once(':').unwrap_or((text, ""))
        };
        let port = match port {
            "" => None,
            p if p.len() <= 5 && p.bytes().all(|b| b.is_ascii_digit()) => {
                Some(p.parse().map_err(|_| InvalidHost::Port)?)
            }
            _ => return Err(InvalidHost::Port),
        };
        if name.starts_with('[') {
            name[1..name.len() - 1].parse::<std::net::Ipv6Addr>().map_err(|_| InvalidHost::Syntax)?;
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        if !name.starts_with('[') {
            check_labels(name)?;
        }
        Ok(Self { host: lower(name, buf).ok_or(InvalidHost::TooLong)?, port })
    }
}

/// A server name of TLS as hosts are compared: in lower case, without a dot at its end.
pub fn normal_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn check_labels(name: &str) -> Result<(), InvalidHost> {
    if name.is_empty() {
        return Err(InvalidHost::Empty);
    }
    if name.len() > MAX_HOST {
        return Err(InvalidHost::TooLong);
    }
    let mut previous = b'.';
    for b in name.bytes() {
        match b {
            b'.' if previous == b'.' => return Err(InvalidHost::Syntax),
            b'.' | b'-' | b'_' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => previous = b,
            _ => return Err(InvalidHost::Syntax),
        }
    }
    if previous == b'.' { Err(InvalidHost::Syntax) } else { Ok(()) }
}

/// A host as a rule declares it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// One name, lower case.
    Exact(Arc<str>),
    /// `*.parent` of an Ingress: the parent domain; the star stands for exactly one label.
    Wildcard(Arc<str>),
    /// `*.parent` of a Gateway listener or its routes: the star stands for one label or more.
    Suffix(Arc<str>),
    /// No host declared: every host.
    Any,
}

impl HostPattern {
    /// What can be declared for a normalised request host, in the order in which it is looked up.
    pub fn candidates(host: &str) -> Vec<HostPattern> {
        let parent = |name: &str| name.split_once('.').map(|(_, parent)| Arc::<str>::from(parent));
        let wildcard = parent(host).map(HostPattern::Wildcard);
        let suffixes = std::iter::successors(parent(host), |p| parent(p)).map(HostPattern::Suffix);
        let exact = (!host.is_empty()).then(|| HostPattern::Exact(host.into()));
        exact.into_iter().chain(wildcard).chain(suffixes).chain([HostPattern::Any]).collect()
    }

    /// A host name of the Gateway API, where a wildcard stands for one label or more; an empty one is
    /// `Any`.
    pub fn gateway(name: &str) -> Result<Self, InvalidHost> {
        Ok(match name.parse()? {
            HostPattern::Wildcard(parent) => HostPattern::Suffix(parent),
            other => other,
        })
    }

    /// Whether a normalised request host is one of the pattern's.
    pub fn takes(&self, host: &str) -> bool {
        match self {
            HostPattern::Exact(name) => **name == *host,
            HostPattern::Wildcard(parent) => host.split_once('.').is_some_and(|(_, rest)| *rest == **parent),
            HostPattern::Suffix(parent) => below(host, parent),
            HostPattern::Any => true,
        }
    }

    /// What both take: the hosts of a listener that a route's host name leaves, `None` if there are none
    /// (Gateway API, intersection of host names). Of two that overlap one always holds the other.
    pub fn intersection(&self, other: &HostPattern) -> Option<HostPattern> {
        if self.within(other) { Some(self.clone()) } else { other.within(self).then(|| other.clone()) }
    }

    /// Whether every request host of `self` is one of `other`'s.
    pub fn within(&self, other: &HostPattern) -> bool {
        match (self, other) {
            (_, HostPattern::Any) => true,
            (HostPattern::Exact(h), pattern) => pattern.takes(h),
            (HostPattern::Wildcard(p) | HostPattern::Suffix(p), HostPattern::Suffix(parent)) => {
                p == parent || below(p, parent)
            }
            (a, b) => a == b,
        }
    }

    /// Whether a DNS name of a certificate stands for it: the same name, or a wildcard for its first label
    /// (RFC 9525 section 6.3).
    pub fn certified_by(&self, name: &str) -> bool {
        name.parse().is_ok_and(|name| name != HostPattern::Any && self.within(&name))
    }
}

/// Whether a name has labels in front of `parent`.
fn below(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent).is_some_and(|front| front.len() > 1 && front.ends_with('.'))
}

impl FromStr for HostPattern {
    type Err = InvalidHost;

    /// An empty string is `Any`; otherwise a DNS name, or `*.` before one.
    fn from_str(s: &str) -> Result<Self, InvalidHost> {
        if s.is_empty() {
            return Ok(HostPattern::Any);
        }
        let (wildcard, name) = match s.strip_prefix("*.") {
            Some(parent) => (true, parent),
            None => (false, s),
        };
        if name.contains('*') {
            return Err(InvalidHost::Wildcard);
        }
        check_labels(name)?;
        let name: Arc<str> = name.to_ascii_lowercase().into();
        Ok(if wildcard { HostPattern::Wildcard(name) } else { HostPattern::Exact(name) })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Exact(h) => f.write_str(h),
            HostPattern::Wildcard(parent) | HostPattern::Suffix(parent) => write!(f, "*.{parent}"),
            HostPattern::Any => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(raw: &str) -> Result<(String, Option<u16>), InvalidHost> {
        let mut buf = HostBuf::default();
        RequestHost::parse(raw.as_bytes(), &mut buf).map(|h| (h.host.to_owned(), h.port))
    }

    #[test]
    fn request_hosts_lose_port_dot_and_case() {
        for (raw, host, port) in [
            ("app.example.com", "app.example.com", None),
            ("app.example.com:80", "app.example.com", Some(80)),
            ("app.example.com:8443", "app.example.com", Some(8443)),
            ("app.example.com:", "app.example.com", None),
            ("app.example.com.", "app.example.com", None),
            ("APP.Example.COM.:80", "app.example.com", Some(80)),
            ("a_b.example", "a_b.example", None),
            ("127.0.0.1:80", "127.0.0.1", Some(80)),
            ("[::1]:8080", "[::1]", Some(8080)),
            ("[FE80::1]", "[fe80::1]", None),
        ] {
            assert_eq!(parse(raw), Ok((host.to_owned(), port)), "{raw}");
        }
    }

    #[test]
    fn broken_request_hosts_are_refused() {
        for raw in [
            "",
            ".",
            "..",
            ".example.com",
            "a..b",
            "a.b..",
            "app.example.com:99999",
            "app.example.com:abc",
            "app.example.com:-1",
            "app.example.com:+80",
            "a:1:2",
            "a b",
            "a/b",
            "a@b",
            "a,b",
            "a%2eb",
            "a\tb",
            "[::1",
            "[::1]x",
            "[zz]",
            "[]",
            "ä.example",
            "*.example.com",
            "a?b",
            "a#b",
            "a\\b",
        ] {
            assert!(parse(raw).is_err(), "{raw}");
        }
        assert!(parse(&"a".repeat(256)).is_err());
    }

    #[test]
    fn a_wildcard_of_a_certificate_stands_for_one_label() {
        for (own, wanted, fits) in [
            ("a.example.com", "A.example.com", true),
            ("*.example.com", "a.example.com", true),
            ("*.Example.com", "*.example.com", true),
            ("*.example.com", "a.b.example.com", false),
            ("*.example.com", "example.com", false),
            ("a.example.com", "b.example.com", false),
            ("a.example.com", "*.example.com", false),
            ("*.*.example.com", "a.b.example.com", false),
            ("*", "example.com", false),
            ("", "a.example.com", false),
            ("", "", false),
        ] {
            assert_eq!(wanted.parse::<HostPattern>().unwrap().certified_by(own), fits, "{own} {wanted}");
        }
    }

    #[test]
    fn patterns_know_exact_wildcard_and_any() {
        assert_eq!("".parse(), Ok(HostPattern::Any));
        assert_eq!("App.Example.com".parse(), Ok(HostPattern::Exact("app.example.com".into())));
        assert_eq!("*.example.com".parse(), Ok(HostPattern::Wildcard("example.com".into())));
        for bad in ["*", "a.*.b", "*a.b", "*.*.b", "*.", "a:80", "a..b", "-/"] {
            assert!(bad.parse::<HostPattern>().is_err(), "{bad}");
        }
        let p = |s: &str| s.parse::<HostPattern>().unwrap();
        let g = |s: &str| HostPattern::gateway(s).unwrap();
        assert_eq!(g("*.X.y"), HostPattern::Suffix("x.y".into()));
        for (a, b, both) in [
            (g("*.x.y"), g("a.b.x.y"), Some(p("a.b.x.y"))),
            (g("*.x.y"), g("x.y"), None),
            (g("*.x.y"), g("*.b.x.y"), Some(g("*.b.x.y"))),
            (g("*.x.y"), p("*.x.y"), Some(p("*.x.y"))),
            (g("*.x.y"), g("*.ax.y"), None),
            (g("*.x.y"), g(""), Some(g("*.x.y"))),
            (g("a.x"), g("b.x"), None),
        ] {
            assert_eq!((a.intersection(&b), b.intersection(&a)), (both.clone(), both), "{a} {b}");
        }
        assert!(p("a.x.y").within(&p("*.x.y")) && p("a.x.y").within(&p("a.x.y")) && p("*.x").within(&p("")));
        assert!(
            !p("x.y").within(&p("*.x.y")) && !p("a.b.x.y").within(&p("*.x.y")) && !p("").within(&p("a.b"))
        );
    }
}
