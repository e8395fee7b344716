use super::{
    PostgresStore, column,
    pool::{Db, Repeat},
    purge, purge_after,
    renewals::Renewal,
    threads::{read_turns, write_turns},
    unknown,
    values::{attempt, bytes, keep, now, params, span, total},
};
use crate::{
    Fault,
    columns::{ROOT, chain, checksum, integer, names, number, position, size, time},
    rules::{
        Next, Standing, check_keep, check_total, merge_replies, name, read_outcome, read_run,
        readable, unwritable, write_head, write_outcome, write_replies,
    },
};
use concentric_core::{
    ErrorKind, InterruptId, MessageId, Outcome, Reply, RunId, ThreadId,
    store::{
        MAX_TAKEOVERS, Renewed, RunChange, RunKey, RunRecord, RunStatus, RunStore, RunSummary,
        StoreError, StoreFuture, Tenant,
    },
};
use futures_util::{StreamExt, stream};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::sync::oneshot;
use tokio_postgres::Row;

const NO_REPLIES: &[u8] = b"[]";

/// The number of claimed runs that are read at once: each may have the maximum size, and is held twice while it is
/// parsed.
const READS: usize = 4;

impl RunStore for PostgresStore {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        change: RunChange,
        lease: Duration,
    ) -> StoreFuture<u64> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { begin(&db, &key, &client_id, &change, lease).await })
    }

    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![
                TEXT: tenant.0.as_str(),
                TEXT: thread.as_str(),
                TEXT: client_id.as_str(),
            ];
            column(&db.call_one("run_is_live", params, Repeat::Yes).await?, 0)
        })
    }

    fn get(&self, key: RunKey) -> StoreFuture<RunRecord> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let row = get(&db, &key).await?;
            Stored::read(&row)?.open(&db, key)
        })
    }

    fn claim(
        &self,
        record: RunRecord,
        replies: Vec<Reply>,
        lease: Duration,
    ) -> StoreFuture<RunRecord> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { claim(&db, record, replies, lease).await })
    }

    fn claim_abandoned(&self, limit: usize, lease: Duration) -> StoreFuture<Vec<RunRecord>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { claim_abandoned(&db, limit, lease).await })
    }

    fn amend(&self, key: RunKey, version: u64, change: RunChange) -> StoreFuture<u64> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { write(&db, &key, Next::Claimable(version), &change).await })
    }

    fn save(&self, key: RunKey, fence: u64, change: RunChange, lease: Duration) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let written = write(&db, &key, Next::Runs(fence, lease), &change);
            written.await.map(drop)
        })
    }

    fn renew(&self, key: RunKey, fence: u64, lease: Duration) -> StoreFuture<Renewed> {
        let renewals = self.renewals.clone();
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let renewal = Renewal {
                key,
                fence: integer(fence),
                lease,
                reply,
            };
            renewals.send(renewal).await.map_err(|_| Fault::Closed)?;
            answer.await.map_err(|_| Fault::Closed)?
        })
    }

    fn cancel(&self, key: RunKey) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let [tenant, thread, run] = names(&key);
            let params = params![TEXT: tenant, TEXT: thread, TEXT: run];
            column(&db.call_one("run_cancel", params, Repeat::Yes).await?, 0)
        })
    }

    fn suspend(&self, key: RunKey, fence: u64, change: RunChange) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let written = write(&db, &key, Next::Waits(fence), &change);
            written.await.map(drop)
        })
    }

    fn end(&self, key: RunKey, fence: u64, outcome: Result<Outcome, ErrorKind>) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { end(&db, &key, fence, &outcome).await })
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<usize> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![
                TEXT: tenant.0.as_str(),
                TEXT: thread.as_str(),
                INT8: now(&db.options),
            ];
            let row = db.call_one("run_withdraw", params, Repeat::No).await?;
            purge_after(&db).await;
            Ok(size(column(&row, 0)?))
        })
    }

    fn release(&self, key: RunKey) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let [tenant, thread, run] = names(&key);
            let params = params![
                TEXT: tenant,
                TEXT: thread,
                TEXT: run,
                INT8: now(&db.options),
                INT4: max_takeovers(),
            ];
            column(&db.call_one("run_release", params, Repeat::No).await?, 0)
        })
    }

    fn purge(&self) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            // Each transaction removes at most a hundred entries of each kind, and skips those in use.
            while purge(&db).await? {}
            let limits = async || {
                let params = params![INT8: now(&db.options)];
                column::<bool>(&db.call_one("limits_purge", params, Repeat::Yes).await?, 0)
            };
            while limits().await? {}
            Ok(())
        })
    }

    fn find_by_interrupt(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let questions: Vec<_> = questions.iter().map(InterruptId::as_str).collect();
            let params = params![
                TEXT: tenant.0.as_str(),
                TEXT: thread.as_str(),
                TEXT_ARRAY: questions,
                INT8: now(&db.options),
                INT8: position(db.options.max_state_bytes),
            ];
            let rows = db.call("run_asking", params, Repeat::Yes).await?;
            let row = rows.first().ok_or(StoreError::NotFound)?;
            let key = RunKey::new(tenant, thread, RunId::new(column::<String>(row, 0)?));
            Stored::read(row)?.open(&db, key)
        })
    }

    fn find_by_client_id(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        client_id: RunId,
    ) -> StoreFuture<RunSummary> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![
                TEXT: tenant.0.as_str(),
                TEXT: thread.as_str(),
                TEXT: client_id.as_str(),
                INT8: now(&db.options),
            ];
            let rows = db.call("run_of_client", params, Repeat::Yes).await?;
            let row = rows.first().ok_or(StoreError::NotFound)?;
            let mut found = summary(row, &tenant, &thread)?;
            found.outcome = outcome(row, 9)?;
            Ok(found)
        })
    }

    fn list_by_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![
                TEXT: tenant.0.as_str(),
                TEXT: thread.as_str(),
                TEXT: message.as_ref().map(MessageId::as_str),
                INT8: now(&db.options),
                INT8: position(limit),
            ];
            let rows = db.call("run_list", params, Repeat::Yes).await?;
            let summaries = rows.iter().map(|row| summary(row, &tenant, &thread));
            summaries.collect()
        })
    }

    fn list_waiting(&self, tenant: Tenant, limit: usize) -> StoreFuture<Vec<RunSummary>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let params = params![
                TEXT: tenant.0.as_str(),
                INT8: now(&db.options),
                INT8: position(limit),
            ];
            // Not a function, so that it needs no new version of the schema. `waited` selects the index.
            let schema = db.schema();
            let find = format!(
                "SELECT r.run, r.client_id, r.status, r.version, r.fence, l.until, l.takeovers, r.since,
                     {schema}.now_or($2), r.thread
                 FROM {schema}.runs r JOIN {schema}.leases l ON l.run = r.id
                 WHERE r.tenant = $1 AND r.waited AND r.status = 'suspended'
                 ORDER BY r.since, r.id
                 LIMIT $3"
            );
            let rows = db.query(&find, params).await?;
            let summaries = rows.iter().map(|row| {
                let thread = ThreadId::new(column::<String>(row, 9)?);
                summary(row, &tenant, &thread)
            });
            summaries.collect()
        })
    }
}

