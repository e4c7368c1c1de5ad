//! Around Pingora's HTTP engine: the accept loops, what is known of a client's connection, and
//! the limits that the engine does not have.

use crate::buffer::Reserved;
use crate::frames::Frames;
use crate::framing::{Body, RequestLine};
use crate::guard::Guarded;
use crate::listeners::Ports;
use crate::output::{Output, Owing};
use crate::places::Place;
use crate::preface::{Opening, PREFACE};
use crate::respond::{SERVER_NAME, canned};
use crate::service::Gateway;
use crate::stall::Stall;
use crate::stream::{ClientStream, Clock};
use crate::strict::Malformed;
use crate::tls::{self, HelloDeadline, TlsInfo};
use crate::{Bound, Shared, StartError, handshake, proxy_protocol};
use async_trait::async_trait;
use futures::FutureExt;
use futures::future::FusedFuture;
use futures::task::AtomicWaker;
use http::header::{CONTENT_LENGTH, SERVER};
use http::{HeaderValue, Method};
use ingress_core::Local;
use parking_lot::Mutex;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::listeners::{L4BufferSettings, ListenerConfig};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora_core::protocols::l4::socket::SocketAddr as PeerAddr;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::protocols::{
    ALPN, Digest, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    Stream, TimingDigest, UniqueID, UniqueIDType,
};
use pingora_core::server::configuration::ServerConf;
use pingora_core::server::{Fds, ShutdownWatch};
use pingora_core::services::Service as _;
use pingora_core::services::listening::Service;
use pingora_http::ResponseHeader;
use pingora_proxy::{HttpProxy, Session, http_proxy};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::os::fd::{IntoRawFd, RawFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Receive windows of HTTP/2 clients: large enough for fast uploads, bounded per connection.
const H2_STREAM_WINDOW: u32 = 256 << 10;
const H2_CONNECTION_WINDOW: u32 = 1 << 20;

/// Streams that an HTTP/2 client may give up at once. Beyond these the connection is closed, if they
/// are most of its streams (CVE-2023-44487, CVE-2025-8671).
const MAX_PREMATURE: u32 = 500;

/// What one stream may have waiting for a client that does not read, whatever window it granted.
const H2_SEND_BUFFER: usize = 64 << 10;

/// Read buffer of a client connection; a larger one is touched whole by each idle connection.
const READ_BUFFER: usize = 4096;
const WRITE_BUFFER: usize = 1460;

/// An idle connection keeps no more than this of its last request head.
const KEPT_TAIL: usize = 1024;

/// What is known of a client's connection, made once and shared by its requests.
pub struct Conn {
    /// The peer's address, or the one that it named by the PROXY protocol; IPv4-mapped ones as IPv4.
    pub ip: IpAddr,
    /// The same as a header value.
    pub client: HeaderValue,
    /// Whether the connection is TLS.
    pub tls: bool,
    /// `TLSv1.2`, `TLSv1.3` or nothing.
    pub tls_version: Option<&'static str>,
    /// The server name asked for, in lower case and without a trailing dot.
    pub sni: Option<Box<str>>,
    /// Where it came in; `None` if the system does not say.
    pub local: Option<Local>,
    /// A request head is being read; set by the connection loop, cleared by the first hook.
    reading_head: AtomicBool,
    head_bytes: AtomicUsize,
    /// The bytes behind the head are being followed.
    following: AtomicBool,
    /// How far the bytes of the current request were followed. One task reads a connection, so the
    /// lock is never waited for.
    follow: Mutex<Follow>,
    /// The clock of the current HTTP/1 request.
    clock: Clock,
    streams: Streams,
    /// The connection is to end: whoever reads or writes next gets an error.
    cut: AtomicBool,
    /// Who waits for the connection.
    waiting: AtomicWaker,
    /// All that the engine will still write for this request is in memory: what the client does not
    /// take is kept for it, and the engine is done.
    whole: AtomicBool,
    reserved: Mutex<Option<Reserved>>,
    /// The client has not taken all of what was kept.
    owed: AtomicBool,
    /// The response is a stream: nothing of it waits for more.
    prompt: AtomicBool,
    /// The client speaks HTTP/2 without TLS: the stream that goes on in the place of this one.
    http2: Mutex<Option<Box<EdgeStream>>>,
}

/// The streams of an HTTP/2 connection, counted.
#[derive(Default)]
struct Streams {
    all: AtomicU32,
    active: AtomicU32,
    premature: AtomicU32,
    flood: AtomicBool,
}

/// What is known of the bytes of an HTTP/1 request.
#[derive(Default)]
struct Follow {
    line: RequestLine,
    /// The last piece of the head as it was read: the body may begin in it.
    tail: Vec<u8>,
    body: Option<Body>,
    /// Bytes behind the body: the next request begins with them. The engine keeps them too.
    ahead: Vec<u8>,
    broken: bool,
}

/// The clock of a request head that did not come in one piece; heads that do never touch it.
struct HeadClock {
    /// When all of the head must be there.
    whole: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl Conn {
    fn new(client: Option<IpAddr>, ssl: Option<&SslDigest>) -> Self {
        let ip = client.unwrap_or(IpAddr::from([0, 0, 0, 0])).to_canonical();
        let info = ssl.and_then(|d| d.extension.get::<TlsInfo>());
        Self {
            ip,
            client: HeaderValue::from_str(&ip.to_string()).unwrap_or(HeaderValue::from_static("unknown")),
            tls: ssl.is_some(),
            tls_version: info.map(|i| i.version),
            sni: info.and_then(|i| i.sni.clone()),
            local: None,
            reading_head: AtomicBool::new(false),
            head_bytes: AtomicUsize::new(0),
            following: AtomicBool::new(false),
            follow: Mutex::default(),
            clock: Clock::default(),
            streams: Streams::default(),
            cut: AtomicBool::new(false),
            waiting: AtomicWaker::new(),
            whole: AtomicBool::new(false),
            reserved: Mutex::default(),
            owed: AtomicBool::new(false),
            prompt: AtomicBool::new(false),
            http2: Mutex::default(),
        }
    }

    /// A connection for tests.
    #[cfg(test)]
    pub fn for_test(ip: &str, tls: bool) -> Self {
        let mut conn = Self::new(ip.parse().ok(), None);
        conn.tls = tls;
        conn
    }

    /// The connection that a session runs on.
    pub fn of(session: &Session) -> Option<&Arc<Self>> {
        Self::in_digest(session.as_downstream().digest()?)
    }

    /// The connection that a digest belongs to.
    pub fn in_digest(digest: &Digest) -> Option<&Arc<Self>> {
        digest.proxy_digest.as_ref()?.user_data.as_ref()?.downcast_ref()
    }

    /// A stream of this connection begins.
    pub fn stream_began(&self) {
        self.streams.all.fetch_add(1, Ordering::Relaxed);
        self.streams.active.fetch_add(1, Ordering::Relaxed);
    }

    /// A stream of this connection has ended, perhaps before it was worth anything.
    pub fn stream_ended(&self, premature: bool) {
        let streams = &self.streams;
        streams.active.fetch_sub(1, Ordering::Relaxed);
        if premature {
            let n = streams.premature.fetch_add(1, Ordering::Relaxed) + 1;
            if n >= MAX_PREMATURE && n > streams.all.load(Ordering::Relaxed) / 2 {
                streams.flood.store(true, Ordering::Relaxed);
                self.waiting.wake();
            }
        }
    }

    /// The clock of the current HTTP/1 request.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The next bytes are a request head; some of them may have come with the request before.
    pub(crate) fn expect_head(&self) {
        let mut guard = self.follow.lock();
        let follow = &mut *guard;
        if follow.tail.capacity() > KEPT_TAIL {
            follow.tail = Vec::new();
        }
        follow.tail.clear();
        std::mem::swap(&mut follow.tail, &mut follow.ahead);
        follow.line = RequestLine::default();
        follow.line.take(&follow.tail);
        follow.body = None;
        follow.broken = false;
        self.head_bytes.store(follow.tail.len(), Ordering::Relaxed);
        self.following.store(false, Ordering::Relaxed);
        self.clock.release();
        self.prompt.store(false, Ordering::Relaxed);
        self.reading_head.store(true, Ordering::Relaxed);
    }

    /// The head was read and parsed: what follows is body. Tells whether its first line is one.
    pub fn head_is_read(&self) -> Result<(), Malformed> {
        self.reading_head.store(false, Ordering::Relaxed);
        if self.follow.lock().line.bad() { Err(Malformed::RequestLine) } else { Ok(()) }
    }

    /// A body begins behind a head of `head` bytes: it is followed to its end, and what stands behind
    /// it is noted.
    pub fn follow_body(&self, head: usize, body: Body) -> Result<(), Malformed> {
        let mut guard = self.follow.lock();
        let follow = &mut *guard;
        // All that was read beyond the head stands at the end of its last piece.
        let beyond =
            self.head_bytes.load(Ordering::Relaxed).checked_sub(head).ok_or(Malformed::RequestLine)?;
        let from = follow.tail.len().checked_sub(beyond).ok_or(Malformed::RequestLine)?;
        let mut body = body;
        let behind = body.take(&follow.tail[from..]).map_err(|_| Malformed::Chunk)?;
        follow.ahead.clear();
        follow.ahead.extend_from_slice(behind);
        follow.body = Some(body);
        self.following.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// No hook has seen the next request yet.
    fn reading_head(&self) -> bool {
        self.reading_head.load(Ordering::Relaxed)
    }

    /// Nothing of the next request is here, also not in the kernel.
    fn idle(&self, fd: RawFd) -> bool {
        self.reading_head() && self.head_bytes.load(Ordering::Relaxed) == 0 && !waiting_input(fd)
    }

    /// What follows is a tunnel: its bytes are nobody's business.
    pub fn follow_no_more(&self) {
        self.following.store(false, Ordering::Relaxed);
    }

    /// Ends the connection, and all that runs on it, now.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.waiting.wake();
    }

    /// Whether the connection was ended by us.
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// What a poll of the connection is to give while nothing else is there.
    fn pending<T>(&self, cx: &Context<'_>) -> Poll<io::Result<T>> {
        self.waiting.register(cx.waker());
        if self.is_cut() { Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())) } else { Poll::Pending }
    }

    /// The rest of the response is in memory, as much of it as `reserved` says.
    pub fn response_is_whole(&self, reserved: Option<Reserved>) {
        *self.reserved.lock() = reserved;
        self.whole.store(true, Ordering::Relaxed);
    }

    /// The response is a stream, though its length is known: the engine would flush it at its end.
    pub fn response_streams(&self) {
        self.prompt.store(true, Ordering::Relaxed);
    }

    /// The engine is done with the request: what the client still has to take is waited for.
    fn response_is_written(&self) {
        if self.whole.swap(false, Ordering::Relaxed) {
            *self.reserved.lock() = None;
        }
    }

    /// Whether the body was found to be broken while it was read.
    pub fn broken_body(&self) -> bool {
        self.follow.lock().broken
    }
}

