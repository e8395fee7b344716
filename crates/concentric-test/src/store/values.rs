//! Names and states for tests of stores.

#![expect(clippy::panic, reason = "assertions")]

use super::kit::done;
use concentric_core::{
    CallId, Context, Event, FinishReason, Interrupt, InterruptId, MessageId, Outcome, Reply, RunId,
    Suspension, ThreadId, ToolCallPart, ToolSpec, Transcript, Usage,
    interrupt::{self, SuspendedBy},
    machine::{Action, Input, Machine, ModelStart, RunLimits, RunState},
    state::{SlotPlace, StoredSlot},
    store::{
        Amounts, BudgetStore, CacheKey, CacheStore, Decisions, EffectKey, Intent, Ledger, Limits,
        Memories, Memory, Once, RunChange, RunClaim, RunKey, RunStore, SharedBudget,
        StoredDecision, StoredScope, Tenant, ThreadChange, ThreadStore,
    },
};
use serde_json::json;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

pub fn tenant(name: &'static str) -> Tenant {
    Tenant(name.into())
}

/// The id of the conversation of all runs.
pub fn thread() -> ThreadId {
    ThreadId::new("thread")
}

pub fn key(run: &str) -> RunKey {
    key_of("acme", run)
}

pub fn key_of(of: &'static str, run: &str) -> RunKey {
    RunKey::new(tenant(of), thread(), RunId::new(run))
}

/// A run id chosen by a client.
pub fn client(run: &str) -> RunId {
    RunId::new(run)
}

pub fn question(name: &str) -> InterruptId {
    InterruptId::new(name)
}

pub fn approve(id: &str) -> Vec<Reply> {
    vec![Reply::approve(question(id))]
}

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A fixed start time plus `seconds`.
pub fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + secs(1_700_000_000 + seconds)
}

