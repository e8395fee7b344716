use super::{
    RedisStore,
    db::{Db, Repeat},
    tenants,
    turns::{Before, NewTurns},
    unknown,
    values::{
        Call, ROOT, attempt, bytes, escape, fields, from_micros, int, list, open_turns,
        optional_int, text,
    },
};
use crate::{
    Fault,
    columns::{integer, number, position, size},
    rules::{
        MAX_TURNS, read_suspended, thread_name, unwritable, window, write_end, write_slot,
        write_suspended,
    },
};
use concentric_core::{
    ThreadId, Turn,
    state::StoredSlot,
    store::{
        StoreError, StoreFuture, StoredThread, Tenant, ThreadChange, ThreadStore, ThreadSummary,
    },
};
use redis::Value;
use std::{ops::Range, sync::Arc};

impl ThreadStore for RedisStore {
    fn load(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Option<StoredThread>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { load(&db, &tenant, &thread).await })
    }

    fn turns(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        start: Option<usize>,
        limit: usize,
    ) -> StoreFuture<Option<(ThreadSummary, Vec<Turn>)>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { turns(&db, &tenant, thread, start, limit).await })
    }

    fn append(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { append(&db, &tenant, &thread, None, version, &change).await })
    }

    fn fork(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        to: ThreadId,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { append(&db, &tenant, &thread, Some(&to), version, &change).await })
    }

    fn list_threads(
        &self,
        tenant: Tenant,
        before: Option<u64>,
        limit: usize,
    ) -> StoreFuture<Vec<ThreadSummary>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&tenant, "thread_list")
                .owned(before.map_or_else(|| "+inf".to_owned(), |before| before.to_string()))
                .int(position(limit));
            let reply = db.call(call, Repeat::Yes).await?;
            let summaries = reply.rest().iter().map(|found| {
                let [thread, session, version, len, at] = fields(found)?;
                let id = |value| text(value).map(|id| ThreadId::new(id.to_owned()));
                let (version, len) = (number(int(version)?), size(int(len)?));
                let at = from_micros(int(at)?);
                Ok(ThreadSummary::new(
                    id(thread)?,
                    id(session)?,
                    version,
                    len,
                    at,
                ))
            });
            summaries.collect()
        })
    }

    fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let mut existed = false;
            loop {
                let call = Call::of(&tenant, "thread_delete")
                    .name(thread.as_str())
                    .text(thread.as_str());
                let deleted = db.call(call, Repeat::No).await?;
                existed |= deleted.is(1)?;
                if !deleted.is(2)? {
                    return Ok(existed);
                }
            }
        })
    }

    fn delete_tenant(&self, tenant: Tenant) -> StoreFuture<u64> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { tenants::delete(&db, &tenant).await })
    }
}

async fn load(
    db: &Db,
    tenant: &Tenant,
    thread: &ThreadId,
) -> Result<Option<StoredThread>, StoreError> {
    let max = db.options.max_state_bytes;
    let call = Call::of(tenant, "thread_load")
        .name(thread.as_str())
        .int(position(max));
    let reply = db.call(call, Repeat::Yes).await?;
    match reply.code()? {
        "ok" => {}
        "not_found" => return Ok(None),
        other => return Err(unknown(other)),
    }
    let (len, bytes_of_turns) = (size(reply.int(3)?), size(reply.int(4)?));
    if bytes_of_turns > max {
        return Err(Fault::TooLarge {
            bytes: bytes_of_turns,
            max,
        }
        .into());
    }
    let name = thread_name(thread);
    let (turns, _) = read_turns(&name, len, list(reply.get(9)?)?)?;
    let history = turns.into_iter().collect();
    // In the order of the names and places, of which the fields consist.
    let mut slots = Vec::new();
    for pair in list(reply.get(8)?)?.chunks(2) {
        let [field, value] = pair else {
            return Err(Fault::corrupt(&name, "a slot has no value").into());
        };
        slots.push((bytes(field)?, bytes(value)?));
    }
    slots.sort_unstable();
    let slots = slots.into_iter().map(|(_, json)| read_json(&name, json));
    let slots = slots.collect::<Result<_, _>>()?;
    let mut stored = StoredThread::new(reply.number(1)?, history, slots);
    stored.session = Some(ThreadId::new(text(reply.get(2)?)?.to_owned()));

    let suspended = reply.get(5)?;
    if *suspended != Value::Nil {
        let slots: Vec<StoredSlot> = read_json(&name, bytes(reply.get(6)?)?)?;
        let shared = size(optional_int(reply.get(7)?)?.unwrap_or_default());
        let turn = read_suspended(thread, shared, bytes(suspended)?, slots, &db.options)?;
        let slots = turn.slots.clone();
        stored.suspended = Some((turn.into_state(&stored.history), slots));
    }
    Ok(Some(stored))
}

