use super::MemoryStore;
use crate::{
    Options,
    cache::{check, weight},
    rules::end_of,
};
use concentric_core::{
    Str, ThreadId,
    store::{CacheEntry, CacheKey, CacheStore, StoreFuture, Tenant},
};
use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

#[derive(Default)]
pub(super) struct Cache {
    entries: HashMap<CacheKey, Entry>,
    bytes: usize,
}

pub(super) struct Entry {
    pub(super) until: SystemTime,
    at: SystemTime,
    value: Vec<u8>,
}

impl Cache {
    fn remove(&mut self, key: &CacheKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= weight(key, &entry.value);
        }
    }

    /// Keeps the entries for which `keep` returns `true`; returns the number of the others.
    pub(super) fn retain(&mut self, keep: impl Fn(&CacheKey, &Entry) -> bool) -> usize {
        let before = self.entries.len();
        self.entries.retain(|key, entry| {
            let is_kept = keep(key, entry);
            if !is_kept {
                self.bytes -= weight(key, &entry.value);
            }
            is_kept
        });
        before - self.entries.len()
    }

    fn put(&mut self, key: CacheKey, entry: Entry, options: &Options) {
        self.remove(&key);
        self.bytes += weight(&key, &entry.value);
        self.entries.insert(key, entry);
        while self.entries.len() > options.max_cache_entries || self.bytes > options.max_cache_bytes
        {
            let first = self.entries.iter().min_by_key(|(_, entry)| entry.until);
            let Some(key) = first.map(|(key, _)| key.clone()) else {
                return;
            };
            self.remove(&key);
        }
    }
}

impl CacheStore for MemoryStore {
    fn get_entry(&self, key: CacheKey) -> StoreFuture<Option<CacheEntry>> {
        let now = self.options.now();
        self.work(move |kept| {
            let entry = kept.cache.entries.get(&key);
            let entry = entry.filter(|entry| entry.until > now);
            Ok(entry.map(|entry| {
                let age = now.duration_since(entry.at).unwrap_or_default();
                CacheEntry::new(entry.value.clone(), age)
            }))
        })
    }

    fn put_entry(&self, key: CacheKey, value: Vec<u8>, keep: Duration) -> StoreFuture<()> {
        let options = self.options.clone();
        self.work(move |kept| {
            if check(&key, &value, &options)? {
                let at = options.now();
                let until = end_of(at, keep);
                kept.cache.put(key, Entry { until, at, value }, &options);
            }
            Ok(())
        })
    }

    fn remove_entries(
        &self,
        tenant: Tenant,
        thread: Option<ThreadId>,
        space: Option<Str>,
    ) -> StoreFuture<u64> {
        self.work(move |kept| {
            let gone = kept.cache.retain(|key, _| {
                key.tenant != tenant
                    || thread.is_some() && key.thread != thread
                    || space.as_ref().is_some_and(|space| key.space != *space)
            });
            Ok(u64::try_from(gone).unwrap_or(u64::MAX))
        })
    }
}
