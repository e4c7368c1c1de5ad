//! Every answer that the proxy makes itself: one table from cause to status, body and label.

use crate::edge::Conn;
use crate::policy::cors;
use crate::policy::rate_limit::Limited;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, SERVER, VARY};
use http::{HeaderName, HeaderValue, Method, StatusCode, Version};
use ingress_core::{NoMatch, Route, Unavailable};
use pingora_core::Result;
use pingora_core::protocols::http::HttpTask;
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use std::time::Duration;

/// Value of the `Server` header on answers of our own; backend answers keep theirs.
pub const SERVER_NAME: HeaderValue = HeaderValue::from_static("tak-os-ingress");

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// How much of an unread request body is taken in after an early answer, so that the client gets
/// to read it; beyond it the connection is cut.
const DRAIN_BYTES: usize = 8 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// How long a client is waited for that has its answer and still owes its body.
pub const LINGER: Duration = Duration::from_secs(1);

/// Why a request was not answered by its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The request has no single meaning.
    Malformed,
    /// The request head is too large.
    HeadTooLarge,
    /// No rule for host or path.
    NoRoute(NoMatch),
    /// Refused by an address list.
    Denied,
    /// Authentication is asked for and not usable.
    AuthNotConfigured,
    /// The authentication service could not be asked, or gave no answer to go by.
    AuthProvider,
    /// The client asks too often.
    RateLimited(Limited),
    /// The request body is larger than the limit.
    BodyTooLarge,
    /// A WebSocket handshake for a backend that speaks HTTP/2, which has no such thing.
    Upgrade,
    /// There is nothing to dial.
    Unavailable(Unavailable),
    /// The backend's name has no address.
    Dns,
    /// The backend's address must not be dialled.
    DialDenied,
    /// No connection to the backend.
    Connect,
    /// TLS with the backend failed.
    Tls,
    /// Connecting took too long.
    ConnectTimeout,
    /// The backend did not answer, or not read, in time.
    BackendTimeout,
    /// The backend closed or reset before it answered.
    Reset,
    /// The backend's answer is not HTTP.
    Protocol,
    /// Too many responses wait for their clients.
    Overload,
    /// The client did not send its request in time.
    ClientTimeout,
    /// The client went away.
    ClientGone,
    /// The connection's server name belongs to another listener than the host.
    Misdirected,
    /// The connection was not let in under what the host demands of clients' certificates.
    ClientCertificate,
    /// A filter of the route cannot be honoured.
    Filter,
    /// A fault of ours.
    Internal,
}

impl Rejection {
    /// Status sent, or logged where nothing can be sent any more.
    pub fn status(self) -> StatusCode {
        match self {
            Rejection::Malformed => StatusCode::BAD_REQUEST,
            Rejection::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Rejection::NoRoute(_) => StatusCode::NOT_FOUND,
            Rejection::Denied => StatusCode::FORBIDDEN,
            Rejection::AuthNotConfigured | Rejection::Upgrade => StatusCode::NOT_IMPLEMENTED,
            Rejection::RateLimited(_) => StatusCode::TOO_MANY_REQUESTS,
            Rejection::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Rejection::Unavailable(Unavailable::Broken) | Rejection::Filter | Rejection::Internal => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Rejection::AuthProvider
            | Rejection::Unavailable(_)
            | Rejection::Dns
            | Rejection::DialDenied
            | Rejection::Connect
            | Rejection::Tls
            | Rejection::Reset
            | Rejection::Protocol => StatusCode::BAD_GATEWAY,
            Rejection::ConnectTimeout | Rejection::BackendTimeout => StatusCode::GATEWAY_TIMEOUT,
            Rejection::ClientTimeout => StatusCode::REQUEST_TIMEOUT,
            Rejection::ClientGone => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
            Rejection::Overload => StatusCode::SERVICE_UNAVAILABLE,
            Rejection::Misdirected | Rejection::ClientCertificate => StatusCode::MISDIRECTED_REQUEST,
        }
    }

