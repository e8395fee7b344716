//! Random operations by two handles, compared with those of a [`MemoryStore`], or with a model.

#![expect(
    clippy::indexing_slicing,
    reason = "arrays with an entry for each case"
)]

use super::{
    kit::{LedgerOfRuns, Numbers, Runs, Test, differences, done, rounds, same, seed},
    ledger::effect,
    threads::{WithThreads, add, id},
    values::{approve, at, client, key, key_of, question, running, secs, tenant, thread, waiting},
};
use crate::{ManualClock, MemoryStore};
use concentric_core::{
    Context, ErrorKind, MessageId, Outcome, ToolOutcome,
    store::{
        Intent, Ledger, RunClaim, RunKey, RunRecord, RunStore, RunSummary, StoreError, StoreFuture,
        ThreadStore,
    },
};
use std::{collections::BTreeMap, fmt::Debug, time::Duration};

cases! {
    $ __store_model model [RunStore]
    random_operations_equal_those_of_the_memory_store
}

cases! {
    $ __store_model_of_ledger model_of_ledger [RunStore, Ledger]
    random_effects_equal_those_of_the_memory_store
}

cases! {
    $ __store_model_of_threads model_of_threads [ThreadStore]
    random_changes_of_conversations_equal_a_model
}

/// The number of operations of a sequence; fewer than there are milliseconds in a second.
const STEPS: u64 = 60;

impl Numbers {
    fn is_one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number of earlier claims and versions to go back: none in three of four cases.
    fn back(&self) -> usize {
        match self.below(12) {
            back @ 1..=3 => usize::try_from(back).unwrap_or_default(),
            _ => 0,
        }
    }

    /// A lease, which is over at once in one of five cases.
    fn lease(&self) -> Duration {
        match self.is_one_in(5) {
            true => Duration::ZERO,
            false => secs(self.below(60)),
        }
    }

    fn run(&self) -> usize {
        usize::try_from(self.below(RUNS as u64)).unwrap_or_default()
    }

    fn text(&self) -> String {
        format!("text {}", self.below(3))
    }
}

const RUNS: usize = 4;

/// The key and the client id of a run. The last one has the ids of the first one, of another tenant; the first two
/// have the same client id.
fn names(run: usize) -> (RunKey, &'static str) {
    match run {
        0 => (key("run 0"), "r0"),
        1 => (key("run 1"), "r0"),
        2 => (key("run 2"), "r2"),
        _ => (key_of("other", "run 0"), "r0"),
    }
}

/// An operation. Claims and versions are numbers of those seen so far, the newest is 0.
#[derive(Debug)]
enum Op {
    Begin(usize, Duration),
    Claim(usize, usize, Option<String>, Duration),
    ClaimAbandoned(usize, Duration),
    Save(usize, usize, String, Duration),
    Renew(usize, usize, Duration),
    Suspend(usize, usize, String),
    End(usize, usize, bool),
    Amend(usize, usize, String),
    Cancel(usize),
    Release(usize),
    Withdraw,
    Find(Vec<String>),
    List(Option<&'static str>, usize),
    IsLive(usize),
    OfClient(usize),
    SetTime(u64),
    Purge,
    Effect(u64, Option<(usize, usize)>, bool, bool),
    Finish(u64, bool),
    Retract(u64),
    Known(u64),
}

impl Op {
    fn of_runs(random: &Numbers) -> Self {
        let (run, back, lease) = (random.run(), random.back(), random.lease());
        match random.below(35) {
            0..4 => Self::Begin(run, lease),
            4..8 => Self::Claim(run, back, random.is_one_in(2).then(|| random.text()), lease),
            8..11 => Self::ClaimAbandoned([0, 1, 1, usize::MAX][run], lease),
            11..14 => Self::Save(run, back, random.text(), lease),
            14..17 => Self::Renew(run, back, lease),
            17..20 => Self::Suspend(run, back, random.text()),
            20 => Self::End(run, back, random.is_one_in(2)),
            21 | 22 => Self::Amend(run, back, random.text()),
            23 => Self::Cancel(run),
            24 | 25 => Self::Release(run),
            26 => Self::Withdraw,
            27 => Self::Find(vec![random.text(), random.text()]),
            28 => Self::List([None, Some("m"), Some("other"), None][run], back + 1),
            29 => Self::IsLive(run),
            30 => Self::Purge,
            31 => Self::OfClient(run),
            _ => Self::SetTime(random.below(200)),
        }
    }

