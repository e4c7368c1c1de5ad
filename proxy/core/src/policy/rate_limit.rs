//! How often one client may ask.

use std::num::NonZeroU32;
use std::time::Duration;

/// What one client is granted on the routes of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RateLimit {
    /// Requests a second.
    pub second: Option<Bucket>,
    /// Requests a minute.
    pub minute: Option<Bucket>,
    /// Requests at the same time.
    pub connections: Option<NonZeroU32>,
}

impl RateLimit {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A token bucket, as the two times that its arithmetic needs: the time in which one token comes in,
/// and the time in which an empty bucket fills. Neither is ever zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    interval: u64,
    depth: u64,
}

impl Bucket {
    /// `rate` tokens in each period, and `burst` times as many in a full bucket, at least one. Neither
    /// may be so small or large that nanoseconds cannot tell it from none or from no limit.
    pub fn new(rate: f64, period: Duration, burst: f64) -> Option<Self> {
        // Casts saturate, and NaN is 0.
        let interval = (period.as_nanos() as f64 / rate).round() as u64;
        // A rate that is short of a whole number by what binary fractions lose still counts as whole.
        let tokens = ((rate * burst + 1e-9).floor() as u64).max(1);
        let depth = interval.checked_mul(tokens).filter(|depth| *depth < 1 << 60)?;
        (rate > 0.0 && burst >= 1.0 && interval > 0).then_some(Self { interval, depth })
    }

    /// Nanoseconds from one token to the next.
    pub fn interval(&self) -> u64 {
        self.interval
    }

    /// Nanoseconds in which an empty bucket fills.
    pub fn depth(&self) -> u64 {
        self.depth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_rate_times_burst_and_at_least_one() {
        const SECOND: Duration = Duration::from_secs(1);
        for (rate, period, burst, interval, tokens) in [
            (10.0, SECOND, 5.0, 100_000_000, 50),
            (1.0, SECOND, 1.0, 1_000_000_000, 1),
            (0.5, SECOND, 1.0, 2_000_000_000, 1),
            (0.1, SECOND, 30.0, 10_000_000_000, 3),
            (1.5, SECOND, 5.0, 666_666_667, 7),
            (60.0, Duration::from_secs(60), 5.0, 1_000_000_000, 300),
            (1e6, SECOND, 10_000.0, 1_000, 10_000_000_000),
        ] {
            let bucket = Bucket::new(rate, period, burst).unwrap();
            assert_eq!((bucket.interval(), bucket.depth()), (interval, interval * tokens), "{rate} {burst}");
        }
        for (rate, burst) in [
            (0.0, 5.0),
            (-1.0, 5.0),
            (f64::NAN, 5.0),
            (f64::INFINITY, 5.0),
            (1e12, 5.0),
            (10.0, 0.0),
            (10.0, f64::NAN),
            (1e-18, 1.0),
        ] {
            assert_eq!(Bucket::new(rate, SECOND, burst), None, "{rate} {burst}");
        }
    }
}
