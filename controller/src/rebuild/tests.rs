use super::*;
use crate::cluster::parse_documents;
use crate::metrics::testing::{metrics, value};
use crate::update::testing::{ingress, key};
use crate::update::{Name, Object};
use ingress_core::listener::Listener;
use ingress_core::route::RuleIndex;
use ingress_core::{
    Backend, BackendAddress, BackendProtocol, CertifiedKey, HostPattern, PathMatch, Reader, Route,
    RouteTable, Scope, ServicePort, Slot, Unavailable, VirtualHost,
};
use prometheus::Registry;
use serde_json::json;
use std::sync::Mutex;
use tokio::task::JoinHandle;

/// One pass as the fake translator saw it: when, and which Ingresses there were.
type Passes = Arc<Mutex<Vec<(Duration, Vec<String>)>>>;

/// Makes one host per Ingress. Panics where there is one named `panic`; finds a mistake in `bad*`.
struct Fake {
    start: Instant,
    passes: Passes,
    last: Option<Arc<RouteTable>>,
    told: HashSet<String>,
}

impl Translate for Fake {
    fn translate(&mut self, cluster: &Cluster, dirty: &Dirty) -> Translation {
        let mut names: Vec<_> = cluster.ingresses.keys().map(|k| k.name.to_string()).collect();
        names.sort();
        self.passes.lock().unwrap().push((self.start.elapsed(), names.clone()));
        assert!(!names.contains(&"panic".to_owned()), "a mine");
        let mut routes = RouteTable::default();
        for name in &names {
            let host: HostPattern = format!("{name}.example.com").parse().unwrap();
            routes.set(&host, VirtualHost::build(vec![route(name)]).0);
        }
        let changed = self.last.as_ref().is_none_or(|last| **last != routes);
        let routes = Arc::new(routes);
        self.last = Some(routes.clone());
        let new: Vec<_> =
            names.iter().filter(|n| n.starts_with("bad") && !self.told.contains(*n)).cloned().collect();
        let outcomes = new.iter().map(|name| Outcome {
            source: ResourceRef::new(Kind::Ingress, "shop", name.as_str()),
            uid: "uid".into(),
            resource_version: "1".into(),
            findings: [Finding { reason: Reason::InvalidAnnotation, field: "f".into(), message: "m".into() }]
                .into(),
        });
        let outcomes = outcomes.collect();
        self.told.extend(new);
        let _ = dirty;
        Translation {
            routes,
            certs: Arc::default(),
            changed,
            outcomes,
            route_count: names.len(),
            listeners: Arc::new(names.iter().filter_map(|name| of_port(name)).collect()),
            gateway_route_counts: [0, 0, 0],
            writes: Vec::new(),
        }
    }
}

/// What `port-PORT-TIME` has a Gateway listen to, with a certificate that ends then.
fn of_port(name: &str) -> Option<(Scope, Arc<Listener>)> {
    let (port, not_after) = name.strip_prefix("port-")?.split_once('-')?;
    let certified = CertifiedKey {
        chain: vec![],
        key: rustls_pki_types::PrivateKeyDer::Pkcs8(vec![0].into()),
        not_after: not_after.parse().ok()?,
        fingerprint: [0; 32],
        source: ResourceRef::new(Kind::Secret, "infra", name),
        native: Slot::new(),
    };
    let mut certs = CertStore::default();
    certs.insert(&HostPattern::Any, Arc::new(certified));
    let scope = Scope { address: None, port: port.parse().ok()? };
    Some((scope, Arc::new(Listener { tls: true, certs: Arc::new(certs), ..Listener::default() })))
}

fn route(name: &str) -> Arc<Route> {
    let backend = Backend {
        service: ServicePort { namespace: "shop".into(), name: name.into(), port: 80 },
        address: BackendAddress::Unavailable(Unavailable::NoService),
        protocol: BackendProtocol::Http,
        tls_name: name.into(),
        verify: true,
        keepalive: true,
        tls: None,
        client: None,
    };
    Arc::new(Route {
        path: PathMatch::Exact("/".into()),
        policy: Arc::default(),
        https_redirect: false,
        backend: Arc::new(backend),
        source: Arc::new(ResourceRef::new(Kind::Ingress, "shop", name)),
        host: name.into(),
        rule: RuleIndex { rule: 0, path: 0 },
        created: 0,
        conditions: None,
        actions: None,
        state: Slot::new(),
    })
}

