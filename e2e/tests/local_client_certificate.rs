//! The certificates that Gateways show to backends, told by backends that ask for them.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Ingress, NAMESPACE, serve_with, service, service_object, slice};
use ingress_e2e::client::{self, H2Conn, RawConn, Response};
use ingress_e2e::h2_origin::{ClientName, H2Origin, answer};
use ingress_e2e::origin::{Origin, Received, Reply};
use ingress_e2e::pki::{Ca, KeyKind, Leaf, LeafOptions, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use serde_json::{Value, json};

/// The name that the backends' certificate has.
const INSIDE: &str = "in.example.com";

fn object(kind: &str, name: &str, spec: Value) -> String {
    let metadata = json!({"namespace": NAMESPACE, "name": name});
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
        .to_string()
}

fn class() -> String {
    object("GatewayClass", "tak-os", json!({"controllerName": "tak-os.org/gateway-controller"}))
}

/// A Gateway that shows the certificate of a Secret; an empty name is none.
fn gateway(name: &str, secret: &str) -> String {
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let mut spec = json!({"gatewayClassName": "tak-os", "listeners": listeners});
    if !secret.is_empty() {
        spec["tls"] = json!({"backend": {"clientCertificateRef": {"name": secret}}});
    }
    object("Gateway", name, spec)
}

/// A route of this kind for a host through a Gateway.
fn route(kind: &str, gateway: &str, host: &str, rules: Value) -> String {
    let spec = json!({"parentRefs": [{"name": gateway}], "hostnames": [host], "rules": rules});
    object(kind, host, spec)
}

fn to(service: &str) -> Value {
    json!([{"name": service, "port": 80}])
}

/// Who vouches for the backends, and a policy that believes it for each of these Services.
fn policies(ca: &Ca, services: &[&str]) -> Vec<String> {
    let metadata = json!({"namespace": NAMESPACE, "name": "ca"});
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": ca.pem()}});
    let refs = json!([{"group": "", "kind": "ConfigMap", "name": "ca"}]);
    let policy = |name: &&str| {
        let targets = json!([{"group": "", "kind": "Service", "name": name}]);
        let validation = json!({"caCertificateRefs": refs, "hostname": INSIDE});
        object("BackendTLSPolicy", name, json!({"targetRefs": targets, "validation": validation}))
    };
    services.iter().map(policy).chain([map.to_string()]).collect()
}

/// A Service whose port says that HTTP/2 is spoken there.
fn h2_service(name: &str, at: SocketAddr) -> [String; 2] {
    let port = json!([{"name": "h2", "port": 80, "appProtocol": "kubernetes.io/h2c"}]);
    [service_object(NAMESPACE, name, port), slice(NAMESPACE, name, 0, &[("h2", at)])]
}

/// A certificate with this common name. All have one serial number, as those of different authorities can.
fn identity(ca: &Ca, name: &str, kind: KeyKind) -> Leaf {
    let options = LeafOptions { common_name: name.into(), serial: Some(7), ..LeafOptions::default() };
    ca.leaf_with(&[], kind, &options)
}

/// Answers with the name of who asks.
fn who(request: &Received) -> Reply {
    Reply::new(200, request.client.as_deref().unwrap_or("nobody"))
}

async fn h2_who(leaf: &Leaf, authorities: &str) -> H2Origin {
    H2Origin::start_tls_demanding(leaf, authorities, async |request, respond| {
        let ClientName(name) = request.extensions().get().cloned().unwrap();
        let fields = [("content-type", "application/grpc"), ("grpc-status", "0"), ("x-client", &name)];
        answer(respond, 200, &fields, "");
    })
    .await
}

async fn get(product: &Product, host: &str, path: &str) -> Response {
    client::get(product.http(), host, path).await
}

/// As whom the backend of a host knows the proxy.
async fn known(product: &Product, host: &str) -> String {
    let answer = get(product, host, "/").await;
    assert_eq!(answer.status, 200, "{host}");
    answer.header("x-client").map_or_else(|| answer.text(), str::to_owned)
}

#[tokio::test]
async fn every_way_to_a_backend_shows_the_certificate() {
    let (ca, clients) = (Ca::new(), Ca::new());
    let leaf = ca.leaf(&[INSIDE], KeyKind::EcP256Sec1);
    let authorities = clients.pem();
    let web = Origin::https_asking(&leaf, &authorities, true, |request| match request.target() {
        "/chat" => Reply::new(101, "")
            .header("X-Client", request.client.as_deref().unwrap_or("nobody"))
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket"),
        _ => who(request),
    })
    .await;
    let calls = AtomicUsize::new(0);
    let flaky = Origin::https_asking(&leaf, &authorities, true, move |request| {
        match calls.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::new(503, "later").header("Connection", "close"),
            _ => who(request),
        }
    })
    .await;
    let copies = Origin::https_asking(&leaf, &authorities, true, who).await;
    let (h2, grpc) = (h2_who(&leaf, &authorities).await, h2_who(&leaf, &authorities).await);
    let mirror =
        json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "copies", "port": 80}}});
    let rules = json!([
        {"matches": [{"path": {"value": "/h2"}}], "backendRefs": to("h2")},
        {"matches": [{"path": {"value": "/flaky"}}], "backendRefs": to("flaky"),
         "retry": {"codes": [503], "attempts": 1, "backoff": "10ms"}},
        {"matches": [{"path": {"value": "/copied"}}], "backendRefs": to("web"), "filters": [mirror]},
        {"backendRefs": to("web")},
    ]);
    let mine = identity(&clients, "mine", KeyKind::Rsa2048Pkcs8);
    let objects = [
        class(),
        gateway("gw", "mine"),
        tls_secret_yaml(NAMESPACE, "mine", &mine),
        service("web", &[web.addr()]),
        service("flaky", &[flaky.addr()]),
        service("copies", &[copies.addr()]),
        route("HTTPRoute", "gw", "a.example.com", rules),
        route("GRPCRoute", "gw", "g.example.com", json!([{"backendRefs": to("grpc")}])),
    ];
    let services = [h2_service("h2", h2.addr()), h2_service("grpc", grpc.addr())].concat();
    let policies = policies(&ca, &["web", "flaky", "copies", "h2", "grpc"]);
    let product = serve_with(objects.into_iter().chain(services).chain(policies), &[]).await;

    assert_eq!(known(&product, "a.example.com").await, "mine");
    let answer = get(&product, "a.example.com", "/h2").await;
    assert_eq!((answer.status, answer.header("x-client")), (200, Some("mine")));
    let answer = get(&product, "a.example.com", "/flaky").await;
    assert_eq!((answer.status, answer.text()), (200, "mine".to_owned()));
    assert_eq!(flaky.accepts(), 2, "each attempt on a connection of its own");
    let conn = H2Conn::connect(product.http()).await.unwrap();
    let fields = [("content-type", "application/grpc"), ("te", "trailers")];
    let answer = conn.request("POST", "g.example.com", "/a.B/C", &fields, b"").await.unwrap();
    assert_eq!(answer.header("x-client"), Some("mine"), "{answer:?}");
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let handshake = "GET /chat HTTP/1.1\r\nHost: a.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    conn.send(handshake).await.unwrap();
    let answer = conn.read_head().await.unwrap();
    assert_eq!((answer.status, answer.header("x-client")), (101, Some("mine")));
    assert_eq!(get(&product, "a.example.com", "/copied").await.status, 200);
    eventually(DEADLINE, async || (copies.requests() == 1).then_some(())).await;
    assert_eq!(copies.accepts(), 1);

    // what is told of the certificate is whose it is
    let told =
        client::get(product.metrics_addr(), "localhost", "/debug/explain?host=a.example.com").await.text();
    assert!(told.contains("\"secret/shop/mine\""), "{told}");
    let snapshot = client::get(product.metrics_addr(), "localhost", "/debug/snapshot").await.text();
    for (at, text) in [("explain", told), ("snapshot", snapshot), ("log", product.log_text())] {
        for line in mine.key_pem.lines().filter(|line| !line.starts_with('-')) {
            assert!(!text.contains(line), "{at} has a part of the key");
        }
    }
}

