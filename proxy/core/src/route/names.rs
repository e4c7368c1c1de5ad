//! A map from declared host names to values, looked up by the name that a client asks for.

use crate::HostPattern;
use std::collections::HashMap;
use std::sync::Arc;

/// Values by host pattern. The most specific pattern that takes a name decides: the name itself, then
/// the wildcards of its parents from the longest to the shortest (of one parent the one-label kind
/// first), then `Any`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMap<V> {
    exact: HashMap<Arc<str>, V>,
    /// `*.parent` for one label.
    wildcard: HashMap<Arc<str>, V>,
    /// `*.parent` for one label or more.
    suffix: HashMap<Arc<str>, V>,
    any: Option<V>,
}

impl<V> Default for HostMap<V> {
    fn default() -> Self {
        Self { exact: HashMap::new(), wildcard: HashMap::new(), suffix: HashMap::new(), any: None }
    }
}

/// How specific a pattern is; the greater decides. Only for patterns that take the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specificity(usize, bool);

impl HostPattern {
    /// How specific the pattern is among those that take one name.
    pub fn specificity(&self) -> Specificity {
        match self {
            HostPattern::Exact(_) => Specificity(usize::MAX, true),
            HostPattern::Wildcard(parent) => Specificity(parent.len(), true),
            HostPattern::Suffix(parent) => Specificity(parent.len(), false),
            HostPattern::Any => Specificity(0, false),
        }
    }
}

impl<V> HostMap<V> {
    /// Puts a value in; gives back the one that was there.
    pub fn insert(&mut self, host: &HostPattern, value: V) -> Option<V> {
        match host {
            HostPattern::Exact(h) => self.exact.insert(h.clone(), value),
            HostPattern::Wildcard(p) => self.wildcard.insert(p.clone(), value),
            HostPattern::Suffix(p) => self.suffix.insert(p.clone(), value),
            HostPattern::Any => self.any.replace(value),
        }
    }

    /// Takes a value out.
    pub fn remove(&mut self, host: &HostPattern) -> Option<V> {
        match host {
            HostPattern::Exact(h) => self.exact.remove(h),
            HostPattern::Wildcard(p) => self.wildcard.remove(p),
            HostPattern::Suffix(p) => self.suffix.remove(p),
            HostPattern::Any => self.any.take(),
        }
    }

    /// The value of exactly this pattern.
    pub fn get(&self, host: &HostPattern) -> Option<&V> {
        match host {
            HostPattern::Exact(h) => self.exact.get(h),
            HostPattern::Wildcard(p) => self.wildcard.get(p),
            HostPattern::Suffix(p) => self.suffix.get(p),
            HostPattern::Any => self.any.as_ref(),
        }
    }

    /// The value of the most specific pattern that takes a normalised name.
    pub fn find(&self, name: &str) -> Option<&V> {
        self.find_if(name, |_| true)
    }

    /// [`HostMap::find`] among the values that count.
    pub fn find_if(&self, name: &str, counts: impl Fn(&V) -> bool) -> Option<&V> {
        if let Some(found) = self.exact.get(name).filter(|v| counts(v)) {
            return Some(found);
        }
        self.by_parent(name, &counts).or_else(|| self.any.as_ref().filter(|v| counts(v)))
    }

    fn by_parent(&self, name: &str, counts: &impl Fn(&V) -> bool) -> Option<&V> {
        let (_, parent) = name.split_once('.')?;
        if let Some(found) = self.wildcard.get(parent).filter(|v| counts(v)) {
            return Some(found);
        }
        if self.suffix.is_empty() {
            return None;
        }
        let mut rest = Some(parent);
        while let Some(parent) = rest {
            if let Some(found) = self.suffix.get(parent).filter(|v| counts(v)) {
                return Some(found);
            }
            rest = parent.split_once('.').map(|(_, parent)| parent);
        }
        None
    }

