//! API objects reduced to what is read of them.

use super::{
    ClassObject, IngressObject, Key, MAX_SECRET_VALUE, Path, PathBackend, PathType, PortObject, PortRef,
    Rule, SecretObject, ServiceObject, SliceName, SliceObject, Tls,
};
use crate::annotations;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Secret, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, Ingress, IngressBackend, IngressClass, IngressRule, IngressTLS,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Label that ties an EndpointSlice to its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// What is read of a Secret, by its type. Nothing else is kept in memory.
const SECRET_KEYS: [(&str, &[&str]); 2] =
    [("kubernetes.io/tls", &["tls.crt", "tls.key"]), ("Opaque", &AUTH_KEYS)];

/// What authentication reads. Kept under these names, see [`plain_name`].
pub(crate) const AUTH_KEYS: [&str; 40] = [
    "auth",
    "oidc_issuer_url",
    "skip_oidc_discovery",
    "login_url",
    "redeem_url",
    "oidc_jwks_url",
    "client_id",
    "client_secret",
    "cookie_secret",
    "cookie_secret_previous",
    "cookie_name",
    "cookie_domain",
    "cookie_path",
    "cookie_samesite",
    "cookie_expire",
    "cookie_refresh",
    "scope",
    "prompt",
    "acr_values",
    "email_domains",
    "allowed_emails",
    "allowed_groups",
    "oidc_email_claim",
    "oidc_groups_claim",
    "insecure_oidc_allow_unverified_email",
    "bearer_audiences",
    "introspection_url",
    "introspection_client_id",
    "introspection_client_secret",
    "pass_access_token",
    "pass_authorization_header",
    "api_routes",
    "post_logout_redirect_uri",
    "backend_logout",
    "provider_ca",
    // further spellings and names of oauth2-proxy
    "provider",
    "profile_url",
    "cookie_domains",
    "oidc_extra_audiences",
    "backend_logout_url",
];

/// What marks a Secret as one of OAuth settings.
const OAUTH_MARK: &str = "client_id";
/// Names of such a Secret that are kept although we do not read them.
const MAX_UNREAD: usize = 128;

/// The name of a setting: as oauth2-proxy's flags (`client-id`), its file (`client_id`), or its
/// environment (`OAUTH2_PROXY_CLIENT_ID`) have it.
fn plain_name(name: &str) -> String {
    let name = name.strip_prefix("OAUTH2_PROXY_").map_or_else(|| name.to_owned(), str::to_ascii_lowercase);
    name.replace('-', "_")
}

impl From<Ingress> for IngressObject {
    fn from(ingress: Ingress) -> Self {
        let meta = ingress.metadata;
        let spec = ingress.spec.unwrap_or_default();
        Self {
            key: key_of(&meta),
            uid: text(&meta.uid),
            resource_version: text(&meta.resource_version),
            created: meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            class: spec.ingress_class_name.filter(|class| !class.is_empty()).map(Into::into),
            annotations: meta
                .annotations
                .unwrap_or_default()
                .into_iter()
                .filter(|(key, _)| annotations::is_read(key))
                .collect(),
            rules: spec.rules.unwrap_or_default().into_iter().map(rule).collect(),
            tls: spec.tls.unwrap_or_default().into_iter().map(tls).collect(),
            default_backend: spec.default_backend.is_some(),
        }
    }
}

fn rule(rule: IngressRule) -> Rule {
    let paths = rule.http.map(|http| http.paths).unwrap_or_default();
    Rule { host: rule.host.unwrap_or_default().into(), paths: paths.into_iter().map(path).collect() }
}

fn path(path: HTTPIngressPath) -> Path {
    Path {
        path: path.path.map(Into::into),
        path_type: match &*path.path_type {
            "Exact" => PathType::Exact,
            "Prefix" => PathType::Prefix,
            "ImplementationSpecific" => PathType::ImplementationSpecific,
            _ => PathType::Unknown,
        },
        backend: backend(path.backend),
    }
}

fn backend(backend: IngressBackend) -> PathBackend {
    let Some(service) = backend.service else {
        return if backend.resource.is_some() { PathBackend::Resource } else { PathBackend::None };
    };
    let port = service.port.unwrap_or_default();
    let port = match (port.name.filter(|name| !name.is_empty()), port.number) {
        (Some(name), _) => PortRef::Name(name.into()),
        (None, Some(number)) => PortRef::Number(number),
        (None, None) => PortRef::None,
    };
    PathBackend::Service { name: service.name.into(), port }
}

fn tls(tls: IngressTLS) -> Tls {
    Tls {
        hosts: tls.hosts.unwrap_or_default().into_iter().map(Into::into).collect(),
        secret: tls.secret_name.filter(|name| !name.is_empty()).map(Into::into),
    }
}

impl From<IngressClass> for ClassObject {
    fn from(class: IngressClass) -> Self {
        Self {
            name: text(&class.metadata.name),
            uid: text(&class.metadata.uid),
            resource_version: text(&class.metadata.resource_version),
            controller: class.spec.and_then(|spec| spec.controller).unwrap_or_default().into(),
        }
    }
}

