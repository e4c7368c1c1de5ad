//! Where a route's requests go.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// A Service port: the unit that routes refer to and that logs name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePort {
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub name: Arc<str>,
    /// Port number of the Service (0 where a named port could not be resolved).
    pub port: u16,
}

impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}

/// A route's backend: the Service port, how to reach it, and what to speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The Service port named by the route.
    pub service: ServicePort,
    /// How its addresses are found.
    pub address: BackendAddress,
    /// What is spoken to it.
    pub protocol: BackendProtocol,
    /// Name used for SNI and certificate verification (`NAME.NAMESPACE.svc`); never empty.
    pub tls_name: Arc<str>,
    /// Whether the backend's certificate and name are verified.
    pub verify: bool,
    /// Whether connections are reused.
    pub keepalive: bool,
}

/// How a backend's addresses are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendAddress {
    /// An absolute DNS name (with its trailing dot) and a port, resolved by the data plane.
    Name(Arc<str>, u16),
    /// Literal endpoints, balanced by us: headless Services and the manifests mode.
    Endpoints(Arc<[SocketAddr]>),
    /// Nothing to dial: 502, or 500 for a reference that is broken by its kind.
    Unavailable(Unavailable),
}

/// Why a backend cannot be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unavailable {
    /// The Service does not exist (yet).
    NoService,
    /// The Service has no such port.
    NoPort,
    /// The Service has no endpoint.
    NoEndpoints,
    /// `ExternalName` Services are not allowed.
    ExternalName,
}

/// What is spoken to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum BackendProtocol {
    /// HTTP/1.1 in plain text.
    #[default]
    Http,
    /// HTTP/1.1 over TLS.
    Https,
    /// HTTP/2 in plain text, with prior knowledge.
    H2c,
    /// gRPC: HTTP/2 in plain text, with prior knowledge.
    Grpc,
    /// gRPC over TLS: HTTP/2, or no connection.
    Grpcs,
}

impl BackendProtocol {
    /// Whether the connection is TLS.
    pub const fn tls(self) -> bool {
        matches!(self, BackendProtocol::Https | BackendProtocol::Grpcs)
    }

    /// Whether HTTP/2 is spoken, and nothing else.
    pub const fn http2(self) -> bool {
        matches!(self, BackendProtocol::H2c | BackendProtocol::Grpc | BackendProtocol::Grpcs)
    }

    /// Whether the requests are gRPC calls.
    pub const fn grpc(self) -> bool {
        matches!(self, BackendProtocol::Grpc | BackendProtocol::Grpcs)
    }
}
