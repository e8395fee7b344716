use super::{count, failed, integer, nanos, number, time};
use crate::{
    Fault, Options,
    rules::{
        Standing, check_waiting, merge_replies, message_of, name, read_state, readable,
        write_replies, write_state,
    },
};
use concentric_core::{
    InterruptId, MessageId, Reply, RunId, Str, ThreadId,
    machine::MachineState,
    store::{RunKey, RunRecord, RunStatus, RunSummary, StoreError, Tenant},
};
use rusqlite::{OptionalExtension, Params, Row, Transaction, params, params_from_iter};
use sha2::{Digest, Sha256};
use std::time::SystemTime;

/// The columns of [`Stored`].
macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "SELECT r.tenant, r.thread, r.run, r.status, r.version, r.fence, r.lease_until, \
             r.since, r.checksum, r.state, r.replies, r.replied_at, r.client_id FROM runs r ",
            $rest
        )
    };
}

/// A row of the table `runs`.
struct Stored {
    key: RunKey,
    standing: Standing,
    checksum: Vec<u8>,
    state: String,
    replies: String,
    replied_at: Option<i64>,
    client_id: RunId,
}

fn read_key(row: &Row<'_>) -> rusqlite::Result<RunKey> {
    let text = |at| row.get::<_, String>(at).map(Str::from);
    Ok(RunKey::new(
        Tenant(text(0)?),
        ThreadId::new(text(1)?),
        RunId::new(text(2)?),
    ))
}

