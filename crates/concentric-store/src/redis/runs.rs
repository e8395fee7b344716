use super::{
    RedisStore,
    db::{Db, Repeat},
    tenants::{Due, Skipped, due, purge_after, purge_all, put_off, set_first},
    threads::read_turns,
    turns::{Before, End, NewTurns},
    unknown,
    values::{
        Call, Reply, attempt, bytes, digest, fields, from_micros, int, keep, list, optional_int,
        run_sum, span, text, unescape,
    },
};
use crate::{
    Fault,
    columns::{digest as digest_of, integer, number, position, size},
    rules::{
        Next, Standing, check_keep, check_total, merge_replies, name, read_outcome, read_run,
        readable, renewed, unwritable, write_head, write_outcome, write_replies,
    },
};
use concentric_core::{
    ErrorKind, InterruptId, MessageId, Outcome, Reply as Answer, RunId, ThreadId,
    store::{
        MAX_TAKEOVERS, Renewed, RunChange, RunKey, RunRecord, RunStatus, RunStore, RunSummary,
        StoreError, StoreFuture, Tenant,
    },
};
use redis::Value;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::task::JoinSet;

const NO_REPLIES: &[u8] = b"[]";

/// The most abandoned runs that a call claims, which bounds its time.
const MAX_CLAIMED: usize = 1_000;

/// The number of tenants that are examined at the same time, since the node of some of them may be down.
const AT_ONCE: usize = 32;

impl RunStore for RedisStore {
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
            let call = Call::of(&tenant, "run_is_live")
                .name(thread.as_str())
                .text(client_id.as_str());
            db.call(call, Repeat::Yes).await?.is(1)
        })
    }

    fn get(&self, key: RunKey) -> StoreFuture<RunRecord> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let reply = get(&db, &key).await?;
            Stored::read(&reply)?.open(&db, key)
        })
    }

    fn claim(
        &self,
        record: RunRecord,
        replies: Vec<Answer>,
        lease: Duration,
    ) -> StoreFuture<RunRecord> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { claim(&db, record, replies, lease).await })
    }

    fn claim_abandoned(&self, limit: usize, lease: Duration) -> StoreFuture<Vec<RunRecord>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { claim_abandoned(&db, limit.min(MAX_CLAIMED), lease).await })
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
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = of_run(&key, "run_renew")
                .int(integer(fence))
                .int(span(lease));
            match db.renew(call).await?.code()? {
                "held" => Ok(renewed(false)),
                "cancel" => Ok(renewed(true)),
                code => Err(rejected(code)),
            }
        })
    }

    fn cancel(&self, key: RunKey) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = of_run(&key, "run_cancel");
            db.call(call, Repeat::Yes).await?.is(1)
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
        Box::pin(async move {
            let call = of_run(&key, "run_end")
                .int(integer(fence))
                .owned(write_outcome(&outcome)?);
            match db.call(call, Repeat::Yes).await?.code()? {
                "ok" => {}
                code => return Err(rejected(code)),
            }
            purge_after(&db, &key.tenant).await;
            Ok(())
        })
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<usize> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&tenant, "run_withdraw").name(thread.as_str());
            let ended = db.call(call, Repeat::No).await?.int(1)?;
            purge_after(&db, &tenant).await;
            Ok(size(ended))
        })
    }

    fn release(&self, key: RunKey) -> StoreFuture<bool> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = of_run(&key, "run_release").int(MAX_TAKEOVERS.into());
            db.call(call, Repeat::No).await?.is(1)
        })
    }

    fn purge(&self) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move { purge_all(&db).await })
    }

    fn find_by_interrupt(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&tenant, "run_find")
                .name(thread.as_str())
                .int(position(db.options.max_state_bytes))
                .list(questions.iter().map(|id| id.as_str().as_bytes()));
            let reply = found(db.call(call, Repeat::Yes).await?)?;
            let run = unescape(bytes(reply.get(1)?)?)?;
            let key = RunKey::new(tenant.clone(), thread.clone(), RunId::new(run));
            Stored::read(&reply)?.open(&db, key)
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
            let call = Call::of(&tenant, "run_of_client")
                .name(thread.as_str())
                .text(client_id.as_str());
            let reply = found(db.call(call, Repeat::Yes).await?)?;
            let now = from_micros(reply.int(1)?);
            summary(&tenant, &thread, now, reply.get(2)?)
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
            let call = Call::of(&tenant, "run_list")
                .name(thread.as_str())
                .optional(message.as_ref().map(MessageId::as_str))
                .int(position(limit));
            let reply = db.call(call, Repeat::Yes).await?;
            let now = from_micros(reply.int(1)?);
            let runs = reply.rest().get(1..).unwrap_or_default();
            let summaries = runs
                .iter()
                .map(|run| readable(summary(&tenant, &thread, now, run)));
            summaries.filter_map(Result::transpose).collect()
        })
    }

    fn list_waiting(&self, tenant: Tenant, limit: usize) -> StoreFuture<Vec<RunSummary>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&tenant, "run_waiting").int(position(limit));
            let reply = db.call(call, Repeat::Yes).await?;
            let now = from_micros(reply.int(1)?);
            let runs = reply.rest().get(1..).unwrap_or_default();
            let summaries = runs.chunks(2).map(|pair| match pair {
                [thread, run] => {
                    let thread = ThreadId::new(unescape(bytes(thread)?)?);
                    readable(summary(&tenant, &thread, now, run))
                }
                _ => Err(Fault::corrupt("a list of runs", "a run has no thread").into()),
            });
            summaries.filter_map(Result::transpose).collect()
        })
    }
}

