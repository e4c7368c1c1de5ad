//! Routes and the order among them.

pub mod explain;
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

/// The part of [`Precedence`] that decides between two routes of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Exact comes before Prefix.
    ExactFirst,
    /// The longer path comes first.
    LongerPath,
    /// The object that was created earlier comes first.
    OlderObject,
    /// Of two of the same age, the smaller `namespace/name` comes first.
    SmallerName,
    /// Within an object, the position decides.
    EarlierRule,
}

impl Precedence<'_> {
    /// How two routes stand to each other, and the rule that says so.
    pub fn compare(&self, other: &Self) -> (Ordering, Rule) {
        let (a, b) = (self.0, other.0);
        let path = a.path.precedence(&b.path);
        if path != Ordering::Equal {
            let same_type = matches!(
                (&a.path, &b.path),
                (PathMatch::Exact(_), PathMatch::Exact(_)) | (PathMatch::Prefix(_), PathMatch::Prefix(_))
            );
            return (path, if same_type { Rule::LongerPath } else { Rule::ExactFirst });
        }
        let age = a.created.cmp(&b.created);
        if age != Ordering::Equal {
            return (age, Rule::OlderObject);
        }
        let (x, y) = (&a.source, &b.source);
        let name = (&x.namespace, &x.name, x.kind).cmp(&(&y.namespace, &y.name, y.kind));
        if name != Ordering::Equal {
            return (name, Rule::SmallerName);
        }
        (a.rule.cmp(&b.rule), Rule::EarlierRule)
    }
}

impl Ord for Precedence<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.compare(other).0
    }
}

impl PartialOrd for Precedence<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
