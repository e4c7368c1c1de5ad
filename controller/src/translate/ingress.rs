//! One Ingress: what it declares for which hosts, and what is wrong with it.

use super::auth::AuthSecrets;
use super::backend::Backends;
use super::secret::Certificates;
use super::tls::{self, TlsClaim};
use super::{Settings, path};
use crate::annotations;
use crate::certificate::{self, Request};
use crate::cluster::{Cluster, IngressObject, Key, PathBackend, Pool};
use crate::finding::{Findings, Reason, quoted};
use ingress_core::route::RuleIndex;
use ingress_core::{HostPattern, Kind, Policy, ResourceRef, Route, Slot};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What an Ingress declares.
#[derive(Default)]
pub(super) struct Declared {
    /// Each host once, in order.
    pub hosts: Box<[HostRoutes]>,
    /// In the order of hosts.
    pub tls: Box<[TlsClaim]>,
    /// The Certificates that it asks for.
    pub requests: Box<[Request]>,
    /// What is wrong with it by itself.
    pub findings: Findings,
    /// The Services that it refers to, each once.
    pub services: Box<[Key]>,
    /// The Secrets that it refers to, each once.
    pub secrets: Box<[Key]>,
}

/// An Ingress's routes for one host.
#[derive(PartialEq, Eq)]
pub(super) struct HostRoutes {
    pub host: HostPattern,
    pub routes: Box<[Arc<Route>]>,
}

impl Declared {
    /// The routes for a host.
    pub(super) fn host(&self, host: &HostPattern) -> Option<&[Arc<Route>]> {
        let at = self.hosts.binary_search_by(|h| h.host.cmp(host)).ok()?;
        self.hosts.get(at).map(|h| &*h.routes)
    }

    /// The certificates for a TLS host.
    pub(super) fn tls_claims(&self, host: &HostPattern) -> &[TlsClaim] {
        let from = self.tls.partition_point(|claim| claim.host < *host);
        let to = self.tls.partition_point(|claim| claim.host <= *host);
        &self.tls[from..to]
    }

    /// The TLS hosts, each once.
    pub(super) fn tls_hosts(&self) -> impl Iterator<Item = &HostPattern> {
        self.tls.chunk_by(|a, b| a.host == b.host).filter_map(|same| Some(&same.first()?.host))
    }
}

/// Values that many routes have in common.
#[derive(Default)]
pub(super) struct Shared {
    policies: Pool<Policy>,
    names: Pool<str>,
    pub(super) backends: Backends,
    pub certificates: Certificates,
    pub auth: AuthSecrets,
}

impl Shared {
    /// Translates one Ingress; what is as it was in `old` is taken from there.
    pub(super) fn declare(
        &mut self,
        object: &IngressObject,
        old: Option<&Declared>,
        cluster: &Cluster,
        settings: &Settings,
        now: i64,
    ) -> Declared {
        let mut findings = Findings::default();
        let mut wanted = annotations::read(&object.annotations, &mut findings);
        let auth_secret = wanted.auth.secret().map(|name| Key::new(object.key.namespace.clone(), name));
        wanted.policy.auth = self.auth.resolve(wanted.auth, auth_secret.as_ref(), cluster, &mut findings);
        if object.default_backend {
            let message = "defaultBackend is not implemented; requests that match no rule are answered 404";
            findings.add(Reason::DefaultBackendIgnored, "spec.defaultBackend", message);
        }
        let hosts: Vec<_> =
            (0..).zip(&*object.rules).map(|(i, rule)| self.host(&rule.host, i, &mut findings)).collect();
        let tls = tls::Blocks::read(object, hosts.iter().flatten(), &mut findings);
        let mut rules = Rules {
            policy: self.policies.intern(wanted.policy),
            source: source(object, old),
            old: old.map(by_rule).unwrap_or_default(),
            hosts: BTreeMap::new(),
            services: BTreeSet::new(),
        };
        for (i, (rule, host)) in object.rules.iter().zip(hosts).enumerate() {
            let Some(host) = host else { continue };
            let https_redirect = wanted.ssl_redirect && tls.covers(&host);
            if rule.paths.is_empty() {
                let message = format!("the rule for host {host} has no paths; nothing is served by it");
                findings.add(Reason::RuleWithoutPaths, format!("spec.rules[{i}].http"), message);
            }
            let label = self.label(&host);
            let mut routes = Vec::with_capacity(rule.paths.len());
            for (j, declared) in rule.paths.iter().enumerate() {
                let field = format!("spec.rules[{i}].http.paths[{j}]");
                let Some(path) = path::read(declared, &field, &mut findings) else { continue };
                let (name, port) = match &declared.backend {
                    PathBackend::Service { name, port } => (name, port),
                    PathBackend::Resource => {
                        let message = "resource backends are not implemented; the path is left out";
                        findings.add(
                            Reason::ResourceBackendIgnored,
                            format!("{field}.backend.resource"),
                            message,
                        );
                        continue;
                    }
                    PathBackend::None => {
                        let message = "the path has no backend; it is left out";
                        findings.add(Reason::BackendMissing, format!("{field}.backend"), message);
                        continue;
                    }
                };
                let service =
                    Key { namespace: object.key.namespace.clone(), name: self.names.intern(&**name) };
                let (backend, problem) =
                    self.backends.resolve(&service, port, wanted.connection, cluster, settings);
                if let Some((reason, message)) = problem {
                    findings.add_once(reason, format!("{field}.backend.service"), message);
                }
                rules.services.insert(service);
                routes.push(Route {
                    path,
                    conditions: None,
                    policy: rules.policy.clone(),
                    https_redirect,
                    backend,
                    actions: None,
                    source: rules.source.clone(),
                    host: label.clone(),
                    rule: RuleIndex { rule: index(i), path: index(j) },
                    created: object.created,
                    state: Slot::new(),
                });
            }
            rules.add(host, routes);
        }
        let requests = certificate::requests(object, &settings.default_cluster_issuer, &mut findings);
        let (tls, mut secrets) = tls.claims(object, cluster, &mut self.certificates, now, &mut findings);
        let requested = requests.iter().map(|request| tls::issued_secret(object, request.block));
        secrets.extend(auth_secret.into_iter().chain(requested));
        secrets.sort_unstable();
        secrets.dedup();
        Declared {
            hosts: rules
                .hosts
                .into_iter()
                .map(|(host, routes)| HostRoutes { host, routes: routes.into() })
                .collect(),
            tls,
            requests,
            findings,
            services: rules.services.into_iter().collect(),
            secrets: secrets.into(),
        }
    }

