//! An Ingress's TLS blocks, and whose certificate a host gets.

use super::host::Lost;
use super::secret::{Certificates, covers};
use crate::cluster::{Cluster, IngressObject, Key, certificate};
use crate::finding::{Finding, Findings, Reason, quoted};
use ingress_core::{CertifiedKey, HostPattern};
use std::collections::HashSet;
use std::sync::Arc;

/// A certificate that an Ingress declares for a host.
#[derive(PartialEq, Eq)]
pub(super) struct TlsClaim {
    pub host: HostPattern,
    /// Index into `spec.tls`.
    block: usize,
    secret: Key,
    /// `None`: the Secret is missing or unusable.
    certificate: Option<Arc<CertifiedKey>>,
    /// Of two Ingresses the older one decides.
    created: i64,
}

/// The hosts of an Ingress's TLS blocks.
pub(super) struct Blocks {
    hosts: HashSet<HostPattern>,
    /// Those that a rule has, with the index of their block.
    declared: Vec<(usize, HostPattern)>,
}

/// The TLS hosts that stand for a rule's host: itself, and the wildcard over it. None stands for a
/// rule without host.
fn standing_for(rule: &HostPattern) -> impl Iterator<Item = HostPattern> {
    let wildcard = match rule {
        HostPattern::Exact(name) => {
            name.split_once('.').map(|(_, parent)| HostPattern::Wildcard(parent.into()))
        }
        _ => None,
    };
    let own = (*rule != HostPattern::Any).then(|| rule.clone());
    own.into_iter().chain(wildcard)
}

impl Blocks {
    /// Reads the hosts. One counts if it is a rule's host, or a wildcard over one (S148).
    pub(super) fn read<'a>(
        object: &IngressObject,
        rules: impl Iterator<Item = &'a HostPattern>,
        findings: &mut Findings,
    ) -> Self {
        let (mut hosts, mut declared) = (HashSet::new(), Vec::new());
        if object.tls.is_empty() {
            return Self { hosts, declared };
        }
        let rules: HashSet<_> = rules.flat_map(standing_for).collect();
        for (i, block) in object.tls.iter().enumerate() {
            if block.hosts.is_empty() {
                let message = "the TLS block names no hosts; nothing is served with it";
                findings.add(Reason::TlsWithoutHosts, format!("spec.tls[{i}]"), message);
            }
            for (j, text) in block.hosts.iter().enumerate() {
                let field = format!("spec.tls[{i}].hosts[{j}]");
                let host = match text.parse() {
                    Ok(HostPattern::Any) => Err("the host is empty".to_owned()),
                    Ok(host) => Ok(host),
                    Err(problem) => Err(format!("{}: {problem}", quoted(text))),
                };
                match host {
                    Ok(host) => {
                        if rules.contains(&host) {
                            declared.push((i, host.clone()));
                        } else {
                            let message = format!(
                                "no rule of this Ingress has the host {host}; its certificate is not served"
                            );
                            findings.add(Reason::TlsHostNotInRules, field, message);
                        }
                        hosts.insert(host);
                    }
                    Err(message) => findings.add(Reason::InvalidHost, field, message + "; it does not count"),
                }
            }
        }
        Self { hosts, declared }
    }

    /// Whether the Ingress declares TLS for a rule's host, with whatever certificate.
    pub(super) fn covers(&self, rule: &HostPattern) -> bool {
        !self.hosts.is_empty() && standing_for(rule).any(|host| self.hosts.contains(&host))
    }

    /// The certificates, and the Secrets that they come from; one may come twice.
    pub(super) fn claims(
        self,
        object: &IngressObject,
        cluster: &Cluster,
        certificates: &mut Certificates,
        now: i64,
        findings: &mut Findings,
    ) -> (Box<[TlsClaim]>, Vec<Key>) {
        let (mut claims, mut secrets, mut spare) = (Vec::new(), Vec::new(), None);
        let mut declared = self.declared.into_iter().peekable();
        while let Some(&(block, _)) = declared.peek() {
            let named = object.tls.get(block).and_then(|tls| tls.secret.as_deref());
            let secret = named.map_or_else(
                || issued_secret(object, block),
                |named| Key { namespace: object.key.namespace.clone(), name: named.into() },
            );
            let certificate = certificates.read(cluster, &secret, now, |reason, message| {
                if named.is_some() || reason != Reason::SecretNotFound {
                    findings.add(reason, format!("spec.tls[{block}].secretName"), message);
                }
            });
            while let Some((_, host)) = declared.next_if(|(of, _)| *of == block) {
                let mut claim = TlsClaim {
                    host,
                    block,
                    secret: secret.clone(),
                    certificate: certificate.clone(),
                    created: object.created,
                };
                let fits = |own: &Arc<CertifiedKey>| covers(own, &claim.host);
                if named.is_none() && !claim.certificate.as_ref().is_some_and(fits) {
                    let spare = spare.get_or_insert_with(|| {
                        let issued: Vec<_> = issued(object).collect();
                        secrets.extend(issued.iter().cloned());
                        let read = |secret: Key| {
                            Some((certificates.read(cluster, &secret, now, |_, _| {})?, secret))
                        };
                        issued.into_iter().filter_map(read).take(SPARE).collect::<Vec<_>>()
                    });
                    claim.stand_in(spare, findings);
                }
                claims.push(claim);
            }
            secrets.push(secret);
        }
        claims.sort_by(|a, b| (&a.host, a.block).cmp(&(&b.host, b.block)));
        (claims.into(), secrets)
    }
}

