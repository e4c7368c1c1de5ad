//! A folder of manifests as the source: what is served, what is told, and how changes arrive.

mod common;

use std::time::{Duration, Instant};

use common::{HOST, Ingress, NAMESPACE, PREFIX, everything_to, join, serve, serve_with, service, service_in};
use ingress_e2e::client::{self, RawConn};
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use serde_json::{Value, json};

/// "Within seconds".
const SECONDS: Duration = Duration::from_secs(5);

async fn status(product: &Product, host: &str, path: &str) -> u16 {
    client::get(product.http(), host, path).await.status
}

async fn becomes(product: &Product, host: &str, want: u16) {
    eventually(SECONDS, async || (status(product, host, "/").await == want).then_some(())).await;
}

/// The warnings about an object.
async fn warnings(product: &Product, object: &str) -> Vec<Value> {
    let about =
        |line: &Value| line["level"] == "WARN" && line["object"].as_str().is_some_and(|o| o.contains(object));
    eventually(DEADLINE, async || {
        let lines: Vec<_> = product.log().into_iter().filter(|line| about(line)).collect();
        (!lines.is_empty()).then_some(lines)
    })
    .await
}

#[tokio::test]
async fn a_change_serves_within_a_second() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut times = Vec::new();
    for i in 0..3 {
        let host = format!("new-{i}.example.com");
        assert_eq!(status(&product, &host, "/").await, 404);
        product.write_manifest("new.yaml", &Ingress::new("new").prefix(&host, "/", "web").yaml());
        let start = Instant::now();
        becomes(&product, &host, 200).await;
        times.push(start.elapsed());
    }
    // The best of three: the machine that tests is not always quiet.
    assert!(times.iter().min() < Some(&Duration::from_secs(1)), "{times:?}");
}

#[tokio::test]
async fn every_file_of_the_folder_counts() {
    let origin = Origin::echo().await;
    let product = Product::builder()
        .manifest(
            "a.yaml",
            &join([Ingress::new("a").prefix("a.example.com", "/", "web").yaml(), String::new()]),
        )
        .manifest("b.yml", &Ingress::new("b").prefix("b.example.com", "/", "web").yaml())
        .manifest("deeper/c.yaml", &Ingress::new("c").prefix("c.example.com", "/", "web").yaml())
        .manifest(
            "service.yaml",
            &format!("# a comment\n---\n{}\n---\n---\n", service("web", &[origin.addr()])),
        )
        .manifest("notes.txt", "kind: [not read")
        .manifest("other.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n---\nkind: Unknown\n")
        .start()
        .await;
    product.ready().await;
    for host in ["a.example.com", "b.example.com", "c.example.com"] {
        assert_eq!(status(&product, host, "/").await, 200, "{host}");
    }
}

#[tokio::test]
async fn a_broken_file_keeps_its_last_good_content() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let file = |host: &str| Ingress::new("x").prefix(host, "/", "web").yaml();
    product.write_manifest("x.yaml", &file("x1.example.com"));
    becomes(&product, "x1.example.com", 200).await;

    product.write_manifest("x.yaml", "kind: Ingress\n  apiVersion: [broken");
    let told = async || product.log_text().contains("x.yaml").then_some(());
    eventually(SECONDS, told).await;
    // A later change of another file shows that the broken one was taken in.
    product.write_manifest("y.yaml", &Ingress::new("y").prefix("y.example.com", "/", "web").yaml());
    becomes(&product, "y.example.com", 200).await;
    assert_eq!(status(&product, "x1.example.com", "/").await, 200);
    assert!(product.metric_sum("tak_ingress_object_errors", &[("kind", "file")]).await >= 1.0);

    product.write_manifest("x.yaml", &file("x2.example.com"));
    becomes(&product, "x2.example.com", 200).await;
    assert_eq!(status(&product, "x1.example.com", "/").await, 404);
    assert_eq!(product.metric_sum("tak_ingress_object_errors", &[("kind", "file")]).await, 0.0);
}

