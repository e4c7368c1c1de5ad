//! Pingora's hooks, in the order in which they run. Each is short and calls the file named after
//! its phase.

use crate::access_log::Record;
use crate::buffer::Held;
use crate::ctx::RequestCtx;
use crate::edge::Conn;
use crate::framing::{Body, Chunks};
use crate::oauth::Endpoint;
use crate::policy::auth::{self, Asked, Identity};
use crate::policy::{self, Verdict};
use crate::respond::{self, Rejection};
use crate::select::{self, Selected};
use crate::strict::{Facts, check_target};
use crate::upstream::{self, MAX_TRIES};
use crate::{Shared, headers};
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONNECTION, REFERER, SET_COOKIE, TRANSFER_ENCODING, USER_AGENT};
use http::request::Parts;
use http::{HeaderValue, StatusCode, Version};
use ingress_core::Auth;
use pingora_core::modules::http::HttpModules;
use pingora_core::protocols::Digest;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The hooks over the shared state.
pub struct Gateway {
    shared: Arc<Shared>,
}

impl Gateway {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Client time limits; Pingora forgets them with each request of a connection.
    fn set_timeouts(&self, session: &mut Session) {
        let config = &self.shared.config;
        // None means that the connection ends with this request, which must stay so.
        if session.get_keepalive().is_some() {
            if self.shared.draining.load(Ordering::Relaxed) {
                session.set_keepalive(None);
            } else {
                session
                    .set_keepalive(Some(config.client_keepalive_timeout.map_or(0, |d| d.as_secs().max(1))));
            }
        }
        session.set_read_timeout(config.client_read_timeout);
        session.set_write_timeout(config.client_write_timeout);
        session.as_downstream_mut().set_pipelining_enabled(true);
    }

    /// From the parsed head to the verdict of the route's policies.
    fn judge(&self, session: &Session, ctx: &mut RequestCtx) -> Result<Judged, Rejection> {
        let request = session.req_header();
        check_target(&request.method, request.raw_path()).map_err(|_| Rejection::Malformed)?;
        let facts = Facts::read(&request.headers).map_err(|_| Rejection::Malformed)?;
        if let Some(h1) = session.as_downstream().as_http1() {
            let raw = h1.get_headers_raw_bytes();
            if raw.len() > self.shared.config.max_header_size {
                return Err(Rejection::HeadTooLarge);
            }
            facts.check_http1(&raw).map_err(|_| Rejection::Malformed)?;
            if let Some(conn) = &ctx.conn {
                let body =
                    if facts.chunked { Body::Chunked(Chunks::default()) } else { Body::Length(facts.length) };
                conn.follow_body(raw.len(), body).map_err(|_| Rejection::Malformed)?;
            }
        }
        let authority = select::authority(request).ok_or(Rejection::Malformed)?;
        let Selected { route, port, oauth, endpoint } =
            select::route(&self.shared.reader.peek(), &authority, request.uri.path())?;
        let tls = ctx.conn.as_ref().is_some_and(|c| c.tls);
        let verdict = policy::decide(&route, tls);
        ctx.route = Some(route);
        ctx.oauth = oauth;
        Ok(Judged { facts, authority, port, verdict, endpoint })
    }

    /// Runs the mechanism of the route.
    async fn authenticate(
        &self,
        request: &Parts,
        ctx: &mut RequestCtx,
        authority: &HeaderValue,
        endpoint: Option<Endpoint>,
    ) -> Verdict {
        let (Some(route), Some(conn)) = (&ctx.route, &ctx.conn) else {
            return Verdict::Reject(Rejection::Internal);
        };
        let oauth = ctx.oauth.as_deref().unwrap_or_default();
        let asked = Asked { parts: request, authority, conn, route, oauth, endpoint };
        let mut identity = Box::<Identity>::default();
        let verdict = auth::authenticate(&self.shared, &asked, &mut identity).await;
        ctx.identity = Some(identity);
        verdict
    }

    /// Whether the stated length of the body is beyond the limit.
    fn too_large(&self, facts: &Facts) -> bool {
        self.shared.config.max_request_body_size.is_some_and(|max| facts.length > max)
    }

    /// `https://HOST[:PORT]` with path and query as they came.
    fn https_location(&self, request: &RequestHeader, authority: &HeaderValue) -> Option<HeaderValue> {
        let authority = authority.to_str().ok()?;
        let host = match authority.rfind(':') {
            Some(colon) if !authority[colon..].contains(']') => &authority[..colon],
            _ => authority,
        };
        let target = request.uri.path_and_query().map_or("/", |p| p.as_str());
        let target = if target.starts_with('/') { target } else { "/" };
        let mut location = String::with_capacity(8 + host.len() + target.len() + 6);
        location.push_str("https://");
        location.push_str(host);
        if let Some(port) = self.shared.config.redirect_port.filter(|p| *p != 443) {
            location.push(':');
            location.push_str(itoa::Buffer::new().format(port));
        }
        location.push_str(target);
        HeaderValue::try_from(location).ok()
    }
}

