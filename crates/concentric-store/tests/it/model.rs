//! Both stores return the same results for random sequences of operations.

use crate::common::{at, client, clock, key, question, running, secs, set, tenant, waiting};
use concentric_core::{
    Context, MessageId, Outcome, Reply, RunId, ThreadId, ToolOutcome,
    store::{
        Decisions, EffectKey, Intent, Ledger, Once, RunClaim, RunRecord, RunStore, StoreError,
        StoreFuture, StoredDecision, StoredScope,
    },
};
use concentric_store::{MemoryStore, Options, SqliteStore};
use concentric_test::ManualClock;
use proptest::{collection::vec, prelude::*};
use std::{fmt::Debug, time::Duration};

/// An operation on a store. Fences and versions are indexes into those seen so far, newest first.
#[derive(Clone, Debug)]
enum Op {
    Begin(u8, u64),
    Get(u8),
    Claim(u8, usize, u8),
    Save(u8, usize, u8),
    Renew(u8, usize, u64),
    Suspend(u8, usize, u8),
    End(u8, usize),
    Withdraw,
    Amend(u8, usize, u8),
    Cancel(u8),
    Release(u8),
    Asking(Vec<u8>),
    OfThread(Option<u8>, usize),
    Live(u8),
    Abandoned(usize, u64),
    SetTime(u64),
    Purge,
    Effect(u8, Option<(u8, usize)>, bool),
    Finish(u8, bool),
    Once(u8, u64),
    Remember(u8, u8, bool),
    Recall(u8),
    List,
    Revoke(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let run = || 0..3_u8;
    let time = || prop_oneof![1 => Just(0), 4 => 0..60_u64];
    // The newest in three of four cases.
    let seen = || prop_oneof![3 => Just(0_usize), 1 => 1..4_usize];
    prop_oneof![
        4 => (run(), time()).prop_map(|(run, until)| Op::Begin(run, until)),
        1 => run().prop_map(Op::Get),
        4 => (run(), seen(), 0..3_u8).prop_map(|(r, s, q)| Op::Claim(r, s, q)),
        2 => (run(), seen(), 0..3_u8).prop_map(|(r, s, q)| Op::Save(r, s, q)),
        2 => (run(), seen(), time()).prop_map(|(r, s, t)| Op::Renew(r, s, t)),
        4 => (run(), seen(), 0..3_u8).prop_map(|(r, s, q)| Op::Suspend(r, s, q)),
        2 => (run(), seen()).prop_map(|(r, s)| Op::End(r, s)),
        1 => Just(Op::Withdraw),
        1 => (run(), seen(), 0..3_u8).prop_map(|(r, s, q)| Op::Amend(r, s, q)),
        1 => run().prop_map(Op::Cancel),
        1 => run().prop_map(Op::Release),
        1 => vec(0..3_u8, 0..3).prop_map(Op::Asking),
        1 => (proptest::option::of(0..2_u8), 0..4_usize).prop_map(|(m, n)| Op::OfThread(m, n)),
        1 => (0..2_u8).prop_map(Op::Live),
        4 => (0..4_usize, time()).prop_map(|(n, t)| Op::Abandoned(n, t)),
        4 => (0..200_u64).prop_map(Op::SetTime),
        1 => Just(Op::Purge),
        2 => (0..3_u8, proptest::option::of((run(), seen())), any::<bool>())
            .prop_map(|(e, c, r)| Op::Effect(e, c, r)),
        1 => (0..3_u8, any::<bool>()).prop_map(|(e, done)| Op::Finish(e, done)),
        1 => (0..3_u8, time()).prop_map(|(k, t)| Op::Once(k, t)),
        1 => (0..3_u8, 0..4_u8, any::<bool>()).prop_map(|(t, s, a)| Op::Remember(t, s, a)),
        1 => (0..3_u8).prop_map(Op::Recall),
        1 => Just(Op::List),
        1 => (0..3_u8).prop_map(Op::Revoke),
    ]
}

fn name(n: u8) -> String {
    format!("n{n}")
}

fn decision(tool: u8, span: u8, allow: bool) -> StoredDecision {
    let span = match span {
        0 => StoredScope::Run {
            thread: Some(ThreadId::new("thread")),
            run: RunId::new("n0"),
        },
        1 => StoredScope::Thread(ThreadId::new("thread")),
        2 => StoredScope::Session(ThreadId::new("thread")),
        _ => StoredScope::Always,
    };
    let (tenant, tool) = (tenant("acme"), name(tool).into());
    StoredDecision::new(tenant, tool, "d".into(), None, span, allow, None, at(0))
}

/// The result as text, for comparison.
async fn result<T: Debug>(work: StoreFuture<T>) -> String {
    match work.await {
        Ok(value) => format!("{value:?}"),
        Err(StoreError::Failed(error)) => panic!("{error:?}"),
        Err(error) => error.code().to_owned(),
    }
}

/// The fences and versions seen so far, by run.
#[derive(Default)]
struct Seen([Vec<(u64, u64)>; 3]);

impl Seen {
    fn nth(&self, run: u8, back: usize) -> (u64, u64) {
        let seen = &self.0[usize::from(run)];
        let at = seen.len().checked_sub(back + 1);
        at.and_then(|at| seen.get(at)).copied().unwrap_or((0, 0))
    }
}

async fn apply<S>(
    store: &S,
    clock: &ManualClock,
    purge: impl AsyncFn(),
    op: &Op,
    seen: &Seen,
) -> String
where
    S: RunStore + Ledger + Once + Decisions,
{
    let run_key = |run: &u8| key(&name(*run));
    let fence = |run: &u8, back: &usize| seen.nth(*run, *back).0;
    match op {
        Op::Begin(run, until) => {
            result(RunStore::begin(
                store,
                run_key(run),
                // Runs 0 and 1 share a client id.
                client(&name(*run / 2)),
                running(&name(*run)).into(),
                secs(*until),
            ))
            .await
        }
        Op::Get(run) => result(store.get(run_key(run))).await,
        Op::Claim(run, back, q) => {
            let (version, replies) = (
                seen.nth(*run, *back).1,
                match q {
                    0 => vec![],
                    q => vec![Reply::approve(question(&name(*q)))],
                },
            );
            let mut record = match store.get(run_key(run)).await {
                Err(StoreError::NotFound) => {
                    RunRecord::new(run_key(run), client(&name(*run / 2)), running("none"))
                }
                read => read.unwrap(),
            };
            record.version = version;
            result(store.claim(record, replies, secs(30))).await
        }
        Op::Save(run, back, q) => {
            let lease = secs(u64::from(*q) * 30);
            result(store.save(
                run_key(run),
                fence(run, back),
                running(&name(*q)).into(),
                lease,
            ))
            .await
        }
        Op::Renew(run, back, until) => {
            result(store.renew(run_key(run), fence(run, back), secs(*until))).await
        }
        Op::Suspend(run, back, q) => {
            result(store.suspend(
                run_key(run),
                fence(run, back),
                waiting("s", &name(*q)).into(),
            ))
            .await
        }
        Op::End(run, back) => {
            result(store.end(run_key(run), fence(run, back), Ok(Outcome::Completed))).await
        }
        Op::Amend(run, back, q) => {
            let (version, state) = (seen.nth(*run, *back).1, waiting("a", &name(*q)));
            result(store.amend(run_key(run), version, state.into())).await
        }
        Op::Cancel(run) => result(store.cancel(run_key(run))).await,
        Op::Release(run) => result(store.release(run_key(run))).await,
        Op::Withdraw => {
            let thread = ThreadId::new("thread");
            result(store.withdraw(tenant("acme"), thread)).await
        }
        Op::Asking(questions) => {
            let questions = questions.iter().map(|q| question(&name(*q))).collect();
            result(store.find_by_interrupt(tenant("acme"), ThreadId::new("thread"), questions))
                .await
        }
        Op::OfThread(message, limit) => {
            let message = message.map(|m| MessageId::new(["m", "other"][usize::from(m)]));
            let thread = ThreadId::new("thread");
            result(store.list_by_thread(tenant("acme"), thread, message, *limit)).await
        }
        Op::Live(run) => {
            let thread = ThreadId::new("thread");
            result(store.is_live(tenant("acme"), thread, client(&name(*run)))).await
        }
        Op::Abandoned(limit, lease) => result(store.claim_abandoned(*limit, secs(*lease))).await,
        Op::SetTime(now) => {
            set(clock, *now);
            String::new()
        }
        Op::Purge => {
            purge().await;
            String::new()
        }
        Op::Effect(effect, claim, repeatable) => {
            let mut intent = Intent::new("t".into(), "{}".into(), &Context::new());
            intent.repeatable = *repeatable;
            intent.claim = claim
                .as_ref()
                .map(|(run, back)| RunClaim::new(run_key(run), fence(run, back)));
            let key = EffectKey::new(tenant("acme"), name(*effect));
            result(Ledger::begin(store, key, intent)).await
        }
        Op::Finish(effect, done) => {
            let key = EffectKey::new(tenant("acme"), name(*effect));
            let outcome = match done {
                true => ToolOutcome::done("done"),
                false => ToolOutcome::failed("failed"),
            };
            result(store.finish(key, outcome)).await
        }
        Op::Once(once, until) => {
            result(store.once(tenant("acme"), name(*once).into(), secs(*until))).await
        }
        Op::Remember(tool, span, allow) => {
            result(store.remember(decision(*tool, *span, *allow))).await
        }
        Op::Recall(tool) => {
            let (run, thread) = (RunId::new("n0"), Some(ThreadId::new("thread")));
            let session = thread.clone();
            result(store.recall(tenant("acme"), name(*tool).into(), run, thread, session)).await
        }
        Op::List => result(store.list(tenant("acme"))).await,
        Op::Revoke(tool) => {
            let id = decision(*tool, 2, true).id;
            result(store.revoke(tenant("acme"), id)).await
        }
    }
}

fn options(clock: &ManualClock) -> Options {
    Options::new()
        .clock(clock.clone())
        .keep_waiting(Duration::from_secs(70))
        .keep_ended(Duration::from_secs(40))
        .keep_effects(Duration::from_secs(60))
        .keep_used_keys(1)
        .max_waiting_per_thread(2)
}

async fn compare(ops: &[Op]) {
    let clock = clock();
    let memory = MemoryStore::with_options(options(&clock));
    let sqlite = SqliteStore::open_in_memory_with(options(&clock)).unwrap();
    let mut seen = Seen::default();
    for (n, op) in ops.iter().enumerate() {
        let forget = async || memory.purge().await.unwrap();
        let expected = apply(&memory, &clock, forget, op, &seen).await;
        let forget = async || sqlite.purge().await.unwrap();
        let result = apply(&sqlite, &clock, forget, op, &seen).await;
        assert_eq!(result, expected, "{n}: {op:?}");
        for run in 0..3_u8 {
            let record = memory.get(key(&name(run))).await;
            let same = sqlite.get(key(&name(run))).await;
            match (record, same) {
                (Ok(record), Ok(same)) => {
                    assert_eq!(same, record, "{n}: {op:?}");
                    let now = (record.fence, record.version);
                    let seen = &mut seen.0[usize::from(run)];
                    if seen.last() != Some(&now) {
                        seen.push(now);
                    }
                }
                (Err(StoreError::NotFound), Err(StoreError::NotFound)) => {}
                other => panic!("{n}: {op:?}: {other:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn sqlite_behaves_like_memory(ops in vec(op(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(compare(&ops));
    }
}

/// The third run is overdue itself, and more than the limit wait.
#[tokio::test]
async fn a_suspension_that_fails_removes_what_has_expired() {
    let ops = [
        Op::Begin(2, 0),
        Op::Suspend(2, 0, 0),
        Op::Begin(1, 0),
        Op::Suspend(1, 0, 0),
        Op::Begin(0, 0),
        Op::SetTime(70),
        Op::Suspend(0, 0, 0),
    ];
    compare(&ops).await;
}
