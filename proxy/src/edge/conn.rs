//! What is known of a client's connection.

use super::stream::EdgeStream;
use crate::buffer::Reserved;
use crate::clock::Clock;
use crate::framing::{Body, RequestLine};
use crate::listeners::Ports;
use crate::strict::Malformed;
use crate::tls::TlsInfo;
use futures::task::AtomicWaker;
use http::HeaderValue;
use ingress_core::{ClientValidation, Local};
use parking_lot::Mutex;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::protocols::{Digest, SocketDigest};
use pingora_proxy::Session;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::sync::Notify;

/// Streams that an HTTP/2 client may give up at once. Beyond these the connection is closed, if they
/// are most of its streams (CVE-2023-44487, CVE-2025-8671).
const MAX_PREMATURE: u32 = 500;

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
    /// The validation of client certificates that it was let in under.
    pub clients: Option<Arc<ClientValidation>>,
    /// Where it came in; `None` if the system does not say.
    pub local: Option<Local>,
    /// A request head is being read; set by the connection loop, cleared by the first hook.
    pub(super) reading_head: AtomicBool,
    pub(super) head_bytes: AtomicUsize,
    /// The bytes behind the head are being followed.
    pub(super) following: AtomicBool,
    /// How far the bytes of the current request were followed. One task reads a connection, so the
    /// lock is never waited for.
    pub(super) follow: Mutex<Follow>,
    /// The clock of the current HTTP/1 request.
    pub(super) clock: Clock,
    pub(super) streams: Streams,
    /// The connection is to end: whoever reads or writes next gets an error.
    cut: AtomicBool,
    /// Who waits for the connection.
    waiting: AtomicWaker,
    /// The client is to come again on another connection.
    away: Notify,
    /// All that the engine will still write for this request is in memory: what the client does not
    /// take is kept for it, and the engine is done.
    pub(super) whole: AtomicBool,
    pub(super) reserved: Mutex<Option<Reserved>>,
    /// The client has not taken all of what was kept.
    pub(super) owed: AtomicBool,
    /// The response is a stream: nothing of it waits for more.
    pub(super) prompt: AtomicBool,
    /// The client speaks HTTP/2 without TLS: the stream that goes on in the place of this one.
    pub(super) http2: Mutex<Option<Box<EdgeStream>>>,
}

/// The streams of an HTTP/2 connection, counted.
#[derive(Default)]
pub(super) struct Streams {
    all: AtomicU32,
    pub(super) active: AtomicU32,
    premature: AtomicU32,
    pub(super) flood: AtomicBool,
}

/// What is known of the bytes of an HTTP/1 request.
#[derive(Default)]
pub(super) struct Follow {
    pub(super) line: RequestLine,
    /// The last piece of the head as it was read: the body may begin in it.
    pub(super) tail: Vec<u8>,
    pub(super) body: Option<Body>,
    /// Bytes behind the body: the next request begins with them. The engine keeps them too.
    pub(super) ahead: Vec<u8>,
    pub(super) broken: bool,
}

impl Conn {
    pub(super) fn new(client: Option<IpAddr>, ssl: Option<&SslDigest>) -> Self {
        let ip = client.unwrap_or(IpAddr::from([0, 0, 0, 0])).to_canonical();
        let info = ssl.and_then(|d| d.extension.get::<TlsInfo>());
        Self {
            ip,
            client: HeaderValue::from_str(&ip.to_string()).unwrap_or(HeaderValue::from_static("unknown")),
            tls: ssl.is_some(),
            tls_version: info.map(|i| i.version),
            sni: info.and_then(|i| i.sni.clone()),
            clients: info.and_then(|i| i.clients.clone()),
            local: None,
            reading_head: AtomicBool::new(false),
            head_bytes: AtomicUsize::new(0),
            following: AtomicBool::new(false),
            follow: Mutex::default(),
            clock: Clock::default(),
            streams: Streams::default(),
            cut: AtomicBool::new(false),
            waiting: AtomicWaker::new(),
            away: Notify::new(),
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
    pub(super) fn reading_head(&self) -> bool {
        self.reading_head.load(Ordering::Relaxed)
    }

    /// Nothing of the next request is here, also not in the kernel.
    pub(super) fn idle(&self, fd: RawFd) -> bool {
        self.reading_head() && self.head_bytes.load(Ordering::Relaxed) == 0 && !waiting_input(fd)
    }

    /// What follows is a tunnel: its bytes are nobody's business.
    pub fn follow_no_more(&self) {
        self.following.store(false, Ordering::Relaxed);
    }

    /// Sends the client away from an HTTP/2 connection; what runs on it goes on.
    pub fn send_away(&self) {
        self.away.notify_one();
    }

    /// Comes when the client is to be sent away.
    pub(super) async fn sent_away(&self) {
        self.away.notified().await;
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
    pub(super) fn pending<T>(&self, cx: &Context<'_>) -> Poll<io::Result<T>> {
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
    pub(super) fn response_is_written(&self) {
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

/// Whether bytes have arrived that nobody has read.
fn waiting_input(fd: RawFd) -> bool {
    let mut byte = [0u8; 1];
    // SAFETY: the buffer is as long as stated; a descriptor that is none gives an error.
    unsafe { libc::recv(fd, byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) > 0 }
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
