//! Paths: the one reading of a request path, and what a rule declares.

use crate::route::regex::{InvalidPattern, Pattern};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// A path that has no single meaning, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    /// Does not begin with `/`.
    #[error("path does not begin with /")]
    NotAbsolute,
    /// `.` or `..` as a segment, plain or percent-encoded.
    #[error("path holds a dot segment")]
    DotSegment,
    /// `#`, a control or a non-ASCII octet, or an encoded NUL.
    #[error("path holds an octet that must not stand in it")]
    Octet,
    /// `?` in a rule's path.
    #[error("a rule's path cannot hold a query")]
    Query,
}

/// The path that routing sees: `raw` with empty segments collapsed, or an error if a backend could
/// read it as another path than we do. Borrows unless something was collapsed.
///
/// `raw` is the request target up to `?`. A dot segment is refused in every spelling (`.`, `%2e`,
/// with path parameters behind it) and behind every separator that some backend knows (`/`, `%2F`,
/// `\`, `%5C`). An encoded slash is no separator for matching. The backend gets the raw bytes.
pub fn routing_path(raw: &str) -> Result<Cow<'_, str>, InvalidPath> {
    let bytes = raw.as_bytes();
    if bytes.first() != Some(&b'/') {
        return Err(InvalidPath::NotAbsolute);
    }
    let mut empty_segment = false;
    let mut suspicious = false;
    let mut previous = 0u8;
    for &b in bytes {
        match b {
            b'/' => empty_segment |= previous == b'/',
            b'.' | b'%' | b'\\' => suspicious = true,
            b'#' | 0..=0x20 | 0x7f.. => return Err(InvalidPath::Octet),
            _ => {}
        }
        previous = b;
    }
    if suspicious {
        refuse_dot_segments(bytes)?;
    }
    if !empty_segment {
        return Ok(Cow::Borrowed(raw));
    }
    let mut out = String::with_capacity(raw.len());
    let mut slash = false;
    for c in raw.chars() {
        if !(c == '/' && slash) {
            out.push(c);
        }
        slash = c == '/';
    }
    Ok(Cow::Owned(out))
}

/// Walks the path with unreserved dots and every kind of slash decoded.
fn refuse_dot_segments(bytes: &[u8]) -> Result<(), InvalidPath> {
    // Length of the segment so far if it holds nothing but dots; None once anything else was seen.
    let mut dots = Some(0usize);
    let mut parameters = false;
    let is_dot_segment = |dots: Option<usize>| matches!(dots, Some(1 | 2));
    let mut i = 0;
    while i < bytes.len() {
        let (octet, width) = match (bytes[i], hex(bytes.get(i + 1)), hex(bytes.get(i + 2))) {
            (b'%', Some(high), Some(low)) => (high << 4 | low, 3),
            (b, ..) => (b, 1),
        };
        i += width;
        match octet {
            0 => return Err(InvalidPath::Octet),
            b'/' | b'\\' => {
                if is_dot_segment(dots) {
                    return Err(InvalidPath::DotSegment);
                }
                (dots, parameters) = (Some(0), false);
            }
            b'.' if !parameters => dots = dots.map(|n| n + 1),
            // Some servers cut `;parameters` off a segment before they read its dots.
            b';' => parameters = true,
            _ if parameters => {}
            _ => dots = None,
        }
    }
    if is_dot_segment(dots) { Err(InvalidPath::DotSegment) } else { Ok(()) }
}

fn hex(b: Option<&u8>) -> Option<u8> {
    (*b? as char).to_digit(16).map(|d| d as u8)
}

/// Where ACME's HTTP-01 challenges are asked for (RFC 8555 section 8.3), without the slash behind it.
const CHALLENGES: &str = "/.well-known/acme-challenge";

/// What a rule matches on the routing path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathMatch {
    /// This path, byte for byte.
    Exact(Box<str>),
    /// This path and everything below it, by element; kept without trailing slash (root is empty).
    Prefix(Box<str>),
    /// Paths that an expression matches as a whole.
    Regex(Box<Pattern>),
}

impl PathMatch {
    /// An `Exact` path of a rule.
    pub fn exact(path: &str) -> Result<Self, InvalidPath> {
        Ok(Self::Exact(declared(path)?.into()))
    }

    /// A `Prefix` path of a rule; a trailing slash does not count (Ingress API, `pathType: Prefix`).
    pub fn prefix(path: &str) -> Result<Self, InvalidPath> {
        let path = declared(path)?;
        Ok(Self::Prefix(path.strip_suffix('/').unwrap_or(&path).into()))
    }

    /// A `RegularExpression` path of a Gateway route.
    pub fn regex(pattern: &str) -> Result<Self, InvalidPattern> {
        Pattern::new(pattern).map(|pattern| Self::Regex(Box::new(pattern)))
    }

