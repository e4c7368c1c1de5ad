//! TLSRoutes from files, served by the real binary: connections that end at their backend, beside others that end here.

mod common;

use common::{NAMESPACE, connect_from, serve_with, service};
use ingress_e2e::client::{self, RawConn, Tls};
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, Leaf, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::sessions::SessionClient;
use ingress_e2e::{DEADLINE, eventually};
use openssl::ssl::SslVersion;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

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

const ENDED: &str = "x.term.example.com";

/// A Gateway that ends TLS for TLSRoutes at `*.term.example.com`, passes `*.pass.example.com` on, and has
/// `a.example.com` for HTTP, all at one port; with its class and certificates.
fn mixed(ca: &Ca) -> Vec<String> {
    let listeners = json!([
        {"name": "term", "port": 443, "protocol": "TLS", "hostname": "*.term.example.com",
         "tls": {"mode": "Terminate", "certificateRefs": [{"name": "term"}]}},
        {"name": "pass", "port": 443, "protocol": "TLS", "hostname": "*.pass.example.com",
         "tls": {"mode": "Passthrough"}},
        {"name": "https", "port": 443, "protocol": "HTTPS", "hostname": "a.example.com",
         "tls": {"certificateRefs": [{"name": "tls"}]}},
    ]);
    let [class, _] = gateway();
    let secret =
        |name: &str, hosts: &[&str]| tls_secret_yaml(NAMESPACE, name, &ca.leaf(hosts, KeyKind::EcP256Sec1));
    let gateway = object("Gateway", "gw", json!({"gatewayClassName": "tak-os", "listeners": listeners}));
    vec![class, gateway, secret("term", &["*.term.example.com"]), secret("tls", &["a.example.com"])]
}

/// Speaks first, reads to the end, and says it all again. How its reading ended is told.
async fn parrot() -> (Origin, mpsc::UnboundedReceiver<std::io::Result<usize>>) {
    let (tell, told) = mpsc::unbounded_channel();
    let origin = Origin::raw(move |mut stream| {
        let tell = tell.clone();
        async move {
            stream.write_all(b"hello").await.unwrap();
            let mut all = Vec::new();
            let read = stream.read_to_end(&mut all).await;
            let _ = stream.write_all(&all).await;
            let _ = stream.shutdown().await;
            let _ = tell.send(read);
        }
    });
    (origin.await, told)
}

