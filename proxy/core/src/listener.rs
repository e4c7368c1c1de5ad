//! What each Gateway listener port serves.
//!
//! A table here is whole: the translator composes, for each port (and address) that some Gateway
//! listens on, what Ingresses and routes serve there together, so a request is looked up once.
//! `Snapshot::routes` and `Snapshot::certs` hold what Ingresses alone serve; they count for ports 80
//! and 443 as long as no listener is declared there.

use crate::route::names::HostMap;
use crate::{CertStore, ClientValidation, Route, RouteTable};
use std::net::IpAddr;
use std::sync::Arc;

/// Where a connection came in, in the words of the Gateway API: port 80 is whatever `--http-port`
/// listens on, 443 whatever `--https-port` does, others are those of `--gateway-listener-ports`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Local {
    /// The local address of the connection.
    pub address: IpAddr,
    /// The listener port.
    pub port: u16,
}

/// What a [`Listener`] is for; the one with the address comes before the one without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// Connections to this address alone (`--gateway-addresses`); `None` = to any.
    pub address: Option<IpAddr>,
    /// The listener port.
    pub port: u16,
}

/// What is served on one port, by all Gateways (and Ingresses) together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// Whether clients speak TLS here. A port is one or the other; 80 is plain and 443 is TLS always.
    pub tls: bool,
    /// Whether clients of some of its hosts are asked for certificates.
    pub asks_clients: bool,
    /// Routes by host, each with what its clients must show. A listener's host name that has no route has an empty `VirtualHost`, so that
    /// less specific listeners do not step in (listener isolation). A host that Ingresses declare by
    /// `*.parent` and Gateways by `*.parent` too is two entries: for one label the Ingress's entry is
    /// the one that is found, so it must hold the Gateway's routes as well.
    pub routes: Arc<RouteTable>,
    /// Certificates by declared host.
    pub certs: Arc<CertStore>,
    /// The host names of the TLS listeners of this port, and what becomes of a connection that asks
    /// for one. Hosts of Ingresses are not in it.
    pub names: Arc<HostMap<TlsMode>>,
}

/// What becomes of a TLS connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// It ends here, and what is in it is HTTP. A request whose host belongs to another entry than the
    /// connection's server name is answered 421.
    Terminate,
    /// It ends here, and what is in it goes on to the route's backend over TCP, or over TLS of our own where
    /// the backend asks for that.
    TerminateTcp {
        /// `route.backend`, `route.actions.backends` and the limits of `route.policy` count, nothing else. Without a
        /// route the connection is closed before the handshake.
        route: Option<Arc<Route>>,
        /// What clients must show in the handshake; `None`: nothing.
        clients: Option<Arc<ClientValidation>>,
    },
    /// Its bytes are passed to the route's backend as they are, with as much of the route counting; without
    /// a route it is closed.
    Passthrough(Option<Arc<Route>>),
}

impl TlsMode {
    /// The route, where one counts for the whole connection.
    pub fn route(&self) -> Option<&Arc<Route>> {
        match self {
            TlsMode::Terminate => None,
            TlsMode::TerminateTcp { route, .. } | TlsMode::Passthrough(route) => route.as_ref(),
        }
    }

    /// Whether requests are looked for in the connection.
    pub fn http(&self) -> bool {
        matches!(self, TlsMode::Terminate)
    }
}

/// Every listener of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners(Box<[(Scope, Arc<Listener>)]>);

impl FromIterator<(Scope, Arc<Listener>)> for Listeners {
    fn from_iter<I: IntoIterator<Item = (Scope, Arc<Listener>)>>(all: I) -> Self {
        let mut all: Vec<_> = all.into_iter().collect();
        // With an address first, so that the first hit is the right one.
        all.sort_by_key(|(scope, _)| (scope.port, scope.address.is_none(), scope.address));
        Self(all.into())
    }
}

impl Listeners {
    /// What serves a connection.
    pub fn at(&self, local: Local) -> Option<&Arc<Listener>> {
        let takes = |scope: &Scope| {
            scope.port == local.port && scope.address.is_none_or(|address| address == local.address)
        };
        self.0.iter().find(|(scope, _)| takes(scope)).map(|(_, listener)| listener)
    }

    /// The listener of exactly this scope.
    pub fn get(&self, scope: Scope) -> Option<&Arc<Listener>> {
        self.0.iter().find(|(s, _)| *s == scope).map(|(_, listener)| listener)
    }

    /// Every listener with its scope.
    pub fn iter(&self) -> impl Iterator<Item = (Scope, &Arc<Listener>)> {
        self.0.iter().map(|(scope, listener)| (*scope, listener))
    }

    /// Whether no Gateway listens.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Listener {
    /// Whether a connection that asks for `sni` (normalised) must not be used for requests to `host`: that belongs
    /// to a TLS listener, and the server name not to the same; or it is one whose connections carry no requests. What
    /// no listener names (hosts of Ingresses) is never misdirected.
    pub fn misdirected(&self, sni: Option<&str>, host: &str) -> bool {
        let Some(found) = self.names.find(host) else { return false };
        if !found.http() && !self.mode(host).http() {
            return true;
        }
        let Some(sni) = sni.filter(|sni| *sni != host) else { return false };
        let entry = |name| self.names.find_entry(name).map(|(pattern, _)| pattern);
        entry(sni) != entry(host)
    }

