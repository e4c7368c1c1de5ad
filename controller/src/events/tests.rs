use super::*;
use crate::finding::Reason;
use crate::metrics::testing::{metrics, value};
use http::{Method, Request, Response};
use kube::client::Body;
use prometheus::Registry;
use serde_json::{Value, json};
use std::sync::Mutex;

/// What the mock API was asked: method, path, body.
type Calls = Arc<Mutex<Vec<(Method, String, Value)>>>;

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
            calls.push((head.method, head.uri.path().to_owned(), body.clone()));
            Ok::<_, kube::Error>(answer(code, body))
        }
    });
    (kube::Client::new(service, "default"), calls)
}

fn answer(code: u16, body: Value) -> Response<Body> {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "AlreadyExists",
        _ => "InternalError",
    };
    let body = if code < 300 {
        json!({ "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": body["metadata"], "eventTime": null })
    } else {
        json!({ "kind": "Status", "status": "Failure", "reason": reason, "message": "no", "code": code })
    };
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap()
}

fn finding(field: &str, message: &str) -> Finding {
    Finding { reason: Reason::InvalidAnnotation, field: field.into(), message: message.into() }
}

/// Says each of these about the Ingress shop/web, one after the other.
async fn say(writer: &mut Writer, findings: &[Finding]) {
    let (events, _) = Events::to_api(writer.client.clone(), "pod", writer.metrics.clone());
    let (queue, mut notes) = mpsc::channel(16);
    let events = Events { queue: Some(queue), ..events };
    for finding in findings {
        events.warn(&ResourceRef::new(Kind::Ingress, "shop", "web"), &"uid-1".into(), finding);
        let note = notes.recv().await.unwrap();
        let result = writer.say(&note).await;
        writer.metrics.event(result);
    }
}

fn writer(answers: &'static [u16]) -> (Writer, Calls, Registry) {
    let (client, calls) = api(answers);
    let (metrics, registry) = metrics();
    let (_, writer) = Events::to_api(client, "pod-1", metrics);
    (writer, calls, registry)
}

fn events(registry: &Registry, result: &str) -> f64 {
    value(registry, "events_total", &[result]).unwrap_or(0.0)
}

#[tokio::test(start_paused = true)]
async fn a_mistake_becomes_a_warning_on_the_object() {
    let (mut writer, calls, registry) = writer(&[201]);
    say(&mut writer, &[finding("ingress.tak-os.org/ssl-redirect", "\"yes\" is neither true nor false")])
        .await;
    let calls = calls.lock().unwrap();
    let [(method, path, body)] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!((method, path.as_str()), (&Method::POST, "/apis/events.k8s.io/v1/namespaces/shop/events"));
    assert_eq!(body["type"], "Warning");
    assert_eq!(body["reason"], "InvalidAnnotation");
    assert_eq!(body["note"], "ingress.tak-os.org/ssl-redirect: \"yes\" is neither true nor false (TAK-1001)");
    assert_eq!(
        body["regarding"],
        json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "namespace": "shop", "name": "web", "uid": "uid-1" })
    );
    assert_eq!(body["metadata"]["namespace"], "shop");
    assert!(body["metadata"]["name"].as_str().unwrap().starts_with("web."));
    assert_eq!(
        (&body["reportingController"], &body["reportingInstance"]),
        (&json!(REPORTER), &json!("pod-1"))
    );
    assert!(body["action"].is_string() && body["eventTime"].is_string());
    assert_eq!(events(&registry, "created"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn the_same_is_not_said_twice_but_another_field_or_message_is() {
    let (mut writer, calls, registry) = writer(&[201]);
    let same = finding("a", "wrong");
    say(&mut writer, &[same.clone(), same.clone(), finding("b", "wrong"), finding("a", "wrong too")]).await;
    assert_eq!((calls.lock().unwrap().len(), events(&registry, "suppressed")), (3, 1.0));
    let names: std::collections::HashSet<_> =
        calls.lock().unwrap().iter().map(|c| c.2["metadata"]["name"].to_string()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn a_repeat_after_a_while_raises_the_count_or_starts_over() {
    let (mut writer, calls, registry) = writer(&[201, 200, 404, 201]);
    let same = finding("a", "wrong");
    for _ in 0..3 {
        say(&mut writer, std::slice::from_ref(&same)).await;
        tokio::time::advance(REPEAT).await;
    }
    let calls = calls.lock().unwrap();
    let methods: Vec<_> = calls.iter().map(|c| c.0.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "PATCH", "POST"]);
    let name = calls[0].2["metadata"]["name"].as_str().unwrap();
    assert!(calls[1].1.ends_with(name), "{}", calls[1].1);
    assert_eq!((&calls[1].2["series"]["count"], &calls[2].2["series"]["count"]), (&json!(2), &json!(3)));
    assert_eq!((events(&registry, "created"), events(&registry, "repeated")), (2.0, 1.0));
}

#[tokio::test(start_paused = true)]
async fn another_pods_or_an_earlier_runs_event_is_left_alone() {
    let (mut one, first, _) = writer(&[201]);
    let (mut two, second, registry) = writer(&[409]);
    let same = [finding("a", "wrong")];
    say(&mut one, &same).await;
    say(&mut two, &same).await;
    let name = |calls: &Calls| calls.lock().unwrap()[0].2["metadata"]["name"].clone();
    assert_eq!(name(&first), name(&second));
    assert_eq!((second.lock().unwrap().len(), events(&registry, "known")), (1, 1.0));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_rbac_makes_it_quiet_for_a_while() {
    let (mut writer, calls, registry) = writer(&[403, 201]);
    say(&mut writer, &[finding("a", "1"), finding("b", "2"), finding("c", "3")]).await;
    assert_eq!((calls.lock().unwrap().len(), events(&registry, "forbidden")), (1, 3.0));
    tokio::time::advance(REFUSED).await;
    say(&mut writer, &[finding("a", "1")]).await;
    assert_eq!((calls.lock().unwrap().len(), events(&registry, "created")), (2, 1.0));
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_slowed_and_the_queue_is_bounded() {
    let (client, calls) = api(&[201]);
    let (metrics, registry) = metrics();
    let (events_to, writer) = Events::to_api(client, "pod", metrics);
    let start = Instant::now();
    for n in 0..1000 {
        let object = ResourceRef::new(Kind::Ingress, "shop", format!("web-{n}"));
        events_to.warn(&object, &"uid".into(), &finding("a", "wrong"));
    }
    drop(events_to);
    writer.run().await;
    assert_eq!(calls.lock().unwrap().len(), QUEUE);
    assert_eq!(events(&registry, "dropped"), (1000 - QUEUE) as f64);
    let slowest = (QUEUE as f64 - BURST) / PER_SECOND;
    let took = start.elapsed().as_secs_f64();
    assert!((slowest - 0.5..slowest + 5.0).contains(&took), "{took}");
}

#[test]
fn long_names_and_notes_are_cut_to_what_the_api_takes() {
    let note = |name: &str| Note {
        object: ResourceRef::new(Kind::Ingress, "shop", name),
        uid: "".into(),
        reason: String::new(),
        note: String::new(),
    };
    let name = event_name(&note(&"a.".repeat(126)));
    assert!(name.len() <= 253 && !name.contains(".."), "{name}");
    assert_eq!(cut("äöü", 3), "ä");
}
