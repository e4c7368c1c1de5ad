//! The octets of HTTP/1 requests that the engine reads too kindly: it tidies up request lines and
//! takes broken chunk lines for whole ones. Both checks run over the bytes as they arrive.

/// Follows the first line of a request head: two single spaces, and no other octet that is not
/// visible ASCII (RFC 9112 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLine {
    begun: bool,
    spaces: u8,
    /// The octet before was a space.
    space: bool,
    done: bool,
    bad: bool,
}

impl RequestLine {
    /// Takes more bytes of the head in.
    pub fn take(&mut self, bytes: &[u8]) {
        if self.done {
            return;
        }
        for &b in bytes {
            match b {
                // Empty lines before a request are skipped (RFC 9112 section 2.2).
                b'\r' | b'\n' if !self.begun => {}
                b'\n' => {
                    self.done = true;
                    self.bad |= self.spaces != 2 || self.space;
                    return;
                }
                b'\r' => {}
                b' ' => {
                    self.bad |= self.space || !self.begun;
                    self.begun = true;
                    self.space = true;
                    self.spaces = self.spaces.saturating_add(1);
                }
                0x21..=0x7e => (self.begun, self.space) = (true, false),
                _ => (self.begun, self.bad) = (true, true),
            }
        }
    }

    /// Whether the line has more than one reading.
    pub fn bad(self) -> bool {
        self.bad
    }
}

/// Follows the body of a request up to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// So many bytes are still to come.
    Length(u64),
    /// In chunks.
    Chunked(Chunks),
}

impl Body {
    /// Takes more bytes in; gives back those that stand behind the end of the body.
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], BrokenChunk> {
        match self {
            Body::Length(left) => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= n as u64;
                Ok(&bytes[n..])
            }
            Body::Chunked(chunks) => chunks.take(bytes),
        }
    }
}

