//! Request headers are rebuilt, not patched: what belongs to the client's hop and what only the
//! proxy may say goes out first, then ours come in, so nothing a client sends can remove them.
//!
//! The work is done once, on the downstream header, which Pingora clones for each attempt. The
//! header map is taken out as `http::request::Parts`: names are constants, the map grows once, and
//! Pingora's second map for header case is dropped (names reach the backend in lower case).

use crate::edge::Conn;
use crate::respond::Rejection;
use crate::strict::{Facts, Field};
use crate::via::Via;
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use ingress_core::{Auth, Route};
use pingora_http::{RequestHeader, ResponseHeader};
use std::sync::Arc;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// More tokens than this in `Connection` are refused: each one costs a look-up.
const MAX_CONNECTION_TOKENS: usize = 32;

/// Rebuilds a request's headers for the backend.
///
/// `via` is what a trusted proxy says of the client, `authority` what was asked for, `port` the port
/// named in it. Tells whether it is a WebSocket handshake.
pub fn rebuild(
    request: &mut RequestHeader,
    facts: &Facts,
    conn: &Conn,
    via: Option<&Via>,
    authority: HeaderValue,
    port: Option<u16>,
) -> Result<bool, Rejection> {
    let mut parts: http::request::Parts =
        std::mem::replace(request, RequestHeader::from(http::Request::new(()).into_parts().0)).into();
    let upgrade = facts.upgrade && websocket(&parts, facts)?;
    let headers = &mut parts.headers;
    headers.reserve(5);
    if facts.connection {
        remove_nominated(headers)?;
    }
    if facts.unwanted > 0 {
        remove_unwanted(headers);
    }
    if facts.cookies > 1 {
        join_cookies(headers);
    }
    if parts.version == Version::HTTP_10 {
        headers.remove(EXPECT); // RFC 9110 section 10.1.1: it cannot mean it
    }
    if facts.chunked {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    // One address, also where a trusted proxy stands between: whoever reads the leftmost of a list
    // would read what the client wrote into it.
    let client = via.map_or(&conn.client, |via| &via.client);
    let https = via.and_then(|via| via.https).unwrap_or(conn.tls);
    headers.insert(X_FORWARDED_FOR, client.clone());
    headers.insert(X_REAL_IP, client.clone());
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(if https { "https" } else { "http" }));
    headers.insert(
        X_FORWARDED_PORT,
        match via.and_then(|via| via.port).or(port) {
            None if https => HeaderValue::from_static("443"),
            None => HeaderValue::from_static("80"),
            Some(port) => HeaderValue::from(port),
        },
    );
    let asked = via.and_then(|via| via.host.clone()).unwrap_or(authority);
    headers.insert(X_FORWARDED_HOST, asked);
    // An absolute-form target becomes origin form here, which is what the parts hold. Its authority
    // and Host are equal, or the engine has refused the request (RFC 9112 section 3.2.2).
    *request = RequestHeader::from(parts);
    Ok(upgrade)
}

/// Whether this is a WebSocket handshake (RFC 6455 section 4.1), the only upgrade there is. Every
/// other `Upgrade` is dropped; a handshake with a body is refused, since the bytes behind it would
/// be read as frames by one side and as a body by the other.
fn websocket(parts: &http::request::Parts, facts: &Facts) -> Result<bool, Rejection> {
    let mut upgrades = parts.headers.get_all(UPGRADE).iter();
    let asked = parts.version == Version::HTTP_11
        && parts.method == Method::GET
        && upgrades.next().is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && upgrades.next().is_none()
        && tokens(&parts.headers).any(|t| t.eq_ignore_ascii_case(b"upgrade"));
    if asked && (facts.chunked || facts.body) { Err(Rejection::Malformed) } else { Ok(asked) }
}

fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

/// Whether the client says that it can take trailers (RFC 9110 section 10.1.4).
pub fn takes_trailers(headers: &HeaderMap) -> bool {
    headers
        .get_all(TE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Whether a response carries no body whatever its fields say (RFC 9112 section 6.3).
pub fn never_has_body(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED
}

/// Removes `Connection` and what it nominates (RFC 9110 section 7.6.1). Framing and routing fields
/// cannot be nominated away.
fn remove_nominated(headers: &mut HeaderMap) -> Result<(), Rejection> {
    let mut nominated = Vec::new();
    for (i, token) in tokens(headers).enumerate() {
        if i == MAX_CONNECTION_TOKENS {
            return Err(Rejection::Malformed);
        }
        // `close` and `keep-alive`, by far the most frequent tokens, name no field of their own.
        if token.eq_ignore_ascii_case(b"close") || token.eq_ignore_ascii_case(b"keep-alive") {
            continue;
        }
        let name = HeaderName::from_bytes(token).map_err(|_| Rejection::Malformed)?;
        if name != HOST && name != CONTENT_LENGTH && name != TRANSFER_ENCODING {
            nominated.push(name);
        }
    }
    for name in nominated {
        headers.remove(name);
    }
    headers.remove(CONNECTION);
    Ok(())
}

/// Removes the fields of this hop and those that only the proxy may set.
fn remove_unwanted(headers: &mut HeaderMap) {
    let unwanted: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            matches!(Field::of(name.as_str().as_bytes()), Field::Hop | Field::Managed | Field::Upgrade)
        })
        .cloned()
        .collect();
    for name in unwanted {
        headers.remove(name);
    }
}