#[tokio::test]
async fn each_gateway_shows_its_own_on_connections_of_its_own_and_a_new_one_counts_at_once() {
    let (ca, [one, two]) = (Ca::new(), [Ca::new(), Ca::new()]);
    let leaf = ca.leaf(&[INSIDE], KeyKind::EcP256Sec1);
    let authorities = one.pem() + &two.pem();
    let web = Origin::https_asking(&leaf, &authorities, false, who).await;
    let h2 = h2_who(&leaf, &authorities).await;
    let secret = |name: &str, ca: &Ca, as_whom: &str| {
        tls_secret_yaml(NAMESPACE, name, &identity(ca, as_whom, KeyKind::EcP256Sec1))
    };
    let rules = |service: &str| json!([{"backendRefs": to(service)}]);
    let objects = [
        class(),
        gateway("one", "one"),
        gateway("two", "two"),
        gateway("none", ""),
        secret("two", &two, "two"),
        service("web", &[web.addr()]),
        route("HTTPRoute", "one", "one.example.com", rules("web")),
        route("HTTPRoute", "two", "two.example.com", rules("web")),
        route("HTTPRoute", "none", "none.example.com", rules("web")),
        route("HTTPRoute", "one", "h2-one.example.com", rules("h2")),
        route("HTTPRoute", "two", "h2-two.example.com", rules("h2")),
        Ingress::new("own")
            .prefix("own.example.com", "/", "web")
            .set("backend-protocol", "https")
            .set("proxy-ssl-verify", "false")
            .yaml(),
    ];
    let documents =
        objects.into_iter().chain(h2_service("h2", h2.addr())).chain(policies(&ca, &["web", "h2"]));
    let product = serve_with(documents, &[]).await;
    let becomes = async |host: &str, name: &str| {
        eventually(DEADLINE, async || (known(&product, host).await == name).then_some(())).await;
    };
    assert_eq!(known(&product, "one.example.com").await, "nobody");
    product.write_manifest("one.yaml", &secret("one", &one, "one"));
    becomes("one.example.com", "one").await;
    let ask_all = async |one: &str| {
        for _ in 0..3 {
            for (host, name) in [
                ("one.example.com", one),
                ("two.example.com", "two"),
                ("none.example.com", "nobody"),
                ("own.example.com", "nobody"),
                ("h2-one.example.com", one),
                ("h2-two.example.com", "two"),
            ] {
                assert_eq!(known(&product, host).await, name, "{host}");
            }
        }
    };
    ask_all("one").await;
    assert!(web.accepts() * 2 < web.requests() && h2.accepts() * 2 < h2.requests(), "connections are kept");
    // with the same serial number, while connections of the old one are kept
    product.write_manifest("one.yaml", &secret("one", &two, "new"));
    becomes("one.example.com", "new").await;
    ask_all("new").await;
    product.remove_manifest("one.yaml");
    becomes("one.example.com", "nobody").await;
}

