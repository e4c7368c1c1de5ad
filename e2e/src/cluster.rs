//! A real control plane for one test: etcd and kube-apiserver with RBAC, on 127.0.0.1, without controllers.
//!
//! No controller-manager runs unless a test starts the garbage collector: a deleted Namespace stays `Terminating`, owner references are not followed, and no
//! `default` ServiceAccounts appear (so that admission plugin is off, and Pods can be created as plain objects).

mod objects;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::json;

use crate::pki::{Ca, KeyKind, LeafOptions};
use crate::process::RunningProcess;
use crate::temp::{ReservedPort, TempDir};
use crate::{client, testbed, within};

/// How long etcd and the API server may take to be ready. Two seconds and four are usual; a busy machine is not.
const START: Duration = Duration::from_secs(60);

/// A control plane. Dropping it ends its processes and removes its data.
///
/// ```no_run
/// # async fn example() {
/// use ingress_e2e::cluster::Cluster;
/// let cluster = Cluster::start().await;
/// cluster.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}").await;
/// let kubeconfig = cluster.service_account_kubeconfig("tak-os-ingress", "tak-os-ingress").await;
/// # let _ = kubeconfig;
/// # }
/// ```
pub struct Cluster {
    binaries: PathBuf,
    etcd_port: ReservedPort,
    peer_port: ReservedPort,
    api_port: ReservedPort,
    admin_kubeconfig: PathBuf,
    // Before the folder: the processes must end first.
    collector: Option<RunningProcess>,
    apiserver: Option<RunningProcess>,
    etcd: Option<RunningProcess>,
    dir: TempDir,
}