#[tokio::test]
async fn tls_ends_here_and_its_octets_go_on_beside_passed_and_served_hosts() {
    let (here, there) = (Ca::new(), Ca::new());
    let theirs = there.leaf(&[PASSED], KeyKind::EcP256Sec1);
    let passed_on = Origin::echo_tls(&theirs.cert_pem, &theirs.key_pem).await.named("tls");
    let one = Origin::echo().await.named("one");
    let (parrot, mut told) = parrot().await;
    let http = json!({"parentRefs": [{"name": "gw"}], "hostnames": ["a.example.com"],
                      "rules": [{"backendRefs": [{"name": "one", "port": 80}]}]});
    let objects = [
        service("tls", &[passed_on.addr()]),
        service("one", &[one.addr()]),
        service("parrot", &[parrot.addr()]),
        service("empty", &[]),
        object("HTTPRoute", "h", http),
        tls_route("p", PASSED, "tls"),
        tls_route("t", ENDED, "parrot"),
        tls_route("empty", "empty.term.example.com", "empty"),
        tls_route("bad", "bad.term.example.com", "nobody"),
    ];
    let product = serve_with(mixed(&here).into_iter().chain(objects), &[]).await;
    let tls = |name: &str| Tls::new().sni(name).ca(&here.pem()).alpn(&["h2", "http/1.1"]);

    let mut stream = tls(ENDED).connect(product.https()).await.unwrap();
    assert_eq!(stream.ssl().selected_alpn_protocol(), None, "what is inside is no HTTP");
    let mut hello = [0; 5];
    stream.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello");
    // The client ends its side; the backend's goes on.
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    stream.write_all(&sent).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).await.unwrap();
    assert!(back == sent, "{} octets came back", back.len());
    assert_eq!(told.recv().await.unwrap().unwrap(), sent.len());
    let line = eventually(DEADLINE, async || {
        product.log().into_iter().find(|line| line["protocol"] == "TCP" && line["sni"] == ENDED)
    })
    .await;
    assert_eq!(
        (&line["route"], &line["bytes_in"]),
        (&json!("tlsroute/shop/t"), &json!(sent.len())),
        "{line}"
    );
    assert_eq!((&line["bytes_out"], &line["tls_version"]), (&json!(sent.len() + 5), &json!("TLSv1.3")));

    // What breaks off is no end.
    let mut stream = tls(ENDED).connect(product.https()).await.unwrap();
    stream.write_all(b"half of").await.unwrap();
    stream.read_exact(&mut hello).await.unwrap();
    drop(stream);
    assert!(told.recv().await.unwrap().is_err(), "the backend takes it for an end");

    // Nobody to talk to: closed, and where there is no route before the handshake.
    assert!(tls("none.term.example.com").connect(product.https()).await.is_err());
    for name in ["empty.term.example.com", "bad.term.example.com"] {
        let mut stream = tls(name).connect(product.https()).await.unwrap();
        assert!(!matches!(stream.read(&mut hello).await, Ok(1..)), "{name}");
    }

    // The others at the same port are as they would be without.
    let get = async |sni: &str, host: &str, ca: &Ca| {
        client::tls_get(product.https(), sni, host, "/", Some(&ca.pem())).await
    };
    assert_eq!(get(PASSED, PASSED, &there).await.origin(), "tls");
    assert_eq!(get("a.example.com", "a.example.com", &here).await.origin(), "one");
    assert_eq!(get("a.example.com", ENDED, &here).await.status, 421);
    let asked = format!("/debug/explain?host={ENDED}&scheme=https");
    let told = client::get(product.metrics_addr(), "localhost", &asked).await.text();
    assert!(told.contains("TLS ends here") && told.contains("tlsroute/shop/t"), "{told}");
}

#[tokio::test]
async fn where_a_policy_asks_for_tls_the_octets_are_encrypted_again_or_go_nowhere() {
    let (here, there) = (Ca::new(), Ca::new());
    let theirs = there.leaf(&["in.example.com"], KeyKind::EcP256Sec1);
    let backend = Origin::echo_tls(&theirs.cert_pem, &theirs.key_pem).await.named("tls");
    let policy = |service: &str, ca: &str| {
        let refs = json!([{"group": "", "kind": "ConfigMap", "name": ca}]);
        let validation = json!({"caCertificateRefs": refs, "hostname": "in.example.com"});
        let targets = json!([{"group": "", "kind": "Service", "name": service}]);
        object("BackendTLSPolicy", service, json!({"targetRefs": targets, "validation": validation}))
    };
    let map = |name: &str, ca: &str| {
        let metadata = json!({"namespace": NAMESPACE, "name": name});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": ca}})
            .to_string()
    };
    let mut objects = mixed(&here);
    let (tell, mut told) = mpsc::unbounded_channel();
    let listens = Origin::raw(move |mut stream| {
        let tell = tell.clone();
        async move {
            let mut hello = vec![0; 4096];
            let n = stream.read(&mut hello).await.unwrap();
            let _ = tell.send(hello[..n].to_vec());
        }
    });
    let (backend_at, listens) = (backend.addr(), listens.await);
    for (name, ca, at) in [
        ("right", "there", backend_at),
        ("wrong", "here", backend_at),
        ("none", "nowhere", backend_at),
        ("hello", "there", listens.addr()),
    ] {
        objects.push(service(name, &[at]));
        objects.push(policy(name, ca));
        objects.push(tls_route(name, &format!("{name}.term.example.com"), name));
    }
    objects.extend([map("there", &there.pem()), map("here", &here.pem())]);
    let product = serve_with(objects, &[]).await;
    let get = async |name: &str| {
        let name = format!("{name}.term.example.com");
        client::try_tls_get(product.https(), &name, &name, "/", Some(&here.pem())).await
    };
    assert_eq!(get("right").await.unwrap().origin(), "tls");
    assert!(get("wrong").await.is_err());
    assert!(get("none").await.is_err());
    assert_eq!(backend.requests(), 1, "nothing went anywhere else");
    // Of what is spoken inside nothing is said.
    assert!(get("hello").await.is_err());
    let hello = told.recv().await.unwrap();
    let says = |what: &[u8]| hello.windows(what.len()).any(|part| part == what);
    assert!(says(b"in.example.com") && !says(b"\x08http/1.1") && !says(b"\x02h2"), "{hello:?}");
}

