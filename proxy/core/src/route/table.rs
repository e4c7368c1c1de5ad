//! The table that a request is looked up in.

use crate::route::Precedence;
use crate::route::conditions::Head;
use crate::route::names::HostMap;
use crate::{Auth, ClientValidation, Conditions, HostPattern, PathMatch, Route};
use http::{HeaderMap, Method};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Routes by host. Built off the request path, read without locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    hosts: HostMap<Arc<VirtualHost>>,
}

/// Why no route was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMatch {
    /// No rule declares the host.
    Host,
    /// The host is known, the path is not, or the route of the path asks for more.
    Path,
}

impl RouteTable {
    /// Puts a host's routes in, or takes the host out if there are none.
    pub fn set(&mut self, host: &HostPattern, virtual_host: Option<Arc<VirtualHost>>) {
        match virtual_host {
            Some(v) => drop(self.hosts.insert(host, v)),
            None => drop(self.hosts.remove(host)),
        }
    }

    /// A host's routes as declared.
    pub fn get(&self, host: &HostPattern) -> Option<&Arc<VirtualHost>> {
        self.hosts.get(host)
    }

    /// The routes of a normalised host for a routing path. The most specific one that is declared
    /// decides: exact, then the longest wildcard, then the rules without host. One that is declared for
    /// ACME challenges alone decides about those: a solver that comes and goes hides no application.
    pub fn host(&self, host: &str, path: &str) -> Result<&Arc<VirtualHost>, NoMatch> {
        let decides = |host: &Arc<VirtualHost>| !host.passes_on(path);
        self.hosts.find_if(host, decides).or_else(|| self.hosts.find(host)).ok_or(NoMatch::Host)
    }

    /// Every host that takes a normalised one, from the most specific; [`RouteTable::host`]'s is the first.
    pub(super) fn entries(&self, host: &str, path: &str) -> Vec<(HostPattern, &Arc<VirtualHost>)> {
        let mut all: Vec<_> = self.hosts.entries(host).collect();
        let decides = all.iter().position(|(_, host)| !host.passes_on(path)).unwrap_or_default();
        if let Some(first) = all.get_mut(..=decides) {
            first.rotate_right(1);
        }
        all
    }

    /// The most specific host, with its pattern, that is declared for more than ACME challenges.
    pub fn find_entry(&self, host: &str) -> Option<(HostPattern, &Arc<VirtualHost>)> {
        self.hosts.entries(host).find(|(_, host)| !host.solver)
    }

    /// What clients are asked for in a handshake with this server name (normalised), or without one: before a path is
    /// known, what is declared for ACME challenges alone decides nothing.
    pub fn clients(&self, sni: Option<&str>) -> Option<&Arc<ClientValidation>> {
        let decides = |host: &Arc<VirtualHost>| !host.solver;
        let host = match sni {
            Some(name) => self.hosts.find_if(name, decides),
            None => self.hosts.any().filter(|host| decides(host)),
        };
        host?.clients()
    }

    /// The route for a normalised host and a routing path, for a GET without header fields and query.
    pub fn find(&self, host: &str, path: &str) -> Result<&Arc<Route>, NoMatch> {
        self.host(host, path)?.find(path).ok_or(NoMatch::Path)
    }

    /// The route for a normalised host, a routing path and the rest of the request's head.
    pub fn find_for(&self, host: &str, path: &str, head: &Head<'_>) -> Result<&Arc<Route>, NoMatch> {
        self.host(host, path)?.find_for(path, head).ok_or(NoMatch::Path)
    }

    /// Every host with its routes, in no order.
    pub fn hosts(&self) -> impl Iterator<Item = (HostPattern, &Arc<VirtualHost>)> {
        self.hosts.iter()
    }

    /// Number of hosts.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether there is no host.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Every route of every host.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.hosts.values().flat_map(|v| v.routes.iter())
    }
}

/// From this many routes on, a host's paths are found by hash instead of one by one.
const INDEX_FROM: usize = 16;

/// One host's routes, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualHost {
    routes: Box<[Arc<Route>]>,
    index: Option<Box<Index>>,
    /// Those that lost their path to one of `routes`: kept to be told of, never looked up.
    shadowed: Box<[Arc<Route>]>,
    since: Since,
    oauth: Option<OAuthRoutes>,
    /// There is nothing but routes for ACME challenges.
    solver: bool,
    /// What clients must show before any of it is served; `None`: nothing.
    clients: Option<Arc<ClientValidation>>,
}