/// A call for a run.
fn of_run<'a>(key: &'a RunKey, method: &'static str) -> Call<'a> {
    Call::of(&key.tenant, method)
        .name(key.thread.as_str())
        .name(key.run.as_str())
}

/// The error of a rejected write.
fn rejected(code: &str) -> StoreError {
    match code {
        "not_found" => StoreError::NotFound,
        "stale" => StoreError::Stale,
        "ended" => StoreError::Ended,
        "taken" => StoreError::Taken,
        "corrupt" => damaged("a run"),
        "quarantined" => StoreError::Quarantined,
        other => unknown(other),
    }
}

/// The result of a call that returns a run.
fn found(reply: Reply) -> Result<Reply, StoreError> {
    match reply.code()? {
        "ok" => Ok(reply),
        code => Err(rejected(code)),
    }
}

/// The digest of the names of a run.
fn names_digest(key: &RunKey) -> [u8; 32] {
    digest_of(key, [])
}

/// The error of a run that the script found to be damaged.
fn damaged(what: &str) -> StoreError {
    Fault::corrupt(what, "not all of its fields exist").into()
}

/// Reads the status, the version, the fence, the lease, the takeovers and the time of the suspension or the end.
fn read_standing(what: &str, values: &[Value]) -> Result<Standing, StoreError> {
    let [status, version, fence, until, takeovers, since, ..] = values else {
        return Err(damaged(what));
    };
    if matches!(version, Value::Nil) {
        return Err(damaged(what));
    }
    Ok(Standing {
        status: match text(status)? {
            "running" => RunStatus::Running,
            "suspended" => RunStatus::Suspended,
            _ => RunStatus::Ended,
        },
        version: number(int(version)?),
        fence: number(int(fence)?),
        lease_until: from_micros(int(until)?),
        takeovers: u32::try_from(int(takeovers)?).unwrap_or_default(),
        since: optional_int(since)?.map(from_micros),
    })
}

/// Reads a run that the methods `run_of_client` and `run_list` return.
fn summary(
    tenant: &Tenant,
    thread: &ThreadId,
    now: SystemTime,
    run: &Value,
) -> Result<RunSummary, StoreError> {
    let [run, client, standing @ .., outcome] = list(run)? else {
        return Err(Fault::corrupt("a list of runs", "a run has no name").into());
    };
    let run = RunId::new(unescape(bytes(run)?)?);
    let key = RunKey::new(tenant.clone(), thread.clone(), run);
    let standing = read_standing(&name(&key), standing)?;
    let (status, until) = (standing.status_at(now), standing.lease_until);
    let client = RunId::new(text(client)?.to_owned());
    let mut summary = RunSummary::new(key, client, status, until);
    summary.outcome = optional_outcome(outcome)?;
    Ok(summary)
}

