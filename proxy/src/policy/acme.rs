//! Challenges of ACME's HTTP-01 (RFC 8555 section 8.3): asked for in plain HTTP, by a validator that
//! follows no login, from addresses that nobody knows beforehand.

use http::Method;
use ingress_core::Route;

/// Whether the request is for a solver: its route was *declared* for challenges. The path of the
/// request alone exempts from nothing, or every application would have an open door of that name.
pub fn is_challenge(route: &Route, method: &Method) -> bool {
    route.path.is_challenge() && (*method == Method::GET || *method == Method::HEAD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::route;
    use ingress_core::PathMatch;

    #[test]
    fn only_a_route_declared_for_challenges_is_exempt() {
        let (exact, prefix) =
            (|p: &str| PathMatch::exact(p).unwrap(), |p: &str| PathMatch::prefix(p).unwrap());
        for (path, exempt) in [
            (exact("/.well-known/acme-challenge/token"), true),
            (prefix("/.well-known/acme-challenge/token"), true),
            (prefix("/.well-known/acme-challenge/"), true),
            (prefix("/"), false),
            (prefix("/.well-known"), false),
            (prefix("/.well-known/acme-challenges"), false),
            (exact("/x/.well-known/acme-challenge/token"), false),
        ] {
            let route = Route { path, ..route("web") };
            for (method, served) in
                [(Method::GET, true), (Method::HEAD, true), (Method::POST, false), (Method::OPTIONS, false)]
            {
                assert_eq!(is_challenge(&route, &method), exempt && served, "{method} {}", route.path);
            }
        }
    }
}
