//! Which scripts of other origins may read a route's answers (Fetch standard, section 3.2).

use http::HeaderValue;
use std::fmt;
use std::str::FromStr;

/// What a route allows scripts of other origins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cors {
    /// Whose scripts.
    pub origins: Origins,
    /// `Access-Control-Allow-Methods`. Where credentials are allowed, browsers take `*` by its letter, so
    /// it is answered with the method that is asked for.
    pub methods: HeaderValue,
    /// `Access-Control-Allow-Headers`; the same of `*`.
    pub headers: HeaderValue,
    /// `Access-Control-Expose-Headers`
    pub expose: Option<HeaderValue>,
    /// Preflights are told of `expose` too: the Gateway API says so, browsers do not care.
    pub expose_on_preflight: bool,
    /// `Access-Control-Max-Age`, seconds.
    pub max_age: HeaderValue,
}

/// Whose scripts may read. An Ingress's credentials go with named origins alone; only a Gateway API
/// route can say, in so many words, that everybody's scripts act with them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origins {
    /// Everybody's, without credentials.
    Any,
    /// Everybody's, with credentials: the origin is echoed.
    AnyWithCredentials,
    /// Those of these origins.
    Listed {
        /// Which; none of them is possible.
        origins: Box<[Origin]>,
        /// `Access-Control-Allow-Credentials: true`
        credentials: bool,
    },
}

impl Origins {
    /// Whether scripts of this origin may read.
    pub fn admit(&self, origin: &[u8]) -> bool {
        match self {
            Origins::Any | Origins::AnyWithCredentials => true,
            Origins::Listed { origins, .. } => origins.iter().any(|allowed| allowed.matches(origin)),
        }
    }
}

/// One origin (RFC 6454 section 6.2), or all that differ in their first label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// `https://a.example.com:8443`, as browsers write it.
    Exact(Box<str>),
    /// `https://*.example.com`; `*` stands for one label.
    Wildcard {
        /// `https://`
        scheme: Box<str>,
        /// `.example.com`, with the port if there is one.
        parent: Box<str>,
        /// Of a Gateway API route: `*` stands for one label or more.
        deep: bool,
    },
}

/// Text that is no origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of the form scheme://host or scheme://host:port")]
pub struct InvalidOrigin;

impl Origin {
    /// An origin of a Gateway API route, where `*` stands for one label or more.
    pub fn gateway(text: &str) -> Result<Self, InvalidOrigin> {
        Ok(match text.parse()? {
            Origin::Wildcard { scheme, parent, .. } => Origin::Wildcard { scheme, parent, deep: true },
            exact => exact,
        })
    }

    fn matches(&self, origin: &[u8]) -> bool {
        match self {
            Origin::Exact(exact) => exact.as_bytes() == origin,
            Origin::Wildcard { scheme, parent, deep } => {
                let label =
                    origin.strip_prefix(scheme.as_bytes()).and_then(|o| o.strip_suffix(parent.as_bytes()));
                let is_label = |label: &[u8]| {
                    !label.is_empty() && label.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
                };
                label.is_some_and(|label| match deep {
                    false => is_label(label),
                    true => label.split(|b| *b == b'.').all(is_label),
                })
            }
        }
    }
}

