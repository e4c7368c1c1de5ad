use super::*;
use crate::metrics::testing::{metrics, value};
use std::time::Duration;

const SHOP: &str = "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop, annotations: {ingress.tak-os.org/ssl-redirect: 'yes'}}
spec:
  ingressClassName: tak-os
  rules:
  - host: shop.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: '', port: 8080}]
endpoints: [{addresses: [127.0.0.1]}]
";

#[tokio::test]
async fn a_folder_of_manifests_becomes_a_snapshot_and_follows_its_changes() {
    let dir = std::env::temp_dir().join(format!("tak-run-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("shop.yaml"), SHOP).unwrap();
    let (publisher, reader) = ingress_core::channel();
    let (metrics, registry) = metrics();
    let status = Arc::new(SyncStatus::default());
    let config = Config {
        settings: Settings { backends_from_slices: true, ..Default::default() },
        source: Source::Manifests(dir.clone()),
        watch_namespaces: Vec::new(),
        reporter_instance: "test".into(),
        leader_election: true,
    };
    let task = tokio::spawn(run(config, publisher, metrics, status.clone()));
    let generation = async |least| {
        let arrived = async {
            while reader.load().generation < least {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), arrived).await.expect("a snapshot");
        reader.load()
    };
    let snapshot = generation(1).await;
    assert!(snapshot.routes.find("shop.example.com", "/cart").is_ok());
    assert!(status.published() && status.pending().is_empty());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(value(&registry, "object_errors", &["ingress", "InvalidAnnotation"]), Some(1.0));
    assert_eq!(value(&registry, "routes", &["ingress"]), Some(1.0));

    let changed = SHOP.replace("host: shop", "host: store").replace("'yes'", "'true'");
    std::fs::write(dir.join("shop.yaml"), changed).unwrap();
    let snapshot = generation(2).await;
    assert!(snapshot.routes.find("store.example.com", "/").is_ok());
    assert!(snapshot.routes.find("shop.example.com", "/").is_err());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(value(&registry, "object_errors", &["ingress", "InvalidAnnotation"]), Some(0.0));
    task.abort();
    std::fs::remove_dir_all(&dir).unwrap();
}
