//! What the tests on real nodes share: commands on a node and on the client's host, the product as an administrator installs it,
//! and a balancer in front of it. `hack/e2e-node.sh` starts the cluster; see `e2e/node`.
#![allow(dead_code)] // each test program uses a part of it

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

pub const ONE: &str = "registry.example.com/tak-os-ingress:one";
pub const TWO: &str = "registry.example.com/tak-os-ingress:two";
pub const HOST: &str = "app.example.com";
/// What a provider's load balancer would have given. The client's way to it is through one of the nodes.
pub const BALANCER: &str = "10.123.0.200";
pub const NODES: [&str; 2] = ["10.123.0.1", "10.123.0.2"];
pub const CLIENT: &str = "10.123.0.250";
pub const KUBECTL: &str = "kubectl -n tak-os-ingress";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: hack/e2e-node.sh runs this"))
}

/// A shell command in node 1's network, or in that of the client.
pub fn command(place: &str, script: &str) -> Command {
    let netns = format!("--net=/run/netns/{}{place}", variable("NETNS"));
    let mut command = Command::new("nsenter");
    command.args([&netns, "bash", "-c", &format!("set -euo pipefail\n{script}")]);
    let path = format!("{}:{}", variable("BIN"), variable("PATH"));
    command.env("PATH", path).env("KUBECONFIG", format!("{}/admin.kubeconfig", run_folder()));
    command.current_dir(root()).stdin(Stdio::null());
    command
}

pub fn try_in(place: &str, script: &str) -> Result<String, String> {
    let output = command(place, script).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{script}\n{}{}", text(&output.stdout), text(&output.stderr)))
    }
}

pub fn must(script: &str) -> String {
    println!("+ {script}");
    try_in("", script).unwrap_or_else(|e| panic!("{e}"))
}

/// Until `wanted` takes what the command says.
pub fn until(what: &str, place: &str, script: &str, wanted: impl Fn(&str) -> bool) -> String {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let last = try_in(place, script);
        match &last {
            Ok(text) if wanted(text) => return text.clone(),
            _ => assert!(Instant::now() < end, "{what}: {last:?}"),
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// One test at a time, each on an installed product that serves the application at the balancer's address.
pub fn installed() -> MutexGuard<'static, ()> {
    static INSTALLED: Mutex<()> = Mutex::new(());
    static DONE: std::sync::Once = std::sync::Once::new();
    let guard = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    DONE.call_once(|| {
        must("kubectl apply --warnings-as-errors -f default/000-namespace.yaml");
        must("kubectl apply -f default/010-rbac.yaml");
        must(&format!("hack/render.sh {ONE} --type=LoadBalancer >{}", manifest()));
        must(&format!("kubectl apply --dry-run=server -f {}", manifest()));
        must(&format!("kubectl apply --warnings-as-errors -f {}", manifest()));
        must(&format!("{KUBECTL} rollout status daemonset/tak-os-ingress --timeout=180s"));
        must("kubectl apply -f e2e/node/apps.yaml");
        must("kubectl -n apps rollout status deployment/my-app --timeout=120s");
        announce();
        balance(1);
        reached();
    });
    guard
}

/// What a cloud's controller does: the Service has the balancer's address.
pub fn announce() {
    let status = format!(r#"{{"status":{{"loadBalancer":{{"ingress":[{{"ip":"{BALANCER}"}}]}}}}}}"#);
    must(&format!("{KUBECTL} patch service tak-os-ingress --subresource=status --type=merge -p '{status}'"));
}

/// The folder of this cluster's files.
pub fn run_folder() -> String {
    variable("TAK_INGRESS_NODES")
}

pub fn manifest() -> String {
    format!("{}/rendered.yaml", run_folder())
}

/// Writes a file, and names it.
pub fn write(name: &str, text: &str) -> String {
    let path = format!("{}/{name}", run_folder());
    std::fs::write(&path, text).unwrap();
    path
}

/// The balancer sends to this node, once that knows the address. A connection before that would leave a mark in the node's
/// table of connections, and a later one from the same port would follow it to nowhere.
pub fn balance(node: usize) {
    let place = if node == 1 { String::new() } else { format!("-node{node}") };
    let known = format!("iptables-save -t nat | grep -- '-d {BALANCER}/32 .*--dport 80 '");
    until("kube-proxy's rules", &place, &known, |_| true);
    try_in("-client", &format!("ip route replace {BALANCER}/32 via {}", NODES[node - 1])).unwrap();
}

pub fn reached() -> String {
    let curl =
        format!("curl -sS -m 3 --resolve {HOST}:80:{BALANCER} -H 'X-Forwarded-For: 1.2.3.4' http://{HOST}/a");
    until("the application", "-client", &curl, |text| text.starts_with("pod my-app-"))
}

/// A process that does not outlive the test.
pub struct Running(pub Child);

impl Running {
    /// A shell command in node 1's network, or in that of the client; its output is piped.
    pub fn start(place: &str, script: &str) -> Self {
        let mut command = command(place, &format!("exec {script}"));
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Requests from the client until it is stopped.
pub struct Load {
    process: Running,
    stop: PathBuf,
}

impl Load {
    /// Returns when they are being answered.
    pub fn start(name: &str) -> Self {
        let stop = PathBuf::from(run_folder()).join(format!("stop-{name}"));
        let _ = std::fs::remove_file(&stop);
        let script = format!("python3 e2e/node/load.py {HOST} {BALANCER} 80 {}", stop.display());
        let load = Self { process: Running::start("-client", &script), stop };
        load.more(100);
        load
    }

    /// Waits until this many more were sent.
    fn more(&self, count: u64) {
        let sent = || {
            let text = try_in("", &format!("cat {}.sent", self.stop.display())).unwrap_or_default();
            text.trim().parse::<u64>().unwrap_or(0)
        };
        let (end, enough) = (Instant::now() + Duration::from_secs(120), sent() + count);
        while sent() < enough {
            assert!(Instant::now() < end, "the load makes no progress");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends it some time later, after seeing that none failed.
    pub fn end(mut self) {
        self.more(100);
        std::fs::write(&self.stop, "").unwrap();
        let report: Value = serde_json::from_reader(self.process.0.stdout.take().unwrap()).unwrap();
        println!("{report}");
        assert_eq!(report["failed"], serde_json::json!({}));
    }
}

/// A command that sees the processes of one node alone.
pub fn on_node(node: usize, script: &str) -> String {
    let first = format!("{}/pid/node{node}-init", run_folder());
    must(&format!("nsenter -t $(cat {first}) -m -p sh -c '{script}'"))
}

/// Until a field of the product's Pods has these values, in order: one that is to go stays in the list until it has ended.
pub fn pods(field: &str, wanted: [&str; 2]) {
    let path = format!("{{range .items[*]}}{field}{{\"\\n\"}}{{end}}");
    let list = format!("{KUBECTL} get pods -l app=tak-os-ingress -o 'jsonpath={path}' | sort");
    until(field, "", &list, |text| text.lines().eq(wanted));
}
