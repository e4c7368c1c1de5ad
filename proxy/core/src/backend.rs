//! Where a route's requests go.

use crate::{CertifiedKey, Filter, HostPattern, Slot};
use rustls_pki_types::CertificateDer;
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
    /// What a BackendTLSPolicy says beyond that; `None` for Ingresses and backends without one. The
    /// protocol is one with TLS then, `tls_name` the policy's host name, and `verify` true.
    pub tls: Option<Arc<BackendTls>>,
    /// The certificate that we show to it: of the Gateway that the route comes through. Only where `tls` is.
    pub client: Option<Arc<CertifiedKey>>,
}

/// Which certificates of a backend are believed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BackendTls {
    /// The authorities; empty = those of the system.
    pub roots: Box<[CertificateDer<'static>]>,
    /// Names of which the certificate must have one; empty = the backend's `tls_name`, which is the
    /// server name in either case.
    pub names: Box<[SubjectName]>,
    /// The data plane's parsed form.
    pub native: Slot,
}

/// A subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SubjectName {
    /// A DNS name, or `*.` before one.
    Dns(HostPattern),
    /// A URI.
    Uri(Box<str>),
}

/// Backends that share a route's requests by weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighted {
    entries: Box<[WeightedBackend]>,
    total: u64,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedBackend {
    /// Where requests go; `Unavailable::Broken` answers 500 to its share.
    pub backend: Arc<Backend>,
    /// Its share; 0 = none.
    pub weight: u32,
    /// Filters of this backend alone, after those of the rule. A `Redirect` is none of these.
    pub filters: Box<[Filter]>,
}

impl Weighted {
    /// Those, with their weights.
    pub fn new(entries: impl Into<Box<[WeightedBackend]>>) -> Self {
        let entries = entries.into();
        let total = entries.iter().map(|e| u64::from(e.weight)).sum();
        Self { entries, total }
    }

    /// Which entry a random number falls to; `None` where nobody has a weight, which is answered 500.
    pub fn pick(&self, random: u64) -> Option<usize> {
        let mut at = random.checked_rem(self.total)?;
        self.entries.iter().position(|entry| {
            let weight = u64::from(entry.weight);
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        })
    }

    /// All of them.
    pub fn entries(&self) -> &[WeightedBackend] {
        &self.entries
    }
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
    /// A Gateway API reference that does not resolve or is not permitted, or no backend at all: 500.
    Broken,
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
    /// HTTP/2 over TLS, or no connection.
    H2,
    /// gRPC: HTTP/2 in plain text, with prior knowledge.
    Grpc,
    /// gRPC over TLS: HTTP/2, or no connection.
    Grpcs,
}

impl BackendProtocol {
    /// Whether the connection is TLS.
    pub const fn tls(self) -> bool {
        matches!(self, BackendProtocol::Https | BackendProtocol::H2 | BackendProtocol::Grpcs)
    }

    /// The same over TLS.
    pub const fn over_tls(self) -> Self {
        match self {
            BackendProtocol::Http | BackendProtocol::Https => BackendProtocol::Https,
            BackendProtocol::H2c | BackendProtocol::H2 => BackendProtocol::H2,
            BackendProtocol::Grpc | BackendProtocol::Grpcs => BackendProtocol::Grpcs,
        }
    }

    /// Whether HTTP/2 is spoken, and nothing else.
    pub const fn http2(self) -> bool {
        matches!(
            self,
            BackendProtocol::H2c | BackendProtocol::H2 | BackendProtocol::Grpc | BackendProtocol::Grpcs
        )
    }

    /// Whether the requests are gRPC calls.
    pub const fn grpc(self) -> bool {
        matches!(self, BackendProtocol::Grpc | BackendProtocol::Grpcs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::table::tests::route;

    #[test]
    fn shares_are_as_the_weights_say() {
        let of = |weights: &[u32]| {
            let backend = route(crate::PathMatch::prefix("/").unwrap(), "b", 0).backend.clone();
            let entry = |weight: &u32| WeightedBackend {
                backend: backend.clone(),
                weight: *weight,
                filters: Box::default(),
            };
            Weighted::new(weights.iter().map(entry).collect::<Vec<_>>())
        };
        let counts = |weights: &[u32], n: u64| {
            let w = of(weights);
            let mut counts = vec![0; weights.len()];
            for random in 0..n {
                if let Some(picked) = w.pick(random) {
                    counts[picked] += 1;
                }
            }
            counts
        };
        assert_eq!(counts(&[1, 3, 0, 6], 1000), [100, 300, 0, 600]);
        assert_eq!(counts(&[0, 1], 10), [0, 10]);
        assert_eq!(counts(&[0, 0], 10), [0, 0]);
        assert_eq!(counts(&[], 10), [] as [u64; 0]);
        assert_eq!(counts(&[1, 1_000_000], 1_000_001), [1, 1_000_000]);
    }
}
