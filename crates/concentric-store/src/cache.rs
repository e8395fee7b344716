//! Rules for caches shared by the stores.

use crate::{Options, rules::check_total};
use concentric_core::{
    ThreadId,
    store::{CacheKey, StoreError},
};

/// The names of an entry; that of no conversation is empty.
pub(crate) fn names(key: &CacheKey) -> [&str; 3] {
    let thread = key.thread.as_ref().map_or("", ThreadId::as_str);
    [key.tenant.0.as_str(), thread, key.space.as_str()]
}

/// The size of an entry, which counts towards the limit of all entries.
pub(crate) fn weight(key: &CacheKey, value: &[u8]) -> usize {
    let names: usize = names(key).map(str::len).iter().sum();
    names + key.digest.len() + value.len()
}

/// Checks the size of a value. Returns whether a cache with the limits of `options` can have it.
pub(crate) fn check(key: &CacheKey, value: &[u8], options: &Options) -> Result<bool, StoreError> {
    check_total(value.len(), options.max_cached_value_bytes)?;
    Ok(options.max_cache_entries > 0 && weight(key, value) <= options.max_cache_bytes)
}