#[tokio::test]
async fn a_file_that_is_broken_from_the_start_costs_nobody_else() {
    let origin = Origin::echo().await;
    for broken in [
        "kind: [",
        "a: b: c",
        "- a\n- b\n",
        "{\"apiVersion\": \"networking.k8s.io/v1\", \"kind\": \"Ingress\", \"spec\": 3}",
    ] {
        let product = Product::builder()
            .manifest("good.yaml", &join(everything_to(&origin)))
            .manifest("bad.yaml", broken)
            .start()
            .await;
        product.ready().await;
        assert_eq!(status(&product, HOST, "/").await, 200, "{broken:?}");
        assert!(product.exit_status().is_none());
        eventually(DEADLINE, async || product.log_text().contains("bad.yaml").then_some(())).await;
    }
}

#[tokio::test]
async fn routes_of_a_removed_file_vanish_and_the_rest_serves_on() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    product.write_manifest("gone.yaml", &Ingress::new("gone").prefix("gone.example.com", "/", "web").yaml());
    becomes(&product, "gone.example.com", 200).await;
    let routes = async |want: f64| {
        let now = async || product.metric_value("tak_ingress_routes{kind=\"ingress\"").await;
        eventually(DEADLINE, async || (now().await == Some(want)).then_some(())).await;
    };
    routes(2.0).await;
    product.remove_manifest("gone.yaml");
    becomes(&product, "gone.example.com", 404).await;
    assert_eq!(status(&product, HOST, "/").await, 200);
    routes(1.0).await;
}

#[tokio::test]
async fn requests_are_undisturbed_by_edits() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let (http, https) = (product.http(), product.https());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let traffic = [http, https].map(|addr| {
        let stopped = stopped.clone();
        tokio::spawn(async move {
            let mut sent = 0;
            while !*stopped.borrow() {
                let mut conn = match addr == http {
                    true => RawConn::connect(addr).await.unwrap(),
                    false => RawConn::connect_tls(addr, Some(HOST), &[]).await.unwrap(),
                };
                for _ in 0..5 {
                    assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200, "after {sent} requests");
                    sent += 1;
                }
            }
            sent
        })
    });
    for i in 0..5 {
        let host = format!("edit-{i}.example.com");
        product.write_manifest("edit.yaml", &Ingress::new("edit").prefix(&host, "/", "web").yaml());
        becomes(&product, &host, 200).await;
    }
    stop.send_replace(true);
    for task in traffic {
        assert!(task.await.unwrap() > 20);
    }
}

#[tokio::test]
async fn a_changed_port_annotation_or_endpoint_is_followed() {
    let (a, b) = (Origin::echo().await.named("A"), Origin::echo().await.named("B"));
    let product = serve([Ingress::new("web").prefix(HOST, "/", "web").yaml()]).await;
    let origin_is = async |want: &str| {
        eventually(SECONDS, async || {
            let answer = client::get(product.http(), HOST, "/").await;
            (answer.status == 200 && answer.origin() == want).then_some(())
        })
        .await
    };
    product.write_manifest("service.yaml", &service("web", &[a.addr()]));
    origin_is("A").await;
    product.write_manifest("service.yaml", &service("web", &[b.addr()]));
    origin_is("B").await;
    let ingress = |annotated: bool| {
        let ingress = Ingress::new("web").prefix(HOST, "/", "web");
        if annotated { ingress.set("allowlist-source-range", "10.0.0.0/8") } else { ingress }.yaml()
    };
    product.write_manifest("manifests.yaml", &ingress(true));
    becomes(&product, HOST, 403).await;
    product.write_manifest("manifests.yaml", &ingress(false));
    becomes(&product, HOST, 200).await;
}

