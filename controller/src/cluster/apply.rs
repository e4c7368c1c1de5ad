//! News taken into the cluster, and what becomes dirty by it.
//!
//! Only what translation reads counts as a change: a Service that gets a new label is the same
//! Service. A whole list replaces what was known in one step; what it holds unchanged stays as it is.

use super::backend_tls::ConfigMapObject;
use super::certificate::CertificateObject;
use super::definition::DefinitionObject;
use super::gateway::{GatewayApi, GatewayApiObject, NamespaceObject};
use super::{
    ClassObject, Cluster, Dirty, IngressObject, Key, Pool, SecretObject, ServiceObject, SliceName,
    SliceObject,
};
use ingress_core::Kind;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

impl Cluster {
    /// Takes in an Ingress that is new or changed.
    pub fn apply_ingress(&mut self, object: impl Into<Arc<IngressObject>>, dirty: &mut Dirty) {
        let mut object = object.into();
        share_own(&mut self.names, &mut object);
        put(&mut self.ingresses, object.key.clone(), object, &mut dirty.ingresses, PartialEq::eq);
    }

    /// Takes out an Ingress.
    pub fn remove_ingress(&mut self, key: &Key, dirty: &mut Dirty) {
        take(&mut self.ingresses, key, &mut dirty.ingresses);
    }

    /// Takes a whole list for all Ingresses that there are.
    pub fn replace_ingresses(&mut self, objects: Vec<Arc<IngressObject>>, dirty: &mut Dirty) {
        let names = &mut self.names;
        let objects = objects.into_iter().map(|mut o| {
            share_own(names, &mut o);
            (o.key.clone(), o)
        });
        replace(&mut self.ingresses, objects, &mut dirty.ingresses, PartialEq::eq);
    }

    /// Takes in an IngressClass that is new or changed.
    pub fn apply_class(&mut self, object: ClassObject, dirty: &mut Dirty) {
        let mut changed = HashSet::new();
        put(&mut self.classes, object.name.clone(), object, &mut changed, same_class);
        dirty.classes |= !changed.is_empty();
    }

    /// Takes out an IngressClass.
    pub fn remove_class(&mut self, name: &Arc<str>, dirty: &mut Dirty) {
        dirty.classes |= self.classes.remove(name).is_some();
    }

    /// Takes a whole list for all IngressClasses that there are.
    pub fn replace_classes(&mut self, objects: Vec<ClassObject>, dirty: &mut Dirty) {
        let mut changed = HashSet::new();
        let objects = objects.into_iter().map(|o| (o.name.clone(), o));
        replace(&mut self.classes, objects, &mut changed, same_class);
        dirty.classes |= !changed.is_empty();
    }

    /// Takes in a Service that is new or changed.
    pub fn apply_service(&mut self, mut object: ServiceObject, dirty: &mut Dirty) {
        share(&mut self.names, &mut object.key);
        put(&mut self.services, object.key.clone(), object, &mut dirty.services, same_service);
    }

    /// Takes out a Service.
    pub fn remove_service(&mut self, key: &Key, dirty: &mut Dirty) {
        take(&mut self.services, key, &mut dirty.services);
    }

    /// Takes a whole list for all Services that there are.
    pub fn replace_services(&mut self, objects: Vec<ServiceObject>, dirty: &mut Dirty) {
        let names = &mut self.names;
        let objects = objects.into_iter().map(|mut o| {
            share(names, &mut o.key);
            (o.key.clone(), o)
        });
        replace(&mut self.services, objects, &mut dirty.services, same_service);
    }

    /// Takes in a Secret that is new or changed.
    pub fn apply_secret(&mut self, mut object: SecretObject, dirty: &mut Dirty) {
        share(&mut self.names, &mut object.key);
        put(&mut self.secrets, object.key.clone(), object, &mut dirty.secrets, same_secret);
    }