fn optional_outcome(value: &Value) -> Result<Option<Result<Outcome, ErrorKind>>, StoreError> {
    match value {
        Value::Nil => Ok(None),
        value => Ok(read_outcome(text(value)?)),
    }
}

/// A run that the methods `run_get` and `run_find` return.
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
    // The digests of the head and the replies.
    digests: [&'a [u8]; 2],
    asked: Vec<String>,
    entries: &'a [Value],
    outcome: Option<Result<Outcome, ErrorKind>>,
}

impl<'a> Stored<'a> {
    fn read(reply: &'a Reply) -> Result<Self, StoreError> {
        let asked = list(reply.get(18)?)?.iter();
        let mut asked = asked
            .map(|id| text(id).map(str::to_owned))
            .collect::<Result<Vec<_>, _>>()?;
        asked.sort_unstable();
        Ok(Self {
            client_id: RunId::new(text(reply.get(2)?)?.to_owned()),
            standing: read_standing(
                &format!("run `{}`", text(reply.get(1)?)?),
                reply.rest().get(2..).unwrap_or_default(),
            )?,
            now: from_micros(reply.int(9)?),
            len: size(reply.int(10)?),
            bytes: size(reply.int(11)?),
            head: bytes(reply.get(12)?)?,
            replies: bytes(reply.get(13)?)?,
            replied_at: optional_int(reply.get(14)?)?,
            checksum: bytes(reply.get(15)?)?,
            digests: [bytes(reply.get(16)?)?, bytes(reply.get(17)?)?],
            asked,
            entries: list(reply.get(19)?)?,
            outcome: optional_outcome(reply.get(20)?)?,
        })
    }

    /// Verifies the checksums, and parses the run and its turns.
    fn open(self, db: &Db, key: RunKey) -> Result<RunRecord, StoreError> {
        let max = db.options.max_state_bytes;
        let bytes = self.bytes.saturating_add(self.head.len());
        if bytes > max {
            return Err(Fault::TooLarge { bytes, max }.into());
        }
        let corrupt = |why: String| StoreError::from(Fault::corrupt(name(&key), why));
        let (turns, last) = read_turns(&name(&key), self.len, self.entries)?;
        let [head, replies] = [self.head, self.replies].map(digest);
        let sum = run_sum(&names_digest(&key), &head, &replies, &last);
        if self.digests != [&*head, &*replies] || self.checksum != sum.as_bytes() {
            return Err(corrupt("checksum mismatch".to_owned()));
        }
        let state = read_run(&key, self.head, turns, max)?;
        let replies = serde_json::from_slice(self.replies);
        let replies = replies.map_err(|error| corrupt(error.to_string()))?;
        let mut record = RunRecord::new(key, self.client_id, state);
        self.standing.show(self.now, &mut record);
        record.replies = replies;
        record.replied_at = self.replied_at.map(from_micros);
        record.asked = self.asked.into_iter().map(InterruptId::new).collect();
        record.outcome = self.outcome;
        Ok(record)
    }
}

