//! What a client has still to read: bytes that were taken from the engine while the client was not
//! reading, so that the backend's connection is free.

use crate::Shared;
use crate::buffer::Reserved;
use crate::stall::Stall;
use pingora_core::protocols::Stream;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncWrite;

/// The process waits for these bytes when it ends, and they count towards the budget.
pub struct Owing {
    shared: Arc<Shared>,
    _reserved: Option<Reserved>,
}

impl Owing {
    /// Something is owed to a client.
    pub fn new(shared: Arc<Shared>, reserved: Option<Reserved>) -> Self {
        shared.owing.fetch_add(1, Ordering::Relaxed);
        Self { shared, _reserved: reserved }
    }
}

impl Drop for Owing {
    fn drop(&mut self) {
        self.shared.owing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes that were taken for a client, in order.
#[derive(Default)]
pub struct Kept {
    bytes: Vec<u8>,
    at: usize,
}

impl Kept {
    /// Those that the client has not got.
    pub fn rest(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Some of them, but not all, are the client's already.
    pub fn is_under_way(&self) -> bool {
        self.at > 0
    }

    /// Takes bytes in, behind those that are there.
    pub fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Makes room for so many, if nothing is there yet.
    pub fn expect(&mut self, bytes: usize) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(bytes);
        }
    }

    /// Ready once the client has all of it, or will never have it; then it is gone.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        stall: &mut Stall,
        limit: Option<Duration>,
    ) -> Poll<io::Result<()>> {
        let ended = loop {
            let rest = self.rest();
            let step = if rest.is_empty() {
                Pin::new(&mut *stream).poll_flush(cx).map_ok(|()| 0)
            } else {
                Pin::new(&mut *stream).poll_write(cx, rest)
            };
            match step {
                Poll::Ready(Ok(0)) if rest.is_empty() => break Ok(()),
                Poll::Ready(Ok(0)) => break Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    self.at += n;
                    stall.progress();
                }
                Poll::Ready(Err(error)) => break Err(error),
                Poll::Pending => break Err(ready!(stall.poll(cx, limit))),
            }
        };
        stall.progress();
        *self = Self::default();
        Poll::Ready(ended)
    }
}

/// The end of a response that the engine has written and the client has not taken.
#[derive(Default)]
pub struct Output {
    kept: Kept,
    owing: Option<Owing>,
}

impl Output {
    /// Nothing is owed.
    pub fn is_empty(&self) -> bool {
        self.owing.is_none()
    }

    /// Takes bytes in, behind those that are there. `owing` makes the claim if there is none.
    pub fn take(&mut self, bytes: &[u8], owing: impl FnOnce() -> Owing) {
        self.owing.get_or_insert_with(owing);
        self.kept.take(bytes);
    }

    /// Ready once the client has all of it, or will never have it.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        stall: &mut Stall,
        limit: Option<Duration>,
    ) -> Poll<io::Result<()>> {
        let ended = ready!(self.kept.poll_write(cx, stream, stall, limit));
        self.owing = None;
        Poll::Ready(ended)
    }
}
