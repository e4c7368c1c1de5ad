//! Gateways of ours and their listeners: what each may serve, and why not.
//!
//! They are few and are looked at together: the answer for one can depend on all others, which share its addresses.

use super::Settings;
use super::grant::{Grants, Kinded};
use super::secret::Certificates;
use crate::cluster::gateway::{GROUP, GatewayObject, ListenerSpec, RouteNamespaces};
use crate::cluster::{Cluster, Key};
use crate::finding::{Finding, Findings, Reason, quoted};
use crate::status::conditions::Condition;
use ingress_core::{CertifiedKey, HostPattern, Kind, Scope};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// `spec.controllerName` of the GatewayClasses that we serve.
pub const CONTROLLER: &str = "tak-os.org/gateway-controller";

/// Every Gateway of ours, oldest first.
#[derive(Default)]
pub(super) struct Gateways {
    pub all: BTreeMap<Key, Gateway>,
    /// Secrets that listeners refer to, whether they exist or not.
    pub secrets: BTreeSet<Key>,
    /// Whether a selector decides which namespaces may attach.
    pub selects: bool,
}

/// A Gateway of ours.
#[derive(PartialEq, Eq)]
pub(super) struct Gateway {
    pub created: i64,
    pub generation: i64,
    pub listeners: Box<[Listener]>,
    /// `Accepted` and `Programmed`.
    pub conditions: Box<[Condition]>,
    /// Type and value.
    pub addresses: Box<[(&'static str, Box<str>)]>,
    pub findings: Box<[Finding]>,
}

/// One of its listeners.
#[derive(PartialEq, Eq)]
pub(super) struct Listener {
    pub name: Box<str>,
    pub port: i32,
    pub tls: bool,
    pub hostname: HostPattern,
    /// Kinds of routes that may attach.
    pub kinds: Box<[Kind]>,
    pub from: From,
    /// The port that it has; `None`: it is not accepted.
    pub scope: Option<Scope>,
    /// Whether its routes are installed there.
    pub serves: bool,
    /// Its certificates, the first one for all handshakes.
    pub certificate: Option<Arc<CertifiedKey>>,
    pub conditions: Box<[Condition]>,
}

/// Namespaces whose routes may attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum From {
    All,
    Same,
    Selected(crate::cluster::gateway::Selector),
    Nowhere,
}

impl From {
    fn read(namespaces: Option<&RouteNamespaces>) -> Self {
        let Some(namespaces) = namespaces else { return From::Same };
        match namespaces.from.as_deref() {
            None | Some("Same") => From::Same,
            Some("All") => From::All,
            Some("Selector") => namespaces.selector.clone().map_or(From::Nowhere, From::Selected),
            Some(_) => From::Nowhere,
        }
    }

    pub(super) fn takes(&self, namespace: &Arc<str>, gateway: &Key, cluster: &Cluster) -> bool {
        match self {
            From::All => true,
            From::Same => *namespace == gateway.namespace,
            // labels that cannot be read admit nobody
            From::Selected(selector) => {
                cluster.namespaces.get(namespace).is_some_and(|n| selector.matches(&n.labels))
            }
            From::Nowhere => false,
        }
    }
}

/// The kinds of routes that an HTTP or HTTPS listener takes.
pub(super) const HTTP_KINDS: [Kind; 2] = [Kind::HttpRoute, Kind::GrpcRoute];

/// `kind` in manifests.
pub(super) fn api_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::GrpcRoute => "GRPCRoute",
        Kind::HttpRoute => "HTTPRoute",
        Kind::Gateway => "Gateway",
        _ => "",
    }
}

/// Whether a GatewayClass of this name is ours.
pub(super) fn is_ours(cluster: &Cluster, class: &str) -> bool {
    cluster.gateway_classes.get(&Key::new("", class)).is_some_and(|c| *c.spec.controller_name == *CONTROLLER)
}

