//! Limits by client: a token bucket for each object and client address, in a table that outlives
//! snapshots and never grows.
//!
//! The arithmetic is the generic cell rate algorithm (ITU-T I.371): of a bucket only the time is kept at
//! which it will be full again. So a bucket that is full needs no place at all, and an entry is a key
//! and one number.

use ingress_core::policy::rate_limit::{Bucket, RateLimit};
use ingress_core::{ResourceRef, Route};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::time::Instant;

/// Shards, sets in each and entries in each set make a million buckets that are remembered at once.
/// Beyond it, the fullest of a set are forgotten, which is what loses least: a forgotten bucket is a
/// full one.
const SHARDS: usize = 64;
const SETS: usize = 2048;
const WAYS: usize = 8;

const SECOND: u64 = 1_000_000_000;

/// A bucket that is not full.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// Of object, client and kind of limit, under a key of this process: nobody can aim at another's. Of
    /// a million entries, the chance that two share one is below 1 in 10^7.
    key: u64,
    /// When the bucket will be full again, in nanoseconds of the limiter's clock.
    full_at: u64,
}

/// Entries of which each has its place in one of eight.
type Set = [Entry; WAYS];

type Shard = Mutex<Box<[Set]>>;

/// All limits of this process.
pub struct Limiter {
    began: Instant,
    hasher: RandomState,
    /// Which bits of an IPv6 address tell clients apart.
    mask: u128,
    /// Made when the first request is limited; the kernel gives its pages as they are used.
    buckets: OnceLock<Box<[Shard]>>,
    /// Requests in flight, for those limits alone that count them.
    in_flight: [Mutex<HashMap<u64, u32>>; SHARDS],
}

/// A limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Whole seconds after which a request may pass; at least one.
    pub retry_after: u32,
}

impl Limiter {
    /// Nobody has asked yet. Clients whose IPv6 addresses agree in this many bits are one.
    pub fn new(ipv6_prefix: u8) -> Self {
        Self {
            began: Instant::now(),
            hasher: RandomState::new(),
            mask: u128::MAX.checked_shl(128u32.saturating_sub(ipv6_prefix.into())).unwrap_or(0),
            buckets: OnceLock::new(),
            in_flight: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Whether the client may ask now. A request that counts as in flight is to be handed back to
    /// [`leave`](Self::leave) at its end.
    pub fn admit(&self, route: &Route, client: IpAddr) -> Result<Option<InFlight>, Limited> {
        let limit = &route.policy.rate_limit;
        if limit.is_none() {
            return Ok(None);
        }
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.admit_at(limit, &route.source, client, now)
    }

    fn admit_at(
        &self,
        limit: &RateLimit,
        object: &ResourceRef,
        client: IpAddr,
        now: u64,
    ) -> Result<Option<InFlight>, Limited> {
        let client = self.client(client);
        let key = |kind: u8| self.hasher.hash_one((kind, client, object)).max(1);
        let in_flight = match limit.connections {
            Some(most) => Some(self.enter(key(0), most)?),
            None => None,
        };
        for (kind, bucket) in [(1, &limit.second), (2, &limit.minute)] {
            let Some(bucket) = bucket else { continue };
            if let Err(wait) = self.take(key(kind), bucket, now) {
                if let Some(in_flight) = in_flight {
                    self.leave(in_flight);
                }
                let seconds = u32::try_from(wait.div_ceil(SECOND)).unwrap_or(u32::MAX);
                return Err(Limited { retry_after: seconds.max(1) });
            }
        }
        Ok(in_flight)
    }

    fn client(&self, ip: IpAddr) -> u128 {
        match ip.to_canonical() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => Ipv6Addr::to_bits(ip) & self.mask,
        }
    }

    /// Takes a token, or tells in how many nanoseconds there will be one.
    fn take(&self, key: u64, bucket: &Bucket, now: u64) -> Result<(), u64> {
        let (interval, depth) = (bucket.interval(), bucket.depth());
        let shards = self.buckets.get_or_init(|| {
            (0..SHARDS).map(|_| Mutex::new(vec![[Entry::default(); WAYS]; SETS].into())).collect()
        });
        let (shard, set) = place(key);
        let mut shard = shards[shard].lock();
        let set = &mut shard[set];
        let at = match set.iter().position(|entry| entry.key == key) {
            Some(at) => at,
            None => {
                // Unused, then long full, then nearly full.
                let least = (0..WAYS).min_by_key(|at| set[*at].full_at).unwrap_or(0);
                set[least] = Entry { key, full_at: 0 };
                least
            }
        };
        // No bucket is emptier than empty: a limit that was lowered holds nobody up for longer than
        // the new one would.
        let full_at = set[at].full_at.clamp(now, now.saturating_add(depth)).saturating_add(interval);
        match (full_at - now).checked_sub(depth) {
            None | Some(0) => {
                set[at].full_at = full_at;
                Ok(())
            }
            Some(wait) => Err(wait),
        }
    }

    fn enter(&self, key: u64, most: NonZeroU32) -> Result<InFlight, Limited> {
        let mut shard = self.in_flight[place(key).0].lock();
        let count = shard.entry(key).or_default();
        if *count >= most.get() {
            return Err(Limited { retry_after: 1 });
        }
        *count += 1;
        Ok(InFlight(key))
    }

    /// A request that was in flight has ended.
    pub fn leave(&self, InFlight(key): InFlight) {
        let mut shard = self.in_flight[place(key).0].lock();
        if let Some(count) = shard.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&key);
            }
        }
    }
}

