//! A request's head while it is read: how long it may take, what its first octets say, and the answer to one that is not
//! going to be read.

use super::EdgeStream;
use crate::preface::{Opening, PREFACE};
use crate::respond::canned;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// The engine's own timer for a head ends the connection without a word; ours is that much earlier.
const BEFORE_ENGINE: Duration = Duration::from_millis(100);

/// How long a client that was refused is still listened to.
const LINGER: Duration = Duration::from_secs(1);

const FAR: Duration = Duration::from_secs(86_400);

/// The clock of a request head that did not come in one piece; heads that do never touch it.
pub(super) struct HeadClock {
    /// When all of the head must be there.
    pub(super) whole: Option<Instant>,
    pub(super) timer: Pin<Box<Sleep>>,
}

pub(super) fn next_deadline(config: &crate::Config, whole: Option<Instant>) -> Instant {
    let engine = config.client_keepalive_timeout.map(|d| d.saturating_sub(BEFORE_ENGINE));
    let pause = config.client_read_timeout.into_iter().chain(engine).min().unwrap_or(FAR);
    let next = Instant::now() + pause;
    whole.map_or(next, |whole| whole.min(next))
}

impl EdgeStream {
    /// Ready once a head that trickles has had its time.
    pub(super) fn poll_clock(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let config = &self.shared.config;
        let clock = self.clock.get_or_insert_with(|| {
            let whole = config.client_header_timeout.map(|limit| Instant::now() + limit);
            HeadClock { whole, timer: Box::pin(sleep_until(next_deadline(config, whole))) }
        });
        clock.timer.as_mut().poll(cx)
    }

    /// Something of the head has come in: the next pause begins.
    pub(super) fn restart_pause(&mut self) {
        if let Some(clock) = &mut self.clock {
            clock.timer.as_mut().reset(next_deadline(&self.shared.config, clock.whole));
        }
    }

    /// Ready once client and backend have both been silent for too long.
    pub(super) fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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

    /// Reads the first octets of a plain connection. What may still become HTTP/2's preface is kept back,
    /// and needs no room for it; all else goes to the engine as if it had come at once. With a whole
    /// preface the engine's HTTP/1 session reads an end, and the connection goes on elsewhere.
    pub(super) fn poll_opening(
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

    /// Answers a head that is not going to be read, takes in a little more of it, so that the client
    /// reads the answer before a reset, and ends.
    pub(super) fn poll_refuse(
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