    /// Word for the access log's `rejected_by` and for metric labels.
    pub fn label(self) -> &'static str {
        match self {
            Rejection::Malformed => "malformed",
            Rejection::HeadTooLarge => "head_too_large",
            Rejection::NoRoute(NoMatch::Host) => "no_host",
            Rejection::NoRoute(NoMatch::Path) => "no_path",
            Rejection::Denied => "access",
            Rejection::AuthNotConfigured => "auth_not_configured",
            Rejection::AuthProvider => "auth_provider",
            Rejection::RateLimited(_) => "rate_limit",
            Rejection::BodyTooLarge => "body_too_large",
            Rejection::Upgrade => "upgrade",
            Rejection::Unavailable(Unavailable::NoService) => "no_service",
            Rejection::Unavailable(Unavailable::NoPort) => "no_port",
            Rejection::Unavailable(Unavailable::NoEndpoints) => "no_endpoints",
            Rejection::Unavailable(Unavailable::ExternalName) => "external_name",
            Rejection::Unavailable(Unavailable::Broken) => "broken_reference",
            Rejection::Dns => "dns",
            Rejection::DialDenied => "dial_denied",
            Rejection::Connect => "connect",
            Rejection::Tls => "tls",
            Rejection::ConnectTimeout | Rejection::BackendTimeout => "timeout",
            Rejection::Reset => "reset",
            Rejection::Protocol => "protocol",
            Rejection::ClientTimeout => "client_timeout",
            Rejection::Overload => "overload",
            Rejection::ClientGone => "client_gone",
            Rejection::Misdirected => "misdirected",
            Rejection::ClientCertificate => "client_certificate",
            Rejection::Filter => "filter",
            Rejection::Internal => "internal",
        }
    }

    /// The `reason` of `upstream_errors_total`, for faults of a backend.
    pub fn upstream_error(self) -> Option<&'static str> {
        match self {
            Rejection::Unavailable(Unavailable::Broken) => None,
            Rejection::Dns | Rejection::Unavailable(_) => Some("dns"),
            Rejection::DialDenied | Rejection::Connect => Some("connect"),
            Rejection::Tls
            | Rejection::ConnectTimeout
            | Rejection::BackendTimeout
            | Rejection::Reset
            | Rejection::Protocol => Some(self.label()),
            _ => None,
        }
    }

    /// The same in the words of gRPC, by its table for answers that are not gRPC's own.
    fn grpc_status(self) -> u8 {
        match self.status().as_u16() {
            400 => 13,                   // INTERNAL
            401 => 16,                   // UNAUTHENTICATED
            403 => 7,                    // PERMISSION_DENIED
            404 | 501 => 12,             // UNIMPLEMENTED
            413 => 8,                    // RESOURCE_EXHAUSTED
            429 | 502 | 503 | 504 => 14, // UNAVAILABLE
            _ => 2,                      // UNKNOWN
        }
    }

    /// Whether the client's connection ends with this answer.
    fn closes(self) -> bool {
        matches!(
            self,
            Rejection::Malformed
                | Rejection::HeadTooLarge
                | Rejection::ClientTimeout
                | Rejection::ClientCertificate
        )
    }

    fn body(self) -> &'static str {
        match self {
            Rejection::AuthNotConfigured => "Authentication required but not configured\n",
            Rejection::Upgrade => "501 Not Implemented: the backend speaks HTTP/2 and cannot upgrade\n",
            Rejection::Malformed => "400 Bad Request\n",
            Rejection::HeadTooLarge => "431 Request Header Fields Too Large\n",
            Rejection::NoRoute(_) => "404 Not Found\n",
            Rejection::Denied => "403 Forbidden\n",
            Rejection::RateLimited(_) => "429 Too Many Requests\n",
            Rejection::BodyTooLarge => "413 Content Too Large\n",
            Rejection::ConnectTimeout | Rejection::BackendTimeout => "504 Gateway Timeout\n",
            Rejection::ClientTimeout => "408 Request Timeout\n",
            Rejection::Overload => "503 Service Unavailable\n",
            Rejection::Misdirected | Rejection::ClientCertificate => "421 Misdirected Request\n",
            Rejection::Unavailable(Unavailable::Broken)
            | Rejection::Filter
            | Rejection::ClientGone
            | Rejection::Internal => "500 Internal Server Error\n",
            _ => "502 Bad Gateway\n",
        }
    }
}

