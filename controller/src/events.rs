//! Tells users what is wrong with their objects: Warning Events (`events.k8s.io/v1`) on the object.
//!
//! Written here and not by kube's Recorder, which merges all Events of one object and reason into
//! the first one's text: the second bad annotation would stay unsaid. The name of an Event comes
//! from what it says, so every Pod of the DaemonSet, and a restarted one, finds it already there.
//! Never writes any status.

use crate::finding::Finding;
use crate::metrics::{EventResult, Metrics};
use crate::tokens::Tokens;
use ingress_core::{Kind, ResourceRef};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// `reportingController` of every Event.
pub const REPORTER: &str = "tak-os.org/ingress-controller";

const QUEUE: usize = 256;
/// The same thing is said at most once in this time.
const REPEAT: Duration = Duration::from_secs(300);
/// As long as the API server keeps Events: what was said before is forgotten.
const FORGET: Duration = Duration::from_secs(3600);
/// After a refusal by RBAC nothing is tried for this long.
const REFUSED: Duration = Duration::from_secs(300);
const ANSWER: Duration = Duration::from_secs(10);
const PER_SECOND: f64 = 10.0;
const BURST: f64 = 50.0;
/// The API refuses longer notes.
const MAX_NOTE: usize = 1000;
const MAX_INSTANCE: usize = 128;
/// Room for the hash behind the object's name in a name of at most 253.
const MAX_NAME: usize = 253 - 17;

/// The sending side. Never blocks and never fails.
#[derive(Clone)]
pub struct Events {
    queue: Option<mpsc::Sender<Note>>,
    metrics: Metrics,
}

/// One thing to say about one object.
struct Note {
    object: ResourceRef,
    uid: Arc<str>,
    reason: String,
    note: String,
}

impl Events {
    /// Without a cluster the log line that accompanies each finding is all there is.
    pub fn none(metrics: Metrics) -> Self {
        Self { queue: None, metrics }
    }

    /// Events go to the API. The writer must be polled for that.
    pub fn to_api(client: kube::Client, instance: &str, metrics: Metrics) -> (Self, Writer) {
        let (queue, notes) = mpsc::channel(QUEUE);
        let writer = Writer {
            client,
            instance: cut(instance, MAX_INSTANCE).to_owned(),
            notes,
            metrics: metrics.clone(),
            said: HashMap::new(),
            tokens: Tokens::new(PER_SECOND, BURST),
            refused: None,
        };
        (Self { queue: Some(queue), metrics }, writer)
    }

    /// Puts a Warning on the object.
    pub fn warn(&self, object: &ResourceRef, uid: &Arc<str>, finding: &Finding) {
        let Some(queue) = &self.queue else { return };
        let reason = finding.reason.to_string();
        // the id leads to cause and cure in docs/findings.md; it must survive the cut
        let id = format!(" ({})", finding.reason.id());
        let text = finding.text();
        let text = cut(&text, MAX_NOTE - id.len()).to_owned() + &id;
        let note = Note { object: object.clone(), uid: uid.clone(), reason, note: text };
        if queue.try_send(note).is_err() {
            self.metrics.event(EventResult::Dropped);
        }
    }
}

/// Takes notes from the queue and writes them, one after the other.
pub struct Writer {
    client: kube::Client,
    instance: String,
    notes: mpsc::Receiver<Note>,
    metrics: Metrics,
    /// By the Event's name.
    said: HashMap<String, Said>,
    tokens: Tokens,
    /// Until when RBAC's refusal is taken as still standing; kept after that until a success.
    refused: Option<Instant>,
}

struct Said {
    count: i32,
    at: Instant,
}

impl Writer {
    /// Runs until every sender is gone.
    pub async fn run(mut self) {
        while let Some(note) = self.notes.recv().await {
            let result = self.say(&note).await;
            self.metrics.event(result);
        }
    }

