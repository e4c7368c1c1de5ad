//! Ingresses of a real API server become routes, change and go while the product runs.

mod cluster_scene;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cluster_scene::{
    DNS_BOUND, Ingress, SOON, account, account_with, answer_of, backend, becomes, becomes_within, events_on,
    external_service, ingress_class, join, later_than, namespace, reaches, reaches_within, requests_of,
    serve, service, service_name, shared, warned,
};
use ingress_e2e::client;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::eventually;
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::networking::v1::Ingress as IngressObject;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

/// `spec.controller` of an IngressClass that is the product's.
const OURS: &str = "tak-os.org/ingress-controller";

#[tokio::test]
async fn an_ingress_appears_changes_and_goes_live() {
    let cluster = shared().await;
    let (dns, host) = (DnsServer::start().await, "live.example.com");
    let web = backend(&dns, "live", "web", [127, 0, 0, 2]).await;
    let kubeconfig = account(cluster, "routes-live").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    let pid = product.pid();

    let unknown = client::get(product.http(), host, "/").await;
    assert_eq!((unknown.status, unknown.header("server")), (404, Some("tak-os-ingress")));

    let secret = tls_secret_yaml("live", "web-tls", &Ca::new().leaf(&[host], KeyKind::EcP256Sec1));
    let ingress = Ingress::new("live", "web");
    let at_root = ingress.clone().prefix(host, "/", "web", web.port());
    let service = service("live", "web", &[("http", web.port())]);
    cluster.apply(&join([namespace("live"), secret, service, at_root.yaml()])).await;
    reaches(&product, host, "/", "web").await;
    let answer = client::get(product.http(), host, "/deep/path?x=%2F").await;
    assert_eq!(
        answer.json()["request_line"],
        "GET /deep/path?x=%2F HTTP/1.1",
        "the path is passed on as it came"
    );
    assert_eq!(answer.echoed("host"), [host]);
    assert!(dns.queries(&service_name("live", "web")) > 0, "the Service's name is what is looked up");

    // Another path.
    cluster.apply(&ingress.clone().prefix(host, "/api", "web", web.port()).yaml()).await;
    becomes(&product, host, "/", 404).await;
    assert_eq!(answer_of(&product, host, "/api/users").await, "web");
    assert_eq!(answer_of(&product, host, "/apix").await, "404");

    // TLS, and an annotation.
    let tls = at_root.clone().tls(&[host], "web-tls");
    cluster.apply(&tls.yaml()).await;
    becomes(&product, host, "/a?b", 308).await;
    let redirect = client::get(product.http(), host, "/a?b").await;
    assert_eq!(redirect.header("location"), Some("https://live.example.com/a?b"));
    cluster.apply(&tls.clone().annotation("ssl-redirect", "false").yaml()).await;
    reaches(&product, host, "/a", "web").await;
    cluster.apply(&tls.yaml()).await;
    becomes(&product, host, "/a", 308).await;

    cluster.delete(&tls.yaml()).await;
    becomes(&product, host, "/", 404).await;
    let secrets: Api<Secret> = Api::namespaced(cluster.admin().await, "live");
    assert!(secrets.get_opt("web-tls").await.unwrap().is_some(), "the Secret is its owner's");
    assert_eq!((product.pid(), product.exit_status()), (pid, None), "one process all the time");
}

#[tokio::test]
async fn ports_by_number_and_by_name_follow_the_service() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let first = backend(&dns, "ports", "web", [127, 0, 0, 2]).await;
    let second = Origin::echo_on(([127, 0, 0, 2], 0)).await.named("second");
    let kubeconfig = account(cluster, "routes-ports").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    let ports = |http: u16, other: u16| service("ports", "web", &[("http", http), ("other", other)]);
    let number = Ingress::new("ports", "number").prefix("number.example.com", "/", "web", first.port());
    let name = Ingress::new("ports", "name").prefix("name.example.com", "/", "web", "http");
    let set_up = [namespace("ports"), ports(first.port(), second.port()), number.yaml(), name.yaml()];
    cluster.apply(&join(set_up)).await;
    reaches(&product, "number.example.com", "/", "web").await;
    reaches(&product, "name.example.com", "/", "web").await;

    // The names change places: a route by name follows, one by number stays.
    cluster.apply(&ports(second.port(), first.port())).await;
    reaches(&product, "name.example.com", "/", "second").await;
    assert_eq!(answer_of(&product, "number.example.com", "/").await, "web");

    // A port that goes takes its routes with it, and no other.
    cluster.delete(&ports(1, 2)).await;
    cluster.apply(&service("ports", "web", &[("http", second.port())])).await;
    becomes(&product, "number.example.com", "/", 502).await;
    reaches(&product, "name.example.com", "/", "second").await;
}

