//! The only loop: takes updates in, decides when to translate, publishes, tells of mistakes.
//!
//! It owns the `Cluster`, so there is nothing to lock and each pass sees one consistent picture.

use crate::cluster::{Cluster, Dirty};
use crate::events::Events;
use crate::finding::{Finding, Outcome, Reason};
use crate::metrics::Metrics;
use crate::sync::SyncStatus;
use crate::translate::{self, Translation, Translator};
use crate::update::Update;
use crate::watch::Part;
use crate::write::Writes;
use ingress_core::{CertStore, Kind, Publisher, ResourceRef};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Passes are at least this far apart.
const MIN_GAP: Duration = Duration::from_millis(10);
/// A burst never delays a pass longer.
const MAX_GAP: Duration = Duration::from_millis(500);

/// What turns objects into routes; a trait for the tests' sake.
pub(crate) trait Translate {
    fn translate(&mut self, cluster: &Cluster, dirty: &Dirty) -> Translation;
}

impl Translate for Translator {
    fn translate(&mut self, cluster: &Cluster, dirty: &Dirty) -> Translation {
        Translator::translate(self, cluster, dirty)
    }
}

/// What must be there before the first pass.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    pub parts: HashSet<Part>,
    pub files: bool,
    /// Says that ConfigMaps are to be read, which is when a policy or Gateway names one.
    pub config_maps: watch::Sender<bool>,
    /// Says that definitions are to be read, which is when there is a GatewayClass of ours.
    pub definitions: watch::Sender<bool>,
}

impl Awaited {
    fn is_empty(&self) -> bool {
        self.parts.is_empty() && !self.files
    }
}

/// Where the results go that are not for the data plane.
pub(crate) struct Telling {
    /// What is wrong with objects.
    pub events: Events,
    /// Statuses, and objects that are ours.
    pub writes: Writes,
}

/// The loop's state. `fresh` makes a translator that remembers nothing.
pub(crate) struct Rebuild<'a, T, F> {
    fresh: F,
    translator: T,
    cluster: Cluster,
    dirty: Dirty,
    awaited: Awaited,
    /// Where policies are watched (`None`: in the whole cluster), and so ConfigMaps.
    policy_namespaces: Vec<Option<Arc<str>>>,
    /// Whether GatewayClasses are watched, and so definitions can be.
    reads_classes: bool,
    publisher: &'a mut Publisher,
    metrics: Metrics,
    status: Arc<SyncStatus>,
    telling: Telling,
    mistakes: Mistakes,
    /// Whether anything was published by this loop.
    published: bool,
    /// What the metrics were last told.
    certs: Option<Vec<Arc<CertStore>>>,
}

impl<'a, T: Translate, F: FnMut() -> T> Rebuild<'a, T, F> {
    pub(crate) fn new(
        mut fresh: F,
        awaited: Awaited,
        publisher: &'a mut Publisher,
        metrics: Metrics,
        status: Arc<SyncStatus>,
        telling: Telling,
    ) -> Self {
        let translator = fresh();
        let policies = awaited.parts.iter().filter(|part| part.kind == Kind::BackendTlsPolicy);
        let policy_namespaces = policies.map(|part| part.namespace.clone()).collect();
        let reads_classes = awaited.parts.iter().any(|part| part.kind == Kind::GatewayClass);
        Self {
            fresh,
            translator,
            cluster: Cluster::default(),
            dirty: Dirty { everything: true, ..Default::default() },
            awaited,
            policy_namespaces,
            reads_classes,
            publisher,
            metrics,
            status,
            telling,
            mistakes: Mistakes::default(),
            published: false,
            certs: None,
        }
    }

    /// Runs until every sender of updates is gone. A change after quiet is translated at once; in
    /// a burst the next pass waits for what the last one's duration says.
    pub(crate) async fn run(mut self, mut updates: mpsc::Receiver<Update>) {
        let mut due = Instant::now();
        let mut succession = self.telling.writes.succession();
        loop {
            tokio::select! {
                update = updates.recv() => match update {
                    Some(update) => self.take(update),
                    None => return,
                },
                // what it was given before it came to write is forgotten
                () = succession.comes() => self.dirty.writes = true,
            }
            loop {
                tokio::select! {
                    biased;
                    () = sleep_until(due) => break,
                    update = updates.recv() => match update {
                        Some(update) => self.take(update),
                        None => break,
                    },
                }
            }
            // not "while": whoever sends faster than this reads must not hold up the pass
            for _ in 0..updates.len() {
                if let Ok(update) = updates.try_recv() {
                    self.take(update);
                }
            }
            // most of a list that is read anew is known already
            if self.awaited.is_empty() && !(self.published && self.dirty.is_empty()) {
                due = Instant::now() + gap(self.pass());
            }
        }
    }

