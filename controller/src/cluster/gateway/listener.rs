//! Gateways and what they listen to.

use super::namespace::Selector;
use super::{List, ObjectRef, Text};
use serde::{Deserialize, Serialize};

fields! {
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
        pub tls: Option<Box<GatewayTls>>,
        /// Which ListenerSets may add listeners; absent: none.
        pub allowed_listeners: Option<AllowedListeners>,
    }

    /// Which ListenerSets may add listeners to a Gateway.
    pub struct AllowedListeners {
        /// From where; absent: from nowhere.
        pub namespaces: Option<FromNamespaces>,
    }

    /// `spec.tls` of a Gateway.
    pub struct GatewayTls {
        /// Of clients.
        pub frontend: Option<FrontendTls>,
        /// Of backends.
        pub backend: Option<GatewayBackendTls>,
    }

    /// `spec.tls.backend` of a Gateway.
    pub struct GatewayBackendTls {
        /// The certificate that is shown to backends.
        pub client_certificate_ref: Option<ObjectRef>,
    }

    /// `spec.tls.frontend`
    pub struct FrontendTls {
        /// What holds on the ports that are not listed.
        pub default: ClientTls,
        /// What holds on a port, in the place of the default.
        pub per_port: List<PortTls>,
    }

    /// TLS of clients on one port.
    pub struct PortTls {
        /// The port.
        pub port: i32,
        /// What holds there.
        pub tls: ClientTls,
    }

    /// TLS of clients.
    pub struct ClientTls {
        /// What is asked of their certificates; absent: none is asked for.
        pub validation: Option<ClientCertificates>,
    }

    /// `validation` of clients.
    pub struct ClientCertificates {
        /// Where the authorities' certificates are.
        pub ca_certificate_refs: List<ObjectRef>,
        /// AllowValidOnly, which is what holds without it, or AllowInsecureFallback.
        pub mode: Option<Text>,
    }

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

    /// One of the listeners of a Gateway or ListenerSet.
    pub struct ListenerSpec {
        /// Its name within the object.
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
        pub namespaces: Option<FromNamespaces>,
        /// Of which kinds.
        pub kinds: List<RouteKind>,
    }

    /// From where routes or ListenerSets may attach.
    pub struct FromNamespaces {
        /// All, Same, Selector or None; where absent Same for routes, None for ListenerSets.
        pub from: Option<Text>,
        /// By labels of the namespace.
        pub selector: Option<Selector>,
    }
}

impl GatewaySpec {
    /// Whether it names authorities of clients' certificates.
    pub fn names_authorities(&self) -> bool {
        let frontend = self.tls.as_ref().and_then(|tls| tls.frontend.as_ref());
        let names =
            |tls: &ClientTls| tls.validation.as_ref().is_some_and(|v| !v.ca_certificate_refs.is_empty());
        frontend.is_some_and(|f| names(&f.default) || f.per_port.iter().any(|port| names(&port.tls)))
    }
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