    /// Takes out a Secret.
    pub fn remove_secret(&mut self, key: &Key, dirty: &mut Dirty) {
        take(&mut self.secrets, key, &mut dirty.secrets);
    }

    /// Takes a whole list for all Secrets that there are.
    pub fn replace_secrets(&mut self, objects: Vec<SecretObject>, dirty: &mut Dirty) {
        let names = &mut self.names;
        let objects = objects.into_iter().map(|mut o| {
            share(names, &mut o.key);
            (o.key.clone(), o)
        });
        replace(&mut self.secrets, objects, &mut dirty.secrets, same_secret);
    }

    /// Takes in an EndpointSlice of a Service, also when it was another Service's before.
    pub fn apply_slice(&mut self, mut service: Key, object: SliceObject, dirty: &mut Dirty) {
        share(&mut self.names, &mut service);
        let key = (service.namespace.clone(), object.name.clone());
        if self.slice_owners.get(&key).is_some_and(|owner| *owner != service) {
            self.forget_slice(&key, dirty);
        }
        let slices = self.slices.entry(service.clone()).or_default();
        if slices.get(&object.name).is_some_and(|old| **old == object) {
            return;
        }
        self.slice_owners.insert(key, service.clone());
        slices.insert(object.name.clone(), Arc::new(object));
        dirty.services.insert(service);
    }

    /// Takes out an EndpointSlice.
    pub fn remove_slice(&mut self, service: &Key, name: &SliceName, dirty: &mut Dirty) {
        self.forget_slice(&(service.namespace.clone(), name.clone()), dirty);
    }

    /// Takes a whole list, each with its Service, for all EndpointSlices that there are.
    pub fn replace_slices(&mut self, objects: Vec<(Key, SliceObject)>, dirty: &mut Dirty) {
        let mut fresh: HashMap<Key, BTreeMap<SliceName, Arc<SliceObject>>> = HashMap::new();
        let mut owners = HashMap::with_capacity(objects.len());
        for (mut service, object) in objects {
            share(&mut self.names, &mut service);
            owners.insert((service.namespace.clone(), object.name.clone()), service.clone());
            let known = self.slices.get(&service).and_then(|slices| slices.get(&object.name));
            let object = known.filter(|old| ***old == object).cloned().unwrap_or_else(|| Arc::new(object));
            fresh.entry(service).or_default().insert(object.name.clone(), object);
        }
        let old = std::mem::replace(&mut self.slices, fresh);
        self.slice_owners = owners;
        for (service, slices) in &self.slices {
            if old.get(service) != Some(slices) {
                dirty.services.insert(service.clone());
            }
        }
        dirty.services.extend(old.into_keys().filter(|service| !self.slices.contains_key(service)));
    }

    /// Takes in a Certificate by the name of this Ingress that is new or changed.
    pub fn apply_certificate(&mut self, mut ingress: Key, object: CertificateObject, dirty: &mut Dirty) {
        share(&mut self.names, &mut ingress);
        let known = self.certificates.by_ingress.entry(ingress.clone()).or_default();
        if known.get(&object.block).is_none_or(|old| **old != object) {
            known.insert(object.block, Arc::new(object));
            dirty.certificates.insert(ingress);
        }
    }

    /// Takes out the Certificate by the name of this Ingress's block.
    pub fn remove_certificate(&mut self, ingress: &Key, block: usize, dirty: &mut Dirty) {
        let Some(known) = self.certificates.by_ingress.get_mut(ingress) else { return };
        if known.remove(&block).is_some() {
            dirty.certificates.insert(ingress.clone());
        }
        if known.is_empty() {
            self.certificates.by_ingress.remove(ingress);
        }
    }

