//! The only file that writes what the product owns into the API: statuses of Gateway API objects, Certificates.
//!
//! What is to be written comes from the translation as plain values, one per object at most: a newer one takes the
//! place of an older one that still waits, so the queue never holds more than there are objects. Only the Pod that
//! leads writes; the others drop what they are given, and are fed anew with everything when they come to lead.
//!
//! A status is a merge patch that carries the `resourceVersion` it was computed from. The API refuses it when the
//! object has moved on, so nothing that another controller or a newer generation wrote is ever overwritten: the news
//! of that move is on its way through the watch, and brings a patch that fits. Server-side apply cannot do this, for
//! a route's `status.parents` is an atomic list that several controllers share. Whole objects that are ours alone
//! are applied server-side.

use crate::leader::Role;
use crate::metrics::{Metrics, WriteResult};
use crate::tokens::Tokens;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

/// Owner of the fields that are applied.
pub const FIELD_MANAGER: &str = "tak-os-ingress";

const ANSWER: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// RBAC is not mended within seconds.
const REFUSED: Duration = Duration::from_secs(60);
const PER_SECOND: f64 = 100.0;
const BURST: f64 = 200.0;
/// More objects than this do not wait at once; what finds no room comes again with the next change or leader.
const ROOM: usize = 100_000;

/// An object that is written to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// API group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// `kind`, as in a manifest.
    pub kind: &'static str,
    /// Name of the kind in paths and roles.
    pub plural: &'static str,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// Name within the namespace.
    pub name: Arc<str>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind.to_ascii_lowercase())?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// What is to be done to it.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The object is as it should be: what still waits for it is void.
    Nothing,
    /// A merge patch of `status`, good only for this version of the object.
    Status {
        /// `metadata.resourceVersion` that the patch was computed from.
        from: Arc<str>,
        /// The new value of each changed field of `status`.
        status: serde_json::Value,
    },
    /// Server-side apply for an object that is not there: where somebody else was faster, nothing is taken over.
    Create(
        /// The object with the fields that are ours.
        serde_json::Value,
    ),
    /// Server-side apply of the whole object: these fields are ours.
    Apply(
        /// The object with the fields that are ours.
        serde_json::Value,
    ),
}

/// A change to one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The object.
    pub target: Target,
    /// The change.
    pub change: Change,
}

/// The sending side: never blocks and never fails.
#[derive(Clone)]
pub(crate) struct Writes(Option<Arc<Desk>>);

struct Desk {
    waiting: Mutex<Waiting>,
    news: Notify,
    role: watch::Receiver<Role>,
    /// Somebody has something to write: only then is a leader needed.
    needed: watch::Sender<bool>,
}

#[derive(Default)]
struct Waiting {
    order: VecDeque<Target>,
    changes: HashMap<Target, Pending>,
    /// The version that was patched last, until the object is seen with the patch: the same patch is not sent twice.
    patched: HashMap<Target, Arc<str>>,
}

struct Pending {
    change: Change,
    attempts: u32,
    not_before: Instant,
}

impl Desk {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writes {
    /// Without a cluster there is nothing to write to: statuses are log lines.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Changes go to the API while `role` allows it. The writer must be polled for that.
    pub(crate) fn to_api(
        client: kube::Client,
        role: watch::Receiver<Role>,
        needed: watch::Sender<bool>,
        metrics: Metrics,
    ) -> (Self, Writer) {
        let desk =
            Arc::new(Desk { waiting: Mutex::default(), news: Notify::new(), role: role.clone(), needed });
        let writer = Writer {
            client,
            desk: desk.clone(),
            role,
            metrics,
            tokens: Tokens::new(PER_SECOND, BURST),
            refused: HashSet::new(),
        };
        (Self(Some(desk)), writer)
    }

    /// Puts in what is to be written.
    pub(crate) fn put(&self, writes: Vec<Write>) {
        let Some(desk) = &self.0 else { return };
        if writes.is_empty() {
            return;
        }
        if writes.iter().any(|write| write.change != Change::Nothing) {
            desk.needed.send_if_modified(|needed| !std::mem::replace(needed, true));
        }
        if !desk.role.borrow().may_write() {
            return;
        }
        let mut waiting = desk.waiting();
        for write in writes {
            waiting.put(write);
        }
        drop(waiting);
        desk.news.notify_one();
    }

