//! Gateways of ours and their listeners: what each may serve, and why not.
//!
//! They are few and are looked at together: the answer for one can depend on all others, which share its addresses.

mod certificate;
mod clients;
mod listener;

pub(super) use listener::{Listener, Mode, Owner, is};

use super::Settings;
use super::attach::ParentId;
use super::authorities::Authorities;
use super::grant::Grants;
use super::listener_set::{self, ListenerSet};
use super::secret::Certificates;
use crate::cluster::gateway::{FromNamespaces, GatewayObject};
use crate::cluster::{Cluster, Key};
use crate::finding::{Finding, Findings, Reason, quoted};
use crate::status::{self, conditions::Condition};
use clients::{Demand, Frontend, Validations};
use ingress_core::{CertifiedKey, HostPattern, Kind, Scope};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// `spec.controllerName` of the GatewayClasses that we serve.
pub const CONTROLLER: &str = "tak-os.org/gateway-controller";

/// Every Gateway of ours, and the ListenerSets that name one of them.
#[derive(Default)]
pub(super) struct Gateways {
    pub all: BTreeMap<Key, Gateway>,
    pub sets: BTreeMap<Key, ListenerSet>,
    /// Secrets that listeners refer to, whether they exist or not.
    pub secrets: BTreeSet<Key>,
    /// ConfigMaps with the authorities of clients' certificates, whether they exist or not.
    pub config_maps: BTreeSet<Key>,
    validations: Validations,
    /// Whether a selector decides which namespaces' routes may attach.
    pub selects: bool,
    /// Whether a selector decides which namespaces' ListenerSets may add listeners.
    pub selects_sets: bool,
}

/// A Gateway of ours.
#[derive(PartialEq, Eq)]
pub(super) struct Gateway {
    pub created: i64,
    pub generation: i64,
    /// Its own.
    pub listeners: Box<[Listener]>,
    /// Namespaces whose ListenerSets may add listeners.
    pub sets_from: From,
    /// The ListenerSets that it lets add listeners, in the order that counts.
    pub sets: Vec<Key>,
    /// How many of them are accepted.
    pub attached_sets: usize,
    /// The certificate that is shown to backends which are reached over TLS.
    pub client: Option<Arc<CertifiedKey>>,
    /// `Accepted`, `Programmed` and `ResolvedRefs`, and `InsecureFrontendValidationMode` where it holds.
    pub conditions: Box<[Condition]>,
    /// Type and value.
    pub addresses: Box<[(&'static str, Box<str>)]>,
    pub findings: Box<[Finding]>,
}

/// Namespaces whose routes or ListenerSets may attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum From {
    All,
    Same,
    Selected(crate::cluster::gateway::Selector),
    Nowhere,
}

impl From {
    /// What is written; `absent` where nothing is.
    fn read(namespaces: Option<&FromNamespaces>, absent: Self) -> Self {
        let Some(namespaces) = namespaces else { return absent };
        match namespaces.from.as_deref() {
            None => absent,
            Some("Same") => From::Same,
            Some("All") => From::All,
            Some("Selector") => namespaces.selector.clone().map_or(From::Nowhere, From::Selected),
            Some(_) => From::Nowhere,
        }
    }

    /// Whether what is in a namespace may attach to this object.
    pub(super) fn takes(&self, namespace: &Arc<str>, object: &Key, cluster: &Cluster) -> bool {
        match self {
            From::All => true,
            From::Same => *namespace == object.namespace,
            // labels that cannot be read admit nobody
            From::Selected(selector) => {
                cluster.namespaces.get(namespace).is_some_and(|n| selector.matches(&n.labels))
            }
            From::Nowhere => false,
        }
    }
}

/// `kind` in manifests.
pub(super) fn api_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::GrpcRoute => "GRPCRoute",
        Kind::HttpRoute => "HTTPRoute",
        Kind::TlsRoute => "TLSRoute",
        Kind::Gateway => "Gateway",
        Kind::ListenerSet => "ListenerSet",
        _ => "",
    }
}

/// Whether a GatewayClass of this name is ours.
pub(crate) fn is_ours(cluster: &Cluster, class: &str) -> bool {
    cluster.gateway_classes.get(&Key::new("", class)).is_some_and(|c| *c.spec.controller_name == *CONTROLLER)
}