#[tokio::test]
async fn service_ports_go_by_number_and_by_name() {
    let (web, api) = (
        Origin::echo_on(([127, 0, 0, 4], 0)).await.named("web"),
        Origin::echo_on(([127, 0, 0, 4], 0)).await.named("api"),
    );
    let path = |path: &str| json!({"path": path, "pathType": "Prefix"});
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080}, {"name": "api", "port": 9000}]);
    let product = serve([
        Ingress::new("web")
            .rule(HOST, path("/80"), "web", json!({"number": 80}))
            .rule(HOST, path("/http"), "web", json!({"name": "http"}))
            .rule(HOST, path("/9000"), "web", json!({"number": 9000}))
            .rule(HOST, path("/api"), "web", json!({"name": "api"}))
            .rule(HOST, path("/8080"), "web", json!({"number": 8080}))
            .rule(HOST, path("/none"), "web", json!({"name": "none"}))
            .yaml(),
        common::service_object(NAMESPACE, "web", ports),
        common::slice(NAMESPACE, "web", 0, &[("http", web.addr()), ("api", api.addr())]),
    ])
    .await;
    for (path, want) in [("/80", "web"), ("/http", "web"), ("/9000", "api"), ("/api", "api")] {
        let answer = client::get(product.http(), HOST, path).await;
        assert_eq!((answer.status, answer.origin().as_str()), (200, want), "{path}");
    }
    // The target port is the Service's business.
    assert_eq!((status(&product, HOST, "/8080").await, status(&product, HOST, "/none").await), (502, 502));
}

#[tokio::test]
async fn a_backend_is_a_service_of_the_ingresses_own_namespace() {
    let (own, foreign) = (Origin::echo().await.named("own"), Origin::echo().await.named("foreign"));
    let product = serve([
        Ingress::at("a", "web").prefix("a.example.com", "/", "web").yaml(),
        Ingress::at("b", "web").prefix("b.example.com", "/", "web").yaml(),
        Ingress::at("c", "web").prefix("c.example.com", "/", "web").yaml(),
        service_in("a", "web", &[own.addr()]),
        service_in("b", "web", &[foreign.addr()]),
    ])
    .await;
    assert_eq!(client::get(product.http(), "a.example.com", "/").await.origin(), "own");
    assert_eq!(client::get(product.http(), "b.example.com", "/").await.origin(), "foreign");
    assert_eq!(status(&product, "c.example.com", "/").await, 502);
}

#[tokio::test]
async fn default_and_resource_backends_do_nothing_and_are_told_of() {
    let origin = Origin::echo().await;
    let mut default = Ingress::new("default").prefix("a.example.com", "/a", "web");
    default.object()["spec"]["defaultBackend"] = json!({"service": {"name": "web", "port": {"number": 80}}});
    let mut resource = Ingress::new("resource").prefix("b.example.com", "/b", "web");
    let bucket = json!({"resource": {"apiGroup": "k8s.example.com", "kind": "Bucket", "name": "x"}});
    resource.object()["spec"]["rules"][0]["http"]["paths"]
        .as_array_mut()
        .unwrap()
        .push(json!({"path": "/static", "pathType": "Prefix", "backend": bucket}));
    let product = serve([default.yaml(), resource.yaml(), service("web", &[origin.addr()])]).await;
    assert_eq!(status(&product, "a.example.com", "/a").await, 200);
    assert_eq!(status(&product, "a.example.com", "/else").await, 404);
    assert_eq!(status(&product, "unknown.example.com", "/").await, 404);
    assert_eq!(status(&product, "b.example.com", "/b").await, 200);
    assert!(status(&product, "b.example.com", "/static").await >= 404, "never the web Service");
    assert_eq!(origin.requests(), 2);
    assert!(warnings(&product, "shop/default").await[0].to_string().contains("defaultBackend"));
    assert!(warnings(&product, "shop/resource").await[0].to_string().contains("resource"));
}