#[tokio::test]
async fn a_service_may_come_late_go_and_return_elsewhere() {
    let cluster = shared().await;
    let (dns, host) = (DnsServer::start().await, "late.example.com");
    let dns_name = service_name("late", "web");
    let old = Origin::echo_on(([127, 0, 0, 2], 0)).await.named("old");
    let object = service("late", "web", &[("http", old.port())]);
    let neighbour = backend(&dns, "late-neighbour", "web", [127, 0, 0, 4]).await;
    let kubeconfig = account(cluster, "routes-late").await;
    let product = serve(&kubeconfig, &dns, &[]).await;

    // A Service of that name in another namespace is not ours to use.
    let elsewhere = service("late-neighbour", "web", &[("http", neighbour.port())]);
    let ingress = Ingress::new("late", "web").prefix(host, "/", "web", "http");
    cluster.apply(&join([namespace("late"), namespace("late-neighbour"), elsewhere, ingress.yaml()])).await;
    becomes(&product, host, "/", 502).await;

    cluster.apply(&object).await;
    dns.set(&dns_name, [IpAddr::from([127, 0, 0, 2])]);
    reaches(&product, host, "/", "old").await;

    cluster.delete(&object).await;
    dns.remove(&dns_name);
    becomes(&product, host, "/", 502).await;

    // As with a new ClusterIP. The old address still has a server: it must not be asked.
    let new = Origin::echo_on(([127, 0, 0, 3], old.port())).await.named("new");
    cluster.apply(&object).await;
    dns.set(&dns_name, [IpAddr::from([127, 0, 0, 3])]);
    reaches_within(DNS_BOUND, &product, host, "/", "new").await;
    let (before, heads) = (old.accepts(), old.requests());
    for _ in 0..50 {
        assert_eq!(answer_of(&product, host, "/").await, "new");
    }
    assert_eq!((old.accepts(), old.requests()), (before, heads));
    assert_eq!(neighbour.accepts(), 0);
    drop(new);
}

#[tokio::test]
async fn a_service_whose_address_changes_is_followed() {
    let cluster = shared().await;
    let (dns, host) = (DnsServer::start().await, "moved.example.com");
    let old = backend(&dns, "moved", "web", [127, 0, 0, 2]).await;
    let kubeconfig = account(cluster, "routes-moved").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    let object = service("moved", "web", &[("http", old.port())]);
    let ingress = Ingress::new("moved", "web").prefix(host, "/", "web", "http");
    cluster.apply(&join([namespace("moved"), object.clone(), ingress.yaml()])).await;
    reaches(&product, host, "/", "web").await;

    // Deleted and created again at once, while the old address is still there and answers.
    let new = Origin::echo_on(([127, 0, 0, 3], old.port())).await.named("new");
    cluster.delete(&object).await;
    dns.set(&service_name("moved", "web"), [IpAddr::from([127, 0, 0, 3])]);
    cluster.apply(&object).await;
    reaches_within(DNS_BOUND, &product, host, "/", "new").await;
    let before = old.requests();
    for _ in 0..50 {
        assert_eq!(answer_of(&product, host, "/").await, "new");
    }
    assert_eq!(old.requests(), before);
    drop(new);
}