/// One `Cookie` field from HTTP/2's crumbs (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (crumbs.next(), crumbs.next()) else { return };
    let mut all = Vec::from(first.as_bytes());
    for crumb in std::iter::once(second).chain(crumbs) {
        all.extend_from_slice(b"; ");
        all.extend_from_slice(crumb.as_bytes());
    }
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(all)) {
        headers.insert(COOKIE, value);
    }
}

/// Takes the cookies of built-in OAuth out of a request: they are nobody's but ours.
pub fn strip_sessions(request: &mut RequestHeader, routes: &[Arc<Route>]) {
    let names = routes.iter().filter_map(|route| match &route.policy.auth {
        Auth::OAuth(policy) => Some(&*policy.cookie_name),
        _ => None,
    });
    let rest = match request.headers.get(COOKIE) {
        Some(cookies) => crate::oauth::without_ours(cookies, names),
        None => None,
    };
    match rest {
        Some(Some(rest)) => drop(request.insert_header(COOKIE, rest)),
        Some(None) => drop(request.remove_header(&COOKIE)),
        None => {}
    }
}

/// What one pass over a response's fields finds.
#[derive(Default)]
pub struct Reply {
    /// `Content-Length`, if it is a number.
    pub length: Option<usize>,
    /// The response asks not to be held: an event stream, gRPC, `X-Accel-Buffering: no`.
    pub streams: bool,
    /// `Transfer-Encoding` is there.
    pub encoded: bool,
}

