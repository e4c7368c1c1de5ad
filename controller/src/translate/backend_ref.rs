//! What routes refer to: Services, and what of them cannot be used.

use super::backend_tls::Trust;
use super::gateway::api_kind;
use super::grant::Kinded;
use super::ingress::Shared;
use super::route::Reading;
use crate::annotations::backend::Connection;
use crate::cluster::gateway::{BackendRef, GROUP};
use crate::cluster::{Key, PortObject, PortRef};
use crate::finding::{Findings, Reason, quoted};
use crate::status::conditions::Condition;
use ingress_core::{Backend, BackendAddress, BackendProtocol, Kind, ServicePort, Unavailable};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The references of one route while they are read.
pub(super) struct BackendRefs<'a, 'b> {
    reading: &'a Reading<'b>,
    kind: Kind,
    /// The route's namespace.
    own: &'a Arc<str>,
    /// TLS ends here for a TLSRoute.
    ends_tls: bool,
    services: BTreeSet<Key>,
    /// The first that does not resolve.
    wrong: Option<(&'static str, String)>,
}

impl<'a, 'b> BackendRefs<'a, 'b> {
    pub(super) fn new(reading: &'a Reading<'b>, kind: Kind, own: &'a Arc<str>, ends_tls: bool) -> Self {
        Self { reading, kind, own, ends_tls, services: BTreeSet::new(), wrong: None }
    }

    /// `ResolvedRefs`, and the Services, each once.
    pub(super) fn finish(self) -> (Condition, Box<[Key]>) {
        let resolved = match self.wrong {
            None => Condition::new("ResolvedRefs", true, "ResolvedRefs", ""),
            Some((reason, message)) => Condition::new("ResolvedRefs", false, reason, message),
        };
        (resolved, self.services.into_iter().collect())
    }

    /// What becomes of the share of a backend that cannot be used.
    fn share(&self) -> &'static str {
        match self.kind {
            Kind::TlsRoute => "its share of connections is closed",
            _ => "its share of requests is answered 500",
        }
    }

    /// The backend, and whether it resolved. One that did not answers 500 to its share, or closes it.
    pub(super) fn backend(
        &mut self,
        field: &str,
        reference: &BackendRef,
        shared: &mut Shared,
        findings: &mut Findings,
    ) -> (Arc<Backend>, bool) {
        let namespace = reference.namespace.as_deref().filter(|n| !n.is_empty());
        let service = Key {
            namespace: namespace.map_or_else(|| self.own.clone(), |n| shared.name(n)),
            name: shared.name(&reference.name),
        };
        match self.resolve(&service, reference, shared, findings) {
            Ok(backend) => (backend, true),
            Err((reason, message)) => {
                let message = format!("{message}; {}", self.share());
                findings.add_once(Reason::BackendRefInvalid, field, message.clone());
                if self.wrong.is_none() {
                    self.wrong = Some((reason, format!("{field}: {message}")));
                }
                let port = reference.port.and_then(|p| u16::try_from(p).ok()).unwrap_or_default();
                (broken(&service, port, shared), false)
            }
        }
    }