#[tokio::test]
async fn class_field_annotation_and_flag_decide() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let web = backend(&dns, "class", "web", [127, 0, 0, 2]).await;
    let kubeconfig = account(cluster, "routes-class").await;
    let strict = serve(&kubeconfig, &dns, &[]).await;
    let lax = serve(&kubeconfig, &dns, &["--process-without-class"]).await;

    let on = |name: &str, class: Option<&str>| {
        Ingress::new("class", name).class(class).prefix(
            &format!("{name}.class.example.com"),
            "/",
            "web",
            "http",
        )
    };
    const LEGACY: &str = "kubernetes.io/ingress.class";
    let field = on("field", Some("tak-os"));
    let other_field = on("other-field", Some("other"));
    let ingresses = [
        field.yaml(),
        other_field.yaml(),
        on("annotation", None).annotation(LEGACY, "tak-os").yaml(),
        on("other-annotation", None).annotation(LEGACY, "nginx").yaml(),
        on("neither", None).yaml(),
    ];
    let service = service("class", "web", &[("http", web.port())]);
    cluster.apply(&join([namespace("class"), service].iter().chain(&ingresses))).await;
    // The API server takes both only on an update.
    let both = [other_field.annotation(LEGACY, "tak-os").yaml(), field.annotation(LEGACY, "nginx").yaml()];
    cluster.apply(&join(both)).await;

    for (name, on_strict, on_lax) in [
        ("field", "web", "web"),
        ("annotation", "web", "web"),
        ("neither", "404", "web"),
        ("other-field", "404", "404"),
        ("other-annotation", "404", "404"),
    ] {
        let host = format!("{name}.class.example.com");
        for (product, expected) in [(&strict, on_strict), (&lax, on_lax)] {
            match expected {
                "404" => becomes(product, &host, "/", 404).await,
                origin => reaches(product, &host, "/", origin).await,
            }
        }
    }

    // What comes last is there: what is not served by now is not served at all.
    cluster.apply(&on("last", Some("tak-os")).yaml()).await;
    reaches(&strict, "last.class.example.com", "/", "web").await;
    for name in ["neither", "other-field", "other-annotation"] {
        assert_eq!(answer_of(&strict, &format!("{name}.class.example.com"), "/").await, "404", "{name}");
    }
}

#[tokio::test]
async fn the_default_class_is_a_field_by_the_time_we_see_it() {
    // A cluster of its own: a default class changes what every other test creates.
    let cluster = ingress_e2e::cluster::Cluster::start().await;
    let (dns, host) = (DnsServer::start().await, "default.example.com");
    let web = backend(&dns, "default", "web", [127, 0, 0, 2]).await;
    let kubeconfig = account(&cluster, "routes-default").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    cluster
        .apply(&join([
            service("default", "web", &[("http", web.port())]),
            ingress_class("tak-os", OURS, true),
        ]))
        .await;
    let ingresses: Api<IngressObject> = Api::namespaced(cluster.admin().await, "default");
    let ingress = Ingress::new("default", "web").class(None).prefix(host, "/", "web", "http");
    // The admission plugin learns of the class through a watch.
    eventually(SOON, async || {
        cluster.delete(&ingress.yaml()).await;
        cluster.apply(&ingress.yaml()).await;
        let spec = ingresses.get("web").await.unwrap().spec?;
        (spec.ingress_class_name? == "tak-os").then_some(())
    })
    .await;
    reaches(&product, host, "/", "web").await;
}

#[tokio::test]
async fn a_class_of_another_controller_is_not_served() {
    let cluster = shared().await;
    let (dns, class) = (DnsServer::start().await, "tak-os-tenant");
    let web = backend(&dns, "tenant", "web", [127, 0, 0, 2]).await;
    let kubeconfig = account(cluster, "routes-tenant").await;
    let product = serve(&kubeconfig, &dns, &["--ingress-class=tak-os-tenant"]).await;
    let field =
        Ingress::new("tenant", "field").class(Some(class)).prefix("tenant.example.com", "/", "web", "http");
    let legacy = Ingress::new("tenant", "legacy")
        .class(None)
        .annotation("kubernetes.io/ingress.class", class)
        .prefix("legacy.tenant.example.com", "/", "web", "http");
    let service = service("tenant", "web", &[("http", web.port())]);
    cluster.apply(&join([namespace("tenant"), service, field.yaml(), legacy.yaml()])).await;
    let hosts = ["tenant.example.com", "legacy.tenant.example.com"];
    for host in hosts {
        reaches(&product, host, "/", "web").await;
    }
    let foreign = ingress_class(class, "example.com/somebody-else", false);
    cluster.apply(&foreign).await;
    for host in hosts {
        becomes(&product, host, "/", 404).await;
    }
    // The controller of a class cannot be changed.
    cluster.delete(&foreign).await;
    cluster.apply(&ingress_class(class, OURS, false)).await;
    for host in hosts {
        reaches(&product, host, "/", "web").await;
    }
    cluster.delete(&foreign).await;
    cluster.apply(&foreign).await;
    for host in hosts {
        becomes(&product, host, "/", 404).await;
    }
}