    /// [`HostMap::find`] with the pattern.
    pub fn find_entry(&self, name: &str) -> Option<(HostPattern, &V)> {
        self.entries(name).next()
    }

    /// Every pattern that takes a normalised name, from the most specific one, with its value.
    pub fn entries(&self, name: &str) -> impl Iterator<Item = (HostPattern, &V)> {
        HostPattern::candidates(name).into_iter().filter_map(|p| self.get(&p).map(|v| (p, v)))
    }

    /// The value of `Any`.
    pub fn any(&self) -> Option<&V> {
        self.any.as_ref()
    }

    /// Every pattern with its value, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (HostPattern, &V)> {
        let exact = self.exact.iter().map(|(h, v)| (HostPattern::Exact(h.clone()), v));
        let wildcard = self.wildcard.iter().map(|(p, v)| (HostPattern::Wildcard(p.clone()), v));
        let suffix = self.suffix.iter().map(|(p, v)| (HostPattern::Suffix(p.clone()), v));
        exact.chain(wildcard).chain(suffix).chain(self.any.as_ref().map(|v| (HostPattern::Any, v)))
    }

    /// Every value, in no order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.exact.values().chain(self.wildcard.values()).chain(self.suffix.values()).chain(&self.any)
    }

    /// Number of patterns.
    pub fn len(&self) -> usize {
        self.exact.len() + self.wildcard.len() + self.suffix.len() + usize::from(self.any.is_some())
    }

    /// Whether there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ingress_wildcard_is_one_label_and_a_gateways_is_one_or_more() {
        let mut m = HostMap::default();
        let gateway = |s: &str| HostPattern::gateway(s).unwrap();
        m.insert(&gateway("*.com"), "com");
        m.insert(&gateway("*.example.com"), "suffix");
        m.insert(&"*.one.example.com".parse().unwrap(), "one label");
        m.insert(&"app.example.com".parse().unwrap(), "exact");
        for (name, want) in [
            ("app.example.com", Some("exact")),
            ("a.example.com", Some("suffix")),
            ("a.b.example.com", Some("suffix")),
            ("a.one.example.com", Some("one label")),
            ("a.b.one.example.com", Some("suffix")),
            ("example.com", Some("com")),
            ("a.b.com", Some("com")),
            ("com", None),
            ("a.org", None),
        ] {
            assert_eq!(m.find(name).copied(), want, "{name}");
            let entry = m.find_entry(name);
            assert_eq!(entry.as_ref().map(|(_, v)| **v), want, "{name}");
            assert!(entry.is_none_or(|(p, _)| HostPattern::Exact(name.into()).within(&p)), "{name}");
        }
        m.insert(&"*.example.com".parse().unwrap(), "both");
        assert_eq!(m.find("a.example.com"), Some(&"both"));
        assert_eq!(m.find("a.b.example.com"), Some(&"suffix"));
        for (without, next) in [("both", Some(&"suffix")), ("exact", Some(&"both")), ("none", Some(&"both"))]
        {
            assert_eq!(m.find_if("a.example.com", |v| *v != without), next, "{without}");
        }
        assert_eq!(m.find_if("app.example.com", |v| *v != "exact"), Some(&"both"));
        m.insert(&HostPattern::Any, "any");
        assert_eq!(m.find_if("com", |v| *v != "any"), None);
        assert_eq!(m.find("com"), Some(&"any"));
        assert_eq!((m.len(), m.iter().count(), m.values().count()), (6, 6, 6));
        m.remove(&gateway("*.example.com"));
        assert_eq!(m.find("a.b.example.com"), Some(&"com"));
    }

    #[test]
    fn specificity_agrees_with_the_order_of_candidates() {
        for name in ["a.b.c.d", "x", "a.b"] {
            let all: Vec<_> = HostPattern::candidates(name).iter().map(HostPattern::specificity).collect();
            assert!(all.windows(2).all(|pair| pair[0] > pair[1]), "{all:?}");
        }
    }
}
