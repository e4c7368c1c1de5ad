//! HTTPRoutes and GRPCRoutes: what their rules ask for, as routes of the model.
//!
//! What cannot be honoured never falls open: a match that cannot be read installs nothing, a rule with a filter or a
//! limit that is not understood answers 500, and so does the share of a backend that does not resolve.

use super::Settings;
use super::attach::{Attached, Place};
use super::backend_tls::{Policies, Trust};
use super::filter;
use super::gateway::{Gateways, api_kind};
use super::grant::{Grants, Kinded};
use super::ingress::{Shared, index};
use crate::annotations::backend::Connection;
use crate::cluster::gateway::{
    BackendRef, GROUP, GrpcMatch, GrpcRouteObject, HttpFilter, HttpMatch, HttpRetry, HttpRouteObject,
    HttpTimeouts, Meta, NamedValue, ParentRef, TypedValue,
};
use crate::cluster::{Cluster, Key, PortObject, PortRef};
use crate::finding::{Findings, Reason, quoted};
use crate::status::conditions::Condition;
use http::{HeaderName, Method, StatusCode};
use ingress_core::route::RuleIndex;
use ingress_core::route::conditions::{Conditions, HeaderMatch, QueryMatch, ValueMatch};
use ingress_core::route::regex::Pattern;
use ingress_core::{
    Actions, Backend, BackendAddress, BackendProtocol, Filter, HostPattern, Kind, Mirror, PathMatch, Policy,
    ResourceRef, Retry, Route, ServicePort, Slot, Unavailable, Weighted, WeightedBackend,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// More tries than this only make an outage worse.
const MAX_ATTEMPTS: u32 = 10;
const BACKOFF: Duration = Duration::from_millis(100);

/// A route in the words that both kinds have in common.
pub(super) struct View<'a> {
    pub kind: Kind,
    pub meta: &'a Meta,
    pub parent_refs: &'a [ParentRef],
    pub hostnames: &'a [Box<str>],
    rules: Vec<RuleView<'a>>,
}

struct RuleView<'a> {
    matches: Vec<MatchView<'a>>,
    filters: &'a [HttpFilter],
    backends: &'a [BackendRef],
    timeouts: Option<&'a HttpTimeouts>,
    retry: Option<&'a HttpRetry>,
    sticky: bool,
}

struct MatchView<'a> {
    path: Result<PathMatch, (&'static str, String)>,
    method: Option<&'a str>,
    headers: &'a [NamedValue],
    query: &'a [NamedValue],
}

/// Everything but the root is optional, so this cannot fail.
fn every_path() -> PathMatch {
    PathMatch::Prefix(Box::default())
}

impl<'a> From<&'a HttpRouteObject> for View<'a> {
    fn from(object: &'a HttpRouteObject) -> Self {
        let rules = object.spec.rules.iter().map(|rule| RuleView {
            matches: rule.matches.iter().map(MatchView::from).collect(),
            filters: &rule.filters,
            backends: &rule.backend_refs,
            timeouts: rule.timeouts.as_ref(),
            retry: rule.retry.as_ref(),
            sticky: rule.session_persistence.is_some(),
        });
        Self {
            kind: Kind::HttpRoute,
            meta: &object.meta,
            parent_refs: &object.spec.parent_refs,
            hostnames: &object.spec.hostnames,
            rules: rules.collect(),
        }
    }
}

impl<'a> From<&'a GrpcRouteObject> for View<'a> {
    fn from(object: &'a GrpcRouteObject) -> Self {
        let rules = object.spec.rules.iter().map(|rule| RuleView {
            matches: rule.matches.iter().map(MatchView::from).collect(),
            filters: &rule.filters,
            backends: &rule.backend_refs,
            timeouts: None,
            retry: None,
            sticky: rule.session_persistence.is_some(),
        });
        Self {
            kind: Kind::GrpcRoute,
            meta: &object.meta,
            parent_refs: &object.spec.parent_refs,
            hostnames: &object.spec.hostnames,
            rules: rules.collect(),
        }
    }
}

