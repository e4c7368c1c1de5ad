//! One copy of each equal value.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Keeps one `Arc` per distinct value for as long as somebody else holds it.
pub(crate) struct Pool<T: ?Sized> {
    kept: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { kept: HashSet::new(), sweep_at: 64 }
    }
}

impl<T: ?Sized + Hash + Eq> Pool<T> {
    /// The shared copy of `value`.
    pub(crate) fn intern(&mut self, value: impl Borrow<T> + Into<Arc<T>>) -> Arc<T> {
        if let Some(known) = self.kept.get(value.borrow()) {
            return known.clone();
        }
        if self.kept.len() >= self.sweep_at {
            self.kept.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = 64.max(self.kept.len() * 2);
        }
        let value = value.into();
        self.kept.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_shared_and_unused_ones_are_let_go() {
        let mut pool = Pool::<str>::default();
        let a = pool.intern("a");
        assert!(Arc::ptr_eq(&a, &pool.intern(Arc::<str>::from("a"))));
        for i in 0..1000 {
            pool.intern(i.to_string().as_str());
        }
        assert!(pool.kept.len() <= 65, "{}", pool.kept.len());
        assert!(Arc::ptr_eq(&a, &pool.intern("a")));
    }
}
