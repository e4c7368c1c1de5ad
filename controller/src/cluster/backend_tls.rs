//! BackendTLSPolicies, and the ConfigMaps that hold their certificates, reduced.

use super::gateway::GatewayApiObject;
use super::{Key, MAX_SECRET_VALUE};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::Arc;

/// A BackendTLSPolicy.
pub type BackendTlsPolicyObject = GatewayApiObject<BackendTlsPolicySpec>;

/// `spec` of a BackendTLSPolicy. Its `options` are other implementations'.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTlsPolicySpec {
    /// What it is about.
    pub target_refs: Vec<TargetRef>,
    /// What is asked of a backend's certificate.
    pub validation: Validation,
}

/// A Service of the policy's namespace, or one of its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetRef {
    /// API group; empty for the core group.
    pub group: Box<str>,
    /// Kind.
    pub kind: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// Name of one of its ports; absent: all ports.
    pub section_name: Option<Box<str>>,
}

/// `spec.validation`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Validation {
    /// Where the authorities' certificates are.
    pub ca_certificate_refs: Vec<LocalRef>,
    /// A set of authorities by name, in their place.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known: Option<Box<str>>,
    /// The server name, and without `subjectAltNames` the name that the certificate must have.
    pub hostname: Box<str>,
    /// Names of which the certificate must have one.
    pub subject_alt_names: Vec<SubjectAltName>,
}

/// A reference to an object of the own namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LocalRef {
    /// API group; empty for the core group.
    pub group: Box<str>,
    /// Kind.
    pub kind: Box<str>,
    /// Name.
    pub name: Box<str>,
}

/// A name that a certificate may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SubjectAltName {
    /// Hostname or URI.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// For Hostname.
    pub hostname: Option<Box<str>>,
    /// For URI.
    pub uri: Option<Box<str>>,
}

/// A ConfigMap as the API sends it, without what is never looked at.
#[derive(Clone, Debug, Deserialize)]
pub struct ConfigMap {
    metadata: ObjectMeta,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Clone, Debug, Deserialize)]
struct Data {
    #[serde(rename = "ca.crt", default)]
    ca: Option<String>,
}

impl kube::Resource for ConfigMap {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ConfigMap".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "configmaps".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A ConfigMap with certificates in it; others are not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigMapObject {
    /// Namespace and name.
    pub key: Key,
    /// What stands under `ca.crt`, cut where it is longer than [`MAX_SECRET_VALUE`] and longer still afterwards. Every
    /// namespace has a copy of the cluster's own, so equal ones are one.
    pub ca: Arc<str>,
}

impl ConfigMapObject {
    /// The ConfigMap; only its key if it has no certificates.
    pub fn of(map: ConfigMap) -> Result<Self, Key> {
        let ConfigMap { metadata: meta, data } = map;
        let namespace = meta.namespace.filter(|n| !n.is_empty()).unwrap_or_else(|| "default".into());
        let key = Key::new(namespace, meta.name.unwrap_or_default());
        match data.and_then(|data| data.ca) {
            Some(mut ca) => {
                ca.truncate(ca.ceil_char_boundary(MAX_SECRET_VALUE + 1));
                Ok(Self { key, ca: ca.into() })
            }
            None => Err(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::gateway::Wire;
    use serde_json::json;

    #[test]
    fn of_a_config_map_only_certificates_are_kept() {
        let of = |data: serde_json::Value| {
            let map = json!({ "metadata": { "namespace": "n", "name": "m" }, "data": data });
            ConfigMapObject::of(serde_json::from_value(map).unwrap())
        };
        let kept = of(json!({ "ca.crt": "pem", "large": "x".repeat(100), "number": 1 })).unwrap();
        assert_eq!((kept.key.to_string().as_str(), &*kept.ca), ("n/m", "pem"));
        assert_eq!(of(json!({ "ca.crt": "" })).unwrap().ca, "".into());
        let large = of(json!({ "ca.crt": "x".repeat(MAX_SECRET_VALUE) + "äöü" })).unwrap();
        assert_eq!(large.ca.len(), MAX_SECRET_VALUE + 2);
        assert_eq!(of(json!({ "other": "x" })), Err(Key::new("n", "m")));
        assert_eq!(of(json!(null)), Err(Key::new("n", "m")));
    }

    #[test]
    fn a_policy_is_read_by_the_names_of_the_api() {
        let wire: Wire<BackendTlsPolicySpec> = serde_json::from_value(json!({
            "metadata": { "namespace": "n", "name": "p" },
            "spec": {
                "targetRefs": [{ "group": "", "kind": "Service", "name": "s", "sectionName": "https" }],
                "validation": {
                    "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "m" }],
                    "wellKnownCACertificates": "System", "hostname": "a.example.com",
                    "subjectAltNames": [{ "type": "URI", "uri": "spiffe://a/b" }],
                },
                "options": { "example.com/x": "y" },
            },
        }))
        .unwrap();
        let spec = BackendTlsPolicyObject::from(wire).spec;
        assert_eq!(spec.target_refs[0].section_name.as_deref(), Some("https"));
        let Validation { ca_certificate_refs, well_known, hostname, subject_alt_names } = spec.validation;
        assert_eq!((&*ca_certificate_refs[0].name, well_known.as_deref()), ("m", Some("System")));
        assert_eq!(
            (&*hostname, subject_alt_names[0].uri.as_deref()),
            ("a.example.com", Some("spiffe://a/b"))
        );
    }
}
