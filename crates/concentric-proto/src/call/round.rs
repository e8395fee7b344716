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
    /// Which of its message's calls it is, from 0; the same when the round is resumed.
    pub position: usize,
    /// The tool as the model was told of it.
    pub spec: Option<Arc<ToolSpec>>,
    /// Why the loop does not let the call run. The round answers it all the same.
    pub refusal: Option<Refusal>,
    /// What became of it, if it waited.
    pub answered: Option<Box<Answered>>,
    /// It was started, and the process died before there was an outcome.
    pub recovered: bool,
    /// Its effect was to be written down when it was started: a ledger was there.
    pub noted: bool,
}

impl RoundCall {
    /// Creates a call that may run, the `position`th of its message.
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

    /// Whether the call is made for the first time, or taken up again.
    pub fn origin(&self) -> Origin {
        match self.answered.is_some() || self.recovered {
            true => Origin::Replay,
            false => Origin::Live,
        }
    }
}

/// Whether a call is made for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// It is.
    Live,
    /// It waited, or its process died.
    Replay,
}

/// What a round service has to say of one call, as it becomes known: the item of a
/// `RoundService`'s stream.
///
/// Each call is settled or waits, once.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RoundEvent {
    /// The call has its outcome.
    Settled {
        /// Which call, as an index into `ToolRound::calls`.
        index: usize,
        /// What came of it.
        outcome: ToolOutcome,
    },
    /// The call waits, and was not run, or can't go on.
    Waiting {
        /// Which call, as an index into `ToolRound::calls`.
        index: usize,
        /// What it waits for.
        pending: Box<Pending>,
    },
}

impl RoundEvent {
    /// Creates the outcome of the call at `index`.
    pub fn settled(index: usize, outcome: ToolOutcome) -> Self {
        Self::Settled { index, outcome }
    }

    /// Says that the call at `index` waits.
    pub fn waiting(index: usize, pending: Pending) -> Self {
        Self::Waiting {
            index,
            pending: Box::new(pending),
        }
    }

    /// Which call it is about.
    pub const fn index(&self) -> usize {
        match self {
            Self::Settled { index, .. } | Self::Waiting { index, .. } => *index,
        }
    }
}
