//! What each Gateway listener port serves.
//!
//! A table here is whole: the translator composes, for each port (and address) that some Gateway
//! listens on, what Ingresses and routes serve there together, so a request is looked up once.
//! `Snapshot::routes` and `Snapshot::certs` hold what Ingresses alone serve; they count for ports 80
//! and 443 as long as no listener is declared there.

use crate::route::names::HostMap;
use crate::{CertStore, HostPattern, Route, RouteTable};
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
    /// It ends here. A request whose host belongs to another entry than the connection's server name
    /// is answered 421.
    Terminate,
    /// Its bytes are passed to the route's backend as they are (`route.backend` and
    /// `route.actions.backends`; nothing else of the route counts); without a route it is closed.
    Passthrough(Option<Arc<Route>>),
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
    /// Whether a connection that asks for `sni` (normalised) must not be used for `host`: that belongs
    /// to a TLS listener, and the server name not to the same. What no listener names (hosts of Ingresses)
    /// is never misdirected.
    pub fn misdirected(&self, sni: &str, host: &str) -> bool {
        if self.names.is_empty() || sni == host {
            return false;
        }
        let entry = |name| self.names.find_entry(name).map(|(pattern, _)| pattern);
        entry(host).is_some_and(|host| entry(sni) != Some(host))
    }

    /// The passthrough that takes a connection with this server name (normalised): `None` if it is
    /// terminated here. Something that is terminated here for a more specific name comes first.
    pub fn passthrough(&self, sni: &str) -> Option<Option<&Arc<Route>>> {
        let (pattern, TlsMode::Passthrough(route)) = self.names.find_entry(sni)? else { return None };
        let own = pattern.specificity();
        let certs = self.certs.explain(Some(sni)).map(|(pattern, _)| pattern);
        let routes = self.routes.find_entry(sni).map(|(pattern, _)| pattern);
        let more = |p: HostPattern| p.specificity() > own;
        if certs.is_some_and(more) || routes.is_some_and(more) { None } else { Some(route.as_ref()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::table::tests::route;
    use crate::{PathMatch, VirtualHost};

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
            assert_eq!(l.misdirected(sni, host), want, "{sni} {host}");
        }
        assert!(!Listener::default().misdirected("a", "b"));
        let mut names = HostMap::default();
        names.insert(&HostPattern::gateway("a.example.com").unwrap(), TlsMode::Terminate);
        let one = Listener { names: Arc::new(names), ..Listener::default() };
        assert!(!one.misdirected("a.example.com", "ingress.example.com"));
        assert!(one.misdirected("ingress.example.com", "a.example.com"));
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
        let l = Listener { names: Arc::new(names), routes: Arc::new(routes), ..Listener::default() };
        assert_eq!(l.passthrough("a.example.com"), Some(Some(&pass)));
        assert_eq!(l.passthrough("b.example.com"), None);
        assert_eq!(l.passthrough("c.d.example.com"), Some(None));
        assert_eq!(l.passthrough("example.org"), None);
    }
}
