//! Statements that write runs.

use super::{
    super::{
        log::{self, NewTurns, Turns, position},
        threads::conversation_turns,
        values::{count, execute, failed, find_row, find_rows, integer, nanos, time},
    },
    find::is_live,
    purge::{purge, set_ended},
    row::{checksum, names, standing_of, stored, turns_of},
};
use crate::{
    Options,
    columns::Sum,
    rules::{
        Standing, WITHDRAWN, Written, check_keep, check_total, check_waiting, end_of,
        merge_replies, renewed, write_head, write_outcome, write_replies,
    },
};
use concentric_core::{
    InterruptId, MessageId, Reply, RunId, ThreadId,
    store::{MAX_TAKEOVERS, Renewed, RunHead, RunKey, RunRecord, RunStatus, StoreError, Tenant},
};
use rusqlite::{Transaction, params, params_from_iter};
use std::time::{Duration, SystemTime};

fn ask(tx: &Transaction<'_>, key: &RunKey, asks: &[InterruptId]) -> Result<(), StoreError> {
    let insert = "INSERT OR IGNORE INTO questions (tenant, thread, run, question)
                  VALUES (?1, ?2, ?3, ?4)";
    let [tenant, thread, run] = names(key);
    for id in asks {
        execute(tx, insert, [tenant, thread, run, id.as_str()])?;
    }
    Ok(())
}

const NO_REPLIES: &str = "[]";

/// The change of a run as it is written, which is made before the transaction.
pub(super) struct NewState {
    pub(super) keep: usize,
    pub(super) turns: NewTurns,
    pub(super) head: NewHead,
}

/// The state of a run without its turns.
pub(super) struct NewHead {
    written: Written,
    // Of the key and the head.
    sum: Sum,
}

impl NewHead {
    pub(super) fn new(key: &RunKey, head: &RunHead) -> Result<Self, StoreError> {
        let written = write_head(head)?;
        let sum = Sum::new(key).with([written.head.as_bytes()]);
        Ok(Self { written, sum })
    }
}

pub(super) fn begin(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    client_id: &RunId,
    new: &NewState,
    lease: Duration,
) -> Result<u64, StoreError> {
    if standing_of(tx, key)?.is_some() {
        return Err(StoreError::Exists);
    }
    if is_live(tx, &key.tenant, &key.thread, client_id)? {
        return Err(StoreError::Live);
    }
    let fence = count(tx)?;
    let insert = "INSERT INTO runs
                  (tenant, thread, run, status, begun, version, fence, lease_until,
                   checksum, state, replies, client_id)
                  VALUES (?1, ?2, ?3, 'running', ?4, ?4, ?4, ?5, x'', '', ?6, ?7)";
    let [tenant, thread, run] = names(key);
    let row = params![
        tenant,
        thread,
        run,
        integer(fence),
        nanos(end_of(options.now(), lease)),
        NO_REPLIES,
        client_id.as_str(),
    ];
    execute(tx, insert, row)?;
    check_keep(0, new.keep)?;
    let conversation = conversation_turns(tx, &key.tenant, &key.thread)?;
    let turns = Turns::new_for_run(tx, &new.turns, conversation)?;
    set_state(tx, options, key, &new.head, turns, NO_REPLIES)?;
    Ok(fence)
}

/// Applies a change to the state of a run that has the turns `stored`.
fn apply(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    new: &NewState,
    stored: Turns,
    replies: &str,
) -> Result<(), StoreError> {
    let turns = stored.replace(tx, new.keep, &new.turns, options.max_state_bytes)?;
    set_state(tx, options, key, &new.head, turns, replies)?;
    match turns.log == stored.log {
        true => Ok(()),
        false => log::collect(tx, stored.log),
    }
}