/// The first route of a host for each OAuth client there: they share the host's OAuth endpoints, and
/// no backend of the host gets the cookies of any.
pub type OAuthRoutes = Arc<[Arc<Route>]>;

fn oauth_routes(routes: &[Arc<Route>]) -> Option<OAuthRoutes> {
    let mut found: Vec<&Arc<Route>> = Vec::new();
    for route in routes {
        if matches!(route.policy.auth, Auth::OAuth(_))
            && !found.iter().any(|known| known.policy.auth == route.policy.auth)
        {
            found.push(route);
        }
    }
    (!found.is_empty()).then(|| found.into_iter().cloned().collect())
}

/// Seconds since the epoch. When a value took its form is no part of the value: all are equal.
#[derive(Clone, Copy, Debug, Default)]
struct Since(i64);

impl PartialEq for Since {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Since {}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Index {
    /// The first route of each path; those of one path follow each other.
    exact: HashMap<Box<str>, u32>,
    prefix: HashMap<Box<str>, u32>,
    /// Those with an expression.
    regex: Range<u32>,
}

impl Index {
    fn build(routes: &[Arc<Route>]) -> Self {
        let mut index = Self::default();
        for (i, route) in (0..).zip(routes) {
            match &route.path {
                PathMatch::Exact(p) => drop(index.exact.entry(p.clone()).or_insert(i)),
                PathMatch::Prefix(p) => drop(index.prefix.entry(p.clone()).or_insert(i)),
                PathMatch::Regex(_) if index.regex.is_empty() => index.regex = i..i + 1,
                PathMatch::Regex(_) => index.regex.end = i + 1,
            }
        }
        index
    }
}

/// Splits sorted routes into those that can take a request, in order, and those that cannot, each with
/// the earlier one of its path that asks for the same or for nothing.
// A header value's bytes are shared and never changed.
#[allow(clippy::type_complexity, clippy::mutable_key_type)]
fn split(sorted: Vec<Arc<Route>>) -> (Vec<Arc<Route>>, Vec<(Arc<Route>, Arc<Route>)>) {
    let mut kept: Vec<Arc<Route>> = Vec::with_capacity(sorted.len());
    let mut lost = Vec::new();
    // What is asked for by those of the current path.
    let mut asked: HashMap<Conditions, usize> = HashMap::new();
    for route in sorted {
        let last = kept.last().filter(|last| last.path == route.path);
        if last.is_none() {
            asked.clear();
        }
        // Of one path, those that ask for nothing come last.
        let winner = match (last, &route.conditions) {
            (Some(last), _) if last.conditions.is_none() => Some(last),
            (Some(_), Some(conditions)) => asked.get(&**conditions).and_then(|i| kept.get(*i)),
            _ => None,
        };
        if let Some(winner) = winner.cloned() {
            lost.push((route, winner));
            continue;
        }
        if let Some(conditions) = &route.conditions {
            asked.insert(Conditions::clone(conditions), kept.len());
        }
        kept.push(route);
    }
    (kept, lost)
}

impl VirtualHost {
    /// Sorts the routes by precedence and keeps the first of each path and conditions; the others are
    /// returned as losers, each with the route that it lost to. `None` if there is no route.
    #[allow(clippy::type_complexity)]
    pub fn build(mut routes: Vec<Arc<Route>>) -> (Option<Arc<Self>>, Vec<(Arc<Route>, Arc<Route>)>) {
        routes.sort_by(|a, b| Precedence(a).cmp(&Precedence(b)));
        let (kept, lost) = split(routes);
        if kept.is_empty() {
            return (None, lost);
        }
        let index = (kept.len() >= INDEX_FROM).then(|| Box::new(Index::build(&kept)));
        let shadowed = lost.iter().map(|(loser, _)| loser.clone()).collect();
        let oauth = oauth_routes(&kept);
        let solver = kept.iter().all(|route| route.path.is_challenge());
        let host = Self {
            routes: kept.into(),
            index,
            oauth,
            shadowed,
            since: Since::default(),
            solver,
            clients: None,
        };
        (Some(Arc::new(host)), lost)
    }

    /// A host that is declared and has no route: 404, and no less specific host steps in.
    pub fn empty() -> Arc<Self> {
        let (routes, shadowed) = (Box::default(), Box::default());
        let since = Since::default();
        Arc::new(Self { routes, index: None, oauth: None, shadowed, since, solver: false, clients: None })
    }

    /// The same, served to those clients alone that the validation lets in.
    pub fn under(mut self: Arc<Self>, clients: Option<Arc<ClientValidation>>) -> Arc<Self> {
        if self.clients != clients {
            Arc::make_mut(&mut self).clients = clients;
        }
        self
    }

