//! Gateway API objects from files, served by the real binary: matches, filters, weights, isolation, and Ingresses beside.

mod common;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Ingress, NAMESPACE, serve_with, service, service_in};
use ingress_e2e::client::{self, RawConn, Response};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use serde_json::{Value, json};

const GROUP: &str = "gateway.networking.k8s.io";

fn object(kind: &str, name: &str, spec: Value) -> String {
    object_in(NAMESPACE, kind, name, spec)
}

fn object_in(namespace: &str, kind: &str, name: &str, spec: Value) -> String {
    let metadata = json!({"namespace": namespace, "name": name});
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": metadata, "spec": spec}).to_string()
}

/// A class, and a Gateway `gw` with these listeners.
fn gateway(listeners: Value) -> [String; 2] {
    let class = json!({"controllerName": "tak-os.org/gateway-controller"});
    let spec = json!({"gatewayClassName": "tak-os", "listeners": listeners});
    [object("GatewayClass", "tak-os", class), object("Gateway", "gw", spec)]
}

fn http() -> Value {
    json!([{"name": "http", "port": 80, "protocol": "HTTP"}])
}

/// An HTTPRoute on `gw` for this host.
fn route(name: &str, host: &str, rules: Value) -> String {
    let spec = json!({"parentRefs": [{"name": "gw"}], "hostnames": [host], "rules": rules});
    object("HTTPRoute", name, spec)
}

fn to(service: &str) -> Value {
    json!([{"name": service, "port": 80}])
}

/// A product with two echo servers, `one` and `two`, and these objects beside a Gateway with an HTTP listener.
async fn with(objects: impl IntoIterator<Item = String>) -> (Product, [Origin; 2]) {
    with_listeners(http(), objects).await
}

async fn with_listeners(
    listeners: Value,
    objects: impl IntoIterator<Item = String>,
) -> (Product, [Origin; 2]) {
    let one = Origin::echo().await.named("one");
    let two = Origin::echo().await.named("two");
    let services = [service("one", &[one.addr()]), service("two", &[two.addr()])];
    let documents = services.into_iter().chain(gateway(listeners)).chain(objects);
    let product = serve_with(documents, &["--enable-gateway-api=auto"]).await;
    (product, [one, two])
}

async fn ask(product: &Product, head: &str) -> Response {
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(&format!("{head}\r\n\r\n")).await.unwrap();
    conn.read_response().await.unwrap_or_else(|e| panic!("{head:?}: {e:#}"))
}

#[tokio::test]
async fn requests_go_by_path_method_header_and_query() {
    let rules = json!([
        {"matches": [{"path": {"type": "Exact", "value": "/exact"}}], "backendRefs": to("two")},
        {"matches": [{"path": {"value": "/method"}, "method": "POST"}], "backendRefs": to("two")},
        {"matches": [{"headers": [{"name": "Version", "value": "two"}]}], "backendRefs": to("two")},
        {"matches": [{"queryParams": [{"name": "animal", "value": "whale"}]}], "backendRefs": to("two")},
        {"matches": [{"path": {"type": "RegularExpression", "value": "/re/[0-9]+"}}], "backendRefs": to("two")},
        {"backendRefs": to("one")},
    ]);
    let (product, _origins) = with([route("r", "a.example.com", rules)]).await;
    for (head, origin) in [
        ("GET /exact HTTP/1.1\r\nHost: a.example.com", "two"),
        ("GET /exact/x HTTP/1.1\r\nHost: a.example.com", "one"),
        ("POST /method HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: 0", "two"),
        ("GET /method HTTP/1.1\r\nHost: a.example.com", "one"),
        ("GET / HTTP/1.1\r\nHost: a.example.com\r\nversion: two", "two"),
        ("GET / HTTP/1.1\r\nHost: a.example.com\r\nversion: three", "one"),
        ("GET /?animal=whale HTTP/1.1\r\nHost: a.example.com", "two"),
        ("GET /?animal=dolphin HTTP/1.1\r\nHost: a.example.com", "one"),
        ("GET /re/42 HTTP/1.1\r\nHost: a.example.com", "two"),
        ("GET /re/42/x HTTP/1.1\r\nHost: a.example.com", "one"),
    ] {
        let answer = ask(&product, head).await;
        assert_eq!((answer.status, answer.origin()), (200, origin.to_owned()), "{head}");
    }
    assert_eq!(client::get(product.http(), "b.example.com", "/").await.status, 404);
    let tls = client::tls_get(product.https(), "a.example.com", "a.example.com", "/", None).await;
    assert_eq!(tls.status, 404, "the route is attached to the HTTP listener alone");
}

