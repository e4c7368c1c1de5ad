//! The API server dies, forgets, answers slowly or not at all: what serves, serves on.

mod cluster_scene;

use std::time::Duration;

use cluster_scene::{
    Ingress, Load, Relay, SOON, Target, account, answer_of, backend, becomes, becomes_within, join, logged,
    namespace, reaches, serve, service, shows, start,
};
use ingress_e2e::client;
use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::eventually;
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, Leaf, tls_secret_yaml};
use ingress_e2e::product::Product;
use k8s_openapi::api::networking::v1::Ingress as IngressObject;
use kube::Api;
use kube::api::PostParams;
use tokio::task::JoinSet;

/// A watch is tried again at least every 5 s; then the API server needs a moment of its own.
const RECONNECTED: Duration = Duration::from_secs(15);

const HOSTS: [&str; 3] = ["one.example.com", "two.example.com", "tls.example.com"];

/// Two plain hosts and one with TLS, in front of one backend.
struct Shop {
    ca: Ca,
    leaf: Leaf,
    web: Origin,
    dns: DnsServer,
}

impl Shop {
    async fn open(cluster: &Cluster) -> Self {
        let dns = DnsServer::start().await;
        let web = backend(&dns, "shop", "web", [127, 0, 0, 2]).await;
        let ca = Ca::new();
        let leaf = ca.leaf(&[HOSTS[2]], KeyKind::EcP256Sec1);
        let shop = Self { ca, leaf, web, dns };
        cluster.apply(&shop.objects()).await;
        shop
    }

    fn objects(&self) -> String {
        let service = service("shop", "web", &[("http", self.web.port())]);
        let secret = tls_secret_yaml("shop", "tls", &self.leaf);
        let ingresses = [
            Ingress::new("shop", "one").prefix(HOSTS[0], "/", "web", "http"),
            Ingress::new("shop", "two").prefix(HOSTS[1], "/", "web", "http"),
            Ingress::new("shop", "tls").prefix(HOSTS[2], "/", "web", "http").tls(&[HOSTS[2]], "tls"),
        ];
        join([namespace("shop"), service, secret].into_iter().chain(ingresses.map(|i| i.yaml())))
    }

    fn more(&self, name: &str) -> Ingress {
        Ingress::new("shop", name).prefix(&format!("{name}.example.com"), "/", "web", "http")
    }

    async fn serves(&self, product: &Product) {
        for host in &HOSTS[..2] {
            reaches(product, host, "/", "web").await;
        }
        shows(product, HOSTS[2], |served| served.is(&self.leaf)).await;
    }

    /// Traffic to all hosts, which must be served by now.
    fn load(&self, product: &Product) -> Load {
        let tls = Target::https(product, HOSTS[2], &self.ca.pem());
        Load::start(HOSTS[..2].iter().map(|host| Target::http(product, host)).chain([tls]))
    }
}

async fn admin(product: &Product, path: &str) -> (u16, String) {
    let answer = client::get(product.metrics_addr(), "localhost", path).await;
    (answer.status, answer.text())
}

/// How often the kind was listed in full.
fn lists(product: &Product, kind: &str) -> usize {
    logged(product, "watch synced", "kind", kind)
}

#[tokio::test]
async fn traffic_flows_while_the_api_server_is_dead() {
    let mut cluster = Cluster::start().await;
    let shop = Shop::open(&cluster).await;
    let product = serve(&account(&cluster, "outage").await, &shop.dns, &[]).await;
    shop.serves(&product).await;
    let load = shop.load(&product);
    load.more(50).await;

    cluster.kill_apiserver();
    // Long enough for every watch to notice and to fail several times.
    eventually(RECONNECTED, async || {
        let kinds = ["ingress", "service", "secret", "ingressclass", "endpointslice"];
        kinds.iter().all(|kind| logged(&product, "watch interrupted", "kind", kind) > 0).then_some(())
    })
    .await;
    load.more(500).await;
    assert_eq!(admin(&product, "/healthz").await, (200, "OK".into()));
    assert_eq!(admin(&product, "/readyz").await.0, 200, "it serves as well as before");
    cluster.kill_etcd();
    load.more(200).await;
    assert_eq!(admin(&product, "/healthz").await, (200, "OK".into()));

    cluster.start_etcd().await;
    cluster.start_apiserver().await;
    cluster.apply(&shop.more("after").yaml()).await;
    becomes_within(RECONNECTED, &product, "after.example.com", "/", 200).await;
    let renewed = shop.ca.leaf(&[HOSTS[2]], KeyKind::EcP256Sec1);
    cluster.apply(&tls_secret_yaml("shop", "tls", &renewed)).await;
    eventually(RECONNECTED, async || {
        client::served_certificate(product.https(), Some(HOSTS[2])).await.is(&renewed).then_some(())
    })
    .await;
    cluster.delete(&shop.more("after").yaml()).await;
    becomes(&product, "after.example.com", "/", 404).await;
    load.all_well().await;
    assert_eq!(product.exit_status(), None);
}

