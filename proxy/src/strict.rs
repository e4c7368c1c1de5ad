//! One meaning per request: refuses what Pingora's parser lets through.
//!
//! Looks at the raw head, since Pingora has by then dropped `Content-Length` beside
//! `Transfer-Encoding`, cut a fragment off the target and accepted bare line feeds.

use http::{HeaderMap, Method};
use memchr::{memchr, memchr_iter};

/// Why a request has no single meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A line ends in LF without CR (RFC 9112 section 2.2).
    #[error("bare line feed in the request head")]
    BareLf,
    /// `#` in the request target (RFC 9112 section 3.2).
    #[error("fragment in the request target")]
    Fragment,
    /// Both `Content-Length` and `Transfer-Encoding` (RFC 9112 section 6.1).
    #[error("both Content-Length and Transfer-Encoding")]
    TwoFramings,
    /// Anything but a single `chunked` (RFC 9112 section 6.1).
    #[error("Transfer-Encoding other than a single chunked")]
    TransferEncoding,
    /// Anything but one run of digits (RFC 9110 section 8.6).
    #[error("Content-Length is not one number")]
    ContentLength,
    /// Not `METHOD SP target SP version` in visible ASCII (RFC 9112 section 3).
    #[error("request line is not method, target and version")]
    RequestLine,
    /// Neither a path, nor an http URL, nor `*` with OPTIONS (RFC 9112 section 3.2).
    #[error("request target in no form that is served")]
    Target,
    /// A chunk line that is not one (RFC 9112 section 7.1).
    #[error("broken chunk")]
    Chunk,
    /// None, or more than one (RFC 9112 section 3.2).
    #[error("not exactly one Host")]
    Host,
}

/// What one pass over a request's fields finds; the rest of the request path asks this instead of
/// looking names up again.
#[derive(Default)]
pub struct Facts {
    /// `Connection` is there.
    pub connection: bool,
    /// Some `Upgrade` is there.
    pub upgrade: bool,
    /// `Transfer-Encoding: chunked`, the only one that passes.
    pub chunked: bool,
    /// A `Content-Length` that is not zero.
    pub body: bool,
    /// `Content-Length`, capped.
    pub length: u64,
    /// Fields that must not reach the backend, other than those that `Connection` names.
    pub unwanted: usize,
    /// `Cookie` fields.
    pub cookies: usize,
    hosts: usize,
    lengths: usize,
    encodings: usize,
}

impl Facts {
    /// Reads the fields of a request; on HTTP/2 there is nothing to refuse but lengths.
    pub fn read(headers: &HeaderMap) -> Result<Self, Malformed> {
        let mut facts = Self::default();
        for (name, value) in headers {
            match Field::of(name.as_str().as_bytes()) {
                Field::Other => {}
                Field::Host => facts.hosts += 1,
                Field::Cookie => facts.cookies += 1,
                Field::Connection => facts.connection = true,
                Field::Upgrade => {
                    facts.upgrade = true;
                    facts.unwanted += 1;
                }
                Field::Hop | Field::Managed => facts.unwanted += 1,
                Field::ContentLength => {
                    facts.lengths += 1;
                    let digits = value.as_bytes();
                    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                        return Err(Malformed::ContentLength);
                    }
                    facts.length = value.to_str().ok().and_then(|v| v.parse().ok()).unwrap_or(u64::MAX);
                    facts.body = facts.length > 0;
                }
                Field::TransferEncoding => {
                    facts.encodings += 1;
                    if !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                        return Err(Malformed::TransferEncoding);
                    }
                    facts.chunked = true;
                }
            }
        }
        if facts.lengths > 1 {
            return Err(Malformed::ContentLength);
        }
        Ok(facts)
    }

    /// Checks an HTTP/1 request: its raw head, and that it names one host.
    pub fn check_http1(&self, raw: &[u8]) -> Result<(), Malformed> {
        let mut start = 0;
        for end in memchr_iter(b'\n', raw) {
            if end == start || raw[end - 1] != b'\r' {
                return Err(Malformed::BareLf);
            }
            if start == 0 && memchr(b'#', &raw[..end]).is_some() {
                return Err(Malformed::Fragment);
            }
            start = end + 1;
        }
        if self.encodings > 1 {
            return Err(Malformed::TransferEncoding);
        }
        // The engine has dropped the length by now, so it is looked for in what was sent.
        if self.encodings > 0 && names(raw).any(|name| name.eq_ignore_ascii_case(b"content-length")) {
            return Err(Malformed::TwoFramings);
        }
        if self.hosts != 1 {
            return Err(Malformed::Host);
        }
        Ok(())
    }
}

/// Checks the form of a request target: origin form, absolute form, or `*` with OPTIONS.
pub fn check_target(method: &Method, target: &[u8]) -> Result<(), Malformed> {
    let scheme = |s: &[u8]| target.len() > s.len() && target[..s.len()].eq_ignore_ascii_case(s);
    match target {
        [b'/', ..] => Ok(()),
        b"*" if *method == Method::OPTIONS => Ok(()),
        _ if scheme(b"http://") || scheme(b"https://") => Ok(()),
        _ => Err(Malformed::Target),
    }
}

