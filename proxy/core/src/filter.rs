//! What a Gateway API rule does with a request, in order: filters as data, and the pure parts of them.

use crate::Backend;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use std::sync::Arc;

/// One filter. A rule's filters run in their order before a backend is chosen, then those of the
/// backend. CORS is no filter here: it is `Policy::cors`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Changes the header fields that the backend gets.
    RequestHeaders(HeaderEdit),
    /// Changes the header fields that the client gets.
    ResponseHeaders(HeaderEdit),
    /// Answers with a redirect; nothing is forwarded.
    Redirect(Redirect),
    /// Changes what the backend is asked for.
    Rewrite(Rewrite),
    /// Sends a copy of the request elsewhere.
    Mirror(Mirror),
    /// 500: a filter that cannot be honoured.
    Fail,
}

/// Changes of header fields, done in this order: set, add, remove.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HeaderEdit {
    /// Replaces the fields of that name.
    pub set: Box<[(HeaderName, HeaderValue)]>,
    /// Adds a value to those that are there.
    pub add: Box<[(HeaderName, HeaderValue)]>,
    /// Takes the fields of that name away.
    pub remove: Box<[HeaderName]>,
}

impl HeaderEdit {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }

    /// Does it.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
        for name in &self.remove {
            headers.remove(name);
        }
    }
}

/// Another path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathEdit {
    /// This one, whatever was asked for.
    Full(Box<str>),
    /// This one in place of the prefix that the route matches; only for routes with a Prefix.
    Prefix(Box<str>),
}

impl PathEdit {
    /// The path for a routing path that was matched by `prefix` (kept without its trailing slash).
    /// Never empty, begins with a slash.
    pub fn apply(&self, path: &str, prefix: &str) -> String {
        let (replacement, rest) = match self {
            PathEdit::Full(full) => (&**full, ""),
            PathEdit::Prefix(with) => (&**with, path.strip_prefix(prefix).unwrap_or_default()),
        };
        let mut out = String::with_capacity(1 + replacement.len() + rest.len());
        if !(replacement.starts_with('/') || replacement.is_empty() && rest.starts_with('/')) {
            out.push('/');
        }
        out.push_str(replacement);
        if rest.starts_with('/') && out.ends_with('/') {
            out.pop();
        }
        out.push_str(rest);
        out
    }
}

/// A redirect; what is `None` is as in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// `https` or `http`.
    pub https: Option<bool>,
    /// The host name.
    pub hostname: Option<Box<str>>,
    /// The port. `None`: the scheme's own where `https` is set, else the listener's; a scheme's own
    /// port is never written.
    pub port: Option<u16>,
    /// The path; the query is kept.
    pub path: Option<PathEdit>,
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
}

/// What the backend is asked for instead; what is `None` is as in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// `Host`.
    pub hostname: Option<HeaderValue>,
    /// The path; the query is kept.
    pub path: Option<PathEdit>,
}

/// A copy of requests for another backend, whose answer nobody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Where to.
    pub backend: Arc<Backend>,
    /// So many ...
    pub numerator: u32,
    /// ... of so many; both 1 for all. 100 for a `percent`.
    pub denominator: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matched_prefix_is_replaced_as_the_gateway_api_says() {
        for (path, prefix, with, want) in [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
            ("/foo/bar", "", "/xyz", "/xyz/foo/bar"),
            ("/", "", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "/", "/bar"),
        ] {
            assert_eq!(PathEdit::Prefix(with.into()).apply(path, prefix), want, "{path} {prefix} {with}");
        }
        assert_eq!(PathEdit::Full("/one".into()).apply("/a/b", "/a"), "/one");
        assert_eq!(PathEdit::Full("".into()).apply("/a/b", "/a"), "/");
    }

    #[test]
    fn header_edits_set_add_and_remove() {
        let pair = |n: &'static str, v| (HeaderName::from_static(n), HeaderValue::from_static(v));
        let edit = HeaderEdit {
            set: [pair("x-set", "new")].into(),
            add: [pair("x-add", "two"), pair("x-new", "one")].into(),
            remove: [HeaderName::from_static("x-gone")].into(),
        };
        let mut headers: HeaderMap =
            [pair("x-set", "old"), pair("x-add", "one"), pair("x-gone", "x")].into_iter().collect();
        edit.apply(&mut headers);
        let all = |name| headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(
            (all("x-set"), all("x-add"), all("x-new")),
            (vec!["new"], vec!["one", "two"], vec!["one"])
        );
        assert!(!headers.contains_key("x-gone") && !edit.is_empty() && HeaderEdit::default().is_empty());
    }
}
