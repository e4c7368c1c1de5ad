//! The product under a ServiceAccount with the rights that the administrator guide lists, and with fewer.

mod cluster_scene;

use std::collections::BTreeSet;
use std::time::Duration;

use cluster_scene::{
    Audited, Ingress, SOON, account, account_with, backend, becomes, becomes_within, fallback, grant,
    grant_in, in_force, join, logged, namespace, reaches, requests_of, rules, rules_without, serve, service,
    shared, shipped, shows, start, warned,
};
use ingress_e2e::TempDir;
use ingress_e2e::acme::crds;
use ingress_e2e::client;
use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::eventually;
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, Leaf, tls_secret_yaml};
use ingress_e2e::product::Product;
use serde_json::{Value, json};

/// Where the Lease of Pods outside a cluster is.
const LEASES: &str = "tak-os-ingress";
/// A kind that could not be read is tried again within this.
const RETRIED: Duration = Duration::from_secs(15);

/// A namespace with one sound Ingress with TLS (`web`) and one with a mistake (`bad`), each at a host of its own.
struct Shop {
    name: String,
    leaf: Leaf,
    _web: Origin,
}

impl Shop {
    async fn open(cluster: &Cluster, dns: &DnsServer, name: &str) -> Self {
        let web = backend(dns, name, "web", [127, 0, 0, 2]).await;
        let shop = Self {
            name: name.into(),
            leaf: Ca::new().leaf(&[&format!("web.{name}.example.com")], KeyKind::EcP256Sec1),
            _web: web,
        };
        let (host, bad_host) = (shop.host("web"), shop.host("bad"));
        let ingresses = [
            Ingress::new(name, "web").prefix(&host, "/", "web", "http").tls(&[&host], "tls"),
            Ingress::new(name, "bad")
                .annotation("proxy-read-timeout", "soon")
                .prefix(&bad_host, "/", "web", "http"),
        ];
        let objects = [
            namespace(name),
            service(name, "web", &[("http", shop._web.port())]),
            tls_secret_yaml(name, "tls", &shop.leaf),
        ];
        cluster.apply(&join(objects.into_iter().chain(ingresses.map(|i| i.yaml())))).await;
        shop
    }

    fn host(&self, ingress: &str) -> String {
        format!("{ingress}.{}.example.com", self.name)
    }

    async fn serves(&self, product: &Product) {
        becomes_within(RETRIED, product, &self.host("web"), "/", 308).await;
        shows(product, &self.host("web"), |served| served.is(&self.leaf)).await;
        let host = self.host("web");
        assert_eq!(client::tls_get(product.https(), &host, &host, "/", None).await.origin(), "web");
        reaches(product, &self.host("bad"), "/", "web").await;
    }
}

/// What the log says, at level WARN or above, about a resource.
fn said_about(product: &Product, resource: &str) -> Vec<String> {
    let loud = |entry: &Value| matches!(entry["level"].as_str(), Some("WARN" | "ERROR"));
    let lines = product.log().into_iter().filter(loud).map(|entry| entry.to_string());
    lines.filter(|line| line.contains(resource)).collect()
}

/// Lines among these that name the rule to add.
fn rule_lines(product: &Product, resource: &str) -> usize {
    // The quotes are escaped, and escaped again.
    let names = |line: &String| line.replace('\\', "").contains(&format!("resources [\"{resource}\"]"));
    said_about(product, resource).iter().filter(|line| names(line)).count()
}

/// The log comes to name the rule to add, and does so once.
async fn names_rule_once(product: &Product, resource: &str) {
    eventually(RETRIED, async || (rule_lines(product, resource) > 0).then_some(())).await;
    assert_eq!(rule_lines(product, resource), 1);
}