#[tokio::test]
async fn filters_change_what_backend_and_client_get() {
    let edit = json!({"set": [{"name": "X-Set", "value": "s"}], "add": [{"name": "X-Add", "value": "a"}], "remove": ["X-Gone"]});
    let rules = json!([
        {"matches": [{"path": {"value": "/headers"}}], "backendRefs": to("one"), "filters": [
            {"type": "RequestHeaderModifier", "requestHeaderModifier": edit},
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "X-Answer", "value": "yes"}]}},
        ]},
        {"matches": [{"path": {"value": "/old"}}], "backendRefs": to("one"), "filters": [
            {"type": "URLRewrite", "urlRewrite": {"hostname": "inner.example.com", "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}}},
        ]},
        {"matches": [{"path": {"value": "/moved"}}], "filters": [
            {"type": "RequestRedirect", "requestRedirect": {"hostname": "there.example.com", "statusCode": 301}},
        ]},
        {"matches": [{"path": {"value": "/ext"}}], "backendRefs": to("one"), "filters": [
            {"type": "ExtensionRef", "extensionRef": {"group": "x.y", "kind": "K", "name": "n"}},
        ]},
    ]);
    let (product, origins) = with([route("r", "a.example.com", rules)]).await;
    let head = "GET /headers HTTP/1.1\r\nHost: a.example.com\r\nX-Gone: g\r\nX-Set: client\r\nX-Add: client";
    let answer = ask(&product, head).await;
    assert_eq!(answer.header("x-answer"), Some("yes"));
    assert_eq!(answer.echoed("x-set"), ["s"]);
    assert_eq!(answer.echoed("x-add"), ["client", "a"]);
    assert!(answer.echoed("x-gone").is_empty());
    client::get(product.http(), "a.example.com", "/old/path?q=1").await;
    let head = origins[0].last_head();
    assert!(head.starts_with("GET /new/path?q=1 "), "{head}");
    assert!(head.to_ascii_lowercase().contains("\r\nhost: inner.example.com"), "{head}");
    let answer = client::get(product.http(), "a.example.com", "/moved/x").await;
    assert_eq!((answer.status, answer.header("location")), (301, Some("http://there.example.com/moved/x")));
    assert_eq!(client::get(product.http(), "a.example.com", "/ext").await.status, 500);
}

