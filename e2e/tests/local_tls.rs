//! Handshakes: which versions, which certificate, which protocol.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{HOST, Ingress, NAMESPACE, everything_to, serve, serve_with, service};
use ingress_e2e::client::{self, H2Conn, RawConn, Served, Tls, served_certificate};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::pki::{Ca, KeyKind, Leaf, LeafOptions, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::sessions::SessionClient;
use ingress_e2e::{DEADLINE, eventually};
use openssl::base64::encode_block;
use openssl::ssl::SslVersion;
use serde_json::json;

/// "Within seconds".
const SECONDS: Duration = Duration::from_secs(5);

/// An Ingress for a host with Prefix `/` to Service `web` and a TLS block.
fn ingress(name: &str, host: &str, secret: &str) -> Ingress {
    Ingress::new(name).prefix(host, "/", "web").tls(&[host], secret)
}

fn leaf(host: &str) -> Leaf {
    Ca::new().leaf(&[host], KeyKind::EcP256Sec1)
}

fn secret(name: &str, leaf: &Leaf) -> String {
    tls_secret_yaml(NAMESPACE, name, leaf)
}

/// A Secret of any type and content.
fn secret_of(kind: &str, name: &str, certificate: &[u8], key: &[u8]) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": {"namespace": NAMESPACE, "name": name},
        "data": {"tls.crt": encode_block(certificate), "tls.key": encode_block(key)},
    })
    .to_string()
}

async fn served(product: &Product, name: &str) -> Served {
    served_certificate(product.https(), Some(name)).await
}

/// Whether this is the certificate that the process made for itself.
fn is_fallback(served: &Served) -> bool {
    let certificate = &served.certificate;
    let same_name = certificate.subject_name().try_cmp(certificate.issuer_name()).is_ok_and(|o| o.is_eq());
    same_name && certificate.verify(&certificate.public_key().unwrap()).unwrap()
}

#[tokio::test]
async fn tls_1_2_and_1_3_are_accepted_and_older_ones_refused() {
    let origin = Origin::echo().await;
    let leaf = leaf(HOST);
    let product =
        serve([ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()]), secret("tls", &leaf)])
            .await;
    let connect = async |version| {
        let tls = Tls::new().sni(HOST).versions(version, version);
        RawConn::connect_with(product.https(), &tls).await
    };
    for (version, name) in [(SslVersion::TLS1_2, "TLSv1.2"), (SslVersion::TLS1_3, "TLSv1.3")] {
        let mut conn = connect(version).await.unwrap_or_else(|e| panic!("{name}: {e:#}"));
        assert_eq!(conn.served().unwrap().version, name);
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200, "{name}");
        eventually(DEADLINE, async || {
            product.log_text().contains(&format!("\"tls_version\":\"{name}\"")).then_some(())
        })
        .await;
    }
    for version in [SslVersion::TLS1, SslVersion::TLS1_1] {
        assert!(connect(version).await.is_err(), "{version:?}");
    }
    let labels = [("version", "TLSv1.3"), ("result", "success")];
    assert_eq!(product.metric_sum("tak_ingress_tls_handshakes_total", &labels).await, 1.0);
}

#[tokio::test]
async fn cipher_suites_without_forward_secrecy_or_authentication_are_refused() {
    let origin = Origin::echo().await;
    let rsa = Ca::new().leaf(&[HOST], KeyKind::Rsa2048Pkcs8);
    let product =
        serve([ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()]), secret("tls", &rsa)])
            .await;
    let tls = Tls::new().sni(HOST).versions(SslVersion::TLS1_2, SslVersion::TLS1_2);
    for suite in ["AES128-SHA", "AES128-GCM-SHA256", "ECDHE-RSA-AES128-SHA"] {
        assert!(tls.clone().ciphers(suite).connect(product.https()).await.is_err(), "{suite}");
    }
    for suite in ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"]
    {
        tls.clone()
            .ciphers(suite)
            .connect(product.https())
            .await
            .unwrap_or_else(|e| panic!("{suite}: {e:#}"));
    }
}

