//! Who declares what for a host, and who comes away empty.

use super::keys::Keys;
use crate::cluster::Key;
use crate::finding::{Finding, Reason};
use ingress_core::{HostPattern, Route, VirtualHost};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A finding on an Ingress that did not get what it declared for a host.
#[derive(PartialEq, Eq)]
pub(super) struct Lost {
    pub key: Key,
    pub finding: Finding,
}

/// The Ingresses that declare something for a host.
#[derive(Default)]
struct Claim {
    by: Keys,
    /// Ordered by Ingress.
    lost: Box<[Lost]>,
}

/// Hosts and who declares something for them.
#[derive(Default)]
pub(super) struct Claims(HashMap<HostPattern, Claim>);

impl Claims {
    /// An Ingress declares `new` instead of `old`; `touched` gets the hosts for which that differs.
    pub(super) fn change<T: PartialEq>(
        &mut self,
        key: &Key,
        old: &[T],
        new: &[T],
        host: impl Fn(&T) -> &HostPattern,
        touched: &mut HashSet<HostPattern>,
    ) {
        if old == new {
            return;
        }
        let by_host = |all| {
            let mut sorted: HashMap<&HostPattern, Vec<&T>> = HashMap::new();
            for item in all {
                sorted.entry(host(item)).or_default().push(item);
            }
            sorted
        };
        let (old, new) = (by_host(old), by_host(new));
        for (host, items) in &new {
            if old.get(host) != Some(items) {
                touched.insert((*host).clone());
            }
            if !old.contains_key(host) {
                self.0.entry((*host).clone()).or_default().by.insert(key.clone());
            }
        }
        for host in old.keys().filter(|host| !new.contains_key(*host)) {
            touched.insert((*host).clone());
            if let Some(claim) = self.0.get_mut(host) {
                claim.by.remove(key);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The Ingresses that declare something for the host.
    pub(super) fn of(&self, host: &HostPattern) -> impl Iterator<Item = &Key> {
        self.0.get(host).into_iter().flat_map(|claim| claim.by.iter())
    }

    /// Notes who came away empty; `touched` gets those for whom that differs from before.
    pub(super) fn settle(&mut self, host: &HostPattern, mut lost: Vec<Lost>, touched: &mut BTreeSet<Key>) {
        let Some(claim) = self.0.get_mut(host) else { return };
        lost.sort_by(|a, b| a.key.cmp(&b.key));
        let old = std::mem::replace(&mut claim.lost, lost.into());
        if old != claim.lost {
            touched.extend(old.iter().chain(&claim.lost).map(|lost| lost.key.clone()));
        }
        if claim.by.is_empty() {
            self.0.remove(host);
        }
    }

    /// What the Ingress did not get of what it declared for the host.
    pub(super) fn lost(&self, host: &HostPattern, key: &Key) -> impl Iterator<Item = &Finding> {
        let all = self.0.get(host).map_or(&[][..], |claim| &claim.lost);
        let from = all.partition_point(|lost| lost.key < *key);
        let to = all.partition_point(|lost| lost.key <= *key);
        all[from..to].iter().map(|lost| &lost.finding)
    }
}

/// A host's routes from all that is declared for it, and who lost a path to whom.
pub(super) fn build(host: &HostPattern, routes: Vec<Arc<Route>>) -> (Option<Arc<VirtualHost>>, Vec<Lost>) {
    let (virtual_host, losers) = VirtualHost::build(routes);
    let losers = losers.iter().map(|(loser, winner)| {
        let path = &loser.path;
        let message = if loser.source == winner.source {
            format!("{path} of host {host} is declared twice in this Ingress; {} counts", winner.rule)
        } else {
            let (namespace, name) = (&winner.source.namespace, &winner.source.name);
            format!(
                "{path} of host {host} is already served by Ingress {namespace}/{name}; it gets nothing here"
            )
        };
        let finding =
            Finding { reason: Reason::HostPathTaken, field: field(loser).into(), message: message.into() };
        let key = Key { namespace: loser.source.namespace.clone(), name: loser.source.name.clone() };
        Lost { key, finding }
    });
    (virtual_host, losers.collect())
}

fn field(route: &Route) -> String {
    format!("spec.rules[{}].http.paths[{}].path", route.rule.rule, route.rule.path)
}
