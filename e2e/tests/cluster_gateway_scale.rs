//! Five thousand HTTPRoutes on a real API server: what they take, how soon one more serves, and that edits disturb nobody.
//!
//! `GATEWAY_CHURN` is how many seconds the edits go on (10; `GATEWAY_CHURN=600` for figures). Times are printed, for a look with
//! `--nocapture`; of a build that is not optimised, on a machine that does other things, nothing follows from them.

mod cluster_scene;

use std::sync::Arc;
use std::time::Duration;

use cluster_scene::gateway::{api, class, definitions, gateway, pod_account, writes};
use cluster_scene::{
    Load, SOON, Target, backend, becomes, join, namespace, reaches_within, serve, service, service_name,
};
use ingress_e2e::client::RawConn;
use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::origin::Origin;
use ingress_e2e::product::Product;
use ingress_e2e::within;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

const ACCOUNT: &str = "gateway-scale";
const NAMESPACE: &str = "scale";
const COUNT: usize = 5_000;
/// Memory that they may take. By themselves they take 31 to 35; where a machine is so busy that many of them come at once, the
/// allocator keeps more: 45 was seen.
const GROWTH_MIB: f64 = 60.0;
/// Requests to the API server at once.
const AT_ONCE: usize = 16;
const SAMPLES: usize = 20;
const EDITS_PER_SECOND: u32 = 20;
/// Statuses are written at a hundred a second.
const WRITTEN: Duration = Duration::from_secs(180);

fn host(i: usize) -> String {
    format!("r-{i}.example.com")
}

fn spec(i: usize, service: &str, port: u16) -> Value {
    json!({
        "parentRefs": [{"name": "gw"}],
        "hostnames": [host(i)],
        "rules": [{
            "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
            "backendRefs": [{"name": service, "port": port}],
        }],
    })
}

struct Scene {
    routes: Api<DynamicObject>,
    product: Product,
    port: u16,
}