#[tokio::test]
async fn an_unknown_name_gets_the_certificate_of_the_process() {
    let origin = Origin::echo().await;
    let leaf = leaf(HOST);
    let documents =
        [ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()]), secret("tls", &leaf)];
    let product = serve(documents.clone()).await;
    let unknown = served(&product, "unknown.example.org").await;
    assert!(is_fallback(&unknown));
    for name in [None, Some("sub.app.example.com"), Some("example.com"), Some("127.0.0.1")] {
        let other = served_certificate(product.https(), name).await;
        assert_eq!(other.certificate, unknown.certificate, "{name:?}");
    }
    assert!(served(&product, HOST).await.is(&leaf));
    assert!(product.metric_value("tak_ingress_tls_fallback_certificate_total").await >= Some(5.0));

    let again = serve(documents).await;
    let other = served(&again, "unknown.example.org").await;
    assert!(is_fallback(&other) && other.certificate != unknown.certificate, "made at each start");
}

#[tokio::test]
async fn a_broken_secret_costs_its_own_host_alone() {
    let origin = Origin::echo().await;
    let (good, other) = (leaf("good.example.com"), leaf("other.example.com"));
    let kubernetes = "kubernetes.io/tls";
    let noise: Vec<u8> = (0..2000u32).map(|i| (i * 7919 % 251) as u8).collect();
    let many = other.cert_pem.repeat(1 + (1 << 20) / other.cert_pem.len());
    let cut = |pem: &str| pem.as_bytes()[..pem.len() / 2].to_vec();
    let broken = [
        ("noise", secret_of(kubernetes, "noise", &noise, &noise)),
        ("empty", secret_of(kubernetes, "empty", b"", b"")),
        ("no-key", secret_of(kubernetes, "no-key", other.cert_pem.as_bytes(), b"")),
        ("no-chain", secret_of(kubernetes, "no-chain", b"", other.key_pem.as_bytes())),
        ("mismatch", secret_of(kubernetes, "mismatch", other.cert_pem.as_bytes(), good.key_pem.as_bytes())),
        ("half-chain", secret_of(kubernetes, "half-chain", &cut(&other.cert_pem), other.key_pem.as_bytes())),
        ("half-key", secret_of(kubernetes, "half-key", other.cert_pem.as_bytes(), &cut(&other.key_pem))),
        ("swapped", secret_of(kubernetes, "swapped", other.key_pem.as_bytes(), other.cert_pem.as_bytes())),
        ("opaque", secret_of("Opaque", "opaque", &noise, &noise)),
        ("huge", secret_of(kubernetes, "huge", many.as_bytes(), good.key_pem.as_bytes())),
        ("missing", String::new()),
    ];
    let host = |name: &str| format!("{name}.broken.example.com");
    let mut documents = vec![
        ingress("good", "good.example.com", "good").yaml(),
        secret("good", &good),
        service("web", &[origin.addr()]),
    ];
    for (name, secret) in &broken {
        documents.push(ingress(name, &host(name), name).yaml());
        documents.push(secret.clone());
    }
    // The second time is a restart.
    for _ in 0..2 {
        let product = serve(documents.clone()).await;
        let fallback = served(&product, "unknown.example.org").await;
        for (name, _) in &broken {
            let served = served(&product, &host(name)).await;
            assert_eq!(served.certificate, fallback.certificate, "{name}");
            let answer = client::tls_get(product.https(), &host(name), &host(name), "/", None).await;
            assert_eq!(answer.status, 200, "{name}: the route itself works");
            let warned = async || {
                let log = product.log();
                let about = |line: &&serde_json::Value| {
                    line["level"] == "WARN" && line.to_string().contains(&format!("shop/{name}"))
                };
                log.iter().any(|line| about(&line)).then_some(())
            };
            assert!(ingress_e2e::within(SECONDS, warned).await.is_some(), "{name}: no warning names it");
        }
        assert!(served(&product, "good.example.com").await.is(&good));
        assert!(!product.log_text().contains("PRIVATE KEY") && !product.stderr().contains("panicked"));
    }
}

#[tokio::test]
async fn a_secret_of_another_type_is_not_served() {
    let origin = Origin::echo().await;
    let leaf = leaf(HOST);
    let opaque = secret_of("Opaque", "tls", leaf.cert_pem.as_bytes(), leaf.key_pem.as_bytes());
    let product = serve([ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()]), opaque]).await;
    assert!(is_fallback(&served(&product, HOST).await));
}

