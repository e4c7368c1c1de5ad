//! What each port with a Gateway listener serves: the routes of all Gateways and of Ingresses together.
//!
//! All Gateways share the product's addresses, so two of them can listen for one host. Their routes are one set then,
//! in the order that counts among all routes: of two that ask for the same, the older object serves. Within a Gateway
//! the most specific listener that takes a host is the only one (listener isolation).

use super::attach::Place;
use super::gateway::{Gateways, Mode};
use super::route::{DeclaredRoute, Placed, at};
use crate::cluster::Key;
use crate::finding::{Finding, Reason};
use ingress_core::listener::{Listener, Listeners, TlsMode};
use ingress_core::route::names::{HostMap, Specificity};
use ingress_core::{
    CertStore, ClientValidation, HostPattern, Kind, ResourceRef, Route, RouteTable, Scope, VirtualHost,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A Gateway API route.
pub(super) type RouteId = (Kind, Key);
/// A host of a port.
pub(super) type Spot = (Scope, HostPattern);
/// Gateways that listen for a host, and what they do with its connections.
type Owners = BTreeMap<Key, Mode>;

/// What is served where Gateways listen.
#[derive(Default)]
pub(super) struct Composed {
    scopes: BTreeMap<Scope, Port>,
    /// Routes, the Gateways that they come through, and whether TLS ends there for a TLSRoute; in order.
    claims: HashMap<Spot, Vec<(RouteId, Key, bool)>>,
    /// Hosts of listeners, whose they are, and what becomes of their connections: no less specific listener of the same
    /// Gateway steps in there.
    own_hosts: BTreeMap<Spot, Owners>,
    /// The age of the Gateways that listen.
    born: BTreeMap<Key, i64>,
    /// What Gateways ask of the clients of a port; those that ask for nothing are not in it.
    asks: HashMap<(Scope, Key), Arc<ClientValidation>>,
    lost: HashMap<Spot, Box<[(ResourceRef, Finding)]>>,
    /// The certificates of Ingresses that went into those of the ports.
    certified: Option<Arc<CertStore>>,
    published: Arc<Listeners>,
    moved: bool,
}

#[derive(Default)]
struct Port {
    tls: bool,
    routes: Arc<RouteTable>,
    certs: Arc<CertStore>,
    names: Arc<HostMap<TlsMode>>,
}

/// What Ingresses serve by themselves.
#[derive(Clone, Copy)]
pub(super) struct Ingresses<'a> {
    pub routes: &'a Arc<RouteTable>,
    pub certs: &'a Arc<CertStore>,
}

/// Where a route's host is decided about: an Ingress's `*.parent` is an entry of its own beside a listener's.
pub(super) fn spots(place: &Place) -> impl Iterator<Item = Spot> {
    let one_label = match &place.host {
        HostPattern::Suffix(parent) => Some(HostPattern::Wildcard(parent.clone())),
        _ => None,
    };
    let scope = place.scope;
    std::iter::once(place.host.clone()).chain(one_label).map(move |host| (scope, host))
}

/// Whether Ingresses are served at the port.
fn has_ingresses(scope: Scope) -> bool {
    matches!(scope.port, 80 | 443)
}

impl Composed {
    /// Whether no Gateway listens.
    pub(super) fn is_empty(&self) -> bool {
        self.scopes.is_empty()
    }

    /// A route declares other places than before; `spots` gets those for which that matters.
    pub(super) fn claim(&mut self, id: &RouteId, old: &Placed, new: &Placed, spots: &mut HashSet<Spot>) {
        let spot = |place: &Place| (place.scope, place.host.clone());
        for (place, routes) in old {
            let now = at(new, place);
            if now != Some(&**routes) {
                spots.insert(spot(place));
            }
            if now.is_some() {
                continue;
            }
            if let Some(claim) = self.claims.get_mut(&spot(place)) {
                let entry = (id, &place.gateway, place.ends_tls);
                claim.retain(|(by, gateway, ends_tls)| (by, gateway, *ends_tls) != entry);
                if claim.is_empty() {
                    self.claims.remove(&spot(place));
                }
            }
        }
        for (place, _) in new.iter().filter(|(place, _)| at(old, place).is_none()) {
            spots.insert(spot(place));
            let claim = self.claims.entry(spot(place)).or_default();
            let entry = (id.clone(), place.gateway.clone(), place.ends_tls);
            if let Err(here) = claim.binary_search(&entry) {
                claim.reserve_exact(1);
                claim.insert(here, entry);
            }
        }
    }

