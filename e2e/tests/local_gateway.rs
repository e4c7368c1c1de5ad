//! Gateway API objects from files, served by the real binary: matches, filters, weights, isolation, and Ingresses beside.

mod common;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::gateway::{GROUP, gateway, http, object, object_in, route, to};
use common::{Ingress, NAMESPACE, serve_with, service, service_in, service_object, slice};
use ingress_e2e::client::{self, H2Conn, RawConn, Response};
use ingress_e2e::h2_origin::{H2Origin, answer};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::pki::{Ca, KeyKind, Leaf, LeafOptions, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::sessions::SessionClient;
use ingress_e2e::{DEADLINE, eventually};
use openssl::ssl::SslVersion;
use serde_json::{Value, json};

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
    let (product, origins) = with_listeners(listeners, objects).await;
    let own = |sni: &str| sni.to_lowercase();
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
        // A client that shares HTTP/2 connections asks for one host after the other.
        let conn = H2Conn::connect_tls(product.https(), sni).await.unwrap();
        assert_eq!(conn.get(&own(sni), "/").await.unwrap().status, 200, "HTTP/2, {sni}");
        let before: usize = origins.iter().map(Origin::requests).sum();
        assert_eq!(conn.get(host, "/").await.unwrap().status, status, "HTTP/2, {host} for {sni}");
        let arrived = origins.iter().map(Origin::requests).sum::<usize>() - before;
        assert_eq!(arrived, usize::from(status == 200), "{host} on a connection for {sni}");
        assert_eq!(conn.get(&own(sni), "/").await.unwrap().status, 200, "the connection stays what it was");
    }
    // Nor are others served on a resumed one, where TLS 1.2 has no word of the name but in the hello.
    let addr = product.https();
    let work = move || {
        for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
            let client = SessionClient::new(version, None);
            assert_eq!(client.get(addr, "a.example.com"), (Some(200), false), "{version:?}");
            for (host, status) in [("x.wild.example.com", 421), ("a.example.com", 200)] {
                let mut conn = client.connect(addr, "a.example.com").unwrap();
                assert!(conn.is_resumed(), "{version:?}");
                assert_eq!(conn.get(host), Some(status), "{version:?}");
            }
        }
    };
    tokio::task::spawn_blocking(work).await.unwrap();
    let names = async || {
        let log = product.log();
        let resumed = log.iter().filter(|line| line["host"] == "x.wild.example.com" && line["status"] == 421);
        let names: Vec<_> = resumed.map(|line| line["sni"].clone()).collect();
        (names.len() == 3).then_some(names)
    };
    let names = eventually(DEADLINE, names).await;
    assert!(names.iter().all(|name| name == "a.example.com"), "{names:?}");
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
async fn each_address_shows_the_certificates_of_its_own_gateway() {
    let ca = Ca::new();
    let [one, two] = [(); 2].map(|()| ca.leaf(&["a.example.com"], KeyKind::EcP256Sec1));
    let own = ca.leaf(&["own.example.com"], KeyKind::EcP256Sec1);
    let https = |secret: &str| json!([{"name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": secret}]}}]);
    let at = |address: &str, listeners: Value| {
        json!({
            "gatewayClassName": "tak-os", "listeners": listeners,
            "addresses": [{"type": "IPAddress", "value": address}],
        })
    };
    // the third one's certificate is missing: it shows none of the others'
    let objects = [
        tls_secret_yaml(NAMESPACE, "one", &one),
        tls_secret_yaml(NAMESPACE, "two", &two),
        tls_secret_yaml(NAMESPACE, "own", &own),
        object("Gateway", "second", at("127.0.0.2", https("one"))),
        object("Gateway", "third", at("127.0.0.3", https("two"))),
        object("Gateway", "fourth", at("127.0.0.4", https("missing"))),
        Ingress::new("own").prefix("own.example.com", "/", "web").tls(&["own.example.com"], "own").yaml(),
    ];
    let flags = ["--bind-address=0.0.0.0", "--gateway-addresses=127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5"];
    let product = serve_with(objects.into_iter().chain(gateway(http())), &flags).await;
    let shows = async |address: &str, name: &str, leaf: Option<&Leaf>| {
        let at = SocketAddr::new(address.parse().unwrap(), product.https().port());
        let served = client::served_certificate(at, Some(name)).await;
        let shown = [&one, &two, &own].into_iter().find(|leaf| served.is(leaf));
        assert_eq!(shown.map(Leaf::certificate), leaf.map(Leaf::certificate), "{name} at {address}");
    };
    shows("127.0.0.2", "a.example.com", Some(&one)).await;
    shows("127.0.0.3", "a.example.com", Some(&two)).await;
    for address in ["127.0.0.1", "127.0.0.4", "127.0.0.5"] {
        shows(address, "a.example.com", None).await;
    }
    for address in ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"] {
        shows(address, "own.example.com", Some(&own)).await;
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

