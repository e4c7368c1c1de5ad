//! TLS Secrets as certificates that the data plane can serve.

use crate::cluster::{Cluster, Key, MAX_SECRET_VALUE, SecretObject};
use crate::finding::Reason;
use ingress_core::{CertifiedKey, HostPattern, Kind, ResourceRef, Slot};
use openssl::asn1::{Asn1Time, Asn1TimeRef};
use openssl::error::ErrorStack;
use openssl::pkey::{Id, PKey, Private};
use openssl::sha::Sha256;
use openssl::ssl::{Ssl, SslContext, SslMethod};
use openssl::x509::X509;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::collections::HashMap;
use std::sync::Arc;

/// The type of Secret that holds a certificate.
const TLS_TYPE: &str = "kubernetes.io/tls";

/// Certificates by Secret, each parsed once for as long as the Secret stays as it is.
#[derive(Default)]
pub(super) struct Certificates {
    kept: HashMap<Key, Entry>,
    /// Made when it is first needed: it tells whether a handshake would take a certificate.
    context: Option<SslContext>,
}

struct Entry {
    /// What was parsed.
    secret: Arc<SecretObject>,
    parsed: Result<Arc<CertifiedKey>, Problem>,
}

/// Why a Secret cannot be used. Says nothing of what is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("its type is {0:?}, {TLS_TYPE:?} is needed")]
    Type(Box<str>),
    #[error("{0} is missing or empty")]
    Missing(&'static str),
    #[error("{0} is larger than {MAX_SECRET_VALUE} bytes")]
    TooLarge(&'static str),
    #[error("{0} is encrypted, and there is nobody to ask for the passphrase")]
    Encrypted(&'static str),
    #[error("tls.crt holds no PEM certificate, or a damaged one")]
    Certificate,
    #[error("tls.key holds no PEM private key of a known kind")]
    Key,
    #[error("tls.key does not belong to the first certificate of tls.crt")]
    Mismatch,
    #[error("no TLS handshake would accept it{0}")]
    Refused(Box<str>),
}

impl Certificates {
    /// The Secret's certificate; `wrong` hears what is wrong with it.
    pub(super) fn read(
        &mut self,
        cluster: &Cluster,
        key: &Key,
        now: i64,
        mut wrong: impl FnMut(Reason, String),
    ) -> Option<Arc<CertifiedKey>> {
        let Some(secret) = cluster.secrets.get(key) else {
            self.kept.remove(key);
            let message =
                format!("Secret {key} of type {TLS_TYPE} does not exist, so it has no certificate to serve");
            wrong(Reason::SecretNotFound, message);
            return None;
        };
        match self.parsed(secret) {
            Ok(certified) => {
                if certified.not_after < now {
                    wrong(Reason::CertificateExpired, format!("the certificate in Secret {key} has expired"));
                }
                Some(certified)
            }
            Err(problem) => {
                let message = format!("Secret {key} has no certificate to serve: {problem}");
                wrong(Reason::InvalidTlsSecret, message);
                None
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Nothing refers to the Secret any more.
    pub(super) fn forget(&mut self, key: &Key) {
        self.kept.remove(key);
    }

    fn parsed(&mut self, secret: &Arc<SecretObject>) -> Result<Arc<CertifiedKey>, Problem> {
        let known = self.kept.get(&secret.key);
        if let Some(known) = known
            && (Arc::ptr_eq(&known.secret, secret) || known.secret == *secret)
        {
            return known.parsed.clone();
        }
        let parsed = parse(secret, &mut self.context).map(|fresh| match known.map(|known| &known.parsed) {
            // the data plane has derived things from the old one
            Some(Ok(old)) if **old == fresh => old.clone(),
            _ => Arc::new(fresh),
        });
        self.kept.insert(secret.key.clone(), Entry { secret: secret.clone(), parsed: parsed.clone() });
        parsed
    }
}

/// Whether a certificate names the host, or the wildcard over it.
pub(super) fn covers(certified: &CertifiedKey, host: &HostPattern) -> bool {
    let Some(Ok(leaf)) = certified.chain.first().map(|der| X509::from_der(der)) else { return false };
    let names = leaf.subject_alt_names();
    names.iter().flatten().any(|name| name.dnsname().is_some_and(|name| host.certified_by(name)))
}

/// Whether the key signs in a handshake where we are the client: the engine offers RSA and ECDSA there.
pub(super) fn signs_for_backends(certified: &CertifiedKey) -> bool {
    PKey::private_key_from_der(certified.key.secret_der())
        .is_ok_and(|key| matches!(key.id(), Id::RSA | Id::EC))
}

fn parse(secret: &SecretObject, context: &mut Option<SslContext>) -> Result<CertifiedKey, Problem> {
    if *secret.secret_type != *TLS_TYPE {
        return Err(Problem::Type(secret.secret_type.clone()));
    }
    let chain = X509::stack_from_pem(value(secret, "tls.crt")?).map_err(|_| Problem::Certificate)?;
    let leaf = chain.first().ok_or(Problem::Certificate)?;
    let key = PKey::private_key_from_pem_callback(value(secret, "tls.key")?, |_| Err(ErrorStack::get()))
        .map_err(|_| Problem::Key)?;
    if !leaf.public_key().map_err(|_| Problem::Certificate)?.public_eq(&key) {
        return Err(Problem::Mismatch);
    }
    handshake(context, &chain, &key)?;
    let der = |cert: &X509| cert.to_der().map(CertificateDer::from).map_err(|_| Problem::Certificate);
    let chain_der = chain.iter().map(der).collect::<Result<Vec<_>, _>>()?;
    let key_der = key.private_key_to_pkcs8().map_err(|_| Problem::Key)?;
    let mut sha = Sha256::new();
    for part in chain_der.iter().map(|der| &**der).chain([&*key_der]) {
        sha.update(&(part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    Ok(CertifiedKey {
        not_after: unix(leaf.not_after()).map_err(|_| Problem::Certificate)?,
        chain: chain_der,
        key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key_der)),
        fingerprint: sha.finish(),
        source: ResourceRef {
            kind: Kind::Secret,
            namespace: secret.key.namespace.clone(),
            name: secret.key.name.clone(),
        },
        native: Slot::new(),
    })
}

fn value<'a>(secret: &'a SecretObject, name: &'static str) -> Result<&'a [u8], Problem> {
    let value = secret.data.get(name).filter(|value| !value.is_empty()).ok_or(Problem::Missing(name))?;
    if value.len() > MAX_SECRET_VALUE {
        return Err(Problem::TooLarge(name));
    }
    if encrypted(value) { Err(Problem::Encrypted(name)) } else { Ok(value) }
}

/// Whether OpenSSL would ask for a passphrase on the terminal, which it does for certificates too (RFC 1421
/// section 4.6.1.1).
pub(super) fn encrypted(pem: &[u8]) -> bool {
    pem.split(|b| *b == b'\n').any(|line| {
        line.starts_with(b"-----BEGIN ENCRYPTED")
            || (line.starts_with(b"Proc-Type:") && line.windows(9).any(|word| word == b"ENCRYPTED"))
    })
}

/// Whether OpenSSL takes the pair for a connection: small keys and weak digests end here and not
/// in every client's handshake.
fn handshake(context: &mut Option<SslContext>, chain: &[X509], key: &PKey<Private>) -> Result<(), Problem> {
    let attempt = || -> Result<(), ErrorStack> {
        let context = match context {
            Some(context) => context,
            none => none.insert(SslContext::builder(SslMethod::tls_server())?.build()),
        };
        let mut ssl = Ssl::new(context)?;
        let mut chain = chain.iter();
        if let Some(leaf) = chain.next() {
            ssl.set_certificate(leaf)?;
        }
        ssl.set_private_key(key)?;
        chain.try_for_each(|certificate| ssl.add_chain_cert(certificate.clone()))
    };
    attempt().map_err(|error| {
        let why = error.errors().first().and_then(|error| error.reason());
        Problem::Refused(why.map(|why| format!(" ({why})")).unwrap_or_default().into())
    })
}

fn unix(time: &Asn1TimeRef) -> Result<i64, ErrorStack> {
    let since = Asn1Time::from_unix(0)?.diff(time)?;
    Ok(i64::from(since.days) * 86_400 + i64::from(since.secs))
}

#[cfg(test)]
mod tests;
