use super::{count, failed, integer, nanos, number, time};
use crate::{
    Fault, Options,
    rules::{Standing, name, read_state, readable, write_replies, write_state},
};
use concentric_core::{
    InterruptId, Reply, RunId, Str, ThreadId,
    machine::MachineState,
    store::{RunKey, RunRecord, RunStatus, StoreError, Tenant},
};
use rusqlite::{OptionalExtension, Params, Row, Transaction, params};
use sha2::{Digest, Sha256};
use std::time::SystemTime;

/// The columns of [`Stored`].
macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "SELECT r.tenant, r.thread, r.run, r.status, r.version, r.fence, r.lease_until, \
             r.checksum, r.state, r.replies, r.replied_at FROM runs r ",
            $rest
        )
    };
}

/// A run as its row has it.
struct Stored {
    key: RunKey,
    standing: Standing,
    checksum: Vec<u8>,
    state: String,
    replies: String,
    replied_at: Option<i64>,
}

impl Stored {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let text = |at| row.get::<_, String>(at).map(Str::from);
        Ok(Self {
            key: RunKey::new(
                Tenant(text(0)?),
                ThreadId::new(text(1)?),
                RunId::new(text(2)?),
            ),
            standing: standing(row, 3)?,
            checksum: row.get(7)?,
            state: row.get(8)?,
            replies: row.get(9)?,
            replied_at: row.get(10)?,
        })
    }

    /// The run, if the row is as it was written.
    fn open(self, tx: &Transaction<'_>, options: &Options) -> Result<RunRecord, StoreError> {
        let Self { key, standing, .. } = self;
        if checksum(&key, &self.state, &self.replies) != *self.checksum {
            return Err(Fault::corrupt(name(&key), "its checksum is another").into());
        }
        let max = options.max_state_bytes;
        let state = read_state(&key, &self.state, max)?;
        let replies = serde_json::from_str(&self.replies)
            .map_err(|error| Fault::corrupt(name(&key), error))?;
        let asked = asked(tx, &key)?;
        let mut record = RunRecord::new(key, state);
        record.status = standing.status;
        record.version = standing.version;
        record.fence = standing.fence;
        record.lease_until = standing.lease_until;
        record.replies = replies;
        record.replied_at = self.replied_at.map(time);
        record.asked = asked;
        Ok(record)
    }
}

/// What a row's text is checked by, so that it is known if it was torn, changed, or moved.
fn checksum(key: &RunKey, state: &str, replies: &str) -> [u8; 32] {
    let mut sum = Sha256::new();
    for text in [
        key.tenant.0.as_str(),
        key.thread.as_str(),
        key.run.as_str(),
        state,
        replies,
    ] {
        sum.update((text.len() as u64).to_le_bytes());
        sum.update(text);
    }
    sum.finalize().into()
}

/// How a run stands, from the four columns at `at`.
fn standing(row: &Row<'_>, at: usize) -> rusqlite::Result<Standing> {
    let status: String = row.get(at)?;
    Ok(Standing {
        // The table has no other.
        status: match &*status {
            "running" => RunStatus::Running,
            "suspended" => RunStatus::Suspended,
            _ => RunStatus::Ended,
        },
        version: number(row.get(at + 1)?),
        fence: number(row.get(at + 2)?),
        lease_until: time(row.get(at + 3)?),
    })
}

/// How the run stands, without its state.
pub(super) fn standing_of(
    tx: &Transaction<'_>,
    key: &RunKey,
) -> Result<Option<Standing>, StoreError> {
    let find = "SELECT status, version, fence, lease_until FROM runs
                WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    tx.prepare_cached(find)
        .and_then(|mut find| {
            find.query_row(names(key), |row| standing(row, 0))
                .optional()
        })
        .map_err(failed)
}

fn names(key: &RunKey) -> [&str; 3] {
    [key.tenant.0.as_str(), key.thread.as_str(), key.run.as_str()]
}