    /// Takes a whole list, each with the Ingress of its name, for all Certificates.
    pub fn replace_certificates(&mut self, objects: Vec<(Key, CertificateObject)>, dirty: &mut Dirty) {
        let listed: HashSet<_> = objects.iter().map(|(key, object)| (key, object.block)).collect();
        let gone = self.certificates.blocks().filter(|known| !listed.contains(known));
        let gone: Vec<_> = gone.map(|(key, block)| (key.clone(), block)).collect();
        for (key, block) in gone {
            self.remove_certificate(&key, block, dirty);
        }
        for (key, object) in objects {
            self.apply_certificate(key, object, dirty);
        }
    }

    /// Notes whether the Certificates of a namespace (`None`: of all) can be read.
    pub fn certificates_readable(&mut self, namespace: Option<Arc<str>>, yes: bool, dirty: &mut Dirty) {
        dirty.issuance |= self.certificates.read.insert(namespace, yes) != Some(yes);
    }

    /// Takes in a ConfigMap with certificates that is new or changed.
    pub fn apply_config_map(&mut self, mut object: ConfigMapObject, dirty: &mut Dirty) {
        share_map(&mut self.names, &mut object);
        put(&mut self.config_maps, object.key.clone(), object, &mut dirty.config_maps, PartialEq::eq);
    }

    /// Takes out a ConfigMap, or its certificates.
    pub fn remove_config_map(&mut self, key: &Key, dirty: &mut Dirty) {
        take(&mut self.config_maps, key, &mut dirty.config_maps);
    }

    /// Takes a whole list for all ConfigMaps with certificates that there are.
    pub fn replace_config_maps(&mut self, objects: Vec<ConfigMapObject>, dirty: &mut Dirty) {
        let names = &mut self.names;
        let objects = objects.into_iter().map(|mut o| {
            share_map(names, &mut o);
            (o.key.clone(), o)
        });
        replace(&mut self.config_maps, objects, &mut dirty.config_maps, PartialEq::eq);
    }

    /// Takes in a Namespace that is new or changed.
    pub fn apply_namespace(&mut self, object: NamespaceObject, dirty: &mut Dirty) {
        put(&mut self.namespaces, object.name.clone(), object, &mut dirty.namespaces, PartialEq::eq);
    }

    /// Takes out a Namespace.
    pub fn remove_namespace(&mut self, name: &Arc<str>, dirty: &mut Dirty) {
        take(&mut self.namespaces, name, &mut dirty.namespaces);
    }

    /// Takes a whole list for all Namespaces that there are.
    pub fn replace_namespaces(&mut self, objects: Vec<NamespaceObject>, dirty: &mut Dirty) {
        let objects = objects.into_iter().map(|o| (o.name.clone(), o));
        replace(&mut self.namespaces, objects, &mut dirty.namespaces, PartialEq::eq);
    }

    /// Takes in a definition that is new or changed.
    pub fn apply_definition(&mut self, object: DefinitionObject, dirty: &mut Dirty) {
        let mut changed = HashSet::new();
        put(&mut self.definitions, object.name.clone(), object, &mut changed, PartialEq::eq);
        dirty.definitions |= !changed.is_empty();
    }

    /// Takes out a definition.
    pub fn remove_definition(&mut self, name: &Arc<str>, dirty: &mut Dirty) {
        dirty.definitions |= self.definitions.remove(name).is_some();
    }

    /// Takes a whole list for all definitions of the Gateway API that there are.
    pub fn replace_definitions(&mut self, objects: Vec<DefinitionObject>, dirty: &mut Dirty) {
        let mut changed = HashSet::new();
        let objects = objects.into_iter().map(|o| (o.name.clone(), o));
        replace(&mut self.definitions, objects, &mut changed, PartialEq::eq);
        dirty.definitions |= !changed.is_empty();
    }

