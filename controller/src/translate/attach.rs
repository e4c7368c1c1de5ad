//! Which listeners a route attaches to, and which hosts it gets there.

use super::gateway::{Gateways, Listener, Mode, api_kind};
use super::rivals::Rivals;
use crate::cluster::gateway::{GROUP, Meta, ParentRef};
use crate::cluster::{Cluster, Key};
use crate::finding::quoted;
use crate::status::conditions::Condition;
use ingress_core::{HostPattern, Kind, Scope};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A Gateway or ListenerSet.
pub(super) type ParentId = (Kind, Key);

/// A listener: whose it is, and its position there.
pub(super) type ListenerId = (ParentId, usize);

/// The Gateway or ListenerSet that a reference of a route in this namespace names, whether there is one or not.
pub(super) fn parent_id(reference: &ParentRef, namespace: &Arc<str>) -> Option<ParentId> {
    let kind = match reference.kind.as_deref() {
        _ if reference.group.as_deref().is_some_and(|g| g != GROUP) => return None,
        None | Some("Gateway") => Kind::Gateway,
        Some("ListenerSet") => Kind::ListenerSet,
        Some(_) => return None,
    };
    let named = reference.namespace.as_deref().filter(|n| !n.is_empty());
    Some((kind, Key::new(named.unwrap_or(namespace), &*reference.name)))
}

/// What a route comes to at its Gateways.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Attached {
    /// Those of its `parentRefs` that are Gateways of ours, or ListenerSets of such.
    pub parents: Box<[Parent]>,
    /// Where its rules are installed; in order, each once.
    pub places: Box<[Place]>,
    /// Listeners that count it; in order, each once.
    pub listeners: Box<[ListenerId]>,
    /// Listeners that would, if a rival did not keep them from it; in order, each once.
    pub beaten: Box<[ListenerId]>,
}

/// While parents are looked at.
#[derive(Default)]
struct Found {
    places: BTreeSet<Place>,
    listeners: BTreeSet<ListenerId>,
    beaten: BTreeSet<ListenerId>,
}

/// A parent of ours.
#[derive(PartialEq, Eq)]
pub(super) struct Parent {
    pub reference: ParentRef,
    /// Position among the route's `parentRefs`.
    pub at: usize,
    /// `Accepted`.
    pub accepted: Condition,
    /// One of its listeners ends TLS for a TLSRoute.
    pub ends_tls: bool,
}

/// A host of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub scope: Scope,
    pub host: HostPattern,
    pub gateway: Key,
    /// TLS ends there for a TLSRoute.
    pub ends_tls: bool,
}

impl Parent {
    /// Where the route is installed by this parent alone.
    pub(super) fn places(
        &self,
        kind: Kind,
        meta: &Meta,
        hosts: &[HostPattern],
        gateways: &Gateways,
        rivals: &Rivals,
        cluster: &Cluster,
    ) -> BTreeSet<Place> {
        let mut found = Found::default();
        if let Some(id) = parent_id(&self.reference, &meta.key.namespace) {
            let beaten = rivals.of(&(kind, meta.key.clone()));
            // what is wrong there stands in its condition already
            let _ = found.attach(kind, meta, &self.reference, &id, hosts, gateways, beaten, cluster);
        }
        found.places
    }
}

impl Attached {
    pub(super) fn read(
        kind: Kind,
        meta: &Meta,
        parent_refs: &[ParentRef],
        hosts: &[HostPattern],
        gateways: &Gateways,
        rivals: &Rivals,
        cluster: &Cluster,
    ) -> Self {
        let mut found = Found::default();
        let mut parents = Vec::new();
        let beaten = rivals.of(&(kind, meta.key.clone()));
        for (at, reference) in parent_refs.iter().enumerate() {
            let Some(id) = parent_id(reference, &meta.key.namespace) else { continue };
            if gateways.parent(&id).is_none() {
                continue;
            }
            let attached = found.attach(kind, meta, reference, &id, hosts, gateways, beaten, cluster);
            let ends_tls = attached.as_ref().is_ok_and(|ends_tls| *ends_tls);
            let accepted = match attached {
                Ok(_) => Condition::new("Accepted", true, "Accepted", ""),
                Err((reason, message)) => Condition::new("Accepted", false, reason, message),
            };
            parents.push(Parent { reference: reference.clone(), at, accepted, ends_tls });
        }
        // nearly all routes have one of each: no room for more is kept
        Self {
            parents: parents.into(),
            places: found.places.into_iter().collect(),
            listeners: found.listeners.into_iter().collect(),
            beaten: found.beaten.into_iter().collect(),
        }
    }
}

