//! What `default/`, `deployment.json` and `hack/render.sh` say. That a real API server takes it is shown in
//! `e2e/tests/cluster_install.rs`.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, which Clippy does not take for tests

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;
use serde_json::{Value, json};

const GATEWAY_KINDS: [&str; 8] = [
    "gatewayclasses",
    "gateways",
    "listenersets",
    "httproutes",
    "grpcroutes",
    "tlsroutes",
    "referencegrants",
    "backendtlspolicies",
];

const IMAGE: &str = "registry.example.com/team/tak-os-ingress:1.2.3";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn objects(text: &str) -> Vec<Value> {
    serde_yaml::Deserializer::from_str(text).map(|d| Value::deserialize(d).expect("it is YAML")).collect()
}

fn render(args: &[&str]) -> Output {
    Command::new("bash")
        .arg("hack/render.sh")
        .args(args)
        .current_dir(root())
        .output()
        .expect("there is a bash")
}

fn rendered(options: &[&str]) -> String {
    let output = render(&[&[IMAGE], options].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Everything that is installed.
fn installed() -> Vec<Value> {
    let files = [read("default/000-namespace.yaml"), read("default/010-rbac.yaml"), rendered(&[])];
    files.iter().flat_map(|file| objects(file)).collect()
}

fn of(kind: &str) -> Value {
    installed().into_iter().find(|o| o["kind"] == kind).unwrap_or_else(|| panic!("there is a {kind}"))
}

fn pod() -> Value {
    of("DaemonSet")["spec"]["template"].clone()
}

#[test]
fn nothing_is_installed_but_these_kinds() {
    let found: BTreeSet<(String, String)> = installed()
        .iter()
        .map(|o| {
            let name = o["metadata"]["name"].as_str().unwrap();
            let namespace = o["metadata"]["namespace"].as_str().unwrap_or(name);
            let kind = o["kind"].as_str().unwrap();
            assert!(
                kind == "IngressClass" || (name, namespace) == ("tak-os-ingress", "tak-os-ingress"),
                "{o}"
            );
            (o["apiVersion"].as_str().unwrap().to_owned(), kind.to_owned())
        })
        .collect();
    let rbac = "rbac.authorization.k8s.io/v1";
    let wanted = [
        ("apps/v1", "DaemonSet"),
        ("networking.k8s.io/v1", "IngressClass"),
        (rbac, "ClusterRole"),
        (rbac, "ClusterRoleBinding"),
        (rbac, "Role"),
        (rbac, "RoleBinding"),
        ("v1", "Namespace"),
        ("v1", "Service"),
        ("v1", "ServiceAccount"),
    ];
    assert_eq!(found, wanted.map(|(a, k)| (a.to_owned(), k.to_owned())).into());
}

#[test]
fn one_container_in_a_pod_on_every_node() {
    let pod = pod();
    assert_eq!(pod["metadata"]["labels"], json!({"app": "tak-os-ingress"}));
    assert_eq!(of("DaemonSet")["spec"]["selector"]["matchLabels"], json!({"app": "tak-os-ingress"}));
    let spec = &pod["spec"];
    assert_eq!(spec["containers"].as_array().unwrap().len(), 1);
    assert!(spec["initContainers"].is_null() && spec["hostNetwork"].is_null());
    let tolerates = |key: &str| {
        let toleration = json!({"key": key, "operator": "Exists", "effect": "NoSchedule"});
        spec["tolerations"].as_array().unwrap().contains(&toleration)
    };
    assert!(
        tolerates("node-role.kubernetes.io/control-plane") && tolerates("node-role.kubernetes.io/master")
    );
    let ports = spec["containers"][0]["ports"].as_array().unwrap();
    assert!(ports.iter().all(|p| p["hostPort"].is_null()));
    let ports: Vec<_> = ports.iter().map(|p| (p["name"].as_str().unwrap(), &p["containerPort"])).collect();
    assert_eq!(ports, [("http", &json!(80)), ("https", &json!(443)), ("metrics", &json!(9090))]);
}

#[test]
fn the_service_is_internal_and_has_two_ports() {
    let spec = of("Service")["spec"].clone();
    assert_eq!(spec["type"], "ClusterIP");
    assert_eq!(spec["selector"], json!({"app": "tak-os-ingress"}));
    assert_eq!(spec["internalTrafficPolicy"], "Local");
    assert!(spec["externalTrafficPolicy"].is_null() && spec["externalIPs"].is_null());
    let ports: Vec<_> =
        spec["ports"].as_array().unwrap().iter().map(|p| (&p["port"], &p["targetPort"])).collect();
    assert_eq!(ports, [(&json!(80), &json!("http")), (&json!(443), &json!("https"))]);
}

#[test]
fn the_class_is_ours_and_is_asked_for() {
    let class = of("IngressClass");
    assert_eq!(class["metadata"]["name"], "tak-os");
    assert_eq!(class["spec"]["controller"], "tak-os.org/ingress-controller");
    let args = pod()["spec"]["containers"][0]["args"].clone();
    assert!(args.as_array().unwrap().contains(&json!("--ingress-class=tak-os")), "{args}");
}

#[test]
fn the_pod_has_no_rights_on_its_node() {
    let spec = pod()["spec"].clone();
    let pod = &spec["securityContext"];
    assert_eq!(
        (&pod["runAsUser"], &pod["runAsGroup"], &pod["runAsNonRoot"]),
        (&json!(65532), &json!(65532), &json!(true))
    );
    assert_eq!(pod["seccompProfile"]["type"], "RuntimeDefault");
    let container = &spec["containers"][0]["securityContext"];
    assert_eq!(
        container,
        &json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        })
    );
    assert!(spec["volumes"].is_null());
    let labels = &of("Namespace")["metadata"]["labels"];
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "restricted");
}

