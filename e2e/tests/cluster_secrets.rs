//! Certificates from Secrets of a real API server: late, renewed, broken, disputed.

mod cluster_scene;

use std::net::SocketAddr;

use cluster_scene::{
    Ingress, account, backend, becomes, events_on, fallback, join, later_than, namespace, reaches, serve,
    service, shared, shows, warned,
};
use ingress_e2e::client::{self, RawConn, Tls};
use ingress_e2e::dns::DnsServer;
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, Leaf, tls_secret_yaml};
use ingress_e2e::product::Product;
use serde_json::json;

fn leaf(ca: &Ca, host: &str) -> Leaf {
    ca.leaf(&[host], KeyKind::EcP256Sec1)
}

/// A namespace with a Service `web` and its backend.
async fn shop(dns: &DnsServer, name: &str) -> Origin {
    let web = backend(dns, name, "web", [127, 0, 0, 2]).await;
    shared().await.apply(&join([namespace(name), service(name, "web", &[("http", web.port())])])).await;
    web
}

fn secret(namespace: &str, name: &str, kind: &str, data: &[(&str, &[u8])]) -> String {
    let encode = |bytes: &[u8]| openssl::base64::encode_block(bytes);
    let data: serde_json::Map<_, _> = data.iter().map(|(k, v)| ((*k).to_owned(), encode(v).into())).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": {"namespace": namespace, "name": name},
        "data": data,
    })
    .to_string()
}

/// The status of GET / under a certificate from this authority; panics if there is no such answer.
async fn exchange(addr: SocketAddr, host: &str, ca: &Ca) -> u16 {
    client::tls_get(addr, host, host, "/", Some(&ca.pem())).await.status
}

