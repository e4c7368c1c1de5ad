//! One listener of a Gateway or ListenerSet: what it may serve, and why not.

use super::{From, Look, api_kind};
use crate::cluster::Key;
use crate::cluster::gateway::{GROUP, ListenerSpec};
use crate::finding::{Findings, Reason, quoted};
use crate::status::conditions::Condition;
use ingress_core::{CertifiedKey, ClientValidation, HostPattern, Kind, Scope};
use std::net::IpAddr;
use std::sync::Arc;

/// One of its listeners.
#[derive(PartialEq, Eq)]
pub(in crate::translate) struct Listener {
    pub name: Box<str>,
    pub port: i32,
    pub mode: Mode,
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
    /// What its clients must show, where TLS ends.
    pub clients: Option<Arc<ClientValidation>>,
    pub conditions: Box<[Condition]>,
}

/// What becomes of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) enum Mode {
    /// HTTP without TLS.
    Http,
    /// TLS ends here, and what is in it is HTTP.
    Https,
    /// Protocol TLS, mode Terminate: TLS ends here, and what is in it goes on over TCP.
    TlsTerminate,
    /// Protocol TLS, mode Passthrough: they are passed on as they are.
    TlsPassthrough,
}

impl Mode {
    fn of(spec: &ListenerSpec) -> Self {
        match &*spec.protocol {
            "HTTPS" => Mode::Https,
            "TLS" if tls_mode(spec) == "Passthrough" => Mode::TlsPassthrough,
            "TLS" => Mode::TlsTerminate,
            _ => Mode::Http,
        }
    }

    /// Whether clients speak TLS.
    pub(in crate::translate) fn tls(self) -> bool {
        self != Mode::Http
    }

    /// Whether TLS ends here.
    pub(in crate::translate) fn ends_tls(self) -> bool {
        matches!(self, Mode::Https | Mode::TlsTerminate)
    }
}

/// The kinds of routes that an HTTP or HTTPS listener takes.
const HTTP_KINDS: [Kind; 2] = [Kind::HttpRoute, Kind::GrpcRoute];

/// The kinds of routes that a TLS listener takes.
const TLS_KINDS: [Kind; 1] = [Kind::TlsRoute];

/// The kinds of routes that a listener of this protocol takes.
fn kinds_of(protocol: &str) -> &'static [Kind] {
    match protocol {
        "HTTP" | "HTTPS" => &HTTP_KINDS,
        "TLS" => &TLS_KINDS,
        _ => &[],
    }
}

impl Listener {
    /// Whether it has the certificate that it needs.
    pub(in crate::translate) fn has_certificate(&self) -> bool {
        !self.mode.ends_tls() || self.certificate.is_some()
    }
}

/// Whose listeners are looked at.
#[derive(Clone, Copy)]
pub(in crate::translate) struct Owner<'a> {
    /// Gateway or ListenerSet.
    pub kind: Kind,
    pub key: &'a Key,
    /// The Gateway that listens.
    pub gateway: &'a Key,
    /// Its own address.
    pub address: Option<IpAddr>,
    /// Whether nothing of it is served.
    pub refused: bool,
    /// All its listeners.
    pub specs: &'a [ListenerSpec],
}

