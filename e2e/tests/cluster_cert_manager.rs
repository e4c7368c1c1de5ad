//! Certificates for TLS blocks that name no Secret: with cert-manager's kinds and a test in its place, and with the
//! real cert-manager and an ACME server that looks for its challenges behind the product.

mod cluster_scene;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster_scene::{
    Ingress, Load, SOON, Target, account, backend, becomes, events_on, fallback, join, namespace, reaches,
    requests_of, serve, service, shows, warned,
};
use ingress_e2e::acme::{AcmeServer, CertManager, crds};
use ingress_e2e::client;
use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::eventually;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

/// Kinds that are installed later are found within this.
const INSTALLED: Duration = Duration::from_secs(15);
/// How long an ACME certificate may take: two looks for the challenge, and cert-manager's own pauses.
const ISSUED: Duration = Duration::from_secs(120);
/// The owner of a Certificate that is wanted no more.
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

async fn certificates(cluster: &Cluster, namespace: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate"));
    Api::namespaced_with(cluster.admin().await, namespace, &kind)
}

/// The Certificate once it is what `wanted` asks for.
async fn certificate(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    within: Duration,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let api = certificates(cluster, namespace).await;
    eventually(within, async || {
        let found = api.get_opt(name).await.ok()??;
        let found = serde_json::to_value(found).unwrap();
        wanted(&found).then_some(found)
    })
    .await
}

