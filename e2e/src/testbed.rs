//! Where the control plane's programs are.

use std::path::{Path, PathBuf};

/// The directory that holds `kube-apiserver`, `etcd` and `kubectl`: KUBEBUILDER_ASSETS, else what `testbed/build.sh`
/// built.
pub(crate) fn directory() -> PathBuf {
    let directory = match std::env::var_os("KUBEBUILDER_ASSETS").filter(|v| !v.is_empty()) {
        Some(assets) => PathBuf::from(assets),
        None => built("testbed", "testbed/tools"),
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

/// What a `build.sh` has built of a Go module: in the cache, below the first 16 hex digits of the SHA-256 of its `go.sum` and of
/// its own sources, `*.go` and `cmd/*/*.go`.
pub(crate) fn built(what: &str, module: &str) -> PathBuf {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join(module);
    let inside = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        paths
    };
    let commands = inside(&module.join("cmd"));
    let sources = inside(&module).into_iter().chain(commands.iter().flat_map(|command| inside(command)));
    let sources = sources.filter(|path| path.extension().is_some_and(|extension| extension == "go"));
    let read = |path: PathBuf| {
        std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
    };
    let all: Vec<_> = std::iter::once(module.join("go.sum")).chain(sources).map(read).collect();
    kept().join(what).join(key(&all.concat()))
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
