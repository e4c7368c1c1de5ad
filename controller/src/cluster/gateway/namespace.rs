//! Namespaces, by whose labels Gateways choose.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::PartialObjectMeta;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A Namespace, reduced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceObject {
    /// Its name.
    pub name: Arc<str>,
    /// `metadata.labels`
    pub labels: BTreeMap<Box<str>, Box<str>>,
}

impl From<PartialObjectMeta<Namespace>> for NamespaceObject {
    fn from(namespace: PartialObjectMeta<Namespace>) -> Self {
        let meta = namespace.metadata;
        let labels = meta.labels.unwrap_or_default().into_iter().map(|(k, v)| (k.into(), v.into()));
        Self { name: meta.name.unwrap_or_default().into(), labels: labels.collect() }
    }
}

/// A label selector.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Selector(LabelSelector);

// LabelSelector holds nothing but text
impl Eq for Selector {}

impl Selector {
    /// Whether a namespace with these labels is taken. An operator that is not known takes none.
    pub fn matches(&self, labels: &BTreeMap<Box<str>, Box<str>>) -> bool {
        let equal = self.0.match_labels.iter().flatten();
        equal.into_iter().all(|(key, value)| labels.get(&**key).is_some_and(|v| **v == **value))
            && self.0.match_expressions.iter().flatten().all(|wanted| {
                let value = labels.get(&*wanted.key);
                let listed = |value: &str| wanted.values.iter().flatten().any(|listed| **listed == *value);
                match &*wanted.operator {
                    "In" => value.is_some_and(|value| listed(value)),
                    "NotIn" => !value.is_some_and(|value| listed(value)),
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn selectors_read_every_operator() {
        let labels: BTreeMap<Box<str>, Box<str>> = [("a".into(), "1".into())].into();
        let selects =
            |selector: Value| serde_json::from_value::<Selector>(selector).unwrap().matches(&labels);
        let expression = |key: &str, operator: &str, values: &[&str]| {
            selects(
                serde_json::json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }),
            )
        };
        assert!(selects(serde_json::json!({})));
        assert!(selects(serde_json::json!({ "matchLabels": { "a": "1" } })));
        assert!(!selects(serde_json::json!({ "matchLabels": { "a": "2" } })));
        assert!(expression("a", "In", &["1", "2"]) && !expression("a", "In", &["2"]));
        assert!(expression("a", "NotIn", &["2"]) && expression("b", "NotIn", &["2"]));
        assert!(!expression("a", "NotIn", &["1"]));
        assert!(expression("a", "Exists", &[]) && !expression("b", "Exists", &[]));
        assert!(!expression("a", "DoesNotExist", &[]) && expression("b", "DoesNotExist", &[]));
        assert!(!expression("a", "Near", &["1"]));
    }
}