impl<'a> From<&'a HttpMatch> for MatchView<'a> {
    fn from(wanted: &'a HttpMatch) -> Self {
        let path = match &wanted.path {
            None => Ok(every_path()),
            Some(TypedValue { kind, value }) => {
                let value = value.as_deref().unwrap_or("/");
                match kind.as_deref().unwrap_or("PathPrefix") {
                    "Exact" => PathMatch::exact(value).map_err(|e| format!("{}: {e}", quoted(value))),
                    "PathPrefix" => PathMatch::prefix(value).map_err(|e| format!("{}: {e}", quoted(value))),
                    "RegularExpression" => {
                        PathMatch::regex(value).map_err(|e| format!("{}: {e}", quoted(value)))
                    }
                    other => Err(format!(
                        "type {} is not supported, Exact, PathPrefix and RegularExpression are",
                        quoted(other)
                    )),
                }
            }
        };
        Self {
            path: path.map_err(|message| (".path", message)),
            method: wanted.method.as_deref(),
            headers: &wanted.headers,
            query: &wanted.query_params,
        }
    }
}

impl<'a> From<&'a GrpcMatch> for MatchView<'a> {
    fn from(wanted: &'a GrpcMatch) -> Self {
        let method = wanted.method.as_ref();
        let service = method.and_then(|m| m.service.as_deref()).filter(|s| !s.is_empty());
        let name = method.and_then(|m| m.method.as_deref()).filter(|m| !m.is_empty());
        let path = match (method.and_then(|m| m.kind.as_deref()).unwrap_or("Exact"), service, name) {
            (_, None, None) => Ok(every_path()),
            ("Exact", Some(service), Some(name)) => {
                PathMatch::exact(&format!("/{service}/{name}")).map_err(|e| e.to_string())
            }
            ("Exact", Some(service), None) => {
                PathMatch::prefix(&format!("/{service}")).map_err(|e| e.to_string())
            }
            ("Exact", None, Some(name)) if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => {
                PathMatch::regex(&format!("/[^/]+/{name}")).map_err(|e| e.to_string())
            }
            ("Exact", None, Some(name)) => Err(format!("{} is no name of a method", quoted(name))),
            ("RegularExpression", service, name) => {
                // each by itself, so that none reaches beyond its place
                let part = |text: Option<&str>| match text {
                    Some(text) => Pattern::new(text).map(|_| format!("(?:{text})")),
                    None => Ok("[^/]+".to_owned()),
                };
                part(service)
                    .and_then(|service| Ok((service, part(name)?)))
                    .and_then(|(service, name)| PathMatch::regex(&format!("/{service}/{name}")))
                    .map_err(|e| e.to_string())
            }
            (other, ..) => {
                Err(format!("type {} is not supported, Exact and RegularExpression are", quoted(other)))
            }
        };
        Self {
            path: path.map_err(|message| (".method", message)),
            method: None,
            headers: &wanted.headers,
            query: &[],
        }
    }
}

/// What a route declares.
#[derive(Default)]
pub(super) struct DeclaredRoute {
    pub attached: Attached,
    /// By place, in order.
    pub routes: Placed,
    /// What its status says beside what its parents do: `ResolvedRefs`, and whether rules are in use.
    pub resolved: Option<Condition>,
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
    /// The conditions for a parent that says this of `Accepted`.
    pub(super) fn conditions(&self, accepted: &Condition) -> Vec<Condition> {
        let mut conditions = Vec::with_capacity(3);
        match &self.usable {
            Usable::Nothing(message) if accepted.status => {
                conditions.push(Condition::new("Accepted", false, "UnsupportedValue", message.as_str()));
            }
            _ => conditions.push(accepted.clone()),
        }
        conditions.extend(self.resolved.clone());
        if let Usable::Part(message) = &self.usable {
            conditions.push(Condition::new("PartiallyInvalid", true, "UnsupportedValue", message.as_str()));
        }
        conditions
    }
}