    /// What becomes of a connection with this server name (normalised). What is served here for a more specific name
    /// comes before what is passed on.
    pub fn mode(&self, sni: &str) -> &TlsMode {
        let served = &TlsMode::Terminate;
        let Some((pattern, mode)) = self.names.find_entry(sni).filter(|(_, mode)| !mode.http()) else {
            return served;
        };
        // Not by certificates: one may be valid for more than what is served with it.
        let routes = self.routes.find_entry(sni).map(|(pattern, _)| pattern);
        if routes.is_some_and(|p| p.specificity() > pattern.specificity()) { served } else { mode }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cert::tests::key;
    use crate::route::table::tests::route;
    use crate::{HostPattern, PathMatch, VirtualHost};

    fn listener(tls: bool) -> Arc<Listener> {
        Arc::new(Listener { tls, ..Listener::default() })
    }

    #[test]
    fn an_address_of_its_own_comes_before_all_addresses() {
        let (a, b) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let all: Listeners = [
            (Scope { address: None, port: 80 }, listener(false)),
            (Scope { address: Some(a), port: 80 }, listener(true)),
        ]
        .into_iter()
        .collect();
        assert!(all.at(Local { address: a, port: 80 }).unwrap().tls);
        assert!(!all.at(Local { address: b, port: 80 }).unwrap().tls);
        assert!(all.at(Local { address: a, port: 81 }).is_none());
        assert!(all.get(Scope { address: None, port: 80 }).is_some() && all.iter().count() == 2);
    }

    #[test]
    fn names_of_other_listeners_are_misdirected() {
        let mut names = HostMap::default();
        for name in ["", "second-example.org", "*.wildcard.org", "fourth-example.wildcard.org"] {
            names.insert(&HostPattern::gateway(name).unwrap(), TlsMode::Terminate);
        }
        let l = Listener { names: Arc::new(names), ..Listener::default() };
        for (sni, host, want) in [
            ("example.org", "second-example.org", true),
            ("example.org", "unknown-example.org", false),
            ("second-example.org", "example.org", true),
            ("third-example.wildcard.org", "fith-example.wildcard.org", false),
            ("third-example.wildcard.org", "fourth-example.wildcard.org", true),
            ("fourth-example.wildcard.org", "fith-example.wildcard.org", true),
            ("unknown-example.org", "example.org", false),
        ] {
            assert_eq!(l.misdirected(Some(sni), host), want, "{sni} {host}");
        }
        assert!(!Listener::default().misdirected(Some("a"), "b"));
        let mut names = HostMap::default();
        names.insert(&HostPattern::gateway("a.example.com").unwrap(), TlsMode::Terminate);
        let one = Listener { names: Arc::new(names), ..Listener::default() };
        assert!(!one.misdirected(Some("a.example.com"), "ingress.example.com"));
        assert!(one.misdirected(Some("ingress.example.com"), "a.example.com"));
    }

    #[test]
    fn what_is_terminated_for_a_more_specific_name_is_not_passed_through() {
        let pass = route(PathMatch::prefix("/").unwrap(), "pass", 0);
        let mut names = HostMap::default();
        names.insert(&HostPattern::gateway("*.example.com").unwrap(), TlsMode::Passthrough(None));
        names.insert(
            &HostPattern::gateway("a.example.com").unwrap(),
            TlsMode::Passthrough(Some(pass.clone())),
        );
        let mut routes = RouteTable::default();
        routes.set(&"b.example.com".parse().unwrap(), VirtualHost::build(vec![pass.clone()]).0);
        // More specific for one label than what Gateways mean by it, and no word on what is served.
        let mut certs = CertStore::default();
        certs.insert(&"*.example.com".parse().unwrap(), key(1));
        certs.insert(&"d.example.com".parse().unwrap(), key(1));
        let (names, routes, certs) = (Arc::new(names), Arc::new(routes), Arc::new(certs));
        let l = Listener { names, routes, certs, ..Listener::default() };
        assert_eq!(l.mode("d.example.com"), &TlsMode::Passthrough(None));
        assert_eq!(l.mode("a.example.com"), &TlsMode::Passthrough(Some(pass)));
        assert_eq!(l.mode("b.example.com"), &TlsMode::Terminate);
        assert_eq!(l.mode("c.d.example.com"), &TlsMode::Passthrough(None));
        assert_eq!(l.mode("example.org"), &TlsMode::Terminate);
    }

    /// Whatever the connection was opened for, and if it was so before the host became one of these.
    #[test]
    fn no_request_is_served_for_a_host_whose_connections_are_not_http() {
        let taken = route(PathMatch::prefix("/").unwrap(), "taken", 0);
        for mode in
            [TlsMode::TerminateTcp { route: Some(taken.clone()), clients: None }, TlsMode::Passthrough(None)]
        {
            let mut names = HostMap::default();
            names.insert(&HostPattern::gateway("*.example.com").unwrap(), mode);
            names.insert(&HostPattern::gateway("h.example.com").unwrap(), TlsMode::Terminate);
            let mut routes = RouteTable::default();
            for served in ["b.example.com", "a.example.org"] {
                routes.set(&served.parse().unwrap(), VirtualHost::build(vec![taken.clone()]).0);
            }
            let l = Listener { names: Arc::new(names), routes: Arc::new(routes), ..Listener::default() };
            for sni in [None, Some("a.example.com"), Some("h.example.com"), Some("b.example.com")] {
                assert!(l.misdirected(sni, "a.example.com"), "{sni:?}");
            }
            // What is served for a more specific name is as ever.
            assert!(!l.misdirected(Some("b.example.com"), "b.example.com"));
            assert!(!l.misdirected(None, "b.example.com"));
            assert!(!l.misdirected(None, "h.example.com"));
            assert!(l.misdirected(Some("b.example.com"), "h.example.com"));
            assert!(!l.misdirected(Some("a.example.com"), "a.example.org"));
        }
    }
}
