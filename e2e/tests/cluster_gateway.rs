//! Gateway API objects on a real API server: kinds that come and go, statuses, and who writes them.

mod cluster_scene;

use std::net::IpAddr;
use std::time::Duration;

use cluster_scene::gateway::{GROUP, api, class, definitions, gateway, pod_account, writes};
use cluster_scene::{
    Ingress, SOON, backend, becomes_within, join, namespace, reaches, reaches_within, requests_of, serve,
    service, service_name,
};
use ingress_e2e::client;
use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::eventually;
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind};
use ingress_e2e::product::Product;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Kinds that are installed while the product runs are found within this.
const FOUND: Duration = Duration::from_secs(20);
/// A leader that is gone is followed within this.
const SUCCESSION: Duration = Duration::from_secs(40);

fn route(namespace: &str, name: &str, host: &str, path: &str, port: u16) -> String {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "HTTPRoute", "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "parentRefs": [{"name": "gw"}],
            "hostnames": [host],
            "rules": [{
                "matches": [{"path": {"type": "PathPrefix", "value": path}}],
                "backendRefs": [{"name": "web", "port": port}],
            }],
        },
    })
    .to_string()
}

/// The condition's status and reason, and the generation that it speaks of.
fn condition(list: &Value, kind: &str) -> Option<(String, String, i64)> {
    let found = list["conditions"].as_array()?.iter().find(|c| c["type"] == *kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), found["observedGeneration"].as_i64().unwrap_or_default()))
}

/// Waits until the object's status is as wanted.
async fn shows(
    api: &Api<DynamicObject>,
    name: &str,
    deadline: Duration,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let mut last = Value::Null;
    let found = ingress_e2e::within(deadline, async || {
        let object = api.get(name).await.ok()?;
        last = object.data["status"].clone();
        wanted(&last).then(|| last.clone())
    })
    .await;
    found.unwrap_or_else(|| panic!("the status of {name} is {last:#}"))
}

fn is(condition: Option<(String, String, i64)>, status: &str, reason: &str) -> bool {
    condition.is_some_and(|(s, r, _)| s == status && r == reason)
}

async fn pod(cluster: &Cluster, dns: &DnsServer, name: &str) -> Product {
    let kubeconfig = pod_account(cluster, name).await;
    serve(&kubeconfig, dns, &["--enable-gateway-api=auto", "--publish-address=192.0.2.1"]).await
}

async fn web(dns: &DnsServer, namespace: &str) -> Origin {
    backend(dns, namespace, "web", [127, 0, 0, 2]).await
}