#[tokio::test]
async fn a_deletion_missed_while_cut_off_takes_effect() {
    let mut cluster = Cluster::start().await;
    let shop = Shop::open(&cluster).await;
    let [by_event, by_list, late] = ["by-event", "by-list", "late"].map(|name| shop.more(name));
    cluster.apply(&join([by_event.yaml(), by_list.yaml()])).await;
    let relay = Relay::to(&cluster).await;
    let kubeconfig = relay.kubeconfig(&account(&cluster, "outage").await);
    let product = serve(&kubeconfig, &shop.dns, &[]).await;
    shop.serves(&product).await;
    for host in ["by-event.example.com", "by-list.example.com"] {
        reaches(&product, host, "/", "web").await;
    }
    let load = shop.load(&product);

    // The event is still there to be had after the reconnect.
    relay.cut();
    cluster.delete(&by_event.yaml()).await;
    load.more(100).await;
    assert_eq!(answer_of(&product, "by-event.example.com", "/").await, "web", "nobody has told it");
    relay.open();
    becomes_within(RECONNECTED, &product, "by-event.example.com", "/", 404).await;

    // The event is gone: the API server was restarted and begins its window anew.
    let before = lists(&product, "ingress");
    relay.cut();
    cluster.delete(&by_list.yaml()).await;
    cluster.apply(&late.yaml()).await;
    cluster.kill_apiserver();
    cluster.start_apiserver().await;
    assert_eq!(answer_of(&product, "by-list.example.com", "/").await, "web", "nobody has told it");
    relay.open();
    becomes_within(RECONNECTED, &product, "by-list.example.com", "/", 404).await;
    reaches(&product, "late.example.com", "/", "web").await;
    // It was a list that said so.
    eventually(SOON, async || (lists(&product, "ingress") > before).then_some(())).await;
    load.all_well().await;
}

#[tokio::test]
async fn an_empty_store_empties_the_table_and_new_objects_serve() {
    let mut cluster = Cluster::start().await;
    let shop = Shop::open(&cluster).await;
    // A token of a ServiceAccount ends with the ServiceAccount; a client certificate does not.
    let product = serve(cluster.admin_kubeconfig(), &shop.dns, &[]).await;
    shop.serves(&product).await;
    // Revisions of the new store must begin far below those that were seen.
    for i in 0..100 {
        cluster.apply(&shop.more("edited").annotation("example.com/edit", &i.to_string()).yaml()).await;
    }
    reaches(&product, "edited.example.com", "/", "web").await;
    let own = cluster_scene::fallback(&product).await;

    cluster.kill_apiserver();
    cluster.wipe_etcd_and_start().await;
    cluster.start_apiserver().await;
    for host in ["one.example.com", "two.example.com", "edited.example.com"] {
        becomes_within(2 * RECONNECTED, &product, host, "/", 404).await;
    }
    eventually(RECONNECTED, async || {
        let served = client::served_certificate(product.https(), Some(HOSTS[2])).await;
        (served.certificate == own.certificate).then_some(())
    })
    .await;
    cluster.apply(&join([namespace("shop"), shop.more("new").yaml()])).await;
    becomes_within(RECONNECTED, &product, "new.example.com", "/", 502).await;
    cluster.apply(&service("shop", "web", &[("http", shop.web.port())])).await;
    reaches(&product, "new.example.com", "/", "web").await;
    cluster.apply(&shop.objects()).await;
    shop.serves(&product).await;
    assert_eq!(product.exit_status(), None);
}