#[tokio::test]
async fn a_secret_of_another_namespace_is_not_served() {
    let origin = Origin::echo().await;
    let foreign = tls_secret_yaml("elsewhere", "tls", &leaf(HOST));
    let product =
        serve([ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()]), foreign]).await;
    assert!(is_fallback(&served(&product, HOST).await));
}

#[tokio::test]
async fn keys_of_every_kind_are_served() {
    let origin = Origin::echo().await;
    let ca = Ca::new();
    let host = |i: usize| format!("k{i}.example.com");
    let leaves: Vec<_> =
        KeyKind::ALL.iter().enumerate().map(|(i, kind)| ca.leaf(&[&host(i)], *kind)).collect();
    let mut documents = vec![service("web", &[origin.addr()])];
    for (i, leaf) in leaves.iter().enumerate() {
        documents.push(ingress(&format!("k{i}"), &host(i), &format!("k{i}")).yaml());
        documents.push(secret(&format!("k{i}"), leaf));
    }
    let product = serve(documents).await;
    for (i, leaf) in leaves.iter().enumerate() {
        let (kind, host) = (KeyKind::ALL[i], host(i));
        for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
            // This client verifies name and chain.
            let tls = Tls::new().sni(&host).ca(&ca.pem()).versions(version, version);
            let mut conn = RawConn::connect_with(product.https(), &tls)
                .await
                .unwrap_or_else(|e| panic!("{kind:?} {version:?}: {e:#}"));
            assert!(conn.served().unwrap().is(leaf), "{kind:?}");
            assert_eq!(conn.get(&host, "/").await.unwrap().status, 200, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn the_whole_chain_is_sent() {
    let origin = Origin::echo().await;
    let ca = Ca::new();
    let mut leaf = ca.leaf(&[HOST], KeyKind::EcP256Sec1);
    leaf.cert_pem += &ca.pem();
    let product =
        serve([ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()]), secret("tls", &leaf)])
            .await;
    let served = served(&product, HOST).await;
    assert_eq!(served.chain, [leaf.certificate(), ca.certificate().clone()]);
    assert_eq!(client::tls_get(product.https(), HOST, HOST, "/", Some(&ca.pem())).await.status, 200);
}

#[tokio::test]
async fn the_certificate_of_the_exact_name_beats_the_wildcard() {
    let origin = Origin::echo().await;
    let ca = Ca::new();
    let wild = ca.leaf(&["*.example.com", "app.example.com", "a.b.example.com"], KeyKind::EcP256Sec1);
    let exact = ca.leaf(&["app.example.com"], KeyKind::EcP256Sec1);
    let product = serve([
        ingress("a", "*.example.com", "w").yaml(),
        ingress("b", "app.example.com", "e").yaml(),
        service("web", &[origin.addr()]),
        secret("w", &wild),
        secret("e", &exact),
    ])
    .await;
    for _ in 0..50 {
        assert!(served(&product, "app.example.com").await.is(&exact));
        assert!(served(&product, "x.example.com").await.is(&wild));
        assert!(is_fallback(&served(&product, "a.b.example.com").await));
        assert!(is_fallback(&served(&product, "example.com").await));
    }
}

#[tokio::test]
async fn the_older_of_two_secrets_for_a_host_is_served() {
    let origin = Origin::echo().await;
    let (first, second) = (leaf(HOST), leaf(HOST));
    for (created, want) in [((1, 2), &first), ((2, 1), &second)] {
        let product = serve([
            Ingress::new("p1").created(created.0).prefix(HOST, "/a", "web").tls(&[HOST], "s1").yaml(),
            Ingress::new("p2").created(created.1).prefix(HOST, "/b", "web").tls(&[HOST], "s2").yaml(),
            service("web", &[origin.addr()]),
            secret("s1", &first),
            secret("s2", &second),
        ])
        .await;
        for _ in 0..5 {
            assert!(served(&product, HOST).await.is(want), "{created:?}");
        }
    }
}

#[tokio::test]
async fn a_block_without_its_secret_does_not_win_over_one_that_has_it() {
    let origin = Origin::echo().await;
    let leaf = leaf(HOST);
    let product = serve([
        Ingress::new("old").created(1).prefix(HOST, "/a", "web").tls(&[HOST], "missing").yaml(),
        Ingress::new("new").created(2).prefix(HOST, "/b", "web").tls(&[HOST], "tls").yaml(),
        service("web", &[origin.addr()]),
        secret("tls", &leaf),
    ])
    .await;
    assert!(served(&product, HOST).await.is(&leaf));
}

#[tokio::test]
async fn a_block_for_another_host_leaves_a_host_on_http() {
    let origin = Origin::echo().await;
    let leaf = leaf(HOST);
    for (hosts, redirected) in [
        (vec![], false),
        (vec!["other.example.com"], false),
        (vec!["*.example.com"], true),
        (vec![HOST], true),
    ] {
        let product = serve([
            Ingress::new("web").prefix(HOST, "/", "web").tls(&hosts, "tls").yaml(),
            service("web", &[origin.addr()]),
            secret("tls", &leaf),
        ])
        .await;
        let status = client::get(product.http(), HOST, "/").await.status;
        assert_eq!(status, if redirected { 308 } else { 200 }, "{hosts:?}");
        assert_eq!(served(&product, HOST).await.is(&leaf), redirected, "{hosts:?}");
    }
}

#[tokio::test]
async fn a_secret_that_comes_later_is_served_without_a_restart() {
    let origin = Origin::echo().await;
    let (first, second) = (leaf(HOST), leaf(HOST));
    let product = serve([ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()])]).await;
    assert!(is_fallback(&served(&product, HOST).await));
    let answer = client::tls_get(product.https(), HOST, HOST, "/", None).await;
    assert_eq!(answer.status, 200, "a handshake, not a reset");

    let mut kept = RawConn::connect_tls(product.https(), Some(HOST), &[]).await.unwrap();
    let becomes = async |want: &Leaf| {
        eventually(SECONDS, async || served(&product, HOST).await.is(want).then_some(())).await;
    };
    product.write_manifest("secret.yaml", &secret("tls", &first));
    becomes(&first).await;
    product.write_manifest("secret.yaml", &secret("tls", &second));
    becomes(&second).await;
    assert_eq!(kept.get(HOST, "/").await.unwrap().status, 200, "open connections outlive the rotation");

    // A rotation to something broken is a certificate that cannot be used any more.
    product.write_manifest("secret.yaml", &secret_of("kubernetes.io/tls", "tls", b"", b""));
    eventually(SECONDS, async || is_fallback(&served(&product, HOST).await).then_some(())).await;
    product.write_manifest("secret.yaml", &secret("tls", &first));
    becomes(&first).await;
}

