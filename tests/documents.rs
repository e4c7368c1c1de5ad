//! What a promise leaves to the documents is in them: the heading, and below it the words that it cannot do without.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, which Clippy does not take for tests

use std::path::Path;

/// Document, heading, words of that section.
const SAID: [(&str, &str, &[&str]); 10] = [
    ("install.md", "### The image", &["imagePullSecrets", "create secret docker-registry"]),
    (
        "install.md",
        "## With Orbit",
        &[
            "<!external-ips!>",
            "your deployment's value for external addresses",
            "to a fixed tag; the manifests need no edit",
            "What is changed in the cluster alone is undone",
            "changes belong into the source or the values",
        ],
    ),
    (
        "install.md",
        "## Upgrade",
        &["write down the image", "keep the manifest", "signing keys are 32 bytes", "HTTPRoutes"],
    ),
    ("install.md", "## Upgrade", &["update Orbit's source or mapping", "render with the new tag and apply"]),
    (
        "install.md",
        "## Configure",
        &["API server", "cluster DNS", "ports of\nbackend Services", "identity providers"],
    ),
    (
        "../loadtest/README.md",
        "## Against a cluster: k6",
        &["TARGET", "RATE", "thresholds", "on a\nmachine of its own"],
    ),
    (
        "gateway.md",
        "## Listeners",
        &["`kubernetes.io/tls`", "We never ask cert-manager", "`tls.mode: Terminate` on port 443"],
    ),
    ("authentication.md", "# Authentication", &["htpasswd", "Opaque", "`auth`"]),
    ("oauth.md", "# ", &["client_id", "client_secret", "cookie_secret"]),
    (
        "troubleshooting.md",
        "# Troubleshooting",
        &[
            "namespace, name of the Ingress, host, time and status",
            "Leave\nout passwords, cookies and the contents of Secrets",
        ],
    ),
];

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// From a heading to the next one that is as high.
fn section<'a>(text: &'a str, heading: &str) -> Option<&'a str> {
    let level = heading.bytes().take_while(|b| *b == b'#').count();
    let begin = text.lines().find(|line| line.starts_with(heading))?;
    let start = begin.as_ptr() as usize - text.as_ptr() as usize;
    let rest = &text[start..];
    let mut fenced = false;
    let end = rest.lines().skip(1).find(|line| {
        fenced ^= line.starts_with("```");
        let marks = line.bytes().take_while(|b| *b == b'#').count();
        !fenced && (1..=level).contains(&marks)
    });
    Some(end.map_or(rest, |line| &rest[..line.as_ptr() as usize - rest.as_ptr() as usize]))
}

#[test]
fn what_the_promises_leave_to_the_documents_is_in_them() {
    for (name, heading, words) in SAID {
        let text = document(name);
        let section = section(&text, heading).unwrap_or_else(|| panic!("{name} has no {heading}"));
        for word in words {
            assert!(section.contains(word), "{name}, {heading}: {word:?} is not said");
        }
    }
}

/// A link between documents leads to a file, and the README leads to every document.
#[test]
fn no_link_between_documents_is_dead() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut all =
        vec![docs.join("../README.md"), docs.join("../CHANGELOG.md"), docs.join("../CONTRIBUTING.md")];
    all.extend(
        std::fs::read_dir(&docs).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()),
    );
    for path in all {
        let text = std::fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || target.contains("://") {
                continue;
            }
            let there = path.parent().unwrap().join(file);
            assert!(there.exists(), "{}: {target} leads nowhere", path.display());
        }
    }
}
