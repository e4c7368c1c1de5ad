//! Where the control plane's programs are.

use std::path::{Path, PathBuf};

/// The directory that holds `kube-apiserver`, `etcd` and `kubectl`: KUBEBUILDER_ASSETS, else what `testbed/build.sh`
/// built.
pub(crate) fn directory() -> PathBuf {
    let directory = match std::env::var_os("KUBEBUILDER_ASSETS").filter(|v| !v.is_empty()) {
        Some(assets) => PathBuf::from(assets),
        None => built("testbed", "testbed/tools/go.sum"),
    };
    for program in ["kube-apiserver", "etcd", "kubectl"] {
        let path = directory.join(program);
        assert!(
            path.is_file(),
            "{} is missing: run `make testbed`, or set KUBEBUILDER_ASSETS to a directory with kube-apiserver, etcd and kubectl",
            path.display()
        );
    }
    directory
}

/// What a `build.sh` has built: in the cache, below the first 16 hex digits of the SHA-256 of its `go.sum`.
pub(crate) fn built(what: &str, sums: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(sums);
    let sums = std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
    kept().join(what).join(key(&sums))
}

/// What `testbed/parts.sh PART` has fetched: in the cache, below the hash of the files of the part's folder.
pub fn part(part: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed").join(part);
    let files = || {
        let mut names: Vec<_> =
            std::fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
        names.sort();
        names.iter().map(std::fs::read).collect::<std::io::Result<Vec<_>>>()
    };
    let files = files().unwrap_or_else(|e| panic!("cannot read {}: {e}", folder.display()));
    let name = folder.file_name().expect("a part has a name").display();
    let path = cache().join(format!("{name}-{}", key(&files.concat())));
    assert!(
        path.join("complete").is_file(),
        "{} is missing: run e2e/testbed/parts.sh {part}",
        path.display()
    );
    path
}

/// The first 16 hex digits of the SHA-256.
fn key(bytes: &[u8]) -> String {
    openssl::sha::sha256(bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where built programs are kept.
fn kept() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    base.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")))
        .expect("neither XDG_CACHE_HOME nor HOME is set")
        .join("tak-os-ingress")
}

/// Where the parts of the testbed are kept.
pub(crate) fn cache() -> PathBuf {
    kept().join("testbed")
}
