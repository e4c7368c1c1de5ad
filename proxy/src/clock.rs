//! Clocks of requests that the engine waits for without a limit.

use crate::output::Owing;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

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

    /// What will be owed for a response that is whole, once.
    pub fn take_owing(&self) -> Option<Owing> {
        self.whole.lock().take()
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
            self.expire();
        }
        (left > 0).then(|| Duration::from_millis(left))
    }

    /// The bound has ended the exchange.
    pub fn expire(&self) {
        self.expired.store(true, Ordering::Relaxed);
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
pub struct Waiting(Arc<Clock>);

impl Waiting {
    pub fn begin(clock: &Arc<Clock>) -> Self {
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
