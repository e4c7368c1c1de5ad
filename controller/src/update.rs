//! News from a source, on its way to the loop that owns the `Cluster`.

use crate::cluster::backend_tls::{ConfigMap, ConfigMapObject};
use crate::cluster::certificate::{self, Certificate, CertificateObject};
use crate::cluster::definition::{Definition, DefinitionObject};
use crate::cluster::gateway::{GatewayApi, NamespaceObject, Spec, Wire};
use crate::cluster::{
    ClassObject, Cluster, Dirty, IngressObject, Key, Parsed, SecretObject, ServiceObject, SliceName,
    SliceObject,
};
use crate::watch::{FOREIGN, HEADLESS, Part};
use ingress_core::Kind;
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// The kinds that are read.
pub(crate) fn kinds() -> impl Iterator<Item = Kind> {
    let core = [
        Kind::Ingress,
        Kind::IngressClass,
        Kind::Service,
        Kind::EndpointSlice,
        Kind::Secret,
        Kind::Certificate,
        Kind::Namespace,
        Kind::ConfigMap,
        Kind::CustomResourceDefinition,
    ];
    core.into_iter().chain(GatewayApi::KINDS)
}

/// One object, reduced.
#[derive(Clone)]
pub(crate) enum Object {
    /// Shared with who keeps a folder's content.
    Ingress(Arc<IngressObject>),
    Class(ClassObject),
    Service(ServiceObject),
    /// The Service it belongs to, and the slice
    Slice(Key, SliceObject),
    Secret(SecretObject),
    /// The Ingress that it is named for, and the Certificate
    Certificate(Key, CertificateObject),
    Namespace(NamespaceObject),
    ConfigMap(ConfigMapObject),
    Definition(DefinitionObject),
    GatewayApi(Box<GatewayApi>),
}

/// What an object is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    Ingress(Key),
    Class(Arc<str>),
    Service(Key),
    /// The Service it belongs to, and its own name
    Slice(Key, SliceName),
    Secret(Key),
    /// The Ingress that it is named for, and the index of the block
    Certificate(Key, usize),
    Namespace(Arc<str>),
    ConfigMap(Key),
    Definition(Arc<str>),
    GatewayApi(Kind, Key),
}

/// One piece of news.
pub(crate) enum Update {
    /// All there is of one kind in one part of the cluster; what is not in it is gone.
    List {
        part: Part,
        objects: Vec<Object>,
    },
    Apply(Object),
    Remove(Name),
    /// There is no such kind (any more).
    Absent(Part),
    /// The part may not be read and can be done without; what is known of it stays.
    Refused(Part),
    /// All there is, of every kind.
    Files(Vec<Object>),
}

impl Name {
    /// The namespace that the object is in, or belongs to through its Service.
    pub(crate) fn namespace(&self) -> Option<&Arc<str>> {
        match self {
            Name::Ingress(key)
            | Name::Service(key)
            | Name::Slice(key, _)
            | Name::Secret(key)
            | Name::ConfigMap(key)
            | Name::Certificate(key, _) => Some(&key.namespace),
            Name::GatewayApi(kind, key) => (*kind != Kind::GatewayClass).then_some(&key.namespace),
            // its labels decide for what is in it
            Name::Namespace(name) => Some(name),
            Name::Class(_) | Name::Definition(_) => None,
        }
    }
}

impl Object {
    pub(crate) fn name(&self) -> Name {
        match self {
            Object::Ingress(o) => Name::Ingress(o.key.clone()),
            Object::Class(o) => Name::Class(o.name.clone()),
            Object::Service(o) => Name::Service(o.key.clone()),
            Object::Slice(service, o) => Name::Slice(service.clone(), o.name.clone()),
            Object::Secret(o) => Name::Secret(o.key.clone()),
            Object::Certificate(ingress, o) => Name::Certificate(ingress.clone(), o.block),
            Object::Namespace(o) => Name::Namespace(o.name.clone()),
            Object::ConfigMap(o) => Name::ConfigMap(o.key.clone()),
            Object::Definition(o) => Name::Definition(o.name.clone()),
            Object::GatewayApi(o) => Name::GatewayApi(o.kind(), o.meta().key.clone()),
        }
    }

    /// From a document of a file; `None` for kinds that are not read.
    pub(crate) fn parsed(parsed: Parsed) -> Option<Self> {
        match parsed {
            Parsed::Ingress(o) => Some(Object::Ingress(o.into())),
            Parsed::Class(o) => Some(Object::Class(o)),
            Parsed::Service(o) => Some(Object::Service(o)),
            Parsed::Slice(service, o) => Some(Object::Slice(service, o)),
            Parsed::Secret(o) => Some(Object::Secret(o)),
            Parsed::Certificate(ingress, o) => Some(Object::Certificate(ingress, o)),
            Parsed::Namespace(o) => Some(Object::Namespace(o)),
            Parsed::ConfigMap(o) => Some(Object::ConfigMap(o)),
            Parsed::GatewayApi(o) => Some(Object::GatewayApi(o)),
            Parsed::Other => None,
        }
    }
}