#[tokio::test]
async fn field_annotation_and_flag_choose_the_class() {
    let origin = Origin::echo().await;
    let legacy = "kubernetes.io/ingress.class";
    let ingress = |name: &str| Ingress::new(name).prefix(&format!("{name}.example.com"), "/", "web");
    let documents = [
        ingress("field").class(Some("tak-os")).yaml(),
        ingress("other").class(Some("other")).yaml(),
        ingress("other-annotated").class(Some("other")).annotation(legacy, "tak-os").yaml(),
        ingress("field-contradicted").class(Some("tak-os")).annotation(legacy, "nginx").yaml(),
        ingress("annotated").class(None).annotation(legacy, "tak-os").yaml(),
        ingress("annotated-other").class(None).annotation(legacy, "nginx").yaml(),
        ingress("neither").class(None).yaml(),
        service("web", &[origin.addr()]),
    ];
    for (flag, neither) in
        [(None, 404), (Some("--process-without-class=false"), 404), (Some("--process-without-class"), 200)]
    {
        let product = serve_with(documents.clone(), &Vec::from_iter(flag)).await;
        for (name, want) in [
            ("field", 200),
            ("other", 404),
            ("other-annotated", 404),
            ("field-contradicted", 200),
            ("annotated", 200),
            ("annotated-other", 404),
            ("neither", neither),
        ] {
            assert_eq!(
                status(&product, &format!("{name}.example.com"), "/").await,
                want,
                "{name} with {flag:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_class_object_of_another_controller_is_not_ours() {
    let origin = Origin::echo().await;
    let class = |controller: &str| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IngressClass",
            "metadata": {"name": "tak-os"},
            "spec": {"controller": controller},
        })
        .to_string()
    };
    let product = serve(everything_to(&origin)).await;
    assert_eq!(status(&product, HOST, "/").await, 200, "without the object");
    product.write_manifest("class.yaml", &class("example.com/another"));
    becomes(&product, HOST, 404).await;
    product.write_manifest("class.yaml", &class("tak-os.org/ingress-controller"));
    becomes(&product, HOST, 200).await;
}

#[tokio::test]
async fn authentication_that_is_asked_for_is_never_skipped() {
    let origin = Origin::echo().await;
    let asked = [
        ("auth-type", "basic"),
        ("auth-type", "Basic"),
        ("auth-type", "nonsense"),
        ("auth-secret", "users"),
        ("auth-url", "not a url"),
        ("oauth2-secret", "oauth"),
    ];
    let mut documents = vec![service("web", &[origin.addr()])];
    for (i, (key, value)) in asked.iter().enumerate() {
        let host = format!("h{i}.example.com");
        documents.push(Ingress::new(&format!("i{i}")).prefix(&host, "/", "web").set(key, value).yaml());
    }
    let native = Ingress::new("native").prefix("native.example.com", "/", "web");
    documents.push(native.annotation("k8s.tak-os.com/oauth2-secret", "oauth").yaml());
    let product = serve(documents).await;
    let hosts = (0..asked.len()).map(|i| format!("h{i}.example.com")).chain(["native.example.com".into()]);
    for host in hosts {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        for headers in [&[][..], &[("Authorization", "Basic YWxpY2U6cHc="), ("X-Auth-Request-User", "alice")]]
        {
            let answer = conn.request("GET", &host, "/", headers, b"").await.unwrap();
            assert_eq!(answer.status, 501, "{host}");
            assert_eq!(answer.text().trim_end(), "Authentication required but not configured", "{host}");
        }
        let tls = client::tls_get(product.https(), &host, &host, "/", None).await;
        assert_eq!(tls.status, 501, "{host}");
    }
    assert_eq!(origin.accepts(), 0);
    assert!(warnings(&product, "shop/i0").await[0].to_string().contains(&format!("{PREFIX}auth-secret")));
}

