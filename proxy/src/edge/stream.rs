//! The bytes of a client's connection, with the limits that the engine does not have.

mod head;
mod http2;

use self::head::HeadClock;
use super::conn::{Conn, local};
use crate::frames::Frames;
use crate::output::{Kept, Output, Owing};
use crate::places::Place;
use crate::preface::Opening;
use crate::respond::canned;
use crate::stall::Stall;
use crate::{Shared, handshake, proxy_protocol};
use async_trait::async_trait;
use pingora_core::protocols::l4::socket::SocketAddr as PeerAddr;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream,
    TimingDigest, UniqueID, UniqueIDType,
};
use pingora_http::ResponseHeader;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A client stream that bounds request heads while they are read, and replaces the engine's own
/// answers to heads that it cannot parse.
pub(crate) struct EdgeStream {
    inner: Stream,
    pub(super) conn: Arc<Conn>,
    digest: Arc<ProxyDigest>,
    shared: Arc<Shared>,
    /// An answer of ours that is being written instead; what is left of it.
    canned: Option<&'static [u8]>,
    clock: Option<HeadClock>,
    /// What an HTTP/2 client sends.
    pub(super) frames: Option<Box<Frames>>,
    /// So many octets of HTTP/2's preface, and nothing else, have come in on a plain connection; `None`
    /// once it is known what the client speaks.
    opening: Option<usize>,
    /// One of both sides has ended the connection.
    over: bool,
    /// That of a plain connection; with TLS the handshake holds it (`tls.rs`).
    pub(super) place: Option<Place>,
    output: Output,
    /// What an HTTP/2 connection has to send; it goes out together.
    gathered: Kept,
    /// The engine believes that it was sent.
    due: bool,
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
            gathered: Kept::default(),
            due: false,
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

impl AsyncWrite for EdgeStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.frames.is_some() {
            return self.poll_gather(cx, &[io::IoSlice::new(buf)]);
        }
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
        if self.frames.is_some() && !self.gathered.rest().is_empty() {
            if !self.due {
                // Whoever is ready to add something has its turn before the next read sends it.
                self.due = true;
                cx.waker().wake_by_ref();
            }
            return Poll::Ready(Ok(()));
        }
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
        if !self.gathered.rest().is_empty() {
            ready!(self.poll_gathered(cx))?;
        }
        let step = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.poll_taken(cx, step)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.frames.is_some() {
            return self.poll_gather(cx, bufs);
        }
        if self.conn.reading_head.load(Ordering::Relaxed) || self.keeps() || !self.output.is_empty() {
            let first = bufs.iter().find(|b| !b.is_empty()).map_or(&[][..], |b| &**b);
            return self.poll_write(cx, first);
        }
        let step = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.poll_taken(cx, step)
    }

    fn is_write_vectored(&self) -> bool {
        self.frames.is_some() || self.inner.is_write_vectored()
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
        if !self.gathered.rest().is_empty() {
            let _ = poll_fn(|cx| self.poll_gathered(cx)).await;
        }
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