/// Where a connection came in, in the words of Gateway listeners.
pub(crate) fn local(digest: &SocketDigest, ports: &Ports) -> Option<Local> {
    let address = digest.local_addr()?.as_inet()?;
    Some(Local { address: address.ip().to_canonical(), port: ports.of(address.port()) })
}

/// A client stream that bounds request heads while they are read, and replaces the engine's own
/// answers to heads that it cannot parse.
pub(crate) struct EdgeStream {
    inner: Stream,
    conn: Arc<Conn>,
    digest: Arc<ProxyDigest>,
    shared: Arc<Shared>,
    /// An answer of ours that is being written instead; what is left of it.
    canned: Option<&'static [u8]>,
    clock: Option<HeadClock>,
    /// What an HTTP/2 client sends.
    frames: Option<Box<Frames>>,
    /// So many octets of HTTP/2's preface, and nothing else, have come in on a plain connection; `None`
    /// once it is known what the client speaks.
    opening: Option<usize>,
    /// One of both sides has ended the connection.
    over: bool,
    /// That of a plain connection; with TLS the handshake holds it (`tls.rs`).
    place: Option<Place>,
    output: Output,
    stall: Stall,
}

impl EdgeStream {
    pub(crate) fn new(inner: Stream, shared: Arc<Shared>) -> io::Result<Self> {
        let peer = || {
            inner.get_socket_digest().and_then(|d| match d.peer_addr() {
                Some(PeerAddr::Inet(a)) => Some(a.ip()),
                _ => None,
            })
        };
        // What stood in the digest before the TLS handshake, or stands there without one.
        let before = handshake::end(&*inner);
        let client = before.as_deref().and_then(proxy_protocol::announced).or_else(peer);
        let mut conn = Conn::new(client, inner.get_ssl_digest().as_deref());
        conn.local = inner.get_socket_digest().and_then(|digest| local(&digest, &shared.ports));
        let conn = Arc::new(conn);
        // The digest is the one place that Pingora carries from a stream to its sessions; the
        // response in it has no meaning here.
        let response = ResponseHeader::build_no_case(200, Some(0)).map_err(io::Error::other)?;
        let digest = Arc::new(ProxyDigest::new(Box::new(response), Some(Box::new(conn.clone()))));
        shared.metrics.connection_opened();
        let frames = matches!(inner.selected_alpn_proto(), Some(ALPN::H2)).then(Box::default);
        let opening = (!conn.tls).then_some(0);
        Ok(Self {
            inner,
            conn,
            digest,
            shared,
            canned: None,
            clock: None,
            frames,
            opening,
            over: false,
            place: None,
            output: Output::default(),
            stall: Stall::default(),
        })
    }

