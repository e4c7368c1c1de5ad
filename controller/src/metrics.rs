//! What the control plane tells Prometheus. Callers use verbs; the families stay in here.

use ingress_core::{CertStore, Kind};
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What became of one Event that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventResult {
    /// Created on the object.
    Created,
    /// An Event that says the same was there already (another Pod, an earlier run).
    Known,
    /// The count of an earlier Event was raised.
    Repeated,
    /// Said not long ago.
    Suppressed,
    /// The queue was full.
    Dropped,
    /// RBAC does not allow it.
    Forbidden,
    /// The API refused it or did not answer.
    Failed,
}

impl EventResult {
    const fn as_str(self) -> &'static str {
        match self {
            EventResult::Created => "created",
            EventResult::Known => "known",
            EventResult::Repeated => "repeated",
            EventResult::Suppressed => "suppressed",
            EventResult::Dropped => "dropped",
            EventResult::Forbidden => "forbidden",
            EventResult::Failed => "failed",
        }
    }
}

/// What became of one write to the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// The API took it.
    Written,
    /// The object had moved on; what fits its new version is written instead.
    Conflict,
    /// The object is no more.
    Gone,
    /// RBAC does not allow it.
    Forbidden,
    /// The API takes it for invalid.
    Invalid,
    /// The API failed or did not answer; it is tried again.
    Failed,
}

impl WriteResult {
    const fn as_str(self) -> &'static str {
        match self {
            WriteResult::Written => "written",
            WriteResult::Conflict => "conflict",
            WriteResult::Gone => "gone",
            WriteResult::Forbidden => "forbidden",
            WriteResult::Invalid => "invalid",
            WriteResult::Failed => "failed",
        }
    }
}

/// The control plane's metric families. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    routes: IntGaugeVec,
    object_errors: IntGaugeVec,
    generation: IntGauge,
    build_duration: Histogram,
    build_failures: IntCounter,
    last_success: Gauge,
    watch_synced: IntGaugeVec,
    watch_restarts: IntCounterVec,
    not_after: IntGaugeVec,
    events: IntCounterVec,
    writes: IntCounterVec,
    leader: IntGauge,
    /// The label values that `not_after` holds now.
    certificates: Arc<Mutex<BTreeSet<String>>>,
}

impl Metrics {
    /// Creates the families and registers them under `tak_ingress_`.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            routes: gauges(
                "routes",
                "Routes served now, by kind of the object that declares them.",
                &["kind"],
            )?,
            object_errors: gauges(
                "object_errors",
                "Mistakes that stand now in the objects read, by kind of object and reason.",
                &["kind", "reason"],
            )?,
            generation: IntGauge::new(name("snapshot_generation"), "Number of the published configuration.")?,
            build_duration: Histogram::with_opts(
                HistogramOpts::new(
                    name("snapshot_build_duration_seconds"),
                    "Time to translate changed objects into a configuration.",
                )
                .buckets(vec![
                    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
                    2.5,
                ]),
            )?,
            build_failures: IntCounter::new(
                name("snapshot_build_failures_total"),
                "Translations that broke off; the previous configuration stayed in use.",
            )?,
            last_success: Gauge::new(
                name("snapshot_last_success_timestamp_seconds"),
                "When the objects were last translated as a whole.",
            )?,
            watch_synced: gauges(
                "watch_synced",
                "1 once the first full list of the kind was read.",
                &["kind"],
            )?,
            watch_restarts: counters(
                "watch_restarts_total",
                "Interruptions of the watch on the kind.",
                &["kind"],
            )?,
            not_after: gauges(
                "certificate_not_after_timestamp_seconds",
                "End of validity of each certificate that serves, of Ingresses and of listeners.",
                &["secret"],
            )?,
            events: counters("events_total", "Kubernetes Events by what became of them.", &["result"])?,
            writes: counters(
                "status_writes_total",
                "Writes of statuses and Certificates to the API, by kind of object and what became of them.",
                &["kind", "result"],
            )?,
            leader: IntGauge::new(
                name("leader"),
                "1 while this Pod writes statuses and Certificates: it leads, or there is no election.",
            )?,
            certificates: Arc::default(),
        };
        registry.register(Box::new(metrics.routes.clone()))?;
        registry.register(Box::new(metrics.object_errors.clone()))?;
        registry.register(Box::new(metrics.generation.clone()))?;
        registry.register(Box::new(metrics.build_duration.clone()))?;
        registry.register(Box::new(metrics.build_failures.clone()))?;
        registry.register(Box::new(metrics.last_success.clone()))?;
        registry.register(Box::new(metrics.watch_synced.clone()))?;
        registry.register(Box::new(metrics.watch_restarts.clone()))?;
        registry.register(Box::new(metrics.not_after.clone()))?;
        registry.register(Box::new(metrics.events.clone()))?;
        registry.register(Box::new(metrics.writes.clone()))?;
        registry.register(Box::new(metrics.leader.clone()))?;
        Ok(metrics)
    }

    /// `count` routes of this kind serve.
    pub fn serving(&self, kind: Kind, count: usize) {
        self.routes.with_label_values(&[kind.as_str()]).set(int(count));
    }

    /// `count` mistakes of this sort stand now. `kind` is a [`Kind`]'s name, or `file`.
    pub fn in_error(&self, kind: &str, reason: &str, count: usize) {
        self.object_errors.with_label_values(&[kind, reason]).set(int(count));
    }

    /// The objects were translated, in this time.
    pub fn built(&self, took: Duration) {
        self.build_duration.observe(took.as_secs_f64());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_success.set(now.as_secs_f64());
    }

    /// A translation broke off.
    pub fn build_failed(&self) {
        self.build_failures.inc();
    }

    /// A configuration was published.
    pub fn published(&self, generation: u64) {
        self.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// Whether the kind's first full list is there.
    pub fn synced(&self, kind: &str, yes: bool) {
        self.watch_synced.with_label_values(&[kind]).set(i64::from(yes));
    }

    /// The watch on the kind was interrupted.
    pub fn interrupted(&self, kind: Kind) {
        self.watch_restarts.with_label_values(&[kind.as_str()]).inc();
    }

    /// These certificates serve now, of Ingresses and at ports of Gateways; others no longer do.
    pub fn certificates<'a>(&self, stores: impl IntoIterator<Item = &'a CertStore>) {
        let mut present = BTreeSet::new();
        for key in stores.into_iter().flat_map(CertStore::iter) {
            let secret = format!("{}/{}", key.source.namespace, key.source.name);
            if !present.contains(&secret) {
                self.not_after.with_label_values(&[secret.as_str()]).set(key.not_after);
                present.insert(secret);
            }
        }
        let mut known = self.certificates.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in known.difference(&present) {
            // it can only fail where the series is gone already
            let _ = self.not_after.remove_label_values(&[gone.as_str()]);
        }
        *known = present;
    }

    /// What became of a write to an object of this kind.
    pub fn wrote(&self, kind: &str, result: WriteResult) {
        self.writes.with_label_values(&[kind, result.as_str()]).inc();
    }

    /// Whether this Pod writes.
    pub fn leader(&self, yes: bool) {
        self.leader.set(i64::from(yes));
    }

    /// What became of an Event.
    pub fn event(&self, result: EventResult) {
        self.events.with_label_values(&[result.as_str()]).inc();
    }
}