#[tokio::test]
async fn the_ports_of_the_process_open_no_listener() {
    let held = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let [plain, tls] = held.each_ref().map(|socket| socket.local_addr().unwrap());
    drop(held);
    let ca = Ca::new();
    let leaf = ca.leaf(&["*.example.com"], KeyKind::EcP256Sec1);
    let (of, certificate) = (json!([{"name": "tls"}]), tls_secret_yaml(NAMESPACE, "tls", &leaf));
    let listener = |name: &str, port: u16, protocol: &str| {
        let mut listener = json!({"name": name, "port": port, "protocol": protocol});
        if protocol == "HTTPS" {
            listener["tls"] = json!({"certificateRefs": of});
        }
        listener
    };
    let listeners = json!([
        listener("http", 80, "HTTP"),
        listener("https", 443, "HTTPS"),
        listener("own-http", plain.port(), "HTTP"),
        listener("own-https", tls.port(), "HTTPS"),
    ]);
    let attached = |section: &str| {
        let spec = json!({
            "parentRefs": [{"name": "gw", "sectionName": section}],
            "hostnames": [format!("{section}.example.com")],
            "rules": [{"backendRefs": to("one")}],
        });
        object("HTTPRoute", section, spec)
    };
    let one = Origin::echo().await.named("one");
    let objects = [service("one", &[one.addr()]), certificate];
    let routes = ["http", "https", "own-http", "own-https"].map(attached);
    let documents = objects.into_iter().chain(gateway(listeners)).chain(routes);
    let flags = [format!("--http-port={}", plain.port()), format!("--https-port={}", tls.port())];
    let product = serve_with(documents, &flags.each_ref().map(String::as_str)).await;
    assert_eq!((product.http(), product.https()), (plain, tls));
    for (host, over_http, over_tls) in [
        ("http.example.com", 200, 404),
        ("https.example.com", 404, 200),
        ("own-http.example.com", 404, 404),
        ("own-https.example.com", 404, 404),
    ] {
        assert_eq!(client::get(plain, host, "/").await.status, over_http, "{host}");
        assert_eq!(client::tls_get(tls, host, host, "/", None).await.status, over_tls, "{host}");
    }
}