/// A request that is counted until it is given back.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct InFlight(u64);

/// Shard and set of a key.
fn place(key: u64) -> (usize, usize) {
    let bits = key as usize;
    (bits % SHARDS, bits / SHARDS % SETS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingress_core::Kind;
    use std::time::Duration;

    const CAPACITY: usize = SHARDS * SETS * WAYS;

    fn object(name: &str) -> ResourceRef {
        ResourceRef::new(Kind::Ingress, "ns", name)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn rps(rate: f64, burst: f64) -> RateLimit {
        RateLimit { second: Bucket::new(rate, Duration::from_secs(1), burst), ..RateLimit::default() }
    }

    /// How many of `n` requests at one moment pass.
    fn passed(limiter: &Limiter, limit: &RateLimit, name: &str, client: &str, n: usize, now: u64) -> usize {
        let ask = || limiter.admit_at(limit, &object(name), ip(client), now).is_ok();
        (0..n).filter(|_| ask()).count()
    }

    #[test]
    fn ten_a_second_with_a_burst_of_five_allow_fifty_at_once_and_then_ten_a_second() {
        let limiter = Limiter::new(128);
        let limit = rps(10.0, 5.0);
        assert_eq!(passed(&limiter, &limit, "web", "192.0.2.1", 80, 0), 50);
        assert_eq!(passed(&limiter, &limit, "web", "192.0.2.1", 80, SECOND / 10), 1);
        assert_eq!(passed(&limiter, &limit, "web", "192.0.2.1", 20, SECOND / 10 + SECOND), 10);
        assert_eq!(
            passed(&limiter, &limit, "web", "192.0.2.1", 80, 100 * SECOND),
            50,
            "never more than full"
        );
    }

    #[test]
    fn each_client_and_each_object_has_its_own_bucket() {
        let limiter = Limiter::new(64);
        let limit = rps(1.0, 1.0);
        let other = ResourceRef::new(Kind::Ingress, "other", "web");
        assert_eq!(passed(&limiter, &limit, "web", "192.0.2.1", 2, 0), 1);
        assert_eq!(passed(&limiter, &limit, "web", "::ffff:192.0.2.1", 1, 0), 0, "the same client");
        assert_eq!(passed(&limiter, &limit, "web", "192.0.2.2", 2, 0), 1);
        assert_eq!(passed(&limiter, &limit, "api", "192.0.2.1", 2, 0), 1);
        assert!(limiter.admit_at(&limit, &other, ip("192.0.2.1"), 0).is_ok());
        assert_eq!(passed(&limiter, &limit, "web", "2001:db8:0:1::1", 1, 0), 1);
        assert_eq!(passed(&limiter, &limit, "web", "2001:db8:0:1::2", 1, 0), 0, "one network of 64 bits");
        assert_eq!(passed(&limiter, &limit, "web", "2001:db8:0:2::1", 1, 0), 1);
        let exact = Limiter::new(128);
        assert_eq!(passed(&exact, &limit, "web", "2001:db8:0:1::1", 1, 0), 1);
        assert_eq!(passed(&exact, &limit, "web", "2001:db8:0:1::2", 1, 0), 1);
    }

    #[test]
    fn the_answer_says_when_to_come_back() {
        let limiter = Limiter::new(128);
        let ask = |limit: &RateLimit, now| limiter.admit_at(limit, &object("web"), ip("192.0.2.1"), now);
        assert_eq!(ask(&rps(0.1, 1.0), 0), Ok(None));
        assert_eq!(ask(&rps(0.1, 1.0), 1), Err(Limited { retry_after: 10 }));
        assert_eq!(ask(&rps(0.1, 1.0), 9 * SECOND + 1), Err(Limited { retry_after: 1 }));
        assert_eq!(ask(&rps(0.1, 1.0), 10 * SECOND), Ok(None));
        // Under a new, tighter limit nobody waits for what the old one had lent.
        let loose = rps(1.0, 1000.0);
        assert_eq!(passed(&limiter, &loose, "loose", "192.0.2.1", 1000, 0), 1000);
        let refused = limiter.admit_at(&rps(1.0, 2.0), &object("loose"), ip("192.0.2.1"), 0);
        assert_eq!(refused, Err(Limited { retry_after: 1 }));
    }

    #[test]
    fn minute_and_second_hold_together() {
        let limiter = Limiter::new(128);
        let minute = Bucket::new(60.0, Duration::from_secs(60), 1.0);
        let limit = RateLimit { minute, ..rps(100.0, 1.0) };
        assert_eq!(passed(&limiter, &limit, "web", "192.0.2.1", 200, 0), 60);
        assert_eq!(passed(&limiter, &limit, "web", "192.0.2.1", 200, SECOND), 1);
    }

    #[test]
    fn requests_in_flight_are_counted_down_as_they_end() {
        let limiter = Limiter::new(128);
        let limit = RateLimit { connections: NonZeroU32::new(2), ..rps(3.0, 1.0) };
        let ask = || limiter.admit_at(&limit, &object("web"), ip("192.0.2.1"), 0);
        let (first, second) = (ask().unwrap().unwrap(), ask().unwrap().unwrap());
        assert_eq!(ask(), Err(Limited { retry_after: 1 }));
        limiter.leave(first);
        let third = ask().unwrap().unwrap();
        limiter.leave(second);
        // Refused for lack of tokens: it does not stay counted.
        assert!(ask().is_err());
        limiter.leave(third);
        assert!(limiter.in_flight.iter().all(|shard| shard.lock().is_empty()), "nothing is left behind");
    }

    #[test]
    fn a_million_clients_take_sixteen_mebibytes_and_do_not_free_the_one_that_floods() {
        assert_eq!(CAPACITY * size_of::<Entry>(), 16 << 20);
        let limiter = Limiter::new(128);
        let limit = rps(1.0, 5.0);
        let flood = |now| passed(&limiter, &limit, "web", "192.0.2.1", 50, now);
        assert_eq!(flood(0), 5);
        for i in 0..1_000_000u32 {
            let client = IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8 << 96) | u128::from(i)));
            assert!(limiter.admit_at(&limit, &object("web"), client, 0).is_ok());
        }
        // A million buckets from which one token was taken: the emptiest stay.
        assert_eq!(flood(0), 0);
        let shards = limiter.buckets.get().unwrap();
        let places: usize = shards.iter().map(|shard| shard.lock().len() * WAYS).sum();
        assert_eq!(places, CAPACITY, "the table is what it was");
        let held =
            shards.iter().map(|s| s.lock().iter().flatten().filter(|e| e.key > 0).count()).sum::<usize>();
        assert!(held > CAPACITY * 3 / 4, "{held} remembered");
    }

    #[test]
    fn threads_together_get_no_more_than_the_bucket_holds() {
        let limiter = Limiter::new(128);
        let limit = rps(10.0, 10.0);
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| passed(&limiter, &limit, "web", "192.0.2.1", 500, 0)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(total, 100);
    }
}
