//! Gateway API objects, reduced. The types name exactly the fields that are read; others, and values that a later
//! version of the API may bring, are let through, so that one unknown word never costs a whole object.

/// Declares a struct whose every field may be absent.
macro_rules! fields {
    ($($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
    )*};
}

/// The same of what decides which requests fit: a field that is not known there could narrow it, so it is noted.
macro_rules! whole_fields {
    ($($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// A field that is not known.
            #[serde(flatten)]
            pub unknown: Unknown,
        }
    )*};
}

/// The first by name of the fields that are not known, if there are any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown(pub Option<Box<str>>);

impl<'de> Deserialize<'de> for Unknown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = BTreeMap::<Box<str>, IgnoredAny>::deserialize(deserializer)?;
        Ok(Self(all.into_keys().next()))
    }
}

type Text = Box<str>;
type List<T> = Vec<T>;

mod class;
mod grant;
mod grpc_route;
mod http_route;
mod listener;
mod listener_set;
mod namespace;
mod route;
mod tls_route;

pub use class::GatewayClassSpec;
pub use grant::{GrantFrom, GrantSpec, GrantTo};
pub use grpc_route::{GrpcMatch, GrpcMethod, GrpcRouteSpec, GrpcRule};
pub use http_route::{
    CorsFilter, Fraction, Header, HeaderFilter, HttpFilter, HttpMatch, HttpRetry, HttpRouteSpec, HttpRule,
    HttpTimeouts, MirrorFilter, NamedValue, PathModifier, RedirectFilter, RewriteFilter, TypedValue,
};
pub use listener::{
    AddressSpec, AllowedListeners, AllowedRoutes, ClientCertificates, ClientTls, FromNamespaces, FrontendTls,
    GatewayBackendTls, GatewaySpec, GatewayTls, Infrastructure, ListenerSpec, ListenerTls, PortTls,
    RouteKind,
};
pub use listener_set::ListenerSetSpec;
pub use namespace::{NamespaceObject, Selector};
pub use route::{BackendRef, ParentRef};
pub use tls_route::{TlsRouteSpec, TlsRule};

use super::Key;
use super::backend_tls::{BackendTlsPolicyObject, BackendTlsPolicySpec};
use ingress_core::Kind;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
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
/// A ListenerSet.
pub type ListenerSetObject = GatewayApiObject<ListenerSetSpec>;
/// An HTTPRoute.
pub type HttpRouteObject = GatewayApiObject<HttpRouteSpec>;
/// A GRPCRoute.
pub type GrpcRouteObject = GatewayApiObject<GrpcRouteSpec>;
/// A TLSRoute.
pub type TlsRouteObject = GatewayApiObject<TlsRouteSpec>;
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
    /// A ListenerSet.
    ListenerSet(ListenerSetObject),
    /// An HTTPRoute.
    HttpRoute(HttpRouteObject),
    /// A GRPCRoute.
    GrpcRoute(GrpcRouteObject),
    /// A TLSRoute.
    TlsRoute(TlsRouteObject),
    /// A ReferenceGrant.
    Grant(GrantObject),
    /// A BackendTLSPolicy.
    BackendTlsPolicy(BackendTlsPolicyObject),
}

impl GatewayApi {
    /// The kinds, in the order in which they are read.
    pub const KINDS: [Kind; 8] = [
        Kind::GatewayClass,
        Kind::Gateway,
        Kind::ListenerSet,
        Kind::ReferenceGrant,
        Kind::BackendTlsPolicy,
        Kind::HttpRoute,
        Kind::GrpcRoute,
        Kind::TlsRoute,
    ];

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            GatewayApi::Class(_) => Kind::GatewayClass,
            GatewayApi::Gateway(_) => Kind::Gateway,
            GatewayApi::ListenerSet(_) => Kind::ListenerSet,
            GatewayApi::HttpRoute(_) => Kind::HttpRoute,
            GatewayApi::GrpcRoute(_) => Kind::GrpcRoute,
            GatewayApi::TlsRoute(_) => Kind::TlsRoute,
            GatewayApi::Grant(_) => Kind::ReferenceGrant,
            GatewayApi::BackendTlsPolicy(_) => Kind::BackendTlsPolicy,
        }
    }

    /// What it carries beside its spec.
    pub fn meta(&self) -> &Meta {
        match self {
            GatewayApi::Class(o) => &o.meta,
            GatewayApi::Gateway(o) => &o.meta,
            GatewayApi::ListenerSet(o) => &o.meta,
            GatewayApi::HttpRoute(o) => &o.meta,
            GatewayApi::GrpcRoute(o) => &o.meta,
            GatewayApi::TlsRoute(o) => &o.meta,
            GatewayApi::Grant(o) => &o.meta,
            GatewayApi::BackendTlsPolicy(o) => &o.meta,
        }
    }
}

fields! {
    /// Something that is not read further.
    pub struct Present {}

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
    ListenerSetSpec: "ListenerSet", "listenersets", NamespaceResourceScope, ListenerSet, ListenerSet;
    HttpRouteSpec: "HTTPRoute", "httproutes", NamespaceResourceScope, HttpRoute, HttpRoute;
    GrpcRouteSpec: "GRPCRoute", "grpcroutes", NamespaceResourceScope, GrpcRoute, GrpcRoute;
    TlsRouteSpec: "TLSRoute", "tlsroutes", NamespaceResourceScope, TlsRoute, TlsRoute;
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
}