fn hosts(certificate: &Value) -> Vec<&str> {
    certificate["spec"]["dnsNames"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

fn issuer(certificate: &Value) -> String {
    let issuer = &certificate["spec"]["issuerRef"];
    format!("{} {}", issuer["kind"].as_str().unwrap(), issuer["name"].as_str().unwrap())
}

fn owner(certificate: &Value) -> &str {
    let owners = certificate["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.len(), 1, "{certificate}");
    assert_eq!((&owners[0]["kind"], &owners[0]["controller"]), (&json!("Ingress"), &Value::Null));
    owners[0]["uid"].as_str().unwrap()
}

async fn uid(cluster: &Cluster, namespace: &str, ingress: &str) -> String {
    let api: Api<k8s_openapi::api::networking::v1::Ingress> =
        Api::namespaced(cluster.admin().await, namespace);
    api.get(ingress).await.unwrap().metadata.uid.unwrap()
}

/// Waits until the product serves TLS for the host with this certificate.
async fn shows_leaf(product: &Product, host: &str, leaf: &ingress_e2e::pki::Leaf) {
    shows(product, host, |served| served.is(leaf)).await;
}

async fn shows_fallback(product: &Product, host: &str) {
    let own = fallback(product).await.certificate;
    shows(product, host, |served| served.certificate == own).await;
}

#[tokio::test]
async fn a_certificate_follows_its_ingress_and_its_secret_is_served() {
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let web = backend(&dns, "shop", "web", [127, 0, 0, 2]).await;
    let (a, b, c) = ("a.shop.test", "b.shop.test", "c.shop.test");
    let app = |prod: &str, blocks: &[&[&str]]| {
        let app = Ingress::new("shop", "app").annotation("cert-manager.io/cluster-issuer", prod);
        let app = [a, b, c].iter().fold(app, |app, host| app.prefix(host, "/", "web", "http"));
        blocks.iter().fold(app.tls(&[a], "own"), |app, hosts| app.tls_issued(hosts)).yaml()
    };
    let ca = Ca::new();
    let own = ca.leaf(&[a], KeyKind::EcP256Sec1);
    let scene = [
        crds(),
        namespace("shop"),
        service("shop", "web", &[("http", web.port())]),
        tls_secret_yaml("shop", "own", &own),
    ];
    cluster.apply(&join(scene)).await;
    // made by hand, under a name that a block's would have
    let mine = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate",
        "metadata": { "namespace": "shop", "name": "mine-tls-0" },
        "spec": { "dnsNames": ["mine.shop.test"], "secretName": "mine-tls-0", "issuerRef": { "name": "hand" } },
    });
    let ingresses = [
        mine.to_string(),
        app("", &[&[b]]),
        Ingress::new("shop", "mine")
            .prefix("mine.shop.test", "/", "web", "http")
            .tls_issued(&["mine.shop.test"])
            .yaml(),
        Ingress::new("shop", "foreign")
            .class(Some("other"))
            .prefix("x.test", "/", "web", "http")
            .tls_issued(&["x.test"])
            .yaml(),
    ];
    cluster.apply(&join(ingresses)).await;
    let kubeconfig = account(&cluster, "certifier").await;
    let product = serve(&kubeconfig, &dns, &[]).await;

    let made = certificate(&cluster, "shop", "app-tls-1", INSTALLED, |_| true).await;
    assert_eq!((hosts(&made), &*issuer(&made)), (vec![b], "ClusterIssuer letsencrypt-staging"));
    assert_eq!(made["spec"]["secretName"], "app-tls-1");
    assert_eq!(owner(&made), uid(&cluster, "shop", "app").await);
    shows_leaf(&product, a, &own).await;
    shows_fallback(&product, b).await;
    becomes(&product, b, "/", 308).await;

    // the test is cert-manager: the Secret appears, and is renewed
    let write = async |name: &str, names: &[&str]| {
        let leaf = ca.leaf(names, KeyKind::EcP256Sec1);
        cluster.apply(&tls_secret_yaml("shop", name, &leaf)).await;
        leaf
    };
    write("app-tls-1", &[b]).await;
    let leaf = write("app-tls-1", &[b]).await;
    shows_leaf(&product, b, &leaf).await;
    let answer = client::tls_get(product.https(), b, b, "/", Some(&ca.pem())).await;
    assert_eq!((answer.status, answer.origin()), (200, "web".into()));
    let api = certificates(&cluster, "shop").await;
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "" }] } });
    api.patch_status("app-tls-1", &PatchParams::default(), &Patch::Merge(&ready)).await.unwrap();
    let wait = "kubectl -n shop wait --for=condition=Ready certificate/app-tls-1 --timeout=10s";
    assert!(
        tokio::task::spawn_blocking({
            let mut wait = cluster.shell(wait);
            move || wait.status().unwrap().success()
        })
        .await
        .unwrap()
    );

    // further hosts: what there is goes on being served for the host that it names
    cluster.apply(&app("prod", &[&[b, c]])).await;
    let wanted = |made: &Value| hosts(made) == [b, c] && issuer(made) == "ClusterIssuer prod";
    certificate(&cluster, "shop", "app-tls-1", SOON, wanted).await;
    shows_leaf(&product, b, &leaf).await;
    shows_fallback(&product, c).await;
    let both = write("app-tls-1", &[b, c]).await;
    shows_leaf(&product, c, &both).await;
    shows_leaf(&product, b, &both).await;

    // two blocks, then the other way round: no host gets another one's certificate, not for a moment
    cluster.apply(&app("prod", &[&[b], &[c]])).await;
    certificate(&cluster, "shop", "app-tls-2", SOON, |made| hosts(made) == [c]).await;
    let (for_b, for_c) = (write("app-tls-1", &[b]).await, write("app-tls-2", &[c]).await);
    shows_leaf(&product, b, &for_b).await;
    shows_leaf(&product, c, &for_c).await;
    cluster.apply(&app("prod", &[&[c], &[b]])).await;
    certificate(&cluster, "shop", "app-tls-1", SOON, |made| hosts(made) == [c]).await;
    certificate(&cluster, "shop", "app-tls-2", SOON, |made| hosts(made) == [b]).await;
    shows_leaf(&product, b, &for_b).await;
    shows_leaf(&product, c, &for_c).await;
    write("app-tls-1", &[c]).await;
    // the only one for b is overwritten
    shows_fallback(&product, b).await;
    let for_b = write("app-tls-2", &[b]).await;
    shows_leaf(&product, b, &for_b).await;

    // a block goes: its Certificate is given up, its Secret stays
    cluster.apply(&app("prod", &[&[c]])).await;
    certificate(&cluster, "shop", "app-tls-2", SOON, |made| owner(made) == NOBODY).await;

    // nothing is written where all is as it is wanted, however often that is looked at
    let written = || {
        let writes = requests_of(&cluster, "certifier").into_iter();
        writes
            .filter(|request| request.verb == "patch" && request.what.starts_with("cert-manager.io/"))
            .count()
    };
    let before = written();
    for _ in 0..3 {
        let leaf = write("app-tls-1", &[c]).await;
        shows_leaf(&product, c, &leaf).await;
        cluster
            .apply(&app("prod", &[&[c]]).replace("\"annotations\":{", "\"annotations\":{\"x\":\"y\","))
            .await;
    }
    assert_eq!(written(), before);

    // what is not ours was never touched, and its owner has heard
    warned(&cluster, "shop", "mine", &["mine-tls-0", "TAK-4009"]).await;
    let mine = certificate(&cluster, "shop", "mine-tls-0", SOON, |_| true).await;
    assert_eq!(
        (&mine["metadata"]["ownerReferences"], &mine["metadata"]["generation"]),
        (&Value::Null, &json!(1))
    );
    let all = certificates(&cluster, "shop").await.list(&Default::default()).await.unwrap();
    let mut names: Vec<_> = all.items.into_iter().filter_map(|made| made.metadata.name).collect();
    names.sort();
    assert_eq!(names, ["app-tls-1", "app-tls-2", "mine-tls-0"]);
    let asked = requests_of(&cluster, "certifier");
    let asked = asked.iter().filter(|request| request.what.starts_with("cert-manager.io/"));
    for request in asked {
        assert!(["list", "watch", "patch"].contains(&request.verb.as_str()), "{request:?}");
        assert!(request.decision == "allow" && request.code < 400, "{request:?}");
    }
}

