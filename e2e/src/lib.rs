//! End-to-end harness: everything a test needs around the product, and nothing of the product itself.
//!
//! The binary under test is only ever run as a process and talked to over sockets, so that a test sees what a user
//! sees. This crate therefore depends on none of the product's crates.
//!
//! A failure of the harness is a failure of the test that uses it: functions that set a scene panic with a message
//! that says what was tried; functions whose failure a test may want to look at return a `Result`.

pub mod acme;
pub mod browser;
pub mod client;
pub mod cluster;
pub mod dns;
pub mod h2_origin;
pub mod netns;
pub mod oidc;
pub mod origin;
pub mod peers;
pub mod pki;
pub mod product;
pub mod provider;
pub mod sessions;

mod process;
mod temp;
mod testbed;

pub use process::RunningProcess;
pub use temp::TempDir;
pub use testbed::part;

use std::future::Future;
use std::panic::Location;
use std::time::Duration;

use tokio::time::Instant;

/// How long the harness waits for an answer on a socket before it calls the peer stuck.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Runs `probe` in short intervals until it returns `Some`; panics, naming the caller's line, after `deadline`.
///
/// ```no_run
/// # async fn example(product: &ingress_e2e::product::Product) {
/// use std::time::Duration;
/// let reloads = ingress_e2e::eventually(Duration::from_secs(5), async || {
///     product.metric_value("tak_ingress_rebuilds_total").await.filter(|n| *n >= 2.0)
/// })
/// .await;
/// # let _ = reloads;
/// # }
/// ```
#[track_caller]
pub fn eventually<T>(deadline: Duration, probe: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        match within(deadline, probe).await {
            Some(value) => value,
            None => panic!("{caller}: the condition did not come true within {deadline:?}"),
        }
    }
}

/// Like [`eventually`], but `None` after `deadline`.
pub async fn within<T>(deadline: Duration, mut probe: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + deadline;
    let mut pause = Duration::from_millis(2);
    loop {
        match tokio::time::timeout_at(end, probe()).await {
            Ok(Some(value)) => return Some(value),
            Ok(None) if Instant::now() + pause < end => tokio::time::sleep(pause).await,
            Ok(None) | Err(_) => return None,
        }
        pause = (pause * 2).min(Duration::from_millis(25));
    }
}
