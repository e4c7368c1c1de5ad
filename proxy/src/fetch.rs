//! The one outgoing HTTP client for authentication providers: our resolver, our dial guard, Pingora's
//! connector and TLS; every answer bounded in time and size. Redirects are answers, not followed.

use crate::dial::DialGuard;
use crate::resolve::Resolver;
use crate::trust;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use ingress_core::HttpUrl;
use openssl::hash::MessageDigest;
use openssl::x509::X509;
use pingora_core::connectors::ConnectorOptions;
use pingora_core::connectors::http::v1::Connector;
use pingora_core::protocols::ALPN;
use pingora_core::protocols::http::v1::client::HttpSession;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType};
use pingora_http::RequestHeader;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Idle connections kept per worker thread.
const POOL: usize = 64;
/// How long they are kept.
const IDLE: Duration = Duration::from_secs(30);
/// The group of connections that nothing is ever released to.
const NEVER_KEPT: u64 = u64::MAX;
/// Interim answers (1xx) that are read past.
const MAX_INTERIM: usize = 8;

/// Asks providers. Cheap to share, nothing in it belongs to one provider.
pub struct Client {
    connector: Connector,
    resolver: Resolver,
    guard: DialGuard,
}

/// One request to a provider.
pub struct Outgoing<'a> {
    /// Its method.
    pub method: Method,
    /// Where it goes; path and query are sent as they stand here.
    pub url: &'a HttpUrl,
    /// All fields but `Host` and the framing, which are the client's.
    pub headers: HeaderMap,
    /// Empty: none is sent, and none announced for methods that need none.
    pub body: Bytes,
    /// Instead of the system's authorities.
    pub ca: Option<&'a PrivateCa>,
    /// An answer's body that is longer than the limit is cut there; otherwise it is an error.
    pub cut: bool,
}

impl<'a> Outgoing<'a> {
    /// A GET without fields.
    pub fn get(url: &'a HttpUrl) -> Self {
        Self { method: Method::GET, url, headers: HeaderMap::new(), body: Bytes::new(), ca: None, cut: false }
    }
}

/// What an answer may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Look-up, connection, TLS, request and answer together; `None` = no limit.
    pub total: Option<Duration>,
    /// Octets of the answer's body.
    pub body: usize,
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// Its status; never 1xx.
    pub status: StatusCode,
    /// Its fields.
    pub headers: HeaderMap,
    /// Its body, without framing.
    pub body: Bytes,
    /// There was more of it.
    pub cut: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The name has no address.
    #[error("the name {0} has no address")]
    Dns(Arc<str>),
    /// An address that is never dialled.
    #[error("{0}")]
    Denied(crate::dial::Denied),
    /// Nobody listens.
    #[error("no connection to {0}")]
    Connect(SocketAddr),
    /// The handshake failed, or the certificate is not trusted.
    #[error("TLS with {0} failed")]
    Tls(SocketAddr),
    /// Not within the limit.
    #[error("no whole answer in time")]
    Timeout,
    /// The connection ended within the answer, or before it.
    #[error("the connection ended before the answer")]
    Reset,
    /// What came is not HTTP.
    #[error("the answer is not HTTP")]
    Protocol,
    /// More than the limit.
    #[error("the answer is larger than {0} octets")]
    TooLarge(usize),
}

/// Authorities of one provider's own.
#[derive(Clone)]
pub struct PrivateCa {
    certificates: Arc<Box<[X509]>>,
    /// Connections that were made under other authorities are not shared.
    group: u64,
}

impl PrivateCa {
    /// Reads PEM certificates; at least one.
    #[allow(dead_code)] // for providers of built-in OAuth
    pub fn from_pem(pem: &[u8]) -> Option<Self> {
        let certificates = X509::stack_from_pem(pem).ok().filter(|all| !all.is_empty())?;
        let mut all = Vec::new();
        for certificate in &certificates {
            all.extend_from_slice(&certificate.to_der().ok()?);
        }
        let digest = openssl::hash::hash(MessageDigest::sha256(), &all).ok()?;
        let group = digest.first_chunk().map(|first| u64::from_be_bytes(*first))?;
        Some(Self { certificates: Arc::new(certificates.into()), group })
    }
}

impl Client {
    /// A client; connects to nothing yet.
    pub fn new(resolver: Resolver, guard: DialGuard) -> Self {
        Self { connector: Connector::new(Some(ConnectorOptions::new(POOL))), resolver, guard }
    }

    /// Sends a request and reads its whole answer.
    ///
    /// A kept connection that turns out to be gone before anything was answered costs one more try on a
    /// new one. What must not be sent twice goes over a new one at once.
    pub async fn fetch(&self, request: Outgoing<'_>, limits: Limits) -> Result<Answer, FetchError> {
        let began = Instant::now();
        let work = self.attempts(&request, limits, began);
        match limits.total {
            Some(total) => tokio::time::timeout(total, work).await.unwrap_or(Err(FetchError::Timeout)),
            None => work.await,
        }
    }

