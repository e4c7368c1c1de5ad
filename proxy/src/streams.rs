//! Responses that stream to clients that are slower than their backends. The engine reads ahead, and
//! what it has read waits in memory; neither its depth nor the size of its pieces can be set. So the
//! number of such responses is bounded here: beyond the budget, the one whose client has taken
//! nothing for the longest makes room.

use crate::edge::Conn;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What one response can hold while its client does not read: the engine's buffer of 64 KiB, four
/// pieces of as much in its queue, one before it, and up to six behind it in one write.
pub const COST: usize = 768 << 10;

/// A response that has sent less than this has little waiting.
pub const SMALL: usize = 64 << 10;

/// A response whose pieces are smaller than this holds little, however many of them wait: events.
const LIGHT: usize = 8 << 10;

/// A client that has taken something within this time is not stalled.
const STALLED: Duration = Duration::from_secs(1);

/// The streaming responses of a process.
pub struct Streams {
    /// `None` = as many as come.
    limit: Option<usize>,
    /// A response for which nothing has moved for longer has nothing waiting: its client would have
    /// met its write timeout. So it is the backend that is silent.
    silent: Duration,
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
    progress: Arc<Progress>,
}

struct Progress {
    /// When the client had last taken all before, in milliseconds since the epoch.
    at: AtomicU64,
    /// The size of the last pieces, the earlier ones counting less and less.
    piece: AtomicUsize,
}

/// There is no room, and nobody to make some.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Streams {
    /// A budget of `bytes`, `None` = no limit, for clients of this write timeout.
    pub fn new(bytes: Option<usize>, write_timeout: Option<Duration>) -> Arc<Self> {
        let limit = bytes.map(|bytes| (bytes / COST).max(1));
        let silent = write_timeout.map_or(Duration::MAX, |t| t + STALLED);
        Arc::new(Self { limit, silent, epoch: Instant::now(), open: Mutex::default() })
    }

    /// A response on this connection begins to stream. Tells whether another one was ended for it.
    pub fn enter(self: &Arc<Self>, conn: &Arc<Conn>, now: Instant) -> Result<(Stream, bool), Full> {
        let now = self.millis(now);
        let mut open = self.open.lock();
        let made_room = match self.limit {
            Some(limit) if open.entries.len() >= limit => self.make_room(&open, limit, now)?,
            _ => false,
        };
        let id = open.next;
        open.next += 1;
        let progress = Arc::new(Progress { at: now.into(), piece: SMALL.into() });
        open.entries.insert(id, Entry { conn: conn.clone(), progress: progress.clone() });
        Ok((Stream { streams: self.clone(), id, progress }, made_room))
    }

    fn make_room(&self, open: &Open, limit: usize, now: u64) -> Result<bool, Full> {
        let silent = u64::try_from(self.silent.as_millis()).unwrap_or(u64::MAX);
        // One that was told to end is as good as gone: its task has yet to run.
        let holding = |e: &&Entry| {
            e.progress.piece.load(Ordering::Relaxed) >= LIGHT
                && now.saturating_sub(e.progress.at.load(Ordering::Relaxed)) <= silent
                && !e.conn.is_cut()
        };
        if open.entries.values().filter(holding).count() < limit {
            return Ok(false);
        }
        let since = |e: &Entry| e.progress.at.load(Ordering::Relaxed);
        let stalled = |e: &&Entry| now.saturating_sub(since(e)) >= STALLED.as_millis() as u64;
        let slowest = open.entries.values().filter(holding).min_by_key(|e| since(e));
        slowest.filter(stalled).ok_or(Full)?.conn.cut();
        Ok(true)
    }

    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_millis() as u64
    }
}

/// One streaming response; gives its room back when dropped.
pub struct Stream {
    streams: Arc<Streams>,
    id: u64,
    progress: Arc<Progress>,
}

impl Stream {
    /// The client has taken what it was given before; the next piece has so many bytes.
    pub fn moved(&self, bytes: usize, now: Instant) {
        self.progress.at.store(self.streams.millis(now), Ordering::Relaxed);
        let piece = self.progress.piece.load(Ordering::Relaxed) / 2;
        self.progress.piece.store(piece.max(bytes), Ordering::Relaxed);
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

    const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

    fn conn() -> Arc<Conn> {
        Arc::new(Conn::for_test("192.0.2.7", false))
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn the_one_that_waits_longest_makes_room() {
        let streams = Streams::new(Some(2 * COST), MINUTE);
        let (a, b, c, d) = (conn(), conn(), conn(), conn());
        let t0 = Instant::now();
        let (first, cut) = streams.enter(&a, t0).unwrap();
        assert!(!cut);
        let (_second, _) = streams.enter(&b, t0).unwrap();
        assert!(matches!(streams.enter(&c, t0), Err(Full)), "both have moved just now");
        first.moved(SMALL, after(t0, 2));
        let (_third, cut) = streams.enter(&c, after(t0, 2)).unwrap();
        assert!(cut && b.is_cut() && !a.is_cut() && !c.is_cut());
        assert!(matches!(streams.enter(&d, after(t0, 2)), Err(Full)));
        drop(first);
        assert!(streams.enter(&d, after(t0, 2)).is_ok());
    }

    #[test]
    fn all_streams_of_a_connection_end_together() {
        let streams = Streams::new(Some(2 * COST), MINUTE);
        let (a, b) = (conn(), conn());
        let t0 = Instant::now();
        let _both = (streams.enter(&a, t0).unwrap(), streams.enter(&a, t0).unwrap());
        let (_b, cut) = streams.enter(&b, after(t0, 1)).unwrap();
        assert!(cut && a.is_cut());
        assert!(!streams.enter(&b, after(t0, 1)).unwrap().1, "the other of the two is ending as well");
    }

    #[test]
    fn what_holds_nothing_takes_no_room() {
        let streams = Streams::new(Some(2 * COST), MINUTE);
        let (events, silent) = (conn(), conn());
        let t0 = Instant::now();
        let mut open = Vec::new();
        for _ in 0..10 {
            let (stream, _) = streams.enter(&events, t0).unwrap();
            (0..5).for_each(|_| stream.moved(200, t0));
            open.push(stream);
        }
        // Silent for longer than a client may be.
        for _ in 0..2 {
            open.push(streams.enter(&silent, t0).unwrap().0);
        }
        let (stream, cut) = streams.enter(&conn(), after(t0, 62)).unwrap();
        assert!(!cut && !events.is_cut() && !silent.is_cut());
        open.push(stream);
    }

    #[test]
    fn without_a_budget_there_is_no_end() {
        let streams = Streams::new(None, MINUTE);
        let conn = conn();
        let all: Vec<_> = (0..1000).map(|_| streams.enter(&conn, Instant::now())).collect();
        assert!(all.iter().all(Result::is_ok) && !conn.is_cut());
    }
}
