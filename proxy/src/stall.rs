//! The clock of what does not move: a client that does not read, a backend that takes nothing, a connection that is
//! passed on and silent on both sides.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// Counts how long a side has taken no byte, or nothing has moved between two; costs nothing while something moves.
#[derive(Debug, Default)]
pub struct Stall {
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    /// Something moved.
    pub fn progress(&mut self) {
        self.since = None;
    }

    /// Nothing moves just now; ready once that has lasted for `limit`.
    pub fn poll(&mut self, cx: &mut Context<'_>, limit: Option<Duration>) -> Poll<io::Error> {
        let Some(limit) = limit else { return Poll::Pending };
        let end = *self.since.get_or_insert_with(Instant::now) + limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if Instant::now() >= end {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            // It was set for an earlier pause.
            timer.as_mut().reset(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[tokio::test(start_paused = true)]
    async fn only_a_pause_of_the_whole_limit_counts() {
        let mut stall = Stall::default();
        let limit = Some(Duration::from_secs(10));
        for _ in 0..3 {
            let pause = tokio::time::timeout(Duration::from_secs(9), poll_fn(|cx| stall.poll(cx, limit)));
            assert!(pause.await.is_err(), "nine seconds are allowed");
            stall.progress();
        }
        let began = Instant::now();
        assert_eq!(poll_fn(|cx| stall.poll(cx, limit)).await.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), 10);
        let none = tokio::time::timeout(Duration::from_secs(9999), poll_fn(|cx| stall.poll(cx, None)));
        assert!(none.await.is_err(), "no limit");
    }
}
