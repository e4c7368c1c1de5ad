//! The rules of HTTPRoutes and GRPCRoutes, read into routes of the model.

use super::attach::{Attached, Place};
use super::backend_ref::{BackendRefs, broken};
use super::client_certificate::Shown;
use super::filter;
use super::gateway::Gateways;
use super::ingress::{Shared, index};
use super::route::{DeclaredRoute, MatchView, Placed, Reading, RuleView, Usable, View, every_path, unknown};
use crate::cluster::Key;
use crate::cluster::gateway::{BackendRef, HttpFilter, NamedValue};
use crate::finding::{Findings, Reason, quoted};
use crate::status::conditions::Condition;
use http::{HeaderName, Method, StatusCode};
use ingress_core::route::RuleIndex;
use ingress_core::route::conditions::{Conditions, HeaderMatch, QueryMatch, ValueMatch};
use ingress_core::route::regex::Pattern;
use ingress_core::{
    Actions, Backend, Filter, Mirror, PathMatch, Policy, ResourceRef, Retry, Route, Slot, Weighted,
    WeightedBackend,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// More tries than this only make an outage worse.
const MAX_ATTEMPTS: u32 = 10;
const BACKOFF: Duration = Duration::from_millis(100);

/// A route before it has a host.
#[derive(Clone)]
pub(super) struct Prototype {
    pub rule: RuleIndex,
    pub path: PathMatch,
    pub conditions: Option<Box<Conditions>>,
    pub policy: Arc<Policy>,
    pub backend: Arc<Backend>,
    pub actions: Option<Arc<Actions>>,
    /// It answers 500 whatever is asked.
    pub fails: bool,
}

/// The rules of one route while they are read.
pub(super) struct Rules<'a, 'b> {
    view: &'a View<'a>,
    shared: &'a mut Shared,
    findings: &'a mut Findings,
    refs: BackendRefs<'a, 'b>,
    gateways: &'b Gateways,
    /// The first thing that is not understood.
    first_problem: Option<String>,
    source: Arc<ResourceRef>,
}

/// What the rules of a route come to.
pub(super) struct Read {
    pub routes: Placed,
    /// `ResolvedRefs`
    pub resolved: Condition,
    /// The Services that it refers to, each once.
    pub services: Box<[Key]>,
    pub usable: Usable,
}

impl<'a, 'b> Rules<'a, 'b> {
    pub(super) fn new(
        reading: &'a Reading<'b>,
        view: &'a View<'a>,
        source: Arc<ResourceRef>,
        shared: &'a mut Shared,
        findings: &'a mut Findings,
    ) -> Self {
        let refs = BackendRefs::new(reading, view.kind, &view.meta.key.namespace, false);
        Self { view, shared, findings, refs, gateways: reading.gateways, first_problem: None, source }
    }

    /// Reads them; what is as it was in `old` is taken from there.
    pub(super) fn read(mut self, attached: &Attached, old: Option<&DeclaredRoute>) -> Read {
        let view = self.view;
        let prototypes: Vec<Prototype> =
            view.rules.iter().enumerate().flat_map(|(i, rule)| self.rule(i, rule)).collect();
        let usable = match self.first_problem.take() {
            None => Usable::All,
            Some(message) if prototypes.iter().all(|p| p.fails) => Usable::Nothing(message),
            Some(message) => Usable::Part(message),
        };
        let named = (&self.source, view.meta.created);
        let routes = place(attached, |_| &prototypes, self.gateways, named, old, self.shared);
        let (resolved, services) = self.refs.finish();
        Read { routes, resolved, services, usable }
    }

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
            [] => (broken(&self.view.meta.key, 0, self.shared), None),
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

    fn backend(&mut self, field: &str, reference: &BackendRef) -> (Arc<Backend>, bool) {
        self.refs.backend(field, reference, self.shared, self.findings)
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
}

/// Gives each prototype its hosts: those of the place.
pub(super) fn place<'a>(
    attached: &Attached,
    prototypes: impl Fn(&Place) -> &'a [Prototype],
    gateways: &Gateways,
    (source, created): (&Arc<ResourceRef>, i64),
    old: Option<&DeclaredRoute>,
    shared: &mut Shared,
) -> Placed {
    // the same host of two ports has the same routes
    let mut known: HashMap<(Arc<str>, RuleIndex), Arc<Route>> = HashMap::new();
    for route in old.into_iter().flat_map(|old| old.routes.iter().flat_map(|(_, routes)| routes)) {
        known.insert((route.host.clone(), route.rule), route.clone());
    }
    let mut placed = Vec::with_capacity(attached.places.len());
    let mut shown = Shown::default();
    for place in &attached.places {
        let label = shared.label(&place.host);
        let client = gateways.client_certificate(&place.gateway);
        let prototypes = shown.at(prototypes(place), client, &mut shared.backends);
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
                created,
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
    if let Some(field) = &wanted.unknown.0 {
        return Err(unknown(field));
    }
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
