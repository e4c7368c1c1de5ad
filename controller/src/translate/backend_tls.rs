//! BackendTLSPolicies: which certificates the backends of a Service must show.
//!
//! A policy that cannot be honoured still holds: the Service's requests are answered 500, for without it they would go
//! out in plain text, or to somebody who was not looked at.

use super::authorities::Authorities;
use super::index::Index;
use crate::cluster::backend_tls::{BackendTlsPolicyObject, LocalRef, SubjectAltName, TargetRef, Validation};
use crate::cluster::{Cluster, Dirty, Key, Pool};
use crate::finding::{Finding, Findings, Reason, quoted};
use crate::status::conditions::Condition;
use ingress_core::{Backend, BackendTls, HostPattern, Slot, SubjectName};
use rustls_pki_types::CertificateDer;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Every policy, and what it says.
#[derive(Default)]
pub(super) struct Policies {
    all: BTreeMap<Key, Policy>,
    /// Who claims a Service, the first one in rank first.
    by_service: HashMap<Key, Vec<Claim>>,
    /// Which policies refer to a ConfigMap.
    by_config_map: Index,
    authorities: Authorities,
    /// Policies that trust the same authorities share them.
    trusts: Pool<BackendTls>,
}

/// A policy's word on a Service. Ordered by rank: the older one first, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    created: i64,
    policy: Key,
    /// Name of the port; `None`: the whole Service.
    port: Option<Box<str>>,
}

#[derive(PartialEq, Eq)]
struct Policy {
    created: i64,
    targets: Box<[Target]>,
    config_maps: Box<[Key]>,
    /// What it asks for; else why that cannot be had, as reason and message.
    meaning: Result<Arc<Trust>, (&'static str, String)>,
    /// Whether every certificate that it names was found, else reason and message.
    resolved: Result<(), (&'static str, String)>,
    findings: Findings,
}

#[derive(PartialEq, Eq)]
struct Target {
    /// Position among `spec.targetRefs`.
    at: usize,
    service: Key,
    port: Option<Box<str>>,
}

/// What a policy asks of a backend.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trust {
    hostname: Arc<str>,
    tls: Arc<BackendTls>,
}

impl Trust {
    /// A backend under the policy. Its protocol is one with TLS already.
    pub(super) fn over(&self, backend: &Backend) -> Backend {
        Backend {
            tls_name: self.hostname.clone(),
            verify: true,
            tls: Some(self.tls.clone()),
            ..backend.clone()
        }
    }
}

/// What a pass has changed.
#[derive(Default)]
pub(super) struct Moved {
    /// Services whose backends may have to show other certificates.
    pub services: HashSet<Key>,
    /// Policies of which there is something else to say.
    pub policies: BTreeSet<Key>,
}

impl Policies {
    /// Looks at what changed.
    pub(super) fn renew(&mut self, cluster: &Cluster, dirty: &Dirty, everything: bool) -> Moved {
        let due: BTreeSet<Key> = if everything {
            cluster.backend_tls_policies.keys().chain(self.all.keys()).cloned().collect()
        } else {
            let certificates = dirty.config_maps.iter().flat_map(|map| self.by_config_map.of(map));
            dirty.backend_tls_policies.iter().chain(certificates).cloned().collect()
        };
        let mut moved = Moved::default();
        for key in due {
            let old = self.all.remove(&key);
            let new = cluster.backend_tls_policies.get(&key).map(|object| self.read(object, cluster));
            if old != new {
                self.claim(&key, old.as_ref(), new.as_ref(), &mut moved);
            }
            if let Some(new) = new {
                self.all.insert(key, new);
            }
        }
        moved
    }

    fn claim(&mut self, key: &Key, old: Option<&Policy>, new: Option<&Policy>, moved: &mut Moved) {
        for target in old.into_iter().flat_map(|old| &old.targets) {
            if let Some(claims) = self.by_service.get_mut(&target.service) {
                claims.retain(|claim| claim.policy != *key);
                if claims.is_empty() {
                    self.by_service.remove(&target.service);
                }
            }
            moved.services.insert(target.service.clone());
        }
        for (policy, target) in new.into_iter().flat_map(|new| new.targets.iter().map(move |t| (new, t))) {
            let claim = Claim { created: policy.created, policy: key.clone(), port: target.port.clone() };
            let claims = self.by_service.entry(target.service.clone()).or_default();
            if let Err(at) = claims.binary_search(&claim) {
                claims.insert(at, claim);
            }
            moved.services.insert(target.service.clone());
        }
        let maps = |policy: Option<&Policy>| policy.map(|p| p.config_maps.clone()).unwrap_or_default();
        self.by_config_map.change(key, &maps(old), &maps(new), |unused| {
            self.authorities.forget(unused);
        });
        moved.policies.insert(key.clone());
        // who loses to it, or did
        for target in [old, new].into_iter().flatten().flat_map(|policy| &policy.targets) {
            moved.policies.extend(self.of(&target.service).cloned());
        }
    }

