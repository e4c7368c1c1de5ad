//! The Gateway API's part of a pass: what changed in, what ports serve and what statuses say out.
//!
//! A change of one route costs that route and its hosts, one of a ListenerSet the routes of its Gateway. Gateways,
//! classes and grants are few and change rarely: then every route is looked at anew.

use super::Settings;
use super::attach::{Attached, ListenerId, ParentId, parent_id};
use super::authorities::Authorities;
use super::backend_tls::Policies;
use super::gateway::{CONTROLLER, Gateways, Listener, Mode, api_kind, is_ours};
use super::grant::Grants;
use super::ingress::Shared;
use super::listeners::{Composed, Ingresses, RouteId, spots};
use super::losses::Looking;
use super::rivals::Rivals;
use super::route::{DeclaredRoute, Reading, View};
use super::{gateway_class, listener_set};
use crate::cluster::gateway::{Meta, ParentRef};
use crate::cluster::{Cluster, Dirty, Key};
use crate::finding::{Finding, Findings, Outcome};
use crate::status::{self, ListenerStatus, ParentStatus};
use crate::write::Write;
use ingress_core::listener::Listeners;
use ingress_core::{HostPattern, Kind, ResourceRef};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// What Gateways and their routes were translated to.
#[derive(Default)]
pub(super) struct GatewayApi {
    grants: Grants,
    gateways: Gateways,
    policies: Policies,
    /// Of the certificates of clients.
    authorities: Authorities,
    rivals: Rivals,
    routes: BTreeMap<RouteId, DeclaredRoute>,
    /// Which routes refer to a Service.
    by_service: HashMap<Key, Vec<RouteId>>,
    /// Routes by listener.
    attached: HashMap<ListenerId, usize>,
    /// ListenerSets of Gateways that were ours and are gone.
    orphans: BTreeSet<Key>,
    pub(super) composed: Composed,
    /// What was last told of each object.
    told: HashMap<ResourceRef, Box<[Finding]>>,
    /// Routes of HTTPRoutes, of GRPCRoutes and of TLSRoutes.
    counts: [usize; 3],
}

/// What one pass goes by.
pub(super) struct Pass<'a> {
    pub cluster: &'a Cluster,
    pub dirty: &'a Dirty,
    pub everything: bool,
    pub settings: &'a Settings,
    pub now: i64,
    pub ingresses: Ingresses<'a>,
    /// Hosts of Ingresses that were settled in this pass.
    pub hosts: &'a HashSet<HostPattern>,
    /// Ingresses that lost or won something at a port with Gateways.
    pub touched: &'a mut BTreeSet<Key>,
    pub outcomes: &'a mut Vec<Outcome>,
}

/// Which routes must be looked at, since what they attach to is different.
#[derive(PartialEq, Eq)]
enum Renewed {
    Nothing,
    /// Those that name one of these.
    Parents(BTreeSet<ParentId>),
    Everything,
}

/// What came of it.
pub(super) struct Served {
    pub listeners: Arc<Listeners>,
    pub moved: bool,
    pub writes: Vec<Write>,
}

impl GatewayApi {
    /// Routes that serve, of HTTPRoutes, of GRPCRoutes and of TLSRoutes.
    pub(super) fn counts(&self) -> [usize; 3] {
        self.counts
    }

    pub(super) fn translate(&mut self, pass: &mut Pass<'_>, shared: &mut Shared) -> Served {
        if !pass.settings.gateway_api {
            return Served { listeners: Arc::default(), moved: false, writes: Vec::new() };
        }
        let mut spots = HashSet::new();
        let mut touched: BTreeSet<ResourceRef> = BTreeSet::new();
        let renewed = self.look_at_gateways(pass, shared, &mut touched);
        let moved = self.policies.renew(pass.cluster, pass.dirty, pass.everything);
        touched.extend(moved.policies.iter().map(|key| resource(Kind::BackendTlsPolicy, key)));
        let mut work = self.work(pass, &renewed);
        work.extend(moved.services.iter().filter_map(|s| self.by_service.get(s)).flatten().cloned());
        let mut asked = BTreeSet::new();
        for id in work {
            self.renew(pass, shared, &id, &mut asked, &mut spots, &mut touched);
        }
        // what a route asks for does not depend on what it gets
        for id in self.rivals.settle(&asked, &self.routes, &self.gateways, pass.cluster) {
            self.renew(pass, shared, &id, &mut asked, &mut spots, &mut touched);
        }
        if renewed != Renewed::Nothing {
            self.composed.listen(&self.gateways, pass.ingresses, &mut spots);
        }
        if !self.composed.is_empty() {
            self.composed.certify(&self.gateways, pass.ingresses);
            self.composed.ingress_hosts(pass.hosts.iter(), &mut spots);
        }
        self.composed.settle(spots, &self.routes, pass.ingresses, pass.now, &mut touched);
        let (listeners, moved) = self.composed.publish();
        let mut writes = Vec::new();
        for object in self.to_write(pass, &touched) {
            writes.extend(self.write(pass, object));
        }
        for object in touched {
            if object.kind == Kind::Ingress {
                pass.touched.insert(Key { namespace: object.namespace, name: object.name });
            } else {
                self.tell(pass, object);
            }
        }
        Served { listeners, moved, writes }
    }