impl Found {
    /// Gives whether TLS ends at one of the listeners, for a TLSRoute.
    #[allow(clippy::too_many_arguments)] // one question, asked of everything there is
    fn attach(
        &mut self,
        kind: Kind,
        meta: &Meta,
        reference: &ParentRef,
        id: &ParentId,
        hosts: &[HostPattern],
        gateways: &Gateways,
        beaten: Option<&BTreeSet<ListenerId>>,
        cluster: &Cluster,
    ) -> Result<bool, (&'static str, String)> {
        let Some((gateway, listeners)) = gateways.parent(id) else { return Ok(false) };
        let key = &id.1;
        let parent = format_args!("{} {key}", api_kind(id.0));
        let named = |listener: &Listener| {
            reference.section_name.as_ref().is_none_or(|name| *name == listener.name)
                && reference.port.is_none_or(|port| port == listener.port)
        };
        let mut candidates: Vec<_> = listeners.iter().enumerate().filter(|(_, l)| named(l)).collect();
        if listeners.is_empty() && id.0 == Kind::ListenerSet {
            let message = format!("{parent} adds no listeners, for Gateway {gateway} does not let it");
            return Err(("NoMatchingParent", message));
        }
        if candidates.is_empty() {
            let name = reference.section_name.as_deref().map(|n| format!(" named {}", quoted(n)));
            let port = reference.port.map(|port| format!(" on port {port}"));
            let message =
                format!("{parent} has no listener{}{}", name.unwrap_or_default(), port.unwrap_or_default());
            return Err(("NoMatchingParent", message));
        }
        candidates.retain(|(_, listener)| {
            listener.kinds.contains(&kind) && listener.from.takes(&meta.key.namespace, key, cluster)
        });
        if candidates.is_empty() {
            let message =
                format!("no listener of {parent} lets routes of this kind and namespace attach to it");
            return Err(("NotAllowedByListeners", message));
        }
        let (mut met, mut lost, mut ended) = (false, false, false);
        for (at, listener) in candidates {
            let both = hosts.iter().filter_map(|host| host.intersection(&listener.hostname));
            let both: Vec<_> =
                if hosts.is_empty() { vec![listener.hostname.clone()] } else { both.collect() };
            if both.is_empty() {
                continue;
            }
            let listener_id = (id.clone(), at);
            if beaten.is_some_and(|beaten| beaten.contains(&listener_id)) {
                lost = true;
                self.beaten.insert(listener_id);
                continue;
            }
            met = true;
            let ends_tls = listener.mode == Mode::TlsTerminate;
            ended |= ends_tls;
            self.listeners.insert(listener_id);
            let Some(scope) = listener.scope.filter(|_| listener.serves) else { continue };
            let isolated = both.into_iter().filter(|host| {
                // what a more specific listener of the Gateway takes is not this one's
                !gateways.merged(gateway).any(|other| {
                    other.scope == Some(scope)
                        && other.hostname != listener.hostname
                        && other.hostname.within(&listener.hostname)
                        && host.within(&other.hostname)
                })
            });
            self.places.extend(isolated.map(|host| Place {
                scope,
                host,
                gateway: gateway.clone(),
                ends_tls,
            }));
        }
        if met {
            return Ok(ended);
        }
        if lost {
            let other = api_kind(if kind == Kind::GrpcRoute { Kind::HttpRoute } else { Kind::GrpcRoute });
            let message = format!(
                "a listener of {parent} has a hostname for HTTPRoutes or for GRPCRoutes, and one of its hostnames \
                 is that of {other}s which came first"
            );
            return Err(("HostnameConflict", message));
        }
        let message = format!("none of its hostnames is one of a listener of {parent}");
        Err(("NoMatchingListenerHostname", message))
    }
}
