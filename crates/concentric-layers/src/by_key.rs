//! Values that calls share by a key.

use concentric_core::Str;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The number of keys whose values are kept.
const KEYS: usize = 1_024;

/// A value for each of the most recently used keys.
pub(crate) struct ByKey<T>(Mutex<Kept<T>>);

struct Kept<T> {
    // Each with the time of its last use.
    values: HashMap<Str, (u64, T)>,
    uses: u64,
}

impl<T: Clone> ByKey<T> {
    fn lock(&self) -> MutexGuard<'_, Kept<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of `key`, if it is kept.
    #[cfg(feature = "circuit-breaker")]
    pub(crate) fn find(&self, key: &str) -> Option<T> {
        self.lock().values.get(key).map(|(_, value)| value.clone())
    }

    /// Returns the value of `key`, which `make` creates for a new one. Of values that are created at once, the
    /// first is kept.
    pub(crate) fn get(&self, key: Str, make: impl FnOnce() -> T) -> T {
        if let Some(value) = self.lock().used(&key) {
            return value;
        }
        // Not under the lock, since it may be code of the application.
        let value = make();
        let mut kept = self.lock();
        if let Some(value) = kept.used(&key) {
            return value;
        }
        if kept.values.len() >= KEYS {
            let oldest = kept.values.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                kept.values.remove(&oldest);
            }
        }
        let now = kept.uses;
        kept.values.insert(key, (now, value.clone()));
        value
    }
}

impl<T: Clone> Kept<T> {
    fn used(&mut self, key: &Str) -> Option<T> {
        self.uses += 1;
        let (used, value) = self.values.get_mut(key)?;
        *used = self.uses;
        Some(value.clone())
    }
}

impl<T> Default for ByKey<T> {
    fn default() -> Self {
        Self(Mutex::new(Kept {
            values: HashMap::new(),
            uses: 0,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_not_made_under_the_lock() {
        let by_key = ByKey::default();
        let sum = by_key.get("a".into(), || {
            let same = by_key.get("a".into(), || 1);
            same + by_key.get("b".into(), || 2)
        });
        // The first value is kept.
        assert_eq!((sum, by_key.get("a".into(), || 7)), (1, 1));
    }

    #[test]
    fn the_least_recently_used_value_is_evicted() {
        let by_key = ByKey::default();
        let mut made = 0;
        let mut using = |key: usize| {
            by_key.get(key.to_string().into(), || made += 1);
            made
        };
        for key in 0..KEYS {
            assert_eq!(using(key), key + 1);
        }
        // 0 is used again, so 1 makes room.
        assert_eq!(using(0), KEYS);
        assert_eq!(using(KEYS), KEYS + 1);
        assert_eq!(using(0), KEYS + 1);
        assert_eq!(using(1), KEYS + 2);
    }
}