#[tokio::test]
async fn a_listener_set_serves_its_hosts_with_its_own_certificate() {
    let ca = Ca::new();
    let leaf = ca.leaf(&["set.example.com"], KeyKind::EcP256Sec1);
    let [class, mut gateway] =
        gateway(json!([{"name": "http", "port": 80, "protocol": "HTTP", "hostname": "gw.example.com"}]));
    let mut open: Value = serde_json::from_str(&gateway).unwrap();
    open["spec"]["allowedListeners"] = json!({"namespaces": {"from": "All"}});
    gateway = open.to_string();
    let set = |namespace: &str, name: &str, listeners: Value| {
        let spec = json!({"parentRef": {"name": "gw", "namespace": NAMESPACE}, "listeners": listeners});
        object_in(namespace, "ListenerSet", name, spec)
    };
    let child = |namespace: &str, name: &str, parents: Value| {
        let rules = json!([{"matches": [{"path": {"value": format!("/{name}")}}], "backendRefs": to("one")}]);
        object_in(namespace, "HTTPRoute", name, json!({"parentRefs": parents, "rules": rules}))
    };
    let of_set = json!({"kind": "ListenerSet", "group": GROUP, "name": "set"});
    let one = Origin::echo().await.named("one");
    let objects = [
        class,
        gateway,
        service_in("team", "one", &[one.addr()]),
        service("one", &[one.addr()]),
        tls_secret_yaml("team", "tls", &leaf),
        set(
            "team",
            "set",
            json!([
                {"name": "http", "port": 80, "protocol": "HTTP", "hostname": "set.example.com"},
                {"name": "https", "port": 443, "protocol": "HTTPS", "hostname": "set.example.com",
                 "tls": {"certificateRefs": [{"name": "tls"}]}},
                {"name": "taken", "port": 80, "protocol": "HTTP", "hostname": "gw.example.com"},
            ]),
        ),
        child("team", "set", json!([of_set])),
        child(
            "team",
            "plain",
            json!([{"kind": "ListenerSet", "group": GROUP, "name": "set", "sectionName": "http"}]),
        ),
        child(NAMESPACE, "gateway", json!([{"name": "gw"}])),
    ];
    let product = serve_with(objects, &[]).await;
    for (host, path, status) in [
        ("set.example.com", "/set", 200),
        ("set.example.com", "/plain", 200),
        ("set.example.com", "/gateway", 404),
        ("gw.example.com", "/gateway", 200),
        ("gw.example.com", "/set", 404),
    ] {
        assert_eq!(client::get(product.http(), host, path).await.status, status, "{host}{path}");
    }
    let tls = async |path: &str| {
        client::tls_get(product.https(), "set.example.com", "set.example.com", path, Some(&ca.pem()))
            .await
            .status
    };
    assert_eq!((tls("/set").await, tls("/plain").await), (200, 404));
    eventually(DEADLINE, async || {
        let told = product.log_entries("mistake in an object");
        let conflict =
            |e: &Value| e["reason"] == "ListenerConflicted" && e["object"] == "listenerset/team/set";
        told.iter().any(conflict).then_some(())
    })
    .await;
}

/// A server of gRPC that answers every call with its name.
async fn grpc_origin(name: &'static str) -> H2Origin {
    H2Origin::start(move |_, respond| async move {
        let fields = [("content-type", "application/grpc"), ("grpc-status", "0"), ("x-origin", name)];
        answer(respond, 200, &fields, "");
    })
    .await
}

/// A call on a plain connection: who answered it, or else the status.
async fn call(conn: &H2Conn, host: &str, path: &str, fields: &[(&str, &str)]) -> Result<String, String> {
    let fields = [&[("content-type", "application/grpc"), ("te", "trailers")], fields].concat();
    let answer = conn.request("POST", host, path, &fields, b"").await.unwrap();
    let field = |name| answer.header(name).unwrap_or_default().to_owned();
    assert_eq!((answer.status, &*field("content-type")), (200, "application/grpc"), "{host}{path}");
    if field("grpc-status") == "0" { Ok(field("x-origin")) } else { Err(field("grpc-status")) }
}

