//! What goes into the image, and that it is one. That a node runs it needs a node.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, which Clippy does not take for tests

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

struct Folder(PathBuf);

impl Folder {
    fn new(purpose: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tak-os-ingress-{purpose}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.output().unwrap_or_else(|e| panic!("cannot run {program}: {e}"))
}

fn must(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{program} {args:?}\n{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A folder as `hack/image.py` takes it, and the name of the file that it writes.
fn pack(folder: &Folder, out: &str, extra: &[&str]) -> Output {
    let root = folder.0.join("rootfs");
    for (path, contents) in
        [("usr/bin/tak-os-ingress", vec![b'x'; 2048]), ("etc/passwd", b"nonroot\n".to_vec())]
    {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }
    let out = folder.0.join(out);
    let args = [
        "hack/image.py",
        str(&root),
        str(&out),
        "registry.example.com/team/tak-os-ingress:1.2.3",
        "--version=1.2.3",
        "--revision=abc",
        "--created=1700000000",
        "--arch=amd64",
    ];
    run("python3", &[&args, extra].concat())
}

#[test]
fn the_file_is_an_image_that_any_tool_loads() {
    let folder = Folder::new("image");
    assert!(pack(&folder, "a.tar", &[]).status.success());
    let open = folder.0.join("open");
    std::fs::create_dir(&open).unwrap();
    must("tar", &["-xf", str(&folder.0.join("a.tar")), "-C", str(&open)]);
    let read =
        |path: &str| -> Value { serde_json::from_slice(&std::fs::read(open.join(path)).unwrap()).unwrap() };
    let blob = |reference: &Value| {
        let digest = reference["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = open.join("blobs/sha256").join(digest);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), reference["size"].as_u64().unwrap());
        assert!(must("sha256sum", &[str(&path)]).starts_with(digest));
        format!("blobs/sha256/{digest}")
    };
    assert_eq!(read("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}));
    let entry = read("index.json")["manifests"][0].clone();
    assert_eq!(entry["platform"], json!({"architecture": "amd64", "os": "linux"}));
    assert_eq!(
        entry["annotations"]["io.containerd.image.name"],
        "registry.example.com/team/tak-os-ingress:1.2.3"
    );
    let manifest = read(&blob(&entry));
    let (config, layer) = (blob(&manifest["config"]), blob(&manifest["layers"][0]));
    let docker = json!([{"Config": config, "Layers": [layer], "RepoTags": ["registry.example.com/team/tak-os-ingress:1.2.3"]}]);
    assert_eq!(read("manifest.json"), docker, "for docker load");

    let config = read(&config);
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/tak-os-ingress"]));
    assert_eq!(config["config"]["Env"], json!(["SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"]));
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.version"], "1.2.3");
    assert_eq!(labels["org.opencontainers.image.revision"], "abc");
    assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0");
    assert_eq!(labels["org.opencontainers.image.created"], "2023-11-14T22:13:20Z");

    let plain = folder.0.join("layer.tar");
    std::fs::write(&plain, run("gzip", &["-dc", str(&open.join(&layer))]).stdout).unwrap();
    let diff = config["rootfs"]["diff_ids"][0].as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
    assert!(must("sha256sum", &[str(&plain)]).starts_with(&diff));
    let listed = must("tar", &["--numeric-owner", "-tvf", str(&plain)]);
    assert!(listed.lines().count() == 5 && listed.lines().all(|l| l.contains(" 0/0 ")), "{listed}");
    // Else a process that is not root could not bind port 80.
    let bytes = std::fs::read(&plain).unwrap();
    let capability = b"SCHILY.xattr.security.capability=\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\n";
    assert_eq!(bytes.windows(capability.len()).filter(|w| w == capability).count(), 1);

    assert!(pack(&folder, "b.tar", &[]).status.success());
    let same = |name: &str| std::fs::read(folder.0.join(name)).unwrap();
    assert!(same("a.tar") == same("b.tar"), "the same bytes each time");
    let refused = pack(&folder, "c.tar", &["--max-mib=0.0001"]);
    assert!(!refused.status.success() && !folder.0.join("c.tar").exists(), "too large is not written");
}

#[test]
fn the_image_holds_the_binary_and_only_what_it_needs() {
    let folder = Folder::new("rootfs");
    let root = folder.0.join("rootfs");
    must("bash", &["hack/rootfs.sh", env!("CARGO_BIN_EXE_tak-os-ingress"), str(&root)]);
    let files = must("find", &[str(&root), "-type", "f", "-printf", "%P\n"]);
    let (libraries, rest): (BTreeSet<&str>, BTreeSet<&str>) =
        files.lines().partition(|f| f.starts_with("lib"));
    let wanted = [
        "etc/group",
        "etc/nsswitch.conf",
        "etc/passwd",
        "etc/ssl/certs/ca-certificates.crt",
        "usr/bin/tak-os-ingress",
        "usr/share/doc/tak-os-ingress/LICENSE",
        "usr/share/doc/tak-os-ingress/NOTICE.txt",
        "usr/share/doc/tak-os-ingress/licences.txt",
        "usr/share/doc/tak-os-ingress/sbom.cdx.json",
    ];
    assert_eq!(rest, wanted.into());
    let known = ["ld-linux", "libc.so", "libm.so", "libgcc_s.so"];
    let name = |path: &str| Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
    assert!(libraries.iter().all(|l| known.iter().any(|k| name(l).starts_with(k))), "{libraries:?}");

    // The loader of the image finds all libraries in the image.
    let loader = root.join(libraries.iter().find(|l| name(l).starts_with("ld-linux")).expect("a loader"));
    let library = root.join(libraries.iter().find(|l| name(l).starts_with("libc.so")).expect("a C library"));
    let start = ["--inhibit-cache", "--library-path", str(library.parent().unwrap())];
    let binary = root.join("usr/bin/tak-os-ingress");
    let loaded = must(str(&loader), &[&start[..], &["--list", str(&binary)]].concat());
    let paths: Vec<&str> = loaded.lines().filter_map(|l| l.split(" => ").nth(1)).collect();
    assert!(!paths.is_empty() && paths.iter().all(|p| p.starts_with(str(&root))), "{loaded}");
    let version = must(str(&loader), &[&start[..], &[str(&binary), "--version"]].concat());
    assert_eq!(version, format!("tak-os-ingress {}\n", env!("CARGO_PKG_VERSION")));

    let bundle = std::fs::read_to_string(root.join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    assert!(bundle.matches("BEGIN CERTIFICATE").count() > 50);
    assert!(std::fs::read_to_string(root.join("etc/passwd")).unwrap().starts_with("nonroot:x:65532:65532:"));
}

#[test]
fn the_bill_of_materials_names_what_is_linked_in() {
    let folder = Folder::new("sbom");
    must("python3", &["hack/sbom.py", str(&folder.0)]);
    let read = |name: &str| std::fs::read_to_string(folder.0.join(name)).unwrap();
    let bom: Value = serde_json::from_str(&read("sbom.cdx.json")).unwrap();
    assert_eq!((&bom["bomFormat"], &bom["specVersion"]), (&json!("CycloneDX"), &json!("1.5")));
    assert_eq!(bom["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let components = bom["components"].as_array().unwrap();
    let find = |name: &str| components.iter().find(|c| c["name"] == name);
    let pingora = find("pingora-proxy").expect("the engine is in it");
    assert_eq!(pingora["scope"], "required");
    assert_eq!(pingora["hashes"][0]["content"].as_str().unwrap().len(), 64);
    assert!(find("openssl").is_some(), "the C library, too");
    assert!(find("tak-os-ingress-e2e").is_none(), "tests are not shipped");
    for component in components {
        let licence = component["licenses"][0]["expression"].as_str().unwrap();
        assert!(licence != "NOASSERTION" && !licence.contains('/'), "{component}");
    }
    assert!(
        read("licences.txt").lines().any(|l| l.starts_with("pingora-proxy ") && l.ends_with("Apache-2.0"))
    );
    let notice = read("NOTICE.txt");
    assert!(notice.contains("pingora-proxy") && notice.contains("Apache License"));
}

#[test]
fn the_dockerfile_makes_the_same_image() {
    let read =
        |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let dockerfile = read("Dockerfile");
    let lines: Vec<&str> = dockerfile.lines().map(str::trim).collect();
    let channel = read("rust-toolchain.toml");
    let channel = channel.lines().find_map(|l| l.strip_prefix("channel = \"")?.strip_suffix('"')).unwrap();
    assert!(lines.contains(&format!("FROM docker.io/library/rust:{channel}-bookworm AS build").as_str()));
    let last = lines.iter().rposition(|l| l.starts_with("FROM ")).unwrap();
    assert_eq!(lines[last], "FROM scratch");
    for line in [
        "COPY --from=build /rootfs/ /",
        "ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
        "USER 65532:65532",
        "EXPOSE 80 443 9090",
        "ENTRYPOINT [\"/usr/bin/tak-os-ingress\"]",
    ] {
        assert!(lines[last..].contains(&line), "{line}");
    }
    assert!(!lines[last..].iter().any(|l| l.starts_with("RUN")), "there is nothing to run it with");
    let ours = read("hack/image.py");
    for label in ["title", "description", "version", "revision", "licenses", "source"] {
        assert!(dockerfile.contains(&format!("org.opencontainers.image.{label}=")), "{label}");
        assert!(ours.contains(&format!("label + \"{label}\"")), "{label}");
    }
    assert!(dockerfile.contains("setcap cap_net_bind_service=+ep /rootfs/usr/bin/tak-os-ingress"));
}