#[tokio::test]
async fn what_clients_must_show_holds_where_tls_ends_for_a_route() {
    let (here, clients, others) = (Ca::new(), Ca::new(), Ca::new());
    let (parrot, _told) = parrot().await;
    let mut objects = mixed(&here);
    let frontend = json!({"default": {"validation":
        {"mode": "AllowValidOnly", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "clients"}]}}});
    let mut gateway: Value = serde_json::from_str(&objects[1]).unwrap();
    gateway["spec"]["tls"] = json!({"frontend": frontend});
    objects[1] = gateway.to_string();
    let metadata = json!({"namespace": NAMESPACE, "name": "clients"});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": clients.pem()}});
    objects.extend([map.to_string(), service("parrot", &[parrot.addr()]), tls_route("t", ENDED, "parrot")]);
    let product = serve_with(objects, &[]).await;
    let hello = async |leaf: Option<Leaf>| {
        let tls = Tls::new().sni(ENDED).ca(&here.pem()).alpn(&["h2"]);
        let tls = leaf.map_or(tls.clone(), |leaf| tls.identity(&leaf.cert_pem, &leaf.key_pem));
        let mut stream = tls.connect(product.https()).await.ok()?;
        assert_eq!(stream.ssl().selected_alpn_protocol(), None);
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).await.ok()?;
        Some(hello)
    };
    assert_eq!(hello(Some(clients.leaf(&[], KeyKind::EcP256Sec1))).await, Some(*b"hello"));
    assert_eq!(hello(None).await, None);
    assert_eq!(hello(Some(others.leaf(&[], KeyKind::EcP256Sec1))).await, None);
    assert_eq!(parrot.accepts(), 1, "nobody else came this far");
}

#[tokio::test]
async fn sessions_are_resumed_where_tls_ends_for_a_route() {
    let (here, clients) = (Ca::new(), Ca::new());
    let one = Origin::echo().await.named("one");
    for demand in [false, true] {
        let mut objects = mixed(&here);
        if demand {
            let refs = json!([{"group": "", "kind": "ConfigMap", "name": "clients"}]);
            let mut gateway: Value = serde_json::from_str(&objects[1]).unwrap();
            gateway["spec"]["tls"] =
                json!({"frontend": {"default": {"validation": {"caCertificateRefs": refs}}}});
            objects[1] = gateway.to_string();
        }
        let metadata = json!({"namespace": NAMESPACE, "name": "clients"});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": clients.pem()}});
        objects.extend([map.to_string(), service("one", &[one.addr()]), tls_route("t", ENDED, "one")]);
        let product = serve_with(objects, &[]).await;
        let (addr, leaf) = (product.https(), clients.leaf(&[], KeyKind::EcP256Sec1));
        let work = move || {
            for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
                let client = SessionClient::new(version, demand.then_some(&leaf));
                for resumed in [false, true, true] {
                    assert_eq!(client.get(addr, ENDED), (Some(200), resumed), "{version:?}, {demand}");
                }
                let nobody = SessionClient::new(version, None);
                assert_eq!(nobody.get(addr, ENDED).0.is_some(), !demand, "{version:?}");
            }
        };
        tokio::task::spawn_blocking(work).await.unwrap();
    }
}