#[test]
fn resources_probes_and_times_are_those_of_the_guide() {
    let pod = pod();
    let spec = &pod["spec"];
    assert_eq!(spec["terminationGracePeriodSeconds"], 60);
    let container = &spec["containers"][0];
    let resources =
        json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}});
    assert_eq!(container["resources"], resources);
    let probe = |name: &str| container[name]["httpGet"].clone();
    assert_eq!(probe("readinessProbe"), json!({"path": "/readyz", "port": "metrics"}));
    assert_eq!(probe("livenessProbe"), json!({"path": "/healthz", "port": "metrics"}));
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/scrape"], "true");
    assert_eq!(annotations["prometheus.io/port"], "9090");
    assert_eq!(annotations["prometheus.io/path"], "/metrics");
    // A node's new Pod is ready before the old one goes.
    let update = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    assert_eq!(of("DaemonSet")["spec"]["updateStrategy"], update);
}

/// `verb group/resource` of every rule.
fn rights(role: &Value) -> BTreeSet<String> {
    let list = |rule: &Value, key: &str| -> Vec<String> {
        rule[key].as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for verb in list(rule, "verbs") {
            for group in list(rule, "apiGroups") {
                rights.extend(list(rule, "resources").iter().map(|r| format!("{verb} {group}/{r}")));
            }
        }
    }
    rights
}

#[test]
fn the_roles_hold_what_is_documented_and_no_more() {
    let gateway = "gateway.networking.k8s.io";
    let mut wanted = BTreeSet::new();
    let read = ["/services", "/secrets", "/namespaces", "/configmaps", "discovery.k8s.io/endpointslices"]
        .map(str::to_owned)
        .into_iter()
        .chain(["apiextensions.k8s.io/customresourcedefinitions".to_owned()])
        .chain(["ingresses", "ingressclasses"].map(|r| format!("networking.k8s.io/{r}")))
        .chain(GATEWAY_KINDS.map(|r| format!("{gateway}/{r}")))
        .chain(["cert-manager.io/certificates".to_owned()]);
    for resource in read {
        wanted.extend(["get", "list", "watch"].map(|verb| format!("{verb} {resource}")));
    }
    wanted.extend(["create", "update", "patch"].map(|verb| format!("{verb} cert-manager.io/certificates")));
    // a grant has no status
    for kind in GATEWAY_KINDS.into_iter().filter(|kind| *kind != "referencegrants") {
        wanted.extend(["update", "patch"].map(|verb| format!("{verb} {gateway}/{kind}/status")));
    }
    wanted.extend(["create", "patch"].map(|verb| format!("{verb} events.k8s.io/events")));
    assert_eq!(rights(&of("ClusterRole")), wanted);
    let leases =
        ["create", "get", "update", "patch"].map(|verb| format!("{verb} coordination.k8s.io/leases"));
    assert_eq!(rights(&of("Role")), leases.into());

    let account =
        json!([{"kind": "ServiceAccount", "name": "tak-os-ingress", "namespace": "tak-os-ingress"}]);
    for (binding, role) in [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")] {
        assert_eq!(of(binding)["subjects"], account);
        assert_eq!(
            (&of(binding)["roleRef"]["kind"], &of(binding)["roleRef"]["name"]),
            (&json!(role), &json!("tak-os-ingress"))
        );
    }
    assert_eq!(pod()["spec"]["serviceAccountName"], "tak-os-ingress");
}