    /// Takes over the ports and hosts that Gateways listen to; `spots` gets what is to be settled anew.
    pub(super) fn listen(
        &mut self,
        gateways: &Gateways,
        ingresses: Ingresses<'_>,
        spots: &mut HashSet<Spot>,
    ) {
        let mut scopes: BTreeMap<Scope, bool> = BTreeMap::new();
        let mut own_hosts: BTreeMap<Spot, Owners> = BTreeMap::new();
        let mut asks = HashMap::new();
        for (gateway, listener) in gateways.listeners() {
            let Some(scope) = listener.scope else { continue };
            scopes.insert(scope, listener.mode.tls());
            let spot = (scope, listener.hostname.clone());
            if let Some(clients) = &listener.clients {
                asks.insert((scope, gateway.clone()), clients.clone());
            }
            own_hosts.entry(spot).or_default().insert(gateway.clone(), listener.mode);
        }
        for spot in own_hosts.keys().chain(self.own_hosts.keys()) {
            if own_hosts.get(spot) != self.own_hosts.get(spot) || !self.scopes.contains_key(&spot.0) {
                spots.insert(spot.clone());
            }
        }
        let asked = asks.iter().chain(&self.asks).map(|(at, _)| at);
        let others: BTreeSet<Scope> =
            asked.filter(|at| asks.get(at) != self.asks.get(at)).map(|(scope, _)| *scope).collect();
        for scope in others {
            // every host of the port may be under something else now
            let of_ingresses =
                ingresses.routes.hosts().filter(|_| has_ingresses(scope)).map(|(host, _)| host);
            spots.extend(of_ingresses.map(|host| (scope, host)));
            spots.extend(self.claims.keys().filter(|(s, _)| *s == scope).cloned());
            spots.extend(own_hosts.keys().filter(|(s, _)| *s == scope).cloned());
        }
        self.asks = asks;
        self.own_hosts = own_hosts;
        let born = gateways.all.iter().map(|(key, gateway)| (key.clone(), gateway.created)).collect();
        if self.born != born {
            // of Gateways that disagree about a TLSRoute's host the oldest one counts
            let through_two =
                |claim: &[(RouteId, Key, bool)]| claim.windows(2).any(|two| two[0].0 == two[1].0);
            let decided = self.claims.iter().filter(|(_, claim)| through_two(claim));
            spots.extend(decided.map(|(spot, _)| spot.clone()));
            self.born = born;
        }
        self.certified = None;
        let before = self.scopes.len();
        self.scopes.retain(|scope, port| scopes.get(scope) == Some(&port.tls));
        self.moved |= self.scopes.len() != before;
        for (scope, tls) in scopes {
            if self.scopes.contains_key(&scope) {
                continue;
            }
            let routes = if has_ingresses(scope) { ingresses.routes.clone() } else { Arc::default() };
            self.scopes.insert(scope, Port { tls, routes, ..Port::default() });
            self.moved = true;
            spots.extend(self.claims.keys().filter(|(s, _)| *s == scope).cloned());
        }
    }

