//! The same work on many items, spread over the CPUs. For commands that end, not for the server: there the
//! CPUs are the requests'.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;

/// Fewer items are not worth a thread.
const MIN_CHUNK: usize = 64;

/// What `work` makes of each item, in their order. A panic goes on in the caller.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let size = items.len().div_ceil(threads).max(MIN_CHUNK);
    if items.len() <= size {
        return items.iter().map(work).collect();
    }
    let work = &work;
    thread::scope(|scope| {
        let part = |chunk| scope.spawn(move || items_of(chunk, work));
        let parts: Vec<_> = items.chunks(size).map(part).collect();
        let mut all = Vec::with_capacity(items.len());
        for part in parts {
            all.extend(part.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    })
}

fn items_of<T, R>(chunk: &[T], work: impl Fn(&T) -> R) -> Vec<R> {
    chunk.iter().map(work).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        for n in [0, 1, MIN_CHUNK, 10 * MIN_CHUNK + 1] {
            let items: Vec<_> = (0..n).collect();
            assert_eq!(map(&items, |i| i * 2), items.iter().map(|i| i * 2).collect::<Vec<_>>(), "{n}");
        }
    }

    #[test]
    fn a_panic_is_not_lost() {
        let items: Vec<_> = (0..10 * MIN_CHUNK).collect();
        let last = items.len() - 1;
        assert!(std::panic::catch_unwind(|| map(&items, |i| assert_ne!(*i, last))).is_err());
    }
}