fn max_takeovers() -> i32 {
    i32::try_from(MAX_TAKEOVERS).unwrap_or(i32::MAX)
}

/// Reads a [`Standing`], and the time by the clock of the store, from the columns 2 to 8.
fn standing(row: &Row) -> Result<(Standing, SystemTime), StoreError> {
    let standing = Standing {
        // A constraint of the table allows only these three.
        status: match column(row, 2)? {
            "running" => RunStatus::Running,
            "suspended" => RunStatus::Suspended,
            _ => RunStatus::Ended,
        },
        version: number(column(row, 3)?),
        fence: number(column(row, 4)?),
        lease_until: time(column(row, 5)?),
        takeovers: u32::try_from(column::<i32>(row, 6)?).unwrap_or_default(),
        since: column::<Option<i64>>(row, 7)?.map(time),
    };
    Ok((standing, time(column(row, 8)?)))
}

/// Reads a run without an outcome from the columns 0 to 8.
fn summary(row: &Row, tenant: &Tenant, thread: &ThreadId) -> Result<RunSummary, StoreError> {
    let id = |at| column::<String>(row, at).map(RunId::new);
    let (standing, now) = standing(row)?;
    let key = RunKey::new(tenant.clone(), thread.clone(), id(0)?);
    let (status, until) = (standing.status_at(now), standing.lease_until);
    Ok(RunSummary::new(key, id(1)?, status, until))
}

fn outcome(row: &Row, at: usize) -> Result<Option<Result<Outcome, ErrorKind>>, StoreError> {
    let text: Option<&str> = column(row, at)?;
    Ok(text.and_then(read_outcome))
}