/// What rules are read with.
pub(super) struct Reading<'a> {
    pub gateways: &'a Gateways,
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
        let mut hosts = Vec::with_capacity(view.hostnames.len());
        for (i, name) in view.hostnames.iter().enumerate() {
            match HostPattern::gateway(name).map_err(|problem| problem.to_string()) {
                Ok(HostPattern::Any) | Err(_) => {
                    let message = format!("{} is no host name; it is left out", quoted(name));
                    findings.add(Reason::InvalidHost, format!("spec.hostnames[{i}]"), message);
                }
                Ok(host) => hosts.push(shared.named(host)),
            }
        }
        let nothing_left = hosts.is_empty() && !view.hostnames.is_empty();
        let mut attached =
            Attached::read(view.kind, view.meta, view.parent_refs, &hosts, self.gateways, self.cluster);
        if nothing_left {
            attached.places = Box::default();
        }
        for parent in attached.parents.iter().filter(|parent| !parent.accepted.status) {
            let message = format!("{}: {}", parent.accepted.reason, parent.accepted.message);
            findings.add(Reason::RouteNotAttached, format!("spec.parentRefs[{}]", parent.at), message);
        }
        if attached.parents.is_empty() {
            return DeclaredRoute { attached, ..DeclaredRoute::default() };
        }
        let mut rules = Rules {
            reading: self,
            view,
            shared,
            findings: &mut findings,
            services: BTreeSet::new(),
            resolved: None,
            first_problem: None,
            source: source(view, old),
        };
        let prototypes: Vec<Prototype> =
            view.rules.iter().enumerate().flat_map(|(i, rule)| rules.rule(i, rule)).collect();
        let usable = match rules.first_problem.take() {
            None => Usable::All,
            Some(message) if prototypes.iter().all(|p| p.fails) => Usable::Nothing(message),
            Some(message) => Usable::Part(message),
        };
        let resolved = match rules.resolved.take() {
            None => Condition::new("ResolvedRefs", true, "ResolvedRefs", ""),
            Some((reason, message)) => Condition::new("ResolvedRefs", false, reason, message),
        };
        let services = std::mem::take(&mut rules.services).into_iter().collect();
        let routes = rules.place(&attached, &prototypes, old);
        DeclaredRoute { attached, routes, resolved: Some(resolved), usable, findings, services }
    }
}

fn source(view: &View<'_>, old: Option<&DeclaredRoute>) -> Arc<ResourceRef> {
    let known = old.and_then(|old| old.routes.first()?.1.first());
    known.map_or_else(
        || {
            let Key { namespace, name } = view.meta.key.clone();
            Arc::new(ResourceRef { kind: view.kind, namespace, name })
        },
        |route| route.source.clone(),
    )
}

/// A route before it has a host.
struct Prototype {
    rule: RuleIndex,
    path: PathMatch,
    conditions: Option<Box<Conditions>>,
    policy: Arc<Policy>,
    backend: Arc<Backend>,
    actions: Option<Arc<Actions>>,
    /// It answers 500 whatever is asked.
    fails: bool,
}

/// The rules of one route while they are read.
struct Rules<'a, 'b> {
    reading: &'a Reading<'b>,
    view: &'a View<'a>,
    shared: &'a mut Shared,
    findings: &'a mut Findings,
    services: BTreeSet<Key>,
    /// The first reference that does not resolve.
    resolved: Option<(&'static str, String)>,
    /// The first thing that is not understood.
    first_problem: Option<String>,
    source: Arc<ResourceRef>,
}

impl Rules<'_, '_> {
    fn problem(&mut self, reason: Reason, field: String, message: String) {
        if self.first_problem.is_none() {
            self.first_problem = Some(format!("{field}: {message}"));
        }
        self.findings.add(reason, field, message);
    }

