//! How far the start has come: for `/readyz`.

use crate::update::kinds;
use ingress_core::Kind;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const FILES: u32 = 1 << 30;
const START: u32 = 1 << 31;

/// Which first lists are still to come, and whether a snapshot was published. Never goes back:
/// a watch that breaks later leaves the last good configuration in place.
#[derive(Debug)]
pub struct SyncStatus {
    pending: AtomicU32,
    published: AtomicBool,
}

impl Default for SyncStatus {
    fn default() -> Self {
        Self { pending: AtomicU32::new(START), published: AtomicBool::new(false) }
    }
}

impl SyncStatus {
    /// The sources whose first full list has not been taken in, by name.
    pub fn pending(&self) -> Vec<&'static str> {
        let bits = self.pending.load(Ordering::Acquire);
        let kinds = kinds().filter(|kind| bits & bit(*kind) != 0).map(Kind::as_str);
        let others = [(FILES, "manifests"), (START, "controller")];
        kinds.chain(others.into_iter().filter(|(b, _)| bits & b != 0).map(|(_, name)| name)).collect()
    }

    /// Whether the first snapshot is out.
    pub fn published(&self) -> bool {
        self.published.load(Ordering::Acquire)
    }

    pub(crate) fn await_kinds(&self, kinds: impl IntoIterator<Item = Kind>) {
        let bits = kinds.into_iter().fold(0, |bits, kind| bits | bit(kind));
        self.pending.store(bits, Ordering::Release);
    }

    /// One more kind is needed before the first snapshot.
    pub(crate) fn await_too(&self, kind: Kind) {
        self.pending.fetch_or(bit(kind), Ordering::AcqRel);
    }

    pub(crate) fn await_files(&self) {
        self.pending.store(FILES, Ordering::Release);
    }

    pub(crate) fn kind_done(&self, kind: Kind) {
        self.pending.fetch_and(!bit(kind), Ordering::AcqRel);
    }

    pub(crate) fn files_done(&self) {
        self.pending.fetch_and(!FILES, Ordering::AcqRel);
    }

    pub(crate) fn snapshot_out(&self) {
        self.published.store(true, Ordering::Release);
    }
}

/// 0 for a kind that is never waited for.
fn bit(kind: Kind) -> u32 {
    kinds().position(|known| known == kind).map_or(0, |at| 1 << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_pending_until_it_is_done() {
        let status = SyncStatus::default();
        assert_eq!((status.pending(), status.published()), (vec!["controller"], false));
        status.await_kinds([Kind::Ingress, Kind::Secret]);
        assert_eq!(status.pending(), ["ingress", "secret"]);
        status.kind_done(Kind::Ingress);
        status.kind_done(Kind::Namespace);
        assert_eq!(status.pending(), ["secret"]);
        status.kind_done(Kind::Secret);
        status.snapshot_out();
        assert_eq!((status.pending(), status.published()), (vec![], true));
    }
}