    #[cfg(test)]
    pub(crate) fn conn(&self) -> Arc<Conn> {
        self.conn.clone()
    }

    /// Writes what is left of our own answer; ready once all of it is out.
    fn poll_canned(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.canned.filter(|r| !r.is_empty()) {
            let step = Pin::new(&mut self.inner).poll_write(cx, rest);
            let n = ready!(self.poll_taken(cx, step))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.canned = Some(&rest[n..]);
        }
        let step = Pin::new(&mut self.inner).poll_flush(cx);
        self.poll_taken(cx, step)
    }

    /// What came of offering the client something: not taken for too long is an error.
    fn poll_taken<T>(&mut self, cx: &mut Context<'_>, step: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if step.is_ready() {
            self.stall.progress();
            return step;
        }
        if let Poll::Ready(error) = self.stall.poll(cx, self.shared.config.client_write_timeout) {
            return Poll::Ready(Err(error));
        }
        self.conn.pending(cx)
    }

    /// Whether the client must not be waited for.
    fn keeps(&self) -> bool {
        self.conn.whole.load(Ordering::Relaxed)
    }

    /// Keeps bytes for the client until it takes them.
    fn keep(&mut self, bytes: &[u8]) {
        let Self { output, conn, shared, .. } = self;
        output.take(bytes, || {
            conn.owed.store(true, Ordering::Relaxed);
            Owing::new(shared.clone(), conn.reserved.lock().take())
        });
    }

    /// Ready once the client has taken what was kept for it.
    fn poll_owed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.output.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let limit = self.shared.config.client_write_timeout;
        let ended = ready!(self.output.poll_write(cx, &mut self.inner, &mut self.stall, limit));
        self.conn.owed.store(false, Ordering::Relaxed);
        Poll::Ready(ended)
    }
}

