//! The image as the shipped DaemonSet on two real nodes (`e2e/node`), one of them a tainted control-plane node, with names by
//! CoreDNS, Services by kube-proxy, and a client on a host of its own. `hack/e2e-node.sh` starts all that.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

const ONE: &str = "registry.example.com/tak-os-ingress:one";
const TWO: &str = "registry.example.com/tak-os-ingress:two";
const HOST: &str = "app.example.com";
/// What a provider's load balancer would have given. The client's way to it is through one of the nodes.
const BALANCER: &str = "10.123.0.200";
const NODES: [&str; 2] = ["10.123.0.1", "10.123.0.2"];
const CLIENT: &str = "10.123.0.250";
const KUBECTL: &str = "kubectl -n tak-os-ingress";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: hack/e2e-node.sh runs this"))
}

/// A shell command in node 1's network, or in that of the client.
fn command(place: &str, script: &str) -> Command {
    let netns = format!("--net=/run/netns/{}{place}", variable("NETNS"));
    let mut command = Command::new("nsenter");
    command.args([&netns, "bash", "-c", &format!("set -euo pipefail\n{script}")]);
    let path = format!("{}:{}", variable("BIN"), variable("PATH"));
    command
        .env("PATH", path)
        .env("KUBECONFIG", format!("{}/admin.kubeconfig", variable("TAK_INGRESS_NODES")));
    command.current_dir(root()).stdin(Stdio::null());
    command
}

fn try_in(place: &str, script: &str) -> Result<String, String> {
    let output = command(place, script).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{script}\n{}{}", text(&output.stdout), text(&output.stderr)))
    }
}

fn must(script: &str) -> String {
    println!("+ {script}");
    try_in("", script).unwrap_or_else(|e| panic!("{e}"))
}

/// Until `wanted` takes what the command says.
fn until(what: &str, place: &str, script: &str, wanted: impl Fn(&str) -> bool) -> String {
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
fn installed() -> MutexGuard<'static, ()> {
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
        // What a cloud's controller does.
        let status = format!(r#"{{"status":{{"loadBalancer":{{"ingress":[{{"ip":"{BALANCER}"}}]}}}}}}"#);
        must(&format!(
            "{KUBECTL} patch service tak-os-ingress --subresource=status --type=merge -p '{status}'"
        ));
        balance(1);
        reached();
    });
    guard
}

fn manifest() -> String {
    format!("{}/rendered.yaml", variable("TAK_INGRESS_NODES"))
}

/// The balancer sends to this node, once that knows the address. A connection before that would leave a mark in the node's
/// table of connections, and a later one from the same port would follow it to nowhere.
fn balance(node: usize) {
    let place = if node == 1 { String::new() } else { format!("-node{node}") };
    let known = format!("iptables-save -t nat | grep -- '-d {BALANCER}/32 .*--dport 80 '");
    until("kube-proxy's rules", &place, &known, |_| true);
    try_in("-client", &format!("ip route replace {BALANCER}/32 via {}", NODES[node - 1])).unwrap();
}

fn reached() -> String {
    let curl =
        format!("curl -sS -m 3 --resolve {HOST}:80:{BALANCER} -H 'X-Forwarded-For: 1.2.3.4' http://{HOST}/a");
    until("the application", "-client", &curl, |text| text.starts_with("pod my-app-"))
}

/// Requests from the client until it is stopped.
struct Load {
    child: Child,
    stop: PathBuf,
}

impl Load {
    fn start(name: &str) -> Self {
        let stop = PathBuf::from(variable("TAK_INGRESS_NODES")).join(format!("stop-{name}"));
        let script = format!("exec python3 e2e/node/load.py {HOST} {BALANCER} 80 {}", stop.display());
        let child = command("-client", &script).stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(2));
        Self { child, stop }
    }

    /// How many were sent, after seeing that none failed.
    fn end(self) -> u64 {
        std::thread::sleep(Duration::from_secs(2));
        std::fs::write(&self.stop, "").unwrap();
        let output = self.child.wait_with_output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        println!("{report}");
        assert_eq!(report["failed"], serde_json::json!({}));
        report["sent"].as_u64().unwrap()
    }
}

/// A response that the backend goes on with for ever, of which some has come.
struct Stream {
    child: Child,
}

