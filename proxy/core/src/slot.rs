//! A place beside a snapshot value where the data plane keeps what it derived from it.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Holds one lazily made value of a type this crate does not know (metric handles, native keys).
///
/// The value is derived from its neighbour and never part of it: slots are always equal, and a
/// clone starts empty. Whoever fills a slot must always use the same type; a second type finds `None`.
#[derive(Default)]
pub struct Slot(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Slot {
    /// An empty slot.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The kept value, made by `make` on first use. `None` if the slot holds another type.
    pub fn get_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Arc::new(make())).downcast_ref()
    }
}

impl Clone for Slot {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl PartialEq for Slot {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Slot {}

impl std::hash::Hash for Slot {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "Slot(filled)" } else { "Slot(empty)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_made_once_and_keeps_its_type() {
        let slot = Slot::new();
        assert_eq!(slot.get_or_init(|| 7u32), Some(&7));
        assert_eq!(slot.get_or_init(|| 9u32), Some(&7));
        assert_eq!(slot.get_or_init(|| "other"), None);
        assert_eq!(slot.clone().get_or_init(|| 9u32), Some(&9));
    }
}
