//! Pure: objects in, snapshot parts and findings out. Total: a bad object costs its owner only.
//!
//! What each Ingress was translated to is kept, so that a change costs what it touches: the Ingress,
//! those that depend on the same Service or Secret, and their hosts. Whatever order changes come in,
//! the result is the one of a translation from nothing.

mod attach;
mod auth;
mod authorities;
mod backend;
mod backend_ref;
mod backend_tls;
mod class;
mod client_certificate;
mod filter;
mod gateway;
mod gateway_api;
mod gateway_class;
mod grant;
mod grpc_route;
mod host;
mod http_route;
mod index;
mod ingress;
mod keys;
mod listener_set;
mod listeners;
mod losses;
mod path;
mod rivals;
mod route;
mod rules;
mod secret;
mod tls;
mod tls_route;

use crate::certificate::{self, Plan, Unable};
use crate::cluster::{Cluster, Dirty, IngressObject, Key};
use crate::finding::{Finding, Findings, Outcome};
use crate::write::{Change, Target, Write};
use class::Class;
pub use gateway::CONTROLLER as GATEWAY_CONTROLLER;
pub(crate) use gateway::{is_ours, names_authorities};
use gateway_api::{GatewayApi, Pass, Served, add_lost};
use host::Claims;
use index::Index;
use ingress::{Declared, Shared};
use ingress_core::listener::Listeners;
use ingress_core::{CertStore, HostPattern, Kind, ResourceRef, RouteTable};
use listeners::Ingresses;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// What translation needs to know of the flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The class that is served.
    pub ingress_class: String,
    /// Ingresses that name no class are served too.
    pub process_without_class: bool,
    /// Suffix of Service DNS names.
    pub cluster_domain: String,
    /// `ExternalName` Services may be backends.
    pub allow_external_name: bool,
    /// manifests mode: backends come from EndpointSlices, else ExternalName, else 502; no DNS for Services
    pub backends_from_slices: bool,
    /// TLS blocks without `secretName` get a Certificate of cert-manager's.
    pub create_certificates: bool,
    /// The ClusterIssuer of those whose Ingress names no issuer.
    pub default_cluster_issuer: String,
    /// `namespace/name` of the certificate that replaces the self-signed fallback
    pub default_tls_secret: Option<(String, String)>,
    /// Whether Gateway API objects mean anything.
    pub gateway_api: bool,
    /// Ports that Gateway listeners may have.
    pub gateway_listener_ports: Vec<u16>,
    /// Addresses of this host that Gateways get one each, in turn; empty: they share all.
    pub gateway_addresses: Vec<IpAddr>,
    /// `namespace/name` of the Service whose addresses Gateways tell.
    pub publish_service: (String, String),
    /// Addresses that Gateways tell instead.
    pub publish_addresses: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ingress_class: "tak-os".into(),
            process_without_class: false,
            cluster_domain: "cluster.local".into(),
            allow_external_name: false,
            backends_from_slices: false,
            create_certificates: true,
            default_cluster_issuer: "letsencrypt-staging".into(),
            default_tls_secret: None,
            gateway_api: true,
            gateway_listener_ports: vec![80, 443],
            gateway_addresses: Vec::new(),
            publish_service: ("tak-os-ingress".into(), "tak-os-ingress".into()),
            publish_addresses: Vec::new(),
        }
    }
}

/// The result of one pass.
pub struct Translation {
    /// Every route, by host.
    pub routes: Arc<RouteTable>,
    /// Every certificate, by declared host.
    pub certs: Arc<CertStore>,
    /// What each port with a Gateway listener serves.
    pub listeners: Arc<Listeners>,
    /// Whether routes, certs or listeners differ from the previous pass (or this is the first).
    pub changed: bool,
    /// Objects whose findings changed in this pass; an empty list of findings means: all is well now.
    /// Objects that are gone have none.
    pub outcomes: Vec<Outcome>,
    /// Objects that serve now, by kind (for the `routes{kind}` metric): ingress routes.
    pub route_count: usize,
    /// Routes of HTTPRoutes, of GRPCRoutes and of TLSRoutes that serve now.
    pub gateway_route_counts: [usize; 3],
    /// What is to be written to the API, an object at most once.
    pub writes: Vec<Write>,
}

