//! Few keys, as a rule one.

use crate::cluster::Key;
use std::collections::HashSet;

/// A set of keys. Nearly every host and every Service is named by one Ingress, and a hash table takes ten
/// times what one key takes.
#[derive(Default)]
#[allow(clippy::box_collection)] // as small as one key
pub(super) enum Keys {
    #[default]
    None,
    One(Key),
    Many(Box<HashSet<Key>>),
}

impl Keys {
    pub(super) fn insert(&mut self, key: Key) {
        match self {
            Keys::None => *self = Keys::One(key),
            Keys::One(known) if *known == key => {}
            Keys::One(_) => {
                let Keys::One(known) = std::mem::take(self) else { return };
                *self = Keys::Many(Box::new(HashSet::from([known, key])));
            }
            Keys::Many(all) => drop(all.insert(key)),
        }
    }

    pub(super) fn remove(&mut self, key: &Key) {
        match self {
            Keys::One(known) if known == key => *self = Keys::None,
            Keys::None | Keys::One(_) => {}
            Keys::Many(all) => {
                all.remove(key);
                if all.is_empty() {
                    *self = Keys::None;
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Keys::None)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Key> {
        let (one, many) = match self {
            Keys::None => (None, None),
            Keys::One(key) => (Some(key), None),
            Keys::Many(all) => (None, Some(all)),
        };
        one.into_iter().chain(many.into_iter().flat_map(|all| all.iter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_set_of_any_size() {
        let mut keys = Keys::default();
        let key = |name: &str| Key::new("ns", name);
        let names = |keys: &Keys| {
            let mut names: Vec<_> = keys.iter().map(|key| key.name.to_string()).collect();
            names.sort();
            names.concat()
        };
        keys.remove(&key("a"));
        assert!(keys.is_empty());
        for (add, all) in [("a", "a"), ("a", "a"), ("b", "ab"), ("b", "ab"), ("c", "abc")] {
            keys.insert(key(add));
            assert_eq!(names(&keys), all);
        }
        for (take, all) in [("x", "abc"), ("a", "bc"), ("c", "b"), ("b", "")] {
            keys.remove(&key(take));
            assert_eq!((names(&keys).as_str(), keys.is_empty()), (all, all.is_empty()));
        }
        keys.insert(key("d"));
        keys.remove(&key("x"));
        assert_eq!(names(&keys), "d");
    }
}