#[tokio::test]
async fn certificates_go_with_their_ingress_and_secrets_stay() {
    let mut cluster = Cluster::start().await;
    cluster.start_garbage_collector();
    let dns = DnsServer::start().await;
    cluster.apply(&join([crds(), namespace("shop"), service("shop", "web", &[("http", 80)])])).await;
    let app = |blocks: &[&str]| {
        let app = Ingress::new("shop", "app")
            .prefix("a.test", "/", "web", "http")
            .prefix("b.test", "/", "web", "http");
        blocks.iter().fold(app, |app, host| app.tls_issued(&[host])).yaml()
    };
    cluster.apply(&app(&["a.test", "b.test"])).await;
    let kubeconfig = account(&cluster, "certifier").await;
    let _product = serve(&kubeconfig, &dns, &[]).await;
    let api = certificates(&cluster, "shop").await;
    for name in ["app-tls-0", "app-tls-1"] {
        certificate(&cluster, "shop", name, INSTALLED, |_| true).await;
        cluster
            .apply(&tls_secret_yaml("shop", name, &Ca::new().leaf(&["a.test"], KeyKind::EcP256Sec1)))
            .await;
    }
    let gone = async |name: &str| {
        // the collector looks for new kinds every thirty seconds
        eventually(Duration::from_secs(90), async || api.get_opt(name).await.ok()?.is_none().then_some(()))
            .await;
    };
    cluster.apply(&app(&["a.test"])).await;
    gone("app-tls-1").await;
    assert!(api.get_opt("app-tls-0").await.unwrap().is_some());
    cluster.delete(&app(&["a.test"])).await;
    gone("app-tls-0").await;
    let secrets: Api<Secret> = Api::namespaced(cluster.admin().await, "shop");
    for name in ["app-tls-0", "app-tls-1"] {
        assert!(secrets.get_opt(name).await.unwrap().is_some(), "{name}");
    }
}

#[tokio::test]
async fn cert_manager_may_come_later_and_go() {
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let web = backend(&dns, "shop", "web", [127, 0, 0, 3]).await;
    let app = Ingress::new("shop", "app").prefix("a.test", "/", "web", "http").tls_issued(&["a.test"]);
    let plain = Ingress::new("shop", "plain").prefix("b.test", "/", "web", "http");
    let scene =
        [namespace("shop"), service("shop", "web", &[("http", web.port())]), app.yaml(), plain.yaml()];
    cluster.apply(&join(scene)).await;
    let kubeconfig = account(&cluster, "certifier").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    reaches(&product, "b.test", "/", "web").await;
    becomes(&product, "a.test", "/", 308).await;
    warned(&cluster, "shop", "app", &["not installed", "TAK-4008"]).await;
    assert!(events_on(&cluster, "shop", "plain").await.is_empty());

    let absent =
        || product.log_entries("certificates are not installed: going on without, until they are").len();
    for removals in 1..3 {
        cluster.apply(&crds()).await;
        certificate(&cluster, "shop", "app-tls-0", INSTALLED, |made| hosts(made) == ["a.test"]).await;
        reaches(&product, "b.test", "/", "web").await;
        cluster.delete(&crds()).await;
        eventually(INSTALLED, async || (absent() == 1 + removals).then_some(())).await;
        reaches(&product, "b.test", "/", "web").await;
    }
    assert!(product.exit_status().is_none());
    assert_eq!(client::get(product.metrics_addr(), "localhost", "/readyz").await.status, 200);
}