#[tokio::test]
async fn kinds_come_later_statuses_are_written_once_and_go_with_their_kinds() {
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let web = web(&dns, "shop").await;
    let own = Ingress::new("shop", "own").prefix("own.example.com", "/", "web", "http");
    cluster
        .apply(&join([namespace("shop"), service("shop", "web", &[("http", web.port())]), own.yaml()]))
        .await;
    let pods = ["gw-pod-a", "gw-pod-b"];
    let first = pod(&cluster, &dns, pods[0]).await;
    let second = pod(&cluster, &dns, pods[1]).await;
    reaches(&first, "own.example.com", "/", "web").await;
    // nobody needs a leader yet
    let leases =
        |account| requests_of(&cluster, account).iter().filter(|r| r.what.contains("leases")).count();
    assert_eq!(leases(pods[0]) + leases(pods[1]), 0);

    cluster.apply(&definitions()).await;
    let http = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let objects = [class(), gateway("shop", http), route("shop", "r", "gw.example.com", "/", web.port())];
    cluster.apply(&join(objects)).await;
    for product in [&first, &second] {
        reaches_within(FOUND, product, "gw.example.com", "/", "web").await;
        reaches(product, "own.example.com", "/", "web").await;
    }
    let classes = api(&cluster, "", "GatewayClass", "gatewayclasses").await;
    let gateways = api(&cluster, "shop", "Gateway", "gateways").await;
    let routes = api(&cluster, "shop", "HTTPRoute", "httproutes").await;
    let retries = |status: &Value| {
        let features = status["supportedFeatures"].as_array();
        features.is_some_and(|all| all.iter().any(|feature| feature["name"] == "HTTPRouteRetry"))
    };
    shows(&classes, "tak-os", FOUND, |s| {
        is(condition(s, "Accepted"), "True", "Accepted")
            && is(condition(s, "SupportedVersion"), "True", "SupportedVersion")
            && !retries(s)
    })
    .await;
    // other definitions of the same kinds: what they say of themselves is followed
    let annotation = |key: &str, value: &str| format!("{GROUP}/{key}: {value}");
    let experimental = definitions()
        .replace(&annotation("channel", "standard"), &annotation("channel", "experimental"))
        .replace(&annotation("bundle-version", "v1.6.3"), &annotation("bundle-version", "v1.99.0"));
    cluster.apply(&experimental).await;
    shows(&classes, "tak-os", FOUND, |s| {
        is(condition(s, "SupportedVersion"), "False", "UnsupportedVersion") && retries(s)
    })
    .await;
    cluster.apply(&definitions()).await;
    shows(&classes, "tak-os", FOUND, |s| {
        is(condition(s, "SupportedVersion"), "True", "SupportedVersion") && !retries(s)
    })
    .await;
    let status = shows(&gateways, "gw", FOUND, |s| {
        is(condition(s, "Programmed"), "True", "Programmed") && s["listeners"][0]["attachedRoutes"] == 1
    })
    .await;
    assert_eq!(status["addresses"], json!([{"type": "IPAddress", "value": "192.0.2.1"}]));
    assert!(is(condition(&status["listeners"][0], "ResolvedRefs"), "True", "ResolvedRefs"));
    shows(&routes, "r", FOUND, |s| is(condition(&s["parents"][0], "Accepted"), "True", "Accepted")).await;

    // another controller's word on the same route stays
    let theirs = json!({
        "parentRef": {"group": GROUP, "kind": "Gateway", "name": "other"}, "controllerName": "example.com/other",
        "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    let mut parents = routes.get("r").await.unwrap().data["status"]["parents"].as_array().unwrap().clone();
    parents.insert(0, theirs.clone());
    let patch = Patch::Merge(json!({"status": {"parents": parents}}));
    routes.patch_status("r", &PatchParams::default(), &patch).await.unwrap();

    // nothing changes: nothing is written, by anybody
    sleep(Duration::from_secs(3)).await;
    let before = writes(&cluster, &pods);
    sleep(Duration::from_secs(8)).await;
    assert_eq!(writes(&cluster, &pods), before);

    // edits are followed by one write each at most, and by one Pod
    for i in 2..=5 {
        cluster.apply(&route("shop", "r", "gw.example.com", &format!("/v{i}"), web.port())).await;
        reaches(&second, "gw.example.com", &format!("/v{i}"), "web").await;
    }
    let status = shows(&routes, "r", SOON, |s| {
        condition(&s["parents"][1], "Accepted").is_some_and(|(_, _, generation)| generation == 5)
    })
    .await;
    assert_eq!(status["parents"][0], theirs);
    assert!(writes(&cluster, &pods) <= before + 8, "{before} and {}", writes(&cluster, &pods));
    assert!(pods.iter().any(|pod| writes(&cluster, &[pod]) == 0), "only one of the Pods writes");

    // what does not resolve shows, and the rest goes on
    cluster.apply(&route("shop", "broken", "broken.example.com", "/", 9)).await;
    becomes_within(SOON, &first, "broken.example.com", "/", 500).await;
    shows(&routes, "broken", SOON, |s| {
        is(condition(&s["parents"][0], "ResolvedRefs"), "False", "BackendNotFound")
    })
    .await;

    // the kinds are taken away: routes go, Ingresses stay, nobody restarts
    cluster.delete(&definitions()).await;
    for product in [&first, &second] {
        becomes_within(FOUND, product, "gw.example.com", "/v5", 404).await;
        reaches(product, "own.example.com", "/", "web").await;
        assert!(product.exit_status().is_none());
    }
}

#[tokio::test]
async fn another_pod_writes_when_the_one_that_did_is_gone() {
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let web = web(&dns, "shop").await;
    cluster.apply(&definitions()).await;
    let http = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let objects =
        [namespace("shop"), service("shop", "web", &[("http", web.port())]), class(), gateway("shop", http)];
    cluster.apply(&join(objects)).await;
    let first = pod(&cluster, &dns, "gw-first").await;
    let gateways = api(&cluster, "shop", "Gateway", "gateways").await;
    shows(&gateways, "gw", FOUND, |s| is(condition(s, "Programmed"), "True", "Programmed")).await;
    let second = pod(&cluster, &dns, "gw-second").await;
    drop(first);
    cluster.apply(&route("shop", "r", "gw.example.com", "/", web.port())).await;
    reaches(&second, "gw.example.com", "/", "web").await;
    let routes = api(&cluster, "shop", "HTTPRoute", "httproutes").await;
    shows(&routes, "r", SUCCESSION, |s| is(condition(&s["parents"][0], "Accepted"), "True", "Accepted"))
        .await;
    eventually(SOON, async || (second.metric_value("tak_ingress_leader").await == Some(1.0)).then_some(()))
        .await;
}

#[tokio::test]
async fn a_listener_set_is_let_in_served_and_told() {
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let web = web(&dns, "shop").await;
    cluster.apply(&definitions()).await;
    let http = |host: &str| json!([{"name": "l", "port": 80, "protocol": "HTTP", "hostname": host}]);
    let gateway = |allowed: Value| {
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "Gateway", "metadata": {"namespace": "infra", "name": "gw"},
            "spec": {"gatewayClassName": "tak-os", "listeners": http("gw.example.com"), "allowedListeners": allowed},
        })
        .to_string()
    };
    let set = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ListenerSet", "metadata": {"namespace": "shop", "name": "set"},
        "spec": {"parentRef": {"name": "gw", "namespace": "infra"}, "listeners": http("set.example.com")},
    });
    let mut child: Value =
        serde_json::from_str(&route("shop", "r", "set.example.com", "/", web.port())).unwrap();
    child["spec"]["parentRefs"] = json!([{"group": GROUP, "kind": "ListenerSet", "name": "set"}]);
    let objects = [
        namespace("shop"),
        namespace("infra"),
        service("shop", "web", &[("http", web.port())]),
        class(),
        gateway(json!({"namespaces": {"from": "None"}})),
        set.to_string(),
        child.to_string(),
    ];
    cluster.apply(&join(objects)).await;
    let product = pod(&cluster, &dns, "gw-sets").await;
    let gateways = api(&cluster, "infra", "Gateway", "gateways").await;
    let sets = api(&cluster, "shop", "ListenerSet", "listenersets").await;
    let routes = api(&cluster, "shop", "HTTPRoute", "httproutes").await;
    shows(&sets, "set", FOUND, |s| {
        is(condition(s, "Accepted"), "False", "NotAllowed")
            && is(condition(s, "Programmed"), "False", "NotAllowed")
    })
    .await;
    becomes_within(SOON, &product, "set.example.com", "/", 404).await;

    let selector =
        json!({"from": "Selector", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}});
    cluster.apply(&gateway(json!({"namespaces": selector}))).await;
    reaches_within(FOUND, &product, "set.example.com", "/", "web").await;
    let status = shows(&sets, "set", SOON, |s| {
        is(condition(s, "Programmed"), "True", "Programmed") && s["listeners"][0]["attachedRoutes"] == 1
    })
    .await;
    assert!(is(condition(&status["listeners"][0], "ResolvedRefs"), "True", "ResolvedRefs"), "{status:#}");
    shows(&gateways, "gw", SOON, |s| {
        s["attachedListenerSets"] == 1 && s["listeners"][0]["attachedRoutes"] == 0
    })
    .await;
    let status =
        shows(&routes, "r", SOON, |s| is(condition(&s["parents"][0], "Accepted"), "True", "Accepted")).await;
    assert_eq!(status["parents"][0]["parentRef"]["kind"], "ListenerSet");

    // nothing changes: nothing is written
    sleep(Duration::from_secs(2)).await;
    let before = writes(&cluster, &["gw-sets"]);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(writes(&cluster, &["gw-sets"]), before);
}