    /// The policies that claim a Service.
    pub(super) fn of(&self, service: &Key) -> impl Iterator<Item = &Key> {
        self.by_service.get(service).into_iter().flatten().map(|claim| &claim.policy)
    }

    /// The Services that a policy claims.
    pub(super) fn services(&self, policy: &Key) -> impl Iterator<Item = &Key> {
        self.all.get(policy).into_iter().flat_map(|policy| &policy.targets).map(|target| &target.service)
    }

    /// What is asked of the backends of a Service's port: `None` where no policy holds, else what it says, or why that
    /// cannot be had. The port's name is `None` where nobody knows it: then any policy holds.
    pub(super) fn trust(&self, service: &Key, port: Option<&str>) -> Option<Result<Arc<Trust>, String>> {
        let claims = self.by_service.get(service)?;
        let whole = || claims.iter().find(|claim| claim.port.is_none());
        let claim = match port {
            Some(port) => claims.iter().find(|claim| claim.port.as_deref() == Some(port)).or_else(whole),
            None => whole().or_else(|| claims.first()),
        }?;
        let policy = self.all.get(&claim.policy)?;
        Some(policy.meaning.clone().map_err(|(_, message)| {
            format!("BackendTLSPolicy {} cannot be honoured: {message}", claim.policy)
        }))
    }

    /// `Accepted` and `ResolvedRefs` of a policy.
    pub(super) fn conditions(&self, key: &Key, cluster: &Cluster) -> Vec<Condition> {
        let Some(policy) = self.all.get(key) else { return Vec::new() };
        let lost = || policy.targets.iter().find_map(|target| self.lost(key, target));
        let missing = || policy.targets.iter().find_map(|target| missing(target, cluster));
        let accepted = if let Some(message) = lost() {
            Err(("Conflicted", message))
        } else if let Err(problem) = &policy.meaning {
            Err(problem.clone())
        } else if let Some(message) = missing() {
            Err(("TargetNotFound", message))
        } else {
            Ok(())
        };
        let of = |kind, good, result| match result {
            Ok(()) => Condition::new(kind, true, good, ""),
            Err((reason, message)) => Condition::new(kind, false, reason, message),
        };
        vec![
            of("Accepted", "Accepted", accepted),
            of("ResolvedRefs", "ResolvedRefs", policy.resolved.clone()),
        ]
    }

    /// What is wrong with a policy.
    pub(super) fn findings(&self, key: &Key, cluster: &Cluster) -> Box<[Finding]> {
        let Some(policy) = self.all.get(key) else { return Box::default() };
        let mut findings = policy.findings.clone();
        for target in &policy.targets {
            let field = format!("spec.targetRefs[{}]", target.at);
            if let Some(message) = self.lost(key, target) {
                findings.add(Reason::BackendTlsPolicyConflicted, field, message);
            } else if cluster.services.contains_key(&target.service)
                && let Some(message) = missing(target, cluster)
            {
                let field = format!("{field}.sectionName");
                findings.add(
                    Reason::BackendTlsPolicyInvalid,
                    field,
                    message + "; the policy does not hold for it",
                );
            }
        }
        findings.finish()
    }

    /// That another policy comes first at the target.
    fn lost(&self, key: &Key, target: &Target) -> Option<String> {
        let claims = self.by_service.get(&target.service)?;
        let first = claims.iter().find(|claim| claim.port == target.port).filter(|c| c.policy != *key)?;
        let port =
            target.port.as_deref().map(|port| format!("port {} of ", quoted(port))).unwrap_or_default();
        Some(format!("BackendTLSPolicy {} has {port}Service {}", first.policy, target.service))
    }

