//! TLSRoutes from files, served by the real binary: connections that end at their backend, beside others that end here.

mod common;

use common::{NAMESPACE, connect_from, serve_with, service};
use ingress_e2e::client::{self, RawConn, Tls};
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const PASSED: &str = "x.pass.example.com";

fn object(kind: &str, name: &str, spec: Value) -> String {
    let metadata = json!({"namespace": NAMESPACE, "name": name});
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
        .to_string()
}

fn tls_route(name: &str, host: &str, service: &str) -> String {
    let rules = json!([{"backendRefs": [{"name": service, "port": 80}]}]);
    object("TLSRoute", name, json!({"parentRefs": [{"name": "gw"}], "hostnames": [host], "rules": rules}))
}

/// A class, and a Gateway that passes on `*.pass.example.com` and ends `a.example.com` at the same port.
fn gateway() -> [String; 2] {
    let listeners = json!([
        {"name": "tls", "port": 443, "protocol": "TLS", "hostname": "*.pass.example.com",
         "tls": {"mode": "Passthrough"}},
        {"name": "https", "port": 443, "protocol": "HTTPS", "hostname": "a.example.com",
         "tls": {"certificateRefs": [{"name": "tls"}]}},
    ]);
    let class = json!({"controllerName": "tak-os.org/gateway-controller"});
    let spec = json!({"gatewayClassName": "tak-os", "listeners": listeners});
    [object("GatewayClass", "tak-os", class), object("Gateway", "gw", spec)]
}

/// The line of a connection that was passed on.
async fn passed(product: &Product, name: &str) -> Value {
    let ours = |line: &Value| line["protocol"] == "TLS" && line["sni"] == name;
    eventually(DEADLINE, async || product.log().into_iter().find(ours)).await
}

#[tokio::test]
async fn a_passed_connection_ends_at_its_backend_and_others_end_here() {
    let (here, there) = (Ca::new(), Ca::new());
    let leaf = here.leaf(&["a.example.com"], KeyKind::EcP256Sec1);
    let theirs = there.leaf(&[PASSED, "late.pass.example.com"], KeyKind::EcP256Sec1);
    let tls = Origin::echo_tls(&theirs.cert_pem, &theirs.key_pem).await.named("tls");
    let one = Origin::echo().await.named("one");
    let rules = json!([{"backendRefs": [{"name": "one", "port": 80}]}]);
    let http = json!({"parentRefs": [{"name": "gw"}], "hostnames": ["a.example.com"], "rules": rules});
    let objects = [
        service("tls", &[tls.addr()]),
        service("one", &[one.addr()]),
        tls_secret_yaml(NAMESPACE, "tls", &leaf),
        object("HTTPRoute", "h", http),
        tls_route("t", PASSED, "tls"),
        tls_route("bad", "bad.pass.example.com", "nobody"),
    ];
    let product = serve_with(gateway().into_iter().chain(objects), &[]).await;
    let get =
        async |name: &str, ca: &Ca| client::tls_get(product.https(), name, name, "/", Some(&ca.pem())).await;

    // The certificate is the backend's, and what is sent inside is seen by nobody here.
    let answer = get(PASSED, &there).await;
    assert_eq!((answer.status, answer.origin()), (200, "tls".to_owned()));
    assert!(answer.echoed("x-forwarded-for").is_empty());
    assert_eq!(get("a.example.com", &here).await.origin(), "one");
    // A name that nobody declares ends here, as ever.
    let unknown =
        client::tls_get(product.https(), "unknown.example.org", "unknown.example.org", "/", None).await;
    assert_eq!(unknown.status, 404);
    // No route, or none of its backends: closed.
    for name in ["late.pass.example.com", "bad.pass.example.com"] {
        assert!(Tls::new().sni(name).connect(product.https()).await.is_err(), "{name}");
    }
    let line = passed(&product, PASSED).await;
    assert_eq!((&line["route"], &line["rule"]), (&json!("tlsroute/shop/t"), &json!("rules[0]")), "{line}");
    assert!(line["bytes_in"].as_u64() > Some(0) && line["bytes_out"].as_u64() > Some(0), "{line}");
    assert_eq!(passed(&product, "bad.pass.example.com").await["bytes_out"], 0);

    let asked = format!("/debug/explain?host={PASSED}&scheme=https");
    let told = client::get(product.metrics_addr(), "localhost", &asked).await.text();
    assert!(told.contains("passed on unread, by tlsroute/shop/t"), "{told}");

    product.write_manifest("late.yaml", &tls_route("late", "late.pass.example.com", "tls"));
    eventually(DEADLINE, async || {
        let name = "late.pass.example.com";
        let answer = client::try_tls_get(product.https(), name, name, "/", Some(&there.pem())).await;
        answer.ok().filter(|answer| answer.origin() == "tls")
    })
    .await;
}

#[tokio::test]
async fn a_passed_connection_is_logged_for_the_client_that_the_proxy_protocol_names() {
    let ca = Ca::new();
    let leaf = ca.leaf(&[PASSED], KeyKind::EcP256Sec1);
    let tls = Origin::echo_tls(&leaf.cert_pem, &leaf.key_pem).await;
    let objects = [service("tls", &[tls.addr()]), tls_route("t", PASSED, "tls")];
    let args = ["--trusted-proxies=127.0.0.2", "--proxy-protocol"];
    let product = serve_with(gateway().into_iter().chain(objects), &args).await;
    let mut stream = connect_from("127.0.0.2", product.https()).await;
    stream.write_all(b"PROXY TCP4 203.0.113.9 198.51.100.1 56324 443\r\n").await.unwrap();
    let stream = Tls::new().sni(PASSED).ca(&ca.pem()).handshake(stream).await.unwrap();
    let mut conn = RawConn::from_tls(stream).unwrap();
    assert_eq!(conn.get(PASSED, "/").await.unwrap().status, 200);
    drop(conn);
    let line = passed(&product, PASSED).await;
    assert_eq!(line["client"], "203.0.113.9", "{line}");
}