    /// What an Ingress did not get of its hosts where Gateways listen.
    pub(super) fn lost(&self, object: &ResourceRef, hosts: &[&HostPattern]) -> Vec<&Finding> {
        let spots =
            self.composed.scopes().flat_map(|scope| hosts.iter().map(move |host| (scope, (*host).clone())));
        self.composed.lost(object, spots)
    }

    /// Looks at Gateways and their ListenerSets if something about them may be different; says whose routes must be
    /// looked at then.
    fn look_at_gateways(
        &mut self,
        pass: &Pass<'_>,
        shared: &mut Shared,
        touched: &mut BTreeSet<ResourceRef>,
    ) -> Renewed {
        let Pass { cluster, dirty, settings, .. } = pass;
        let (namespace, name) = &settings.publish_service;
        let published = Key::new(namespace.as_str(), name.as_str());
        // a Gateway keeps the address that its status tells
        let retold = || dirty.versions.iter().any(|(kind, _)| *kind == Kind::Gateway);
        let everything = pass.everything || dirty.gateways;
        let asked = everything
            || dirty.listener_sets
            || (self.gateways.selects_sets && !dirty.namespaces.is_empty())
            || (!settings.gateway_addresses.is_empty() && retold())
            || dirty.services.contains(&published)
            || dirty.secrets.iter().any(|secret| self.gateways.secrets.contains(secret))
            || dirty.config_maps.iter().any(|map| self.gateways.config_maps.contains(map));
        if !asked {
            return Renewed::Nothing;
        }
        self.grants = Grants::of(cluster);
        let fresh = Gateways::read(
            cluster,
            &self.grants,
            &mut shared.certificates,
            &mut self.authorities,
            settings,
            pass.now,
            &self.gateways,
        );
        let before = std::mem::replace(&mut self.gateways, fresh);
        let fresh = &self.gateways;
        self.authorities.retain(|map| fresh.config_maps.contains(map));
        let mut changed = BTreeSet::new();
        for key in fresh.all.keys().chain(before.all.keys()) {
            if fresh.all.get(key) != before.all.get(key) {
                touched.insert(resource(Kind::Gateway, key));
                changed.insert(key.clone());
            }
        }
        for key in fresh.sets.keys().chain(before.sets.keys()) {
            let (new, old) = (fresh.sets.get(key), before.sets.get(key));
            if new != old {
                touched.insert(resource(Kind::ListenerSet, key));
                changed.extend([new, old].into_iter().flatten().map(|set| set.gateway.clone()));
            }
        }
        self.orphans.extend(before.sets.keys().cloned());
        self.orphans.retain(|key| {
            let parent = cluster.listener_sets.get(key).and_then(|set| listener_set::parent(set));
            parent.is_some_and(|parent| !cluster.gateways.contains_key(&parent))
        });
        if everything {
            return Renewed::Everything;
        }
        if changed.is_empty() {
            return Renewed::Nothing;
        }
        // listeners of one Gateway keep hosts from each other
        let sets = fresh.sets.iter().chain(&before.sets).filter(|(_, set)| changed.contains(&set.gateway));
        let sets: Vec<_> = sets.map(|(key, _)| (Kind::ListenerSet, key.clone())).collect();
        Renewed::Parents(changed.into_iter().map(|key| (Kind::Gateway, key)).chain(sets).collect())
    }

