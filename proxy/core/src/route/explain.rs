//! Why a look-up ends as it does. Beside [`RouteTable::find`] and never in its place: the route that
//! is told is the one that `find` returns; here it is said what else there was.

use crate::route::Rule;
use crate::route::conditions::Head;
use crate::{HostPattern, NoMatch, Precedence, Route, RouteTable};
use std::sync::Arc;

/// The result of [`RouteTable::find_for`] and what stood behind it.
#[derive(Clone, Debug)]
pub struct Explanation<'a> {
    /// The most specific declared host, which alone decides.
    pub host: Option<HostPattern>,
    /// What `find` says.
    pub outcome: Result<&'a Arc<Route>, NoMatch>,
    /// The other routes: first those of the deciding host that would take the request too, then those
    /// that take its path and ask for more, then those of less specific hosts that would take it, then
    /// those of the deciding host with another path.
    pub lost: Vec<Candidate<'a>>,
}

/// A route that did not take the request.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// The route.
    pub route: &'a Arc<Route>,
    /// Why it did not.
    pub lost: Lost,
}

/// Why a route did not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The winner comes first, by this rule.
    To(Rule),
    /// It takes the path, but a more specific host is declared.
    Host,
    /// It does not take the path.
    Path,
    /// It takes the path, and asks for more: method, header fields or query.
    Conditions,
}

