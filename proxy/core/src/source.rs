//! Where a value came from: the object a log line, a metric label or an Event speaks of.

use std::fmt;
use std::sync::Arc;

/// The kinds of Kubernetes objects that the product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `networking.k8s.io/v1` Ingress
    Ingress,
    /// `networking.k8s.io/v1` IngressClass
    IngressClass,
    /// core/v1 Service
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice
    EndpointSlice,
    /// core/v1 Secret
    Secret,
    /// core/v1 Namespace
    Namespace,
    /// `cert-manager.io/v1` Certificate
    Certificate,
    /// core/v1 ConfigMap
    ConfigMap,
    /// `apiextensions.k8s.io/v1` CustomResourceDefinition
    CustomResourceDefinition,
    /// `gateway.networking.k8s.io/v1` GatewayClass
    GatewayClass,
    /// `gateway.networking.k8s.io/v1` Gateway
    Gateway,
    /// `gateway.networking.k8s.io/v1` ListenerSet
    ListenerSet,
    /// `gateway.networking.k8s.io/v1` HTTPRoute
    HttpRoute,
    /// `gateway.networking.k8s.io/v1` GRPCRoute
    GrpcRoute,
    /// `gateway.networking.k8s.io/v1` TLSRoute
    TlsRoute,
    /// `gateway.networking.k8s.io/v1` ReferenceGrant
    ReferenceGrant,
    /// `gateway.networking.k8s.io/v1` BackendTLSPolicy
    BackendTlsPolicy,
}

impl Kind {
    /// Lower-case name as it stands in logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Ingress => "ingress",
            Kind::IngressClass => "ingressclass",
            Kind::Service => "service",
            Kind::EndpointSlice => "endpointslice",
            Kind::Secret => "secret",
            Kind::Namespace => "namespace",
            Kind::Certificate => "certificate",
            Kind::ConfigMap => "configmap",
            Kind::CustomResourceDefinition => "customresourcedefinition",
            Kind::GatewayClass => "gatewayclass",
            Kind::Gateway => "gateway",
            Kind::ListenerSet => "listenerset",
            Kind::HttpRoute => "httproute",
            Kind::GrpcRoute => "grpcroute",
            Kind::TlsRoute => "tlsroute",
            Kind::ReferenceGrant => "referencegrant",
            Kind::BackendTlsPolicy => "backendtlspolicy",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Names one object. Ordered by kind, then namespace, then name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceRef {
    /// The object's kind.
    pub kind: Kind,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// Name within the namespace.
    pub name: Arc<str>,
}

impl ResourceRef {
    /// Names the object `kind` `namespace/name`.
    pub fn new(kind: Kind, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

/// `kind/namespace/name`, the form of the access log's `route` field.
impl fmt::Display for ResourceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{}/{}", self.kind, self.name)
        } else {
            write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
        }
    }
}