/// Keeps what each object was translated to, so that only what changed is translated again.
pub struct Translator {
    settings: Settings,
    /// Seconds since the epoch.
    clock: fn() -> i64,
    /// Whether nothing was translated yet.
    first: bool,
    class: Class,
    shared: Shared,
    ingresses: HashMap<Key, Known>,
    /// Which Ingresses refer to a Service.
    by_service: Index,
    /// Which Ingresses refer to a Secret.
    by_secret: Index,
    hosts: Claims,
    tls_hosts: Claims,
    routes: Arc<RouteTable>,
    route_count: usize,
    certs: Arc<CertStore>,
    /// What was last told of the default certificate's Secret.
    default_told: Box<[Finding]>,
    gateway_api: GatewayApi,
}

/// An Ingress that is served, as far as it can be.
struct Known {
    declared: Declared,
    /// What is wrong with the Certificates that it asks for.
    uncertified: Vec<Finding>,
    /// The Certificates that were last to be written.
    unwritten: Box<[Target]>,
    /// The findings that were last told.
    told: Box<[Finding]>,
}

/// What one pass has touched.
#[derive(Default)]
struct Touched {
    hosts: HashSet<HostPattern>,
    tls_hosts: HashSet<HostPattern>,
    /// Ingresses whose findings may be others now.
    ingresses: BTreeSet<Key>,
    changed: bool,
    outcomes: Vec<Outcome>,
    writes: Vec<Write>,
}