async fn get(db: &Db, key: &RunKey) -> Result<Reply, StoreError> {
    let call = of_run(key, "run_get").int(position(db.options.max_state_bytes));
    found(db.call(call, Repeat::Yes).await?)
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
    let turns = NewTurns::new(&change.turns, max).await?;
    let head = write_head(&change.head)?;
    check_total(turns.bytes().saturating_add(head.head.len()), max)?;
    let (attempt, names) = (attempt(), names_digest(key));
    // If the run begins with the turns of its conversation, only the others are sent.
    let mut shared = shared(db, key, &turns).await?;
    loop {
        let (len, chain) = shared.as_ref().map_or((0, ""), |it| (it.0, &*it.1.chain));
        let before = shared.as_ref().map(|it| it.1.clone());
        let before = before.map_or_else(Before::none, Before::Known);
        let call = of_run(key, "run_begin")
            .text(client_id.as_str())
            .text(&attempt)
            .int(span(lease))
            .bytes(&names)
            .int(position(len))
            .text(chain)
            .text(&head.head)
            .owned(digest(head.head.as_bytes()))
            .owned(digest(NO_REPLIES))
            .optional(head.message.as_ref().map(MessageId::as_str))
            .list(head.asks.iter().map(|id| id.as_str().as_bytes()));
        let reply = turns.call(db, &key.tenant, len, before, call).await?;
        return match reply.code()? {
            "ok" => reply.number(1),
            "exists" => Err(StoreError::Exists),
            "live" => Err(StoreError::Live),
            // The conversation was changed in the meantime.
            "moved" if shared.take().is_some() => continue,
            other => Err(unknown(other)),
        };
    }
}

/// The number of turns of a run's conversation, and their end, if `turns` begin with them.
async fn shared(
    db: &Db,
    key: &RunKey,
    turns: &NewTurns,
) -> Result<Option<(usize, End)>, StoreError> {
    let call = Call::of(&key.tenant, "thread_end").name(key.thread.as_str());
    let reply = db.call(call, Repeat::Yes).await?;
    if reply.code()? == "not_found" {
        return Ok(None);
    }
    let len = size(reply.int(1)?);
    let Some(chain) = turns.chain_of(len).await else {
        return Ok(None);
    };
    if text(reply.get(2)?)? != chain {
        return Ok(None);
    }
    let bytes = size(reply.int(3)?);
    Ok(Some((len, End { chain, bytes })))
}

async fn claim(
    db: &Db,
    mut record: RunRecord,
    replies: Vec<Answer>,
    lease: Duration,
) -> Result<RunRecord, StoreError> {
    let options = &db.options;
    // The stored replies are those of the record, unless it has another version.
    let replies = merge_replies(&record.replies, replies);
    let json = write_replies(&replies, options.max_state_bytes)?;
    let has_new = record.replies.len() < replies.len();
    let names = names_digest(&record.key);
    let call = of_run(&record.key, "run_claim")
        .int(integer(record.version))
        .owned(attempt())
        .int(span(lease))
        .optional_int(keep(options.keep_waiting))
        .int(MAX_TAKEOVERS.into())
        .bytes(&names)
        .text(if has_new { &json } else { "" })
        .owned(digest(json.as_bytes()));
    let reply = db.call(call, Repeat::Yes).await?;
    if reply.code()? == "mismatch" {
        return Err(Fault::corrupt(name(&record.key), "checksum mismatch").into());
    }
    let reply = found(reply)?;
    let mut standing = Standing::begun(reply.number(1)?, from_micros(reply.int(2)?));
    standing.takeovers = u32::try_from(reply.int(3)?).unwrap_or_default();
    standing.show(from_micros(reply.int(5)?), &mut record);
    record.replies = replies;
    record.replied_at = optional_int(reply.get(4)?)?.map(from_micros);
    Ok(record)
}

/// A run whose lease has ended.
struct Abandoned {
    tenant: Tenant,
    // Escaped.
    thread: Vec<u8>,
    run: Vec<u8>,
    fence: i64,
    until: i64,
    begun: i64,
}