/// Whether a policy, or a Gateway of ours, names authorities: they are in ConfigMaps.
pub(crate) fn names_authorities(cluster: &Cluster) -> bool {
    let mut policies = cluster.backend_tls_policies.values();
    let mut gateways = cluster.gateways.values();
    policies.any(|policy| !policy.spec.validation.ca_certificate_refs.is_empty())
        || gateways.any(|g| g.spec.names_authorities() && is_ours(cluster, &g.spec.gateway_class_name))
}

impl Gateways {
    /// Looks at all of them.
    pub(super) fn read(
        cluster: &Cluster,
        grants: &Grants,
        certificates: &mut Certificates,
        authorities: &mut Authorities,
        settings: &Settings,
        now: i64,
        before: &Self,
    ) -> Self {
        let mut ours: Vec<_> =
            cluster.gateways.values().filter(|g| is_ours(cluster, &g.spec.gateway_class_name)).collect();
        ours.sort_by_key(|g| (g.meta.created, &g.meta.key));
        let mut look = Look {
            cluster,
            grants,
            certificates,
            authorities,
            settings,
            now,
            ports: HashMap::new(),
            hosts: HashMap::new(),
            frontends: HashMap::new(),
            asked: HashMap::new(),
            before: &before.validations,
            validations: HashMap::new(),
            secrets: BTreeSet::new(),
            config_maps: BTreeSet::new(),
            selects: false,
            selects_sets: false,
        };
        let own = own_addresses(&ours, &settings.gateway_addresses, before);
        let mut all: BTreeMap<_, _> =
            ours.iter().zip(&own).map(|(g, own)| (g.meta.key.clone(), look.gateway(g, *own))).collect();
        // behind all Gateways: what somebody adds to one takes no port from another
        let addresses: HashMap<&Key, _> = ours.iter().map(|g| &g.meta.key).zip(own).collect();
        let mut sets: Vec<_> = cluster.listener_sets.values().collect();
        sets.sort_by_key(|set| (set.meta.created, &set.meta.key));
        let mut of_ours = BTreeMap::new();
        for object in sets {
            let Some(key) = listener_set::parent(object) else { continue };
            let (Some(gateway), Some(address)) = (all.get_mut(&key), addresses.get(&key)) else { continue };
            let set = look.listener_set(object, &key, gateway, *address);
            gateway.attached_sets += usize::from(set.is_accepted());
            if !set.listeners.is_empty() {
                gateway.sets.push(object.meta.key.clone());
            }
            of_ours.insert(object.meta.key.clone(), set);
        }
        Self {
            all,
            sets: of_ours,
            secrets: look.secrets,
            config_maps: look.config_maps,
            validations: look.validations,
            selects: look.selects,
            selects_sets: look.selects_sets,
        }
    }

    /// What a route can attach to under this name: the Gateway that listens, and the listeners.
    pub(super) fn parent(&self, (kind, key): &ParentId) -> Option<(&Key, &[Listener])> {
        match kind {
            Kind::ListenerSet => self.sets.get(key).map(|set| (&set.gateway, &*set.listeners)),
            _ => self.all.get_key_value(key).map(|(key, gateway)| (key, &*gateway.listeners)),
        }
    }

    /// The certificate that a Gateway shows to backends.
    pub(super) fn client_certificate(&self, gateway: &Key) -> Option<&Arc<CertifiedKey>> {
        self.all.get(gateway)?.client.as_ref()
    }

    /// All listeners of a Gateway, those of its sets included, in the order that counts.
    pub(super) fn merged(&self, gateway: &Key) -> impl Iterator<Item = &Listener> {
        let gateway = self.all.get(gateway);
        let sets = gateway.into_iter().flat_map(|g| &g.sets).filter_map(|key| self.sets.get(key));
        gateway.into_iter().flat_map(|g| &g.listeners).chain(sets.flat_map(|set| &set.listeners))
    }