impl Drop for EdgeStream {
    fn drop(&mut self) {
        self.say_goodbye();
        self.shared.metrics.connection_closed();
        // The engine lets go of a connection that it does not keep; what is owed is still delivered.
        if !self.output.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let mut inner = std::mem::replace(&mut self.inner, nothing());
            let (mut output, mut stall) = (std::mem::take(&mut self.output), Stall::default());
            let limit = self.shared.config.client_write_timeout;
            runtime.spawn(async move {
                let owed = |cx: &mut Context<'_>| output.poll_write(cx, &mut inner, &mut stall, limit);
                if poll_fn(owed).await.is_ok() {
                    Shutdown::shutdown(&mut *inner).await;
                }
            });
        }
    }
}

impl AsyncRead for EdgeStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.frames.is_some() {
            return self.poll_frames(cx, buf);
        }
        let before = buf.filled().len();
        // The client may want to read before it sends more.
        if let Poll::Ready(Err(error)) = self.poll_owed(cx) {
            return Poll::Ready(Err(error));
        }
        if !self.conn.reading_head.load(Ordering::Relaxed) {
            if self.conn.clock.silence().is_some() && self.poll_quiet(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            // The engine waits for either side, so there is nothing more to write just now.
            if self.conn.prompt.load(Ordering::Relaxed)
                && let Poll::Ready(Err(error)) = Pin::new(&mut self.inner).poll_flush(cx)
            {
                return Poll::Ready(Err(error));
            }
            if Pin::new(&mut self.inner).poll_read(cx, buf)?.is_pending() {
                return self.conn.pending(cx);
            }
            self.conn.clock.moved();
            if !self.conn.following.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            let mut guard = self.conn.follow.lock();
            let follow = &mut *guard;
            if let Some(body) = &mut follow.body {
                match body.take(&buf.filled()[before..]) {
                    Ok(behind) => follow.ahead.extend_from_slice(behind),
                    Err(broken) => {
                        follow.broken = true;
                        buf.set_filled(before);
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, broken)));
                    }
                }
            }
            return Poll::Ready(Ok(()));
        }
        // More is asked for, so the head is not whole yet.
        let read = loop {
            let read = self.conn.head_bytes.load(Ordering::Relaxed);
            if read > self.shared.config.max_header_size {
                return self.poll_refuse(cx, buf, 431, "head_too_large");
            }
            if read > 0 && self.poll_clock(cx).is_ready() {
                return self.poll_refuse(cx, buf, 408, "client_timeout");
            }
            let Some(held) = self.opening else {
                ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
                break read;
            };
            match ready!(self.poll_opening(cx, buf, held))? {
                Opening::Http1 => break 0,
                Opening::Http2 => return Poll::Ready(Ok(())),
                Opening::Part => {}
            }
        };
        let new = &buf.filled()[before..];
        self.conn.head_bytes.store(read + new.len(), Ordering::Relaxed);
        let mut follow = self.conn.follow.lock();
        follow.line.take(new);
        follow.tail.clear();
        follow.tail.extend_from_slice(new);
        drop(follow);
        self.restart_pause();
        Poll::Ready(Ok(()))
    }
}

/// What stands where a stream was taken from.
fn nothing() -> Stream {
    Box::new(tokio::io::duplex(1).0)
}

