//! The rows of the tables `threads` and `slots`.

use super::super::{
    log::{Turns, size},
    values::{find_row, find_rows, integer, number, time},
};
use crate::{
    Fault, Options,
    rules::{read_suspended, thread_name, window},
};
use concentric_core::{
    Str, ThreadId, Turn,
    state::StoredSlot,
    store::{StoreError, StoredThread, Tenant, ThreadSummary},
};
use rusqlite::{Row, Transaction};
use std::time::SystemTime;

/// A row of the table `threads`, without its suspended turn.
pub(super) struct Head {
    pub(super) version: u64,
    pub(super) session: String,
    pub(super) turns: Turns,
    pub(super) change: Option<String>,
    pub(super) at: SystemTime,
}

pub(super) fn head(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    thread: &ThreadId,
) -> Result<Option<Head>, StoreError> {
    let find = "SELECT version, session, log, len, bytes, change, at FROM threads
                WHERE tenant = ?1 AND thread = ?2";
    find_row(tx, find, [tenant.0.as_str(), thread.as_str()], |row| {
        Ok(Head {
            version: number(row.get(0)?),
            session: row.get(1)?,
            turns: Turns {
                log: row.get(2)?,
                len: size(row.get(3)?),
                bytes: size(row.get(4)?),
            },
            change: row.get(5)?,
            at: time(row.get(6)?),
        })
    })
}

/// The turns of a conversation, if it is stored.
pub(crate) fn conversation_turns(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    thread: &ThreadId,
) -> Result<Option<Turns>, StoreError> {
    Ok(head(tx, tenant, thread)?.map(|head| head.turns))
}

pub(super) fn load(
    tx: &Transaction<'_>,
    options: &Options,
    tenant: &Tenant,
    thread: &ThreadId,
) -> Result<Option<StoredThread>, StoreError> {
    let Some(head) = head(tx, tenant, thread)? else {
        return Ok(None);
    };
    let (bytes, max) = (head.turns.bytes, options.max_state_bytes);
    if bytes > max {
        return Err(Fault::TooLarge { bytes, max }.into());
    }
    let key = [tenant.0.as_str(), thread.as_str()];
    let (turns, _) = head.turns.read(tx, &thread_name(thread))?;
    let history = turns.into_iter().collect();
    let find = "SELECT value FROM slots WHERE tenant = ?1 AND thread = ?2 ORDER BY slot, place";
    let slots: Vec<String> = find_rows(tx, find, key, |row| row.get(0))?;
    let slots = slots
        .iter()
        .map(|json| read_json::<StoredSlot>(thread, json));
    let slots = slots.collect::<Result<Vec<_>, _>>()?;
    let mut stored = StoredThread::new(head.version, history, slots);
    stored.session = Some(ThreadId::new(head.session));

    let find = "SELECT suspended, suspended_slots, shared FROM threads
                WHERE tenant = ?1 AND thread = ?2 AND suspended IS NOT NULL";
    let parts = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let suspended: Option<(String, String, i64)> = find_row(tx, find, key, parts)?;
    if let Some((state, slots, shared)) = suspended {
        let slots = read_json::<Vec<StoredSlot>>(thread, &slots)?;
        let turn = read_suspended(thread, size(shared), state.as_bytes(), slots, options)?;
        let slots = turn.slots.clone();
        stored.suspended = Some((turn.into_state(&stored.history), slots));
    }
    Ok(Some(stored))
}

pub(super) fn turns(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    thread: ThreadId,
    start: Option<usize>,
    limit: usize,
) -> Result<Option<(ThreadSummary, Vec<Turn>)>, StoreError> {
    let Some(head) = head(tx, tenant, &thread)? else {
        return Ok(None);
    };
    let window = window(head.turns.len, start, limit);
    let turns = head.turns.read_range(tx, &thread_name(&thread), window)?;
    let session = ThreadId::new(head.session);
    let summary = ThreadSummary::new(thread, session, head.version, head.turns.len, head.at);
    Ok(Some((summary, turns)))
}

fn read_json<T>(thread: &ThreadId, json: &str) -> Result<T, StoreError>
where
    T: serde::de::DeserializeOwned,
{
    serde_json::from_str(json).map_err(|error| Fault::corrupt(thread_name(thread), error).into())
}

pub(super) fn list(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<ThreadSummary>, StoreError> {
    let find = "SELECT thread, session, version, len, at FROM threads
                WHERE tenant = ?1 AND version < ?2 ORDER BY version DESC LIMIT ?3";
    let limit = integer(u64::try_from(limit).unwrap_or(u64::MAX));
    let before = integer(before.unwrap_or(u64::MAX));
    find_rows(tx, find, (tenant.0.as_str(), before, limit), |row| {
        let id = |at| row.get::<_, String>(at).map(Str::from).map(ThreadId::new);
        let (version, len) = (number(row.get(2)?), size(row.get(3)?));
        Ok(ThreadSummary::new(
            id(0)?,
            id(1)?,
            version,
            len,
            time(row.get(4)?),
        ))
    })
}