fn asked(tx: &Transaction<'_>, key: &RunKey) -> Result<Vec<InterruptId>, StoreError> {
    let find = "SELECT question FROM questions
                WHERE tenant = ?1 AND thread = ?2 AND run = ?3 ORDER BY question";
    tx.prepare_cached(find)
        .and_then(|mut find| {
            let id = |row: &Row<'_>| row.get::<_, String>(0).map(InterruptId::new);
            find.query_map(names(key), id)?.collect()
        })
        .map_err(failed)
}

fn ask(tx: &Transaction<'_>, key: &RunKey, asks: &[InterruptId]) -> Result<(), StoreError> {
    let insert = "INSERT OR IGNORE INTO questions (tenant, thread, run, question)
                  VALUES (?1, ?2, ?3, ?4)";
    let [tenant, thread, run] = names(key);
    for id in asks {
        tx.prepare_cached(insert)
            .and_then(|mut insert| insert.execute([tenant, thread, run, id.as_str()]))
            .map_err(failed)?;
    }
    Ok(())
}

const NO_REPLIES: &str = "[]";

pub(super) fn begin(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    state: &MachineState,
    lease_until: SystemTime,
) -> Result<u64, StoreError> {
    let (json, asks) = write_state(state, options.max_state_bytes)?;
    if standing_of(tx, key)?.is_some() {
        return Err(StoreError::Exists);
    }
    let fence = count(tx)?;
    let insert = "INSERT INTO runs
                  (tenant, thread, run, status, begun, version, fence, lease_until,
                   checksum, state, replies)
                  VALUES (?1, ?2, ?3, 'running', ?4, ?4, ?4, ?5, ?6, ?7, ?8)";
    let [tenant, thread, run] = names(key);
    let row = params![
        tenant,
        thread,
        run,
        integer(fence),
        nanos(lease_until),
        checksum(key, &json, NO_REPLIES),
        json,
        NO_REPLIES,
    ];
    tx.prepare_cached(insert)
        .and_then(|mut insert| insert.execute(row))
        .map_err(failed)?;
    ask(tx, key, &asks)?;
    Ok(fence)
}

fn stored(tx: &Transaction<'_>, key: &RunKey) -> Result<Stored, StoreError> {
    tx.prepare_cached(columns!("WHERE tenant = ?1 AND thread = ?2 AND run = ?3"))
        .and_then(|mut find| find.query_row(names(key), Stored::read).optional())
        .map_err(failed)?
        .ok_or(StoreError::NotFound)
}

pub(super) fn get(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
) -> Result<RunRecord, StoreError> {
    stored(tx, key)?.open(tx, options)
}

pub(super) fn claim(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    version: u64,
    replies: Vec<Reply>,
    now: SystemTime,
    lease_until: SystemTime,
) -> Result<RunRecord, StoreError> {
    let json = write_replies(&replies, options.max_state_bytes)?;
    let stored = stored(tx, key)?;
    stored.standing.check_claim(version, now)?;
    let state = stored.state.clone();
    // A state that cannot be read is not claimed.
    let mut record = stored.open(tx, options)?;

    record.fence = count(tx)?;
    record.version = record.fence;
    record.status = RunStatus::Running;
    record.lease_until = lease_until;
    let [tenant, thread, run] = names(key);
    let claim = "UPDATE runs SET status = 'running', version = ?4, fence = ?4, lease_until = ?5
                 WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let row = params![
        tenant,
        thread,
        run,
        integer(record.fence),
        nanos(lease_until)
    ];
    tx.prepare_cached(claim)
        .and_then(|mut claim| claim.execute(row))
        .map_err(failed)?;
    if record.replies.is_empty() && !replies.is_empty() {
        let keep = "UPDATE runs SET replies = ?4, replied_at = ?5, checksum = ?6
                    WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
        let sum = checksum(key, &state, &json);
        let row = params![tenant, thread, run, json, nanos(now), sum];
        tx.prepare_cached(keep)
            .and_then(|mut keep| keep.execute(row))
            .map_err(failed)?;
        record.replies = replies;
        record.replied_at = Some(time(nanos(now)));
    }
    Ok(record)
}

fn held(tx: &Transaction<'_>, key: &RunKey, fence: u64) -> Result<(), StoreError> {
    let standing = standing_of(tx, key)?.ok_or(StoreError::NotFound)?;
    standing.check_fence(fence)
}

