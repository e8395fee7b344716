//! Values that calls share by a key.

use concentric_core::Str;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
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
    /// Returns the value of `key`, if it is kept.
    #[cfg(feature = "circuit-breaker")]
    pub(crate) fn find(&self, key: &str) -> Option<T> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.values.get(key).map(|(_, value)| value.clone())
    }

    /// Returns the value of `key`, which `make` creates for a new one.
    pub(crate) fn get(&self, key: Str, make: impl FnOnce() -> T) -> T {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.uses += 1;
        let now = kept.uses;
        if let Some((used, value)) = kept.values.get_mut(&key) {
            *used = now;
            return value.clone();
        }
        if kept.values.len() >= KEYS {
            let oldest = kept.values.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                kept.values.remove(&oldest);
            }
        }
        let value = make();
        kept.values.insert(key, (now, value.clone()));
        value
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