#[test]
fn the_template_has_the_marks_that_orbit_fills_in() {
    let template = read("default/020-daemonset.yaml");
    let lines = |mark: &str| template.lines().filter(|l| l.contains(mark)).map(str::trim).collect::<Vec<_>>();
    assert_eq!(lines("<!tak-os-ingress!>"), ["image: <!tak-os-ingress!>"]);
    assert_eq!(lines("<!tak-os-ingress-hash!>"), ["ingress.tak-os.org/image-hash: <!tak-os-ingress-hash!>"]);
    let addresses = lines("ExternalIPs:");
    assert!(
        addresses.len() == 1 && addresses[0].starts_with("ExternalIPs: <!") && addresses[0].ends_with("!>")
    );
    assert_eq!(lines("externalTrafficPolicy:"), ["externalTrafficPolicy: Local"]);
    assert_eq!(template.matches("<!").count(), 3);
    // Also as it stands it is YAML, so that an editor or a linter can read it.
    let service = &objects(&template)[1];
    assert_eq!((&service["kind"], &service["spec"]["type"]), (&json!("Service"), &json!("ClusterIP")));
}

#[test]
fn orbit_finds_one_image_at_latest() {
    let deployment: Value = serde_json::from_str(&read("deployment.json")).unwrap();
    let image = "registry.gitlab.com/tak-os-platform/tak-os-containers/tak-os-ingress:latest";
    // The key is the name in the template's mark.
    assert_eq!(deployment, json!({"images": {"tak-os-ingress": image}}));
    // A release goes to the same place, under its version.
    let place = image.strip_suffix("latest").unwrap();
    assert!(read("hack/image.sh").contains(&format!("name=${{IMAGE:-{place}$version}}")));
}

#[test]
fn the_documented_orbit_resource_installs_it() {
    let text = read("docs/install.md");
    let block = text
        .split("```")
        .find(|b| b.contains("kind: OrbitDeployment"))
        .expect("the document has the resource");
    let object = &objects(block.trim_start_matches("yaml"))[0];
    let source = "https://gitlab.com/tak-os-platform/tak-os-containers/tak-os-ingress.git";
    let wanted = json!({
        "apiVersion": "k8s.tlspu.com/v1",
        "kind": "OrbitDeployment",
        "metadata": {"name": "tak-os-ingress", "namespace": "kube-system"},
        "spec": {"source": source},
    });
    assert_eq!(object, &wanted);
}

#[test]
fn rendering_leaves_no_mark_and_the_template_as_it_was() {
    let before = read("default/020-daemonset.yaml");
    let text = rendered(&[]);
    assert_eq!(read("default/020-daemonset.yaml"), before);
    assert!(!text.contains("<!") && !text.contains("ExternalIPs") && !text.contains("externalTrafficPolicy"));
    let pod = pod();
    assert_eq!(pod["metadata"]["annotations"]["ingress.tak-os.org/image-hash"], "manual");
    assert_eq!(pod["spec"]["containers"][0]["image"], IMAGE);
}

#[test]
fn rendering_says_why_it_cannot() {
    let dir = std::env::temp_dir().join(format!("tak-os-ingress-render-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (template, out): (PathBuf, PathBuf) = (dir.join("template.yaml"), dir.join("out.yaml"));
    let options = [format!("--template={}", template.display()), format!("--out={}", out.display())];
    let options: Vec<&str> = std::iter::once(IMAGE).chain(options.iter().map(String::as_str)).collect();
    let case = |text: &str| {
        std::fs::write(&template, text).unwrap();
        let output = render(&options);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, why) = case("a: <!tak-os-ingress!>\nb: <!replicas!>\n");
    assert_eq!(status, Some(1));
    assert!(why.contains("template.yaml:2:b: <!replicas!>"), "{why}");
    let (status, why) = case("b: <!tak-os-ingress!> <!replicas!>\n");
    assert!(status == Some(1) && why.contains("<!replicas!>"), "{why}");
    assert!(!out.exists(), "nothing is written");
    assert_eq!(case("a: <!tak-os-ingress!>\n"), (Some(0), String::new()));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), format!("a: {IMAGE}\n"));
    std::fs::remove_dir_all(&dir).unwrap();

    for bad in [
        &[][..],
        &["a b"],
        &["x:1", "y:1"],
        &["x:1", "--type=Headless"],
        &["x:1", "--external-ips=a;b"],
        &["x", "-y"],
    ] {
        let output = render(bad);
        let line = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && line.lines().count() == 1 && output.stdout.is_empty(),
            "{bad:?} {line}"
        );
    }
    let output = render(&["registry.example.com/a:latest"]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("fixed tag"));
}
