use super::*;
use crate::metrics::testing::{metrics, value};
use futures::stream;
use http::{Request, Response};
use kube::client::Body;
use prometheus::Registry;
use serde_json::{Value, json};
use std::collections::VecDeque;

type Item<K> = watcher::Result<Event<DeserializeGuard<K>>>;

fn ingress(name: &str) -> DeserializeGuard<Ingress> {
    serde_json::from_value(object(name, json!({}))).unwrap()
}

fn broken(name: &str) -> DeserializeGuard<Ingress> {
    serde_json::from_value(object(name, json!("not an object"))).unwrap()
}

fn object(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "spec": spec,
        "metadata": { "namespace": "shop", "name": name, "resourceVersion": "7" }
    })
}

fn failure(code: u16) -> watcher::Error {
    let status: Status = serde_json::from_value(json!({
        "status": "Failure", "message": "no", "code": code, "reason": if code == 403 { "Forbidden" } else { "Expired" }
    }))
    .unwrap();
    watcher::Error::WatchError(Box::new(status))
}

fn watch(optional: bool) -> (Watch, mpsc::Receiver<Update>, Registry) {
    let (metrics, registry) = metrics();
    let (updates, receiver) = mpsc::channel(64);
    let part = Part { kind: Kind::Ingress, namespace: None, labels: None };
    (Watch { part, optional, unreadable: Arc::default(), updates, metrics }, receiver, registry)
}

/// What an update says, in short.
fn words(update: Update) -> String {
    let name = |name: Name| name.to_string();
    match update {
        Update::List { objects, .. } => {
            let names: Vec<_> = objects.iter().map(|o| name(o.name())).collect();
            format!("list {}", names.join(" "))
        }
        Update::Apply(o) => format!("apply {}", name(o.name())),
        Update::Remove(n) => format!("remove {}", name(n)),
        Update::Absent(part) => format!("absent {}", part.kind),
        Update::Refused(part) => format!("refused {}", part.kind),
        Update::Files(_) => "files".into(),
    }
}

/// Follows a stream to its end, however often it is cut off.
async fn follow<K: Watched>(
    watch: &Watch,
    stream: impl Stream<Item = watcher::Result<Event<DeserializeGuard<K>>>>,
) {
    let (mut stream, mut trouble) = (pin!(stream), Trouble::default());
    while watch.follow::<K>(stream.as_mut(), &mut trouble).await == Ended::CutOff {}
}

async fn all(watch: Watch, mut receiver: mpsc::Receiver<Update>, items: Vec<Item<Ingress>>) -> Vec<String> {
    follow(&watch, stream::iter(items)).await;
    drop(watch);
    let mut said = Vec::new();
    while let Some(update) = receiver.recv().await {
        said.push(words(update));
    }
    said
}