/// What was forbidden, and what was tried beyond reading the product's kinds, writing Events and Certificates, and the
/// Lease.
fn out_of_bounds(requests: &[Audited]) -> Vec<&Audited> {
    let reads = [
        "services",
        "secrets",
        "namespaces",
        "networking.k8s.io/ingresses",
        "networking.k8s.io/ingressclasses",
        "cert-manager.io/certificates",
        "discovery.k8s.io/endpointslices",
    ];
    let bounded = |request: &&Audited| {
        let (verb, what) = (request.verb.as_str(), request.what.as_str());
        let discovery = verb == "get" && (what.starts_with("/api") || what.starts_with("/version"));
        let read = matches!(verb, "list" | "watch")
            && (reads.contains(&what) || what.starts_with("gateway.networking.k8s.io/"));
        let event = matches!(verb, "create" | "patch") && what == "events.k8s.io/events";
        let certificate = verb == "patch" && what == "cert-manager.io/certificates";
        let lease = matches!(verb, "get" | "create" | "update") && what == "coordination.k8s.io/leases";
        // The test's own question, under this account.
        let own = what.starts_with("authorization.k8s.io/selfsubjectaccessreviews");
        let absent =
            request.code == 404 && (what.starts_with("gateway.") || what.starts_with("cert-manager."));
        let repeated_event = event && request.code == 409;
        // There is no Lease yet; another Pod was faster.
        let election = lease && matches!(request.code, 404 | 409);
        // A kind whose definition came a moment ago is not ready to be watched.
        let too_early = read && request.code == 429;
        let answered = request.code < 400 || absent || repeated_event || election || too_early;
        request.decision == "allow" && answered && (discovery || read || event || certificate || lease || own)
    };
    requests.iter().filter(|request| !bounded(request)).collect()
}

#[tokio::test]
async fn the_guides_role_is_enough_and_nothing_else_is_tried() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let shop = Shop::open(cluster, &dns, "guide").await;
    // Neither the Gateway API's nor cert-manager's kinds exist here.
    let kubeconfig = account(cluster, "rbac-guide").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    shop.serves(&product).await;
    warned(cluster, "guide", "bad", &["proxy-read-timeout"]).await;

    // Another test's product may have told of the mistake first, and the log is written behind the answer.
    let told = || requests_of(cluster, "rbac-guide").iter().any(|r| r.what == "events.k8s.io/events");
    eventually(SOON, async || told().then_some(())).await;
    let requests = requests_of(cluster, "rbac-guide");
    let beyond = out_of_bounds(&requests);
    assert!(beyond.is_empty(), "{beyond:#?}");
    let seen: BTreeSet<(&str, &str)> = requests.iter().map(|r| (r.verb.as_str(), r.what.as_str())).collect();
    for kind in [
        "networking.k8s.io/ingresses",
        "networking.k8s.io/ingressclasses",
        "services",
        "secrets",
        "discovery.k8s.io/endpointslices",
    ] {
        assert!(
            seen.contains(&("list", kind)) && seen.contains(&("watch", kind)),
            "{kind} is read: {seen:?}"
        );
    }
    assert!(seen.contains(&("create", "events.k8s.io/events")), "{seen:?}");
    assert_eq!(rule_lines(&product, "events"), 0);
    assert_eq!(product.metric_sum("tak_ingress_events_total", &[("result", "forbidden")]).await, 0.0);
}

#[tokio::test]
async fn one_pod_of_two_writes_certificates_and_the_other_takes_over() {
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    cluster
        .apply(&join([crds(), namespace(LEASES), namespace("shop"), service("shop", "web", &[("http", 80)])]))
        .await;
    let app = |hosts: &[&str]| {
        Ingress::new("shop", "app").prefix("a.test", "/", "web", "http").tls_issued(hosts).yaml()
    };
    let mut pods = Vec::new();
    for name in ["rbac-one", "rbac-two"] {
        let kubeconfig = account(&cluster, name).await;
        grant_in(&cluster, LEASES, name, &shipped("Role")).await;
        in_force(&cluster, &kubeconfig, &json!(shipped("Role")[0]), Some(LEASES)).await;
        pods.push((name, serve(&kubeconfig, &dns, &[]).await));
    }
    let tried = |name: &str, verb: &str, what: &str| {
        requests_of(&cluster, name).iter().filter(|r| r.verb == verb && r.what == what).count()
    };
    let writes = |name: &str| tried(name, "patch", "cert-manager.io/certificates");
    assert_eq!(tried("rbac-one", "get", "coordination.k8s.io/leases"), 0, "nothing is to be written yet");
    cluster.apply(&app(&["a.test"])).await;
    let leader = eventually(RETRIED, async || pods.iter().position(|(name, _)| writes(name) > 0)).await;
    let (leader, leading) = pods.swap_remove(leader);
    let (other, _) = &pods[0];
    // Both look at the Lease every three seconds.
    eventually(RETRIED, async || (tried(leader, "update", "coordination.k8s.io/leases") > 1).then_some(()))
        .await;
    assert_eq!((writes(leader), writes(other)), (1, 0));
    drop(leading);
    cluster.apply(&app(&["b.test"])).await;
    eventually(Duration::from_secs(60), async || (writes(other) > 0).then_some(())).await;
    for name in [leader, other] {
        let requests = requests_of(&cluster, name);
        let beyond = out_of_bounds(&requests);
        assert!(beyond.is_empty(), "{name}: {beyond:#?}");
        assert!(tried(name, "get", "coordination.k8s.io/leases") > 0);
    }
}

