//! TLSRoutes: connections that are passed on by their server name, unread or, where a listener ends TLS, without it.
//!
//! What cannot be honoured is closed, and goes nowhere else: the share of a backend that does not resolve, and the
//! whole host where nothing is left.

use super::attach::Place;
use super::backend_ref::{BackendRefs, broken};
use super::ingress::Shared;
use super::route::{DeclaredRoute, Reading, Usable, every_path, source};
use super::rules::{Prototype, place};
use crate::cluster::gateway::{TlsRouteObject, TlsRule};
use crate::finding::{Findings, Reason};
use crate::status::conditions::Condition;
use ingress_core::route::RuleIndex;
use ingress_core::{Actions, Backend, Kind, Policy, Weighted, WeightedBackend};
use std::sync::Arc;

impl Reading<'_> {
    /// Translates one TLSRoute; what is as it was in `old` is taken from there.
    pub(super) fn declare_tls(
        &self,
        object: &TlsRouteObject,
        old: Option<&DeclaredRoute>,
        shared: &mut Shared,
    ) -> DeclaredRoute {
        let mut findings = Findings::default();
        let (meta, spec) = (&object.meta, &object.spec);
        let mut attached =
            self.attach(Kind::TlsRoute, meta, &spec.parent_refs, &spec.hostnames, shared, &mut findings);
        if attached.parents.is_empty() {
            return DeclaredRoute { attached, ..DeclaredRoute::default() };
        }
        let mut usable = Usable::All;
        let mut problem = |reason, field: &str, message: &str, of: fn(String) -> Usable| {
            findings.add(reason, field, message);
            usable = of(format!("{field}: {message}"));
        };
        if spec.rules.len() > 1 {
            let message = "a TLSRoute has one rule; the others are left out";
            problem(Reason::UnsupportedRouteField, "spec.rules[1]", message, Usable::Part);
        }
        if spec.rules.is_empty() {
            let message = "the route has no rule; nothing is passed on";
            problem(Reason::UnsupportedRouteField, "spec.rules", message, Usable::Nothing);
        }
        if spec.hostnames.is_empty() {
            let message = "a TLSRoute names its hosts; nothing is passed on";
            problem(Reason::InvalidHost, "spec.hostnames", message, Usable::Nothing);
            attached.places = Box::default();
        }
        // where TLS ends here, a backend may have to be reached over TLS of our own
        let in_tls = attached.parents.iter().any(|parent| parent.ends_tls);
        let passes = attached.parents.iter().any(|parent| !parent.ends_tls)
            || attached.places.iter().any(|place| !place.ends_tls);
        let mut read = |ends_tls: bool| {
            let mut refs = BackendRefs::new(self, Kind::TlsRoute, &meta.key.namespace, ends_tls);
            let rules = spec.rules.iter().take(1);
            let prototypes = rules.map(|rule| {
                let (backend, actions) = backends(rule, &mut refs, shared, &mut findings);
                Prototype {
                    rule: RuleIndex { rule: 0, path: 0 },
                    path: every_path(),
                    conditions: None,
                    policy: shared.policy(Policy::default()),
                    backend: backend.unwrap_or_else(|| broken(&meta.key, 0, shared)),
                    actions,
                    fails: false,
                }
            });
            let prototypes: Vec<_> = prototypes.collect();
            let (resolved, services) = refs.finish();
            (prototypes, resolved, services)
        };
        let ended = in_tls.then(|| read(true));
        let passed = passes.then(|| read(false));
        let named = (&source(Kind::TlsRoute, meta, old), meta.created);
        let of = |place: &Place| {
            let read = if place.ends_tls { &ended } else { &passed };
            read.as_ref().map(|(prototypes, ..)| &**prototypes).unwrap_or_default()
        };
        let routes = place(&attached, of, self.gateways, named, old, shared);
        let resolved = |read: Option<(_, Condition, _)>| read.map(|(_, resolved, _)| resolved);
        let services = ended.as_ref().or(passed.as_ref()).map(|(.., services)| services.clone());
        let (passed, ended) = (resolved(passed), resolved(ended));
        let (resolved, resolved_in_tls) = match passed {
            Some(passed) => (Some(passed), ended),
            None => (ended, None),
        };
        let services = services.unwrap_or_default();
        DeclaredRoute { attached, routes, resolved, resolved_in_tls, usable, findings, services }
    }
}

/// The only backend, or the first of several with the shares of all.
fn backends(
    rule: &TlsRule,
    refs: &mut BackendRefs<'_, '_>,
    shared: &mut Shared,
    findings: &mut Findings,
) -> (Option<Arc<Backend>>, Option<Arc<Actions>>) {
    const FIELD: &str = "spec.rules[0].backendRefs";
    if rule.backend_refs.is_empty() {
        let message = "the rule has no backend; connections are closed".to_owned();
        findings.add_once(Reason::BackendMissing, FIELD, message);
    }
    let read = rule.backend_refs.iter().enumerate().map(|(k, reference)| {
        let (backend, _) = refs.backend(&format!("{FIELD}[{k}]"), reference, shared, findings);
        WeightedBackend { backend, weight: reference.weight.unwrap_or(1), filters: Box::default() }
    });
    let all: Vec<_> = read.collect();
    match &*all {
        [] => (None, None),
        [only] if only.weight > 0 => (Some(only.backend.clone()), None),
        [first, ..] => {
            let backend = first.backend.clone();
            let actions = Actions { backends: Some(Weighted::new(all)), ..Actions::default() };
            (Some(backend), Some(Arc::new(actions)))
        }
    }
}
