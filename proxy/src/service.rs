//! Pingora's hooks, in the order in which they run. Each is short and calls the file named after
//! its phase.

use crate::access_log::Record;
use crate::buffer::Held;
use crate::client_stream::ClientStream;
use crate::ctx::RequestCtx;
use crate::edge::Conn;
use crate::framing::{Body, Chunks};
use crate::guard::Hooks;
use crate::oauth::Endpoint;
use crate::output::Owing;
use crate::policy::auth::{self, Identity};
use crate::policy::{self, Asked, Verdict};
use crate::respond::{self, Rejection, Reply};
use crate::select::{self, Selected};
use crate::streams::{Full, SMALL};
use crate::strict::{Facts, check_target};
use crate::upstream::{self, MAX_TRIES, MOST_TRIES};
use crate::via::Via;
use crate::{Shared, filter, headers, mirror, trust};
use bytes::Bytes;
use http::header::{CONNECTION, LOCATION, REFERER, SET_COOKIE, TE, TRANSFER_ENCODING, USER_AGENT};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Version};
use ingress_core::Auth;
use pingora_core::protocols::Digest;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, Session};
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
        // HTTP/1 clients are watched where their bytes are written (`edge/stream.rs`): the engine's own timer
        // sees no progress within one piece.
        let http2 = session.as_downstream().as_http1().is_none();
        session.set_write_timeout(config.client_write_timeout.filter(|_| http2));
        session.as_downstream_mut().set_pipelining_enabled(true);
        if session.req_header().version == Version::HTTP_10 {
            // It knows no interim responses (RFC 9110 section 15.2).
            session.as_downstream_mut().set_ignore_info_resp(true);
        }
    }

    /// From the parsed head to the verdict of the route's policies.
    fn judge(&self, session: &Session, ctx: &mut RequestCtx) -> Result<(Judged, Verdict), Rejection> {
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
        // Before the route: the log of a request that no route takes names the client as well.
        let peer = ctx.conn.as_ref().map(|conn| conn.ip);
        ctx.via =
            peer.and_then(|peer| Via::read(&request.headers, peer, &self.shared.config.trusted_proxies));
        let Selected { route, port, oauth, endpoint } =
            select::route(&self.shared.reader.peek(), ctx.conn.as_deref(), &authority, request)?;
        let client = ctx.client_ip().ok_or(Rejection::Internal)?;
        let asked = Asked { method: &request.method, headers: &request.headers, client, https: ctx.https() };
        let verdict = policy::decide(&route, &asked);
        ctx.take(route, random);
        ctx.trailers =
            ctx.http2_backend() && (ctx.grpc_backend() || headers::takes_trailers(&request.headers));
        ctx.oauth = oauth;
        Ok((Judged { facts, authority, port, endpoint }, verdict))
    }

    /// Runs the mechanism of the route.
    async fn authenticate(
        &self,
        request: &Parts,
        ctx: &mut RequestCtx,
        authority: &HeaderValue,
        endpoint: Option<Endpoint>,
    ) -> Verdict {
        let (Some(route), Some(ip), Some(client)) = (&ctx.route, ctx.client_ip(), ctx.client()) else {
            return Verdict::Reject(Rejection::Internal);
        };
        let oauth = ctx.oauth.as_deref().unwrap_or_default();
        let https = ctx.https();
        let asked = auth::Asked { parts: request, authority, ip, client, https, route, oauth, endpoint };
        let mut identity = Box::<Identity>::default();
        let verdict = auth::authenticate(&self.shared, &asked, &mut identity).await;
        ctx.identity = Some(identity);
        verdict
    }

    /// Takes the request's token of the client's bucket.
    fn limit(&self, ctx: &mut RequestCtx) -> Verdict {
        let (Some(route), Some(client)) = (&ctx.route, ctx.client_ip()) else {
            return Verdict::Reject(Rejection::Internal);
        };
        match self.shared.limiter.admit(route, client) {
            Ok(in_flight) => {
                ctx.in_flight = in_flight;
                Verdict::Continue
            }
            Err(limited) => {
                if let Some(numbers) = self.shared.metrics.route(route) {
                    numbers.limited();
                }
                Verdict::Reject(Rejection::RateLimited(limited))
            }
        }
    }

    /// So much of a response that is not held goes to the client, which has taken all before it.
    fn pass(&self, bytes: usize, end: bool, ctx: &mut RequestCtx) -> Result<()> {
        ctx.passed = ctx.passed.saturating_add(bytes);
        if let Some(stream) = &ctx.stream {
            stream.moved(bytes, Instant::now());
            return Ok(());
        }
        if ctx.passed > SMALL && !end && !ctx.tunnel { self.stream(ctx) } else { Ok(()) }
    }

    /// The response is one that streams: it takes its share of what such responses may hold.
    fn stream(&self, ctx: &mut RequestCtx) -> Result<()> {
        let Some(conn) = &ctx.conn else { return Ok(()) };
        let entered = self.shared.streams.enter(conn, Instant::now());
        if !matches!(entered, Ok((_, false))) {
            self.shared.metrics.slow_client_cut();
        }
        match entered {
            Ok((stream, _)) => {
                ctx.stream = Some(stream);
                Ok(())
            }
            Err(Full) => Err(failure(Rejection::Overload, ctx)),
        }
    }

    /// Whether the stated length of the body is beyond the limit.
    fn too_large(&self, facts: &Facts) -> bool {
        self.shared.config.max_request_body_size.is_some_and(|max| facts.length > max)
    }

    /// The fields of ours on a backend's response: of authentication, and of CORS.
    fn add_fields(&self, session: &Session, response: &mut ResponseHeader, ctx: &RequestCtx) -> Result<()> {
        for (name, value) in ctx.response_headers() {
            response.append_header(name, value)?;
        }
        if let Some((cookie, within)) = ctx.identity.as_ref().and_then(|identity| identity.soon.as_ref())
            && ctx.start.elapsed() < *within
        {
            response.append_header(SET_COOKIE, cookie)?;
        }
        filter::edit_response(ctx, response)?;
        respond::allow_origins(session, response, ctx.route.as_deref(), false)
    }

    /// Whether the backend's answer is one on which the route tries again, and can: the request's body
    /// is in memory as a whole.
    fn send_again(&self, session: &mut Session, status: StatusCode, ctx: &mut RequestCtx) -> bool {
        let wanted = ctx.retry().is_some_and(|retry| retry.codes.contains(&status));
        ctx.again = wanted && ctx.another_try() && replayable(session);
        ctx.paused = ctx.again;
        ctx.again
    }

    /// A piece of the request's body goes into its copies, which are sent with the last one.
    fn copy_body(&self, body: Option<&Bytes>, end: bool, ctx: &mut RequestCtx) {
        if let (Some(copies), Some(piece)) = (&mut ctx.copies, body)
            && !copies.take(piece)
        {
            ctx.copies = None;
        }
        if end && let Some(copies) = ctx.copies.take() {
            copies.send(&self.shared);
        }
    }

    /// HTTP/1.0 knows no chunks: the body ends with the connection (RFC 9112 section 6.1).
    fn frame_for_http10(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        reply: &headers::Reply,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        if session.req_header().version != Version::HTTP_10 {
            return Ok(());
        }
        if ctx.http2_backend()
            && reply.length.is_none()
            && !headers::never_has_body(&session.req_header().method, response.status)
        {
            // The engine is going to say `chunked`.
            return Err(failure(Rejection::Protocol, ctx));
        }
        if reply.encoded {
            response.remove_header(&TRANSFER_ENCODING);
            session.set_keepalive(None);
        }
        Ok(())
    }

    /// A request that may pass is made ready for its backend.
    fn forward(
        &self,
        session: &mut Session,
        ctx: &mut RequestCtx,
        judged: Judged,
    ) -> Result<Result<(), Rejection>> {
        let Judged { facts, authority, port, .. } = judged;
        if self.too_large(&facts) {
            return Ok(Err(Rejection::BodyTooLarge));
        }
        if filter::fails(ctx) {
            return Ok(Err(Rejection::Filter));
        }
        let Some(conn) = &ctx.conn else { return Ok(Err(Rejection::Internal)) };
        let request = session.req_header_mut();
        match headers::rebuild(request, &facts, conn, ctx.via.as_deref(), authority, port) {
            Ok(true) if ctx.http2_backend() => return Ok(Err(Rejection::Upgrade)),
            Ok(upgrade) => ctx.upgrade = upgrade,
            Err(rejection) => return Ok(Err(rejection)),
        }
        if let Some(identity) = &ctx.identity {
            identity.apply(request)?;
        }
        if let Some(routes) = &ctx.oauth {
            headers::strip_sessions(request, routes);
        }
        if ctx.upgrade {
            conn.follow_no_more();
        }
        // How long a tunnel may be silent is the route's to say, and the request itself has no body to
        // wait for. The pauses between the messages of a gRPC call are the application's; the backend's
        // limit bounds them.
        if ctx.upgrade || ctx.grpc_backend() {
            session.set_read_timeout(None);
        }
        Ok(Ok(()))
    }

    /// Sends an answer of ours. True: the request is done.
    async fn answer(&self, session: &mut Session, ctx: &mut RequestCtx, verdict: Verdict) -> Result<bool> {
        let rejection = match verdict {
            Verdict::Respond(reply) => {
                ctx.answered_by = Some(reply.label);
                respond::reply(session, *reply, ctx.response_headers(), ctx.route.as_deref()).await?;
                return Ok(true);
            }
            Verdict::Preflight => {
                ctx.answered_by = Some("cors");
                if let Some(numbers) = ctx.route.as_ref().and_then(|route| self.shared.metrics.route(route)) {
                    numbers.preflight();
                }
                respond::preflight(session, ctx.route.as_deref()).await?;
                return Ok(true);
            }
            Verdict::Reject(rejection) => rejection,
            Verdict::Continue | Verdict::Exempt | Verdict::RedirectToHttps => Rejection::Internal,
        };
        ctx.rejection = Some(rejection);
        respond::reject(session, rejection, ctx.response_headers(), ctx.route.as_deref()).await?;
        Ok(true)
    }

    /// 308 to `https://HOST[:PORT]` with path and query as they came (RFC 9110 section 15.4.9: method and
    /// body are kept).
    fn redirect(&self, request: &RequestHeader, authority: &HeaderValue) -> Verdict {
        match self.https_location(request, authority) {
            Some(location) => Verdict::Respond(Box::new(
                Reply::new(StatusCode::PERMANENT_REDIRECT, "redirect").header(LOCATION, location),
            )),
            None => Verdict::Reject(Rejection::Malformed),
        }
    }

    /// `https://HOST[:PORT]` with path and query as they came.
    fn https_location(&self, request: &RequestHeader, authority: &HeaderValue) -> Option<HeaderValue> {
        let authority = authority.to_str().ok()?;
        let host = select::without_port(authority);
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

/// What was read of a request beside the verdict on it.
struct Judged {
    facts: Facts,
    authority: HeaderValue,
    port: Option<u16>,
    endpoint: Option<Endpoint>,
}

/// Whether the request's body is in memory as a whole.
fn replayable(session: &mut Session) -> bool {
    !session.as_ref().retry_buffer_truncated() && session.as_downstream_mut().is_body_done()
}

/// Whether an attempt of a rule with `retry` came to an end before the backend had answered, so that
/// another one may be made, whatever the method is: who writes `retry` allows it.
fn unanswered(session: &mut Session, e: &Error, ctx: &RequestCtx) -> bool {
    ctx.rejection.is_none()
        && ctx.upstream_status.is_none()
        && (ctx.silent() || upstream::broken(e))
        && replayable(session)
}

/// The answer of the route's filters, if they have one.
fn filtered(request: &RequestHeader, ctx: &RequestCtx, authority: &HeaderValue) -> Option<Verdict> {
    let route = ctx.route.as_ref().filter(|route| route.actions.is_some())?;
    let conn = ctx.conn.as_ref()?;
    let https = ctx.https();
    let asked = filter::Asked {
        https,
        authority: authority.to_str().ok()?,
        target: request.uri.path_and_query().map_or("/", |target| target.as_str()),
        port: conn.local.filter(|_| https == conn.tls).map(|local| local.port),
    };
    filter::answer(route, &asked)
}

/// A rejection on its way through Pingora: the cause itself is in the context.
fn failure(rejection: Rejection, ctx: &mut RequestCtx) -> Box<Error> {
    ctx.rejection = Some(rejection);
    Error::new_in(ErrorType::HTTPStatus(rejection.status().as_u16()))
}

impl Hooks for Gateway {
    fn new_ctx(&self) -> RequestCtx {
        RequestCtx::new(self.shared.clone())
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut RequestCtx) -> Result<bool> {
        ctx.conn = Conn::of(session).cloned();
        let line = ctx.conn.as_ref().map_or(Ok(()), |conn| conn.head_is_read());
        ctx.clock = ClientStream::take_clock(session.req_header_mut());
        self.set_timeouts(session);
        let judged = line.map_err(|_| Rejection::Malformed).and_then(|()| self.judge(session, ctx));
        let (mut judged, mut verdict) = match judged {
            Ok(judged) => judged,
            Err(rejection) => return Box::pin(self.answer(session, ctx, Verdict::Reject(rejection))).await,
        };
        if verdict == Verdict::Continue && ctx.route.as_ref().is_some_and(|r| r.policy.auth != Auth::Open) {
            // Boxed, so that the futures of open routes stay small.
            let request = session.req_header();
            verdict =
                Box::pin(self.authenticate(request, ctx, &judged.authority, judged.endpoint.take())).await;
        }
        if verdict == Verdict::Continue {
            verdict = self.limit(ctx);
        }
        if verdict == Verdict::Continue
            && let Some(answer) = filtered(session.req_header(), ctx, &judged.authority)
        {
            verdict = answer;
        }
        let verdict = match verdict {
            Verdict::Continue | Verdict::Exempt => match self.forward(session, ctx, judged)? {
                Ok(()) => return Ok(false),
                Err(rejection) => Verdict::Reject(rejection),
            },
            Verdict::RedirectToHttps => self.redirect(session.req_header(), &judged.authority),
            verdict => verdict,
        };
        Box::pin(self.answer(session, ctx, verdict)).await
    }

    async fn upstream_peer(&self, _: &mut Session, ctx: &mut RequestCtx) -> Result<Box<HttpPeer>> {
        let upgrade = ctx.upgrade;
        if ctx.tries > 0
            && let Some(route) = &ctx.route
        {
            self.shared.metrics.retried(route);
            if std::mem::take(&mut ctx.paused)
                && let Some(backoff) = ctx.retry().map(|retry| retry.backoff)
            {
                ctx.release_clock();
                tokio::time::sleep(backoff.min(ctx.left().unwrap_or(Duration::MAX))).await;
            }
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
        digest: Option<&Digest>,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        if trust::refused(digest) {
            return Err(failure(Rejection::Tls, ctx));
        }
        // What may be sent twice is tried again when a kept connection turns out to be gone. What may
        // not be is worth a look before anything is sent, and so is what a rule counts.
        let counts = ctx.retry().is_some();
        let once = counts || !session.req_header().method.is_idempotent();
        if reused && once && upstream::closed_by_backend(fd) {
            let mut gone = Error::new_up(ErrorType::ConnectionClosed);
            gone.set_retry(ctx.tries < if counts { MOST_TRIES } else { MAX_TRIES });
            ctx.nothing_sent = true;
            ctx.stale += 1;
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
        session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        // The rest was done once, in `headers::rebuild`.
        filter::edit_request(ctx, request)?;
        if let Some(copies) = &mut ctx.copies {
            copies.restart();
        } else if !std::mem::replace(&mut ctx.mirrored, true) && !ctx.upgrade {
            ctx.copies = mirror::begin(ctx, request, random);
            if session.as_downstream_mut().is_body_done()
                && let Some(copies) = ctx.copies.take()
            {
                copies.send(&self.shared);
            }
        }
        if ctx.http2_backend() {
            if request.version != Version::HTTP_2 {
                // The TLS handshake ended without HTTP/2, and the engine would speak HTTP/1.1.
                return Err(failure(Rejection::Protocol, ctx));
            }
            if ctx.trailers {
                request.insert_header(TE, HeaderValue::from_static("trailers"))?;
            }
            return Ok(());
        }
        if ctx.backend().is_some_and(|backend| !backend.keepalive)
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
            // An error of another source would be passed over on the way to an HTTP/2 backend.
            return Err(failure(Rejection::BodyTooLarge, ctx).into_down());
        }
        if ctx.overdue() {
            return Err(failure(Rejection::BackendTimeout, ctx).into_down());
        }
        self.copy_body(body.as_ref(), end_of_stream, ctx);
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
            ctx.keepalive = ctx.keepalive.or(session.get_keepalive());
            return Ok(());
        }
        if ctx.keepalive.is_some() && session.as_downstream_mut().is_body_done() {
            // The body was not read yet when 100 went out, and so the engine meant to close.
            session.set_keepalive(ctx.keepalive);
        }
        if respond::waits_for_continue(session) {
            // It has its answer, and is not going to send the body.
            session.set_read_timeout(Some(respond::LINGER));
        }
        if response.status == StatusCode::SWITCHING_PROTOCOLS && !ctx.upgrade {
            // Nobody asked: what follows is neither a response nor a tunnel.
            return Err(failure(Rejection::Protocol, ctx));
        }
        ctx.moved();
        ctx.upstream_status = Some(response.status.as_u16());
        ctx.response_time = ctx.connected.map(|at| at.elapsed());
        if self.send_again(session, response.status, ctx) {
            return Err(Error::new_up(ErrorType::HTTPStatus(response.status.as_u16())));
        }
        let reply = headers::clean_response(response);
        self.add_fields(session, response, ctx)?;
        if response.status == StatusCode::SWITCHING_PROTOCOLS {
            ctx.tunnel = true;
            self.shared.metrics.tunnel_began();
        }
        self.frame_for_http10(session, response, &reply, ctx)?;
        if self.shared.draining.load(Ordering::Relaxed) || session.is_process_shutting_down() {
            session.set_keepalive(None);
        }
        let config = &self.shared.config;
        let method = &session.req_header().method;
        ctx.held =
            Held::wanted(method, response.status, &reply, config.response_buffer_size, &self.shared.budget);
        if reply.streams
            && let Some(conn) = &ctx.conn
        {
            conn.response_streams();
        }
        // Here it can still be told that there is no room; of a length that is not known, not.
        if ctx.held.is_none()
            && reply.length.is_some_and(|n| n > SMALL)
            && *method != Method::HEAD
            && response.status != StatusCode::NOT_MODIFIED
        {
            return self.stream(ctx);
        }
        Ok(())
    }

    fn response_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut RequestCtx,
    ) -> Result<Option<Duration>> {
        ctx.moved();
        if ctx.overdue() {
            return Err(failure(Rejection::BackendTimeout, ctx));
        }
        let Some(held) = &mut ctx.held else {
            return self.pass(body.as_ref().map_or(0, Bytes::len), end_of_stream, ctx).map(|()| None);
        };
        *body = match body.take() {
            Some(chunk) => held.take(chunk, end_of_stream),
            None if end_of_stream => held.rest(),
            None => None,
        };
        if (body.is_some() || end_of_stream)
            && let Some(held) = ctx.held.take()
        {
            let whole = body.as_ref().is_some_and(|body| held.is_whole(body.len()));
            let reserved = held.end();
            match &ctx.conn {
                Some(conn) if session.as_downstream().as_http1().is_some() => {
                    conn.response_is_whole(reserved)
                }
                // After its body, HTTP/1 sends nothing that an HTTP/2 client would have to get.
                _ if whole && !ctx.http2_backend() && session.as_downstream_mut().is_body_done() => {
                    match &ctx.clock {
                        Some(clock) => {
                            ctx.sent_later = body.as_ref().map_or(0, Bytes::len);
                            clock.response_is_whole(Owing::new(self.shared.clone(), reserved));
                        }
                        None => ctx.reserved = reserved,
                    }
                }
                _ => ctx.reserved = reserved,
            }
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
        if let Some(backend) = ctx.backend()
            && let ingress_core::BackendAddress::Name(name, _) = &backend.address
        {
            self.shared.resolver.mark_stale(name);
        }
        // Nothing was sent, so any method may try again; without a `retry`, a connect that timed out has
        // used its budget.
        let timed_out = matches!(e.etype(), ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout);
        ctx.paused = ctx.another_try();
        e.set_retry(match ctx.retry() {
            Some(_) => ctx.paused,
            None => !timed_out && ctx.tries < MAX_TRIES,
        });
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
        if std::mem::take(&mut ctx.again) {
            e.set_retry(true);
            return e;
        }
        let repeatable = session.req_header().method.is_idempotent() || upstream::unprocessed(&e);
        if !repeatable || session.as_ref().retry_buffer_truncated() || upstream::answer_begun(&e) {
            e.set_retry(false);
        } else {
            e.retry.decide_reuse(client_reused);
        }
        if ctx.retry().is_some() {
            ctx.paused = ctx.another_try() && (e.retry() || unanswered(session, &e, ctx));
            e.set_retry(ctx.paused);
        } else if ctx.tries >= MAX_TRIES {
            e.set_retry(false);
        }
        e
    }

    async fn fail_to_proxy(&self, session: &mut Session, e: &Error, ctx: &mut RequestCtx) -> FailToProxy {
        let answered = session.response_written().is_some_and(|r| !r.status.is_informational());
        if answered && *e.etype() == ErrorType::ReadTimedout && respond::waits_for_continue(session) {
            return FailToProxy { error_code: 0, can_reuse_downstream: false };
        }
        let rejection = match ctx.rejection {
            Some(rejection) => rejection,
            None if ctx.silent() => Rejection::BackendTimeout,
            // It was silent for as long as the route allows: an end like another.
            None if ctx.tunnel && *e.etype() == ErrorType::ReadTimedout => {
                return FailToProxy { error_code: 101, can_reuse_downstream: false };
            }
            None if ctx.conn.as_ref().is_some_and(|c| c.broken_body()) => Rejection::Malformed,
            // The client was told to wait with its body, by a backend that said nothing.
            None if *e.etype() == ErrorType::ReadTimedout && respond::waits_for_continue(session) => {
                Rejection::BackendTimeout
            }
            None => upstream::cause(e, session.as_downstream_mut().is_body_done()),
        };
        // The engine ends the connection after a failure, so the answer says so.
        session.set_keepalive(None);
        ctx.rejection = Some(rejection);
        if rejection != Rejection::ClientGone
            && !answered
            && respond::reject(session, rejection, ctx.response_headers(), ctx.route.as_deref())
                .await
                .is_err()
        {
            ctx.rejection = Some(Rejection::ClientGone);
        }
        FailToProxy { error_code: rejection.status().as_u16(), can_reuse_downstream: false }
    }

    async fn logging(&self, session: &mut Session, _: Option<&Error>, ctx: &mut RequestCtx) {
        ctx.recorded = true;
        let total = ctx.start.elapsed();
        let status = session
            .response_written()
            .map(|r| r.status)
            // A gRPC call is refused on 200: what counts is why.
            .filter(|_| ctx.upstream_status.is_some() || ctx.rejection.is_none())
            .or(ctx.rejection.map(Rejection::status))
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let metrics = &self.shared.metrics;
        let (bytes_in, bytes_out) = (session.body_bytes_read(), session.body_bytes_sent() + ctx.sent_later);
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
    record.opt("client", ctx.client().map(HeaderValue::as_bytes));
    record.text("method", request.method.as_str().as_bytes());
    record.text("scheme", if ctx.https() { b"https" } else { b"http" });
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
    record.int("bytes_out", (session.body_bytes_sent() + ctx.sent_later) as u64);
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
        record.display("rule", route.place());
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
    random()
}

/// A number for what needs no secret: shares of backends, numbers of requests.
pub(crate) fn random() -> u64 {
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
pub(crate) mod tests;