#[tokio::test]
async fn without_the_rule_for_events_only_events_are_missing() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let shop = Shop::open(cluster, &dns, "no-events").await;
    let kubeconfig = account_with(cluster, "rbac-no-events", &rules_without("events")).await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    shop.serves(&product).await;
    eventually(SOON, async || (rule_lines(&product, "events") > 0).then_some(())).await;
    let line = said_about(&product, "role has the rule").concat();
    for part in ["apiGroups", "events.k8s.io", "verbs", "create", "patch"] {
        assert!(line.contains(part), "{part} in {line}");
    }
    // Further mistakes are told in the log, and the rule is not asked for again.
    let forbidden = product.metric_sum("tak_ingress_events_total", &[("result", "forbidden")]).await;
    for i in 0..5 {
        let name = format!("bad-{i}");
        let host = shop.host(&name);
        let ingress = Ingress::new("no-events", &name)
            .annotation("ssl-redirect", "maybe")
            .prefix(&host, "/", "web", "http");
        cluster.apply(&ingress.yaml()).await;
        reaches(&product, &host, "/", "web").await;
        let object = format!("ingress/no-events/{name}");
        eventually(SOON, async || {
            (logged(&product, "mistake in an object", "object", &object) == 1).then_some(())
        })
        .await;
    }
    eventually(SOON, async || {
        let now = product.metric_sum("tak_ingress_events_total", &[("result", "forbidden")]).await;
        (now >= forbidden + 5.0).then_some(())
    })
    .await;
    names_rule_once(&product, "events").await;
    let refused = requests_of(cluster, "rbac-no-events").into_iter().filter(|r| r.code == 403).count();
    assert_eq!(refused, 1, "what was refused once is not tried again and again");
}

#[tokio::test]
async fn without_the_rule_for_endpointslices_all_else_works() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let shop = Shop::open(cluster, &dns, "no-slices").await;
    let kubeconfig = account_with(cluster, "rbac-no-slices", &rules_without("endpointslices")).await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    shop.serves(&product).await;
    warned(cluster, "no-slices", "bad", &["proxy-read-timeout"]).await;
    names_rule_once(&product, "endpointslices").await;
    let line = said_about(&product, "role needs the rule").concat();
    for part in ["apiGroups", "discovery.k8s.io", "verbs", "list", "watch"] {
        assert!(line.contains(part), "{part} in {line}");
    }
    let synced = "tak_ingress_watch_synced{kind=\"endpointslice\"}";
    assert_eq!(product.metric_value(synced).await, Some(0.0));
    // The rule is taken up where it comes later, without a restart.
    grant(cluster, "rbac-no-slices", &rules()).await;
    eventually(RETRIED, async || (product.metric_value(synced).await == Some(1.0)).then_some(())).await;
    assert_eq!(rule_lines(&product, "endpointslices"), 1, "said once");
}

#[tokio::test]
async fn without_the_rule_for_secrets_it_says_so_and_waits() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let shop = Shop::open(cluster, &dns, "no-secrets").await;
    let kubeconfig = account_with(cluster, "rbac-no-secrets", &rules_without("secrets")).await;
    let product = start(&kubeconfig, &dns, &[]).await;
    eventually(SOON, async || (rule_lines(&product, "secrets") == 1).then_some(())).await;
    // Everything else is there, so that Secrets are what it waits for.
    let pending = eventually(SOON, async || {
        let answer = client::get(product.metrics_addr(), "localhost", "/readyz").await;
        let rest = ["ingress", "service", "namespace"].iter().any(|kind| answer.text().contains(kind));
        (!rest).then_some(answer)
    })
    .await;
    assert_eq!(pending.status, 503);
    assert!(pending.text().contains("secret"), "{}", pending.text());
    assert_eq!(client::get(product.metrics_addr(), "localhost", "/healthz").await.text(), "OK");

    grant(cluster, "rbac-no-secrets", &rules()).await;
    shop.serves(&product).await;
    product.ready().await;
    assert_eq!(rule_lines(&product, "secrets"), 1, "said once");
}

