//! Certificates on real nodes: cert-manager's controllers beside the control plane, its HTTP-01 solvers as Pods, and an ACME server
//! on the client's host, which finds every name at the balancer's address. `hack/e2e-node.sh` starts the cluster.

mod node_scene;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ingress_e2e::acme::{AcmeServer, CertManager, Host, program};
use ingress_e2e::client::{self, RawConn, Served, Tls};
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::{eventually, netns};
use node_scene::{
    BALANCER, CLIENT, KUBECTL, NODES, balance, installed, must, reached, run_folder, try_in, until, variable,
    write,
};
use openssl::x509::X509Ref;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// What `hack/e2e-node.sh` has put onto the nodes.
const SOLVER: &str = "docker.io/library/acmesolver:1";
const SOLVERS: &str = "acme.cert-manager.io/http01-solver=true";
const CHALLENGE: &str = "/.well-known/acme-challenge/";
/// As the documents have it.
const WAIT: &str = "kubectl -n apps wait --for=condition=Ready --timeout=180s";

/// Who issues, for all tests here.
struct Authority {
    _acme: AcmeServer,
    /// The root of what it issues.
    root: String,
    manager: CertManager,
}

fn client_netns() -> String {
    format!("{}-client", variable("NETNS"))
}

fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let host = Host::of(&client_netns(), ip(CLIENT));
        let (acme, root) = netns::within(&client_netns(), || async {
            let acme = AcmeServer::start_on(&host, ip(BALANCER)).await;
            let root = acme.root().await;
            (acme, root)
        });
        must("kubectl create namespace cert-manager --dry-run=client -o yaml | kubectl apply -f -");
        must(&format!("kubectl apply --server-side -f {}", program("crds.yaml").display()));
        must("kubectl wait --for=condition=Established crd/certificates.cert-manager.io --timeout=30s");
        let kubeconfig = format!("{}/admin.kubeconfig", run_folder());
        let control_plane = Host::of(&variable("NETNS"), ip(NODES[0]));
        let manager = CertManager::start_beside_nodes(&control_plane, Path::new(&kubeconfig), &acme, SOLVER);
        let class = json!({ "ingressClassName": "tak-os" });
        for (kind, name) in
            [("ClusterIssuer", "pebble"), ("ClusterIssuer", "letsencrypt-staging"), ("Issuer", "mine")]
        {
            let issuer = acme.cluster_issuer(name, class.clone()).replace("ClusterIssuer", kind);
            must(&format!("kubectl -n apps apply -f {}", write(&format!("issuer-{name}.yaml"), &issuer)));
        }
        Authority { _acme: acme, root, manager }
    })
}

/// An Ingress before the application with these annotations and TLS blocks; the hosts of the blocks are those of its rules.
fn publish(name: &str, annotations: Value, tls: Value) {
    let hosts = tls.as_array().unwrap().iter().flat_map(|block| block["hosts"].as_array().unwrap());
    let rules: Vec<_> = hosts
        .map(|host| {
            json!({ "host": host, "http": { "paths": [{
                "path": "/", "pathType": "Prefix",
                "backend": { "service": { "name": "my-app", "port": { "number": 80 } } },
            }]}})
        })
        .collect();
    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "namespace": "apps", "name": name, "annotations": annotations },
        "spec": { "ingressClassName": "tak-os", "rules": rules, "tls": tls },
    });
    must(&format!("kubectl apply -f {}", write(&format!("ingress-{name}.yaml"), &ingress.to_string())));
}

/// Waits until the Certificate is requested, and then until it is issued.
fn issued(name: &str) {
    until(name, "", &format!("kubectl -n apps get certificate {name}"), |_| true);
    println!("+ {WAIT} certificate/{name}");
    try_in("", &format!("{WAIT} certificate/{name}")).unwrap_or_else(|e| {
        let objects = "kubectl -n apps describe certificate,certificaterequest,order,challenge,pods";
        let state = try_in("", objects).unwrap_or_else(|e| e);
        panic!("{e}\n{state}\ncert-manager:\n{}", authority().manager.log())
    });
}

