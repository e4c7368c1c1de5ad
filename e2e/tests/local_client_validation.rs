//! Certificates of clients on Gateways, with the real binary and real handshakes: who is let in where, and that there is no
//! way round by another server name, another host, a kept connection or a session from elsewhere.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{Ingress, NAMESPACE, serve_with, service};
use ingress_e2e::client::{self, H2Conn, RawConn, Tls};
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, Leaf, LeafOptions, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::sessions::SessionClient;
use ingress_e2e::{DEADLINE, eventually};
use openssl::ssl::{SslConnector, SslMethod, SslStream, SslVerifyMode, SslVersion};
use serde_json::{Value, json};

/// Its clients must show a certificate.
const CLOSED: &str = "closed.example.com";
/// Of another Gateway, which asks for none.
const OPEN: &str = "open.example.com";

fn object(kind: &str, name: &str, spec: Value) -> String {
    let metadata = json!({"namespace": NAMESPACE, "name": name});
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
        .to_string()
}

fn config_map(name: &str, ca: &str) -> String {
    let metadata = json!({"namespace": NAMESPACE, "name": name});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": ca}}).to_string()
}

fn validation(map: &str, mode: &str) -> Value {
    json!({"validation": {"mode": mode, "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": map}]}})
}

fn https(name: &str, port: u16, hostname: Option<&str>) -> Value {
    let mut listener = json!({"name": name, "port": port, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "tls"}]}});
    if let Some(hostname) = hostname {
        listener["hostname"] = hostname.into();
    }
    listener
}

fn gateway(name: &str, listeners: Value, frontend: Option<Value>) -> String {
    let mut spec = json!({"gatewayClassName": "tak-os", "listeners": listeners});
    if let Some(frontend) = frontend {
        spec["tls"] = json!({"frontend": frontend});
    }
    object("Gateway", name, spec)
}

fn route(name: &str, gateway: &str, host: &str) -> String {
    let rules = json!([{"backendRefs": [{"name": "one", "port": 80}]}]);
    object("HTTPRoute", name, json!({"parentRefs": [{"name": gateway}], "hostnames": [host], "rules": rules}))
}

/// What every test has: a class, a certificate for servers, a backend `one`.
fn base(one: &Origin) -> [String; 3] {
    let leaf = Ca::new().leaf(&["*.example.com"], KeyKind::EcP256Sec1);
    let class = json!({"controllerName": "tak-os.org/gateway-controller"});
    [
        object("GatewayClass", "tak-os", class),
        tls_secret_yaml(NAMESPACE, "tls", &leaf),
        service("one", &[one.addr()]),
    ]
}

/// `closed` demands a certificate of `ca`, `open` none, both on port 443.
async fn two_gateways(ca: &Ca) -> (Product, Origin) {
    let one = Origin::echo().await.named("one");
    let objects = [
        gateway(
            "closed",
            json!([https("https", 443, Some(CLOSED))]),
            Some(json!({"default": validation("ca", "AllowValidOnly")})),
        ),
        gateway("open", json!([https("https", 443, Some(OPEN))]), None),
        route("closed", "closed", CLOSED),
        route("open", "open", OPEN),
        Ingress::new("own").prefix("own.example.com", "/", "one").set("ssl-redirect", "false").yaml(),
    ];
    let product = serve_with(base(&one).into_iter().chain(objects), &[]).await;
    product.write_manifest("ca.yaml", &config_map("ca", &ca.pem()));
    let leaf = client(ca);
    eventually(DEADLINE, async || {
        (get(product.https(), CLOSED, Some(&leaf)).await == Some(200)).then_some(())
    })
    .await;
    (product, one)
}

fn client(ca: &Ca) -> Leaf {
    ca.leaf(&[], KeyKind::EcP256Sec1)
}

fn tls(sni: Option<&str>, leaf: Option<&Leaf>) -> Tls {
    let tls = sni.map_or_else(Tls::new, |name| Tls::new().sni(name));
    leaf.map_or(tls.clone(), |leaf| tls.identity(&leaf.cert_pem, &leaf.key_pem))
}

/// The status of a request; `None` where the handshake was refused. With TLS 1.3 the client gets to hear that late.
async fn ask(addr: SocketAddr, tls: &Tls, host: &str) -> Option<u16> {
    let mut conn = RawConn::connect_with(addr, tls).await.ok()?;
    conn.get(host, "/").await.ok().map(|answer| answer.status)
}

