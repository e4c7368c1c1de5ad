//! Each mistake in an Ingress becomes an Event on it that says what is wrong, and costs nobody else anything.

mod cluster_scene;

use std::time::Duration;

use cluster_scene::{
    Ingress, PREFIX, SOON, account, answer_of, backend, becomes, events_on, external_service, join,
    later_than, logged, namespace, reaches, requests_of, serve, service, shared, warned,
};
use ingress_e2e::client;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::eventually;
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;

/// A namespace with a Service `web`, its backend, and a product that serves one sound Ingress of it.
struct Scene {
    namespace: String,
    account: String,
    product: Product,
    _web: Origin,
    _dns: DnsServer,
}

impl Scene {
    async fn set(name: &str) -> Self {
        let cluster = shared().await;
        let dns = DnsServer::start().await;
        let web = backend(&dns, name, "web", [127, 0, 0, 2]).await;
        let account_name = format!("events-{name}");
        let kubeconfig = account(cluster, &account_name).await;
        let product = serve(&kubeconfig, &dns, &[]).await;
        let scene = Self { namespace: name.into(), account: account_name, product, _web: web, _dns: dns };
        let service = service(name, "web", &[("http", scene._web.port())]);
        cluster.apply(&join([namespace(name), service, scene.sound("sound").yaml()])).await;
        reaches(&scene.product, &scene.host("sound"), "/", "web").await;
        scene
    }

    fn host(&self, ingress: &str) -> String {
        format!("{ingress}.{}.example.com", self.namespace)
    }

    /// An Ingress for a host of its own, all right.
    fn sound(&self, name: &str) -> Ingress {
        self.bare(name).prefix(&self.host(name), "/", "web", "http")
    }

    fn bare(&self, name: &str) -> Ingress {
        Ingress::new(&self.namespace, name)
    }