    /// Every listener and the Gateway that listens, in the order that counts: those of Gateways first, the oldest's
    /// ahead, then those of ListenerSets likewise.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (&Key, &Listener)> {
        let mut all: Vec<_> = self.all.iter().collect();
        all.sort_by_key(|(key, gateway)| (gateway.created, *key));
        let mut sets: Vec<_> = self.sets.iter().collect();
        sets.sort_by_key(|(key, set)| (set.created, *key));
        let own = all.into_iter().flat_map(|(key, gateway)| gateway.listeners.iter().map(move |l| (key, l)));
        own.chain(sets.into_iter().flat_map(|(_, set)| set.listeners.iter().map(move |l| (&set.gateway, l))))
    }
}

impl Gateway {
    /// Whether a condition of it is True.
    pub(super) fn has(&self, condition: &str) -> bool {
        self.conditions.iter().any(|c| c.kind == condition && c.status)
    }
}

/// The address of each of these Gateways, oldest first: the one that it asks for, else the one that its status tells already, so
/// that no other Gateway's coming or going moves it, else the one that it had `before` (of what was written the API may not have
/// told yet), else the one that the fewest have.
fn own_addresses(
    ours: &[&Arc<GatewayObject>],
    there_are: &[IpAddr],
    before: &Gateways,
) -> Vec<Option<IpAddr>> {
    if there_are.is_empty() {
        return vec![None; ours.len()];
    }
    let mut own: Vec<_> = ours
        .iter()
        .map(|gateway| {
            let asked = gateway.spec.addresses.iter().filter_map(|address| address.value.parse().ok());
            let told = status::addresses(&gateway.meta);
            let had = before.all.get(&gateway.meta.key).into_iter().flat_map(|known| &known.addresses);
            let had = had.filter_map(|(_, address)| address.parse().ok());
            asked.chain(told).chain(had).find(|address| there_are.contains(address))
        })
        .collect();
    let mut taken: HashMap<IpAddr, usize> = HashMap::new();
    for address in own.iter().flatten() {
        *taken.entry(*address).or_default() += 1;
    }
    for address in own.iter_mut().filter(|own| own.is_none()) {
        let free = there_are.iter().min_by_key(|address| taken.get(address).copied().unwrap_or_default());
        if let Some(free) = free {
            *taken.entry(*free).or_default() += 1;
        }
        *address = free.copied();
    }
    own
}

/// What is known while Gateways are looked at.
pub(super) struct Look<'a> {
    pub cluster: &'a Cluster,
    grants: &'a Grants,
    certificates: &'a mut Certificates,
    authorities: &'a mut Authorities,
    settings: &'a Settings,
    now: i64,
    /// Whether a port (of an address) speaks TLS, by who came first.
    ports: HashMap<Scope, bool>,
    /// Hosts that listeners of a Gateway and its sets have, by port.
    hosts: HashMap<Key, BTreeMap<u16, BTreeSet<HostPattern>>>,
    /// What Gateways ask of their clients.
    frontends: HashMap<Key, Frontend>,
    /// What the clients of a host that ends TLS are asked for, and by which Gateway, by who came first.
    asked: HashMap<(Scope, HostPattern), (Key, Demand)>,
    /// The validations of the pass before.
    before: &'a Validations,
    validations: Validations,
    secrets: BTreeSet<Key>,
    config_maps: BTreeSet<Key>,
    selects: bool,
    pub selects_sets: bool,
}