    /// Takes in an object of the Gateway API that is new or changed.
    pub fn apply_gateway_api(&mut self, object: GatewayApi, dirty: &mut Dirty) {
        let kind = object.kind();
        let changed = match object {
            GatewayApi::Class(o) => renew(&mut self.gateway_classes, o, &mut self.names, kind, dirty),
            GatewayApi::Gateway(o) => renew(&mut self.gateways, o, &mut self.names, kind, dirty),
            GatewayApi::ListenerSet(o) => renew(&mut self.listener_sets, o, &mut self.names, kind, dirty),
            GatewayApi::HttpRoute(o) => renew(&mut self.http_routes, o, &mut self.names, kind, dirty),
            GatewayApi::GrpcRoute(o) => renew(&mut self.grpc_routes, o, &mut self.names, kind, dirty),
            GatewayApi::TlsRoute(o) => renew(&mut self.tls_routes, o, &mut self.names, kind, dirty),
            GatewayApi::Grant(o) => renew(&mut self.grants, o, &mut self.names, kind, dirty),
            GatewayApi::BackendTlsPolicy(o) => {
                renew(&mut self.backend_tls_policies, o, &mut self.names, kind, dirty)
            }
        };
        if let Some(key) = changed {
            dirty.gateway_api(kind, key);
        }
    }

    /// Takes out an object of the Gateway API.
    pub fn remove_gateway_api(&mut self, kind: Kind, key: &Key, dirty: &mut Dirty) {
        let known = match kind {
            Kind::GatewayClass => self.gateway_classes.remove(key).is_some(),
            Kind::Gateway => self.gateways.remove(key).is_some(),
            Kind::ListenerSet => self.listener_sets.remove(key).is_some(),
            Kind::HttpRoute => self.http_routes.remove(key).is_some(),
            Kind::GrpcRoute => self.grpc_routes.remove(key).is_some(),
            Kind::TlsRoute => self.tls_routes.remove(key).is_some(),
            Kind::ReferenceGrant => self.grants.remove(key).is_some(),
            Kind::BackendTlsPolicy => self.backend_tls_policies.remove(key).is_some(),
            _ => false,
        };
        if known {
            dirty.versions.insert((kind, key.clone()));
            dirty.gateway_api(kind, key.clone());
        }
    }

    /// Takes a whole list for all objects of one kind of the Gateway API that there are.
    pub fn replace_gateway_api(&mut self, kind: Kind, objects: Vec<GatewayApi>, dirty: &mut Dirty) {
        let listed: HashSet<Key> = objects.iter().map(|object| object.meta().key.clone()).collect();
        for key in
            self.gateway_api_keys(kind).filter(|key| !listed.contains(key)).cloned().collect::<Vec<_>>()
        {
            self.remove_gateway_api(kind, &key, dirty);
        }
        for object in objects {
            self.apply_gateway_api(object, dirty);
        }
    }

    /// The names of all objects of one kind of the Gateway API.
    pub fn gateway_api_keys(&self, kind: Kind) -> Box<dyn Iterator<Item = &Key> + '_> {
        match kind {
            Kind::GatewayClass => Box::new(self.gateway_classes.keys()),
            Kind::Gateway => Box::new(self.gateways.keys()),
            Kind::ListenerSet => Box::new(self.listener_sets.keys()),
            Kind::HttpRoute => Box::new(self.http_routes.keys()),
            Kind::GrpcRoute => Box::new(self.grpc_routes.keys()),
            Kind::TlsRoute => Box::new(self.tls_routes.keys()),
            Kind::ReferenceGrant => Box::new(self.grants.keys()),
            Kind::BackendTlsPolicy => Box::new(self.backend_tls_policies.keys()),
            _ => Box::new(std::iter::empty()),
        }
    }

    fn forget_slice(&mut self, key: &(Arc<str>, SliceName), dirty: &mut Dirty) {
        let Some(service) = self.slice_owners.remove(key) else { return };
        if let Some(slices) = self.slices.get_mut(&service) {
            slices.remove(&key.1);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        dirty.services.insert(service);
    }
}