    fn take(&mut self, update: Update) {
        match &update {
            Update::List { part, .. } => self.arrived(part, true),
            Update::Absent(part) => self.arrived(part, true),
            Update::Refused(part) => self.arrived(part, false),
            Update::Files(_) => {
                self.awaited.files = false;
                self.status.files_done();
                self.metrics.synced("manifests", true);
            }
            Update::Apply(_) | Update::Remove(_) => {}
        }
        update.apply(&mut self.cluster, &mut self.dirty);
        self.ask_for_config_maps();
        self.ask_for_definitions();
    }

    /// Has definitions read from the first GatewayClass of ours on: nothing else is said of them.
    fn ask_for_definitions(&mut self) {
        if !self.reads_classes || *self.awaited.definitions.borrow() || !self.dirty.gateways {
            return;
        }
        let mut classes = self.cluster.gateway_classes.keys();
        if !classes.any(|key| translate::is_ours(&self.cluster, &key.name)) {
            return;
        }
        self.await_too(Part { kind: Kind::CustomResourceDefinition, namespace: None, labels: None });
        self.awaited.definitions.send_replace(true);
    }

    /// Has the first pass wait for another list.
    fn await_too(&mut self, part: Part) {
        if self.published {
            return;
        }
        self.metrics.synced(part.kind.as_str(), false);
        if !self.status.published() {
            self.status.await_too(part.kind);
        }
        self.awaited.parts.insert(part);
    }

    /// Has ConfigMaps read from the first policy or Gateway on that names one. The first pass waits for them; later ones do
    /// not, for other objects have nothing to do with them: until they are there, the policy or Gateway trusts nobody.
    fn ask_for_config_maps(&mut self) {
        if *self.awaited.config_maps.borrow() {
            return;
        }
        let changed = self.dirty.gateways || !self.dirty.backend_tls_policies.is_empty();
        if !changed || !translate::names_authorities(&self.cluster) {
            return;
        }
        for namespace in self.policy_namespaces.clone() {
            self.await_too(Part { kind: Kind::ConfigMap, namespace, labels: None });
        }
        self.awaited.config_maps.send_replace(true);
    }

    fn arrived(&mut self, part: &Part, read: bool) {
        self.awaited.parts.remove(part);
        if !self.awaited.parts.iter().any(|p| p.kind == part.kind) {
            self.status.kind_done(part.kind);
            self.metrics.synced(part.kind.as_str(), read);
        }
    }

    /// Translates and publishes; returns how long the translation took.
    fn pass(&mut self) -> Duration {
        let start = Instant::now();
        let Some(translation) = self.translate() else { return start.elapsed() };
        let took = start.elapsed();
        self.metrics.built(took);
        if translation.changed || !self.published {
            let of_ports = translation.listeners.iter().map(|(_, listener)| listener.certs.clone());
            let certs: Vec<_> = std::iter::once(translation.certs.clone()).chain(of_ports).collect();
            let same = |old: &Vec<_>| {
                old.len() == certs.len() && old.iter().zip(&certs).all(|(old, new)| Arc::ptr_eq(old, new))
            };
            if !self.certs.as_ref().is_some_and(same) {
                self.metrics.certificates(certs.iter().map(|store| &**store));
                self.certs = Some(certs);
            }
            let generation =
                self.publisher.publish_all(translation.routes, translation.certs, translation.listeners);
            self.metrics.published(generation);
            self.published = true;
            self.status.snapshot_out();
            tracing::debug!(generation, ?took, "published");
        }
        self.metrics.serving(Kind::Ingress, translation.route_count);
        let [http, grpc, tls] = translation.gateway_route_counts;
        self.metrics.serving(Kind::HttpRoute, http);
        self.metrics.serving(Kind::GrpcRoute, grpc);
        self.metrics.serving(Kind::TlsRoute, tls);
        for outcome in translation.outcomes {
            self.mistakes.tell(outcome, &self.telling.events);
        }
        self.mistakes.count(&self.metrics);
        self.telling.writes.put(translation.writes);
        took
    }