impl Translator {
    /// A translator that knows nothing yet: its first pass translates everything.
    pub fn new(settings: Settings) -> Self {
        Self::with_clock(settings, || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
        })
    }

    /// The same with a clock of its own, in seconds since the epoch.
    pub fn with_clock(settings: Settings, clock: fn() -> i64) -> Self {
        Self {
            settings,
            clock,
            first: true,
            class: Class::default(),
            shared: Shared::default(),
            ingresses: HashMap::new(),
            by_service: Index::default(),
            by_secret: Index::default(),
            hosts: Claims::default(),
            tls_hosts: Claims::default(),
            routes: Arc::default(),
            route_count: 0,
            certs: Arc::default(),
            default_told: Box::default(),
            gateway_api: GatewayApi::default(),
        }
    }

    /// One pass over what is dirty. `cluster` is the whole picture, `dirty` all that differs in it
    /// from the previous pass; the first pass needs none.
    pub fn translate(&mut self, cluster: &Cluster, dirty: &Dirty) -> Translation {
        let first = std::mem::take(&mut self.first);
        let mut touched = Touched { changed: first, ..Touched::default() };
        let mut everything = dirty.everything || first;
        if everything || dirty.classes {
            everything |= self.class.read(cluster, &self.settings.ingress_class, &mut touched.outcomes);
        }
        let now = (self.clock)();
        let work = self.work(cluster, dirty, everything);
        for key in &work {
            self.renew(cluster, key.clone(), now, &mut touched);
        }
        self.certify(cluster, dirty, work, &mut touched);
        let hosts = std::mem::take(&mut touched.hosts);
        for host in &hosts {
            self.settle_host(host, now, &mut touched);
        }
        for host in std::mem::take(&mut touched.tls_hosts) {
            self.settle_tls_host(&host, &mut touched);
        }
        self.settle_default(cluster, dirty, everything, now, &mut touched);
        let mut pass = Pass {
            cluster,
            dirty,
            everything,
            settings: &self.settings,
            now,
            ingresses: Ingresses { routes: &self.routes, certs: &self.certs },
            hosts: &hosts,
            touched: &mut touched.ingresses,
            outcomes: &mut touched.outcomes,
        };
        let Served { listeners, moved, writes } = self.gateway_api.translate(&mut pass, &mut self.shared);
        touched.changed |= moved;
        touched.writes.extend(writes);
        for key in std::mem::take(&mut touched.ingresses) {
            self.tell(cluster, &key, &mut touched);
        }
        Translation {
            routes: self.routes.clone(),
            certs: self.certs.clone(),
            changed: touched.changed,
            outcomes: touched.outcomes,
            route_count: self.route_count,
            listeners,
            gateway_route_counts: self.gateway_api.counts(),
            writes: touched.writes,
        }
    }

    /// Whether an Ingress is one of those that are served.
    pub fn serves(&self, ingress: &Key) -> bool {
        self.ingresses.contains_key(ingress)
    }

    /// The Ingresses that must be looked at.
    fn work(&self, cluster: &Cluster, dirty: &Dirty, everything: bool) -> BTreeSet<Key> {
        if everything {
            return cluster.ingresses.keys().chain(self.ingresses.keys()).cloned().collect();
        }
        let services = dirty.services.iter().flat_map(|service| self.by_service.of(service));
        let secrets = dirty.secrets.iter().flat_map(|secret| self.by_secret.of(secret));
        dirty.ingresses.iter().chain(services).chain(secrets).cloned().collect()
    }

    /// Translates one Ingress anew, or forgets it.
    fn renew(&mut self, cluster: &Cluster, key: Key, now: i64, touched: &mut Touched) {
        let object = cluster.ingresses.get(&key).filter(|object| self.class.serves(object, &self.settings));
        let old = self.ingresses.remove(&key);
        let (old_declared, told, unwritten) = old.map_or((None, Box::default(), Box::default()), |old| {
            (Some(old.declared), old.told, old.unwritten)
        });
        let declared = object
            .map(|object| self.shared.declare(object, old_declared.as_ref(), cluster, &self.settings, now));
        let none = Declared::default();
        let (old, new) = (old_declared.as_ref().unwrap_or(&none), declared.as_ref().unwrap_or(&none));
        self.by_service.change(&key, &old.services, &new.services, |_| {});
        let Shared { certificates, auth, .. } = &mut self.shared;
        self.by_secret.change(&key, &old.secrets, &new.secrets, |unused| {
            certificates.forget(unused);
            auth.forget(unused);
        });
        self.hosts.change(&key, &old.hosts, &new.hosts, |h| &h.host, &mut touched.hosts);
        self.tls_hosts.change(&key, &old.tls, &new.tls, |c| &c.host, &mut touched.tls_hosts);
        match declared {
            Some(declared) => {
                let known = Known { declared, uncertified: Vec::new(), unwritten, told };
                self.ingresses.insert(key.clone(), known);
                touched.ingresses.insert(key);
            }
            None => {
                touched.writes.extend(unwritten.into_iter().map(certificate::void));
                if let Some(object) = cluster.ingresses.get(&key).filter(|_| !told.is_empty()) {
                    touched.outcomes.push(outcome(object, Box::default()));
                }
            }
        }
    }

    /// Says which Certificates must be written for these Ingresses, and for those whose Certificates changed.
    fn certify(&mut self, cluster: &Cluster, dirty: &Dirty, renewed: BTreeSet<Key>, touched: &mut Touched) {
        let mut due = renewed;
        due.extend(dirty.certificates.iter().cloned());
        if dirty.issuance || dirty.writes {
            due.extend(cluster.certificates.ingresses().cloned());
            let asking = self.ingresses.iter().filter(|(_, known)| !known.declared.requests.is_empty());
            due.extend(asking.map(|(key, _)| key.clone()));
        }
        for key in due {
            let Some(object) = cluster.ingresses.get(&key) else { continue };
            let Some(known) = self.ingresses.get_mut(&key) else { continue };
            let requests = &known.declared.requests;
            let unable = if self.settings.backends_from_slices {
                Some(Unable::Files)
            } else if !self.settings.create_certificates {
                Some(Unable::SwitchedOff)
            } else {
                match cluster.certificates.readable(&key.namespace) {
                    Some(true) => None,
                    Some(false) => Some(Unable::NotInstalled),
                    // heard of soon
                    None => continue,
                }
            };
            let plan = match unable {
                None => Plan::make(object, requests, &cluster.certificates),
                Some(why) => Plan::unable(requests, why, |name| {
                    cluster.secrets.contains_key(&Key::new(key.namespace.clone(), name))
                }),
            };
            let planned = plan.writes.iter().filter(|write| write.change != Change::Nothing);
            let planned = planned.map(|write| write.target.clone()).collect();
            let before = std::mem::replace(&mut known.unwritten, planned);
            let void = before.into_iter().filter(|target| !known.unwritten.contains(target));
            touched.writes.extend(void.map(certificate::void));
            touched.writes.extend(plan.writes);
            if known.uncertified != plan.findings {
                known.uncertified = plan.findings;
                touched.ingresses.insert(key);
            }
        }
    }

    /// Builds a host's routes anew from what all Ingresses declare for it.
    fn settle_host(&mut self, host: &HostPattern, now: i64, touched: &mut Touched) {
        let routes = self.hosts.of(host).filter_map(|key| self.ingresses.get(key)?.declared.host(host));
        let (new, lost) = host::build(host, routes.flatten().cloned().collect());
        let old = self.routes.get(host);
        if old != new.as_ref() {
            let count = |v: Option<&Arc<ingress_core::VirtualHost>>| v.map_or(0, |v| v.routes().len());
            self.route_count = self.route_count + count(new.as_ref()) - count(old);
            let new = new.map(|new| new.since(now));
            Arc::make_mut(&mut self.routes).set(host, new);
            touched.changed = true;
        }
        self.hosts.settle(host, lost, &mut touched.ingresses);
    }

    /// Chooses a TLS host's certificate anew from what all Ingresses declare for it.
    fn settle_tls_host(&mut self, host: &HostPattern, touched: &mut Touched) {
        let claims = self.tls_hosts.of(host).filter_map(|key| {
            Some(self.ingresses.get(key)?.declared.tls_claims(host).iter().map(move |claim| (key, claim)))
        });
        let (new, lost) = tls::choose(host, claims.flatten().collect());
        self.put_certificate(host, new, touched);
        self.tls_hosts.settle(host, lost, &mut touched.ingresses);
    }

    fn put_certificate(
        &mut self,
        host: &HostPattern,
        new: Option<Arc<ingress_core::CertifiedKey>>,
        touched: &mut Touched,
    ) {
        if self.certs.declared(host) == new.as_ref() {
            return;
        }
        let certs = Arc::make_mut(&mut self.certs);
        match new {
            Some(new) => certs.insert(host, new),
            None => certs.remove(host),
        }
        touched.changed = true;
    }

    /// The certificate that stands in where no host is declared.
    fn settle_default(
        &mut self,
        cluster: &Cluster,
        dirty: &Dirty,
        everything: bool,
        now: i64,
        touched: &mut Touched,
    ) {
        let Some((namespace, name)) = &self.settings.default_tls_secret else { return };
        let key = Key::new(namespace.as_str(), name.as_str());
        if !everything && !dirty.secrets.contains(&key) {
            return;
        }
        let mut findings = Findings::default();
        let certificate = self.shared.certificates.read(cluster, &key, now, |reason, message| {
            findings.add(reason, "--default-tls-secret", message);
        });
        let findings = findings.finish();
        self.put_certificate(&HostPattern::Any, certificate, touched);
        if self.default_told != findings {
            self.default_told.clone_from(&findings);
            let secret = cluster.secrets.get(&key);
            touched.outcomes.push(Outcome {
                source: ResourceRef { kind: Kind::Secret, namespace: key.namespace, name: key.name },
                uid: secret.map_or_else(|| "".into(), |secret| secret.uid.clone()),
                resource_version: secret.map_or_else(|| "".into(), |secret| secret.resource_version.clone()),
                findings,
            });
        }
    }

    /// Hands out an Ingress's findings if they are others than before.
    fn tell(&mut self, cluster: &Cluster, key: &Key, touched: &mut Touched) {
        let Some(object) = cluster.ingresses.get(key) else { return };
        let Some(known) = self.ingresses.get_mut(key) else { return };
        let declared = &known.declared;
        let mut findings = declared.findings.clone();
        let lost = declared.hosts.iter().flat_map(|h| self.hosts.lost(&h.host, key));
        let tls_lost = declared.tls_hosts().flat_map(|host| self.tls_hosts.lost(host, key));
        lost.chain(tls_lost).chain(&known.uncertified).cloned().for_each(|finding| findings.push(finding));
        let source = reference(object);
        let hosts: Vec<_> = declared.hosts.iter().map(|h| &h.host).collect();
        add_lost(&mut findings, &self.gateway_api.lost(&source, &hosts));
        let findings = findings.finish();
        if known.told != findings {
            known.told.clone_from(&findings);
            touched.outcomes.push(outcome(object, findings));
        }
    }
}

fn reference(object: &IngressObject) -> ResourceRef {
    ResourceRef {
        kind: Kind::Ingress,
        namespace: object.key.namespace.clone(),
        name: object.key.name.clone(),
    }
}

fn outcome(object: &IngressObject, findings: Box<[Finding]>) -> Outcome {
    Outcome {
        source: reference(object),
        uid: object.uid.clone(),
        resource_version: object.resource_version.clone(),
        findings,
    }
}

#[cfg(test)]
mod tests;
