//! Many changes at once: no other host is disturbed, no state is mixed, and the end is right.

mod cluster_scene;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cluster_scene::{
    Ingress, Load, SOON, Target, account, backend, becomes, join, namespace, reaches, serve, service, shows,
};
use ingress_e2e::client;
use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::within;
use k8s_openapi::api::networking::v1::Ingress as IngressObject;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

const EDITED: usize = 20;
const PER_SECOND: usize = 60;
const SECONDS: usize = 10;

/// Edit number `n` of an Ingress: path `/n`, to the blue or the green Service.
fn colour(n: usize) -> &'static str {
    if n.is_multiple_of(2) { "blue" } else { "green" }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_of_some_hosts_disturb_no_other() {
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let mut origins = Vec::new();
    let mut objects = vec![namespace("churn")];
    for (name, last) in [("blue", 2), ("green", 3), ("stable", 4)] {
        let origin = backend(&dns, "churn", name, [127, 0, 0, last]).await;
        objects.push(service("churn", name, &[("http", origin.port())]));
        origins.push(origin);
    }
    let ca = Ca::new();
    let stable = ["stable-0.example.com", "stable-1.example.com", "stable-2.example.com"];
    for (i, host) in stable.into_iter().enumerate() {
        let ingress = Ingress::new("churn", &format!("stable-{i}")).prefix(host, "/", "stable", "http");
        objects.push(if i == 0 { ingress.tls(&[host], "tls") } else { ingress }.yaml());
    }
    objects.push(tls_secret_yaml("churn", "tls", &ca.leaf(&[stable[0]], KeyKind::EcP256Sec1)));
    let host = |i: usize| format!("edited-{i}.example.com");
    for i in 0..EDITED {
        objects.push(
            Ingress::new("churn", &format!("edited-{i}")).prefix(&host(i), "/0", "blue", "http").yaml(),
        );
    }
    cluster.apply(&join(objects)).await;
    let product = serve(&account(&cluster, "churn").await, &dns, &["--access-log=false"]).await;
    shows(&product, stable[0], |served| served.names() == [stable[0]]).await;

    let load = Load::start([
        Target::https(&product, stable[0], &ca.pem()),
        Target::http(&product, stable[1]),
        Target::http(&product, stable[2]),
    ]);
    let ingresses: Api<IngressObject> = Api::namespaced(cluster.admin().await, "churn");
    let edits = async {
        let mut ticks = interval(Duration::from_secs(1) / PER_SECOND as u32);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut under_way = JoinSet::new();
        for n in 1..=PER_SECOND * SECONDS {
            ticks.tick().await;
            // One edit of an Ingress at a time: the previous one was 20 ticks ago.
            if under_way.len() >= EDITED / 2 {
                under_way.join_next().await.unwrap().unwrap();
            }
            let ingresses = ingresses.clone();
            under_way.spawn(async move {
                let i = n % EDITED;
                let backend = json!({"service": {"name": colour(n), "port": {"name": "http"}}});
                let path = json!({"path": format!("/{n}"), "pathType": "Prefix", "backend": backend});
                let spec = json!({"spec": {"rules": [{"host": host(i), "http": {"paths": [path]}}]}});
                let name = format!("edited-{i}");
                ingresses.patch(&name, &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
            });
        }
        while let Some(done) = under_way.join_next().await {
            done.unwrap();
        }
    };
    // While edits run, each answer of an edited host is one whole state: a path leads to its own colour or nowhere.
    let (hits, edited) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let watching = async {
        for round in 0.. {
            let n = edited.load(Ordering::SeqCst).max(1) + round % (2 * EDITED);
            let answer = client::get(product.http(), &host(n % EDITED), &format!("/{n}/x")).await;
            match answer.status {
                200 => {
                    assert_eq!(answer.origin(), colour(n), "path and backend are of one state");
                    hits.fetch_add(1, Ordering::SeqCst);
                }
                404 => {}
                other => panic!("{other} for {}/{n}", host(n % EDITED)),
            }
            tokio::task::yield_now().await;
        }
    };
    let counting = async {
        let list = ListParams::default();
        loop {
            // The newest edit that the API server has, so that the paths asked for are near it.
            let newest = ingresses.list(&list).await.unwrap().items.iter().filter_map(newest_path).max();
            edited.store(newest.unwrap_or(0).saturating_sub(EDITED), Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let begin = Instant::now();
    tokio::select! {
        () = edits => {}
        () = watching => unreachable!("it watches until the edits end"),
        () = counting => unreachable!("it counts until the edits end"),
    }
    let took = begin.elapsed();
    assert!(
        took < Duration::from_secs(2 * SECONDS as u64),
        "the edits came at half the rate or less: {took:?}"
    );

    let last_of = |i: usize| (1..=PER_SECOND * SECONDS).rev().find(|n| n % EDITED == i).unwrap();
    let end = within(SOON, async || {
        for i in 0..EDITED {
            let n = last_of(i);
            let answer = client::get(product.http(), &host(i), &format!("/{n}")).await;
            if answer.status != 200 || answer.origin() != colour(n) {
                return None;
            }
            let before = client::get(product.http(), &host(i), &format!("/{}", n - EDITED)).await;
            if before.status != 404 {
                return None;
            }
        }
        Some(())
    })
    .await;
    assert!(end.is_some(), "the last state of every host is there within {SOON:?}");
    assert!(hits.load(Ordering::SeqCst) > 0, "no request met an edited path while it was there");
    let report = load.all_well().await;
    assert!(report.requests > 500, "{report:?}");
    assert!(report.slowest < Duration::from_secs(1), "{:?}", report.slowest);
}

fn newest_path(ingress: &IngressObject) -> Option<usize> {
    let rules = ingress.spec.as_ref()?.rules.as_ref()?;
    rules.first()?.http.as_ref()?.paths.first()?.path.as_ref()?.strip_prefix('/')?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_ingresses_created_at_once_all_serve() {
    const COUNT: usize = 200;
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let web = backend(&dns, "many", "web", [127, 0, 0, 2]).await;
    cluster.apply(&join([namespace("many"), service("many", "web", &[("http", web.port())])])).await;
    let product = serve(&account(&cluster, "many").await, &dns, &["--access-log=false"]).await;
    let ingresses: Api<IngressObject> = Api::namespaced(cluster.admin().await, "many");
    let host = |i: usize| format!("many-{i}.example.com");
    let mut created = JoinSet::new();
    for i in 0..COUNT {
        let ingresses = ingresses.clone();
        let object = Ingress::new("many", &format!("many-{i}")).prefix(&host(i), "/", "web", "http").object();
        created.spawn(async move { ingresses.create(&PostParams::default(), &object).await.unwrap() });
    }
    // Until a host is there it is unknown; nothing comes between.
    let all_serve = async {
        for i in 0..COUNT {
            loop {
                let answer = client::get(product.http(), &host(i), "/").await;
                match answer.status {
                    200 => break,
                    404 => tokio::time::sleep(Duration::from_millis(5)).await,
                    other => panic!("{other} for {}: {}", host(i), answer.text()),
                }
            }
        }
    };
    let all_created = async { while created.join_next().await.map(|made| made.unwrap()).is_some() {} };
    let both = async { tokio::join!(all_created, all_serve) };
    tokio::time::timeout(Duration::from_secs(30), both).await.expect("all of them serve");
    for i in (0..COUNT).step_by(17) {
        reaches(&product, &host(i), "/", "web").await;
    }
    let routes = product.metric_value("tak_ingress_routes{kind=\"ingress\"}").await;
    assert_eq!(routes, Some(COUNT as f64));

    ingresses.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    for i in 0..COUNT {
        becomes(&product, &host(i), "/", 404).await;
    }
}
