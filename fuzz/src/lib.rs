//! Fuzz targets as plain functions: bytes in, a panic where something is wrong.
//!
//! `fuzz.rs` gives them to libFuzzer, which looks for inputs that reach new code (`make fuzz`).
//! `tests/corpus.rs` runs what was found and kept through the same functions, on every build and
//! without any fuzzer.

use ingress_controller::cluster::{
    Annotations, Cluster, Dirty, IngressObject, Key, Path, PathBackend, PathType, PortRef, Rule,
    SecretObject, Tls,
};
use ingress_controller::translate::{Settings, Translator};
use ingress_core::route::host::HostBuf;
use ingress_core::route::path::routing_path;
use ingress_core::{Access, Auth, HostPattern, PathMatch, RequestHost};
use ingress_proxy::fuzz as proxy;
use std::collections::BTreeMap;

mod http1;

pub use http1::{chunks, head, request_line};

/// A target takes any bytes, and panics where something is wrong.
pub type Target = fn(&[u8]);

/// Every target by its name.
pub const TARGETS: [(&str, Target); 7] = [
    ("request_line", request_line),
    ("head", head),
    ("chunks", chunks),
    ("path", path),
    ("host", host),
    ("annotations", annotations),
    ("secret", secret),
];

/// A request path, and the paths of rules: what routing sees has one meaning, and every decoding of
/// it the same one.
pub fn path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (raw, rule) = text.split_once('\n').unwrap_or((text, "/"));
    if let Ok(path) = routing_path(raw) {
        assert!(path.starts_with('/') && !path.contains("//"), "{raw:?} gives {path:?}");
        assert_eq!(routing_path(&path).as_deref(), Ok(&*path), "it is its own reading");
        for separators in [&["/"][..], &["/", "\\"]] {
            let decoded = decode(path.as_bytes());
            let decoded = String::from_utf8_lossy(&decoded);
            let segments = decoded.split(|c: char| separators.iter().any(|s| s.starts_with(c)));
            for segment in segments {
                let name = segment.split(';').next().unwrap_or(segment);
                assert!(name != "." && name != "..", "{raw:?} holds a dot segment for some backend");
            }
        }
        assert!(!path.contains('#') && path.bytes().all(|b| b.is_ascii_graphic()), "{raw:?}");
    }
    for rule in [PathMatch::exact(rule), PathMatch::prefix(rule)].into_iter().flatten() {
        let Ok(path) = routing_path(raw) else { continue };
        if rule.matches(&path) {
            let (PathMatch::Exact(text) | PathMatch::Prefix(text)) = &rule else {
                unreachable!("no expression was asked for")
            };
            assert!(path.starts_with(&**text), "{rule:?} takes {path:?}");
        }
        assert_eq!(rule.precedence(&rule), std::cmp::Ordering::Equal);
    }
}

