//! One HTTP/2 stream of a client, with the clocks that the engine lacks.
//!
//! The engine reads HTTP/2 bodies without any time limit. It takes sessions made by others, so this
//! is its own session with limits around the one call that waits for the client. The engine makes
//! that call anew whenever anything has moved in either direction, so a limit on the call is a limit
//! on the silence of both sides ([ADR 9](../../docs/adr/0009-own-http2-session.md)).

use crate::clock::{Clock, Waiting};
use crate::edge::Conn;
use crate::output::Owing;
use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use h2::{Reason, SendStream};
use http::HeaderMap;
use pingora_core::protocols::Digest;
use pingora_core::protocols::http::HttpTask;
use pingora_core::protocols::http::custom::CustomMessageWrite;
use pingora_core::protocols::http::custom::server::Session;
use pingora_core::protocols::http::v2::server::HttpSession;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A stream that its client gives up before this time was hardly worth the work.
const PREMATURE: Duration = Duration::from_secs(1);

/// A request on an HTTP/2 connection.
pub struct ClientStream {
    inner: HttpSession,
    conn: Option<Arc<Conn>>,
    clock: Arc<Clock>,
    /// Silence of a client that owes a body.
    read_timeout: Option<Duration>,
    began: Instant,
    /// The body has ended. The engine does not see the end of one that has trailers.
    ended: bool,
    /// The client, or a fault of the client's, has ended the stream.
    reset: bool,
    /// The end of a response that the engine believes to be sent.
    owed: Option<Owed>,
}

/// What a client has still to take of a response that is whole.
struct Owed {
    stream: SendStream<Bytes>,
    rest: Bytes,
    limit: Option<Duration>,
    _owing: Owing,
}

impl Owed {
    /// Sends on as the client allows, unless it allows nothing for too long.
    async fn send(mut self) {
        while !self.rest.is_empty() {
            self.stream.reserve_capacity(self.rest.len());
            let capacity = poll_fn(|cx| self.stream.poll_capacity(cx));
            let capacity = match self.limit {
                Some(limit) => tokio::time::timeout(limit, capacity).await,
                None => Ok(capacity.await),
            };
            let sent = match capacity {
                Ok(Some(Ok(n))) => {
                    let piece = self.rest.split_to(n.min(self.rest.len()));
                    self.stream.send_data(piece, self.rest.is_empty()).is_ok()
                }
                Ok(_) => false,
                Err(_) => {
                    self.stream.send_reset(Reason::CANCEL);
                    false
                }
            };
            if !sent {
                return;
            }
        }
    }
}

impl ClientStream {
    pub fn new(mut inner: HttpSession) -> Self {
        let clock = Arc::new(Clock::default());
        inner.req_header_mut().extensions_mut().insert(clock.clone());
        let conn = inner.digest().and_then(Conn::in_digest).cloned();
        if let Some(conn) = &conn {
            conn.stream_began();
        }
        Self {
            inner,
            conn,
            clock,
            read_timeout: None,
            began: Instant::now(),
            ended: false,
            reset: false,
            owed: None,
        }
    }

    /// The clock of this stream.
    pub fn clock(&self) -> Arc<Clock> {
        self.clock.clone()
    }

    /// The clock of a request, if it came on an HTTP/2 stream; taken out of its head, so that no copy
    /// for the backend carries it.
    pub fn take_clock(request: &mut RequestHeader) -> Option<Arc<Clock>> {
        request.extensions_mut().remove()
    }

    /// Takes in what the engine has of a response that is whole; the client gets the body when the engine
    /// is done.
    fn keep(&mut self, tasks: Vec<HttpTask>, mut owing: Option<Owing>) -> Result<bool> {
        let mut done = false;
        for task in tasks {
            done |= match task {
                HttpTask::Header(header, end) => {
                    self.inner.write_response_header(header, end)?;
                    end
                }
                HttpTask::Body(Some(rest), end) if !rest.is_empty() => {
                    let (Some(owing), Some(stream)) = (owing.take(), self.inner.take_response_body_writer())
                    else {
                        return Error::e_explain(ErrorType::InternalError, "more than the whole response");
                    };
                    let limit = self.inner.get_write_timeout();
                    self.owed = Some(Owed { stream, rest, limit, _owing: owing });
                    end
                }
                HttpTask::Body(_, end) => end,
                HttpTask::Failed(error) => return Err(error),
                HttpTask::UpgradedBody(..) => {
                    return Error::e_explain(ErrorType::InternalError, "a tunnel in HTTP/2");
                }
                HttpTask::Trailer(_) | HttpTask::Done => true,
            };
        }
        Ok(done)
    }