struct Judged {
    facts: Facts,
    authority: HeaderValue,
    port: Option<u16>,
    verdict: Verdict,
    endpoint: Option<Endpoint>,
}

/// A rejection on its way through Pingora: the cause itself is in the context.
fn failure(rejection: Rejection, ctx: &mut RequestCtx) -> Box<Error> {
    ctx.rejection = Some(rejection);
    Error::new_in(ErrorType::HTTPStatus(rejection.status().as_u16()))
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = RequestCtx;

    fn new_ctx(&self) -> RequestCtx {
        RequestCtx::new(self.shared.clone())
    }

    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    async fn request_filter(&self, session: &mut Session, ctx: &mut RequestCtx) -> Result<bool> {
        ctx.conn = Conn::of(session).cloned();
        let line = ctx.conn.as_ref().map_or(Ok(()), |conn| conn.head_is_read());
        self.set_timeouts(session);
        let mut judged = line.map_err(|_| Rejection::Malformed).and_then(|()| self.judge(session, ctx));
        if let Ok(judged) = &mut judged
            && judged.verdict == Verdict::Continue
            && ctx.route.as_ref().is_some_and(|route| route.policy.auth != Auth::Open)
        {
            // Boxed, so that the futures of open routes stay small.
            let Judged { authority, endpoint, .. } = &*judged;
            judged.verdict =
                Box::pin(self.authenticate(session.req_header(), ctx, authority, *endpoint)).await;
        }
        let rejection = match judged {
            Ok(Judged { verdict: Verdict::Continue, facts, .. }) if self.too_large(&facts) => {
                Rejection::BodyTooLarge
            }
            Ok(Judged { facts, authority, port, verdict: Verdict::Continue, .. }) => match &ctx.conn {
                Some(conn) => match headers::rebuild(session.req_header_mut(), &facts, conn, authority, port)
                {
                    Ok(upgrade) => {
                        ctx.upgrade = upgrade;
                        if let Some(identity) = &ctx.identity {
                            identity.apply(session.req_header_mut())?;
                        }
                        if let Some(routes) = &ctx.oauth {
                            headers::strip_sessions(session.req_header_mut(), routes);
                        }
                        if upgrade {
                            conn.follow_no_more();
                        }
                        return Ok(false);
                    }
                    Err(rejection) => rejection,
                },
                None => Rejection::Internal,
            },
            Ok(Judged { authority, verdict: Verdict::RedirectToHttps, .. }) => {
                match self.https_location(session.req_header(), &authority) {
                    Some(location) => {
                        ctx.answered_by = Some("redirect");
                        respond::redirect(session, location).await?;
                        return Ok(true);
                    }
                    None => Rejection::Malformed,
                }
            }
            Ok(Judged { verdict: Verdict::Respond(reply), .. }) => {
                ctx.answered_by = Some(reply.label);
                respond::reply(session, *reply, ctx.response_headers()).await?;
                return Ok(true);
            }
            Ok(Judged { verdict: Verdict::Reject(rejection), .. }) | Err(rejection) => rejection,
        };
        ctx.rejection = Some(rejection);
        respond::reject(session, rejection, ctx.response_headers()).await?;
        Ok(true)
    }

    async fn upstream_peer(&self, _: &mut Session, ctx: &mut RequestCtx) -> Result<Box<HttpPeer>> {
        let upgrade = ctx.upgrade;
        if ctx.tries > 0
            && let Some(route) = &ctx.route
        {
            self.shared.metrics.retried(route);
        }
        match upstream::peer(&self.shared, ctx, upgrade).await {
            Ok(peer) => Ok(peer),
            Err(rejection) => Err(failure(rejection, ctx)),
        }
    }

    async fn connected_to_upstream(
        &self,
        session: &mut Session,
        reused: bool,
        _: &HttpPeer,
        fd: std::os::unix::io::RawFd,
        _: Option<&Digest>,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        // What may be sent twice is tried again when a kept connection turns out to be gone. What may
        // not be is worth a look before anything is sent.
        if reused && !session.req_header().method.is_idempotent() && upstream::closed_by_backend(fd) {
            let mut gone = Error::new_up(ErrorType::ConnectionClosed);
            gone.set_retry(ctx.tries < MAX_TRIES);
            ctx.nothing_sent = true;
            return Err(gone);
        }
        let now = Instant::now();
        ctx.reused = reused;
        ctx.connected = Some(now);
        ctx.connect_time = ctx.attempt.filter(|_| !reused).map(|began| now - began);
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        _: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        // The rest was done once, in `headers::rebuild`.
        if let Some(route) = &ctx.route
            && !route.backend.keepalive
            && !request.headers.contains_key(CONNECTION)
        {
            request.insert_header(CONNECTION, HeaderValue::from_static("close"))?;
        }
        Ok(())
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        if session.was_upgraded() {
            return Ok(());
        }
        // What the client has sent, not what passes here: a retry passes the same bytes again.
        if let Some(max) = self.shared.config.max_request_body_size
            && session.body_bytes_read() as u64 > max
        {
            return Err(failure(Rejection::BodyTooLarge, ctx));
        }
        // An empty last chunk would be written as a second chunk terminator.
        if end_of_stream && body.as_ref().is_some_and(Bytes::is_empty) {
            *body = None;
        }
        Ok(())
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        if response.status.is_informational() && response.status != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(());
        }
        if response.status == StatusCode::SWITCHING_PROTOCOLS && !ctx.upgrade {
            // Nobody asked: what follows is neither a response nor a tunnel.
            return Err(failure(Rejection::Protocol, ctx));
        }
        ctx.upstream_status = Some(response.status.as_u16());
        ctx.response_time = ctx.connected.map(|at| at.elapsed());
        let reply = headers::clean_response(response);
        for (name, value) in ctx.response_headers() {
            response.append_header(name, value)?;
        }
        if let Some((cookie, within)) = ctx.identity.as_ref().and_then(|identity| identity.soon.as_ref())
            && ctx.start.elapsed() < *within
        {
            response.append_header(SET_COOKIE, cookie)?;
        }
        if response.status == StatusCode::SWITCHING_PROTOCOLS {
            ctx.tunnel = true;
            self.shared.metrics.tunnel_began();
        }
        if reply.encoded && session.req_header().version == Version::HTTP_10 {
            // HTTP/1.0 knows no chunks: the body ends with the connection (RFC 9112 section 6.1).
            response.remove_header(&TRANSFER_ENCODING);
            session.set_keepalive(None);
        }
        if self.shared.draining.load(Ordering::Relaxed) || session.is_process_shutting_down() {
            session.set_keepalive(None);
        }
        let config = &self.shared.config;
        let method = &session.req_header().method;
        ctx.held =
            Held::wanted(method, response.status, &reply, config.response_buffer_size, &self.shared.budget);
        Ok(())
    }

    fn response_body_filter(
        &self,
        _: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut RequestCtx,
    ) -> Result<Option<Duration>> {
        let Some(held) = &mut ctx.held else { return Ok(None) };
        *body = match body.take() {
            Some(chunk) => held.take(chunk, end_of_stream),
            None if end_of_stream => held.rest(),
            None => None,
        };
        if body.is_some() || end_of_stream {
            ctx.held = None;
        }
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        _: &mut Session,
        _: &HttpPeer,
        ctx: &mut RequestCtx,
        mut e: Box<Error>,
    ) -> Box<Error> {
        if let Some(route) = &ctx.route
            && let ingress_core::BackendAddress::Name(name, _) = &route.backend.address
        {
            self.shared.resolver.mark_stale(name);
        }
        // Nothing was sent, so any method may try again; a connect that timed out has used its budget.
        let timed_out = matches!(e.etype(), ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout);
        e.set_retry(!timed_out && ctx.tries < MAX_TRIES);
        e
    }

    fn error_while_proxy(
        &self,
        _: &HttpPeer,
        session: &mut Session,
        mut e: Box<Error>,
        ctx: &mut RequestCtx,
        client_reused: bool,
    ) -> Box<Error> {
        if std::mem::take(&mut ctx.nothing_sent) {
            return e; // decided where it was found
        }
        let idempotent = session.req_header().method.is_idempotent();
        if !idempotent || session.as_ref().retry_buffer_truncated() || ctx.tries >= MAX_TRIES {
            e.set_retry(false);
        } else {
            e.retry.decide_reuse(client_reused);
        }
        e
    }

    async fn fail_to_proxy(&self, session: &mut Session, e: &Error, ctx: &mut RequestCtx) -> FailToProxy {
        let rejection = match ctx.rejection {
            Some(rejection) => rejection,
            None if ctx.conn.as_ref().is_some_and(|c| c.broken_body()) => Rejection::Malformed,
            None => upstream::cause(e, session.as_downstream_mut().is_body_done()),
        };
        // The engine ends the connection after a failure, so the answer says so.
        session.set_keepalive(None);
        ctx.rejection = Some(rejection);
        let answered = session.response_written().is_some_and(|r| !r.status.is_informational());
        if rejection != Rejection::ClientGone
            && !answered
            && respond::reject(session, rejection, ctx.response_headers()).await.is_err()
        {
            ctx.rejection = Some(Rejection::ClientGone);
        }
        FailToProxy { error_code: rejection.status().as_u16(), can_reuse_downstream: false }
    }

    fn suppress_error_log(&self, _: &Session, _: &RequestCtx, _: &Error) -> bool {
        true // the access log and the metrics say it
    }

    fn suppress_proxy_warn_log(
        &self,
        _: &Session,
        _: &RequestCtx,
        _: &Error,
        _: ProxyWarnLogContext,
    ) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, _: Option<&Error>, ctx: &mut RequestCtx) {
        ctx.recorded = true;
        let total = ctx.start.elapsed();
        let status = session
            .response_written()
            .map(|r| r.status)
            .or(ctx.rejection.map(Rejection::status))
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let metrics = &self.shared.metrics;
        let (bytes_in, bytes_out) = (session.body_bytes_read(), session.body_bytes_sent());
        match &ctx.route {
            Some(route) => {
                if let Some(handles) = metrics.route(route) {
                    handles.count(&session.req_header().method, status);
                    handles.observe(total, bytes_in, bytes_out);
                    handles.observe_upstream(ctx.connect_time, ctx.response_time);
                }
                if let Some(reason) = ctx.rejection.and_then(Rejection::upstream_error) {
                    metrics.upstream_error(route, reason);
                }
            }
            None => metrics.unmatched(ctx.rejection.map_or("internal", Rejection::label)),
        }
        if let Some(log) = &self.shared.log {
            log.line(|line| write_record(line, &self.shared, session, ctx, status, total));
        }
    }
}

