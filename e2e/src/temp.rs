//! Temporary folders and reserved ports that outlive neither the test nor its process.

use std::fs::{File, TryLockError};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "ingress-e2e-";

/// A new folder, removed with everything in it on drop.
///
/// Values in a `static` are never dropped: what a dead process left behind is removed by the next one.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Makes a folder whose name contains `purpose`.
    pub fn new(purpose: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let root = std::env::temp_dir();
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        if next == 0 {
            sweep(&root);
        }
        let path = root.join(format!("{PREFIX}{}-{next}-{purpose}", process::id()));
        // A dead process of the same id may have left one.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("cannot make {}: {e}", path.display()));
        Self { path }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into the folder (making folders on the way) and returns its path.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .unwrap_or_else(|e| panic!("cannot make {}: {e}", parent.display()));
        }
        std::fs::write(&path, contents).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if std::env::var_os("INGRESS_E2E_KEEP").is_some() {
            eprintln!("kept {}", self.path.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn sweep(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if let Some(owner) = owner
            && std::env::var_os("INGRESS_E2E_KEEP").is_none()
            && !Path::new(&format!("/proc/{owner}")).exists()
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A TCP port of 127.0.0.1 that no other harness takes while this value lives.
///
/// It lies below the kernel's ephemeral range, so that no outgoing connection occupies it while its server is being
/// restarted.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    port: u16,
    _lock: File,
}

impl ReservedPort {
    pub(crate) fn new() -> Self {
        const FIRST: u32 = 20_000;
        const COUNT: u32 = 10_000;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let locks = std::env::temp_dir().join("ingress-e2e.ports");
        std::fs::create_dir_all(&locks).unwrap_or_else(|e| panic!("cannot make {}: {e}", locks.display()));
        for _ in 0..COUNT {
            let step = process::id().wrapping_mul(37).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let port = (FIRST + step % COUNT) as u16;
            let path = locks.join(port.to_string());
            let lock = File::create(&path).unwrap_or_else(|e| panic!("cannot open {}: {e}", path.display()));
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(e)) => panic!("cannot lock {}: {e}", path.display()),
            }
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return Self { port, _lock: lock };
            }
        }
        panic!("no free port on 127.0.0.1 from {FIRST} to {}", FIRST + COUNT);
    }

    pub(crate) fn get(&self) -> u16 {
        self.port
    }
}