    fn note<T>(&mut self, read: Result<Option<T>>) -> Result<Option<T>> {
        match &read {
            Ok(None) => self.ended = true,
            Ok(Some(_)) => {}
            Err(_) => self.reset = true,
        }
        read
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if let Some(conn) = &self.conn {
            conn.stream_ended(self.reset && self.began.elapsed() < PREMATURE);
        }
        if let Some(owed) = self.owed.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(owed.send());
        }
    }
}

#[async_trait]
impl Session for ClientStream {
    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        let done = no_body_expected || self.is_body_done();
        // Who has had an answer may be silent as long as its backend may.
        let owes = !done && self.inner.response_written().is_none();
        let client = self.read_timeout.filter(|_| owes);
        let silence = self.clock.silence();
        let _waiting = Waiting::begin(&self.clock);
        let Some(limit) = client.into_iter().chain(silence).min() else {
            let read = self.inner.read_body_or_idle(done).await;
            return self.note(read);
        };
        match tokio::time::timeout(limit, self.inner.read_body_or_idle(done)).await {
            Ok(read) => self.note(read),
            Err(_) => {
                if client != Some(limit) {
                    self.clock.expire();
                }
                Error::e_explain(ErrorType::ReadTimedout, "HTTP/2 stream")
            }
        }
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        if self.ended {
            return Ok(None);
        }
        let read = match self.read_timeout {
            Some(limit) => match tokio::time::timeout(limit, self.inner.read_body_bytes()).await {
                Ok(read) => read,
                Err(_) => return Error::e_explain(ErrorType::ReadTimedout, "HTTP/2 body"),
            },
            None => self.inner.read_body_bytes().await,
        };
        self.note(read)
    }

    fn is_body_done(&mut self) -> bool {
        self.ended || self.inner.is_body_done()
    }

    fn is_body_empty(&mut self) -> bool {
        self.inner.is_body_empty()
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read_timeout = timeout;
    }

    fn get_read_timeout(&self) -> Option<Duration> {
        self.read_timeout
    }

    // From here on the engine's own session does it.

    fn req_header(&self) -> &RequestHeader {
        self.inner.req_header()
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        self.inner.req_header_mut()
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        self.inner.drain_request_body().await
    }

    async fn write_response_header(&mut self, response: Box<ResponseHeader>, end: bool) -> Result<()> {
        self.inner.write_response_header(response, end)
    }

    async fn write_response_header_ref(&mut self, response: &ResponseHeader, end: bool) -> Result<()> {
        self.inner.write_response_header_ref(response, end)
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.inner.write_body(data, end).await
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        self.inner.write_trailers(trailers)
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        let owing = self.clock.take_owing();
        if owing.is_none() && self.owed.is_none() {
            return self.inner.response_duplex_vec(tasks).await;
        }
        self.keep(tasks, owing)
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.inner.set_write_timeout(timeout);
    }

    fn get_write_timeout(&self) -> Option<Duration> {
        self.inner.get_write_timeout()
    }

    fn set_total_drain_timeout(&mut self, timeout: Option<Duration>) {
        self.inner.set_total_drain_timeout(timeout);
    }

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        self.inner.get_total_drain_timeout()
    }

    fn request_summary(&self) -> String {
        self.inner.request_summary()
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.inner.response_written()
    }

    async fn shutdown(&mut self, _code: u32, _why: &str) {
        self.inner.shutdown();
    }

    async fn finish(&mut self) -> Result<()> {
        self.inner.finish()
    }

    fn body_bytes_sent(&self) -> usize {
        self.inner.body_bytes_sent()
    }

    fn body_bytes_read(&self) -> usize {
        self.inner.body_bytes_read()
    }

    fn digest(&self) -> Option<&Digest> {
        self.inner.digest()
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        self.inner.digest_mut()
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.inner.client_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.inner.server_addr()
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        self.inner.pseudo_raw_h1_request_header()
    }

    fn enable_retry_buffering(&mut self) {
        self.inner.enable_retry_buffering();
    }

    fn retry_buffer_truncated(&self) -> bool {
        self.inner.retry_buffer_truncated()
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        self.inner.get_retry_buffer()
    }

    // HTTP/2 has no messages beside the body: without a writer the engine asks for no reader.

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_reader(
        &mut self,
    ) -> Option<Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>> {
        None
    }

    fn restore_custom_message_reader(
        &mut self,
        _: Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>,
    ) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(&mut self, _: Box<dyn CustomMessageWrite>) -> Result<()> {
        Ok(())
    }
}
