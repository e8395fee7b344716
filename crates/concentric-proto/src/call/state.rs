use super::{Delivery, Refusal};
use crate::{
    interrupt::{Reply, SuspendedBy, Suspension},
    message::ToolOutcome,
};
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// The state of one tool call, stored with the run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CallState {
    /// The stage that the call has reached.
    pub stage: CallStage,
    /// The attempt that started the call before it reached this stage, and that has no recorded
    /// outcome.
    pub earlier: Option<EarlierAttempt>,
    /// Whether the tool was declared read-only when the model called it.
    pub read_only: bool,
}

/// The stage of a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CallStage {
    /// The call may be handed out.
    Ready,
    /// The loop refuses the call; the round service returns the outcome of the refusal.
    Rejected(Refusal),
    /// The call waits for decisions about other calls of its round.
    Held {
        /// The suspension, without interrupts.
        on: Box<Suspension>,
        /// The component that holds the call.
        by: SuspendedBy,
    },
    /// The call was held, and no other call of its round waits for a reply.
    Released {
        /// The suspension, without interrupts.
        on: Box<Suspension>,
        /// The component that held the call.
        by: SuspendedBy,
    },
    /// The call waits for replies.
    Suspended {
        /// The suspension.
        on: Box<Suspension>,
        /// The component that suspended the call.
        by: SuspendedBy,
    },
    /// Only a client's history claims that the call is open: its replies must contain approval
    /// tokens. Without a reply, approval may be requested again, but the call must not run.
    Unverified(Box<Unverified>),
    /// The call has received replies.
    Resumed(Box<CallResume>),
    /// The call was handed out.
    Running {
        /// Whether a ledger records the call.
        recorded: bool,
        /// The stage before; `None` if it was [`Ready`](Self::Ready).
        from: Option<Box<Self>>,
    },
    /// The call has its outcome.
    Settled(ToolOutcome),
}

/// An attempt at a call that has no recorded outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EarlierAttempt {
    /// The tool suspended the call, which has waited for something else since.
    Suspended,
    /// The process of the attempt ended.
    Lost {
        /// Whether a ledger recorded the attempt, and all others after it.
        recorded: bool,
    },
}

/// A call that is open only according to a client's history.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Unverified {
    /// The reason why the loop refuses the call, if it does.
    pub refusal: Option<Refusal>,
    /// The replies, which must contain approval tokens.
    pub replies: Vec<Reply>,
    /// The time at which the replies were accepted.
    pub accepted_at: Option<SystemTime>,
    /// Whether a process resumed the call with these replies and then ended.
    pub interrupted: bool,
}

/// The replies to a suspended call, with its suspension.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CallResume {
    /// The suspension.
    pub on: Suspension,
    /// The component that suspended the call.
    pub by: SuspendedBy,
    /// The replies.
    pub replies: Vec<Reply>,
    /// The time at which the replies were accepted.
    pub accepted_at: Option<SystemTime>,
    /// Whether a process resumed the call with these replies and then ended.
    pub interrupted: bool,
}

impl CallState {
    /// Creates the state of a call that may be handed out.
    pub const fn ready(read_only: bool) -> Self {
        Self {
            stage: CallStage::Ready,
            earlier: None,
            read_only,
        }
    }

    /// Returns whether the call may already have executed and has no recorded outcome.
    pub fn may_have_executed(&self) -> bool {
        let started = self.earlier.is_some();
        !self.read_only
            && match &self.stage {
                CallStage::Settled(_) => false,
                stage if stage.refusal().is_some() => false,
                CallStage::Running { from, .. } => match from.as_deref() {
                    Some(CallStage::Unverified(call)) => started || !call.replies.is_empty(),
                    _ => true,
                },
                CallStage::Ready | CallStage::Unverified(_) | CallStage::Rejected(_) => started,
                CallStage::Held { by, .. }
                | CallStage::Released { by, .. }
                | CallStage::Suspended { by, .. } => started || by.is_after_start(),
                CallStage::Resumed(resume) => started || resume.by.is_after_start(),
            }
    }

    /// The outcome of the call if it is not executed now: `otherwise`, or unknown if it may already
    /// have executed.
    #[must_use]
    pub fn settle_unexecuted(&self, otherwise: ToolOutcome) -> ToolOutcome {
        match self.may_have_executed() {
            true => otherwise.into_indeterminate(),
            false => otherwise,
        }
    }

    /// Returns whether the process of an earlier attempt ended.
    pub const fn is_recovered(&self) -> bool {
        matches!(self.earlier, Some(EarlierAttempt::Lost { .. }))
    }