#[tokio::test]
async fn shares_follow_the_weights_and_what_is_broken_fails_its_own() {
    let rules = json!([
        {"matches": [{"path": {"value": "/split"}}], "backendRefs": [
            {"name": "one", "port": 80, "weight": 3}, {"name": "two", "port": 80, "weight": 1}]},
        {"matches": [{"path": {"value": "/all"}}], "backendRefs": [
            {"name": "one", "port": 80, "weight": 0}, {"name": "two", "port": 80, "weight": 1}]},
        {"matches": [{"path": {"value": "/zero"}}], "backendRefs": [{"name": "one", "port": 80, "weight": 0}]},
        {"matches": [{"path": {"value": "/missing"}}], "backendRefs": to("nobody")},
        {"matches": [{"path": {"value": "/foreign"}}], "backendRefs": [{"name": "web", "namespace": "other", "port": 80}]},
        {"matches": [{"path": {"value": "/none"}}]},
    ]);
    let other = Origin::echo().await.named("other");
    let objects = [route("r", "a.example.com", rules), service_in("other", "web", &[other.addr()])];
    let (product, _origins) = with(objects).await;
    let mut shares: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..400 {
        let answer = client::get(product.http(), "a.example.com", "/split").await;
        *shares.entry(answer.origin()).or_default() += 1;
    }
    let one = shares.get("one").copied().unwrap_or_default();
    assert!((240..360).contains(&one), "{shares:?}");
    for _ in 0..20 {
        assert_eq!(client::get(product.http(), "a.example.com", "/all").await.origin(), "two");
    }
    for path in ["/zero", "/missing", "/foreign", "/none"] {
        assert_eq!(client::get(product.http(), "a.example.com", path).await.status, 500, "{path}");
    }
    let grant = json!({
        "from": [{"group": GROUP, "kind": "HTTPRoute", "namespace": NAMESPACE}],
        "to": [{"group": "", "kind": "Service"}],
    });
    product.write_manifest("grant.yaml", &object_in("other", "ReferenceGrant", "g", grant));
    eventually(DEADLINE, async || {
        let answer = client::get(product.http(), "a.example.com", "/foreign").await;
        (answer.status == 200 && answer.origin() == "other").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_host_belongs_to_its_most_specific_listener() {
    let listener = |name: &str, hostname: &str| {
        let mut listener = json!({"name": name, "port": 80, "protocol": "HTTP"});
        if !hostname.is_empty() {
            listener["hostname"] = hostname.into();
        }
        listener
    };
    let listeners =
        json!([listener("any", ""), listener("wild", "*.example.com"), listener("one", "a.example.com")]);
    let attached = |section: &str| {
        let rules =
            json!([{"matches": [{"path": {"value": format!("/{section}")}}], "backendRefs": to("one")}]);
        let spec = json!({"parentRefs": [{"name": "gw", "sectionName": section}], "rules": rules});
        object("HTTPRoute", section, spec)
    };
    let (product, _origins) = with_listeners(listeners, ["any", "wild", "one"].map(attached)).await;
    for (host, section) in [
        ("else.org", "any"),
        ("b.example.com", "wild"),
        ("c.b.example.com", "wild"),
        ("a.example.com", "one"),
    ] {
        for path in ["any", "wild", "one"] {
            let wanted = if path == section { 200 } else { 404 };
            let answer = client::get(product.http(), host, &format!("/{path}")).await;
            assert_eq!(answer.status, wanted, "{host}/{path}");
        }
    }
}

#[tokio::test]
async fn an_https_listener_serves_its_certificate_and_without_one_nothing() {
    let ca = Ca::new();
    let leaf = ca.leaf(&["a.example.com"], KeyKind::EcP256Sec1);
    let listener = |secret: &str| {
        json!([{"name": "https", "port": 443, "protocol": "HTTPS", "hostname": "a.example.com",
                "tls": {"certificateRefs": [{"name": secret}]}}])
    };
    let rules = json!([{"backendRefs": to("one")}]);
    let objects = || [tls_secret_yaml(NAMESPACE, "tls", &leaf), route("r", "a.example.com", rules.clone())];
    let (product, _origins) = with_listeners(listener("tls"), objects()).await;
    let answer =
        client::tls_get(product.https(), "a.example.com", "a.example.com", "/", Some(&ca.pem())).await;
    assert_eq!((answer.status, answer.origin()), (200, "one".to_owned()));
    assert_eq!(client::get(product.http(), "a.example.com", "/").await.status, 404);
    let (product, _origins) = with_listeners(listener("missing"), objects()).await;
    let answer = client::tls_get(product.https(), "a.example.com", "a.example.com", "/", None).await;
    assert_eq!(answer.status, 404);
}

#[tokio::test]
async fn ingresses_are_served_as_before_beside_gateways() {
    let ingresses = [
        Ingress::new("exact").prefix("own.example.com", "/", "two"),
        Ingress::new("wild").prefix("*.wild.example.com", "/", "two"),
        Ingress::new("shared").created(1).prefix("both.example.com", "/", "two"),
    ];
    let rules = json!([{"backendRefs": to("one")}]);
    let younger = |name: &str| {
        let mut object: Value =
            serde_json::from_str(&route(name, "both.example.com", rules.clone())).unwrap();
        object["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z".into();
        object.to_string()
    };
    let objects = ingresses
        .iter()
        .map(Ingress::yaml)
        .chain([route("wild", "*.wild.example.com", rules.clone()), younger("both")]);
    let (product, _origins) = with(objects).await;
    for (host, origin) in [
        ("own.example.com", "two"),
        ("a.wild.example.com", "two"),
        ("b.a.wild.example.com", "one"),
        ("both.example.com", "two"),
    ] {
        assert_eq!(client::get(product.http(), host, "/").await.origin(), origin, "{host}");
    }
    eventually(DEADLINE, async || {
        let told = product.log_entries("mistake in an object");
        let taken = |e: &Value| e["reason"] == "HostPathTaken" && e["object"] == "httproute/shop/both";
        told.iter().any(taken).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_connection_serves_the_hosts_of_its_own_listener_alone() {
    let ca = Ca::new();
    let leaf = ca.leaf(&["a.example.com", "*.wild.example.com"], KeyKind::EcP256Sec1);
    let listener = |name: &str, hostname: &str| {
        json!({"name": name, "port": 443, "protocol": "HTTPS", "hostname": hostname,
               "tls": {"certificateRefs": [{"name": "tls"}]}})
    };
    let listeners = json!([listener("a", "a.example.com"), listener("wild", "*.wild.example.com")]);
    let rules = json!([{"backendRefs": to("one")}]);
    let objects = [
        tls_secret_yaml(NAMESPACE, "tls", &leaf),
        route("a", "a.example.com", rules.clone()),
        route("wild", "*.wild.example.com", rules),
        // an Ingress's host is no listener's
        Ingress::new("own").prefix("own.example.com", "/", "two").set("ssl-redirect", "false").yaml(),
    ];
    let (product, _origins) = with_listeners(listeners, objects).await;
    for (sni, host, status) in [
        ("a.example.com", "a.example.com", 200),
        ("A.example.com", "a.example.com:443", 200),
        ("a.example.com", "x.wild.example.com", 421),
        ("x.wild.example.com", "y.wild.example.com", 200),
        ("x.wild.example.com", "a.example.com", 421),
        ("own.example.com", "own.example.com", 200),
        ("own.example.com", "a.example.com", 421),
        ("a.example.com", "own.example.com", 200),
        ("a.example.com", "nobody.example.com", 404),
    ] {
        let answer = client::tls_get(product.https(), sni, host, "/", None).await;
        assert_eq!(answer.status, status, "{host} on a connection for {sni}");
    }
}

#[tokio::test]
async fn a_mirror_gets_a_copy_with_its_body_and_its_answer_is_nobodys() {
    let rules = json!([
        {"backendRefs": to("one"), "filters": [
            {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "X-Set", "value": "s"}]}},
            {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "two", "port": 80}}},
        ]},
    ]);
    let (product, origins) = with([route("r", "a.example.com", rules)]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let answer = conn.request("POST", "a.example.com", "/copied?q=1", &[], b"a body").await.unwrap();
    assert_eq!((answer.status, answer.origin()), (200, "one".to_owned()));
    assert_eq!(answer.json()["body"], "a body");
    let copied = async |n| eventually(DEADLINE, async || (origins[1].requests() == n).then_some(())).await;
    copied(1).await;
    let head = origins[1].last_head().to_ascii_lowercase();
    assert!(head.starts_with("post /copied?q=1 "), "{head}");
    assert!(head.contains("\r\nx-set: s\r\n") && head.contains("\r\ncontent-length: 6\r\n"), "{head}");
    let answer = conn.get("a.example.com", "/without-body").await.unwrap();
    assert_eq!(answer.origin(), "one");
    copied(2).await;
    assert_eq!(origins[0].requests(), 2);
}

#[tokio::test]
async fn a_rule_has_time_limits_and_tries_again_as_it_says() {
    let silent = Origin::raw(|mut stream| async move {
        let _ = ingress_e2e::origin::read_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let calls = AtomicUsize::new(0);
    let flaky = Origin::http(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        0..=3 => Reply::new(503, "later"),
        _ => Reply::new(200, "done"),
    })
    .await;
    let failing = Origin::http(|_| Reply::new(503, "never")).await;
    let rules = json!([
        {"matches": [{"path": {"value": "/request"}}], "backendRefs": to("silent"), "timeouts": {"request": "200ms"}},
        {"matches": [{"path": {"value": "/attempt"}}], "backendRefs": to("silent"),
         "timeouts": {"request": "2s", "backendRequest": "200ms"}},
        {"matches": [{"path": {"value": "/alone"}}], "backendRefs": to("silent"), "timeouts": {"backendRequest": "200ms"}},
        {"matches": [{"path": {"value": "/flaky"}}], "backendRefs": to("flaky"),
         "retry": {"codes": [503], "attempts": 5, "backoff": "10ms"}},
        {"matches": [{"path": {"value": "/failing"}}], "backendRefs": to("failing"),
         "retry": {"codes": [503], "attempts": 1, "backoff": "10ms"}},
    ]);
    let objects = [
        service("silent", &[silent.addr()]),
        service("flaky", &[flaky.addr()]),
        service("failing", &[failing.addr()]),
        route("r", "a.example.com", rules),
    ];
    let (product, _origins) = with(objects).await;
    for path in ["/request", "/attempt", "/alone"] {
        assert_eq!(client::get(product.http(), "a.example.com", path).await.status, 504, "{path}");
    }
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let answer = conn.request("POST", "a.example.com", "/flaky", &[], b"again").await.unwrap();
    assert_eq!((answer.status, answer.text(), flaky.requests()), (200, "done".to_owned(), 5));
    let answer = client::get(product.http(), "a.example.com", "/failing").await;
    assert_eq!((answer.status, answer.text(), failing.requests()), (503, "never".to_owned(), 2));
}

#[tokio::test]
async fn scripts_of_listed_origins_are_let_in() {
    let rules = json!([{"backendRefs": to("one"), "filters": [{"type": "CORS", "cors": {
        "allowOrigins": ["https://app.example.org"], "allowMethods": ["PUT"], "allowHeaders": ["x-any"], "maxAge": 60,
    }}]}]);
    let (product, origins) = with([route("r", "a.example.com", rules)]).await;
    let head = "OPTIONS / HTTP/1.1\r\nHost: a.example.com\r\nOrigin: https://app.example.org\r\n\
                Access-Control-Request-Method: PUT";
    let answer = ask(&product, head).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example.org"));
    assert_eq!(answer.header("access-control-allow-methods"), Some("PUT"));
    assert_eq!(answer.header("access-control-max-age"), Some("60"));
    assert_eq!((answer.status, origins[0].requests()), (204, 0));
    for (origin, allowed) in [("https://app.example.org", true), ("https://evil.example.org", false)] {
        let answer =
            ask(&product, &format!("GET / HTTP/1.1\r\nHost: a.example.com\r\nOrigin: {origin}")).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("access-control-allow-origin").is_some(), allowed, "{origin}");
    }
}

#[tokio::test]
async fn gateways_with_addresses_of_their_own_serve_their_own_routes() {
    let asking = json!({
        "gatewayClassName": "tak-os", "listeners": http(),
        "addresses": [{"type": "IPAddress", "value": "127.0.0.2"}],
    });
    let everything = |gateway: &str, service: &str| json!({"parentRefs": [{"name": gateway}], "rules": [{"backendRefs": to(service)}]});
    let (one, two, three) = tokio::join!(Origin::echo(), Origin::echo(), Origin::echo());
    let (one, two, three) = (one.named("one"), two.named("two"), three.named("three"));
    let objects = [
        service("one", &[one.addr()]),
        service("two", &[two.addr()]),
        service("three", &[three.addr()]),
        object("Gateway", "asking", asking),
        object("HTTPRoute", "first", everything("gw", "one")),
        object("HTTPRoute", "second", everything("asking", "two")),
        Ingress::new("own").prefix("own.example.com", "/", "three").yaml(),
    ];
    let documents = objects.into_iter().chain(gateway(http()));
    let flags = ["--bind-address=0.0.0.0", "--gateway-addresses=127.0.0.2,127.0.0.3"];
    let product = serve_with(documents, &flags).await;
    let at = |address: &str| SocketAddr::new(address.parse().unwrap(), product.http().port());
    assert_eq!(client::get(at("127.0.0.2"), "a.example.com", "/").await.origin(), "two");
    assert_eq!(client::get(at("127.0.0.3"), "a.example.com", "/").await.origin(), "one");
    assert_eq!(
        client::get(at("127.0.0.1"), "a.example.com", "/").await.status,
        404,
        "an address of no Gateway"
    );
    // Ingresses are at home at every address.
    for address in ["127.0.0.1", "127.0.0.2", "127.0.0.3"] {
        assert_eq!(client::get(at(address), "own.example.com", "/").await.origin(), "three", "{address}");
    }
}

#[tokio::test]
async fn further_ports_speak_what_their_listeners_say() {
    let held = [(); 3].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let [plain, tls, nobody] = held.each_ref().map(|socket| socket.local_addr().unwrap());
    drop(held);
    let ca = Ca::new();
    let leaf = ca.leaf(&["a.example.com"], KeyKind::EcP256Sec1);
    let listeners = json!([
        {"name": "plain", "port": plain.port(), "protocol": "HTTP"},
        {"name": "tls", "port": tls.port(), "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "tls"}]}},
    ]);
    let rules = json!([
        {"matches": [{"path": {"value": "/moved"}}],
         "filters": [{"type": "RequestRedirect", "requestRedirect": {"hostname": "b.example.com"}}]},
        {"backendRefs": to("one")},
    ]);
    let one = Origin::echo().await.named("one");
    let objects = [
        service("one", &[one.addr()]),
        tls_secret_yaml(NAMESPACE, "tls", &leaf),
        route("r", "a.example.com", rules),
        Ingress::new("own").prefix("own.example.com", "/", "one").yaml(),
    ];
    let documents = objects.into_iter().chain(gateway(listeners));
    let ports = [plain, tls, nobody].map(|at| at.port().to_string()).join(",");
    let product = serve_with(documents, &[&format!("--gateway-listener-ports=80,443,{ports}")]).await;
    assert_eq!(client::get(plain, "a.example.com", "/").await.origin(), "one");
    let answer = client::tls_get(tls, "a.example.com", "a.example.com", "/", Some(&ca.pem())).await;
    assert_eq!(answer.origin(), "one");
    let answer = client::get(plain, "a.example.com", "/moved").await;
    let there = format!("http://b.example.com:{}/moved", plain.port());
    assert_eq!((answer.status, answer.header("location")), (302, Some(there.as_str())));
    // Ingresses are at home on 80 and 443, routes on the ports of their listeners.
    assert_eq!(client::get(plain, "own.example.com", "/").await.status, 404);
    assert_eq!(client::get(product.http(), "a.example.com", "/").await.status, 404);
    assert_eq!(client::get(product.http(), "own.example.com", "/").await.origin(), "one");
    let closed = client::raw(nobody, "GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n").await;
    assert!(closed.is_empty(), "{}", String::from_utf8_lossy(&closed));
    assert_eq!(client::get(plain, "a.example.com", "/").await.status, 200);
}
