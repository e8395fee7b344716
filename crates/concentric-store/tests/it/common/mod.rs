//! States and names for the tests.

use concentric_core::{
    CallId, Event, FinishReason, Interrupt, InterruptId, MessageId, RunId, Suspension, ThreadId,
    ToolCallPart, ToolSpec, Transcript, Usage,
    interrupt::{self, SuspendedBy},
    machine::{Action, Input, Machine, ModelStart, RunLimits, RunState},
    store::{RunKey, Tenant},
};
use concentric_test::ManualClock;
use serde_json::json;
use std::time::{Duration, SystemTime};

#[cfg(feature = "sqlite")]
pub(crate) mod file;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;

pub(crate) fn tenant(name: &'static str) -> Tenant {
    Tenant(name.into())
}

pub(crate) fn key(run: &str) -> RunKey {
    RunKey::new(tenant("acme"), ThreadId::new("thread"), RunId::new(run))
}

/// A run id chosen by a client.
pub(crate) fn client(run: &str) -> RunId {
    RunId::new(run)
}

pub(crate) fn question(name: &str) -> InterruptId {
    InterruptId::new(name)
}

/// A fixed start time plus `seconds`.
pub(crate) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A clock that shows `at(0)`.
pub(crate) fn clock() -> ManualClock {
    ManualClock::at(at(0))
}

/// Sets the clock to `at(seconds)`.
pub(crate) fn set(clock: &ManualClock, seconds: u64) {
    clock.set(at(seconds));
}

fn called(transcript: Transcript) -> (Machine, usize) {
    let mut rules = RunLimits::default();
    rules.resumes = true;
    let mut machine = Machine::new(transcript, rules);
    machine.action();
    let mut start = ModelStart::new(MessageId::new("m"));
    let spec = ToolSpec::new("refund", "", json!({"type": "object"}));
    start.tools = [std::sync::Arc::new(spec)].into_iter().collect();
    machine.input(Input::ModelStarted(start));
    let call = ToolCallPart::new(CallId::new("c"), "refund", r#"{"order":7}"#);
    machine.input(Input::ModelEvent(Event::tool_call(call)));
    let finish = Event::finish(FinishReason::ToolCalls, Usage::new(3, 2));
    machine.input(Input::ModelEvent(finish));
    loop {
        match machine.action() {
            Some(Action::RunTools { calls, .. }) => return (machine, calls.len()),
            Some(Action::Emit(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn said(text: &str) -> Transcript {
    let mut transcript = Transcript::new();
    transcript.push_user(text);
    transcript
}

/// The state of a run with a tool call that is about to start.
pub(crate) fn running(text: &str) -> RunState {
    running_after(said(text))
}

/// The state of a run with a tool call that is about to start, after `transcript`.
pub(crate) fn running_after(transcript: Transcript) -> RunState {
    called(transcript).0.state().unwrap()
}

/// The state of a run with a tool call that waits for a reply to the interrupt `id`.
pub(crate) fn waiting(text: &str, id: &str) -> RunState {
    let (mut machine, calls) = called(said(text));
    assert_eq!(calls, 1);
    let asked = Interrupt::new(question(id), interrupt::TOOL_CALL).about(CallId::new("c"));
    machine.input(Input::Suspended {
        index: 0,
        on: Box::new(Suspension::new(vec![asked])),
        by: SuspendedBy::Gate,
    });
    machine.input(Input::RoundEnded);
    match machine.action() {
        Some(Action::Emit(Event::Finish(finish))) => *finish.state.unwrap(),
        other => panic!("{other:?}"),
    }
}