/// A row that the functions `run_get` and `run_asking` return.
struct Stored<'a> {
    client_id: RunId,
    standing: Standing,
    now: SystemTime,
    len: usize,
    bytes: usize,
    // Without its turns.
    head: &'a [u8],
    replies: &'a [u8],
    replied_at: Option<i64>,
    checksum: &'a [u8],
    asked: Vec<String>,
    chains: Vec<&'a [u8]>,
    bodies: Vec<&'a [u8]>,
    outcome: Option<Result<Outcome, ErrorKind>>,
}

impl<'a> Stored<'a> {
    fn read(row: &'a Row) -> Result<Self, StoreError> {
        let (standing, now) = standing(row)?;
        Ok(Self {
            client_id: RunId::new(column::<String>(row, 1)?),
            standing,
            now,
            len: size(column(row, 9)?),
            bytes: size(column(row, 10)?),
            head: column(row, 11)?,
            replies: column(row, 12)?,
            replied_at: column(row, 13)?,
            checksum: column(row, 14)?,
            asked: column(row, 15)?,
            chains: column(row, 16)?,
            bodies: column(row, 17)?,
            outcome: outcome(row, 18)?,
        })
    }

    /// Verifies the checksums, and parses the row and its turns.
    fn open(self, db: &Db, key: RunKey) -> Result<RunRecord, StoreError> {
        let max = db.options.max_state_bytes;
        let bytes = self.bytes.saturating_add(self.head.len());
        if bytes > max {
            return Err(Fault::TooLarge { bytes, max }.into());
        }
        let corrupt = |why: String| StoreError::from(Fault::corrupt(name(&key), why));
        let (turns, last) = read_turns(&name(&key), self.len, &self.chains, &self.bodies)?;
        if checksum(&key, self.head, self.replies, &last) != *self.checksum {
            return Err(corrupt("checksum mismatch".to_owned()));
        }
        let state = read_run(&key, self.head, turns, max)?;
        let replies = serde_json::from_slice(self.replies);
        let replies = replies.map_err(|error| corrupt(error.to_string()))?;
        let mut record = RunRecord::new(key, self.client_id, state);
        self.standing.show(self.now, &mut record);
        record.replies = replies;
        record.replied_at = self.replied_at.map(time);
        record.asked = self.asked.into_iter().map(InterruptId::new).collect();
        record.outcome = self.outcome;
        Ok(record)
    }
}

/// The row of a run.
async fn get(db: &Db, key: &RunKey) -> Result<Row, StoreError> {
    let [tenant, thread, run] = names(key);
    let params = params![
        TEXT: tenant,
        TEXT: thread,
        TEXT: run,
        INT8: now(&db.options),
        INT8: position(db.options.max_state_bytes),
    ];
    let rows = db.call("run_get", params, Repeat::Yes).await?;
    rows.into_iter().next().ok_or(StoreError::NotFound)
}

async fn begin(
    db: &Db,
    key: &RunKey,
    client_id: &RunId,
    change: &RunChange,
    lease: Duration,
) -> Result<u64, StoreError> {
    check_keep(0, change.keep)?;
    let max = db.options.max_state_bytes;
    let turns = write_turns(&change.turns, max)?;
    let size = total(&turns, max)?;
    let head = write_head(&change.head)?;
    check_total(size.saturating_add(head.head.len()), max)?;
    let asks: Vec<_> = head.asks.iter().map(InterruptId::as_str).collect();
    let [tenant, thread, run] = names(key);
    let attempt = attempt();
    // If the run begins with the turns of its conversation, only the others are sent.
    let mut shared = shared(db, key, &turns).await?;
    loop {
        let (len, chain) = shared.as_ref().map_or((0, None), |it| (it.0, Some(&it.1)));
        let own = turns.get(len..).unwrap_or_default();
        let params = params![
            TEXT: tenant,
            TEXT: thread,
            TEXT: run,
            TEXT: client_id.as_str(),
            BYTEA: attempt,
            INT8: now(&db.options),
            INT8: span(lease),
            INT8: position(len),
            BYTEA: chain,
            BYTEA_ARRAY: bytes(own),
            INT8: position(size),
            BYTEA: head.head.as_bytes(),
            BYTEA: NO_REPLIES,
            TEXT_ARRAY: asks,
            TEXT: head.message.as_ref().map(MessageId::as_str),
        ];
        let row = db.call_one("run_begin", params, Repeat::Yes).await?;
        return match column(&row, 0)? {
            "ok" => Ok(number(column(&row, 1)?)),
            "exists" => Err(StoreError::Exists),
            "live" => Err(StoreError::Live),
            // The conversation was changed in the meantime.
            "moved" if shared.take().is_some() => continue,
            other => Err(unknown(other)),
        };
    }
}

