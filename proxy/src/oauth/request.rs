//! What authentication looks at of a request, and the texts of URLs.

use crate::select::without_port;
use http::header::{ACCEPT, AUTHORIZATION, UPGRADE};
use http::{HeaderMap, Method};

/// Longest return address that a login keeps.
const MAX_RETURN: usize = 2048;

/// One request, as far as authentication reads it.
#[derive(Clone, Copy)]
pub struct Incoming<'a> {
    pub method: &'a Method,
    /// As it came, and as it is forwarded.
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
    /// What the client asked for, port included: a routed authority.
    pub authority: &'a str,
    /// The client's connection is TLS.
    pub tls: bool,
}

impl<'a> Incoming<'a> {
    /// `https://host:port` as the browser sees it.
    pub fn origin(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }

    /// The host without its port, in lower case.
    pub fn host(&self) -> String {
        without_port(self.authority).trim_end_matches('.').to_ascii_lowercase()
    }

    /// Whether a redirect to a login page is of use: a browser that goes somewhere. Everything
    /// else would follow it with a script's or an image's request, and fail where nobody sees why.
    pub fn is_navigation(&self, api_routes: &[Box<str>]) -> bool {
        let text = |name: &str| self.headers.get(name).map(|v| v.as_bytes());
        if *self.method != Method::GET
            || self.headers.contains_key(UPGRADE)
            || self.headers.contains_key(AUTHORIZATION)
            || api_routes.iter().any(|prefix| under(self.path, prefix))
            || text("x-requested-with").is_some_and(|v| v.eq_ignore_ascii_case(b"xmlhttprequest"))
        {
            return false;
        }
        // Fetch metadata tells what the browser is about to do (W3C Fetch Metadata, section 2).
        match (text("sec-fetch-mode"), text("sec-fetch-dest")) {
            (Some(mode), _) if mode != b"navigate" => return false,
            (None, Some(dest)) if !matches!(dest, b"document" | b"iframe" | b"frame") => return false,
            _ => {}
        }
        let (mut html, mut json) = (false, false);
        let accepts = self.headers.get_all(ACCEPT).iter().flat_map(|v| v.as_bytes().split(|b| *b == b','));
        for accepted in accepts {
            let kind = accepted.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
            html |= kind.eq_ignore_ascii_case(b"text/html")
                || kind.eq_ignore_ascii_case(b"application/xhtml+xml");
            json |= kind.eq_ignore_ascii_case(b"application/json")
                || kind.eq_ignore_ascii_case(b"text/event-stream")
                || (kind.len() > 5 && kind[kind.len() - 5..].eq_ignore_ascii_case(b"+json"));
        }
        html || !json
    }

    /// Where to go after login: this very request.
    pub fn return_address(&self) -> String {
        let whole = match self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.to_owned(),
        };
        local(&whole).or_else(|| local(self.path)).unwrap_or("/").to_owned()
    }

    /// The return address that a client names: a path of this host, or a URL of this origin.
    pub fn named_return(&self, named: &str) -> Option<String> {
        if let Some(path) = local(named) {
            return Some(path.to_owned());
        }
        let rest = named.strip_prefix(&self.origin())?;
        if rest.is_empty() { Some("/".into()) } else { local(rest).map(str::to_owned) }
    }
}

/// Whether a path is the prefix or below it.
pub fn under(path: &str, prefix: &str) -> bool {
    let prefix = prefix.trim_end_matches('/');
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path that no browser can take for another host. It begins with one slash and neither its
/// path nor, percent-decoded, the beginning of it has what browsers read as a second one: slash,
/// backslash, or the white space that they drop. (WHATWG URL, sections 4.1 and 4.4.)
fn local(address: &str) -> Option<&str> {
    if address.len() > MAX_RETURN || !address.bytes().all(|b| b.is_ascii_graphic()) || address.contains('\\')
    {
        return None;
    }
    let path = address.split(['?', '#']).next()?;
    let rest = path.strip_prefix('/')?;
    let decoded = decode(rest)?;
    // one level more: some frameworks decode twice
    let twice = decode(&decoded)?;
    let plain = |text: &str| {
        !text.starts_with(['/', '\\'])
            && !text.contains('\\')
            && !text.contains("//")
            && !text.split('/').any(|segment| segment == "." || segment == "..")
            && !text.bytes().any(|b| b < 0x20 || b == 0x7f)
    };
    (plain(rest) && plain(&decoded) && plain(&twice) && !address.contains('#')).then_some(address)
}

/// Percent-decodes; `None` if what comes out is no text.
pub fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let digit = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
        match (bytes[i], digit(i + 1), digit(i + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).ok()?);
                i += 3;
            }
            (byte, ..) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8(out).ok()
}

/// Appends a text as it may stand in a query: all but unreserved characters percent-encoded.
pub fn encode(out: &mut String, text: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

/// A form or query of these fields, behind what is there already.
pub fn form<'a>(out: &mut String, fields: impl IntoIterator<Item = (&'a str, &'a str)>) {
    for (name, value) in fields {
        if !out.is_empty() && !out.ends_with(['?', '&']) {
            out.push('&');
        }
        encode(out, name);
        out.push('=');
        encode(out, value);
    }
}

