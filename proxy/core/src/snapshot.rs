//! The one value that the control plane publishes and the data plane reads.

use crate::listener::{Listeners, Local, TlsMode};
use crate::{CertStore, CertifiedKey, HostPattern, Route, RouteTable};
use arc_swap::ArcSwap;
use std::sync::Arc;

/// An immutable, whole picture of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Grows by one with each publish; 0 is the empty snapshot from before the first.
    pub generation: u64,
    /// What Ingresses serve, by host and path: on ports 80 and 443 where no Gateway listens.
    pub routes: Arc<RouteTable>,
    /// Certificates by declared host, for the same.
    pub certs: Arc<CertStore>,
    /// What is served where Gateways listen, Ingresses included.
    pub listeners: Arc<Listeners>,
}

impl Snapshot {
    /// The routes that count for a connection; `None` where nobody listens any more.
    pub fn routes_at(&self, local: Local) -> Option<&Arc<RouteTable>> {
        if self.listeners.is_empty() {
            return own(local).then_some(&self.routes);
        }
        match self.listeners.at(local) {
            Some(listener) => Some(&listener.routes),
            None => own(local).then_some(&self.routes),
        }
    }

    /// The certificate for a server name where a connection came in. `None` for a place: no Gateway listened when it came.
    pub fn certificate(&self, local: Option<Local>, sni: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        self.certs_at(local).find(sni)
    }

    /// What [`Snapshot::certificate`] finds, with the host that it is declared for.
    pub fn explain_certificate(
        &self,
        local: Option<Local>,
        sni: Option<&str>,
    ) -> Option<(HostPattern, &Arc<CertifiedKey>)> {
        self.certs_at(local).explain(sni)
    }

    fn certs_at(&self, local: Option<Local>) -> &Arc<CertStore> {
        let listener = local.and_then(|local| self.listeners.at(local));
        listener.map_or(&self.certs, |listener| &listener.certs)
    }

    /// Every route of every table, some of them more than once.
    pub fn all_routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        let listed = self.listeners.iter().flat_map(|(_, listener)| {
            listener.routes.routes().chain(listener.names.values().filter_map(TlsMode::route))
        });
        self.routes.routes().chain(listed)
    }
}

/// Whether Ingresses serve there.
fn own(local: Local) -> bool {
    matches!(local.port, 80 | 443)
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

    /// Replaces the snapshot as a whole, without Gateways; returns its generation.
    pub fn publish(&mut self, routes: Arc<RouteTable>, certs: Arc<CertStore>) -> u64 {
        self.publish_all(routes, certs, Arc::default())
    }

    /// Replaces the snapshot as a whole; returns its generation.
    pub fn publish_all(
        &mut self,
        routes: Arc<RouteTable>,
        certs: Arc<CertStore>,
        listeners: Arc<Listeners>,
    ) -> u64 {
        let generation = self.cell.load().generation + 1;
        let snapshot = Arc::new(Snapshot { generation, routes, certs, listeners });
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
