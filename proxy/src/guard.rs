//! A panic in a hook costs its own request and nothing else: the client gets 500, the record is
//! written, and the connection lives on.

use crate::ctx::RequestCtx;
use crate::edge::Conn;
use crate::respond::{self, Rejection};
use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use pingora_core::modules::http::HttpModules;
use pingora_core::protocols::Digest;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The engine's hooks that we fill in: those of [`ProxyHttp`], which are described there. A hook
/// that is added here must be passed on below.
pub trait Hooks: Send + Sync {
    fn new_ctx(&self) -> RequestCtx;

    fn request_filter(
        &self,
        session: &mut Session,
        ctx: &mut RequestCtx,
    ) -> impl Future<Output = Result<bool>> + Send;

    fn upstream_peer(
        &self,
        session: &mut Session,
        ctx: &mut RequestCtx,
    ) -> impl Future<Output = Result<Box<HttpPeer>>> + Send;

    fn connected_to_upstream(
        &self,
        session: &mut Session,
        reused: bool,
        peer: &HttpPeer,
        fd: std::os::unix::io::RawFd,
        digest: Option<&Digest>,
        ctx: &mut RequestCtx,
    ) -> impl Future<Output = Result<()>> + Send;

    fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut RequestCtx,
    ) -> impl Future<Output = Result<()>> + Send;

    fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut RequestCtx,
    ) -> impl Future<Output = Result<()>> + Send;

    fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut RequestCtx,
    ) -> impl Future<Output = Result<()>> + Send;

    fn response_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut RequestCtx,
    ) -> Result<Option<Duration>>;

    fn fail_to_connect(
        &self,
        session: &mut Session,
        peer: &HttpPeer,
        ctx: &mut RequestCtx,
        e: Box<Error>,
    ) -> Box<Error>;

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        e: Box<Error>,
        ctx: &mut RequestCtx,
        client_reused: bool,
    ) -> Box<Error>;

    fn fail_to_proxy(
        &self,
        session: &mut Session,
        e: &Error,
        ctx: &mut RequestCtx,
    ) -> impl Future<Output = FailToProxy> + Send;

    fn logging(
        &self,
        session: &mut Session,
        e: Option<&Error>,
        ctx: &mut RequestCtx,
    ) -> impl Future<Output = ()> + Send;
}

/// [`Hooks`] whose panics are caught.
pub struct Guarded<H>(pub H);

/// Notes a panic; what was going on is an internal fault from here on. The panic hook has printed
/// where it was.
fn panicked(ctx: &mut RequestCtx) -> Box<Error> {
    ctx.shared.metrics.panicked();
    ctx.rejection = Some(Rejection::Internal);
    tracing::error!(route = ?ctx.route.as_ref().map(|r| r.source.to_string()), "a hook panicked");
    Error::new_in(ErrorType::HTTPStatus(Rejection::Internal.status().as_u16()))
}

/// The outcome of a hook that may have panicked.
fn survived<T>(outcome: std::thread::Result<Result<T>>, ctx: &mut RequestCtx) -> Result<T> {
    outcome.unwrap_or_else(|_| Err(panicked(ctx)))
}

#[async_trait]
impl<H: Hooks> ProxyHttp for Guarded<H> {
    type CTX = RequestCtx;

    fn new_ctx(&self) -> RequestCtx {
        self.0.new_ctx()
    }

    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    async fn request_filter(&self, session: &mut Session, ctx: &mut RequestCtx) -> Result<bool> {
        let answered = AssertUnwindSafe(self.0.request_filter(session, ctx)).catch_unwind().await;
        if answered.is_ok() || session.response_written().is_some() {
            return survived(answered, ctx);
        }
        panicked(ctx);
        // The connection waits for a hook to have seen the head.
        if let Some(conn) = Conn::of(session) {
            let _ = conn.head_is_read();
        }
        // What stands behind the head was perhaps not looked at yet.
        if !session.is_body_empty() {
            session.set_keepalive(None);
        }
        respond::reject(session, Rejection::Internal, ctx.response_headers(), ctx.route.as_deref()).await?;
        Ok(true)
    }

    async fn upstream_peer(&self, session: &mut Session, ctx: &mut RequestCtx) -> Result<Box<HttpPeer>> {
        let peer = AssertUnwindSafe(self.0.upstream_peer(session, ctx)).catch_unwind().await;
        survived(peer, ctx)
    }

    async fn connected_to_upstream(
        &self,
        session: &mut Session,
        reused: bool,
        peer: &HttpPeer,
        fd: std::os::unix::io::RawFd,
        digest: Option<&Digest>,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        let connected = self.0.connected_to_upstream(session, reused, peer, fd, digest, ctx);
        survived(AssertUnwindSafe(connected).catch_unwind().await, ctx)
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        let filtered = AssertUnwindSafe(self.0.upstream_request_filter(session, request, ctx));
        survived(filtered.catch_unwind().await, ctx)
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        let filtered = AssertUnwindSafe(self.0.request_body_filter(session, body, end_of_stream, ctx));
        survived(filtered.catch_unwind().await, ctx)
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut RequestCtx,
    ) -> Result<()> {
        let filtered = AssertUnwindSafe(self.0.response_filter(session, response, ctx));
        survived(filtered.catch_unwind().await, ctx)
    }

    fn response_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut RequestCtx,
    ) -> Result<Option<Duration>> {
        let filtered =
            catch_unwind(AssertUnwindSafe(|| self.0.response_body_filter(session, body, end_of_stream, ctx)));
        survived(filtered, ctx)
    }

    fn fail_to_connect(
        &self,
        session: &mut Session,
        peer: &HttpPeer,
        ctx: &mut RequestCtx,
        e: Box<Error>,
    ) -> Box<Error> {
        let read = catch_unwind(AssertUnwindSafe(|| self.0.fail_to_connect(session, peer, ctx, e)));
        read.unwrap_or_else(|_| panicked(ctx))
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        e: Box<Error>,
        ctx: &mut RequestCtx,
        client_reused: bool,
    ) -> Box<Error> {
        let read =
            catch_unwind(AssertUnwindSafe(|| self.0.error_while_proxy(peer, session, e, ctx, client_reused)));
        read.unwrap_or_else(|_| panicked(ctx))
    }

    async fn fail_to_proxy(&self, session: &mut Session, e: &Error, ctx: &mut RequestCtx) -> FailToProxy {
        let told = AssertUnwindSafe(self.0.fail_to_proxy(session, e, ctx)).catch_unwind().await;
        told.unwrap_or_else(|_| {
            panicked(ctx);
            FailToProxy { error_code: 500, can_reuse_downstream: false }
        })
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

    async fn logging(&self, session: &mut Session, e: Option<&Error>, ctx: &mut RequestCtx) {
        if AssertUnwindSafe(self.0.logging(session, e, ctx)).catch_unwind().await.is_err() {
            panicked(ctx);
        }
    }
}

#[cfg(test)]
mod tests;
