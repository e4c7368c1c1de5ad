use super::*;
use crate::metrics::testing::{metrics, value};
use http::{Request, Response};
use kube::client::Body;
use prometheus::Registry;
use serde_json::{Value, json};

/// What the mock API was asked: method and path, body.
type Calls = Arc<Mutex<Vec<(String, Value)>>>;

/// An API that answers the n-th request with the n-th of `answers` (then the last one again).
fn api(answers: &'static [u16]) -> (kube::Client, Calls) {
    let calls = Calls::default();
    let seen = calls.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let seen = seen.clone();
        async move {
            let (head, body) = request.into_parts();
            let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap();
            let mut calls = seen.lock().unwrap();
            let code = answers[calls.len().min(answers.len() - 1)];
            calls.push((format!("{} {}", head.method, head.uri), body));
            let answer = if code < 300 {
                json!({ "apiVersion": "v1", "kind": "Gateway", "metadata": { "name": "gw" } })
            } else {
                json!({ "kind": "Status", "status": "Failure", "reason": "x", "message": "no", "code": code })
            };
            let body = Body::from(answer.to_string().into_bytes());
            Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
        }
    });
    (kube::Client::new(service, "default"), calls)
}

struct Bench {
    writes: Writes,
    role: watch::Sender<Role>,
    needed: watch::Receiver<bool>,
    calls: Calls,
    registry: Registry,
}

fn bench(role: Role, answers: &'static [u16]) -> Bench {
    let (client, calls) = api(answers);
    let (metrics, registry) = metrics();
    let (role, follow) = watch::channel(role);
    let (needed, is_needed) = watch::channel(false);
    let (writes, writer) = Writes::to_api(client, follow, needed, metrics);
    tokio::spawn(writer.run());
    Bench { writes, role, needed: is_needed, calls, registry }
}

impl Bench {
    /// Lets the writer do what it can in this time, and counts what it has asked so far.
    async fn after(&self, time: Duration) -> usize {
        sleep(time).await;
        self.calls.lock().unwrap().len()
    }

    fn count(&self, result: &str) -> f64 {
        value(&self.registry, "status_writes_total", &["gateway", result]).unwrap_or(0.0)
    }
}

fn target(name: &str) -> Target {
    Target {
        group: "gateway.networking.k8s.io",
        version: "v1",
        kind: "Gateway",
        plural: "gateways",
        namespace: "infra".into(),
        name: name.into(),
    }
}