/// Percent-decoded once.
fn decode(bytes: &[u8]) -> Vec<u8> {
    let hex = |b: Option<&u8>| b.and_then(|b| (*b as char).to_digit(16));
    let mut out = Vec::new();
    let mut i = 0;
    while i < bytes.len() {
        match (bytes[i], hex(bytes.get(i + 1)), hex(bytes.get(i + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                i += 3;
            }
            (b, ..) => {
                out.push(b);
                i += 1;
            }
        }
    }
    out
}

/// A request's authority and a rule's host: one spelling of each name, and a rule takes no name
/// that is not its own.
pub fn host(data: &[u8]) {
    let mut split = data.splitn(2, |b| *b == b'\n');
    let (raw, rule) = (split.next().unwrap_or_default(), split.next().unwrap_or_default());
    let mut buf = HostBuf::default();
    let parsed = RequestHost::parse(raw, &mut buf);
    if let Ok(RequestHost { host, port }) = parsed {
        assert!(!host.is_empty() && !host.ends_with('.') && !host.bytes().any(|b| b.is_ascii_uppercase()));
        assert!(host.starts_with('[') || !host.contains([':', '/', '@', ' ', '*']), "{host:?}");
        let mut again = HostBuf::default();
        let spelled = match port {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let second = RequestHost::parse(spelled.as_bytes(), &mut again);
        assert_eq!(second, Ok(RequestHost { host, port }));
    }
    let Ok(text) = std::str::from_utf8(rule) else { return };
    if let Ok(pattern) = text.parse::<HostPattern>() {
        let written = pattern.to_string();
        if pattern != HostPattern::Any {
            assert_eq!(written.parse::<HostPattern>().as_ref(), Ok(&pattern), "{written:?}");
        }
    }
}

/// The annotations of an Ingress, one `key=value` a line: whatever stands in them, translation ends,
/// other objects are served, and nothing that guards access leaves the route open.
pub fn annotations(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let annotations: BTreeMap<Box<str>, Box<str>> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| {
            // The prefix is long, and no fuzzer's business.
            let key = if key.contains('/') { key.into() } else { format!("ingress.tak-os.org/{key}") };
            (key.into(), value.into())
        })
        .collect();
    let guards = |key: &str| {
        let own = key.strip_prefix("ingress.tak-os.org/").unwrap_or("");
        matches!(own, "auth-type" | "auth-secret" | "auth-url" | "oauth2-secret")
            || key == "k8s.tak-os.com/oauth2-secret"
    };
    let lists = |key: &str| {
        matches!(
            key,
            "ingress.tak-os.org/allowlist-source-range" | "ingress.tak-os.org/denylist-source-range"
        )
    };
    let guarded = annotations.keys().any(|key| guards(key));
    let listed = annotations.keys().any(|key| lists(key));
    let mut cluster = Cluster::default();
    let mut dirty = Dirty::default();
    let other = ingress("other");
    cluster.apply_ingress(
        IngressObject { annotations: annotations.into_iter().collect(), ..ingress("fuzzed") },
        &mut dirty,
    );
    cluster.apply_ingress(other, &mut dirty);
    let translation = Translator::with_clock(Settings::default(), || 0).translate(&cluster, &dirty);
    let find = |host| translation.routes.find(host, "/").ok().cloned();
    let own = find("fuzzed.example.com");
    assert!(find("other.example.com").is_some_and(|r| r.policy.auth == Auth::Open), "the neighbour is open");
    // The field decides the class where it is there, so that annotation changes nothing.
    let route = own.expect("an Ingress with mistakes is served or closed, and never forgotten");
    assert!(!guarded || route.policy.auth != Auth::Open, "authentication was asked for: {:?}", route.policy);
    assert!(!listed || route.policy.access != Access::Open, "addresses were listed: {:?}", route.policy);
}

fn ingress(name: &str) -> IngressObject {
    let host: Box<str> = format!("{name}.example.com").into();
    IngressObject {
        key: Key::new("ns", name),
        uid: name.into(),
        resource_version: "1".into(),
        created: 0,
        class: Some("tak-os".into()),
        annotations: Annotations::default(),
        rules: [Rule {
            host: host.clone(),
            paths: [Path {
                path: Some("/".into()),
                path_type: PathType::Prefix,
                backend: PathBackend::Service { name: "web".into(), port: PortRef::Number(80) },
            }]
            .into(),
        }]
        .into(),
        tls: [Tls { hosts: [host].into(), secret: Some("tls".into()) }].into(),
        default_backend: false,
    }
}

/// A TLS Secret, `tls.crt` and `tls.key` with a NUL between: what the control plane takes, the data
/// plane can serve.
pub fn secret(data: &[u8]) {
    let mut parts = data.splitn(2, |b| *b == 0);
    let (certificate, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let object = SecretObject {
        key: Key::new("ns", "tls"),
        uid: "u".into(),
        resource_version: "1".into(),
        secret_type: "kubernetes.io/tls".into(),
        data: [("tls.crt".into(), certificate.into()), ("tls.key".into(), key.into())].into(),
    };
    let mut cluster = Cluster::default();
    let mut dirty = Dirty::default();
    cluster.apply_secret(object, &mut dirty);
    cluster.apply_ingress(ingress("web"), &mut dirty);
    let translation = Translator::with_clock(Settings::default(), || 0).translate(&cluster, &dirty);
    if let Some(certified) = translation.certs.find(Some("web.example.com")) {
        assert!(!certified.chain.is_empty() && proxy::serves(certified));
    }
}
