//! An HTTP/2 client's connection: what it sends is watched, what it is sent goes out together.

use super::head::next_deadline;
use super::{EdgeStream, nothing};
use crate::frames::Frames;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much an HTTP/2 connection gathers: what one record of TLS can hold.
const GATHER: usize = 16 << 10;
/// Room for that at first.
const GATHER_FIRST: usize = 4 << 10;

impl EdgeStream {
    /// The same connection as one of HTTP/2, these octets the first that are read from it.
    pub(super) fn hand_over(&mut self, octets: &[u8]) -> io::Result<Self> {
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
    pub(super) fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
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
        if self.due
            && let Poll::Ready(Err(error)) = self.poll_gathered(cx)
        {
            self.over = true;
            return Poll::Ready(Err(error));
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

    /// Takes what an HTTP/2 connection has to send. The engine sends each frame by itself; what its streams
    /// have ready at the same time goes out as one record and one system call here.
    pub(super) fn poll_gather(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.gathered.is_under_way() || self.gathered.rest().len() >= GATHER {
            ready!(self.poll_gathered(cx))?;
        }
        self.gathered.expect(GATHER_FIRST);
        let mut taken = 0;
        for buf in bufs {
            let part = &buf[..buf.len().min(GATHER - self.gathered.rest().len())];
            self.gathered.take(part);
            taken += part.len();
            if part.len() < buf.len() {
                break;
            }
        }
        Poll::Ready(Ok(taken))
    }

    /// Sends what was gathered.
    pub(super) fn poll_gathered(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let limit = self.shared.config.client_write_timeout;
        let step = self.gathered.poll_write(cx, &mut self.inner, &mut self.stall, limit);
        if step.is_pending() {
            return self.conn.pending(cx);
        }
        self.due = false;
        step
    }

    /// An HTTP/2 connection that the engine drops while it is idle ends with a GOAWAY, so that a client
    /// knows that a request which crosses it was not seen. There is no time to wait: what the socket
    /// does not take at once is not sent.
    pub(super) fn say_goodbye(&mut self) {
        let idle = !self.over && self.conn.streams.active.load(Ordering::Relaxed) == 0;
        if let Some(frames) = self.frames.as_ref().filter(|f| idle && !f.owes()) {
            let goaway = frames.goaway();
            let mut cx = Context::from_waker(Waker::noop());
            let rest = self.gathered.rest();
            if !rest.is_empty()
                && !matches!(Pin::new(&mut self.inner).poll_write(&mut cx, rest), Poll::Ready(Ok(n)) if n == rest.len())
            {
                return;
            }
            let _ = Pin::new(&mut self.inner).poll_write(&mut cx, &goaway);
            let _ = Pin::new(&mut self.inner).poll_flush(&mut cx);
        }
    }
}

#[cfg(test)]
mod tests;
