use super::{
    PostgresStore, column,
    pool::{Db, Repeat},
    unknown,
    values::{attempt, bytes, now, params, total},
};
use crate::{
    Fault,
    columns::{ROOT, chain, integer, names, number, position, size, time},
    rules::{
        MAX_TURNS, read_suspended, thread_name, unwritable, window, write_end, write_slot,
        write_suspended, write_turn,
    },
};
use concentric_core::{
    ThreadId, Turn,
    state::StoredSlot,
    store::{
        StoreError, StoreFuture, StoredThread, Tenant, ThreadChange, ThreadStore, ThreadSummary,
    },
};
use std::{ops::Range, sync::Arc};

impl ThreadStore for PostgresStore {
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
            let params = params![
                TEXT: tenant.0.as_str(),
                INT8: before.map(integer),
                INT8: position(limit),
            ];
            let rows = db.call("thread_list", params, Repeat::Yes).await?;
            let summaries = rows.iter().map(|row| {
                let id = |at| column::<String>(row, at).map(ThreadId::new);
                let (version, len) = (number(column(row, 2)?), size(column(row, 3)?));
                let at = time(column(row, 4)?);
                Ok(ThreadSummary::new(id(0)?, id(1)?, version, len, at))
            });
            summaries.collect()
        })
    }

    fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let mut existed = false;
            loop {
                let params = params![
                    TEXT: tenant.0.as_str(),
                    TEXT: thread.as_str(),
                    INT8: now(&db.options),
                ];
                let row = db
                    .call_one("thread_delete_some", params, Repeat::No)
                    .await?;
                existed |= column::<bool>(&row, 0)?;
                let has_more: bool = column(&row, 1)?;
                if !has_more {
                    return Ok(existed);
                }
            }
        })
    }

    fn delete_tenant(&self, tenant: Tenant) -> StoreFuture<u64> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let mut all = 0;
            loop {
                let params = params![TEXT: tenant.0.as_str(), INT8: now(&db.options)];
                let row = db.call_one("tenant_delete", params, Repeat::No).await?;
                all += number(column(&row, 0)?);
                let may_have_more: bool = column(&row, 1)?;
                if !may_have_more {
                    let params = params![TEXT: tenant.0.as_str()];
                    db.call("budgets_delete", params, Repeat::Yes).await?;
                    return Ok(all);
                }
            }
        })
    }
}

