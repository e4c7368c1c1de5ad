//! Certificates of clients: what a handshake asks for, and what it was given.
//!
//! Which validation counts is decided once, from the hello (`passthrough.rs`), and kept with the connection. OpenSSL takes it
//! over when it parses that hello itself: before it looks for a session to resume, so that a session from under another
//! validation, or none, is not found.

use crate::tls;
use ingress_core::{ClientValidation, Local};
use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{Ssl, SslAcceptorBuilder, SslContext, SslRef, SslVerifyMode};
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::X509VerifyFlags;
use openssl::x509::{X509, X509VerifyResult};
use pingora_core::tls::ext;
use std::cell::RefCell;
use std::sync::Arc;

/// A validation in OpenSSL's form, made once: a context with the authorities and nobody else, and with a session id
/// context of its own.
struct Native {
    http: SslContext,
    /// For connections that are no HTTP here.
    silent: SslContext,
}

impl Native {
    fn new(validation: &ClientValidation) -> Result<Self, ErrorStack> {
        let of = |context| Self::context(validation, context);
        Ok(Self { http: of(tls::context()?)?, silent: of(tls::silent_context()?)? })
    }

    fn context(
        validation: &ClientValidation,
        mut builder: SslAcceptorBuilder,
    ) -> Result<SslContext, ErrorStack> {
        let mut store = X509StoreBuilder::new()?;
        for der in &validation.authorities {
            let authority = X509::from_der(der)?;
            // what the client can choose its certificate by
            builder.add_client_ca(&authority)?;
            store.add_cert(authority)?;
        }
        // an authority that is named is trusted, also one that another one has signed
        store.set_flags(X509VerifyFlags::PARTIAL_CHAIN)?;
        builder.set_verify_cert_store(store.build())?;
        builder.set_session_id_context(&validation.fingerprint)?;
        Ok(builder.build().into_context())
    }
}

fn native(validation: &ClientValidation) -> Option<&Native> {
    let made = validation.native.get_or_init(|| Native::new(validation));
    let native = made.and_then(|made| made.as_ref().ok());
    if native.is_none() {
        tracing::warn!(
            "the authorities for certificates of clients are not usable; the connection is refused"
        );
    }
    native
}

fn demand(validation: &ClientValidation, ssl: &mut SslRef) {
    if validation.required {
        ssl.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    } else {
        ssl.set_verify_callback(SslVerifyMode::PEER, |_, _| true);
    }
}

/// The beginning of a handshake under a validation, for a connection that is no HTTP here.
pub fn silent(validation: &ClientValidation) -> Option<Ssl> {
    let mut ssl = Ssl::new(&native(validation)?.silent).ok()?;
    demand(validation, &mut ssl);
    Some(ssl)
}

/// Whether the validation lets in who has finished a handshake under it.
pub fn lets_in(validation: &ClientValidation, ssl: &SslRef) -> bool {
    !validation.required || (ssl.verify_result() == X509VerifyResult::OK && is_valid(ssl))
}

thread_local! {
    static ANNOUNCED: RefCell<Hello> = const { RefCell::new(Hello { name: None, local: None, clients: None }) };
}

/// What was decided about a connection when its hello was there.
#[derive(Default)]
pub struct Hello {
    /// The server name that it asks for, in lower case and without a trailing dot.
    pub name: Option<String>,
    /// Where it came in, if some Gateway listened then.
    pub local: Option<Local>,
    /// The certificate that is asked for.
    pub clients: Option<Arc<ClientValidation>>,
}

impl Hello {
    /// Of the handshake that this thread begins next. The hello is whole by then, so nothing comes between: the
    /// engine has no other way from a stream to its SSL object. Were it otherwise, somebody would be let in under the wrong
    /// validation, or none, and the requests of such a connection are not served (`select.rs`).
    pub fn announce(self) {
        ANNOUNCED.set(self);
    }

    /// What was announced, for one handshake.
    pub fn announced() -> Self {
        ANNOUNCED.take()
    }
}

/// The validation under which each connection is.
#[derive(Clone, Copy)]
pub struct Asked(Index<Ssl, Arc<ClientValidation>>);

impl Asked {
    pub fn new() -> Result<Self, ErrorStack> {
        Ok(Self(Ssl::new_ex_index()?))
    }

    /// Has the handshake ask for a certificate. Called when OpenSSL has the hello; after an error nothing may go on.
    pub fn take_over(self, ssl: &mut SslRef, validation: Arc<ClientValidation>) -> Result<(), ErrorStack> {
        let Some(native) = native(&validation) else { return Err(ErrorStack::get()) };
        // Certificates, ciphers, protocols and the session id context are those of the new context from here on.
        ssl.set_ssl_context(&native.http)?;
        ext::suspend_when_need_ssl_cert(ssl);
        demand(&validation, ssl);
        ssl.set_ex_data(self.0, validation);
        Ok(())
    }

    /// The validation that a finished handshake was held to.
    pub fn enforced(self, ssl: &SslRef) -> Option<Arc<ClientValidation>> {
        let validation = ssl.ex_data(self.0)?;
        lets_in(validation, ssl).then(|| validation.clone())
    }
}

/// Whether the client has shown a certificate that has not expired. A session that is resumed says what was so when it was
/// made, and with TLS 1.3 each makes the next one.
fn is_valid(ssl: &SslRef) -> bool {
    let now = Asn1Time::days_from_now(0);
    let Some((certificate, now)) = ssl.peer_certificate().zip(now.ok()) else { return false };
    certificate.not_after().compare(&now).is_ok_and(|order| order.is_gt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingress_core::Slot;

    #[test]
    fn authorities_that_cannot_be_read_let_nobody_in() {
        let validation = ClientValidation {
            authorities: Box::new([b"none".to_vec().into()]),
            required: false,
            fingerprint: [1; 32],
            native: Slot::new(),
        };
        let asked = Asked::new().unwrap();
        let context = tls::context().unwrap().build();
        let mut ssl = Ssl::new(context.context()).unwrap();
        assert!(asked.take_over(&mut ssl, Arc::new(validation)).is_err() && asked.enforced(&ssl).is_none());
    }
}
