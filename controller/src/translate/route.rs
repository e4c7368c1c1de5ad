//! HTTPRoutes and GRPCRoutes: what their rules ask for, as routes of the model.
//!
//! What cannot be honoured never falls open: a match that cannot be read installs nothing, a rule with a filter or a
//! limit that is not understood answers 500, and so does the share of a backend that does not resolve.

use super::Settings;
use super::attach::{Attached, Parent, Place};
use super::backend_tls::Policies;
use super::gateway::Gateways;
use super::grant::Grants;
use super::ingress::Shared;
use super::losses::Loss;
use super::rivals::Rivals;
use super::rules::{Read, Rules};
use crate::cluster::gateway::{BackendRef, HttpFilter, HttpRetry, HttpTimeouts, Meta, NamedValue, ParentRef};
use crate::cluster::{Cluster, Key};
use crate::finding::{Findings, Reason, quoted};
use crate::status::conditions::Condition;
use ingress_core::{HostPattern, Kind, PathMatch, ResourceRef, Route};
use std::sync::Arc;

/// A route in the words that both kinds have in common.
pub(super) struct View<'a> {
    pub kind: Kind,
    pub meta: &'a Meta,
    pub parent_refs: &'a [ParentRef],
    pub hostnames: &'a [Box<str>],
    pub rules: Vec<RuleView<'a>>,
}

/// One of its rules.
pub(super) struct RuleView<'a> {
    pub matches: Vec<MatchView<'a>>,
    pub filters: &'a [HttpFilter],
    pub backends: &'a [BackendRef],
    pub timeouts: Option<&'a HttpTimeouts>,
    pub retry: Option<&'a HttpRetry>,
    pub sticky: bool,
}

/// One of a rule's matches.
pub(super) struct MatchView<'a> {
    pub path: Result<PathMatch, (&'static str, String)>,
    pub method: Option<&'a str>,
    pub headers: &'a [NamedValue],
    pub query: &'a [NamedValue],
}

/// Everything but the root is optional, so this cannot fail.
pub(super) fn every_path() -> PathMatch {
    PathMatch::Prefix(Box::default())
}

/// What is said of a field of a match that is not known: it could narrow what fits.
pub(super) fn unknown(field: &str) -> String {
    format!("field {} is not supported", quoted(field))
}

/// What a route declares.
#[derive(Default)]
pub(super) struct DeclaredRoute {
    pub attached: Attached,
    /// By place, in order.
    pub routes: Placed,
    /// What its status says beside what its parents do: `ResolvedRefs`, and whether rules are in use.
    pub resolved: Option<Condition>,
    /// The former where TLS ends here for a TLSRoute, which asks more of backends; `None`: it is the same.
    pub resolved_in_tls: Option<Condition>,
    pub usable: Usable,
    pub findings: Findings,
    /// The Services that it refers to, each once.
    pub services: Box<[Key]>,
}

/// Routes by place, in order.
pub(super) type Placed = Box<[(Place, Box<[Arc<Route>]>)]>;

/// The routes at a place.
pub(super) fn at<'a>(placed: &'a Placed, place: &Place) -> Option<&'a [Arc<Route>]> {
    let found = placed.binary_search_by(|(known, _)| known.cmp(place)).ok()?;
    placed.get(found).map(|(_, routes)| &**routes)
}

/// How much of a route is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Usable {
    #[default]
    All,
    /// The first of what is not.
    Part(String),
    /// The first of what is not.
    Nothing(String),
}