/// [`ask`] for a host by its own name.
async fn get(addr: SocketAddr, host: &str, leaf: Option<&Leaf>) -> Option<u16> {
    ask(addr, &tls(Some(host), leaf), host).await
}

#[tokio::test]
async fn only_a_valid_certificate_of_the_right_authority_is_let_in() {
    let (ca, other) = (Ca::new(), Ca::new());
    let (product, one) = two_gateways(&ca).await;
    let good = client(&ca);
    let expired = LeafOptions { not_before: -7200, not_after: -60, ..LeafOptions::default() };
    let expired = ca.leaf_with(&[], KeyKind::EcP256Sec1, &expired);
    let server_only = LeafOptions { server_only: true, ..LeafOptions::default() };
    let server_only = ca.leaf_with(&[], KeyKind::EcP256Sec1, &server_only);
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        for (what, leaf, status) in [
            ("the right one", Some(&good), Some(200)),
            ("none", None, None),
            ("another authority's", Some(&client(&other)), None),
            ("expired", Some(&expired), None),
            ("for servers", Some(&server_only), None),
        ] {
            let before = one.requests();
            let tls = tls(Some(CLOSED), leaf).versions(version, version);
            assert_eq!(ask(product.https(), &tls, CLOSED).await, status, "{what}, {version:?}");
            assert_eq!(one.requests() - before, usize::from(status.is_some()), "{what}");
        }
    }
    // Nobody else is asked for anything.
    assert_eq!(get(product.https(), OPEN, None).await, Some(200));
    assert_eq!(get(product.https(), OPEN, Some(&client(&other))).await, Some(200));
    assert_eq!(get(product.https(), "own.example.com", None).await, Some(200));
    // Nothing is told to backends.
    let mut conn = RawConn::connect_with(product.https(), &tls(Some(CLOSED), Some(&good))).await.unwrap();
    let told = conn.get(CLOSED, "/").await.unwrap().text().to_lowercase();
    assert!(!told.contains("cert") && !told.contains("ssl"), "{told}");
    let asked = format!("/debug/explain?host={CLOSED}&scheme=https");
    let told = client::get(product.metrics_addr(), "localhost", &asked).await.text();
    assert!(told.contains("clients must show a certificate"), "{told}");
    let told = client::get(product.metrics_addr(), "localhost", &format!("{asked}&sni=own.example.com"))
        .await
        .text();
    assert!(told.contains("421"), "{told}");
    // Those that were let in are no failures when they end.
    drop(conn);
    eventually(DEADLINE, async || {
        let open = product.metric_sum("tak_ingress_client_connections", &[]).await;
        (open <= 1.0).then_some(())
    })
    .await;
    let failed = product.metric_sum("tak_ingress_tls_handshakes_total", &[("result", "failure")]).await;
    assert_eq!(failed, 8.0);
}

fn subject(ca: &Ca) -> Vec<u8> {
    ca.certificate().subject_name().to_der().unwrap()
}

/// Which of these names the server sends for the client to choose a certificate by. TLS 1.2 sends them in the clear.
async fn named(addr: SocketAddr, subjects: [Vec<u8>; 2]) -> [bool; 2] {
    use std::io::{Read, Result, Write};

    struct Heard(std::net::TcpStream, Vec<u8>);

    impl Read for Heard {
        fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
            let n = self.0.read(buf)?;
            self.1.extend_from_slice(&buf[..n]);
            Ok(n)
        }
    }

    impl Write for Heard {
        fn write(&mut self, buf: &[u8]) -> Result<usize> {
            self.0.write(buf)
        }

        fn flush(&mut self) -> Result<()> {
            self.0.flush()
        }
    }

    let work = move || {
        let mut builder = SslConnector::builder(SslMethod::tls_client()).unwrap();
        builder.set_verify(SslVerifyMode::NONE);
        builder.set_max_proto_version(Some(SslVersion::TLS1_2)).unwrap();
        let configuration = builder.build().configure().unwrap().verify_hostname(false);
        let heard = Heard(std::net::TcpStream::connect(addr).unwrap(), Vec::new());
        let mut stream = SslStream::new(configuration.into_ssl(CLOSED).unwrap(), heard).unwrap();
        let _ = stream.connect();
        let heard = &stream.get_ref().1;
        subjects.map(|subject| heard.windows(subject.len()).any(|w| w == subject))
    };
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test]
async fn the_authorities_are_named_to_the_client_and_one_that_another_signed_is_enough() {
    let (ca, other) = (Ca::new(), Ca::new());
    let one = Origin::echo().await.named("one");
    let objects = [
        config_map("ca", &(ca.pem() + &other.pem())),
        gateway(
            "closed",
            json!([https("https", 443, None)]),
            Some(json!({"default": validation("ca", "AllowValidOnly")})),
        ),
        route("closed", "closed", CLOSED),
    ];
    let product = serve_with(base(&one).into_iter().chain(objects), &[]).await;
    for authority in [&ca, &other] {
        let leaf = client(authority);
        let named = named(product.https(), [&ca, &other].map(subject)).await;
        assert_eq!(named, [true, true]);
        // A listener for all hosts takes a client that names none, too.
        assert_eq!(ask(product.https(), &tls(None, Some(&leaf)), CLOSED).await, Some(200));
    }
    assert_eq!(ask(product.https(), &tls(None, None), CLOSED).await, None);
}