impl RouteTable {
    /// [`RouteTable::find_for`] with its reasons; costs what all routes of the host cost.
    pub fn explain(&self, host: &str, path: &str, head: &Head<'_>) -> Explanation<'_> {
        let outcome = self.find_for(host, path, head);
        let mut hosts = self.entries(host, path).into_iter();
        let Some((pattern, deciding)) = hosts.next() else {
            return Explanation { host: None, outcome, lost: Vec::new() };
        };
        let meets = |route: &Route| route.conditions.as_ref().is_none_or(|c| c.match_all(head));
        let mut lost = Vec::new();
        let mut asks_more = Vec::new();
        let mut elsewhere = Vec::new();
        for route in deciding.routes().iter().chain(deciding.shadowed()) {
            match &outcome {
                Ok(winner) if Arc::ptr_eq(winner, route) => {}
                _ if !route.path.matches(path) => elsewhere.push(Candidate { route, lost: Lost::Path }),
                Ok(winner) if meets(route) => {
                    let (_, rule) = Precedence(winner).compare(&Precedence(route));
                    lost.push(Candidate { route, lost: Lost::To(rule) });
                }
                _ => asks_more.push(Candidate { route, lost: Lost::Conditions }),
            }
        }
        lost.sort_by(|a, b| Precedence(a.route).cmp(&Precedence(b.route)));
        lost.extend(asks_more);
        for (_, other) in hosts {
            let all = other.routes().iter().chain(other.shadowed());
            let takes = all.filter(|r| r.path.matches(path) && meets(r));
            lost.extend(takes.map(|route| Candidate { route, lost: Lost::Host }));
        }
        lost.extend(elsewhere);
        Explanation { host: Some(pattern), outcome, lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::table::tests::{Lcg, route};
    use crate::{PathMatch, VirtualHost};
    use http::{HeaderMap, Method};
    use std::cmp::Ordering;

    fn head(method: &Method) -> Head<'_> {
        static NONE: std::sync::LazyLock<HeaderMap> = std::sync::LazyLock::new(HeaderMap::new);
        Head { method, headers: &NONE, query: None, dropped: |_| false }
    }

    fn host(t: &mut RouteTable, pattern: &str, routes: Vec<Arc<Route>>) {
        t.set(&pattern.parse().unwrap(), VirtualHost::build(routes).0);
    }

    fn told(e: &Explanation<'_>) -> Vec<(String, Lost)> {
        e.lost.iter().map(|c| (c.route.source.name.to_string(), c.lost)).collect()
    }

    #[test]
    fn each_loser_is_told_with_the_rule_that_decided() {
        let (exact, prefix) = (|p| PathMatch::exact(p).unwrap(), |p: &str| PathMatch::prefix(p).unwrap());
        let mut t = RouteTable::default();
        assert_eq!(t.explain("a.b", "/", &head(&Method::GET)).outcome.err(), Some(NoMatch::Host));
        host(
            &mut t,
            "app.example.com",
            vec![
                route(prefix("/"), "root", 0),
                route(prefix("/a"), "short", 0),
                route(exact("/a/b"), "exact", 5),
                route(exact("/a/b"), "young", 6),
                route(exact("/a/b"), "zlast", 5),
                route(prefix("/a/b"), "long", 0),
                route(prefix("/c"), "other", 0),
            ],
        );
        host(&mut t, "*.example.com", vec![route(prefix("/"), "wild", 0), route(exact("/x"), "x", 0)]);
        host(&mut t, "", vec![route(prefix("/a"), "any", 0)]);
        let e = t.explain("app.example.com", "/a/b", &head(&Method::GET));
        assert_eq!(e.host.as_ref().unwrap().to_string(), "app.example.com");
        assert_eq!(&*e.outcome.unwrap().source.name, "exact");
        let want = [
            ("zlast", Lost::To(Rule::SmallerName)),
            ("young", Lost::To(Rule::OlderObject)),
            ("long", Lost::To(Rule::ExactFirst)),
            ("short", Lost::To(Rule::ExactFirst)),
            ("root", Lost::To(Rule::ExactFirst)),
            ("wild", Lost::Host),
            ("any", Lost::Host),
            ("other", Lost::Path),
        ];
        assert_eq!(told(&e), want.map(|(name, lost)| (name.to_owned(), lost)));
        let e = t.explain("app.example.com", "/a/c", &head(&Method::GET));
        assert_eq!(&*e.outcome.unwrap().source.name, "short");
        assert_eq!(told(&e)[0], ("root".to_owned(), Lost::To(Rule::LongerPath)));
    }

    #[test]
    fn within_an_object_the_earlier_rule_counts() {
        let mut late = Route::clone(&route(PathMatch::prefix("/").unwrap(), "one", 0));
        late.rule.path = 1;
        let mut t = RouteTable::default();
        host(&mut t, "h.x", vec![Arc::new(late), route(PathMatch::prefix("/").unwrap(), "one", 0)]);
        let e = t.explain("h.x", "/", &head(&Method::GET));
        assert_eq!(e.outcome.unwrap().rule.path, 0);
        assert_eq!(told(&e), [("one".to_owned(), Lost::To(Rule::EarlierRule))]);
    }

    #[test]
    fn one_that_asks_for_more_is_told_as_such() {
        let asking = |method: Method, name: &str| {
            let mut r = Route::clone(&route(PathMatch::prefix("/").unwrap(), name, 0));
            r.conditions = Some(Box::new(crate::Conditions { method: Some(method), ..Default::default() }));
            Arc::new(r)
        };
        let mut t = RouteTable::default();
        let any = route(PathMatch::prefix("/").unwrap(), "any", 0);
        host(&mut t, "h.x", vec![any, asking(Method::POST, "post"), asking(Method::GET, "get")]);
        let e = t.explain("h.x", "/", &head(&Method::GET));
        assert_eq!(&*e.outcome.unwrap().source.name, "get");
        assert_eq!(
            told(&e),
            [("any".to_owned(), Lost::To(Rule::Method)), ("post".to_owned(), Lost::Conditions)]
        );
        let e = t.explain("h.x", "/", &head(&Method::PUT));
        assert_eq!(&*e.outcome.unwrap().source.name, "any");
    }

    #[test]
    fn a_path_that_only_a_less_specific_host_has_is_told_as_such() {
        let mut t = RouteTable::default();
        host(&mut t, "a.x", vec![route(PathMatch::exact("/only").unwrap(), "only", 0)]);
        host(&mut t, "*.x", vec![route(PathMatch::prefix("/").unwrap(), "wild", 0)]);
        let e = t.explain("a.x", "/other", &head(&Method::GET));
        assert_eq!(e.outcome.err(), Some(NoMatch::Path));
        assert_eq!(told(&e), [("wild".to_owned(), Lost::Host), ("only".to_owned(), Lost::Path)]);
    }

    /// Every route once, the winner `find`'s and first by precedence, each loser with a rule that
    /// truly puts the winner before it.
    #[test]
    fn what_is_explained_is_what_is_found() {
        let mut rng = Lcg(11);
        let parts = ["a", "b", "ab", "c.d"];
        let hosts = ["x.example.com", "y.example.com", "*.example.com", "example.com", ""];
        let path = |rng: &mut Lcg| {
            let mut p = String::new();
            for _ in 0..1 + rng.next(3) {
                p.push('/');
                p.push_str(parts[rng.next(parts.len())]);
            }
            p
        };
        let mut found = 0;
        for _ in 0..300 {
            let mut t = RouteTable::default();
            let mut all: Vec<(HostPattern, Arc<Route>)> = Vec::new();
            for pattern in hosts {
                let count = [0, 3, 40][rng.next(3)];
                let routes: Vec<_> = (0..count)
                    .map(|i| {
                        let p = path(&mut rng);
                        let p = if rng.next(3) == 0 { PathMatch::exact(&p) } else { PathMatch::prefix(&p) };
                        route(p.unwrap(), &format!("r{}", i % 7), rng.next(3) as i64)
                    })
                    .collect();
                all.extend(routes.iter().map(|r| (pattern.parse().unwrap(), r.clone())));
                host(&mut t, pattern, routes);
            }
            for name in ["x.example.com", "y.example.com", "z.example.com", "example.com", "other.org"] {
                let p = path(&mut rng);
                let e = t.explain(name, &p, &head(&Method::GET));
                assert_eq!(e.outcome.map(Arc::as_ptr), t.find(name, &p).map(Arc::as_ptr));
                let deciding = HostPattern::candidates(name).into_iter().find(|h| t.get(h).is_some());
                assert_eq!(e.host, deciding);
                let takes = |r: &Arc<Route>| r.path.matches(&p);
                let own = all.iter().filter(|(h, _)| Some(h) == deciding.as_ref()).map(|(_, r)| r);
                let first = own.clone().filter(|r| takes(r)).min_by(|a, b| Precedence(a).cmp(&Precedence(b)));
                // of two that are equal in all, either may be meant
                assert_eq!(e.outcome.ok().map(|r| &**r), first.map(|r| &**r));
                found += usize::from(first.is_some());
                let mut told =
                    e.lost.iter().map(|c| c.route).chain(e.outcome.ok()).map(Arc::as_ptr).collect::<Vec<_>>();
                let candidates = HostPattern::candidates(name);
                let elsewhere = all
                    .iter()
                    .filter(|(h, r)| candidates.contains(h) && Some(h) != deciding.as_ref() && takes(r));
                let mut want = own.chain(elsewhere.map(|(_, r)| r)).map(Arc::as_ptr).collect::<Vec<_>>();
                told.sort();
                want.sort();
                assert_eq!(told, want, "{name} {p}");
                for c in &e.lost {
                    match (c.lost, e.outcome) {
                        (Lost::To(rule), Ok(winner)) => {
                            let (order, by) = Precedence(winner).compare(&Precedence(c.route));
                            assert!(takes(c.route) && by == rule && order != Ordering::Greater);
                        }
                        (Lost::To(_), Err(_)) => panic!("lost to nobody"),
                        (Lost::Host, _) => assert!(takes(c.route)),
                        (Lost::Path, _) => assert!(!takes(c.route)),
                        (Lost::Conditions, _) => panic!("nothing is asked for"),
                    }
                }
            }
        }
        assert!(found > 300, "{found}");
    }
}
