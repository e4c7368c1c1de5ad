//! cert-manager's Certificates, reduced. Only those are kept whose name an Ingress could have given them.

use super::Key;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The API group.
pub const GROUP: &str = "cert-manager.io";
/// `kind` in manifests.
pub const KIND: &str = "Certificate";
/// Name in paths and roles.
pub const PLURAL: &str = "certificates";
/// What a Certificate that we made carries, beside its owner.
pub(crate) const MADE_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "tak-os-ingress");

/// A Certificate as the API sends it.
#[derive(Clone, Debug, Deserialize)]
pub struct Certificate {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: CertificateSpec,
}

/// The fields of `spec` that are ours. What others set beside them stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSpec {
    /// The hosts that it is to be good for.
    #[serde(default)]
    pub dns_names: Vec<String>,
    /// Where cert-manager writes it.
    #[serde(default)]
    pub secret_name: String,
    /// Who issues it.
    #[serde(default)]
    pub issuer_ref: IssuerRef,
}

/// An Issuer or ClusterIssuer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuerRef {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// `Issuer` or `ClusterIssuer`.
    #[serde(default)]
    pub kind: String,
    /// Its API group.
    #[serde(default)]
    pub group: String,
}

/// A Certificate that has the name of one that a block of an Ingress would get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateObject {
    /// Index of the block that its name stands for.
    pub block: usize,
    /// `metadata.uid`
    pub uid: Arc<str>,
    /// The `uid` of the Ingress that it was made for by us; `None`: somebody else made it.
    pub made_for: Option<Arc<str>>,
    /// What it asks for.
    pub spec: CertificateSpec,
}

/// The Certificates by the Ingress that their name stands for, and whether there can be any.
#[derive(Debug, Default)]
pub struct Certificates {
    pub(super) by_ingress: HashMap<Key, BTreeMap<usize, Arc<CertificateObject>>>,
    /// Namespaces (`None`: all) whose Certificates were asked for, and whether they could be read.
    pub(super) read: HashMap<Option<Arc<str>>, bool>,
}

impl Certificates {
    /// Those with the names that this Ingress's blocks would give.
    pub fn of(&self, ingress: &Key) -> impl Iterator<Item = &Arc<CertificateObject>> {
        self.by_ingress.get(ingress).into_iter().flat_map(BTreeMap::values)
    }

    /// The one for this block.
    pub fn get(&self, ingress: &Key, block: usize) -> Option<&Arc<CertificateObject>> {
        self.by_ingress.get(ingress)?.get(&block)
    }

    /// The Ingress and block that the name of each stands for.
    pub fn blocks(&self) -> impl Iterator<Item = (&Key, usize)> {
        self.by_ingress.iter().flat_map(|(ingress, blocks)| blocks.keys().map(move |block| (ingress, *block)))
    }

    /// The Ingresses by whose names there are any.
    pub fn ingresses(&self) -> impl Iterator<Item = &Key> {
        self.by_ingress.keys()
    }

    /// Whether those of a namespace are known in full; `None`: not known yet.
    pub fn readable(&self, namespace: &Arc<str>) -> Option<bool> {
        self.read.get(&None).or_else(|| self.read.get(&Some(namespace.clone()))).copied()
    }
}

/// What the Certificate and the Secret of an Ingress's TLS block are called.
pub fn name(ingress: &str, block: usize) -> String {
    format!("{ingress}-tls-{block}")
}

/// The Ingress and block that a name like that stands for; there is never more than one.
fn named_for(name: &str) -> Option<(&str, usize)> {
    let (ingress, block) = name.rsplit_once("-tls-")?;
    let plain = block == "0" || (!block.starts_with('0') && block.bytes().all(|b| b.is_ascii_digit()));
    (plain && !ingress.is_empty()).then_some(())?;
    Some((ingress, block.parse().ok()?))
}

impl CertificateObject {
    /// The Ingress that it is named for, and the Certificate; `None` for all others.
    pub fn of(certificate: Certificate) -> Option<(Key, Self)> {
        let Certificate { metadata, spec } = certificate;
        let (ingress, block) = named_for(metadata.name.as_deref()?)?;
        let namespace = metadata.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or("default");
        let key = Key::new(namespace, ingress);
        let labelled = metadata.labels.as_ref().and_then(|labels| labels.get(MADE_BY.0));
        let owners = metadata.owner_references.unwrap_or_default();
        // an Ingress that controls it is the work of cert-manager's own Ingress support
        let owner = owners.into_iter().find(|owner| {
            owner.kind == "Ingress" && *owner.name == *key.name && owner.controller != Some(true)
        });
        let made_for = owner.filter(|_| labelled.is_some_and(|by| by == MADE_BY.1));
        let object = Self {
            block,
            uid: metadata.uid.unwrap_or_default().into(),
            made_for: made_for.map(|owner| owner.uid.into()),
            spec,
        };
        Some((key, object))
    }

    /// The Ingress and block that a Certificate of this name belongs to.
    pub(crate) fn place(certificate: &Key) -> Option<(Key, usize)> {
        let (ingress, block) = named_for(&certificate.name)?;
        Some((Key::new(certificate.namespace.clone(), ingress), block))
    }
}

impl kube::Resource for Certificate {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_name_stands_for_one_block_of_one_ingress() {
        for (text, ingress, block) in
            [("app-tls-0", "app", 0), ("app-tls-12", "app", 12), ("a-tls-1-tls-2", "a-tls-1", 2)]
        {
            assert_eq!(named_for(text), Some((ingress, block)));
            assert_eq!(name(ingress, block), text);
        }
        for other in [
            "app",
            "app-tls",
            "app-tls-",
            "app-tls-x",
            "app-tls-01",
            "app-tls-+1",
            "-tls-0",
            "app-tls-99999999999999999999",
        ] {
            assert_eq!(named_for(other), None, "{other}");
        }
    }

    #[test]
    fn only_what_carries_both_marks_is_ours() {
        let object = |labels: serde_json::Value, owners: serde_json::Value| {
            let wire = json!({
                "metadata": { "namespace": "ns", "name": "app-tls-1", "uid": "c", "labels": labels, "ownerReferences": owners },
                "spec": { "dnsNames": ["a.test"], "secretName": "s", "issuerRef": { "name": "i" }, "duration": "1h" },
            });
            CertificateObject::of(serde_json::from_value(wire).unwrap()).unwrap()
        };
        let label = json!({ "app.kubernetes.io/managed-by": "tak-os-ingress" });
        let owner = |kind: &str, name: &str, controller: bool| json!([{ "apiVersion": "x/v1", "kind": kind, "name": name, "uid": "u", "controller": controller }]);
        let (key, ours) = object(label.clone(), owner("Ingress", "app", false));
        assert_eq!((key.to_string(), ours.block, ours.made_for.as_deref()), ("ns/app".into(), 1, Some("u")));
        assert_eq!(ours.spec.issuer_ref, IssuerRef { name: "i".into(), ..Default::default() });
        for (labels, owners) in [
            (label.clone(), json!([])),
            (json!({}), owner("Ingress", "app", false)),
            (json!({ "app.kubernetes.io/managed-by": "helm" }), owner("Ingress", "app", false)),
            (label.clone(), owner("Ingress", "other", false)),
            (label.clone(), owner("Service", "app", false)),
            // made by cert-manager for a block that names its Secret
            (label, owner("Ingress", "app", true)),
        ] {
            assert_eq!(object(labels, owners).1.made_for, None);
        }
    }
}