fn called(transcript: Transcript) -> Machine {
    let mut limits = RunLimits::default();
    limits.resumes = true;
    let mut machine = Machine::new(transcript, limits);
    machine.action();
    let mut start = ModelStart::new(MessageId::new("m"));
    let spec = ToolSpec::new("refund", "", json!({"type": "object"}));
    start.tools = [Arc::new(spec)].into_iter().collect();
    machine.input(Input::ModelStarted(start));
    let call = ToolCallPart::new(CallId::new("c"), "refund", r#"{"order":7}"#);
    machine.input(Input::ModelEvent(Event::tool_call(call)));
    let finish = Event::finish(FinishReason::ToolCalls, Usage::new(3, 2));
    machine.input(Input::ModelEvent(finish));
    loop {
        match machine.action() {
            Some(Action::RunTools { .. }) => return machine,
            Some(Action::Emit(_)) => {}
            other => panic!("the machine does not run a tool: {other:?}"),
        }
    }
}

fn user(text: &str) -> Transcript {
    let mut transcript = Transcript::new();
    transcript.push_user(text);
    transcript
}

/// The state of a run with a tool call that is about to start.
pub fn running(text: &str) -> RunState {
    running_after(user(text))
}

/// The state of a run with a tool call that is about to start, after `transcript`.
pub fn running_after(transcript: Transcript) -> RunState {
    let state = called(transcript).state();
    state.unwrap_or_else(|| panic!("the machine has no state"))
}

/// The state of a run with a tool call that waits for a reply to the interrupt `id`.
pub fn waiting(text: &str, id: &str) -> RunState {
    waiting_after(user(text), id)
}

/// The state of a run with a tool call that waits for a reply to the interrupt `id`, after `transcript`.
pub fn waiting_after(transcript: Transcript, id: &str) -> RunState {
    let mut machine = called(transcript);
    let asked = Interrupt::new(question(id), interrupt::TOOL_CALL).about(CallId::new("c"));
    machine.input(Input::Suspended {
        index: 0,
        on: Box::new(Suspension::new(vec![asked])),
        by: SuspendedBy::Gate,
    });
    machine.input(Input::RoundEnded);
    match machine.action() {
        Some(Action::Emit(Event::Finish(finish))) => {
            let state = finish.state.map(|state| *state);
            state.unwrap_or_else(|| panic!("the finish has no state"))
        }
        other => panic!("the run does not wait: {other:?}"),
    }
}

/// The keys of the cached values that [`fill`] stores.
pub fn cached(of: &'static str) -> [CacheKey; 3] {
    [Some(thread()), Some(ThreadId::new("t")), None]
        .map(|thread| CacheKey::new(tenant(of), thread, "model", [1; 32]))
}

/// Stores entries of each kind for a tenant.
pub async fn fill<S>(store: &S, of: &'static str)
where
    S: RunStore + Ledger + Once + Decisions + ThreadStore + Memories + CacheStore + BudgetStore,
{
    let mut change = ThreadChange::default();
    change.turns = user("hi").iter().cloned().collect();
    change.slots = vec![StoredSlot::new("s", 1, json!(1), SlotPlace::Whole)];
    let history = user("hi");
    let change = change.suspend(&history, Box::new(waiting("hi", "q")), Vec::new());
    let version = store.append(tenant(of), ThreadId::new("t"), 0, change);
    let version = done(version.await, "`append`");
    let mut change = ThreadChange::default();
    change.keep = 1;
    change.turns = user("again").iter().cloned().collect();
    let (from, to) = (ThreadId::new("t"), ThreadId::new("u"));
    let forked = store.fork(tenant(of), from, version, to, change);
    done(forked.await, "`fork`");

    // The conversation of the runs is not stored.
    let begin = async |run: &str| {
        let change = RunChange::from(running("hi"));
        let begun = RunStore::begin(store, key_of(of, run), client(run), change, secs(60));
        done(begun.await, "`begin` of a run")
    };
    let fence = begin("run").await;
    let waits = begin("waits").await;
    let suspended = store.suspend(key_of(of, "waits"), waits, waiting("hi", "q").into());
    done(suspended.await, "`suspend`");
    let ended = begin("ended").await;
    let claim = |run, fence| Some(RunClaim::new(key_of(of, run), fence));
    for (name, claim) in [
        ("of run", claim("run", fence)),
        ("of ended", claim("ended", ended)),
        ("of none", None),
    ] {
        let mut intent = Intent::new("refund".into(), "{}".into(), &Context::new());
        intent.claim = claim;
        let begun = Ledger::begin(store, EffectKey::new(tenant(of), name), intent);
        done(begun.await, "`begin` of an effect");
    }
    done(
        store
            .end(key_of(of, "ended"), ended, Ok(Outcome::Completed))
            .await,
        "`end`",
    );
    let used = store.once(tenant(of), "key".into(), secs(90));
    done(used.await, "`once`");
    for span in [
        StoredScope::Run {
            thread: Some(thread()),
            run: RunId::new("run"),
        },
        StoredScope::Thread(thread()),
        StoredScope::Session(ThreadId::new("t")),
        StoredScope::Always,
    ] {
        let (tool, definition) = ("refund".into(), "d".into());
        let decision =
            StoredDecision::new(tenant(of), tool, definition, None, span, true, None, at(0));
        done(store.remember(decision).await, "`remember`");
    }
    let budgets = vec![SharedBudget::new("b", Limits::new().model_calls(9))];
    let call = Amounts::new().model_calls(1);
    let reserved = store.reserve(tenant(of), "call".into(), budgets, call, secs(60));
    let reserved = done(reserved.await, "`reserve`");
    assert!(reserved.is_ok(), "a call does not fit its budget");
    for owner in ["ada", "a:b"] {
        let memory = Memory::new("m", "tea", at(0));
        let put = Memories::put(store, tenant(of), owner.into(), memory);
        done(put.await, "`put` of a memory");
    }
    for key in cached(of) {
        let put = store.put_entry(key, b"x".to_vec(), secs(90));
        done(put.await, "`put_entry`");
    }
}