impl Gateways {
    /// Looks at all of them.
    pub(super) fn read(
        cluster: &Cluster,
        grants: &Grants,
        certificates: &mut Certificates,
        settings: &Settings,
        now: i64,
    ) -> Self {
        let mut ours: Vec<_> =
            cluster.gateways.values().filter(|g| is_ours(cluster, &g.spec.gateway_class_name)).collect();
        ours.sort_by_key(|g| (g.meta.created, &g.meta.key));
        let mut look = Look {
            cluster,
            grants,
            certificates,
            settings,
            now,
            ports: HashMap::new(),
            secrets: BTreeSet::new(),
            selects: false,
        };
        let own = own_addresses(&ours, &settings.gateway_addresses);
        let all = ours.iter().zip(own).map(|(g, own)| (g.meta.key.clone(), look.gateway(g, own))).collect();
        Self { all, secrets: look.secrets, selects: look.selects }
    }
}

/// The address of each of these Gateways, oldest first: the one that it asks for, else the one that its status tells already, so
/// that no other Gateway's coming or going moves it, else the one that the fewest have.
fn own_addresses(ours: &[&Arc<GatewayObject>], there_are: &[IpAddr]) -> Vec<Option<IpAddr>> {
    if there_are.is_empty() {
        return vec![None; ours.len()];
    }
    let mut own: Vec<_> = ours
        .iter()
        .map(|gateway| {
            let asked = gateway.spec.addresses.iter().filter_map(|address| address.value.parse().ok());
            let told = gateway.meta.addresses().into_iter();
            asked.chain(told).find(|address| there_are.contains(address))
        })
        .collect();
    let mut taken: HashMap<IpAddr, usize> = HashMap::new();
    for address in own.iter().flatten() {
        *taken.entry(*address).or_default() += 1;
    }
    for address in own.iter_mut().filter(|own| own.is_none()) {
        let free = there_are.iter().min_by_key(|address| taken.get(address).copied().unwrap_or_default());
        if let Some(free) = free {
            *taken.entry(*free).or_default() += 1;
        }
        *address = free.copied();
    }
    own
}

/// What is known while Gateways are looked at.
struct Look<'a> {
    cluster: &'a Cluster,
    grants: &'a Grants,
    certificates: &'a mut Certificates,
    settings: &'a Settings,
    now: i64,
    /// Whether a port (of an address) speaks TLS, by who came first.
    ports: HashMap<Scope, bool>,
    secrets: BTreeSet<Key>,
    selects: bool,
}