#[tokio::test]
async fn a_backend_tls_policy_is_kept_by_its_config_map_and_told() {
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let ca = Ca::new();
    let leaf = ca.leaf(&["in.example.com"], KeyKind::EcP256Sec1);
    let web = Origin::echo_tls_on(([127, 0, 0, 2], 0), &leaf.cert_pem, &leaf.key_pem).await.named("web");
    dns.set(&service_name("shop", "web"), [IpAddr::from([127, 0, 0, 2])]);
    cluster.apply(&definitions()).await;
    let policy = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "BackendTLSPolicy", "metadata": {"namespace": "shop", "name": "p"},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": "web", "sectionName": "https"}],
            "validation": {
                "hostname": "in.example.com",
                "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}],
            },
        },
    });
    let http = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let objects = [
        namespace("shop"),
        service("shop", "web", &[("https", web.port())]),
        class(),
        gateway("shop", http),
        route("shop", "r", "gw.example.com", "/", web.port()),
    ];
    cluster.apply(&join(objects)).await;
    let product = pod(&cluster, &dns, "gw-tls").await;
    let routes = api(&cluster, "shop", "HTTPRoute", "httproutes").await;
    shows(&routes, "r", FOUND, |s| is(condition(&s["parents"][0], "Accepted"), "True", "Accepted")).await;
    let read = || requests_of(&cluster, "gw-tls").iter().any(|r| r.what == "configmaps");
    assert!(!read(), "no policy names a ConfigMap");

    cluster.apply(&policy.to_string()).await;
    let policies = api(&cluster, "shop", "BackendTLSPolicy", "backendtlspolicies").await;
    shows(&policies, "p", FOUND, |s| {
        is(condition(&s["ancestors"][0], "Accepted"), "False", "NoValidCACertificate")
            && is(condition(&s["ancestors"][0], "ResolvedRefs"), "False", "InvalidCACertificateRef")
    })
    .await;
    becomes_within(SOON, &product, "gw.example.com", "/", 500).await;
    let map = |ca: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "shop", "name": "ca"},
               "data": {"ca.crt": ca}})
        .to_string()
    };
    cluster.apply(&map(&ca.pem())).await;
    reaches(&product, "gw.example.com", "/", "web").await;
    let status =
        shows(&policies, "p", SOON, |s| is(condition(&s["ancestors"][0], "Accepted"), "True", "Accepted"))
            .await;
    assert_eq!(status["ancestors"][0]["ancestorRef"]["name"], "gw");
    assert!(read());
    cluster.apply(&map(&Ca::new().pem())).await;
    becomes_within(SOON, &product, "gw.example.com", "/", 502).await;
}

