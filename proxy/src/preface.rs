//! The first octets of a plain connection: HTTP/1, or the preface with which a client speaks HTTP/2
//! without asking (RFC 9113 section 3.3).

/// What an HTTP/2 client sends before anything else (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Anything that is no preface, which is for the parser of HTTP/1 to judge.
    Http1,
    /// The whole preface.
    Http2,
    /// A part of the preface, which may still become either.
    Part,
}

impl Opening {
    /// What these octets, the first of a connection, say. The first one settles it for most requests.
    pub fn of(octets: &[u8]) -> Self {
        match octets {
            [] => Opening::Part,
            [b'P', ..] if octets.starts_with(PREFACE) => Opening::Http2,
            [b'P', ..] if PREFACE.starts_with(octets) => Opening::Part,
            _ => Opening::Http1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_preface_is_http2() {
        for n in 0..PREFACE.len() {
            assert_eq!(Opening::of(&PREFACE[..n]), Opening::Part, "{n} octets");
        }
        assert_eq!(Opening::of(PREFACE), Opening::Http2);
        assert_eq!(Opening::of(&[&PREFACE[..], &[0; 40]].concat()), Opening::Http2);
        for other in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"POST / HTTP/1.1\r\n",
            b"PRI / HTTP/1.1\r\n",
            b"PRI * HTTP/1.1\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r",
            b"PRI * HTTP/2.0\r\nHost: app.example.com\r\n\r\n",
            b"PRI  * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"pri * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b" ",
            b"\x16\x03\x01",
        ] {
            assert_eq!(Opening::of(other), Opening::Http1, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn each_octet_counts() {
        for at in 0..PREFACE.len() {
            let mut octets = *PREFACE;
            octets[at] ^= 1;
            assert_eq!(Opening::of(&octets), Opening::Http1, "{}", octets.escape_ascii());
            assert_eq!(Opening::of(&octets[..=at]), Opening::Http1, "{}", octets[..=at].escape_ascii());
        }
    }
}
