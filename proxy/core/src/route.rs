//! Routes and the order among them.

pub mod conditions;
pub mod explain;
pub mod host;
pub mod names;
pub mod path;
pub mod regex;
pub mod table;

use crate::{
    Backend, Conditions, Filter, Kind, Mirror, PathMatch, Policy, ResourceRef, Slot, Weighted,
    WeightedBackend,
};
use http::StatusCode;
use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One path of one host: what matches, what is done, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which request paths it takes.
    pub path: PathMatch,
    /// What it asks beside the path; never an empty one. `None` for Ingresses.
    pub conditions: Option<Box<Conditions>>,
    /// How requests are treated.
    pub policy: Arc<Policy>,
    /// Plain HTTP is answered with 308 to https.
    pub https_redirect: bool,
    /// Where requests go, unless `actions` names several backends.
    pub backend: Arc<Backend>,
    /// What only Gateway API rules have; shared by the routes of one rule. `None` for Ingresses.
    pub actions: Option<Arc<Actions>>,
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

/// What a Gateway API rule does beside forwarding to one backend.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Actions {
    /// What happens to a request before its backend is chosen, in order. A rule that cannot be
    /// honoured has [`Filter::Fail`] here.
    pub filters: Box<[Filter]>,
    /// Several backends, or one with filters of its own or with weight 0. `None`: all goes to
    /// `Route::backend`, which is one with [`crate::Unavailable::Broken`] where there is none.
    pub backends: Option<Weighted>,
    /// From the first byte of the request to the last of the response: 504 as long as nothing was
    /// answered, an end of the connection after that. `None` = no limit.
    pub request_timeout: Option<Duration>,
    /// From the choice of an endpoint to the backend's response head, for each attempt: 504.
    pub backend_request_timeout: Option<Duration>,
    /// Attempts after the first. `None`: the few that any route has.
    pub retry: Option<Retry>,
}

/// How often a request that failed is sent again: one that got a code below, none at all, or no connection.
/// Only one whose body is in memory as a whole is, whatever its method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How often, at most.
    pub attempts: u32,
    /// Answers that count as failures.
    pub codes: Box<[StatusCode]>,
    /// The pause before each.
    pub backoff: Duration,
}

impl Actions {
    /// The same with other backends, those of mirrors included: each is what `of` makes of it.
    pub fn with_backends(&self, mut of: impl FnMut(&Arc<Backend>) -> Arc<Backend>) -> Self {
        let mut actions = self.clone();
        mirror_to(&mut actions.filters, &mut of);
        actions.backends = self.backends.as_ref().map(|backends| {
            let mut entries: Box<[WeightedBackend]> = backends.entries().into();
            for entry in &mut entries {
                entry.backend = of(&entry.backend);
                mirror_to(&mut entry.filters, &mut of);
            }
            Weighted::new(entries)
        });
        actions
    }
}

fn mirror_to(filters: &mut [Filter], of: &mut impl FnMut(&Arc<Backend>) -> Arc<Backend>) {
    for filter in filters {
        if let Filter::Mirror(mirror) = filter {
            mirror.backend = of(&mirror.backend);
        }
    }
}

impl Route {
    /// Every backend that requests or their copies may go to, in no order; one may come twice.
    pub fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        let mirrored = |filter: &'_ Filter| matches!(filter, Filter::Mirror(_));
        let actions = self.actions.as_deref();
        let entries = actions.and_then(|a| a.backends.as_ref()).map_or(&[][..], |b| b.entries());
        let filters = actions.map_or(&[][..], |a| &a.filters);
        let mirrors =
            filters.iter().chain(entries.iter().flat_map(|e| &e.filters)).filter(move |f| mirrored(f));
        let mirrors = mirrors.filter_map(|filter| match filter {
            Filter::Mirror(Mirror { backend, .. }) => Some(backend),
            _ => None,
        });
        std::iter::once(&self.backend).chain(entries.iter().map(|e| &e.backend)).chain(mirrors)
    }

    /// Where in its object the route stands.
    pub fn place(&self) -> impl fmt::Display + '_ {
        Place(self)
    }
}

struct Place<'a>(&'a Route);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RuleIndex { rule, path } = self.0.rule;
        match self.0.source.kind {
            Kind::HttpRoute | Kind::GrpcRoute => write!(f, "rules[{rule}].matches[{path}]"),
            Kind::TlsRoute => write!(f, "rules[{rule}]"),
            _ => self.0.rule.fmt(f),
        }
    }
}

/// Position of a path (of an Ingress) or match (of a Gateway API route) in its object.
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
/// Exact before Regex before Prefix, the longer path first; then one with a method before one without,
/// more header fields, more query parameters; then the older object, then `namespace/name`, then the
/// position within the object (Gateway API, HTTPRouteRule precedence; the same for Ingress).
#[derive(PartialEq, Eq)]
pub struct Precedence<'a>(pub &'a Route);

/// The part of [`Precedence`] that decides between two routes of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Exact comes before Regex, and that before Prefix.
    ExactFirst,
    /// The longer path comes first.
    LongerPath,
    /// One that asks for a method comes first.
    Method,
    /// The one that asks for more header fields comes first.
    MoreHeaders,
    /// The one that asks for more query parameters comes first.
    MoreQuery,
    /// The object that was created earlier comes first.
    OlderObject,
    /// Of two of the same age, the smaller `namespace/name` comes first.
    SmallerName,
    /// Within an object, the position decides.
    EarlierRule,
}

/// Smaller is tried first: no method, and how few fields and parameters.
type Few = (bool, Reverse<usize>, Reverse<usize>);

fn few(route: &Route) -> Few {
    route.conditions.as_ref().map_or((true, Reverse(0), Reverse(0)), |c| {
        (c.method.is_none(), Reverse(c.headers.len()), Reverse(c.query.len()))
    })
}

impl Precedence<'_> {
    /// How two routes stand to each other, and the rule that says so.
    pub fn compare(&self, other: &Self) -> (Ordering, Rule) {
        let (a, b) = (self.0, other.0);
        let path = a.path.precedence(&b.path);
        if path != Ordering::Equal {
            let same_kind = a.path.kind() == b.path.kind();
            return (path, if same_kind { Rule::LongerPath } else { Rule::ExactFirst });
        }
        if a.conditions.is_some() || b.conditions.is_some() {
            let (x, y) = (few(a), few(b));
            for (order, rule) in [
                (x.0.cmp(&y.0), Rule::Method),
                (x.1.cmp(&y.1), Rule::MoreHeaders),
                (x.2.cmp(&y.2), Rule::MoreQuery),
            ] {
                if order != Ordering::Equal {
                    return (order, rule);
                }
            }
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
