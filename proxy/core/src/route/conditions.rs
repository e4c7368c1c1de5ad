//! What a Gateway API route asks of a request beside its path: method, header fields, query.

use crate::route::regex::Pattern;
use http::{HeaderMap, HeaderName, Method};
use std::borrow::Cow;
use std::fmt;

/// What all must be true of a request. Empty parts ask nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Conditions {
    /// The method.
    pub method: Option<Method>,
    /// Header fields, each name once (of several in one match the first counts).
    pub headers: Box<[HeaderMatch]>,
    /// Query parameters, each name once (of several in one match the first counts).
    pub query: Box<[QueryMatch]>,
}

/// A header field and its value. Several fields of one name are one, their values joined by commas
/// (RFC 9110 section 5.3). Fields that the proxy drops when clients send them never match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatch {
    /// The field's name.
    pub name: HeaderName,
    /// Its value.
    pub value: ValueMatch,
}

/// A query parameter and its value, both read with percent-escapes decoded and `+` as a space; of
/// several with one name the first counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueryMatch {
    /// The parameter's name, case-sensitive.
    pub name: Box<str>,
    /// Its value.
    pub value: ValueMatch,
}

/// How a value is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueMatch {
    /// Octet by octet.
    Exact(Box<str>),
    /// By a regular expression, as a whole.
    Regex(Pattern),
}

/// A request as conditions look at it.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The header fields as the client sent them.
    pub headers: &'a HeaderMap,
    /// What stands behind `?` in the target.
    pub query: Option<&'a str>,
    /// Whether a field of this name, sent by a client, is dropped before anything reads it.
    pub dropped: fn(&HeaderName) -> bool,
}

impl Conditions {
    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.method.is_none() && self.headers.is_empty() && self.query.is_empty()
    }

    /// Whether all is true of a request.
    pub fn match_all(&self, head: &Head<'_>) -> bool {
        self.method.as_ref().is_none_or(|method| method == head.method)
            && self.headers.iter().all(|wanted| wanted.matches(head))
            && self.query.iter().all(|wanted| wanted.matches(head.query.unwrap_or_default()))
    }
}

impl ValueMatch {
    /// Whether a value is one of those.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            ValueMatch::Exact(exact) => **exact == *value,
            ValueMatch::Regex(pattern) => pattern.matches(value),
        }
    }
}

impl HeaderMatch {
    fn matches(&self, head: &Head<'_>) -> bool {
        let mut values = head.headers.get_all(&self.name).iter();
        let Some(first) = values.next().filter(|_| !(head.dropped)(&self.name)) else { return false };
        let Ok(first) = std::str::from_utf8(first.as_bytes()) else { return false };
        let Some(second) = values.next() else { return self.value.matches(first) };
        let mut all = first.to_owned();
        for value in std::iter::once(second).chain(values) {
            let Ok(value) = std::str::from_utf8(value.as_bytes()) else { return false };
            all.push(',');
            all.push_str(value);
        }
        self.value.matches(&all)
    }
}

impl QueryMatch {
    fn matches(&self, query: &str) -> bool {
        let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let value = pairs.find(|(name, _)| decode(name).is_some_and(|name| *name == *self.name));
        value.and_then(|(_, value)| decode(value)).is_some_and(|value| self.value.matches(&value))
    }
}

/// `application/x-www-form-urlencoded` (URL standard); `None` if it is no UTF-8.
fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|b| matches!(b, b'%' | b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let hex = |b: Option<&u8>| (*b? as char).to_digit(16).map(|d| d as u8);
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let (octet, width) = match (bytes[i], hex(bytes.get(i + 1)), hex(bytes.get(i + 2))) {
            (b'%', Some(high), Some(low)) => (high << 4 | low, 3),
            (b'+', ..) => (b' ', 1),
            (b, ..) => (b, 1),
        };
        out.push(octet);
        i += width;
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut and = "";
        if let Some(method) = &self.method {
            write!(f, "method {method}")?;
            and = ", ";
        }
        for HeaderMatch { name, value } in &self.headers {
            write!(f, "{and}header {name} {value}")?;
            and = ", ";
        }
        for QueryMatch { name, value } in &self.query {
            write!(f, "{and}query {name} {value}")?;
            and = ", ";
        }
        Ok(())
    }
}

