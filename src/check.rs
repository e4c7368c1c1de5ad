//! `check`: manifests validated without a cluster, for people, for programs, and for code hosts (SARIF).

use ingress_controller::check::{Manifest, Mistake, Report, check, read};
use ingress_controller::finding::{Reason, Severity};
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::PathBuf;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Check {
    /// Folders and files; `-` is stdin.
    pub paths: Vec<PathBuf>,
    /// How it is told.
    pub output: Output,
    /// Warnings count as errors.
    pub strict: bool,
}

/// How findings are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A line each, for people.
    Text,
    /// One object.
    Json,
    /// A SARIF 2.1.0 log.
    Sarif,
}

/// The text to print, and whether nothing stands against the manifests.
pub fn run(
    ask: &Check,
    settings: &ingress_controller::translate::Settings,
    namespaces: &[String],
) -> Result<(String, bool), String> {
    let mut files = Vec::new();
    for path in &ask.paths {
        if path.as_os_str() == "-" {
            let mut text = Vec::new();
            std::io::stdin().read_to_end(&mut text).map_err(|e| format!("stdin: {e}"))?;
            files.push(Manifest {
                name: "<stdin>".into(),
                text: String::from_utf8(text).map_err(|_| "not UTF-8".to_owned()),
            });
        } else {
            files.extend(read(path).map_err(|e| format!("{}: {e}", path.display()))?);
        }
    }
    let report = check(&files, settings, namespaces);
    let fine = report.count(Severity::Error) == 0 && !(ask.strict && report.count(Severity::Warning) > 0);
    let text = match ask.output {
        Output::Text => text(&report),
        Output::Json => pretty(&to_json(&report)),
        Output::Sarif => pretty(&sarif(&report)),
    };
    Ok((text, fine))
}

/// JSON as it is printed.
pub fn pretty(value: &Value) -> String {
    // a Value always serialises
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// `file:line:column: severity TAK-1001 InvalidAnnotation: object: field: message`, then a summary.
fn text(report: &Report) -> String {
    let mut out = String::new();
    for m in &report.mistakes {
        let object = m.object.as_ref().map(|o| format!("{o}: ")).unwrap_or_default();
        let severity = m.reason.severity();
        out += &format!(
            "{}:{}:{}: {severity} {} {}: {object}{}\n",
            m.file,
            m.line,
            m.column,
            m.reason.id(),
            m.reason,
            words(m)
        );
        if !m.accepted.is_empty() && !m.message.contains(m.accepted) {
            out += &format!("    accepted: {}\n", m.accepted);
        }
    }
    let number = |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let counts = [
        number(report.count(Severity::Error), "error", "errors"),
        number(report.count(Severity::Warning), "warning", "warnings"),
        number(report.count(Severity::Note), "note", "notes"),
    ];
    let files = number(report.files, "file", "files");
    let ingresses = number(report.ingresses, "Ingress", "Ingresses");
    let routes = number(report.routes, "route", "routes");
    out + &format!("{files}, {ingresses} served with {routes}: {}\n", counts.join(", "))
}

fn words(m: &Mistake) -> String {
    if m.field.is_empty() { m.message.to_string() } else { format!("{}: {}", m.field, m.message) }
}

fn to_json(report: &Report) -> Value {
    let findings: Vec<_> = report.mistakes.iter().map(finding).collect();
    json!({
        "findings": findings,
        "errors": report.count(Severity::Error),
        "warnings": report.count(Severity::Warning),
        "notes": report.count(Severity::Note),
        "files": report.files,
        "ingresses": report.ingresses,
        "routes": report.routes,
    })
}

/// One finding for programs.
pub fn finding(m: &Mistake) -> Value {
    let full = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    json!({
        "id": m.reason.id(),
        "reason": m.reason.to_string(),
        "severity": m.reason.severity().as_str(),
        "file": m.file,
        "line": m.line,
        "column": m.column,
        "object": m.object.as_ref().map(ToString::to_string),
        "key": full(&m.field),
        "value": m.value,
        "accepted": full(m.accepted),
        "nearest": m.nearest,
        "message": &*m.message,
        "cure": m.reason.entry().cure,
    })
}

/// A SARIF 2.1.0 log (OASIS standard): one run, every rule, a result for each finding.
fn sarif(report: &Report) -> Value {
    let rules: Vec<_> = Reason::all()
        .map(|reason| {
            let entry = reason.entry();
            json!({
                "id": entry.id,
                "name": reason.to_string(),
                "shortDescription": { "text": entry.cause },
                "help": { "text": entry.cure },
                "defaultConfiguration": { "level": entry.severity.as_str() },
            })
        })
        .collect();
    let results: Vec<_> = report.mistakes.iter().map(result).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "tak-os-ingress",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            } },
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn result(m: &Mistake) -> Value {
    let index = Reason::all().position(|reason| reason == m.reason);
    let mut location = json!({
        "physicalLocation": {
            "artifactLocation": { "uri": uri(&m.file) },
            "region": { "startLine": m.line, "startColumn": m.column },
        },
    });
    if let Some(object) = &m.object {
        location["logicalLocations"] =
            json!([{ "fullyQualifiedName": object.to_string(), "kind": "resource" }]);
    }
    json!({
        "ruleId": m.reason.id(),
        "ruleIndex": index,
        "level": m.reason.severity().as_str(),
        "message": { "text": words(m) },
        "locations": [location],
    })
}