/// What cert-manager is asked to write for a block that names no Secret.
pub(super) fn issued_secret(object: &IngressObject, block: usize) -> Key {
    Key { namespace: object.key.namespace.clone(), name: certificate::name(&object.key.name, block).into() }
}

/// How many blocks more than now an Ingress may have had before.
const BLOCKS_BEFORE: usize = 8;

/// How many of their certificates are looked at.
const SPARE: usize = 32;

/// The Secrets that cert-manager writes for this Ingress, or wrote for blocks that are gone: they outlive their
/// Certificates.
fn issued(object: &IngressObject) -> impl Iterator<Item = Key> {
    (0..object.tls.len() + BLOCKS_BEFORE).map(|block| issued_secret(object, block))
}

impl TlsClaim {
    /// The blocks of an Ingress can change places and hosts: until cert-manager has written anew, a Secret holds what
    /// was asked for before. A host is served only with what is good for it, from whichever of these Secrets.
    fn stand_in(&mut self, issued: &[(Arc<CertifiedKey>, Key)], findings: &mut Findings) {
        let own = self.certificate.take();
        if let Some((other, secret)) = issued.iter().find(|(other, _)| covers(other, &self.host)) {
            (self.secret, self.certificate) = (secret.clone(), Some(other.clone()));
            return;
        }
        if own.is_none() {
            return;
        }
        let message = format!(
            "the certificate in Secret {} is not good for host {}: it is served once cert-manager has written one that is",
            self.secret, self.host
        );
        findings.add(Reason::CertificateWithoutHost, format!("spec.tls[{}]", self.block), message);
    }
}

/// The host's certificate, and who is left without it. The host belongs to the oldest Ingress that
/// declares it, then to the first by `namespace/name`. Where its Secret cannot be used, another
/// one of the same namespace steps in, but never another namespace's.
pub(super) fn choose(
    host: &HostPattern,
    mut claims: Vec<(&Key, &TlsClaim)>,
) -> (Option<Arc<CertifiedKey>>, Vec<Lost>) {
    claims.sort_by_key(|(key, claim)| (claim.created, *key, claim.block));
    let Some((owner, _)) = claims.first() else { return (None, Vec::new()) };
    let usable =
        |(key, claim): &&(&Key, &TlsClaim)| key.namespace == owner.namespace && claim.certificate.is_some();
    let chosen = claims.iter().find(usable).map(|(_, claim)| claim);
    // whose own Secret is not usable has heard of that
    let losers = claims.iter().filter(|(_, claim)| {
        claim.certificate.is_some() && chosen.is_none_or(|chosen| chosen.secret != claim.secret)
    });
    let losers = losers.map(|(key, claim)| {
        let message = match chosen {
            Some(chosen) => format!("host {host} is served with the certificate of Secret {}", chosen.secret),
            None => format!("host {host} belongs to Ingress {owner}, whose Secret cannot be used"),
        };
        let field = format!("spec.tls[{}]", claim.block).into();
        let finding = Finding { reason: Reason::TlsHostTaken, field, message: message.into() };
        Lost { key: (*key).clone(), finding }
    });
    (chosen.and_then(|chosen| chosen.certificate.clone()), losers.collect())
}
