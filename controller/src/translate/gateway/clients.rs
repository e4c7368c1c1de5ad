//! Certificates that the clients of a Gateway must show, port by port (`spec.tls.frontend`).

use super::Look;
use crate::cluster::Key;
use crate::cluster::gateway::{ClientCertificates, ClientTls, GROUP, GatewayObject, ObjectRef};
use crate::finding::{Findings, Reason, quoted};
use crate::translate::grant::Kinded;
use ingress_core::{ClientValidation, Slot};
use openssl::sha::Sha256;
use rustls_pki_types::CertificateDer;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What clients are asked for on a port.
#[derive(Clone)]
pub(super) struct Asked {
    /// `None`: nothing. Else why it cannot be asked for, as reason and message: then nobody is to be let in.
    pub clients: Result<Demand, (&'static str, String)>,
    /// Whether every authority that is named was found, else reason and message.
    pub resolved: Result<(), (&'static str, String)>,
}

impl Default for Asked {
    fn default() -> Self {
        Self { clients: Ok(None), resolved: Ok(()) }
    }
}

/// What a Gateway asks of its clients.
#[derive(Default)]
pub(super) struct Frontend {
    default: Asked,
    per_port: BTreeMap<i32, Asked>,
}

impl Frontend {
    /// What counts on a port.
    pub(super) fn on(&self, port: i32) -> &Asked {
        self.per_port.get(&port).unwrap_or(&self.default)
    }
}

/// What clients are asked for; `None`: nothing.
pub(super) type Demand = Option<Arc<ClientValidation>>;

/// The validations that there are, by fingerprint: what is the same is one value, for the data plane derives things from it.
pub(super) type Validations = HashMap<[u8; 32], Arc<ClientValidation>>;

/// Whether some port lets everybody in whatever certificate they show.
pub(super) fn insecure(object: &GatewayObject) -> bool {
    all(object).any(|(_, tls)| {
        let mode = tls.validation.as_ref().and_then(|validation| validation.mode.as_deref());
        mode == Some(INSECURE)
    })
}

/// `mode` of a validation that lets in clients without a valid certificate.
const INSECURE: &str = "AllowInsecureFallback";

/// Each configuration with its port; `None`: the default.
fn all(object: &GatewayObject) -> impl Iterator<Item = (Option<(usize, i32)>, &ClientTls)> {
    let frontend = object.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref());
    frontend.into_iter().flat_map(|frontend| {
        let ports = frontend.per_port.iter().enumerate().map(|(i, of)| (Some((i, of.port)), &of.tls));
        std::iter::once((None, &frontend.default)).chain(ports)
    })
}

impl Look<'_> {
    /// What the Gateway asks of its clients, also on ports at which none of its listeners is.
    pub(super) fn frontend(&mut self, object: &GatewayObject, findings: &mut Findings) -> Frontend {
        let mut frontend = Frontend::default();
        for (port, tls) in all(object) {
            let Some(validation) = &tls.validation else {
                if let Some((_, port)) = port {
                    frontend.per_port.entry(port).or_default();
                }
                continue;
            };
            let field = match port {
                Some((i, _)) => format!("spec.tls.frontend.perPort[{i}].tls.validation"),
                None => "spec.tls.frontend.default.validation".to_owned(),
            };
            let asked = self.asked(object, validation, &field, findings);
            match port {
                // the API lets no port in twice
                Some((_, port)) => drop(frontend.per_port.entry(port).or_insert(asked)),
                None => frontend.default = asked,
            }
        }
        frontend
    }

    fn asked(
        &mut self,
        object: &GatewayObject,
        validation: &ClientCertificates,
        field: &str,
        findings: &mut Findings,
    ) -> Asked {
        let mut usable = BTreeSet::new();
        let mut unresolved: Vec<(&'static str, String)> = Vec::new();
        let mut wrong = |field: String, message: String| {
            findings.add(Reason::ClientValidationInvalid, field.clone(), message.clone());
            format!("{field}: {message}")
        };
        for (i, reference) in validation.ca_certificate_refs.iter().enumerate() {
            let field = format!("{field}.caCertificateRefs[{i}]");
            match self.clients_come_from(&object.meta.key, reference) {
                Ok(certificates) => usable.extend(certificates.iter().map(|der| der.to_vec())),
                Err((reason, message)) => unresolved.push((reason, wrong(field, message))),
            }
        }
        if validation.ca_certificate_refs.is_empty() {
            let message = wrong(format!("{field}.caCertificateRefs"), "it names no authority".to_owned());
            unresolved.push(("InvalidCACertificateRef", message));
        }
        let messages: Vec<_> = unresolved.iter().map(|(_, message)| message.as_str()).collect();
        let messages = messages.join("; ");
        let required = match validation.mode.as_deref() {
            None | Some("" | "AllowValidOnly") => Ok(true),
            Some(INSECURE) => Ok(false),
            Some(other) => {
                let message = format!("{} is not known, AllowValidOnly and {INSECURE} are", quoted(other));
                Err(("UnsupportedValue", wrong(format!("{field}.mode"), message)))
            }
        };
        let clients = match required {
            Err(problem) => Err(problem),
            Ok(_) if usable.is_empty() => Err(("NoValidCACertificate", messages.clone())),
            Ok(required) => Ok(Some(self.shared(required, usable))),
        };
        let resolved = match unresolved.first() {
            Some((reason, _)) => Err((*reason, messages)),
            None => Ok(()),
        };
        Asked { clients, resolved }
    }

    /// The authorities that a reference of this Gateway means.
    fn clients_come_from(
        &mut self,
        gateway: &Key,
        reference: &ObjectRef,
    ) -> Result<Arc<[CertificateDer<'static>]>, (&'static str, String)> {
        let kind = reference.kind.as_deref().unwrap_or_default();
        if !reference.group.as_deref().unwrap_or_default().is_empty() || kind != "ConfigMap" {
            let message = format!("authorities come from a ConfigMap, not from a {}", quoted(kind));
            return Err(("InvalidCACertificateKind", message));
        }
        let own = &*gateway.namespace;
        let namespace = reference.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or(own);
        let map = Key::new(namespace, &*reference.name);
        let from = Kinded { group: GROUP, kind: "Gateway", namespace: own };
        let to = Kinded { group: "", kind: "ConfigMap", namespace };
        if !self.grants.permit(from, to, &reference.name) {
            let message = format!("no ReferenceGrant of namespace {namespace} lets it use ConfigMap {map}");
            return Err(("RefNotPermitted", message));
        }
        let read = self.authorities.read(&map, self.cluster);
        let read = read.map_err(|why| ("InvalidCACertificateRef", format!("ConfigMap {map} {why}")));
        self.config_maps.insert(map);
        read
    }

    /// The validation, the same value as long as it is the same.
    fn shared(&mut self, required: bool, authorities: BTreeSet<Vec<u8>>) -> Arc<ClientValidation> {
        let mut hash = Sha256::new();
        hash.update(&[u8::from(required)]);
        for der in &authorities {
            hash.update(&(der.len() as u64).to_be_bytes());
            hash.update(der);
        }
        let fingerprint = hash.finish();
        let known = self.validations.get(&fingerprint).or_else(|| self.before.get(&fingerprint));
        let shared = known.cloned().unwrap_or_else(|| {
            let authorities = authorities.into_iter().map(CertificateDer::from).collect();
            Arc::new(ClientValidation { authorities, required, fingerprint, native: Slot::new() })
        });
        self.validations.insert(fingerprint, shared.clone());
        shared
    }
}
