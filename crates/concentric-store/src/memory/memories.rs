use super::MemoryStore;
use crate::memories::{MAX_PER_OWNER, check, rank};
use concentric_core::{
    Str,
    store::{Memories, Memory, StoreFuture, Tenant},
};

impl Memories for MemoryStore {
    fn put(&self, tenant: Tenant, owner: Str, memory: Memory) -> StoreFuture<()> {
        self.work(move |kept| {
            check(&memory)?;
            let of = kept.memories.entry((tenant, owner)).or_default();
            of.retain(|old| old.id != memory.id);
            of.push(memory);
            if of.len() > MAX_PER_OWNER {
                of.sort_by(|a, b| (a.at, a.id.as_str()).cmp(&(b.at, b.id.as_str())));
                of.remove(0);
            }
            Ok(())
        })
    }

    fn search(
        &self,
        tenant: Tenant,
        owner: Str,
        query: Str,
        limit: usize,
    ) -> StoreFuture<Vec<Memory>> {
        self.work(move |kept| {
            let of = kept.memories.get(&(tenant, owner)).cloned();
            Ok(rank(of.unwrap_or_default(), &query, limit))
        })
    }

    fn forget(&self, tenant: Tenant, owner: Str, id: Option<Str>) -> StoreFuture<u64> {
        self.work(move |kept| {
            let key = (tenant, owner);
            let Some(of) = kept.memories.get_mut(&key) else {
                return Ok(0);
            };
            let before = of.len();
            of.retain(|memory| id.as_ref().is_some_and(|id| memory.id != *id));
            let gone = before - of.len();
            if of.is_empty() {
                kept.memories.remove(&key);
            }
            Ok(u64::try_from(gone).unwrap_or(u64::MAX))
        })
    }
}