impl Update {
    /// Takes the news into the cluster and notes what changed by it.
    pub(crate) fn apply(self, cluster: &mut Cluster, dirty: &mut Dirty) {
        match self {
            Update::List { part, objects } => {
                list(&part, objects, cluster, dirty);
                readable(part, true, cluster, dirty);
            }
            Update::Apply(object) => apply(object, cluster, dirty),
            Update::Remove(name) => remove(&name, cluster, dirty),
            Update::Absent(part) => {
                list(&part, Vec::new(), cluster, dirty);
                readable(part, false, cluster, dirty);
            }
            Update::Refused(part) => readable(part, false, cluster, dirty),
            Update::Files(objects) => {
                let mut objects = Sorted::from(objects);
                for kind in kinds() {
                    objects.replace(kind, cluster, dirty);
                }
            }
        }
    }
}

/// Whether a part can be read. Of most kinds nothing follows from that.
fn readable(part: Part, yes: bool, cluster: &mut Cluster, dirty: &mut Dirty) {
    if part.kind == Kind::Certificate {
        cluster.certificates_readable(part.namespace, yes, dirty);
    }
}

fn apply(object: Object, cluster: &mut Cluster, dirty: &mut Dirty) {
    match object {
        Object::Ingress(o) => cluster.apply_ingress(o, dirty),
        Object::Class(o) => cluster.apply_class(o, dirty),
        Object::Service(o) => cluster.apply_service(o, dirty),
        Object::Slice(service, o) => cluster.apply_slice(service, o, dirty),
        Object::Secret(o) => cluster.apply_secret(o, dirty),
        Object::Certificate(ingress, o) => cluster.apply_certificate(ingress, o, dirty),
        Object::Namespace(o) => cluster.apply_namespace(o, dirty),
        Object::ConfigMap(o) => cluster.apply_config_map(o, dirty),
        Object::Definition(o) => cluster.apply_definition(o, dirty),
        Object::GatewayApi(o) => cluster.apply_gateway_api(*o, dirty),
    }
}

fn remove(name: &Name, cluster: &mut Cluster, dirty: &mut Dirty) {
    match name {
        Name::Ingress(key) => cluster.remove_ingress(key, dirty),
        Name::Class(name) => cluster.remove_class(name, dirty),
        Name::Service(key) => cluster.remove_service(key, dirty),
        Name::Slice(service, name) => cluster.remove_slice(service, name, dirty),
        Name::Secret(key) => cluster.remove_secret(key, dirty),
        Name::Certificate(ingress, block) => cluster.remove_certificate(ingress, *block, dirty),
        Name::Namespace(name) => cluster.remove_namespace(name, dirty),
        Name::ConfigMap(key) => cluster.remove_config_map(key, dirty),
        Name::Definition(name) => cluster.remove_definition(name, dirty),
        Name::GatewayApi(kind, key) => cluster.remove_gateway_api(*kind, key, dirty),
    }
}

/// All there is of a part.
fn list(part: &Part, objects: Vec<Object>, cluster: &mut Cluster, dirty: &mut Dirty) {
    match (&part.namespace, &part.labels) {
        (None, None) => Sorted::from(objects).replace(part.kind, cluster, dirty),
        _ => replace_within(part, objects, cluster, dirty),
    }
}

/// Where only some namespaces are read, or a kind by several selectors, a list says nothing about the others.
fn replace_within(part: &Part, objects: Vec<Object>, cluster: &mut Cluster, dirty: &mut Dirty) {
    let listed: HashSet<Name> = objects.iter().map(Object::name).collect();
    let of = |key: &&Key| part.namespace.as_ref().is_none_or(|namespace| key.namespace == *namespace);
    let foreign = part.labels.as_deref() == Some(FOREIGN);
    let known: Vec<Name> = match part.kind {
        Kind::Ingress => cluster.ingresses.keys().filter(of).cloned().map(Name::Ingress).collect(),
        Kind::Service => cluster.services.keys().filter(of).cloned().map(Name::Service).collect(),
        Kind::Secret => cluster.secrets.keys().filter(of).cloned().map(Name::Secret).collect(),
        Kind::ConfigMap => cluster.config_maps.keys().filter(of).cloned().map(Name::ConfigMap).collect(),
        Kind::EndpointSlice => cluster
            .slices
            .iter()
            .filter(|(service, _)| of(service))
            .flat_map(|(service, slices)| {
                let these = slices.keys().filter(|name| name.foreign == foreign);
                these.map(|name| Name::Slice(service.clone(), name.clone()))
            })
            .collect(),
        Kind::Certificate => cluster
            .certificates
            .blocks()
            .filter(|(ingress, _)| of(ingress))
            .map(|(ingress, block)| Name::Certificate(ingress.clone(), block))
            .collect(),
        kind if GatewayApi::KINDS.contains(&kind) => {
            cluster.gateway_api_keys(kind).filter(of).map(|key| Name::GatewayApi(kind, key.clone())).collect()
        }
        _ => Vec::new(),
    };
    for name in known.iter().filter(|name| !listed.contains(name)) {
        remove(name, cluster, dirty);
    }
    for object in objects {
        apply(object, cluster, dirty);
    }
}

