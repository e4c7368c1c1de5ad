//! Definitions (CRDs) of the Gateway API's kinds: which release of it is installed, and which of its channels.

use super::gateway::GROUP;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use std::sync::Arc;

/// Of a definition, as it is listed and watched: its metadata alone, for the rest is large.
pub type Definition = PartialObjectMeta<CustomResourceDefinition>;

/// A definition of one of the Gateway API's kinds, reduced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionObject {
    /// `httproutes.gateway.networking.k8s.io`
    pub name: Arc<str>,
    /// The release of the Gateway API that it is of (annotation `gateway.networking.k8s.io/bundle-version`).
    pub bundle: Option<Box<str>>,
    /// Whether it has the fields of the experimental channel (annotation `gateway.networking.k8s.io/channel`).
    pub experimental: bool,
}

impl DefinitionObject {
    /// `Err` with its name if it is not one of the Gateway API.
    pub(crate) fn of(definition: Definition) -> Result<Self, Arc<str>> {
        let meta = definition.metadata;
        let name: Arc<str> = meta.name.unwrap_or_default().into();
        if name.strip_suffix(GROUP).is_none_or(|plural| !plural.ends_with('.')) {
            return Err(name);
        }
        let mut annotations = meta.annotations.unwrap_or_default();
        let mut annotation = |key: &str| annotations.remove(&format!("{GROUP}/{key}"));
        Ok(Self {
            bundle: annotation("bundle-version").map(Into::into),
            experimental: annotation("channel").as_deref() == Some("experimental"),
            name,
        })
    }
}
