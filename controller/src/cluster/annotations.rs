//! The annotations of an object.

/// Key and value of those that are read, in the order of the keys: a few, of ten thousand objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations(Box<[(Box<str>, Box<str>)]>);

impl Annotations {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// Key and value, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for Annotations {
    /// Each key once.
    fn from_iter<T: IntoIterator<Item = (K, V)>>(all: T) -> Self {
        let mut all: Box<[_]> = all.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        all.sort();
        Self(all)
    }
}