/// A file's name as a URI reference: relative ones stay relative to where the check was run.
fn uri(file: &str) -> String {
    let file = file.strip_prefix("./").unwrap_or(file);
    let mut out = String::with_capacity(file.len());
    if file.starts_with('/') {
        out.push_str("file://");
    }
    for b in file.bytes() {
        match b {
            b'/' | b'.' | b'-' | b'_' | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => out.push(b.into()),
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingress_controller::translate::Settings;

    fn report() -> Report {
        let text = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: web\n  annotations:\n    \
                    ingress.tak-os.org/ssl-redirekt: \"x\"\nspec:\n  ingressClassName: tak-os\n  rules:\n  - host: \"a b\"\n";
        let files = [Manifest { name: "dir/a b.yaml".into(), text: Ok(text.into()) }];
        check(&files, &Settings::default(), &[])
    }

    #[test]
    fn text_has_a_line_for_each_finding_and_a_summary() {
        assert_eq!(
            text(&report()),
            "dir/a b.yaml:6:5: error TAK-1002 UnknownAnnotation: ingress/default/web: \
             ingress.tak-os.org/ssl-redirekt: there is no such annotation; the nearest is ingress.tak-os.org/ssl-redirect\n\
             dir/a b.yaml:10:5: error TAK-2001 InvalidHost: ingress/default/web: spec.rules[0].host: \"a b\": host holds an \
             octet or label that no host name has; the rule is left out\n    accepted: a DNS name, or *. before one\n\
             1 file, 1 Ingress served with 0 routes: 2 errors, 0 warnings, 0 notes\n"
        );
    }

    #[test]
    fn json_names_everything_apart() {
        let value = to_json(&report());
        assert_eq!((&value["errors"], &value["warnings"]), (&json!(2), &json!(0)));
        let first = &value["findings"][0];
        for (key, want) in [
            ("id", json!("TAK-1002")),
            ("severity", json!("error")),
            ("line", json!(6)),
            ("object", json!("ingress/default/web")),
            ("key", json!("ingress.tak-os.org/ssl-redirekt")),
            ("value", Value::Null),
            ("nearest", json!("ingress.tak-os.org/ssl-redirect")),
        ] {
            assert_eq!(first[key], want, "{key}");
        }
        assert_eq!(value["findings"][1]["value"], "a b");
        assert_eq!(value["findings"][1]["accepted"], "a DNS name, or *. before one");
    }

    /// What the standard's schema requires of the parts that are written (SARIF 2.1.0, sections 3.13 to 3.30, 3.49).
    #[test]
    fn sarif_has_what_the_standard_requires() {
        let report = report();
        let log = sarif(&report);
        assert_eq!(log["version"], "2.1.0");
        let [run] = &log["runs"].as_array().unwrap()[..] else { panic!("one run") };
        let driver = &run["tool"]["driver"];
        assert!(driver["name"].is_string());
        let rules = driver["rules"].as_array().unwrap();
        let mut ids = std::collections::HashSet::new();
        for rule in rules {
            assert!(ids.insert(rule["id"].as_str().unwrap()));
            assert!(rule["shortDescription"]["text"].as_str().is_some_and(|t| !t.is_empty()));
            assert!(
                ["error", "warning", "note"]
                    .contains(&rule["defaultConfiguration"]["level"].as_str().unwrap())
            );
        }
        let results = run["results"].as_array().unwrap();
        assert_eq!(results.len(), report.mistakes.len());
        for result in results {
            let rule = &rules[usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap()];
            assert_eq!(rule["id"], result["ruleId"]);
            assert_eq!(rule["defaultConfiguration"]["level"], result["level"]);
            assert!(result["message"]["text"].as_str().is_some_and(|t| !t.is_empty()));
            let physical = &result["locations"][0]["physicalLocation"];
            assert_eq!(physical["artifactLocation"]["uri"], "dir/a%20b.yaml");
            for at in ["startLine", "startColumn"] {
                assert!(physical["region"][at].as_u64().is_some_and(|n| n >= 1));
            }
        }
    }

    #[test]
    fn names_of_files_become_uri_references() {
        assert_eq!(uri("./a/b.yaml"), "a/b.yaml");
        assert_eq!(uri("/a/ä:.yaml"), "file:///a/%C3%A4%3A.yaml");
    }
}
