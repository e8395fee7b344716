use super::{
    RedisStore,
    db::Repeat,
    values::{Call, bytes, list, micros, text},
};
use crate::{
    Fault,
    columns::{nanos, number, position, time},
    memories::{MAX_PER_OWNER, check, rank},
};
use concentric_core::{
    Str,
    store::{Memories, Memory, StoreError, StoreFuture, Tenant},
};
use redis::Value;
use std::sync::Arc;

impl Memories for RedisStore {
    fn put(&self, tenant: Tenant, owner: Str, memory: Memory) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            check(&memory)?;
            let call = Call::of(&tenant, "memory_put")
                .text(&owner)
                .text(&memory.id)
                .int(micros(memory.at))
                .owned(format!("{}:{}", nanos(memory.at), memory.text))
                .int(position(MAX_PER_OWNER));
            db.call(call, Repeat::Yes).await.map(drop)
        })
    }

    fn search(
        &self,
        tenant: Tenant,
        owner: Str,
        query: Str,
        limit: usize,
    ) -> StoreFuture<Vec<Memory>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&tenant, "memory_all").text(&owner);
            let reply = db.call(call, Repeat::Yes).await?;
            let all = list(reply.get(1)?)?.chunks(2).map(read);
            Ok(rank(all.collect::<Result<_, _>>()?, &query, limit))
        })
    }

    fn forget(&self, tenant: Tenant, owner: Str, id: Option<Str>) -> StoreFuture<u64> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&tenant, "memory_forget")
                .text(&owner)
                .optional(id.as_deref());
            Ok(number(db.call(call, Repeat::No).await?.int(1)?))
        })
    }
}

/// Reads the id of a memory, and its time and text.
fn read(pair: &[Value]) -> Result<Memory, StoreError> {
    let corrupt = |why| StoreError::from(Fault::corrupt("a memory", why));
    let [id, value] = pair else {
        return Err(corrupt("it has no value"));
    };
    let (id, value) = (text(id)?, bytes(value)?);
    let value = std::str::from_utf8(value).map_err(|_| corrupt("it is not a text"))?;
    let (at, value) = value
        .split_once(':')
        .ok_or_else(|| corrupt("it has no time"))?;
    let at = at
        .parse()
        .map_err(|_| corrupt("its time is not a number"))?;
    Ok(Memory::new(id.to_owned(), value.to_owned(), time(at)))
}
