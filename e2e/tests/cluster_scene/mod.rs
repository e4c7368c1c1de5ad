//! What the cluster tests share: one control plane for a test program, backends behind Service names, manifests as
//! text, accounts with certain rights, a relay that can fail, and traffic that counts its failures.
//!
//! Tests that share a control plane keep apart by namespace and host.
#![allow(dead_code, unused_imports)] // each test program uses a part of it

pub mod gateway;
mod load;
mod relay;

pub use load::{Load, Report, Target};
pub use relay::Relay;

use std::future::Future;
use std::net::IpAddr;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ingress_e2e::client::{self, Served};
use ingress_e2e::cluster::Cluster;
use ingress_e2e::dns::DnsServer;
use ingress_e2e::origin::Origin;
use ingress_e2e::product::Product;
use ingress_e2e::{eventually, within};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::Ingress as IngressObject;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// What "live" and "within seconds" mean.
pub const SOON: Duration = Duration::from_secs(5);

/// How long an address may be used after it changed: the TTL of 5 s that cluster DNS gives, and the look-up itself.
pub const DNS_BOUND: Duration = Duration::from_secs(7);

/// The prefix of the product's annotations.
pub const PREFIX: &str = "ingress.tak-os.org/";

/// The namespace of the product's accounts.
pub const HOME: &str = "tak-os-ingress";

/// The control plane of the whole test program. It ends with the process.
pub async fn shared() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    CLUSTER.get_or_init(Cluster::start).await
}

// ---- Manifests. JSON is YAML and needs no care for quoting.

pub fn namespace(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}).to_string()
}

/// A Service with these ports, by name and number. They lead to another port of the Pods, which nothing listens on.
pub fn service(namespace: &str, name: &str, ports: &[(&str, u16)]) -> String {
    let ports: Vec<_> =
        ports.iter().map(|(name, port)| json!({"name": name, "port": port, "targetPort": 8080})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"ports": ports, "selector": {"app": name}},
    })
    .to_string()
}

/// A Service of type ExternalName.
pub fn external_service(namespace: &str, name: &str, target: &str, port: u16) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"type": "ExternalName", "externalName": target, "ports": [{"name": "http", "port": port}]},
    })
    .to_string()
}

pub fn ingress_class(name: &str, controller: &str, default: bool) -> String {
    let key = "ingressclass.kubernetes.io/is-default-class";
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": name, "annotations": {key: default.to_string()}},
        "spec": {"controller": controller},
    })
    .to_string()
}

/// One stream of documents.
pub fn join<S: AsRef<str>>(documents: impl IntoIterator<Item = S>) -> String {
    documents.into_iter().fold(String::new(), |all, one| all + one.as_ref() + "\n---\n")
}

/// An Ingress of class `tak-os`.
#[derive(Clone, Debug)]
pub struct Ingress(Value);

impl Ingress {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {"namespace": namespace, "name": name, "annotations": {}},
            "spec": {"ingressClassName": "tak-os", "rules": []},
        }))
    }

    /// Another class, or none.
    pub fn class(mut self, class: Option<&str>) -> Self {
        let spec = self.0["spec"].as_object_mut().unwrap();
        match class {
            Some(class) => drop(spec.insert("ingressClassName".into(), class.into())),
            None => drop(spec.remove("ingressClassName")),
        }
        self
    }

    /// An annotation by its whole key, or by what stands behind the product's prefix.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        let key = if key.contains('/') { key.to_owned() } else { format!("{PREFIX}{key}") };
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    /// A path of type Prefix. The port is a number or a name.
    pub fn prefix(self, host: &str, path: &str, service: &str, port: impl Into<Value>) -> Self {
        self.path(host, path, "Prefix", service, port)
    }

    /// A rule of its own for one path.
    pub fn path(
        mut self,
        host: &str,
        path: &str,
        path_type: &str,
        service: &str,
        port: impl Into<Value>,
    ) -> Self {
        let port = port.into();
        let port = if port.is_string() { json!({"name": port}) } else { json!({"number": port}) };
        let backend = json!({"service": {"name": service, "port": port}});
        let paths = json!([{"path": path, "pathType": path_type, "backend": backend}]);
        let rule = json!({"host": host, "http": {"paths": paths}});
        self.0["spec"]["rules"].as_array_mut().unwrap().push(rule);
        self
    }

    /// A `tls` block.
    pub fn tls(mut self, hosts: &[&str], secret: &str) -> Self {
        let spec = self.0["spec"].as_object_mut().unwrap();
        let blocks = spec.entry("tls").or_insert_with(|| json!([]));
        blocks.as_array_mut().unwrap().push(json!({"hosts": hosts, "secretName": secret}));
        self
    }

    /// A `tls` block that names no Secret.
    pub fn tls_issued(mut self, hosts: &[&str]) -> Self {
        let spec = self.0["spec"].as_object_mut().unwrap();
        let blocks = spec.entry("tls").or_insert_with(|| json!([]));
        blocks.as_array_mut().unwrap().push(json!({"hosts": hosts}));
        self
    }

    pub fn yaml(&self) -> String {
        self.0.to_string()
    }

    /// For a typed client.
    pub fn object(&self) -> IngressObject {
        serde_json::from_value(self.0.clone()).unwrap()
    }
}