    /// The certificates of each port with TLS: those of Ingresses first, then those of listeners, the oldest
    /// Gateway's first, and those of ListenerSets behind.
    pub(super) fn certify(&mut self, gateways: &Gateways, ingresses: Ingresses<'_>) {
        if self.certified.as_ref().is_some_and(|known| Arc::ptr_eq(known, ingresses.certs)) {
            return;
        }
        self.certified = Some(ingresses.certs.clone());
        for (scope, port) in self.scopes.iter_mut().filter(|(_, port)| port.tls) {
            let mut certs =
                if has_ingresses(*scope) { CertStore::clone(ingresses.certs) } else { CertStore::default() };
            let mut taken = BTreeSet::new();
            for (_, listener) in gateways.listeners().filter(|(_, l)| l.scope == Some(*scope)) {
                let host = &listener.hostname;
                let Some(certificate) = &listener.certificate else { continue };
                let first = taken.insert(host);
                if first && (*host == HostPattern::Any || certs.declared(host).is_none()) {
                    certs.insert(host, certificate.clone());
                }
            }
            if *port.certs != certs {
                port.certs = Arc::new(certs);
                self.moved = true;
            }
        }
    }

    /// Hosts of Ingresses have other routes now: what that means for the ports.
    pub(super) fn ingress_hosts<'a>(
        &self,
        hosts: impl Iterator<Item = &'a HostPattern>,
        spots: &mut HashSet<Spot>,
    ) {
        for host in hosts {
            spots.extend(
                self.scopes.keys().filter(|s| has_ingresses(**s)).map(|scope| (*scope, host.clone())),
            );
        }
    }

    /// Builds the routes of these hosts anew; `touched` gets the objects whose findings may be others now.
    pub(super) fn settle(
        &mut self,
        mut spots: HashSet<Spot>,
        declared: &BTreeMap<RouteId, DeclaredRoute>,
        ingresses: Ingresses<'_>,
        now: i64,
        touched: &mut BTreeSet<ResourceRef>,
    ) {
        // what stands in for others depends on them
        let mut more: Vec<Spot> = Vec::new();
        for (scope, host) in &spots {
            if let HostPattern::Suffix(parent) = host {
                more.push((*scope, HostPattern::Wildcard(parent.clone())));
            }
            let below =
                self.own_hosts.keys().filter(|(s, own)| s == scope && own != host && own.within(host));
            more.extend(below.cloned());
        }
        spots.extend(more);
        // what becomes of names that nobody takes depends on whether anybody ends TLS there
        let tls = self.scopes.iter().filter(|(_, port)| port.tls);
        spots.extend(tls.map(|(scope, _)| (*scope, HostPattern::Any)));
        for spot in spots {
            if let HostPattern::Wildcard(parent) = &spot.1 {
                // whether one label is left to those who lost the rest may be another matter now
                let rest = self.lost.get(&(spot.0, HostPattern::Suffix(parent.clone())));
                touched.extend(rest.into_iter().flatten().map(|(object, _)| object.clone()));
            }
            let Some(port) = self.scopes.get(&spot.0) else {
                touched.extend(self.lost.remove(&spot).into_iter().flatten().map(|(object, _)| object));
                continue;
            };
            let (fresh, mut lost) = self.host(&spot, declared, ingresses);
            let mode = if port.tls { self.mode(&spot, declared, ingresses, &mut lost) } else { None };
            let lost: Box<[_]> = lost.into();
            if port.names.get(&spot.1) != mode.as_ref()
                && let Some(port) = self.scopes.get_mut(&spot.0)
            {
                let names = Arc::make_mut(&mut port.names);
                match mode {
                    Some(mode) => names.insert(&spot.1, mode),
                    None => names.remove(&spot.1),
                };
                self.moved = true;
            }
            let Some(port) = self.scopes.get(&spot.0) else { continue };
            if port.routes.get(&spot.1) != fresh.as_ref()
                && let Some(port) = self.scopes.get_mut(&spot.0)
            {
                let fresh = fresh.map(|fresh| fresh.since(now));
                Arc::make_mut(&mut port.routes).set(&spot.1, fresh);
                self.moved = true;
            }
            let old = if lost.is_empty() {
                self.lost.remove(&spot)
            } else {
                self.lost.insert(spot.clone(), lost.clone())
            };
            if old.as_deref().unwrap_or_default() != &*lost {
                let both = old.into_iter().flatten().chain(lost);
                touched.extend(both.map(|(object, _)| object));
            }
        }
    }

    /// A host's routes at a port, and who lost to whom there.
    #[allow(clippy::type_complexity)]
    fn host(
        &self,
        spot: &Spot,
        declared: &BTreeMap<RouteId, DeclaredRoute>,
        ingresses: Ingresses<'_>,
    ) -> (Option<Arc<VirtualHost>>, Vec<(ResourceRef, Finding)>) {
        let (scope, host) = spot;
        let of_ingresses = ingresses.routes.get(host).filter(|_| has_ingresses(*scope));
        let Together { mut routes, clients, mut lost, claimed } =
            self.together(spot, declared, of_ingresses, &|_| true);
        if !claimed {
            if let Some(of_ingresses) = of_ingresses {
                return (Some(of_ingresses.clone()), Vec::new());
            }
            return (
                self.own_hosts.get(spot).map(|own| self.stand_in(spot, own, declared, ingresses)),
                Vec::new(),
            );
        }
        let (built, losers) = VirtualHost::build(std::mem::take(&mut routes));
        lost.extend(losers.iter().map(|(loser, winner)| self::lost(host, loser, winner)));
        // of routes that are all kept away none less specific steps in
        (Some(built.unwrap_or_else(VirtualHost::empty).under(clients)), lost)
    }

    /// A listener's host without routes: what others serve there, but not the same Gateway's less specific listeners.
    fn stand_in(
        &self,
        (scope, host): &Spot,
        own: &Owners,
        declared: &BTreeMap<RouteId, DeclaredRoute>,
        ingresses: Ingresses<'_>,
    ) -> Arc<VirtualHost> {
        for pattern in broader(host) {
            let of_ingresses = ingresses.routes.get(&pattern).filter(|_| has_ingresses(*scope));
            let others = |gateway: &Key| !own.contains_key(gateway);
            let Together { routes, clients, .. } =
                self.together(&(*scope, pattern), declared, of_ingresses, &others);
            if let (Some(built), _) = VirtualHost::build(routes) {
                return built.under(clients);
            }
        }
        let asked = own.keys().find_map(|gateway| self.asks.get(&(*scope, gateway.clone())));
        VirtualHost::empty().under(asked.filter(|_| serves_http(own, |_| true)).cloned())
    }

    /// What Ingresses and some Gateways serve for a host, and what its clients must show. Of those with routes there, the
    /// Gateway with the most specific listener decides about that; between it and Ingresses, whose clients need show
    /// nothing, the older object does. Routes for which more was to be asked than is are left out.
    fn together(
        &self,
        spot: &Spot,
        declared: &BTreeMap<RouteId, DeclaredRoute>,
        of_ingresses: Option<&Arc<VirtualHost>>,
        counts: &dyn Fn(&Key) -> bool,
    ) -> Together {
        let (scope, host) = spot;
        let deep = match (host, of_ingresses) {
            // the Ingress's entry is the one that is found for one label
            (HostPattern::Wildcard(parent), Some(_)) => Some((*scope, HostPattern::Suffix(parent.clone()))),
            _ => None,
        };
        let spots = || std::iter::once(spot).chain(&deep);
        let through = |counts: &dyn Fn(&Key) -> bool| -> Vec<_> {
            spots().flat_map(|spot| self.served(spot, declared, counts)).collect()
        };
        let mut of_ingresses: Vec<_> = of_ingresses.into_iter().flat_map(|v| v.routes()).cloned().collect();
        let mut all = through(counts);
        let claimed = !all.is_empty();
        let asks = |gateway: &Key| self.asks.get(&(*scope, gateway.clone()));
        let by = spots().flat_map(|spot| self.claims.get(spot).into_iter().flatten());
        let by = by.filter(|(id, gateway, _)| id.0 != Kind::TlsRoute && counts(gateway));
        let by: BTreeSet<_> = by.map(|(_, gateway, _)| gateway).collect();
        if by.iter().all(|gateway| asks(gateway).is_none()) {
            all.extend(of_ingresses);
            return Together { routes: all, clients: None, lost: Vec::new(), claimed };
        }
        let decides = by.iter().max_by_key(|gateway| self.listens(*scope, host, gateway));
        let mut clients = decides.and_then(|gateway| asks(gateway)).cloned();
        let required = |clients: &Option<Arc<ClientValidation>>| clients.as_ref().is_some_and(|c| c.required);
        let fits = |gateway: &Key, clients: &Option<Arc<ClientValidation>>| {
            counts(gateway) && asks(gateway).is_none_or(|own| !own.required || clients.as_ref() == Some(own))
        };
        let mut lost = Vec::new();
        let oldest = |routes: &[Arc<Route>]| routes.iter().min_by(|a, b| age(a).cmp(&age(b))).cloned();
        let rivals: Vec<_> = of_ingresses.iter().filter(|r| !r.path.is_challenge()).cloned().collect();
        if let Some(rival) = oldest(&rivals) {
            let decided = through(&|gateway| counts(gateway) && asks(gateway) == clients.as_ref());
            let winner = oldest(&decided).filter(|w| required(&clients) && age(w) < age(&rival));
            match winner {
                Some(winner) => {
                    lost.extend(rivals.iter().map(|loser| lost_protected(spot, loser, &winner)));
                    of_ingresses.retain(|route| route.path.is_challenge());
                }
                None => clients = None,
            }
        }
        let kept = through(&|gateway| fits(gateway, &clients));
        let winner = oldest(&kept).or_else(|| oldest(&of_ingresses));
        if let Some(winner) = winner {
            let left_out = all.iter().filter(|route| !kept.iter().any(|kept| kept.source == route.source));
            lost.extend(left_out.map(|loser| lost_protected(spot, loser, &winner)));
        }
        let mut routes = kept;
        routes.extend(of_ingresses);
        Together { routes, clients, lost, claimed }
    }

    /// How specific the Gateway's listener is that takes a host; `None` where none serves HTTP over TLS.
    fn listens(&self, scope: Scope, host: &HostPattern, gateway: &Key) -> Option<Specificity> {
        let one_label = match host {
            HostPattern::Wildcard(parent) => Some(HostPattern::Suffix(parent.clone())),
            _ => None,
        };
        let own = one_label.unwrap_or_else(|| host.clone());
        let mut patterns = std::iter::once(own.clone()).chain(broader(&own)).chain([HostPattern::Any]);
        let takes = |p: &HostPattern| {
            let own = self.own_hosts.get(&(scope, p.clone()));
            own.is_some_and(|own| serves_http(own, |by| by == gateway))
        };
        patterns.find(takes).map(|pattern| pattern.specificity())
    }

    /// What becomes of TLS connections for a host: `None` leaves it to less specific hosts. Between a TLSRoute and what
    /// is served at the same host, the older object has all of it.
    fn mode(
        &self,
        spot: &Spot,
        declared: &BTreeMap<RouteId, DeclaredRoute>,
        ingresses: Ingresses<'_>,
        lost: &mut Vec<(ResourceRef, Finding)>,
    ) -> Option<TlsMode> {
        let rivals = self.rivals(spot, declared, ingresses, |_| true);
        if let Some(winner) = rivals.winner() {
            let losers = rivals.passed.iter().skip(1).map(|loser| &loser.route).chain(&rivals.served);
            lost.extend(losers.map(|loser| lost_host(spot, loser, &winner.route)));
            return Some(self.carried(spot.0, winner));
        }
        if let Some(older) = rivals.served.first() {
            lost.extend(rivals.passed.iter().map(|loser| lost_host(spot, &loser.route, older)));
        }
        let own = self.own_hosts.get(spot);
        if own.is_some_and(|own| serves_http(own, |_| true)) {
            return Some(TlsMode::Terminate);
        }
        let own = own.map(|own| self.stand_in_mode(spot, own, declared, ingresses));
        own.or_else(|| {
            (spot.1 == HostPattern::Any && !self.serves_https(spot.0, ingresses))
                .then_some(TlsMode::Passthrough(None))
        })
    }

    /// Whether HTTP is served over TLS at this port for anybody: else names that nobody takes are closed, for there is no
    /// certificate to show.
    fn serves_https(&self, scope: Scope, ingresses: Ingresses<'_>) -> bool {
        let mut own = self.own_hosts.iter().filter(|((own, _), _)| *own == scope);
        own.any(|(_, own)| serves_http(own, |_| true))
            || (has_ingresses(scope) && !ingresses.routes.is_empty())
    }

    /// The host of listeners for TLSRoutes that has none: what becomes there of connections to others than its Gateways.
    fn stand_in_mode(
        &self,
        (scope, host): &Spot,
        own: &Owners,
        declared: &BTreeMap<RouteId, DeclaredRoute>,
        ingresses: Ingresses<'_>,
    ) -> TlsMode {
        let others = |gateway: &Key| !own.contains_key(gateway);
        for pattern in std::iter::once(host.clone()).chain(broader(host)) {
            let spot = (*scope, pattern);
            let rivals = self.rivals(&spot, declared, ingresses, others);
            if let Some(winner) = rivals.winner() {
                return self.carried(*scope, winner);
            }
            let https = self.own_hosts.get(&spot).is_some_and(|own| serves_http(own, others));
            if !rivals.served.is_empty() || https {
                return TlsMode::Terminate;
            }
        }
        let passed = own.values().any(|mode| *mode == Mode::TlsPassthrough);
        if passed { TlsMode::Passthrough(None) } else { TlsMode::TerminateTcp { route: None, clients: None } }
    }

    /// What becomes of connections that a TLSRoute takes.
    fn carried(&self, scope: Scope, Passed { route, ends_tls, through }: &Passed<'_>) -> TlsMode {
        let route = Some(route.clone());
        if *ends_tls {
            let clients = self.asks.get(&(scope, through.1.clone())).cloned();
            TlsMode::TerminateTcp { route, clients }
        } else {
            TlsMode::Passthrough(route)
        }
    }

    /// All that is declared for a host by itself: through some of the Gateways, and by Ingresses.
    fn rivals(
        &self,
        spot: &Spot,
        declared: &BTreeMap<RouteId, DeclaredRoute>,
        ingresses: Ingresses<'_>,
        counts: impl Fn(&Key) -> bool,
    ) -> Rivals<'_> {
        let (scope, host) = spot;
        let of_ingresses = ingresses.routes.get(host).filter(|_| has_ingresses(*scope));
        let deep = match host {
            // the Ingress's entry is the one that is found for one label
            HostPattern::Wildcard(parent) if of_ingresses.is_some() => {
                Some((*scope, HostPattern::Suffix(parent.clone())))
            }
            _ => None,
        };
        let spots = || [Some(spot), deep.as_ref()].into_iter().flatten();
        let mut passed: Vec<_> = spots().flat_map(|spot| self.passed(spot, declared, &counts)).collect();
        passed.sort_by(|a, b| (age(&a.route), a.through).cmp(&(age(&b.route), b.through)));
        passed.dedup_by(|a, b| a.route.source == b.route.source);
        let mut served: Vec<_> = spots().flat_map(|spot| self.served(spot, declared, &counts)).collect();
        served.extend(of_ingresses.into_iter().flat_map(|v| v.routes()).cloned());
        served.sort_by(|a, b| age(a).cmp(&age(b)));
        served.dedup_by(|a, b| a.source == b.source);
        Rivals { passed, served }
    }

    /// The routes with requests that are declared for a host through some of the Gateways.
    fn served(
        &self,
        spot: &Spot,
        declared: &BTreeMap<RouteId, DeclaredRoute>,
        counts: impl Fn(&Key) -> bool,
    ) -> Vec<Arc<Route>> {
        let mut all = Vec::new();
        let mut last: Option<&RouteId> = None;
        for (id, gateway, ends_tls) in self.claims.get(spot).into_iter().flatten() {
            // through two Gateways it is the same route
            if last == Some(id) || id.0 == Kind::TlsRoute || !counts(gateway) {
                continue;
            }
            last = Some(id);
            all.extend(claimed(spot, id, gateway, *ends_tls, declared).iter().cloned());
        }
        all
    }

    /// The TLSRoutes that are declared for a host, through each of some Gateways.
    fn passed<'a>(
        &'a self,
        spot: &Spot,
        declared: &BTreeMap<RouteId, DeclaredRoute>,
        counts: impl Fn(&Key) -> bool,
    ) -> Vec<Passed<'a>> {
        let mut all = Vec::new();
        for (id, gateway, ends_tls) in self.claims.get(spot).into_iter().flatten() {
            if id.0 == Kind::TlsRoute && counts(gateway) {
                let through = (self.born.get(gateway).copied().unwrap_or_default(), gateway);
                let routes = claimed(spot, id, gateway, *ends_tls, declared).iter().cloned();
                all.extend(routes.map(|route| Passed { route, ends_tls: *ends_tls, through }));
            }
        }
        all
    }

    /// What an object did not get of what it declares.
    pub(super) fn lost(&self, object: &ResourceRef, spots: impl Iterator<Item = Spot>) -> Vec<&Finding> {
        let mut findings = Vec::new();
        for spot in spots {
            let all = self.lost.get(&spot).map(|lost| &**lost).unwrap_or_default();
            findings.extend(all.iter().filter(|(loser, _)| loser == object).map(|(_, finding)| finding));
        }
        findings
    }

    /// Whether there are routes for just this host.
    pub(super) fn serves(&self, (scope, host): &Spot) -> bool {
        self.scopes.get(scope).is_some_and(|port| port.routes.get(host).is_some())
    }

    /// The ports that there are.
    pub(super) fn scopes(&self) -> impl Iterator<Item = Scope> + '_ {
        self.scopes.keys().copied()
    }

    /// What is to be published, and whether it is news.
    pub(super) fn publish(&mut self) -> (Arc<Listeners>, bool) {
        let moved = std::mem::take(&mut self.moved);
        if moved {
            let all = self.scopes.iter().map(|(scope, port)| {
                let listener = Listener {
                    tls: port.tls,
                    asks_clients: self.asks.keys().any(|(asking, _)| asking == scope),
                    routes: port.routes.clone(),
                    certs: port.certs.clone(),
                    names: port.names.clone(),
                };
                (*scope, Arc::new(listener))
            });
            self.published = Arc::new(all.collect());
        }
        (self.published.clone(), moved)
    }
}

