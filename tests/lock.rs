//! The lock file holds what the build must not leave to a fresh resolve.

const LOCK: &str = include_str!("../Cargo.lock");

/// Every locked version of a package.
fn versions(package: &str) -> Vec<&'static str> {
    let head = format!("name = \"{package}\"\nversion = \"");
    LOCK.split("[[package]]\n").filter_map(|p| p.strip_prefix(&*head)?.split('"').next()).collect()
}

#[test]
fn tokio_is_one_that_the_engine_works_with() {
    // From 1.54 on a buffer of capacity 0, which Pingora asks for, panics on the first connection.
    let tokio = versions("tokio");
    assert_eq!(tokio.len(), 1, "{tokio:?}");
    let minor: u32 = tokio[0].split('.').nth(1).and_then(|m| m.parse().ok()).unwrap();
    assert!(tokio[0].starts_with("1.") && minor < 54, "{tokio:?}");
}

#[test]
fn there_is_one_tls_stack_and_one_engine() {
    for absent in ["rustls", "native-tls", "ring", "aws-lc-rs", "reqwest"] {
        // `ring` may stand in the file for a target that is never built; cargo deny looks at that.
        assert!(versions(absent).is_empty() || absent == "ring", "{absent}");
    }
    for single in ["openssl", "pingora-core", "pingora-proxy", "h2", "kube", "k8s-openapi"] {
        assert_eq!(versions(single).len(), 1, "{single}");
    }
}