/// What a listener comes to, step by step.
struct Steps {
    accepted: Result<(), (&'static str, String)>,
    resolved: Result<(), (&'static str, String)>,
    conflicted: Option<(&'static str, String)>,
}

impl Look<'_> {
    fn gateway(&mut self, object: &GatewayObject, address: Option<IpAddr>) -> Gateway {
        let mut findings = Findings::default();
        let refused = self.refused(object, &mut findings);
        let listeners: Box<[Listener]> = object
            .spec
            .listeners
            .iter()
            .enumerate()
            .map(|(i, spec)| self.listener(object, spec, i, address, refused.is_some(), &mut findings))
            .collect();
        let valid = listeners.iter().filter(|l| is(l, "Accepted")).count();
        let programmed = listeners.iter().filter(|l| l.serves).count();
        let addresses = self.addresses(address);
        let accepted = match refused {
            Some((reason, message)) => Condition::new("Accepted", false, reason, message),
            None if valid == 0 => {
                Condition::new("Accepted", false, "ListenersNotValid", "none of the listeners can be served")
            }
            None if valid < listeners.len() => {
                let message = "some of the listeners cannot be served; their own conditions say why";
                Condition::new("Accepted", true, "ListenersNotValid", message)
            }
            None => Condition::new("Accepted", true, "Accepted", ""),
        };
        let wanted = object.spec.addresses.iter().find(|wanted| {
            !wanted.value.is_empty() && !addresses.iter().any(|(_, value)| *value == wanted.value)
        });
        let programmed = if !accepted.status || programmed == 0 {
            Condition::new("Programmed", false, "Invalid", "nothing is served for this Gateway")
        } else if let Some(wanted) = wanted {
            let message = format!("{} is none of the addresses that there are", quoted(&wanted.value));
            Condition::new("Programmed", false, "AddressNotUsable", message)
        } else if addresses.is_empty() {
            let message = "it is served, but there is no address to tell: the Service of the product has none yet, \
                           and --publish-address names none";
            Condition::new("Programmed", false, "AddressNotAssigned", message)
        } else {
            Condition::new("Programmed", true, "Programmed", "")
        };
        Gateway {
            created: object.meta.created,
            generation: object.meta.generation,
            listeners,
            conditions: [accepted, programmed].into(),
            addresses,
            findings: findings.finish(),
        }
    }

    /// Why nothing of the Gateway is served.
    fn refused(&self, object: &GatewayObject, findings: &mut Findings) -> Option<(&'static str, String)> {
        let spec = &object.spec;
        let mut refuse = |reason, field: &str, message: String| {
            findings.add(Reason::GatewayNotAccepted, field, message.clone());
            Some((reason, message))
        };
        if spec.infrastructure.as_ref().is_some_and(|i| i.parameters_ref.is_some()) {
            let message = "there are no parameters for Gateways".to_owned();
            return refuse("InvalidParameters", "spec.infrastructure.parametersRef", message);
        }
        if let Some((i, address)) = spec
            .addresses
            .iter()
            .enumerate()
            .find(|(_, a)| !matches!(a.kind.as_deref(), None | Some("IPAddress")))
        {
            let kind = address.kind.as_deref().unwrap_or_default();
            let message = format!("addresses of type {} are not supported, IPAddress is", quoted(kind));
            return refuse("UnsupportedAddress", &format!("spec.addresses[{i}].type"), message);
        }
        if spec.tls.as_ref().is_some_and(|tls| tls.frontend.is_some()) {
            // a client that was to be asked for a certificate must not be let in without
            let message = "certificates of clients are not supported".to_owned();
            return refuse("Invalid", "spec.tls.frontend", message);
        }
        if spec.tls.as_ref().is_some_and(|tls| tls.backend.is_some()) {
            let message = "a certificate for backends is not supported".to_owned();
            return refuse("Invalid", "spec.tls.backend", message);
        }
        None
    }

    fn addresses(&self, own: Option<IpAddr>) -> Box<[(&'static str, Box<str>)]> {
        let typed = |value: &str| {
            let kind = if value.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
            (kind, Box::<str>::from(value))
        };
        if let Some(own) = own {
            return [typed(&own.to_string())].into();
        }
        if !self.settings.publish_addresses.is_empty() {
            return self.settings.publish_addresses.iter().map(|a| typed(a)).collect();
        }
        let (namespace, name) = &self.settings.publish_service;
        let service = self.cluster.services.get(&Key::new(namespace.as_str(), name.as_str()));
        service.into_iter().flat_map(|service| &service.addresses).map(|a| typed(a)).collect()
    }

    fn listener(
        &mut self,
        gateway: &GatewayObject,
        spec: &ListenerSpec,
        i: usize,
        address: Option<IpAddr>,
        refused: bool,
        findings: &mut Findings,
    ) -> Listener {
        let field = |rest: &str| format!("spec.listeners[{i}]{rest}");
        let tls = &*spec.protocol == "HTTPS";
        let mut steps = Steps { accepted: Ok(()), resolved: Ok(()), conflicted: None };
        let hostname = HostPattern::gateway(spec.hostname.as_deref().unwrap_or_default());
        if let Err((reason, message)) = self.port(spec, address, tls) {
            findings.add(Reason::ListenerNotAccepted, field(".port"), message.clone());
            if reason == "ProtocolConflict" {
                steps.conflicted = Some((reason, message.clone()));
            }
            let reason = if reason == "ProtocolConflict" { "PortUnavailable" } else { reason };
            steps.accepted = Err((reason, message));
        } else if let Err(problem) = &hostname {
            let message = format!("{}: {problem}", quoted(spec.hostname.as_deref().unwrap_or_default()));
            findings.add(Reason::ListenerNotAccepted, field(".hostname"), message.clone());
            steps.accepted = Err(("UnsupportedValue", message));
        }
        let kinds = self.kinds(spec, &mut steps, &field, findings);
        let mut certificate = None;
        if tls && steps.accepted.is_ok() {
            let mode = spec.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
            if mode == "Terminate" {
                certificate = self.certificate(gateway, spec, &mut steps, &field, findings);
            } else {
                let message = format!("tls.mode is {}, Terminate is supported", quoted(mode));
                findings.add(Reason::ListenerNotAccepted, field(".tls.mode"), message.clone());
                steps.accepted = Err(("UnsupportedValue", message));
            }
        }
        let from = From::read(spec.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.as_ref()));
        self.selects |= matches!(from, From::Selected(_));
        let serves = !refused && steps.accepted.is_ok() && (!tls || certificate.is_some());
        let port = u16::try_from(spec.port).unwrap_or_default();
        Listener {
            name: spec.name.clone(),
            port: spec.port,
            tls,
            hostname: hostname.unwrap_or(HostPattern::Any),
            kinds,
            from,
            scope: steps.accepted.is_ok().then_some(Scope { address, port }),
            serves,
            certificate,
            conditions: steps.conditions(serves),
        }
    }

    /// Whether the port may be listened to with this protocol.
    fn port(
        &mut self,
        spec: &ListenerSpec,
        address: Option<IpAddr>,
        tls: bool,
    ) -> Result<(), (&'static str, String)> {
        if !matches!(&*spec.protocol, "HTTP" | "HTTPS") {
            let message = format!("protocol {} is not supported, HTTP and HTTPS are", quoted(&spec.protocol));
            return Err(("UnsupportedProtocol", message));
        }
        let ports = &self.settings.gateway_listener_ports;
        let port = u16::try_from(spec.port).ok().filter(|port| ports.contains(port));
        let right = match port {
            Some(80) => !tls,
            Some(443) => tls,
            Some(_) => true,
            None => false,
        };
        let Some(port) = port.filter(|_| right) else {
            let message = format!(
                "port {} is not open for {}: HTTP is served on port 80, HTTPS on 443, and either on further ports \
                 of --gateway-listener-ports",
                spec.port, &spec.protocol
            );
            return Err(("PortUnavailable", message));
        };
        if *self.ports.entry(Scope { address, port }).or_insert(tls) != tls {
            let other = if tls { "HTTP" } else { "HTTPS" };
            let message = format!("port {port} is in use for {other}");
            return Err(("ProtocolConflict", message));
        }
        Ok(())
    }

    fn kinds(
        &self,
        spec: &ListenerSpec,
        steps: &mut Steps,
        field: &impl Fn(&str) -> String,
        findings: &mut Findings,
    ) -> Box<[Kind]> {
        let supported = || matches!(&*spec.protocol, "HTTP" | "HTTPS");
        let named = spec.allowed_routes.as_ref().map(|allowed| &*allowed.kinds).unwrap_or_default();
        if named.is_empty() {
            return if supported() { HTTP_KINDS.into() } else { Box::default() };
        }
        let mut kinds = Vec::new();
        for (i, wanted) in named.iter().enumerate() {
            let known = HTTP_KINDS.into_iter().find(|kind| {
                supported()
                    && api_kind(*kind) == &*wanted.kind
                    && wanted.group.as_deref().is_none_or(|g| g == GROUP)
            });
            match known {
                Some(kind) => kinds.push(kind),
                None => {
                    let message = format!(
                        "routes of kind {} cannot attach, HTTPRoute and GRPCRoute can",
                        quoted(&wanted.kind)
                    );
                    findings.add(
                        Reason::ListenerNotAccepted,
                        field(&format!(".allowedRoutes.kinds[{i}]")),
                        message.clone(),
                    );
                    steps.resolved = Err(("InvalidRouteKinds", message));
                }
            }
        }
        kinds.into()
    }

    /// The certificate, if every reference is good: with one that is not, no route is served.
    fn certificate(
        &mut self,
        gateway: &GatewayObject,
        spec: &ListenerSpec,
        steps: &mut Steps,
        field: &impl Fn(&str) -> String,
        findings: &mut Findings,
    ) -> Option<Arc<CertifiedKey>> {
        let refs = spec.tls.as_ref().map(|tls| &*tls.certificate_refs).unwrap_or_default();
        let own = &gateway.meta.key.namespace;
        let mut first = None;
        let mut wrong = |reason, at: Option<usize>, message: String| {
            let field = match at {
                Some(j) => field(&format!(".tls.certificateRefs[{j}]")),
                None => field(".tls"),
            };
            findings.add(Reason::ListenerCertificateInvalid, field, message.clone());
            steps.resolved = Err((reason, message));
        };
        if refs.is_empty() {
            wrong("InvalidCertificateRef", None, "it names no certificate".to_owned());
        }
        for (j, reference) in refs.iter().enumerate() {
            let kind = reference.kind.as_deref().unwrap_or("Secret");
            if !reference.group.as_deref().unwrap_or_default().is_empty() || kind != "Secret" {
                let message = format!("a certificate comes from a Secret, not from a {}", quoted(kind));
                wrong("InvalidCertificateRef", Some(j), message);
                continue;
            }
            let namespace = reference.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or(own);
            let key = Key::new(namespace, &*reference.name);
            let from = Kinded { group: GROUP, kind: "Gateway", namespace: own };
            if !self.grants.permit(from, Kinded { group: "", kind: "Secret", namespace }, &reference.name) {
                let message = format!("no ReferenceGrant of namespace {namespace} lets it use Secret {key}");
                wrong("RefNotPermitted", Some(j), message);
                continue;
            }
            self.secrets.insert(key.clone());
            let read = self.certificates.read(self.cluster, &key, self.now, |reason, message| {
                if reason != Reason::CertificateExpired {
                    wrong("InvalidCertificateRef", Some(j), message);
                }
            });
            first = first.or(read);
        }
        first.filter(|_| {
            steps.resolved.as_ref().err().is_none_or(|(reason, _)| *reason == "InvalidRouteKinds")
        })
    }
}

impl Steps {
    fn conditions(self, serves: bool) -> Box<[Condition]> {
        let of = |kind, result: Result<(), (&'static str, String)>, good| match result {
            Ok(()) => Condition::new(kind, true, good, ""),
            Err((reason, message)) => Condition::new(kind, false, reason, message),
        };
        let conflicted = match self.conflicted {
            Some((reason, message)) => Condition::new("Conflicted", true, reason, message),
            None => Condition::new("Conflicted", false, "NoConflicts", ""),
        };
        let resolved = self.resolved.is_ok();
        let programmed = if serves && resolved {
            Condition::new("Programmed", true, "Programmed", "")
        } else {
            Condition::new("Programmed", false, "Invalid", "the other conditions say why")
        };
        [
            of("Accepted", self.accepted, "Accepted"),
            of("ResolvedRefs", self.resolved, "ResolvedRefs"),
            conflicted,
            programmed,
        ]
        .into()
    }
}

fn is(listener: &Listener, condition: &str) -> bool {
    listener.conditions.iter().any(|c| c.kind == condition && c.status)
}
