//! How many client connections there may be at once (`--max-connections`). A connection takes its
//! place when it is accepted, before a byte of it is read, so that a handshake counts as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The places of a process.
#[derive(Debug)]
pub struct Places {
    taken: AtomicUsize,
    /// `None` = no limit.
    limit: Option<usize>,
}

impl Places {
    /// So many places; `None` = as many as come.
    pub fn new(limit: Option<usize>) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), limit })
    }

    /// A place, if one is left.
    pub fn take(self: &Arc<Self>) -> Option<Place> {
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        let place = Place(self.clone());
        self.limit.is_none_or(|limit| before < limit).then_some(place)
    }

    /// The place of a connection that has one already and is handed on to its next stage.
    pub fn keep(self: &Arc<Self>) -> Place {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Place(self.clone())
    }
}

/// One place, given back when dropped.
#[derive(Debug)]
pub struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_up_to_the_limit_and_come_back() {
        let places = Places::new(Some(2));
        let (first, second) = (places.take(), places.take());
        assert!(first.is_some() && second.is_some() && places.take().is_none());
        assert!(places.take().is_none(), "a refusal takes nothing");
        drop(first);
        let third = places.take();
        assert!(third.is_some() && places.take().is_none());
        // Handing on never fails: the connection is there.
        let kept = places.keep();
        drop(second);
        assert!(places.take().is_none());
        drop(kept);
        assert!(places.take().is_some());
    }

    #[test]
    fn without_a_limit_there_is_always_one() {
        let places = Places::new(None);
        let all: Vec<_> = (0..1000).map(|_| places.take()).collect();
        assert!(all.iter().all(Option::is_some));
    }
}
