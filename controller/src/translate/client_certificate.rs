//! The certificate that a Gateway shows to backends, as a part of the backends of the routes that come through it.

use super::backend::Backends;
use super::rules::Prototype;
use ingress_core::{Actions, Backend, CertifiedKey};
use std::sync::Arc;

/// The rules of one route as they are at Gateways with a certificate, made once for each certificate.
#[derive(Default)]
pub(super) struct Shown(Vec<Made>);

struct Made {
    client: Arc<CertifiedKey>,
    /// Where the rules are that it was made of; a TLSRoute has two sets of them.
    of: *const Prototype,
    rules: Box<[Prototype]>,
}

impl Shown {
    /// The rules at a Gateway that shows this certificate.
    pub(super) fn at<'a>(
        &'a mut self,
        plain: &'a [Prototype],
        client: Option<&Arc<CertifiedKey>>,
        backends: &mut Backends,
    ) -> &'a [Prototype] {
        let Some(client) = client else { return plain };
        let known = self.0.iter().position(|made| made.client == *client && made.of == plain.as_ptr());
        let at = known.unwrap_or_else(|| {
            let rules = shown(plain, client, backends);
            self.0.push(Made { client: client.clone(), of: plain.as_ptr(), rules });
            self.0.len() - 1
        });
        self.0.get(at).map_or(plain, |made| &made.rules)
    }
}

/// The rules with the certificate at each backend that is reached over TLS as a policy says.
fn shown(plain: &[Prototype], client: &Arc<CertifiedKey>, backends: &mut Backends) -> Box<[Prototype]> {
    let mut with = |backend: &Arc<Backend>| match backend.tls {
        Some(_) => backends.intern(Backend { client: Some(client.clone()), ..Backend::clone(backend) }),
        None => backend.clone(),
    };
    // the matches of one rule share what it does
    let mut last: Option<(Arc<Actions>, Arc<Actions>)> = None;
    let rules = plain.iter().map(|rule| {
        let actions = rule.actions.as_ref().map(|plain| match &last {
            Some((known, shown)) if Arc::ptr_eq(known, plain) => shown.clone(),
            _ => {
                let shown = Arc::new(plain.with_backends(&mut with));
                last = Some((plain.clone(), shown.clone()));
                shown
            }
        });
        Prototype { backend: with(&rule.backend), actions, ..rule.clone() }
    });
    rules.collect()
}
