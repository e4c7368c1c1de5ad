//! The control plane: reads Kubernetes objects, publishes snapshots. Knows nothing of Pingora.
//!
//! One change goes from `watch` (or `manifests`) as an `update` to `rebuild`, which owns the
//! `cluster`, has `translate` make routes of it, and publishes; `events` tell users of mistakes.

pub mod annotations;
pub mod check;
mod client;
pub mod cluster;
mod events;
pub mod finding;
pub mod load;
mod manifests;
mod metrics;
mod rebuild;
mod sync;
pub mod translate;
mod update;
mod watch;

pub use client::{ClientError, client};
pub use metrics::Metrics;
pub use sync::SyncStatus;

use events::Events;
use futures::FutureExt as _;
use ingress_core::Publisher;
use rebuild::{Awaited, Rebuild};
use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use translate::{Settings, Translator};

/// Updates on their way to the loop. Watches wait when it is full, so a flood takes no memory.
const QUEUE: usize = 1024;

/// What the control plane is to do.
#[derive(Clone)]
pub struct Config {
    /// How objects are translated.
    pub settings: Settings,
    /// Where objects come from.
    pub source: Source,
    /// Only these namespaces; empty: all.
    pub watch_namespaces: Vec<String>,
    /// Who writes Events: the Pod's name, else the host's.
    pub reporter_instance: String,
}

/// Where objects come from.
#[derive(Clone)]
pub enum Source {
    /// The Kubernetes API.
    Cluster(kube::Client),
    /// A folder of YAML files.
    Manifests(PathBuf),
}

/// Reads the source and publishes snapshots, for ever. Whatever fails in here, a panic included,
/// leaves the last snapshot in place and is tried again.
pub async fn run(config: Config, mut publisher: Publisher, metrics: Metrics, status: Arc<SyncStatus>) {
    loop {
        let attempt = run_once(&config, &mut publisher, &metrics, &status);
        if AssertUnwindSafe(attempt).catch_unwind().await.is_err() {
            tracing::error!("the control plane broke off: starting it anew");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn run_once(config: &Config, publisher: &mut Publisher, metrics: &Metrics, status: &Arc<SyncStatus>) {
    let (sender, updates) = mpsc::channel(QUEUE);
    // dropped, and so stopped, with this attempt
    let mut tasks = JoinSet::new();
    let (awaited, events) = match &config.source {
        Source::Cluster(client) => {
            let parts = watch::start(client, &config.watch_namespaces, &sender, metrics, &mut tasks);
            let kinds = parts.iter().map(|part| part.kind).collect::<HashSet<_>>();
            for kind in &kinds {
                metrics.synced(kind.as_str(), false);
            }
            if !status.published() {
                status.await_kinds(kinds);
            }
            let (events, writer) = Events::to_api(client.clone(), &config.reporter_instance, metrics.clone());
            tasks.spawn(writer.run());
            (Awaited { parts, files: false }, events)
        }
        Source::Manifests(dir) => {
            metrics.synced("manifests", false);
            if !status.published() {
                status.await_files();
            }
            let only = config.watch_namespaces.iter().map(|n| n.as_str().into()).collect();
            tasks.spawn(manifests::follow(dir.clone(), only, sender.clone(), metrics.clone()));
            (Awaited { parts: HashSet::new(), files: true }, Events::none(metrics.clone()))
        }
    };
    drop(sender);
    let fresh = || Translator::new(config.settings.clone());
    Rebuild::new(fresh, awaited, publisher, metrics.clone(), status.clone(), events).run(updates).await;
}

#[cfg(test)]
mod tests;