    async fn say(&mut self, note: &Note) -> EventResult {
        let name = event_name(note);
        let now = Instant::now();
        let before = self.said.get(&name);
        if before.is_some_and(|said| now.duration_since(said.at) < REPEAT) {
            return EventResult::Suppressed;
        }
        if self.refused.is_some_and(|until| now < until) {
            return EventResult::Forbidden;
        }
        let count = before.map(|said| said.count);
        self.tokens.take().await;
        match timeout(ANSWER, self.write(note, &name, count)).await {
            Ok(Ok(result)) => {
                if self.refused.take().is_some() {
                    tracing::info!("Events can be written again");
                }
                let count = if result == EventResult::Repeated { count.unwrap_or(1) + 1 } else { 1 };
                if self.said.len() >= 1024 {
                    self.said.retain(|_, said| now.duration_since(said.at) < FORGET);
                }
                self.said.insert(name, Said { count, at: now });
                result
            }
            Ok(Err(kube::Error::Api(status))) if status.is_forbidden() && !ending(&status.message) => {
                if self.refused.replace(now + REFUSED).is_none() {
                    tracing::error!(
                        error = %status.message,
                        "not allowed to write Events; mistakes show in the log only until the role has the rule \
                         apiGroups [\"events.k8s.io\"], resources [\"events\"], verbs [\"create\", \"patch\"]"
                    );
                }
                EventResult::Forbidden
            }
            Ok(Err(error)) => {
                tracing::debug!(object = %note.object, %error, "an Event was not written");
                EventResult::Failed
            }
            Err(_) => {
                tracing::debug!(object = %note.object, "an Event was not written: no answer");
                EventResult::Failed
            }
        }
    }

    async fn write(&self, note: &Note, name: &str, count: Option<i32>) -> Result<EventResult, kube::Error> {
        let namespace = if note.object.namespace.is_empty() { "default" } else { &*note.object.namespace };
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        if let Some(count) = count {
            let series = serde_json::json!({
                "series": { "count": count + 1, "lastObservedTime": MicroTime(Timestamp::now()) }
            });
            match api.patch(name, &PatchParams::default(), &Patch::Merge(series)).await {
                Ok(_) => return Ok(EventResult::Repeated),
                // it has expired
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        match api.create(&PostParams::default(), &self.event(note, name, namespace)).await {
            Ok(_) => Ok(EventResult::Created),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(EventResult::Known),
            Err(error) => Err(error),
        }
    }

    fn event(&self, note: &Note, name: &str, namespace: &str) -> Event {
        let (api_version, kind) = api_kind(note.object.kind);
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..Default::default()
            },
            event_time: Some(MicroTime(Timestamp::now())),
            type_: Some("Warning".to_owned()),
            reason: Some(note.reason.clone()),
            action: Some("Configure".to_owned()),
            note: Some(note.note.clone()),
            regarding: Some(ObjectReference {
                api_version: Some(api_version.to_owned()),
                kind: Some(kind.to_owned()),
                namespace: (!note.object.namespace.is_empty()).then(|| note.object.namespace.to_string()),
                name: Some(note.object.name.to_string()),
                uid: (!note.uid.is_empty()).then(|| note.uid.to_string()),
                ..Default::default()
            }),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Default::default()
        }
    }
}

/// A namespace on its way out refuses new objects with the same status as RBAC does.
fn ending(message: &str) -> bool {
    message.contains("being terminated")
}

fn api_kind(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Ingress => ("networking.k8s.io/v1", "Ingress"),
        Kind::IngressClass => ("networking.k8s.io/v1", "IngressClass"),
        Kind::Service => ("v1", "Service"),
        Kind::EndpointSlice => ("discovery.k8s.io/v1", "EndpointSlice"),
        Kind::Secret => ("v1", "Secret"),
        Kind::Namespace => ("v1", "Namespace"),
        Kind::Certificate => ("cert-manager.io/v1", "Certificate"),
        Kind::ConfigMap => ("v1", "ConfigMap"),
        Kind::CustomResourceDefinition => ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        Kind::GatewayClass => ("gateway.networking.k8s.io/v1", "GatewayClass"),
        Kind::Gateway => ("gateway.networking.k8s.io/v1", "Gateway"),
        Kind::ListenerSet => ("gateway.networking.k8s.io/v1", "ListenerSet"),
        Kind::HttpRoute => ("gateway.networking.k8s.io/v1", "HTTPRoute"),
        Kind::GrpcRoute => ("gateway.networking.k8s.io/v1", "GRPCRoute"),
        Kind::TlsRoute => ("gateway.networking.k8s.io/v1", "TLSRoute"),
        Kind::ReferenceGrant => ("gateway.networking.k8s.io/v1", "ReferenceGrant"),
        Kind::BackendTlsPolicy => ("gateway.networking.k8s.io/v1", "BackendTLSPolicy"),
    }
}

/// The same for the same words about the same object, whoever says them.
fn event_name(note: &Note) -> String {
    let object = note.object.to_string();
    let hash = openssl::sha::sha256([&object, &*note.uid, &note.reason, &note.note].join("\0").as_bytes());
    let mut name = cut(&note.object.name, MAX_NAME).trim_end_matches(['.', '-']).to_owned();
    name.push('.');
    for byte in &hash[..8] {
        // writing to a String does not fail
        let _ = write!(name, "{byte:02x}");
    }
    name
}

fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests;
