//! A rule's path as something to match.

use crate::cluster::{Path, PathType};
use crate::finding::{Findings, Reason, quoted};
use ingress_core::{InvalidPath, PathMatch};

/// What the path matches; `None`, with a finding, if nothing can.
pub(super) fn read(path: &Path, field: &str, findings: &mut Findings) -> Option<PathMatch> {
    let text = path.path.as_deref().unwrap_or_default();
    let matched = match path.path_type {
        PathType::Exact => PathMatch::exact(text),
        PathType::Prefix => PathMatch::prefix(text),
        PathType::ImplementationSpecific if text.is_empty() => PathMatch::prefix("/"),
        PathType::ImplementationSpecific => PathMatch::prefix(text),
        PathType::Unknown => {
            let message =
                "pathType is neither Exact nor Prefix nor ImplementationSpecific; the path is left out";
            findings.add(Reason::InvalidPathType, format!("{field}.pathType"), message);
            return None;
        }
    };
    match matched {
        Ok(matched) => {
            if looks_like_regex(text, path.path_type) {
                let message = format!(
                    "{} reads like a regular expression; it is taken letter by letter, patterns are not supported",
                    quoted(text)
                );
                findings.add(Reason::PathLooksLikeRegex, format!("{field}.path"), message);
            }
            Some(matched)
        }
        Err(problem) => {
            let hint = match problem {
                InvalidPath::Octet => " (other characters than visible ASCII are written percent-encoded)",
                _ => "",
            };
            let message = format!("{}: {problem}{hint}; the path is left out", quoted(text));
            findings.add(Reason::InvalidPath, format!("{field}.path"), message);
            None
        }
    }
}

/// Whether somebody probably meant a pattern. With `ImplementationSpecific`, under which other
/// controllers do take patterns, less is enough.
fn looks_like_regex(path: &str, path_type: PathType) -> bool {
    let plain = path.contains(['(', ')', '[', ']'])
        || path.contains(".*")
        || path.contains(".+")
        || path.ends_with("/*");
    plain
        || (path_type == PathType::ImplementationSpecific
            && path.contains(['*', '^', '$', '+', '|', '\\', '{', '}']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::PathBackend;

    fn read_path(text: &str, path_type: PathType) -> (Option<String>, Vec<Reason>) {
        let mut findings = Findings::default();
        let path =
            Path { path: (!text.is_empty()).then(|| text.into()), path_type, backend: PathBackend::None };
        let matched = read(&path, "spec.rules[0].http.paths[0]", &mut findings);
        let reasons = findings.finish().iter().map(|f| f.reason).collect();
        (matched.map(|m| m.to_string()), reasons)
    }

    #[test]
    fn each_type_reads_its_path() {
        use PathType::{Exact, ImplementationSpecific, Prefix, Unknown};
        for (text, path_type, want, reason) in [
            ("/foo", Exact, Some("Exact /foo"), None),
            ("/foo/", Exact, Some("Exact /foo/"), None),
            ("/foo/", Prefix, Some("Prefix /foo"), None),
            ("/foo//bar", Prefix, Some("Prefix /foo/bar"), None),
            ("/", Prefix, Some("Prefix /"), None),
            ("", ImplementationSpecific, Some("Prefix /"), None),
            ("/plain", ImplementationSpecific, Some("Prefix /plain"), None),
            ("", Exact, None, Some(Reason::InvalidPath)),
            ("", Prefix, None, Some(Reason::InvalidPath)),
            ("foo", Prefix, None, Some(Reason::InvalidPath)),
            ("/a/../b", Prefix, None, Some(Reason::InvalidPath)),
            ("/a?b", Prefix, None, Some(Reason::InvalidPath)),
            ("/a b", Exact, None, Some(Reason::InvalidPath)),
            ("/café", Prefix, None, Some(Reason::InvalidPath)),
            ("/foo", Unknown, None, Some(Reason::InvalidPathType)),
        ] {
            let (matched, reasons) = read_path(text, path_type);
            assert_eq!(matched.as_deref(), want, "{text} {path_type:?}");
            assert_eq!(reasons, reason.into_iter().collect::<Vec<_>>(), "{text} {path_type:?}");
        }
    }

    #[test]
    fn what_looks_like_a_pattern_is_told_and_taken_literally() {
        use PathType::{Exact, ImplementationSpecific, Prefix};
        for (text, path_type, told) in [
            ("/api/(.*)", ImplementationSpecific, true),
            ("/api/(.*)", Prefix, true),
            ("/api/.*", Exact, true),
            ("/api/[a-z]", Prefix, true),
            ("/api/*", Prefix, true),
            ("/api/v1$", ImplementationSpecific, true),
            ("/a|/b", ImplementationSpecific, true),
            ("/a+b/$metadata", Prefix, false),
            ("/a*b", Prefix, false),
            ("/a.b/c", ImplementationSpecific, false),
        ] {
            let (matched, reasons) = read_path(text, path_type);
            assert!(matched.is_some_and(|m| m.ends_with(text)), "{text}");
            assert_eq!(!reasons.is_empty(), told, "{text} {path_type:?}");
            assert!(reasons.iter().all(|r| *r == Reason::PathLooksLikeRegex));
        }
    }
}
