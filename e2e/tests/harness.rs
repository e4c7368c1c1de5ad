//! The harness tested without the product.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ingress_e2e::client::{self, H2Conn, RawConn, Tls};
use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::origin::{Origin, Reply, read_head};
use ingress_e2e::pki::{self, Ca, KeyKind};
use ingress_e2e::product::Product;
use ingress_e2e::{TempDir, eventually, within};
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::networking::v1::Ingress;
use kube::Api;
use kube::api::{ListParams, PostParams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

const A: u16 = 1;
const AAAA: u16 = 28;

fn dns_query(name: &str, record_type: u16) -> Vec<u8> {
    let mut query = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.push(0);
    query.extend(record_type.to_be_bytes());
    query.extend([0, 1]);
    query
}

async fn ask(dns: &DnsServer, name: &str, record_type: u16) -> Vec<u8> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.send_to(&dns_query(name, record_type), dns.addr()).await.unwrap();
    let mut answer = vec![0; 4096];
    let n = tokio::time::timeout(Duration::from_secs(2), socket.recv(&mut answer))
        .await
        .expect("an answer")
        .unwrap();
    answer.truncate(n);
    answer
}

/// Response code, truncation bit, number of answers.
fn outcome(answer: &[u8]) -> (u8, bool, u16) {
    assert_eq!(answer[..2], [0xab, 0xcd]);
    (answer[3] & 15, answer[2] & 2 != 0, u16::from_be_bytes([answer[6], answer[7]]))
}

#[tokio::test]
async fn dns_server_answers_what_was_set() {
    let dns = DnsServer::start().await;
    dns.set("Web.Shop.svc.cluster.local.", [IpAddr::from([127, 0, 0, 2]), IpAddr::from([127, 0, 0, 3])]);
    let name = "web.shop.SVC.cluster.local";
    let answer = ask(&dns, name, A).await;
    assert_eq!(outcome(&answer), (0, false, 2));
    assert!(answer.ends_with(&[127, 0, 0, 3]));
    assert_eq!(outcome(&ask(&dns, name, AAAA).await), (0, false, 0), "NODATA");
    assert_eq!(outcome(&ask(&dns, "other.local", A).await), (3, false, 0), "NXDOMAIN");
    assert_eq!(dns.queries("WEB.shop.svc.cluster.local"), 2);
    assert_eq!(dns.total_queries(), 3);

    dns.set_failing(true);
    assert_eq!(outcome(&ask(&dns, name, A).await), (2, false, 0), "SERVFAIL");
    dns.set_failing(false);
    dns.remove(name);
    assert_eq!(outcome(&ask(&dns, name, A).await), (3, false, 0));
}