/// The engine's own timer for a head ends the connection without a word; ours is that much earlier.
const BEFORE_ENGINE: Duration = Duration::from_millis(100);

/// How long a client that was refused is still listened to.
const LINGER: Duration = Duration::from_secs(1);

const FAR: Duration = Duration::from_secs(86_400);

fn next_deadline(config: &crate::Config, whole: Option<Instant>) -> Instant {
    let engine = config.client_keepalive_timeout.map(|d| d.saturating_sub(BEFORE_ENGINE));
    let pause = config.client_read_timeout.into_iter().chain(engine).min().unwrap_or(FAR);
    let next = Instant::now() + pause;
    whole.map_or(next, |whole| whole.min(next))
}

impl EdgeStream {
    /// Ready once a head that trickles has had its time.
    fn poll_clock(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let config = &self.shared.config;
        let clock = self.clock.get_or_insert_with(|| {
            let whole = config.client_header_timeout.map(|limit| Instant::now() + limit);
            HeadClock { whole, timer: Box::pin(sleep_until(next_deadline(config, whole))) }
        });
        clock.timer.as_mut().poll(cx)
    }

    /// Something of the head has come in: the next pause begins.
    fn restart_pause(&mut self) {
        if let Some(clock) = &mut self.clock {
            clock.timer.as_mut().reset(next_deadline(&self.shared.config, clock.whole));
        }
    }