#[tokio::test(start_paused = true)]
async fn lists_are_handed_on_whole_and_changes_one_by_one() {
    let (watch, receiver, registry) = watch(false);
    let items = vec![
        Ok(Event::Init),
        Ok(Event::InitApply(ingress("a"))),
        Ok(Event::InitApply(ingress("b"))),
        Ok(Event::InitDone),
        Ok(Event::Apply(ingress("c"))),
        Ok(Event::Delete(ingress("a"))),
        // the watch is too old; the deletion of c is missed; the new list breaks off once
        Err(failure(410)),
        Ok(Event::Init),
        Ok(Event::InitApply(ingress("x"))),
        Err(failure(410)),
        Ok(Event::Init),
        Ok(Event::InitApply(ingress("b"))),
        Ok(Event::InitDone),
    ];
    let said = all(watch, receiver, items).await;
    assert_eq!(
        said,
        [
            "list ingress/shop/a ingress/shop/b",
            "apply ingress/shop/c",
            "remove ingress/shop/a",
            "list ingress/shop/b"
        ]
    );
    assert_eq!(value(&registry, "watch_restarts_total", &["ingress"]), Some(1.0), "one interruption");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_does_not_decode_is_left_out_and_counted() {
    let (watch, receiver, registry) = watch(false);
    let count = || value(&registry, "object_errors", &["ingress", "Undecodable"]);
    let items = vec![
        Ok(Event::Init),
        Ok(Event::InitApply(broken("bad"))),
        Ok(Event::InitApply(ingress("good"))),
        Ok(Event::InitDone),
    ];
    follow(&watch, stream::iter(items)).await;
    assert_eq!(count(), Some(1.0));
    follow(&watch, stream::iter(vec![Ok(Event::Apply(broken("worse")))])).await;
    assert_eq!(count(), Some(2.0));
    let said =
        all(watch, receiver, vec![Ok(Event::Apply(ingress("bad"))), Ok(Event::Delete(broken("worse")))])
            .await;
    assert_eq!(count(), Some(0.0));
    assert_eq!(said, ["list ingress/shop/good", "apply ingress/shop/bad", "remove ingress/shop/worse"]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_lets_the_start_go_on_only_without_what_is_optional() {
    let items = || -> Vec<Item<Ingress>> {
        vec![
            Ok(Event::Init),
            Err(failure(403)),
            Ok(Event::Init),
            Err(failure(403)),
            Ok(Event::Init),
            Ok(Event::InitApply(ingress("a"))),
            Ok(Event::InitDone),
        ]
    };
    let (needed, receiver, registry) = watch(false);
    assert_eq!(all(needed, receiver, items()).await, ["list ingress/shop/a"]);
    assert_eq!(value(&registry, "watch_restarts_total", &["ingress"]), None);
    let (optional, receiver, _) = watch(true);
    assert_eq!(all(optional, receiver, items()).await, ["refused ingress", "list ingress/shop/a"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_is_seen_within_two_seconds_of_a_short_outage() {
    for outage in (250..=5000).step_by(50) {
        let (watch, mut receiver, _) = watch(false);
        let back = Instant::now() + Duration::from_millis(outage);
        let stream = stream::unfold((), move |()| async move {
            let item: Item<Ingress> =
                if Instant::now() < back { Err(failure(500)) } else { Ok(Event::Apply(ingress("a"))) };
            Some((item, ()))
        });
        tokio::select! {
            () = follow(&watch, stream) => unreachable!(),
            update = receiver.recv() => drop(update.unwrap()),
        }
        assert!(back.elapsed() <= Duration::from_secs(2), "{outage} ms: {:?}", back.elapsed());
    }
}

#[test]
fn pauses_grow_to_a_bound_and_interruptions_apart_are_told_apart() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut trouble = Trouble::default();
        assert!(trouble.next().0);
        for _ in 0..100 {
            let (first, pause) = trouble.next();
            assert!(!first && pause <= LAST_RETRY);
        }
        tokio::time::advance(APART * 2).await;
        let (first, pause) = trouble.next();
        assert!(first && pause <= FIRST_RETRY);
    });
}

/// A mock API: answers each list and watch of Ingresses from a script, then lets requests hang;
/// notes the query of each, and the form that it asks for. Other kinds are empty.
fn api(script: Vec<(u16, Value)>, queries: Arc<Mutex<Vec<String>>>) -> kube::Client {
    let script = Arc::new(Mutex::new(VecDeque::from(script)));
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let accept = request.headers().get("accept").map(|accept| accept.to_str().unwrap().to_owned());
        let (script, queries) = (script.clone(), queries.clone());
        async move {
            queries.lock().unwrap().push(format!("{path}?{query} {}", accept.unwrap_or_default()));
            let next = if path.ends_with("/ingresses") {
                script.lock().unwrap().pop_front()
            } else if query.contains("watch=true") {
                None
            } else {
                Some((200, json!({ "metadata": { "resourceVersion": "1" }, "items": [] })))
            };
            let Some((code, body)) = next else { return std::future::pending().await };
            let body = Body::from(format!("{body}\n").into_bytes());
            Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn against_an_api_pages_are_joined_and_a_watch_that_is_too_old_lists_anew() {
    let items = |names: &[&str]| names.iter().map(|n| object(n, json!({}))).collect::<Vec<_>>();
    let gone = json!({ "kind": "Status", "status": "Failure", "reason": "Expired", "message": "too old", "code": 410 });
    let script = vec![
        (200, json!({ "metadata": { "continue": "more" }, "items": items(&["a"]) })),
        (200, json!({ "metadata": { "resourceVersion": "7" }, "items": items(&["b"]) })),
        (200, json!({ "type": "MODIFIED", "object": object("a", json!({})) })),
        (200, json!({ "type": "ERROR", "object": gone })),
        (200, json!({ "metadata": { "resourceVersion": "9" }, "items": items(&["a"]) })),
    ];
    let queries = Arc::default();
    let client = api(script, Arc::clone(&queries));
    let (metrics, _) = metrics();
    let (sender, mut receiver) = mpsc::channel(64);
    let mut tasks = JoinSet::new();
    let parts = start(&client, &[], None, false, &sender, &metrics, &mut tasks);
    assert_eq!(parts.len(), 7);
    let (mut said, mut others) = (Vec::new(), HashSet::new());
    while said.len() < 3 || others.len() < 6 {
        match receiver.recv().await.unwrap() {
            Update::List { part, .. } if part.kind != Kind::Ingress => drop(others.insert(part)),
            update => said.push(words(update)),
        }
    }
    assert_eq!(said, ["list ingress/shop/a ingress/shop/b", "apply ingress/shop/a", "list ingress/shop/a"]);
    let queries = queries.lock().unwrap().join("\n");
    let has = |parts: &[&str]| queries.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has(&["/ingresses?", "limit=500", "continue=more"]), "{queries}");
    assert!(
        has(&["/ingresses?", "watch=true", "allowWatchBookmarks=true", "resourceVersion=7"]),
        "{queries}"
    );
    assert!(has(&["/api/v1/secrets?", "fieldSelector=type%21%3Dhelm.sh%2Frelease.v1"]), "{queries}");
    assert!(has(&["/endpointslices?", "labelSelector=service.kubernetes.io%2Fheadless&"]), "{queries}");
    let foreign =
        "labelSelector=%21service.kubernetes.io%2Fheadless%2Cendpointslice.kubernetes.io%2Fmanaged-by+notin+";
    assert!(has(&["/endpointslices?", foreign]), "{queries}");
    assert!(has(&["/api/v1/namespaces?"]) && has(&["/ingressclasses?"]) && has(&["/services?"]), "{queries}");
}

#[tokio::test(start_paused = true)]
async fn limited_to_namespaces_nothing_cluster_wide_is_needed() {
    let queries = Arc::default();
    let client = api(vec![], Arc::clone(&queries));
    let (metrics, _) = metrics();
    let (sender, mut receiver) = mpsc::channel(64);
    let mut tasks = JoinSet::new();
    let parts = start(&client, &["one".into(), "two".into()], None, false, &sender, &metrics, &mut tasks);
    assert_eq!(parts.len(), 11);
    for _ in 0..9 {
        receiver.recv().await.unwrap();
    }
    let queries = queries.lock().unwrap().clone();
    assert!(
        queries.iter().all(|q| q.contains("/namespaces/") || q.contains("/ingressclasses?")),
        "{queries:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn config_maps_and_definitions_are_read_from_when_they_are_asked_for() {
    let queries: Arc<Mutex<Vec<String>>> = Arc::default();
    let client = api(vec![], Arc::clone(&queries));
    let (metrics, _) = metrics();
    let (sender, mut receiver) = mpsc::channel(64);
    let mut tasks = JoinSet::new();
    let ((ask, config_maps), (define, definitions)) = (cell::channel(false), cell::channel(false));
    let on_demand = OnDemand { config_maps, definitions };
    let parts = start(&client, &[], Some(on_demand), false, &sender, &metrics, &mut tasks);
    // Ingresses are not answered here
    for _ in 1..parts.len() {
        receiver.recv().await.unwrap();
    }
    let late = [
        (ask, Kind::ConfigMap, "/api/v1/configmaps?"),
        (define, Kind::CustomResourceDefinition, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?"),
    ];
    for (ask, kind, path) in &late {
        let read = || queries.lock().unwrap().iter().any(|q| q.starts_with(path));
        assert!(!read() && parts.iter().all(|part| part.kind != *kind), "{kind}");
        ask.send_replace(true);
        let Update::List { part, .. } = receiver.recv().await.unwrap() else { panic!("a list comes") };
        assert_eq!((part.kind, read()), (*kind, true));
    }
    // whole definitions would be megabytes
    let metadata = |path| {
        let queries = queries.lock().unwrap();
        queries.iter().any(|q| q.starts_with(path) && q.contains("as=PartialObjectMeta"))
    };
    assert!(metadata(late[1].2) && metadata("/api/v1/namespaces?"));
}
