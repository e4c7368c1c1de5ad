//! `explain` against a real API server.

mod cluster_scene;

use cluster_scene::{Ingress, account_with, backend, join, namespace, rules_without, service, shared};
use ingress_e2e::dns::DnsServer;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::run_product;

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
