//! `docs/findings.md` is the table of findings, written out. `UPDATE_DOCS=1` writes it.

use ingress_controller::finding::{Reason, Severity};
use std::fmt::Write as _;
use std::path::Path;

const HEAD: &str = "# Findings

Generated from `controller/src/finding/table.rs`; a test compares the two.

What can be wrong with an object, in the words of Events, of the log (`reason`, `id`) and of `tak-os-ingress check`. An id is never given to
another finding.

An **error** is a fault of the object itself: what it asks for is not done until it is edited. A **warning** is done as far as it can be:
something else is missing, or something else was probably meant. A **note** is no fault. `check` ends with status 1 on errors.
";

#[allow(clippy::unwrap_used)]
fn document() -> String {
    let mut all: Vec<_> = Reason::all().map(Reason::entry).collect();
    all.sort_by_key(|entry| entry.id);
    let mut text = String::from(HEAD);
    let parts = [
        ('1', "Annotations"),
        ('2', "Hosts and paths"),
        ('3', "Backends"),
        ('4', "TLS"),
        ('5', "Classes"),
        ('6', "Authentication"),
        ('7', "Gateway API"),
        ('9', "Files"),
    ];
    for (digit, part) in parts {
        write!(text, "\n## {part}\n").unwrap();
        for entry in all.iter().filter(|entry| entry.id["TAK-".len()..].starts_with(digit)) {
            let severity = match entry.severity {
                Severity::Error => "Error",
                Severity::Warning => "Warning",
                Severity::Note => "Note",
            };
            write!(text, "\n### {}\n\n{severity}, `{}`. {}\n", entry.id, entry.reason, entry.cause).unwrap();
            if !entry.accepts.is_empty() {
                write!(text, "\nAccepted: {}.\n", entry.accepts).unwrap();
            }
            write!(text, "\nCure: {}\n", entry.cure).unwrap();
        }
    }
    text
}

#[test]
fn the_document_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/findings.md");
    let want = document();
    for reason in Reason::all() {
        assert!(want.contains(&format!("### {}\n", reason.id())), "{reason} is of no part");
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == want, "docs/findings.md is not up to date: run this test with UPDATE_DOCS=1");
}
