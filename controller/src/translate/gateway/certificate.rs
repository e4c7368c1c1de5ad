//! Certificates that Gateways and their listeners refer to.

use super::{Look, api_kind};
use crate::cluster::Key;
use crate::cluster::gateway::{GROUP, GatewayObject, ObjectRef};
use crate::finding::{Findings, Reason, quoted};
use crate::translate::grant::Kinded;
use crate::translate::secret::signs_for_backends;
use ingress_core::{CertifiedKey, Kind};
use std::sync::Arc;

/// Why a reference leads to no certificate: reason and message.
type Unresolved = (&'static str, String);

impl Look<'_> {
    /// The certificate that an object of this kind and namespace refers to. `invalid` is the reason of a condition where
    /// there is none, unless it is not permitted.
    pub(super) fn referenced(
        &mut self,
        (kind, own): (Kind, &Arc<str>),
        reference: &ObjectRef,
        invalid: &'static str,
    ) -> Result<Arc<CertifiedKey>, Unresolved> {
        let named = reference.kind.as_deref().unwrap_or("Secret");
        if !reference.group.as_deref().unwrap_or_default().is_empty() || named != "Secret" {
            return Err((
                invalid,
                format!("a certificate comes from a Secret, not from a {}", quoted(named)),
            ));
        }
        let namespace = reference.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or(own);
        let key = Key::new(namespace, &*reference.name);
        let from = Kinded { group: GROUP, kind: api_kind(kind), namespace: own };
        if !self.grants.permit(from, Kinded { group: "", kind: "Secret", namespace }, &reference.name) {
            let message = format!("no ReferenceGrant of namespace {namespace} lets it use Secret {key}");
            return Err(("RefNotPermitted", message));
        }
        self.secrets.insert(key.clone());
        let mut problem = String::new();
        let read = self.certificates.read(self.cluster, &key, self.now, |reason, message| {
            if reason != Reason::CertificateExpired {
                problem = message;
            }
        });
        read.ok_or((invalid, problem))
    }

    /// The certificate that the Gateway shows to backends; `None` where it names none.
    pub(super) fn client_certificate(
        &mut self,
        object: &GatewayObject,
        findings: &mut Findings,
    ) -> Result<Option<Arc<CertifiedKey>>, Unresolved> {
        const FIELD: &str = "spec.tls.backend.clientCertificateRef";
        const INVALID: &str = "InvalidClientCertificateRef";
        let backend = object.spec.tls.as_ref().and_then(|tls| tls.backend.as_ref());
        let Some(reference) = backend.and_then(|backend| backend.client_certificate_ref.as_ref()) else {
            return Ok(None);
        };
        let read = self.referenced((Kind::Gateway, &object.meta.key.namespace), reference, INVALID);
        let read = read.and_then(|certified| match signs_for_backends(&certified) {
            true => Ok(certified),
            false => {
                let message = format!("the key in {} is neither RSA nor ECDSA", certified.source);
                Err((INVALID, message))
            }
        });
        match read {
            Ok(certified) => {
                if certified.not_after < self.now {
                    let message = format!("the certificate in {} has expired", certified.source);
                    findings.add(Reason::CertificateExpired, FIELD, message);
                }
                Ok(Some(certified))
            }
            Err((reason, message)) => {
                let message = format!("{message}; backends are reached without a client certificate");
                findings.add(Reason::BackendClientCertificateInvalid, FIELD, message.clone());
                Err((reason, message))
            }
        }
    }
}
