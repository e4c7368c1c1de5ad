//! The one value that the control plane publishes and the data plane reads.

use crate::{CertStore, RouteTable};
use arc_swap::ArcSwap;
use std::sync::Arc;

/// An immutable, whole picture of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Grows by one with each publish; 0 is the empty snapshot from before the first.
    pub generation: u64,
    /// Routes by host and path.
    pub routes: Arc<RouteTable>,
    /// Certificates by declared host.
    pub certs: Arc<CertStore>,
}

type Observer = Box<dyn Fn(&Arc<Snapshot>) + Send + Sync>;

/// The one writer.
pub struct Publisher {
    cell: Arc<ArcSwap<Snapshot>>,
    observers: Vec<Observer>,
}

/// One of many lock-free readers.
#[derive(Clone)]
pub struct Reader {
    cell: Arc<ArcSwap<Snapshot>>,
}

/// An empty cell with its writer and a first reader.
pub fn channel() -> (Publisher, Reader) {
    let cell = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    (Publisher { cell: cell.clone(), observers: Vec::new() }, Reader { cell })
}

impl Publisher {
    /// Calls `f` after each publish, on the publisher's thread.
    pub fn observe(&mut self, f: impl Fn(&Arc<Snapshot>) + Send + Sync + 'static) {
        self.observers.push(Box::new(f));
    }

    /// Replaces the snapshot as a whole; returns its generation.
    pub fn publish(&mut self, routes: Arc<RouteTable>, certs: Arc<CertStore>) -> u64 {
        let generation = self.cell.load().generation + 1;
        let snapshot = Arc::new(Snapshot { generation, routes, certs });
        self.cell.store(snapshot.clone());
        for observer in &self.observers {
            observer(&snapshot);
        }
        generation
    }
}

impl Reader {
    /// The current snapshot, for short looks: do not hold the guard across an await.
    pub fn peek(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.cell.load()
    }

    /// The current snapshot, to keep.
    pub fn load(&self) -> Arc<Snapshot> {
        self.cell.load_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_publish_replaces_the_whole_and_tells_observers() {
        let (mut publisher, reader) = channel();
        let seen = Arc::new(AtomicU64::new(0));
        let s = seen.clone();
        publisher.observe(move |snap| s.store(snap.generation, Ordering::SeqCst));
        let old = reader.load();
        assert_eq!(publisher.publish(Default::default(), Default::default()), 1);
        assert_eq!((old.generation, reader.peek().generation, seen.load(Ordering::SeqCst)), (0, 1, 1));
    }
}
