//! What the tests in this folder share: manifests as text, and a product that serves them.
//!
//! Every document is JSON, which is YAML and needs no care for quoting.
#![allow(dead_code)] // each test binary uses a part of it

pub mod gateway;
pub mod h2;

use std::net::SocketAddr;
use std::time::Duration;

use ingress_e2e::client::RawConn;
use ingress_e2e::origin::Origin;
use ingress_e2e::product::Product;
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};

/// The host that most tests use.
pub const HOST: &str = "app.example.com";
/// The namespace of everything that names no other.
pub const NAMESPACE: &str = "shop";
/// The prefix of the product's own annotations.
pub const PREFIX: &str = "ingress.tak-os.org/";

/// An Ingress of class `tak-os` without rules.
#[derive(Clone)]
pub struct Ingress(Value);

impl Ingress {
    pub fn new(name: &str) -> Self {
        Self::at(NAMESPACE, name)
    }

    pub fn at(namespace: &str, name: &str) -> Self {
        Self(json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {"namespace": namespace, "name": name, "annotations": {}},
            "spec": {"ingressClassName": "tak-os", "rules": [], "tls": []},
        }))
    }

    /// Sets `creationTimestamp` to a day of January 2026.
    pub fn created(mut self, day: u32) -> Self {
        self.0["metadata"]["creationTimestamp"] = format!("2026-01-{day:02}T00:00:00Z").into();
        self
    }

    /// Replaces `ingressClassName`; `None` leaves it out.
    pub fn class(mut self, class: Option<&str>) -> Self {
        self.0["spec"]["ingressClassName"] = class.into();
        if class.is_none() {
            self.0["spec"].as_object_mut().unwrap().remove("ingressClassName");
        }
        self
    }

    /// Sets an annotation by its full key.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    /// Sets an annotation of the product.
    pub fn set(self, key: &str, value: &str) -> Self {
        self.annotation(&format!("{PREFIX}{key}"), value)
    }

    pub fn exact(self, host: &str, path: &str, service: &str) -> Self {
        self.rule(host, json!({"path": path, "pathType": "Exact"}), service, json!({"number": 80}))
    }

    pub fn prefix(self, host: &str, path: &str, service: &str) -> Self {
        self.rule(host, json!({"path": path, "pathType": "Prefix"}), service, json!({"number": 80}))
    }

    /// A rule of its own for one path; an empty host is left out.
    pub fn rule(mut self, host: &str, mut path: Value, service: &str, port: Value) -> Self {
        path["backend"] = json!({"service": {"name": service, "port": port}});
        let mut rule = json!({"http": {"paths": [path]}});
        if !host.is_empty() {
            rule["host"] = host.into();
        }
        self.0["spec"]["rules"].as_array_mut().unwrap().push(rule);
        self
    }

    /// A `tls` block with a Secret.
    pub fn tls(mut self, hosts: &[&str], secret: &str) -> Self {
        self.0["spec"]["tls"].as_array_mut().unwrap().push(json!({"hosts": hosts, "secretName": secret}));
        self
    }

    /// The object itself, for what this builder has no word for.
    pub fn object(&mut self) -> &mut Value {
        &mut self.0
    }

    pub fn yaml(&self) -> String {
        self.0.to_string()
    }
}

/// An Opaque Secret with these values.
pub fn secret(name: &str, data: Value) -> String {
    secret_in(NAMESPACE, name, data)
}

/// [`secret`] in another namespace.
pub fn secret_in(namespace: &str, name: &str, data: Value) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": namespace, "name": name},
        "stringData": data,
    })
    .to_string()
}

/// All of a host over TLS with the certificate `cert`, to the Service `web`, behind the OAuth2 Secret of the Ingress's name.
pub fn behind_login(name: &str, host: &str) -> String {
    let ingress = Ingress::new(name).prefix(host, "/", "web").tls(&[host], "cert");
    ingress.annotation("k8s.tak-os.com/oauth2-secret", name).yaml()
}

/// A Service with port 80, called `http`, and one EndpointSlice for each address.
pub fn service(name: &str, endpoints: &[SocketAddr]) -> String {
    service_in(NAMESPACE, name, endpoints)
}

/// [`service`] in another namespace.
pub fn service_in(namespace: &str, name: &str, endpoints: &[SocketAddr]) -> String {
    let ports = json!([{"name": "http", "port": 80}]);
    let slices = endpoints.iter().enumerate().map(|(i, at)| slice(namespace, name, i, &[("http", *at)]));
    join(std::iter::once(service_object(namespace, name, ports)).chain(slices))
}

/// A Service with these ports and no endpoints.
pub fn service_object(namespace: &str, name: &str, ports: Value) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"ports": ports, "selector": {"app": name}},
    })
    .to_string()
}

/// The EndpointSlice number `index` of a Service: one ready endpoint, its ports by name. All must have one IP address.
pub fn slice(namespace: &str, service: &str, index: usize, ports: &[(&str, SocketAddr)]) -> String {
    let ip = ports[0].1.ip();
    let numbers: Vec<_> = ports.iter().map(|(name, at)| json!({"name": name, "port": at.port()})).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace,
            "name": format!("{service}-{index}"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": if ip.is_ipv6() { "IPv6" } else { "IPv4" },
        "ports": numbers,
        "endpoints": [{"addresses": [ip.to_string()], "conditions": {"ready": true}}],
    })
    .to_string()
}

/// One file of many documents.
pub fn join(documents: impl IntoIterator<Item = String>) -> String {
    documents.into_iter().collect::<Vec<_>>().join("\n---\n")
}

/// A product that serves these documents and is ready.
pub async fn serve(documents: impl IntoIterator<Item = String>) -> Product {
    serve_with(documents, &[]).await
}

/// [`serve`] with further arguments.
pub async fn serve_with(documents: impl IntoIterator<Item = String>, args: &[&str]) -> Product {
    let builder = Product::builder().manifests_yaml(&join(documents));
    let product = args.iter().fold(builder, |builder, arg| builder.arg(*arg)).start().await;
    product.ready().await;
    product
}

/// [`HOST`] with Prefix `/` leads to `origin`.
pub fn everything_to(origin: &Origin) -> [String; 2] {
    [Ingress::new("web").prefix(HOST, "/", "web").yaml(), service("web", &[origin.addr()])]
}

/// A TCP connection from a loopback address of one's choice: `127.0.0.2`, and so on.
pub async fn connect_from(ip: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(ip.parse().unwrap(), 0)).unwrap();
    socket.connect(to).await.unwrap()
}

/// [`connect_from`], for HTTP.
pub async fn client_from(ip: &str, to: SocketAddr) -> RawConn {
    RawConn::from_tcp(connect_from(ip, to).await).unwrap()
}

/// Sends bytes on a new connection: the status of the first answer, 0 where there is none. Panics if the proxy refuses
/// and leaves the connection open.
pub async fn status_of(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> u16 {
    let mut conn = RawConn::connect(addr).await.unwrap();
    // The proxy may answer and close before it has read everything.
    let _ = conn.send(bytes.as_ref()).await;
    let closed = conn.closed_within(Duration::from_secs(3)).await;
    let status = status_in(&conn.read_some().await.unwrap_or_default());
    assert!(closed || status == 200, "{:?}: open after {status}", String::from_utf8_lossy(bytes.as_ref()));
    status
}

/// The status of the first answer in what a server sent, 0 where there is none.
pub fn status_in(answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(answer);
    let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    status.unwrap_or(0)
}

/// A GET that asks the server to close, with the target as it stands.
pub fn get(host: &str, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}