    /// Applies an Ingress and waits for the Event with these words; it must be of this reason.
    async fn warns(&self, ingress: &Ingress, name: &str, reason: &str, words: &[&str]) {
        let cluster = shared().await;
        cluster.apply(&ingress.yaml()).await;
        let event = warned(cluster, &self.namespace, name, words).await;
        assert_eq!(event.reason.as_deref(), Some(reason), "{name}: {:?}", event.note);
        assert_eq!(event.reporting_controller.as_deref(), Some("tak-os.org/ingress-controller"));
        let object = event.regarding.unwrap();
        assert_eq!(object.api_version.as_deref(), Some("networking.k8s.io/v1"));
        assert!(object.uid.is_some_and(|uid| !uid.is_empty()), "as `kubectl describe` looks it up");
        let source = format!("ingress/{}/{name}", self.namespace);
        eventually(SOON, async || {
            (logged(&self.product, "mistake in an object", "object", &source) > 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn annotation_mistakes_name_the_key_and_what_is_accepted() {
    let scene = Scene::set("annotations").await;
    // Key, value, reason, words of the Event besides the key, answer of the route.
    let table: &[(&str, &str, &str, &[&str], &str)] = &[
        ("proxy-connect-timeout", "60s", "InvalidAnnotation", &["\"60s\"", "seconds"], "web"),
        ("proxy-read-timeout", "soon", "InvalidAnnotation", &["\"soon\"", "seconds"], "web"),
        ("proxy-send-timeout", "-1", "InvalidAnnotation", &["\"-1\"", "seconds"], "web"),
        ("ssl-redirect", "maybe", "InvalidAnnotation", &["\"maybe\"", "\"true\"", "\"false\""], "web"),
        ("proxy-ssl-verify", "off", "InvalidAnnotation", &["\"off\"", "\"true\"", "\"false\""], "web"),
        ("backend-keepalive", "1", "InvalidAnnotation", &["\"1\"", "\"true\"", "\"false\""], "web"),
        ("backend-protocol", "ftp", "InvalidAnnotation", &["\"ftp\"", "http", "https"], "web"),
        ("ssl-redirekt", "false", "UnknownAnnotation", &["nearest", "ssl-redirect"], "web"),
        ("proxy-read-timout", "5", "UnknownAnnotation", &["nearest", "proxy-read-timeout"], "web"),
        ("auth-type", "digest", "AuthMisconfigured", &["\"basic\"", "501"], "501"),
        ("auth-url", "ftp://auth.example.com/", "AuthMisconfigured", &["501"], "501"),
        ("k8s.tak-os.com/oauth2-secret", "oidc", "AuthSecretNotFound", &["does not exist", "501"], "501"),
        (
            "allowlist-source-range",
            "10.0.0.0/40",
            "InvalidAnnotation",
            &["10.0.0.0/40", "CIDR", "403"],
            "403",
        ),
        ("enable-cors", "yes", "InvalidAnnotation", &["\"yes\"", "\"true\""], "web"),
        ("limit-rps", "0", "InvalidAnnotation", &["\"0\"", "above 0"], "web"),
    ];
    for (i, (key, value, reason, words, answer)) in table.iter().enumerate() {
        let name = format!("mistake-{i}");
        let key = if key.contains('/') { (*key).to_owned() } else { format!("{PREFIX}{key}") };
        let words: Vec<&str> = words.iter().copied().chain([key.as_str()]).collect();
        scene.warns(&scene.sound(&name).annotation(&key, value), &name, reason, &words).await;
        eventually(SOON, async || {
            (answer_of(&scene.product, &scene.host(&name), "/").await == *answer).then_some(())
        })
        .await;
        assert_eq!(answer_of(&scene.product, &scene.host("sound"), "/").await, "web", "after {key}");
    }
    let body = client::get(scene.product.http(), &scene.host("mistake-9"), "/").await;
    assert_eq!(body.status, 501);
    assert!(body.text().contains("Authentication required but not configured"), "{}", body.text());
    assert!(events_on(shared().await, "annotations", "sound").await.is_empty(), "no Event without a mistake");
}

#[tokio::test]
async fn mistakes_in_rules_name_the_field() {
    let scene = Scene::set("rules").await;
    let host = |name: &str| scene.host(name);
    let gone = scene.bare("no-service").prefix(&host("no-service"), "/", "nowhere", 80);
    scene.warns(&gone, "no-service", "ServiceNotFound", &["spec.rules[0]", "rules/nowhere", "502"]).await;
    becomes(&scene.product, &host("no-service"), "/", 502).await;

    // The message lists the ports that there are.
    let port = scene._web.port().to_string();
    let number = scene.bare("no-number").prefix(&host("no-number"), "/", "web", 1);
    scene
        .warns(&number, "no-number", "ServicePortNotFound", &["spec.rules[0]", "rules/web", &port, "http"])
        .await;
    let name = scene.bare("no-name").prefix(&host("no-name"), "/", "web", "htp");
    scene.warns(&name, "no-name", "ServicePortNotFound", &["\"htp\"", &port, "http"]).await;
    becomes(&scene.product, &host("no-name"), "/", 502).await;

    // Of three paths one cannot be matched: that one is left out.
    for (i, (path, words)) in
        [("/a/%2e%2e/b", "dot segment"), ("/a#b", "octet"), ("/caf\u{e9}", "octet"), ("/a?b=c", "query")]
            .iter()
            .enumerate()
    {
        let name = format!("path-{i}");
        let three = scene
            .bare(&name)
            .prefix(&host(&name), "/good", "web", "http")
            .prefix(&host(&name), path, "web", "http")
            .path(&host(&name), "/exact", "Exact", "web", "http");
        scene.warns(&three, &name, "InvalidPath", &["spec.rules[1].http.paths[0].path", words]).await;
        reaches(&scene.product, &host(&name), "/good", "web").await;
        reaches(&scene.product, &host(&name), "/exact", "web").await;
    }

    let external = external_service("rules", "outside", "outside.example.com", 80);
    shared().await.apply(&external).await;
    let outside = scene.bare("outside").prefix(&host("outside"), "/", "outside", 80);
    scene.warns(&outside, "outside", "ExternalNameRefused", &["--allow-external-name-services"]).await;
    becomes(&scene.product, &host("outside"), "/", 502).await;
    reaches(&scene.product, &host("sound"), "/", "web").await;
}

#[tokio::test]
async fn mistakes_in_tls_blocks_name_the_secret_or_host() {
    let scene = Scene::set("blocks").await;
    let missing = scene.sound("missing").tls(&[&scene.host("missing")], "not-there");
    let words = ["spec.tls[0].secretName", "blocks/not-there", "does not exist"];
    scene.warns(&missing, "missing", "SecretNotFound", &words).await;
    let other = scene.sound("other").tls(&["other.example.org"], "not-there");
    scene.warns(&other, "other", "TlsHostNotInRules", &["spec.tls[0].hosts[0]", "other.example.org"]).await;
    let ca = Ca::new();
    let (one, two) = (ca.leaf(&["a"], KeyKind::EcP256Sec1), ca.leaf(&["b"], KeyKind::EcP256Sec1));
    let mixed = ingress_e2e::pki::Leaf { cert_pem: one.cert_pem, key_pem: two.key_pem };
    shared().await.apply(&tls_secret_yaml("blocks", "crossed", &mixed)).await;
    let crossed = scene.sound("crossed").tls(&[&scene.host("crossed")], "crossed");
    scene
        .warns(&crossed, "crossed", "InvalidTlsSecret", &["blocks/crossed", "tls.key", "does not belong"])
        .await;
    for name in ["missing", "crossed"] {
        becomes(&scene.product, &scene.host(name), "/", 308).await;
    }
    reaches(&scene.product, &scene.host("other"), "/", "web").await;
    reaches(&scene.product, &scene.host("sound"), "/", "web").await;
}

#[tokio::test]
async fn a_taken_path_names_its_owner() {
    let (scene, cluster) = (Scene::set("taken").await, shared().await);
    let host = scene.host("sound");
    later_than(cluster, "taken", "sound").await;
    let late = scene.bare("late").prefix(&host, "/", "web", "http").prefix(&host, "/own", "web", "http");
    let words = ["spec.rules[0].http.paths[0].path", &host, "taken/sound"];
    scene.warns(&late, "late", "HostPathTaken", &words).await;
    let events = events_on(cluster, "taken", "late").await;
    assert_eq!(events.len(), 1, "its own path is nobody else's: {events:#?}");
    reaches(&scene.product, &host, "/own", "web").await;
    assert!(events_on(cluster, "taken", "sound").await.is_empty(), "the owner has made no mistake");
}

#[tokio::test]
async fn repeated_changes_do_not_flood() {
    let (scene, cluster) = (Scene::set("flood").await, shared().await);
    let bad = |i: usize| {
        scene.sound("bad").annotation("ssl-redirect", "maybe").annotation("example.com/edit", &i.to_string())
    };
    scene.warns(&bad(0), "bad", "InvalidAnnotation", &["ssl-redirect"]).await;
    for i in 1..=40 {
        cluster.apply(&bad(i).yaml()).await;
        // The mistake comes and goes, which is a new occasion each time.
        if i % 10 == 0 {
            cluster.apply(&scene.sound("bad").yaml()).await;
            let mended =
                || logged(&scene.product, "no more mistakes in the object", "object", "ingress/flood/bad");
            eventually(SOON, async || (mended() == i / 10).then_some(())).await;
        }
    }
    // A second mistake, seen: by then everything before was dealt with.
    let both = bad(99).annotation("proxy-read-timeout", "never");
    scene.warns(&both, "bad", "InvalidAnnotation", &["proxy-read-timeout"]).await;
    let events = events_on(cluster, "flood", "bad").await;
    assert_eq!(events.len(), 2, "one for each mistake: {events:#?}");
    let written = |r: &&cluster_scene::Audited| r.what == "events.k8s.io/events";
    let requests = requests_of(cluster, &scene.account);
    // Some are about the objects of other tests of this program; those are as few.
    let about_this = requests.iter().filter(written).count();
    assert!(about_this < 120, "{about_this} writes of Events");
    let suppressed = scene.product.metric_sum("tak_ingress_events_total", &[("result", "suppressed")]).await;
    assert!(suppressed >= 1.0, "what was said not long ago is not said again: {suppressed}");

    // Another product, and one that is started again, have nothing to add.
    let again = serve(&account(cluster, "events-flood-again").await, &scene._dns, &[]).await;
    eventually(Duration::from_secs(10), async || {
        let known = again.metric_sum("tak_ingress_events_total", &[("result", "known")]).await;
        (known >= 2.0).then_some(())
    })
    .await;
    assert_eq!(events_on(cluster, "flood", "bad").await.len(), 2);
}