    /// Whether the call is executed for the first time, or was suspended, held or started before.
    pub const fn delivery(&self) -> Delivery {
        match self.stage {
            CallStage::Resumed(_) | CallStage::Unverified(_) | CallStage::Released { .. } => {
                Delivery::Resumed
            }
            _ if self.is_recovered() => Delivery::Resumed,
            _ => Delivery::First,
        }
    }

    /// The replies to the call, if it resumes.
    pub fn resumed(&self) -> Option<&CallResume> {
        match &self.stage {
            CallStage::Resumed(resume) => Some(resume),
            _ => None,
        }
    }

    /// Marks the call as handed out; `ledger` states whether a ledger records it.
    pub(crate) fn hand_out(&mut self, ledger: bool) {
        let mut recorded = ledger;
        if let Some(EarlierAttempt::Lost { recorded: earlier }) = &mut self.earlier {
            *earlier &= ledger;
            recorded = *earlier;
        }
        self.run(recorded);
    }

    /// Makes the call run; `recorded` states whether a ledger records it.
    pub(crate) fn run(&mut self, recorded: bool) {
        let from = match std::mem::replace(&mut self.stage, CallStage::Ready) {
            CallStage::Ready => None,
            stage => Some(Box::new(stage)),
        };
        self.stage = CallStage::Running { recorded, from };
    }

    /// Returns a running call to the stage before it was handed out. Returns whether a ledger
    /// records it; `None` if it is not running.
    pub(crate) fn take_back(&mut self) -> Option<bool> {
        let CallStage::Running { recorded, from } = &mut self.stage else {
            return None;
        };
        let recorded = *recorded;
        self.stage = from.take().map_or(CallStage::Ready, |from| *from);
        Some(recorded)
    }

    /// Restores a call whose process ended. `resumes` states whether the round service can resume
    /// it.
    pub(crate) fn restore(&mut self, resumes: bool) {
        let Some(recorded) = self.take_back() else {
            return;
        };
        match &mut self.stage {
            CallStage::Rejected(_) => return,
            CallStage::Unverified(call) if call.refusal.is_some() || call.replies.is_empty() => {
                return;
            }
            CallStage::Unverified(call) => call.interrupted = true,
            CallStage::Resumed(resume) => resume.interrupted = true,
            _ => {}
        }
        self.earlier = Some(EarlierAttempt::Lost { recorded });
        if !resumes && !self.read_only {
            self.stage = CallStage::Settled(ToolOutcome::unknown(
                "The call was started and its process ended. The outcome is unknown.",
            ));
        }
    }

    /// Marks the call, which is about to be executed, as handed out by another process that ended: it may have
    /// executed there, unless a ledger knows better.
    ///
    /// For engines that repeat a round after a crash. States that are stored before each round mark their calls
    /// themselves when they are restored.
    pub fn mark_lost(&mut self) {
        self.run(true);
        self.restore(true);
    }

    /// Suspends the call, which is not running.
    pub(crate) fn suspend(&mut self, on: Box<Suspension>, by: SuspendedBy) {
        if self.may_have_executed() {
            self.earlier.get_or_insert(EarlierAttempt::Suspended);
        }
        self.stage = match on.is_held() {
            true => CallStage::Held { on, by },
            false => CallStage::Suspended { on, by },
        };
    }

    /// Adds a reply to a call that waits for one, or that has received one at the same time.
    pub(crate) fn reply(&mut self, reply: Reply, accepted_at: Option<SystemTime>) {
        match std::mem::replace(&mut self.stage, CallStage::Ready) {
            CallStage::Suspended { on, by } => {
                self.stage = CallStage::Resumed(Box::new(CallResume {
                    on: *on,
                    by,
                    replies: vec![reply],
                    accepted_at,
                    interrupted: false,
                }));
            }
            CallStage::Unverified(mut call) => {
                call.replies.push(reply);
                call.accepted_at = accepted_at;
                self.stage = CallStage::Unverified(call);
            }
            CallStage::Resumed(mut resume) => {
                resume.replies.push(reply);
                self.stage = CallStage::Resumed(resume);
            }
            stage => self.stage = stage,
        }
    }
}

impl CallStage {
    /// The reason why the loop refuses the call, if it does.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Rejected(refusal) => Some(refusal),
            Self::Unverified(call) => call.refusal.as_ref(),
            Self::Running { from, .. } => from.as_deref()?.refusal(),
            _ => None,
        }
    }

    /// The replies that the call has received.
    pub fn replies(&self) -> &[Reply] {
        match self {
            Self::Resumed(resume) => &resume.replies,
            Self::Unverified(call) => &call.replies,
            Self::Running {
                from: Some(from), ..
            } => from.replies(),
            _ => &[],
        }
    }
}
