//! Pure: which cert-manager Certificates an Ingress is to have, and what must be written for that.
//!
//! A TLS block without `secretName` gets the Certificate `<ingress>-tls-<index of the block>`, and the Secret of that
//! name. Only Certificates that we made for this Ingress are ever changed. Their owner reference lets the Ingress not
//! *control* them: cert-manager's own Ingress support deletes what an Ingress controls and does not name as a Secret.
//! One that is wanted no more is handed to the garbage collector: its owner becomes an Ingress that does not exist. So
//! the role needs no right to delete, and has none.

use crate::cluster::certificate::{
    self, CertificateObject, CertificateSpec, Certificates, GROUP, IssuerRef, KIND, MADE_BY, PLURAL,
};
use crate::cluster::{IngressObject, Key};
use crate::finding::{Finding, Findings, Reason, quoted};
use crate::write::{Change, Target, Write};
use ingress_core::HostPattern;
use serde_json::json;
use std::sync::Arc;

/// Annotation that names a ClusterIssuer.
pub(crate) const CLUSTER_ISSUER: &str = "cert-manager.io/cluster-issuer";
/// Annotation that names an Issuer of the Ingress's namespace.
pub(crate) const ISSUER: &str = "cert-manager.io/issuer";
/// Names of objects are not longer.
const MAX_NAME: usize = 253;
/// The `uid` of an Ingress that there never is.
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

/// A Certificate that a TLS block asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Index of the block.
    pub block: usize,
    pub spec: CertificateSpec,
}

/// What an Ingress's blocks ask for. Hosts that are none are left out: they are told of where TLS is read.
pub(crate) fn requests(
    object: &IngressObject,
    default_issuer: &str,
    findings: &mut Findings,
) -> Box<[Request]> {
    let mut blocks = object.tls.iter().enumerate().filter(|(_, tls)| tls.secret.is_none()).peekable();
    if blocks.peek().is_none() {
        return Box::default();
    }
    let Some(issuer_ref) = issuer(object, default_issuer, findings) else { return Box::default() };
    let mut requests = Vec::new();
    for (block, tls) in blocks {
        let mut dns_names: Vec<String> = Vec::new();
        for host in tls.hosts.iter().filter_map(|host| host.parse::<HostPattern>().ok()) {
            if host != HostPattern::Any && !dns_names.contains(&host.to_string()) {
                dns_names.push(host.to_string());
            }
        }
        if dns_names.is_empty() {
            continue;
        }
        let secret_name = certificate::name(&object.key.name, block);
        if secret_name.len() > MAX_NAME {
            let message = format!(
                "no Certificate is requested: its name, the Ingress's with -tls-{block} behind it, is longer than {MAX_NAME}"
            );
            findings.add(Reason::CertificateNotRequested, format!("spec.tls[{block}]"), message);
            continue;
        }
        let spec = CertificateSpec { dns_names, secret_name, issuer_ref: issuer_ref.clone() };
        requests.push(Request { block, spec });
    }
    requests.into()
}

/// Whether no annotation of the Ingress names an issuer.
pub(crate) fn by_default(object: &IngressObject) -> bool {
    named(object, CLUSTER_ISSUER).or_else(|| named(object, ISSUER)).is_none()
}

fn named<'a>(object: &'a IngressObject, key: &str) -> Option<&'a str> {
    object.annotations.get(key).map(|name| name.trim()).filter(|name| !name.is_empty())
}

/// Who is to issue; `None` where the name can be nobody's.
fn issuer(object: &IngressObject, default: &str, findings: &mut Findings) -> Option<IssuerRef> {
    let (key, kind, name) = match (named(object, CLUSTER_ISSUER), named(object, ISSUER)) {
        (Some(name), _) => (CLUSTER_ISSUER, "ClusterIssuer", name),
        (None, Some(name)) => (ISSUER, "Issuer", name),
        (None, None) => ("", "ClusterIssuer", default),
    };
    if !is_name(name) {
        let message = format!("{} is not accepted, only a name; no Certificate is requested", quoted(name));
        findings.add(Reason::InvalidAnnotation, key, message);
        return None;
    }
    Some(IssuerRef { name: name.into(), kind: kind.into(), group: GROUP.into() })
}

/// Whether an object can be called so.
pub fn is_name(text: &str) -> bool {
    let part = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    text.len() <= MAX_NAME && text.split('.').all(part)
}