    async fn attempts(
        &self,
        request: &Outgoing<'_>,
        limits: Limits,
        began: Instant,
    ) -> Result<Answer, FetchError> {
        let Outgoing { url, ca, .. } = request;
        let peer = self.peer(url, *ca, limits, began).await?;
        let address = peer._address.as_inet().copied().ok_or(FetchError::Protocol)?;
        let failed = |error: Box<Error>| {
            use ErrorType::*;
            match error.etype() {
                ConnectTimedout | TLSHandshakeTimedout | ReadTimedout | WriteTimedout => FetchError::Timeout,
                TLSHandshakeFailure | InvalidCert | HandshakeError | TLSWantX509Lookup => {
                    FetchError::Tls(address)
                }
                ConnectRefused | ConnectNoRoute | ConnectError | BindError | SocketError => {
                    FetchError::Connect(address)
                }
                InvalidHTTPHeader | H1Error => FetchError::Protocol,
                _ => FetchError::Reset,
            }
        };
        let mut fresh = peer.clone();
        fresh.group_key = NEVER_KEPT;
        let mut new = !request.method.is_idempotent();
        loop {
            let (session, reused) =
                match self.connector.get_http_session(if new { &fresh } else { &peer }).await {
                    Ok(session) => session,
                    Err(error) => {
                        self.resolver.mark_stale(&url.host);
                        return Err(failed(error));
                    }
                };
            if trust::refused(Some(session.digest())) {
                return Err(FetchError::Tls(address));
            }
            let mut session = session;
            match head(&mut session, request).await {
                Ok(()) => {}
                Err(error) => {
                    let error = failed(error);
                    if reused && !new && error == FetchError::Reset {
                        new = true;
                        continue;
                    }
                    return Err(error);
                }
            }
            let answer = match read(&mut session, limits.body, request.cut).await {
                Ok(answer) => answer?,
                Err(error) => return Err(failed(error)),
            };
            // What is left of a cut answer would be read as the next one.
            if !answer.cut {
                self.connector.release_http_session(session, &peer, Some(IDLE)).await;
            }
            return Ok(answer);
        }
    }

    async fn peer(
        &self,
        url: &HttpUrl,
        ca: Option<&PrivateCa>,
        limits: Limits,
        began: Instant,
    ) -> Result<HttpPeer, FetchError> {
        let addresses = match self.resolver.cached(&url.host) {
            Some(addresses) => addresses,
            None => {
                let budget = limits.total.unwrap_or(Duration::from_secs(60));
                self.resolver
                    .resolve(&url.host, budget.saturating_sub(began.elapsed()))
                    .await
                    .map_err(|_| FetchError::Dns(url.host.clone()))?
            }
        };
        let ip = addresses.pick();
        self.guard.check(ip).map_err(FetchError::Denied)?;
        let name = if url.tls { url.host.to_string() } else { String::new() };
        let mut peer = HttpPeer::new(SocketAddr::new(ip, url.port), url.tls, name);
        let options = &mut peer.options;
        options.total_connection_timeout = limits.total;
        options.alpn = ALPN::H1;
        trust::verify(options);
        if let Some(ca) = ca {
            options.ca = Some(ca.certificates.clone());
            peer.group_key = ca.group;
        }
        Ok(peer)
    }
}

/// Sends the request and reads the final answer's head.
async fn head(session: &mut HttpSession, request: &Outgoing<'_>) -> pingora_core::Result<()> {
    let target = request.url.path_and_query.as_str().as_bytes();
    let mut header = RequestHeader::build_no_case(request.method.clone(), target, Some(8))?;
    header.insert_header(HOST, &request.url.authority)?;
    for (name, value) in &request.headers {
        // Framing is this client's own, whatever was asked for.
        if ![HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE, EXPECT].contains(name) {
            header.append_header(name, value)?;
        }
    }
    if !request.body.is_empty() || matches!(request.method, Method::POST | Method::PUT | Method::PATCH) {
        header.insert_header(CONTENT_LENGTH, HeaderValue::from(request.body.len()))?;
    }
    session.write_request_header(Box::new(header)).await?;
    if !request.body.is_empty() {
        session.write_body(&request.body).await?;
    }
    session.finish_body().await?;
    for _ in 0..MAX_INTERIM {
        session.read_response().await?;
        if session.get_status().is_some_and(|status| !status.is_informational()) {
            return Ok(());
        }
    }
    Error::e_explain(ErrorType::InvalidHTTPHeader, "no final answer")
}

/// Reads the answer to its end, so that the connection can be used again.
async fn read(
    session: &mut HttpSession,
    most: usize,
    cut: bool,
) -> pingora_core::Result<Result<Answer, FetchError>> {
    let Some(head) = session.resp_header() else { return Ok(Err(FetchError::Protocol)) };
    let (status, headers) = (head.status, head.headers.clone());
    let mut body = Vec::new();
    while let Some(piece) = session.read_body_ref().await? {
        if body.len() + piece.len() > most {
            if !cut {
                return Ok(Err(FetchError::TooLarge(most)));
            }
            return Ok(Ok(Answer { status, headers, body: body.into(), cut: true }));
        }
        body.extend_from_slice(piece);
    }
    Ok(Ok(Answer { status, headers, body: body.into(), cut: false }))
}
