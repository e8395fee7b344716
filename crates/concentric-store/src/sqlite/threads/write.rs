//! Statements that write conversations.

use super::{
    super::{
        log::{self, NewTurns, Turns, position},
        runs::{BATCH, delete_runs, is_deleted, set_end},
        values::{count, execute, find_rows, integer, nanos},
    },
    row::{Head, head},
};
use crate::{
    Options,
    rules::{may_append, write_end, write_slot, write_suspended},
};
use concentric_core::{
    Str, ThreadId,
    store::{RunClaim, StoreError, Tenant, ThreadChange},
};
use rusqlite::{Transaction, params};
use std::time::SystemTime;

/// A change of a conversation as it is written, which is made before the transaction.
pub(super) struct NewChange {
    id: Option<Str>,
    // The outcome is that of a run that ends.
    ends: Option<(RunClaim, Option<String>)>,
    keep: usize,
    turns: NewTurns,
    clear_slots: bool,
    // The name, the place and the value of each.
    slots: Vec<[String; 3]>,
    suspended: Option<Suspended>,
    session: Option<ThreadId>,
}

struct Suspended {
    shared: usize,
    state: String,
    slots: String,
}

impl NewChange {
    pub(super) fn new(
        change: ThreadChange,
        turns: NewTurns,
        max: usize,
    ) -> Result<Self, StoreError> {
        let ends = change
            .ends
            .map(|(claim, outcome)| Ok::<_, StoreError>((claim, write_end(&outcome)?)));
        let slots = change.slots.iter().map(|slot| {
            let place = serde_json::to_string(&slot.place).map_err(StoreError::unwritable)?;
            Ok([slot.slot.to_string(), place, write_slot(slot, max)?])
        });
        let suspended = change.suspended.map(|turn| {
            let shared = turn.shared;
            let (state, slots) = write_suspended(&turn, max)?;
            Ok::<_, StoreError>(Suspended {
                shared,
                state,
                slots,
            })
        });
        Ok(Self {
            id: change.id,
            ends: ends.transpose()?,
            keep: change.keep,
            turns,
            clear_slots: change.clear_slots,
            slots: slots.collect::<Result<_, StoreError>>()?,
            suspended: suspended.transpose()?,
            session: change.session,
        })
    }
}

pub(super) fn append(
    tx: &Transaction<'_>,
    options: &Options,
    tenant: &Tenant,
    thread: &ThreadId,
    version: u64,
    change: &NewChange,
) -> Result<u64, StoreError> {
    if let Some((claim, outcome)) = &change.ends {
        match set_end(tx, options, &claim.key, claim.fence, outcome.as_deref()) {
            // Otherwise it is in another store.
            Err(StoreError::NotFound) if !is_deleted(tx, &claim.key)? => {}
            ended => ended?,
        }
    }
    let found = head(tx, tenant, thread)?;
    if let Some(version) = may_append(stored(found.as_ref()), version, change.id.as_deref())? {
        return Ok(version);
    }
    let old = found.as_ref().map(|found| found.turns.log);
    let base = match found {
        Some(found) => found,
        None => Head {
            version: 0,
            session: change.session.as_ref().unwrap_or(thread).to_string(),
            turns: Turns::new(tx)?,
            change: None,
            at: SystemTime::UNIX_EPOCH,
        },
    };
    let key = [tenant.0.as_str(), thread.as_str()];
    let version = write(tx, options, key, &base, change)?;
    if let Some(old) = old {
        log::collect(tx, old)?;
    }
    Ok(version)
}

pub(super) fn fork(
    tx: &Transaction<'_>,
    options: &Options,
    tenant: &Tenant,
    thread: &ThreadId,
    version: u64,
    to: &ThreadId,
    change: &NewChange,
) -> Result<u64, StoreError> {
    let target = head(tx, tenant, to)?;
    if let Some(version) = may_append(stored(target.as_ref()), 0, change.id.as_deref())? {
        return Ok(version);
    }
    let source = head(tx, tenant, thread)?;
    may_append(stored(source.as_ref()), version, None)?;
    let mut next = source.ok_or(StoreError::NotFound)?;
    next.turns = next.turns.fork(tx, change.keep)?;
    if let Some(session) = &change.session {
        next.session = session.to_string();
    }
    let copy = "INSERT INTO slots (tenant, thread, slot, place, value)
                SELECT tenant, ?3, slot, place, value FROM slots
                WHERE tenant = ?1 AND thread = ?2";
    let tenant = tenant.0.as_str();
    execute(tx, copy, [tenant, thread.as_str(), to.as_str()])?;
    write(tx, options, [tenant, to.as_str()], &next, change)
}

fn stored(head: Option<&Head>) -> Option<(u64, Option<&str>)> {
    head.map(|head| (head.version, head.change.as_deref()))
}