/// Why no Certificate can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unable {
    /// The flag says so.
    SwitchedOff,
    /// There is no cluster.
    Files,
    /// The cluster has no such kind, or does not let us read it.
    NotInstalled,
}

impl Unable {
    const fn why(self) -> &'static str {
        match self {
            Unable::SwitchedOff => "--create-certificates is off",
            Unable::Files => "without a cluster nobody issues one",
            Unable::NotInstalled => "cert-manager is not installed, or its Certificates may not be read",
        }
    }
}

/// What is to be written for one Ingress, and what it is told.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub writes: Vec<Write>,
    pub findings: Vec<Finding>,
}

impl Plan {
    /// Compares what an Ingress asks for with the Certificates that there are.
    pub(crate) fn make(object: &IngressObject, requests: &[Request], there: &Certificates) -> Self {
        let mut plan = Self::default();
        for request in requests {
            let change = match there.get(&object.key, request.block) {
                None => Change::Create(body(object, request.block, &request.spec, None, &object.uid)),
                Some(certificate) => match &certificate.made_for {
                    None => {
                        plan.findings.push(taken(object, request));
                        Change::Nothing
                    }
                    Some(owner) if *owner == object.uid && certificate.spec == request.spec => {
                        Change::Nothing
                    }
                    Some(_) => Change::Apply(body(
                        object,
                        request.block,
                        &request.spec,
                        Some(&certificate.uid),
                        &object.uid,
                    )),
                },
            };
            plan.writes.push(Write { target: target(&object.key, request.block), change });
        }
        let unwanted = there.of(&object.key).filter(|c| requests.iter().all(|r| r.block != c.block));
        plan.writes.extend(unwanted.map(|certificate| give_up(object, certificate)));
        plan
    }

    /// Nothing can be written: an Ingress hears of the Secrets that nobody will write.
    pub(crate) fn unable(requests: &[Request], why: Unable, has_secret: impl Fn(&str) -> bool) -> Self {
        let missing = requests.iter().filter(|request| !has_secret(&request.spec.secret_name));
        let findings = missing.map(|request| {
            let message = format!(
                "no Certificate is requested for this block, and there is no Secret {}: {}",
                request.spec.secret_name,
                why.why()
            );
            Finding {
                reason: Reason::CertificateNotRequested,
                field: format!("spec.tls[{}]", request.block).into(),
                message: message.into(),
            }
        });
        Self { writes: Vec::new(), findings: findings.collect() }
    }
}

/// What still waits to be written there is void.
pub(crate) fn void(target: Target) -> Write {
    Write { target, change: Change::Nothing }
}

fn give_up(object: &IngressObject, certificate: &CertificateObject) -> Write {
    let change = match &certificate.made_for {
        Some(owner) if **owner != *NOBODY => {
            Change::Apply(body(object, certificate.block, &certificate.spec, Some(&certificate.uid), NOBODY))
        }
        _ => Change::Nothing,
    };
    Write { target: target(&object.key, certificate.block), change }
}

fn taken(object: &IngressObject, request: &Request) -> Finding {
    let message = format!(
        "Certificate {}/{} was there before, and is not changed; what it writes into Secret {} is served",
        object.key.namespace, request.spec.secret_name, request.spec.secret_name
    );
    Finding {
        reason: Reason::CertificateTaken,
        field: format!("spec.tls[{}]", request.block).into(),
        message: message.into(),
    }
}

fn target(ingress: &Key, block: usize) -> Target {
    Target {
        group: GROUP,
        version: "v1",
        kind: KIND,
        plural: PLURAL,
        namespace: ingress.namespace.clone(),
        name: certificate::name(&ingress.name, block).into(),
    }
}

/// The Certificate with the fields that are ours. With a `uid` it is good for that very object only.
fn body(
    object: &IngressObject,
    block: usize,
    spec: &CertificateSpec,
    uid: Option<&Arc<str>>,
    owner: &str,
) -> serde_json::Value {
    let mut body = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": KIND,
        "metadata": {
            "namespace": &*object.key.namespace,
            "name": certificate::name(&object.key.name, block),
            "labels": { MADE_BY.0: MADE_BY.1 },
            "ownerReferences": [{
                "apiVersion": "networking.k8s.io/v1",
                "kind": "Ingress",
                "name": &*object.key.name,
                "uid": owner,
            }],
        },
        "spec": spec,
    });
    if let Some(uid) = uid {
        body["metadata"]["uid"] = json!(**uid);
    }
    body
}

#[cfg(test)]
mod tests;