/// What is served for a host by all that count.
struct Together {
    routes: Vec<Arc<Route>>,
    /// What clients must show of themselves.
    clients: Option<Arc<ClientValidation>>,
    /// Who is left out since clients are asked for something else.
    lost: Vec<(ResourceRef, Finding)>,
    /// Whether Gateways have routes there, left out or not.
    claimed: bool,
}

/// The routes of an object at a host, through a Gateway.
fn claimed<'a>(
    (scope, host): &Spot,
    id: &RouteId,
    gateway: &Key,
    ends_tls: bool,
    declared: &'a BTreeMap<RouteId, DeclaredRoute>,
) -> &'a [Arc<Route>] {
    let place = Place { scope: *scope, host: host.clone(), gateway: gateway.clone(), ends_tls };
    declared.get(id).and_then(|declared| at(&declared.routes, &place)).unwrap_or_default()
}

/// Whether one of these Gateways that count serves HTTP over TLS.
fn serves_http(own: &Owners, counts: impl Fn(&Key) -> bool) -> bool {
    own.iter().any(|(gateway, mode)| *mode == Mode::Https && counts(gateway))
}

/// A TLSRoute's route for a host, through a Gateway.
struct Passed<'a> {
    route: Arc<Route>,
    /// TLS ends at the Gateway's listener.
    ends_tls: bool,
    /// The Gateway behind its age: of one route's Gateways the oldest one counts.
    through: (i64, &'a Key),
}