fn write_record(
    line: &mut Vec<u8>,
    shared: &Shared,
    session: &Session,
    ctx: &RequestCtx,
    status: StatusCode,
    total: Duration,
) {
    let request = session.req_header();
    let field = |name| request.headers.get(name).map(HeaderValue::as_bytes);
    let mut record = Record::new(line);
    record.now("time");
    record.display("request_id", format_args!("{:016x}", request_id()));
    if let Some(conn) = &ctx.conn {
        record.text("client", conn.client.as_bytes());
    }
    record.text("method", request.method.as_str().as_bytes());
    record.text("scheme", if ctx.conn.as_ref().is_some_and(|c| c.tls) { b"https" } else { b"http" });
    record.opt("host", select::authority(request).as_ref().map(HeaderValue::as_bytes));
    record.text("path", request.uri.path().as_bytes());
    if shared.config.access_log_query {
        record.opt("query", request.uri.query().map(str::as_bytes));
    }
    record.text(
        "protocol",
        match request.version {
            Version::HTTP_2 => b"HTTP/2.0",
            Version::HTTP_10 => b"HTTP/1.0",
            _ => b"HTTP/1.1",
        },
    );
    record.int("status", status.as_u16().into());
    record.int("bytes_in", session.body_bytes_read() as u64);
    record.int("bytes_out", session.body_bytes_sent() as u64);
    record.millis("duration_ms", total);
    if let Some(peer) = ctx.peer {
        record.display("upstream", peer);
        if let Some(status) = ctx.upstream_status {
            record.int("upstream_status", status.into());
        }
        if let Some(connect) = ctx.connect_time {
            record.millis("upstream_connect_ms", connect);
        }
        if let Some(response) = ctx.response_time {
            record.millis("upstream_ms", response);
        }
        record.flag("upstream_reused", ctx.reused);
    }
    if let Some(route) = &ctx.route {
        record.display("route", &route.source);
        record.display("rule", route.rule);
    }
    record.opt("user", ctx.identity.as_ref().and_then(|i| i.user.as_deref()).map(str::as_bytes));
    record.opt("rejected_by", ctx.answered_by.or(ctx.rejection.map(Rejection::label)).map(str::as_bytes));
    record.opt("upstream_error", ctx.rejection.and_then(Rejection::upstream_error).map(str::as_bytes));
    if let Some(conn) = &ctx.conn {
        record.opt("tls_version", conn.tls_version.map(str::as_bytes));
        record.opt("sni", conn.sni.as_deref().map(str::as_bytes));
    }
    record.opt("user_agent", field(USER_AGENT));
    record.opt(
        "referer",
        field(REFERER).map(|r| if shared.config.access_log_query { r } else { before_query(r) }),
    );
    record.end();
}

/// A query string may hold what must not be logged, also in a referer.
fn before_query(url: &[u8]) -> &[u8] {
    url.split(|b| *b == b'?').next().unwrap_or(url)
}

/// A number that tells requests of one process apart in logs; no secret, so a counter over a
/// per-thread random start (SplitMix64) will do.
fn request_id() -> u64 {
    use std::cell::Cell;
    use std::hash::{BuildHasher, RandomState};
    thread_local!(static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0)));
    STATE.with(|state| {
        let next = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(next);
        let mut z = next;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests;