#[tokio::test]
async fn relists_never_empty_the_table() {
    const MORE: usize = 300;
    let mut cluster = Cluster::start().await;
    let shop = Shop::open(&cluster).await;
    many(&cluster, &shop, MORE).await;
    let product = serve(&account(&cluster, "outage").await, &shop.dns, &["--access-log=false"]).await;
    shop.serves(&product).await;
    let memory = product.rss_kib();
    let load = shop.load(&product);
    let hosts: Vec<String> = (0..MORE).step_by(30).map(|i| format!("many-{i}.example.com")).collect();
    let spread = Load::start(hosts.iter().map(|host| Target::http(&product, host)));
    for round in 0..3 {
        let kinds = ["ingress", "service", "secret", "ingressclass"];
        let before = kinds.map(|kind| lists(&product, kind));
        // A write to another kind moves the store on. The window of an API server that is started begins there: what
        // the product has seen lies before it, and is answered with 410 Gone.
        cluster.apply(&namespace(&format!("round-{round}"))).await;
        cluster.kill_apiserver();
        cluster.start_apiserver().await;
        cluster.apply(&shop.more(&format!("round-{round}")).yaml()).await;
        becomes_within(RECONNECTED, &product, &format!("round-{round}.example.com"), "/", 200).await;
        for (kind, before) in kinds.iter().zip(before) {
            eventually(RECONNECTED, async || (lists(&product, kind) > before).then_some(())).await;
        }
    }
    load.more(50).await;
    load.all_well().await;
    spread.all_well().await;
    for i in 0..MORE {
        assert_eq!(answer_of(&product, &format!("many-{i}.example.com"), "/").await, "web");
    }
    let routes = product.metric_value("tak_ingress_routes{kind=\"ingress\"}").await;
    assert_eq!(routes, Some((MORE + HOSTS.len() + 3) as f64));
    let grown = product.rss_kib().saturating_sub(memory);
    assert!(grown < 64 * 1024, "{grown} KiB more than before the lists");
}

#[tokio::test]
async fn it_is_not_ready_before_the_first_full_list() {
    const MORE: usize = 300;
    let cluster = Cluster::start().await;
    let shop = Shop::open(&cluster).await;
    many(&cluster, &shop, MORE).await;
    let relay = Relay::to(&cluster).await;
    relay.cut();
    let kubeconfig = relay.kubeconfig(&account(&cluster, "outage").await);
    let product = start(&kubeconfig, &shop.dns, &["--access-log=false"]).await;
    let pending = async || {
        let (status, body) = admin(&product, "/readyz").await;
        assert_eq!(admin(&product, "/healthz").await, (200, "OK".into()), "the process lives");
        (status, body)
    };
    // No API server at all.
    eventually(SOON, async || (logged(&product, "watch interrupted", "kind", "ingress") > 0).then_some(()))
        .await;
    let (status, body) = pending().await;
    assert_eq!(status, 503);
    for kind in ["ingress", "service", "secret", "first snapshot"] {
        assert!(body.contains(kind), "{kind} is pending: {body}");
    }
    // One that takes connections and says nothing.
    relay.hold();
    for _ in 0..50 {
        assert_eq!(pending().await.0, 503);
    }
    // One that is slow: pages of lists trickle in.
    relay.slow(Duration::from_millis(100));
    let mut waited = 0;
    eventually(Duration::from_secs(60), async || {
        let (status, _) = pending().await;
        assert!(matches!(status, 200 | 503), "{status}");
        waited += usize::from(status == 503);
        (status == 200).then_some(())
    })
    .await;
    assert!(waited > 10, "the list took some time: {waited}");
    // From this very moment every host is there.
    for i in 0..MORE {
        assert_eq!(answer_of(&product, &format!("many-{i}.example.com"), "/").await, "web");
    }
    assert!(client::served_certificate(product.https(), Some(HOSTS[2])).await.is(&shop.leaf));
}

#[tokio::test]
async fn an_outage_is_logged_once_for_each_watch() {
    let cluster = Cluster::start().await;
    let shop = Shop::open(&cluster).await;
    let relay = Relay::to(&cluster).await;
    let kubeconfig = relay.kubeconfig(&account(&cluster, "outage").await);
    let product = serve(&kubeconfig, &shop.dns, &[]).await;
    shop.serves(&product).await;
    let loud = || {
        let log = product.log();
        log.into_iter()
            .filter(|entry| matches!(entry["level"].as_str(), Some("WARN" | "ERROR")))
            .collect::<Vec<_>>()
    };
    assert!(loud().is_empty(), "{:#?}", loud());
    relay.cut();
    let before = relay.accepts();
    // Six kinds, EndpointSlices by two lists, and five attempts and more for each.
    eventually(Duration::from_secs(30), async || (relay.accepts() >= before + 45).then_some(())).await;
    let said = loud();
    assert!(said.iter().any(|entry| entry["message"] == "watch interrupted"), "{said:#?}");
    assert!(said.len() <= 7, "{} lines, of which the last: {:#?}", said.len(), said.last());
}

/// Ingresses `many-0` and so on, each with a host of its own.
async fn many(cluster: &Cluster, shop: &Shop, count: usize) {
    let ingresses: Api<IngressObject> = Api::namespaced(cluster.admin().await, "shop");
    let mut created = JoinSet::new();
    for i in 0..count {
        let (ingresses, object) = (ingresses.clone(), shop.more(&format!("many-{i}")).object());
        created.spawn(async move { ingresses.create(&PostParams::default(), &object).await.unwrap() });
    }
    while let Some(made) = created.join_next().await {
        made.unwrap();
    }
}