#[tokio::test]
async fn grpc_calls_without_tls_go_by_listener_method_header_and_weight() {
    let origins = [grpc_origin("one").await, grpc_origin("two").await, grpc_origin("three").await];
    let names = ["one", "two", "three"];
    let port = json!([{"name": "grpc", "port": 80, "appProtocol": "kubernetes.io/h2c"}]);
    let services = names.iter().zip(&origins).flat_map(|(name, origin)| {
        let object = service_object(NAMESPACE, name, port.clone());
        [object, slice(NAMESPACE, name, 0, &[("grpc", origin.addr())])]
    });
    let listeners = json!([
        {"name": "any", "port": 80, "protocol": "HTTP"},
        {"name": "bar", "port": 80, "protocol": "HTTP", "hostname": "bar.com"},
        {"name": "foo-bar", "port": 80, "protocol": "HTTP", "hostname": "foo.bar.com"},
        {"name": "all-bar", "port": 80, "protocol": "HTTP", "hostname": "*.bar.com"},
        {"name": "all-foo", "port": 80, "protocol": "HTTP", "hostname": "*.foo.com"},
    ]);
    let grpc = |name: &str, parents: &[&str], hosts: &[&str], rules: Value| {
        let parents: Vec<_> = parents.iter().map(|p| json!({"name": "gw", "sectionName": p})).collect();
        object("GRPCRoute", name, json!({"parentRefs": parents, "hostnames": hosts, "rules": rules}))
    };
    let method = |service: &str, method: &str| json!([{"method": {"service": service, "method": method}}]);
    let header = |pairs: &[(&str, &str)]| {
        let headers: Vec<_> =
            pairs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        json!({"headers": headers})
    };
    let weights = json!([
        {"name": "one", "port": 80, "weight": 70},
        {"name": "two", "port": 80, "weight": 30},
        {"name": "three", "port": 80, "weight": 0},
    ]);
    let objects = [
        grpc("bar", &["bar"], &[], json!([{"backendRefs": to("one")}])),
        grpc("foo-bar", &["foo-bar"], &[], json!([{"backendRefs": to("two")}])),
        grpc("all", &["all-bar", "all-foo"], &[], json!([{"backendRefs": to("three")}])),
        grpc("weights", &["any"], &["weights.example.com"], json!([{"backendRefs": weights}])),
        grpc(
            "methods",
            &["any"],
            &["methods.example.com"],
            json!([
                {"name": "named", "matches": method("echo.Echo", "Echo"), "backendRefs": to("one")},
                {"matches": method("echo.Echo", "EchoTwo"), "backendRefs": to("two")},
                {"matches": [{"method": {"type": "RegularExpression", "service": "shop\\..+", "method": "Get.*"}}],
                 "backendRefs": to("three")},
            ]),
        ),
        grpc(
            "headers",
            &["any"],
            &["headers.example.com"],
            json!([
                {"matches": [header(&[("version", "one")])], "backendRefs": to("one")},
                {"matches": [header(&[("version", "two")])], "backendRefs": to("two")},
                {"matches": [header(&[("version", "two"), ("color", "orange")])], "backendRefs": to("three")},
                {"matches": [header(&[("color", "blue")]), header(&[("color", "green")])], "backendRefs": to("one")},
            ]),
        ),
    ];
    let documents = services.chain(gateway(listeners)).chain(objects);
    let product = serve_with(documents, &["--enable-gateway-api=auto"]).await;
    let conn = H2Conn::connect(product.http()).await.unwrap();
    let unimplemented = || Err("12".to_owned());
    for (host, origin) in [
        ("bar.com", Some("one")),
        ("foo.bar.com", Some("two")),
        ("baz.bar.com", Some("three")),
        ("many.labels.bar.com", Some("three")),
        ("many.labels.foo.com:8080", Some("three")),
        ("foo.com", None),
        ("no.matching.host", None),
    ] {
        let want = origin.map_or_else(unimplemented, |name| Ok(name.to_owned()));
        assert_eq!(call(&conn, host, "/echo.Echo/Echo", &[]).await, want, "{host}");
    }
    for (path, origin) in [
        ("/echo.Echo/Echo", Some("one")),
        ("/echo.Echo/EchoTwo", Some("two")),
        ("/echo.Echo/EchoThree", None),
        ("/shop.Cart/GetAll", Some("three")),
        ("/shop.Cart/PutAll", None),
    ] {
        let want = origin.map_or_else(unimplemented, |name| Ok(name.to_owned()));
        assert_eq!(call(&conn, "methods.example.com", path, &[]).await, want, "{path}");
    }
    for (fields, origin) in [
        (&[("version", "one")][..], Some("one")),
        (&[("version", "two")], Some("two")),
        (&[("version", "two"), ("color", "orange")], Some("three")),
        (&[("version", "two"), ("color", "blue")], Some("two")),
        (&[("color", "green")], Some("one")),
        (&[("color", "orange")], None),
        (&[], None),
    ] {
        let want = origin.map_or_else(unimplemented, |name| Ok(name.to_owned()));
        let got = call(&conn, "headers.example.com", "/echo.Echo/Echo", fields).await;
        assert_eq!(got, want, "{fields:?}");
    }
    let mut counts = BTreeMap::<String, u32>::new();
    for _ in 0..400 {
        *counts.entry(call(&conn, "weights.example.com", "/a.B/C", &[]).await.unwrap()).or_default() += 1;
    }
    // 280 and 120 are expected; 50 away from them is more than five deviations.
    assert!(counts.keys().eq(["one", "two"]) && counts["one"].abs_diff(280) < 50, "{counts:?}");
    assert!(origins.iter().all(|origin| origin.accepts() > 0));
}