    fn resolve(
        &mut self,
        service: &Key,
        reference: &BackendRef,
        shared: &mut Shared,
        findings: &mut Findings,
    ) -> Result<Arc<Backend>, (&'static str, String)> {
        let kind = reference.kind.as_deref().unwrap_or("Service");
        if kind != "Service" || !reference.group.as_deref().unwrap_or_default().is_empty() {
            return Err(("InvalidKind", format!("a backend is a Service, not a {}", quoted(kind))));
        }
        let from = Kinded { group: GROUP, kind: api_kind(self.kind), namespace: self.own };
        let to = Kinded { group: "", kind: "Service", namespace: &service.namespace };
        if !self.reading.grants.permit(from, to, &service.name) {
            let message =
                format!("no ReferenceGrant of namespace {} lets it use Service {service}", service.namespace);
            return Err(("RefNotPermitted", message));
        }
        self.services.insert(service.clone());
        let port = reference.port.map_or(PortRef::None, PortRef::Number);
        let (trust, protocol) = match self.kind {
            // what is spoken, and to whom, is between client and backend
            Kind::TlsRoute if !self.ends_tls => (None, BackendProtocol::Http),
            _ => {
                let trust = self.trust(service, reference.port)?;
                let protocol = self.protocol(service, reference.port, trust.is_some())?;
                (trust, protocol)
            }
        };
        let connection = Connection { protocol, ..Connection::default() };
        let Reading { cluster, settings, .. } = self.reading;
        let (mut backend, problem) = shared.backends.resolve(service, &port, connection, cluster, settings);
        if let Some(trust) = trust {
            backend = shared.backends.intern(trust.over(&backend));
        }
        match problem {
            // it is there, and empty for now
            Some((Reason::NoEndpoints, message)) => {
                findings.add_once(Reason::NoEndpoints, "spec.rules", message);
                Ok(backend)
            }
            Some((_, message)) => {
                Err(("BackendNotFound", message.trim_end_matches("; requests are answered 502").to_owned()))
            }
            None => Ok(backend),
        }
    }

    fn port(&self, service: &Key, port: Option<i32>) -> Option<&PortObject> {
        let object = self.reading.cluster.services.get(service)?;
        object.ports.iter().find(|p| p.tcp && Some(i32::from(p.port)) == port)
    }

    /// What a BackendTLSPolicy asks of the port's backends.
    fn trust(&self, service: &Key, port: Option<i32>) -> Result<Option<Arc<Trust>>, (&'static str, String)> {
        let name = self.port(service, port).map(|port| &*port.name);
        let trust = self.reading.policies.trust(service, name).transpose();
        trust.map_err(|message| ("InvalidBackendTLSPolicy", message))
    }

    /// What the Service says is spoken at the port; over TLS where a policy asks for it.
    fn protocol(
        &self,
        service: &Key,
        port: Option<i32>,
        tls: bool,
    ) -> Result<BackendProtocol, (&'static str, String)> {
        let named = self.port(service, port).and_then(|port| port.app_protocol.as_deref());
        let plain = self.plain_protocol(service, named, tls)?;
        Ok(if tls { plain.over_tls() } else { plain })
    }

    fn plain_protocol(
        &self,
        service: &Key,
        named: Option<&str>,
        tls: bool,
    ) -> Result<BackendProtocol, (&'static str, String)> {
        if self.kind == Kind::GrpcRoute && named.is_none() {
            return Ok(BackendProtocol::Grpc);
        }
        match named.unwrap_or("http") {
            "kubernetes.io/wss" | "https" | "HTTPS" | "tls" if !tls => {
                let message =
                    format!("appProtocol of Service {service} asks for TLS, which needs a BackendTLSPolicy");
                Err(("UnsupportedProtocol", message))
            }
            // octets, whatever they mean
            _ if self.kind == Kind::TlsRoute => Ok(BackendProtocol::Http),
            "kubernetes.io/h2c" if self.kind == Kind::GrpcRoute => Ok(BackendProtocol::Grpc),
            "kubernetes.io/h2c" => Ok(BackendProtocol::H2c),
            "grpc" | "kubernetes.io/grpc" => Ok(BackendProtocol::Grpc),
            _ if self.kind == Kind::GrpcRoute => Ok(BackendProtocol::Grpc),
            _ => Ok(BackendProtocol::Http),
        }
    }
}

/// What stands for a backend that cannot be used.
pub(super) fn broken(service: &Key, port: u16, shared: &mut Shared) -> Arc<Backend> {
    let Key { namespace, name } = service.clone();
    shared.backends.intern(Backend {
        service: ServicePort { namespace, name, port },
        address: BackendAddress::Unavailable(Unavailable::Broken),
        protocol: BackendProtocol::Http,
        tls_name: "broken.invalid".into(),
        verify: true,
        keepalive: true,
        tls: None,
        client: None,
    })
}
