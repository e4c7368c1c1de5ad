//! The shipped manifests against a real API server, applied with kubectl as an administrator would.

mod cluster_scene;

use std::path::{Path, PathBuf};

use cluster_scene::{HOME, Ingress, backend, join, namespace, reaches, requests_of, serve, service};
use ingress_e2e::TempDir;
use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use serde_json::Value;

const IMAGE: &str = "registry.gitlab.com/tak-os-platform/tak-os-containers/tak-os-ingress:1.2.3";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("e2e lies in the repository").to_owned()
}

/// Exit status, stdout and stderr of a script that runs in a folder.
struct Ran {
    ok: bool,
    out: String,
    err: String,
}

async fn run_in(cluster: &Cluster, folder: &Path, script: &str) -> Ran {
    let mut command = cluster.shell(script);
    command.current_dir(folder);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    let output = output.unwrap_or_else(|e| panic!("cannot run {script}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { ok: output.status.success(), out: text(&output.stdout), err: text(&output.stderr) }
}

async fn run(cluster: &Cluster, script: &str) -> Ran {
    run_in(cluster, &root(), script).await
}

async fn must(cluster: &Cluster, script: &str) -> String {
    let ran = run(cluster, script).await;
    assert!(ran.ok, "{script}\n{}{}", ran.out, ran.err);
    ran.out
}

async fn object(cluster: &Cluster, what: &str) -> Value {
    let text = must(cluster, &format!("kubectl -n tak-os-ingress get {what} -o json")).await;
    serde_json::from_str(&text).unwrap()
}

/// Namespace and roles are there.
async fn prepared() -> Cluster {
    let cluster = Cluster::start().await;
    let strict = "kubectl apply --warnings-as-errors --validate=strict";
    must(&cluster, &format!("{strict} -f default/000-namespace.yaml")).await;
    must(&cluster, &format!("{strict} -f default/010-rbac.yaml")).await;
    cluster
}

#[tokio::test]
async fn the_rendered_manifests_apply_in_order_and_serve_under_their_own_account() {
    let cluster = prepared().await;
    let dir = TempDir::new("install");
    let file = dir.path().join("rendered.yaml").display().to_string();
    must(&cluster, &format!("hack/render.sh {IMAGE} --out={file}")).await;
    // A warning would be one of Pod security: the namespace asks for the strictest of its standards.
    let apply = format!("kubectl apply --warnings-as-errors --validate=strict -f {file}");
    let tried = must(&cluster, &format!("{apply} --dry-run=server")).await;
    assert!(tried.lines().count() == 3 && tried.contains("daemonset.apps/tak-os-ingress created"), "{tried}");
    assert!(must(&cluster, "kubectl -n tak-os-ingress get daemonset,service").await.is_empty());
    must(&cluster, &apply).await;
    assert!(must(&cluster, &apply).await.lines().all(|line| line.ends_with("unchanged")), "applied twice");

    let daemonset = object(&cluster, "daemonset tak-os-ingress").await;
    let container = &daemonset["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], IMAGE);
    let internal = object(&cluster, "service tak-os-ingress").await;
    assert_eq!(internal["spec"]["type"], "ClusterIP");
    assert_eq!(internal["spec"]["internalTrafficPolicy"], "Local");
    assert!(internal["spec"]["externalIPs"].is_null() && internal["spec"]["externalTrafficPolicy"].is_null());
    let class = object(&cluster, "ingressclass tak-os").await;
    assert_eq!(class["spec"]["controller"], "tak-os.org/ingress-controller");

    // The process with the account, the class and the arguments of these manifests.
    let dns = DnsServer::start().await;
    let web = backend(&dns, "shop", "web", [127, 0, 0, 2]).await;
    let ingress = Ingress::new("shop", "web").prefix("web.shop.example.com", "/", "web", "http");
    let objects = [namespace("shop"), service("shop", "web", &[("http", web.port())]), ingress.yaml()];
    cluster.apply(&join(objects)).await;
    let kubeconfig = cluster.service_account_kubeconfig(HOME, "tak-os-ingress").await;
    let args: Vec<&str> = container["args"].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect();
    let product = serve(&kubeconfig, &dns, &args).await;
    reaches(&product, "web.shop.example.com", "/", "web").await;
    let requests = requests_of(&cluster, "tak-os-ingress");
    let refused: Vec<_> = requests.iter().filter(|r| r.decision != "allow").collect();
    assert!(!requests.is_empty() && refused.is_empty(), "{refused:#?}");
}

#[tokio::test]
async fn each_way_to_expose_the_service_is_accepted() {
    let cluster = prepared().await;
    for options in ["", "--type=NodePort", "--type=LoadBalancer", "--external-ips=192.0.2.10,192.0.2.11"] {
        let script = format!("hack/render.sh {IMAGE} {options} | kubectl apply -f -");
        must(&cluster, &script).await;
        let service = object(&cluster, "service tak-os-ingress").await;
        let spec = &service["spec"];
        match options.split_once('=') {
            Some(("--type", kind)) => {
                assert_eq!((&spec["type"], &spec["externalTrafficPolicy"]), (&kind.into(), &"Local".into()));
            }
            Some(_) => assert_eq!(spec["externalIPs"], serde_json::json!(["192.0.2.10", "192.0.2.11"])),
            None => assert_eq!(spec["type"], "ClusterIP"),
        }
        must(&cluster, "kubectl -n tak-os-ingress delete service tak-os-ingress").await;
    }
}

#[tokio::test]
async fn the_template_is_refused_as_it_stands() {
    let cluster = prepared().await;
    for dry in ["--dry-run=server", ""] {
        let ran = run(&cluster, &format!("kubectl apply {dry} -f default/020-daemonset.yaml")).await;
        assert!(!ran.ok && ran.err.contains("ExternalIPs"), "{}{}", ran.out, ran.err);
        assert!(must(&cluster, "kubectl -n tak-os-ingress get service").await.is_empty());
    }
}

#[tokio::test]
async fn removal_takes_what_was_installed_and_nothing_of_the_applications() {
    let cluster = prepared().await;
    let kinds =
        "daemonset,service,serviceaccount,role,rolebinding,clusterrole,clusterrolebinding,ingressclass";
    let ours = format!("kubectl get {kinds} -A -l app=tak-os-ingress -o name | sort");
    must(&cluster, &format!("hack/render.sh {IMAGE} | kubectl apply -f -")).await;
    let issuer = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, \
                  metadata: {name: issuers.cert-manager.io}, spec: {group: cert-manager.io, scope: Namespaced, \
                  names: {plural: issuers, kind: Issuer}, versions: [{name: v1, served: true, storage: true, \
                  schema: {openAPIV3Schema: {type: object}}}]}}";
    let secret = "{apiVersion: v1, kind: Secret, metadata: {namespace: shop, name: users}}";
    let ingress = Ingress::new("shop", "web").prefix("web.shop.example.com", "/", "web", "http");
    cluster.apply(&join([namespace("shop"), issuer.into(), secret.into(), ingress.yaml()])).await;
    assert_eq!(must(&cluster, &ours).await.lines().count(), 8);
    must(&cluster, &format!("hack/render.sh {IMAGE} | kubectl delete --wait=false -f -")).await;
    must(&cluster, "kubectl delete -f default/010-rbac.yaml").await;
    assert_eq!(must(&cluster, &ours).await, "");
    let kept =
        "kubectl -n shop get secret/users ingress/web -o name; kubectl get crd issuers.cert-manager.io";
    must(&cluster, kept).await;
}

// ---- The guides' own text, where it is: it is not part of this repository.

fn guide(name: &str) -> String {
    let folder = std::env::var_os("TAK_INGRESS_GUIDES").expect("TAK_INGRESS_GUIDES names the guides' folder");
    let path = Path::new(&folder).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The text from `from` on, up to (and with) the line that `last` names.
fn block<'a>(text: &'a str, from: &str, last: &str) -> &'a str {
    let start = text.find(from).unwrap_or_else(|| panic!("the guide has {from}"));
    let rest = &text[start..];
    let end = rest.find(last).unwrap_or_else(|| panic!("the guide has {last}")) + last.len();
    &rest[..end]
}

#[tokio::test]
#[ignore = "needs the guides' text: TAK_INGRESS_GUIDES names its folder"]
async fn the_administrator_guides_own_commands_install_and_look() {
    let text = guide("administrator-guide.txt");
    let render = block(&text, "INGRESS_IMAGE=", "\nPY\n").replace("YOUR_RELEASE_TAG", "1.2.3");
    let rendered = "/tmp/tak-os-ingress.yaml";
    let _ = std::fs::remove_file(rendered);
    let cluster = Cluster::start().await;
    let template = std::fs::read(root().join("default/020-daemonset.yaml")).unwrap();
    must(&cluster, &render).await;
    assert_eq!(std::fs::read(root().join("default/020-daemonset.yaml")).unwrap(), template, "left as it was");
    let ours = must(&cluster, &format!("hack/render.sh {IMAGE}")).await;
    assert_eq!(std::fs::read_to_string(rendered).unwrap(), ours, "one result, whichever script made it");

    // All but the wait for the rollout: no kubelet runs here.
    let install = block(&text, "kubectl apply -f default/000", "rollout status daemonset/tak-os-ingress\n");
    let steps: Vec<&str> = install.lines().filter(|line| !line.contains("rollout status")).collect();
    assert_eq!(steps.len(), 4, "{steps:?}");
    for step in steps {
        must(&cluster, step).await;
    }
    // What looks at the installation and at its problems, as far as no Pod runs here.
    for look in ["kubectl -n tak-os-ingress get daemonset,pods,service", "kubectl get ingressclass tak-os"] {
        must(&cluster, block(&text, look, "\n")).await;
    }
    must(&cluster, block(&text, "kubectl -n tak-os-ingress describe daemonset", "\n")).await;
    must(&cluster, block(&text, "kubectl -n tak-os-ingress get events", "\n")).await;

    // The first example of the user guide, and its way to test before there is a name in DNS.
    let user = guide("user-guide.txt");
    let example = block(&user, "apiVersion: v1\nkind: Service", "number: 80\n");
    let dns = DnsServer::start().await;
    let web = backend(&dns, "apps", "my-app", [127, 0, 0, 3]).await;
    cluster.apply(&join([namespace("apps")])).await;
    // The port 80 of the example is another one here, on both sides.
    let port = web.port().to_string();
    let example = example.replace("port: 80", &format!("port: {port}"));
    cluster.apply(&example.replace("number: 80", &format!("number: {port}"))).await;
    let kubeconfig = cluster.service_account_kubeconfig(HOME, "tak-os-ingress").await;
    let product = serve(&kubeconfig, &dns, &[]).await;
    reaches(&product, "app.example.com", "/", "my-app").await;
    let curl = block(&user, "curl --resolve app.example.com:80:", "\n");
    let http = product.http().port();
    let curl = curl.replace("192.0.2.10", "127.0.0.1").replace(":80:", &format!(":{http}:"));
    let curl = curl.trim().replace("http://app.example.com/", &format!("http://app.example.com:{http}/"));
    assert!(must(&cluster, &format!("{curl} --noproxy '*' --fail --silent")).await.contains("my-app"));
    for look in ["get ingress my-app", "get service my-app", "get endpointslices -l"] {
        must(&cluster, block(&user, &format!("kubectl -n apps {look}"), "\n")).await;
    }
    must(&cluster, block(&user, "kubectl -n apps delete ingress my-app", "\n")).await;
    cluster_scene::becomes(&product, "app.example.com", "/", 404).await;
}

#[tokio::test]
#[ignore = "needs the guides' text: TAK_INGRESS_GUIDES names its folder"]
async fn the_guides_script_stops_at_a_placeholder_that_is_left() {
    let text = guide("administrator-guide.txt");
    let render = block(&text, "INGRESS_IMAGE=", "\nPY\n");
    let dir = TempDir::new("guide");
    let template = std::fs::read_to_string(root().join("default/020-daemonset.yaml")).unwrap();
    dir.write("default/020-daemonset.yaml", template + "# <!one-more!>\n");
    let mark = dir.path().join("rendered.yaml");
    let render = render.replace("/tmp/tak-os-ingress.yaml", &mark.display().to_string());
    let output = std::process::Command::new("bash").args(["-c", &render]).current_dir(dir.path()).output();
    let output = output.unwrap();
    assert!(!output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "Unresolved deployment placeholder\n");
    assert!(!mark.exists());
}

#[test]
#[ignore = "needs the guides' text: TAK_INGRESS_GUIDES names its folder"]
fn the_orbit_example_of_the_documents_is_that_of_the_guide() {
    let text = guide("administrator-guide.txt");
    let theirs: Value = serde_yaml::from_str(block(&text, "apiVersion: k8s.tlspu.com/v1", ".git\n")).unwrap();
    let install = std::fs::read_to_string(root().join("docs/install.md")).unwrap();
    let ours: Value =
        serde_yaml::from_str(block(&install, "apiVersion: k8s.tlspu.com/v1", ".git\n")).unwrap();
    assert_eq!(theirs, ours);
}