/// What a listener comes to, step by step.
struct Steps {
    accepted: Result<(), (&'static str, String)>,
    resolved: Result<(), (&'static str, String)>,
    conflicted: Option<(&'static str, String)>,
}

impl Look<'_> {
    pub(in crate::translate) fn listener(
        &mut self,
        owner: Owner<'_>,
        spec: &ListenerSpec,
        i: usize,
        findings: &mut Findings,
    ) -> Listener {
        let field = |rest: &str| format!("spec.listeners[{i}]{rest}");
        let mode = Mode::of(spec);
        let mut steps = Steps { accepted: Ok(()), resolved: Ok(()), conflicted: None };
        let hostname = HostPattern::gateway(spec.hostname.as_deref().unwrap_or_default());
        if let Err(message) = supported_mode(spec) {
            findings.add(Reason::ListenerNotAccepted, field(".tls.mode"), message.clone());
            steps.accepted = Err(("UnsupportedValue", message));
        } else if let Err((reason, message)) = self.port(owner, spec, mode.tls()) {
            if reason == "ProtocolConflict" {
                steps.conflict(reason, field(".port"), message, findings);
            } else {
                findings.add(Reason::ListenerNotAccepted, field(".port"), message.clone());
                steps.accepted = Err((reason, message));
            }
        } else if let Err(problem) = &hostname {
            let message = format!("{}: {problem}", quoted(spec.hostname.as_deref().unwrap_or_default()));
            findings.add(Reason::ListenerNotAccepted, field(".hostname"), message.clone());
            steps.accepted = Err(("UnsupportedValue", message));
        } else if let Some(other) = twin(owner.specs, i) {
            let message = format!(
                "listener {} has the same port and hostname: a connection could go to either, and goes to neither",
                quoted(&other.name)
            );
            steps.conflict("HostnameConflict", field(".hostname"), message, findings);
        }
        // of a mode that is not supported no kind of route is
        let kinds = match supported_mode(spec) {
            Ok(()) => self.kinds(spec, &mut steps, &field, findings),
            Err(_) => Box::default(),
        };
        let (mut certificate, mut clients) = (None, None);
        if mode.ends_tls() && steps.accepted.is_ok() {
            certificate = self.certificate(owner, spec, &mut steps, &field, findings);
            clients = self.clients(owner, spec, &mut steps, &field, findings);
        }
        let from = From::read(
            spec.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.as_ref()),
            From::Same,
        );
        self.selects |= matches!(from, From::Selected(_));
        let port = u16::try_from(spec.port).unwrap_or_default();
        let hostname = hostname.unwrap_or(HostPattern::Any);
        if steps.accepted.is_ok() && !self.claim(owner.gateway, port, &hostname) {
            let message = format!("another listener of the Gateway has host {hostname} of port {port}");
            steps.conflict("HostnameConflict", field(".hostname"), message, findings);
        }
        if steps.accepted.is_ok() && !owner.refused && mode.ends_tls() {
            let at = (Scope { address: owner.address, port }, hostname.clone());
            let (first, asked) =
                self.asked.entry(at).or_insert_with(|| (owner.gateway.clone(), clients.clone()));
            if *asked != clients {
                let message = format!(
                    "Gateway {first} has host {hostname} of port {port} and asks something else of its clients: \
                     one host cannot both demand a certificate and not"
                );
                steps.conflict("HostnameConflict", field(".hostname"), message, findings);
            }
        }
        // What is not accepted, by itself or with its owner, takes nothing from others.
        let scope =
            (steps.accepted.is_ok() && !owner.refused).then_some(Scope { address: owner.address, port });
        if let Some(scope) = scope {
            self.ports.entry(scope).or_insert(mode.tls());
        }
        let serves = scope.is_some() && (!mode.ends_tls() || certificate.is_some());
        Listener {
            name: spec.name.clone(),
            port: spec.port,
            mode,
            hostname,
            kinds,
            from,
            scope,
            serves,
            certificate,
            clients,
            conditions: steps.conditions(serves),
        }
    }

    /// Whether the port may be listened to with this protocol.
    fn port(
        &mut self,
        owner: Owner<'_>,
        spec: &ListenerSpec,
        tls: bool,
    ) -> Result<(), (&'static str, String)> {
        if kinds_of(&spec.protocol).is_empty() {
            let used = u16::try_from(spec.port).is_ok_and(|port| {
                self.hosts.get(owner.gateway).is_some_and(|of_gateway| of_gateway.contains_key(&port))
            });
            if used && &*spec.protocol == "TCP" {
                let message = format!("port {} is in use for another protocol than TCP", spec.port);
                return Err(("ProtocolConflict", message));
            }
            let message =
                format!("protocol {} is not supported, HTTP, HTTPS and TLS are", quoted(&spec.protocol));
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
                "port {} is not open for {}: HTTP is served on port 80, HTTPS and TLS on 443, and each on further \
                 ports of --gateway-listener-ports",
                spec.port, &spec.protocol
            );
            return Err(("PortUnavailable", message));
        };
        if self.ports.get(&Scope { address: owner.address, port }).is_some_and(|used| *used != tls) {
            let other = if tls { "HTTP" } else { "TLS" };
            let message = format!("port {port} is in use for {other}");
            return Err(("ProtocolConflict", message));
        }
        Ok(())
    }

    /// Notes the host that a listener of the Gateway has, unless another one has it already.
    fn claim(&mut self, gateway: &Key, port: u16, host: &HostPattern) -> bool {
        let of_gateway = self.hosts.entry(gateway.clone()).or_default();
        of_gateway.entry(port).or_default().insert(host.clone())
    }

