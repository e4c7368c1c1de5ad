//! The tables of the documentation, made from the code. A test fails where `docs/` says something else;
//! `UPDATE_DOCS=1 cargo test --bin tak-os-ingress reference` writes them anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use ingress_controller::annotations::{self, Since};
use prometheus::{IntGauge, Registry};

const BEGIN: &str = "<!-- generated: begin -->\n";
const END: &str = "<!-- generated: end -->\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Holds what stands between the two marks of a document to `table`.
fn check(document: &str, table: &str) {
    let text = read(document);
    let (head, rest) = text.split_once(BEGIN).unwrap_or_else(|| panic!("{document} has no {BEGIN}"));
    let (now, tail) = rest.split_once(END).unwrap_or_else(|| panic!("{document} has no {END}"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(root().join(document), format!("{head}{BEGIN}{table}{END}{tail}")).unwrap();
        return;
    }
    if let Some((want, have)) = table.lines().zip(now.lines()).find(|(a, b)| a != b) {
        panic!(
            "{document} is not what the code says; UPDATE_DOCS=1 renews it\ncode:     {want}\ndocument: {have}"
        );
    }
    assert_eq!(now.lines().count(), table.lines().count(), "{document}: UPDATE_DOCS=1 renews it");
}

/// Text as a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

#[test]
fn the_table_of_flags_is_what_the_code_says() {
    let mut table = String::from("| Flag | Default | Meaning |\n|---|---|---|\n");
    for arg in crate::args::command().get_arguments().filter(|a| !a.is_hide_set()) {
        let name = arg.get_long().expect("every flag has a long name");
        if matches!(name, "help" | "version") {
            continue;
        }
        let default: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
        let default = match default.concat() {
            none if none.is_empty() => String::new(),
            some => format!("`{some}`"),
        };
        let help = arg.get_help().expect("every flag has a help text").to_string();
        let _ = writeln!(table, "| `--{name}` | {default} | {} |", cell(&help));
    }
    check("docs/flags.md", &table);
}

#[test]
fn the_table_of_annotations_is_what_the_code_says() {
    let mut table =
        String::from("| Annotation | Accepted | Default | Meaning | Since |\n|---|---|---|---|---|\n");
    for row in annotations::table() {
        let since = match row.since {
            Since::Version(version) => version,
            Since::Later => "not yet",
        };
        let default = if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
        let (key, accepts, meaning) = (row.key, cell(row.accepts), cell(row.meaning));
        let _ = writeln!(table, "| `{key}` | {accepts} | {} | {meaning} | {since} |", cell(&default));
    }
    check("docs/annotations.md", &table);
}

#[test]
fn the_table_of_event_reasons_is_what_the_code_says() {
    let source = read("controller/src/finding.rs");
    let (_, rest) = source.split_once("pub enum Reason {").expect("the reasons are there");
    let (body, _) = rest.split_once("\n}\n").expect("the reasons end");
    let mut table = String::from("| Reason | What it means |\n|---|---|\n");
    let mut text = Vec::new();
    for line in body.lines().map(str::trim).filter(|l| !l.is_empty()) {
        match line.strip_prefix("///") {
            Some(more) => text.push(more.trim()),
            None => {
                let _ = writeln!(table, "| `{}` | {} |", line.trim_end_matches(','), cell(&text.join(" ")));
                text.clear();
            }
        }
    }
    check("docs/troubleshooting.md", &table);
}

// ---- Metrics.

/// One family as its declaration in the source says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    kind: &'static str,
    labels: Vec<String>,
    help: String,
}

/// Everything that this process registers.
fn registry() -> Registry {
    let registry = Registry::new();
    ingress_proxy::Metrics::register(&registry).unwrap();
    ingress_controller::Metrics::register(&registry).unwrap();
    crate::app::process_metrics(&registry).unwrap();
    registry
}

/// Whether the process has a family of this name. A registry does not list what it holds before there is a value, but
/// takes no second family of one name.
fn registered(registry: &Registry, name: &str) -> bool {
    let probe = IntGauge::new(name, "A probe.").unwrap();
    match registry.register(Box::new(probe.clone())) {
        Ok(()) => {
            registry.unregister(Box::new(probe)).unwrap();
            false
        }
        Err(_) => true,
    }
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        if entry.is_dir() {
            rust_files(&entry, into);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            into.push(entry);
        }
    }
}

/// Every family that the sources declare: a name beside a sentence, which is how all of them look.
fn declared() -> BTreeMap<String, Declared> {
    let mut files = vec![root().join("src/app.rs")];
    for crate_ in ["proxy/src", "controller/src", "src"] {
        let mut all = Vec::new();
        rust_files(&root().join(crate_), &mut all);
        files.extend(
            all.into_iter().filter(|f| {
                f.components().any(|c| c.as_os_str() == "metrics" || c.as_os_str() == "metrics.rs")
            }),
        );
    }
    let mut found = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        scan(text.split("#[cfg(test)]").next().unwrap_or_default(), &mut found);
    }
    found
}

/// The string literals of a source, each with where it begins and ends. Comments must not hold quotes in pairs.
fn literals(text: &str) -> Vec<(usize, usize, String)> {
    let (bytes, mut at, mut found) = (text.as_bytes(), 0, Vec::new());
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => at += text[at..].find('\n').unwrap_or(text.len() - at),
            b'"' => {
                let (start, mut literal) = (at, String::new());
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    if bytes[at] == b'\\' && bytes.get(at + 1) == Some(&b'\n') {
                        at += 1;
                        while bytes[at].is_ascii_whitespace() {
                            at += 1;
                        }
                        continue;
                    }
                    let c = text[at..].chars().next().unwrap();
                    literal.push(c);
                    at += c.len_utf8();
                }
                at += 1;
                found.push((start, at, literal));
            }
            _ => at += 1,
        }
    }
    found
}