impl Dirty {
    fn gateway_api(&mut self, kind: Kind, key: Key) {
        match kind {
            Kind::HttpRoute | Kind::GrpcRoute | Kind::TlsRoute => drop(self.routes.insert((kind, key))),
            Kind::ListenerSet => self.listener_sets = true,
            Kind::BackendTlsPolicy => drop(self.backend_tls_policies.insert(key)),
            _ => self.gateways = true,
        }
    }
}

/// Keeps the object; says whether there is more to it than a new status.
fn renew<S: PartialEq>(
    map: &mut HashMap<Key, Arc<GatewayApiObject<S>>>,
    mut object: GatewayApiObject<S>,
    names: &mut Pool<str>,
    kind: Kind,
    dirty: &mut Dirty,
) -> Option<Key> {
    share(names, &mut object.meta.key);
    let key = object.meta.key.clone();
    let old = map.get(&key);
    // files have no versions
    if old.is_some_and(|old| **old == object) {
        return None;
    }
    let facts = |o: &GatewayApiObject<S>| (o.meta.uid.clone(), o.meta.generation, o.meta.created);
    let changed = old.is_none_or(|old| facts(old) != facts(&object) || old.spec != object.spec);
    dirty.versions.insert((kind, key.clone()));
    map.insert(key.clone(), Arc::new(object));
    changed.then_some(key)
}

fn same_class(a: &ClassObject, b: &ClassObject) -> bool {
    (&a.controller, &a.uid) == (&b.controller, &b.uid)
}

fn same_service(a: &ServiceObject, b: &ServiceObject) -> bool {
    (a.headless, &a.external_name, &a.ports, &a.addresses)
        == (b.headless, &b.external_name, &b.ports, &b.addresses)
}

fn same_secret(a: &SecretObject, b: &SecretObject) -> bool {
    (&a.uid, &a.secret_type, &a.data) == (&b.uid, &b.secret_type, &b.data)
}

fn share(namespaces: &mut Pool<str>, key: &mut Key) {
    key.namespace = namespaces.intern(key.namespace.clone());
}

fn share_map(names: &mut Pool<str>, object: &mut ConfigMapObject) {
    share(names, &mut object.key);
    object.ca = names.intern(object.ca.clone());
}

/// [`share`], unless somebody else holds the object as well.
fn share_own(namespaces: &mut Pool<str>, object: &mut Arc<IngressObject>) {
    if let Some(own) = Arc::get_mut(object) {
        share(namespaces, &mut own.key);
    }
}

fn put<K: Clone + Eq + Hash, V>(
    map: &mut HashMap<K, Arc<V>>,
    key: K,
    value: impl Into<Arc<V>>,
    dirty: &mut HashSet<K>,
    same: impl Fn(&V, &V) -> bool,
) {
    let value = value.into();
    if map.get(&key).is_some_and(|old| same(old, &value)) {
        return;
    }
    dirty.insert(key.clone());
    map.insert(key, value);
}

fn take<K: Clone + Eq + Hash, V>(map: &mut HashMap<K, Arc<V>>, key: &K, dirty: &mut HashSet<K>) {
    if map.remove(key).is_some() {
        dirty.insert(key.clone());
    }
}

fn replace<K: Clone + Eq + Hash, V>(
    map: &mut HashMap<K, Arc<V>>,
    objects: impl ExactSizeIterator<Item = (K, impl Into<Arc<V>>)>,
    dirty: &mut HashSet<K>,
    same: impl Fn(&V, &V) -> bool,
) {
    let mut fresh = HashMap::with_capacity(objects.len());
    for (key, value) in objects {
        let value = value.into();
        let value = match map.remove(&key) {
            Some(old) if same(&old, &value) => old,
            _ => {
                dirty.insert(key.clone());
                value
            }
        };
        fresh.insert(key, value);
    }
    dirty.extend(std::mem::replace(map, fresh).into_keys());
}

#[cfg(test)]
mod tests;