#[tokio::test]
async fn acme_certificates_are_issued_through_the_product_and_renewed_under_load() {
    let cluster = Cluster::start().await;
    let dns = Arc::new(DnsServer::start().await);
    // ACME asks at port 80 and nowhere else: an address of this test's own
    let [.., high, low] = std::process::id().to_be_bytes();
    let everybody = IpAddr::from([127, 80, high, low | 1]);
    let acme = AcmeServer::start(everybody).await;
    let web = backend(&dns, "shop", "web", [127, 0, 0, 4]).await;
    cluster.apply(&join([crds(), namespace("cert-manager")])).await;
    let manager = CertManager::start(&cluster, &acme, &dns, 100).await;
    let scene = [
        namespace("shop"),
        service("shop", "web", &[("http", web.port())]),
        // the solver's Ingress says its class in the field, or in the annotation of old
        acme.cluster_issuer("field", json!({ "ingressClassName": "tak-os" })),
        acme.cluster_issuer("legacy", json!({ "class": "tak-os" })),
        Ingress::new("shop", "app")
            .annotation("cert-manager.io/cluster-issuer", "field")
            .prefix("www.acme.test", "/", "web", "http")
            .prefix("api.acme.test", "/", "web", "http")
            .tls_issued(&["www.acme.test", "api.acme.test"])
            .yaml(),
        // nobody gets in here
        Ingress::new("shop", "locked")
            .annotation("cert-manager.io/cluster-issuer", "legacy")
            .annotation("auth-type", "basic")
            .annotation("auth-secret", "missing")
            .annotation("limit-rpm", "1")
            .prefix("locked.acme.test", "/", "web", "http")
            .tls_issued(&["locked.acme.test"])
            .yaml(),
    ];
    cluster.apply(&join(scene)).await;
    let kubeconfig = account(&cluster, "certifier").await;
    let bind = format!("--bind-address={everybody}");
    let product = serve(&kubeconfig, &dns, &[&bind, "--http-port=80"]).await;

    let issued = async |name: &str| {
        let ready = |made: &Value| {
            let conditions = made["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
        };
        let api = certificates(&cluster, "shop").await;
        let done = ingress_e2e::within(ISSUED, async || {
            let made = serde_json::to_value(api.get_opt(name).await.ok()??).unwrap();
            ready(&made).then_some(())
        })
        .await;
        assert!(done.is_some(), "{name} was not issued; cert-manager:\n{}", manager.log());
    };
    issued("app-tls-0").await;
    issued("locked-tls-0").await;
    let root = acme.root().await;
    for host in ["www.acme.test", "api.acme.test"] {
        let names = |served: &client::Served| served.names().contains(&host.to_owned());
        shows(&product, host, names).await;
        let answer = client::tls_get(product.https(), host, host, "/", Some(&root)).await;
        assert_eq!((answer.status, answer.origin()), (200, "web".into()));
        becomes(&product, host, "/", 308).await;
    }
    shows(&product, "locked.acme.test", |served| served.names() == ["locked.acme.test"]).await;
    let locked =
        client::tls_get(product.https(), "locked.acme.test", "locked.acme.test", "/", Some(&root)).await;
    assert_eq!(locked.status, 501);
    // every challenge came through the product, which asked nobody for a password and sent nobody away
    let challenges: Vec<_> = product
        .log()
        .into_iter()
        .filter(|line| {
            line["path"].as_str().is_some_and(|path| path.starts_with("/.well-known/acme-challenge/"))
        })
        .collect();
    for host in ["www.acme.test", "api.acme.test", "locked.acme.test"] {
        let answered =
            |line: &&Value| line["host"] == host && line["status"] == 200 && line["scheme"] == "http";
        assert!(challenges.iter().filter(answered).count() >= 2, "{host}: {challenges:#?}");
    }
    // cert-manager asks before its Ingress is there, and the application answers; from then on the solver does
    let mut solved: BTreeSet<&str> = BTreeSet::new();
    for line in &challenges {
        let path = line["path"].as_str().unwrap();
        if line["status"] == 200 {
            solved.insert(path);
        }
        assert!(!solved.contains(path) || line["status"] == 200, "{line}");
    }

    // renewed, as cert-manager's own tool asks for it, while clients come and go
    let old = client::served_certificate(product.https(), Some("www.acme.test")).await.certificate;
    let load =
        Load::start(["www.acme.test", "api.acme.test"].map(|host| Target::https(&product, host, &root)));
    load.more(50).await;
    let renew = json!({ "status": { "conditions": [
        { "type": "Ready", "status": "True", "reason": "Ready", "message": "" },
        { "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by a test" },
    ]}});
    let api = certificates(&cluster, "shop").await;
    api.patch_status("app-tls-0", &PatchParams::default(), &Patch::Merge(&renew)).await.unwrap();
    let renewed = ingress_e2e::within(ISSUED, async || {
        let served = client::served_certificate(product.https(), Some("www.acme.test")).await;
        (served.certificate != old).then_some(())
    })
    .await;
    assert!(renewed.is_some(), "not renewed; cert-manager:\n{}", manager.log());
    load.more(50).await;
    load.all_well().await;
    // cert-manager's support for Ingresses left our Certificates alone
    for name in ["app-tls-0", "locked-tls-0"] {
        let made = serde_json::to_value(api.get(name).await.unwrap()).unwrap();
        assert_ne!(owner(&made), NOBODY);
    }
}
