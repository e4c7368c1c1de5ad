//! From a Service port to where requests go.

use super::Settings;
use crate::annotations::backend::Connection;
use crate::cluster::{Cluster, Key, PortObject, PortRef, ServiceObject, SliceObject};
use crate::finding::{Reason, quoted};
use ingress_core::{Backend, BackendAddress, HostPattern, ServicePort, Unavailable};
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Backends that are in use: equal ones are one.
#[derive(Default)]
pub(super) struct Backends {
    kept: HashMap<ServicePort, Vec<Arc<Backend>>>,
    len: usize,
    sweep_at: usize,
}

/// What is wrong with a reference to a Service.
pub(super) type Problem = (Reason, String);

impl Backends {
    /// The backend of a Service port. One that cannot be dialled is a backend all the same, so that
    /// its route answers for itself and no other route steps in.
    pub(super) fn resolve(
        &mut self,
        service: &Key,
        port: &PortRef,
        connection: Connection,
        cluster: &Cluster,
        settings: &Settings,
    ) -> (Arc<Backend>, Option<Problem>) {
        let found = Found::of(service, port, cluster, settings);
        let tls_name =
            found.tls_name.unwrap_or_else(|| format!("{}.{}.svc", service.name, service.namespace));
        let Connection { protocol, verify, keepalive } = connection;
        let backend = Backend {
            service: ServicePort {
                namespace: service.namespace.clone(),
                name: service.name.clone(),
                port: found.port,
            },
            address: found.address,
            protocol,
            tls_name: tls_name.into(),
            verify,
            keepalive,
            tls: None,
            client: None,
        };
        (self.intern(backend), found.problem)
    }

    pub(super) fn intern(&mut self, backend: Backend) -> Arc<Backend> {
        if let Some(same) =
            self.kept.get(&backend.service).and_then(|all| all.iter().find(|b| ***b == backend))
        {
            return same.clone();
        }
        if self.len >= self.sweep_at {
            self.kept.retain(|_, all| {
                all.retain(|backend| Arc::strong_count(backend) > 1);
                !all.is_empty()
            });
            self.len = self.kept.values().map(Vec::len).sum();
            self.sweep_at = 64.max(self.len * 2);
        }
        let backend = Arc::new(backend);
        self.kept.entry(backend.service.clone()).or_default().push(backend.clone());
        self.len += 1;
        backend
    }
}

/// What a reference leads to.
struct Found {
    address: BackendAddress,
    port: u16,
    /// Where it is not the Service's own name.
    tls_name: Option<String>,
    problem: Option<Problem>,
}

impl Found {
    fn new(address: BackendAddress, port: u16) -> Self {
        Self { address, port, tls_name: None, problem: None }
    }

    fn none(why: Unavailable, port: u16, reason: Reason, message: String) -> Self {
        Self { problem: Some((reason, message)), ..Self::new(BackendAddress::Unavailable(why), port) }
    }

    fn of(service: &Key, port: &PortRef, cluster: &Cluster, settings: &Settings) -> Self {
        let number = match port {
            PortRef::Number(number) => u16::try_from(*number).unwrap_or_default(),
            _ => 0,
        };
        let Some(object) = cluster.services.get(service) else {
            if settings.backends_from_slices
                && let (PortRef::Number(_), Some(address)) = (port, only_port(service, cluster))
            {
                return Self::new(address, number);
            }
            let message =
                format!("Service {service} does not exist; until it does, requests are answered 502");
            return Self::none(Unavailable::NoService, number, Reason::ServiceNotFound, message);
        };
        let has_slices = cluster.slices.contains_key(service);
        match &object.external_name {
            Some(target) if !(settings.backends_from_slices && has_slices) => {
                if settings.allow_external_name || settings.backends_from_slices {
                    return Self::external(object, target, port, number);
                }
                let message = format!(
                    "Service {service} is of type ExternalName, which is refused unless the administrator sets \
                     --allow-external-name-services"
                );
                return Self::none(Unavailable::ExternalName, number, Reason::ExternalNameRefused, message);
            }
            _ => {}
        }
        let Some(found) = find(object, port).filter(|port| port.tcp) else {
            return no_port(object, port, number);
        };
        if object.headless || settings.backends_from_slices {
            return Self::from_slices(object, found, cluster, settings);
        }
        let Key { namespace, name } = service;
        let dns = format!("{name}.{namespace}.svc.{}.", settings.cluster_domain.trim_end_matches('.'));
        Self::new(BackendAddress::Name(dns.into(), found.port), found.port)
    }

