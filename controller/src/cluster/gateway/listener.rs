//! Gateways and what they listen to.

use super::namespace::Selector;
use super::{List, ObjectRef, Present, Text};
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
        pub tls: Option<GatewayTls>,
    }

    /// `spec.tls` of a Gateway.
    pub struct GatewayTls {
        /// Of clients.
        pub frontend: Option<Present>,
        /// Of backends.
        pub backend: Option<Present>,
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