#[tokio::test]
async fn a_host_is_not_served_to_connections_that_were_let_in_for_another_one() {
    let ca = Ca::new();
    let (product, one) = two_gateways(&ca).await;
    let good = client(&ca);
    for sni in [Some(OPEN), Some("own.example.com"), Some("nobody.example.com"), None] {
        for leaf in [None, Some(&good)] {
            let before = one.requests();
            assert_eq!(ask(product.https(), &tls(sni, leaf), CLOSED).await, Some(421), "{sni:?}");
            assert_eq!(one.requests(), before, "{sni:?}");
        }
    }
    // The other way round it is a matter of listeners alone.
    assert_eq!(ask(product.https(), &tls(Some(CLOSED), Some(&good)), OPEN).await, Some(421));
    assert_eq!(ask(product.https(), &tls(Some(CLOSED), Some(&good)), "own.example.com").await, Some(200));
    // Without a server name nothing but the validation can tell, and the connection ends.
    let mut conn = RawConn::connect_with(product.https(), &tls(None, None)).await.unwrap();
    assert_eq!(conn.get(CLOSED, "/").await.unwrap().status, 421);
    assert!(conn.closed_within(Duration::from_secs(5)).await);
    let rejected =
        product.metric_sum("tak_ingress_unmatched_requests_total", &[("reason", "client_certificate")]);
    assert!(rejected.await >= 1.0);
}

#[tokio::test]
async fn http2_connections_are_not_shared_into_a_protected_host() {
    let ca = Ca::new();
    let (product, one) = two_gateways(&ca).await;
    let good = client(&ca);
    let mut conn = H2Conn::connect_with(product.https(), &tls(None, None)).await.unwrap();
    assert_eq!(conn.get(OPEN, "/").await.unwrap().status, 200);
    let before = one.requests();
    assert_eq!(conn.get(CLOSED, "/").await.unwrap().status, 421);
    assert_eq!(one.requests(), before);
    assert!(conn.closed_within(DEADLINE).await, "the client is sent away");
    let conn = H2Conn::connect_with(product.https(), &tls(Some(CLOSED), Some(&good))).await.unwrap();
    assert_eq!(conn.get(CLOSED, "/").await.unwrap().status, 200);
    // A gRPC client hears it in its own words.
    let conn = H2Conn::connect_with(product.https(), &tls(None, None)).await.unwrap();
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let answer = conn.request("POST", CLOSED, "/s/m", &grpc, b"").await.unwrap();
    assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("2")));
    assert_eq!(one.requests(), before + 1);
}

