use super::{CallState, EarlierAttempt, Refusal};
use crate::{
    interrupt::{SuspendedBy, Suspension},
    message::{ToolCallPart, ToolOutcome},
    spec::ToolSpec,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One call of a `ToolRound`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RoundCall {
    /// The call.
    pub call: Arc<ToolCallPart>,
    /// The index of the call in its message, from 0. It does not change when the round is resumed.
    pub position: usize,
    /// The specification of the tool that was offered to the model.
    pub spec: Option<Arc<ToolSpec>>,
    /// The state of the call before it was handed out.
    pub state: CallState,
}

impl RoundCall {
    /// Creates a call that may run: the `position`th of its message.
    pub fn new(position: usize, call: impl Into<Arc<ToolCallPart>>) -> Self {
        Self {
            call: call.into(),
            position,
            spec: None,
            state: CallState::ready(false),
        }
    }

    /// The call, to change it.
    pub fn call_mut(&mut self) -> &mut ToolCallPart {
        Arc::make_mut(&mut self.call)
    }

    /// The reason why the loop refuses to run the call. The round must still return its outcome.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.state.stage.refusal()
    }

    /// Whether the call was started and its process ended before it had an outcome.
    pub const fn is_recovered(&self) -> bool {
        self.state.is_recovered()
    }

    /// Whether a ledger recorded the attempt of the process that ended, and all later ones.
    pub const fn is_recorded(&self) -> bool {
        matches!(
            self.state.earlier,
            Some(EarlierAttempt::Lost { recorded: true })
        )
    }

    /// Whether the call is executed for the first time or resumed.
    pub const fn delivery(&self) -> Delivery {
        self.state.delivery()
    }
}

/// Whether a call is executed for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// The call is executed for the first time.
    First,
    /// The call was suspended, or its process ended.
    Resumed,
}

/// The outcome or the suspension of one call: the item of a `RoundService`'s stream.
///
/// Each call has exactly one event.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RoundEvent {
    /// The call has its outcome.
    Settled {
        /// The call, as an index into `ToolRound::calls`.
        index: usize,
        /// The outcome of the call.
        outcome: ToolOutcome,
    },
    /// The call was not run, or cannot continue, until replies arrive.
    Suspended {
        /// The call, as an index into `ToolRound::calls`.
        index: usize,
        /// The suspension of the call.
        on: Box<Suspension>,
        /// The component that suspended the call.
        by: SuspendedBy,
    },
}

impl RoundEvent {
    /// Creates the event of an outcome of the call at `index`.
    pub fn settled(index: usize, outcome: ToolOutcome) -> Self {
        Self::Settled { index, outcome }
    }

    /// Creates the event of a suspension of the call at `index`.
    pub fn suspended(index: usize, on: impl Into<Box<Suspension>>, by: SuspendedBy) -> Self {
        let on = on.into();
        Self::Suspended { index, on, by }
    }

    /// The call, as an index into `ToolRound::calls`.
    pub const fn index(&self) -> usize {
        match self {
            Self::Settled { index, .. } | Self::Suspended { index, .. } => *index,
        }
    }
}
