//! Absolute http and https URLs of authentication providers.

use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Uri};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A URL that can be asked: scheme, host and port apart, path and query byte for byte as written.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HttpUrl {
    /// `https`
    pub tls: bool,
    /// The name or address to connect to, in lower case; IPv6 addresses without brackets.
    pub host: Arc<str>,
    /// The port to connect to.
    pub port: u16,
    /// `host` or `host:port` as it stands in `Host`; the scheme's own port is left out.
    pub authority: HeaderValue,
    /// Begins with `/`.
    pub path_and_query: PathAndQuery,
}

/// Why a text is not an [`HttpUrl`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    /// Not a URL, or with octets that must be percent-encoded.
    #[error("not an absolute http or https URL")]
    Syntax,
    /// A scheme other than http and https.
    #[error("its scheme is neither http nor https")]
    Scheme,
    /// `user@host`
    #[error("user information before the host is not accepted")]
    UserInfo,
    /// `#`
    #[error("a fragment is not accepted")]
    Fragment,
}

impl HttpUrl {
    /// Longest text that is read.
    pub const MAX: usize = 4096;

    /// Scheme and authority, as `https://auth.example.com:8443`.
    pub fn origin(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority.to_str().unwrap_or_default())
    }

    /// The query, without its `?`.
    pub fn query(&self) -> Option<&str> {
        self.path_and_query.query()
    }
}

impl FromStr for HttpUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        if text.contains('#') {
            return Err(InvalidUrl::Fragment);
        }
        if text.len() > Self::MAX || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(InvalidUrl::Syntax);
        }
        let uri: Uri = text.parse().map_err(|_| InvalidUrl::Syntax)?;
        let parts = uri.into_parts();
        let tls = match parts.scheme.as_ref().map(|s| s.as_str()) {
            Some("https") => true,
            Some("http") => false,
            Some(_) => return Err(InvalidUrl::Scheme),
            None => return Err(InvalidUrl::Syntax),
        };
        let named: Authority = parts.authority.ok_or(InvalidUrl::Syntax)?;
        if named.as_str().contains('@') {
            return Err(InvalidUrl::UserInfo);
        }
        let host = named.host().to_ascii_lowercase();
        let after = &named.as_str()[named.host().len()..];
        let own = if tls { 443 } else { 80 };
        let port = match (after, named.port_u16()) {
            ("", _) => own,
            (_, Some(port)) if port > 0 => port,
            _ => return Err(InvalidUrl::Syntax),
        };
        let plain = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(&host);
        if plain.is_empty() || plain.contains(['[', ']', '%']) {
            return Err(InvalidUrl::Syntax);
        }
        let authority = if port == own { host.clone() } else { format!("{host}:{port}") };
        Ok(Self {
            tls,
            host: plain.into(),
            port,
            authority: HeaderValue::try_from(authority).map_err(|_| InvalidUrl::Syntax)?,
            path_and_query: match parts.path_and_query {
                // `https://host?query`: the path of an http URL is never empty (RFC 9110 section 4.2.3).
                Some(p) if p.as_str().starts_with('?') => {
                    format!("/{}", p.as_str()).parse().map_err(|_| InvalidUrl::Syntax)?
                }
                Some(p) if p.as_str().starts_with('/') => p,
                Some(_) => return Err(InvalidUrl::Syntax),
                None => PathAndQuery::from_static("/"),
            },
        })
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path_and_query)
    }
}

/// Without the query, which may hold what is not for logs.
impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path_and_query.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_and_kept_byte_for_byte() {
        for (text, tls, host, port, authority, target) in [
            (
                "https://auth.example.com/oauth2/auth",
                true,
                "auth.example.com",
                443,
                "auth.example.com",
                "/oauth2/auth",
            ),
            ("http://A.example:80", false, "a.example", 80, "a.example", "/"),
            ("https://a.example:8443?x=1", true, "a.example", 8443, "a.example:8443", "/?x=1"),
            (
                "http://[2001:db8::1]:81/a%2Fb?c=d%40e%2Cf",
                false,
                "2001:db8::1",
                81,
                "[2001:db8::1]:81",
                "/a%2Fb?c=d%40e%2Cf",
            ),
            (
                "http://a.example/a//b/?u=https://x.example/?y",
                false,
                "a.example",
                80,
                "a.example",
                "/a//b/?u=https://x.example/?y",
            ),
        ] {
            let url: HttpUrl = text.parse().unwrap();
            assert_eq!(
                (url.tls, &*url.host, url.port, url.authority.to_str().unwrap(), url.path_and_query.as_str()),
                (tls, host, port, authority, target),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_url_says_why() {
        for (text, why) in [
            ("", InvalidUrl::Syntax),
            ("auth.example.com", InvalidUrl::Syntax),
            ("/auth", InvalidUrl::Syntax),
            ("https://", InvalidUrl::Syntax),
            ("https:///auth", InvalidUrl::Syntax),
            ("ftp://a.example/", InvalidUrl::Scheme),
            ("https://user@a.example/", InvalidUrl::UserInfo),
            ("https://u:p@a.example/", InvalidUrl::UserInfo),
            ("https://a.example/#x", InvalidUrl::Fragment),
            ("https://a.example/a b", InvalidUrl::Syntax),
            ("https://a.example/\r\nX: y", InvalidUrl::Syntax),
            ("https://ä.example/", InvalidUrl::Syntax),
            ("https://a.example:0/", InvalidUrl::Syntax),
            ("https://a.example:/", InvalidUrl::Syntax),
            ("https://a.example:99999/", InvalidUrl::Syntax),
            ("https://[::1/", InvalidUrl::Syntax),
        ] {
            assert_eq!(text.parse::<HttpUrl>(), Err(why), "{text}");
        }
        assert_eq!(
            format!("https://a.example/{}", "x".repeat(HttpUrl::MAX)).parse::<HttpUrl>(),
            Err(InvalidUrl::Syntax)
        );
    }

    #[test]
    fn debug_output_leaves_the_query_out() {
        let url: HttpUrl = "https://a.example/p?token=secret".parse().unwrap();
        assert_eq!(format!("{url:?}"), "https://a.example/p");
        assert_eq!(url.to_string(), "https://a.example/p?token=secret");
    }
}