fn scan(text: &str, found: &mut BTreeMap<String, Declared>) {
    let literals = literals(text);
    for pair in literals.windows(2) {
        let [(start, end, name), (next, after, help)] = pair else { continue };
        let is_name = !name.is_empty()
            && name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase() || b.is_ascii_digit());
        let adjacent = text[*end..*next].bytes().all(|b| b",()".contains(&b) || b.is_ascii_whitespace());
        if !(is_name && adjacent && help.contains(' ') && help.ends_with('.')) {
            continue;
        }
        let before = text.get(start.saturating_sub(80)..*start).unwrap_or_default();
        let rest = &text[*after..];
        let labels = rest.trim_start_matches(|c: char| c == ',' || c == ')' || c.is_whitespace());
        let words = |list: &str| -> Vec<String> {
            list.split(',')
                .filter_map(|l| l.trim().strip_prefix('"')?.strip_suffix('"'))
                .map(str::to_owned)
                .collect()
        };
        let route = || vec!["namespace".to_owned(), "ingress".into(), "host".into()];
        let last = |words: &[&str]| words.iter().filter_map(|w| before.rfind(w)).max();
        // The nearest constructor before the name says what it is.
        let (counter, gauge, histogram) =
            (last(&["counter", "Counter"]), last(&["gauge", "Gauge"]), last(&["Histogram", "histogram"]));
        let (kind, labels) = if labels.starts_with("Show::Counters") {
            ("counter", [route(), vec!["method".into(), "code".into()]].concat())
        } else if labels.starts_with("Show::Counter") {
            ("counter", route())
        } else if labels.starts_with("Show::Histogram") {
            ("histogram", route())
        } else {
            let labels = match labels.strip_prefix("&[") {
                Some(list) => words(list.split(']').next().unwrap_or_default()),
                None if labels.starts_with("&ROUTE") => route(),
                None => vec![],
            };
            let kind = match counter.max(gauge).max(histogram) {
                None => continue,
                nearest if nearest == histogram => "histogram",
                nearest if nearest == counter => "counter",
                _ => "gauge",
            };
            (kind, labels)
        };
        let name = format!("tak_ingress_{}", name.trim_start_matches("tak_ingress_"));
        found.insert(name, Declared { kind, labels, help: help.clone() });
    }
}

#[test]
fn the_table_of_metrics_is_what_the_code_says() {
    let (registry, declared) = (registry(), declared());
    assert!(declared.len() > 20, "{declared:#?}");
    let mut table = String::from("| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n");
    for (name, family) in &declared {
        assert!(registered(&registry, name), "{name} is declared and not registered");
        let labels: Vec<_> = family.labels.iter().map(|l| format!("`{l}`")).collect();
        let _ =
            writeln!(table, "| `{name}` | {} | {} | {} |", family.kind, labels.join(" "), cell(&family.help));
    }
    for family in registry.gather().iter().filter(|f| f.name().starts_with("process_")) {
        let kind = format!("{:?}", family.get_field_type()).to_lowercase();
        let _ = writeln!(table, "| `{}` | {kind} |  | {} |", family.name(), cell(family.help()));
    }
    assert!(registry.gather().iter().all(|f| table.contains(&format!("| `{}` |", f.name()))));
    check("docs/metrics.md", &table);
}

/// Names in a text that begin as ours do, without what a histogram's series add.
fn names_in(text: &str) -> Vec<(String, String)> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in text.match_indices("tak_ingress_").chain(text.match_indices("process_")) {
        if text[..at].chars().next_back().is_some_and(word) {
            continue;
        }
        let name: String = text[at..].chars().take_while(|c| word(*c)).collect();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(&name);
        found.push((base.to_owned(), name.clone()));
    }
    found
}

#[test]
fn dashboards_and_alerts_name_only_metrics_that_exist() {
    let (registry, declared) = (registry(), declared());
    let mut checked = 0;
    for entry in std::fs::read_dir(root().join("dashboards")).unwrap().map(|e| e.unwrap().path()) {
        let file = entry.file_name().unwrap().to_str().unwrap();
        if !file.ends_with(".json") && !file.ends_with(".rules.yaml") {
            continue;
        }
        for (base, name) in names_in(&read(&entry)) {
            let histogram = declared.get(&base).is_some_and(|d| d.kind == "histogram");
            let exists = if histogram { base != name } else { base == name };
            assert!(exists && registered(&registry, &base), "{file} names {name}");
            checked += 1;
        }
    }
    assert!(checked > 40, "{checked}");
}

#[test]
fn declarations_are_found_in_every_form() {
    let text = r#"
        counters(r, "a_total", "Counts a.", &["x", "y"])?;
        // "no_total", "A comment."
        IntGauge::new(name("b"), "Is b.")?;
        HistogramOpts::new(
            name("c_seconds"),
            "Takes \
             long.",
        )
        counters(r, "d_total", "Counts d.", &ROUTE)?;
        ("e_bytes", "Sizes of e.", Show::Histogram(x)),
        with_label_values(&["f", "not a metric"])
    "#;
    let mut found = BTreeMap::new();
    scan(text, &mut found);
    let shown: Vec<String> =
        found.iter().map(|(n, d)| format!("{n} {} {} {}", d.kind, d.labels.join("+"), d.help)).collect();
    assert_eq!(
        shown,
        [
            "tak_ingress_a_total counter x+y Counts a.",
            "tak_ingress_b gauge  Is b.",
            "tak_ingress_c_seconds histogram  Takes long.",
            "tak_ingress_d_total counter namespace+ingress+host Counts d.",
            "tak_ingress_e_bytes histogram namespace+ingress+host Sizes of e.",
        ]
    );
}
