//! What a route does not get at one of its parents, of what it declares there.
//!
//! Its parents share addresses with others', so whether anything is left is known only when all is settled. What
//! comes of it goes into conditions and nowhere else: what a route asks for does not depend on what it gets.

use super::attach::{Parent, Place};
use super::gateway::Gateways;
use super::gateway_api::GatewayApi;
use super::listeners::{RouteId, spots};
use super::rivals::Rivals;
use super::route::{DeclaredRoute, readable};
use crate::cluster::gateway::Meta;
use crate::cluster::{Cluster, Key};
use crate::finding::{Finding, Reason};
use ingress_core::{Kind, ResourceRef};
use std::collections::BTreeSet;

/// What others have at a parent, of what a route asks for there.
pub(super) struct Loss {
    /// They have every host of it: nothing is served there.
    pub all: bool,
    /// The first thing that is lost, and how many more are.
    pub message: String,
}

/// The hosts of a route where it is installed by one parent alone.
pub(super) struct Looking<'a> {
    pub gateways: &'a Gateways,
    pub rivals: &'a Rivals,
    pub cluster: &'a Cluster,
}

impl Looking<'_> {
    fn places(&self, (kind, key): &RouteId, parent: &Parent) -> BTreeSet<Place> {
        let cluster = self.cluster;
        let known: Option<(&Meta, &[Box<str>])> = match kind {
            Kind::HttpRoute => cluster.http_routes.get(key).map(|r| (&r.meta, &*r.spec.hostnames)),
            Kind::GrpcRoute => cluster.grpc_routes.get(key).map(|r| (&r.meta, &*r.spec.hostnames)),
            _ => cluster.tls_routes.get(key).map(|r| (&r.meta, &*r.spec.hostnames)),
        };
        let Some((meta, hostnames)) = known else { return BTreeSet::new() };
        let hosts: Vec<_> = hostnames.iter().filter_map(|name| readable(name).ok()).collect();
        parent.places(*kind, meta, &hosts, self.gateways, self.rivals, cluster)
    }
}

impl GatewayApi {
    /// What a route lost at each of its parents; nothing is looked for where it lost nothing at all.
    pub(super) fn losses(
        &self,
        looking: &Looking<'_>,
        id: &RouteId,
        declared: &DeclaredRoute,
    ) -> Vec<Option<Loss>> {
        let Key { namespace, name } = id.1.clone();
        let object = ResourceRef { kind: id.0, namespace, name };
        let lost = |place: &Place| self.composed.lost(&object, spots(place));
        let lost_any = declared.routes.iter().any(|(place, _)| !lost(place).is_empty());
        let parents = declared.attached.parents.iter();
        let losses = parents.map(|parent| {
            if !lost_any {
                return None;
            }
            let places = looking.places(id, parent);
            let mut findings: Vec<&Finding> = Vec::new();
            for finding in places.iter().flat_map(lost) {
                if !findings.iter().any(|known| known.message == finding.message) {
                    findings.push(finding);
                }
            }
            let first = findings.first()?;
            let all = places.iter().all(|place| self.has_nothing(&object, place));
            // what costs a whole host is said first
            let worst = findings.iter().find(|finding| is_whole(finding)).unwrap_or(first);
            let more = match findings.len() - 1 {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            Some(Loss { all, message: format!("{}: {}{more}", worst.field, worst.message) })
        });
        losses.collect()
    }

    /// Whether others have all of a place that a route declares something for.
    fn has_nothing(&self, object: &ResourceRef, place: &Place) -> bool {
        let mut spots = spots(place);
        let lost = |spot| self.composed.lost(object, std::iter::once(spot)).into_iter().any(is_whole);
        // names of one label are apart where an Ingress has their wildcard
        spots.next().is_some_and(lost) && spots.all(|spot| !self.composed.serves(&spot) || lost(spot))
    }
}

/// Whether the whole host is lost by it, and not a path of it.
fn is_whole(finding: &Finding) -> bool {
    matches!(finding.reason, Reason::PassedHostTaken | Reason::ProtectedHostTaken)
}
