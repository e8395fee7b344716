//! The end of a part of a run, and what it changes in the object.

use super::Publisher;
use crate::{
    drive::{UNWRITABLE, unwritable},
    wire::{RunOutput, Waiting},
};
use concentric_core::{
    CancelReason, Error, ErrorKind, Event, Finish, Message, Outcome, Role, RunId, Str, Transcript,
    Turn, run_state::RunState,
};
use serde::Serialize;
use serde_json::value::RawValue;

/// The limit of a value of the object's state.
pub(super) const MAX_STATE: usize = 8 << 20;

/// A run at its end or at a wait.
pub(super) struct Driven {
    pub(super) output: RunOutput,
    pub(super) change: Change,
    pub(super) events: Publisher,
    // Not published yet.
    pub(super) finish: Option<Box<Finish>>,
    // Whether the part has taken a cancellation of the invocation and failed.
    pub(super) was_cancelled: bool,
}

/// A change of the object's state.
pub(super) enum Change {
    None,
    Waits(Waiting, Box<RawValue>, Box<RunState>),
    History(Option<Box<RawValue>>),
    /// The run that waited has ended.
    Ended(Option<Box<RawValue>>),
}

/// Publishes the end of a run. The attempt may have published nothing before, since its steps were replayed.
pub(super) fn publish(events: &Publisher, finish: Option<Box<Finish>>) {
    if let Some(finish) = finish {
        events.resume();
        events.publish(Event::Finish(finish));
    }
}

/// The result of a run that has finished.
pub(super) fn finished(
    run: RunId,
    tenant: &Str,
    finish: Box<Finish>,
    is_resumed: bool,
    events: Publisher,
) -> Driven {
    let change = match (&finish.outcome, finish.state.clone()) {
        (Outcome::Interrupted, Some(state)) => stored(&state).map(|json| {
            let waiting = Waiting {
                run: run.clone(),
                tenant: tenant.clone(),
                awaited: None,
                is_taken: false,
            };
            Change::Waits(waiting, json, state)
        }),
        _ => {
            let history = finish.transcript.as_ref().map(json).transpose();
            history.map(|history| match is_resumed {
                true => Change::Ended(history),
                false => Change::History(history),
            })
        }
    };
    let (output, change) = match change {
        Ok(change) => (output(run, &finish), change),
        Err(error) => {
            let change = match is_resumed {
                true => Change::Ended(None),
                false => Change::None,
            };
            (RunOutput::failed(run, &error), change)
        }
    };
    Driven {
        output,
        change,
        events,
        finish: Some(finish),
        was_cancelled: false,
    }
}

fn output(run: RunId, finish: &Finish) -> RunOutput {
    let last = finish.transcript.as_ref().and_then(Transcript::last);
    // A run that is aborted in its first wait ends with the message of the user.
    let answer = last
        .map(Turn::as_message)
        .filter(|message| message.role == Role::Assistant);
    let text = answer.map(Message::text);
    RunOutput {
        run,
        outcome: Some(finish.outcome.clone()),
        text: text.unwrap_or_default().into(),
        interrupts: finish.interrupts().into_iter().cloned().collect(),
        usage: finish.usage,
        error: None,
    }
}

/// The end of a run that waited: the conversation is as before the round that waited.
pub(super) fn aborted(
    waiting: &Waiting,
    state: RunState,
    reason: CancelReason,
    events: Publisher,
) -> Driven {
    let mut finish = Finish::waiting(state).with_outcome(Outcome::Aborted { reason });
    finish.state = None;
    let (run, tenant) = (waiting.run.clone(), &waiting.tenant);
    finished(run, tenant, Box::new(finish), true, events)
}

/// The part of a run whose replies, of other code, cannot be read.
pub(super) fn unreadable(run: RunId, events: Publisher) -> Driven {
    let why = "the invocation, which began on other code, cannot read the replies";
    let error = Error::new(ErrorKind::InvalidRequest, why).with_code("code_changed");
    Driven {
        output: RunOutput::failed(run, &error),
        change: Change::None,
        events,
        finish: None,
        was_cancelled: false,
    }
}

fn stored(state: &RunState) -> Result<Box<RawValue>, Error> {
    let json = state.to_json().map_err(|error| {
        Error::new(ErrorKind::TooLarge, error.to_string()).with_code(UNWRITABLE)
    })?;
    let state = RawValue::from_string(json)
        .map_err(|_| Error::new(ErrorKind::Other, "the state of the run cannot be written"))?;
    limited("the state of the run", state)
}

fn json(value: &impl Serialize) -> Result<Box<RawValue>, Error> {
    let json = serde_json::value::to_raw_value(value)
        .map_err(|_| Error::new(ErrorKind::Other, "the conversation cannot be written"))?;
    limited("the conversation", json)
}

fn limited(what: &str, json: Box<RawValue>) -> Result<Box<RawValue>, Error> {
    match json.get().len() {
        size if size > MAX_STATE => Err(unwritable(what, size, MAX_STATE)),
        _ => Ok(json),
    }
}
