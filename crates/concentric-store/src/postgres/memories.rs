use super::{PostgresStore, column, pool::Repeat, values::params};
use crate::{
    Fault,
    columns::{nanos, number, position, time},
    memories::{MAX_PER_OWNER, check, rank},
};
use concentric_core::{
    Str,
    store::{Memories, Memory, StoreError, StoreFuture, Tenant},
};
use std::sync::Arc;
use tokio_postgres::Row;

impl Memories for PostgresStore {
    fn put(&self, tenant: Tenant, owner: Str, memory: Memory) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            check(&memory)?;
            let params = params![
                TEXT: tenant.0.as_str(),
                TEXT: owner.as_str(),
                TEXT: memory.id.as_str(),
                INT8: nanos(memory.at),
                BYTEA: memory.text.as_bytes(),
                INT8: position(MAX_PER_OWNER),
            ];
            db.call("memory_put", params, Repeat::Yes).await.map(drop)
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
            let params = params![TEXT: tenant.0.as_str(), TEXT: owner.as_str()];
            let rows = db.call("memory_all", params, Repeat::Yes).await?;
            let all = rows.iter().map(read).collect::<Result<_, _>>()?;
            Ok(rank(all, &query, limit))
        })
    }

    fn forget(&self, tenant: Tenant, owner: Str, id: Option<Str>) -> StoreFuture<u64> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![
                TEXT: tenant.0.as_str(),
                TEXT: owner.as_str(),
                TEXT: id.as_deref(),
            ];
            let row = db.call_one("memory_forget", params, Repeat::No).await?;
            Ok(number(column(&row, 0)?))
        })
    }
}

fn read(row: &Row) -> Result<Memory, StoreError> {
    let (id, at, text): (String, i64, Vec<u8>) =
        (column(row, 0)?, column(row, 1)?, column(row, 2)?);
    let text =
        String::from_utf8(text).map_err(|error| Fault::corrupt(format!("memory `{id}`"), error))?;
    Ok(Memory::new(id, text, time(at)))
}