impl Stored {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            key: read_key(row)?,
            standing: standing(row, 3)?,
            checksum: row.get(8)?,
            state: row.get(9)?,
            replies: row.get(10)?,
            replied_at: row.get(11)?,
            client_id: RunId::new(row.get::<_, String>(12)?),
        })
    }

    /// Verifies the checksum and parses the row.
    fn open(self, tx: &Transaction<'_>, options: &Options) -> Result<RunRecord, StoreError> {
        let Self { key, standing, .. } = self;
        if checksum(&key, &self.state, &self.replies) != *self.checksum {
            return Err(Fault::corrupt(name(&key), "checksum mismatch").into());
        }
        let max = options.max_state_bytes;
        let state = read_state(&key, &self.state, max)?;
        let replies = serde_json::from_str(&self.replies)
            .map_err(|error| Fault::corrupt(name(&key), error))?;
        let asked = asked(tx, &key)?;
        let mut record = RunRecord::new(key, self.client_id, state);
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

/// The checksum of a row's texts. It includes the key, so that a row moved to another key is
/// detected.
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

/// Reads a [`Standing`] from the five columns that start at `at`.
fn standing(row: &Row<'_>, at: usize) -> rusqlite::Result<Standing> {
    let status: String = row.get(at)?;
    Ok(Standing {
        // A constraint of the table allows only these three.
        status: match &*status {
            "running" => RunStatus::Running,
            "suspended" => RunStatus::Suspended,
            _ => RunStatus::Ended,
        },
        version: number(row.get(at + 1)?),
        fence: number(row.get(at + 2)?),
        lease_until: time(row.get(at + 3)?),
        since: row.get::<_, Option<i64>>(at + 4)?.map(time),
    })
}

/// Loads the [`Standing`] of a run, if the run exists.
pub(super) fn standing_of(
    tx: &Transaction<'_>,
    key: &RunKey,
) -> Result<Option<Standing>, StoreError> {
    let find = "SELECT status, version, fence, lease_until, since FROM runs
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
    client_id: &RunId,
    state: &MachineState,
    lease_until: SystemTime,
) -> Result<u64, StoreError> {
    let state = write_state(state, options.max_state_bytes)?;
    if standing_of(tx, key)?.is_some() {
        return Err(StoreError::Exists);
    }
    if is_live(tx, &key.tenant, &key.thread, client_id)? {
        return Err(StoreError::Live);
    }
    let fence = count(tx)?;
    let insert = "INSERT INTO runs
                  (tenant, thread, run, status, begun, version, fence, lease_until,
                   checksum, state, replies, client_id, message)
                  VALUES (?1, ?2, ?3, 'running', ?4, ?4, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let [tenant, thread, run] = names(key);
    let row = params![
        tenant,
        thread,
        run,
        integer(fence),
        nanos(lease_until),
        checksum(key, &state.json, NO_REPLIES),
        state.json,
        NO_REPLIES,
        client_id.as_str(),
        state.message.as_ref().map(MessageId::as_str),
    ];
    tx.prepare_cached(insert)
        .and_then(|mut insert| insert.execute(row))
        .map_err(failed)?;
    ask(tx, key, &state.asks)?;
    Ok(fence)
}

/// Returns whether a run begun with `client_id` in the conversation is running.
pub(super) fn is_live(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    thread: &ThreadId,
    client_id: &RunId,
) -> Result<bool, StoreError> {
    let find = "SELECT 1 FROM runs
                WHERE tenant = ?1 AND thread = ?2 AND client_id = ?3 AND status = 'running'";
    let names = [tenant.0.as_str(), thread.as_str(), client_id.as_str()];
    tx.prepare_cached(find)
        .and_then(|mut find| find.exists(names))
        .map_err(failed)
}

/// Fails if a limit of waiting runs is reached, unless this run has waited before.
fn may_wait(tx: &Transaction<'_>, options: &Options, key: &RunKey) -> Result<(), StoreError> {
    let [tenant, thread, run] = names(key);
    let find = "SELECT waited FROM runs WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let has_waited: bool = tx
        .prepare_cached(find)
        .and_then(|mut find| find.query_row([tenant, thread, run], |row| row.get(0)))
        .map_err(failed)?;
    if has_waited {
        return Ok(());
    }
    // Counts at most up to the limit, to bound the work.
    let count = |what: &str, of: &[&str], limit: usize| {
        let count = format!(
            "SELECT count(*) FROM (SELECT 1 FROM runs
             WHERE tenant = ?1 {what} AND waited = 1 AND status <> 'ended' LIMIT {})",
            i64::try_from(limit).unwrap_or(i64::MAX)
        );
        tx.prepare_cached(&count)
            .and_then(|mut count| count.query_row(params_from_iter(of), |row| row.get::<_, i64>(0)))
            .map(|waiting| usize::try_from(waiting).unwrap_or(usize::MAX))
            .map_err(failed)
    };
    let per_thread = options.max_waiting_per_thread;
    let thread = count("AND thread = ?2", &[tenant, thread], per_thread)?;
    let tenant = count("", &[tenant], options.max_waiting_per_tenant)?;
    check_waiting(options, thread, tenant)
}

/// Fills the column `message` for each run that has not ended: schema version 1 has it only inside
/// the state.
pub(super) fn fill_messages(tx: &Transaction<'_>) -> Result<(), Fault> {
    let mut find = tx.prepare("SELECT rowid FROM runs WHERE status <> 'ended'")?;
    let rows: Vec<i64> = find
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut read = tx.prepare("SELECT state FROM runs WHERE rowid = ?1")?;
    let mut note = tx.prepare("UPDATE runs SET message = ?2 WHERE rowid = ?1")?;
    for row in rows {
        // An unreadable run fails when it is loaded; it must not fail the migration.
        let Ok(json) = read.query_row([row], |row| row.get::<_, String>(0)) else {
            continue;
        };
        let state = MachineState::from_json(json.as_bytes(), usize::MAX);
        let message = state.ok().as_ref().and_then(message_of);
        note.execute(params![row, message.as_ref().map(MessageId::as_str)])?;
    }
    Ok(())
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
    let stored = stored(tx, key)?;
    stored.standing.check_claim(version, options, now)?;
    let state = stored.state.clone();
    // A run whose state cannot be read must not be claimed.
    let mut record = stored.open(tx, options)?;
    let replies = merge_replies(&record.replies, replies);
    let json = write_replies(&replies, options.max_state_bytes)?;

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
    if record.replies.len() < replies.len() {
        let keep =
            "UPDATE runs SET replies = ?4, replied_at = ifnull(replied_at, ?5), checksum = ?6
                    WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
        let sum = checksum(key, &state, &json);
        let row = params![tenant, thread, run, json, nanos(now), sum];
        tx.prepare_cached(keep)
            .and_then(|mut keep| keep.execute(row))
            .map_err(failed)?;
        record.replies = replies;
        record.replied_at.get_or_insert(time(nanos(now)));
    }
    Ok(record)
}

pub(super) fn amend(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    version: u64,
    state: &MachineState,
    now: SystemTime,
) -> Result<u64, StoreError> {
    let state = write_state(state, options.max_state_bytes)?;
    let stored = stored(tx, key)?;
    stored.standing.check_claim(version, options, now)?;
    let version = count(tx)?;
    let update = "UPDATE runs SET version = ?4, checksum = ?5, state = ?6, message = ?7
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let [tenant, thread, run] = names(key);
    let row = params![
        tenant,
        thread,
        run,
        integer(version),
        checksum(key, &state.json, &stored.replies),
        state.json,
        state.message.as_ref().map(MessageId::as_str),
    ];
    tx.prepare_cached(update)
        .and_then(|mut update| update.execute(row))
        .map_err(failed)?;
    ask(tx, key, &state.asks)?;
    Ok(version)
}

fn held(tx: &Transaction<'_>, key: &RunKey, fence: u64) -> Result<(), StoreError> {
    let standing = standing_of(tx, key)?.ok_or(StoreError::NotFound)?;
    standing.check_fence(fence)
}

/// The status of a run after its state is written.
#[derive(Clone, Copy)]
pub(super) enum Next {
    /// Running, under a lease until this time.
    Runs(SystemTime),
    /// Suspended at this time.
    Waits(SystemTime),
}

/// Writes the state of a run and clears its stored replies.
pub(super) fn write(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    fence: u64,
    state: &MachineState,
    next: Next,
) -> Result<(), StoreError> {
    let state = write_state(state, options.max_state_bytes)?;
    held(tx, key, fence)?;
    if let Next::Waits(now) = next
        && may_wait(tx, options, key).is_err()
    {
        // Some may be overdue.
        purge(tx, options, now)?;
        held(tx, key, fence)?;
        may_wait(tx, options, key)?;
    }
    let version = count(tx)?;
    let update = "UPDATE runs SET status = ?4, version = ?5, lease_until = ifnull(?6, lease_until),
                  since = ?7, checksum = ?8, state = ?9, replies = ?10, replied_at = NULL,
                  message = ?11, waited = max(waited, ?4 = 'suspended')
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
        checksum(key, &state.json, NO_REPLIES),
        state.json,
        NO_REPLIES,
        state.message.as_ref().map(MessageId::as_str),
    ];
    tx.prepare_cached(update)
        .and_then(|mut update| update.execute(row))
        .map_err(failed)?;
    ask(tx, key, &state.asks)
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
    purge(tx, options, now).map(drop)
}

