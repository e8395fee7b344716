//! Conversion of stored states of version 1.
//!
//! In version 1 a call has flags beside its stage: whether it was refused, what it was suspended on
//! and the replies, whether an earlier process had started it, and whether its tool had.

use super::{StateError, StoredCall};
use crate::{
    call::{CallResume, CallStage, CallState, EarlierAttempt, Refusal, Unverified},
    interrupt::{Interrupt, Reply, SuspendedBy, Suspension, UNKNOWN_EFFECT, millis},
    message::{Executor, ToolCallPart, ToolOutcome},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{sync::Arc, time::SystemTime};

/// The version that this module reads.
pub(super) const VERSION: u16 = 1;

#[derive(Deserialize)]
struct Slot {
    call: ToolCallPart,
    refusal: Option<Refusal>,
    read_only: bool,
    #[serde(default)]
    answered: Option<Answered>,
    #[serde(default)]
    noted: bool,
    #[serde(default)]
    recovered: bool,
    #[serde(default)]
    begun: bool,
    state: SlotState,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum SlotState {
    Ready,
    Waiting(Option<Pending>),
    Running,
    Settled(ToolOutcome),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Answered {
    taken_up: bool,
    pending: Option<Pending>,
    replies: Vec<Reply>,
    #[serde(with = "millis")]
    accepted_at: Option<SystemTime>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pending {
    interrupts: Vec<Interrupt>,
    together: bool,
    begun: bool,
    by: Option<By>,
    state: Option<Arc<Value>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum By {
    Lifecycle,
    Tool,
}

/// Converts a state of version 1 to the current version. States of other versions are unchanged.
pub(super) fn upgrade(state: &mut Value) -> Result<(), StateError> {
    if state.get("version") != Some(&json!(VERSION)) {
        return Ok(());
    }
    if let Some(version) = state.get_mut("version") {
        *version = json!(super::VERSION);
    }
    if let Some(gate) = state.get_mut("gate").and_then(Value::as_object_mut)
        && let Some(pending) = gate.remove("pending")
    {
        gate.insert("on".to_owned(), pending);
    }
    match state.get_mut("stage") {
        Some(Value::Object(stage)) => {
            if let Some(round) = stage.get_mut("round") {
                upgrade_calls(round)?;
            }
            if let Some(inner) = stage.get_mut("inner") {
                inner.get_mut("said").map_or(Ok(()), upgrade_calls)?;
                inner.get_mut("state").map_or(Ok(()), upgrade)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn upgrade_calls(round: &mut Value) -> Result<(), StateError> {
    let Some(round) = round.as_object_mut() else {
        return Ok(());
    };
    let Some(slots) = round.remove("slots") else {
        return Ok(());
    };
    let slots: Vec<Slot> = serde_json::from_value(slots)?;
    let mut accepted = Vec::new();
    let calls: Vec<StoredCall> = slots
        .into_iter()
        .map(|slot| slot.upgrade(&mut accepted))
        .collect();
    round.insert("calls".to_owned(), serde_json::to_value(calls)?);
    if !accepted.is_empty() {
        round.insert("accepted".to_owned(), serde_json::to_value(accepted)?);
    }
    Ok(())
}

impl Slot {
    fn earlier(&self) -> Option<EarlierAttempt> {
        match (self.recovered, self.begun) {
            _ if self.refusal.is_some() => None,
            (true, _) => Some(EarlierAttempt::Lost {
                recorded: self.noted,
            }),
            (false, begun) => begun.then_some(EarlierAttempt::Suspended),
        }
    }

    /// Adds the replies to a settled call to `accepted`.
    fn upgrade(self, accepted: &mut Vec<Reply>) -> StoredCall {
        let is_running = matches!(self.state, SlotState::Running);
        let executor = self.call.executor;
        let earlier = self.earlier();
        let stage = match (self.state, self.answered, self.refusal) {
            (SlotState::Settled(outcome), answered, _) => {
                accepted.extend(answered.unwrap_or_default().replies);
                CallStage::Settled(outcome)
            }
            (SlotState::Waiting(None), _, refusal) => CallStage::Unverified(Box::new(Unverified {
                refusal,
                ..Unverified::default()
            })),
            (
                SlotState::Ready | SlotState::Running,
                Some(Answered {
                    pending: None,
                    taken_up,
                    replies,
                    accepted_at,
                }),
                refusal,
            ) => CallStage::Unverified(Box::new(Unverified {
                refusal,
                interrupted: taken_up && !replies.is_empty(),
                replies,
                accepted_at,
            })),
            (_, _, Some(refusal)) => CallStage::Rejected(refusal),
            (SlotState::Waiting(Some(pending)), ..) => pending.stage(executor),
            (_, Some(answered), None) => answered.stage(executor),
            (_, None, None) => CallStage::Ready,
        };
        let mut state = CallState::ready(self.read_only);
        state.stage = stage;
        state.earlier = earlier;
        if is_running {
            state.run(self.noted);
        }
        StoredCall {
            call: Arc::new(self.call),
            state,
        }
    }
}

impl Answered {
    fn stage(self, executor: Executor) -> CallStage {
        match self.pending.unwrap_or_default().stage(executor) {
            CallStage::Held { on, by } => CallStage::Released { on, by },
            CallStage::Suspended { on, by } => CallStage::Resumed(Box::new(CallResume {
                on: *on,
                by,
                replies: self.replies,
                accepted_at: self.accepted_at,
                interrupted: self.taken_up,
            })),
            stage => stage,
        }
    }
}

impl Pending {
    fn stage(self, executor: Executor) -> CallStage {
        let by = self.suspended_by(executor);
        let Self {
            interrupts,
            together,
            state,
            ..
        } = self;
        let on = Box::new(Suspension {
            interrupts,
            together,
            state,
        });
        match on.is_held() {
            true => CallStage::Held { on, by },
            false => CallStage::Suspended { on, by },
        }
    }

    fn suspended_by(&self, executor: Executor) -> SuspendedBy {
        let state = self.state.as_deref();
        // The state of a toolset contains the reason. Older states of version 1 do not record
        // whether the tool had started.
        let why = state.and_then(|state| state.get("why")?.as_str());
        let mut asked = self.interrupts.iter();
        if executor == Executor::Client {
            SuspendedBy::Client
        } else if self.begun || self.by == Some(By::Tool) || why == Some("tool") {
            SuspendedBy::Tool
        } else if asked.any(|asked| asked.reason == UNKNOWN_EFFECT) {
            SuspendedBy::UnknownEffect
        } else if why == Some("changed") {
            SuspendedBy::Change
        } else {
            SuspendedBy::Gate
        }
    }
}
