//! Gateway API objects, reduced. The types name exactly the fields that are read; others, and values that a later
//! version of the API may bring, are let through, so that one unknown word never costs a whole object.

use super::Key;
use super::backend_tls::{BackendTlsPolicyObject, BackendTlsPolicySpec};
use ingress_core::Kind;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The API group.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// What a kind of the group is called.
pub trait Spec: DeserializeOwned + Clone + fmt::Debug + Default + Send + Sync + 'static {
    /// `kind` in manifests.
    const KIND: &'static str;
    /// Name in paths and roles.
    const PLURAL: &'static str;
    /// Namespaced or not.
    type Scope;
    /// Our name for it.
    const OURS: Kind;

    /// The object among those of all kinds.
    fn keep(object: GatewayApiObject<Self>) -> GatewayApi;
}

/// An object as the API sends it.
#[derive(Clone, Debug, Deserialize)]
pub struct Wire<S> {
    metadata: ObjectMeta,
    #[serde(default = "S::default", bound(deserialize = "S: Spec"))]
    spec: S,
    #[serde(default)]
    status: Value,
}

impl<S: Spec> kube::Resource for Wire<S> {
    type DynamicType = ();
    type Scope = S::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        S::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        S::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What every object carries beside its spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Namespace and name; no namespace for a GatewayClass.
    pub key: Key,
    /// `metadata.uid`
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`
    pub resource_version: Arc<str>,
    /// `metadata.generation`
    pub generation: i64,
    /// creationTimestamp, seconds since the epoch (0 where absent, as in files)
    pub created: i64,
    /// `status` as compact JSON: it is large, and looked into only when it may have to change.
    pub status: Box<str>,
}

/// A GatewayClass, Gateway, route or grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayApiObject<S> {
    /// What it carries beside its spec.
    pub meta: Meta,
    /// `spec`
    pub spec: S,
}

/// A GatewayClass.
pub type GatewayClassObject = GatewayApiObject<GatewayClassSpec>;
/// A Gateway.
pub type GatewayObject = GatewayApiObject<GatewaySpec>;
/// An HTTPRoute.
pub type HttpRouteObject = GatewayApiObject<HttpRouteSpec>;
/// A GRPCRoute.
pub type GrpcRouteObject = GatewayApiObject<GrpcRouteSpec>;
/// A ReferenceGrant.
pub type GrantObject = GatewayApiObject<GrantSpec>;

impl<S: Spec> From<Wire<S>> for GatewayApiObject<S> {
    fn from(wire: Wire<S>) -> Self {
        let Wire { metadata: meta, spec, status } = wire;
        fn text(value: Option<String>) -> Arc<str> {
            value.unwrap_or_default().into()
        }
        let status = if status.is_null() { Box::default() } else { status.to_string().into() };
        let meta = Meta {
            generation: meta.generation.unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            uid: text(meta.uid),
            resource_version: text(meta.resource_version),
            key: Key {
                namespace: match meta.namespace.filter(|n| !n.is_empty()) {
                    _ if S::OURS == Kind::GatewayClass => "".into(),
                    Some(namespace) => namespace.into(),
                    None => "default".into(),
                },
                name: text(meta.name),
            },
            status,
        };
        Self { meta, spec }
    }
}

/// Any object of the Gateway API that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayApi {
    /// A GatewayClass.
    Class(GatewayClassObject),
    /// A Gateway.
    Gateway(GatewayObject),
    /// An HTTPRoute.
    HttpRoute(HttpRouteObject),
    /// A GRPCRoute.
    GrpcRoute(GrpcRouteObject),
    /// A ReferenceGrant.
    Grant(GrantObject),
    /// A BackendTLSPolicy.
    BackendTlsPolicy(BackendTlsPolicyObject),
}

impl GatewayApi {
    /// The kinds, in the order in which they are read.
    pub const KINDS: [Kind; 6] = [
        Kind::GatewayClass,
        Kind::Gateway,
        Kind::ReferenceGrant,
        Kind::BackendTlsPolicy,
        Kind::HttpRoute,
        Kind::GrpcRoute,
    ];

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            GatewayApi::Class(_) => Kind::GatewayClass,
            GatewayApi::Gateway(_) => Kind::Gateway,
            GatewayApi::HttpRoute(_) => Kind::HttpRoute,
            GatewayApi::GrpcRoute(_) => Kind::GrpcRoute,
            GatewayApi::Grant(_) => Kind::ReferenceGrant,
            GatewayApi::BackendTlsPolicy(_) => Kind::BackendTlsPolicy,
        }
    }

    /// What it carries beside its spec.
    pub fn meta(&self) -> &Meta {
        match self {
            GatewayApi::Class(o) => &o.meta,
            GatewayApi::Gateway(o) => &o.meta,
            GatewayApi::HttpRoute(o) => &o.meta,
            GatewayApi::GrpcRoute(o) => &o.meta,
            GatewayApi::Grant(o) => &o.meta,
            GatewayApi::BackendTlsPolicy(o) => &o.meta,
        }
    }
}

/// A Namespace, reduced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceObject {
    /// Its name.
    pub name: Arc<str>,
    /// `metadata.labels`
    pub labels: BTreeMap<Box<str>, Box<str>>,
}

impl From<PartialObjectMeta<Namespace>> for NamespaceObject {
    fn from(namespace: PartialObjectMeta<Namespace>) -> Self {
        let meta = namespace.metadata;
        let labels = meta.labels.unwrap_or_default().into_iter().map(|(k, v)| (k.into(), v.into()));
        Self { name: meta.name.unwrap_or_default().into(), labels: labels.collect() }
    }
}

/// Declares a struct whose every field may be absent.
macro_rules! fields {
    ($($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
    )*};
}

type Text = Box<str>;
type List<T> = Vec<T>;

fields! {
    /// `spec` of a GatewayClass.
    pub struct GatewayClassSpec {
        /// Who serves it.
        pub controller_name: Text,
        /// Parameters: we have none.
        pub parameters_ref: Option<ObjectRef>,
    }

    /// `spec` of a Gateway.
    pub struct GatewaySpec {
        /// Its class.
        pub gateway_class_name: Text,
        /// What it listens to.
        pub listeners: List<ListenerSpec>,
        /// Addresses that are asked for.
        pub addresses: List<AddressSpec>,
        /// Labels and parameters of what carries it.
        pub infrastructure: Option<Infrastructure>,
        /// TLS of clients and backends.
        pub tls: Option<GatewayTls>,
    }

    /// `spec.tls` of a Gateway.
    pub struct GatewayTls {
        /// Of clients.
        pub frontend: Option<Present>,
        /// Of backends.
        pub backend: Option<Present>,
    }

    /// Something that is not read further.
    pub struct Present {}

    /// `spec.infrastructure`
    pub struct Infrastructure {
        /// Parameters: we have none.
        pub parameters_ref: Option<ObjectRef>,
    }

    /// An address that is asked for.
    pub struct AddressSpec {
        /// `type`
        #[serde(rename = "type")]
        pub kind: Option<Text>,
        /// The address.
        pub value: Text,
    }

    /// A reference to an object.
    pub struct ObjectRef {
        /// API group.
        pub group: Option<Text>,
        /// Kind.
        pub kind: Option<Text>,
        /// Namespace; the own one where absent.
        pub namespace: Option<Text>,
        /// Name.
        pub name: Text,
    }

    /// One of a Gateway's listeners.
    pub struct ListenerSpec {
        /// Its name within the Gateway.
        pub name: Text,
        /// Hosts that it takes; absent: all.
        pub hostname: Option<Text>,
        /// The port.
        pub port: i32,
        /// HTTP, HTTPS, TLS, TCP, UDP, or somebody else's.
        pub protocol: Text,
        /// Certificates.
        pub tls: Option<ListenerTls>,
        /// Which routes may attach.
        pub allowed_routes: Option<AllowedRoutes>,
    }

    /// `tls` of a listener.
    pub struct ListenerTls {
        /// Terminate or Passthrough.
        pub mode: Option<Text>,
        /// Secrets.
        pub certificate_refs: List<ObjectRef>,
    }

    /// Which routes may attach to a listener.
    pub struct AllowedRoutes {
        /// From where.
        pub namespaces: Option<RouteNamespaces>,
        /// Of which kinds.
        pub kinds: List<RouteKind>,
    }

    /// From where routes may attach.
    pub struct RouteNamespaces {
        /// All, Same, Selector or None; Same where absent.
        pub from: Option<Text>,
        /// By labels of the namespace.
        pub selector: Option<Selector>,
    }

    /// `spec` of an HTTPRoute.
    pub struct HttpRouteSpec {
        /// What it attaches to.
        pub parent_refs: List<ParentRef>,
        /// Hosts; none: those of the listener.
        pub hostnames: List<Text>,
        /// Rules.
        pub rules: List<HttpRule>,
    }

    /// A rule of an HTTPRoute.
    pub struct HttpRule {
        /// Its name.
        pub name: Option<Text>,
        /// One of them must fit; none: all requests fit.
        pub matches: List<HttpMatch>,
        /// What is done to requests and responses.
        pub filters: List<HttpFilter>,
        /// Where requests go.
        pub backend_refs: List<BackendRef>,
        /// How long it may take.
        pub timeouts: Option<HttpTimeouts>,
        /// What is tried again.
        pub retry: Option<HttpRetry>,
        /// Stickiness: not implemented.
        pub session_persistence: Option<Present>,
    }

    /// One match: all of it must fit.
    pub struct HttpMatch {
        /// Path; absent: every path.
        pub path: Option<TypedValue>,
        /// Headers.
        pub headers: List<NamedValue>,
        /// Query parameters.
        pub query_params: List<NamedValue>,
        /// Method.
        pub method: Option<Text>,
    }

    /// A value and how it is compared.
    pub struct TypedValue {
        /// Exact, PathPrefix or RegularExpression.
        #[serde(rename = "type")]
        pub kind: Option<Text>,
        /// The value.
        pub value: Option<Text>,
    }

    /// A header or parameter, and how it is compared.
    pub struct NamedValue {
        /// Exact or RegularExpression.
        #[serde(rename = "type")]
        pub kind: Option<Text>,
        /// Its name.
        pub name: Text,
        /// Its value.
        pub value: Text,
    }

    /// `timeouts` of a rule.
    pub struct HttpTimeouts {
        /// For the whole answer.
        pub request: Option<Text>,
        /// For each try of the backend.
        pub backend_request: Option<Text>,
    }

    /// `retry` of a rule.
    pub struct HttpRetry {
        /// Status codes that are tried again.
        pub codes: List<u16>,
        /// How often.
        pub attempts: Option<u32>,
        /// Least pause between tries.
        pub backoff: Option<Text>,
    }

    /// A filter; one of the fields is set, the one that `type` names.
    pub struct HttpFilter {
        /// Which one.
        #[serde(rename = "type")]
        pub kind: Text,
        /// Changes of request headers.
        pub request_header_modifier: Option<HeaderFilter>,
        /// Changes of response headers.
        pub response_header_modifier: Option<HeaderFilter>,
        /// A copy of requests.
        pub request_mirror: Option<MirrorFilter>,
        /// An answer that leads elsewhere.
        pub request_redirect: Option<RedirectFilter>,
        /// Another host or path for the backend.
        pub url_rewrite: Option<RewriteFilter>,
        /// What scripts of other origins may do.
        pub cors: Option<CorsFilter>,
    }

    /// Changes of headers.
    pub struct HeaderFilter {
        /// Replaced.
        pub set: List<Header>,
        /// Added.
        pub add: List<Header>,
        /// Taken out.
        pub remove: List<Text>,
    }

    /// A header.
    pub struct Header {
        /// Name.
        pub name: Text,
        /// Value.
        pub value: Text,
    }

    /// A copy of requests.
    pub struct MirrorFilter {
        /// Where it goes.
        pub backend_ref: BackendRef,
        /// How many of a hundred; absent: all.
        pub percent: Option<u32>,
        /// How many of how many.
        pub fraction: Option<Fraction>,
    }

    /// A part of requests.
    pub struct Fraction {
        /// So many
        pub numerator: u32,
        /// of so many; 100 where absent.
        pub denominator: Option<u32>,
    }

    /// An answer that leads elsewhere.
    pub struct RedirectFilter {
        /// http or https.
        pub scheme: Option<Text>,
        /// Host.
        pub hostname: Option<Text>,
        /// Path.
        pub path: Option<PathModifier>,
        /// Port.
        pub port: Option<i32>,
        /// Status; 302 where absent.
        pub status_code: Option<u16>,
    }

    /// Another host or path for the backend.
    pub struct RewriteFilter {
        /// Host.
        pub hostname: Option<Text>,
        /// Path.
        pub path: Option<PathModifier>,
    }

    /// Another path.
    pub struct PathModifier {
        /// ReplaceFullPath or ReplacePrefixMatch.
        #[serde(rename = "type")]
        pub kind: Text,
        /// In place of all of it.
        pub replace_full_path: Option<Text>,
        /// In place of what the match's prefix took.
        pub replace_prefix_match: Option<Text>,
    }

    /// What scripts of other origins may do.
    pub struct CorsFilter {
        /// Origins.
        pub allow_origins: List<Text>,
        /// With credentials.
        pub allow_credentials: Option<bool>,
        /// Methods.
        pub allow_methods: List<Text>,
        /// Request headers.
        pub allow_headers: List<Text>,
        /// Response headers.
        pub expose_headers: List<Text>,
        /// Seconds that a preflight is remembered; 5 where absent.
        pub max_age: Option<u32>,
    }

    /// A backend and its share.
    pub struct BackendRef {
        /// API group; the core group where absent.
        pub group: Option<Text>,
        /// Kind; Service where absent.
        pub kind: Option<Text>,
        /// Namespace; the route's where absent.
        pub namespace: Option<Text>,
        /// Name.
        pub name: Text,
        /// Port of the Service.
        pub port: Option<i32>,
        /// Share; 1 where absent.
        pub weight: Option<u32>,
        /// What is done only to its requests and responses.
        pub filters: List<HttpFilter>,
    }

    /// `spec` of a GRPCRoute.
    pub struct GrpcRouteSpec {
        /// What it attaches to.
        pub parent_refs: List<ParentRef>,
        /// Hosts; none: those of the listener.
        pub hostnames: List<Text>,
        /// Rules.
        pub rules: List<GrpcRule>,
    }

    /// A rule of a GRPCRoute.
    pub struct GrpcRule {
        /// Its name.
        pub name: Option<Text>,
        /// One of them must fit; none: all calls fit.
        pub matches: List<GrpcMatch>,
        /// What is done to requests and responses.
        pub filters: List<HttpFilter>,
        /// Where requests go.
        pub backend_refs: List<BackendRef>,
        /// Stickiness: not implemented.
        pub session_persistence: Option<Present>,
    }

    /// One match of calls.
    pub struct GrpcMatch {
        /// The call's method.
        pub method: Option<GrpcMethod>,
        /// Headers.
        pub headers: List<NamedValue>,
    }

    /// A gRPC method.
    pub struct GrpcMethod {
        /// Exact or RegularExpression.
        #[serde(rename = "type")]
        pub kind: Option<Text>,
        /// `package.Service`
        pub service: Option<Text>,
        /// `Method`
        pub method: Option<Text>,
    }

    /// `spec` of a ReferenceGrant.
    pub struct GrantSpec {
        /// Who may refer.
        pub from: List<GrantFrom>,
        /// To what.
        pub to: List<GrantTo>,
    }

    /// Who may refer.
    pub struct GrantFrom {
        /// API group of what refers.
        pub group: Text,
        /// Kind of what refers.
        pub kind: Text,
        /// Namespace of what refers.
        pub namespace: Text,
    }

    /// To what.
    pub struct GrantTo {
        /// API group.
        pub group: Text,
        /// Kind.
        pub kind: Text,
        /// Name; absent: all.
        pub name: Option<Text>,
    }
}

/// What a route attaches to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ParentRef {
    /// API group; the Gateway API's where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Text>,
    /// Kind; Gateway where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Text>,
    /// Namespace; the route's where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Text>,
    /// Name.
    pub name: Text,
    /// Only this listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<Text>,
    /// Only listeners at this port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// A kind of route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct RouteKind {
    /// API group; the Gateway API's where absent.
    pub group: Option<Text>,
    /// Kind.
    pub kind: Text,
}

/// A label selector.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Selector(LabelSelector);

// LabelSelector holds nothing but text
impl Eq for Selector {}

impl Selector {
    /// Whether a namespace with these labels is taken. An operator that is not known takes none.
    pub fn matches(&self, labels: &BTreeMap<Box<str>, Box<str>>) -> bool {
        let equal = self.0.match_labels.iter().flatten();
        equal.into_iter().all(|(key, value)| labels.get(&**key).is_some_and(|v| **v == **value))
            && self.0.match_expressions.iter().flatten().all(|wanted| {
                let value = labels.get(&*wanted.key);
                let listed = |value: &str| wanted.values.iter().flatten().any(|listed| **listed == *value);
                match &*wanted.operator {
                    "In" => value.is_some_and(|value| listed(value)),
                    "NotIn" => !value.is_some_and(|value| listed(value)),
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
    }
}

macro_rules! kinds {
    ($($spec:ty: $kind:literal, $plural:literal, $scope:ty, $ours:ident, $keep:ident;)*) => {$(
        impl Spec for $spec {
            const KIND: &'static str = $kind;
            const PLURAL: &'static str = $plural;
            type Scope = $scope;
            const OURS: Kind = Kind::$ours;

            fn keep(object: GatewayApiObject<Self>) -> GatewayApi {
                GatewayApi::$keep(object)
            }
        }
    )*};
}

kinds! {
    GatewayClassSpec: "GatewayClass", "gatewayclasses", ClusterResourceScope, GatewayClass, Class;
    GatewaySpec: "Gateway", "gateways", NamespaceResourceScope, Gateway, Gateway;
    HttpRouteSpec: "HTTPRoute", "httproutes", NamespaceResourceScope, HttpRoute, HttpRoute;
    GrpcRouteSpec: "GRPCRoute", "grpcroutes", NamespaceResourceScope, GrpcRoute, GrpcRoute;
    GrantSpec: "ReferenceGrant", "referencegrants", NamespaceResourceScope, ReferenceGrant, Grant;
    BackendTlsPolicySpec: "BackendTLSPolicy", "backendtlspolicies", NamespaceResourceScope, BackendTlsPolicy,
        BackendTlsPolicy;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_let_through() {
        let wire: Wire<HttpRouteSpec> = serde_json::from_value(serde_json::json!({
            "apiVersion": "gateway.networking.k8s.io/v9", "kind": "HTTPRoute",
            "metadata": { "name": "r", "namespace": "n", "generation": 3 },
            "spec": { "later": true, "rules": [{ "filters": [{ "type": "Later", "later": {} }], "matches": [{
                "path": { "type": "Later", "value": "/" } }] }] },
            "status": { "parents": [] }
        }))
        .unwrap();
        let object = HttpRouteObject::from(wire);
        assert_eq!((object.meta.generation, &*object.meta.status), (3, r#"{"parents":[]}"#));
        assert_eq!(&*object.spec.rules[0].filters[0].kind, "Later");
    }

    #[test]
    fn selectors_read_every_operator() {
        let labels: BTreeMap<Box<str>, Box<str>> = [("a".into(), "1".into())].into();
        let selects =
            |selector: Value| serde_json::from_value::<Selector>(selector).unwrap().matches(&labels);
        let expression = |key: &str, operator: &str, values: &[&str]| {
            selects(
                serde_json::json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }),
            )
        };
        assert!(selects(serde_json::json!({})));
        assert!(selects(serde_json::json!({ "matchLabels": { "a": "1" } })));
        assert!(!selects(serde_json::json!({ "matchLabels": { "a": "2" } })));
        assert!(expression("a", "In", &["1", "2"]) && !expression("a", "In", &["2"]));
        assert!(expression("a", "NotIn", &["2"]) && expression("b", "NotIn", &["2"]));
        assert!(!expression("a", "NotIn", &["1"]));
        assert!(expression("a", "Exists", &[]) && !expression("b", "Exists", &[]));
        assert!(!expression("a", "DoesNotExist", &[]) && expression("b", "DoesNotExist", &[]));
        assert!(!expression("a", "Near", &["1"]));
    }
}
