use super::{
    SqliteStore,
    values::{execute, find_row, nanos, time},
};
use crate::{
    Options,
    cache::{check, names, weight},
    columns::position,
    rules::end_of,
};
use concentric_core::{
    Str, ThreadId,
    store::{CacheEntry, CacheKey, CacheStore, StoreError, StoreFuture, Tenant},
};
use rusqlite::{Transaction, params};
use std::time::Duration;

impl CacheStore for SqliteStore {
    fn get_entry(&self, key: CacheKey) -> StoreFuture<Option<CacheEntry>> {
        self.read(move |tx, options| get(tx, options, &key))
    }

    fn put_entry(&self, key: CacheKey, value: Vec<u8>, keep: Duration) -> StoreFuture<()> {
        let options = self.options.clone();
        let store = self.clone();
        Box::pin(async move {
            // Before the value waits in the queue.
            if !check(&key, &value, &options)? {
                return Ok(());
            }
            let put = store.write(move |tx, options| put(tx, options, &key, &value, keep));
            put.await
        })
    }

    fn remove_entries(
        &self,
        tenant: Tenant,
        thread: Option<ThreadId>,
        space: Option<Str>,
    ) -> StoreFuture<u64> {
        let store = self.clone();
        Box::pin(async move {
            let mut removed = 0;
            loop {
                let (tenant, thread, space) = (tenant.clone(), thread.clone(), space.clone());
                let some = store.write(move |tx, _| {
                    remove_some(tx, &tenant, thread.as_ref(), space.as_deref())
                });
                match some.await? {
                    0 => return Ok(removed),
                    some => removed += some,
                }
            }
        })
    }
}

/// Removes at most a hundred entries, and returns their number.
fn remove_some(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    thread: Option<&ThreadId>,
    space: Option<&str>,
) -> Result<u64, StoreError> {
    let delete = format!(
        "DELETE FROM cache WHERE rowid IN
         (SELECT rowid FROM cache WHERE tenant = ?1
          AND (?2 IS NULL OR thread = ?2) AND (?3 IS NULL OR space = ?3) LIMIT {})",
        super::runs::BATCH
    );
    let of = (tenant.0.as_str(), thread.map(ThreadId::as_str), space);
    Ok(u64::try_from(execute(tx, &delete, of)?).unwrap_or(u64::MAX))
}

fn get(
    tx: &Transaction<'_>,
    options: &Options,
    key: &CacheKey,
) -> Result<Option<CacheEntry>, StoreError> {
    let now = options.now();
    let find = "SELECT value, at FROM cache
                WHERE tenant = ?1 AND thread = ?2 AND space = ?3 AND digest = ?4 AND until > ?5";
    let [tenant, thread, space] = names(key);
    let row = params![tenant, thread, space, key.digest, nanos(now)];
    find_row(tx, find, row, |row| {
        let age = now.duration_since(time(row.get(1)?));
        Ok(CacheEntry::new(row.get(0)?, age.unwrap_or_default()))
    })
}

fn put(
    tx: &Transaction<'_>,
    options: &Options,
    key: &CacheKey,
    value: &[u8],
    keep: Duration,
) -> Result<(), StoreError> {
    let now = options.now();
    let [tenant, thread, space] = names(key);
    // Not replaced, for which no trigger counts.
    let delete =
        "DELETE FROM cache WHERE tenant = ?1 AND thread = ?2 AND space = ?3 AND digest = ?4";
    execute(tx, delete, params![tenant, thread, space, key.digest])?;
    let insert = "INSERT INTO cache (tenant, thread, space, digest, at, until, bytes, value)
                  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let row = params![
        tenant,
        thread,
        space,
        key.digest,
        nanos(now),
        nanos(end_of(now, keep)),
        position(weight(key, value)),
        value,
    ];
    execute(tx, insert, row)?;
    trim(tx, options).map(drop)
}

/// Removes entries beyond the limits, at most a hundred; returns whether more may be left.
pub(super) fn trim(tx: &Transaction<'_>, options: &Options) -> Result<bool, StoreError> {
    let is_over = "SELECT n > ?1 OR bytes > ?2 FROM cache_total";
    let limits = [
        position(options.max_cache_entries),
        position(options.max_cache_bytes),
    ];
    for _ in 0..super::runs::BATCH {
        let is_over = find_row(tx, is_over, limits, |row| row.get::<_, bool>(0))?;
        let delete = "DELETE FROM cache WHERE rowid =
                      (SELECT rowid FROM cache ORDER BY until LIMIT 1)";
        if !is_over.unwrap_or_default() || execute(tx, delete, [])? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