#[tokio::test]
async fn the_longest_prefix_wins_in_any_order_of_creation() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let a = backend(&dns, "longest", "a", [127, 0, 0, 2]).await;
    let b = backend(&dns, "longest", "b", [127, 0, 0, 3]).await;
    let kubeconfig = account(cluster, "routes-longest").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    let services =
        [service("longest", "a", &[("http", a.port())]), service("longest", "b", &[("http", b.port())])];
    cluster.apply(&join([namespace("longest")].iter().chain(&services))).await;
    let short = |host: &str, name: &str| Ingress::new("longest", name).prefix(host, "/aaa", "a", "http");
    let long = |host: &str, name: &str| Ingress::new("longest", name).prefix(host, "/aaa/bbb", "b", "http");
    let hosts = ["short-first.example.com", "long-first.example.com"];
    cluster.apply(&short(hosts[0], "one").yaml()).await;
    cluster.apply(&long(hosts[1], "three").yaml()).await;
    later_than(cluster, "longest", "one").await;
    later_than(cluster, "longest", "three").await;
    cluster.apply(&long(hosts[0], "two").yaml()).await;
    cluster.apply(&short(hosts[1], "four").yaml()).await;

    let restarted = async || serve(&kubeconfig, &dns, &[]).await;
    let all_hold = async |product: &ingress_e2e::product::Product| {
        for host in hosts {
            reaches(product, host, "/aaa/bbb/x", "b").await;
            reaches(product, host, "/aaa/ccc", "a").await;
            assert_eq!(answer_of(product, host, "/aaa/bbb/x").await, "b");
            assert_eq!(answer_of(product, host, "/aaaccc").await, "404");
        }
    };
    all_hold(&product).await;
    drop(product);
    all_hold(&restarted().await).await;
}

#[tokio::test]
async fn the_older_claim_keeps_host_and_path() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let older = backend(&dns, "claim-z", "older", [127, 0, 0, 2]).await;
    let newer = backend(&dns, "claim-a", "newer", [127, 0, 0, 3]).await;
    let kubeconfig = account(cluster, "routes-claim").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    let (host, guarded) = ("claim.example.com", "guarded.example.com");
    // The names would decide the other way round.
    let first = Ingress::new("claim-z", "z").prefix(host, "/", "older", "http");
    let closed = Ingress::new("claim-z", "closed")
        .annotation("auth-type", "basic")
        .annotation("auth-secret", "users")
        .prefix(guarded, "/", "older", "http");
    let second = Ingress::new("claim-a", "a").prefix(host, "/", "newer", "http");
    let open = Ingress::new("claim-a", "open").prefix(guarded, "/", "newer", "http");
    let services = [
        service("claim-z", "older", &[("http", older.port())]),
        service("claim-a", "newer", &[("http", newer.port())]),
    ];
    cluster.apply(&join([namespace("claim-z"), namespace("claim-a")].iter().chain(&services))).await;
    cluster.apply(&join([first.yaml(), closed.yaml()])).await;
    reaches(&product, host, "/", "older").await;
    becomes(&product, guarded, "/", 501).await;
    later_than(cluster, "claim-z", "closed").await;
    cluster.apply(&join([second.yaml(), open.yaml()])).await;
    // The Event shows that the second claim has been judged.
    warned(cluster, "claim-a", "a", &["claim.example.com", "claim-z/z"]).await;
    warned(cluster, "claim-a", "open", &["guarded.example.com", "claim-z/closed"]).await;
    let holds = async |product: &ingress_e2e::product::Product| {
        for _ in 0..20 {
            assert_eq!(answer_of(product, host, "/").await, "older");
            assert_eq!(answer_of(product, guarded, "/").await, "501");
        }
    };
    holds(&product).await;

    // A touch of either changes nothing; a more specific path is allowed.
    cluster.apply(&first.clone().annotation("example.com/touched", "yes").yaml()).await;
    cluster.apply(&second.clone().prefix(host, "/deep", "newer", "http").yaml()).await;
    reaches(&product, host, "/deep/er", "newer").await;
    holds(&product).await;
    let again = serve(&kubeconfig, &dns, &[]).await;
    holds(&again).await;

    cluster.delete(&join([first.yaml(), closed.yaml()])).await;
    for product in [&product, &again] {
        reaches(product, host, "/", "newer").await;
        reaches(product, guarded, "/", "newer").await;
    }
    // Whoever comes back comes last.
    later_than(cluster, "claim-a", "a").await;
    cluster.apply(&first.yaml()).await;
    warned(cluster, "claim-z", "z", &["claim.example.com", "claim-a/a"]).await;
    assert_eq!(answer_of(&product, host, "/").await, "newer");
}

