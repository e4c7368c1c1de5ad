//! The image as the shipped DaemonSet on two real nodes (`e2e/node`), one of them a tainted control-plane node, with names by
//! CoreDNS, Services by kube-proxy, and a client on a host of its own. `hack/e2e-node.sh` starts all that.

mod node_scene;

use std::io::Read;
use std::time::{Duration, Instant};

use node_scene::{
    BALANCER, CLIENT, HOST, KUBECTL, Load, NODES, ONE, Running, TWO, balance, installed, manifest, must,
    on_node, pods, reached, run_folder, try_in, until,
};

/// A response that the backend goes on with for ever, of which some has come.
struct Stream(Running);

impl Stream {
    fn open() -> Self {
        let script = format!("curl -sSN --resolve {HOST}:80:{BALANCER} http://{HOST}/stream");
        let mut running = Running::start("-client", &script);
        let mut first = [0; 5];
        running.0.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        assert_eq!(&first, b"line ");
        Self(running)
    }

    /// It was going on until something cut it.
    fn ended(mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        let curl = &mut self.0.0;
        // The pipe must not fill up meanwhile.
        let mut rest = curl.stdout.take().unwrap();
        std::thread::spawn(move || std::io::copy(&mut rest, &mut std::io::sink()));
        loop {
            if let Some(status) = curl.try_wait().unwrap() {
                assert!(!status.success(), "a stream without an end came to one");
                return;
            }
            assert!(Instant::now() < end, "the stream outlives its Pod");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
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
    let status = on_node(1, "cat /proc/$(pgrep -fo \"^/usr/bin/tak-os-ingress --ingress-class\")/status");
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
    let script = format!("{KUBECTL} port-forward daemonset/tak-os-ingress 9090:9090 8080:80 8443:443");
    let _forward = Running::start("", &script);
    let curl = |what: &str| until(what, "", &format!("curl --fail -sS -m 3 {what}"), |_| true);
    assert_eq!(curl("http://127.0.0.1:9090/healthz"), "OK");
    assert_eq!(curl("http://127.0.0.1:9090/readyz"), "OK");
    assert!(curl("http://127.0.0.1:9090/metrics").contains("tak_ingress_build_info"));
    assert!(curl(&format!("-H 'Host: {HOST}' http://127.0.0.1:8080/")).starts_with("pod my-app-"));
    assert!(
        curl(&format!("-k --resolve {HOST}:8443:127.0.0.1 https://{HOST}:8443/")).starts_with("pod my-app-")
    );
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
    let stream = Stream::open();
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
    load.end();
    must(&format!("sed -i 's|{TWO}|{ONE}|' {}", manifest()));
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn other_flags_and_ports_come_with_a_rollout_and_lose_no_request() {
    let _guard = installed();
    let load = Load::start("ports");
    let moved = format!("{}/moved.yaml", run_folder());
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
    load.end();
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
    load.end();
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
    load.end();
    must("e2e/node/node.sh 2");
    balance(2);
    reached();
    balance(1);
}
