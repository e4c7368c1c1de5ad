//! How often the API is written to.

use std::time::Duration;
use tokio::time::{Instant, sleep};

/// So many a second on average, and so many at once after a rest.
pub(crate) struct Tokens {
    per_second: f64,
    burst: f64,
    left: f64,
    at: Instant,
}

impl Tokens {
    pub(crate) fn new(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst, left: burst, at: Instant::now() }
    }

    /// Waits until there is one, and takes it.
    pub(crate) async fn take(&mut self) {
        self.refill();
        if self.left < 1.0 {
            sleep(Duration::from_secs_f64((1.0 - self.left) / self.per_second)).await;
            self.refill();
        }
        self.left -= 1.0;
    }

    fn refill(&mut self) {
        let now = Instant::now();
        let earned = now.duration_since(self.at).as_secs_f64() * self.per_second;
        self.left = (self.left + earned).min(self.burst);
        self.at = now;
    }
}