fn name(base: &str) -> String {
    format!("tak_ingress_{base}")
}

fn gauges(base: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
    IntGaugeVec::new(Opts::new(name(base), help), labels)
}

fn counters(base: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    IntCounterVec::new(Opts::new(name(base), help), labels)
}

fn int(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Metrics with the registry to read them from.
    pub(crate) fn metrics() -> (Metrics, Registry) {
        let registry = Registry::new();
        (Metrics::register(&registry).unwrap(), registry)
    }

    /// The value of one series, if there is such a series.
    pub(crate) fn value(registry: &Registry, base: &str, labels: &[&str]) -> Option<f64> {
        let families = registry.gather();
        let family = families.iter().find(|f| f.name() == name(base))?;
        let series = family
            .get_metric()
            .iter()
            .find(|m| m.get_label().iter().map(|l| l.value()).eq(labels.iter().copied()))?;
        Some(series.get_gauge().get_value() + series.get_counter().get_value())
    }
}

#[cfg(test)]
mod tests {
    use super::testing::value;
    use super::*;
    use ingress_core::{CertifiedKey, ResourceRef, Slot};
    use rustls_pki_types::PrivateKeyDer;

    fn store(names: &[(&str, i64)]) -> CertStore {
        let mut store = CertStore::default();
        for (name, not_after) in names {
            let key = CertifiedKey {
                chain: vec![],
                key: PrivateKeyDer::Pkcs8(vec![0].into()),
                not_after: *not_after,
                fingerprint: [0; 32],
                source: ResourceRef::new(Kind::Secret, "ns", *name),
                native: Slot::new(),
            };
            store.insert(&format!("{name}.example.com").parse().unwrap(), Arc::new(key));
        }
        store
    }

    #[test]
    fn series_of_certificates_that_are_gone_are_removed() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        metrics.certificates([&store(&[("a", 1)]), &store(&[("b", 2)])]);
        metrics.certificates([&store(&[("b", 3)])]);
        let of = |secret| value(&registry, "certificate_not_after_timestamp_seconds", &[secret]);
        assert_eq!((of("ns/a"), of("ns/b")), (None, Some(3.0)));
    }

    #[test]
    fn all_families_register_once() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        metrics.event(EventResult::Created);
        metrics.interrupted(Kind::Ingress);
        assert!(Metrics::register(&registry).is_err());
    }
}