#[tokio::test]
async fn http2_without_tls_reaches_a_backend_that_speaks_it() {
    let origin = H2Origin::start(async |request, respond| {
        let version = format!("{:?}", request.version());
        answer(respond, 200, &[("x-version", &version)], "");
    })
    .await;
    let port = json!([{"name": "h2", "port": 8081, "appProtocol": "kubernetes.io/h2c"}]);
    let rules = json!([{"backendRefs": [{"name": "web", "port": 8081}]}]);
    let documents = gateway(http()).into_iter().chain([
        service_object(NAMESPACE, "web", port),
        slice(NAMESPACE, "web", 0, &[("h2", origin.addr())]),
        object("HTTPRoute", "r", json!({"parentRefs": [{"name": "gw"}], "rules": rules})),
    ]);
    let product = serve_with(documents, &["--enable-gateway-api=auto"]).await;
    let conn = H2Conn::connect(product.http()).await.unwrap();
    let authority = product.http().to_string();
    let answer = conn.get(&authority, "/").await.unwrap();
    assert_eq!((answer.status, answer.header("x-version")), (200, Some("HTTP/2.0")));
    assert_eq!(origin.last_headers()["x-forwarded-proto"], "http");
}

fn config_map(name: &str, ca: &str) -> String {
    let metadata = json!({"namespace": NAMESPACE, "name": name});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": ca}}).to_string()
}

/// A BackendTLSPolicy for the Service of its name.
fn policy(service: &str, validation: &Value) -> String {
    let targets = json!([{"group": "", "kind": "Service", "name": service}]);
    object("BackendTLSPolicy", service, json!({"targetRefs": targets, "validation": validation}))
}