#[tokio::test]
async fn ports_have_their_own_authorities_and_a_fallback_lets_everybody_in() {
    let held = [(); 3].map(|()| std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let [strict, lax, free] = held.each_ref().map(|socket| socket.local_addr().unwrap());
    drop(held);
    let (ca, of_port) = (Ca::new(), Ca::new());
    let one = Origin::echo().await.named("one");
    let frontend = json!({"default": validation("ca", "AllowValidOnly"), "perPort": [
        {"port": strict.port(), "tls": validation("of-port", "AllowValidOnly")},
        {"port": lax.port(), "tls": validation("of-port", "AllowInsecureFallback")},
        {"port": free.port(), "tls": {}},
    ]});
    let listeners = json!([
        https("default", 443, None),
        https("strict", strict.port(), None),
        https("lax", lax.port(), None),
        https("free", free.port(), None),
        {"name": "http", "port": 80, "protocol": "HTTP"},
    ]);
    let objects = [
        config_map("ca", &ca.pem()),
        config_map("of-port", &of_port.pem()),
        gateway("gw", listeners, Some(frontend)),
        route("r", "gw", CLOSED),
    ];
    let ports = [strict, lax, free].map(|at| at.port().to_string()).join(",");
    let flags = [format!("--gateway-listener-ports=80,443,{ports}")];
    let documents = base(&one).into_iter().chain(objects);
    let product = serve_with(documents, &[&flags[0]]).await;
    let (a, b, nobody) = (client(&ca), client(&of_port), client(&Ca::new()));
    let all = [None, Some(&a), Some(&b), Some(&nobody)];
    for (addr, let_in) in [
        (product.https(), [false, true, false, false]),
        (strict, [false, false, true, false]),
        (lax, [true; 4]),
        (free, [true; 4]),
    ] {
        for (leaf, let_in) in all.into_iter().zip(let_in) {
            assert_eq!(get(addr, CLOSED, leaf).await, let_in.then_some(200), "{addr}");
        }
    }
    let subjects = || [&ca, &of_port].map(subject);
    assert_eq!(named(lax, subjects()).await, [false, true]);
    assert_eq!(named(free, subjects()).await, [false, false]);
    assert_eq!(client::get(product.http(), CLOSED, "/").await.status, 200, "plain HTTP asks for nothing");
}

#[tokio::test]
async fn a_change_of_authorities_counts_for_connections_that_are_kept() {
    let (ca, other) = (Ca::new(), Ca::new());
    let (product, _one) = two_gateways(&ca).await;
    let (old, new) = (client(&ca), client(&other));
    let with = tls(Some(CLOSED), Some(&old));
    let mut kept = RawConn::connect_with(product.https(), &with).await.unwrap();
    let mut h2 = H2Conn::connect_with(product.https(), &with).await.unwrap();
    assert_eq!(kept.get(CLOSED, "/").await.unwrap().status, 200);
    assert_eq!(h2.get(CLOSED, "/").await.unwrap().status, 200);
    product.write_manifest("ca.yaml", &config_map("ca", &other.pem()));
    eventually(DEADLINE, async || {
        (get(product.https(), CLOSED, Some(&new)).await == Some(200)).then_some(())
    })
    .await;
    assert_eq!(get(product.https(), CLOSED, Some(&old)).await, None);
    assert_eq!(kept.get(CLOSED, "/").await.unwrap().status, 421);
    assert!(kept.closed_within(DEADLINE).await);
    assert_eq!(h2.get(CLOSED, "/").await.unwrap().status, 421);
    assert!(h2.closed_within(DEADLINE).await);
    // Without authorities nobody is let in, whatever they show.
    let mut kept = RawConn::connect_with(product.https(), &tls(Some(CLOSED), Some(&new))).await.unwrap();
    assert_eq!(kept.get(CLOSED, "/").await.unwrap().status, 200);
    product.remove_manifest("ca.yaml");
    eventually(DEADLINE, async || {
        (get(product.https(), CLOSED, Some(&new)).await != Some(200)).then_some(())
    })
    .await;
    for leaf in [None, Some(&old), Some(&new)] {
        assert_eq!(get(product.https(), CLOSED, leaf).await, Some(404));
    }
    assert_eq!(kept.get(CLOSED, "/").await.unwrap().status, 404);
    assert_eq!(get(product.https(), OPEN, None).await, Some(200));
}

#[tokio::test]
async fn a_session_from_elsewhere_is_no_way_in() {
    const OTHERS: &str = "others.example.com";
    let (ca, other) = (Ca::new(), Ca::new());
    let one = Origin::echo().await.named("one");
    let of = |map: &str| Some(json!({"default": validation(map, "AllowValidOnly")}));
    let listener = |host: &str| json!([https("https", 443, Some(host))]);
    let objects = [
        config_map("ca", &ca.pem()),
        config_map("other", &other.pem()),
        gateway("closed", listener(CLOSED), of("ca")),
        gateway("others", listener(OTHERS), of("other")),
        gateway("open", listener(OPEN), None),
        route("closed", "closed", CLOSED),
        route("others", "others", OTHERS),
        route("open", "open", OPEN),
    ];
    let product = serve_with(base(&one).into_iter().chain(objects), &[]).await;
    let (addr, good, theirs) = (product.https(), client(&ca), client(&other));
    let work = move || {
        for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
            // Where it was made it is taken, and says what its client has shown.
            let own = SessionClient::new(version, Some(&good));
            assert_eq!(own.get(addr, CLOSED), (Some(200), false), "{version:?}");
            assert_eq!(own.get(addr, CLOSED), (Some(200), true), "{version:?}");
            // One of a host that asks for nothing, by a client that has nothing.
            let nothing = SessionClient::new(version, None);
            assert_eq!(nothing.get(addr, OPEN), (Some(200), false), "{version:?}");
            assert_eq!(nothing.get(addr, OPEN), (Some(200), true), "{version:?}");
            let (status, reused) = nothing.get(addr, CLOSED);
            assert_eq!((status, reused), (None, false), "{version:?}");
            // One of another host's authority.
            let others = SessionClient::new(version, Some(&theirs));
            assert_eq!(others.get(addr, OTHERS), (Some(200), false), "{version:?}");
            assert_eq!(others.get(addr, OTHERS), (Some(200), true), "{version:?}");
            assert_eq!(others.get(addr, CLOSED), (None, false), "{version:?}");
            // And back.
            assert_eq!(own.get(addr, OTHERS), (None, false), "{version:?}");
        }
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

#[tokio::test]
async fn connections_of_before_the_first_demand_end() {
    let ca = Ca::new();
    let one = Origin::echo().await.named("one");
    let of = |frontend| gateway("closed", json!([https("https", 443, Some(CLOSED))]), frontend);
    let objects = [config_map("ca", &ca.pem()), route("closed", "closed", CLOSED)];
    let product = serve_with(base(&one).into_iter().chain(objects), &[]).await;
    product.write_manifest("gateway.yaml", &of(None));
    let opened = async || {
        let conn = H2Conn::connect_with(product.https(), &tls(Some(CLOSED), None)).await.ok()?;
        (conn.get(CLOSED, "/").await.ok()?.status == 200).then_some(conn)
    };
    let mut h2 = eventually(DEADLINE, opened).await;
    product.write_manifest("gateway.yaml", &of(Some(json!({"default": validation("ca", "AllowValidOnly")}))));
    eventually(DEADLINE, async || get(product.https(), CLOSED, None).await.is_none().then_some(())).await;
    assert_eq!(h2.get(CLOSED, "/").await.unwrap().status, 421);
    assert!(h2.closed_within(DEADLINE).await);
    assert_eq!(get(product.https(), CLOSED, Some(&client(&ca))).await, Some(200));
}

#[tokio::test]
async fn each_address_asks_for_the_certificates_of_its_own_gateway() {
    let ca = Ca::new();
    let [one, two] = [Origin::echo().await.named("one"), Origin::echo().await.named("two")];
    let at = |name: &str, address: &str, frontend: Option<Value>| {
        let listeners = json!([https("https", 443, None)]);
        let mut gateway: Value = serde_json::from_str(&gateway(name, listeners, frontend)).unwrap();
        gateway["spec"]["addresses"] = json!([{"type": "IPAddress", "value": address}]);
        gateway.to_string()
    };
    let to = |backend: &str, gateway: &str| {
        let mut route: Value = serde_json::from_str(&route(backend, gateway, CLOSED)).unwrap();
        route["spec"]["rules"][0]["backendRefs"][0]["name"] = backend.into();
        route.to_string()
    };
    let objects = [
        config_map("ca", &ca.pem()),
        service("two", &[two.addr()]),
        at("closed", "127.0.0.2", Some(json!({"default": validation("ca", "AllowValidOnly")}))),
        at("open", "127.0.0.3", None),
        to("one", "closed"),
        to("two", "open"),
    ];
    let flags = ["--bind-address=0.0.0.0", "--gateway-addresses=127.0.0.2,127.0.0.3"];
    let product = serve_with(base(&one).into_iter().chain(objects), &flags).await;
    let [closed, open] = ["127.0.0.2", "127.0.0.3"]
        .map(|address| SocketAddr::new(address.parse().unwrap(), product.https().port()));
    let good = client(&ca);
    let from = async |addr: SocketAddr, leaf: Option<&Leaf>| {
        let mut conn = RawConn::connect_with(addr, &tls(Some(CLOSED), leaf)).await.ok()?;
        conn.get(CLOSED, "/").await.ok().map(|answer| answer.origin())
    };
    for leaf in [None, Some(&good)] {
        assert_eq!(from(open, leaf).await.as_deref(), Some("two"));
    }
    assert_eq!(from(closed, None).await, None);
    assert_eq!(from(closed, Some(&client(&Ca::new()))).await, None);
    assert_eq!(from(closed, Some(&good)).await.as_deref(), Some("one"));
    assert_eq!(one.requests(), 1);
    // Nor does a session of the open one help, for the same host.
    let work = move || {
        for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
            let nothing = SessionClient::new(version, None);
            assert_eq!(nothing.get(open, CLOSED), (Some(200), false), "{version:?}");
            assert_eq!(nothing.get(open, CLOSED), (Some(200), true), "{version:?}");
            assert_eq!(nothing.get(closed, CLOSED), (None, false), "{version:?}");
        }
    };
    tokio::task::spawn_blocking(work).await.unwrap();
    assert_eq!(one.requests(), 1);
}

#[tokio::test]
async fn a_session_lets_nobody_in_whose_certificate_has_expired() {
    let ca = Ca::new();
    let (product, _one) = two_gateways(&ca).await;
    let addr = product.https();
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        let options = LeafOptions { not_after: 4, ..LeafOptions::default() };
        let leaf = ca.leaf_with(&[], KeyKind::EcP256Sec1, &options);
        let own = std::sync::Arc::new(SessionClient::new(version, Some(&leaf)));
        let get = async || {
            let own = own.clone();
            tokio::task::spawn_blocking(move || own.get(addr, CLOSED)).await.unwrap()
        };
        assert_eq!(get().await, (Some(200), false), "{version:?}");
        let refused =
            eventually(DEADLINE, async || Some(get().await).filter(|(status, _)| *status != Some(200)));
        assert_eq!(refused.await, (Some(421), true), "{version:?}");
    }
}