/// Objects by kind.
#[derive(Default)]
struct Sorted {
    ingresses: Vec<Arc<IngressObject>>,
    classes: Vec<ClassObject>,
    services: Vec<ServiceObject>,
    slices: Vec<(Key, SliceObject)>,
    secrets: Vec<SecretObject>,
    certificates: Vec<(Key, CertificateObject)>,
    namespaces: Vec<NamespaceObject>,
    config_maps: Vec<ConfigMapObject>,
    definitions: Vec<DefinitionObject>,
    gateway_api: Vec<GatewayApi>,
}

impl From<Vec<Object>> for Sorted {
    fn from(objects: Vec<Object>) -> Self {
        let mut sorted = Self::default();
        for object in objects {
            match object {
                Object::Ingress(o) => sorted.ingresses.push(o),
                Object::Class(o) => sorted.classes.push(o),
                Object::Service(o) => sorted.services.push(o),
                Object::Slice(service, o) => sorted.slices.push((service, o)),
                Object::Secret(o) => sorted.secrets.push(o),
                Object::Certificate(ingress, o) => sorted.certificates.push((ingress, o)),
                Object::Namespace(o) => sorted.namespaces.push(o),
                Object::ConfigMap(o) => sorted.config_maps.push(o),
                Object::Definition(o) => sorted.definitions.push(o),
                Object::GatewayApi(o) => sorted.gateway_api.push(*o),
            }
        }
        sorted
    }
}

impl Sorted {
    fn replace(&mut self, kind: Kind, cluster: &mut Cluster, dirty: &mut Dirty) {
        use std::mem::take;
        match kind {
            Kind::Ingress => cluster.replace_ingresses(take(&mut self.ingresses), dirty),
            Kind::IngressClass => cluster.replace_classes(take(&mut self.classes), dirty),
            Kind::Service => cluster.replace_services(take(&mut self.services), dirty),
            Kind::EndpointSlice => cluster.replace_slices(take(&mut self.slices), dirty),
            Kind::Secret => cluster.replace_secrets(take(&mut self.secrets), dirty),
            Kind::Certificate => cluster.replace_certificates(take(&mut self.certificates), dirty),
            Kind::Namespace => cluster.replace_namespaces(take(&mut self.namespaces), dirty),
            Kind::ConfigMap => cluster.replace_config_maps(take(&mut self.config_maps), dirty),
            Kind::CustomResourceDefinition => {
                cluster.replace_definitions(take(&mut self.definitions), dirty);
            }
            kind => {
                let objects = self.gateway_api.extract_if(.., |object| object.kind() == kind).collect();
                cluster.replace_gateway_api(kind, objects, dirty);
            }
        }
    }
}

/// A kind that is watched, as the API sends it.
pub(crate) trait Watched:
    kube::Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + 'static
{
    const KIND: Kind;

    /// What we keep of it; else the name that nothing is kept under any more.
    fn reduce(self) -> Result<Object, Option<Name>>;

    /// The name of an object of which only the key can be read.
    fn name_of(key: Key) -> Option<Name>;
}

impl Watched for Ingress {
    const KIND: Kind = Kind::Ingress;

    fn reduce(self) -> Result<Object, Option<Name>> {
        Ok(Object::Ingress(Arc::new(self.into())))
    }

    fn name_of(key: Key) -> Option<Name> {
        Some(Name::Ingress(key))
    }
}

impl Watched for IngressClass {
    const KIND: Kind = Kind::IngressClass;

    fn reduce(self) -> Result<Object, Option<Name>> {
        Ok(Object::Class(self.into()))
    }

    fn name_of(key: Key) -> Option<Name> {
        Some(Name::Class(key.name))
    }
}

impl Watched for Service {
    const KIND: Kind = Kind::Service;

    fn reduce(self) -> Result<Object, Option<Name>> {
        Ok(Object::Service(self.into()))
    }

    fn name_of(key: Key) -> Option<Name> {
        Some(Name::Service(key))
    }
}