#[tokio::test]
async fn a_backend_must_prove_to_be_whom_its_policy_names() {
    let (ca, other) = (Ca::new(), Ca::new());
    let leaf = ca.leaf(&["in.example.com", "spiffe://in.example.com/web"], KeyKind::EcP256Sec1);
    let backend = Origin::echo_tls(&leaf.cert_pem, &leaf.key_pem).await.named("tls");
    let of = |map: &str, hostname: &str, names: Value| {
        let refs = json!([{"group": "", "kind": "ConfigMap", "name": map}]);
        json!({"caCertificateRefs": refs, "hostname": hostname, "subjectAltNames": names})
    };
    let dns = |name: &str| json!({"type": "Hostname", "hostname": name});
    let uri = |name: &str| json!({"type": "URI", "uri": name});
    let cases = [
        ("right", of("ca", "in.example.com", json!([])), 200),
        ("wrong-ca", of("other", "in.example.com", json!([])), 502),
        ("wrong-name", of("ca", "out.example.com", json!([])), 502),
        ("san-dns", of("ca", "out.example.com", json!([dns("in.example.com")])), 200),
        ("san-uri", of("ca", "out.example.com", json!([uri("spiffe://in.example.com/web")])), 200),
        ("san-one", of("ca", "in.example.com", json!([uri("spiffe://else/x"), dns("in.example.com")])), 200),
        ("san-wrong", of("ca", "in.example.com", json!([uri("spiffe://else/x"), dns("x.example.com")])), 502),
        ("system", json!({"wellKnownCACertificates": "System", "hostname": "in.example.com"}), 502),
        ("no-ca", of("none", "in.example.com", json!([])), 500),
        ("damaged", of("damaged", "in.example.com", json!([])), 500),
    ];
    let rule =
        |name: &str| json!({"matches": [{"path": {"value": format!("/{name}")}}], "backendRefs": to(name)});
    let rules: Vec<_> = cases.iter().map(|(name, ..)| rule(name)).collect();
    let services = cases.iter().map(|(name, ..)| service(name, &[backend.addr()]));
    let policies = cases.iter().map(|(name, validation, _)| policy(name, validation));
    let maps = [config_map("other", &other.pem()), config_map("damaged", "nothing")];
    let objects = services.chain(policies).chain(maps).chain([route("r", "a.example.com", rules.into())]);
    let (product, _origins) = with(objects).await;
    let get = async |name: &str| client::get(product.http(), "a.example.com", &format!("/{name}")).await;
    let becomes = async |name: &str, status: u16| {
        eventually(DEADLINE, async || (get(name).await.status == status).then_some(())).await;
    };
    // the authority is not there yet
    assert_eq!((get("right").await.status, backend.accepts()), (500, 0));
    product.write_manifest("ca.yaml", &config_map("ca", &ca.pem()));
    becomes("right", 200).await;
    for (name, _, status) in &cases {
        let before = backend.requests();
        let answer = get(name).await;
        assert_eq!(answer.status, *status, "{name}");
        assert_eq!(backend.requests() - before, usize::from(*status == 200), "{name}");
        if *status == 200 {
            assert_eq!(answer.origin(), "tls", "{name}");
        }
    }
    // another authority, while a connection is kept that the old one vouched for
    product.write_manifest("ca.yaml", &config_map("ca", &other.pem()));
    becomes("right", 502).await;
    product.write_manifest("ca.yaml", &config_map("ca", &(other.pem() + &ca.pem())));
    becomes("right", 200).await;
    product.remove_manifest("ca.yaml");
    becomes("right", 500).await;
    eventually(DEADLINE, async || {
        let told = product.log_entries("mistake in an object");
        let taken = |e: &Value| e["id"] == "TAK-7009" && e["object"] == "backendtlspolicy/shop/damaged";
        told.iter().any(taken).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_name_is_proved_by_alternative_names_alone() {
    let ca = Ca::new();
    // the common name is that of the policy in each
    let options = LeafOptions { common_name: "in.example.com".into(), ..LeafOptions::default() };
    let leaf = |names: &[&str]| ca.leaf_with(names, KeyKind::EcP256Sec1, &options);
    let cases = [
        ("exact", leaf(&["in.example.com"]), 200),
        ("wildcard", leaf(&["*.example.com"]), 200),
        ("none", leaf(&[]), 502),
        ("uri", leaf(&["spiffe://in.example.com/web"]), 502),
        ("part", leaf(&["i*.example.com"]), 502),
    ];
    let refs = json!([{"group": "", "kind": "ConfigMap", "name": "ca"}]);
    let validation = json!({"caCertificateRefs": refs, "hostname": "in.example.com"});
    let mut objects = vec![config_map("ca", &ca.pem())];
    let mut rules = Vec::new();
    let mut backends = Vec::new();
    for (name, leaf, _) in &cases {
        let backend = Origin::echo_tls(&leaf.cert_pem, &leaf.key_pem).await;
        objects.extend([service(name, &[backend.addr()]), policy(name, &validation)]);
        rules.push(json!({"matches": [{"path": {"value": format!("/{name}")}}], "backendRefs": to(name)}));
        backends.push(backend);
    }
    objects.push(route("r", "a.example.com", rules.into()));
    let (product, _origins) = with(objects).await;
    for ((name, _, status), backend) in cases.iter().zip(&backends) {
        let answer = client::get(product.http(), "a.example.com", &format!("/{name}")).await;
        assert_eq!((answer.status, backend.requests()), (*status, usize::from(*status == 200)), "{name}");
    }
}

#[tokio::test]
async fn a_copy_goes_to_nobody_else_than_its_policy_names() {
    let ca = Ca::new();
    let leaf = ca.leaf(&["in.example.com"], KeyKind::EcP256Sec1);
    let [right, wrong] = [(); 2].map(|()| Origin::echo_tls(&leaf.cert_pem, &leaf.key_pem));
    let (right, wrong) = (right.await, wrong.await);
    let of = |name: &str| {
        json!({"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}], "hostname": "in.example.com",
               "subjectAltNames": [{"type": "Hostname", "hostname": name}]})
    };
    let rule = |service: &str| {
        let mirror =
            json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": service, "port": 80}}});
        json!({"matches": [{"path": {"value": format!("/{service}")}}], "backendRefs": to("one"), "filters": [mirror]})
    };
    let objects = [
        service("right", &[right.addr()]),
        service("wrong", &[wrong.addr()]),
        policy("right", &of("in.example.com")),
        policy("wrong", &of("out.example.com")),
        config_map("ca", &ca.pem()),
        route("r", "a.example.com", json!([rule("right"), rule("wrong")])),
    ];
    let (product, _origins) = with(objects).await;
    for service in ["right", "wrong"] {
        assert_eq!(client::get(product.http(), "a.example.com", &format!("/{service}")).await.status, 200);
    }
    eventually(DEADLINE, async || (right.requests() == 1).then_some(())).await;
    eventually(DEADLINE, async || (wrong.accepts() == 1 && wrong.open_connections() == 0).then_some(()))
        .await;
    assert_eq!(wrong.requests(), 0);
}