async fn claim_abandoned(
    db: &Arc<Db>,
    limit: usize,
    lease: Duration,
) -> Result<Vec<RunRecord>, StoreError> {
    let mut abandoned: Vec<Abandoned> = Vec::new();
    let mut examined = Vec::new();
    let mut skipped = Skipped::default();
    for some in due(db, &mut skipped).await.chunks(AT_ONCE) {
        // All runs of the following tenants were abandoned later.
        let last = limit.checked_sub(1).and_then(|last| abandoned.get(last));
        let is_later = |last: &Abandoned| some.first().is_some_and(|due| last.until <= due.since);
        if limit == 0 || last.is_some_and(is_later) {
            break;
        }
        let mut examining = JoinSet::new();
        for Due { tenant, .. } in some {
            let (db, tenant) = (Arc::clone(db), tenant.clone());
            examining.spawn(async move { (find_abandoned(&db, &tenant, limit).await, tenant) });
        }
        // A task that panicked has no result; its tenant is examined again.
        while let Some(done) = examining.join_next().await {
            let Ok((found, tenant)) = done else {
                continue;
            };
            match skipped.or_skip(found) {
                Some(found) => {
                    abandoned.extend(found);
                    examined.push(tenant);
                }
                None => {
                    skipped.or_skip(put_off(db, &tenant).await);
                }
            }
        }
        abandoned.sort_by_key(|run| (run.until, run.begun));
        abandoned.truncate(limit);
    }
    let mut keys = vec![None; abandoned.len()];
    for tenant in &examined {
        let own = abandoned.iter().enumerate();
        let own: Vec<_> = own.filter(|(_, run)| run.tenant == *tenant).collect();
        let taken = take(db, tenant, &own, lease, &mut keys).await;
        if skipped.or_skip(taken).is_some() {
            skipped.or_skip(set_first(db, tenant).await);
        }
    }
    let mut claimed = Vec::new();
    let mut unread: Vec<(RunKey, u64)> = Vec::new();
    for (key, fence) in keys.into_iter().flatten() {
        // The node of this tenant may be down.
        if unread.iter().any(|(other, _)| other.tenant == key.tenant) {
            unread.push((key, fence));
            continue;
        }
        let read = claimed_run(db, key.clone(), fence).await;
        match skipped.or_skip(read) {
            Some(record) => claimed.extend(record),
            None => unread.push((key, fence)),
        }
    }
    unread.sort_by(|(a, _), (b, _)| a.tenant.0.as_str().cmp(b.tenant.0.as_str()));
    for of_tenant in unread.chunk_by(|(a, _), (b, _)| a.tenant == b.tenant) {
        give_back(db, of_tenant).await;
    }
    match skipped.0 {
        Some(error) if claimed.is_empty() => Err(error),
        _ => Ok(claimed),
    }
}

/// A run that was claimed with this fence; `None` if it was changed in the meantime, or cannot be read.
async fn claimed_run(db: &Db, key: RunKey, fence: u64) -> Result<Option<RunRecord>, StoreError> {
    let reply = match get(db, &key).await {
        Ok(reply) => reply,
        // It was deleted in the meantime.
        Err(StoreError::NotFound) => return Ok(None),
        Err(error) => return Err(error),
    };
    match Stored::read(&reply) {
        Ok(stored) if stored.standing.fence != fence => Ok(None),
        Ok(stored) => readable(stored.open(db, key)),
        Err(error) => readable(Err(error)),
    }
}

/// Gives up claims of abandoned runs of one tenant that were not read, so that they are claimed again at once.
async fn give_back(db: &Db, claims: &[(RunKey, u64)]) {
    let Some((first, _)) = claims.first() else {
        return;
    };
    let mut call = Call::of(&first.tenant, "run_give_back").int(position(claims.len()));
    for (key, fence) in claims {
        let (thread, run) = (key.thread.as_str(), key.run.as_str());
        call = call.name(thread).name(run).int(integer(*fence));
    }
    // On the connection for renewals, since the others may all be in use.
    if let Err(error) = db.renew(call).await {
        tracing::warn!(%error, "abandoned runs stay claimed until their leases end");
    }
}

/// The first abandoned runs of a tenant.
async fn find_abandoned(
    db: &Db,
    tenant: &Tenant,
    limit: usize,
) -> Result<Vec<Abandoned>, StoreError> {
    let mut abandoned = Vec::new();
    let call = Call::of(tenant, "run_abandoned")
        .int(position(limit))
        .int(MAX_TAKEOVERS.into())
        .optional_int(keep(db.options.keep_waiting));
    for run in db.call(call, Repeat::Yes).await?.rest() {
        let [thread, run, fence, until, begun] = fields(run)?;
        if matches!(fence, Value::Nil) {
            let (thread, run) = (unescape(bytes(thread)?)?, unescape(bytes(run)?)?);
            let key = RunKey::new(tenant.clone(), ThreadId::new(thread), RunId::new(run));
            readable::<RunRecord>(Err(damaged(&name(&key))))?;
            continue;
        }
        abandoned.push(Abandoned {
            tenant: tenant.clone(),
            thread: bytes(thread)?.to_vec(),
            run: bytes(run)?.to_vec(),
            fence: int(fence)?,
            until: int(until)?,
            begun: int(begun)?,
        });
    }
    Ok(abandoned)
}