/// The value of a query parameter that occurs once; `Err` if it occurs twice or is no text.
pub fn parameter(query: Option<&str>, name: &str) -> Result<Option<String>, ()> {
    let mut found = None;
    for pair in query.unwrap_or_default().split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key == name {
            if found.is_some() {
                return Err(());
            }
            found = Some(decode(&value.replace('+', " ")).ok_or(())?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn incoming<'a>(method: &'a Method, path: &'a str, headers: &'a HeaderMap) -> Incoming<'a> {
        Incoming { method, path, query: None, headers, authority: "app.example.com:8443", tls: true }
    }

    #[test]
    fn only_navigations_are_redirected() {
        let api: [Box<str>; 2] = ["/api".into(), "/v2/".into()];
        const HTML: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)], bool);
        let all: &[Case] = &[
            ("GET", "/", &[], true),
            ("GET", "/", &[("accept", HTML)], true),
            ("GET", "/", &[("accept", "*/*")], true),
            ("GET", "/apis", &[("accept", HTML)], true),
            ("GET", "/", &[("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")], true),
            ("GET", "/", &[("sec-fetch-mode", "navigate"), ("accept", "application/json, text/html")], true),
            ("GET", "/api", &[("accept", HTML)], false),
            ("GET", "/api/x", &[("accept", HTML)], false),
            ("GET", "/v2", &[], false),
            ("POST", "/", &[("accept", HTML)], false),
            ("HEAD", "/", &[], false),
            ("GET", "/", &[("x-requested-with", "XMLHttpRequest")], false),
            ("GET", "/", &[("accept", "application/json, text/plain, */*")], false),
            ("GET", "/", &[("accept", "application/problem+json")], false),
            ("GET", "/", &[("accept", "text/event-stream")], false),
            ("GET", "/", &[("sec-fetch-mode", "cors")], false),
            ("GET", "/", &[("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")], false),
            ("GET", "/", &[("sec-fetch-dest", "empty")], false),
            ("GET", "/", &[("upgrade", "websocket"), ("connection", "upgrade")], false),
            ("GET", "/", &[("authorization", "Bearer x")], false),
        ];
        for (method, path, fields, navigation) in all {
            let (method, headers) = (Method::try_from(*method).unwrap(), map(fields));
            assert_eq!(
                incoming(&method, path, &headers).is_navigation(&api),
                *navigation,
                "{method} {path} {fields:?}"
            );
        }
    }

    #[test]
    fn return_addresses_stay_on_the_origin() {
        let headers = HeaderMap::new();
        let request = incoming(&Method::GET, "/", &headers);
        for (named, kept) in [
            ("/", "/"),
            ("/a/b?c=d", "/a/b?c=d"),
            ("/r?u=https://x.example/y", "/r?u=https://x.example/y"),
            ("/r?u=//x.example", "/r?u=//x.example"),
            ("/a%20b/", "/a%20b/"),
            ("https://app.example.com:8443", "/"),
            ("https://app.example.com:8443/a?b", "/a?b"),
        ] {
            assert_eq!(request.named_return(named).as_deref(), Some(kept), "{named}");
        }
        for evil in [
            "",
            "a",
            "//evil.example/",
            "///evil.example/",
            "/\\evil.example",
            "\\\\evil.example",
            "/%09/evil.example",
            "/\t/evil.example",
            "/%0a/evil.example",
            "/%2fevil.example",
            "/%2Fevil.example",
            "/%252fevil.example",
            "/%5cevil.example",
            "/%255cevil.example",
            "/..//evil.example",
            "/a/..//evil.example",
            "/.//evil.example",
            "/%2e%2e//evil.example",
            "/%2e/%2fevil.example",
            "/a//evil.example",
            "https://evil.example",
            "https:evil.example",
            "HTTPS://evil.example",
            "http://app.example.com:8443/",
            "https://app.example.com/",
            "https://app.example.com:8443.evil.example/",
            "https://app.example.com:8443@evil.example/",
            "https://app.example.com:84433/",
            "https://app.example.com:8443//evil.example/",
            "javascript:alert(1)",
            " /a",
            "/a b",
            "/ä",
            "/a#//b",
        ] {
            assert_eq!(request.named_return(evil), None, "{evil:?}");
        }
        let long = format!("/{}", "a".repeat(3000));
        assert_eq!(request.named_return(&long), None);
    }

    #[test]
    fn a_request_returns_to_itself_or_else_to_the_root() {
        let headers = HeaderMap::new();
        let at = |path, query| Incoming { query, ..incoming(&Method::GET, path, &headers) }.return_address();
        assert_eq!(at("/a", Some("x=1&y=2")), "/a?x=1&y=2");
        assert_eq!(at("//evil.example/", None), "/");
        assert_eq!(at("/a", Some(&"x".repeat(3000))), "/a");
    }

    #[test]
    fn texts_are_encoded_once_and_decoded_once() {
        let mut out = String::from("https://a.example/auth?x=1");
        form(&mut out, [("rd", "https://b.example/a b?c=d&e"), ("s", "ä+")]);
        assert_eq!(
            out,
            "https://a.example/auth?x=1&rd=https%3A%2F%2Fb.example%2Fa%20b%3Fc%3Dd%26e&s=%C3%A4%2B"
        );
        assert_eq!(parameter(Some("a=1&rd=%2Fa%20b%3Fc+d&b"), "rd"), Ok(Some("/a b?c d".into())));
        assert_eq!(parameter(Some("rd=1&rd=2"), "rd"), Err(()));
        assert_eq!(parameter(Some("rd=%ff"), "rd"), Err(()));
        assert_eq!(parameter(None, "rd"), Ok(None));
        assert_eq!(decode("100%"), Some("100%".into()));
    }

    #[test]
    fn hosts_lose_their_port_and_keep_their_brackets() {
        let headers = HeaderMap::new();
        let host = |authority| Incoming { authority, ..incoming(&Method::GET, "/", &headers) }.host();
        assert_eq!(host("App.Example.com:8443"), "app.example.com");
        assert_eq!(host("app.example.com."), "app.example.com");
        assert_eq!(host("[2001:db8::1]:443"), "[2001:db8::1]");
        assert_eq!(host("[2001:db8::1]"), "[2001:db8::1]");
    }
}