    /// Reads the first octets of a plain connection. What may still become HTTP/2's preface is kept back,
    /// and needs no room for it; all else goes to the engine as if it had come at once. With a whole
    /// preface the engine's HTTP/1 session reads an end, and the connection goes on elsewhere.
    fn poll_opening(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        held: usize,
    ) -> Poll<io::Result<Opening>> {
        let before = buf.filled().len();
        if buf.remaining() <= PREFACE.len() {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into())); // the engine offers 4 KiB
        }
        buf.put_slice(&PREFACE[..held]);
        let step = Pin::new(&mut self.inner).poll_read(cx, buf);
        let octets = &buf.filled()[before..];
        let ended = matches!(step, Poll::Ready(Ok(()))) && octets.len() == held;
        let opening = match step {
            Poll::Ready(Ok(())) if ended => Opening::Http1,
            Poll::Ready(Ok(())) => Opening::of(octets),
            _ => Opening::Part,
        };
        match opening {
            Opening::Http1 => self.opening = None,
            Opening::Http2 => {
                self.opening = None;
                let next = self.hand_over(octets);
                buf.set_filled(before);
                *self.conn.http2.lock() = Some(Box::new(next?));
            }
            Opening::Part => {
                let held = octets.len();
                buf.set_filled(before);
                ready!(step)?;
                self.opening = Some(held);
                self.conn.head_bytes.store(held, Ordering::Relaxed);
                self.restart_pause();
            }
        }
        Poll::Ready(Ok(opening))
    }

    /// The same connection as one of HTTP/2, these octets the first that are read from it.
    fn hand_over(&mut self, octets: &[u8]) -> io::Result<Self> {
        let inner = std::mem::replace(&mut self.inner, nothing());
        let mut inner =
            inner.into_any().downcast::<L4Stream>().map_err(|_| io::Error::other("not a plain stream"))?;
        inner.rewind(octets);
        let mut next = Self::new(inner, self.shared.clone())?;
        next.frames = Some(Box::default());
        next.opening = None;
        next.place = self.place.take();
        Ok(next)
    }

    /// Reads from an HTTP/2 client. A preface or a block of header fields that does not end in time
    /// ends the connection, and so does a client that floods it with streams it does not want.
    fn poll_frames(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.conn.streams.flood.load(Ordering::Relaxed) {
            if !self.over {
                self.over = true;
                self.shared.metrics.unmatched("reset_flood");
            }
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let owes = |frames: &Option<Box<Frames>>| frames.as_ref().is_some_and(|f| f.owes());
        if owes(&self.frames) && self.poll_clock(cx).is_ready() {
            if !self.over {
                self.over = true;
                self.shared.metrics.unmatched("client_timeout");
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = match Pin::new(&mut self.inner).poll_read(cx, buf) {
            Poll::Pending => ready!(self.conn.pending(cx)),
            Poll::Ready(read) => read,
        };
        self.over |= read.is_err() || buf.filled().len() == before;
        read?;
        if let Some(frames) = &mut self.frames {
            frames.take(&buf.filled()[before..]);
        }
        let deadline = |whole| next_deadline(&self.shared.config, whole);
        match &mut self.clock {
            Some(clock) if owes(&self.frames) => clock.timer.as_mut().reset(deadline(clock.whole)),
            _ => self.clock = None,
        }
        Poll::Ready(Ok(()))
    }

    /// Ready once client and backend have both been silent for too long.
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(left) = self.conn.clock.left() else { return Poll::Ready(()) };
            let deadline = Instant::now() + left;
            let clock = self
                .clock
                .get_or_insert_with(|| HeadClock { whole: None, timer: Box::pin(sleep_until(deadline)) });
            if clock.timer.is_elapsed() || clock.timer.deadline() > deadline {
                clock.timer.as_mut().reset(deadline);
            }
            ready!(clock.timer.as_mut().poll(cx));
        }
    }

    /// An HTTP/2 connection that the engine drops while it is idle ends with a GOAWAY, so that a client
    /// knows that a request which crosses it was not seen. There is no time to wait: what the socket
    /// does not take at once is not sent.
    fn say_goodbye(&mut self) {
        let idle = !self.over && self.conn.streams.active.load(Ordering::Relaxed) == 0;
        if let Some(frames) = self.frames.as_ref().filter(|f| idle && !f.owes()) {
            let goaway = frames.goaway();
            let mut cx = Context::from_waker(Waker::noop());
            let _ = Pin::new(&mut self.inner).poll_write(&mut cx, &goaway);
            let _ = Pin::new(&mut self.inner).poll_flush(&mut cx);
        }
    }

    /// Answers a head that is not going to be read, takes in a little more of it, so that the client
    /// reads the answer before a reset, and ends.
    fn poll_refuse(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        status: u16,
        reason: &str,
    ) -> Poll<io::Result<()>> {
        if self.canned.is_none() {
            self.shared.metrics.unmatched(reason);
            self.canned = Some(canned(status));
            let timer = Box::pin(sleep_until(Instant::now() + LINGER));
            self.clock = Some(HeadClock { whole: None, timer });
        }
        ready!(self.poll_canned(cx))?;
        if status != 431 {
            return Poll::Ready(Ok(()));
        }
        let limit = 16 * self.shared.config.max_header_size;
        let mut read = self.conn.head_bytes.load(Ordering::Relaxed);
        let before = buf.filled().len();
        while read <= limit {
            if self.poll_clock(cx).is_ready() {
                break;
            }
            ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
            let n = buf.filled().len() - before;
            buf.set_filled(before);
            if n == 0 {
                break;
            }
            read += n;
            self.conn.head_bytes.store(read, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for EdgeStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if !self.conn.reading_head.load(Ordering::Relaxed) {
            // A head was read, or the engine would not answer: its clock is not needed any more.
            self.clock = None;
            match self.poll_owed(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if self.keeps() => {
                    self.keep(buf);
                    return Poll::Ready(Ok(buf.len()));
                }
                Poll::Pending => return Poll::Pending,
            }
            let step = Pin::new(&mut self.inner).poll_write(cx, buf);
            if step.is_pending() && self.keeps() {
                self.keep(buf);
                return Poll::Ready(Ok(buf.len()));
            }
            return self.poll_taken(cx, step);
        }
        // No hook has seen this request: the engine answers a head that it could not parse.
        if self.canned.is_none() {
            let status = if buf.starts_with(b"HTTP/1.1 405") { 405 } else { 400 };
            self.shared.metrics.unmatched("malformed");
            self.canned = Some(canned(status));
        }
        ready!(self.poll_canned(cx))?;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_owed(cx) {
            Poll::Pending if self.keeps() => return Poll::Ready(Ok(())),
            other => ready!(other)?,
        }
        let step = Pin::new(&mut self.inner).poll_flush(cx);
        if step.is_pending() && self.keeps() {
            self.keep(&[]);
            return Poll::Ready(Ok(()));
        }
        self.poll_taken(cx, step)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.over = true;
        ready!(self.poll_owed(cx))?;
        let step = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.poll_taken(cx, step)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.conn.reading_head.load(Ordering::Relaxed) || self.keeps() || !self.output.is_empty() {
            let first = bufs.iter().find(|b| !b.is_empty()).map_or(&[][..], |b| &**b);
            return self.poll_write(cx, first);
        }
        let step = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.poll_taken(cx, step)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

impl fmt::Debug for EdgeStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdgeStream").field("client", &self.conn.ip).finish_non_exhaustive()
    }
}

#[async_trait]
impl Shutdown for EdgeStream {
    async fn shutdown(&mut self) {
        let _ = poll_fn(|cx| self.poll_owed(cx)).await;
        Shutdown::shutdown(&mut *self.inner).await;
    }
}

impl UniqueID for EdgeStream {
    fn id(&self) -> UniqueIDType {
        self.inner.id()
    }
}

impl Ssl for EdgeStream {
    fn get_ssl(&self) -> Option<&pingora_core::protocols::tls::TlsRef> {
        self.inner.get_ssl()
    }
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.inner.get_ssl_digest()
    }
    fn selected_alpn_proto(&self) -> Option<ALPN> {
        // To the engine it is the same how HTTP/2 was agreed on.
        if self.frames.is_some() { Some(ALPN::H2) } else { self.inner.selected_alpn_proto() }
    }
}

impl GetTimingDigest for EdgeStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for EdgeStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        Some(self.digest.clone())
    }
}