    /// One translation. Where it panics, what it remembers is worth nothing any more: it is tried
    /// once more from the start, and if that fails too, the old snapshot stays until the next change.
    fn translate(&mut self) -> Option<Translation> {
        for _ in 0..2 {
            let (translator, cluster, dirty) = (&mut self.translator, &self.cluster, &self.dirty);
            match catch_unwind(AssertUnwindSafe(|| translator.translate(cluster, dirty))) {
                Ok(translation) => {
                    self.mistakes.forget_gone(&self.cluster, &self.dirty);
                    self.dirty = Dirty::default();
                    return Some(translation);
                }
                Err(panic) => {
                    self.metrics.build_failed();
                    tracing::error!(
                        panic = words(&*panic),
                        "translation broke off: the previous configuration stays in use"
                    );
                    self.translator = (self.fresh)();
                    self.mistakes.start_over();
                    self.dirty = Dirty { everything: true, ..Default::default() };
                }
            }
        }
        None
    }
}

/// How long after a pass of this duration the next one may begin.
fn gap(took: Duration) -> Duration {
    (took * 4).clamp(MIN_GAP, MAX_GAP)
}

fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

/// The mistakes that stand now, so that each is told once and all are counted.
#[derive(Default)]
struct Mistakes {
    standing: HashMap<ResourceRef, Box<[Finding]>>,
    /// Told before the translator was replaced: not told again.
    before: HashMap<ResourceRef, Box<[Finding]>>,
    counted: BTreeMap<(Kind, Reason), usize>,
    moved: bool,
}

impl Mistakes {
    fn tell(&mut self, outcome: Outcome, events: &Events) {
        let Outcome { source, uid, findings, .. } = outcome;
        let old = self.standing.get(&source).or_else(|| self.before.get(&source));
        for finding in &findings {
            if old.is_some_and(|old| old.contains(finding)) {
                continue;
            }
            tracing::warn!(
                object = %source,
                reason = %finding.reason,
                id = finding.reason.id(),
                field = %finding.field,
                problem = %finding.message,
                "mistake in an object"
            );
            events.warn(&source, &uid, finding);
        }
        if findings.is_empty() {
            if self.standing.remove(&source).is_some() {
                tracing::info!(object = %source, "no more mistakes in the object");
            }
        } else {
            self.standing.insert(source, findings);
        }
        self.moved = true;
    }

    /// Objects that were deleted have no outcome.
    fn forget_gone(&mut self, cluster: &Cluster, dirty: &Dirty) {
        let before = self.standing.len();
        self.standing.retain(|source, _| {
            let key = crate::cluster::Key { namespace: source.namespace.clone(), name: source.name.clone() };
            match source.kind {
                Kind::Ingress => {
                    (!dirty.everything && !dirty.ingresses.contains(&key))
                        || cluster.ingresses.contains_key(&key)
                }
                Kind::Gateway => cluster.gateways.contains_key(&key),
                Kind::ListenerSet => cluster.listener_sets.contains_key(&key),
                Kind::HttpRoute => cluster.http_routes.contains_key(&key),
                Kind::GrpcRoute => cluster.grpc_routes.contains_key(&key),
                Kind::BackendTlsPolicy => cluster.backend_tls_policies.contains_key(&key),
                Kind::TlsRoute => cluster.tls_routes.contains_key(&key),
                _ => true,
            }
        });
        self.moved |= self.standing.len() != before;
    }

    fn start_over(&mut self) {
        if !self.standing.is_empty() {
            self.before = std::mem::take(&mut self.standing);
            self.moved = true;
        }
    }

    fn count(&mut self, metrics: &Metrics) {
        self.before.clear();
        if !std::mem::take(&mut self.moved) {
            return;
        }
        let mut counts: BTreeMap<(Kind, Reason), usize> = self.counted.keys().map(|k| (*k, 0)).collect();
        for (source, findings) in &self.standing {
            for finding in findings {
                *counts.entry((source.kind, finding.reason)).or_default() += 1;
            }
        }
        for ((kind, reason), count) in &counts {
            if self.counted.get(&(*kind, *reason)) != Some(count) {
                metrics.in_error(kind.as_str(), &reason.to_string(), *count);
            }
        }
        self.counted = counts;
    }
}

#[cfg(test)]
mod tests;
