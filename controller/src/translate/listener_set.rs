//! ListenerSets: listeners that others add to a Gateway of ours which lets them.
//!
//! The listeners of a Gateway and of its sets are one list: the Gateway's own come first, then those of the oldest set.
//! What an earlier one has, a later one does not get.

use super::gateway::{From, Gateway, Listener, Look, Owner, is};
use crate::cluster::Key;
use crate::cluster::gateway::{GROUP, ListenerSetObject};
use crate::finding::{Finding, Findings, Reason};
use crate::status::conditions::Condition;
use ingress_core::Kind;
use std::net::IpAddr;

/// A ListenerSet whose parent is a Gateway of ours.
#[derive(PartialEq, Eq)]
pub(super) struct ListenerSet {
    pub created: i64,
    pub generation: i64,
    /// Its parent.
    pub gateway: Key,
    /// None if the Gateway does not let it add any.
    pub listeners: Box<[Listener]>,
    /// `Accepted` and `Programmed`.
    pub conditions: Box<[Condition]>,
    pub findings: Box<[Finding]>,
}

impl ListenerSet {
    /// Whether it counts among the sets that are attached to its Gateway.
    pub(super) fn is_accepted(&self) -> bool {
        self.conditions.iter().any(|c| c.kind == "Accepted" && c.status)
    }
}

/// The Gateway that a ListenerSet names as its parent, whether there is one or not.
pub(super) fn parent(set: &ListenerSetObject) -> Option<Key> {
    let reference = &set.spec.parent_ref;
    let is_gateway = reference.group.as_deref().is_none_or(|g| g == GROUP)
        && reference.kind.as_deref().is_none_or(|k| k == "Gateway");
    let namespace = reference.namespace.as_deref().filter(|n| !n.is_empty());
    is_gateway.then(|| Key::new(namespace.unwrap_or(&set.meta.key.namespace), &*reference.name))
}

/// What is said of a set whose Gateway there is no more.
pub(super) fn orphaned(gateway: &Key) -> [Condition; 2] {
    let message = format!("there is no Gateway {gateway}");
    [
        Condition::new("Accepted", false, "ParentNotAccepted", message.as_str()),
        Condition::new("Programmed", false, "ParentNotProgrammed", message),
    ]
}

impl Look<'_> {
    /// What a set comes to at its Gateway, whose own listeners were looked at before.
    pub(super) fn listener_set(
        &mut self,
        object: &ListenerSetObject,
        key: &Key,
        gateway: &Gateway,
        address: Option<IpAddr>,
    ) -> ListenerSet {
        let mut findings = Findings::default();
        let set = |listeners: Box<[Listener]>, conditions: [Condition; 2], findings: Findings| ListenerSet {
            created: object.meta.created,
            generation: object.meta.generation,
            gateway: key.clone(),
            listeners,
            conditions: conditions.into(),
            findings: findings.finish(),
        };
        let namespace = &object.meta.key.namespace;
        self.selects_sets |= matches!(gateway.sets_from, From::Selected(_));
        if !gateway.sets_from.takes(namespace, key, self.cluster) {
            let message =
                format!("spec.allowedListeners of Gateway {key} lets no ListenerSets of this namespace in");
            findings.add(Reason::ListenerSetNotAccepted, "spec.parentRef", message.clone());
            let conditions = ["Accepted", "Programmed"]
                .map(|kind| Condition::new(kind, false, "NotAllowed", message.as_str()));
            return set(Box::default(), conditions, findings);
        }
        let refused = !gateway.has("Accepted");
        if refused {
            let message = format!("Gateway {key} is not accepted; its conditions say why");
            findings.add(Reason::ListenerSetNotAccepted, "spec.parentRef", message);
        }
        let (set_key, specs) = (&object.meta.key, &object.spec.listeners);
        let own = Owner { kind: Kind::ListenerSet, key: set_key, gateway: key, address, refused, specs };
        let specs = specs.iter().enumerate();
        let listeners: Box<[Listener]> =
            specs.map(|(i, spec)| self.listener(own, spec, i, &mut findings)).collect();
        let valid = listeners.iter().filter(|l| is(l, "Accepted") && l.has_certificate()).count();
        let (accepted, programmed) = if refused {
            let message = format!("Gateway {key} is not accepted");
            (
                Condition::new("Accepted", false, "ParentNotAccepted", message.as_str()),
                Condition::new("Programmed", false, "ParentNotProgrammed", message),
            )
        } else if valid == 0 {
            let message = "none of the listeners can be served";
            (
                Condition::new("Accepted", false, "ListenersNotValid", message),
                Condition::new("Programmed", false, "ListenersNotValid", message),
            )
        } else {
            let accepted = if valid < listeners.len() {
                let message = "some of the listeners cannot be served; their own conditions say why";
                Condition::new("Accepted", true, "ListenersNotValid", message)
            } else {
                Condition::new("Accepted", true, "Accepted", "")
            };
            let programmed = if gateway.has("Programmed") {
                Condition::new("Programmed", true, "Programmed", "")
            } else {
                let message = format!("Gateway {key} is not programmed; its conditions say why");
                Condition::new("Programmed", false, "ParentNotProgrammed", message)
            };
            (accepted, programmed)
        };
        set(listeners, [accepted, programmed], findings)
    }
}
