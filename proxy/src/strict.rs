//! One meaning per HTTP/1 request: refuses what Pingora's parser lets through.
//!
//! Looks at the raw head, since Pingora has by then dropped `Content-Length` beside
//! `Transfer-Encoding`, cut a fragment off the target and accepted bare line feeds.

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
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
    /// None, or more than one (RFC 9112 section 3.2).
    #[error("not exactly one Host")]
    Host,
}

/// Checks an HTTP/1 request whose target is in origin, absolute or asterisk form.
pub fn check(raw: &[u8], headers: &HeaderMap) -> Result<(), Malformed> {
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
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    if let Some(length) = lengths.next() {
        let digits = length.as_bytes();
        if lengths.next().is_some() || digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(Malformed::ContentLength);
        }
    }
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(encoding) = encodings.next() {
        if encodings.next().is_some() || !encoding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err(Malformed::TransferEncoding);
        }
        if names(raw).any(|name| name.eq_ignore_ascii_case(b"content-length")) {
            return Err(Malformed::TwoFramings);
        }
    }
    let mut hosts = headers.get_all(HOST).iter();
    if hosts.next().is_none() || hosts.next().is_some() {
        return Err(Malformed::Host);
    }
    Ok(())
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
        if headers.contains_key(TRANSFER_ENCODING) {
            headers.remove(CONTENT_LENGTH);
        }
        check(raw.as_bytes(), &headers)
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
    fn requests_with_two_readings_are_refused() {
        use Malformed::*;
        for (raw, why) in [
            ("GET / HTTP/1.1\nHost: a\r\n\r\n", BareLf),
            ("GET / HTTP/1.1\r\nHost: a\n\r\n", BareLf),
            ("GET / HTTP/1.1\r\nHost: a\r\n\n", BareLf),
            ("GET /p#/../admin HTTP/1.1\r\nHost: a\r\n\r\n", Fragment),
            ("GET /a?b#c HTTP/1.1\r\nHost: a\r\n\r\n", Fragment),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n", TwoFramings),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nCONTENT-LENGTH: 6\r\n\r\n", TwoFramings),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity, chunked\r\n\r\n", TransferEncoding),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", TransferEncoding),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n", TransferEncoding),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", TransferEncoding),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", TransferEncoding),
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