    /// The routes that must be looked at.
    fn work(&self, pass: &Pass<'_>, renewed: &Renewed) -> BTreeSet<RouteId> {
        let Pass { cluster, dirty, .. } = pass;
        if *renewed == Renewed::Everything {
            let http = cluster.http_routes.keys().map(|key| (Kind::HttpRoute, key.clone()));
            let grpc = cluster.grpc_routes.keys().map(|key| (Kind::GrpcRoute, key.clone()));
            let tls = cluster.tls_routes.keys().map(|key| (Kind::TlsRoute, key.clone()));
            return http.chain(grpc).chain(tls).chain(self.routes.keys().cloned()).collect();
        }
        let services = dirty.services.iter().filter_map(|service| self.by_service.get(service)).flatten();
        let mut work: BTreeSet<RouteId> = dirty.routes.iter().chain(services).cloned().collect();
        if self.gateways.selects && !dirty.namespaces.is_empty() {
            let within = |id: &&RouteId| dirty.namespaces.contains(&id.1.namespace);
            work.extend(self.routes.keys().filter(within).cloned());
        }
        if let Renewed::Parents(parents) = renewed {
            let names_one = |meta: &Meta, refs: &[ParentRef]| {
                let mut ids = refs.iter().filter_map(|r| parent_id(r, &meta.key.namespace));
                ids.any(|id| parents.contains(&id))
            };
            let http = cluster.http_routes.iter().filter(|(_, r)| names_one(&r.meta, &r.spec.parent_refs));
            let grpc = cluster.grpc_routes.iter().filter(|(_, r)| names_one(&r.meta, &r.spec.parent_refs));
            work.extend(http.map(|(key, _)| (Kind::HttpRoute, key.clone())));
            let tls = cluster.tls_routes.iter().filter(|(_, r)| names_one(&r.meta, &r.spec.parent_refs));
            work.extend(grpc.map(|(key, _)| (Kind::GrpcRoute, key.clone())));
            work.extend(tls.map(|(key, _)| (Kind::TlsRoute, key.clone())));
        }
        work
    }

    /// Translates one route anew, or forgets it.
    fn renew(
        &mut self,
        pass: &Pass<'_>,
        shared: &mut Shared,
        id: &RouteId,
        asked: &mut BTreeSet<ListenerId>,
        spots: &mut HashSet<super::listeners::Spot>,
        touched: &mut BTreeSet<ResourceRef>,
    ) {
        let old = self.routes.remove(id).unwrap_or_default();
        let reading = Reading {
            gateways: &self.gateways,
            rivals: &self.rivals,
            grants: &self.grants,
            policies: &self.policies,
            cluster: pass.cluster,
            settings: pass.settings,
        };
        let new = match id.0 {
            Kind::TlsRoute => {
                let object = pass.cluster.tls_routes.get(&id.1);
                object.map(|object| reading.declare_tls(object, Some(&old), shared))
            }
            _ => view(pass.cluster, id).map(|view| reading.declare(&view, Some(&old), shared)),
        };
        let exists = new.is_some();
        let new = new.unwrap_or_default();
        if id.0 != Kind::TlsRoute {
            for attached in [&old.attached, &new.attached] {
                asked.extend(attached.listeners.iter().chain(&attached.beaten).cloned());
            }
        }
        for service in old.services.iter().chain(&new.services) {
            touched.extend(self.policies.of(service).map(|policy| resource(Kind::BackendTlsPolicy, policy)));
        }
        for service in old.services.iter().filter(|service| !new.services.contains(service)) {
            if let Some(routes) = self.by_service.get_mut(service) {
                routes.retain(|known| known != id);
                if routes.is_empty() {
                    self.by_service.remove(service);
                }
            }
        }
        for service in new.services.iter().filter(|service| !old.services.contains(service)) {
            self.by_service.entry(service.clone()).or_default().push(id.clone());
        }
        self.count(&old.attached, &new.attached, touched);
        self.composed.claim(id, &old.routes, &new.routes, spots);
        let slot = match id.0 {
            Kind::TlsRoute => 2,
            Kind::GrpcRoute => 1,
            _ => 0,
        };
        let of =
            |declared: &DeclaredRoute| declared.routes.iter().map(|(_, routes)| routes.len()).sum::<usize>();
        self.counts[slot] = (self.counts[slot] + of(&new)).saturating_sub(of(&old));
        touched.insert(resource(id.0, &id.1));
        if exists {
            self.routes.insert(id.clone(), new);
        }
    }