/// Removes the backend's hop-by-hop fields from a response (RFC 9110 section 7.6.1); `Connection`
/// and `Date` are the engine's.
pub fn clean_response(response: &mut ResponseHeader) -> Reply {
    let switching = response.status == StatusCode::SWITCHING_PROTOCOLS;
    let mut reply = Reply::default();
    let mut connection = false;
    let mut hops: Vec<HeaderName> = Vec::new();
    for (name, value) in &response.headers {
        let bytes = name.as_str().as_bytes();
        match bytes.first() {
            Some(b'c') => match bytes {
                b"connection" => connection = true,
                b"content-length" => reply.length = value.to_str().ok().and_then(|v| v.parse().ok()),
                b"content-type" => {
                    let kind = value.as_bytes();
                    reply.streams |=
                        kind.starts_with(b"text/event-stream") || kind.starts_with(b"application/grpc");
                }
                _ => {}
            },
            Some(b't') if bytes == b"transfer-encoding" => reply.encoded = true,
            Some(b'x') if bytes == b"x-accel-buffering" => {
                reply.streams |= value.as_bytes().eq_ignore_ascii_case(b"no");
            }
            Some(b'k') if bytes == b"keep-alive" => hops.push(name.clone()),
            Some(b'p') if bytes == b"proxy-connection" || bytes == b"proxy-authenticate" => {
                hops.push(name.clone())
            }
            Some(b'u') if bytes == b"upgrade" && !switching => hops.push(name.clone()),
            _ => {}
        }
    }
    if connection {
        let named = response
            .headers
            .get_all(CONNECTION)
            .iter()
            .flat_map(|value| value.as_bytes().split(|b| *b == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|t| ![&b"close"[..], b"keep-alive", b"upgrade"].iter().any(|w| t.eq_ignore_ascii_case(w)))
            .filter_map(|token| HeaderName::from_bytes(token).ok())
            .filter(|name| *name != CONTENT_LENGTH && *name != TRANSFER_ENCODING);
        hops.extend(named);
    }
    for name in hops {
        response.remove_header(&name);
    }
    // Responses that never have a body (RFC 9112 section 6.3) carry no framing for one.
    if response.status == StatusCode::NO_CONTENT || switching {
        response.remove_header(&TRANSFER_ENCODING);
        response.remove_header(&CONTENT_LENGTH);
        reply = Reply::default();
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rebuilt(version: Version, method: &str, fields: &[(&str, &str)]) -> Result<HeaderMap, Rejection> {
        let mut request = RequestHeader::build(method, b"/p?q=1", None).unwrap();
        request.set_version(version);
        for (name, value) in fields {
            request.append_header(name.to_string(), *value).unwrap();
        }
        let authority = HeaderValue::from_static("app.example.com");
        let facts = Facts::read(&request.headers).map_err(|_| Rejection::Malformed)?;
        rebuild(&mut request, &facts, &Conn::for_test("192.0.2.7", true), None, authority, None)?;
        assert_eq!(request.raw_path(), b"/p?q=1");
        Ok(request.headers.clone())
    }

    fn all<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
        headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect()
    }

    #[test]
    fn forwarding_headers_are_ours_alone() {
        let headers = rebuilt(
            Version::HTTP_11,
            "GET",
            &[
                ("Host", "app.example.com"),
                ("X-Forwarded-For", "203.0.113.9"),
                ("X-Forwarded-For", "203.0.113.10"),
                ("X_Forwarded_For", "203.0.113.9"),
                ("X-Forwarded.Proto", "http"),
                ("X-Real-IP", "203.0.113.9"),
                ("x_real_ip", "203.0.113.9"),
                ("X-Forwarded-Port", "1"),
                ("X-Forwarded-Host", "evil.example"),
                ("X-Forwarded-Uri", "/admin"),
                ("Forwarded", "for=203.0.113.9"),
                ("X-Auth-Request-User", "root"),
                ("X_Auth_Request_Groups", "admin"),
                ("X-Original-URL", "/admin"),
                ("X-Rewrite-Url", "/admin"),
                ("Proxy", "http://evil.example"),
                ("X-Mine", "kept"),
                ("X-Authority", "kept"),
            ],
        )
        .unwrap();
        assert_eq!(all(&headers, "x-forwarded-for"), ["192.0.2.7"]);
        assert_eq!(all(&headers, "x-real-ip"), ["192.0.2.7"]);
        assert_eq!(all(&headers, "x-forwarded-proto"), ["https"]);
        assert_eq!(all(&headers, "x-forwarded-port"), ["443"]);
        assert_eq!(all(&headers, "x-forwarded-host"), ["app.example.com"]);
        let mut names: Vec<_> = headers.keys().map(|n| n.as_str()).collect();
        names.sort_unstable();
        let want = [
            "host",
            "x-authority",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-port",
            "x-forwarded-proto",
            "x-mine",
            "x-real-ip",
        ];
        assert_eq!(names, want);
    }

    #[test]
    fn connection_takes_the_clients_headers_and_never_ours() {
        let headers = rebuilt(
            Version::HTTP_11,
            "GET",
            &[
                ("Host", "app.example.com"),
                ("Connection", "close, X-Mine, x-forwarded-for, X-Real-IP, Host, Content-Length"),
                ("X-Mine", "gone"),
                ("Content-Length", "0"),
                ("Keep-Alive", "timeout=1"),
                ("Proxy-Connection", "close"),
                ("TE", "gzip"),
                ("Proxy-Authorization", "Basic eA=="),
                ("Upgrade", "h2c"),
                ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
            ],
        )
        .unwrap();
        let mut names: Vec<_> = headers.keys().map(|n| n.as_str()).collect();
        names.sort_unstable();
        let want = [
            "content-length",
            "host",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-port",
            "x-forwarded-proto",
            "x-real-ip",
        ];
        assert_eq!(names, want);
        let many = "a,".repeat(40);
        let flood = rebuilt(Version::HTTP_11, "GET", &[("Host", "app.example.com"), ("Connection", &many)]);
        assert_eq!(flood, Err(Rejection::Malformed));
    }

    #[test]
    fn only_a_websocket_handshake_is_an_upgrade() {
        let with = |method: &str, version, fields: &[(&str, &str)]| {
            let mut all = vec![("Host", "app.example.com")];
            all.extend_from_slice(fields);
            rebuilt(version, method, &all).map(|h| h.contains_key("upgrade") && h["connection"] == "Upgrade")
        };
        let ws = [("Connection", "keep-alive, Upgrade"), ("Upgrade", "WebSocket")];
        assert_eq!(with("GET", Version::HTTP_11, &ws), Ok(true));
        assert_eq!(with("POST", Version::HTTP_11, &ws), Ok(false));
        assert_eq!(with("GET", Version::HTTP_10, &ws), Ok(false));
        assert_eq!(with("GET", Version::HTTP_11, &[("Upgrade", "websocket")]), Ok(false));
        assert_eq!(
            with("GET", Version::HTTP_11, &[("Connection", "Upgrade"), ("Upgrade", "websocket, h2c")]),
            Ok(false)
        );
        assert_eq!(
            with("GET", Version::HTTP_11, &[("Connection", "Upgrade"), ("Upgrade", "h2c")]),
            Ok(false)
        );
        let body = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Content-Length", "3")];
        assert_eq!(with("GET", Version::HTTP_11, &body), Err(Rejection::Malformed));
    }

    #[test]
    fn cookie_crumbs_become_one_field_in_order() {
        let headers =
            rebuilt(Version::HTTP_2, "GET", &[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3; d=4")])
                .unwrap();
        assert_eq!(all(&headers, "cookie"), ["a=1; b=2; c=3; d=4"]);
    }

    #[test]
    fn responses_lose_the_backends_hop_and_keep_their_cookies() {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in [
            ("Connection", "close, X-Hop"),
            ("X-Hop", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Upgrade", "h2c"),
            ("Proxy-Authenticate", "Basic"),
            ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2"),
            ("Set-Cookie", "c=3"),
        ] {
            response.append_header(name, value).unwrap();
        }
        clean_response(&mut response);
        assert_eq!(all(&response.headers, "set-cookie"), ["a=1", "b=2", "c=3"]);
        for gone in ["x-hop", "keep-alive", "upgrade", "proxy-authenticate"] {
            assert!(!response.headers.contains_key(gone), "{gone}");
        }
    }
}