/// An answer of ours as it is sent: a redirect, a challenge, the provider's refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its fields, besides `Server` and the framing.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Its body.
    pub body: Bytes,
    /// Word for the access log's `rejected_by`.
    pub label: &'static str,
}

impl Reply {
    /// An answer without fields and body.
    pub fn new(status: StatusCode, label: &'static str) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new(), label }
    }

    /// The same with one more field.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The same with a line of text as its body.
    pub fn text(self, body: &'static str) -> Self {
        let mut reply = self.header(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        reply.body = Bytes::from_static(body.as_bytes());
        reply
    }
}

/// Sends an answer. `extra` fields are added to it.
pub async fn reply(
    session: &mut Session,
    reply: Reply,
    extra: &[(HeaderName, HeaderValue)],
    route: Option<&Route>,
) -> Result<()> {
    let mut header =
        ResponseHeader::build_no_case(reply.status, Some(reply.headers.len() + extra.len() + 2))?;
    header.insert_header(SERVER, SERVER_NAME)?;
    for (name, value) in reply.headers.into_iter().chain(extra.iter().cloned()) {
        header.append_header(name, value)?;
    }
    header.insert_header(CONTENT_LENGTH, HeaderValue::from(reply.body.len()))?;
    allow_origins(session, &mut header, route, false)?;
    send(session, header, reply.body).await
}

/// A whole HTTP/1 answer for a connection on which no request could be read.
pub fn canned(status: u16) -> &'static [u8] {
    match status {
        431 => {
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nServer: tak-os-ingress\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 36\r\nConnection: close\r\n\r\n431 Request Header Fields Too Large\n"
        }
        408 => {
            b"HTTP/1.1 408 Request Timeout\r\nServer: tak-os-ingress\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 20\r\nConnection: close\r\n\r\n408 Request Timeout\n"
        }
        405 => {
            b"HTTP/1.1 405 Method Not Allowed\r\nServer: tak-os-ingress\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 23\r\nConnection: close\r\n\r\n405 Method Not Allowed\n"
        }
        _ => {
            b"HTTP/1.1 400 Bad Request\r\nServer: tak-os-ingress\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 16\r\nConnection: close\r\n\r\n400 Bad Request\n"
        }
    }
}

/// Sends the answer for a rejection, on its route if there is one. `extra` fields are added to it.
pub async fn reject(
    session: &mut Session,
    rejection: Rejection,
    extra: &[(HeaderName, HeaderValue)],
    route: Option<&Route>,
) -> Result<()> {
    if rejection.closes() {
        session.set_keepalive(None);
    }
    if rejection == Rejection::ClientCertificate
        && let Some(conn) = Conn::of(session)
    {
        conn.send_away();
    }
    let body = rejection.body();
    if grpc_call(session.req_header()) {
        return reject_call(session, rejection.grpc_status(), body.trim_end()).await;
    }
    let mut answer = Reply::new(rejection.status(), "").text(body);
    if let Rejection::RateLimited(Limited { retry_after }) = rejection {
        answer = answer.header(RETRY_AFTER, HeaderValue::from(retry_after));
    }
    reply(session, answer, extra, route).await
}

/// Whether a request is a gRPC call: its client reads a status in the trailers and nothing else.
fn grpc_call(request: &RequestHeader) -> bool {
    request.version == Version::HTTP_2
        && request.headers.get(CONTENT_TYPE).is_some_and(|kind| {
            let rest = kind.as_bytes().strip_prefix(b"application/grpc");
            rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
        })
}

/// Ends a gRPC call: a head that is trailers as well, on HTTP 200 as gRPC wants it.
async fn reject_call(session: &mut Session, status: u8, message: &'static str) -> Result<()> {
    let mut header = ResponseHeader::build_no_case(StatusCode::OK, Some(4))?;
    header.insert_header(SERVER, SERVER_NAME)?;
    header.insert_header(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))?;
    header.insert_header(GRPC_STATUS, HeaderValue::from(u16::from(status)))?;
    header.insert_header(GRPC_MESSAGE, HeaderValue::from_static(message))?;
    send(session, header, Bytes::new()).await
}