impl Look<'_> {
    fn gateway(&mut self, object: &GatewayObject, address: Option<IpAddr>) -> Gateway {
        let mut findings = Findings::default();
        let refused = self.refused(object, &mut findings);
        let client = self.client_certificate(object, &mut findings);
        let key = &object.meta.key;
        let frontend = self.frontend(object, &mut findings);
        self.frontends.insert(key.clone(), frontend);
        let specs = &object.spec.listeners;
        let own =
            Owner { kind: Kind::Gateway, key, gateway: key, address, refused: refused.is_some(), specs };
        let specs = specs.iter().enumerate();
        let listeners: Box<[Listener]> =
            specs.map(|(i, spec)| self.listener(own, spec, i, &mut findings)).collect();
        let valid = listeners.iter().filter(|l| is(l, "Accepted")).count();
        let programmed = listeners.iter().filter(|l| l.serves).count();
        let addresses = self.addresses(address);
        let accepted = match refused {
            Some((reason, message)) => Condition::new("Accepted", false, reason, message),
            None if valid == 0 => {
                Condition::new("Accepted", false, "ListenersNotValid", "none of the listeners can be served")
            }
            None if valid < listeners.len() => {
                let message = "some of the listeners cannot be served; their own conditions say why";
                Condition::new("Accepted", true, "ListenersNotValid", message)
            }
            None => Condition::new("Accepted", true, "Accepted", ""),
        };
        let wanted = object.spec.addresses.iter().find(|wanted| {
            !wanted.value.is_empty() && !addresses.iter().any(|(_, value)| *value == wanted.value)
        });
        let programmed = if !accepted.status || programmed == 0 {
            Condition::new("Programmed", false, "Invalid", "nothing is served for this Gateway")
        } else if let Some(wanted) = wanted {
            let message = format!("{} is none of the addresses that there are", quoted(&wanted.value));
            Condition::new("Programmed", false, "AddressNotUsable", message)
        } else if addresses.is_empty() {
            let message = "it is served, but there is no address to tell: the Service of the product has none yet, \
                           and --publish-address names none";
            Condition::new("Programmed", false, "AddressNotAssigned", message)
        } else {
            Condition::new("Programmed", true, "Programmed", "")
        };
        let insecure = clients::insecure(object).then(|| {
            let message =
                "on some port clients are let in without a valid certificate (AllowInsecureFallback)";
            Condition::new(status::INSECURE_FRONTEND, true, "ConfigurationChanged", message)
        });
        let resolved = match &client {
            Err((reason, message)) => Condition::new("ResolvedRefs", false, reason, message.as_str()),
            Ok(_) if listeners.iter().all(|l| is(l, "ResolvedRefs")) => {
                Condition::new("ResolvedRefs", true, "ResolvedRefs", "")
            }
            Ok(_) => {
                let message = "some references of listeners do not resolve; their own conditions say why";
                Condition::new("ResolvedRefs", false, "ListenersNotResolved", message)
            }
        };
        Gateway {
            created: object.meta.created,
            generation: object.meta.generation,
            listeners,
            sets_from: From::read(
                object.spec.allowed_listeners.as_ref().and_then(|allowed| allowed.namespaces.as_ref()),
                From::Nowhere,
            ),
            sets: Vec::new(),
            attached_sets: 0,
            client: client.ok().flatten(),
            conditions: [accepted, programmed, resolved].into_iter().chain(insecure).collect(),
            addresses,
            findings: findings.finish(),
        }
    }

    /// Why nothing of the Gateway is served.
    fn refused(&self, object: &GatewayObject, findings: &mut Findings) -> Option<(&'static str, String)> {
        let spec = &object.spec;
        let mut refuse = |reason, field: &str, message: String| {
            findings.add(Reason::GatewayNotAccepted, field, message.clone());
            Some((reason, message))
        };
        if spec.infrastructure.as_ref().is_some_and(|i| i.parameters_ref.is_some()) {
            let message = "there are no parameters for Gateways".to_owned();
            return refuse("InvalidParameters", "spec.infrastructure.parametersRef", message);
        }
        if let Some((i, address)) = spec
            .addresses
            .iter()
            .enumerate()
            .find(|(_, a)| !matches!(a.kind.as_deref(), None | Some("IPAddress")))
        {
            let kind = address.kind.as_deref().unwrap_or_default();
            let message = format!("addresses of type {} are not supported, IPAddress is", quoted(kind));
            return refuse("UnsupportedAddress", &format!("spec.addresses[{i}].type"), message);
        }
        None
    }

    fn addresses(&self, own: Option<IpAddr>) -> Box<[(&'static str, Box<str>)]> {
        let typed = |value: &str| {
            let kind = if value.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
            (kind, Box::<str>::from(value))
        };
        if let Some(own) = own {
            return [typed(&own.to_string())].into();
        }
        if !self.settings.publish_addresses.is_empty() {
            return self.settings.publish_addresses.iter().map(|a| typed(a)).collect();
        }
        let (namespace, name) = &self.settings.publish_service;
        let service = self.cluster.services.get(&Key::new(namespace.as_str(), name.as_str()));
        service.into_iter().flat_map(|service| &service.addresses).map(|a| typed(a)).collect()
    }
}
