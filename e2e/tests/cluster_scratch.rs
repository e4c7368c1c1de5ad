mod cluster_scene;
use cluster_scene::*;
use ingress_e2e::{cluster::Cluster, dns::DnsServer, within, client};
use std::time::Duration;
#[tokio::test]
async fn scratch() {
    let mut cluster = Cluster::start().await;
    let dns = DnsServer::start().await;
    let web = backend(&dns, "shop", "web", [127, 0, 0, 2]).await;
    cluster.apply(&join([namespace("shop"), service("shop", "web", &[("http", web.port())]),
      Ingress::new("shop","one").prefix("one.example.com","/","web","http").yaml()])).await;
    let product = serve(cluster.admin_kubeconfig(), &dns, &["--access-log=false"]).await;
    reaches(&product, "one.example.com", "/", "web").await;
    for i in 0..100 { cluster.apply(&Ingress::new("shop","e").prefix("e.example.com","/","web","http").annotation("a.b/c", &i.to_string()).yaml()).await; }
    cluster.kill_apiserver();
    cluster.wipe_etcd_and_start().await;
    cluster.start_apiserver().await;
    let t = std::time::Instant::now();
    let gone = within(Duration::from_secs(240), async || (client::get(product.http(), "one.example.com", "/").await.status == 404).then_some(())).await;
    println!("gone: {gone:?} after {:?}", t.elapsed());
    for e in cluster.audit_log() { if e["verb"] == "watch" && e["objectRef"]["resource"] == "ingresses" && e["userAgent"].as_str().is_none_or(|u| !u.contains("kube-apiserver")) { println!("{} {} {} {} {}", e["requestReceivedTimestamp"], e["stage"], e["requestURI"], e["responseStatus"]["code"], e["userAgent"]); } }
    for l in product.log_text().lines().filter(|l| !l.contains("failed with error")) { println!("{}", &l[..l.len().min(400)]); }
    let _ = (cluster.kill_apiserver(), cluster.start_apiserver().await);
}
