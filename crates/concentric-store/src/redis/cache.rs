use super::{
    RedisStore,
    db::Repeat,
    unknown,
    values::{Call, bytes, escape, span, text},
};
use crate::{
    cache::{check, names, weight},
    columns::{number, position},
};
use concentric_core::{
    Str, ThreadId,
    store::{CacheEntry, CacheKey, CacheStore, StoreFuture, Tenant},
};
use std::{fmt::Write as _, sync::Arc, time::Duration};

impl CacheStore for RedisStore {
    fn get_entry(&self, key: CacheKey) -> StoreFuture<Option<CacheEntry>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let reply = db.call(of_entry(&key, "cache_get"), Repeat::Yes).await?;
            match reply.code()? {
                "ok" => {}
                "none" => return Ok(None),
                other => return Err(unknown(other)),
            }
            let age = Duration::from_micros(reply.number(2)?);
            Ok(Some(CacheEntry::new(bytes(reply.get(1)?)?.to_vec(), age)))
        })
    }

    fn put_entry(&self, key: CacheKey, value: Vec<u8>, keep: Duration) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let options = &db.options;
            if !check(&key, &value, options)? {
                return Ok(());
            }
            let call = of_entry(&key, "cache_put")
                .int(span(keep))
                .int(position(weight(&key, &value)))
                .int(position(options.max_cache_entries))
                .int(position(options.max_cache_bytes))
                .bytes(&value);
            db.call(call, Repeat::Yes).await.map(drop)
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
            let thread = thread.map(|thread| escape(thread.as_str()));
            let space = space.map(|space| escape(&space));
            let (mut removed, mut cursor) = (0, String::from("0"));
            loop {
                let call = Call::of(&tenant, "cache_remove")
                    .optional(thread.as_deref())
                    .optional(space.as_deref())
                    .owned(cursor);
                let reply = db.call(call, Repeat::No).await?;
                removed += number(reply.int(1)?);
                cursor = text(reply.get(2)?)?.to_owned();
                if cursor == "0" {
                    return Ok(removed);
                }
            }
        })
    }
}

/// A call for an entry.
fn of_entry<'a>(key: &'a CacheKey, method: &'static str) -> Call<'a> {
    let [_, thread, space] = names(key);
    let mut digest = String::with_capacity(64);
    for byte in key.digest {
        // Writing to a string does not fail.
        let _ = write!(digest, "{byte:02x}");
    }
    Call::of(&key.tenant, method)
        .name(thread)
        .name(space)
        .owned(digest)
}