struct Bench {
    updates: mpsc::Sender<Update>,
    reader: Reader,
    status: Arc<SyncStatus>,
    passes: Passes,
    registry: Registry,
    config_maps: watch::Receiver<bool>,
    definitions: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

/// A loop that waits for these parts, under paused time.
fn bench(parts: &[Part]) -> Bench {
    let (mut publisher, reader) = ingress_core::channel();
    let (metrics, registry) = metrics();
    let status = Arc::new(SyncStatus::default());
    status.await_kinds(parts.iter().map(|p| p.kind));
    let awaited = Awaited { parts: parts.iter().cloned().collect(), ..Awaited::default() };
    let (config_maps, definitions) = (awaited.config_maps.subscribe(), awaited.definitions.subscribe());
    let (updates, receiver) = mpsc::channel(1024);
    let (passes, start) = (Passes::default(), Instant::now());
    let (seen, told) = (passes.clone(), status.clone());
    let task = tokio::spawn(async move {
        let fresh = || Fake { start, passes: seen.clone(), last: None, told: HashSet::new() };
        let telling = Telling { events: Events::none(metrics.clone()), writes: Writes::none() };
        Rebuild::new(fresh, awaited, &mut publisher, metrics, told, telling).run(receiver).await;
    });
    Bench { updates, reader, status, passes, registry, config_maps, definitions, task }
}

impl Bench {
    async fn send(&self, update: Update) {
        assert!(self.updates.send(update).await.is_ok());
    }

    async fn add(&self, name: &str) {
        self.send(Update::Apply(ingress(name))).await;
    }

    async fn remove(&self, name: &str) {
        self.send(Update::Remove(Name::Ingress(key(name)))).await;
    }

    fn generation(&self) -> u64 {
        self.reader.load().generation
    }

    fn passes(&self) -> usize {
        self.passes.lock().unwrap().len()
    }
}

fn part(kind: Kind) -> Part {
    Part { kind, namespace: None, labels: None }
}

fn list(kind: Kind, objects: Vec<Object>) -> Update {
    Update::List { part: part(kind), objects }
}

/// Lets the loop run without letting time go on noticeably.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

async fn quiet() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn certificates_of_gateways_are_measured_as_well() {
    let bench = bench(&[part(Kind::Ingress)]);
    let first = ["port-443-5", "port-8443-6"].map(ingress);
    bench.send(list(Kind::Ingress, first.into())).await;
    quiet().await;
    let of = |name: &str| {
        value(&bench.registry, "certificate_not_after_timestamp_seconds", &[&format!("infra/{name}")])
    };
    assert_eq!((of("port-443-5"), of("port-8443-6")), (Some(5.0), Some(6.0)));
    bench.remove("port-443-5").await;
    quiet().await;
    assert_eq!((of("port-443-5"), of("port-8443-6")), (None, Some(6.0)));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_before_every_first_list_is_in() {
    let bench = bench(&[part(Kind::Ingress), part(Kind::Secret), part(Kind::EndpointSlice)]);
    bench.send(list(Kind::Ingress, vec![ingress("a")])).await;
    bench.add("b").await;
    quiet().await;
    assert_eq!((bench.generation(), bench.status.pending()), (0, vec!["endpointslice", "secret"]));
    bench.send(Update::Refused(part(Kind::EndpointSlice))).await;
    quiet().await;
    assert_eq!((bench.generation(), bench.status.published()), (0, false));
    bench.send(list(Kind::Secret, vec![])).await;
    settle().await;
    assert_eq!((bench.generation(), bench.status.published(), bench.passes()), (1, true, 1));
    assert!(bench.status.pending().is_empty());
    let synced = |kind| value(&bench.registry, "watch_synced", &[kind]);
    assert_eq!((synced("ingress"), synced("endpointslice")), (Some(1.0), Some(0.0)));
    assert_eq!(value(&bench.registry, "routes", &["ingress"]), Some(2.0));
}

/// A BackendTLSPolicy `shop/name` that names this ConfigMap, if any.
fn policy(name: &str, config_map: Option<&str>) -> Object {
    let refs: Vec<_> = config_map.iter().map(|map| json!({ "kind": "ConfigMap", "name": map })).collect();
    let policy = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": { "namespace": "shop", "name": name },
        "spec": { "targetRefs": [], "validation": { "hostname": "a", "caCertificateRefs": refs } },
    });
    let parsed = parse_documents(&policy.to_string()).remove(0).unwrap();
    Object::parsed(parsed).unwrap()
}

