//! The table that a request is looked up in.

use crate::route::Precedence;
use crate::{Auth, HostPattern, PathMatch, Route};
use std::collections::HashMap;
use std::sync::Arc;

/// Routes by host. Built off the request path, read without locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    exact: HashMap<Arc<str>, Arc<VirtualHost>>,
    wildcard: HashMap<Arc<str>, Arc<VirtualHost>>,
    fallback: Option<Arc<VirtualHost>>,
}

/// Why no route was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMatch {
    /// No rule declares the host.
    Host,
    /// The host is known, the path is not.
    Path,
}

impl RouteTable {
    /// Puts a host's routes in, or takes the host out if there are none.
    pub fn set(&mut self, host: &HostPattern, virtual_host: Option<Arc<VirtualHost>>) {
        match (host, virtual_host) {
            (HostPattern::Exact(h), Some(v)) => drop(self.exact.insert(h.clone(), v)),
            (HostPattern::Exact(h), None) => drop(self.exact.remove(h)),
            (HostPattern::Wildcard(p), Some(v)) => drop(self.wildcard.insert(p.clone(), v)),
            (HostPattern::Wildcard(p), None) => drop(self.wildcard.remove(p)),
            (HostPattern::Any, v) => self.fallback = v,
        }
    }

    /// A host's routes as declared.
    pub fn get(&self, host: &HostPattern) -> Option<&Arc<VirtualHost>> {
        match host {
            HostPattern::Exact(h) => self.exact.get(h),
            HostPattern::Wildcard(p) => self.wildcard.get(p),
            HostPattern::Any => self.fallback.as_ref(),
        }
    }

    /// The routes of a normalised host. The most specific one that is declared decides: exact, then
    /// the wildcard of the parent, then the rules without host.
    pub fn host(&self, host: &str) -> Result<&Arc<VirtualHost>, NoMatch> {
        self.exact
            .get(host)
            .or_else(|| self.wildcard.get(host.split_once('.')?.1))
            .or(self.fallback.as_ref())
            .ok_or(NoMatch::Host)
    }

    /// The route for a normalised host and a routing path.
    pub fn find(&self, host: &str, path: &str) -> Result<&Arc<Route>, NoMatch> {
        self.host(host)?.find(path).ok_or(NoMatch::Path)
    }

    /// Every host with its routes, in no order.
    pub fn hosts(&self) -> impl Iterator<Item = (HostPattern, &Arc<VirtualHost>)> {
        let exact = self.exact.iter().map(|(h, v)| (HostPattern::Exact(h.clone()), v));
        let wildcard = self.wildcard.iter().map(|(p, v)| (HostPattern::Wildcard(p.clone()), v));
        exact.chain(wildcard).chain(self.fallback.as_ref().map(|v| (HostPattern::Any, v)))
    }

    /// Number of hosts.
    pub fn len(&self) -> usize {
        self.exact.len() + self.wildcard.len() + usize::from(self.fallback.is_some())
    }

    /// Whether there is no host.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every route of every host.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.exact
            .values()
            .chain(self.wildcard.values())
            .chain(self.fallback.as_ref())
            .flat_map(|v| v.routes.iter())
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
    exact: HashMap<Box<str>, u32>,
    prefix: HashMap<Box<str>, u32>,
}

impl VirtualHost {
    /// Sorts the routes by precedence and keeps the first of each path; the others are returned
    /// as losers, each with the route that it lost to. `None` if there is no route.
    #[allow(clippy::type_complexity)]
    pub fn build(mut routes: Vec<Arc<Route>>) -> (Option<Arc<Self>>, Vec<(Arc<Route>, Arc<Route>)>) {
        routes.sort_by(|a, b| Precedence(a).cmp(&Precedence(b)));
        let mut kept: Vec<Arc<Route>> = Vec::with_capacity(routes.len());
        let mut lost = Vec::new();
        for route in routes {
            match kept.last() {
                Some(winner) if winner.path == route.path => lost.push((route, winner.clone())),
                _ => kept.push(route),
            }
        }
        if kept.is_empty() {
            return (None, lost);
        }
        let index = (kept.len() >= INDEX_FROM).then(|| {
            let mut index = Index::default();
            for (i, route) in kept.iter().enumerate() {
                let i = u32::try_from(i).unwrap_or(u32::MAX);
                match &route.path {
                    PathMatch::Exact(p) => index.exact.insert(p.clone(), i),
                    PathMatch::Prefix(p) => index.prefix.insert(p.clone(), i),
                };
            }
            Box::new(index)
        });
        let shadowed = lost.iter().map(|(loser, _)| loser.clone()).collect();
        let oauth = oauth_routes(&kept);
        let host = Self { routes: kept.into(), index, oauth, shadowed, since: Since::default() };
        (Some(Arc::new(host)), lost)
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

    /// The first route that takes a routing path.
    pub fn find(&self, path: &str) -> Option<&Arc<Route>> {
        let Some(index) = &self.index else {
            return self.routes.iter().find(|r| r.path.matches(path));
        };
        if let Some(&i) = index.exact.get(path) {
            return self.routes.get(i as usize);
        }
        // From the longest element-wise prefix to the root.
        let mut prefix = path;
        loop {
            if let Some(&i) = index.prefix.get(prefix) {
                return self.routes.get(i as usize);
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
            policy: Arc::default(),
            https_redirect: false,
            backend: Arc::new(Backend {
                service: ServicePort { namespace: "ns".into(), name: name.into(), port: 80 },
                address: BackendAddress::Unavailable(Unavailable::NoService),
                protocol: Default::default(),
                tls_name: "x".into(),
                verify: true,
                keepalive: true,
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
}
