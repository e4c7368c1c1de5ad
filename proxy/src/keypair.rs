//! A certificate and its key in the engine's form, for either side of a handshake.

use ingress_core::CertifiedKey;
use openssl::pkey::PKey;
use openssl::x509::X509;
use pingora_core::utils::tls::CertKey;
use std::sync::Arc;

/// Parsed once per certificate. A chain that the controller accepted always parses.
pub fn of(certified: &CertifiedKey) -> Option<&Arc<CertKey>> {
    certified.native.get_or_init(|| parse(certified).map(Arc::new))?.as_ref()
}

fn parse(certified: &CertifiedKey) -> Option<CertKey> {
    let chain = certified.chain.iter().map(|der| X509::from_der(der)).collect::<Result<Vec<_>, _>>().ok()?;
    let key = PKey::private_key_from_der(certified.key.secret_der()).ok()?;
    // the engine panics at an empty chain
    (!chain.is_empty()).then(|| CertKey::new(chain, key))
}