    fn read(&mut self, object: &BackendTlsPolicyObject, cluster: &Cluster) -> Policy {
        let namespace = &object.meta.key.namespace;
        let Validation { ca_certificate_refs: refs, well_known, hostname, subject_alt_names } =
            &object.spec.validation;
        let mut findings = Findings::default();
        let mut invalid = |field: String, message: &str| {
            findings.add(Reason::BackendTlsPolicyInvalid, field.clone(), message);
            format!("{field}: {message}")
        };
        let mut config_maps = BTreeSet::new();
        let mut usable: Vec<Arc<[CertificateDer<'static>]>> = Vec::new();
        let mut unresolved: Vec<(&'static str, String)> = Vec::new();
        for (i, reference) in refs.iter().enumerate() {
            let field = format!("spec.validation.caCertificateRefs[{i}]");
            if !reference.group.is_empty() || &*reference.kind != "ConfigMap" {
                let LocalRef { group, kind, .. } = reference;
                let kind = if group.is_empty() { kind.to_string() } else { format!("{kind}.{group}") };
                let message = format!("certificates come from a ConfigMap, not from a {}", quoted(&kind));
                unresolved.push(("InvalidKind", invalid(field, &message)));
                continue;
            }
            let map = Key::new(namespace.clone(), &*reference.name);
            match self.authorities.read(&map, cluster) {
                Ok(certificates) => usable.push(certificates),
                Err(why) => {
                    let message = format!("ConfigMap {map} {why}");
                    unresolved.push(("InvalidCACertificateRef", invalid(field, &message)));
                }
            }
            config_maps.insert(map);
        }
        let mut problem = None;
        match (refs.is_empty(), well_known.as_deref().unwrap_or_default()) {
            (true, "System") | (false, "") => {}
            (true, other) => {
                let message = if other.is_empty() {
                    "neither caCertificateRefs nor wellKnownCACertificates is there".to_owned()
                } else {
                    format!("{} is not known, System is", quoted(other))
                };
                let field = "spec.validation.wellKnownCACertificates".to_owned();
                problem = Some(("Invalid", invalid(field, &message)));
            }
            (false, _) => {
                let message = "only one of caCertificateRefs and wellKnownCACertificates can count";
                problem = Some(("Invalid", invalid("spec.validation".to_owned(), message)));
            }
        }
        let name = match HostPattern::gateway(hostname) {
            Ok(HostPattern::Exact(name)) => name,
            _ => {
                let message = format!("{} is no host name", quoted(hostname));
                problem = Some(("Invalid", invalid("spec.validation.hostname".to_owned(), &message)));
                "invalid.invalid".into()
            }
        };
        let mut names = Vec::with_capacity(subject_alt_names.len());
        for (i, wanted) in subject_alt_names.iter().enumerate() {
            match subject(wanted) {
                Ok(name) => names.push(name),
                Err(message) => {
                    let field = format!("spec.validation.subjectAltNames[{i}]");
                    problem = Some(("Invalid", invalid(field, &message)));
                }
            }
        }
        let all: Vec<_> = unresolved.iter().map(|(_, message)| message.as_str()).collect();
        let resolved = match unresolved.first() {
            None => Ok(()),
            Some((reason, _)) => Err((*reason, all.join("; "))),
        };
        if usable.is_empty() && !refs.is_empty() {
            problem = Some(("NoValidCACertificate", all.join("; ")));
        }
        let meaning = match problem {
            Some(problem) => Err(problem),
            None => {
                let mut known = HashSet::new();
                let all = usable.iter().flat_map(|certificates| certificates.iter());
                let roots = all.filter(|certificate| known.insert(*certificate)).cloned().collect();
                let tls = BackendTls { roots, names: names.into(), native: Slot::new() };
                Ok(Arc::new(Trust { hostname: name, tls: self.trusts.intern(tls) }))
            }
        };
        Policy {
            created: object.meta.created,
            targets: targets(namespace, &object.spec.target_refs),
            config_maps: config_maps.into_iter().collect(),
            meaning,
            resolved,
            findings,
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let Self { all, by_service, by_config_map, authorities, trusts: _ } = self;
        all.is_empty() && by_service.is_empty() && by_config_map.is_empty() && authorities.is_empty()
    }
}

/// The Services; objects of other kinds are other implementations'.
fn targets(namespace: &Arc<str>, refs: &[TargetRef]) -> Box<[Target]> {
    let services =
        refs.iter().enumerate().filter(|(_, target)| target.group.is_empty() && &*target.kind == "Service");
    services
        .map(|(at, target)| Target {
            at,
            service: Key::new(namespace.clone(), &*target.name),
            port: target.section_name.clone().filter(|name| !name.is_empty()),
        })
        .collect()
}

/// That the target is not there.
fn missing(target: &Target, cluster: &Cluster) -> Option<String> {
    let Some(service) = cluster.services.get(&target.service) else {
        return Some(format!("Service {} does not exist", target.service));
    };
    let name = target.port.as_deref()?;
    let found = service.ports.iter().any(|port| port.tcp && &*port.name == name);
    (!found).then(|| format!("Service {} has no TCP port named {}", target.service, quoted(name)))
}

fn subject(wanted: &SubjectAltName) -> Result<SubjectName, String> {
    match &*wanted.kind {
        "Hostname" => {
            let name = wanted.hostname.as_deref().unwrap_or_default();
            match name.parse() {
                Ok(HostPattern::Any) | Err(_) => Err(format!("{} is no host name", quoted(name))),
                Ok(name) => Ok(SubjectName::Dns(name)),
            }
        }
        "URI" => match wanted.uri.as_deref().unwrap_or_default() {
            uri if uri.contains(':') => Ok(SubjectName::Uri(uri.into())),
            other => Err(format!("{} is no URI with a scheme", quoted(other))),
        },
        other => Err(format!("type {} is not known, Hostname and URI are", quoted(other))),
    }
}