// ---- Backends.

/// The name that a Service's address is looked up by.
pub fn service_name(namespace: &str, service: &str) -> String {
    format!("{service}.{namespace}.svc.cluster.local")
}

/// An echo server that the Service's name resolves to. Its own name is the Service's.
pub async fn backend(dns: &DnsServer, namespace: &str, service: &str, ip: [u8; 4]) -> Origin {
    let origin = Origin::echo_on((ip, 0)).await.named(service);
    dns.set(&service_name(namespace, service), [IpAddr::from(ip)]);
    origin
}

// ---- The product and its rights.

/// The product on this cluster, not necessarily ready. Later arguments win over the harness's.
pub async fn start(kubeconfig: &Path, dns: &DnsServer, args: &[&str]) -> Product {
    let builder = Product::builder()
        .kubeconfig(kubeconfig)
        .arg(format!("--dns-servers={}", dns.addr()))
        .arg("--deny-backend-cidrs=none");
    args.iter().fold(builder, |builder, arg| builder.arg(*arg)).start().await
}

/// [`start`], and ready.
pub async fn serve(kubeconfig: &Path, dns: &DnsServer, args: &[&str]) -> Product {
    let product = start(kubeconfig, dns, args).await;
    product.ready().await;
    product
}

/// The rules of the shipped ClusterRole.
pub fn rules() -> Vec<Value> {
    shipped("ClusterRole")
}

/// The rules of the shipped role of this kind.
pub fn shipped(kind: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(include_str!("../../../default/010-rbac.yaml"));
    let mut objects =
        documents.map(|document| Value::deserialize(document).expect("the shipped roles are YAML"));
    let role = objects.find(|object| object["kind"] == kind).expect("a role of the kind is shipped");
    role["rules"].as_array().expect("a role has rules").clone()
}

/// The rules of the shipped ClusterRole without one resource; panics if they do not name it.
pub fn rules_without(resource: &str) -> Vec<Value> {
    let mut found = false;
    let mut rules = rules();
    for rule in &mut rules {
        let resources = rule["resources"].as_array_mut().unwrap();
        let before = resources.len();
        resources.retain(|r| r != resource);
        found |= resources.len() < before;
    }
    assert!(found, "the shipped ClusterRole has no rule on {resource}");
    rules.retain(|rule| !rule["resources"].as_array().unwrap().is_empty());
    rules
}

/// A ServiceAccount with the rules of the shipped ClusterRole, in force; returns its kubeconfig.
pub async fn account(cluster: &Cluster, name: &str) -> PathBuf {
    account_with(cluster, name, &rules()).await
}

/// [`account`] with these rules in the whole cluster.
pub async fn account_with(cluster: &Cluster, name: &str, rules: &[Value]) -> PathBuf {
    let kubeconfig = cluster.service_account_kubeconfig(HOME, name).await;
    grant(cluster, name, rules).await;
    in_force(cluster, &kubeconfig, &rules[0], None).await;
    kubeconfig
}

