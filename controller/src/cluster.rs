//! The objects that translation reads, reduced to what it needs: `Cluster` holds one consistent
//! picture, built from API objects or from YAML. Plain values, no client.

mod annotations;
mod api;
mod apply;
pub mod backend_tls;
pub mod certificate;
pub mod definition;
pub mod gateway;
mod locate;
mod pool;
mod yaml;

pub use annotations::Annotations;
pub use yaml::{Document, Located, ParseProblem, Parsed, documents, parse_documents, parse_located};

pub(crate) use api::AUTH_KEYS;
pub(crate) use locate::{Spot, Step, Tree};
pub(crate) use pool::Pool;

use backend_tls::{BackendTlsPolicyObject, ConfigMapObject};
use certificate::Certificates;
use definition::DefinitionObject;
use gateway::{
    GatewayClassObject, GatewayObject, GrantObject, GrpcRouteObject, HttpRouteObject, ListenerSetObject,
    NamespaceObject, TlsRouteObject,
};
use ingress_core::Kind;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Namespace; `default` where a file names none.
    pub namespace: Arc<str>,
    /// Name within the namespace.
    pub name: Arc<str>,
}

impl Key {
    /// The key of `namespace/name`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An Ingress, reduced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressObject {
    /// Namespace and name.
    pub key: Key,
    /// `metadata.uid`
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`
    pub resource_version: Arc<str>,
    /// creationTimestamp, seconds since the epoch (0 where absent, as in files)
    pub created: i64,
    /// `spec.ingressClassName`
    pub class: Option<Box<str>>,
    /// Only the keys that we read: our prefixes, `cert-manager.io/*issuer`, `kubernetes.io/ingress.class`
    pub annotations: Annotations,
    /// `spec.rules`
    pub rules: Box<[Rule]>,
    /// `spec.tls`
    pub tls: Box<[Tls]>,
    /// `spec.defaultBackend` is set (not implemented: a finding)
    pub default_backend: bool,
}

/// One of `spec.rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// As written; empty for none.
    pub host: Box<str>,
    /// `http.paths`
    pub paths: Box<[Path]>,
}

/// One of a rule's paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// As written; `None` means `/` for ImplementationSpecific.
    pub path: Option<Box<str>>,
    /// How the path is compared.
    pub path_type: PathType,
    /// Where it leads.
    pub backend: PathBackend,
}

/// `pathType`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathType {
    /// The whole path.
    Exact,
    /// The path and all below it, by element.
    Prefix,
    /// Left to the class; we take it as `Prefix`.
    ImplementationSpecific,
    /// Absent, or none of the three.
    Unknown,
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathBackend {
    /// A Service of the Ingress's namespace.
    Service {
        /// Its name.
        name: Box<str>,
        /// Its port.
        port: PortRef,
    },
    /// Some other object.
    Resource,
    /// Nothing.
    None,
}

/// How a Service port is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortRef {
    /// By its number.
    Number(i32),
    /// By its name.
    Name(Box<str>),
    /// Not at all.
    None,
}

/// One of `spec.tls`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// As written.
    pub hosts: Box<[Box<str>]>,
    /// `secretName`, unless empty
    pub secret: Option<Box<str>>,
}

/// An IngressClass, reduced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassObject {
    /// Its name.
    pub name: Arc<str>,
    /// `metadata.uid`
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`
    pub resource_version: Arc<str>,
    /// `spec.controller`
    pub controller: Box<str>,
}

/// A Service, reduced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceObject {
    /// Namespace and name.
    pub key: Key,
    /// `metadata.resourceVersion`
    pub resource_version: Arc<str>,
    /// `clusterIP: None`
    pub headless: bool,
    /// `type: ExternalName` with its target
    pub external_name: Option<Box<str>>,
    /// `spec.ports`
    pub ports: Box<[PortObject]>,
    /// Where it is reached: its load balancer's addresses, else external ones, else its own.
    pub addresses: Box<[Box<str>]>,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortObject {
    /// Empty where the only port has no name.
    pub name: Box<str>,
    /// The Service's port, not the Pods'.
    pub port: u16,
    /// `appProtocol`
    pub app_protocol: Option<Box<str>>,
    /// true unless the protocol is UDP or SCTP
    pub tcp: bool,
}

/// One EndpointSlice, reduced; kept by the Service it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceObject {
    /// Its own name.
    pub name: SliceName,
    /// Name and number of each TCP port.
    pub ports: Box<[(Box<str>, u16)]>,
    /// Ready (or readiness unknown) addresses.
    pub addresses: Box<[IpAddr]>,
}

/// What an EndpointSlice is known by within its namespace.
///
/// The API's watches say nothing about each other: of one whose labels change, the list that it enters may tell before the list
/// that it leaves does. So each list has names of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceName {
    /// `metadata.name`
    pub name: Arc<str>,
    /// Whether it is one of those that are read although they lack the label of headless Services.
    pub foreign: bool,
}

/// A Secret of a type that we read. Debug never prints data.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretObject {
    /// Namespace and name.
    pub key: Key,
    /// `metadata.uid`
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`
    pub resource_version: Arc<str>,
    /// `type`; `Opaque` where absent
    pub secret_type: Box<str>,
    /// Only the keys that are read for this type; a value longer than [`MAX_SECRET_VALUE`] is cut
    /// one byte after it. Of OAuth settings the names of all others as well, without their values.
    pub data: BTreeMap<Box<str>, Box<[u8]>>,
}

/// Longest value that is taken from a Secret or ConfigMap: more than any certificate chain needs, and enough for the
/// authorities that browsers know.
pub const MAX_SECRET_VALUE: usize = 256 * 1024;

impl fmt::Debug for SecretObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretObject")
            .field("key", &format_args!("{}", self.key))
            .field("resource_version", &self.resource_version)
            .field("secret_type", &self.secret_type)
            .field("data", &self.data.keys())
            .finish_non_exhaustive()
    }
}

/// Everything at one moment. Changed only through its methods, which say what became dirty.
#[derive(Default)]
pub struct Cluster {
    /// Every Ingress, of whatever class.
    pub ingresses: HashMap<Key, Arc<IngressObject>>,
    /// Every IngressClass.
    pub classes: HashMap<Arc<str>, Arc<ClassObject>>,
    /// Every Service.
    pub services: HashMap<Key, Arc<ServiceObject>>,
    /// EndpointSlices by the Service they belong to.
    pub slices: HashMap<Key, BTreeMap<SliceName, Arc<SliceObject>>>,
    /// The Secrets that anything can refer to.
    pub secrets: HashMap<Key, Arc<SecretObject>>,
    /// cert-manager's Certificates, as far as they could be ours.
    pub certificates: Certificates,
    /// Every Namespace, with its labels.
    pub namespaces: HashMap<Arc<str>, Arc<NamespaceObject>>,
    /// Every definition of a kind of the Gateway API.
    pub definitions: HashMap<Arc<str>, Arc<DefinitionObject>>,
    /// Every GatewayClass.
    pub gateway_classes: HashMap<Key, Arc<GatewayClassObject>>,
    /// Every Gateway, of whatever class.
    pub gateways: HashMap<Key, Arc<GatewayObject>>,
    /// Every ListenerSet, of whatever Gateway.
    pub listener_sets: HashMap<Key, Arc<ListenerSetObject>>,
    /// Every HTTPRoute.
    pub http_routes: HashMap<Key, Arc<HttpRouteObject>>,
    /// Every GRPCRoute.
    pub grpc_routes: HashMap<Key, Arc<GrpcRouteObject>>,
    /// Every TLSRoute.
    pub tls_routes: HashMap<Key, Arc<TlsRouteObject>>,
    /// Every ReferenceGrant.
    pub grants: HashMap<Key, Arc<GrantObject>>,
    /// Every BackendTLSPolicy.
    pub backend_tls_policies: HashMap<Key, Arc<BackendTlsPolicyObject>>,
    /// The ConfigMaps that hold certificates.
    pub config_maps: HashMap<Key, Arc<ConfigMapObject>>,
    /// The Service that each EndpointSlice belongs to, by its namespace and name.
    slice_owners: HashMap<(Arc<str>, SliceName), Key>,
    names: Pool<str>,
}

/// What changed since the last translation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Nothing that was translated before counts.
    pub everything: bool,
    /// Ingresses that came, changed or went.
    pub ingresses: HashSet<Key>,
    /// Some IngressClass changed.
    pub classes: bool,
    /// Services whose object or slices changed.
    pub services: HashSet<Key>,
    /// Secrets that came, changed or went.
    pub secrets: HashSet<Key>,
    /// Ingresses whose Certificates came, changed or went.
    pub certificates: HashSet<Key>,
    /// Certificates can be read now, or cannot any more.
    pub issuance: bool,
    /// GatewayClasses, Gateways or ReferenceGrants came, changed or went.
    pub gateways: bool,
    /// Definitions of the Gateway API's kinds came, changed or went.
    pub definitions: bool,
    /// ListenerSets came, changed or went.
    pub listener_sets: bool,
    /// HTTPRoutes, GRPCRoutes and TLSRoutes that came, changed or went.
    pub routes: BTreeSet<(Kind, Key)>,
    /// BackendTLSPolicies that came, changed or went.
    pub backend_tls_policies: BTreeSet<Key>,
    /// ConfigMaps whose certificates came, changed or went.
    pub config_maps: HashSet<Key>,
    /// Namespaces that came, went or have other labels.
    pub namespaces: HashSet<Arc<str>>,
    /// Gateway API objects of which there is another version, if only for its status.
    pub versions: BTreeSet<(Kind, Key)>,
    /// Nothing that was handed out to be written counts: all that differs from what is there is to be written.
    pub writes: bool,
}

impl Dirty {
    /// Everything is to be translated, as at the start.
    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