#[tokio::test]
async fn dns_server_truncates_over_udp_and_not_over_tcp() {
    let dns = DnsServer::start().await;
    let many: Vec<IpAddr> = (1..=60).map(|i| IpAddr::from([127, 0, 1, i])).collect();
    dns.set("many.local", many);
    assert_eq!(outcome(&ask(&dns, "many.local", A).await), (0, true, 0));

    let mut stream = TcpStream::connect(dns.addr()).await.unwrap();
    let query = dns_query("many.local", A);
    stream.write_u16(query.len() as u16).await.unwrap();
    stream.write_all(&query).await.unwrap();
    let mut answer = vec![0; stream.read_u16().await.unwrap().into()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(outcome(&answer), (0, false, 60));
}

#[tokio::test]
async fn dns_server_can_be_silent() {
    let dns = DnsServer::start().await;
    dns.set_silent(true);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.send_to(&dns_query("a.local", A), dns.addr()).await.unwrap();
    eventually(Duration::from_secs(2), async || (dns.queries("a.local") == 1).then_some(())).await;
    let mut buffer = [0; 512];
    assert!(tokio::time::timeout(Duration::from_millis(50), socket.recv(&mut buffer)).await.is_err());
}

#[tokio::test]
async fn echo_keeps_the_head_byte_by_byte() {
    let origin = Origin::echo().await.named("blue");
    let mut conn = RawConn::connect(origin.addr()).await.unwrap();
    let head = "POST /a%2Fb?x=1&x HTTP/1.1\r\nhost: a.example\r\nX-Odd:  two  \r\nContent-Length: 5\r\n\r\n";
    conn.send(format!("{head}hello")).await.unwrap();
    let answer = conn.read_response().await.unwrap();
    assert_eq!((answer.status, answer.origin().as_str()), (200, "blue"));
    assert_eq!(answer.json()["request_line"], "POST /a%2Fb?x=1&x HTTP/1.1");
    assert_eq!(answer.json()["body"], "hello");
    assert_eq!(answer.echoed("x-odd"), ["two"]);
    assert_eq!(origin.last_head(), head);

    // The same connection again, chunked, with an expectation and trailers.
    conn.send("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(conn.read_head().await.unwrap().status, 100);
    conn.send("3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nX-Sum: 1\r\n\r\n").await.unwrap();
    let answer = conn.read_response().await.unwrap();
    assert_eq!(answer.json()["body"], "abcde");
    assert_eq!((origin.accepts(), origin.requests(), origin.open_connections()), (1, 2, 1));

    let answer = conn.request("HEAD", "a", "/", &[], b"").await.unwrap();
    assert!(answer.body.is_empty() && answer.header("content-length").is_some());
    assert!(!conn.is_closed().await);
    origin.close_idle();
    assert!(conn.closed_within(Duration::from_secs(2)).await);
}

#[tokio::test]
async fn origin_is_gone_when_stopped() {
    let origin = Origin::echo_on(([127, 0, 0, 2], 0)).await;
    let addr = origin.addr();
    let mut conn = RawConn::connect(addr).await.unwrap();
    assert_eq!(conn.get("a", "/").await.unwrap().status, 200);
    origin.stop().await;
    assert!(conn.closed_within(Duration::from_secs(2)).await);
    assert!(client::try_get(addr, "a", "/").await.is_err());
    let _again = Origin::echo_on(addr).await;
    assert_eq!(client::get(addr, "a", "/").await.status, 200);
}

#[tokio::test]
async fn scripted_origins_and_raw_client() {
    let half = Origin::raw(async |mut stream: TcpStream| {
        read_head(&mut stream).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
    })
    .await;
    let error = client::try_get(half.addr(), "a", "/").await.unwrap_err();
    assert!(format!("{error:#}").contains("closed"), "{error:#}");
    let bytes = client::raw(half.addr(), "GET / HTTP/1.1\r\n\r\n").await;
    assert!(bytes.ends_with(b"\r\n\r\nhalf"));

    let cookies = Origin::http(|request| {
        Reply::new(503, request.target()).header("Set-Cookie", "a=1").header("Set-Cookie", "b=2")
    })
    .await;
    let answer = client::get(cookies.addr(), "a", "/p?q").await;
    assert_eq!((answer.status, answer.text().as_str()), (503, "/p?q"));
    assert_eq!(answer.header_all("set-cookie"), ["a=1", "b=2"]);
}

#[tokio::test]
async fn leaves_of_every_kind_verify() {
    let (ca, stranger) = (Ca::new(), Ca::new());
    for kind in KeyKind::ALL {
        let leaf = ca.leaf(&["shop.example.com", "*.shop.example.com", "127.0.0.1"], kind);
        assert!(leaf.certificate().verify(&ca.certificate().public_key().unwrap()).unwrap());
        assert!(leaf.certificate().public_key().unwrap().public_eq(&leaf.key()), "{kind:?}");

        let origin = Origin::echo_tls(&leaf.cert_pem, &leaf.key_pem).await;
        let answer = client::tls_get(origin.addr(), "shop.example.com", "a", "/", Some(&ca.pem())).await;
        assert_eq!(answer.status, 200, "{kind:?}");
        let served = client::served_certificate(origin.addr(), Some("shop.example.com")).await;
        assert!(served.is(&leaf));
        assert_eq!((served.alpn.as_deref(), served.version.as_str()), (Some("http/1.1"), "TLSv1.3"));
        assert_eq!(served.names(), ["shop.example.com", "*.shop.example.com"]);

        let addr = origin.addr();
        for (sni, ca) in [("other.example.com", &ca), ("shop.example.com", &stranger)] {
            assert!(
                client::try_tls_get(addr, sni, "a", "/", Some(&ca.pem())).await.is_err(),
                "{kind:?} {sni}"
            );
        }
    }
    let pem = |kind| ca.leaf(&["a"], kind).key_pem;
    assert!(pem(KeyKind::Rsa2048Pkcs1).starts_with("-----BEGIN RSA PRIVATE KEY"));
    assert!(pem(KeyKind::Rsa2048Pkcs8).starts_with("-----BEGIN PRIVATE KEY"));
    assert!(pem(KeyKind::EcP256Sec1).starts_with("-----BEGIN EC PRIVATE KEY"));
    assert!(pem(KeyKind::EcP256Sec1WithParams).starts_with("-----BEGIN EC PARAMETERS"));
}

/// An HTTP/2 echo of the body, with a trailer.
async fn h2_echo<S>(stream: S)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tasks.spawn(async move {
            let (head, mut body) = request.into_parts();
            let mut bytes = 0;
            while let Some(data) = body.data().await {
                let data = data.unwrap();
                bytes += data.len();
                body.flow_control().release_capacity(data.len()).unwrap();
            }
            let response = http::Response::builder().status(201).header("x-authority", head.uri.to_string());
            let mut out = respond.send_response(response.body(()).unwrap(), false).unwrap();
            out.send_data(bytes.to_string().into(), false).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            out.send_trailers(trailers).unwrap();
        });
    }
}

