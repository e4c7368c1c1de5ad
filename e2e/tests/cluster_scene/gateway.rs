//! The Gateway API in a cluster: its kinds, objects of them, and an account that may write statuses.

use std::path::PathBuf;
use std::process::Command;

use ingress_e2e::cluster::Cluster;
use kube::Api;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::{HOME, account, grant_in, in_force, join, requests_of};

/// The API group.
pub const GROUP: &str = "gateway.networking.k8s.io";
const MODULE: &str = "sigs.k8s.io/gateway-api@v1.6.3";
const CONTROLLER: &str = "tak-os.org/gateway-controller";

/// The kinds of the standard channel, as the Gateway API publishes them.
pub fn definitions() -> String {
    let output = Command::new("go").args(["mod", "download", "-json", MODULE]).current_dir("/").output();
    let output = output.expect("`go` runs: the Gateway API's kinds come with its Go module");
    let found: Value = serde_json::from_slice(&output.stdout).expect("go tells where the module is");
    let dir = found["Dir"].as_str().unwrap_or_else(|| panic!("{found}"));
    let kinds = [
        "gatewayclasses",
        "gateways",
        "listenersets",
        "httproutes",
        "grpcroutes",
        "tlsroutes",
        "referencegrants",
        "backendtlspolicies",
    ];
    let files = kinds.map(|kind| {
        let file = format!("{dir}/config/crd/standard/gateway.networking.k8s.io_{kind}.yaml");
        std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"))
    });
    join(files)
}

/// The GatewayClass `tak-os`.
pub fn class() -> String {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "GatewayClass", "metadata": {"name": "tak-os"},
        "spec": {"controllerName": CONTROLLER},
    })
    .to_string()
}

/// A Gateway `gw` with these listeners.
pub fn gateway(namespace: &str, listeners: Value) -> String {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "Gateway", "metadata": {"namespace": namespace, "name": "gw"},
        "spec": {"gatewayClassName": "tak-os", "listeners": listeners},
    })
    .to_string()
}

/// Objects of a kind, in a namespace or (with an empty name) of the cluster.
pub async fn api(cluster: &Cluster, namespace: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", kind), plural);
    let client = cluster.admin().await;
    if namespace.is_empty() {
        Api::all_with(client, &resource)
    } else {
        Api::namespaced_with(client, namespace, &resource)
    }
}

/// Writes of statuses by these accounts so far.
pub fn writes(cluster: &Cluster, accounts: &[&str]) -> usize {
    let all = accounts.iter().flat_map(|account| requests_of(cluster, account));
    all.filter(|r| matches!(r.verb.as_str(), "patch" | "update" | "create") && r.what.ends_with("/status"))
        .count()
}

/// An account that may do what the shipped roles say, the Lease included.
pub async fn pod_account(cluster: &Cluster, name: &str) -> PathBuf {
    let kubeconfig = account(cluster, name).await;
    let lease = json!({
        "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
        "verbs": ["get", "create", "update", "patch"],
    });
    grant_in(cluster, HOME, name, std::slice::from_ref(&lease)).await;
    in_force(cluster, &kubeconfig, &lease, Some(HOME)).await;
    kubeconfig
}