/// Claims runs of a tenant, and writes the key and the fence of each into its place in `keys`.
async fn take(
    db: &Db,
    tenant: &Tenant,
    own: &[(usize, &Abandoned)],
    lease: Duration,
    keys: &mut [Option<(RunKey, u64)>],
) -> Result<(), StoreError> {
    if own.is_empty() {
        return Ok(());
    }
    let mut call = Call::of(tenant, "run_take")
        .owned(attempt())
        .int(span(lease))
        .int(MAX_TAKEOVERS.into())
        .optional_int(keep(db.options.keep_waiting))
        .int(position(own.len()));
    for (_, run) in own {
        call = call.bytes(&run.thread).bytes(&run.run).int(run.fence);
    }
    for taken in db.call(call, Repeat::Yes).await?.rest() {
        let [at, fence] = fields(taken)?;
        let at = size(int(at)?).checked_sub(1).and_then(|at| own.get(at));
        let Some((at, run)) = at else {
            continue;
        };
        let (thread, id) = (unescape(&run.thread)?, unescape(&run.run)?);
        let key = RunKey::new(tenant.clone(), ThreadId::new(thread), RunId::new(id));
        if let Some(place) = keys.get_mut(*at) {
            *place = Some((key, number(int(fence)?)));
        }
    }
    Ok(())
}

/// Changes the state of a run, and returns its version.
async fn write(db: &Db, key: &RunKey, next: Next, change: &RunChange) -> Result<u64, StoreError> {
    let options = &db.options;
    let max = options.max_state_bytes;
    let turns = NewTurns::new(&change.turns, max).await?;
    let head = write_head(&change.head)?;
    check_total(turns.bytes().saturating_add(head.head.len()), max)?;
    let (mode, fence, version, lease) = match next {
        Next::Runs(fence, lease) => ("save", fence, 0, span(lease)),
        Next::Waits(fence) => ("suspend", fence, 0, 0),
        Next::Claimable(version) => ("amend", 0, version, 0),
    };
    let (attempt, names) = (attempt(), names_digest(key));
    let before = Before::Kept(of_run(key, "run_kept").int(position(change.keep)));
    let call = of_run(key, "run_write")
        .text(mode)
        .int(integer(fence))
        .int(integer(version))
        .text(&attempt)
        .int(lease)
        .int(position(change.keep))
        .int(position(turns.bytes()))
        .int(position(max))
        .bytes(&names)
        .text(&head.head)
        .owned(digest(head.head.as_bytes()))
        .owned(digest(NO_REPLIES))
        .optional(head.message.as_ref().map(MessageId::as_str))
        .int(position(options.max_waiting_per_thread))
        .int(position(options.max_waiting_per_tenant))
        .optional_int(keep(options.keep_waiting))
        .int(MAX_TAKEOVERS.into())
        .list(head.asks.iter().map(|id| id.as_str().as_bytes()));
    let reply = turns.call(db, &key.tenant, 0, before, call).await?;
    let full = |limit, of_tenant| StoreError::TooManyWaiting { limit, of_tenant };
    Err(match reply.code()? {
        "ok" => return reply.number(1),
        "thread_full" => full(options.max_waiting_per_thread, false),
        "tenant_full" => full(options.max_waiting_per_tenant, true),
        code @ ("keep" | "too_large" | "corrupt") => {
            let n = reply.number(1)?;
            unwritable(code, &name(key), n, change.keep, max).unwrap_or_else(|| unknown(code))
        }
        code => rejected(code),
    })
}