impl Scene {
    async fn create(&self, i: usize) {
        let object = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": format!("r-{i}"), "namespace": NAMESPACE}, "spec": spec(i, "blue", self.port),
        });
        let object = serde_json::from_value(object).unwrap();
        self.routes.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn delete(&self, i: usize) {
        self.routes.delete(&format!("r-{i}"), &DeleteParams::default()).await.unwrap();
    }

    fn memory(&self) -> f64 {
        self.product.anonymous_kib() as f64 / 1024.0
    }

    /// From the API server's answer to the first 200, on one kept connection.
    async fn one_more(&self, i: usize) -> Duration {
        let mut conn = RawConn::connect(self.product.http()).await.unwrap();
        assert_eq!(conn.get(&host(i), "/").await.unwrap().status, 404);
        self.create(i).await;
        let created = Instant::now();
        loop {
            match conn.get(&host(i), "/").await.unwrap().status {
                200 => break,
                404 => assert!(created.elapsed() < Duration::from_secs(30), "it does not serve"),
                other => panic!("{other} on the way"),
            }
        }
        let took = created.elapsed();
        self.delete(i).await;
        becomes(&self.product, &host(i), "/", 404).await;
        took
    }

    /// Waits until every route has a status; says how many have not.
    async fn all_told(&self) {
        let untold = async || {
            let all = self.routes.list(&ListParams::default()).await.unwrap();
            let told =
                |o: &&DynamicObject| o.data["status"]["parents"][0]["conditions"][0]["status"] == "True";
            all.items.len() - all.items.iter().filter(told).count()
        };
        let mut left = 0;
        let done = within(WRITTEN, async || {
            left = untold().await;
            sleep(Duration::from_secs(1)).await;
            (left == 0).then_some(())
        });
        let done = done.await;
        assert!(done.is_some(), "{left} routes have no status after {WRITTEN:?}");
    }

    /// Edits of routes, each at a moment of its own: another backend for one of them, or one that comes and goes.
    async fn churn(&self, edited: std::ops::Range<usize>, time: Duration) -> usize {
        let mut ticks = interval(Duration::from_secs(1) / EDITS_PER_SECOND);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = Instant::now() + time;
        let mut edits = 0;
        while Instant::now() < end {
            ticks.tick().await;
            if edits % 5 == 4 {
                self.create(COUNT + 1).await;
                self.delete(COUNT + 1).await;
            } else {
                let i = edited.start + edits * 7 % edited.len();
                let colour = if (edits / edited.len()).is_multiple_of(2) { "green" } else { "blue" };
                let patch = Patch::Merge(json!({"spec": spec(i, colour, self.port)}));
                self.routes.patch(&format!("r-{i}"), &PatchParams::default(), &patch).await.unwrap();
            }
            edits += 1;
        }
        edits
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_routes_fit_and_edits_of_some_disturb_no_request() {
    let seconds =
        std::env::var("GATEWAY_CHURN").map_or(10, |text| text.parse().expect("GATEWAY_CHURN is seconds"));
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let blue = backend(&dns, NAMESPACE, "blue", [127, 0, 0, 2]).await;
    // at the same port, so that an edit is a name
    let port = blue.port();
    let green = Origin::echo_on(([127, 0, 0, 3], port)).await.named("green");
    dns.set(&service_name(NAMESPACE, "green"), [green.addr().ip()]);
    cluster.apply(&definitions()).await;
    let http = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let services = ["blue", "green"].map(|name| service(NAMESPACE, name, &[("http", port)]));
    let objects = [namespace(NAMESPACE), class(), gateway(NAMESPACE, http)];
    cluster.apply(&join(objects.into_iter().chain(services))).await;
    let kubeconfig = pod_account(&cluster, ACCOUNT).await;
    let product = serve(&kubeconfig, &dns, &["--publish-address=192.0.2.1", "--access-log=false"]).await;
    let routes = api(&cluster, NAMESPACE, "HTTPRoute", "httproutes").await;
    let scene = Arc::new(Scene { routes, product, port });

    scene.create(0).await;
    reaches_within(SOON, &scene.product, &host(0), "/", "blue").await;
    scene.all_told().await;
    let empty = scene.memory();
    let begin = Instant::now();
    let mut creators = JoinSet::new();
    for first in 1..=AT_ONCE {
        let scene = scene.clone();
        creators.spawn(async move {
            for i in (first..COUNT).step_by(AT_ONCE) {
                scene.create(i).await;
            }
        });
    }
    creators.join_all().await;
    println!("{COUNT} HTTPRoutes created within {:.1?}", begin.elapsed());
    for i in (0..COUNT).step_by(499) {
        reaches_within(SOON, &scene.product, &host(i), "/", "blue").await;
    }
    scene.all_told().await;
    println!("served, and their statuses written, within {:.1?}", begin.elapsed());
    let full = scene.memory();
    println!("memory: {empty:.1} MiB with one, {full:.1} MiB with {COUNT}: {:.1} more", full - empty);
    assert!(full - empty <= GROWTH_MIB, "{:.1} MiB for {COUNT} routes", full - empty);

    let mut samples = Vec::new();
    for i in 0..SAMPLES {
        samples.push(scene.one_more(COUNT + 1 + i).await);
    }
    samples.sort();
    println!(
        "one more serves after {:.1?} (median), {:.1?} (longest)",
        samples[SAMPLES / 2],
        samples[SAMPLES - 1]
    );

    // hosts whose routes stay as they are, and hosts whose routes are edited: all are answered all the time
    let edited = 100..600;
    let targets = [0, 50, 4_999, 100, 350, 599].map(|i| Target::http(&scene.product, &host(i)));
    let load = Load::start(targets);
    let edits = scene.churn(edited, Duration::from_secs(seconds)).await;
    load.more(100).await;
    let report = load.all_well().await;
    println!(
        "{edits} edits in {seconds} s: {} requests, none failed, the slowest took {:.1?}; memory {:.1} MiB",
        report.requests,
        report.slowest,
        scene.memory()
    );

    // what the edits left to write is written, then nothing more
    scene.all_told().await;
    let mut before = usize::MAX;
    let settled = within(WRITTEN, async || {
        let now = writes(&cluster, &[ACCOUNT]);
        let same = std::mem::replace(&mut before, now) == now;
        if !same {
            sleep(Duration::from_secs(2)).await;
        }
        same.then_some(())
    });
    assert!(settled.await.is_some(), "statuses are written without end");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(writes(&cluster, &[ACCOUNT]), before, "nothing changes, and nothing is written");
}
