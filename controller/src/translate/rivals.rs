//! HTTPRoutes and GRPCRoutes that ask one listener for the same host. Of two such routes exactly one is accepted: the
//! older one, then the one whose `namespace/name` comes first (GRPCRoute `spec.hostnames`).

use super::attach::ListenerId;
use super::gateway::{Gateways, Listener};
use super::listeners::RouteId;
use super::route::DeclaredRoute;
use crate::cluster::gateway::Meta;
use crate::cluster::{Cluster, Key};
use ingress_core::{HostPattern, Kind};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The routes that a rival keeps from listeners.
#[derive(Default)]
pub(super) struct Rivals {
    beaten: HashMap<RouteId, BTreeSet<ListenerId>>,
}

impl Rivals {
    /// The listeners that rivals keep from a route.
    pub(super) fn of(&self, id: &RouteId) -> Option<&BTreeSet<ListenerId>> {
        self.beaten.get(id)
    }

    /// Decides anew about these listeners. Gives the routes for which it came out differently.
    pub(super) fn settle(
        &mut self,
        listeners: &BTreeSet<ListenerId>,
        routes: &BTreeMap<RouteId, DeclaredRoute>,
        gateways: &Gateways,
        cluster: &Cluster,
    ) -> BTreeSet<RouteId> {
        let mut changed = BTreeSet::new();
        for id in listeners {
            let beaten = beaten(id, routes, gateways, cluster);
            let mut before: BTreeSet<RouteId> = self
                .beaten
                .iter()
                .filter(|(_, at)| at.contains(id))
                .map(|(route, _)| route.clone())
                .collect();
            for route in beaten {
                if !before.remove(&route) {
                    self.beaten.entry(route.clone()).or_default().insert(id.clone());
                    changed.insert(route);
                }
            }
            for route in before {
                if let Some(at) = self.beaten.get_mut(&route) {
                    at.remove(id);
                    if at.is_empty() {
                        self.beaten.remove(&route);
                    }
                }
                changed.insert(route);
            }
        }
        changed
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.beaten.is_empty()
    }
}

/// A route that asks a listener for hosts.
struct Claim<'a> {
    id: &'a RouteId,
    created: i64,
    hosts: Vec<HostPattern>,
}

impl Claim<'_> {
    fn meets(&self, other: &Self) -> bool {
        self.hosts.iter().any(|host| other.hosts.iter().any(|other| host.intersection(other).is_some()))
    }
}

fn beaten(
    listener: &ListenerId,
    routes: &BTreeMap<RouteId, DeclaredRoute>,
    gateways: &Gateways,
    cluster: &Cluster,
) -> Vec<RouteId> {
    let Some((_, all)) = gateways.parent(&listener.0) else { return Vec::new() };
    let Some(own) = all.get(listener.1) else { return Vec::new() };
    let asks = |kind: Kind| {
        let of_kind = routes.range((kind, Key::new("", ""))..).take_while(move |(id, _)| id.0 == kind);
        of_kind.filter(|(_, route)| {
            route.attached.listeners.contains(listener) || route.attached.beaten.contains(listener)
        })
    };
    // nearly all listeners have routes of one kind
    if asks(Kind::GrpcRoute).next().is_none() || asks(Kind::HttpRoute).next().is_none() {
        return Vec::new();
    }
    let claims = asks(Kind::HttpRoute).chain(asks(Kind::GrpcRoute));
    let mut claims: Vec<_> = claims.filter_map(|(id, _)| claim(id, own, cluster)).collect();
    claims.sort_by(|a, b| (a.created, &a.id.1, a.id.0).cmp(&(b.created, &b.id.1, b.id.0)));
    let mut accepted: [Vec<&Claim<'_>>; 2] = Default::default();
    let mut beaten = Vec::new();
    for claim in &claims {
        let is_grpc = usize::from(claim.id.0 == Kind::GrpcRoute);
        if accepted[1 - is_grpc].iter().any(|rival| rival.meets(claim)) {
            beaten.push(claim.id.clone());
        } else {
            accepted[is_grpc].push(claim);
        }
    }
    beaten
}

fn claim<'a>(id: &'a RouteId, listener: &Listener, cluster: &Cluster) -> Option<Claim<'a>> {
    let (meta, names): (&Meta, &[Box<str>]) = match id.0 {
        Kind::HttpRoute => cluster.http_routes.get(&id.1).map(|r| (&r.meta, &*r.spec.hostnames)),
        _ => cluster.grpc_routes.get(&id.1).map(|r| (&r.meta, &*r.spec.hostnames)),
    }?;
    let hosts = names.iter().filter_map(|name| HostPattern::gateway(name).ok());
    let mut hosts: Vec<_> = hosts.filter_map(|host| host.intersection(&listener.hostname)).collect();
    if names.is_empty() {
        hosts.push(listener.hostname.clone());
    }
    Some(Claim { id, created: meta.created, hosts })
}