fn status(name: &str, from: &str, value: &str) -> Write {
    let change = Change::Status { from: from.into(), status: json!({ "a": value }) };
    Write { target: target(name), change }
}

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_status_is_a_merge_patch_that_names_the_version_it_was_computed_from() {
    let bench = bench(Role::Leading, &[200]);
    bench.writes.put(vec![status("gw", "7", "x")]);
    assert_eq!(bench.after(LONG).await, 1);
    let calls = bench.calls.lock().unwrap();
    let (asked, body) = &calls[0];
    let path =
        "/apis/gateway.networking.k8s.io/v1/namespaces/infra/gateways/gw/status?&fieldManager=tak-os-ingress";
    assert_eq!(*asked, format!("PATCH {path}"));
    assert_eq!(*body, json!({ "metadata": { "resourceVersion": "7" }, "status": { "a": "x" } }));
    assert_eq!(bench.count("written"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn an_object_of_ours_is_applied_by_force() {
    let bench = bench(Role::Alone, &[200]);
    bench.writes.put(vec![Write { target: target("gw"), change: Change::Apply(json!({ "spec": {} })) }]);
    assert_eq!(bench.after(LONG).await, 1);
    let calls = bench.calls.lock().unwrap();
    assert!(calls[0].0.ends_with("/gateways/gw?&force=true&fieldManager=tak-os-ingress"), "{}", calls[0].0);
}

#[tokio::test(start_paused = true)]
async fn only_the_newest_of_several_is_written_and_nothing_when_all_is_well() {
    let bench = bench(Role::Leading, &[200]);
    bench.writes.put(vec![status("a", "1", "x"), status("b", "1", "x"), status("c", "1", "x")]);
    bench.writes.put(vec![status("a", "2", "y"), Write { target: target("b"), change: Change::Nothing }]);
    assert_eq!(bench.after(LONG).await, 2);
    let calls = bench.calls.lock().unwrap();
    assert_eq!(calls.iter().map(|(_, body)| &body["status"]["a"]).collect::<Vec<_>>(), ["y", "x"]);
}

#[tokio::test(start_paused = true)]
async fn a_patch_of_a_version_that_was_patched_is_not_sent_again() {
    let bench = bench(Role::Leading, &[200]);
    for from in ["1", "1", "2"] {
        bench.writes.put(vec![status("gw", from, "x")]);
        bench.after(SHORT).await;
    }
    assert_eq!(bench.after(LONG).await, 2);
    // seen with the patch, then changed by somebody back to a version of the same name (a restored etcd)
    bench.writes.put(vec![Write { target: target("gw"), change: Change::Nothing }]);
    bench.writes.put(vec![status("gw", "2", "x")]);
    assert_eq!(bench.after(LONG).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_and_an_object_that_is_gone_are_left_to_the_watch() {
    let bench = bench(Role::Leading, &[409, 404, 422]);
    for name in ["a", "b", "c"] {
        bench.writes.put(vec![status(name, "1", "x")]);
    }
    assert_eq!(bench.after(LONG).await, 3);
    assert_eq!((bench.count("conflict"), bench.count("gone"), bench.count("invalid")), (1.0, 1.0, 1.0));
    // the same patch may be tried again: it was not taken
    bench.writes.put(vec![status("a", "1", "x")]);
    assert_eq!(bench.after(LONG).await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_failing_api_is_asked_again_with_growing_pauses() {
    let bench = bench(Role::Leading, &[500, 503, 500, 200]);
    bench.writes.put(vec![status("gw", "1", "x")]);
    assert_eq!(bench.after(SHORT).await, 1);
    assert_eq!(bench.after(Duration::from_millis(200)).await, 2);
    assert_eq!(bench.after(Duration::from_millis(200)).await, 2);
    assert_eq!(bench.after(LONG).await, 4);
    assert_eq!((bench.count("failed"), bench.count("written")), (3.0, 1.0));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_tried_again_once_a_minute() {
    let bench = bench(Role::Leading, &[403]);
    bench.writes.put(vec![status("gw", "1", "x")]);
    assert_eq!(bench.after(Duration::from_secs(50)).await, 1);
    assert_eq!(bench.after(Duration::from_secs(60)).await, 2);
    assert_eq!(bench.count("forbidden"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_writes_nothing_and_says_that_a_leader_is_needed() {
    let bench = bench(Role::Following, &[500]);
    assert!(!*bench.needed.borrow());
    bench.writes.put(vec![Write { target: target("gw"), change: Change::Nothing }]);
    assert!(!*bench.needed.borrow());
    bench.writes.put(vec![status("gw", "1", "x")]);
    assert!(*bench.needed.borrow());
    assert_eq!(bench.after(LONG).await, 0);
    // what it was given is forgotten: it is fed anew
    bench.role.send_replace(Role::Leading);
    assert_eq!(bench.after(LONG).await, 0);
    bench.writes.put(vec![status("gw", "1", "x")]);
    assert!(bench.after(SHORT).await > 0);
    bench.role.send_replace(Role::Following);
    let asked = bench.after(SHORT).await;
    assert_eq!(bench.after(LONG).await, asked);
}

#[tokio::test(start_paused = true)]
async fn coming_to_lead_is_told_once_each_time_even_between_two_looks() {
    let bench = bench(Role::Waiting, &[200]);
    let mut succession = bench.writes.succession();
    let mut came = async || timeout(SHORT, succession.comes()).await.is_ok();
    assert!(!came().await);
    bench.role.send_replace(Role::Leading);
    assert!(came().await);
    assert!(!came().await);
    bench.role.send_replace(Role::Following);
    assert!(!came().await);
    bench.role.send_replace(Role::Alone);
    assert!(came().await);
}