/// What becomes of a run whose state is written.
#[derive(Clone, Copy)]
pub(super) enum Next {
    /// It goes on, under a lease until then.
    Runs(SystemTime),
    /// It waits, since then.
    Waits(SystemTime),
}

/// Writes a state.
pub(super) fn write(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    fence: u64,
    state: &MachineState,
    next: Next,
) -> Result<(), StoreError> {
    let (json, asks) = write_state(state, options.max_state_bytes)?;
    held(tx, key, fence)?;
    let version = count(tx)?;
    let update = "UPDATE runs SET status = ?4, version = ?5, lease_until = ifnull(?6, lease_until),
                  since = ?7, checksum = ?8, state = ?9, replies = ?10, replied_at = NULL
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let [tenant, thread, run] = names(key);
    let (status, lease_until, since) = match next {
        Next::Runs(until) => ("running", Some(nanos(until)), None),
        Next::Waits(now) => ("suspended", None, Some(nanos(now))),
    };
    let row = params![
        tenant,
        thread,
        run,
        status,
        integer(version),
        lease_until,
        since,
        checksum(key, &json, NO_REPLIES),
        json,
        NO_REPLIES,
    ];
    tx.prepare_cached(update)
        .and_then(|mut update| update.execute(row))
        .map_err(failed)?;
    ask(tx, key, &asks)
}

pub(super) fn renew(
    tx: &Transaction<'_>,
    key: &RunKey,
    fence: u64,
    lease_until: SystemTime,
) -> Result<(), StoreError> {
    held(tx, key, fence)?;
    let version = count(tx)?;
    let update = "UPDATE runs SET version = ?4, lease_until = ?5
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let [tenant, thread, run] = names(key);
    let row = params![tenant, thread, run, integer(version), nanos(lease_until)];
    tx.prepare_cached(update)
        .and_then(|mut update| update.execute(row))
        .map(drop)
        .map_err(failed)
}

pub(super) fn end(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    fence: u64,
    now: SystemTime,
) -> Result<(), StoreError> {
    let standing = standing_of(tx, key)?.ok_or(StoreError::NotFound)?;
    standing.check_end(fence)?;
    if standing.status != RunStatus::Ended {
        set_ended(tx, names(key), now)?;
    }
    purge(tx, options, now)
}

fn set_ended(
    tx: &Transaction<'_>,
    [tenant, thread, run]: [&str; 3],
    now: SystemTime,
) -> Result<(), StoreError> {
    let version = count(tx)?;
    let update = "UPDATE runs SET status = 'ended', version = ?4, since = ?5
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let row = params![tenant, thread, run, integer(version), nanos(now)];
    tx.prepare_cached(update)
        .and_then(|mut update| update.execute(row))
        .map(drop)
        .map_err(failed)
}

/// The names of the runs that `find` finds, of those before a time.
fn before(
    tx: &Transaction<'_>,
    find: &str,
    time: SystemTime,
) -> Result<Vec<[String; 3]>, StoreError> {
    tx.prepare_cached(find)
        .and_then(|mut find| {
            let key = |row: &Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
            find.query_map([nanos(time)], key)?.collect()
        })
        .map_err(failed)
}

