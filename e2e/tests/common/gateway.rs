//! Objects of the Gateway API.

use super::NAMESPACE;
use serde_json::{Value, json};

pub const GROUP: &str = "gateway.networking.k8s.io";

/// An object of the group's version `v1`.
pub fn object(kind: &str, name: &str, spec: Value) -> String {
    object_in(NAMESPACE, kind, name, spec)
}

/// [`object`] in another namespace.
pub fn object_in(namespace: &str, kind: &str, name: &str, spec: Value) -> String {
    let metadata = json!({"namespace": namespace, "name": name});
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": metadata, "spec": spec}).to_string()
}

/// A class, and a Gateway `gw` with these listeners.
pub fn gateway(listeners: Value) -> [String; 2] {
    let class = json!({"controllerName": "tak-os.org/gateway-controller"});
    let spec = json!({"gatewayClassName": "tak-os", "listeners": listeners});
    [object("GatewayClass", "tak-os", class), object("Gateway", "gw", spec)]
}

/// One listener, for HTTP on port 80.
pub fn http() -> Value {
    json!([{"name": "http", "port": 80, "protocol": "HTTP"}])
}

/// An HTTPRoute on `gw` for this host.
pub fn route(name: &str, host: &str, rules: Value) -> String {
    let spec = json!({"parentRefs": [{"name": "gw"}], "hostnames": [host], "rules": rules});
    object("HTTPRoute", name, spec)
}

/// Backends: the Service of this name alone.
pub fn to(service: &str) -> Value {
    json!([{"name": service, "port": 80}])
}
