use super::*;
use crate::finding::Finding;
use std::collections::HashSet;

/// What these annotations are read as, and what is found wrong.
pub(super) fn read_all(pairs: &[(&str, &str)]) -> (Wanted, Vec<Finding>) {
    let annotations = pairs.iter().map(|(key, value)| (*key, *value)).collect();
    let mut findings = Findings::default();
    let wanted = read(&annotations, &mut findings);
    (wanted, findings.finish().into_vec())
}

/// The same for one key under our prefix.
pub(super) fn read_one(key: &str, value: &str) -> (Wanted, Vec<Finding>) {
    read_all(&[(&format!("{PREFIX}{key}"), value)])
}

#[test]
fn nothing_asked_for_is_the_defaults() {
    let (wanted, findings) = read_all(&[]);
    assert_eq!(wanted.policy, Policy::default());
    assert_eq!(wanted.connection, Connection::default());
    assert!(wanted.ssl_redirect && findings.is_empty());
}

#[test]
fn keys_are_whole_unique_and_told_with_what_they_accept() {
    let mut seen = HashSet::new();
    for row in table() {
        assert!(seen.insert(row.key), "{}", row.key);
        assert!(is_read(row.key) && row.key.contains('/'), "{}", row.key);
        assert!(!row.accepts.is_empty() && !row.meaning.is_empty(), "{}", row.key);
    }
    assert_eq!(seen.len(), 31);
    assert!(!is_read("nginx.ingress.kubernetes.io/ssl-redirect"));
    assert!(!is_read("kubectl.kubernetes.io/last-applied-configuration"));
}

#[test]
fn an_unknown_key_is_told_with_the_nearest_known_one() {
    for (key, nearest) in [
        ("ssl-redirekt", "ssl-redirect"),
        ("proxy-read-time-out", "proxy-read-timeout"),
        ("Backend-protocol", "backend-protocol"),
        ("whitelist-source-range", "allowlist-source-range"),
    ] {
        let (wanted, findings) = read_one(key, "false");
        assert_eq!(wanted, read_all(&[]).0, "{key}");
        assert_eq!(findings.len(), 1, "{key}");
        assert_eq!(findings[0].reason, Reason::UnknownAnnotation);
        assert_eq!(*findings[0].field, *format!("{PREFIX}{key}"));
        assert!(findings[0].message.ends_with(&format!("the nearest is {PREFIX}{nearest}")), "{findings:?}");
    }
}

#[test]
fn of_the_platforms_keys_only_a_slip_of_ours_is_told() {
    assert!(read_all(&[("k8s.tak-os.com/deploy-id", "x")]).1.is_empty());
    let (_, findings) = read_all(&[("k8s.tak-os.com/oauth2-secert", "x")]);
    assert_eq!(findings[0].reason, Reason::UnknownAnnotation);
}

#[test]
fn booleans_are_true_or_false_in_any_case_and_nothing_else() {
    for (text, value) in [("true", true), ("TRUE", true), ("False", false), ("false", false)] {
        assert_eq!(boolean(text), Some(value));
    }
    for text in ["", "yes", "1", "0", "on", " true", "truee", "t"] {
        assert_eq!(boolean(text), None, "{text}");
    }
}

#[test]
fn distance_counts_letters() {
    for (a, b, n) in [
        ("", "", 0),
        ("a", "", 1),
        ("abc", "abd", 1),
        ("abc", "bc", 1),
        ("kitten", "sitting", 3),
        ("aab", "aaab", 1),
    ] {
        assert_eq!((distance(a, b), distance(b, a)), (n, n), "{a} {b}");
    }
}

#[test]
fn mistakes_come_in_the_same_order_every_time() {
    let pairs = [
        ("ingress.tak-os.org/zzz", "1"),
        ("ingress.tak-os.org/auth-url", "x"),
        ("ingress.tak-os.org/ssl-redirect", "x"),
        ("ingress.tak-os.org/proxy-read-timeout", "x"),
        ("ingress.tak-os.org/aaa", "1"),
    ];
    let fields: Vec<_> =
        read_all(&pairs).1.iter().map(|f| f.field.trim_start_matches(PREFIX).to_owned()).collect();
    assert_eq!(fields, ["ssl-redirect", "proxy-read-timeout", "auth-url", "aaa", "zzz"]);
}

/// What is passed over for its length would not have been the nearest.
#[test]
fn the_nearest_key_is_that_of_the_least_distance() {
    let mut keys: Vec<_> = table().map(|row| row.key.to_owned()).collect();
    keys.extend(table().map(|row| format!("{}s", row.key)));
    keys.extend(
        table().map(|row| row.key.chars().rev().take(9).collect::<String>()).map(|k| PREFIX.to_owned() + &k),
    );
    keys.push(format!("{PREFIX}{}", "x".repeat(300)));
    for key in keys.iter().filter(|key| key.starts_with(PREFIX)) {
        let all = table().filter(|row| row.key.starts_with(PREFIX));
        assert_eq!(nearest(key), all.map(|row| (distance(row.key, key), row.key)).min(), "{key}");
    }
}
