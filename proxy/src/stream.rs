//! One HTTP/2 stream of a client, with the clocks that the engine lacks.
//!
//! The engine reads HTTP/2 bodies without any time limit. It takes sessions made by others, so this
//! is its own session with limits around the one call that waits for the client. The engine makes
//! that call anew whenever anything has moved in either direction, so a limit on the call is a limit
//! on the silence of both sides ([ADR 9](../../docs/adr/0009-own-http2-session.md)).

use crate::edge::Conn;
use crate::output::Owing;
use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use h2::{Reason, SendStream};
use http::HeaderMap;
use parking_lot::Mutex;
use pingora_core::protocols::Digest;
use pingora_core::protocols::http::HttpTask;
use pingora_core::protocols::http::custom::CustomMessageWrite;
use pingora_core::protocols::http::custom::server::Session;
use pingora_core::protocols::http::v2::server::HttpSession;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A stream that its client gives up before this time was hardly worth the work.
const PREMATURE: Duration = Duration::from_secs(1);

/// The silence of a client and its HTTP/2 backend: how long it may last, and how long it has.
#[derive(Default)]
pub struct Clock {
    /// In milliseconds; 0 = no limit.
    silence: AtomicU64,
    /// How long the engine may be without waiting for the client; 0 = no limit.
    patience: AtomicU64,
    /// When something moved last.
    moved: AtomicU64,
    /// The engine waits for the client.
    waiting: AtomicBool,
    expired: AtomicBool,
    armed: Notify,
    /// The whole response is with us: the client may take it when it likes.
    whole: Mutex<Option<Owing>>,
}

impl Clock {
    /// The next piece of the response's body is all of it. What the client does not take at once is kept
    /// for it, so that the backend's connection is free ([ADR 8](../../docs/adr/0008-held-responses-free-the-backend.md)).
    pub fn response_is_whole(&self, owing: Owing) {
        *self.whole.lock() = Some(owing);
    }

    /// Bounds the silence of both sides, for the current request.
    ///
    /// When the engine cannot send a body on, it says so to nobody, stops to wait for the client, and
    /// waits for an answer without any limit. `stuck` bounds that: it is the longest that a write may
    /// take.
    pub fn bound(&self, silence: Option<Duration>, stuck: Option<Duration>) {
        let patience = stuck.map(|stuck| stuck + silence.unwrap_or_default() + Duration::from_secs(1));
        self.expired.store(false, Ordering::Relaxed);
        self.silence.store(silence.map_or(0, millis), Ordering::Relaxed);
        self.patience.store(patience.map_or(0, millis), Ordering::Relaxed);
        self.moved.store(now(), Ordering::Relaxed);
        if patience.is_some() {
            self.armed.notify_one();
        }
    }

    /// There is no bound any more.
    pub fn release(&self) {
        self.silence.store(0, Ordering::Relaxed);
        self.patience.store(0, Ordering::Relaxed);
    }

    /// The bound.
    pub fn silence(&self) -> Option<Duration> {
        match self.silence.load(Ordering::Relaxed) {
            0 => None,
            limit => Some(Duration::from_millis(limit)),
        }
    }

    /// Something came from either side.
    pub fn moved(&self) {
        if self.silence.load(Ordering::Relaxed) | self.patience.load(Ordering::Relaxed) != 0 {
            self.moved.store(now(), Ordering::Relaxed);
        }
    }

    /// What is left of the bound; nothing ends the exchange.
    pub fn left(&self) -> Option<Duration> {
        let limit = self.silence.load(Ordering::Relaxed);
        let left = (self.moved.load(Ordering::Relaxed) + limit).saturating_sub(now());
        if left == 0 {
            self.expired.store(true, Ordering::Relaxed);
        }
        (left > 0).then(|| Duration::from_millis(left))
    }

    /// Whether the bound has ended the exchange.
    pub fn expired(&self) -> bool {
        self.expired.load(Ordering::Relaxed)
    }

    /// Ready once the engine is stuck.
    pub async fn stuck(&self) {
        self.armed.notified().await;
        loop {
            let patience = match self.patience.load(Ordering::Relaxed) {
                0 => {
                    self.armed.notified().await;
                    continue;
                }
                patience => patience,
            };
            let waiting = self.waiting.load(Ordering::Relaxed);
            let since = if waiting { now() } else { self.moved.load(Ordering::Relaxed) };
            match (since + patience).saturating_sub(now()) {
                0 => return,
                left => tokio::time::sleep(Duration::from_millis(left)).await,
            }
        }
    }
}

/// While it lives, the engine waits for the client.
struct Waiting(Arc<Clock>);

impl Waiting {
    fn begin(clock: &Arc<Clock>) -> Self {
        clock.waiting.store(true, Ordering::Relaxed);
        clock.moved();
        Self(clock.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.store(false, Ordering::Relaxed);
        self.0.moved();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 4).max(1)
}

/// Milliseconds since this was first asked.
fn now() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    Instant::now().saturating_duration_since(*EPOCH.get_or_init(Instant::now)).as_millis() as u64
}

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
                    self.clock.expired.store(true, Ordering::Relaxed);
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
        let owing = self.clock.whole.lock().take();
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