async fn load(
    db: &Db,
    tenant: &Tenant,
    thread: &ThreadId,
) -> Result<Option<StoredThread>, StoreError> {
    let max = db.options.max_state_bytes;
    let params = params![
        TEXT: tenant.0.as_str(),
        TEXT: thread.as_str(),
        INT8: position(max),
    ];
    let rows = db.call("thread_load", params, Repeat::Yes).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let (len, bytes) = (size(column(row, 2)?), size(column(row, 3)?));
    if bytes > max {
        return Err(Fault::TooLarge { bytes, max }.into());
    }
    let name = thread_name(thread);
    let (turns, _) = read_turns(
        &name,
        len,
        &column::<Vec<_>>(row, 8)?,
        &column::<Vec<_>>(row, 9)?,
    )?;
    let history = turns.into_iter().collect();
    let slots: Vec<&[u8]> = column(row, 7)?;
    let slots = slots.into_iter().map(|json| read_json(&name, json));
    let slots = slots.collect::<Result<_, _>>()?;
    let mut stored = StoredThread::new(number(column(row, 0)?), history, slots);
    stored.session = Some(ThreadId::new(column::<String>(row, 1)?));

    let suspended: Option<&[u8]> = column(row, 4)?;
    if let Some(state) = suspended {
        let slots: Vec<StoredSlot> = read_json(&name, column(row, 5)?)?;
        let shared = size(column(row, 6)?);
        let turn = read_suspended(thread, shared, state, slots, &db.options)?;
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
    let params = params![
        TEXT: tenant.0.as_str(),
        TEXT: thread.as_str(),
        INT8: start.map(position),
        INT8: position(limit.min(MAX_TURNS)),
    ];
    let rows = db.call("thread_page", params, Repeat::Yes).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let name = thread_name(&thread);
    let (version, len) = (number(column(row, 0)?), size(column(row, 2)?));
    let (chains, bodies): (Vec<_>, Vec<_>) = (column(row, 4)?, column(row, 5)?);
    // No turn follows a missing one.
    let before: Option<&[u8]> = column(row, 3)?;
    let before = before.unwrap_or_default();
    let window = window(len, start, limit);
    let (turns, _) = read_range(&name, window, before, &chains, &bodies)?;
    let session = ThreadId::new(column::<String>(row, 1)?);
    let summary = ThreadSummary::new(thread, session, version, len, time(column(row, 6)?));
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
    chains: &[&[u8]],
    bodies: &[&[u8]],
) -> Result<(Vec<Turn>, Vec<u8>), StoreError> {
    read_range(what, 0..len, ROOT, chains, bodies)
}

/// Reads some of the turns of `what`, and verifies their checksums from `before`, that of the turn before them.
fn read_range(
    what: &str,
    range: Range<usize>,
    before: &[u8],
    chains: &[&[u8]],
    bodies: &[&[u8]],
) -> Result<(Vec<Turn>, Vec<u8>), StoreError> {
    let corrupt = |why: String| StoreError::from(Fault::corrupt(what, why));
    let mut turns: Vec<Turn> = Vec::with_capacity(bodies.len());
    let mut last = before.to_vec();
    for (n, (stored, body)) in (range.start..).zip(chains.iter().zip(bodies)) {
        last = chain(&last, body);
        if *stored != last {
            return Err(corrupt(format!("the checksum of turn {n} does not match")));
        }
        let turn = serde_json::from_slice(body);
        turns.push(turn.map_err(|error| corrupt(format!("turn {n}: {error}")))?);
    }
    match turns.len() == range.len() {
        true => Ok((turns, last)),
        false => Err(corrupt(format!(
            "{} of {} turns exist",
            turns.len(),
            range.len()
        ))),
    }
}

pub(super) fn write_turns(turns: &[Turn], max: usize) -> Result<Vec<String>, StoreError> {
    turns.iter().map(|turn| write_turn(turn, max)).collect()
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
    let turns = write_turns(&change.turns, max)?;
    let new_bytes = position(total(&turns, max)?);
    let slots: Vec<_> = change.slots.iter().map(|slot| slot.slot.as_str()).collect();
    let places = change.slots.iter();
    let places = places.map(|slot| serde_json::to_string(&slot.place));
    let places = places.collect::<Result<Vec<_>, _>>();
    let places = places.map_err(StoreError::unwritable)?;
    let values = change.slots.iter().map(|slot| write_slot(slot, max));
    let values = values.collect::<Result<Vec<_>, _>>()?;
    let suspended = change.suspended.as_ref();
    let written = suspended.map(|turn| write_suspended(turn, max));
    let (state, suspended_slots) = written.transpose()?.unzip();
    // A fork begins a conversation, and ends no run.
    let ends = change.ends.as_ref().filter(|_| to.is_none());
    let run = ends.map(|(claim, _)| names(&claim.key).to_vec());
    let outcome = ends.map(|(_, outcome)| write_end(outcome)).transpose()?;
    let outcome = outcome.flatten();
    let params = params![
        TEXT: tenant.0.as_str(),
        TEXT: thread.as_str(),
        TEXT: to.map(ThreadId::as_str),
        INT8: integer(version),
        BYTEA: attempt(),
        TEXT: change.id.as_deref(),
        TEXT_ARRAY: run,
        INT8: ends.map(|(claim, _)| integer(claim.fence)),
        INT8: now(&db.options),
        TEXT: change.session.as_ref().map(ThreadId::as_str),
        INT8: position(change.keep),
        BYTEA_ARRAY: bytes(&turns),
        INT8: new_bytes,
        INT8: position(max),
        BOOL: change.clear_slots,
        TEXT_ARRAY: slots,
        TEXT_ARRAY: places,
        BYTEA_ARRAY: bytes(&values),
        BYTEA: state.as_deref().map(str::as_bytes),
        BYTEA: suspended_slots.as_deref().map(str::as_bytes),
        INT8: suspended.map(|turn| position(turn.shared)),
        TEXT: outcome,
    ];
    let row = db.call_one("thread_append", params, Repeat::Yes).await?;
    let n = number(column::<Option<i64>>(&row, 1)?.unwrap_or_default());
    let moved = |expected| StoreError::Moved { expected, found: n };
    Err(match column(&row, 0)? {
        "ok" => return Ok(n),
        "moved" => moved(version),
        "moved_to" => moved(0),
        "not_found" => StoreError::NotFound,
        "stale" => StoreError::Stale,
        code => unwritable(code, &thread_name(thread), n, change.keep, max)
            .unwrap_or_else(|| unknown(code)),
    })
}