    /// Tells when this Pod comes to write.
    pub(crate) fn succession(&self) -> Succession {
        Succession { role: self.0.as_ref().map(|desk| desk.role.clone()), was: false }
    }
}

/// Whether this Pod writes, as last heard.
pub(crate) struct Succession {
    role: Option<watch::Receiver<Role>>,
    was: bool,
}

impl Succession {
    /// Waits until this Pod comes to write; for ever where there is no cluster.
    pub(crate) async fn comes(&mut self) {
        let Some(role) = &mut self.role else { return std::future::pending().await };
        loop {
            let now = role.borrow_and_update().may_write();
            if !std::mem::replace(&mut self.was, now) && now {
                return;
            }
            if role.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

impl Waiting {
    fn put(&mut self, write: Write) {
        let Write { target, change } = write;
        match &change {
            Change::Nothing => {
                self.changes.remove(&target);
                self.patched.remove(&target);
                return;
            }
            Change::Status { from, .. } if self.patched.get(&target) == Some(from) => return,
            Change::Status { .. } | Change::Create(_) | Change::Apply(_) => {}
        }
        let pending = Pending { change, attempts: 0, not_before: Instant::now() };
        if let Some(old) = self.changes.get_mut(&target) {
            *old = pending;
        } else if self.changes.len() < ROOM {
            self.order.push_back(target.clone());
            self.changes.insert(target, pending);
        }
    }

    /// Takes the first change whose time has come; else says when the next one's does.
    fn next(&mut self, now: Instant) -> Result<(Target, Change), Option<Instant>> {
        let mut soonest: Option<Instant> = None;
        for _ in 0..self.order.len() {
            let Some(target) = self.order.pop_front() else { break };
            // what became void is forgotten here
            let Some(pending) = self.changes.get(&target) else { continue };
            if pending.not_before <= now {
                return Ok((target, pending.change.clone()));
            }
            soonest = Some(soonest.map_or(pending.not_before, |s| s.min(pending.not_before)));
            self.order.push_back(target);
        }
        Err(soonest)
    }

    /// The change was tried. It is void now, or comes again after a pause, unless a newer one took its place.
    fn tried(&mut self, target: Target, change: &Change, result: Tried) {
        let Some(pending) = self.changes.get_mut(&target) else { return };
        if pending.change == *change {
            let pause = match result {
                Tried::Done | Tried::Void => {
                    self.changes.remove(&target);
                    if let (Tried::Done, Change::Status { from, .. }) = (result, change) {
                        self.patched.insert(target, from.clone());
                    }
                    return;
                }
                Tried::Refused => REFUSED,
                Tried::Again => (FIRST_RETRY * 2_u32.pow(pending.attempts.min(10))).min(LAST_RETRY),
            };
            pending.attempts += 1;
            pending.not_before = Instant::now() + pause;
        }
        self.order.push_back(target);
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[derive(Clone, Copy)]
enum Tried {
    Done,
    Void,
    Refused,
    Again,
}

/// Takes changes from the desk and writes them, one after the other.
pub(crate) struct Writer {
    client: kube::Client,
    desk: Arc<Desk>,
    role: watch::Receiver<Role>,
    metrics: Metrics,
    tokens: Tokens,
    /// Kinds whose refusal was told of.
    refused: HashSet<&'static str>,
}

impl Writer {
    /// Runs for as long as it is polled.
    pub(crate) async fn run(mut self) {
        loop {
            if !self.role.borrow_and_update().may_write() {
                self.desk.waiting().clear();
                if self.role.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let next = self.desk.waiting().next(Instant::now());
            match next {
                Ok((target, change)) => {
                    self.tokens.take().await;
                    let result = self.write(&target, &change).await;
                    self.desk.waiting().tried(target, &change, result);
                }
                Err(soonest) => {
                    let pause = soonest.map_or(Duration::from_secs(3600), |at| at - Instant::now());
                    tokio::select! {
                        () = self.desk.news.notified() => {}
                        () = sleep(pause) => {}
                        _ = self.role.changed() => {}
                    }
                }
            }
        }
    }

    async fn write(&mut self, target: &Target, change: &Change) -> Tried {
        let kind = target.plural.trim_end_matches('s');
        let (result, tried) = match timeout(ANSWER, self.send(target, change)).await {
            Ok(Ok(())) => {
                if self.refused.remove(target.plural) {
                    tracing::info!("{} can be written again", target.plural);
                }
                (WriteResult::Written, Tried::Done)
            }
            Ok(Err(kube::Error::Api(status))) => match status.code {
                // what is behind it comes through the watch
                409 => (WriteResult::Conflict, Tried::Void),
                404 => (WriteResult::Gone, Tried::Void),
                403 => {
                    self.refuse(target, change, &status.message);
                    (WriteResult::Forbidden, Tried::Refused)
                }
                400 | 422 => {
                    tracing::error!(object = %target, error = %status.message, "the API takes this for invalid");
                    (WriteResult::Invalid, Tried::Void)
                }
                _ => {
                    tracing::debug!(object = %target, error = %status.message, "not written yet");
                    (WriteResult::Failed, Tried::Again)
                }
            },
            Ok(Err(error)) => {
                tracing::debug!(object = %target, %error, "not written yet");
                (WriteResult::Failed, Tried::Again)
            }
            Err(_) => {
                tracing::debug!(object = %target, "not written yet: no answer");
                (WriteResult::Failed, Tried::Again)
            }
        };
        self.metrics.wrote(kind, result);
        tried
    }

    async fn send(&self, target: &Target, change: &Change) -> Result<(), kube::Error> {
        let kind = GroupVersionKind::gvk(target.group, target.version, target.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, target.plural);
        let api: Api<DynamicObject> = if target.namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), &target.namespace, &resource)
        };
        match change {
            Change::Nothing => Ok(()),
            Change::Status { from, status } => {
                let body = serde_json::json!({
                    "metadata": { "resourceVersion": &**from },
                    "status": status,
                });
                let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
                api.patch_status(&target.name, &params, &Patch::Merge(body)).await.map(drop)
            }
            Change::Create(body) => {
                let params = PatchParams::apply(FIELD_MANAGER);
                api.patch(&target.name, &params, &Patch::Apply(body)).await.map(drop)
            }
            Change::Apply(body) => {
                let params = PatchParams::apply(FIELD_MANAGER).force();
                api.patch(&target.name, &params, &Patch::Apply(body)).await.map(drop)
            }
        }
    }

    fn refuse(&mut self, target: &Target, change: &Change, message: &str) {
        if !self.refused.insert(target.plural) {
            return;
        }
        let (group, plural) = (target.group, target.plural);
        let (part, verbs) = match change {
            Change::Create(_) | Change::Apply(_) => ("", r#""create", "patch""#),
            _ => ("/status", r#""patch""#),
        };
        tracing::error!(
            error = %message,
            "not allowed to write {plural}{part}: the role needs the rule \
             apiGroups [\"{group}\"], resources [\"{plural}{part}\"], verbs [{verbs}]"
        );
    }
}

#[cfg(test)]
mod tests;