impl From<Service> for ServiceObject {
    fn from(service: Service) -> Self {
        let spec = service.spec.unwrap_or_default();
        let balancer = service.status.and_then(|status| status.load_balancer?.ingress).unwrap_or_default();
        let addresses = addresses(balancer, &spec);
        let external = spec.type_.as_deref() == Some("ExternalName");
        Self {
            key: key_of(&service.metadata),
            resource_version: text(&service.metadata.resource_version),
            addresses,
            headless: spec.cluster_ip.as_deref() == Some("None"),
            external_name: external.then(|| spec.external_name.unwrap_or_default().into()),
            ports: spec
                .ports
                .unwrap_or_default()
                .into_iter()
                .filter_map(|port| {
                    Some(PortObject {
                        port: u16::try_from(port.port).ok().filter(|port| *port != 0)?,
                        name: port.name.unwrap_or_default().into(),
                        app_protocol: port.app_protocol.map(Into::into),
                        tcp: is_tcp(port.protocol.as_deref()),
                    })
                })
                .collect(),
        }
    }
}

fn addresses(balancer: Vec<LoadBalancerIngress>, spec: &ServiceSpec) -> Box<[Box<str>]> {
    let mut all: Vec<Box<str>> =
        balancer.into_iter().filter_map(|at| at.ip.or(at.hostname)).map(Into::into).collect();
    if all.is_empty() {
        all.extend(spec.external_ips.iter().flatten().map(|ip| ip.as_str().into()));
    }
    if all.is_empty() {
        all.extend(
            spec.cluster_ip.iter().filter(|ip| *ip != "None" && !ip.is_empty()).map(|ip| ip.as_str().into()),
        );
    }
    all.into()
}

impl SliceObject {
    /// The slice and the Service it belongs to; `None` if it belongs to none.
    pub fn of(slice: EndpointSlice) -> Option<(Key, Self)> {
        let mut service = key_of(&slice.metadata);
        let name = std::mem::replace(
            &mut service.name,
            slice.metadata.labels.as_ref()?.get(SERVICE_LABEL)?.as_str().into(),
        );
        let ports =
            slice.ports.unwrap_or_default().into_iter().filter(|port| is_tcp(port.protocol.as_deref()));
        let ready = slice.endpoints.into_iter().filter(|endpoint| {
            endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
        });
        let slice = Self {
            name: SliceName { name, foreign: false },
            ports: ports
                .filter_map(|port| {
                    let number = u16::try_from(port.port?).ok().filter(|number| *number != 0)?;
                    Some((port.name.unwrap_or_default().into(), number))
                })
                .collect(),
            // the API gives no meaning to the addresses behind the first
            addresses: ready.filter_map(|endpoint| endpoint.addresses.first()?.parse().ok()).collect(),
        };
        Some((service, slice))
    }
}

impl From<Secret> for SecretObject {
    fn from(secret: Secret) -> Self {
        let secret_type = secret.type_.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "Opaque".into());
        let read =
            SECRET_KEYS.iter().find(|(kind, _)| *kind == secret_type).map_or(&[][..], |(_, keys)| keys);
        let names_vary = secret_type == "Opaque";
        let data = secret.data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.0));
        let mut values: BTreeMap<String, Vec<u8>> = data.collect();
        values.extend(secret.string_data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.into_bytes())));
        let (mut kept, mut unread) = (BTreeMap::<Box<str>, Box<[u8]>>::new(), Vec::new());
        // a name written down as it is read wins over its other spellings
        for (name, mut value) in values {
            let plain = if names_vary { plain_name(&name) } else { name.clone() };
            if !read.contains(&&*plain) {
                unread.push(plain);
                continue;
            }
            value.truncate(MAX_SECRET_VALUE + 1);
            let exact = plain == name;
            match kept.entry(plain.into()) {
                Entry::Vacant(place) => drop(place.insert(value.into())),
                Entry::Occupied(mut place) if exact => drop(place.insert(value.into())),
                Entry::Occupied(_) => {}
            }
        }
        if kept.contains_key(OAUTH_MARK) {
            // an option that is not known must not go unnoticed: it may be one that keeps people out
            let names = unread.into_iter().take(MAX_UNREAD).map(|name| (name.into(), Box::default()));
            kept.extend(names);
        }
        Self {
            key: key_of(&secret.metadata),
            uid: text(&secret.metadata.uid),
            resource_version: text(&secret.metadata.resource_version),
            data: kept,
            secret_type: secret_type.into(),
        }
    }
}

fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol.is_empty() || protocol == "TCP")
}

fn key_of(meta: &ObjectMeta) -> Key {
    let namespace = meta.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    Key::new(namespace.unwrap_or("default"), text(&meta.name))
}

fn text(value: &Option<String>) -> Arc<str> {
    value.as_deref().unwrap_or_default().into()
}
