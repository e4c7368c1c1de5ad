//! Programs of others that tests run against the product; `peers/build.sh` builds them.

use std::path::PathBuf;

/// A program by its name; panics where it is missing.
pub fn program(name: &str) -> PathBuf {
    let directory = match std::env::var_os("INGRESS_PEERS").filter(|v| !v.is_empty()) {
        Some(peers) => PathBuf::from(peers),
        None => crate::testbed::built("peers", "peers/go.sum"),
    };
    let path = directory.join(name);
    assert!(path.is_file(), "{} is missing: run e2e/peers/build.sh", path.display());
    path
}