#[tokio::test]
async fn a_secret_that_comes_after_its_ingress_is_served() {
    let cluster = shared().await;
    let (dns, host, ca) = (DnsServer::start().await, "late-secret.example.com", Ca::new());
    let _web = shop(&dns, "late-secret").await;
    let kubeconfig = account(cluster, "secrets-late").await;
    let products = [serve(&kubeconfig, &dns, &[]).await, serve(&kubeconfig, &dns, &[]).await];
    let ingress = |secret: &str| {
        Ingress::new("late-secret", "web").prefix(host, "/", "web", "http").tls(&[host], secret).yaml()
    };
    cluster.apply(&ingress("app-tls")).await;
    for product in &products {
        becomes(product, host, "/", 308).await;
        let own = fallback(product).await;
        assert_eq!(
            client::served_certificate(product.https(), Some(host)).await.certificate,
            own.certificate
        );
        assert_eq!(
            client::tls_get(product.https(), host, host, "/", None).await.status,
            200,
            "it serves all the same"
        );
    }
    let first = leaf(&ca, host);
    cluster.apply(&tls_secret_yaml("late-secret", "app-tls", &first)).await;
    for product in &products {
        shows(product, host, |served| served.is(&first)).await;
        assert_eq!(exchange(product.https(), host, &ca).await, 200);
    }

    // A wrong name, then the right one.
    cluster.apply(&ingress("ap-tls")).await;
    for product in &products {
        let own = fallback(product).await;
        shows(product, host, |served| served.certificate == own.certificate).await;
    }
    cluster.apply(&ingress("app-tls")).await;
    for product in &products {
        shows(product, host, |served| served.is(&first)).await;
        assert_eq!(product.exit_status(), None);
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_served_live() {
    let cluster = shared().await;
    let (dns, host, ca) = (DnsServer::start().await, "renewed.example.com", Ca::new());
    let _web = shop(&dns, "renewed").await;
    let kubeconfig = account(cluster, "secrets-renewed").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    let certificates = [leaf(&ca, host), ca.leaf(&[host], KeyKind::Rsa2048Pkcs8), leaf(&ca, host)];
    let ingress = Ingress::new("renewed", "web").prefix(host, "/", "web", "http").tls(&[host], "tls");
    cluster.apply(&join([tls_secret_yaml("renewed", "tls", &certificates[0]), ingress.yaml()])).await;
    shows(&product, host, |served| served.is(&certificates[0])).await;
    let mut open = RawConn::connect_with(product.https(), &Tls::new().sni(host).ca(&ca.pem())).await.unwrap();
    assert_eq!(open.get(host, "/").await.unwrap().status, 200);
    for certificate in &certificates[1..] {
        cluster.apply(&tls_secret_yaml("renewed", "tls", certificate)).await;
        shows(&product, host, |served| served.is(certificate)).await;
        assert_eq!(exchange(product.https(), host, &ca).await, 200);
        assert_eq!(open.get(host, "/").await.unwrap().status, 200, "open connections are left alone");
    }
    let own = fallback(&product).await;
    cluster.delete(&tls_secret_yaml("renewed", "tls", &certificates[0])).await;
    shows(&product, host, |served| served.certificate == own.certificate).await;
    assert_eq!(fallback(&product).await.certificate, own.certificate, "the fallback is made once");
}

#[tokio::test]
async fn a_secret_of_another_namespace_is_not_served() {
    let cluster = shared().await;
    let (dns, host, ca) = (DnsServer::start().await, "foreign-secret.example.com", Ca::new());
    let _web = shop(&dns, "foreign-secret").await;
    let kubeconfig = account(cluster, "secrets-foreign").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    let theirs = tls_secret_yaml("foreign-secret-owner", "tls", &leaf(&ca, host));
    let ingress = Ingress::new("foreign-secret", "web").prefix(host, "/", "web", "http").tls(&[host], "tls");
    cluster.apply(&join([namespace("foreign-secret-owner"), theirs, ingress.yaml()])).await;
    warned(cluster, "foreign-secret", "web", &["tls"]).await;
    let own = fallback(&product).await;
    assert_eq!(client::served_certificate(product.https(), Some(host)).await.certificate, own.certificate);
    // Nothing but the place was wrong.
    let ours = leaf(&ca, host);
    cluster.apply(&tls_secret_yaml("foreign-secret", "tls", &ours)).await;
    shows(&product, host, |served| served.is(&ours)).await;
}

#[tokio::test]
async fn a_key_that_does_not_match_gets_the_fallback_and_an_event() {
    let cluster = shared().await;
    let (dns, host, ca) = (DnsServer::start().await, "mismatch.example.com", Ca::new());
    let _web = shop(&dns, "mismatch").await;
    let kubeconfig = account(cluster, "secrets-mismatch").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    let good = leaf(&ca, host);
    let mixed = Leaf { cert_pem: good.cert_pem.clone(), key_pem: leaf(&ca, host).key_pem };
    let ingress = Ingress::new("mismatch", "web").prefix(host, "/", "web", "http").tls(&[host], "crossed");
    cluster.apply(&join([tls_secret_yaml("mismatch", "crossed", &mixed), ingress.yaml()])).await;
    let event = warned(cluster, "mismatch", "web", &["crossed", "key"]).await;
    let note = event.note.unwrap();
    let secret_text = mixed.key_pem.lines().nth(1).unwrap();
    assert!(!note.contains(secret_text) && !product.log_text().contains(secret_text), "a key is never told");
    let own = fallback(&product).await;
    assert_eq!(client::served_certificate(product.https(), Some(host)).await.certificate, own.certificate);
    assert_eq!(client::tls_get(product.https(), host, host, "/", None).await.status, 200);
    cluster.apply(&tls_secret_yaml("mismatch", "crossed", &good)).await;
    shows(&product, host, |served| served.is(&good)).await;
}

#[tokio::test]
async fn broken_secrets_of_one_namespace_harm_nobody_else() {
    let cluster = shared().await;
    let (dns, ca) = (DnsServer::start().await, Ca::new());
    let _x = shop(&dns, "broken").await;
    let _y = shop(&dns, "sound").await;
    let kubeconfig = account(cluster, "secrets-broken").await;
    let product = serve(&kubeconfig, &dns, &[]).await;

    let sound: Vec<(String, Leaf)> = (0..3)
        .map(|i| format!("sound-{i}.example.com"))
        .map(|host| (host.clone(), leaf(&ca, &host)))
        .collect();
    for (i, (host, leaf)) in sound.iter().enumerate() {
        let name = format!("sound-{i}");
        let ingress = Ingress::new("sound", &name).prefix(host, "/", "web", "http").tls(&[host], &name);
        cluster.apply(&join([tls_secret_yaml("sound", &name, leaf), ingress.yaml()])).await;
    }

    let good = leaf(&ca, "broken-long.example.com");
    // Just below what the API server takes, and good but for its length.
    let long_chain = good.cert_pem.repeat(950 * 1024 / good.cert_pem.len());
    let noise: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let tls = "kubernetes.io/tls";
    let broken = [
        ("random", secret("broken", "random", tls, &[("tls.crt", &noise), ("tls.key", &noise)])),
        ("empty", secret("broken", "empty", tls, &[("tls.crt", b""), ("tls.key", b"")])),
        (
            "opaque",
            secret(
                "broken",
                "opaque",
                "Opaque",
                &[("tls.crt", good.cert_pem.as_bytes()), ("tls.key", good.key_pem.as_bytes())],
            ),
        ),
        (
            "long",
            secret(
                "broken",
                "long",
                tls,
                &[("tls.crt", long_chain.as_bytes()), ("tls.key", good.key_pem.as_bytes())],
            ),
        ),
        (
            "cut",
            secret(
                "broken",
                "cut",
                tls,
                &[("tls.crt", &good.cert_pem.as_bytes()[..200]), ("tls.key", good.key_pem.as_bytes())],
            ),
        ),
    ];
    let host_of = |name: &str| format!("broken-{name}.example.com");
    for (name, secret) in &broken {
        let host = host_of(name);
        let ingress = Ingress::new("broken", name).prefix(&host, "/", "web", "http").tls(&[&host], name);
        cluster.apply(&join([secret, &ingress.yaml()])).await;
    }

    let holds = async |product: &Product| {
        let own = fallback(product).await;
        for (name, _) in &broken {
            let host = host_of(name);
            becomes(product, &host, "/", 308).await;
            shows(product, &host, |served| served.certificate == own.certificate).await;
            assert_eq!(client::tls_get(product.https(), &host, &host, "/", None).await.status, 200, "{name}");
        }
        for (host, leaf) in &sound {
            shows(product, host, |served| served.is(leaf)).await;
            assert_eq!(exchange(product.https(), host, &ca).await, 200);
        }
    };
    holds(&product).await;
    for (name, _) in &broken {
        // One may hear of the Ingress before its Secret, and say that it is missing: that is another matter.
        warned(cluster, "broken", name, &[name, "no certificate to serve"]).await;
        let object = format!("ingress/broken/{name}");
        let told = product.log_entries("mistake in an object").into_iter();
        let told = told.filter(|entry| entry["object"] == *object && entry["reason"] == "InvalidTlsSecret");
        assert_eq!(told.count(), 1, "one warning for {name}");
    }
    drop(product);
    let again = serve(&kubeconfig, &dns, &[]).await;
    holds(&again).await;
    for (name, _) in &broken {
        let events = events_on(cluster, "broken", name).await;
        let told = events.iter().filter(|event| event.reason.as_deref() == Some("InvalidTlsSecret"));
        assert_eq!(told.count(), 1, "the restarted one says nothing new: {events:#?}");
    }
}

#[tokio::test]
async fn the_older_ingress_decides_about_a_hosts_certificate() {
    let cluster = shared().await;
    let (dns, host, ca) = (DnsServer::start().await, "shared-host.example.com", Ca::new());
    let _web = shop(&dns, "shared-host").await;
    let kubeconfig = account(cluster, "secrets-shared").await;
    let products = [serve(&kubeconfig, &dns, &[]).await, serve(&kubeconfig, &dns, &[]).await];
    let (s1, s2) = (leaf(&ca, host), leaf(&ca, host));
    let secrets = [tls_secret_yaml("shared-host", "s1", &s1), tls_secret_yaml("shared-host", "s2", &s2)];
    // The names would decide the other way round.
    let p1 = Ingress::new("shared-host", "z-p1").prefix(host, "/a", "web", "http").tls(&[host], "s1");
    let p2 = Ingress::new("shared-host", "a-p2").prefix(host, "/b", "web", "http").tls(&[host], "s2");
    cluster.apply(&join(secrets.iter().chain([&p1.yaml()]))).await;
    later_than(cluster, "shared-host", "z-p1").await;
    cluster.apply(&p2.yaml()).await;

    let is = async |product: &Product, expected: &Leaf| {
        shows(product, host, |served| served.is(expected)).await;
        becomes(product, host, "/b", 308).await;
        for _ in 0..20 {
            let served = client::served_certificate(product.https(), Some(host)).await;
            assert!(served.is(expected), "it does not flip");
        }
    };
    for product in &products {
        becomes(product, host, "/b", 308).await;
        is(product, &s1).await;
    }
    cluster.apply(&p2.clone().annotation("ssl-redirect", "false").yaml()).await;
    for product in &products {
        reaches(product, host, "/b", "web").await;
        shows(product, host, |served| served.is(&s1)).await;
    }
    cluster.apply(&p2.yaml()).await;
    let again = serve(&kubeconfig, &dns, &[]).await;
    let all = [&products[0], &products[1], &again];
    for product in all {
        is(product, &s1).await;
    }

    // A block whose Secret is missing does not keep a usable one of the same namespace away.
    cluster.delete(&secrets[0]).await;
    for product in all {
        is(product, &s2).await;
    }
    cluster.apply(&secrets[0]).await;
    for product in all {
        is(product, &s1).await;
    }
    cluster.delete(&p1.yaml()).await;
    for product in all {
        is(product, &s2).await;
    }
}
