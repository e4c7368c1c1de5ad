//! cert-manager and an ACME server, as processes on 127.0.0.1; `testbed/acme/build.sh` builds them.
//!
//! There is no node: [`CertManager`] plays the kubelet for the HTTP-01 solvers. For each Pod that cert-manager makes
//! for one it starts the solver with the Pod's own arguments, and gives the solver's Service a name in DNS.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::client;
use crate::cluster::Cluster;
use crate::dns::DnsServer;
use crate::pki::{Ca, KeyKind};
use crate::process::RunningProcess;
use crate::temp::{ReservedPort, TempDir};
use crate::{DEADLINE, eventually};

/// The port of cert-manager's solvers.
const SOLVER_PORT: u16 = 8089;
const SOLVER_LABEL: &str = "acme.cert-manager.io/http01-solver";

/// A program, or `crds.yaml`, by its name; panics where it is missing.
pub fn program(name: &str) -> PathBuf {
    let directory = match std::env::var_os("INGRESS_ACME").filter(|v| !v.is_empty()) {
        Some(given) => PathBuf::from(given),
        None => crate::testbed::built("acme", "testbed/acme"),
    };
    let path = directory.join(name);
    assert!(path.is_file(), "{} is missing: run e2e/testbed/acme/build.sh", path.display());
    path
}

/// cert-manager's CustomResourceDefinitions.
pub fn crds() -> String {
    let path = program("crds.yaml");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Pebble: an ACME server that looks for challenges at port 80 of one address, whatever the name.
pub struct AcmeServer {
    directory: String,
    ca: Ca,
    dns: SocketAddr,
    management: SocketAddr,
    _pebble: RunningProcess,
    _names: RunningProcess,
    _ports: [ReservedPort; 4],
    _dir: TempDir,
}

impl AcmeServer {
    /// Starts the server; every name has this address in its eyes.
    pub async fn start(everybody: IpAddr) -> Self {
        let dir = TempDir::new("acme");
        let ca = Ca::new();
        let leaf = ca.leaf(&["localhost", "127.0.0.1"], KeyKind::EcP256Sec1);
        let certificate = dir.write("tls.crt", &leaf.cert_pem);
        let key = dir.write("tls.key", &leaf.key_pem);
        let ports = [(); 4].map(|()| ReservedPort::new());
        let [acme, management, dns, dns_management] = &ports;
        let local = |port: &ReservedPort| SocketAddr::from(([127, 0, 0, 1], port.get()));
        let config = json!({ "pebble": {
            "listenAddress": local(acme),
            "managementListenAddress": local(management),
            "certificate": certificate,
            "privateKey": key,
            "httpPort": 80,
            "tlsPort": 443,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "retryAfter": { "authz": 1, "order": 1 },
            "keyAlgorithm": "ecdsa",
            "profiles": { "default": { "description": "ninety days", "validityPeriod": 7_776_000 } },
        }});
        let config = dir.write("pebble.json", config.to_string());
        let mut names = quiet(&dir, "pebble-challtestsrv");
        names.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""]);
        names.arg("-dnsserver").arg(local(dns).to_string());
        names.arg("-management").arg(local(dns_management).to_string());
        names.arg("-defaultIPv4").arg(everybody.to_string());
        let names = RunningProcess::spawn("pebble-challtestsrv", names);
        let mut pebble = quiet(&dir, "pebble");
        pebble.arg("-config").arg(config).arg("-dnsserver").arg(local(dns).to_string());
        pebble.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "0");
        let pebble = RunningProcess::spawn("pebble", pebble);
        let addr = local(acme);
        let server = Self {
            directory: format!("https://localhost:{}/dir", acme.get()),
            ca,
            dns: local(dns),
            management: local(management),
            _pebble: pebble,
            _names: names,
            _ports: ports,
            _dir: dir,
        };
        let root = server.ca.pem();
        eventually(DEADLINE, async || {
            let answer = client::try_tls_get(addr, "localhost", "localhost", "/dir", Some(&root));
            // 400, since the client does not say who it is: it listens
            answer.await.ok()
        })
        .await;
        server
    }

    /// A ClusterIssuer of this server whose solvers are Ingresses of this class.
    pub fn cluster_issuer(&self, name: &str, class: serde_json::Value) -> String {
        let mut ingress = json!({ "serviceType": "ClusterIP" });
        if let (Some(ingress), Some(class)) = (ingress.as_object_mut(), class.as_object()) {
            ingress.extend(class.clone());
        }
        json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": "ClusterIssuer",
            "metadata": { "name": name },
            "spec": { "acme": {
                "server": self.directory,
                "caBundle": openssl::base64::encode_block(self.ca.pem().as_bytes()),
                "privateKeySecretRef": { "name": format!("{name}-account") },
                "solvers": [{ "http01": { "ingress": ingress } }],
            }},
        })
        .to_string()
    }

    /// The root of what it issues.
    pub async fn root(&self) -> String {
        let answer =
            client::tls_get(self.management, "localhost", "localhost", "/roots/0", Some(&self.ca.pem()))
                .await;
        assert_eq!(answer.status, 200);
        answer.text()
    }
}