async fn turns(
    db: &Db,
    tenant: &Tenant,
    thread: ThreadId,
    start: Option<usize>,
    limit: usize,
) -> Result<Option<(ThreadSummary, Vec<Turn>)>, StoreError> {
    let call = Call::of(tenant, "thread_turns")
        .name(thread.as_str())
        .optional_int(start.map(position))
        .int(position(limit.min(MAX_TURNS)));
    let reply = db.call(call, Repeat::Yes).await?;
    match reply.code()? {
        "ok" => {}
        "not_found" => return Ok(None),
        other => return Err(unknown(other)),
    }
    let name = thread_name(&thread);
    let (version, len) = (reply.number(1)?, size(reply.int(3)?));
    let before = match reply.get(4)? {
        // No turn follows a missing one.
        Value::Nil => "",
        before => text(before)?,
    };
    let window = window(len, start, limit);
    let (turns, _) = read_range(&name, window, before, list(reply.get(5)?)?)?;
    let session = ThreadId::new(text(reply.get(2)?)?.to_owned());
    let at = from_micros(reply.int(6)?);
    let summary = ThreadSummary::new(thread, session, version, len, at);
    Ok(Some((summary, turns)))
}

fn read_json<T>(name: &str, json: &[u8]) -> Result<T, StoreError>
where
    T: serde::de::DeserializeOwned,
{
    serde_json::from_slice(json).map_err(|error| Fault::corrupt(name, error).into())
}

/// Reads the turns of `what`, and verifies their checksums. Returns the last checksum with them.
pub(super) fn read_turns(
    what: &str,
    len: usize,
    entries: &[Value],
) -> Result<(Vec<Turn>, String), StoreError> {
    read_range(what, 0..len, ROOT, entries)
}

/// Reads some of the turns of `what`, and verifies their checksums from `before`, that of the turn before them.
fn read_range(
    what: &str,
    range: Range<usize>,
    before: &str,
    entries: &[Value],
) -> Result<(Vec<Turn>, String), StoreError> {
    let (bodies, chain) = open_turns(what, range, before, entries)?;
    let turns = bodies.into_iter().map(|body| read_json(what, body));
    Ok((turns.collect::<Result<_, _>>()?, chain))
}

/// Appends to a conversation; or, with `to`, to a new one that begins with its turns.
async fn append(
    db: &Db,
    tenant: &Tenant,
    thread: &ThreadId,
    to: Option<&ThreadId>,
    version: u64,
    change: &ThreadChange,
) -> Result<u64, StoreError> {
    let max = db.options.max_state_bytes;
    let turns = NewTurns::new(&change.turns, max).await?;
    let mut slots = Vec::new();
    for slot in &change.slots {
        let place = serde_json::to_string(&slot.place).map_err(StoreError::unwritable)?;
        slots.push(format!("{}\0{place}", slot.slot));
        slots.push(write_slot(slot, max)?);
    }
    let suspended = change.suspended.as_ref();
    let written = suspended.map(|turn| write_suspended(turn, max));
    let (state, suspended_slots) = written.transpose()?.unzip();
    // A fork begins a conversation, and ends no run. A run of another tenant is not in this store.
    let ends = change.ends.as_ref();
    let ends = ends.filter(|(claim, _)| to.is_none() && claim.key.tenant == *tenant);
    let claim = ends.map(|(claim, _)| claim);
    let outcome = ends.map(|(_, outcome)| write_end(outcome)).transpose()?;
    let outcome = outcome.flatten();
    let to_name = to.map(|to| escape(to.as_str()));
    let attempt = attempt();
    let before = Call::of(tenant, "thread_kept")
        .name(thread.as_str())
        .int(position(change.keep));
    let call = Call::of(tenant, "thread_append")
        .name(thread.as_str())
        .optional(to_name.as_deref())
        .text(to.unwrap_or(thread).as_str())
        .int(integer(version))
        .text(&attempt)
        .optional(change.id.as_deref())
        .optional(change.session.as_ref().map(ThreadId::as_str))
        .flag(claim.is_some())
        .name(claim.map_or("", |claim| claim.key.thread.as_str()))
        .name(claim.map_or("", |claim| claim.key.run.as_str()))
        .int(claim.map_or(0, |claim| integer(claim.fence)))
        .text(outcome.as_deref().unwrap_or_default())
        .int(position(change.keep))
        .int(position(turns.bytes()))
        .int(position(max))
        .flag(change.clear_slots)
        .optional(state.as_deref())
        .text(suspended_slots.as_deref().unwrap_or_default())
        .int(suspended.map_or(0, |turn| position(turn.shared)))
        .list(slots.iter().map(String::as_bytes));
    let reply = turns
        .call(db, tenant, 0, Before::Kept(before), call)
        .await?;
    let n = match reply.code()? {
        "not_found" => return Err(StoreError::NotFound),
        _ => reply.number(1)?,
    };
    let moved = |expected| StoreError::Moved { expected, found: n };
    Err(match reply.code()? {
        "ok" => return Ok(n),
        "moved" => moved(version),
        "moved_to" => moved(0),
        "stale" => StoreError::Stale,
        code => unwritable(code, &thread_name(thread), n, change.keep, max)
            .unwrap_or_else(|| unknown(code)),
    })
}
