//! Which certificates of a backend are believed, and where a BackendTLSPolicy says so, whose.

use ingress_core::{BackendTls, SubjectName};
use openssl::ssl::{NameType, SslRef};
use openssl::x509::{X509, X509Ref};
use pingora_core::protocols::Digest;
use pingora_core::protocols::tls::{HandshakeCompleteHook, SslDigest};
use pingora_core::upstreams::peer::PeerOptions;
use std::any::Any;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

/// A policy in the engine's form, made once.
struct Native {
    ca: Option<Arc<Box<[X509]>>>,
    /// Looks at the names after a handshake; `None`: the server name is the one that it must have.
    hook: Option<HandshakeCompleteHook>,
    group: u64,
}

impl Native {
    fn new(policy: &BackendTls) -> Option<Self> {
        let ca = policy.roots.iter().map(|der| X509::from_der(der)).collect::<Result<Box<[_]>, _>>().ok()?;
        let mut group = DefaultHasher::new();
        policy.roots.iter().for_each(|der| der.hash(&mut group));
        policy.names.hash(&mut group);
        let ca = (!ca.is_empty()).then(|| Arc::new(ca));
        let hook = (!policy.names.is_empty()).then(|| hook(policy.names.clone()));
        Some(Self { ca, hook, group: group.finish() })
    }
}

/// What the backend's certificate lacks.
struct WrongName;

/// Marks connections whose certificate has none of the names.
fn hook(names: Box<[SubjectName]>) -> HandshakeCompleteHook {
    Arc::new(move |ssl: &SslRef| {
        let certificate = ssl.peer_certificate();
        let fits = certificate.is_some_and(|c| names.iter().any(|name| has(&c, name)));
        (!fits).then(|| Arc::new(WrongName) as Arc<dyn Any + Send + Sync>)
    })
}

/// Marks connections whose certificate has not the name that was asked for.
static SERVER_NAME: LazyLock<HandshakeCompleteHook> = LazyLock::new(|| {
    Arc::new(|ssl: &SslRef| {
        // An address is asked for without a name: the engine's comparison is the only one then.
        let name = ssl.servername(NameType::HOST_NAME)?;
        let certificate = ssl.peer_certificate();
        let fits = name.parse().is_ok_and(|name| {
            let name = SubjectName::Dns(name);
            certificate.is_some_and(|certificate| has(&certificate, &name))
        });
        (!fits).then(|| Arc::new(WrongName) as Arc<dyn Any + Send + Sync>)
    })
});

/// Has the peer prove by its certificate that it is the server whose name is asked for. The engine
/// compares as well, and takes a common name where there is no other, and wildcards for a part of a
/// label; both prove nothing (RFC 9525 sections 2 and 6.3). What it took, [`refused`] tells.
pub fn verify(options: &mut PeerOptions) {
    options.verify_cert = true;
    options.verify_hostname = true;
    options.upstream_tls_handshake_complete_hook = Some(SERVER_NAME.clone());
}

/// Puts a policy into a peer's options. Gives a number that tells connections under other policies
/// apart. A policy that cannot be read trusts nobody.
pub fn apply(policy: &BackendTls, options: &mut PeerOptions) -> u64 {
    verify(options);
    let Some(native) = policy.native.get_or_init(|| Native::new(policy)).and_then(Option::as_ref) else {
        options.ca = Some(Arc::new(Box::default()));
        return u64::MAX;
    };
    if native.ca.is_some() {
        options.ca.clone_from(&native.ca);
    }
    if native.hook.is_some() {
        // The chain is verified by the engine; the name is not the server name here.
        options.verify_hostname = false;
        options.upstream_tls_handshake_complete_hook.clone_from(&native.hook);
    }
    native.group
}

/// Whether the connection's certificate has none of the names of which it must have one.
pub fn refused(digest: Option<&Digest>) -> bool {
    refuses(digest.and_then(|digest| digest.ssl_digest.as_deref()))
}

/// The same by what is known of a handshake.
pub fn refuses(tls: Option<&SslDigest>) -> bool {
    tls.is_some_and(|tls| tls.extension.get::<WrongName>().is_some())
}

/// Whether a certificate is good for a name. Its common name plays no part (RFC 9525 section 2).
fn has(certificate: &X509Ref, name: &SubjectName) -> bool {
    let Some(all) = certificate.subject_alt_names() else { return false };
    all.iter().any(|own| match name {
        SubjectName::Dns(wanted) => own.dnsname().is_some_and(|own| wanted.certified_by(own)),
        SubjectName::Uri(wanted) => own.uri().is_some_and(|own| own == &**wanted),
    })
}
