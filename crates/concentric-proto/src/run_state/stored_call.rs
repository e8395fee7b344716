//! One call of the open round, and its stored form.

use crate::{
    call::{CallResume, CallStage, CallState, EarlierAttempt, Refusal, RoundCall, Unverified},
    id::{CallId, InterruptId},
    interrupt::{self, Decision, Interrupt, Reply, SuspendedBy, Suspension, millis},
    message::{Executor, Message, ToolCallPart, ToolOutcome},
};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::SystemTime};

/// One call of the open round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Record", into = "Record")]
pub(crate) struct StoredCall {
    pub(crate) call: Arc<ToolCallPart>,
    pub(crate) state: CallState,
}

impl StoredCall {
    pub(crate) fn new(call: ToolCallPart, refusal: Option<Refusal>, read_only: bool) -> Self {
        let mut state = CallState::ready(read_only);
        if let Some(refusal) = refusal {
            state.stage = CallStage::Rejected(refusal);
        }
        Self {
            call: Arc::new(call),
            state,
        }
    }

    /// The call as a round service receives it.
    pub(crate) fn to_round_call(&self, position: usize) -> RoundCall {
        let mut call = RoundCall::new(position, Arc::clone(&self.call));
        call.state = self.state.clone();
        call
    }

    /// Refuses the call, unless it is refused already.
    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        if self.state.stage == CallStage::Ready {
            self.state.stage = CallStage::Rejected(refusal);
        }
    }

    /// Suspends a client call until the client supplies its outcome.
    pub(crate) fn await_client(&mut self, message: &Message, position: usize) {
        if self.call.executor != Executor::Client || self.state.stage.refusal().is_some() {
            return;
        }
        let id: &CallId = &self.call.id;
        let asked = InterruptId::for_call(message.id.as_ref(), position, id);
        let asked = Interrupt::new(asked, interrupt::CLIENT_TOOL).about(id.clone());
        self.state.stage = CallStage::Suspended {
            on: Box::new(Suspension::new(vec![asked])),
            by: SuspendedBy::Client,
        };
    }

    /// The interrupts that the call waits on.
    pub(crate) fn interrupts(&self) -> &[Interrupt] {
        match &self.state.stage {
            CallStage::Suspended { on, .. } => &on.interrupts,
            _ => &[],
        }
    }

    /// Returns whether the call waits for the replies to all interrupts of its round.
    pub(crate) fn is_together(&self) -> bool {
        match &self.state.stage {
            CallStage::Suspended { on, .. } | CallStage::Held { on, .. } => on.together,
            _ => false,
        }
    }

    /// Returns whether the call may be handed out.
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(
            self.state.stage,
            CallStage::Ready
                | CallStage::Rejected(_)
                | CallStage::Released { .. }
                | CallStage::Unverified(_)
                | CallStage::Resumed(_)
        )
    }

    /// Returns whether the call was handed out and is not settled.
    pub(crate) const fn is_running(&self) -> bool {
        matches!(self.state.stage, CallStage::Running { .. })
    }

    /// Returns whether the call was handed out and has not been suspended before.
    pub(crate) fn is_fresh(&self) -> bool {
        match &self.state.stage {
            CallStage::Running { from, .. } => {
                matches!(from.as_deref(), None | Some(CallStage::Rejected(_)))
            }
            _ => false,
        }
    }

    /// Returns whether only a client's history claims that the call is open, and it has no reply.
    pub(crate) fn is_claimed(&self) -> bool {
        matches!(&self.state.stage, CallStage::Unverified(call) if call.replies.is_empty())
    }

    /// The outcome, if the call is settled.
    pub(crate) const fn outcome(&self) -> Option<&ToolOutcome> {
        match &self.state.stage {
            CallStage::Settled(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Returns whether the outcome of the call halts the run.
    pub(crate) fn halts(&self) -> bool {
        self.outcome().is_some_and(|outcome| outcome.halt.is_some())
    }

    /// Returns whether the call only waits for other calls of its round.
    pub(crate) const fn is_held(&self) -> bool {
        matches!(self.state.stage, CallStage::Held { .. })
    }

    /// Releases a call that waits for other calls.
    pub(crate) fn release(&mut self) {
        if let CallStage::Held { on, by } = &mut self.state.stage {
            let (on, by) = (std::mem::take(on), *by);
            self.state.stage = CallStage::Released { on, by };
        }
    }

    /// Returns whether the call waits for a reply.
    pub(crate) const fn is_suspended(&self) -> bool {
        matches!(self.state.stage, CallStage::Suspended { .. })
    }

    /// The outcome of a client call, if the client has replied with one.
    pub(crate) fn client_outcome(&self) -> Option<ToolOutcome> {
        if self.call.executor != Executor::Client {
            return None;
        }
        match self.state.stage.replies().first()?.decision().ok()? {
            Decision::Answered(result) => Some(ToolOutcome::of_value(&result)),
            Decision::Failed(error) => Some(ToolOutcome::failed(error)),
            _ => None,
        }
    }

    /// The outcome of the call in a round that ends now; `otherwise` if it was not started.
    pub(crate) fn close(mut self, otherwise: &str) -> ToolOutcome {
        let may_have_executed = self.state.may_have_executed();
        self.state.take_back();
        // The client has run the call, whatever the end of the run.
        let by_client = self.client_outcome();
        match self.state.stage {
            CallStage::Settled(outcome) => outcome,
            _ if let Some(outcome) = by_client => outcome,
            _ if self.state.may_have_executed() => ToolOutcome::indeterminate(),
            _ if may_have_executed => {
                ToolOutcome::unknown(format!("{otherwise} It had already started."))
            }
            _ => ToolOutcome::cancelled(otherwise),
        }
    }

    /// The outcome of a call that has a reply, for round services that cannot resume calls.
    pub(crate) fn outcome_of_reply(&self) -> Option<ToolOutcome> {
        let decision = self.state.stage.replies().first()?.decision();
        if let Some(outcome) = self.client_outcome() {
            return Some(outcome);
        }
        if let Ok(decision @ (Decision::Denied { .. } | Decision::Cancelled)) = &decision {
            return self
                .state
                .decide(&self.call.arguments, None, decision)
                .err();
        }
        let invalid =
            ToolOutcome::denied("approval-invalid: No approval was requested for this call.");
        // A reply does not undo an effect.
        Some(self.state.settle_unexecuted(invalid))
    }
}

/// The stored form of a call. It is flat, so that it is not nested deeper than that of version 1.
#[derive(Serialize, Deserialize)]
struct Record {
    call: Arc<ToolCallPart>,
    stage: Stage,
    // Set while the call is running; then `stage` is the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    running: Option<Running>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refusal: Option<Refusal>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on: Option<Suspension>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<SuspendedBy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replies: Vec<Reply>,
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    accepted_at: Option<SystemTime>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outcome: Option<ToolOutcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    earlier: Option<EarlierAttempt>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    read_only: bool,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stage {
    Ready,
    Rejected,
    Held,
    Released,
    Suspended,
    Unverified,
    Resumed,
    Settled,
}

#[derive(Serialize, Deserialize)]
struct Running {
    recorded: bool,
}

impl From<StoredCall> for Record {
    fn from(StoredCall { call, mut state }: StoredCall) -> Self {
        let running = state.take_back().map(|recorded| Running { recorded });
        let mut record = Self {
            call,
            stage: Stage::Ready,
            running,
            refusal: None,
            on: None,
            by: None,
            replies: Vec::new(),
            accepted_at: None,
            interrupted: false,
            outcome: None,
            earlier: state.earlier,
            read_only: state.read_only,
        };
        record.set_stage(state.stage);
        record
    }
}

impl Record {
    fn set_stage(&mut self, stage: CallStage) {
        self.stage = match stage {
            // A call does not run twice at a time.
            CallStage::Ready | CallStage::Running { .. } => Stage::Ready,
            CallStage::Rejected(refusal) => {
                self.refusal = Some(refusal);
                Stage::Rejected
            }
            CallStage::Held { on, by } => self.suspended(*on, by, Stage::Held),
            CallStage::Released { on, by } => self.suspended(*on, by, Stage::Released),
            CallStage::Suspended { on, by } => self.suspended(*on, by, Stage::Suspended),
            CallStage::Unverified(call) => {
                self.refusal = call.refusal;
                self.replies = call.replies;
                self.accepted_at = call.accepted_at;
                self.interrupted = call.interrupted;
                Stage::Unverified
            }
            CallStage::Resumed(resume) => {
                self.replies = resume.replies;
                self.accepted_at = resume.accepted_at;
                self.interrupted = resume.interrupted;
                self.suspended(resume.on, resume.by, Stage::Resumed)
            }
            CallStage::Settled(outcome) => {
                self.outcome = Some(outcome);
                Stage::Settled
            }
        };
    }

    fn suspended(&mut self, on: Suspension, by: SuspendedBy, stage: Stage) -> Stage {
        (self.on, self.by) = (Some(on), Some(by));
        stage
    }

    fn take_stage(&mut self) -> Option<CallStage> {
        let is_held = matches!(self.stage, Stage::Held | Stage::Released);
        let on = self.on.take().filter(|on| on.is_held() == is_held);
        Some(match self.stage {
            Stage::Ready => CallStage::Ready,
            Stage::Rejected => CallStage::Rejected(self.refusal.take()?),
            Stage::Held => CallStage::Held {
                on: Box::new(on?),
                by: self.by?,
            },
            Stage::Released => CallStage::Released {
                on: Box::new(on?),
                by: self.by?,
            },
            Stage::Suspended => CallStage::Suspended {
                on: Box::new(on?),
                by: self.by?,
            },
            Stage::Unverified => CallStage::Unverified(Box::new(Unverified {
                refusal: self.refusal.take(),
                replies: std::mem::take(&mut self.replies),
                accepted_at: self.accepted_at,
                interrupted: self.interrupted,
            })),
            Stage::Resumed => CallStage::Resumed(Box::new(CallResume {
                on: on?,
                by: self.by?,
                replies: std::mem::take(&mut self.replies),
                accepted_at: self.accepted_at,
                interrupted: self.interrupted,
            })),
            Stage::Settled => CallStage::Settled(self.outcome.take()?),
        })
    }
}

impl TryFrom<Record> for StoredCall {
    type Error = &'static str;

    fn try_from(mut record: Record) -> Result<Self, Self::Error> {
        let stage = record.take_stage();
        let mut state = CallState::ready(record.read_only);
        state.stage = stage.ok_or("a field of the stage of a call is missing")?;
        state.earlier = record.earlier;
        if let Some(Running { recorded }) = record.running {
            state.run(recorded);
        }
        Ok(Self {
            call: record.call,
            state,
        })
    }
}
