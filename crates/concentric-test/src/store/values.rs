//! Names and states for tests of stores.

#![expect(clippy::panic, reason = "assertions")]

use concentric_core::{
    CallId, Event, FinishReason, Interrupt, InterruptId, MessageId, Reply, RunId, Suspension,
    ThreadId, ToolCallPart, ToolSpec, Transcript, Usage,
    interrupt::{self, SuspendedBy},
    machine::{Action, Input, Machine, ModelStart, RunLimits, RunState},
    store::{RunKey, Tenant},
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