impl FromStr for Origin {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        let lower = text.to_ascii_lowercase();
        let (scheme, authority) = lower.split_once("://").ok_or(InvalidOrigin)?;
        let letters = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.bytes().all(letters) {
            return Err(InvalidOrigin);
        }
        let (host, port) = match authority.rfind(':') {
            Some(colon) if !authority[colon..].contains(']') => {
                let port = &authority[colon + 1..];
                let digits = port.bytes().all(|b| b.is_ascii_digit()) && !port.starts_with('0');
                let number: u16 = port.parse().ok().filter(|_| digits).ok_or(InvalidOrigin)?;
                (&authority[..colon], Some(number))
            }
            _ => (authority, None),
        };
        let name = |host: &str| {
            !host.is_empty()
                && host.split('.').all(|label| {
                    !label.is_empty()
                        && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
                })
        };
        // Browsers leave out the port that the scheme has anyway.
        let port = match (scheme, port) {
            ("http", Some(80)) | ("https", Some(443)) | (_, None) => String::new(),
            (_, Some(port)) => format!(":{port}"),
        };
        if let Some(parent) = host.strip_prefix("*.") {
            return if name(parent) {
                Ok(Self::Wildcard {
                    scheme: format!("{scheme}://").into(),
                    parent: format!(".{parent}{port}").into(),
                    deep: false,
                })
            } else {
                Err(InvalidOrigin)
            };
        }
        let v6 = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        if name(host) || v6.is_some_and(|h| h.parse::<std::net::Ipv6Addr>().is_ok()) {
            Ok(Self::Exact(format!("{scheme}://{host}{port}").into()))
        } else {
            Err(InvalidOrigin)
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Exact(origin) => f.write_str(origin),
            Origin::Wildcard { scheme, parent, .. } => write!(f, "{scheme}*{parent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_compared_as_browsers_write_them() {
        for (allowed, origin, matches) in [
            ("https://a.example.com", "https://a.example.com", true),
            ("HTTPS://A.Example.com", "https://a.example.com", true),
            ("https://a.example.com:443", "https://a.example.com", true),
            ("http://a.example.com:80", "http://a.example.com", true),
            ("https://a.example.com:8443", "https://a.example.com:8443", true),
            ("http://[::1]:3000", "http://[::1]:3000", true),
            ("http://localhost:3000", "http://localhost:3000", true),
            ("capacitor://localhost", "capacitor://localhost", true),
            ("https://a.example.com", "http://a.example.com", false),
            ("https://a.example.com", "https://a.example.com:8443", false),
            ("https://a.example.com", "https://a.example.com.evil.example", false),
            ("https://a.example.com", "https://evil.example/https://a.example.com", false),
            ("https://a.example.com", "https://xa.example.com", false),
            ("https://a.example.com", "null", false),
            ("https://*.example.com", "https://b.example.com", true),
            ("https://*.example.com", "https://b-2.example.com", true),
            ("https://*.example.com", "https://example.com", false),
            ("https://*.example.com", "https://.example.com", false),
            ("https://*.example.com", "https://a.b.example.com", false),
            ("https://*.example.com", "http://b.example.com", false),
            ("https://*.example.com", "https://b.example.com:8443", false),
            ("https://*.example.com", "https://b.example.com.evil.example", false),
            ("https://*.example.com", "https://evil.example/.example.com", false),
            ("https://*.example.com", "https://evil.example?.example.com", false),
            ("https://*.example.com", "https://evil@b.example.com", false),
            ("https://*.example.com:8443", "https://b.example.com:8443", true),
            ("https://*.example.com:8443", "https://b.example.com", false),
        ] {
            let allowed: Origin = allowed.parse().unwrap();
            assert_eq!(allowed.matches(origin.as_bytes()), matches, "{allowed} {origin}");
        }
    }

    #[test]
    fn a_gateways_wildcard_stands_for_one_label_or_more() {
        let allowed = Origin::gateway("https://*.bar.com").unwrap();
        for (origin, matches) in [
            ("https://www.bar.com", true),
            ("https://xpto.www.bar.com", true),
            ("https://bar.com", false),
            ("https://a..bar.com", false),
            ("https://.bar.com", false),
            ("https://evil.example/x.bar.com", false),
        ] {
            assert_eq!(allowed.matches(origin.as_bytes()), matches, "{origin}");
        }
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for text in [
            "",
            "*",
            "null",
            "a.example.com",
            "https://",
            "https://*",
            "https://*example.com",
            "https://*.",
            "https://*.*.example.com",
            "https://a.*.example.com",
            "https://a.example.com/",
            "https://a.example.com/x",
            "https://a.example.com:0",
            "https://a.example.com:x",
            "https://a.example.com:65536",
            "https://a..example.com",
            "https://a b",
            "https://user@a.example.com",
            "1https://a.example.com",
            "://a.example.com",
            "https://[::g]",
            "https://a.example.com?x",
            "https://a.example.com\r\n",
        ] {
            assert_eq!(text.parse::<Origin>(), Err(InvalidOrigin), "{text:?}");
        }
    }

    #[test]
    fn an_empty_list_admits_nobody() {
        let nobody = Origins::Listed { origins: Box::default(), credentials: true };
        assert!(!nobody.admit(b"https://a.example.com") && !nobody.admit(b""));
        assert!(Origins::Any.admit(b"https://a.example.com"));
    }
}