#[tokio::test]
async fn a_corrected_secret_name_is_followed() {
    let origin = Origin::echo().await;
    let leaf = leaf(HOST);
    let product = serve([
        ingress("web", HOST, "misspelt").yaml(),
        service("web", &[origin.addr()]),
        secret("tls", &leaf),
    ])
    .await;
    assert!(is_fallback(&served(&product, HOST).await));
    product.write_manifest(
        "manifests.yaml",
        &common::join([
            ingress("web", HOST, "tls").yaml(),
            service("web", &[origin.addr()]),
            secret("tls", &leaf),
        ]),
    );
    eventually(SECONDS, async || served(&product, HOST).await.is(&leaf).then_some(())).await;
}

#[tokio::test]
async fn an_expired_certificate_is_served_as_it_is() {
    let origin = Origin::echo().await;
    let options = LeafOptions { not_before: -7200, not_after: -3600, ..LeafOptions::default() };
    let expired = Ca::new().leaf_with(&[HOST], KeyKind::EcP256Sec1, &options);
    let product = serve([
        ingress("web", HOST, "tls").yaml(),
        service("web", &[origin.addr()]),
        secret("tls", &expired),
    ])
    .await;
    assert!(served(&product, HOST).await.is(&expired), "the client's error is then about the date");
    let metric = "tak_ingress_certificate_not_after_timestamp_seconds";
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let not_after = product.metric_sum(metric, &[]).await;
    assert!((now - 3700.0..now - 3500.0).contains(&not_after), "{not_after}");
}