    fn rule(&mut self, i: usize, rule: &RuleView<'_>) -> Vec<Prototype> {
        let field = format!("spec.rules[{i}]");
        let matches = self.matches(&field, rule);
        if matches.is_empty() {
            return Vec::new();
        }
        let mut policy = Policy::default();
        let mut filters = self.filters(&field, rule.filters, Some(&mut policy));
        let redirects = filters.iter().any(|filter| matches!(filter, Filter::Redirect(_)));
        let backends = self.backends(&field, rule.backends, redirects);
        let limits = self.limits(&field, rule);
        if limits.is_none() {
            filters.insert(0, Filter::Fail);
        }
        let (request_timeout, backend_request_timeout, retry) = limits.unwrap_or_default();
        if rule.sticky {
            let message = "sessionPersistence is not supported; requests go to any backend".to_owned();
            self.findings.add(Reason::UnsupportedRouteField, format!("{field}.sessionPersistence"), message);
        }
        let (backend, backends) = match &*backends {
            [only] if only.weight > 0 && only.filters.is_empty() => (only.backend.clone(), None),
            [] => (self.broken(&self.view.meta.key.clone(), 0), None),
            [first, ..] => (first.backend.clone(), Some(Weighted::new(backends))),
        };
        let fails = filters.contains(&Filter::Fail);
        let actions =
            Actions { filters: filters.into(), backends, request_timeout, backend_request_timeout, retry };
        let actions = (actions != Actions::default()).then(|| Arc::new(actions));
        let policy = self.shared.policy(policy);
        let prototypes = matches.into_iter().map(|(j, path, conditions)| Prototype {
            rule: RuleIndex { rule: index(i), path: index(j) },
            path,
            conditions,
            policy: policy.clone(),
            backend: backend.clone(),
            actions: actions.clone(),
            fails,
        });
        prototypes.collect()
    }

    /// The matches that can be honoured, each with its position.
    fn matches(
        &mut self,
        field: &str,
        rule: &RuleView<'_>,
    ) -> Vec<(usize, PathMatch, Option<Box<Conditions>>)> {
        if rule.matches.is_empty() {
            return vec![(0, every_path(), None)];
        }
        let mut matches = Vec::with_capacity(rule.matches.len());
        for (j, wanted) in rule.matches.iter().enumerate() {
            let read = wanted.path.clone().and_then(|path| {
                let needs_prefix = rule.filters.iter().any(filter::needs_prefix);
                if needs_prefix && !matches!(path, PathMatch::Prefix(_)) {
                    let message = "ReplacePrefixMatch needs a match of type PathPrefix".to_owned();
                    return Err((".path.type", message));
                }
                Ok((path, conditions(wanted)?))
            });
            match read {
                Ok((path, conditions)) => {
                    let conditions = (!conditions.is_empty()).then(|| Box::new(conditions));
                    matches.push((j, path, conditions));
                }
                Err((part, message)) => {
                    let message = format!("{message}; the match is left out");
                    self.problem(Reason::UnsupportedMatch, format!("{field}.matches[{j}]{part}"), message);
                }
            }
        }
        matches
    }

    /// The filters; CORS goes into the policy, where there is one.
    fn filters(
        &mut self,
        field: &str,
        wanted: &[HttpFilter],
        mut policy: Option<&mut Policy>,
    ) -> Vec<Filter> {
        let mut filters = Vec::with_capacity(wanted.len());
        for (k, wanted) in wanted.iter().enumerate() {
            let field = format!("{field}.filters[{k}]");
            if let ("RequestMirror", Some(mirror)) = (&*wanted.kind, &wanted.request_mirror) {
                let whole = (mirror.percent.unwrap_or(100), 100);
                let part = mirror.fraction.as_ref().map(|f| (f.numerator, f.denominator.unwrap_or(100)));
                let (numerator, denominator) = part.unwrap_or(whole);
                let (backend, good) =
                    self.backend(&format!("{field}.requestMirror.backendRef"), &mirror.backend_ref);
                // nobody waits for the copy's answer: without a backend there is none
                if good && denominator > 0 {
                    filters.push(Filter::Mirror(Mirror { backend, numerator, denominator }));
                }
                continue;
            }
            let read = match (&*wanted.kind, &wanted.cors, policy.as_deref_mut()) {
                ("CORS", Some(cors), Some(policy)) => filter::cors(cors).map(|cors| {
                    policy.cors = Some(Box::new(cors));
                    None
                }),
                _ => filter::read(wanted).map(Some),
            };
            match read {
                Ok(filter) => filters.extend(filter),
                Err(message) => {
                    let message = format!("{message}; the rule answers 500");
                    self.problem(Reason::UnsupportedFilter, field, message);
                    filters.push(Filter::Fail);
                }
            }
        }
        filters
    }