#[tokio::test(start_paused = true)]
async fn config_maps_are_read_and_waited_for_only_if_a_policy_names_one() {
    let bench = bench(&[part(Kind::Ingress), part(Kind::BackendTlsPolicy)]);
    bench.send(list(Kind::Ingress, vec![ingress("a")])).await;
    bench.send(list(Kind::BackendTlsPolicy, vec![policy("system", None), policy("own", Some("ca"))])).await;
    quiet().await;
    assert!(*bench.config_maps.borrow());
    assert_eq!((bench.generation(), bench.status.pending()), (0, vec!["configmap"]));
    bench.send(list(Kind::ConfigMap, vec![])).await;
    settle().await;
    assert_eq!((bench.generation(), bench.status.pending()), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_class_of_ours_has_definitions_read_and_config_maps_if_its_gateway_names_one_for_its_clients() {
    let object = |text: String| Object::parsed(parse_documents(&text).remove(0).unwrap()).unwrap();
    let gateway = |class: &str| {
        let validation = json!({ "caCertificateRefs": [{ "kind": "ConfigMap", "name": "ca" }] });
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": { "namespace": "shop", "name": "gw" },
            "spec": { "gatewayClassName": class, "tls": { "frontend": { "default": { "validation": validation } } } },
        }).to_string())
    };
    let class = object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": { "name": "tak-os" },
        "spec": { "controllerName": "tak-os.org/gateway-controller" },
    }).to_string());
    let bench = bench(&[part(Kind::Gateway), part(Kind::GatewayClass), part(Kind::BackendTlsPolicy)]);
    bench.send(list(Kind::BackendTlsPolicy, vec![])).await;
    bench.send(list(Kind::Gateway, vec![gateway("theirs")])).await;
    bench.send(Update::Apply(gateway("tak-os"))).await;
    quiet().await;
    assert!(!*bench.config_maps.borrow() && !*bench.definitions.borrow(), "whose it is, is not known yet");
    bench.send(list(Kind::GatewayClass, vec![class])).await;
    quiet().await;
    assert!(*bench.config_maps.borrow() && *bench.definitions.borrow());
    let pending = vec!["configmap", "customresourcedefinition"];
    assert_eq!((bench.generation(), bench.status.pending()), (0, pending));
    bench.send(list(Kind::ConfigMap, vec![])).await;
    settle().await;
    assert_eq!((bench.generation(), bench.status.pending()), (0, vec!["customresourcedefinition"]));
    bench.send(list(Kind::CustomResourceDefinition, vec![])).await;
    settle().await;
    assert_eq!((bench.generation(), bench.status.pending()), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn the_first_policy_that_names_a_config_map_holds_nothing_up_later() {
    let bench = bench(&[part(Kind::Ingress), part(Kind::BackendTlsPolicy)]);
    bench.send(list(Kind::Ingress, vec![])).await;
    bench.send(list(Kind::BackendTlsPolicy, vec![policy("system", None)])).await;
    quiet().await;
    assert_eq!((bench.generation(), *bench.config_maps.borrow()), (1, false));
    bench.send(Update::Apply(policy("own", Some("ca")))).await;
    bench.add("a").await;
    settle().await;
    assert_eq!((bench.generation(), *bench.config_maps.borrow()), (2, true));
}

#[tokio::test(start_paused = true)]
async fn an_empty_cluster_is_published_too_and_no_change_is_not() {
    let bench = bench(&[part(Kind::Ingress)]);
    bench.send(list(Kind::Ingress, vec![])).await;
    settle().await;
    assert_eq!((bench.generation(), bench.status.published()), (1, true));
    quiet().await;
    bench.send(list(Kind::Ingress, vec![])).await;
    settle().await;
    assert_eq!(bench.generation(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_change_after_quiet_is_served_at_once() {
    let bench = bench(&[part(Kind::Ingress)]);
    bench.send(list(Kind::Ingress, vec![])).await;
    quiet().await;
    let before = Instant::now();
    bench.add("a").await;
    settle().await;
    assert_eq!((bench.generation(), before.elapsed()), (2, Duration::ZERO));
    assert!(bench.reader.load().routes.get(&"a.example.com".parse().unwrap()).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_gathered_and_ends_in_its_final_state() {
    let bench = bench(&[part(Kind::Ingress)]);
    bench.send(list(Kind::Ingress, vec![])).await;
    quiet().await;
    // 1,000 changes in 100 ms
    for n in 0..1000 {
        bench.add(&format!("a{n}")).await;
        if n % 10 == 9 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    quiet().await;
    assert!((2..=13).contains(&bench.passes()), "{} passes", bench.passes());
    assert_eq!(bench.reader.load().routes.len(), 1000);
    let passes = bench.passes.lock().unwrap();
    assert!(passes.windows(2).all(|w| w[1].0 - w[0].0 >= MIN_GAP));
}

#[test]
fn the_gap_follows_the_last_pass_within_bounds() {
    let ms = Duration::from_millis;
    assert_eq!([gap(ms(0)), gap(ms(20)), gap(ms(3000))], [ms(10), ms(80), ms(500)]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_replaces_another_never_shows_an_empty_table() {
    let bench = bench(&[part(Kind::Ingress)]);
    bench.send(list(Kind::Ingress, vec![ingress("a"), ingress("b")])).await;
    quiet().await;
    bench.send(list(Kind::Ingress, vec![ingress("b")])).await;
    quiet().await;
    let seen: Vec<_> = bench.passes.lock().unwrap().iter().map(|p| p.1.join(" ")).collect();
    assert_eq!(seen, ["a b", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_keeps_the_old_snapshot_and_the_next_change_is_processed() {
    let bench = bench(&[part(Kind::Ingress)]);
    bench.send(list(Kind::Ingress, vec![ingress("a")])).await;
    quiet().await;
    bench.add("panic").await;
    bench.add("b").await;
    quiet().await;
    assert_eq!((bench.generation(), bench.task.is_finished()), (1, false));
    assert_eq!(value(&bench.registry, "snapshot_build_failures_total", &[]), Some(2.0));
    bench.remove("panic").await;
    settle().await;
    assert_eq!((bench.generation(), bench.reader.load().routes.len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn mistakes_are_counted_for_as_long_as_they_stand() {
    let bench = bench(&[part(Kind::Ingress)]);
    let count = || value(&bench.registry, "object_errors", &["ingress", "InvalidAnnotation"]);
    bench.send(list(Kind::Ingress, vec![ingress("bad-1"), ingress("bad-2"), ingress("good")])).await;
    quiet().await;
    assert_eq!(count(), Some(2.0));
    bench.add("panic").await;
    quiet().await;
    bench.remove("panic").await;
    quiet().await;
    assert_eq!(count(), Some(2.0), "a fresh translator finds them again");
    bench.remove("bad-1").await;
    quiet().await;
    assert_eq!(count(), Some(1.0));
    bench.send(list(Kind::Ingress, vec![])).await;
    quiet().await;
    assert_eq!(count(), Some(0.0));
}

#[test]
fn after_a_new_start_only_what_is_found_again_stands() {
    let (metrics, registry) = metrics();
    let events = Events::none(metrics.clone());
    let outcome = |name: &str| Outcome {
        source: ResourceRef::new(Kind::Ingress, "shop", name),
        uid: "uid".into(),
        resource_version: "1".into(),
        findings: [Finding { reason: Reason::InvalidAnnotation, field: "f".into(), message: "m".into() }]
            .into(),
    };
    let mut mistakes = Mistakes::default();
    mistakes.tell(outcome("a"), &events);
    mistakes.tell(outcome("b"), &events);
    mistakes.count(&metrics);
    mistakes.start_over();
    mistakes.tell(outcome("b"), &events);
    mistakes.count(&metrics);
    assert_eq!(value(&registry, "object_errors", &["ingress", "InvalidAnnotation"]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_its_sources() {
    let Bench { updates, task, .. } = bench(&[part(Kind::Ingress)]);
    drop(updates);
    task.await.unwrap();
}