    fn of_effects(random: &Numbers) -> Self {
        let effect = random.below(3);
        match random.below(8) {
            0..4 => {
                // Of the tenant of the effects.
                let claim = (!random.is_one_in(3)).then(|| (random.run() % 3, random.back()));
                Self::Effect(effect, claim, random.is_one_in(2), random.is_one_in(6))
            }
            4 | 5 => Self::Finish(effect, random.is_one_in(2)),
            6 => Self::Retract(effect),
            _ => Self::Known(effect),
        }
    }
}

/// The fences and versions of a store's runs, by run, as they were seen.
#[derive(Default)]
struct Seen([Vec<(u64, u64)>; RUNS]);

impl Seen {
    fn nth(&self, run: usize, back: usize) -> (u64, u64) {
        let seen = self.0.get(run).map_or(&[] as &[_], Vec::as_slice);
        let found = seen.len().checked_sub(back + 1).and_then(|at| seen.get(at));
        found.copied().unwrap_or_default()
    }
}

/// The result as text, without fences and versions.
async fn show<T>(
    work: StoreFuture<T>,
    show: impl FnOnce(T) -> String,
) -> Result<String, StoreError> {
    match work.await {
        Ok(value) => Ok(show(value)),
        Err(error @ StoreError::Failed(_)) => Err(error),
        Err(error) => Ok(error.code().to_owned()),
    }
}

fn value<T: Debug>(value: T) -> String {
    format!("{value:?}")
}

fn nothing<T>(_: T) -> String {
    "Ok".to_owned()
}

fn run(record: RunRecord) -> String {
    let RunRecord {
        key,
        client_id,
        status,
        lease_until,
        takeovers,
        outcome,
        ..
    } = record;
    format!("{key:?} {client_id} {status:?} {lease_until:?} {takeovers} {outcome:?}")
}

fn summary(run: RunSummary) -> String {
    let RunSummary {
        key,
        status,
        lease_until,
        outcome,
        ..
    } = run;
    format!("{key:?} {status:?} {lease_until:?} {outcome:?}")
}

async fn apply<S: RunStore>(store: &S, op: &Op, seen: &Seen) -> Result<String, StoreError> {
    let fence = |run: &usize, back: &usize| seen.nth(*run, *back).0;
    let version = |run: &usize, back: &usize| seen.nth(*run, *back).1;
    let key = |run: &usize| names(*run).0;
    match op {
        Op::Begin(run, lease) => {
            let (key, name) = names(*run);
            show(
                store.begin(key, client(name), running("hi").into(), *lease),
                nothing,
            )
            .await
        }
        Op::Claim(of, back, reply, lease) => {
            let replies = reply.as_deref().map(approve).unwrap_or_default();
            let mut record = match store.get(key(of)).await {
                Err(StoreError::NotFound) => {
                    let (key, name) = names(*of);
                    RunRecord::new(key, client(name), running("hi"))
                }
                read => read?,
            };
            record.version = version(of, back);
            show(store.claim(record, replies, *lease), run).await
        }
        Op::ClaimAbandoned(limit, lease) => {
            let mut claimed = Vec::new();
            let found = show(store.claim_abandoned(*limit, *lease), |found| {
                claimed = found;
                let found = claimed.iter().cloned().map(run);
                found.collect::<Vec<_>>().join("; ")
            })
            .await?;
            // Different leases, since the order of runs with equal leases is not specified.
            for (n, record) in (1..).zip(claimed) {
                let lease = *lease + Duration::from_micros(n);
                show(store.renew(record.key, record.fence, lease), nothing).await?;
            }
            Ok(found)
        }
        Op::Save(of, back, text, lease) => {
            let change = running(text).into();
            show(
                store.save(key(of), fence(of, back), change, *lease),
                nothing,
            )
            .await
        }
        Op::Renew(of, back, lease) => {
            show(store.renew(key(of), fence(of, back), *lease), value).await
        }
        Op::Suspend(of, back, asks) => {
            let change = waiting("hi", asks).into();
            show(store.suspend(key(of), fence(of, back), change), nothing).await
        }
        Op::End(of, back, is_failed) => {
            let outcome = match is_failed {
                true => Err(ErrorKind::Timeout),
                false => Ok(Outcome::Completed),
            };
            show(store.end(key(of), fence(of, back), outcome), nothing).await
        }
        Op::Amend(of, back, text) => {
            let change = waiting(text, text).into();
            show(store.amend(key(of), version(of, back), change), nothing).await
        }
        Op::Cancel(of) => show(store.cancel(key(of)), value).await,
        Op::Release(of) => show(store.release(key(of)), value).await,
        Op::Withdraw => show(store.withdraw(tenant("acme"), thread()), value).await,
        Op::Find(ids) => {
            let ids = ids.iter().map(|id| question(id)).collect();
            show(store.find_by_interrupt(tenant("acme"), thread(), ids), run).await
        }
        Op::List(message, limit) => {
            let message = message.map(MessageId::new);
            show(
                store.list_by_thread(tenant("acme"), thread(), message, *limit),
                |found| {
                    let found = found
                        .into_iter()
                        .map(|it| (it.key, it.client_id, it.status));
                    value(found.collect::<Vec<_>>())
                },
            )
            .await
        }
        Op::IsLive(run) => {
            let (key, name) = names(*run);
            show(store.is_live(key.tenant, key.thread, client(name)), value).await
        }
        Op::OfClient(run) => {
            let (key, name) = names(*run);
            let found = store.find_by_client_id(key.tenant, key.thread, client(name));
            show(found, summary).await
        }
        _ => Ok(String::new()),
    }
}

async fn apply_effect<S: Ledger>(store: &S, op: &Op, seen: &Seen) -> Result<String, StoreError> {
    let effect = |of: &u64| effect(&format!("effect {of}"));
    match op {
        Op::Effect(of, claim, repeatable, is_other) => {
            let tool = if *is_other { "other" } else { "refund" };
            let intent = Intent::new(tool.into(), "{}".into(), &Context::new());
            let mut intent = intent.repeatable(*repeatable);
            let claim = claim.as_ref();
            intent.claim =
                claim.map(|(run, back)| RunClaim::new(names(*run).0, seen.nth(*run, *back).0));
            show(store.begin(effect(of), intent), value).await
        }
        Op::Finish(of, is_done) => {
            let outcome = match is_done {
                true => ToolOutcome::done("done"),
                false => ToolOutcome::failed("failed"),
            };
            show(store.finish(effect(of), outcome), value).await
        }
        Op::Retract(of) => show(store.retract(effect(of)), value).await,
        Op::Known(of) => show(store.known(effect(of)), value).await,
        _ => Ok(String::new()),
    }
}

/// A store beside the memory store, with what was seen of both.
struct Pair<H: Runs> {
    test: Test<H>,
    other: H::Store,
    reference: MemoryStore,
    seen: [Seen; 2],
}

impl<H: Runs> Pair<H> {
    async fn start() -> Self {
        let test = Test::<H>::start().await;
        let other = test.harness.open().await;
        let options = concentric_store::Options::new().clock(test.clock.clone());
        Self {
            test,
            other,
            reference: MemoryStore::with_options(options),
            seen: Default::default(),
        }
    }