/// Routes for one host of which only one kind can be honoured: one of each object, the oldest one first.
struct Rivals<'a> {
    /// Those of TLSRoutes.
    passed: Vec<Passed<'a>>,
    /// All others.
    served: Vec<Arc<Route>>,
}

impl<'a> Rivals<'a> {
    /// The route that takes all connections, if one does.
    fn winner(&self) -> Option<&Passed<'a>> {
        self.passed
            .first()
            .filter(|passed| self.served.first().is_none_or(|served| age(&passed.route) < age(served)))
    }
}

/// Less specific patterns that take what the host takes, from the most specific one.
fn broader(host: &HostPattern) -> Vec<HostPattern> {
    let mut all = match host {
        HostPattern::Exact(name) => HostPattern::candidates(name),
        HostPattern::Suffix(parent) => {
            // a name below it, so that all that take it are there
            let mut all = HostPattern::candidates(&format!("x.{parent}"));
            all.retain(|pattern| host.within(pattern));
            all
        }
        HostPattern::Wildcard(_) | HostPattern::Any => Vec::new(),
    };
    all.retain(|pattern| pattern != host);
    all
}

/// The smaller one is the older object's.
fn age(route: &Route) -> (i64, &str, &str, Kind) {
    let ResourceRef { kind, namespace, name } = &*route.source;
    (route.created, namespace, name, *kind)
}