#[tokio::test]
async fn nothing_but_events_is_ever_written() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let web = backend(&dns, "written", "web", [127, 0, 0, 2]).await;
    // It may do everything: what it does not do, it does not try.
    let everything = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    let kubeconfig = account_with(cluster, "routes-written", &[everything]).await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    let host = "written.example.com";
    let secret = tls_secret_yaml("written", "tls", &Ca::new().leaf(&[host], KeyKind::EcP256Sec1));
    let good = Ingress::new("written", "good").prefix(host, "/", "web", "http").tls(&[host], "tls");
    let bad = Ingress::new("written", "bad").annotation("ssl-redirect", "perhaps").prefix(
        "bad.written.example.com",
        "/",
        "nowhere",
        80,
    );
    let service = service("written", "web", &[("http", web.port())]);
    cluster.apply(&join([namespace("written"), secret, service, good.yaml(), bad.yaml()])).await;
    becomes(&product, host, "/", 308).await;
    warned(cluster, "written", "bad", &["ssl-redirect"]).await;
    cluster.apply(&good.clone().annotation("ssl-redirect", "false").yaml()).await;
    reaches(&product, host, "/", "web").await;
    cluster.delete(&bad.yaml()).await;
    becomes(&product, "bad.written.example.com", "/", 404).await;

    let written = |verb: &str| !matches!(verb, "get" | "list" | "watch");
    let (mut reads, mut writes) = (BTreeSet::new(), BTreeSet::new());
    for request in requests_of(cluster, "routes-written") {
        // The test asked for its own rights under this account.
        if request.what.contains("selfsubjectaccessreviews") {
            continue;
        }
        if written(&request.verb) { &mut writes } else { &mut reads }.insert((request.verb, request.what));
    }
    let allowed = ["create", "patch"].map(|verb| (verb.to_owned(), "events.k8s.io/events".to_owned()));
    assert!(writes.contains(&allowed[0]), "the Event above was audited: {writes:?}");
    assert!(writes.iter().all(|write| allowed.contains(write)), "{writes:?}");
    assert!(reads.contains(&("watch".into(), "networking.k8s.io/ingresses".into())), "{reads:?}");

    let ingresses: Api<IngressObject> = Api::namespaced(cluster.admin().await, "written");
    for ingress in ingresses.list(&ListParams::default()).await.unwrap().items {
        let balancer = ingress.status.and_then(|status| status.load_balancer);
        assert!(
            balancer.and_then(|b| b.ingress).is_none_or(|list| list.is_empty()),
            "no address is reported"
        );
        let managers = ingress.metadata.managed_fields.unwrap_or_default();
        assert!(managers.iter().all(|m| m.manager.as_deref() == Some("e2e")), "{managers:?}");
    }
}