    fn backends(&mut self, field: &str, wanted: &[BackendRef], redirects: bool) -> Vec<WeightedBackend> {
        if wanted.is_empty() && !redirects {
            let message = "the rule has no backend; it answers 500".to_owned();
            self.findings.add(Reason::BackendMissing, format!("{field}.backendRefs"), message);
        }
        let mut backends = Vec::with_capacity(wanted.len());
        for (k, reference) in wanted.iter().enumerate() {
            let field = format!("{field}.backendRefs[{k}]");
            let (backend, _) = self.backend(&field, reference);
            let filters = self.filters(&field, &reference.filters, None);
            backends.push(WeightedBackend {
                backend,
                weight: reference.weight.unwrap_or(1),
                filters: filters.into(),
            });
        }
        backends
    }

    /// The backend, and whether it resolved. One that did not answers 500 to its share.
    fn backend(&mut self, field: &str, reference: &BackendRef) -> (Arc<Backend>, bool) {
        let own = self.view.meta.key.namespace.clone();
        let namespace = reference.namespace.as_deref().filter(|n| !n.is_empty());
        let service = Key {
            namespace: namespace.map_or_else(|| own.clone(), |n| self.shared.name(n)),
            name: self.shared.name(&reference.name),
        };
        match self.resolve(&own, &service, reference) {
            Ok(backend) => (backend, true),
            Err((reason, message)) => {
                let message = format!("{message}; its share of requests is answered 500");
                self.findings.add_once(Reason::BackendRefInvalid, field, message.clone());
                if self.resolved.is_none() {
                    self.resolved = Some((reason, format!("{field}: {message}")));
                }
                let port = reference.port.and_then(|p| u16::try_from(p).ok()).unwrap_or_default();
                (self.broken(&service, port), false)
            }
        }
    }

    fn resolve(
        &mut self,
        own: &Arc<str>,
        service: &Key,
        reference: &BackendRef,
    ) -> Result<Arc<Backend>, (&'static str, String)> {
        let kind = reference.kind.as_deref().unwrap_or("Service");
        if kind != "Service" || !reference.group.as_deref().unwrap_or_default().is_empty() {
            return Err(("InvalidKind", format!("a backend is a Service, not a {}", quoted(kind))));
        }
        let from = Kinded { group: GROUP, kind: api_kind(self.view.kind), namespace: own };
        let to = Kinded { group: "", kind: "Service", namespace: &service.namespace };
        if !self.reading.grants.permit(from, to, &service.name) {
            let message =
                format!("no ReferenceGrant of namespace {} lets it use Service {service}", service.namespace);
            return Err(("RefNotPermitted", message));
        }
        self.services.insert(service.clone());
        let port = reference.port.map_or(PortRef::None, PortRef::Number);
        let trust = self.trust(service, reference.port)?;
        let protocol = self.protocol(service, reference.port, trust.is_some())?;
        let connection = Connection { protocol, ..Connection::default() };
        let Reading { cluster, settings, .. } = self.reading;
        let (mut backend, problem) =
            self.shared.backends.resolve(service, &port, connection, cluster, settings);
        if let Some(trust) = trust {
            backend = self.shared.backends.intern(trust.over(&backend));
        }
        match problem {
            // it is there, and empty for now
            Some((Reason::NoEndpoints, message)) => {
                self.findings.add_once(Reason::NoEndpoints, "spec.rules", message);
                Ok(backend)
            }
            Some((_, message)) => {
                Err(("BackendNotFound", message.trim_end_matches("; requests are answered 502").to_owned()))
            }
            None => Ok(backend),
        }
    }

    fn port(&self, service: &Key, port: Option<i32>) -> Option<&PortObject> {
        let object = self.reading.cluster.services.get(service)?;
        object.ports.iter().find(|p| p.tcp && Some(i32::from(p.port)) == port)
    }