/// cert-manager's controllers, and the solvers that they ask for.
pub struct CertManager {
    dir: TempDir,
    _process: RunningProcess,
    _solvers: JoinSet<()>,
}

impl CertManager {
    /// Starts the controllers with all rights. Solvers listen at `127.0.0.<from>` and above.
    pub async fn start(cluster: &Cluster, acme: &AcmeServer, dns: &Arc<DnsServer>, from: u8) -> Self {
        let dir = TempDir::new("cert-manager");
        let mut command = quiet(&dir, "cert-manager");
        command.arg(format!("--kubeconfig={}", cluster.admin_kubeconfig().display()));
        command.arg(format!("--acme-http01-solver-nameservers={}", acme.dns));
        command.args(["--cluster-resource-namespace=cert-manager", "--metrics-listen-address=127.0.0.1:0"]);
        let process = RunningProcess::spawn("cert-manager", command);
        let mut solvers = JoinSet::new();
        let mut kubelet =
            Kubelet { client: cluster.admin().await, dns: dns.clone(), next: from, running: HashMap::new() };
        solvers.spawn(async move {
            loop {
                kubelet.look().await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Self { dir, _process: process, _solvers: solvers }
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let text = std::fs::read(self.dir.path().join("cert-manager.log")).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(8000)..]).into_owned()
    }
}

/// A program whose output goes to a file of its name.
fn quiet(dir: &TempDir, name: &str) -> Command {
    let path = dir.path().join(format!("{name}.log"));
    let log = std::fs::File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut command = Command::new(program(name));
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file handle can be cloned")).stderr(log);
    command
}

/// Runs the solvers of all namespaces.
struct Kubelet {
    client: Client,
    dns: Arc<DnsServer>,
    next: u8,
    running: HashMap<String, Solver>,
}

struct Solver {
    service: String,
    _process: RunningProcess,
    _port: ReservedPort,
    _relay: JoinSet<()>,
}

impl Kubelet {
    async fn look(&mut self) {
        let only = ListParams::default().labels(&format!("{SOLVER_LABEL}=true"));
        let pods: Api<Pod> = Api::all(self.client.clone());
        let services: Api<Service> = Api::all(self.client.clone());
        let (Ok(pods), Ok(services)) = (pods.list(&only).await, services.list(&only).await) else { return };
        self.running.retain(|uid, _| pods.items.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid)));
        for pod in pods {
            let (Some(uid), Some(labels)) = (pod.metadata.uid, pod.metadata.labels) else { continue };
            let args = pod.spec.and_then(|spec| spec.containers.into_iter().next()?.args).unwrap_or_default();
            let service = services.items.iter().find(|service| {
                let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                selector.is_some_and(|selector| selector.iter().all(|(k, v)| labels.get(k) == Some(v)))
            });
            let Some(service) = service else { continue };
            let meta = &service.metadata;
            let name = format!(
                "{}.{}.svc.cluster.local",
                meta.name.as_deref().unwrap_or_default(),
                meta.namespace.as_deref().unwrap_or_default()
            );
            let known = self.running.get(&uid).is_some_and(|solver| solver.service == name);
            if !known {
                let solver = self.solver(&name, args).await;
                self.running.insert(uid, solver);
            }
        }
    }

    /// The solver listens at a port of its own, and a relay at the Service's.
    async fn solver(&mut self, service: &str, args: Vec<String>) -> Solver {
        let ip = IpAddr::from([127, 0, 0, self.next]);
        self.next += 1;
        let port = ReservedPort::new();
        let mut command = Command::new(program("acmesolver"));
        command.args(args.iter().filter(|arg| !arg.starts_with("--listen-port")));
        command.arg(format!("--listen-port={}", port.get()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = RunningProcess::spawn("acmesolver", command);
        let to = SocketAddr::from(([127, 0, 0, 1], port.get()));
        let listener = TcpListener::bind((ip, SOLVER_PORT)).await;
        let listener = listener.unwrap_or_else(|e| panic!("{ip}:{SOLVER_PORT}: {e}"));
        let mut relay = JoinSet::new();
        relay.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if let Ok(mut solver) = TcpStream::connect(to).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut solver).await;
                    }
                });
            }
        });
        self.dns.set(service, [ip]);
        Solver { service: service.to_owned(), _process: process, _port: port, _relay: relay }
    }
}
