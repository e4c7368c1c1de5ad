//! Routes and the order among them.

pub mod host;
pub mod path;
pub mod table;

use crate::{Backend, PathMatch, Policy, ResourceRef, Slot};
use std::cmp::Ordering;
use std::sync::Arc;

/// One path of one host: what matches, what is done, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which request paths it takes.
    pub path: PathMatch,
    /// How requests are treated.
    pub policy: Arc<Policy>,
    /// Plain HTTP is answered with 308 to https.
    pub https_redirect: bool,
    /// Where requests go.
    pub backend: Arc<Backend>,
    /// The object that declared it.
    pub source: Arc<ResourceRef>,
    /// The configured host it belongs to (`*.example.com`, `*` for none): the metric label.
    pub host: Arc<str>,
    /// Position within the object, `rules[i].paths[j]`.
    pub rule: RuleIndex,
    /// The object's creation time, seconds since the epoch: the older one wins.
    pub created: i64,
    /// The data plane's metric handles for this route.
    pub state: Slot,
}

/// Position of a path in its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleIndex {
    /// Index into `spec.rules`.
    pub rule: u16,
    /// Index into that rule's paths.
    pub path: u16,
}

impl std::fmt::Display for RuleIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rules[{}].paths[{}]", self.rule, self.path)
    }
}

/// The whole ordering rule among the routes of one host; smaller is tried first.
///
/// Exact before Prefix, longer Prefix first; then the older object, then `namespace/name`, then
/// the position within the object (Gateway API, HTTPRouteRule precedence; the same for Ingress).
#[derive(PartialEq, Eq)]
pub struct Precedence<'a>(pub &'a Route);

impl Ord for Precedence<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (self.0, other.0);
        a.path.precedence(&b.path).then_with(|| {
            (a.created, &a.source.namespace, &a.source.name, a.source.kind, a.rule).cmp(&(
                b.created,
                &b.source.namespace,
                &b.source.name,
                b.source.kind,
                b.rule,
            ))
        })
    }
}

impl PartialOrd for Precedence<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