/// Sets the state of a run to one with this head and these turns.
pub(super) fn set_state(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    NewHead { written, sum }: &NewHead,
    turns: Turns,
    replies: &str,
) -> Result<(), StoreError> {
    let max = options.max_state_bytes;
    check_total(turns.bytes.saturating_add(written.head.len()), max)?;
    let chain = turns.last_chain(tx)?;
    let update =
        "UPDATE runs SET checksum = ?4, state = ?5, message = ?6, log = ?7, len = ?8, bytes = ?9
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let [tenant, thread, run] = names(key);
    let row = params![
        tenant,
        thread,
        run,
        sum.clone().finish([replies.as_bytes(), &chain]),
        written.head,
        written.message.as_ref().map(MessageId::as_str),
        turns.log,
        position(turns.len),
        position(turns.bytes),
    ];
    execute(tx, update, row)?;
    ask(tx, key, &written.asks)
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

pub(super) fn claim(
    tx: &Transaction<'_>,
    options: &Options,
    mut record: RunRecord,
    replies: Vec<Reply>,
    lease: Duration,
) -> Result<RunRecord, StoreError> {
    let now = options.now();
    let stored = stored(tx, &record.key)?;
    stored.standing.check_claim(record.version, options, now)?;
    // A damaged row must not get a new checksum.
    let chain = stored.turns()?.last_chain(tx)?;
    stored.check_sum(&chain)?;
    let accepted = stored.replies()?;
    let replies = merge_replies(&accepted, replies);
    let json = write_replies(&replies, options.max_state_bytes)?;
    let standing = set_claimed(tx, &record.key, stored.standing, now, lease)?;
    if accepted.len() < replies.len() {
        let keep =
            "UPDATE runs SET replies = ?4, replied_at = ifnull(replied_at, ?5), checksum = ?6
                    WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
        let [tenant, thread, run] = names(&record.key);
        let sum = checksum(&record.key, &stored.head, &json, &chain);
        let row = params![tenant, thread, run, json, nanos(now), sum];
        execute(tx, keep, row)?;
        record.replied_at.get_or_insert(time(nanos(now)));
    }
    standing.show(now, &mut record);
    record.replies = replies;
    Ok(record)
}

/// Claims a run with this standing, and returns its new one.
fn set_claimed(
    tx: &Transaction<'_>,
    key: &RunKey,
    standing: Standing,
    now: SystemTime,
    lease: Duration,
) -> Result<Standing, StoreError> {
    let standing = standing.claimed(count(tx)?, now, end_of(now, lease));
    let claim = "UPDATE runs SET status = 'running', version = ?4, fence = ?4, lease_until = ?5,
                        takeovers = ?6
                 WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let [tenant, thread, run] = names(key);
    let row = params![
        tenant,
        thread,
        run,
        integer(standing.fence),
        nanos(standing.lease_until),
        standing.takeovers,
    ];
    execute(tx, claim, row)?;
    Ok(standing)
}

/// Claims those of these abandoned runs that still have these versions, and returns their keys and fences.
pub(super) fn claim_abandoned(
    tx: &Transaction<'_>,
    options: &Options,
    abandoned: Vec<(RunKey, u64)>,
    lease: Duration,
) -> Result<Vec<(RunKey, u64)>, StoreError> {
    let now = options.now();
    let mut claimed = Vec::new();
    for (key, version) in abandoned {
        let Some(standing) = standing_of(tx, &key)? else {
            continue;
        };
        if standing.check_claim(version, options, now).is_ok() {
            let standing = set_claimed(tx, &key, standing, now, lease)?;
            claimed.push((key, standing.fence));
        }
    }
    Ok(claimed)
}

/// Gives up claims of abandoned runs that were not read, which then do not count as takeovers.
pub(super) fn give_back(
    tx: &Transaction<'_>,
    options: &Options,
    claims: &[(RunKey, u64)],
) -> Result<(), StoreError> {
    let until = nanos(options.now());
    let update = "UPDATE runs SET version = ?4, lease_until = ?5, takeovers = max(takeovers - 1, 0)
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3 AND status = 'running' AND fence = ?6";
    for (key, fence) in claims {
        let version = count(tx)?;
        let [tenant, thread, run] = names(key);
        let row = params![
            tenant,
            thread,
            run,
            integer(version),
            until,
            integer(*fence)
        ];
        execute(tx, update, row)?;
    }
    Ok(())
}

pub(super) fn amend(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    version: u64,
    new: &NewState,
) -> Result<u64, StoreError> {
    let stored = stored(tx, key)?;
    stored
        .standing
        .check_claim(version, options, options.now())?;
    let version = count(tx)?;
    let update = "UPDATE runs SET version = ?4 WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let [tenant, thread, run] = names(key);
    execute(tx, update, params![tenant, thread, run, integer(version)])?;
    apply(tx, options, key, new, stored.turns()?, &stored.replies_json)?;
    Ok(version)
}

fn held(tx: &Transaction<'_>, key: &RunKey, fence: u64) -> Result<(), StoreError> {
    let standing = standing_of(tx, key)?.ok_or(StoreError::NotFound)?;
    standing.check_fence(fence)
}

/// The status of a run after its state is written.
#[derive(Clone, Copy)]
pub(super) enum Next {
    /// Running, under a lease of this time.
    Runs(Duration),
    /// Suspended.
    Waits,
}

/// Changes the state of a run, and clears its stored replies.
pub(super) fn write(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    fence: u64,
    new: &NewState,
    next: Next,
) -> Result<(), StoreError> {
    held(tx, key, fence)?;
    let now = options.now();
    if let Next::Waits = next {
        may_wait(tx, options, key)?;
    }
    let version = count(tx)?;
    let update = "UPDATE runs SET status = ?4, version = ?5, lease_until = ifnull(?6, lease_until),
                  since = ?7, replies = ?8, replied_at = NULL, takeovers = 0,
                  cancel = iif(?4 = 'suspended', 0, cancel),
                  waited = max(waited, ?4 = 'suspended')
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3";
    let [tenant, thread, run] = names(key);
    let (status, lease_until, since) = match next {
        Next::Runs(lease) => ("running", Some(nanos(end_of(now, lease))), None),
        Next::Waits => ("suspended", None, Some(nanos(now))),
    };
    let row = params![
        tenant,
        thread,
        run,
        status,
        integer(version),
        lease_until,
        since,
        NO_REPLIES,
    ];
    execute(tx, update, row)?;
    apply(tx, options, key, new, turns_of(tx, key)?, NO_REPLIES)
}

pub(crate) fn renew(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    fence: u64,
    lease: Duration,
) -> Result<Renewed, StoreError> {
    held(tx, key, fence)?;
    let version = count(tx)?;
    let update = "UPDATE runs SET version = ?4, lease_until = ?5, takeovers = iif(?6, 0, takeovers)
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3 RETURNING cancel";
    let [tenant, thread, run] = names(key);
    let until = nanos(end_of(options.now(), lease));
    let row = params![
        tenant,
        thread,
        run,
        integer(version),
        until,
        lease.is_zero()
    ];
    let cancel = find_row(tx, update, row, |row| row.get(0))?;
    Ok(renewed(cancel.unwrap_or_default()))
}

pub(super) fn cancel(tx: &Transaction<'_>, key: &RunKey) -> Result<bool, StoreError> {
    let update = "UPDATE runs SET cancel = 1
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3 AND status = 'running'";
    Ok(execute(tx, update, names(key))? > 0)
}

pub(super) fn release(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
) -> Result<bool, StoreError> {
    let update = "UPDATE runs SET takeovers = 0
                  WHERE tenant = ?1 AND thread = ?2 AND run = ?3
                    AND status = 'running' AND lease_until <= ?4 AND takeovers >= ?5";
    let [tenant, thread, run] = names(key);
    let row = params![tenant, thread, run, nanos(options.now()), MAX_TAKEOVERS];
    Ok(execute(tx, update, row)? > 0)
}

pub(super) fn end(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    fence: u64,
    outcome: &str,
) -> Result<(), StoreError> {
    set_end(tx, options, key, fence, Some(outcome))?;
    purge(tx, options, options.now()).map(drop)
}

/// Ends a run, unless this claim has already ended it. Without an outcome, only checks the claim.
pub(in crate::sqlite) fn set_end(
    tx: &Transaction<'_>,
    options: &Options,
    key: &RunKey,
    fence: u64,
    outcome: Option<&str>,
) -> Result<(), StoreError> {
    let standing = standing_of(tx, key)?.ok_or(StoreError::NotFound)?;
    standing.check_end(fence)?;
    match (standing.status, outcome) {
        (RunStatus::Ended, _) | (_, None) => Ok(()),
        (_, Some(outcome)) => set_ended(tx, names(key), options.now(), outcome),
    }
}

pub(super) fn withdraw(
    tx: &Transaction<'_>,
    options: &Options,
    tenant: &Tenant,
    thread: &ThreadId,
) -> Result<usize, StoreError> {
    let now = options.now();
    let find = "SELECT run FROM runs
                WHERE tenant = ?1 AND thread = ?2 AND status = 'suspended' AND status <> 'ended'
                ORDER BY begun";
    let [tenant, thread] = [tenant.0.as_str(), thread.as_str()];
    let waiting: Vec<String> = find_rows(tx, find, [tenant, thread], |row| row.get(0))?;
    let withdrawn = write_outcome(&Ok(WITHDRAWN))?;
    for run in &waiting {
        set_ended(tx, [tenant, thread, run], now, &withdrawn)?;
    }
    purge(tx, options, now)?;
    Ok(waiting.len())
}
