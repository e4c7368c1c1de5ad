//! Which Ingresses refer to an object.

use super::keys::Keys;
use crate::cluster::Key;
use std::collections::HashMap;

/// From an object's key to the keys of the Ingresses that refer to it.
#[derive(Default)]
pub(super) struct Index(HashMap<Key, Keys>);

impl Index {
    /// The Ingresses that refer to the object.
    pub(super) fn of(&self, object: &Key) -> impl Iterator<Item = &Key> {
        self.0.get(object).into_iter().flat_map(Keys::iter)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An Ingress refers to `new` and no more to `old`; `unused` hears of those that nobody refers to now.
    pub(super) fn change(&mut self, ingress: &Key, old: &[Key], new: &[Key], mut unused: impl FnMut(&Key)) {
        if old == new {
            return;
        }
        for object in new {
            self.0.entry(object.clone()).or_default().insert(ingress.clone());
        }
        for object in old.iter().filter(|object| !new.contains(object)) {
            let Some(ingresses) = self.0.get_mut(object) else { continue };
            ingresses.remove(ingress);
            if ingresses.is_empty() {
                self.0.remove(object);
                unused(object);
            }
        }
    }
}