impl Watched for EndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;

    fn reduce(self) -> Result<Object, Option<Name>> {
        let foreign = self.metadata.labels.as_ref().is_none_or(|labels| !labels.contains_key(HEADLESS));
        let (service, mut slice) = SliceObject::of(self).ok_or(None)?;
        slice.name.foreign = foreign;
        Ok(Object::Slice(service, slice))
    }

    fn name_of(_: Key) -> Option<Name> {
        None
    }
}

/// The types of Secret that anything here can refer to; tokens and pull secrets are not kept.
const SECRET_TYPES: [&str; 2] = ["kubernetes.io/tls", "Opaque"];

impl Watched for Secret {
    const KIND: Kind = Kind::Secret;

    fn reduce(self) -> Result<Object, Option<Name>> {
        if self.type_.as_deref().is_some_and(|t| !SECRET_TYPES.contains(&t)) {
            let (namespace, name) = (self.metadata.namespace, self.metadata.name);
            return Err(Some(Name::Secret(Key {
                namespace: namespace.unwrap_or_default().into(),
                name: name.unwrap_or_default().into(),
            })));
        }
        Ok(Object::Secret(self.into()))
    }

    fn name_of(key: Key) -> Option<Name> {
        Some(Name::Secret(key))
    }
}

impl Watched for Certificate {
    const KIND: Kind = Kind::Certificate;

    fn reduce(self) -> Result<Object, Option<Name>> {
        CertificateObject::of(self).map(|(ingress, o)| Object::Certificate(ingress, o)).ok_or(None)
    }

    fn name_of(key: Key) -> Option<Name> {
        CertificateObject::place(&key).map(|(ingress, block)| Name::Certificate(ingress, block))
    }
}

impl Watched for PartialObjectMeta<Namespace> {
    const KIND: Kind = Kind::Namespace;

    fn reduce(self) -> Result<Object, Option<Name>> {
        Ok(Object::Namespace(self.into()))
    }

    fn name_of(key: Key) -> Option<Name> {
        Some(Name::Namespace(key.name))
    }
}

impl Watched for ConfigMap {
    const KIND: Kind = Kind::ConfigMap;

    fn reduce(self) -> Result<Object, Option<Name>> {
        ConfigMapObject::of(self).map(Object::ConfigMap).map_err(|key| Some(Name::ConfigMap(key)))
    }

    fn name_of(key: Key) -> Option<Name> {
        Some(Name::ConfigMap(key))
    }
}

impl Watched for Definition {
    const KIND: Kind = Kind::CustomResourceDefinition;

    fn reduce(self) -> Result<Object, Option<Name>> {
        DefinitionObject::of(self).map(Object::Definition).map_err(|name| Some(Name::Definition(name)))
    }

    fn name_of(key: Key) -> Option<Name> {
        Some(Name::Definition(key.name))
    }
}

impl<S: Spec> Watched for Wire<S> {
    const KIND: Kind = S::OURS;

    fn reduce(self) -> Result<Object, Option<Name>> {
        Ok(Object::GatewayApi(Box::new(S::keep(self.into()))))
    }

    fn name_of(key: Key) -> Option<Name> {
        Some(Name::GatewayApi(S::OURS, key))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Ingress(key) => write!(f, "ingress/{}/{}", key.namespace, key.name),
            Name::Class(name) => write!(f, "ingressclass/{name}"),
            Name::Service(key) => write!(f, "service/{}/{}", key.namespace, key.name),
            Name::Slice(service, name) => write!(f, "endpointslice/{}/{}", service.namespace, name.name),
            Name::Secret(key) => write!(f, "secret/{}/{}", key.namespace, key.name),
            Name::Certificate(ingress, block) => {
                write!(f, "certificate/{}/{}", ingress.namespace, certificate::name(&ingress.name, *block))
            }
            Name::Namespace(name) => write!(f, "namespace/{name}"),
            Name::Definition(name) => write!(f, "customresourcedefinition/{name}"),
            Name::ConfigMap(key) => write!(f, "configmap/{}/{}", key.namespace, key.name),
            Name::GatewayApi(Kind::GatewayClass, key) => write!(f, "gatewayclass/{}", key.name),
            Name::GatewayApi(kind, key) => write!(f, "{kind}/{}/{}", key.namespace, key.name),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// `shop/name`
    pub(crate) fn key(name: &str) -> Key {
        Key { namespace: "shop".into(), name: name.into() }
    }

    /// An Ingress `shop/name` without anything in it.
    pub(crate) fn ingress(name: &str) -> Object {
        let meta = serde_json::json!({ "namespace": "shop", "name": name, "resourceVersion": "1" });
        let ingress = serde_json::json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": meta
        });
        let ingress: Ingress = serde_json::from_value(ingress).unwrap();
        Object::Ingress(Arc::new(ingress.into()))
    }
}

#[cfg(test)]
mod tests;
