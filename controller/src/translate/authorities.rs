//! Authorities whose certificates are in ConfigMaps, under `ca.crt`.

use super::secret::encrypted;
use crate::cluster::backend_tls::ConfigMapObject;
use crate::cluster::{Cluster, Key, MAX_SECRET_VALUE};
use openssl::x509::X509;
use rustls_pki_types::CertificateDer;
use std::collections::HashMap;
use std::sync::Arc;

/// The certificates of ConfigMaps, each parsed once for as long as it stays as it is.
#[derive(Default)]
pub(super) struct Authorities(HashMap<Key, (Arc<ConfigMapObject>, Parsed)>);

/// What a ConfigMap holds: one certificate or more.
pub(super) type Parsed = Result<Arc<[CertificateDer<'static>]>, Unusable>;

/// Why a ConfigMap's certificates cannot be had; stands behind its name.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("does not exist, or holds no ca.crt")]
    Missing,
    #[error("has a ca.crt of more than {MAX_SECRET_VALUE} bytes")]
    TooLarge,
    #[error("holds no PEM certificate in ca.crt, or a damaged one")]
    Damaged,
}

impl Authorities {
    /// The certificates of a ConfigMap.
    pub(super) fn read(&mut self, key: &Key, cluster: &Cluster) -> Parsed {
        let Some(map) = cluster.config_maps.get(key) else {
            self.0.remove(key);
            return Err(Unusable::Missing);
        };
        if let Some((known, parsed)) = self.0.get(key)
            && known.ca == map.ca
        {
            return parsed.clone();
        }
        let parsed = parse(&map.ca);
        self.0.insert(key.clone(), (map.clone(), parsed.clone()));
        parsed
    }

    /// Nothing refers to the ConfigMap any more.
    pub(super) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Only what is in these ConfigMaps is referred to.
    pub(super) fn retain(&mut self, named: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| named(key));
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn parse(pem: &str) -> Parsed {
    if pem.len() > MAX_SECRET_VALUE {
        return Err(Unusable::TooLarge);
    }
    if encrypted(pem.as_bytes()) {
        return Err(Unusable::Damaged);
    }
    let all = X509::stack_from_pem(pem.as_bytes()).map_err(|_| Unusable::Damaged)?;
    if all.is_empty() {
        return Err(Unusable::Damaged);
    }
    let der = all.iter().map(|certificate| certificate.to_der().map(CertificateDer::from));
    der.collect::<Result<_, _>>().map_err(|_| Unusable::Damaged)
}