#[tokio::test]
async fn h2_client_sends_bodies_and_reads_trailers() {
    let origin = Origin::raw(h2_echo).await;
    let mut conn = H2Conn::connect(origin.addr()).await.unwrap();
    // More than the initial window of 65,535 bytes.
    let body = vec![b'x'; 300_000];
    let (post, get) = tokio::join!(
        conn.request("POST", "a.example", "/p?q", &[("x-one", "1")], &body),
        conn.get("b.example", "/")
    );
    let post = post.unwrap();
    assert_eq!((post.status, post.text().as_str()), (201, "300000"));
    assert_eq!(post.header("x-authority"), Some("http://a.example/p?q"));
    assert_eq!(post.trailer("grpc-status"), Some("0"));
    assert_eq!(get.unwrap().text(), "0");
    assert_eq!(conn.ended(), None);
    origin.stop().await;
    assert!(conn.closed_within(Duration::from_secs(2)).await);

    // Without h2 on the other side it is an error, not a fallback.
    let leaf = Ca::new().leaf(&["a"], KeyKind::EcP256Sec1);
    let h1_only = Origin::echo_tls(&leaf.cert_pem, &leaf.key_pem).await;
    assert!(H2Conn::connect_with(h1_only.addr(), &Tls::new().sni("a")).await.is_err());
}

#[tokio::test]
async fn within_gives_up() {
    let mut probes = 0;
    let never = within(Duration::from_millis(30), async || {
        probes += 1;
        None::<()>
    })
    .await;
    assert!(never.is_none() && probes > 1);
    let hung = within(Duration::from_millis(10), async || std::future::pending::<Option<()>>().await).await;
    assert!(hung.is_none());
}

/// A stand-in for the product: it says that it listens where an origin does, and logs its arguments.
fn stand_in(dir: &TempDir, admin: SocketAddr) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let script = format!(
        r#"#!/bin/sh
trap 'echo "going" >&2; exit 7' TERM
echo '{{"message":"listening","listener":"http","address":"{admin}"}}'
echo '{{"fields":{{"message":"listening","listener":"https","address":"{admin}"}}}}'
echo '{{"message":"listening","listener":"metrics","address":"{admin}"}}'
echo "{{\"message\":\"args\",\"args\":\"$*\",\"env\":\"$TAK_INGRESS_LOG_LEVEL\"}}"
while :; do sleep 0.01; done
"#
    );
    let path = dir.write("product.sh", script);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

