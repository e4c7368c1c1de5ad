//! Failed credentials by client address: whoever guesses is made to wait, before anything is hashed.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SHARDS: usize = 16;
/// Addresses that one shard remembers; more push the oldest window out.
const MAX: usize = 4096;

/// Counts failures. Addresses without any cost a look at one number.
pub struct Throttle {
    /// Failures in a window, after which all further attempts are refused; 0 = no throttle.
    limit: u32,
    window: Duration,
    shards: [Mutex<HashMap<IpAddr, Count>>; SHARDS],
    hasher: RandomState,
    known: AtomicUsize,
}

#[derive(Clone, Copy)]
struct Count {
    failures: u32,
    /// Attempts whose password is being checked now: they may all fail.
    pending: u32,
    since: Instant,
}

/// An attempt that is being checked.
pub struct Attempt<'a> {
    throttle: &'a Throttle,
    client: IpAddr,
}

impl Throttle {
    /// `limit` failures within `window`; zero of either switches it off.
    pub fn new(limit: u32, window: Duration) -> Self {
        Self {
            limit: if window.is_zero() { 0 } else { limit },
            window,
            shards: Default::default(),
            hasher: RandomState::new(),
            known: AtomicUsize::new(0),
        }
    }

    /// How long the client still has to wait, if it has to.
    pub fn check(&self, client: IpAddr, now: Instant) -> Result<(), Duration> {
        if self.limit == 0 || self.known.load(Relaxed) == 0 {
            return Ok(());
        }
        let client = subject(client);
        match self.shard(&client).lock().get(&client) {
            Some(count) if count.failures >= self.limit => match self.left(count, now) {
                Some(left) => Err(left),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// An attempt begins, unless too many have failed or may fail yet.
    pub fn begin(&self, client: IpAddr, now: Instant) -> Result<Attempt<'_>, Duration> {
        let client = subject(client);
        if self.limit > 0 {
            self.change(client, now, |count| {
                // Those that are being checked are over in a moment.
                let moment = Duration::from_secs(1);
                if count.failures >= self.limit {
                    return Err(self.left(count, now).unwrap_or(moment));
                }
                if count.failures.saturating_add(count.pending) >= self.limit {
                    return Err(moment);
                }
                count.pending += 1;
                Ok(())
            })?;
        }
        Ok(Attempt { throttle: self, client })
    }

    /// Credentials were wrong.
    pub fn failed(&self, client: IpAddr, now: Instant) {
        if self.limit > 0 {
            self.change(subject(client), now, |count| {
                if count.failures == 0 {
                    count.since = now;
                }
                count.failures = count.failures.saturating_add(1);
            });
        }
    }

    /// Credentials were right: what failed before does not count any more.
    pub fn succeeded(&self, client: IpAddr) {
        if self.limit > 0 && self.known.load(Relaxed) > 0 {
            let client = subject(client);
            let mut shard = self.shard(&client).lock();
            if let Entry::Occupied(mut entry) = shard.entry(client) {
                entry.get_mut().failures = 0;
                if entry.get().pending == 0 {
                    entry.remove();
                    self.known.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    fn shard(&self, client: &IpAddr) -> &Mutex<HashMap<IpAddr, Count>> {
        &self.shards[self.hasher.hash_one(client) as usize % SHARDS]
    }

    fn left(&self, count: &Count, now: Instant) -> Option<Duration> {
        self.window.checked_sub(now.saturating_duration_since(count.since)).filter(|left| !left.is_zero())
    }

    fn change<T>(&self, client: IpAddr, now: Instant, work: impl FnOnce(&mut Count) -> T) -> T {
        let mut shard = self.shard(&client).lock();
        if shard.len() >= MAX && !shard.contains_key(&client) {
            let before = shard.len();
            shard.retain(|_, count| count.pending > 0 || self.left(count, now).is_some());
            if shard.len() >= MAX {
                let oldest = shard.iter().filter(|(_, c)| c.pending == 0).min_by_key(|(_, c)| c.since);
                if let Some(oldest) = oldest.map(|(client, _)| *client) {
                    shard.remove(&oldest);
                }
            }
            self.known.fetch_sub(before - shard.len(), Relaxed);
        }
        let count = shard.entry(client).or_insert_with(|| {
            self.known.fetch_add(1, Relaxed);
            Count { failures: 0, pending: 0, since: now }
        });
        if self.left(count, now).is_none() {
            (count.failures, count.since) = (0, now);
        }
        work(count)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let throttle = self.throttle;
        if throttle.limit > 0
            && let Entry::Occupied(mut entry) = throttle.shard(&self.client).lock().entry(self.client)
        {
            let count = entry.get_mut();
            count.pending = count.pending.saturating_sub(1);
            if (count.pending, count.failures) == (0, 0) {
                entry.remove();
                throttle.known.fetch_sub(1, Relaxed);
            }
        }
    }
}

/// Who is counted: an IPv4 address, or the network that one IPv6 host usually has to itself.
fn subject(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6) & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn failures_add_up_until_the_window_is_over_or_one_succeeds() {
        let throttle = Throttle::new(3, WINDOW);
        let (a, b, t) = (ip("192.0.2.1"), ip("192.0.2.2"), Instant::now());
        for i in 0..3 {
            assert_eq!(throttle.check(a, t), Ok(()), "{i}");
            throttle.failed(a, t + Duration::from_secs(i));
        }
        assert_eq!(throttle.check(a, t + Duration::from_secs(10)), Err(Duration::from_secs(50)));
        assert!(throttle.begin(a, t + Duration::from_secs(10)).is_err());
        assert_eq!(throttle.check(b, t), Ok(()));
        assert_eq!(throttle.check(a, t + WINDOW), Ok(()));
        assert!(throttle.begin(a, t + WINDOW).is_ok());

        let throttle = Throttle::new(3, WINDOW);
        for _ in 0..2 {
            throttle.failed(a, t);
        }
        throttle.succeeded(a);
        assert_eq!(throttle.known.load(Relaxed), 0);
        for _ in 0..2 {
            throttle.failed(a, t);
        }
        assert_eq!(throttle.check(a, t), Ok(()));
    }

    #[test]
    fn attempts_at_the_same_time_are_no_way_round() {
        let throttle = Throttle::new(2, WINDOW);
        let (a, t) = (ip("192.0.2.1"), Instant::now());
        let first = throttle.begin(a, t).map_err(drop).unwrap();
        let second = throttle.begin(a, t).map_err(drop).unwrap();
        assert_eq!(throttle.begin(a, t).err(), Some(Duration::from_secs(1)));
        drop(first);
        let third = throttle.begin(a, t);
        assert!(third.is_ok());
        drop((second, third));
        assert_eq!(throttle.known.load(Relaxed), 0, "who did nothing wrong is not remembered");
    }

    #[test]
    fn one_ipv6_network_is_one_client() {
        let throttle = Throttle::new(1, WINDOW);
        let t = Instant::now();
        throttle.failed(ip("2001:db8::1"), t);
        assert!(throttle.check(ip("2001:db8::ffff:1"), t).is_err());
        assert!(throttle.check(ip("2001:db8:0:1::1"), t).is_ok());
    }

    #[test]
    fn memory_is_bounded_and_zero_switches_off() {
        let throttle = Throttle::new(1, WINDOW);
        let t = Instant::now();
        for i in 0..(SHARDS * MAX + 2 * MAX) as u32 {
            throttle.failed(IpAddr::from(i.to_be_bytes()), t);
        }
        assert!(throttle.known.load(Relaxed) <= SHARDS * MAX);
        let total: usize = throttle.shards.iter().map(|s| s.lock().len()).sum();
        assert_eq!(throttle.known.load(Relaxed), total);
        for off in [Throttle::new(0, WINDOW), Throttle::new(1, Duration::ZERO)] {
            off.failed(ip("192.0.2.1"), t);
            assert!(off.check(ip("192.0.2.1"), t).is_ok() && off.begin(ip("192.0.2.1"), t).is_ok());
        }
    }
}