    /// Whether nothing but challenges of ACME's HTTP-01 is declared.
    pub fn is_challenge(&self) -> bool {
        let (Self::Exact(declared) | Self::Prefix(declared)) = self else { return false };
        declared.strip_prefix(CHALLENGES).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether a routing path is taken.
    pub fn matches(&self, path: &str) -> bool {
        match self {
            PathMatch::Exact(p) => **p == *path,
            PathMatch::Prefix(p) => {
                path.strip_prefix(&**p).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            PathMatch::Regex(pattern) => pattern.matches(path),
        }
    }

    /// The rank of its kind: Exact is tried first, then Regex, then Prefix. The Gateway API leaves the
    /// place of expressions open; behind the prefixes, `/` would hide them all.
    pub const fn kind(&self) -> u8 {
        match self {
            PathMatch::Exact(_) => 0,
            PathMatch::Regex(_) => 1,
            PathMatch::Prefix(_) => 2,
        }
    }

    fn text(&self) -> &str {
        match self {
            PathMatch::Exact(p) | PathMatch::Prefix(p) => p,
            PathMatch::Regex(pattern) => pattern.as_str(),
        }
    }

    /// The part of a path that a Prefix stands for; nothing of the others.
    pub fn prefix_text(&self) -> &str {
        match self {
            PathMatch::Prefix(p) => p,
            _ => "",
        }
    }

    /// Which of two path matches is tried first (`Less` = self): by kind, then the longer text.
    /// Distinct paths of equal rank are ordered by their text, so that the order is total.
    pub fn precedence(&self, other: &Self) -> Ordering {
        let (a, b) = (self.text(), other.text());
        self.kind().cmp(&other.kind()).then_with(|| b.len().cmp(&a.len())).then_with(|| a.cmp(b))
    }
}

impl fmt::Display for PathMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathMatch::Exact(p) => write!(f, "Exact {p}"),
            PathMatch::Prefix(p) if p.is_empty() => f.write_str("Prefix /"),
            PathMatch::Prefix(p) => write!(f, "Prefix {p}"),
            PathMatch::Regex(pattern) => write!(f, "RegularExpression {pattern}"),
        }
    }
}

fn declared(path: &str) -> Result<Cow<'_, str>, InvalidPath> {
    if path.contains('?') {
        return Err(InvalidPath::Query);
    }
    routing_path(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_matches_by_element_and_ignores_a_trailing_slash() {
        for rule in ["/aaa/bbb", "/aaa/bbb/"] {
            let p = PathMatch::prefix(rule).unwrap();
            for (path, hit) in [
                ("/aaa/bbb", true),
                ("/aaa/bbb/", true),
                ("/aaa/bbb/ccc", true),
                ("/aaa/bbbxyz", false),
                ("/aaa", false),
            ] {
                assert_eq!(p.matches(path), hit, "{rule} {path}");
            }
        }
        assert!(
            PathMatch::prefix("/").unwrap().matches("/") && PathMatch::prefix("/").unwrap().matches("/x")
        );
    }

    #[test]
    fn exact_is_byte_exact() {
        let p = PathMatch::exact("/foo").unwrap();
        assert!(p.matches("/foo") && !p.matches("/foo/") && !p.matches("/FOO") && !p.matches("/fo"));
    }

    #[test]
    fn empty_segments_collapse_for_routing_only_when_there_are_some() {
        assert!(matches!(routing_path("/a/b"), Ok(Cow::Borrowed("/a/b"))));
        assert_eq!(routing_path("//a///b//").unwrap(), "/a/b/");
        assert_eq!(routing_path("/a%2Fb").unwrap(), "/a%2Fb");
    }

    #[test]
    fn ordinary_dots_and_escapes_pass() {
        for raw in [
            "/",
            "/a.b",
            "/.well-known/x",
            "/...",
            "/a/...b",
            "/..a",
            "/a..",
            "/%2Ftest%2F2/a%3Ab%3Bc/%3cfoo%3e",
            "/%",
            "/%2",
            "/%zz",
            "/a;b=..",
            "/%252e%252e/",
            "/a\\b",
            "/.a",
            "/a/.b",
            "/;.",
            "/~x",
        ] {
            assert!(routing_path(raw).is_ok(), "{raw}");
        }
    }

    #[test]
    fn dot_segments_in_every_spelling_are_refused() {
        for raw in [
            "/.",
            "/..",
            "/./",
            "/../",
            "/a/../b",
            "/a/./b",
            "/a/..",
            "/a/.",
            "/x/%2e%2e/admin",
            "/x/.%2E/admin",
            "/%2e/admin",
            "/admin/%2e%2e/admin",
            "/a%2f../b",
            "/a%2F%2e%2e%2Fb",
            "/a\\..\\b",
            "/a%5c..",
            "/a%5C.%2e/b",
            "/..;/admin",
            "/..;x=1/admin",
            "/.;/admin",
            "/a/%2E%2E;y",
            "/..%2fadmin",
            "/..\\admin",
            "//../a",
            "/..%5c",
        ] {
            assert_eq!(routing_path(raw), Err(InvalidPath::DotSegment), "{raw}");
        }
    }

    #[test]
    fn octets_that_split_readers_are_refused() {
        for raw in ["/a#b", "/a b", "/a\tb", "/a\u{7f}", "/ä", "/a%00b", "/\0"] {
            assert_eq!(routing_path(raw), Err(InvalidPath::Octet), "{raw}");
        }
        for raw in ["", "a", "*", "http://x/"] {
            assert_eq!(routing_path(raw), Err(InvalidPath::NotAbsolute), "{raw}");
        }
        assert_eq!(PathMatch::prefix("/a?b"), Err(InvalidPath::Query));
    }
}