    fn kinds(
        &self,
        spec: &ListenerSpec,
        steps: &mut Steps,
        field: &impl Fn(&str) -> String,
        findings: &mut Findings,
    ) -> Box<[Kind]> {
        let supported = kinds_of(&spec.protocol);
        let named = spec.allowed_routes.as_ref().map(|allowed| &*allowed.kinds).unwrap_or_default();
        if named.is_empty() {
            return supported.into();
        }
        let mut kinds = Vec::new();
        for (i, wanted) in named.iter().enumerate() {
            let known = supported.iter().find(|kind| {
                api_kind(**kind) == &*wanted.kind && wanted.group.as_deref().is_none_or(|g| g == GROUP)
            });
            match known {
                Some(kind) => kinds.push(*kind),
                None => {
                    let names: Vec<_> = supported.iter().map(|kind| api_kind(*kind)).collect();
                    let message = format!(
                        "routes of kind {} cannot attach, {} can",
                        quoted(&wanted.kind),
                        if names.is_empty() { "none".to_owned() } else { names.join(" and ") }
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

    /// What clients must show there. Where that cannot be honoured, nobody is let in.
    fn clients(
        &mut self,
        owner: Owner<'_>,
        spec: &ListenerSpec,
        steps: &mut Steps,
        field: &impl Fn(&str) -> String,
        findings: &mut Findings,
    ) -> Option<Arc<ClientValidation>> {
        let asked = self.frontends.get(owner.gateway)?.on(spec.port);
        if steps.resolved.is_ok() {
            steps.resolved.clone_from(&asked.resolved);
        }
        match &asked.clients {
            Ok(clients) => clients.clone(),
            Err((reason, message)) => {
                findings.add(Reason::ListenerNotAccepted, field(".port"), message.clone());
                steps.accepted = Err((reason, message.clone()));
                None
            }
        }
    }

    /// The certificate, if every reference is good: with one that is not, no route is served.
    fn certificate(
        &mut self,
        owner: Owner<'_>,
        spec: &ListenerSpec,
        steps: &mut Steps,
        field: &impl Fn(&str) -> String,
        findings: &mut Findings,
    ) -> Option<Arc<CertifiedKey>> {
        const INVALID: &str = "InvalidCertificateRef";
        let refs = spec.tls.as_ref().map(|tls| &*tls.certificate_refs).unwrap_or_default();
        let mut first = None;
        let mut expired = Vec::new();
        let mut wrong = |reason, at: Option<usize>, message: String| {
            let field = match at {
                Some(j) => field(&format!(".tls.certificateRefs[{j}]")),
                None => field(".tls"),
            };
            findings.add(Reason::ListenerCertificateInvalid, field, message.clone());
            steps.resolved = Err((reason, message));
        };
        if refs.is_empty() {
            wrong(INVALID, None, "it names no certificate".to_owned());
        }
        for (j, reference) in refs.iter().enumerate() {
            match self.referenced((owner.kind, &owner.key.namespace), reference, INVALID) {
                Ok(read) => {
                    if read.not_after < self.now {
                        expired.push((j, format!("the certificate in {} has expired", read.source)));
                    }
                    first = first.or(Some(read));
                }
                Err((reason, message)) => wrong(reason, Some(j), message),
            }
        }
        // it is served all the same
        for (j, message) in expired {
            findings.add(Reason::CertificateExpired, field(&format!(".tls.certificateRefs[{j}]")), message);
        }
        first.filter(|_| {
            steps.resolved.as_ref().err().is_none_or(|(reason, _)| *reason == "InvalidRouteKinds")
        })
    }
}

impl Steps {
    /// Another listener has what this one asks for.
    fn conflict(&mut self, reason: &'static str, field: String, message: String, findings: &mut Findings) {
        findings.add(Reason::ListenerConflicted, field, message.clone());
        self.conflicted = Some((reason, message.clone()));
        self.accepted = Err((reason, message));
    }

    fn conditions(self, serves: bool) -> Box<[Condition]> {
        let of = |kind, result: Result<(), (&'static str, String)>, good| match result {
            Ok(()) => Condition::new(kind, true, good, ""),
            Err((reason, message)) => Condition::new(kind, false, reason, message),
        };
        let unprogrammed = self.conflicted.as_ref().map_or("Invalid", |(reason, _)| *reason);
        let conflicted = match self.conflicted {
            Some((reason, message)) => Condition::new("Conflicted", true, reason, message),
            None => Condition::new("Conflicted", false, "NoConflicts", ""),
        };
        let resolved = self.resolved.is_ok();
        let programmed = if serves && resolved {
            Condition::new("Programmed", true, "Programmed", "")
        } else {
            Condition::new("Programmed", false, unprogrammed, "the other conditions say why")
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

fn tls_mode(spec: &ListenerSpec) -> &str {
    spec.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate")
}

/// Whether what is to become of TLS is supported for the protocol.
fn supported_mode(spec: &ListenerSpec) -> Result<(), String> {
    match (&*spec.protocol, tls_mode(spec)) {
        ("HTTPS", "Terminate") | ("TLS", "Terminate" | "Passthrough") => Ok(()),
        (protocol @ ("HTTPS" | "TLS"), mode) => {
            let supported = if protocol == "TLS" { "Terminate and Passthrough are" } else { "Terminate is" };
            Err(format!("tls.mode is {}, {supported} supported for protocol {protocol}", quoted(mode)))
        }
        _ => Ok(()),
    }
}

/// Another of these listeners that cannot be told from this one by server names: one of both has protocol TLS
/// (Gateway API, "Distinct Listeners"; `tls` plays no part there).
fn twin(listeners: &[ListenerSpec], at: usize) -> Option<&ListenerSpec> {
    let speaks_tls = |listener: &ListenerSpec| {
        matches!(&*listener.protocol, "HTTPS" | "TLS") && supported_mode(listener).is_ok()
    };
    let host =
        |listener: &ListenerSpec| HostPattern::gateway(listener.hostname.as_deref().unwrap_or_default()).ok();
    let own = listeners.get(at).filter(|own| speaks_tls(own))?;
    let mut others = listeners.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, other)| other);
    others.find(|other| {
        other.port == own.port
            && speaks_tls(other)
            && (&*own.protocol == "TLS" || &*other.protocol == "TLS")
            && host(other) == host(own)
    })
}

pub(in crate::translate) fn is(listener: &Listener, condition: &str) -> bool {
    listener.conditions.iter().any(|c| c.kind == condition && c.status)
}