#[tokio::test]
async fn address_lists_let_nobody_in_who_was_not_let_in() {
    let origin = Origin::echo().await;
    let product = serve([
        Ingress::new("allow")
            .prefix("allow.example.com", "/", "web")
            .set("allowlist-source-range", "10.0.0.0/8")
            .yaml(),
        Ingress::new("deny")
            .prefix("deny.example.com", "/", "web")
            .set("denylist-source-range", "127.0.0.0/8")
            .yaml(),
        Ingress::new("typo")
            .prefix("typo.example.com", "/", "web")
            .set("allowlist-source-range", "127.0.0/8")
            .yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    for host in ["allow.example.com", "deny.example.com", "typo.example.com"] {
        assert_eq!(status(&product, host, "/").await, 403, "{host}");
    }
    assert_eq!(origin.accepts(), 0);
}

#[tokio::test]
async fn annotations_hold_for_all_routes_of_their_ingress_and_no_other() {
    let origin = Origin::echo().await;
    let closed = Ingress::new("closed").prefix(HOST, "/a", "web").exact(HOST, "/b", "web").prefix(
        "b.example.com",
        "/",
        "web",
    );
    let product = serve([
        closed.set("auth-type", "basic").yaml(),
        Ingress::new("open").prefix(HOST, "/", "web").prefix(HOST, "/a/open", "web").yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    for (host, path, want) in [
        (HOST, "/a", 501),
        (HOST, "/a/x", 501),
        (HOST, "//a", 501),
        (HOST, "/b", 501),
        ("b.example.com", "/", 501),
        (HOST, "/", 200),
        (HOST, "/b/", 200),
        (HOST, "/a/open", 200),
    ] {
        assert_eq!(status(&product, host, path).await, want, "{host}{path}");
    }
}

#[tokio::test]
async fn a_mistake_is_told_once_with_object_key_and_what_is_accepted() {
    let origin = Origin::echo().await;
    let ingress = Ingress::new("odd").prefix(HOST, "/", "web").set("proxy-read-timeout", "60s");
    let product = serve([
        ingress.set("backend-keepalive", "maybe").set("proxy-reed-timeout", "5").yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    assert_eq!(status(&product, HOST, "/").await, 200, "the object serves with the safe meaning");
    let lines =
        eventually(DEADLINE, async || Some(warnings(&product, "shop/odd").await).filter(|l| l.len() >= 3))
            .await;
    assert_eq!(lines.len(), 3, "{lines:?}");
    let about = |key: &str| {
        let line = lines.iter().find(|line| line.to_string().contains(&format!("{PREFIX}{key}")));
        line.unwrap_or_else(|| panic!("{key} in {lines:?}")).to_string()
    };
    let timeout = about("proxy-read-timeout");
    assert!(
        timeout.contains("60s") && timeout.contains("seconds") && timeout.contains("ingress/shop/odd"),
        "{timeout}"
    );
    let keepalive = about("backend-keepalive");
    assert!(
        keepalive.contains("maybe") && keepalive.contains("true") && keepalive.contains("false"),
        "{keepalive}"
    );
    assert!(about("proxy-reed-timeout").contains("proxy-read-timeout"), "the nearest known name");
    assert!(product.metric_sum("tak_ingress_object_errors", &[("kind", "ingress")]).await >= 3.0);

    // A change elsewhere does not say it again.
    product.write_manifest("new.yaml", &Ingress::new("new").prefix("new.example.com", "/", "web").yaml());
    becomes(&product, "new.example.com", 200).await;
    assert_eq!(warnings(&product, "shop/odd").await.len(), 3);
}

#[tokio::test]
async fn timeouts_that_do_not_parse_leave_route_and_guard_in_force() {
    let origin = Origin::echo().await;
    let mut documents = vec![service("web", &[origin.addr()])];
    let values = ["60s", "abc", "-5", "1.5", "99999999999999999999", ""];
    for (i, value) in values.iter().enumerate() {
        let ingress = |name: &str| {
            let name = format!("{name}{i}");
            Ingress::new(&name)
                .prefix(&format!("{name}.example.com"), "/", "web")
                .set("proxy-read-timeout", value)
        };
        documents.push(ingress("open").yaml());
        documents.push(ingress("closed").set("auth-type", "basic").yaml());
    }
    let product = serve(documents).await;
    for (i, value) in values.iter().enumerate() {
        assert_eq!(status(&product, &format!("open{i}.example.com"), "/").await, 200, "{value:?}");
        assert_eq!(status(&product, &format!("closed{i}.example.com"), "/").await, 501, "{value:?}");
    }
    assert_eq!(product.metric_value("tak_ingress_snapshot_build_failures_total").await, Some(0.0));
}

#[tokio::test]
async fn one_objects_mistakes_cost_nobody_else() {
    let origin = Origin::echo().await;
    let mut documents =
        vec![service("web", &[origin.addr()]), Ingress::new("good").prefix(HOST, "/", "web").yaml()];
    let path = |path: Value| json!({"path": path, "pathType": "Prefix"});
    for (i, (host, path)) in [
        ("bad host", path("/".into())),
        ("*.*.example.com", path("/".into())),
        ("*", path("/".into())),
        ("a..example.com", path("/".into())),
        ("b0.example.com", path("relative".into())),
        ("b1.example.com", path("/a/../b".into())),
        ("b2.example.com", json!({"path": "/", "pathType": "Regex"})),
        ("b3.example.com", json!({"pathType": "Exact"})),
    ]
    .into_iter()
    .enumerate()
    {
        let bad = Ingress::new(&format!("bad{i}")).rule(host, path, "web", json!({"number": 80}));
        documents.push(bad.prefix(&format!("rest{i}.example.com"), "/", "web").yaml());
    }
    let product = serve(documents).await;
    assert_eq!(status(&product, HOST, "/").await, 200);
    for i in 0..8 {
        assert_eq!(
            status(&product, &format!("rest{i}.example.com"), "/").await,
            200,
            "the object's other rule, {i}"
        );
        warnings(&product, &format!("shop/bad{i}")).await;
    }
    assert_eq!(status(&product, "b1.example.com", "/b").await, 404);
}

#[tokio::test]
async fn the_older_owner_of_host_and_path_keeps_it_and_the_next_takes_over() {
    let (a, b) = (Origin::echo().await.named("A"), Origin::echo().await.named("B"));
    let older = Ingress::at("z", "web").created(1).prefix(HOST, "/", "web");
    let newer = Ingress::at("a", "web").created(2).prefix(HOST, "/", "web");
    let product = Product::builder()
        .manifest("older.yaml", &older.yaml())
        .manifest("newer.yaml", &newer.yaml())
        .manifest(
            "services.yaml",
            &join([service_in("z", "web", &[a.addr()]), service_in("a", "web", &[b.addr()])]),
        )
        .start()
        .await;
    product.ready().await;
    assert_eq!(client::get(product.http(), HOST, "/").await.origin(), "A");
    let told = warnings(&product, "a/web").await;
    assert!(told[0].to_string().contains(HOST), "the loser is told: {told:?}");
    let origin_is = async |want: &str| {
        let is = async || (client::get(product.http(), HOST, "/").await.origin() == want).then_some(());
        eventually(SECONDS, is).await;
    };
    product.remove_manifest("older.yaml");
    origin_is("B").await;
    product.write_manifest("older.yaml", &older.yaml());
    origin_is("A").await;

    // Of the same age: namespace, then name.
    product.write_manifest("newer.yaml", &newer.clone().created(1).yaml());
    origin_is("B").await;
}

#[tokio::test]
async fn an_ingress_that_goes_leaves_its_secret_alone() {
    let origin = Origin::echo().await;
    let leaf = Ca::new().leaf(&[HOST, "b.example.com"], KeyKind::EcP256Sec1);
    let shared =
        |name: &str, host: &str| Ingress::new(name).prefix(host, "/", "web").tls(&[host], "tls").yaml();
    let product = Product::builder()
        .manifest("a.yaml", &shared("a", HOST))
        .manifest("b.yaml", &shared("b", "b.example.com"))
        .manifest(
            "rest.yaml",
            &join([service("web", &[origin.addr()]), tls_secret_yaml(NAMESPACE, "tls", &leaf)]),
        )
        .start()
        .await;
    product.ready().await;
    product.remove_manifest("a.yaml");
    becomes(&product, HOST, 404).await;
    let fallback = async || !client::served_certificate(product.https(), Some(HOST)).await.is(&leaf);
    eventually(SECONDS, async || fallback().await.then_some(())).await;
    assert!(client::served_certificate(product.https(), Some("b.example.com")).await.is(&leaf));
}

#[tokio::test]
async fn only_watched_namespaces_are_served() {
    let origin = Origin::echo().await;
    let ingress = |namespace: &str| {
        let host = format!("{namespace}.example.com");
        join([
            Ingress::at(namespace, "web").prefix(&host, "/", "web").yaml(),
            service_in(namespace, "web", &[origin.addr()]),
        ])
    };
    let documents = [ingress("a"), ingress("b"), ingress("c")];
    let product = serve_with(documents, &["--watch-namespace=a, c"]).await;
    for (host, want) in [("a.example.com", 200), ("b.example.com", 404), ("c.example.com", 200)] {
        assert_eq!(status(&product, host, "/").await, want, "{host}");
    }
}