/// Publishes an Ingress of two hosts, which has a certificate when this returns.
fn site(name: &str) -> [String; 2] {
    let hosts = ["www", "api"].map(|label| format!("{label}.{name}.example.com"));
    publish(name, json!({ "cert-manager.io/cluster-issuer": "pebble" }), json!([{ "hosts": hosts }]));
    issued(&format!("{name}-tls-0"));
    hosts
}

/// The solvers' Pods that were started so far, each with the node where that was.
fn solvers() -> BTreeSet<(String, String)> {
    let events =
        must("kubectl -n apps get events --field-selector involvedObject.kind=Pod,reason=Started -o json");
    let events: Value = serde_json::from_str(&events).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = events["items"].as_array().unwrap().iter();
    let started = all.map(|event| (text(&event["involvedObject"]["name"]), text(&event["source"]["host"])));
    started.filter(|(pod, _)| pod.starts_with("cm-acme-http-solver-")).collect()
}

/// The records of requests for challenges in the access logs of all Pods.
fn challenges() -> Vec<Value> {
    let logs = must(&format!("{KUBECTL} logs -l app=tak-os-ingress --tail=-1 | grep -F '{CHALLENGE}'"));
    logs.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn serial(certificate: &X509Ref) -> String {
    certificate.serial_number().to_bn().unwrap().to_hex_str().unwrap().to_string()
}

/// The product on each node: Service and node port take a connection to the Pod of that node alone.
fn on_each_node() -> [SocketAddr; 2] {
    let path = "{.spec.ports[?(@.name==\"https\")].nodePort}";
    let port = must(&format!("{KUBECTL} get service tak-os-ingress -o 'jsonpath={path}'"));
    NODES.map(|node| format!("{node}:{port}").parse().unwrap())
}

async fn shown(addr: SocketAddr, host: &str) -> Served {
    client::served_certificate(addr, Some(host)).await
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn an_ingress_without_secret_is_served_with_what_acme_issued_and_a_solver_pod_answered_for() {
    let _guard = installed();
    let root = &authority().root;
    let before = solvers();
    let hosts = site("site");

    // A Pod for each host, of the image that was asked for, on the node that takes Pods; all of it goes when it is done.
    let new: Vec<_> = solvers().difference(&before).cloned().collect();
    assert!(new.len() == hosts.len() && new.iter().all(|(_, node)| node == "node2"), "{new:?}");
    let events = must("kubectl -n apps get events --field-selector involvedObject.kind=Pod");
    for (pod, _) in &new {
        let about: Vec<_> = events.lines().filter(|line| line.contains(pod.as_str())).collect();
        let says = |words: &str| about.iter().any(|line| line.contains(words));
        assert!(says("Successfully assigned") && says(SOLVER), "{about:#?}");
    }
    let left = format!("kubectl -n apps get pods,services,ingresses -l {SOLVERS} -o name");
    until("no solver is left", "", &left, str::is_empty);

    // The ACME server came by the balancer and port 80, and was sent to the solver: not to https, not to the application.
    let challenges = challenges();
    for host in &hosts {
        // Pebble names the port too.
        let host_and_port = format!("{host}:80");
        let answered: Vec<_> = challenges
            .iter()
            .filter(|line| line["host"] == host_and_port.as_str() && line["client"] == CLIENT)
            .collect();
        assert!(!answered.is_empty(), "{host}: {challenges:#?}");
        for line in answered {
            let route = line["route"].as_str().unwrap();
            assert!(route.starts_with("ingress/apps/cm-acme-http-solver-"), "{line}");
            assert_eq!((&line["status"], &line["scheme"]), (&json!(200), &json!("http")), "{line}");
        }
        let curl = format!(
            "curl -sS -m 3 -o /dev/null -w '%{{http_code}} %{{redirect_url}}' --resolve {host}:80:{BALANCER} http://{host}/a"
        );
        until("the redirect", "-client", &curl, |answer| answer == format!("308 https://{host}/a"));
    }

    // Both nodes serve it by SNI, and nothing else with it.
    let https = SocketAddr::new(BALANCER.parse().unwrap(), 443);
    let mut serials = BTreeSet::new();
    for node in 1..=NODES.len() {
        balance(node);
        reached();
        netns::within(&client_netns(), || async {
            for host in &hosts {
                let answer = client::tls_get(https, host, host, "/a", Some(root)).await;
                assert!(answer.status == 200 && answer.text().starts_with("pod my-app-"), "{answer:?}");
                assert!(answer.text().contains("\nx-forwarded-proto: https\n"), "{}", answer.text());
                serials.insert(serial(&shown(https, host).await.certificate));
            }
            let other = shown(https, "other.site.example.com").await;
            assert!(!serials.contains(&serial(&other.certificate)), "{:?}", other.names());
            let refused = client::try_tls_get(https, "other.site.example.com", &hosts[0], "/", Some(root));
            refused.await.expect_err("a name that nobody issued");
        });
    }
    balance(1);
    assert_eq!(serials.len(), 1, "{serials:?}");
}

/// What one client saw: the serial number of each handshake that differs from the one before, and what failed.
#[derive(Debug, Default)]
struct Seen {
    serials: Vec<String>,
    failures: Vec<String>,
}

/// Asks over one connection that is kept and over a new one each time, until it is to stop.
async fn visit(addr: SocketAddr, host: &str, root: &str, rounds: &AtomicUsize, stop: &AtomicBool) -> Seen {
    let tls = Tls::new().sni(host).ca(root);
    let mut seen = Seen::default();
    let mut kept = RawConn::connect_with(addr, &tls).await.unwrap();
    while !stop.load(Ordering::SeqCst) {
        let round = async {
            let mut new = RawConn::connect_with(addr, &tls).await?;
            let serial = serial(&new.served().unwrap().certificate);
            if seen.serials.last() != Some(&serial) {
                seen.serials.push(serial);
            }
            Ok::<_, anyhow::Error>([new.get(host, "/").await?, kept.get(host, "/").await?])
        };
        match round.await {
            Ok(answers) if answers.iter().all(|answer| answer.status == 200) => {}
            Ok(answers) => seen.failures.push(format!("{answers:?}")),
            Err(e) => {
                seen.failures.push(format!("{e:#}"));
                return seen;
            }
        }
        rounds.fetch_add(1, Ordering::SeqCst);
    }
    seen
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn a_renewal_under_load_fails_no_handshake_and_cuts_no_connection_on_any_node() {
    let _guard = installed();
    let root = &authority().root;
    let hosts = site("renewed");
    let nodes = on_each_node();
    let before = solvers();
    netns::within(&client_netns(), || async {
        let old = serial(&shown(nodes[0], &hosts[0]).await.certificate);
        let (stop, mut clients, mut counts) = (Arc::new(AtomicBool::new(false)), JoinSet::new(), Vec::new());
        for (addr, host) in nodes.into_iter().flat_map(|node| hosts.clone().map(|host| (node, host))) {
            let (rounds, stop, root) = (Arc::new(AtomicUsize::new(0)), stop.clone(), root.clone());
            counts.push(rounds.clone());
            clients.spawn(async move { visit(addr, &host, &root, &rounds, &stop).await });
        }
        let more = async |count: usize| {
            for rounds in &counts {
                let enough = rounds.load(Ordering::SeqCst) + count;
                let done = || (rounds.load(Ordering::SeqCst) >= enough).then_some(());
                eventually(Duration::from_secs(60), async || done()).await;
            }
        };
        more(20).await;
        // As cert-manager's own tool asks for it.
        let renew = json!({ "status": { "conditions": [
            { "type": "Ready", "status": "True", "reason": "Ready", "message": "" },
            { "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by a test" },
        ]}});
        must(&format!(
            "kubectl -n apps patch certificate renewed-tls-0 --subresource=status --type=merge -p '{renew}'"
        ));
        let new = ingress_e2e::within(Duration::from_secs(180), async || {
            let mut all = BTreeSet::new();
            for node in nodes {
                all.insert(serial(&shown(node, &hosts[0]).await.certificate));
            }
            (all.len() == 1 && !all.contains(&old)).then(|| all.pop_first().unwrap())
        })
        .await;
        let new = new.unwrap_or_else(|| panic!("not renewed; cert-manager:\n{}", authority().manager.log()));
        more(20).await;
        stop.store(true, Ordering::SeqCst);
        for seen in clients.join_all().await {
            // From the old one to the new one, and not back.
            assert_eq!(seen.serials, [old.clone(), new.clone()], "{seen:?}");
            assert_eq!(seen.failures, Vec::<String>::new());
        }
    });
    // The challenges came through the same load.
    assert_eq!(solvers().difference(&before).count(), hosts.len());
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn blocks_and_issuers_decide_what_is_issued_and_certificates_go_with_their_ingress() {
    let _guard = installed();
    let root = &authority().root;
    let own = Ca::new().leaf(&["own.shop.example.com"], KeyKind::EcP256Sec1);
    must(&format!("kubectl apply -f {}", write("secret-own.yaml", &tls_secret_yaml("apps", "own", &own))));
    publish(
        "shop",
        json!({ "cert-manager.io/issuer": "mine" }),
        json!([
            { "hosts": ["own.shop.example.com"], "secretName": "own" },
            { "hosts": ["a.shop.example.com"] },
            { "hosts": ["b.shop.example.com"] },
        ]),
    );
    publish("plain", json!({}), json!([{ "hosts": ["plain.example.com"] }]));
    publish(
        "both",
        json!({ "cert-manager.io/issuer": "mine", "cert-manager.io/cluster-issuer": "pebble" }),
        json!([{ "hosts": ["both.example.com"] }]),
    );
    let wanted = [
        ("shop-tls-1", "Issuer mine", "a.shop.example.com"),
        ("shop-tls-2", "Issuer mine", "b.shop.example.com"),
        ("plain-tls-0", "ClusterIssuer letsencrypt-staging", "plain.example.com"),
        ("both-tls-0", "ClusterIssuer pebble", "both.example.com"),
    ];
    let nodes = on_each_node();
    for (name, issuer, host) in wanted {
        issued(name);
        let fields = "{.spec.issuerRef.kind} {.spec.issuerRef.name} {.spec.secretName}";
        let made = must(&format!("kubectl -n apps get certificate {name} -o 'jsonpath={fields}'"));
        assert_eq!(made, format!("{issuer} {name}"));
        netns::within(&client_netns(), || async {
            for node in nodes {
                eventually(Duration::from_secs(10), async || {
                    client::try_tls_get(node, host, host, "/", Some(root)).await.ok()
                })
                .await;
                assert_eq!(shown(node, host).await.names(), [host]);
            }
        });
    }
    // The block that names its Secret asks for nothing and is served with that.
    let certificates = "kubectl -n apps get certificates -o name | grep -e /shop- -e /own || true";
    let names = must(certificates);
    assert_eq!(names.lines().count(), 2, "{names}");
    netns::within(&client_netns(), || async {
        for node in nodes {
            assert!(shown(node, "own.shop.example.com").await.is(&own));
        }
    });

    must("kubectl -n apps delete ingress shop");
    until("the Certificates are gone", "", certificates, str::is_empty);
    must("kubectl -n apps get secret/own secret/shop-tls-1 secret/shop-tls-2 certificate/plain-tls-0");
}