    /// What clients must show of themselves; `None`: nothing.
    pub fn clients(&self) -> Option<&Arc<ClientValidation>> {
        self.clients.as_ref()
    }

    /// Whether less specific hosts are asked for this path.
    fn passes_on(&self, path: &str) -> bool {
        self.solver && !self.routes.iter().any(|route| route.path.matches(path))
    }

    /// The same, noted to be so since this moment in seconds since the epoch.
    pub fn since(mut self: Arc<Self>, moment: i64) -> Arc<Self> {
        match Arc::get_mut(&mut self) {
            Some(own) => own.since = Since(moment),
            None => self = Arc::new(Self { since: Since(moment), ..(*self).clone() }),
        }
        self
    }

    /// Since when the host's routes are as they are, seconds since the epoch; 0 if that was not noted.
    pub fn unchanged_since(&self) -> i64 {
        self.since.0
    }

    /// The routes that lost their path to another one, in order.
    pub fn shadowed(&self) -> &[Arc<Route>] {
        &self.shadowed
    }

    /// The routes in the order in which they are tried.
    pub fn routes(&self) -> &[Arc<Route>] {
        &self.routes
    }

    /// The host's routes with built-in OAuth, one for each client; `None` if there is none.
    pub fn oauth(&self) -> Option<&OAuthRoutes> {
        self.oauth.as_ref()
    }

    /// The first route that takes a routing path, for a GET without header fields and query.
    pub fn find(&self, path: &str) -> Option<&Arc<Route>> {
        let headers = HeaderMap::new();
        self.find_for(
            path,
            &Head { method: &Method::GET, headers: &headers, query: None, dropped: |_| false },
        )
    }

