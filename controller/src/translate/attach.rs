//! Which listeners a route attaches to, and which hosts it gets there.

use super::gateway::{Gateways, Listener};
use crate::cluster::gateway::{GROUP, Meta, ParentRef};
use crate::cluster::{Cluster, Key};
use crate::finding::quoted;
use crate::status::conditions::Condition;
use ingress_core::{HostPattern, Kind, Scope};
use std::collections::BTreeSet;

/// What a route comes to at its Gateways.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Attached {
    /// Those of its `parentRefs` that are Gateways of ours.
    pub parents: Box<[Parent]>,
    /// Where its rules are installed; in order, each once.
    pub places: Box<[Place]>,
    /// Listeners that count it, by Gateway and position; in order, each once.
    pub listeners: Box<[(Key, usize)]>,
}

/// While parents are looked at.
#[derive(Default)]
struct Found {
    places: BTreeSet<Place>,
    listeners: BTreeSet<(Key, usize)>,
}

/// A parent of ours.
#[derive(PartialEq, Eq)]
pub(super) struct Parent {
    pub reference: ParentRef,
    /// Position among the route's `parentRefs`.
    pub at: usize,
    /// `Accepted`.
    pub accepted: Condition,
}

/// A host of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub scope: Scope,
    pub host: HostPattern,
    pub gateway: Key,
}

impl Attached {
    pub(super) fn read(
        kind: Kind,
        meta: &Meta,
        parent_refs: &[ParentRef],
        hosts: &[HostPattern],
        gateways: &Gateways,
        cluster: &Cluster,
    ) -> Self {
        let mut found = Found::default();
        let mut parents = Vec::new();
        for (at, reference) in parent_refs.iter().enumerate() {
            let is_gateway = reference.group.as_deref().is_none_or(|g| g == GROUP)
                && reference.kind.as_deref().is_none_or(|k| k == "Gateway");
            let namespace = reference.namespace.as_deref().filter(|n| !n.is_empty());
            let key = Key::new(namespace.unwrap_or(&meta.key.namespace), &*reference.name);
            if !is_gateway || !gateways.all.contains_key(&key) {
                continue;
            }
            let accepted = found.attach(kind, meta, reference, &key, hosts, gateways, cluster);
            let accepted = match accepted {
                Ok(()) => Condition::new("Accepted", true, "Accepted", ""),
                Err((reason, message)) => Condition::new("Accepted", false, reason, message),
            };
            parents.push(Parent { reference: reference.clone(), at, accepted });
        }
        // nearly all routes have one of each: no room for more is kept
        Self {
            parents: parents.into(),
            places: found.places.into_iter().collect(),
            listeners: found.listeners.into_iter().collect(),
        }
    }
}

impl Found {
    #[allow(clippy::too_many_arguments)] // one question, asked of everything there is
    fn attach(
        &mut self,
        kind: Kind,
        meta: &Meta,
        reference: &ParentRef,
        key: &Key,
        hosts: &[HostPattern],
        gateways: &Gateways,
        cluster: &Cluster,
    ) -> Result<(), (&'static str, String)> {
        let Some(gateway) = gateways.all.get(key) else { return Ok(()) };
        let named = |listener: &Listener| {
            reference.section_name.as_ref().is_none_or(|name| *name == listener.name)
                && reference.port.is_none_or(|port| port == listener.port)
        };
        let mut candidates: Vec<_> = gateway.listeners.iter().enumerate().filter(|(_, l)| named(l)).collect();
        if candidates.is_empty() {
            let name = reference.section_name.as_deref().map(|n| format!(" named {}", quoted(n)));
            let port = reference.port.map(|port| format!(" on port {port}"));
            let message = format!(
                "Gateway {key} has no listener{}{}",
                name.unwrap_or_default(),
                port.unwrap_or_default()
            );
            return Err(("NoMatchingParent", message));
        }
        candidates.retain(|(_, listener)| {
            listener.kinds.contains(&kind) && listener.from.takes(&meta.key.namespace, key, cluster)
        });
        if candidates.is_empty() {
            let message =
                format!("no listener of Gateway {key} lets routes of this kind and namespace attach to it");
            return Err(("NotAllowedByListeners", message));
        }
        let mut met = false;
        for (at, listener) in candidates {
            let both = hosts.iter().filter_map(|host| host.intersection(&listener.hostname));
            let both: Vec<_> =
                if hosts.is_empty() { vec![listener.hostname.clone()] } else { both.collect() };
            if both.is_empty() {
                continue;
            }
            met = true;
            self.listeners.insert((key.clone(), at));
            let Some(scope) = listener.scope.filter(|_| listener.serves) else { continue };
            let isolated = both.into_iter().filter(|host| {
                // what a more specific listener of the Gateway takes is not this one's
                !gateway.listeners.iter().any(|other| {
                    other.scope == Some(scope)
                        && other.hostname != listener.hostname
                        && other.hostname.within(&listener.hostname)
                        && host.within(&other.hostname)
                })
            });
            self.places.extend(isolated.map(|host| Place { scope, host, gateway: key.clone() }));
        }
        if met {
            return Ok(());
        }
        let message = format!("none of its hostnames is one of a listener of Gateway {key}");
        Err(("NoMatchingListenerHostname", message))
    }
}
