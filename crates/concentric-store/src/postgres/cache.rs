use super::{
    PostgresStore, column,
    pool::Repeat,
    values::{now, params, span},
};
use crate::{
    cache::{check, names, weight},
    columns::{number, position},
};
use concentric_core::{
    Str, ThreadId,
    store::{CacheEntry, CacheKey, CacheStore, StoreFuture, Tenant},
};
use std::{sync::Arc, time::Duration};

impl CacheStore for PostgresStore {
    fn get_entry(&self, key: CacheKey) -> StoreFuture<Option<CacheEntry>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let [tenant, thread, space] = names(&key);
            let params = params![
                TEXT: tenant,
                TEXT: thread,
                TEXT: space,
                BYTEA: key.digest.as_slice(),
                INT8: now(&db.options),
            ];
            let rows = db.call("cache_get", params, Repeat::Yes).await?;
            let Some(row) = rows.first() else {
                return Ok(None);
            };
            let age = Duration::from_nanos(number(column(row, 1)?));
            Ok(Some(CacheEntry::new(column(row, 0)?, age)))
        })
    }

    fn put_entry(&self, key: CacheKey, value: Vec<u8>, keep: Duration) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let options = &db.options;
            if !check(&key, &value, options)? {
                return Ok(());
            }
            let [tenant, thread, space] = names(&key);
            let params = params![
                TEXT: tenant,
                TEXT: thread,
                TEXT: space,
                BYTEA: key.digest.as_slice(),
                INT8: now(options),
                INT8: span(keep),
                INT8: position(weight(&key, &value)),
                BYTEA: value,
                INT8: position(options.max_cache_entries),
                INT8: position(options.max_cache_bytes),
            ];
            db.call("cache_put", params, Repeat::Yes).await.map(drop)
        })
    }

    fn remove_entries(
        &self,
        tenant: Tenant,
        thread: Option<ThreadId>,
        space: Option<Str>,
    ) -> StoreFuture<u64> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![
                TEXT: tenant.0.as_str(),
                TEXT: thread.as_ref().map(ThreadId::as_str),
                TEXT: space.as_deref(),
            ];
            let mut removed = 0;
            loop {
                let row = db.call_one("cache_remove_some", params, Repeat::No).await?;
                match number(column(&row, 0)?) {
                    0 => return Ok(removed),
                    some => removed += some,
                }
            }
        })
    }
}