pub(super) fn withdraw(
    tx: &Transaction<'_>,
    options: &Options,
    tenant: &Tenant,
    thread: &ThreadId,
    now: SystemTime,
) -> Result<usize, StoreError> {
    let find = "SELECT run FROM runs
                WHERE tenant = ?1 AND thread = ?2 AND status = 'suspended' AND status <> 'ended'
                ORDER BY begun";
    let [tenant, thread] = [tenant.0.as_str(), thread.as_str()];
    let waiting: Vec<String> = tx
        .prepare_cached(find)
        .and_then(|mut find| {
            find.query_map([tenant, thread], |row| row.get(0))?
                .collect()
        })
        .map_err(failed)?;
    for run in &waiting {
        set_ended(tx, [tenant, thread, run], now)?;
    }
    purge(tx, options, now)?;
    Ok(waiting.len())
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

/// The maximum number of rows of each kind removed in one transaction, which blocks other writers.
const BATCH: usize = 100;

/// Returns the keys of at most [`BATCH`] runs that `find` selects with `time` as its parameter.
fn before(
    tx: &Transaction<'_>,
    find: &str,
    time: SystemTime,
) -> Result<Vec<[String; 3]>, StoreError> {
    tx.prepare_cached(&format!("{find} LIMIT {BATCH}"))
        .and_then(|mut find| {
            let key = |row: &Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
            find.query_map([nanos(time)], key)?.collect()
        })
        .map_err(failed)
}

/// Removes at most [`BATCH`] expired entries of each kind; returns whether more may be left.
pub(super) fn purge(
    tx: &Transaction<'_>,
    options: &Options,
    now: SystemTime,
) -> Result<bool, StoreError> {
    let mut more = false;
    let mut did = |rows: usize| more |= rows >= BATCH;
    if let Some(time) = now.checked_sub(options.keep_waiting) {
        let find = "SELECT tenant, thread, run FROM runs
                    WHERE (status = 'suspended' AND since <= ?1)
                       OR (status = 'running' AND lease_until <= ?1)
                    ORDER BY begun";
        let waited = before(tx, find, time)?;
        did(waited.len());
        for key in waited {
            set_ended(tx, key.each_ref().map(String::as_str), now)?;
        }
    }
    if let Some(time) = now.checked_sub(options.keep_ended) {
        let find = "SELECT tenant, thread, run FROM runs WHERE status = 'ended' AND since <= ?1";
        let ended = before(tx, find, time)?;
        did(ended.len());
        for key in ended {
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
    let execute = |statement: &str, params: &[i64]| {
        tx.prepare_cached(statement)
            .and_then(|mut it| it.execute(params_from_iter(params)))
            .map_err(failed)
    };
    let see = format!(
        "UPDATE effects SET seen = ?1 WHERE rowid IN
         (SELECT rowid FROM effects WHERE run IS NULL AND seen IS NULL LIMIT {BATCH})"
    );
    did(execute(&see, &[at])?);
    if let Some(before) = now.checked_sub(options.keep_effects) {
        let delete = format!(
            "DELETE FROM effects WHERE rowid IN
             (SELECT rowid FROM effects WHERE run IS NULL AND seen <= ?1 LIMIT {BATCH})"
        );
        did(execute(&delete, &[nanos(before)])?);
    }
    // Examines only the first `BATCH` expired keys: most may be too recent to be removed, and a
    // full scan would then be repeated at each purge.
    let delete = format!(
        "DELETE FROM once WHERE (tenant, key) IN
         (SELECT tenant, key FROM
          (SELECT tenant, key, n FROM once WHERE until <= ?1 ORDER BY until LIMIT {BATCH})
          WHERE n <= (SELECT ifnull(max(n), 0) FROM once) - ?2)"
    );
    let kept = i64::try_from(options.keep_used_keys).unwrap_or(i64::MAX);
    did(execute(&delete, &[at, kept])?);
    Ok(more)
}

pub(super) fn asking(
    tx: &Transaction<'_>,
    options: &Options,
    tenant: Tenant,
    thread: ThreadId,
    questions: &[InterruptId],
) -> Result<RunRecord, StoreError> {
    // One JSON parameter, since SQLite limits the number of parameters, and one cached statement
    // then serves any number of interrupts.
    let find = "SELECT q.run FROM questions q JOIN runs r USING (tenant, thread, run)
                WHERE q.tenant = ?1 AND q.thread = ?2
                  AND q.question IN (SELECT value FROM json_each(?3))
                ORDER BY r.begun DESC LIMIT 1";
    let questions = serde_json::to_string(questions).map_err(StoreError::failed)?;
    let run: Option<String> = tx
        .prepare_cached(find)
        .and_then(|mut find| {
            let names = [tenant.0.as_str(), thread.as_str(), &questions];
            find.query_row(names, |row| row.get(0)).optional()
        })
        .map_err(failed)?;
    let run = run.ok_or(StoreError::NotFound)?;
    let key = RunKey::new(tenant, thread, RunId::new(run));
    get(tx, options, &key)
}

pub(super) fn of_thread(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    thread: &ThreadId,
    message: Option<&MessageId>,
    limit: usize,
) -> Result<Vec<RunSummary>, StoreError> {
    let find =
        "SELECT tenant, thread, run, status, version, fence, lease_until, since, client_id FROM runs
                WHERE tenant = ?1 AND thread = ?2 AND status <> 'ended'
                  AND (?3 IS NULL OR message = ?3)
                ORDER BY status = 'running', iif(status = 'running', lease_until, begun), begun
                LIMIT ?4";
    let params = params![
        tenant.0.as_str(),
        thread.as_str(),
        message.map(MessageId::as_str),
        i64::try_from(limit).unwrap_or(i64::MAX),
    ];
    let summary = |row: &Row<'_>| {
        let Standing {
            status,
            lease_until,
            ..
        } = standing(row, 3)?;
        let client_id = RunId::new(row.get::<_, String>(8)?);
        Ok(RunSummary::new(
            read_key(row)?,
            client_id,
            status,
            lease_until,
        ))
    };
    tx.prepare_cached(find)
        .and_then(|mut find| find.query_map(params, summary)?.collect())
        .map_err(failed)
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

/// Returns at most `limit` of the runs that `find` selects, without unreadable ones.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;
    use rusqlite::trace::{TraceEvent, TraceEventCodes};
    use std::sync::atomic::{AtomicUsize, Ordering};

    // The oldest rusqlite takes a function, not a closure.
    static STATEMENTS: AtomicUsize = AtomicUsize::new(0);

    fn count(_: TraceEvent<'_>) {
        STATEMENTS.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn one_statement_looks_up_any_number_of_interrupts() {
        let options = Options::new();
        let mut db = schema::open(&options, None).unwrap();
        // Returns nothing in the oldest rusqlite; whether it counts is asserted below.
        let _ = db.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(count));
        let tx = db.transaction().unwrap();
        for asked in [1, 256, 33_000] {
            let questions: Vec<_> = (0..asked)
                .map(|n| InterruptId::new(n.to_string()))
                .collect();
            STATEMENTS.store(0, Ordering::Relaxed);
            let thread = ThreadId::new("t");
            let found = asking(&tx, &options, Tenant::default(), thread, &questions);
            assert!(matches!(found, Err(StoreError::NotFound)));
            assert_eq!(STATEMENTS.load(Ordering::Relaxed), 1, "{asked} questions");
        }
    }
}