    /// An `ExternalName` Service's target. It is the name that a certificate must be good for.
    fn external(object: &ServiceObject, target: &str, port: &PortRef, number: u16) -> Self {
        let number = match (find(object, port), port) {
            (Some(found), _) => found.port,
            // the ports of such a Service mean nothing to the cluster, and are often left out
            (None, PortRef::Number(_)) if number != 0 => number,
            _ => return no_port(object, port, number),
        };
        let name = target.strip_suffix('.').unwrap_or(target);
        let plain = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let address = if let Ok(ip) = plain.parse::<IpAddr>() {
            BackendAddress::Endpoints([SocketAddr::new(ip, number)].into())
        } else if let Ok(HostPattern::Exact(name)) = name.parse() {
            BackendAddress::Name(format!("{name}.").into(), number)
        } else {
            let message = format!(
                "externalName {} of Service {} is no host name; requests are answered 502",
                quoted(target),
                object.key
            );
            return Self::none(Unavailable::ExternalName, number, Reason::InvalidExternalName, message);
        };
        Self { tls_name: Some(plain.to_ascii_lowercase()), ..Self::new(address, number) }
    }

    fn from_slices(
        object: &ServiceObject,
        port: &PortObject,
        cluster: &Cluster,
        settings: &Settings,
    ) -> Self {
        let slices = || cluster.slices.get(&object.key).into_iter().flat_map(|slices| slices.values());
        let address = endpoints(slices(), |name| *name == *port.name);
        if let Some(address) = address {
            return Self::new(address, port.port);
        }
        // An empty Service is on its way up or scaled to nothing: no mistake of the Ingress. Without a
        // cluster nothing is on its way.
        let unmatched = slices().any(|slice| !slice.addresses.is_empty());
        let problem = if unmatched {
            let named = if port.name.is_empty() {
                "without a name".into()
            } else {
                format!("named {}", quoted(&port.name))
            };
            Some(format!(
                "the EndpointSlices of Service {} have addresses, but no TCP port {named}",
                object.key
            ))
        } else if settings.backends_from_slices {
            Some(format!(
                "no EndpointSlice has an address for Service {}; requests are answered 502",
                object.key
            ))
        } else {
            None
        };
        Self {
            problem: problem.map(|message| (Reason::NoEndpoints, message)),
            ..Self::new(BackendAddress::Unavailable(Unavailable::NoEndpoints), port.port)
        }
    }
}

fn find<'a>(object: &'a ServiceObject, port: &PortRef) -> Option<&'a PortObject> {
    let mut ports = object.ports.iter();
    match port {
        // the same number can stand twice, once for UDP
        PortRef::Number(number) => {
            let same = |port: &&PortObject| i32::from(port.port) == *number;
            object.ports.iter().filter(same).find(|port| port.tcp).or_else(|| ports.find(same))
        }
        PortRef::Name(name) => ports.find(|port| port.name == *name),
        PortRef::None => None,
    }
}

fn no_port(object: &ServiceObject, port: &PortRef, number: u16) -> Found {
    let service = &object.key;
    let message = match (find(object, port), port) {
        (Some(_), _) => format!("port {} of Service {service} is not TCP", Shown(port)),
        (None, PortRef::None) => "the backend names no Service port".into(),
        (None, _) => {
            let ports: Vec<_> =
                object
                    .ports
                    .iter()
                    .map(|p| {
                        if p.name.is_empty() {
                            p.port.to_string()
                        } else {
                            format!("{} ({})", p.port, p.name)
                        }
                    })
                    .collect();
            let ports = if ports.is_empty() { "no port at all".into() } else { ports.join(", ") };
            format!("Service {service} has no port {}; it has {ports}", Shown(port))
        }
    };
    Found::none(
        Unavailable::NoPort,
        number,
        Reason::ServicePortNotFound,
        message + "; requests are answered 502",
    )
}

struct Shown<'a>(&'a PortRef);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            PortRef::Number(number) => write!(f, "{number}"),
            PortRef::Name(name) => f.write_str(&quoted(name)),
            PortRef::None => f.write_str("(none)"),
        }
    }
}

/// The addresses of slices whose Service is not there, if they have but one port.
fn only_port(service: &Key, cluster: &Cluster) -> Option<BackendAddress> {
    let slices = cluster.slices.get(service)?;
    let mut ports = slices.values().flat_map(|slice| &slice.ports);
    let first = ports.next()?;
    ports.all(|port| port == first).then(|| endpoints(slices.values(), |_| true))?
}

/// Every address with the port of that name, each once and in order; `None` if there is none.
fn endpoints<'a>(
    slices: impl Iterator<Item = &'a Arc<SliceObject>>,
    named: impl Fn(&str) -> bool,
) -> Option<BackendAddress> {
    let mut all: Vec<SocketAddr> = slices
        .flat_map(|slice| slice.ports.iter().map(move |port| (slice, port)))
        .filter(|(_, (name, _))| named(name))
        .flat_map(|(slice, (_, port))| slice.addresses.iter().map(|ip| SocketAddr::new(*ip, *port)))
        .collect();
    all.sort_unstable();
    all.dedup();
    (!all.is_empty()).then(|| BackendAddress::Endpoints(all.into()))
}

#[cfg(test)]
mod tests;