/// Sends the answer to a preflight: 204, without the permission where there is none.
pub async fn preflight(session: &mut Session, route: Option<&Route>) -> Result<()> {
    let mut header = ResponseHeader::build_no_case(StatusCode::NO_CONTENT, Some(8))?;
    header.insert_header(SERVER, SERVER_NAME)?;
    allow_origins(session, &mut header, route, true)?;
    send(session, header, Bytes::new()).await
}

/// Puts the route's CORS fields in the place of what is there. Answers of ours carry them too: a
/// script would take an error without them for a broken network.
pub fn allow_origins(
    session: &Session,
    response: &mut ResponseHeader,
    route: Option<&Route>,
    preflight: bool,
) -> Result<()> {
    let Some(cors) = route.and_then(|route| route.policy.cors.as_deref()) else { return Ok(()) };
    for name in &cors::OURS {
        if response.headers.contains_key(name) {
            response.remove_header(name);
        }
    }
    for (name, value) in cors::fields(cors, &session.req_header().headers, preflight) {
        response.insert_header(name, value)?;
    }
    if cors::varies(cors, &response.headers) {
        response.append_header(VARY, HeaderValue::from_static("Origin"))?;
    }
    Ok(())
}

async fn send(session: &mut Session, header: ResponseHeader, body: Bytes) -> Result<()> {
    // HTTP/1 suppresses a body after HEAD by itself, HTTP/2 does not.
    let no_body = body.is_empty() || session.req_header().method == Method::HEAD;
    let waiting = waits_for_continue(session);
    if no_body && session.req_header().version == Version::HTTP_2 {
        // The head ends the stream: the engine's own call would leave that for later, and after a
        // failure there is none.
        session.write_response_tasks(vec![HttpTask::Header(Box::new(header), true)]).await?;
    } else {
        session.write_response_header(Box::new(header), no_body).await?;
    }
    if !no_body {
        session.write_response_body(Some(body), true).await?;
    }
    if !waiting && !session.as_downstream_mut().is_body_done() {
        drain(session).await;
    }
    Ok(())
}

/// Whether the client sends its body only when it is told to (RFC 9110 section 10.1.1), and was not.
pub fn waits_for_continue(session: &Session) -> bool {
    session.req_header().headers.contains_key(http::header::EXPECT) && session.body_bytes_read() == 0
}

/// Reads on for a moment: closing with unread bytes makes the kernel reset the connection, and the
/// client would not see the answer.
async fn drain(session: &mut Session) {
    let read = async {
        let mut taken = 0;
        while taken < DRAIN_BYTES {
            match session.as_downstream_mut().read_request_body().await {
                Ok(Some(chunk)) => taken += chunk.len(),
                _ => return,
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIME, read).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_calls_are_known_by_their_content_type() {
        for (version, kind, call) in [
            (Version::HTTP_2, Some("application/grpc"), true),
            (Version::HTTP_2, Some("application/grpc+proto"), true),
            (Version::HTTP_2, Some("application/grpc;charset=utf-8"), true),
            (Version::HTTP_2, Some("application/grpc-web"), false),
            (Version::HTTP_2, Some("application/json"), false),
            (Version::HTTP_2, None, false),
            (Version::HTTP_11, Some("application/grpc"), false),
        ] {
            let mut request = RequestHeader::build("POST", b"/", None).unwrap();
            request.set_version(version);
            if let Some(kind) = kind {
                request.insert_header(CONTENT_TYPE, kind).unwrap();
            }
            assert_eq!(grpc_call(&request), call, "{version:?} {kind:?}");
        }
    }

    #[test]
    fn canned_answers_have_the_length_they_state() {
        for status in [400, 405, 408, 431] {
            let text = std::str::from_utf8(canned(status)).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        }
    }
}
