//! A mixed load for profile-guided optimisation: small and large responses over HTTP/1.1, TLS and
//! HTTP/2, new connections, uploads, misses. Loopback only, ended by its counts.
//!
//! `TAK_INGRESS_BIN=... cargo run -p tak-os-ingress-e2e --example training_load`

use ingress_e2e::client::{self, H2Conn, RawConn};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use std::net::SocketAddr;
use tokio::task::JoinSet;

const HOST: &str = "app.example.com";
const ROUNDS: usize = 1500;

fn manifests(port: u16, ca: &Ca) -> String {
    let leaf = ca.leaf(&[HOST], KeyKind::EcP256Sec1);
    let mut yaml = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: a}}\nspec:\n  ports: [{{port: 80}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-1\n  namespace: a\n  labels: \
         {{kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{{port: {port}}}]\nendpoints:\n  - addresses: \
         [127.0.0.1]\n---\n{}",
        tls_secret_yaml("a", "tls", &leaf)
    );
    for i in 0..200 {
        let (host, tls) = match i {
            0 => (HOST.to_owned(), format!("\n  tls: [{{hosts: [{HOST}], secretName: tls}}]")),
            i => (format!("host{i}.example.com"), String::new()),
        };
        yaml.push_str(&format!(
            "\n---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: i{i}\n  namespace: a\n  \
             annotations: {{ingress.tak-os.org/ssl-redirect: \"false\"}}\nspec:\n  ingressClassName: tak-os{tls}\n  rules:\n    \
             - host: {host}\n      http:\n        paths:\n          - {{path: /, pathType: Prefix, backend: {{service: \
             {{name: web, port: {{number: 80}}}}}}}}\n"
        ));
    }
    yaml
}

async fn keep_alive(mut conn: RawConn, host: String) {
    for i in 0..ROUNDS {
        let target = if i % 50 == 0 { "/64k" } else { "/1k?a=b" };
        if conn.get(&host, target).await.is_err() {
            return;
        }
    }
}

async fn streams(address: SocketAddr) {
    let Ok(conn) = H2Conn::connect_tls(address, HOST).await else { return };
    for _ in 0..ROUNDS {
        let _ = conn.get(HOST, "/1k").await;
    }
}

async fn connections(http: SocketAddr, https: SocketAddr) {
    for i in 0..ROUNDS / 10 {
        let _ = client::try_get(http, if i % 5 == 0 { "nobody.example" } else { HOST }, "/1k").await;
        let _ = client::try_tls_get(https, HOST, HOST, "/1k", None).await;
    }
}

async fn uploads(address: SocketAddr) {
    let Ok(mut conn) = RawConn::connect(address).await else { return };
    let body = vec![b'x'; 64 << 10];
    for _ in 0..ROUNDS / 10 {
        let _ = conn.request("POST", HOST, "/up", &[], &body).await;
    }
}

#[tokio::main]
async fn main() {
    let origin = Origin::http(|request| {
        let size = if request.target().starts_with("/64k") { 64 << 10 } else { 1024 };
        Reply::new(200, vec![b'x'; size])
    })
    .await;
    let ca = Ca::new();
    let product = Product::builder()
        .manifests_yaml(&manifests(origin.port(), &ca))
        .arg("--threads=1")
        .arg("--access-log=true")
        .start()
        .await;
    product.ready().await;
    let (http, https) = (product.http(), product.https());
    let mut load = JoinSet::new();
    for i in 0..8 {
        let host = if i % 2 == 0 { HOST.to_owned() } else { format!("host{}.example.com", i + 1) };
        if let Ok(conn) = RawConn::connect(http).await {
            load.spawn(keep_alive(conn, host));
        }
        if let Ok(conn) = RawConn::connect_tls(https, Some(HOST), &["http/1.1"]).await {
            load.spawn(keep_alive(conn, HOST.to_owned()));
        }
        load.spawn(streams(https));
    }
    load.spawn(connections(http, https));
    load.spawn(uploads(http));
    while load.join_next().await.is_some() {}
    // An ordinary end: profiles are written at exit.
    product.signal(libc::SIGTERM);
    let _ = product.wait_exit(std::time::Duration::from_secs(30)).await;
}