impl DeclaredRoute {
    /// The conditions for a parent. Of two routes that ask for the same request one has to come second, and is accepted
    /// all the same (`spec.rules.matches`); one that gets no host at all is not.
    pub(super) fn conditions(&self, parent: &Parent, loss: Option<&Loss>) -> Vec<Condition> {
        let accepted = &parent.accepted;
        let mut conditions = Vec::with_capacity(3);
        conditions.push(match (&self.usable, loss) {
            (Usable::Nothing(message), _) if accepted.status => {
                Condition::new("Accepted", false, "UnsupportedValue", message.as_str())
            }
            (_, Some(loss)) if accepted.status => {
                let reason = if loss.all { "HostnameConflict" } else { accepted.reason };
                Condition::new("Accepted", !loss.all, reason, loss.message.as_str())
            }
            _ => accepted.clone(),
        });
        let is_accepted = conditions.iter().all(|c| c.status);
        let in_tls = self.resolved_in_tls.as_ref().filter(|_| parent.ends_tls);
        conditions.extend(in_tls.or(self.resolved.as_ref()).cloned());
        // "MUST NOT be set if a Route is … not accepted", and begins like this (Gateway API, RouteConditionPartiallyInvalid)
        if let Usable::Part(message) = &self.usable
            && is_accepted
        {
            let message = format!("Dropped Rule, or a part of it: {message}");
            conditions.push(Condition::new("PartiallyInvalid", true, "UnsupportedValue", message));
        }
        conditions
    }
}

/// What rules are read with.
pub(super) struct Reading<'a> {
    pub gateways: &'a Gateways,
    pub rivals: &'a Rivals,
    pub grants: &'a Grants,
    pub policies: &'a Policies,
    pub cluster: &'a Cluster,
    pub settings: &'a Settings,
}

impl Reading<'_> {
    /// Translates one route; what is as it was in `old` is taken from there.
    pub(super) fn declare(
        &self,
        view: &View<'_>,
        old: Option<&DeclaredRoute>,
        shared: &mut Shared,
    ) -> DeclaredRoute {
        let mut findings = Findings::default();
        let View { kind, meta, parent_refs, hostnames, .. } = view;
        let attached = self.attach(*kind, meta, parent_refs, hostnames, shared, &mut findings);
        if attached.parents.is_empty() {
            return DeclaredRoute { attached, ..DeclaredRoute::default() };
        }
        let rules = Rules::new(self, view, source(view.kind, view.meta, old), shared, &mut findings);
        let Read { routes, resolved, services, usable } = rules.read(&attached, old);
        let resolved = Some(resolved);
        DeclaredRoute { attached, routes, resolved, resolved_in_tls: None, usable, findings, services }
    }

    /// Where a route attaches, of whatever kind.
    pub(super) fn attach(
        &self,
        kind: Kind,
        meta: &Meta,
        parent_refs: &[ParentRef],
        hostnames: &[Box<str>],
        shared: &mut Shared,
        findings: &mut Findings,
    ) -> Attached {
        let mut hosts = Vec::with_capacity(hostnames.len());
        for (i, name) in hostnames.iter().enumerate() {
            match readable(name) {
                Ok(host) => hosts.push(shared.named(host)),
                Err(message) => findings.add(Reason::InvalidHost, format!("spec.hostnames[{i}]"), message),
            }
        }
        let nothing_left = hosts.is_empty() && !hostnames.is_empty();
        let mut attached =
            Attached::read(kind, meta, parent_refs, &hosts, self.gateways, self.rivals, self.cluster);
        if nothing_left {
            attached.places = Box::default();
            for parent in attached.parents.iter_mut().filter(|parent| parent.accepted.status) {
                let message = "spec.hostnames: none of them is a host name; nothing is served";
                parent.accepted = Condition::new("Accepted", false, "UnsupportedValue", message);
            }
        }
        for parent in attached.parents.iter().filter(|parent| !parent.accepted.status) {
            let message = format!("{}: {}", parent.accepted.reason, parent.accepted.message);
            findings.add(Reason::RouteNotAttached, format!("spec.parentRefs[{}]", parent.at), message);
        }
        attached
    }
}

/// A host name of a route; what is wrong with it where it is none.
pub(super) fn readable(name: &str) -> Result<HostPattern, String> {
    match HostPattern::gateway(name) {
        Ok(HostPattern::Any) | Err(_) => Err(format!("{} is no host name; it is left out", quoted(name))),
        Ok(host) => Ok(host),
    }
}

/// The route's own name, the one that it had where it had one.
pub(super) fn source(kind: Kind, meta: &Meta, old: Option<&DeclaredRoute>) -> Arc<ResourceRef> {
    let known = old.and_then(|old| old.routes.first()?.1.first());
    known.map_or_else(
        || {
            let Key { namespace, name } = meta.key.clone();
            Arc::new(ResourceRef { kind, namespace, name })
        },
        |route| route.source.clone(),
    )
}