impl Cluster {
    /// Starts a new, empty control plane and waits until it is ready.
    pub async fn start() -> Self {
        let binaries = testbed::directory();
        let dir = TempDir::new("cluster");
        let api_port = ReservedPort::new();
        write_pki(&dir);
        let admin_kubeconfig = dir.write(
            "admin.kubeconfig",
            kubeconfig(
                &dir,
                api_port.get(),
                json!({
                    "client-certificate": dir.path().join("pki/admin.crt"),
                    "client-key": dir.path().join("pki/admin.key"),
                }),
            ),
        );
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{ "level": "Metadata" }],
        });
        dir.write("audit-policy.yaml", policy.to_string());
        let mut cluster = Self {
            binaries,
            etcd_port: ReservedPort::new(),
            peer_port: ReservedPort::new(),
            api_port,
            admin_kubeconfig,
            collector: None,
            apiserver: None,
            etcd: None,
            dir,
        };
        cluster.start_etcd().await;
        cluster.start_apiserver().await;
        cluster
    }

    /// A client with all rights (group `system:masters`). Each call makes a new one, for the caller's runtime.
    pub async fn admin(&self) -> Client {
        client_from(&self.admin_kubeconfig).await
    }

    /// The kubeconfig of [`Cluster::admin`].
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.admin_kubeconfig
    }

    /// `https://127.0.0.1:PORT` of the API server; the same over restarts.
    pub fn server(&self) -> String {
        server(self.api_port.get())
    }

    /// A kubeconfig with a token (valid for an hour) of a ServiceAccount, made where missing together with its
    /// namespace. What it may do is up to the roles that the test applies.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> PathBuf {
        let client = self.admin().await;
        ensure(Api::all(client.clone()), namespace, &Namespace::default(), |o, n| o.metadata.name = Some(n))
            .await;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, namespace);
        ensure(accounts.clone(), name, &ServiceAccount::default(), |o, n| o.metadata.name = Some(n)).await;
        let request = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let token = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .unwrap_or_else(|e| panic!("token for ServiceAccount {namespace}/{name}: {e}"))
            .status
            .expect("the API server fills in the token")
            .token;
        let contents = kubeconfig(&self.dir, self.api_port.get(), json!({ "token": token }));
        self.dir.write(&format!("{namespace}.{name}.kubeconfig"), contents)
    }

    /// A client from a kubeconfig, as [`Cluster::service_account_kubeconfig`] writes it.
    pub async fn client(&self, kubeconfig: &Path) -> Client {
        client_from(kubeconfig).await
    }

    /// Applies every document (server-side, forced, as field manager `e2e`), in order. A namespaced object without
    /// namespace goes to `default`. A kind that is not served yet is waited for a few seconds: its
    /// CustomResourceDefinition may have come just before.
    pub async fn apply(&self, yaml: &str) {
        objects::apply(&self.admin().await, yaml).await;
    }

    /// Deletes every object that the documents name; those that are not there are passed over.
    pub async fn delete(&self, yaml: &str) {
        objects::delete(&self.admin().await, yaml).await;
    }

    /// A shell command with the right `kubectl` first in its PATH and with all rights on this cluster.
    pub fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(self.binaries.clone()).chain(std::env::split_paths(&path));
        command.args(["-c", &format!("set -euo pipefail\n{script}")]);
        command.env("PATH", std::env::join_paths(paths).expect("PATH was one before"));
        command.env("KUBECONFIG", &self.admin_kubeconfig).stdin(Stdio::null());
        command
    }

    /// Starts Kubernetes' garbage collector: what has an owner goes with it.
    pub fn start_garbage_collector(&mut self) {
        let args = [
            format!("--kubeconfig={}", self.admin_kubeconfig.display()),
            "--controllers=garbage-collector-controller".into(),
            "--leader-elect=false".into(),
            "--bind-address=127.0.0.1".into(),
            "--secure-port=0".into(),
            "--kube-api-qps=500".into(),
        ];
        self.collector = Some(self.spawn("kube-controller-manager", &args));
    }

    /// SIGKILL to the API server.
    pub fn kill_apiserver(&mut self) {
        self.apiserver = None;
    }

    /// Starts the API server, if it does not run, at the same port with the same keys, and waits until it is ready.
    pub async fn start_apiserver(&mut self) {
        if self.apiserver.is_none() {
            self.spawn_apiserver();
        }
        self.ready().await;
    }

    /// SIGKILL to etcd; its data stays.
    pub fn kill_etcd(&mut self) {
        self.etcd = None;
    }

    /// Starts etcd, if it does not run, with the data it had, and waits until it is healthy.
    pub async fn start_etcd(&mut self) {
        if self.etcd.is_none() {
            self.spawn_etcd();
        }
        self.etcd_healthy().await;
    }

    /// Kills etcd where it runs, removes its data and starts it empty. A running API server is not told: for a
    /// control plane that lost everything, kill it before and start it after.
    pub async fn wipe_etcd_and_start(&mut self) {
        self.kill_etcd();
        let data = self.dir.path().join("etcd");
        std::fs::remove_dir_all(&data).unwrap_or_else(|e| panic!("cannot remove {}: {e}", data.display()));
        self.start_etcd().await;
    }

    /// Waits until the API server says that it is ready; panics with the end of its log if that takes too long.
    pub async fn ready(&mut self) {
        let client = self.admin().await;
        let answered = within(START, async || {
            let exited = self.apiserver.as_mut().is_none_or(|p| p.exit_status().is_some());
            if exited {
                return Some(false);
            }
            let request = http::Request::get("/readyz").body(Vec::new()).expect("a fixed request");
            let ready = client.request_text(request).await.is_ok_and(|text| text == "ok");
            let namespaces: Api<Namespace> = Api::all(client.clone());
            (ready && namespaces.get_opt("default").await.is_ok_and(|n| n.is_some())).then_some(true)
        })
        .await;
        if answered != Some(true) {
            panic!("kube-apiserver is not ready; its log ends:\n{}", self.log("kube-apiserver"));
        }
    }

    /// The audit log so far: one event (level Metadata) for each request, at its end; for a watch also at its start.
    pub fn audit_log(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.dir.path().join("audit.log")).unwrap_or_default();
        // The last line may be half written.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The end of a program's log: `kube-apiserver` or `etcd`.
    pub fn log(&self, program: &str) -> String {
        let text = std::fs::read(self.dir.path().join(format!("{program}.log"))).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(4000)..]).into_owned()
    }

    async fn etcd_healthy(&mut self) {
        let addr = ([127, 0, 0, 1], self.etcd_port.get()).into();
        let answered = within(START, async || {
            if self.etcd.as_mut().is_none_or(|p| p.exit_status().is_some()) {
                return Some(false);
            }
            let health = client::try_get(addr, "localhost", "/health").await.ok()?;
            health.text().contains(r#""health":"true""#).then_some(true)
        })
        .await;
        if answered != Some(true) {
            panic!("etcd is not healthy; its log ends:\n{}", self.log("etcd"));
        }
    }

    fn spawn_etcd(&mut self) {
        let client_url = format!("http://127.0.0.1:{}", self.etcd_port.get());
        let peer_url = format!("http://127.0.0.1:{}", self.peer_port.get());
        let args = [
            "--name=e2e".to_owned(),
            format!("--data-dir={}", self.dir.path().join("etcd").display()),
            "--unsafe-no-fsync".into(),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=e2e={peer_url}"),
            "--log-level=warn".into(),
        ];
        self.etcd = Some(self.spawn("etcd", &args));
    }

    fn spawn_apiserver(&mut self) {
        let pki = |name: &str| self.dir.path().join("pki").join(name).display().to_string();
        let args = [
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port.get()),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
            format!("--secure-port={}", self.api_port.get()),
            // Endpoints refuse loopback addresses, so that of the Service `kubernetes` cannot be kept.
            "--endpoint-reconciler-type=none".into(),
            format!("--client-ca-file={}", pki("ca.crt")),
            format!("--tls-cert-file={}", pki("apiserver.crt")),
            format!("--tls-private-key-file={}", pki("apiserver.key")),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
            format!("--service-account-signing-key-file={}", pki("sa.key")),
            format!("--service-account-key-file={}", pki("sa.pub")),
            "--authorization-mode=RBAC".into(),
            "--disable-admission-plugins=ServiceAccount".into(),
            "--allow-privileged".into(),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            format!("--audit-policy-file={}", self.dir.path().join("audit-policy.yaml").display()),
            format!("--audit-log-path={}", self.dir.path().join("audit.log").display()),
        ];
        self.apiserver = Some(self.spawn("kube-apiserver", &args));
    }

    fn spawn(&self, program: &str, args: &[String]) -> RunningProcess {
        let path = self.dir.path().join(format!("{program}.log"));
        let log = std::fs::File::options().create(true).append(true).open(&path);
        let log = log.unwrap_or_else(|e| panic!("cannot open {}: {e}", path.display()));
        let mut command = Command::new(self.binaries.join(program));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a file handle can be cloned")).stderr(log);
        RunningProcess::spawn(program, command)
    }
}