/// Follows a chunked body (RFC 9112 section 7.1) up to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks(State);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size { digits: u8, size: u64 },
    Extension { size: u64 },
    SizeLf { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

/// A chunk line that is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("broken chunk")]
pub struct BrokenChunk;

impl Default for Chunks {
    fn default() -> Self {
        Self(State::Size { digits: 0, size: 0 })
    }
}

impl Chunks {
    /// Takes more bytes in; gives back those that stand behind the end of the body.
    pub fn take<'a>(&mut self, mut bytes: &'a [u8]) -> Result<&'a [u8], BrokenChunk> {
        while let [b, rest @ ..] = bytes {
            if self.0 == State::Done {
                break;
            }
            if let State::Data { left } = self.0 {
                let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                bytes = &bytes[n..];
                let left = left - n as u64;
                self.0 = if left == 0 { State::DataCr } else { State::Data { left } };
                continue;
            }
            bytes = rest;
            self.0 = match (self.0, *b) {
                (State::Size { digits, size }, b) if b.is_ascii_hexdigit() && digits < 16 => {
                    let digit = (b as char).to_digit(16).unwrap_or(0);
                    State::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
                }
                (State::Size { digits: 1.., size }, b';') => State::Extension { size },
                (State::Size { digits: 1.., size } | State::Extension { size }, b'\r') => {
                    State::SizeLf { size }
                }
                (State::Extension { size }, b'\t' | b' '..=b'~' | 0x80..) => State::Extension { size },
                (State::SizeLf { size: 0 }, b'\n') => State::TrailerStart,
                (State::SizeLf { size }, b'\n') => State::Data { left: size },
                (State::DataCr, b'\r') => State::DataLf,
                (State::DataLf, b'\n') => State::Size { digits: 0, size: 0 },
                (State::TrailerStart, b'\r') => State::EndLf,
                (State::EndLf, b'\n') => State::Done,
                (State::Trailer, b'\r') => State::TrailerLf,
                (State::TrailerLf, b'\n') => State::TrailerStart,
                (State::TrailerStart | State::Trailer, b'\t' | b' '..=b'~' | 0x80..) => State::Trailer,
                _ => return Err(BrokenChunk),
            };
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &[u8], step: usize) -> bool {
        let mut line = RequestLine::default();
        text.chunks(step).for_each(|part| line.take(part));
        line.bad()
    }

    #[test]
    fn request_lines_have_two_spaces_and_nothing_odd() {
        for step in [1, 3, 1000] {
            for good in [
                &b"GET / HTTP/1.1\r\nHost: a b\r\n\x01"[..],
                b"\r\n\r\nGET /a?b HTTP/1.0\r\n",
                b"OPTIONS * HTTP/1.1\n",
                b"GET /a",
            ] {
                assert!(!line(good, step), "{}", good.escape_ascii());
            }
            for bad in [
                &b"GET /a b HTTP/1.1\r\n"[..],
                b"GET  / HTTP/1.1\r\n",
                b"GET /  HTTP/1.1\r\n",
                b"GET / HTTP/1.1 \r\n",
                b" GET / HTTP/1.1\r\n",
                b"GET /\r\n",
                b"GET /a\x01b HTTP/1.1\r\n",
                b"GET /a\x7f HTTP/1.1\r\n",
                b"GET\t/ HTTP/1.1\r\n",
                b"GET /\xc3\xa4 HTTP/1.1\r\n",
                b"GET /?b c HTTP/1.1\r\n",
            ] {
                assert!(line(bad, step), "{}", bad.escape_ascii());
            }
        }
    }

    /// What is left behind the body, if it has ended.
    fn chunks(text: &[u8], step: usize) -> Result<Option<Vec<u8>>, BrokenChunk> {
        let mut chunks = Chunks::default();
        let mut behind = Vec::new();
        for part in text.chunks(step) {
            behind.extend_from_slice(chunks.take(part)?);
        }
        Ok((chunks.0 == State::Done).then_some(behind))
    }

    #[test]
    fn a_body_of_known_length_ends_there() {
        let mut body = Body::Length(5);
        assert_eq!(body.take(b"abc"), Ok(&b""[..]));
        assert_eq!(body.take(b"deGET"), Ok(&b"GET"[..]));
        assert_eq!(body.take(b" /"), Ok(&b" /"[..]));
    }

    #[test]
    fn chunked_bodies_are_followed_to_their_end() {
        for step in [1, 2, 1000] {
            for (text, behind) in [
                (&b"5\r\nhello\r\n0\r\n\r\n"[..], Some("")),
                (
                    b"5;a=b;c=\"d e\"\r\nhello\r\n0\r\nX: y\r\nZ: w\r\n\r\nGET / HTTP/1.1",
                    Some("GET / HTTP/1.1"),
                ),
                (b"A\r\n0123456789\r\n00\r\n\r\n", Some("")),
                (b"5\r\nhello\r\n", None),
                (b"", None),
            ] {
                let behind = behind.map(|b| b.as_bytes().to_vec());
                assert_eq!(chunks(text, step), Ok(behind), "{}", text.escape_ascii());
            }
            for bad in [
                &b"5\nhello\r\n0\r\n\r\n"[..],
                b"\r\nhello\r\n0\r\n\r\n",
                b"5;a=\nb\r\nhello\r\n0\r\n\r\n",
                b"0x5\r\nhello\r\n0\r\n\r\n",
                b"5 \r\nhello\r\n0\r\n\r\n",
                b" 5\r\nhello\r\n0\r\n\r\n",
                b"-1\r\nhello",
                b"11111111111111111\r\n",
                b"5\r\nhelloX\r\n0\r\n\r\n",
                b"5\r\nhello0\r\n\r\n",
                b"5\rhello\r\n",
                b"0\r\n\n",
                b"0\n\r\n",
                b"0\r\nX: y\n\r\n",
            ] {
                assert_eq!(chunks(bad, step), Err(BrokenChunk), "{}", bad.escape_ascii());
            }
        }
    }
}
