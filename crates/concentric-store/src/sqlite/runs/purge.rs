//! The end of runs, and the removal of expired entries.

use super::{
    super::{
        cache, log,
        values::{count, execute, find_row, find_rows, integer, nanos},
    },
    row::{digest, names, read_key, standing},
};
use crate::{
    Options,
    rules::{EXPIRED, REMEMBER_DELETED, may_still_append, write_outcome},
};
use concentric_core::store::{RunKey, StoreError};
use rusqlite::{Row, Transaction, params, params_from_iter};
use std::time::SystemTime;

pub(super) fn set_ended(
    tx: &Transaction<'_>,
    [tenant, thread, run]: [&str; 3],
    now: SystemTime,
    outcome: &str,
) -> Result<(), StoreError> {
    let version = count(tx)?;
    let update = "UPDATE runs SET status = 'ended', version = ?4, since = ?5, outcome = ?6
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let row = params![tenant, thread, run, integer(version), nanos(now), outcome];
    execute(tx, update, row).map(drop)
}

/// The maximum number of rows of each kind removed in one transaction, which blocks other writers.
pub(in crate::sqlite) const BATCH: usize = 100;

/// Returns the keys of at most [`BATCH`] runs that `find` selects with `time` as its parameter.
fn before(
    tx: &Transaction<'_>,
    find: &str,
    time: SystemTime,
) -> Result<Vec<[String; 3]>, StoreError> {
    let find = format!("{find} LIMIT {BATCH}");
    let key = |row: &Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
    find_rows(tx, &find, [nanos(time)], key)
}

/// Deletes at most [`BATCH`] of the runs that `which` selects with `of`, and returns their number. Those whose processes
/// may still append a turn are remembered.
pub(in crate::sqlite) fn delete_runs(
    tx: &Transaction<'_>,
    options: &Options,
    which: &str,
    of: &[&str],
) -> Result<usize, StoreError> {
    let now = options.now();
    let find = format!(
        "SELECT tenant, thread, run, status, version, fence, lease_until, since, takeovers FROM runs
         WHERE {which} LIMIT {BATCH}"
    );
    let runs = find_rows(tx, &find, params_from_iter(of), |row| {
        Ok((read_key(row)?, standing(row, 3)?))
    })?;
    let insert = "INSERT OR REPLACE INTO deleted_runs (run, at) VALUES (?1, ?2)";
    for (key, standing) in &runs {
        if may_still_append(standing, now) {
            execute(tx, insert, params![digest(key, []), nanos(now)])?;
        }
        remove(tx, names(key))?;
    }
    Ok(runs.len())
}

/// Returns whether the run was deleted with its conversation or its tenant.
pub(in crate::sqlite) fn is_deleted(
    tx: &Transaction<'_>,
    key: &RunKey,
) -> Result<bool, StoreError> {
    let find = "SELECT 1 FROM deleted_runs WHERE run = ?1";
    let found = find_row(tx, find, [digest(key, [])], |_| Ok(()))?;
    Ok(found.is_some())
}

/// Removes a run with what belongs to it.
fn remove(tx: &Transaction<'_>, key: [&str; 3]) -> Result<(), StoreError> {
    let find = "SELECT log FROM runs WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let log: Option<i64> = find_row(tx, find, key, |row| row.get(0))?.flatten();
    for delete in [
        "DELETE FROM runs WHERE tenant = ?1 AND thread = ?2 AND run = ?3",
        "DELETE FROM questions WHERE tenant = ?1 AND thread = ?2 AND run = ?3",
        "DELETE FROM effects
         WHERE tenant = ?1 AND thread = ?2 AND run = ?3 AND run IS NOT NULL",
        "DELETE FROM decisions
         WHERE tenant = ?1 AND thread = ?2 AND run = ?3 AND span = 'run'",
    ] {
        execute(tx, delete, key)?;
    }
    log.map_or(Ok(()), |log| log::collect(tx, log))
}

/// Removes at most [`BATCH`] expired entries of each kind; returns whether more may be left.
pub(crate) fn purge(
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
        let expired = write_outcome(&Ok(EXPIRED))?;
        for key in waited {
            set_ended(tx, key.each_ref().map(String::as_str), now, &expired)?;
        }
    }
    if let Some(time) = now.checked_sub(options.keep_ended) {
        let find = "SELECT tenant, thread, run FROM runs WHERE status = 'ended' AND since <= ?1";
        let ended = before(tx, find, time)?;
        did(ended.len());
        for key in &ended {
            remove(tx, key.each_ref().map(String::as_str))?;
        }
    }
    if let Some(before) = now.checked_sub(REMEMBER_DELETED) {
        let delete = format!(
            "DELETE FROM deleted_runs WHERE run IN
             (SELECT run FROM deleted_runs WHERE at <= ?1 LIMIT {BATCH})"
        );
        did(execute(tx, &delete, [nanos(before)])?);
    }
    let at = nanos(now);
    let execute =
        |statement: &str, params: &[i64]| execute(tx, statement, params_from_iter(params));
    let limits = format!(
        "DELETE FROM limits WHERE (kind, name) IN
         (SELECT kind, name FROM limits WHERE until <= ?1 LIMIT {BATCH})"
    );
    did(execute(&limits, &[at])?);
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
    let delete = format!(
        "DELETE FROM cache WHERE rowid IN
         (SELECT rowid FROM cache WHERE until <= ?1 LIMIT {BATCH})"
    );
    did(execute(&delete, &[at])?);
    Ok(more | cache::trim(tx, options)?)
}