/// (Re)places what an account may do in the whole cluster.
pub async fn grant(cluster: &Cluster, name: &str, rules: &[Value]) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": HOME, "name": name}],
    });
    cluster.apply(&join([role.to_string(), binding.to_string()])).await;
}

/// Gives an account rules in one namespace only.
pub async fn grant_in(cluster: &Cluster, namespace: &str, name: &str, rules: &[Value]) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "Role",
        "metadata": {"namespace": namespace, "name": name},
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "RoleBinding",
        "metadata": {"namespace": namespace, "name": name},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": HOME, "name": name}],
    });
    cluster.apply(&join([role.to_string(), binding.to_string()])).await;
}

/// Waits until the API server's authoriser knows a rule: it follows roles with a delay.
pub async fn in_force(cluster: &Cluster, kubeconfig: &Path, rule: &Value, namespace: Option<&str>) {
    let client = cluster.client(kubeconfig).await;
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client);
    let first = |key: &str| rule[key][0].as_str().map(ToOwned::to_owned);
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: first("apiGroups"),
                resource: first("resources"),
                verb: first("verbs"),
                namespace: namespace.map(ToOwned::to_owned),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    eventually(SOON, async || {
        let answer = reviews.create(&PostParams::default(), &review).await.ok()?;
        answer.status?.allowed.then_some(())
    })
    .await;
}

/// A request that the API server has audited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Audited {
    pub verb: String,
    /// `group/resource/subresource`, as far as there are any; the path for what is no resource
    pub what: String,
    pub code: u64,
    /// `allow` or `forbid`
    pub decision: String,
}

/// What the account did so far, in order. A watch shows at its start and at its end.
pub fn requests_of(cluster: &Cluster, name: &str) -> Vec<Audited> {
    let user = format!("system:serviceaccount:{HOME}:{name}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let own = cluster.audit_log().into_iter().filter(|event| event["user"]["username"] == user.as_str());
    own.map(|event| {
        let object = &event["objectRef"];
        let what = if object.is_null() {
            text(&event["requestURI"])
        } else {
            let parts = [&object["apiGroup"], &object["resource"], &object["subresource"]];
            parts.into_iter().filter_map(Value::as_str).collect::<Vec<_>>().join("/")
        };
        Audited {
            verb: text(&event["verb"]),
            what,
            code: event["responseStatus"]["code"].as_u64().unwrap_or(0),
            decision: text(&event["annotations"]["authorization.k8s.io/decision"]),
        }
    })
    .collect()
}

// ---- Conditions.

/// Waits until GET over plain HTTP has this status.
#[track_caller]
pub fn becomes(product: &Product, host: &str, path: &str, status: u16) -> impl Future<Output = ()> {
    becomes_within(SOON, product, host, path, status)
}

/// [`becomes`], with another deadline.
#[track_caller]
pub fn becomes_within(
    deadline: Duration,
    product: &Product,
    host: &str,
    path: &str,
    status: u16,
) -> impl Future<Output = ()> {
    answers(product, host, path, deadline, Location::caller(), status.to_string(), move |answer| {
        answer.status == status
    })
}

/// Waits until GET over plain HTTP is answered by the backend of this name.
#[track_caller]
pub fn reaches(product: &Product, host: &str, path: &str, origin: &str) -> impl Future<Output = ()> {
    reaches_within(SOON, product, host, path, origin)
}

/// [`reaches`], with another deadline.
#[track_caller]
pub fn reaches_within(
    deadline: Duration,
    product: &Product,
    host: &str,
    path: &str,
    origin: &str,
) -> impl Future<Output = ()> {
    let (origin, expected) = (origin.to_owned(), format!("the answer of {origin}"));
    answers(product, host, path, deadline, Location::caller(), expected, move |answer| {
        answer.status == 200 && answer.origin() == origin
    })
}

fn answers(
    product: &Product,
    host: &str,
    path: &str,
    deadline: Duration,
    caller: &'static Location<'static>,
    expected: String,
    mut wanted: impl FnMut(&client::Response) -> bool,
) -> impl Future<Output = ()> {
    let (host, path) = (host.to_owned(), path.to_owned());
    async move {
        let mut last = String::from("nothing");
        let found = within(deadline, async || match client::try_get(product.http(), &host, &path).await {
            Ok(answer) if wanted(&answer) => Some(()),
            Ok(answer) => {
                last = format!("{} {}", answer.status, answer.text());
                None
            }
            Err(e) => {
                last = format!("{e:#}");
                None
            }
        })
        .await;
        if found.is_none() {
            let log = end_of_log(product);
            panic!("{caller}: {host}{path} did not get {expected} within {deadline:?}; last: {last}\n{log}");
        }
    }
}

/// The last lines that are not about requests.
fn end_of_log(product: &Product) -> String {
    let log = product.log_text();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("\"level\"")).collect();
    format!("its log ends:\n{}", lines[lines.len().saturating_sub(15)..].join("\n"))
}

