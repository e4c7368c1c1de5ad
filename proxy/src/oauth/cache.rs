//! What was checked a moment ago: bounded in bytes, in shards, forgotten by age.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

const SHARDS: usize = 16;
/// Bytes of keys and values that one shard takes in before it forgets its older half.
const SHARD_BYTES: usize = 256 << 10;
/// A key's last bytes; the end of a sealed value is as good as random.
const TAIL: usize = 32;

/// Values by texts that are secrets: found by a hash of a part, and then compared as a whole.
pub struct Cache<V> {
    shards: [Mutex<Shard<V>>; SHARDS],
    hasher: RandomState,
}

struct Shard<V> {
    /// What is full becomes `older`, and what was `older` is dropped.
    newer: HashMap<u64, Entry<V>>,
    older: HashMap<u64, Entry<V>>,
    bytes: usize,
}

struct Entry<V> {
    key: Box<[u8]>,
    value: V,
    until: u64,
    bytes: usize,
}

impl<V> Default for Shard<V> {
    fn default() -> Self {
        Self { newer: HashMap::new(), older: HashMap::new(), bytes: 0 }
    }
}

impl<V: Clone> Cache<V> {
    pub fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }

    /// The value for a key in pieces.
    pub fn find<'k>(&self, place: &[u8], key: impl Iterator<Item = &'k [u8]> + Clone, now: u64) -> Option<V> {
        let hash = self.hash(place, key.clone());
        let mut shard = self.shard(hash).lock();
        if let Some(entry) = shard.newer.get(&hash) {
            return (entry.until > now && same(&entry.key, place, key)).then(|| entry.value.clone());
        }
        let entry = shard.older.remove(&hash).filter(|e| e.until > now && same(&e.key, place, key))?;
        let value = entry.value.clone();
        shard.put(hash, entry);
        Some(value)
    }

    /// Keeps a value that takes about `bytes` besides its key, until then.
    pub fn keep<'k>(
        &self,
        place: &[u8],
        key: impl Iterator<Item = &'k [u8]> + Clone,
        value: V,
        bytes: usize,
        until: u64,
    ) {
        let hash = self.hash(place, key.clone());
        let mut whole = place.to_vec();
        key.for_each(|piece| whole.extend_from_slice(piece));
        let key: Box<[u8]> = whole.into();
        let bytes = bytes + key.len();
        if bytes <= SHARD_BYTES / 2 {
            self.shard(hash).lock().put(hash, Entry { key, value, until, bytes });
        }
    }

    fn hash<'k>(&self, place: &[u8], key: impl Iterator<Item = &'k [u8]>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        place.hash(&mut hasher);
        if let Some(last) = key.last() {
            last[last.len().saturating_sub(TAIL)..].hash(&mut hasher);
        }
        hasher.finish()
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard<V>> {
        &self.shards[(hash >> 60) as usize % SHARDS]
    }
}

impl<V> Shard<V> {
    fn put(&mut self, hash: u64, entry: Entry<V>) {
        if self.bytes + entry.bytes > SHARD_BYTES {
            self.older = std::mem::take(&mut self.newer);
            self.bytes = 0;
        }
        self.bytes += entry.bytes;
        if let Some(replaced) = self.newer.insert(hash, entry) {
            self.bytes -= replaced.bytes;
        }
    }
}

fn same<'k>(whole: &[u8], place: &[u8], pieces: impl Iterator<Item = &'k [u8]>) -> bool {
    let Some(mut rest) = whole.strip_prefix(place) else { return false };
    for piece in pieces {
        match rest.strip_prefix(piece) {
            Some(tail) => rest = tail,
            None => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<'a>(pieces: &'a [&'a str]) -> impl Iterator<Item = &'a [u8]> + Clone {
        pieces.iter().map(|piece| piece.as_bytes())
    }

    #[test]
    fn only_the_whole_key_at_its_place_and_time_is_found() {
        let cache = Cache::new();
        let tail = "t".repeat(TAIL);
        let (a, b) = (format!("a{tail}"), format!("b{tail}"));
        cache.keep(b"host", key(&["one", &a]), 1, 10, 100);
        assert_eq!(cache.find(b"host", key(&["one", &a]), 99), Some(1));
        assert_eq!(cache.find(b"host", key(&["one", &a]), 100), None);
        assert_eq!(cache.find(b"host", key(&["one", &b]), 99), None, "the tails are equal");
        assert_eq!(cache.find(b"host", key(&["on", &a]), 99), None);
        assert_eq!(cache.find(b"other", key(&["one", &a]), 99), None);
        assert_eq!(cache.find(b"host", key(&["one"]), 99), None);
        assert_eq!(cache.find(b"host", key(&[]), 99), None);
    }

    #[test]
    fn it_stays_within_its_bytes_and_what_is_used_stays() {
        let cache = Cache::new();
        cache.keep(b"", key(&["used"]), 0, 10, u64::MAX);
        for i in 1..100_000 {
            cache.keep(b"", key(&[&format!("{i}")]), i, 1000, u64::MAX);
            if i % 100 == 0 {
                assert_eq!(cache.find(b"", key(&["used"]), 1), Some(0), "{i}");
            }
        }
        let kept: usize = cache
            .shards
            .iter()
            .map(|shard| {
                let shard = shard.lock();
                shard.newer.values().chain(shard.older.values()).map(|e| e.bytes).sum::<usize>()
            })
            .sum();
        assert!(kept <= 2 * SHARDS * SHARD_BYTES, "{kept}");
        cache.keep(b"", key(&["large"]), 0, SHARD_BYTES, u64::MAX);
        assert_eq!(cache.find(b"", key(&["large"]), 1), None);
    }
}