#[tokio::test]
async fn a_rule_for_secrets_that_is_taken_away_costs_no_route() {
    // The API server is restarted: a cluster of its own.
    let mut cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let shop = Shop::open(&cluster, &dns, "taken").await;
    let kubeconfig = account(&cluster, "rbac-taken").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    shop.serves(&product).await;
    grant(&cluster, "rbac-taken", &rules_without("secrets")).await;
    // A watch that is open stays so: only a new one is refused.
    cluster.kill_apiserver();
    cluster.start_apiserver().await;
    eventually(Duration::from_secs(30), async || (rule_lines(&product, "secrets") == 1).then_some(())).await;
    shop.serves(&product).await;
    // Routes still follow.
    let host = shop.host("more");
    cluster.apply(&Ingress::new("taken", "more").prefix(&host, "/", "web", "http").yaml()).await;
    becomes_within(RETRIED, &product, &host, "/", 200).await;
    assert_eq!(client::get(product.metrics_addr(), "localhost", "/readyz").await.status, 200);
}

#[tokio::test]
async fn roles_in_the_watched_namespaces_are_enough() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let ours = Shop::open(cluster, &dns, "ours").await;
    let theirs = Shop::open(cluster, &dns, "theirs").await;
    let kubeconfig = cluster.service_account_kubeconfig(cluster_scene::HOME, "rbac-narrow").await;
    grant_in(cluster, "ours", "rbac-narrow", &rules()).await;
    in_force(cluster, &kubeconfig, &json!(rules()[0]), Some("ours")).await;
    let product = serve(&kubeconfig, &dns, &["--watch-namespace=ours"]).await;
    ours.serves(&product).await;
    warned(cluster, "ours", "bad", &["proxy-read-timeout"]).await;
    becomes(&product, &theirs.host("web"), "/", 404).await;
    let own = fallback(&product).await;
    let host = theirs.host("web");
    assert_eq!(client::served_certificate(product.https(), Some(&host)).await.certificate, own.certificate);
    // Classes have no namespace: that a Role cannot allow them is expected, and nothing else is refused.
    let refused: BTreeSet<String> = requests_of(cluster, "rbac-narrow")
        .into_iter()
        .filter(|r| r.decision != "allow")
        .map(|r| r.what)
        .collect();
    let classes = ["networking.k8s.io/ingressclasses", "gateway.networking.k8s.io/gatewayclasses"];
    assert_eq!(refused, BTreeSet::from(classes.map(str::to_owned)));
}

#[tokio::test]
async fn a_refusal_that_lasts_is_logged_once() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let kubeconfig = account_with(cluster, "rbac-lasting", &rules_without("namespaces")).await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    let refused = || requests_of(cluster, "rbac-lasting").into_iter().filter(|r| r.code == 403).count();
    eventually(Duration::from_secs(30), async || (refused() >= 3).then_some(())).await;
    let said = said_about(&product, "namespaces");
    assert_eq!(said.len(), 1, "{said:#?}");
}

#[tokio::test]
async fn rights_in_one_namespace_are_enough_for_an_owner() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let product = serve(&account(cluster, "rbac-for-owner").await, &dns, &[]).await;
    cluster.apply(&namespace("owned")).await;
    let rule = json!({
        "apiGroups": ["", "networking.k8s.io"],
        "resources": ["services", "secrets", "ingresses"],
        "verbs": ["create", "get", "list", "patch", "delete"],
    });
    let kubeconfig = cluster.service_account_kubeconfig(cluster_scene::HOME, "owner").await;
    grant_in(cluster, "owned", "owner", std::slice::from_ref(&rule)).await;
    in_force(cluster, &kubeconfig, &rule, Some("owned")).await;

    let web = backend(&dns, "owned", "web", [127, 0, 0, 2]).await;
    let host = "web.owned.example.com";
    let leaf = Ca::new().leaf(&[host], KeyKind::EcP256Sec1);
    let objects = join([
        service("owned", "web", &[("http", web.port())]),
        tls_secret_yaml("owned", "tls", &leaf),
        Ingress::new("owned", "web").prefix(host, "/", "web", "http").tls(&[host], "tls").yaml(),
    ]);
    let dir = TempDir::new("owner");
    let file = dir.write("objects.yaml", objects);
    let as_owner = async |what: &str| {
        let (kubeconfig, file) = (kubeconfig.display(), file.display());
        let mut command = cluster.shell(&format!("kubectl --kubeconfig={kubeconfig} {what} -f {file}"));
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    };
    as_owner("apply").await;
    becomes_within(RETRIED, &product, host, "/", 308).await;
    shows(&product, host, |served| served.is(&leaf)).await;
    assert_eq!(client::tls_get(product.https(), host, host, "/", None).await.origin(), "web");
    as_owner("delete").await;
    becomes_within(RETRIED, &product, host, "/", 404).await;
}