#[tokio::test]
async fn a_tls_route_passes_on_and_is_told() {
    let cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let ca = Ca::new();
    let leaf = ca.leaf(&["db.example.com"], KeyKind::EcP256Sec1);
    let db = Origin::echo_tls_on(([127, 0, 0, 2], 0), &leaf.cert_pem, &leaf.key_pem).await.named("db");
    dns.set(&service_name("shop", "db"), [IpAddr::from([127, 0, 0, 2])]);
    cluster.apply(&definitions()).await;
    let tls = json!([{"name": "tls", "port": 443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}]);
    let route = |service: &str| {
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "TLSRoute", "metadata": {"namespace": "shop", "name": "r"},
            "spec": {
                "parentRefs": [{"name": "gw"}],
                "hostnames": ["db.example.com"],
                "rules": [{"backendRefs": [{"name": service, "port": db.port()}]}],
            },
        })
        .to_string()
    };
    let objects = [
        namespace("shop"),
        service("shop", "db", &[("db", db.port())]),
        class(),
        gateway("shop", tls),
        route("nobody"),
    ];
    cluster.apply(&join(objects)).await;
    let product = pod(&cluster, &dns, "gw-passing").await;
    let gateways = api(&cluster, "shop", "Gateway", "gateways").await;
    let routes = api(&cluster, "shop", "TLSRoute", "tlsroutes").await;
    let status = shows(&gateways, "gw", FOUND, |s| {
        is(condition(&s["listeners"][0], "Programmed"), "True", "Programmed")
            && s["listeners"][0]["attachedRoutes"] == 1
    })
    .await;
    assert_eq!(status["listeners"][0]["supportedKinds"], json!([{"group": GROUP, "kind": "TLSRoute"}]));
    shows(&routes, "r", SOON, |s| {
        is(condition(&s["parents"][0], "Accepted"), "True", "Accepted")
            && is(condition(&s["parents"][0], "ResolvedRefs"), "False", "BackendNotFound")
    })
    .await;
    let get = async || {
        let name = "db.example.com";
        client::try_tls_get(product.https(), name, name, "/", Some(&ca.pem())).await
    };
    assert!(get().await.is_err());

    cluster.apply(&route("db")).await;
    eventually(SOON, async || get().await.ok().filter(|answer| answer.origin() == "db")).await;
    shows(&routes, "r", SOON, |s| is(condition(&s["parents"][0], "ResolvedRefs"), "True", "ResolvedRefs"))
        .await;

    // nothing changes: nothing is written
    sleep(Duration::from_secs(2)).await;
    let before = writes(&cluster, &["gw-passing"]);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(writes(&cluster, &["gw-passing"]), before);
}