#[tokio::test]
async fn alpn_chooses_http2_before_http1() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for (offered, chosen) in [
        (&["h2", "http/1.1"][..], Some("h2")),
        (&["http/1.1", "h2"], Some("h2")),
        (&["h2"], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let conn = RawConn::connect_tls(product.https(), Some(HOST), offered).await.unwrap();
        assert_eq!(conn.served().unwrap().alpn.as_deref(), chosen, "{offered:?}");
    }
    for offered in [&["http/1.1"][..], &[]] {
        let mut conn = RawConn::connect_tls(product.https(), Some(HOST), offered).await.unwrap();
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200, "{offered:?}");
    }
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.get(HOST, "/").await.unwrap().status, 200);
}

#[tokio::test]
async fn the_default_secret_replaces_the_fallback() {
    let origin = Origin::echo().await;
    let (default, own) = (leaf("default.example.com"), leaf(HOST));
    let documents =
        [ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()]), secret("tls", &own)];
    let with_default = documents.iter().cloned().chain([tls_secret_yaml("infra", "default", &default)]);
    let product = serve_with(with_default, &["--default-tls-secret=infra/default"]).await;
    assert!(served(&product, "unknown.example.org").await.is(&default));
    assert!(served_certificate(product.https(), None).await.is(&default));
    assert!(served(&product, HOST).await.is(&own));

    let product = serve_with(documents, &["--default-tls-secret=infra/default"]).await;
    assert!(is_fallback(&served(&product, "unknown.example.org").await), "while the Secret is missing");
    product.write_manifest("default.yaml", &tls_secret_yaml("infra", "default", &default));
    eventually(SECONDS, async || served(&product, "unknown.example.org").await.is(&default).then_some(()))
        .await;
}

async fn resumed(addr: SocketAddr, version: SslVersion) {
    let results = tokio::task::spawn_blocking(move || {
        let client = SessionClient::new(version, None);
        [(); 3].map(|()| client.get(addr, HOST))
    })
    .await
    .unwrap();
    assert_eq!(results, [(Some(200), false), (Some(200), true), (Some(200), true)], "{version:?}");
}

#[tokio::test]
async fn sessions_are_resumed_in_both_versions() {
    let origin = Origin::http(|_| Reply::new(200, "hi")).await;
    let leaf = leaf(HOST);
    let product =
        serve([ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()]), secret("tls", &leaf)])
            .await;
    resumed(product.https(), SslVersion::TLS1_2).await;
    resumed(product.https(), SslVersion::TLS1_3).await;
}

#[tokio::test]
async fn sessions_are_kept_by_clients_alone() {
    let origin = Origin::http(|_| Reply::new(200, "hi")).await;
    let objects =
        [ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()]), secret("tls", &leaf(HOST))];
    let product = serve(objects).await;
    let addr = product.https();
    let work = move || {
        let client = SessionClient::without_tickets();
        [(); 2].map(|()| client.get(addr, HOST))
    };
    let results = tokio::task::spawn_blocking(work).await.unwrap();
    assert_eq!(results, [(Some(200), false), (Some(200), false)]);
}

#[tokio::test]
async fn a_resumed_connection_takes_a_place_like_any_other() {
    let origin = Origin::http(|_| Reply::new(200, "hi")).await;
    let objects =
        [ingress("web", HOST, "tls").yaml(), service("web", &[origin.addr()]), secret("tls", &leaf(HOST))];
    let product = serve_with(objects, &["--max-connections=1"]).await;
    let addr = product.https();
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        let client = Arc::new(SessionClient::new(version, None));
        // The place of the last connection may not be back yet.
        let first = eventually(DEADLINE, async || {
            let client = client.clone();
            let answer = tokio::task::spawn_blocking(move || client.get(addr, HOST)).await.unwrap();
            Some(answer).filter(|(status, _)| status.is_some())
        });
        assert_eq!(first.await, (Some(200), false), "{version:?}");
        let mut resumed = eventually(DEADLINE, async || {
            let client = client.clone();
            tokio::task::spawn_blocking(move || client.connect(addr, HOST)).await.unwrap()
        })
        .await;
        assert!(resumed.is_resumed(), "{version:?}");
        let refused = RawConn::connect_with(addr, &Tls::new().sni(HOST)).await;
        assert!(refused.is_err(), "{version:?}: the place is taken");
        let status = tokio::task::spawn_blocking(move || resumed.get(HOST)).await.unwrap();
        assert_eq!(status, Some(200), "{version:?}");
    }
}