const METRICS: &str = "# HELP x_total X.
x_total{code=\"200\",route=\"a b\"} 3
x_total{code=\"404\",route=\"a b\"} 4
x_total_other 9
up 1
";

#[tokio::test]
async fn product_is_started_watched_and_ended() {
    let polls = std::sync::atomic::AtomicUsize::new(0);
    let admin = Origin::http(move |request| match request.target() {
        "/readyz" if polls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 2 => {
            Reply::new(503, "routes pending")
        }
        "/readyz" => Reply::new(200, "OK"),
        _ => Reply::new(200, METRICS),
    })
    .await;
    let dir = TempDir::new("stand-in");
    let product = Product::builder()
        .binary(stand_in(&dir, admin.addr()))
        .manifests_yaml("a: 1")
        .arg("--access-log=false")
        .env("TAK_INGRESS_LOG_LEVEL", "debug")
        .start()
        .await;
    product.ready().await;
    assert_eq!(
        (product.http(), product.https(), product.metrics_addr()),
        (admin.addr(), admin.addr(), admin.addr())
    );
    assert_eq!(product.metric_value("up").await, Some(1.0));
    assert_eq!(product.metric_value("x_total{code=\"404\"").await, Some(4.0));
    assert_eq!(product.metric_value("x_to").await, None);
    assert_eq!(product.metric_sum("x_total", &[("route", "a b")]).await, 7.0);
    assert_eq!(product.metric_sum("x_total", &[("code", "200")]).await, 3.0);

    let entry =
        eventually(Duration::from_secs(2), async || product.log_entries("args").into_iter().next()).await;
    let args = entry["args"].as_str().unwrap();
    assert!(args.starts_with("--http-port=0 ") && args.ends_with(" --access-log=false"), "{args}");
    assert!(args.contains(&format!("--manifests={}", product.manifests_dir().display())), "{args}");
    assert_eq!(entry["env"], "debug");

    product.write_manifest("more.yaml", "b: 2");
    assert_eq!(std::fs::read_to_string(product.manifests_dir().join("more.yaml")).unwrap(), "b: 2");
    product.remove_manifest("more.yaml");
    assert_eq!(std::fs::read_dir(product.manifests_dir()).unwrap().count(), 1);

    assert!(product.rss_kib() > 0 && product.pss_kib() > 0);
    product.signal(libc::SIGTERM);
    assert_eq!(product.wait_exit(Duration::from_secs(2)).await.code(), Some(7));
    eventually(Duration::from_secs(2), async || product.stderr().contains("going").then_some(())).await;
}

#[tokio::test]
async fn a_dropped_product_is_gone() {
    let admin = Origin::echo().await;
    let dir = TempDir::new("stand-in");
    let product = Product::builder().binary(stand_in(&dir, admin.addr())).start().await;
    let proc = format!("/proc/{}", product.pid());
    assert!(std::path::Path::new(&proc).exists());
    drop(product);
    assert!(!std::path::Path::new(&proc).exists());
}

const READER: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
- {apiGroups: ['', networking.k8s.io], resources: [services, ingresses], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: ServiceAccount, namespace: reading, name: reader}]
";

const SHOP: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {ports: [{port: 80, name: http}], selector: {app: web}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: web}
spec:
  ingressClassName: tak-os
  rules:
  - host: shop.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}
";

#[tokio::test]
async fn cluster_serves_survives_and_forgets() {
    let mut cluster = Cluster::start().await;
    cluster.apply(SHOP).await;
    cluster.apply(READER).await;
    cluster.apply(&pki::tls_secret_yaml("shop", "tls", &Ca::new().leaf(&["a"], KeyKind::EcP256Sec1))).await;
    let kubeconfig = cluster.service_account_kubeconfig("reading", "reader").await;
    assert_eq!(cluster.service_account_kubeconfig("reading", "reader").await, kubeconfig, "a second time");

    let reader = cluster.client(&kubeconfig).await;
    let ingresses: Api<Ingress> = Api::all(reader.clone());
    // Bindings reach the authoriser through its own watch.
    let list =
        eventually(Duration::from_secs(5), async || ingresses.list(&ListParams::default()).await.ok()).await;
    assert_eq!(list.items[0].spec.as_ref().unwrap().ingress_class_name.as_deref(), Some("tak-os"));
    let services: Api<Service> = Api::namespaced(reader.clone(), "shop");
    let service = services.get("web").await.unwrap();
    assert_eq!(service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].port, 80);
    let refused =
        |result: Result<(), kube::Error>| matches!(result, Err(kube::Error::Api(s)) if s.code == 403);
    let secrets: Api<Secret> = Api::all(reader.clone());
    assert!(refused(secrets.list(&ListParams::default()).await.map(drop)));
    assert!(refused(services.create(&PostParams::default(), &service).await.map(drop)));

    let audited = cluster.audit_log();
    assert!(audited.iter().any(|event| event["user"]["username"] == "system:serviceaccount:reading:reader"
        && event["verb"] == "list"
        && event["objectRef"]["resource"] == "secrets"
        && event["responseStatus"]["code"] == 403));

    cluster.kill_apiserver();
    assert!(services.get("web").await.is_err());
    cluster.start_apiserver().await;
    services.get("web").await.expect("the token and the data outlive a restart");

    cluster.delete(SHOP.split("---").nth(1).unwrap()).await;
    assert!(services.get_opt("web").await.unwrap().is_none());

    cluster.kill_apiserver();
    cluster.wipe_etcd_and_start().await;
    cluster.start_apiserver().await;
    let ingresses: Api<Ingress> = Api::all(cluster.admin().await);
    assert!(ingresses.list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn addresses_of_all_loopback_hosts_can_be_origins() {
    let first = Origin::echo().await;
    let addr = SocketAddr::from(([127, 0, 0, 9], first.port()));
    let second = Origin::echo_on(addr).await.named("second");
    assert_eq!(client::get(second.addr(), "a", "/").await.origin(), "second");
    assert_eq!(first.requests(), 0);
}
