//! Objects of any kind from YAML text to the API server and away.

use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiCapabilities, ApiResource, Scope, pinned_kind};
use kube::{Api, Client};

use crate::within;

pub(super) async fn apply(client: &Client, yaml: &str) {
    for object in parse(yaml) {
        let (api, name) = api_for(client, &object).await;
        let parameters = PatchParams::apply("e2e").force();
        if let Err(e) = api.patch(&name, &parameters, &Patch::Apply(&object)).await {
            panic!("cannot apply {}: {e}", describe(&object));
        }
    }
}

pub(super) async fn delete(client: &Client, yaml: &str) {
    for object in parse(yaml) {
        let (api, name) = api_for(client, &object).await;
        match api.delete(&name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(e) => panic!("cannot delete {}: {e}", describe(&object)),
        }
    }
}

fn parse(yaml: &str) -> Vec<DynamicObject> {
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(yaml) {
        let value: serde_json::Value = serde::Deserialize::deserialize(document)
            .unwrap_or_else(|e| panic!("document {} of the YAML: {e}\n{yaml}", objects.len() + 1));
        if value.is_null() {
            continue;
        }
        let object: DynamicObject = serde_json::from_value(value.clone())
            .unwrap_or_else(|e| panic!("not a Kubernetes object: {e}: {value}"));
        assert!(object.types.is_some() && object.metadata.name.is_some(), "kind or name is missing: {value}");
        objects.push(object);
    }
    objects
}

async fn api_for(client: &Client, object: &DynamicObject) -> (Api<DynamicObject>, String) {
    let types = object.types.as_ref().expect("checked when parsed");
    let kind = GroupVersionKind::try_from(types).unwrap_or_else(|e| panic!("{}: {e}", describe(object)));
    let mut last = String::new();
    let found: Option<(ApiResource, ApiCapabilities)> =
        within(Duration::from_secs(5), async || match pinned_kind(client, &kind).await {
            Ok(found) => Some(found),
            Err(e) => {
                last = e.to_string();
                None
            }
        })
        .await;
    let Some((resource, capabilities)) = found else {
        panic!("the API server does not serve {}: {last}", describe(object));
    };
    let api = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    };
    (api, object.metadata.name.clone().expect("checked when parsed"))
}

fn describe(object: &DynamicObject) -> String {
    let (version, kind) = object.types.as_ref().map_or(("", ""), |t| (&*t.api_version, &*t.kind));
    let namespace = object.metadata.namespace.as_deref().unwrap_or("");
    format!("{version} {kind} {namespace}/{}", object.metadata.name.as_deref().unwrap_or(""))
}