#[tokio::test]
async fn loopback_backends_are_never_dialled_by_default() {
    let cluster = shared().await;
    let (dns, host) = (DnsServer::start().await, "inside.example.com");
    let web = backend(&dns, "inside", "web", [127, 0, 0, 2]).await;
    let kubeconfig = account(cluster, "routes-inside").await;
    let guarded = serve(&kubeconfig, &dns, &["--deny-backend-cidrs="]).await;
    let lifted = serve(&kubeconfig, &dns, &[]).await;
    let ingress = Ingress::new("inside", "web").prefix(host, "/", "web", "http");
    let service = service("inside", "web", &[("http", web.port())]);
    cluster.apply(&join([namespace("inside"), service, ingress.yaml()])).await;
    becomes(&guarded, host, "/", 502).await;
    assert_eq!(web.accepts(), 0);
    reaches(&lifted, host, "/", "web").await;
    // It was the guard and nothing else.
    let before = web.accepts();
    assert_eq!(answer_of(&guarded, host, "/").await, "502");
    assert_eq!(web.accepts(), before);
}

/// An API server takes no slice with a loopback address. So their ports have a wrong name: the Warning shows that one was read.
#[tokio::test]
async fn slices_are_read_of_headless_services_and_where_no_controller_wrote_them() {
    let (cluster, dns) = (shared().await, DnsServer::start().await);
    let kubeconfig = account(cluster, "routes-slices").await;
    let managed = ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io");
    let objects = |name: &str, labels: &[(&str, &str)]| {
        let own = ("kubernetes.io/service-name", name);
        let labels: BTreeMap<_, _> = labels.iter().copied().chain([own]).collect();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "slices", "name": name, "labels": labels},
            "addressType": "IPv4", "ports": [{"name": "other", "port": 8080}],
            "endpoints": [{"addresses": ["192.0.2.1"]}],
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "slices", "name": name},
            "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]},
        });
        let ingress =
            Ingress::new("slices", name).prefix(&format!("{name}.slices.example.com"), "/", name, "http");
        join([service.to_string(), slice.to_string(), ingress.yaml()])
    };
    let usual = objects("usual", &[managed]);
    let headless = objects("headless", &[managed, ("service.kubernetes.io/headless", "")]);
    cluster.apply(&join([namespace("slices"), usual, headless])).await;
    let _product = serve(&kubeconfig, &dns, &[]).await;
    warned(cluster, "slices", "headless", &["EndpointSlices", "no TCP port"]).await;
    cluster.apply(&objects("by-hand", &[])).await;
    warned(cluster, "slices", "by-hand", &["EndpointSlices", "no TCP port"]).await;
    cluster.apply(&objects("of-another", &[(managed.0, "another-controller.example.com")])).await;
    warned(cluster, "slices", "of-another", &["EndpointSlices", "no TCP port"]).await;
    assert_eq!(
        events_on(cluster, "slices", "usual").await,
        [],
        "those of usual Services are many, and not read"
    );
}

#[tokio::test]
async fn external_names_lead_nowhere_inside() {
    let cluster = shared().await;
    let dns = DnsServer::start().await;
    let kubeconfig = account(cluster, "routes-external").await;
    let refusing = serve(&kubeconfig, &dns, &[]).await;
    let allowing =
        serve(&kubeconfig, &dns, &["--allow-external-name-services", "--deny-backend-cidrs="]).await;
    // Behind each name stands the product's own admin port, which must not come out.
    let port = allowing.metrics_addr().port();
    let admin_v4 = IpAddr::from([127, 0, 0, 1]);
    for name in ["localhost", "nip.example"] {
        dns.set(name, [admin_v4]);
    }
    dns.set("mapped.example", ["::ffff:127.0.0.1".parse::<IpAddr>().unwrap()]);
    dns.set("metadata.example", [IpAddr::from([169, 254, 169, 254])]);
    cluster.apply(&namespace("external")).await;
    let names = ["localhost", "nip.example", "mapped.example", "metadata.example"];
    for (i, target) in names.into_iter().enumerate() {
        let (name, host) = (format!("external-{i}"), format!("external-{i}.example.com"));
        let ingress = Ingress::new("external", &name).prefix(&host, "/", &name, i32::from(port));
        cluster.apply(&join([external_service("external", &name, target, port), ingress.yaml()])).await;
        for product in [&refusing, &allowing] {
            becomes_within(SOON * 2, product, &host, "/metrics", 502).await;
        }
        warned(cluster, "external", &name, &["ExternalName"]).await;
    }
    assert!(
        events_on(cluster, "external", "external-0")
            .await
            .iter()
            .all(|e| { e.reporting_controller.as_deref() == Some("tak-os.org/ingress-controller") })
    );
}