#[tokio::test]
async fn without_a_certificate_that_resolves_a_backend_that_demands_one_refuses() {
    let (ca, clients) = (Ca::new(), Ca::new());
    let leaf = ca.leaf(&[INSIDE], KeyKind::EcP256Sec1);
    let web = Origin::https_asking(&leaf, &clients.pem(), true, who).await;
    let objects = [
        class(),
        gateway("gw", "mine"),
        service("web", &[web.addr()]),
        route("HTTPRoute", "gw", "a.example.com", json!([{"backendRefs": to("web")}])),
    ];
    let product = serve_with(objects.into_iter().chain(policies(&ca, &["web"])), &[]).await;
    let status = async || get(&product, "a.example.com", "/").await.status;
    assert_eq!((status().await, web.requests()), (502, 0));
    let told = async |count: usize| {
        eventually(DEADLINE, async || {
            let of = |e: &&Value| e["id"] == "TAK-7015" && e["object"] == "gateway/shop/gw";
            let told = product.log_entries("mistake in an object");
            (told.iter().filter(of).count() == count).then_some(())
        })
        .await;
    };
    told(1).await;
    let secret = |ca: &Ca, kind| tls_secret_yaml(NAMESPACE, "mine", &identity(ca, "mine", kind));
    product.write_manifest("mine.yaml", &secret(&clients, KeyKind::EcP384Pkcs8));
    eventually(DEADLINE, async || (status().await == 200).then_some(())).await;
    // of somebody else, and of a kind that is never shown
    product.write_manifest("mine.yaml", &secret(&Ca::new(), KeyKind::EcP256Sec1));
    eventually(DEADLINE, async || (status().await == 502).then_some(())).await;
    product.write_manifest("mine.yaml", &secret(&clients, KeyKind::Ed25519));
    told(2).await;
    assert_eq!(status().await, 502);
}