/// The kinds of request fields that the proxy has an opinion on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Passed on as it is.
    Other,
    /// `Host`
    Host,
    /// `Content-Length`
    ContentLength,
    /// `Transfer-Encoding`
    TransferEncoding,
    /// `Connection`
    Connection,
    /// `Upgrade`
    Upgrade,
    /// `Cookie`
    Cookie,
    /// Meant for this hop alone (RFC 9110 section 7.6.1).
    Hop,
    /// Only the proxy sets it.
    Managed,
}

impl Field {
    /// The kind of a lower-case field name.
    pub fn of(name: &[u8]) -> Self {
        match name.first() {
            Some(b'c') => match name {
                b"connection" => Field::Connection,
                b"content-length" => Field::ContentLength,
                b"cookie" => Field::Cookie,
                _ => Field::Other,
            },
            Some(b'h') => match name {
                b"host" => Field::Host,
                b"http2-settings" => Field::Hop,
                _ => Field::Other,
            },
            Some(b'k') if name == b"keep-alive" => Field::Hop,
            Some(b't') => match name {
                b"te" | b"trailer" => Field::Hop,
                b"transfer-encoding" => Field::TransferEncoding,
                _ => Field::Other,
            },
            Some(b'u') if name == b"upgrade" => Field::Upgrade,
            Some(b'p') => match name {
                b"proxy-connection" | b"proxy-authorization" | b"proxy-authenticate" => Field::Hop,
                b"proxy" => Field::Managed,
                _ => Field::Other,
            },
            Some(b'x' | b'f') if managed(name) => Field::Managed,
            _ => Field::Other,
        }
    }
}

/// Whether a lower-case field name belongs to a family that only the proxy sets; `_` and `.` count
/// as `-`, since a CGI-like backend reads them as the same name.
fn managed(name: &[u8]) -> bool {
    let is = |full: &[u8]| name.len() == full.len() && begins(name, full);
    begins(name, b"x-forwarded-")
        || is(b"x-forwarded")
        || is(b"x-real-ip")
        || begins(name, b"x-auth-request-")
        || begins(name, b"x-original-")
        || is(b"x-rewrite-url")
        || is(b"forwarded")
}

fn begins(name: &[u8], prefix: &[u8]) -> bool {
    name.len() >= prefix.len()
        && name.iter().zip(prefix).all(|(&have, &want)| match have {
            b'_' | b'.' => want == b'-',
            b => b == want,
        })
}

/// The field names of a raw head.
fn names(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    raw.split(|b| *b == b'\n').skip(1).filter_map(|line| Some(&line[..memchr(b':', line)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses as Pingora does, as far as the check is concerned.
    fn verdict(raw: &str) -> Result<(), Malformed> {
        let mut headers = HeaderMap::new();
        for line in raw.split('\n').skip(1) {
            if let Some((name, value)) = line.trim_end_matches('\r').split_once(':') {
                headers.append(
                    http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
                    value.trim().parse().unwrap(),
                );
            }
        }
        if headers.contains_key("transfer-encoding") {
            headers.remove("content-length");
        }
        Facts::read(&headers)?.check_http1(raw.as_bytes())
    }

    #[test]
    fn ordinary_requests_pass() {
        for raw in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST /x?y HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX-Note: a#b\r\n\r\n",
        ] {
            assert_eq!(verdict(raw), Ok(()), "{raw:?}");
        }
    }

    #[test]
    fn targets_have_one_of_three_forms() {
        for (method, target, good) in [
            ("GET", "/", true),
            ("GET", "http://a/", true),
            ("GET", "HTTPS://a", true),
            ("OPTIONS", "*", true),
            ("GET", "*", false),
            ("OPTIONS", "*/x", false),
            ("GET", "admin", false),
            ("GET", "?x=1", false),
            ("GET", "", false),
            ("GET", "a.example:80", false),
            ("GET", "ftp://a/", false),
        ] {
            let method = method.parse().unwrap();
            assert_eq!(check_target(&method, target.as_bytes()).is_ok(), good, "{method} {target}");
        }
    }

    #[test]
    fn requests_with_two_readings_are_refused() {
        use Malformed::*;
        for (raw, why) in [
            ("GET / HTTP/1.1\nHost: a\r\n\r\n", BareLf),
            ("GET / HTTP/1.1\r\nHost: a\n\r\n", BareLf),
            ("GET / HTTP/1.1\r\nHost: a\r\n\n", BareLf),
            ("GET /p#/../admin HTTP/1.1\r\nHost: a\r\n\r\n", Fragment),
            ("GET /a?b#c HTTP/1.1\r\nHost: a\r\n\r\n", Fragment),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n",
                TwoFramings,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nCONTENT-LENGTH: 6\r\n\r\n",
                TwoFramings,
            ),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity, chunked\r\n\r\n", TransferEncoding),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", TransferEncoding),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n", TransferEncoding),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", TransferEncoding),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
                TransferEncoding,
            ),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", ContentLength),
            ("GET / HTTP/1.1\r\n\r\n", Host),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Host),
        ] {
            assert_eq!(verdict(raw), Err(why), "{raw:?}");
        }
    }
}