/// The number of turns of a run's conversation, and its last checksum, if `turns` begin with them.
async fn shared(
    db: &Db,
    key: &RunKey,
    turns: &[String],
) -> Result<Option<(usize, Vec<u8>)>, StoreError> {
    let [tenant, thread, _] = names(key);
    let params = params![TEXT: tenant, TEXT: thread];
    let rows = db.call("thread_end", params, Repeat::Yes).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let (len, stored) = (size(column(row, 0)?), column::<Option<&[u8]>>(row, 1)?);
    let Some(first) = turns.get(..len).filter(|first| !first.is_empty()) else {
        return Ok(None);
    };
    let last = first
        .iter()
        .fold(ROOT.to_vec(), |last, turn| chain(&last, turn.as_bytes()));
    Ok((stored == Some(&*last)).then_some((len, last)))
}

async fn claim(
    db: &Db,
    mut record: RunRecord,
    replies: Vec<Reply>,
    lease: Duration,
) -> Result<RunRecord, StoreError> {
    // The stored replies are those of the record, unless it has another version.
    let replies = merge_replies(&record.replies, replies);
    let json = write_replies(&replies, db.options.max_state_bytes)?;
    let has_new = record.replies.len() < replies.len();
    let [tenant, thread, run] = names(&record.key);
    let params = params![
        TEXT: tenant,
        TEXT: thread,
        TEXT: run,
        INT8: integer(record.version),
        BYTEA: attempt(),
        INT8: now(&db.options),
        INT8: span(lease),
        BYTEA: has_new.then_some(json.as_bytes()),
        INT8: keep(db.options.keep_waiting),
        INT4: max_takeovers(),
    ];
    let row = db.call_one("run_claim", params, Repeat::Yes).await?;
    match column(&row, 0)? {
        "ok" => {}
        "not_found" => return Err(StoreError::NotFound),
        "ended" => return Err(StoreError::Ended),
        "taken" => return Err(StoreError::Taken),
        "quarantined" => return Err(StoreError::Quarantined),
        "corrupt" => return Err(Fault::corrupt(name(&record.key), "checksum mismatch").into()),
        other => return Err(unknown(other)),
    }
    let (fence, until) = (number(column(&row, 1)?), time(column(&row, 2)?));
    let mut standing = Standing::begun(fence, until);
    standing.takeovers = u32::try_from(column::<i32>(&row, 3)?).unwrap_or_default();
    standing.show(time(column(&row, 5)?), &mut record);
    record.replies = replies;
    record.replied_at = column::<Option<i64>>(&row, 4)?.map(time);
    Ok(record)
}

async fn claim_abandoned(
    db: &Db,
    limit: usize,
    lease: Duration,
) -> Result<Vec<RunRecord>, StoreError> {
    let params = params![
        INT8: position(limit),
        INT4: max_takeovers(),
        INT8: keep(db.options.keep_waiting),
        BYTEA: attempt(),
        INT8: now(&db.options),
        INT8: span(lease),
    ];
    let rows = db.call("run_claim_abandoned", params, Repeat::Yes).await?;
    let claims = rows.iter().map(|row| {
        let id = |at| column::<String>(row, at);
        let (tenant, thread) = (Tenant(id(0)?.into()), ThreadId::new(id(1)?));
        let key = RunKey::new(tenant, thread, RunId::new(id(2)?));
        Ok((key, column::<i64>(row, 3)?))
    });
    let claims = claims.collect::<Result<Vec<_>, StoreError>>()?;
    let reads = claims.clone().into_iter();
    let reads = reads.map(|(key, fence)| claimed_run(db, key, number(fence)));
    let mut reads = stream::iter(reads).buffered(READS).enumerate();
    let mut claimed = Vec::new();
    while let Some((at, read)) = reads.next().await {
        match read {
            Ok(record) => claimed.extend(record),
            Err(error) => {
                drop(reads);
                give_back(db, claims.get(at..).unwrap_or_default()).await;
                return match claimed.is_empty() {
                    true => Err(error),
                    false => Ok(claimed),
                };
            }
        }
    }
    Ok(claimed)
}

