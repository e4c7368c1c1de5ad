//! The control plane: reads Kubernetes objects, publishes snapshots. Knows nothing of Pingora.
//!
//! One change goes from `watch` (or `manifests`) as an `update` to `rebuild`, which owns the
//! `cluster`, has `translate` make routes of it, and publishes; `events` tell users of mistakes.

pub mod annotations;
pub mod certificate;
pub mod check;
mod client;
pub mod cluster;
mod events;
pub mod finding;
mod leader;
pub mod load;
mod manifests;
mod metrics;
mod parallel;
mod rebuild;
mod status;
mod sync;
mod tokens;
pub mod translate;
mod update;
mod watch;
pub mod write;

pub use client::{ClientError, client};
pub use metrics::Metrics;
pub use sync::SyncStatus;

use events::Events;
use futures::FutureExt as _;
use ingress_core::Publisher;
use leader::Elector;
use rebuild::{Awaited, Rebuild, Telling};
use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch as cell};
use tokio::task::JoinSet;
use translate::{Settings, Translator};
use watch::OnDemand;
use write::Writes;

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
    /// Whether only one of all Pods writes statuses and Certificates.
    pub leader_election: bool,
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
    // held for as long as there is no election
    let mut alone = None;
    let (config_maps, config_maps_wanted) = cell::channel(false);
    let (definitions, definitions_wanted) = cell::channel(false);
    let (awaited, events, writes) = match &config.source {
        Source::Cluster(client) => {
            let parts = watch::start(
                client,
                &config.watch_namespaces,
                config
                    .settings
                    .gateway_api
                    .then_some(OnDemand { config_maps: config_maps_wanted, definitions: definitions_wanted }),
                config.settings.create_certificates,
                &sender,
                metrics,
                &mut tasks,
            );
            let kinds = parts.iter().map(|part| part.kind).collect::<HashSet<_>>();
            for kind in &kinds {
                metrics.synced(kind.as_str(), false);
            }
            if !status.published() {
                status.await_kinds(kinds);
            }
            let (events, writer) = Events::to_api(client.clone(), &config.reporter_instance, metrics.clone());
            tasks.spawn(writer.run());
            let (needed, is_needed) = cell::channel(false);
            let role = if config.leader_election {
                let (elector, role) =
                    Elector::new(client.clone(), &config.reporter_instance, is_needed, metrics.clone());
                tasks.spawn(elector.run());
                role
            } else {
                let (sender, role) = Elector::none(metrics);
                alone = Some(sender);
                role
            };
            let (writes, writer) = Writes::to_api(client.clone(), role, needed, metrics.clone());
            tasks.spawn(writer.run());
            (Awaited { parts, files: false, config_maps, definitions }, events, writes)
        }
        Source::Manifests(dir) => {
            metrics.synced("manifests", false);
            if !status.published() {
                status.await_files();
            }
            let only = config.watch_namespaces.iter().map(|n| n.as_str().into()).collect();
            tasks.spawn(manifests::follow(dir.clone(), only, sender.clone(), metrics.clone()));
            let awaited = Awaited { parts: HashSet::new(), files: true, config_maps, definitions };
            (awaited, Events::none(metrics.clone()), Writes::none())
        }
    };
    drop(sender);
    let fresh = || Translator::new(config.settings.clone());
    let telling = Telling { events, writes };
    Rebuild::new(fresh, awaited, publisher, metrics.clone(), status.clone(), telling).run(updates).await;
    drop(alone);
}

#[cfg(test)]
mod tests;