impl fmt::Display for ValueMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueMatch::Exact(value) => write!(f, "= {value}"),
            ValueMatch::Regex(pattern) => write!(f, "~ {pattern}"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn header(name: &str, value: &str) -> HeaderMatch {
        HeaderMatch { name: name.parse().unwrap(), value: ValueMatch::Exact(value.into()) }
    }

    pub(crate) fn query(name: &str, value: &str) -> QueryMatch {
        QueryMatch { name: name.into(), value: ValueMatch::Exact(value.into()) }
    }

    fn regex(text: &str) -> ValueMatch {
        ValueMatch::Regex(Pattern::new(text).unwrap())
    }

    fn takes(conditions: &Conditions, headers: &[(&str, &str)], query: &str) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        let dropped = |name: &HeaderName| name == "x-real-ip";
        conditions.match_all(&Head { method: &Method::GET, headers: &map, query: Some(query), dropped })
    }

    #[test]
    fn all_that_is_asked_must_be_there() {
        let mut c = Conditions::default();
        assert!(c.is_empty() && takes(&c, &[], ""));
        c.method = Some(Method::GET);
        c.headers = [header("version", "one"), header("color", "blue")].into();
        c.query = [query("animal", "whale")].into();
        assert!(takes(&c, &[("Version", "one"), ("color", "blue")], "x=1&animal=whale"));
        assert!(!takes(&c, &[("version", "one")], "animal=whale"));
        assert!(!takes(&c, &[("version", "one"), ("color", "blue")], "animal=dolphin"));
        c.method = Some(Method::POST);
        assert!(!takes(&c, &[("version", "one"), ("color", "blue")], "animal=whale"));
    }

    #[test]
    fn fields_of_one_name_are_one_list_and_dropped_ones_never_match() {
        let one = |value: ValueMatch| Conditions {
            headers: [HeaderMatch { name: HeaderName::from_static("x-a"), value }].into(),
            ..Conditions::default()
        };
        assert!(takes(&one(ValueMatch::Exact("1,2".into())), &[("x-a", "1"), ("x-a", "2")], ""));
        assert!(!takes(&one(ValueMatch::Exact("1".into())), &[("x-a", "1"), ("x-a", "2")], ""));
        assert!(takes(&one(regex("v[0-9]+")), &[("x-a", "v12")], ""));
        assert!(!takes(&one(regex("v[0-9]+")), &[("x-a", "v12x")], ""));
        let spoofed = Conditions { headers: [header("x-real-ip", "10.0.0.1")].into(), ..Default::default() };
        assert!(!takes(&spoofed, &[("x-real-ip", "10.0.0.1")], ""));
    }

    #[test]
    fn query_parameters_are_decoded_and_the_first_counts() {
        let c = |name: &str, value: ValueMatch| Conditions {
            query: [QueryMatch { name: name.into(), value }].into(),
            ..Default::default()
        };
        let exact = |v: &str| ValueMatch::Exact(v.into());
        for (wanted, query, hit) in [
            (c("a", exact("1")), "a=1&a=2", true),
            (c("a", exact("2")), "a=1&a=2", false),
            (c("a", exact("b c")), "a=b%20c", true),
            (c("a", exact("b c")), "a=b+c", true),
            (c("ä", exact("é")), "%C3%A4=%c3%a9", true),
            (c("a", exact("")), "a", true),
            (c("a", exact("")), "b", false),
            (c("a", exact("%")), "a=%", true),
            (c("a", exact("x")), "A=x", false),
            (c("a", regex("x.*")), "a=xyz", true),
            (c("a", regex(".*")), "a=%ff", false),
        ] {
            assert_eq!(takes(&wanted, &[], query), hit, "{wanted} {query}");
        }
    }
}
