//! Every answer that the proxy makes itself: one table from cause to status, body and label.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION, SERVER};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use ingress_core::{NoMatch, Unavailable};
use pingora_core::Result;
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use std::time::Duration;

/// Value of the `Server` header on answers of our own; backend answers keep theirs.
pub const SERVER_NAME: HeaderValue = HeaderValue::from_static("tak-os-ingress");

/// How much of an unread request body is taken in after an early answer, so that the client gets
/// to read it; beyond it the connection is cut.
const DRAIN_BYTES: usize = 256 << 10;
const DRAIN_TIME: Duration = Duration::from_secs(1);

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
    /// The request body is larger than the limit.
    BodyTooLarge,
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
    /// The client did not send its request in time.
    ClientTimeout,
    /// The client went away.
    ClientGone,
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
            Rejection::AuthNotConfigured => StatusCode::NOT_IMPLEMENTED,
            Rejection::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
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
            Rejection::Internal => StatusCode::INTERNAL_SERVER_ERROR,
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
            Rejection::BodyTooLarge => "body_too_large",
            Rejection::Unavailable(Unavailable::NoService) => "no_service",
            Rejection::Unavailable(Unavailable::NoPort) => "no_port",
            Rejection::Unavailable(Unavailable::NoEndpoints) => "no_endpoints",
            Rejection::Unavailable(Unavailable::ExternalName) => "external_name",
            Rejection::Dns => "dns",
            Rejection::DialDenied => "dial_denied",
            Rejection::Connect => "connect",
            Rejection::Tls => "tls",
            Rejection::ConnectTimeout | Rejection::BackendTimeout => "timeout",
            Rejection::Reset => "reset",
            Rejection::Protocol => "protocol",
            Rejection::ClientTimeout => "client_timeout",
            Rejection::ClientGone => "client_gone",
            Rejection::Internal => "internal",
        }
    }

    /// The `reason` of `upstream_errors_total`, for faults of a backend.
    pub fn upstream_error(self) -> Option<&'static str> {
        match self {
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

    /// Whether the client's connection ends with this answer.
    fn closes(self) -> bool {
        matches!(
            self,
            Rejection::Malformed | Rejection::HeadTooLarge | Rejection::ClientTimeout | Rejection::Internal
        )
    }

    fn body(self) -> &'static str {
        match self {
            Rejection::AuthNotConfigured => "Authentication required but not configured\n",
            Rejection::Malformed => "400 Bad Request\n",
            Rejection::HeadTooLarge => "431 Request Header Fields Too Large\n",
            Rejection::NoRoute(_) => "404 Not Found\n",
            Rejection::Denied => "403 Forbidden\n",
            Rejection::BodyTooLarge => "413 Content Too Large\n",
            Rejection::ConnectTimeout | Rejection::BackendTimeout => "504 Gateway Timeout\n",
            Rejection::ClientTimeout => "408 Request Timeout\n",
            Rejection::ClientGone | Rejection::Internal => "500 Internal Server Error\n",
            _ => "502 Bad Gateway\n",
        }
    }
}

/// An answer of ours that is no error of the product: a redirect, a challenge, the provider's refusal.
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
pub async fn reply(session: &mut Session, reply: Reply, extra: &[(HeaderName, HeaderValue)]) -> Result<()> {
    let mut header =
        ResponseHeader::build_no_case(reply.status, Some(reply.headers.len() + extra.len() + 2))?;
    header.insert_header(SERVER, SERVER_NAME)?;
    for (name, value) in reply.headers.into_iter().chain(extra.iter().cloned()) {
        header.append_header(name, value)?;
    }
    header.insert_header(CONTENT_LENGTH, HeaderValue::from(reply.body.len()))?;
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

/// Sends the answer for a rejection. `extra` fields are added to it.
pub async fn reject(
    session: &mut Session,
    rejection: Rejection,
    extra: &[(HeaderName, HeaderValue)],
) -> Result<()> {
    if rejection.closes() {
        session.set_keepalive(None);
    }
    let body = rejection.body();
    let mut header = ResponseHeader::build_no_case(rejection.status(), Some(6))?;
    header.insert_header(SERVER, SERVER_NAME)?;
    header.insert_header(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"))?;
    header.insert_header(CONTENT_LENGTH, HeaderValue::from(body.len()))?;
    for (name, value) in extra {
        header.append_header(name, value)?;
    }
    send(session, header, Bytes::from_static(body.as_bytes())).await
}

/// Sends a 308 to `location` (RFC 9110 section 15.4.9: method and body are kept).
pub async fn redirect(session: &mut Session, location: HeaderValue) -> Result<()> {
    let mut header = ResponseHeader::build_no_case(StatusCode::PERMANENT_REDIRECT, Some(6))?;
    header.insert_header(SERVER, SERVER_NAME)?;
    header.insert_header(LOCATION, location)?;
    header.insert_header(CONTENT_LENGTH, HeaderValue::from_static("0"))?;
    send(session, header, Bytes::new()).await
}

async fn send(session: &mut Session, header: ResponseHeader, body: Bytes) -> Result<()> {
    // HTTP/1 suppresses a body after HEAD by itself, HTTP/2 does not.
    let no_body = body.is_empty() || session.req_header().method == Method::HEAD;
    let waiting = session.req_header().headers.contains_key(http::header::EXPECT);
    session.write_response_header(Box::new(header), no_body).await?;
    if !no_body {
        session.write_response_body(Some(body), true).await?;
    }
    if !waiting && !session.as_downstream_mut().is_body_done() {
        drain(session).await;
    }
    Ok(())
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
    fn canned_answers_have_the_length_they_state() {
        for status in [400, 405, 408, 431] {
            let text = std::str::from_utf8(canned(status)).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        }
    }
}