    /// The first route that takes a routing path and the rest of the request's head.
    pub fn find_for(&self, path: &str, head: &Head<'_>) -> Option<&Arc<Route>> {
        let takes = |route: &Arc<Route>| route.conditions.as_ref().is_none_or(|c| c.match_all(head));
        let Some(index) = &self.index else {
            return self.routes.iter().find(|r| r.path.matches(path) && takes(r));
        };
        // The routes of one path, from the first on.
        let of_path = |first: Option<&u32>| {
            let rest = self.routes.get(*first? as usize..)?;
            let path = &rest.first()?.path;
            rest.iter().take_while(|r| r.path == *path).find(|r| takes(r))
        };
        if let Some(found) = of_path(index.exact.get(path)) {
            return Some(found);
        }
        if !index.regex.is_empty() {
            let all = self.routes.get(index.regex.start as usize..index.regex.end as usize)?;
            if let Some(found) = all.iter().find(|r| r.path.matches(path) && takes(r)) {
                return Some(found);
            }
        }
        // From the longest element-wise prefix to the root.
        let mut prefix = path;
        loop {
            if let Some(found) = of_path(index.prefix.get(prefix)) {
                return Some(found);
            }
            prefix = &prefix[..prefix.rfind('/')?];
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::route::RuleIndex;
    use crate::{Backend, BackendAddress, Kind, ResourceRef, ServicePort, Slot, Unavailable};

    pub(crate) fn route(path: PathMatch, name: &str, created: i64) -> Arc<Route> {
        Arc::new(Route {
            path,
            conditions: None,
            actions: None,
            policy: Arc::default(),
            https_redirect: false,
            backend: Arc::new(Backend {
                service: ServicePort { namespace: "ns".into(), name: name.into(), port: 80 },
                address: BackendAddress::Unavailable(Unavailable::NoService),
                protocol: Default::default(),
                tls_name: "x".into(),
                verify: true,
                keepalive: true,
                tls: None,
                client: None,
            }),
            source: Arc::new(ResourceRef::new(Kind::Ingress, "ns", name)),
            host: "h".into(),
            rule: RuleIndex { rule: 0, path: 0 },
            created,
            state: Slot::new(),
        })
    }

    fn exact(p: &str) -> PathMatch {
        PathMatch::exact(p).unwrap()
    }
    fn prefix(p: &str) -> PathMatch {
        PathMatch::prefix(p).unwrap()
    }
    fn name(r: Option<&Arc<Route>>) -> Option<String> {
        r.map(|r| r.source.name.to_string())
    }

    #[test]
    fn exact_wins_then_the_longest_prefix_in_any_order_of_creation() {
        let all = [
            route(prefix("/"), "root", 5),
            route(prefix("/aaa"), "a", 1),
            route(prefix("/aaa/bbb"), "b", 2),
            route(exact("/aaa"), "exact", 9),
        ];
        for rotate in 0..all.len() {
            let mut routes = all.to_vec();
            routes.rotate_left(rotate);
            let (v, lost) = VirtualHost::build(routes);
            let v = v.unwrap();
            assert!(lost.is_empty());
            for (path, want) in [
                ("/aaa", "exact"),
                ("/aaa/", "a"),
                ("/aaa/ccc", "a"),
                ("/aaa/bbb/x", "b"),
                ("/aaaccc", "root"),
                ("/", "root"),
            ] {
                assert_eq!(name(v.find(path)).as_deref(), Some(want), "{path}");
            }
        }
    }

    #[test]
    fn the_older_object_keeps_a_doubled_path() {
        let (v, lost) = VirtualHost::build(vec![
            route(prefix("/x"), "young", 9),
            route(prefix("/x/"), "old", 1),
            route(prefix("/x"), "alpha", 9),
        ]);
        assert_eq!(name(v.unwrap().find("/x")).as_deref(), Some("old"));
        let lost: Vec<_> =
            lost.iter().map(|(l, w)| (l.source.name.to_string(), w.source.name.to_string())).collect();
        assert_eq!(lost, [("alpha".into(), "old".into()), ("young".into(), "old".into())]);
    }

    #[test]
    fn hosts_are_exact_then_one_label_of_wildcard_then_any() {
        let host = |n: &str| VirtualHost::build(vec![route(prefix("/"), n, 0)]).0;
        let mut t = RouteTable::default();
        assert_eq!(t.find("a.b", "/").err(), Some(NoMatch::Host));
        t.set(&"*.example.com".parse().unwrap(), host("wild"));
        t.set(
            &"app.example.com".parse().unwrap(),
            VirtualHost::build(vec![route(exact("/only"), "app", 0)]).0,
        );
        assert_eq!(name(t.find("x.example.com", "/").ok()).as_deref(), Some("wild"));
        assert_eq!(t.find("a.x.example.com", "/").err(), Some(NoMatch::Host));
        assert_eq!(t.find("example.com", "/").err(), Some(NoMatch::Host));
        // The most specific host decides, also when it has no such path.
        assert_eq!(t.find("app.example.com", "/").err(), Some(NoMatch::Path));
        t.set(&HostPattern::Any, host("any"));
        assert_eq!(name(t.find("example.com", "/").ok()).as_deref(), Some("any"));
        t.set(&"*.example.com".parse().unwrap(), None);
        assert_eq!(name(t.find("x.example.com", "/").ok()).as_deref(), Some("any"));
        assert_eq!(t.len(), 2);
    }

    #[test]
    fn a_host_that_is_declared_for_challenges_alone_hides_nobody() {
        const TOKEN: &str = "/.well-known/acme-challenge/token";
        let host = |routes| VirtualHost::build(routes).0;
        let mut t = RouteTable::default();
        let app: HostPattern = "app.example.com".parse().unwrap();
        t.set(&app, host(vec![route(exact(TOKEN), "solver", 0)]));
        let find = |t: &RouteTable, path: &str| name(t.find("app.example.com", path).ok());
        assert_eq!(find(&t, TOKEN).as_deref(), Some("solver"));
        assert_eq!(t.find("app.example.com", "/").err(), Some(NoMatch::Path));
        assert!(t.find_entry("app.example.com").is_none());
        for pattern in ["", "*.example.com"] {
            t.set(&pattern.parse().unwrap(), host(vec![route(prefix("/"), pattern, 0)]));
            assert_eq!(find(&t, TOKEN).as_deref(), Some("solver"));
            for other in ["/", "/.well-known/acme-challenge/other", "/.well-known/acme-challenge"] {
                assert_eq!(find(&t, other).as_deref(), Some(pattern), "{other}");
            }
            assert_eq!(
                t.find_entry("app.example.com").unwrap().0.to_string(),
                t.entries("app.example.com", "/")[0].0.to_string()
            );
            assert_eq!(t.entries("app.example.com", TOKEN)[0].0, app);
        }
        // One route more, and the host is an application's like any other.
        t.set(&app, host(vec![route(exact(TOKEN), "solver", 0), route(prefix("/x"), "app", 0)]));
        assert_eq!(t.find("app.example.com", "/").err(), Some(NoMatch::Path));
        assert_eq!(t.find_entry("app.example.com").unwrap().0, app);
    }

    /// A small deterministic generator: the same cases on every run.
    pub(crate) struct Lcg(pub u64);
    impl Lcg {
        pub(crate) fn next(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) as usize % n
        }
    }

    #[test]
    fn find_equals_a_naive_scan_with_and_without_index() {
        let mut rng = Lcg(7);
        let parts = ["a", "b", "ab", "c.d", ""];
        for round in 0..400 {
            let count = if round % 2 == 0 { 1 + rng.next(10) } else { 16 + rng.next(40) };
            let path = |rng: &mut Lcg| {
                let mut p = String::new();
                for _ in 0..1 + rng.next(4) {
                    p.push('/');
                    p.push_str(parts[rng.next(parts.len())]);
                }
                crate::route::path::routing_path(&p).unwrap().into_owned()
            };
            let routes: Vec<_> = (0..count)
                .map(|i| {
                    let p = path(&mut rng);
                    let m = if rng.next(3) == 0 { exact(&p) } else { prefix(&p) };
                    route(m, &format!("r{i}"), rng.next(3) as i64)
                })
                .collect();
            let (v, _) = VirtualHost::build(routes.clone());
            let v = v.unwrap();
            for _ in 0..40 {
                let p = path(&mut rng);
                let naive = routes
                    .iter()
                    .filter(|r| r.path.matches(&p))
                    .min_by(|a, b| Precedence(a).cmp(&Precedence(b)));
                assert_eq!(name(v.find(&p)), name(naive), "{p} in round {round}");
            }
        }
    }

    #[test]
    fn find_equals_a_naive_scan_with_conditions_and_expressions() {
        use crate::route::conditions::tests::{header, query};
        let mut rng = Lcg(23);
        let methods = [Method::GET, Method::POST];
        let paths = ["/", "/a", "/a/b", "/b", "/a/b/c"];
        let mut conditional = 0;
        for round in 0..400 {
            let count = if round % 2 == 0 { 1 + rng.next(12) } else { 16 + rng.next(60) };
            let routes: Vec<_> = (0..count)
                .map(|i| {
                    let p = paths[rng.next(paths.len())];
                    let m = match rng.next(4) {
                        0 => exact(p),
                        1 => PathMatch::regex(["/a.*", "/[ab]", "/.*b"][rng.next(3)]).unwrap(),
                        _ => prefix(p),
                    };
                    let c = Conditions {
                        method: (rng.next(3) == 0).then(|| methods[rng.next(2)].clone()),
                        headers: ["x", "y"]
                            .iter()
                            .filter(|_| rng.next(3) == 0)
                            .map(|n| header(n, "1"))
                            .collect(),
                        query: ["q", "r"]
                            .iter()
                            .filter(|_| rng.next(4) == 0)
                            .map(|n| query(n, "1"))
                            .collect(),
                    };
                    let mut r = Route::clone(&route(m, &format!("r{i}"), rng.next(3) as i64));
                    r.conditions = (!c.is_empty()).then(|| Box::new(c));
                    Arc::new(r)
                })
                .collect();
            let (v, lost) = VirtualHost::build(routes.clone());
            let v = v.unwrap();
            assert_eq!(v.routes().len() + lost.len(), routes.len());
            assert!(lost.iter().all(|(l, w)| l.path == w.path && Precedence(w) <= Precedence(l)));
            for _ in 0..40 {
                let p = paths[rng.next(paths.len())];
                let headers: HeaderMap = ["x", "y"]
                    .iter()
                    .filter(|_| rng.next(2) == 0)
                    .map(|n| (n.parse::<http::HeaderName>().unwrap(), "1".parse().unwrap()))
                    .collect();
                let query = [None, Some("q=1"), Some("r=1&q=1"), Some("q=2")][rng.next(4)];
                let method = &methods[rng.next(2)];
                let head = Head { method, headers: &headers, query, dropped: |_| false };
                let takes = |r: &Arc<Route>| r.conditions.as_ref().is_none_or(|c| c.match_all(&head));
                let naive = routes
                    .iter()
                    .filter(|r| r.path.matches(p) && takes(r))
                    .min_by(|a, b| Precedence(a).cmp(&Precedence(b)));
                conditional += usize::from(naive.is_some_and(|r| r.conditions.is_some()));
                assert_eq!(name(v.find_for(p, &head)), name(naive), "{p} in round {round}");
            }
        }
        assert!(conditional > 2000, "{conditional}");
    }

    #[test]
    fn what_only_gateways_use_costs_an_ingress_route_two_pointers() {
        let pointers = 2 * size_of::<usize>();
        assert_eq!(size_of::<PathMatch>(), 3 * size_of::<usize>());
        assert!(size_of::<Route>() <= 152 + pointers, "{}", size_of::<Route>());
    }
}