    fn count(&mut self, old: &Attached, new: &Attached, touched: &mut BTreeSet<ResourceRef>) {
        for listener in old.listeners.iter().filter(|listener| !new.listeners.contains(listener)) {
            if let Some(count) = self.attached.get_mut(listener) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.attached.remove(listener);
                }
            }
            touched.insert(resource(listener.0.0, &listener.0.1));
        }
        for listener in new.listeners.iter().filter(|listener| !old.listeners.contains(listener)) {
            *self.attached.entry(listener.clone()).or_default() += 1;
            touched.insert(resource(listener.0.0, &listener.0.1));
        }
    }

    /// The objects whose status may have to be written.
    fn to_write(&self, pass: &Pass<'_>, touched: &BTreeSet<ResourceRef>) -> BTreeSet<ResourceRef> {
        let Pass { cluster, dirty, .. } = pass;
        let mut all: BTreeSet<ResourceRef> =
            touched.iter().filter(|o| o.kind != Kind::Ingress).cloned().collect();
        if dirty.definitions {
            let classes = cluster.gateway_classes.keys();
            all.extend(classes.map(|key| resource(Kind::GatewayClass, key)));
        }
        all.extend(dirty.versions.iter().map(|(kind, key)| resource(*kind, key)));
        if dirty.writes || pass.everything {
            for kind in [
                Kind::GatewayClass,
                Kind::Gateway,
                Kind::ListenerSet,
                Kind::HttpRoute,
                Kind::GrpcRoute,
                Kind::TlsRoute,
                Kind::BackendTlsPolicy,
            ] {
                all.extend(cluster.gateway_api_keys(kind).map(|key| resource(kind, key)));
            }
        }
        all
    }

    fn write(&self, pass: &Pass<'_>, object: ResourceRef) -> Option<Write> {
        let cluster = pass.cluster;
        let key = Key { namespace: object.namespace, name: object.name };
        match object.kind {
            Kind::GatewayClass => {
                let class = cluster.gateway_classes.get(&key).filter(|_| is_ours(cluster, &key.name))?;
                Some(gateway_class::write(class, cluster, pass.settings, pass.now))
            }
            Kind::Gateway => {
                let (object, gateway) = (cluster.gateways.get(&key)?, self.gateways.all.get(&key)?);
                Some(status::gateway(
                    &object.meta,
                    &gateway.conditions,
                    &gateway.addresses,
                    &self.listener_statuses(&(Kind::Gateway, key), &gateway.listeners),
                    gateway.attached_sets,
                    pass.now,
                ))
            }
            Kind::ListenerSet => {
                let object = cluster.listener_sets.get(&key)?;
                if let Some(set) = self.gateways.sets.get(&key) {
                    let listeners = self.listener_statuses(&(Kind::ListenerSet, key), &set.listeners);
                    return Some(status::listener_set(&object.meta, &set.conditions, &listeners, pass.now));
                }
                let gateway = listener_set::parent(object).filter(|_| self.orphans.contains(&key))?;
                let conditions = listener_set::orphaned(&gateway);
                Some(status::listener_set(&object.meta, &conditions, &[], pass.now))
            }
            kind @ (Kind::HttpRoute | Kind::GrpcRoute | Kind::TlsRoute) => {
                let meta = route_meta(cluster, &(kind, key.clone()))?;
                let id = (kind, key);
                let declared = self.routes.get(&id)?;
                let looking = Looking { gateways: &self.gateways, rivals: &self.rivals, cluster };
                let losses = self.losses(&looking, &id, declared);
                let parents = declared.attached.parents.iter().zip(&losses);
                let ours: Vec<_> = parents
                    .map(|(parent, loss)| ParentStatus {
                        reference: &parent.reference,
                        conditions: declared.conditions(parent, loss.as_ref()),
                    })
                    .collect();
                // most routes of other controllers have no word of ours in them
                if ours.is_empty() && !meta.status.contains(CONTROLLER) {
                    return None;
                }
                Some(status::route(kind, meta, &ours, CONTROLLER, pass.now))
            }
            Kind::BackendTlsPolicy => {
                let object = cluster.backend_tls_policies.get(&key)?;
                let gateways = self.ancestors(&key);
                if gateways.is_empty() && !object.meta.status.contains(CONTROLLER) {
                    return None;
                }
                let conditions = self.policies.conditions(&key, cluster);
                Some(status::policy(&object.meta, &gateways, &conditions, CONTROLLER, pass.now))
            }
            _ => None,
        }
    }

    fn listener_statuses<'a>(&self, of: &ParentId, listeners: &'a [Listener]) -> Vec<ListenerStatus<'a>> {
        let status = |(i, listener): (usize, &'a Listener)| ListenerStatus {
            name: &listener.name,
            kinds: listener.kinds.iter().map(|kind| api_kind(*kind)).collect(),
            attached: self.attached.get(&(of.clone(), i)).copied().unwrap_or_default(),
            conditions: &listener.conditions,
        };
        listeners.iter().enumerate().map(status).collect()
    }

    /// The Gateways with a route to a Service of the policy. Policies do not touch what is passed on unread.
    fn ancestors(&self, policy: &Key) -> BTreeSet<&Key> {
        let routes = self.policies.services(policy).filter_map(|service| self.by_service.get(service));
        let declared = routes.flatten().filter_map(|id| self.routes.get(id));
        let listeners = declared.flat_map(|declared| &declared.attached.listeners);
        let touched = listeners.filter_map(|(parent, at)| {
            let (gateway, listeners) = self.gateways.parent(parent)?;
            listeners.get(*at).filter(|listener| listener.mode != Mode::TlsPassthrough).map(|_| gateway)
        });
        touched.collect()
    }

    /// Hands out an object's findings if they are others than before.
    fn tell(&mut self, pass: &mut Pass<'_>, object: ResourceRef) {
        let key = Key { namespace: object.namespace.clone(), name: object.name.clone() };
        let (meta, findings) = match object.kind {
            Kind::Gateway => {
                let meta = pass.cluster.gateways.get(&key).map(|gateway| &gateway.meta);
                (meta, self.gateways.all.get(&key).map(|g| g.findings.clone()).unwrap_or_default())
            }
            Kind::ListenerSet => {
                let meta = pass.cluster.listener_sets.get(&key).map(|set| &set.meta);
                (meta, self.gateways.sets.get(&key).map(|s| s.findings.clone()).unwrap_or_default())
            }
            Kind::BackendTlsPolicy => {
                let meta = pass.cluster.backend_tls_policies.get(&key).map(|policy| &policy.meta);
                // without a route of ours to its Service it is meant for somebody else
                let ours = meta.is_some() && !self.ancestors(&key).is_empty();
                (meta, if ours { self.policies.findings(&key, pass.cluster) } else { Box::default() })
            }
            kind => {
                let id = (kind, key);
                let meta = route_meta(pass.cluster, &id);
                let declared = self.routes.get(&id);
                let mut findings = declared.map(|d| d.findings.clone()).unwrap_or_default();
                let places = declared.into_iter().flat_map(|d| d.routes.iter());
                let of_places = places.flat_map(|(place, _)| spots(place));
                add_lost(&mut findings, &self.composed.lost(&object, of_places));
                (meta, findings.finish())
            }
        };
        let Some(meta) = meta else {
            self.told.remove(&object);
            return;
        };
        let told = self.told.get(&object).map(|told| &**told).unwrap_or_default();
        if *told == *findings {
            return;
        }
        if findings.is_empty() {
            self.told.remove(&object);
        } else {
            self.told.insert(object.clone(), findings.clone());
        }
        pass.outcomes.push(Outcome {
            source: object,
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            findings,
        });
    }
}

/// The same is lost at two ports, and told once.
pub(super) fn add_lost(findings: &mut Findings, lost: &[&Finding]) {
    for Finding { reason, field, message } in lost {
        findings.add_once(*reason, field.clone(), message.to_string());
    }
}

fn resource(kind: Kind, key: &Key) -> ResourceRef {
    ResourceRef { kind, namespace: key.namespace.clone(), name: key.name.clone() }
}

fn route_meta<'a>(cluster: &'a Cluster, (kind, key): &RouteId) -> Option<&'a Meta> {
    match kind {
        Kind::HttpRoute => cluster.http_routes.get(key).map(|route| &route.meta),
        Kind::GrpcRoute => cluster.grpc_routes.get(key).map(|route| &route.meta),
        Kind::TlsRoute => cluster.tls_routes.get(key).map(|route| &route.meta),
        _ => None,
    }
}

fn view<'a>(cluster: &'a Cluster, (kind, key): &RouteId) -> Option<View<'a>> {
    match kind {
        Kind::HttpRoute => cluster.http_routes.get(key).map(|route| View::from(&**route)),
        Kind::GrpcRoute => cluster.grpc_routes.get(key).map(|route| View::from(&**route)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