#[tokio::test]
async fn an_ingress_keeps_its_host_and_nothing_that_was_protected_is_served_there() {
    let ca = Ca::new();
    let one = Origin::echo().await.named("one");
    let two = Origin::echo().await.named("two");
    let path = |name: &str, host: &str, created: &str| {
        let rules = json!([{"matches": [{"path": {"value": "/closed"}}], "backendRefs": [{"name": "one", "port": 80}]}]);
        let mut route: Value = serde_json::from_str(&route(name, "closed", host)).unwrap();
        route["spec"]["rules"] = rules;
        route["metadata"]["creationTimestamp"] = created.into();
        route.to_string()
    };
    let ingress = |name: &str, host: &str| {
        Ingress::new(name).prefix(host, "/", "two").set("ssl-redirect", "false").created(15).yaml()
    };
    let objects = [
        config_map("ca", &ca.pem()),
        service("two", &[two.addr()]),
        gateway(
            "closed",
            json!([https("https", 443, Some("*.example.com"))]),
            Some(json!({"default": validation("ca", "AllowValidOnly")})),
        ),
        path("younger", "old.example.com", "2027-01-01T00:00:00Z"),
        path("older", "new.example.com", "2020-01-01T00:00:00Z"),
        ingress("old", "old.example.com"),
        ingress("new", "new.example.com"),
        ingress("alone", "alone.example.com"),
    ];
    let product = serve_with(base(&one).into_iter().chain(objects), &[]).await;
    let good = client(&ca);
    let ask = async |host: &str, path: &str, leaf| {
        let mut conn = RawConn::connect_with(product.https(), &tls(Some(host), leaf)).await.ok()?;
        conn.get(host, path).await.ok().map(|answer| (answer.status, answer.origin()))
    };
    let of_two = || Some((200, "two".to_owned()));
    for host in ["old.example.com", "alone.example.com"] {
        assert_eq!(ask(host, "/", None).await, of_two(), "{host}");
        assert_eq!(ask(host, "/closed", None).await, of_two(), "{host}");
    }
    assert_eq!(ask("new.example.com", "/closed", None).await, None);
    assert_eq!(ask("new.example.com", "/closed", Some(&good)).await, Some((200, "one".to_owned())));
    eventually(DEADLINE, async || {
        let told = product.log_entries("mistake in an object");
        let of = |object: &str| told.iter().any(|e| e["id"] == "TAK-7017" && e["object"] == object);
        (of("httproute/shop/younger") && of("ingress/shop/new")).then_some(())
    })
    .await;
}