impl GetSocketDigest for EdgeStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.inner.get_socket_digest()
    }
}

#[async_trait]
impl Peek for EdgeStream {}

/// One app for all listeners.
pub(crate) struct Edge {
    shared: Arc<Shared>,
    engine: Arc<HttpProxy<Guarded<Gateway>>>,
    http2: Arc<Http2>,
    /// Turns true when draining begins, before the ports close.
    drain: ShutdownWatch,
}

/// HTTP/2 connections: the engine's loop, with streams of ours.
struct Http2 {
    shared: Arc<Shared>,
    engine: Arc<HttpProxy<Guarded<Gateway>>>,
}

#[async_trait]
impl HttpServerApp for Http2 {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let mut stream = match session {
            ServerSession::H2(stream) => stream,
            other => return self.engine.process_new_http(other, shutdown).await,
        };
        if stream.req_header().method == Method::CONNECT {
            // No hook sees it, and the engine's answer is not ours.
            self.shared.metrics.unmatched("malformed");
            let mut refusal = ResponseHeader::build_no_case(405, Some(2)).ok()?;
            refusal.insert_header(SERVER, SERVER_NAME).ok()?;
            refusal.insert_header(CONTENT_LENGTH, HeaderValue::from_static("0")).ok()?;
            let _ = stream.write_response_header(Box::new(refusal), true);
            return None;
        }
        let stream = ClientStream::new(stream);
        let clock = stream.clock();
        let session = ServerSession::new_custom(Box::new(stream));
        tokio::select! {
            biased;
            done = self.engine.process_new_http(session, shutdown) => done,
            () = clock.stuck() => None,
        }
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.engine.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        HttpServerApp::server_options(&*self.engine)
    }
}

#[async_trait]
impl ServerApp for Edge {
    async fn process_new(self: &Arc<Self>, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let plain = stream.get_ssl_digest().is_none();
        let place = plain.then(|| self.shared.places.take());
        if let Some(None) = place {
            self.shared.metrics.connection_refused();
            return None;
        }
        let config = &self.shared.config;
        // In front of TLS it was read before the handshake.
        if config.proxy_protocol && plain {
            let limit = config.client_header_timeout;
            if let Err(error) = proxy_protocol::expect(&mut *stream, &config.trusted_proxies, limit).await {
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    self.shared.metrics.unmatched("proxy_protocol");
                }
                return None;
            }
        }
        let mut stream = EdgeStream::new(stream, self.shared.clone()).ok()?;
        stream.place = place.flatten();
        let stream: Stream = if stream.frames.is_some() {
            Box::new(stream)
        } else {
            let conn = stream.conn.clone();
            self.http1(Box::new(stream), &conn, shutdown).await;
            let http2 = conn.http2.lock().take();
            http2?
        };
        // Clients are sent away (GOAWAY) while there is still time to go elsewhere. One that comes after
        // that is served until the ports close.
        let away = if *self.drain.borrow() { shutdown } else { &self.drain };
        ServerApp::process_new(&self.http2, stream, away).await
    }

    async fn cleanup(&self) {
        // The engine would drop each connection that waits for a request, also where half of one has
        // come in. `http1` looks closer.
    }
}