/// A run that was claimed with this fence; `None` if it was changed in the meantime, or cannot be read.
async fn claimed_run(db: &Db, key: RunKey, fence: u64) -> Result<Option<RunRecord>, StoreError> {
    let row = match get(db, &key).await {
        Ok(row) => row,
        // It was deleted in the meantime.
        Err(StoreError::NotFound) => return Ok(None),
        Err(error) => return Err(error),
    };
    match Stored::read(&row) {
        Ok(stored) if stored.standing.fence != fence => Ok(None),
        Ok(stored) => readable(stored.open(db, key)),
        Err(error) => readable(Err(error)),
    }
}

/// Gives up claims of abandoned runs that were not read, so that they are claimed again at once.
async fn give_back(db: &Db, claims: &[(RunKey, i64)]) {
    let tenants: Vec<_> = claims
        .iter()
        .map(|(key, _)| key.tenant.0.as_str())
        .collect();
    let threads: Vec<_> = claims.iter().map(|(key, _)| key.thread.as_str()).collect();
    let runs: Vec<_> = claims.iter().map(|(key, _)| key.run.as_str()).collect();
    let fences: Vec<_> = claims.iter().map(|(_, fence)| *fence).collect();
    let params = params![
        TEXT_ARRAY: tenants,
        TEXT_ARRAY: threads,
        TEXT_ARRAY: runs,
        INT8_ARRAY: fences,
        INT8: now(&db.options),
    ];
    // On the connection for renewals, since the others may all be in use.
    if let Err(error) = db.renew("run_give_back", params).await {
        tracing::warn!(%error, "abandoned runs stay claimed until their leases end");
    }
}

/// Changes the state of a run, and returns its version.
async fn write(db: &Db, key: &RunKey, next: Next, change: &RunChange) -> Result<u64, StoreError> {
    let options = &db.options;
    let max = options.max_state_bytes;
    let turns = write_turns(&change.turns, max)?;
    let size = total(&turns, max)?;
    let head = write_head(&change.head)?;
    check_total(size.saturating_add(head.head.len()), max)?;
    let asks: Vec<_> = head.asks.iter().map(InterruptId::as_str).collect();
    let (fence, version, lease) = match next {
        Next::Runs(fence, lease) => (Some(fence), None, Some(lease)),
        Next::Waits(fence) => (Some(fence), None, None),
        Next::Claimable(version) => (None, Some(version), None),
    };
    let [tenant, thread, run] = names(key);
    let params = params![
        TEXT: tenant,
        TEXT: thread,
        TEXT: run,
        INT8: fence.map(integer),
        INT8: version.map(integer),
        BYTEA: attempt(),
        INT8: now(options),
        INT8: lease.map(span),
        INT8: position(change.keep),
        BYTEA_ARRAY: bytes(&turns),
        INT8: position(size),
        INT8: position(max),
        BYTEA: head.head.as_bytes(),
        TEXT_ARRAY: asks,
        TEXT: head.message.as_ref().map(MessageId::as_str),
        INT8: position(options.max_waiting_per_thread),
        INT8: position(options.max_waiting_per_tenant),
        INT8: keep(options.keep_waiting),
        INT4: max_takeovers(),
    ];
    let row = db.call_one("run_write", params, Repeat::Yes).await?;
    let n = number(column::<Option<i64>>(&row, 1)?.unwrap_or_default());
    Err(match column(&row, 0)? {
        "ok" => return Ok(n),
        "not_found" => StoreError::NotFound,
        "stale" => StoreError::Stale,
        "ended" => StoreError::Ended,
        "taken" => StoreError::Taken,
        "quarantined" => StoreError::Quarantined,
        "thread_full" => StoreError::TooManyWaiting {
            limit: options.max_waiting_per_thread,
            of_tenant: false,
        },
        "tenant_full" => StoreError::TooManyWaiting {
            limit: options.max_waiting_per_tenant,
            of_tenant: true,
        },
        code => unwritable(code, &name(key), n, change.keep, max).unwrap_or_else(|| unknown(code)),
    })
}

async fn end(
    db: &Db,
    key: &RunKey,
    fence: u64,
    outcome: &Result<Outcome, ErrorKind>,
) -> Result<(), StoreError> {
    let outcome = write_outcome(outcome)?;
    let [tenant, thread, run] = names(key);
    let params = params![
        TEXT: tenant,
        TEXT: thread,
        TEXT: run,
        INT8: integer(fence),
        INT8: now(&db.options),
        TEXT: outcome,
    ];
    let row = db.call_one("run_end", params, Repeat::Yes).await?;
    match column(&row, 0)? {
        "ok" => {}
        "not_found" => return Err(StoreError::NotFound),
        "stale" => return Err(StoreError::Stale),
        other => return Err(unknown(other)),
    }
    purge_after(db).await;
    Ok(())
}
