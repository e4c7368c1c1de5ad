//! Regular expressions of routes, on an engine whose time is linear in what it reads.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A regular expression that a value has to match as a whole, as users of the Gateway API's
/// `RegularExpression` know it: `/v[0-9]+` does not take `/v1/x`. Compiled when a route is translated.
#[derive(Clone)]
pub struct Pattern {
    source: Arc<str>,
    regex: regex::Regex,
}

/// Text that is no regular expression, or one that would take too much memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a usable regular expression: {0}")]
pub struct InvalidPattern(String);

/// Memory of one compiled expression, and of what a thread keeps while it runs one.
const MAX_SIZE: usize = 256 << 10;

/// Longest source text; the Gateway API allows 1024 for paths and 4096 for header values.
const MAX_SOURCE: usize = 4096;

impl Pattern {
    /// Compiles an expression.
    pub fn new(source: &str) -> Result<Self, InvalidPattern> {
        if source.len() > MAX_SOURCE {
            return Err(InvalidPattern(format!("longer than {MAX_SOURCE} octets")));
        }
        let compile = |text: &str| {
            regex::RegexBuilder::new(text)
                .size_limit(MAX_SIZE)
                .dfa_size_limit(MAX_SIZE)
                .build()
                .map_err(|e| InvalidPattern(one_line(&e.to_string())))
        };
        compile(source)?; // by itself, so that it cannot close the group around it
        Ok(Self { source: source.into(), regex: compile(&format!("^(?:{source})$"))? })
    }

    /// Whether the whole of a value matches.
    pub fn matches(&self, value: &str) -> bool {
        self.regex.is_match(value)
    }

    /// The text that it was compiled from.
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

/// The last line of the engine's message, which spans several to point into the text.
fn one_line(message: &str) -> String {
    let last = message.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash(state);
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.source).finish()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_matches_as_a_whole() {
        for (pattern, value, hit) in [
            ("/v[0-9]+", "/v12", true),
            ("/v[0-9]+", "/v12/x", false),
            ("/v[0-9]+", "x/v12", false),
            ("a|b", "a", true),
            ("a|b", "ab", false),
            ("/.*", "/any/thing", true),
            ("^/x$", "/x", true),
            ("(?i)/x", "/X", true),
            ("a", "a\n", false),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(value), hit, "{pattern} {value:?}");
        }
    }

    #[test]
    fn what_does_not_compile_or_grows_too_large_is_refused_in_one_line() {
        for bad in ["(", "a)|(b", "[z-a]", r"(a)\1", "(?=a)b", "(((a{100}){100}){100})", "(?x) a # b"] {
            let error = Pattern::new(bad).unwrap_err().to_string();
            assert!(!error.contains('\n'), "{error}");
        }
        assert!(Pattern::new(&"a".repeat(5000)).is_err());
    }
}