    /// Compares all runs, and notes their fences and versions.
    async fn compare(&mut self, op: &Op, what: &str) {
        let is_renewal = matches!(op, Op::Renew(..));
        for run in 0..RUNS {
            let key = names(run).0;
            let found = self.test.store.get(key.clone()).await;
            let (mut found, expected) = match (found, self.reference.get(key).await) {
                (Ok(found), Ok(expected)) => (found, expected),
                (found, expected) => {
                    let [found, expected] = [found, expected].map(|it| it.map_err(|e| e.code()));
                    let [found, expected] = [found.map(|_| ()), expected.map(|_| ())];
                    same(found, expected, format!("`get` of run {run} after {what}"));
                    continue;
                }
            };
            let ([ours, theirs], at) = (&mut self.seen, (found.fence, found.version));
            let (Some(ours), Some(theirs)) = (ours.0.get_mut(run), theirs.0.get_mut(run)) else {
                continue;
            };
            let expected_at = (expected.fence, expected.version);
            let is_renewal =
                theirs.last().is_some_and(|last| last.0 == expected_at.0) && is_renewal;
            match (ours.last_mut(), theirs.last_mut()) {
                // A store may or may not count renewals as writes.
                (Some(ours), Some(theirs)) if is_renewal || *theirs == expected_at => {
                    (*ours, *theirs) = (at, expected_at);
                }
                (last, _) => {
                    let is_newer = last.is_none_or(|last| last.1 < at.1);
                    let what = format!("that the version of run {run} increases with {what}");
                    same(is_newer, true, what);
                    ours.push(at);
                    theirs.push(expected_at);
                }
            }
            (found.fence, found.version) = expected_at;
            found.asked.sort();
            let differences = differences(&found, &expected);
            same(
                differences.as_str(),
                "",
                format!("the differences of run {run} after {what}"),
            );
        }
    }
}

/// Sets the time to a random one. Each step has its own milliseconds, so that no two steps set the same lease.
fn set_time(clock: &ManualClock, op: &Op, seconds: &mut u64, step: u64) {
    if let Op::SetTime(time) = op {
        *seconds = *time;
    }
    clock.set(at(*seconds) + Duration::from_millis(step));
}

fn describe(sequence: u64, step: u64, op: &Op) -> String {
    format!("step {step}, {op:?} (CONCENTRIC_STORE_SEED={sequence} CONCENTRIC_STORE_ROUNDS=1)")
}

async fn random_operations_equal_those_of_the_memory_store<H: Runs>(_: Test<H>) {
    for sequence in (seed()..).take(usize::try_from(rounds()).unwrap_or(usize::MAX)) {
        let random = Numbers::new(sequence);
        let (mut pair, mut seconds) = (Pair::<H>::start().await, 0);
        for step in 0..STEPS {
            let op = Op::of_runs(&random);
            let what = describe(sequence, step, &op);
            set_time(&pair.test.clock, &op, &mut seconds, step);
            if let Op::Purge = op {
                pair.test.harness.purge().await;
                done(pair.reference.purge().await, "`purge` of the memory store");
            }
            let store = match random.is_one_in(2) {
                true => &pair.test.store,
                false => &pair.other,
            };
            let [ours, theirs] = &pair.seen;
            let found = done(apply(store, &op, ours).await, &what);
            let expected = done(apply(&pair.reference, &op, theirs).await, &what);
            same(found, expected, format!("the result of {what}"));
            pair.compare(&op, &what).await;
        }
    }
}

async fn random_effects_equal_those_of_the_memory_store<H: LedgerOfRuns>(_: Test<H>) {
    for sequence in (seed()..).take(usize::try_from(rounds()).unwrap_or(usize::MAX)) {
        let random = Numbers::new(sequence);
        let (mut pair, mut seconds) = (Pair::<H>::start().await, 0);
        for step in 0..STEPS {
            let is_effect = random.is_one_in(2);
            let op = if is_effect {
                Op::of_effects(&random)
            } else {
                Op::of_runs(&random)
            };
            let what = describe(sequence, step, &op);
            set_time(&pair.test.clock, &op, &mut seconds, step);
            let store = match random.is_one_in(2) {
                true => &pair.test.store,
                false => &pair.other,
            };
            let [ours, theirs] = &pair.seen;
            let (found, expected) = match is_effect {
                true => (
                    apply_effect(store, &op, ours).await,
                    apply_effect(&pair.reference, &op, theirs).await,
                ),
                false => (
                    apply(store, &op, ours).await,
                    apply(&pair.reference, &op, theirs).await,
                ),
            };
            let [found, expected] = [found, expected].map(|result| done(result, &what));
            same(found, expected, format!("the result of {what}"));
            pair.compare(&op, &what).await;
        }
    }
}

async fn random_changes_of_conversations_equal_a_model<H: WithThreads>(_: Test<H>) {
    for sequence in (seed()..).take(usize::try_from(rounds()).unwrap_or(usize::MAX)) {
        let random = Numbers::new(sequence);
        let test = Test::<H>::start().await;
        let other = test.harness.open().await;
        // Conversations by tenant and id, with their versions and texts.
        let mut model: BTreeMap<(&str, String), (u64, Vec<String>)> = BTreeMap::new();
        for step in 0..STEPS {
            let store = if random.is_one_in(2) {
                &test.store
            } else {
                &other
            };
            let of =
                ["acme", "acme", "other"][usize::try_from(random.below(3)).unwrap_or_default()];
            let [from, to] = [0; 2].map(|_: u8| format!("t{}", random.below(4)));
            let (version, old) = model.get(&(of, from.clone())).cloned().unwrap_or_default();
            let keep = match random.below(3) {
                0 => random.below(old.len() as u64 + 1),
                _ => old.len() as u64,
            };
            let keep = usize::try_from(keep).unwrap_or_default();
            let new: Vec<String> = (0..random.below(3))
                .map(|n| format!("{step}/{n}"))
                .collect();
            let new: Vec<&str> = new.iter().map(String::as_str).collect();
            let kept = old.iter().take(keep).cloned();
            let texts: Vec<String> = kept
                .chain(new.iter().map(|text| (*text).to_owned()))
                .collect();
            let kind = random.below(8);
            let what = format!(
                "step {step}, kind {kind}, `{from}` to `{to}` of `{of}`, keep {keep} (CONCENTRIC_STORE_SEED={sequence} \
                 CONCENTRIC_STORE_ROUNDS=1)"
            );
            match kind {
                0 => {
                    let deleted = done(store.delete(tenant(of), id(&from)).await, &what);
                    let existed = model.remove(&(of, from)).is_some();
                    same(
                        deleted,
                        existed,
                        format!("the result of `delete` in {what}"),
                    );
                }
                1..4 => {
                    let change = add(keep, &new);
                    let forked = store
                        .fork(tenant(of), id(&from), version, id(&to), change)
                        .await;
                    let can_fork = version > 0 && !model.contains_key(&(of, to.clone()));
                    same(
                        forked.is_ok(),
                        can_fork,
                        format!("that `fork` succeeds in {what}"),
                    );
                    if let Ok(version) = forked {
                        model.insert((of, to), (version, texts));
                    }
                }
                _ => {
                    let change = add(keep, &new);
                    let append = store.append(tenant(of), id(&from), version, change).await;
                    model.insert((of, from), (done(append, &what), texts));
                }
            }
            let start = random.is_one_in(2).then(|| random.below(8));
            let start = start.map(|start| usize::try_from(start).unwrap_or_default());
            let limit = usize::try_from(random.below(5)).unwrap_or_default();
            let page = store.turns(tenant("acme"), id("t0"), start, limit).await;
            let page = done(page, &what).map(|(summary, turns)| {
                let texts = turns.iter().map(|turn| turn.as_message().text());
                (summary.version, summary.turns, texts.collect::<Vec<_>>())
            });
            let expected = model.get(&("acme", "t0".to_owned()));
            let expected = expected.map(|(version, texts)| {
                let start = start.unwrap_or(texts.len().saturating_sub(limit));
                let page = texts.iter().skip(start).take(limit).cloned();
                (*version, texts.len(), page.collect::<Vec<_>>())
            });
            let page_of = format!("{limit} turns from {start:?} on after {what}");
            same(page, expected, page_of);
            for ((of, thread), (version, texts)) in &model {
                let found = done(test.store.load(tenant(of), id(thread)).await, &what);
                let found = found.unwrap_or_default();
                let turns = found.history.iter().map(|turn| turn.as_message().text());
                let expected = (texts.clone(), *version);
                let what = format!("the conversation `{thread}` of `{of}` after {what}");
                same((turns.collect::<Vec<_>>(), found.version), expected, what);
            }
        }
    }
}
