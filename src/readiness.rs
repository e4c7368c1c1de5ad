//! Whether this process should get traffic.

use ingress_controller::SyncStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ready once every watch has had its first list and a snapshot is published; never again once
/// the process was told to end.
#[derive(Clone)]
pub struct Readiness {
    sync: Arc<SyncStatus>,
    ending: Arc<AtomicBool>,
}

impl Readiness {
    /// Follows the controller's progress.
    pub fn new(sync: Arc<SyncStatus>) -> Self {
        Self { sync, ending: Arc::default() }
    }

    /// From now on not ready.
    pub fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// What is still missing; empty = ready.
    pub fn pending(&self) -> Vec<&'static str> {
        if self.ending.load(Ordering::SeqCst) {
            return vec!["shutting down"];
        }
        let mut pending = self.sync.pending();
        if !self.sync.published() {
            pending.push("first snapshot");
        }
        pending
    }
}