/// Forgets what need not be kept any longer.
pub(super) fn purge(
    tx: &Transaction<'_>,
    options: &Options,
    now: SystemTime,
) -> Result<(), StoreError> {
    if let Some(time) = now.checked_sub(options.keep_waiting) {
        let find = "SELECT tenant, thread, run FROM runs
                    WHERE (status = 'suspended' AND since <= ?1)
                       OR (status = 'running' AND lease_until <= ?1)
                    ORDER BY begun";
        for key in before(tx, find, time)? {
            set_ended(tx, key.each_ref().map(String::as_str), now)?;
        }
    }
    if let Some(time) = now.checked_sub(options.keep_ended) {
        let find = "SELECT tenant, thread, run FROM runs WHERE status = 'ended' AND since <= ?1";
        for key in before(tx, find, time)? {
            for delete in [
                "DELETE FROM runs WHERE tenant = ?1 AND thread = ?2 AND run = ?3",
                "DELETE FROM questions WHERE tenant = ?1 AND thread = ?2 AND run = ?3",
                "DELETE FROM effects
                 WHERE tenant = ?1 AND thread = ?2 AND run = ?3 AND run IS NOT NULL",
                "DELETE FROM decisions
                 WHERE tenant = ?1 AND thread = ?2 AND run = ?3 AND span = 'run'",
            ] {
                tx.prepare_cached(delete)
                    .and_then(|mut delete| delete.execute(key.each_ref()))
                    .map_err(failed)?;
            }
        }
    }
    let at = nanos(now);
    tx.prepare_cached("UPDATE effects SET seen = ?1 WHERE run IS NULL AND seen IS NULL")
        .and_then(|mut update| update.execute([at]))
        .map_err(failed)?;
    if let Some(before) = now.checked_sub(options.keep_effects) {
        tx.prepare_cached("DELETE FROM effects WHERE run IS NULL AND seen <= ?1")
            .and_then(|mut delete| delete.execute([nanos(before)]))
            .map_err(failed)?;
    }
    tx.prepare_cached("DELETE FROM once WHERE until <= ?1")
        .and_then(|mut delete| delete.execute([at]))
        .map_err(failed)?;
    Ok(())
}

pub(super) fn asking(
    tx: &Transaction<'_>,
    options: &Options,
    tenant: Tenant,
    thread: ThreadId,
    questions: &[InterruptId],
) -> Result<RunRecord, StoreError> {
    let find = "SELECT q.run, r.begun FROM questions q JOIN runs r USING (tenant, thread, run)
                WHERE q.tenant = ?1 AND q.thread = ?2 AND q.question = ?3
                ORDER BY r.begun DESC LIMIT 1";
    let mut newest: Option<(String, i64)> = None;
    for id in questions {
        let found = tx
            .prepare_cached(find)
            .and_then(|mut find| {
                let names = [tenant.0.as_str(), thread.as_str(), id.as_str()];
                find.query_row(names, |row| Ok((row.get(0)?, row.get(1)?)))
                    .optional()
            })
            .map_err(failed)?;
        if let Some(found) = found
            && newest.as_ref().is_none_or(|newest| newest.1 < found.1)
        {
            newest = Some(found);
        }
    }
    let (run, _) = newest.ok_or(StoreError::NotFound)?;
    let key = RunKey::new(tenant, thread, RunId::new(run));
    get(tx, options, &key)
}

pub(super) fn of_thread(
    tx: &Transaction<'_>,
    options: &Options,
    tenant: &Tenant,
    thread: &ThreadId,
) -> Result<Vec<RunRecord>, StoreError> {
    let find = columns!("WHERE tenant = ?1 AND thread = ?2 AND status <> 'ended' ORDER BY begun");
    let names = [tenant.0.as_str(), thread.as_str()];
    find_all(tx, options, find, names, usize::MAX)
}

pub(super) fn abandoned(
    tx: &Transaction<'_>,
    options: &Options,
    now: SystemTime,
    limit: usize,
) -> Result<Vec<RunRecord>, StoreError> {
    let find =
        columns!("WHERE status = 'running' AND lease_until <= ?1 ORDER BY lease_until, begun");
    find_all(tx, options, find, [nanos(now)], limit)
}

/// At most `limit` of the runs that `find` finds, without those that cannot be read.
fn find_all(
    tx: &Transaction<'_>,
    options: &Options,
    find: &str,
    params: impl Params,
    limit: usize,
) -> Result<Vec<RunRecord>, StoreError> {
    let mut find = tx.prepare_cached(find).map_err(failed)?;
    let mut rows = find.query(params).map_err(failed)?;
    let mut found = Vec::new();
    while found.len() < limit
        && let Some(row) = rows.next().map_err(failed)?
    {
        let stored = Stored::read(row).map_err(failed);
        found.extend(readable(stored.and_then(|it| it.open(tx, options)))?);
    }
    Ok(found)
}
