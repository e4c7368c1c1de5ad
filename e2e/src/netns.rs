//! Other network namespaces: the hosts of a test with nodes, seen from inside.

use std::fs::File;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Does `work` on a host whose network namespace has this name, on threads of its own, and waits for it. What blocks there
/// does not hold up the tasks that were spawned. Panics where there is no such namespace, and where `work` does.
///
/// ```no_run
/// use ingress_e2e::{client, netns};
/// let home = netns::within("client", || client::get(([10, 123, 0, 200], 80).into(), "app.example.com", "/"));
/// # let _ = home;
/// ```
pub fn within<T: Send, F: Future<Output = T>>(netns: &str, work: impl FnOnce() -> F + Send) -> T {
    let path = Path::new("/run/netns").join(netns);
    let namespace = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let inside = || {
        // SAFETY: the descriptor is open, and the call changes nothing but this thread, which ends with `work`.
        let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(entered, 0, "cannot enter {}: {}", path.display(), std::io::Error::last_os_error());
        // Its workers are started by this thread, and so in its namespace.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime can be started").block_on(work())
    };
    std::thread::scope(|scope| {
        scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
