//! Responses that stream to clients that are slower than their backends. The engine reads ahead, and
//! what it has read waits in memory; neither its depth nor the size of its pieces can be set. So the
//! number of such responses is bounded here: beyond the budget, the one whose client has taken
//! nothing for the longest makes room.

use crate::edge::Conn;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What one response can hold while its client does not read: the engine's buffer of 64 KiB, four
/// pieces of as much in its queue, one before it, and up to five behind it in one write.
pub const COST: usize = 768 << 10;

/// A response that has sent less than this has little waiting.
pub const SMALL: usize = 64 << 10;

/// A client that has taken something within this time is not stalled.
const STALLED: Duration = Duration::from_secs(1);

/// The streaming responses of a process.
pub struct Streams {
    /// `None` = as many as come.
    limit: Option<usize>,
    epoch: Instant,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    entries: HashMap<u64, Entry>,
}

struct Entry {
    conn: Arc<Conn>,
    /// Milliseconds since the epoch.
    moved: Arc<AtomicU64>,
    /// Told to end; it still counts until it has.
    cut: bool,
}

/// There is no room, and nobody to make some.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Streams {
    /// A budget of `bytes`; `None` = no limit.
    pub fn new(bytes: Option<usize>) -> Arc<Self> {
        let limit = bytes.map(|bytes| (bytes / COST).max(1));
        Arc::new(Self { limit, epoch: Instant::now(), open: Mutex::default() })
    }

    /// A response on this connection begins to stream. Tells whether another one was ended for it.
    pub fn enter(self: &Arc<Self>, conn: &Arc<Conn>, now: Instant) -> Result<(Stream, bool), Full> {
        let now = self.millis(now);
        let mut open = self.open.lock();
        let mut made_room = false;
        if self.limit.is_some_and(|limit| open.entries.len() >= limit) {
            // Those that were told to end are as good as gone, up to as many again: their tasks have
            // yet to run.
            let ending = open.entries.values().filter(|e| e.cut).count();
            if self.limit.is_some_and(|limit| open.entries.len() - ending >= limit) {
                let stalled = now.saturating_sub(STALLED.as_millis() as u64);
                let slowest = open
                    .entries
                    .values_mut()
                    .filter(|e| !e.cut)
                    .min_by_key(|e| e.moved.load(Ordering::Relaxed))
                    .filter(|e| e.moved.load(Ordering::Relaxed) <= stalled)
                    .ok_or(Full)?;
                slowest.conn.cut();
                let conn = slowest.conn.clone();
                // One connection of HTTP/2 may have many.
                open.entries.values_mut().filter(|e| Arc::ptr_eq(&e.conn, &conn)).for_each(|e| e.cut = true);
                made_room = true;
            }
        }
        let id = open.next;
        open.next += 1;
        let moved = Arc::new(AtomicU64::new(now));
        open.entries.insert(id, Entry { conn: conn.clone(), moved: moved.clone(), cut: false });
        Ok((Stream { streams: self.clone(), id, moved }, made_room))
    }

    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_millis() as u64
    }
}

/// One streaming response; gives its room back when dropped.
pub struct Stream {
    streams: Arc<Streams>,
    id: u64,
    moved: Arc<AtomicU64>,
}

impl Stream {
    /// The client has taken what it was given before.
    pub fn moved(&self, now: Instant) {
        self.moved.store(self.streams.millis(now), Ordering::Relaxed);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.streams.open.lock().entries.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn() -> Arc<Conn> {
        Arc::new(Conn::for_test("192.0.2.7", false))
    }

    #[test]
    fn the_one_that_waits_longest_makes_room() {
        let streams = Streams::new(Some(2 * COST));
        let (a, b, c, d) = (conn(), conn(), conn(), conn());
        let t0 = Instant::now();
        let (first, cut) = streams.enter(&a, t0).unwrap();
        assert!(!cut);
        let (_second, _) = streams.enter(&b, t0).unwrap();
        assert!(matches!(streams.enter(&c, t0), Err(Full)), "both have moved just now");
        first.moved(t0 + Duration::from_secs(2));
        let (_third, cut) = streams.enter(&c, t0 + Duration::from_secs(2)).unwrap();
        assert!(cut && b.is_cut() && !a.is_cut() && !c.is_cut());
        assert!(matches!(streams.enter(&d, t0 + Duration::from_secs(2)), Err(Full)));
        drop(first);
        assert!(streams.enter(&d, t0 + Duration::from_secs(2)).is_ok());
    }

    #[test]
    fn all_streams_of_a_connection_end_together() {
        let streams = Streams::new(Some(2 * COST));
        let (a, b) = (conn(), conn());
        let t0 = Instant::now();
        let _both = (streams.enter(&a, t0).unwrap(), streams.enter(&a, t0).unwrap());
        let later = t0 + Duration::from_secs(1);
        let (_b, cut) = streams.enter(&b, later).unwrap();
        assert!(cut && a.is_cut());
        // The other of the two is ending as well, so nobody else has to.
        assert!(!streams.enter(&b, later).unwrap().1);
    }

    #[test]
    fn without_a_budget_there_is_no_end() {
        let streams = Streams::new(None);
        let conn = conn();
        let all: Vec<_> = (0..1000).map(|_| streams.enter(&conn, Instant::now())).collect();
        assert!(all.iter().all(Result::is_ok) && !conn.is_cut());
    }
}
