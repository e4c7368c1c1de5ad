//! What arrives on an HTTP/1 connection.

use ingress_proxy::fuzz as proxy;

/// The first byte says in what pieces the others arrive.
fn pieces(data: &[u8]) -> (usize, &[u8]) {
    match data {
        [step, rest @ ..] => (usize::from(*step).max(1), rest),
        [] => (1, data),
    }
}

/// A request line: where the pieces are cut does not matter, and a line that passes has three parts.
pub fn request_line(data: &[u8]) {
    let (step, bytes) = pieces(data);
    let refused = proxy::request_line_refused(bytes.chunks(step));
    assert_eq!(refused, proxy::request_line_refused(std::iter::once(bytes)), "in pieces of {step}");
    let begin = bytes.iter().position(|b| !matches!(b, b'\r' | b'\n')).unwrap_or(bytes.len());
    let line = &bytes[begin..];
    let Some(end) = line.iter().position(|b| *b == b'\n') else { return };
    let line: Vec<u8> = line[..end].iter().copied().filter(|b| *b != b'\r').collect();
    if refused || line.is_empty() {
        return;
    }
    let parts: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    assert!(parts.len() == 3 && parts.iter().all(|p| !p.is_empty() && p.iter().all(u8::is_ascii_graphic)));
    if let Ok(method) = http_method(parts[0]) {
        let passes = proxy::target_passes(&method, parts[1]);
        let origin_or_absolute = parts[1].starts_with(b"/")
            || parts[1].len() > 7 && parts[1][..4].eq_ignore_ascii_case(b"http")
            || parts[1] == b"*";
        assert!(!passes || origin_or_absolute, "{:?}", String::from_utf8_lossy(parts[1]));
    }
}

fn http_method(bytes: &[u8]) -> Result<http::Method, http::method::InvalidMethod> {
    http::Method::from_bytes(bytes)
}

/// The fields of a head: one that passes has one Host, one framing, and no line that ends oddly.
pub fn head(data: &[u8]) {
    let mut fields = http::HeaderMap::new();
    for line in data.split(|b| *b == b'\n').skip(1) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|b| *b == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) =
            (http::HeaderName::from_bytes(name), http::HeaderValue::from_bytes(value))
        {
            fields.append(name, value);
        }
    }
    let whole = fields.clone();
    // The engine drops the length beside an encoding before anybody sees the fields.
    if fields.contains_key("transfer-encoding") {
        fields.remove("content-length");
    }
    let Some((length, chunked)) = proxy::head(&fields, data) else { return };
    let all = |name| whole.get_all(name).iter().map(|v| v.as_bytes()).collect::<Vec<_>>();
    let (lengths, encodings) = (all("content-length"), all("transfer-encoding"));
    assert_eq!(all("host").len(), 1);
    assert!(lengths.len() + encodings.len() <= 1, "{lengths:?} {encodings:?}");
    assert_eq!(chunked, encodings.first().is_some_and(|e| e.eq_ignore_ascii_case(b"chunked")));
    assert_eq!(encodings.len(), usize::from(chunked));
    match lengths.first() {
        Some(digits) => {
            assert!(digits.iter().all(u8::is_ascii_digit) && !digits.is_empty());
            let number = std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok()).unwrap_or(u64::MAX);
            assert_eq!(length, number);
        }
        None => assert_eq!(length, 0),
    }
    let odd = data.windows(2).any(|two| two[1] == b'\n' && two[0] != b'\r') || data.first() == Some(&b'\n');
    assert!(!odd, "a line ends in a bare LF");
}

/// A chunked body: where the pieces are cut does not matter, and a plain reader of the whole agrees.
pub fn chunks(data: &[u8]) {
    let (step, bytes) = pieces(data);
    let cut = proxy::behind_chunks(bytes.chunks(step));
    let whole = proxy::behind_chunks(std::iter::once(bytes));
    assert_eq!(cut, whole, "in pieces of {step}");
    assert_eq!(slow_behind_chunks(bytes), whole);
}

/// What stands behind the body, empty where it has not ended; `None` where it is broken. Line by line,
/// as RFC 9112 section 7.1 has it.
fn slow_behind_chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    /// A line without its end, and what follows; `Err` is a broken one, `Ok(None)` one that has not ended.
    type Line<'a> = Result<Option<(&'a [u8], &'a [u8])>, ()>;
    fn line(rest: &[u8], valid: impl Fn(u8) -> bool) -> Line<'_> {
        let end = rest.iter().position(|b| *b == b'\r' || !valid(*b)).unwrap_or(rest.len());
        match &rest[end..] {
            [] | [b'\r'] => Ok(None),
            [b'\r', b'\n', after @ ..] => Ok(Some((&rest[..end], after))),
            _ => Err(()),
        }
    }
    let text = |b: u8| b == b'\t' || (b >= b' ' && b != 0x7f);
    loop {
        let digits = rest.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        if digits > 16 {
            return None;
        }
        let (number, after) = rest.split_at(digits);
        let extension = match after {
            [] => return Some(Vec::new()),
            _ if digits == 0 => return None,
            [b'\r', ..] => after,
            [b';', ..] => after,
            _ => return None,
        };
        let size = u64::from_str_radix(std::str::from_utf8(number).ok()?, 16).ok()?;
        let Some((_, after)) = line(extension, text).ok()? else { return Some(Vec::new()) };
        rest = after;
        if size == 0 {
            loop {
                let Some((field, after)) = line(rest, text).ok()? else { return Some(Vec::new()) };
                rest = after;
                if field.is_empty() {
                    return Some(rest.to_vec());
                }
            }
        }
        let n = usize::try_from(size).unwrap_or(usize::MAX).min(rest.len());
        rest = &rest[n..];
        rest = match rest {
            [] | [b'\r'] => return Some(Vec::new()),
            [b'\r', b'\n', after @ ..] => after,
            _ => return None,
        };
    }
}
