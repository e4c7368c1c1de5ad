//! `explain` against a real API server.

mod cluster_scene;

use cluster_scene::gateway;
use cluster_scene::{Ingress, account_with, backend, join, namespace, rules_without, service, shared};
use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::run_product;
use serde_json::json;

#[tokio::test]
async fn explain_reads_a_cluster_and_writes_nothing() {
    let cluster = shared().await;
    let (dns, host) = (DnsServer::start().await, "web.explain.example.com");
    let web = backend(&dns, "explain", "web", [127, 0, 0, 3]).await;
    let leaf = Ca::new().leaf(&[host], KeyKind::EcP256Sec1);
    cluster
        .apply(&join([
            namespace("explain"),
            service("explain", "web", &[("http", web.port())]),
            tls_secret_yaml("explain", "tls", &leaf),
            Ingress::new("explain", "web")
                .annotation("ssl-redirect", "perhaps")
                .prefix(host, "/", "web", "http")
                .tls(&[host], "tls")
                .yaml(),
        ]))
        .await;
    let flag = format!("--host={host}");
    let config = format!("--kubeconfig={}", cluster.admin_kubeconfig().display());
    let (status, out, err) = run_product(&["explain", &flag, "--https", &config]).await;
    assert!(status.success() && err.is_empty(), "{out}{err}");
    let line = |words: &str| out.lines().any(|line| line.contains(words));
    for words in [
        "ingress/explain/web rules[0].paths[0]: host web.explain.example.com, Prefix /",
        "secret/explain/tls for server name web.explain.example.com",
        "by DNS name web.explain.svc.cluster.local.",
        "plain HTTP would be answered 308",
    ] {
        assert!(line(words), "{words} is not in\n{out}");
    }
    assert!(cluster_scene::events_on(cluster, "explain", "web").await.is_empty(), "nothing is written");

    let blind = account_with(cluster, "explain-blind", &rules_without("secrets")).await;
    let config = format!("--kubeconfig={}", blind.display());
    let (status, out, err) = run_product(&["explain", &flag, "--https", &config]).await;
    assert!(status.success() && err.is_empty(), "{out}{err}");
    assert!(out.contains("Secrets may not be read") && out.contains("the self-signed fallback"), "{out}");
}

#[tokio::test]
async fn routes_of_the_gateway_api_are_explained() {
    let cluster = Cluster::start().await;
    let config = format!("--kubeconfig={}", cluster.admin_kubeconfig().display());
    let ask = async |host: &str, more: &[&str]| {
        let flag = format!("--host={host}");
        let (status, out, err) = run_product(&[&["explain", &flag, &config], more].concat()).await;
        assert!(status.success() && err.is_empty(), "{out}{err}");
        out
    };
    // Without the kinds nothing is missing.
    let out = ask("h.example.com", &[]).await;
    assert!(out.contains("404") && !out.contains("may not be read"), "{out}");
    cluster.apply(&gateway::definitions()).await;
    let all = json!({"namespaces": {"from": "All"}});
    let listeners = json!([
        {"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": all},
        {"name": "tls", "port": 443, "protocol": "TLS", "tls": {"mode": "Passthrough"}, "allowedRoutes": all},
    ]);
    let route = |kind: &str, name: &str, host: &str| {
        let rules = json!([{"backendRefs": [{"name": "web", "port": 80}]}]);
        json!({
            "apiVersion": format!("{}/v1", gateway::GROUP), "kind": kind, "metadata": {"namespace": "explain", "name": name},
            "spec": {"parentRefs": [{"name": "gw"}], "hostnames": [host], "rules": rules},
        })
        .to_string()
    };
    cluster
        .apply(&join([
            namespace("explain"),
            service("explain", "web", &[("http", 80)]),
            gateway::class(),
            gateway::gateway("explain", listeners),
            route("HTTPRoute", "h", "h.example.com"),
            route("GRPCRoute", "g", "g.example.com"),
            route("TLSRoute", "t", "t.example.com"),
        ]))
        .await;
    for (host, more, object) in [
        ("h.example.com", &[][..], "httproute/explain/h"),
        ("g.example.com", &["--method=POST", "--path=/s/m"], "grpcroute/explain/g"),
        ("t.example.com", &["--https"], "tlsroute/explain/t"),
    ] {
        let out = ask(host, more).await;
        assert!(out.contains(object), "{object} is not in\n{out}");
    }
    let out = ask("h.example.com", &["--enable-gateway-api=false"]).await;
    assert!(out.contains("404") && !out.contains("httproute"), "{out}");
}