impl Edge {
    /// The requests of one HTTP/1 connection, one after the other.
    async fn http1(&self, stream: Stream, conn: &Conn, shutdown: &ShutdownWatch) {
        let fd = stream.id();
        let mut session = ServerSession::new_http1(stream);
        // Seconds; 0 is the engine's word for no limit.
        let idle = self.shared.config.client_read_timeout.map_or(0, |d| d.as_secs().max(1));
        session.set_keepalive(if *shutdown.borrow() { None } else { Some(idle) });
        let mut stop = shutdown.clone();
        let stopped = async move {
            // An error means that nobody is left to stop us.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let mut stopped = pin!(stopped.fuse());
        loop {
            conn.expect_head();
            let serving = async {
                tokio::select! {
                    biased;
                    done = self.engine.process_new_http(session, shutdown) => done,
                    () = conn.clock.stuck() => None,
                }
            };
            let reused =
                match until(serving, stopped.as_mut(), || conn.reading_head(), || conn.idle(fd)).await {
                    Some(Some(reused)) => reused,
                    _ => return,
                };
            let (mut stream, settings) = reused.consume();
            conn.response_is_written();
            if conn.owed.load(Ordering::Relaxed) && stream.flush().await.is_err() {
                return;
            }
            session = ServerSession::new_http1(stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
        }
    }
}

/// Serves one request to its end, unless the process stops while the connection is idle: `None`.
/// The stop is looked for only while a head is `awaited`, so that a request pays nothing for it.
async fn until<T>(
    serving: impl Future<Output = T>,
    mut stopped: Pin<&mut (impl FusedFuture<Output = ()> + Send)>,
    awaited: impl Fn() -> bool,
    idle: impl Fn() -> bool,
) -> Option<T> {
    let mut serving = pin!(serving);
    poll_fn(move |cx| {
        if let Poll::Ready(done) = serving.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        let stopped = awaited() && (stopped.is_terminated() || stopped.as_mut().poll(cx).is_ready());
        if stopped && idle() { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// Whether bytes have arrived that nobody has read.
fn waiting_input(fd: RawFd) -> bool {
    let mut byte = [0u8; 1];
    // SAFETY: the buffer is as long as stated; a descriptor that is none gives an error.
    unsafe { libc::recv(fd, byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) > 0 }
}

/// Starts the accept loops of both listeners on the current runtime.
pub fn serve(
    shared: Arc<Shared>,
    bound: Bound,
    drain: ShutdownWatch,
    stopped: ShutdownWatch,
) -> Result<tokio::task::JoinHandle<()>, StartError> {
    let config = &shared.config;
    let conf = Arc::new(ServerConf {
        threads: config.threads,
        upstream_keepalive_pool_size: config.upstream_keepalive_connections,
        // The hooks say for each request how often; this is the bound of what they can say.
        max_retries: usize::from(crate::upstream::MOST_TRIES),
        ..ServerConf::default()
    });
    let mut engine = http_proxy(&conf, Guarded(Gateway::new(shared.clone())));
    let mut options = HttpServerOptions::default();
    options.h2_idle_timeout = config.client_keepalive_timeout;
    engine.server_options = Some(options);
    let mut h2 = default_h2_options();
    h2.max_concurrent_streams(config.http2_max_concurrent_streams)
        .max_header_list_size(u32::try_from(config.max_header_size).unwrap_or(u32::MAX))
        .initial_window_size(H2_STREAM_WINDOW)
        .initial_connection_window_size(H2_CONNECTION_WINDOW)
        .max_send_buffer_size(H2_SEND_BUFFER);
    engine.h2_options = Some(h2);

    let engine = Arc::new(engine);
    let http2 = Arc::new(Http2 { shared: shared.clone(), engine: engine.clone() });
    let edge = || Edge {
        shared: shared.clone(),
        engine: engine.clone(),
        http2: http2.clone(),
        drain: drain.clone(),
    };
    let tls =
        |port| tls::settings(port, shared.reader.clone(), shared.metrics.clone(), shared.places.clone());
    let mut service = Service::new("edge".into(), edge());
    let mut fds = Fds::new();
    service.add_listener(endpoint(&mut fds, bound.http)?);
    service.add_listener(endpoint(&mut fds, bound.https)?.tls(tls(443)?));
    // Whether clients speak TLS on these is for the Gateways to say; `HelloDeadline` asks.
    for (port, socket) in bound.gateway {
        service.add_listener(endpoint(&mut fds, socket)?.tls(tls(port)?));
    }
    let hello = HelloDeadline {
        limit: config.tls_handshake_timeout,
        proxies: config.proxy_protocol.then(|| config.trusted_proxies.clone()),
        shared: shared.clone(),
        edge: Arc::new(edge()),
        stopped: stopped.clone(),
    };
    service.endpoints().set_pre_tls_callback(Arc::new(hello));
    let fds = Arc::new(Mutex::new(fds));
    Ok(tokio::spawn(async move { service.start_service(Some(fds), stopped, 1).await }))
}

/// Hands a bound socket to the engine, which finds it by its address and never binds anything itself.
fn endpoint(fds: &mut Fds, listener: std::net::TcpListener) -> Result<ListenerConfig, StartError> {
    let address = listener.local_addr().map_err(|e| StartError::Settings(e.to_string()))?.to_string();
    fds.add(address.clone(), listener.into_raw_fd());
    Ok(ListenerConfig::tcp(address).l4_buffer(L4BufferSettings::new(READ_BUFFER, WRITE_BUFFER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_addresses_are_written_plainly() {
        // The kernel gives a zone apart from the address, so none is ever written.
        for (peer, plain) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8::1", "2001:db8::1"),
            ("fe80::1", "fe80::1"),
            ("::1", "::1"),
        ] {
            let conn = Conn::new(peer.parse().ok(), None);
            assert_eq!((conn.client.to_str().unwrap(), conn.ip.to_string()), (plain, plain.to_owned()));
        }
    }
}