/// Writes `change` of `base` to the conversation `key`.
fn write(
    tx: &Transaction<'_>,
    options: &Options,
    key: [&str; 2],
    base: &Head,
    change: &NewChange,
) -> Result<u64, StoreError> {
    let max = options.max_state_bytes;
    let turns = base.turns.replace(tx, change.keep, &change.turns, max)?;
    let [tenant, thread] = key;
    if change.clear_slots {
        let delete = "DELETE FROM slots WHERE tenant = ?1 AND thread = ?2";
        execute(tx, delete, key)?;
    }
    for [slot, place, value] in &change.slots {
        let insert = "INSERT OR REPLACE INTO slots (tenant, thread, slot, place, value)
                      VALUES (?1, ?2, ?3, ?4, ?5)";
        execute(tx, insert, [tenant, thread, slot, place, value])?;
    }
    let suspended = change.suspended.as_ref();
    let version = count(tx)?;
    let insert = "INSERT INTO threads (tenant, thread, session, version, log, len, bytes, change,
                                       suspended, suspended_slots, shared, at)
                  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
                  ON CONFLICT (tenant, thread) DO UPDATE SET
                      version = excluded.version, log = excluded.log, len = excluded.len,
                      bytes = excluded.bytes, change = excluded.change,
                      suspended = excluded.suspended,
                      suspended_slots = excluded.suspended_slots, shared = excluded.shared,
                      at = excluded.at";
    let row = params![
        tenant,
        thread,
        base.session,
        integer(version),
        turns.log,
        position(turns.len),
        position(turns.bytes),
        change.id.as_deref(),
        suspended.map(|turn| &turn.state),
        suspended.map(|turn| &turn.slots),
        suspended.map(|turn| position(turn.shared)),
        nanos(options.now()),
    ];
    execute(tx, insert, row)?;
    Ok(version)
}

/// Deletes some of what belongs to a conversation, and in the end the conversation. Returns whether it existed, and
/// whether more may be left.
pub(super) fn delete(
    tx: &Transaction<'_>,
    options: &Options,
    tenant: &Tenant,
    thread: &ThreadId,
) -> Result<(bool, bool), StoreError> {
    let key = [tenant.0.as_str(), thread.as_str()];
    let runs = delete_runs(tx, options, "tenant = ?1 AND thread = ?2", &key)?;
    let mut has_more = runs >= BATCH;
    for (table, key_of, which) in [
        ("effects", "key", "run IS NOT NULL"),
        ("decisions", "id", "span IN ('run', 'thread')"),
        ("slots", "thread, slot, place", "TRUE"),
        ("cache", "thread, space, digest", "TRUE"),
    ] {
        let delete = format!(
            "DELETE FROM {table} WHERE (tenant, {key_of}) IN
             (SELECT tenant, {key_of} FROM {table}
              WHERE tenant = ?1 AND thread = ?2 AND {which} LIMIT {BATCH})"
        );
        has_more |= execute(tx, &delete, key)? >= BATCH;
    }
    if has_more {
        return Ok((false, true));
    }
    let Some(found) = head(tx, tenant, thread)? else {
        return Ok((false, false));
    };
    execute(
        tx,
        "DELETE FROM threads WHERE tenant = ?1 AND thread = ?2",
        key,
    )?;
    log::collect(tx, found.turns.log)?;
    Ok((true, false))
}

/// The maximum number of conversations of a tenant that are deleted in one transaction, which blocks other writers.
const CONVERSATIONS: usize = 10;

/// Deletes some of the entries of a tenant. Returns the number of conversations among them, and whether more entries
/// may be left.
pub(super) fn delete_some(
    tx: &Transaction<'_>,
    options: &Options,
    tenant: &Tenant,
) -> Result<(u64, bool), StoreError> {
    let of = [tenant.0.as_str()];
    let runs = delete_runs(tx, options, "tenant = ?1", &of)?;
    if runs >= BATCH {
        return Ok((0, true));
    }
    let find = format!("SELECT thread FROM threads WHERE tenant = ?1 LIMIT {CONVERSATIONS}");
    let threads: Vec<String> = find_rows(tx, &find, of, |row| row.get(0))?;
    let mut has_deleted = runs > 0 || !threads.is_empty();
    let mut conversations = 0;
    for thread in threads {
        let (existed, _) = delete(tx, options, tenant, &ThreadId::new(thread))?;
        conversations += u64::from(existed);
    }
    for (table, key) in [
        ("effects", "key"),
        ("once", "key"),
        ("decisions", "id"),
        ("memories", "owner, id"),
        ("slots", "thread, slot, place"),
        ("cache", "thread, space, digest"),
    ] {
        let delete = format!(
            "DELETE FROM {table} WHERE (tenant, {key}) IN
             (SELECT tenant, {key} FROM {table} WHERE tenant = ?1 LIMIT {BATCH})"
        );
        has_deleted |= execute(tx, &delete, of)? > 0;
    }
    let delete = "DELETE FROM limits WHERE kind = 'budgets' AND name = ?1";
    execute(tx, delete, of)?;
    Ok((conversations, has_deleted))
}