    /// What a BackendTLSPolicy asks of the port's backends.
    fn trust(&self, service: &Key, port: Option<i32>) -> Result<Option<Arc<Trust>>, (&'static str, String)> {
        let name = self.port(service, port).map(|port| &*port.name);
        let trust = self.reading.policies.trust(service, name).transpose();
        trust.map_err(|message| ("InvalidBackendTLSPolicy", message))
    }

    /// What the Service says is spoken at the port; over TLS where a policy asks for it.
    fn protocol(
        &self,
        service: &Key,
        port: Option<i32>,
        tls: bool,
    ) -> Result<BackendProtocol, (&'static str, String)> {
        let named = self.port(service, port).and_then(|port| port.app_protocol.as_deref());
        let plain = self.plain_protocol(service, named, tls)?;
        Ok(if tls { plain.over_tls() } else { plain })
    }

    fn plain_protocol(
        &self,
        service: &Key,
        named: Option<&str>,
        tls: bool,
    ) -> Result<BackendProtocol, (&'static str, String)> {
        if self.view.kind == Kind::GrpcRoute && named.is_none() {
            return Ok(BackendProtocol::Grpc);
        }
        match named.unwrap_or("http") {
            "kubernetes.io/h2c" if self.view.kind == Kind::GrpcRoute => Ok(BackendProtocol::Grpc),
            "kubernetes.io/h2c" => Ok(BackendProtocol::H2c),
            "kubernetes.io/wss" | "https" | "HTTPS" | "tls" if !tls => {
                let message =
                    format!("appProtocol of Service {service} asks for TLS, which needs a BackendTLSPolicy");
                Err(("UnsupportedProtocol", message))
            }
            "grpc" | "kubernetes.io/grpc" => Ok(BackendProtocol::Grpc),
            _ if self.view.kind == Kind::GrpcRoute => Ok(BackendProtocol::Grpc),
            _ => Ok(BackendProtocol::Http),
        }
    }

    fn broken(&mut self, service: &Key, port: u16) -> Arc<Backend> {
        let Key { namespace, name } = service.clone();
        self.shared.backends.intern(Backend {
            service: ServicePort { namespace, name, port },
            address: BackendAddress::Unavailable(Unavailable::Broken),
            protocol: BackendProtocol::Http,
            tls_name: "broken.invalid".into(),
            verify: true,
            keepalive: true,
            tls: None,
        })
    }

    /// Timeouts and retries; `None` if one of them is not understood.
    #[allow(clippy::type_complexity)]
    fn limits(
        &mut self,
        field: &str,
        rule: &RuleView<'_>,
    ) -> Option<(Option<Duration>, Option<Duration>, Option<Retry>)> {
        let mut good = true;
        let mut time = |this: &mut Self, part: &str, value: Option<&str>| {
            let value = value?;
            if let Some(time) = duration(value) {
                return (!time.is_zero()).then_some(time);
            }
            good = false;
            let message =
                format!("{} is no duration like 500ms, 10s or 1h30m; the rule answers 500", quoted(value));
            this.problem(Reason::UnsupportedRouteField, format!("{field}.{part}"), message);
            None
        };
        let timeouts = rule.timeouts;
        let request = time(self, "timeouts.request", timeouts.and_then(|t| t.request.as_deref()));
        let backend =
            time(self, "timeouts.backendRequest", timeouts.and_then(|t| t.backend_request.as_deref()));
        let backoff = time(self, "retry.backoff", rule.retry.and_then(|r| r.backoff.as_deref()));
        let retry = rule.retry.map(|retry| Retry {
            attempts: retry.attempts.unwrap_or(1).min(MAX_ATTEMPTS),
            codes: retry.codes.iter().filter_map(|code| StatusCode::from_u16(*code).ok()).collect(),
            backoff: backoff.unwrap_or(BACKOFF),
        });
        good.then_some((request, backend, retry))
    }

