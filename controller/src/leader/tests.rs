use super::*;
use crate::metrics::testing::{metrics, value};
use http::{Method, Request, Response};
use kube::client::Body;
use prometheus::Registry;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// One Lease as an API server keeps it, and how the server is.
#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
    /// Answered instead, to everybody or to whose identity begins with this.
    answer: Option<u16>,
    writes: usize,
    asked: usize,
}

type Shared = Arc<Mutex<Server>>;

fn client(server: &Shared) -> kube::Client {
    let server = server.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = server.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (code, answer) = server.lock().unwrap().answer(&head.method, head.uri.path(), body);
            let body = Body::from(answer.to_string().into_bytes());
            Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
        }
    });
    kube::Client::new(service, "home")
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str, mut body: Value) -> (u16, Value) {
        assert!(path.starts_with("/apis/coordination.k8s.io/v1/namespaces/home/leases"), "{path}");
        self.asked += 1;
        let failed = |code: u16| {
            let reason = match code {
                403 => "Forbidden",
                404 => "NotFound",
                409 => "Conflict",
                _ => "InternalError",
            };
            (
                code,
                json!({ "kind": "Status", "status": "Failure", "reason": reason, "message": "no", "code": code }),
            )
        };
        if let Some(code) = self.answer {
            return failed(code);
        }
        if *method == Method::GET {
            return self.lease.clone().map_or_else(|| failed(404), |lease| (200, lease));
        }
        let known = self.lease.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
        let fits = match &known {
            Some(version) => *method == Method::PUT && body["metadata"]["resourceVersion"] == *version,
            None => *method == Method::POST,
        };
        if !fits {
            return failed(409);
        }
        self.version += 1;
        self.writes += 1;
        body["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(body.clone());
        (200, body)
    }

    fn holder(&self) -> String {
        let lease = self.lease.as_ref().unwrap();
        lease["spec"]["holderIdentity"].as_str().unwrap().to_owned()
    }
}

struct Pod {
    role: watch::Receiver<Role>,
    needed: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
    registry: Registry,
}

fn pod(name: &str, server: &Shared) -> Pod {
    let (needed, is_needed) = watch::channel(true);
    let (metrics, registry) = metrics();
    let (elector, role) = Elector::new(client(server), name, is_needed, metrics);
    Pod { role, needed, task: tokio::spawn(elector.run()), registry }
}

impl Pod {
    fn role(&self) -> Role {
        *self.role.borrow()
    }
}

async fn seconds(n: u64) {
    sleep(Duration::from_secs(n)).await;
}

#[tokio::test(start_paused = true)]
async fn one_of_two_leads_and_the_other_takes_over_when_it_is_gone() {
    let server = Shared::default();
    let first = pod("a", &server);
    seconds(1).await;
    let second = pod("b", &server);
    seconds(60).await;
    assert_eq!((first.role(), second.role()), (Role::Leading, Role::Following));
    assert_eq!(value(&first.registry, "leader", &[]), Some(1.0));
    assert_eq!(value(&second.registry, "leader", &[]), Some(0.0));
    first.task.abort();
    seconds(12).await;
    assert_eq!(second.role(), Role::Following);
    seconds(8).await;
    assert_eq!(second.role(), Role::Leading);
    let server = server.lock().unwrap();
    assert!(server.holder().starts_with("b_"));
    assert_eq!(server.lease.as_ref().unwrap()["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_back_under_its_name_is_another_one() {
    let server = Shared::default();
    let first = pod("a", &server);
    seconds(1).await;
    first.task.abort();
    let second = pod("a", &server);
    seconds(5).await;
    assert_eq!(second.role(), Role::Following);
    seconds(20).await;
    assert_eq!(second.role(), Role::Leading);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_stops_before_the_lease_runs_out() {
    let server = Shared::default();
    let pod = pod("a", &server);
    seconds(1).await;
    assert_eq!(pod.role(), Role::Leading);
    server.lock().unwrap().answer = Some(500);
    seconds(8).await;
    assert_eq!(pod.role(), Role::Leading);
    seconds(6).await;
    assert_eq!(pod.role(), Role::Following);
    server.lock().unwrap().answer = None;
    seconds(4).await;
    assert_eq!(pod.role(), Role::Leading);
}

#[tokio::test(start_paused = true)]
async fn where_leases_are_refused_each_pod_writes() {
    let server = Shared::default();
    server.lock().unwrap().answer = Some(403);
    let pod = pod("a", &server);
    seconds(1).await;
    assert_eq!(pod.role(), Role::Alone);
    server.lock().unwrap().answer = None;
    seconds(61).await;
    assert_eq!(pod.role(), Role::Leading);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_there_is_something_to_write() {
    let server = Shared::default();
    let (metrics, _) = metrics();
    let (needed, is_needed) = watch::channel(false);
    let (elector, role) = Elector::new(client(&server), "a", is_needed, metrics);
    tokio::spawn(elector.run());
    seconds(3600).await;
    assert_eq!((server.lock().unwrap().asked, *role.borrow()), (0, Role::Waiting));
    needed.send_replace(true);
    seconds(1).await;
    assert_eq!((server.lock().unwrap().writes, *role.borrow()), (1, Role::Leading));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_else_took_in_between_is_not_taken_from_them() {
    let server = Shared::default();
    let pod = pod("a", &server);
    seconds(1).await;
    {
        let mut server = server.lock().unwrap();
        server.version += 1;
        let version = server.version.to_string();
        let lease = server.lease.as_mut().unwrap();
        lease["spec"]["holderIdentity"] = "other".into();
        lease["metadata"]["resourceVersion"] = version.into();
    }
    seconds(5).await;
    assert_eq!(pod.role(), Role::Following);
    assert_eq!(server.lock().unwrap().holder(), "other");
    assert!(*pod.needed.borrow());
}
