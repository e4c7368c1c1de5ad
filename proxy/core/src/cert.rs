//! Server certificates by SNI.

use crate::route::host::{HostBuf, HostPattern, lower, normal_name};
use crate::route::names::HostMap;
use crate::{ResourceRef, Slot};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::sync::Arc;

/// A certificate chain and its private key, both known to belong together.
pub struct CertifiedKey {
    /// Leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Secret bytes: never printed.
    pub key: PrivateKeyDer<'static>,
    /// End of validity, seconds since the epoch.
    pub not_after: i64,
    /// SHA-256 over chain and key: equal fingerprints serve the same bytes.
    pub fingerprint: [u8; 32],
    /// The Secret it was read from.
    pub source: ResourceRef,
    /// The data plane's parsed form.
    pub native: Slot,
}

impl PartialEq for CertifiedKey {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.source == other.source
    }
}

impl Eq for CertifiedKey {}

impl fmt::Debug for CertifiedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertifiedKey")
            .field("source", &format_args!("{}", self.source))
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Certificates by the host names that Ingresses and Gateway listeners declare; a certificate's own
/// names play no part, so one namespace's Secret never answers for another's host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertStore {
    hosts: HostMap<Arc<CertifiedKey>>,
}

impl CertStore {
    /// Declares `key` for `host`; `HostPattern::Any` sets the default.
    pub fn insert(&mut self, host: &HostPattern, key: Arc<CertifiedKey>) {
        self.hosts.insert(host, key);
    }

    /// Takes back what was declared for `host`.
    pub fn remove(&mut self, host: &HostPattern) {
        self.hosts.remove(host);
    }

    /// The certificate declared for exactly this pattern.
    pub fn declared(&self, host: &HostPattern) -> Option<&Arc<CertifiedKey>> {
        self.hosts.get(host)
    }

    /// The certificate for a TLS server name: exact, then the longest wildcard, then the default.
    /// `None`: the process's self-signed fallback.
    pub fn find(&self, sni: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        let mut buf = HostBuf::default();
        match sni.and_then(|name| lower(name.strip_suffix('.').unwrap_or(name), &mut buf)) {
            Some(name) => self.hosts.find(name),
            None => self.hosts.any(),
        }
    }

    /// What [`CertStore::find`] finds, with the host that it is declared for.
    pub fn explain(&self, sni: Option<&str>) -> Option<(HostPattern, &Arc<CertifiedKey>)> {
        let found = self.find(sni)?;
        let name = sni.map(normal_name);
        let patterns = HostPattern::candidates(name.as_deref().unwrap_or_default());
        let pattern = patterns.into_iter().find(|p| self.declared(p).is_some_and(|k| Arc::ptr_eq(k, found)));
        Some((pattern?, found))
    }

    /// Every declared host with its certificate, in no order; `HostPattern::Any` is the default.
    pub fn hosts(&self) -> impl Iterator<Item = (HostPattern, &Arc<CertifiedKey>)> {
        self.hosts.iter()
    }

    /// Number of declared hosts.
    pub fn len(&self) -> usize {
        self.hosts.len() - usize::from(self.hosts.any().is_some())
    }

    /// Whether no host is declared.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every declared certificate, each host once.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CertifiedKey>> {
        self.hosts.values()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Kind;

    /// One of many certificates.
    pub(crate) fn key(n: u8) -> Arc<CertifiedKey> {
        Arc::new(CertifiedKey {
            chain: vec![],
            key: PrivateKeyDer::Pkcs8(vec![n].into()),
            not_after: 0,
            fingerprint: [n; 32],
            source: ResourceRef::new(Kind::Secret, "ns", "s"),
            native: Slot::new(),
        })
    }

    #[test]
    fn sni_prefers_exact_then_one_label_of_wildcard_then_default() {
        let mut s = CertStore::default();
        s.insert(&"*.example.com".parse().unwrap(), key(1));
        s.insert(&"app.example.com".parse().unwrap(), key(2));
        let of = |s: &CertStore, n| s.find(n).map(|k| k.fingerprint[0]);
        assert_eq!(of(&s, Some("app.example.com")), Some(2));
        assert_eq!(of(&s, Some("APP.Example.com.")), Some(2));
        assert_eq!(of(&s, Some("x.example.com")), Some(1));
        assert_eq!(of(&s, Some("a.b.example.com")), None);
        assert_eq!(of(&s, Some("example.com")), None);
        assert_eq!(of(&s, None), None);
        s.insert(&HostPattern::Any, key(9));
        assert_eq!(of(&s, Some("example.com")), Some(9));
        assert_eq!(of(&s, None), Some(9));
        assert_eq!(of(&s, Some(&"x".repeat(300))), Some(9));
        for (sni, host) in [
            (Some("APP.Example.com."), "app.example.com"),
            (Some("x.example.com"), "*.example.com"),
            (Some("a.b.example.com"), "*"),
            (None, "*"),
        ] {
            let (pattern, found) = s.explain(sni).unwrap();
            assert_eq!((pattern.to_string().as_str(), found), (host, s.find(sni).unwrap()));
        }
        assert_eq!(s.hosts().count(), 3);
    }

    #[test]
    fn debug_output_holds_no_key_bytes() {
        let text = format!("{:?}", key(0xAB));
        assert!(!text.contains("171") && !text.to_lowercase().contains("ab,"), "{text}");
    }
}