impl Stream {
    fn open() -> Self {
        let script = format!("exec curl -sSN --resolve {HOST}:80:{BALANCER} http://{HOST}/stream");
        let mut child = command("-client", &script).stdout(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        assert_eq!(&first, b"line ");
        Self { child }
    }

    /// It was going on until something cut it.
    fn ended(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        // The pipe must not fill up meanwhile.
        let mut rest = self.child.stdout.take().unwrap();
        std::thread::spawn(move || std::io::copy(&mut rest, &mut std::io::sink()));
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(!status.success(), "a stream without an end came to one");
                return;
            }
            assert!(Instant::now() < end, "the stream outlives its Pod");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Until a field of the product's Pods has these values, in order: one that is to go stays in the list until it has ended.
fn pods(field: &str, wanted: [&str; 2]) {
    let path = format!("{{range .items[*]}}{field}{{\"\\n\"}}{{end}}");
    let list = format!("{KUBECTL} get pods -l app=tak-os-ingress -o 'jsonpath={path}' | sort");
    until(field, "", &list, |text| text.lines().eq(wanted));
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn it_runs_on_every_node_and_the_usual_looks_say_something() {
    let _guard = installed();
    // The control-plane node too.
    pods("{.spec.nodeName}", ["node1", "node2"]);
    pods("{.status.containerStatuses[0].ready} {.status.containerStatuses[0].restartCount}", ["true 0"; 2]);
    let shown = must(&format!("{KUBECTL} get daemonset,pods,service -o wide"));
    assert!(shown.contains(BALANCER) && shown.contains(ONE), "{shown}");
    assert!(
        must(&format!("{KUBECTL} describe daemonset tak-os-ingress"))
            .contains("Number of Nodes Scheduled with Available Pods: 2")
    );
    must(&format!("{KUBECTL} get events --sort-by=.lastTimestamp"));
    let log = must(&format!("{KUBECTL} logs -l app=tak-os-ingress --tail=100 --prefix"));
    assert!(
        log.lines().any(|l| l.starts_with("[pod/tak-os-ingress-") && l.contains("\"listening\"")),
        "{log}"
    );
    assert!(must("kubectl -n apps describe ingress my-app").contains("my-app:80"));
    must("kubectl -n apps get service my-app -o yaml");
    assert!(must("kubectl -n apps get endpointslices -l kubernetes.io/service-name=my-app").contains("8080"));

    // As which user, with which rights, seen from the process itself.
    let status = must("cat /proc/$(pgrep -fo '^/usr/bin/tak-os-ingress --ingress-class')/status");
    let field = |name: &str| -> Vec<&str> {
        status.lines().find_map(|l| l.strip_prefix(name)).unwrap().split_whitespace().collect()
    };
    assert_eq!((field("Uid:"), field("Gid:")), (vec!["65532"; 4], vec!["65532"; 4]));
    assert_eq!((field("CapEff:"), field("CapBnd:")), (vec!["0000000000000400"], vec!["0000000000000400"]));
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), (vec!["1"], vec!["2"]));
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn port_forwards_carry_health_metrics_and_traffic() {
    let _guard = installed();
    let script = format!("exec {KUBECTL} port-forward daemonset/tak-os-ingress 9090:9090 8080:80 8443:443");
    let mut forward = command("", &script).stdout(Stdio::null()).spawn().unwrap();
    let curl = |what: &str| until(what, "", &format!("curl --fail -sS -m 3 {what}"), |_| true);
    assert_eq!(curl("http://127.0.0.1:9090/healthz"), "OK");
    assert_eq!(curl("http://127.0.0.1:9090/readyz"), "OK");
    assert!(curl("http://127.0.0.1:9090/metrics").contains("tak_ingress_build_info"));
    assert!(curl(&format!("-H 'Host: {HOST}' http://127.0.0.1:8080/")).starts_with("pod my-app-"));
    assert!(
        curl(&format!("-k --resolve {HOST}:8443:127.0.0.1 https://{HOST}:8443/")).starts_with("pod my-app-")
    );
    forward.kill().unwrap();
    forward.wait().unwrap();
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn behind_a_load_balancer_the_client_keeps_its_address() {
    let _guard = installed();
    let health =
        must(&format!("{KUBECTL} get service tak-os-ingress -o 'jsonpath={{.spec.healthCheckNodePort}}'"));
    for (node, address) in NODES.iter().enumerate() {
        balance(node + 1);
        let seen = reached();
        for name in ["x-forwarded-for", "x-real-ip"] {
            assert!(seen.contains(&format!("\n{name}: {CLIENT}\n")), "{seen}");
        }
        // What the balancer asks to know which nodes it may send to.
        until(
            "the node's health check",
            "",
            &format!("curl -sS -m 3 http://{address}:{health}/"),
            |answer| answer.contains("\"localEndpoints\": 1"),
        );
    }
    balance(1);
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn a_rollout_and_its_undo_under_load_lose_no_request() {
    let _guard = installed();
    let load = Load::start("rollout");
    // A response without an end is cut when the Pod's time is up, and can be asked for again.
    let mut stream = Stream::open();
    must(&format!("sed -i 's|{ONE}|{TWO}|' {0} && kubectl apply -f {0}", manifest()));
    must(&format!("{KUBECTL} rollout status daemonset/tak-os-ingress --timeout=300s"));
    pods("{.spec.containers[0].image}", [TWO; 2]);
    stream.ended();
    drop(Stream::open());
    let history = must(&format!("{KUBECTL} rollout history daemonset/tak-os-ingress"));
    assert!(
        history.lines().filter(|l| l.starts_with(|c: char| c.is_ascii_digit())).count() >= 2,
        "{history}"
    );
    must(&format!("{KUBECTL} rollout undo daemonset/tak-os-ingress"));
    must(&format!("{KUBECTL} rollout status daemonset/tak-os-ingress --timeout=300s"));
    pods("{.spec.containers[0].image}", [ONE; 2]);
    must(&format!("{KUBECTL} rollout restart daemonset/tak-os-ingress"));
    must(&format!("{KUBECTL} rollout status daemonset/tak-os-ingress --timeout=300s"));
    assert!(load.end() > 100);
    must(&format!("sed -i 's|{TWO}|{ONE}|' {}", manifest()));
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn other_flags_and_ports_come_with_a_rollout_and_lose_no_request() {
    let _guard = installed();
    let load = Load::start("ports");
    let moved = format!("{}/moved.yaml", variable("TAK_INGRESS_NODES"));
    // The Service and the probes name the container's ports.
    let edit = "s|- --ingress-class=tak-os|&\\n        - --http-port=8080\\n        - --https-port=8443\\n        - --metrics-port=9191|; \
                s|containerPort: 80$|containerPort: 8080|; s|containerPort: 443$|containerPort: 8443|; \
                s|containerPort: 9090$|containerPort: 9191|; s|prometheus.io/port: \"9090\"|prometheus.io/port: \"9191\"|";
    must(&format!("sed '{edit}' {} >{moved} && kubectl apply -f {moved}", manifest()));
    must(&format!("{KUBECTL} rollout status daemonset/tak-os-ingress --timeout=300s"));
    pods("{.spec.containers[0].ports[0].containerPort}", ["8080"; 2]);
    let pod = must(&format!("{KUBECTL} get pods -o 'jsonpath={{.items[0].status.podIP}}'"));
    for (port, path) in [(9191, "metrics"), (8080, "")] {
        let answer = must(&format!("curl --fail -sS -m 3 -H 'Host: {HOST}' http://{pod}:{port}/{path}"));
        assert!(answer.contains("tak_ingress_build_info") || answer.starts_with("pod my-app-"), "{answer}");
    }
    for port in [80, 443, 9090] {
        try_in("", &format!("curl -sS -m 3 http://{pod}:{port}/")).expect_err("nobody listens there");
    }
    must(&format!("kubectl apply -f {}", manifest()));
    must(&format!("{KUBECTL} rollout status daemonset/tak-os-ingress --timeout=300s"));
    pods("{.spec.containers[0].ports[0].containerPort}", ["80"; 2]);
    assert!(load.end() > 100);
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn a_backend_rollout_under_load_loses_no_request() {
    let _guard = installed();
    let load = Load::start("backend");
    for version in ["2", "3"] {
        must(&format!("kubectl -n apps set env deployment/my-app VERSION={version}"));
        must("kubectl -n apps rollout status deployment/my-app --timeout=180s");
    }
    assert!(load.end() > 50);
    until(
        "version 3",
        "-client",
        &format!("curl -sS -m 3 --resolve {HOST}:80:{BALANCER} http://{HOST}/"),
        |text| text.contains("version 3"),
    );
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn the_loss_of_a_node_costs_its_own_traffic_alone() {
    let _guard = installed();
    let load = Load::start("node");
    must("e2e/node/down.sh 2");
    until("node 2 is known to be lost", "", "kubectl get node node2", |text| text.contains("NotReady"));
    assert!(load.end() > 100, "through the node that is left");
    must("e2e/node/node.sh 2");
    balance(2);
    reached();
    balance(1);
}
