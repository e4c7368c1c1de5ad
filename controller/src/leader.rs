//! Which of all Pods writes: the one that holds the Lease `tak-os-ingress-leader`.
//!
//! The clocks of two nodes are never compared: a Lease has run out when nothing in it has changed for its duration by
//! this Pod's own clock. A holder that cannot renew stops before that. Nothing is asked of the API before there is
//! something to write. A Pod that may not use Leases writes as well: every write is a difference to what is there,
//! and a status is refused by the API when somebody else was faster.

use crate::metrics::Metrics;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// Name of the Lease.
pub const LEASE: &str = "tak-os-ingress-leader";
/// Where the Lease is when the product runs outside a cluster, with a kubeconfig that names no namespace.
const HOME: &str = "tak-os-ingress";

/// A Lease that has not changed for this long is free.
const DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew for this long writes no more.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_secs(3);
/// Between two looks where RBAC refuses Leases.
const REFUSED: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(3);

/// What this Pod is among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Not known yet.
    Waiting,
    /// It holds the Lease.
    Leading,
    /// Another one holds it.
    Following,
    /// There is no election: every Pod writes, after comparing.
    Alone,
}

impl Role {
    pub(crate) fn may_write(self) -> bool {
        matches!(self, Role::Leading | Role::Alone)
    }
}

/// Takes part in the election.
pub(crate) struct Elector {
    api: Api<Lease>,
    identity: String,
    needed: watch::Receiver<bool>,
    role: watch::Sender<Role>,
    metrics: Metrics,
    /// The Lease as last seen to change, and when.
    seen: Option<(LeaseSpec, Instant)>,
    /// When the last renewal that succeeded began.
    renewed: Option<Instant>,
}

/// What one look at the Lease came to.
#[derive(Debug, PartialEq, Eq)]
enum Looked {
    Held,
    HeldByOther(String),
    Refused(String),
    Failed(String),
}

impl Elector {
    /// An elector that begins once `needed`; its role can be followed from the start.
    pub(crate) fn new(
        client: kube::Client,
        instance: &str,
        needed: watch::Receiver<bool>,
        metrics: Metrics,
    ) -> (Self, watch::Receiver<Role>) {
        let namespace = match client.default_namespace() {
            "default" => HOME.to_owned(),
            namespace => namespace.to_owned(),
        };
        let (role, follow) = watch::channel(Role::Waiting);
        let elector = Self {
            api: Api::namespaced(client, &namespace),
            // a Pod that starts anew under its old name is another writer
            identity: format!("{instance}_{:016x}", RandomState::new().hash_one(instance)),
            needed,
            role,
            metrics,
            seen: None,
            renewed: None,
        };
        (elector, follow)
    }

    /// No election: this Pod writes, for as long as the sender is kept.
    pub(crate) fn none(metrics: &Metrics) -> (watch::Sender<Role>, watch::Receiver<Role>) {
        metrics.leader(true);
        watch::channel(Role::Alone)
    }

    /// Runs for as long as it is polled.
    pub(crate) async fn run(mut self) {
        if self.needed.wait_for(|needed| *needed).await.is_err() {
            return;
        }
        loop {
            let looked = self.look().await;
            let pause = self.take(looked);
            sleep(pause).await;
        }
    }

    /// What follows from a look; how long until the next one.
    fn take(&mut self, looked: Looked) -> Duration {
        match looked {
            Looked::Held => self.become_(Role::Leading, ""),
            Looked::HeldByOther(holder) => self.become_(Role::Following, &holder),
            Looked::Refused(message) => {
                if *self.role.borrow() != Role::Alone {
                    tracing::warn!(
                        error = %message,
                        "not allowed to use Leases: this Pod writes without an election, until the role in its \
                         namespace has the rule apiGroups [\"coordination.k8s.io\"], resources [\"leases\"], \
                         verbs [\"get\", \"create\", \"update\"]"
                    );
                }
                self.become_(Role::Alone, "");
                return REFUSED;
            }
            Looked::Failed(error) => {
                tracing::debug!(error, "the Lease could not be looked at");
                let late = self.renewed.is_none_or(|at| at.elapsed() >= GIVE_UP);
                if *self.role.borrow() == Role::Leading && late {
                    tracing::warn!(error, "the Lease could not be renewed: this Pod writes no more");
                    self.become_(Role::Following, "");
                }
            }
        }
        LOOK
    }

    fn become_(&self, role: Role, holder: &str) {
        let changed = self.role.send_if_modified(|old| {
            let changed = *old != role;
            *old = role;
            changed
        });
        if changed {
            self.metrics.leader(role.may_write());
            match role {
                Role::Leading => {
                    tracing::info!(identity = self.identity, "this Pod leads: it writes statuses")
                }
                Role::Following => tracing::info!(holder, "another Pod leads"),
                Role::Waiting | Role::Alone => {}
            }
        }
    }

    async fn look(&mut self) -> Looked {
        let began = Instant::now();
        match timeout(ANSWER, self.attempt(began)).await {
            Ok(Ok(looked)) => {
                if looked == Looked::Held {
                    self.renewed = Some(began);
                }
                looked
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => Looked::Refused(status.message),
            // somebody else was faster
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Looked::HeldByOther(String::new()),
            Ok(Err(error)) => Looked::Failed(error.to_string()),
            Err(_) => Looked::Failed("no answer".to_owned()),
        }
    }

    async fn attempt(&mut self, now: Instant) -> Result<Looked, kube::Error> {
        let Some(mut lease) = self.api.get_opt(LEASE).await? else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(LEASE.to_owned()), ..Default::default() },
                spec: Some(self.spec(None)),
            };
            self.api.create(&PostParams::default(), &lease).await?;
            return Ok(Looked::Held);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder != self.identity && !holder.is_empty() {
            let duration = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
            let duration = duration.map_or(DURATION, Duration::from_secs);
            match &self.seen {
                Some((old, since)) if *old == spec => {
                    if now.duration_since(*since) < duration {
                        return Ok(Looked::HeldByOther(holder));
                    }
                }
                _ => {
                    self.seen = Some((spec, now));
                    return Ok(Looked::HeldByOther(holder));
                }
            }
        }
        lease.spec = Some(self.spec(Some(spec)));
        // carries the resourceVersion that was read
        self.api.replace(LEASE, &PostParams::default(), &lease).await?;
        Ok(Looked::Held)
    }

    fn spec(&self, old: Option<LeaseSpec>) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        let old = old.unwrap_or_default();
        let same = old.holder_identity.as_ref() == Some(&self.identity);
        // the first holder takes it from nobody
        let taken = i32::from(!same && old.holder_identity.is_some());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: if same { old.acquire_time } else { now.clone() },
            renew_time: now,
            lease_transitions: Some(old.lease_transitions.unwrap_or_default() + taken),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests;