    /// A name that others have too.
    pub(super) fn name(&mut self, name: &str) -> Arc<str> {
        self.names.intern(name)
    }

    /// A policy that others have too.
    pub(super) fn policy(&mut self, policy: Policy) -> Arc<Policy> {
        self.policies.intern(policy)
    }

    /// A host with its name shared.
    pub(super) fn named(&mut self, host: HostPattern) -> HostPattern {
        match host {
            HostPattern::Exact(name) => HostPattern::Exact(self.names.intern(name)),
            HostPattern::Wildcard(parent) => HostPattern::Wildcard(self.names.intern(parent)),
            HostPattern::Suffix(parent) => HostPattern::Suffix(self.names.intern(parent)),
            HostPattern::Any => HostPattern::Any,
        }
    }

    /// A rule's host, with its name shared.
    fn host(&mut self, host: &str, rule: usize, findings: &mut Findings) -> Option<HostPattern> {
        match host.parse() {
            Ok(host) => Some(self.named(host)),
            Err(problem) => {
                let message = format!("{}: {problem}; the rule is left out", quoted(host));
                findings.add(Reason::InvalidHost, format!("spec.rules[{rule}].host"), message);
                None
            }
        }
    }

    pub(super) fn label(&mut self, host: &HostPattern) -> Arc<str> {
        match host {
            HostPattern::Exact(name) => name.clone(),
            pattern => self.names.intern(pattern.to_string()),
        }
    }
}

/// Routes on their way into [`Declared`].
struct Rules<'a> {
    policy: Arc<Policy>,
    source: Arc<ResourceRef>,
    old: HashMap<RuleIndex, &'a Arc<Route>>,
    hosts: BTreeMap<HostPattern, Vec<Arc<Route>>>,
    services: BTreeSet<Key>,
}

impl Rules<'_> {
    fn add(&mut self, host: HostPattern, routes: Vec<Route>) {
        if routes.is_empty() {
            return;
        }
        let old = &self.old;
        let routes = routes.into_iter().map(|route| match old.get(&route.rule) {
            Some(same) if ***same == route => (*same).clone(),
            _ => Arc::new(route),
        });
        self.hosts.entry(host).or_default().extend(routes);
    }
}

fn by_rule(declared: &Declared) -> HashMap<RuleIndex, &Arc<Route>> {
    declared.hosts.iter().flat_map(|h| &h.routes).map(|route| (route.rule, route)).collect()
}

fn source(object: &IngressObject, old: Option<&Declared>) -> Arc<ResourceRef> {
    let known = old.and_then(|old| old.hosts.first()?.routes.first());
    known.map_or_else(
        || {
            let Key { namespace, name } = object.key.clone();
            Arc::new(ResourceRef { kind: Kind::Ingress, namespace, name })
        },
        |route| route.source.clone(),
    )
}

/// Objects of 1.5 MiB hold no more paths than this can count.
pub(super) fn index(i: usize) -> u16 {
    u16::try_from(i).unwrap_or(u16::MAX)
}