fn write_pki(dir: &TempDir) {
    let ca = Ca::new();
    dir.write("pki/ca.crt", ca.pem());
    let write = |name: &str, hosts: &[&str], common_name: &str, organization: Option<&str>| {
        let options = LeafOptions {
            common_name: common_name.into(),
            organization: organization.map(Into::into),
            ..LeafOptions::default()
        };
        let leaf = ca.leaf_with(hosts, KeyKind::EcP256Sec1, &options);
        dir.write(&format!("pki/{name}.crt"), leaf.cert_pem);
        dir.write(&format!("pki/{name}.key"), leaf.key_pem);
    };
    let names =
        ["localhost", "127.0.0.1", "10.96.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    write("apiserver", &names, "kube-apiserver", None);
    write("admin", &[], "admin", Some("system:masters"));
    let signing = ca.leaf(&[], KeyKind::EcP256Sec1);
    dir.write("pki/sa.pub", signing.key().public_key_to_pem().expect("a public key has a PEM form"));
    dir.write("pki/sa.key", signing.key_pem);
}

fn server(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

fn kubeconfig(dir: &TempDir, port: u16, user: serde_json::Value) -> String {
    // JSON is YAML.
    let cluster = json!({ "server": server(port), "certificate-authority": dir.path().join("pki/ca.crt") });
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "clusters": [{ "name": "e2e", "cluster": cluster }],
        "users": [{ "name": "e2e", "user": user }],
        "contexts": [{ "name": "e2e", "context": { "cluster": "e2e", "user": "e2e" } }],
    })
    .to_string()
}

async fn client_from(kubeconfig: &Path) -> Client {
    let options = KubeConfigOptions::default();
    let read = Kubeconfig::read_from(kubeconfig).unwrap_or_else(|e| panic!("{}: {e}", kubeconfig.display()));
    let config = kube::Config::from_custom_kubeconfig(read, &options).await;
    let config = config.unwrap_or_else(|e| panic!("{}: {e}", kubeconfig.display()));
    Client::try_from(config).unwrap_or_else(|e| panic!("client from {}: {e}", kubeconfig.display()))
}

async fn ensure<K>(api: Api<K>, name: &str, empty: &K, set_name: impl Fn(&mut K, String))
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let mut object = empty.clone();
    set_name(&mut object, name.to_owned());
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
        Err(e) => panic!("cannot create {name}: {e}"),
    }
}
