//! Statements that read runs.

use super::{
    super::values::{find_row, find_rows},
    row::{outcome, read_key, standing, standing_of, stored},
};
use crate::{
    Options,
    columns::{nanos, number, position},
    rules::readable,
};
use concentric_core::{
    InterruptId, MessageId, RunId, ThreadId,
    store::{MAX_TAKEOVERS, RunKey, RunRecord, RunSummary, StoreError, Tenant},
};
use rusqlite::{Row, Transaction, params};
use std::time::SystemTime;

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
    Ok(find_row(tx, find, names, |_| Ok(()))?.is_some())
}

pub(super) fn get(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
) -> Result<RunRecord, StoreError> {
    stored(tx, key)?.open(tx, options)
}

/// The keys and versions of abandoned runs. The quarantined ones before them are examined, too, so this is not done with
/// the lock of a writer.
pub(super) fn abandoned(
    tx: &Transaction<'_>,
    options: &Options,
    limit: usize,
) -> Result<Vec<(RunKey, u64)>, StoreError> {
    let now = options.now();
    let find = "SELECT tenant, thread, run, version FROM runs
                WHERE status = 'running' AND lease_until <= ?1 AND lease_until > ?2 AND takeovers < ?3
                ORDER BY lease_until, begun LIMIT ?4";
    let overdue = now
        .checked_sub(options.keep_waiting)
        .map_or(i64::MIN, nanos);
    let params = params![nanos(now), overdue, MAX_TAKEOVERS, position(limit)];
    find_rows(tx, find, params, |row| {
        Ok((read_key(row)?, number(row.get(3)?)))
    })
}

/// A run that was claimed with this fence; `None` if it was changed in the meantime, or cannot be read.
pub(super) fn claimed(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    fence: u64,
) -> Result<Option<RunRecord>, StoreError> {
    match standing_of(tx, key)? {
        Some(standing) if standing.fence == fence => readable(get(tx, options, key)),
        _ => Ok(None),
    }
}

pub(super) fn find_by_interrupt(
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
    let run: Option<String> = {
        let names = [tenant.0.as_str(), thread.as_str(), &questions];
        find_row(tx, find, names, |row| row.get(0))?
    };
    let run = run.ok_or(StoreError::NotFound)?;
    let key = RunKey::new(tenant, thread, RunId::new(run));
    get(tx, options, &key)
}

pub(super) fn find_by_client_id(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    thread: &ThreadId,
    client_id: &RunId,
    now: SystemTime,
) -> Result<RunSummary, StoreError> {
    // Each part reads one entry of an index, however many runs have the id.
    let find = "SELECT tenant, thread, run, status, version, fence, lease_until, since, takeovers, client_id,
                       outcome
                FROM runs WHERE rowid = ifnull(
                    (SELECT rowid FROM runs
                     WHERE tenant = ?1 AND thread = ?2 AND client_id = ?3 AND status = 'running'),
                    (SELECT rowid FROM runs WHERE tenant = ?1 AND thread = ?2 AND client_id = ?3
                     ORDER BY begun DESC LIMIT 1))";
    let names = [tenant.0.as_str(), thread.as_str(), client_id.as_str()];
    let found = find_row(tx, find, names, |row| summary(row, now))?;
    found.ok_or(StoreError::NotFound)
}

/// Reads a summary from the columns of the key, of the standing, the client id and the outcome.
fn summary(row: &Row<'_>, now: SystemTime) -> rusqlite::Result<RunSummary> {
    let standing = standing(row, 3)?;
    let client_id = RunId::new(row.get::<_, String>(9)?);
    let (status, until) = (standing.status_at(now), standing.lease_until);
    let mut summary = RunSummary::new(read_key(row)?, client_id, status, until);
    summary.outcome = outcome(row, 10)?;
    Ok(summary)
}

pub(super) fn list_by_thread(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    thread: &ThreadId,
    message: Option<&MessageId>,
    limit: usize,
    now: SystemTime,
) -> Result<Vec<RunSummary>, StoreError> {
    let find =
        "SELECT tenant, thread, run, status, version, fence, lease_until, since, takeovers, client_id,
                       outcome
                FROM runs
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
    find_rows(tx, find, params, |row| summary(row, now))
}

pub(super) fn list_waiting(
    tx: &Transaction<'_>,
    tenant: &Tenant,
    limit: usize,
    now: SystemTime,
) -> Result<Vec<RunSummary>, StoreError> {
    let find =
        "SELECT tenant, thread, run, status, version, fence, lease_until, since, takeovers, client_id,
                       outcome
                FROM runs
                WHERE tenant = ?1 AND status = 'suspended'
                ORDER BY since, begun
                LIMIT ?2";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    find_rows(tx, find, params![tenant.0.as_str(), limit], |row| {
        summary(row, now)
    })
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
            let found = find_by_interrupt(&tx, &options, Tenant::default(), thread, &questions);
            assert!(matches!(found, Err(StoreError::NotFound)));
            assert_eq!(STATEMENTS.load(Ordering::Relaxed), 1, "{asked} questions");
        }
    }
}
