//! What clients must show of themselves in a TLS handshake before they are served.

use crate::Slot;
use rustls_pki_types::CertificateDer;
use std::fmt;

/// The certificate that clients of a host are asked for (Gateway API, `FrontendTLSValidation`).
pub struct ClientValidation {
    /// Whom a client's certificate must come from; never empty, and nobody else is believed.
    pub authorities: Box<[CertificateDer<'static>]>,
    /// Whether a client without a valid certificate is refused (`AllowValidOnly`). Else it is asked for one and let in
    /// whatever it shows (`AllowInsecureFallback`).
    pub required: bool,
    /// SHA-256 over all of that: equal fingerprints let in the same clients.
    pub fingerprint: [u8; 32],
    /// The data plane's parsed form.
    pub native: Slot,
}

impl PartialEq for ClientValidation {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for ClientValidation {}

impl fmt::Debug for ClientValidation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientValidation")
            .field("authorities", &self.authorities.len())
            .field("required", &self.required)
            .finish_non_exhaustive()
    }
}

impl ClientValidation {
    /// Whether a connection must not be used for a host that demands this: it was let in under something else.
    pub fn keeps_out(&self, let_in_under: Option<&Self>) -> bool {
        self.required && let_in_under != Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_under_the_same_validation_is_let_in_where_one_is_required() {
        let of = |n, required| ClientValidation {
            authorities: Box::default(),
            required,
            fingerprint: [n; 32],
            native: Slot::new(),
        };
        let (one, other, open) = (of(1, true), of(2, true), of(3, false));
        assert!(!one.keeps_out(Some(&of(1, true))));
        for let_in_under in [None, Some(&other), Some(&open)] {
            assert!(one.keeps_out(let_in_under), "{let_in_under:?}");
        }
        assert!(!open.keeps_out(None) && !open.keeps_out(Some(&one)));
    }
}
