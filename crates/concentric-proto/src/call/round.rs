use super::Refusal;
use crate::{
    interrupt::{Answered, Pending},
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
    pub call: ToolCallPart,
    /// The index of the call in its message, from 0. It does not change when the round is resumed.
    pub position: usize,
    /// The specification of the tool that was offered to the model.
    pub spec: Option<Arc<ToolSpec>>,
    /// The reason why the loop refuses to run the call. The round must still return its outcome.
    pub refusal: Option<Refusal>,
    /// The suspension and the replies, if the call was suspended.
    pub answered: Option<Box<Answered>>,
    /// Whether the call was started and its process ended before it had an outcome.
    pub recovered: bool,
    /// Whether a ledger was in place when the call was last handed out.
    pub noted: bool,
}

impl RoundCall {
    /// Creates a call that may run: the `position`th of its message.
    pub fn new(position: usize, call: ToolCallPart) -> Self {
        Self {
            call,
            position,
            spec: None,
            refusal: None,
            answered: None,
            recovered: false,
            noted: false,
        }
    }

    /// Whether the call is executed for the first time or resumed.
    pub fn origin(&self) -> Origin {
        match self.answered.is_some() || self.recovered {
            true => Origin::Replay,
            false => Origin::Live,
        }
    }
}

/// Whether a call is executed for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The call is executed for the first time.
    Live,
    /// The call was suspended, or its process ended.
    Replay,
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
    Waiting {
        /// The call, as an index into `ToolRound::calls`.
        index: usize,
        /// The suspension of the call.
        pending: Box<Pending>,
    },
}

impl RoundEvent {
    /// Creates the event of an outcome of the call at `index`.
    pub fn settled(index: usize, outcome: ToolOutcome) -> Self {
        Self::Settled { index, outcome }
    }

    /// Creates the event of a suspension of the call at `index`.
    pub fn waiting(index: usize, pending: Pending) -> Self {
        Self::Waiting {
            index,
            pending: Box::new(pending),
        }
    }

    /// The call, as an index into `ToolRound::calls`.
    pub const fn index(&self) -> usize {
        match self {
            Self::Settled { index, .. } | Self::Waiting { index, .. } => *index,
        }
    }
}
