//! Where the control plane's programs are.

use std::path::{Path, PathBuf};

/// The directory that holds `kube-apiserver` and `etcd`: KUBEBUILDER_ASSETS, else what `testbed/build.sh` built.
pub(crate) fn directory() -> PathBuf {
    let directory = match std::env::var_os("KUBEBUILDER_ASSETS").filter(|v| !v.is_empty()) {
        Some(assets) => PathBuf::from(assets),
        None => cache().join(key()),
    };
    for program in ["kube-apiserver", "etcd"] {
        let path = directory.join(program);
        assert!(
            path.is_file(),
            "{} is missing: run `make testbed`, or set KUBEBUILDER_ASSETS to a directory with kube-apiserver and etcd",
            path.display()
        );
    }
    directory
}

pub(crate) fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    base.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")))
        .expect("neither XDG_CACHE_HOME nor HOME is set")
        .join("tak-os-ingress/testbed")
}

/// The same as in `testbed/build.sh`: the first 16 hex digits of the SHA-256 of `go.sum`.
fn key() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed/tools/go.sum");
    let sums = std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
    openssl::sha::sha256(&sums)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