/// GET now: the name of the backend that answered, else the status.
pub async fn answer_of(product: &Product, host: &str, path: &str) -> String {
    let answer = client::get(product.http(), host, path).await;
    if answer.status == 200 { answer.origin() } else { answer.status.to_string() }
}

/// Waits until the product shows a certificate for a host that `wanted` takes.
#[track_caller]
pub fn shows(
    product: &Product,
    host: &str,
    mut wanted: impl FnMut(&Served) -> bool,
) -> impl Future<Output = Served> {
    let (addr, host, caller) = (product.https(), host.to_owned(), Location::caller());
    async move {
        let mut last = Vec::new();
        let found = within(SOON, async || {
            let served = client::served_certificate(addr, Some(&host)).await;
            last = served.names();
            wanted(&served).then_some(served)
        })
        .await;
        found.unwrap_or_else(|| {
            panic!("{caller}: {host} did not get the certificate within {SOON:?}; last: one for {last:?}")
        })
    }
}

/// The self-signed certificate, as every unknown name gets it.
pub async fn fallback(product: &Product) -> Served {
    client::served_certificate(product.https(), Some("no-such-host.invalid")).await
}

/// The Events on an Ingress.
pub async fn events_on(cluster: &Cluster, namespace: &str, ingress: &str) -> Vec<Event> {
    let events: Api<Event> = Api::namespaced(cluster.admin().await, namespace);
    let all = events.list(&ListParams::default()).await.unwrap().items;
    let on = |event: &Event| {
        event.regarding.as_ref().is_some_and(|object| {
            object.kind.as_deref() == Some("Ingress") && object.name.as_deref() == Some(ingress)
        })
    };
    all.into_iter().filter(on).collect()
}

/// Waits for a Warning on an Ingress whose text holds all these words, in any case.
#[track_caller]
pub fn warned(
    cluster: &Cluster,
    namespace: &str,
    ingress: &str,
    words: &[&str],
) -> impl Future<Output = Event> {
    let caller = Location::caller();
    async move {
        let mut last = Vec::new();
        let found = within(SOON, async || {
            let events = events_on(cluster, namespace, ingress).await;
            last = events.iter().map(|e| e.note.clone().unwrap_or_default()).collect();
            events.into_iter().find(|event| {
                let note = event.note.as_deref().unwrap_or_default().to_lowercase();
                event.type_.as_deref() == Some("Warning")
                    && words.iter().all(|word| note.contains(&word.to_lowercase()))
            })
        })
        .await;
        found.unwrap_or_else(|| {
            panic!("{caller}: no Event on {namespace}/{ingress} with {words:?} within {SOON:?}; there are: {last:#?}")
        })
    }
}

/// How many log entries with this message have this field at this value.
pub fn logged(product: &Product, message: &str, field: &str, value: &str) -> usize {
    product.log_entries(message).iter().filter(|entry| entry[field] == value).count()
}

/// Waits until the wall clock shows a later second than the object's `creationTimestamp`, so that what is created next
/// is younger for certain.
pub async fn later_than(cluster: &Cluster, namespace: &str, ingress: &str) {
    let ingresses: Api<IngressObject> = Api::namespaced(cluster.admin().await, namespace);
    let created = ingresses.get(ingress).await.unwrap().metadata.creation_timestamp.unwrap().0.as_second();
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        i64::try_from(now.as_secs()).unwrap()
    };
    eventually(SOON, async || (now() > created).then_some(())).await;
}