    /// Gives each prototype its hosts.
    fn place(self, attached: &Attached, prototypes: &[Prototype], old: Option<&DeclaredRoute>) -> Placed {
        let Self { view, shared, source, .. } = self;
        // the same host of two ports has the same routes
        let mut known: HashMap<(Arc<str>, RuleIndex), Arc<Route>> = HashMap::new();
        for route in old.into_iter().flat_map(|old| old.routes.iter().flat_map(|(_, routes)| routes)) {
            known.insert((route.host.clone(), route.rule), route.clone());
        }
        let mut placed = Vec::with_capacity(attached.places.len());
        for place in &attached.places {
            let label = shared.label(&place.host);
            let routes = prototypes.iter().map(|prototype| {
                let route = Route {
                    path: prototype.path.clone(),
                    conditions: prototype.conditions.clone(),
                    policy: prototype.policy.clone(),
                    https_redirect: false,
                    backend: prototype.backend.clone(),
                    actions: prototype.actions.clone(),
                    source: source.clone(),
                    host: label.clone(),
                    rule: prototype.rule,
                    created: view.meta.created,
                    state: Slot::new(),
                };
                let key = (label.clone(), prototype.rule);
                if let Some(same) = known.get(&key).filter(|known| ***known == route) {
                    return same.clone();
                }
                let route = Arc::new(route);
                known.insert(key, route.clone());
                route
            });
            let routes: Box<[_]> = routes.collect();
            if !routes.is_empty() {
                placed.push((place.clone(), routes));
            }
        }
        placed.into()
    }
}

/// What a match asks beside the path.
fn conditions(wanted: &MatchView<'_>) -> Result<Conditions, (&'static str, String)> {
    let method = match wanted.method {
        None => None,
        Some(name) => Some(
            Method::from_bytes(name.as_bytes())
                .map_err(|_| (".method", format!("{} is no method", quoted(name))))?,
        ),
    };
    let mut headers: Vec<HeaderMatch> = Vec::with_capacity(wanted.headers.len());
    for header in wanted.headers {
        let name: HeaderName = header
            .name
            .parse()
            .map_err(|_| (".headers", format!("{} is no header name", quoted(&header.name))))?;
        let value = value(header).map_err(|message| (".headers", message))?;
        if !headers.iter().any(|known| known.name == name) {
            headers.push(HeaderMatch { name, value });
        }
    }
    let mut query: Vec<QueryMatch> = Vec::with_capacity(wanted.query.len());
    for parameter in wanted.query {
        let value = value(parameter).map_err(|message| (".queryParams", message))?;
        if !query.iter().any(|known| known.name == parameter.name) {
            query.push(QueryMatch { name: parameter.name.clone(), value });
        }
    }
    Ok(Conditions { method, headers: headers.into(), query: query.into() })
}

fn value(wanted: &NamedValue) -> Result<ValueMatch, String> {
    match wanted.kind.as_deref().unwrap_or("Exact") {
        "Exact" => Ok(ValueMatch::Exact(wanted.value.clone())),
        "RegularExpression" => Pattern::new(&wanted.value)
            .map(ValueMatch::Regex)
            .map_err(|e| format!("{}: {e}", quoted(&wanted.value))),
        other => Err(format!("type {} is not supported, Exact and RegularExpression are", quoted(other))),
    }
}

/// A duration of the Gateway API (GEP-2257): up to four numbers of up to five digits, each with h, m, s or ms.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    for _ in 0..4 {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..digits).filter(|d| (1..=5).contains(&d.len()))?.parse().ok()?;
        rest = &rest[digits..];
        let (unit, tail) = match rest.as_bytes() {
            [b'm', b's', ..] => (1, &rest[2..]),
            [b's', ..] => (1000, &rest[1..]),
            [b'm', ..] => (60_000, &rest[1..]),
            [b'h', ..] => (3_600_000, &rest[1..]),
            _ => return None,
        };
        total += Duration::from_millis(number * unit);
        rest = tail;
        if rest.is_empty() {
            return Some(total);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::duration;
    use std::time::Duration;

    #[test]
    fn durations_are_those_of_the_gateway_api() {
        for (text, millis) in
            [("0s", 0), ("500ms", 500), ("10s", 10_000), ("1h30m", 5_400_000), ("1m1s1ms", 61_001)]
        {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "10", "s", "1.5s", "-1s", "1s ", "100000s", "1h1m1s1ms1s", "1d"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
