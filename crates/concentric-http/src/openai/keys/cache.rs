//! The keys that were checked a short time ago.

use std::{collections::HashMap, time::Duration};

use concentric_core::Str;

use super::{Record, key::Presented};

/// How long a key is accepted without the store.
const ACCEPTED: Duration = Duration::from_secs(30);

/// How long a key is refused without the store.
const REFUSED: Duration = Duration::from_secs(2);

/// The maximum number of keys, of each kind.
const LIMIT: usize = 10_000;

/// Refused keys have entries of their own, so that they remove none of valid keys. Times are monotonic.
#[derive(Default)]
pub(super) struct Cache {
    accepted: HashMap<Str, (Record, Duration)>,
    refused: HashMap<Presented, Duration>,
    // The number of changes of keys.
    generation: u64,
}

impl Cache {
    pub(super) fn is_refused(&self, key: &Presented, now: Duration) -> bool {
        let refused = self.refused.get(key);
        refused.is_some_and(|at| now.saturating_sub(*at) < REFUSED)
    }

    pub(super) fn record(&self, id: &str, now: Duration) -> Option<Record> {
        let (record, at) = self.accepted.get(id)?;
        (now.saturating_sub(*at) < ACCEPTED).then(|| record.clone())
    }

    pub(super) fn refuse(&mut self, key: Presented, at: Duration) {
        if self.refused.len() >= LIMIT {
            self.refused
                .retain(|_, since| at.saturating_sub(*since) < REFUSED);
            if self.refused.len() >= LIMIT {
                self.refused.clear();
            }
        }
        self.refused.insert(key, at);
    }

    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Adds a key that was read in `generation`. One that may have been changed since then is not added.
    pub(super) fn accept(&mut self, id: Str, record: Record, at: Duration, generation: u64) {
        if generation != self.generation {
            return;
        }
        if self.accepted.len() >= LIMIT && !self.accepted.contains_key(&id) {
            self.accepted
                .retain(|_, (_, since)| at.saturating_sub(*since) < ACCEPTED);
            if self.accepted.len() >= LIMIT {
                self.accepted.clear();
            }
        }
        self.accepted.insert(id, (record, at));
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.generation += 1;
        self.accepted.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_entries_is_limited() {
        let mut cache = Cache::default();
        let at = Duration::from_secs(100);
        for n in 0..3 * LIMIT {
            let id = Str::from(format!("{n:024x}"));
            let header = format!("Bearer sk-cc-{id}_{}", "a".repeat(43));
            cache.refuse(Presented::parse(header.as_bytes()).unwrap(), at);
            cache.accept(id, Record::none(), at, 0);
            assert!(cache.refused.len() <= LIMIT && cache.accepted.len() <= LIMIT);
        }
        // Expired entries are removed first.
        let (mut cache, id) = (Cache::default(), Str::from("0"));
        for n in 1..LIMIT {
            cache.accept(format!("{n}").into(), Record::none(), at, 0);
        }
        cache.accept(id.clone(), Record::none(), at + ACCEPTED / 2, 0);
        let later = at + ACCEPTED;
        cache.accept("x".into(), Record::none(), later, 0);
        assert_eq!(cache.accepted.len(), 2);
        assert!(cache.record(&id, later).is_some());
        assert!(cache.record(&id, later + ACCEPTED).is_none());
        cache.forget(&id);
        assert!(cache.record(&id, later).is_none());
        // It was read before the change.
        cache.accept(id.clone(), Record::none(), later, 0);
        assert!(cache.record(&id, later).is_none());
        let generation = cache.generation();
        cache.accept(id.clone(), Record::none(), later, generation);
        assert!(cache.record(&id, later).is_some());
    }
}
