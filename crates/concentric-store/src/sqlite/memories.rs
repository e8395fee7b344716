use super::{
    SqliteStore,
    values::{execute, find_rows, nanos, time},
};
use crate::memories::{MAX_PER_OWNER, check, rank};
use concentric_core::{
    Str,
    store::{Memories, Memory, StoreFuture, Tenant},
};
use rusqlite::params;

impl Memories for SqliteStore {
    fn put(&self, tenant: Tenant, owner: Str, memory: Memory) -> StoreFuture<()> {
        self.write(move |tx, _| {
            check(&memory)?;
            let insert = "INSERT OR REPLACE INTO memories (tenant, owner, id, at, text)
                          VALUES (?1, ?2, ?3, ?4, ?5)";
            let (tenant, owner) = (tenant.0.as_str(), owner.as_str());
            let (id, text) = (memory.id.as_str(), memory.text.as_str());
            execute(
                tx,
                insert,
                params![tenant, owner, id, nanos(memory.at), text],
            )?;
            let delete = format!(
                "DELETE FROM memories WHERE (tenant, owner, id) IN
                 (SELECT tenant, owner, id FROM memories WHERE tenant = ?1 AND owner = ?2
                  ORDER BY at DESC, id DESC LIMIT -1 OFFSET {MAX_PER_OWNER})"
            );
            execute(tx, &delete, [tenant, owner]).map(drop)
        })
    }

    fn search(
        &self,
        tenant: Tenant,
        owner: Str,
        query: Str,
        limit: usize,
    ) -> StoreFuture<Vec<Memory>> {
        self.read(move |tx, _| {
            let find = "SELECT id, text, at FROM memories WHERE tenant = ?1 AND owner = ?2";
            let key = [tenant.0.as_str(), owner.as_str()];
            let all = find_rows(tx, find, key, |row| {
                let text = |at| row.get::<_, String>(at).map(Str::from);
                Ok(Memory::new(text(0)?, text(1)?, time(row.get(2)?)))
            })?;
            Ok(rank(all, &query, limit))
        })
    }

    fn forget(&self, tenant: Tenant, owner: Str, id: Option<Str>) -> StoreFuture<u64> {
        self.write(move |tx, _| {
            let delete = "DELETE FROM memories
                          WHERE tenant = ?1 AND owner = ?2 AND (?3 IS NULL OR id = ?3)";
            let row = (tenant.0.as_str(), owner.as_str(), id.as_deref());
            let gone = execute(tx, delete, row)?;
            Ok(u64::try_from(gone).unwrap_or(u64::MAX))
        })
    }
}