/// Of a host that is passed on for one of two objects.
fn lost_host((scope, host): &Spot, loser: &Route, winner: &Route) -> (ResourceRef, Finding) {
    let port = scope.port;
    // what the star stands for differs: one label for an Ingress, one or more for a TLSRoute
    let host = match host {
        HostPattern::Wildcard(_) => format!("{host} (one label)"),
        _ => host.to_string(),
    };
    let message = if winner.source.kind == Kind::TlsRoute {
        format!(
            "TLS connections for host {host} on port {port} are passed on by {}; none comes here",
            winner.source
        )
    } else {
        format!(
            "host {host} on port {port} is already served by {}; no connection is passed on",
            winner.source
        )
    };
    let field = if loser.source.kind == Kind::Ingress { "spec.rules" } else { "spec.hostnames" };
    let finding = Finding { reason: Reason::PassedHostTaken, field: field.into(), message: message.into() };
    ((*loser.source).clone(), finding)
}

/// Of a host whose clients must show a certificate for one of two objects.
fn lost_protected((scope, host): &Spot, loser: &Route, winner: &Route) -> (ResourceRef, Finding) {
    let port = scope.port;
    let message = format!(
        "host {host} on port {port} is already served by {}, for which clients are asked for another certificate, or \
         for none; nothing is served here",
        winner.source
    );
    let field = if loser.source.kind == Kind::Ingress { "spec.rules" } else { "spec.hostnames" };
    let finding =
        Finding { reason: Reason::ProtectedHostTaken, field: field.into(), message: message.into() };
    ((*loser.source).clone(), finding)
}

fn lost(host: &HostPattern, loser: &Route, winner: &Route) -> (ResourceRef, Finding) {
    let path = &loser.path;
    let message = if loser.source == winner.source {
        format!("{path} of host {host} is declared twice in this object; {} counts", winner.place())
    } else {
        format!("{path} of host {host} is already served by {}; it gets nothing here", winner.source)
    };
    let field = match loser.source.kind {
        Kind::Ingress => format!("spec.rules[{}].http.paths[{}].path", loser.rule.rule, loser.rule.path),
        _ => format!("spec.{}", loser.place()),
    };
    let finding = Finding { reason: Reason::HostPathTaken, field: field.into(), message: message.into() };
    ((*loser.source).clone(), finding)
}
