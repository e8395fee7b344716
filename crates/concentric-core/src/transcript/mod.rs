//! The history of a conversation, in which every tool call has its outcome.
//!
//! A [`Transcript`] is a list of [`Turn`]s: messages, and rounds. A [`Round`] is an assistant's
//! message with tool calls together with one outcome for each call that the loop or the client
//! executes; it can't be made without them. So whatever is appended, sent to a provider or stored
//! is whole. The one place for calls without an outcome is an [`OpenRound`], which stands beside
//! the transcript and only a resumed run takes up.
//!
//! Cloning a transcript and appending to it take constant time; a clone shares what was there.

mod history;
mod list;
mod round;

pub(crate) use self::round::needs_outcome;
pub use self::{
    history::{History, HistoryError, Repair},
    list::{Iter, Transcript},
    round::{OpenCall, OpenRound, Round},
};

use crate::{Message, ToolResult};
use serde::{Deserialize, Serialize};

/// One entry of a [`Transcript`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "TurnData")]
#[non_exhaustive]
pub enum Turn {
    /// A message without calls that need an outcome. Make one with [`Turn::message`].
    #[non_exhaustive]
    Message(Message),
    /// An assistant's message with tool calls, and their outcomes.
    Round(Round),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum TurnData {
    Message(Message),
    Round(Round),
}

impl TryFrom<TurnData> for Turn {
    type Error = HistoryError;

    fn try_from(data: TurnData) -> Result<Self, HistoryError> {
        match data {
            TurnData::Message(message) => Self::message(message),
            TurnData::Round(round) => Ok(Self::Round(round)),
        }
    }
}

impl Turn {
    /// Creates an entry of one message.
    ///
    /// # Errors
    ///
    /// If the message holds tool calls that need an outcome, or tool results without their calls.
    pub fn message(message: Message) -> Result<Self, HistoryError> {
        if let Some(call) = message.tool_calls().find(|call| round::needs_outcome(call)) {
            return Err(HistoryError::MissingResult(call.id.clone()));
        }
        if let Some(result) = round::orphan(&message) {
            return Err(HistoryError::OrphanResult(result.call_id.clone()));
        }
        Ok(Self::Message(message))
    }

    /// The message: for a round, the one that makes the calls.
    pub fn as_message(&self) -> &Message {
        match self {
            Self::Message(message) => message,
            Self::Round(round) => round.message(),
        }
    }

    /// The outcomes that follow the message; none unless this is a round.
    pub fn results(&self) -> &[ToolResult] {
        match self {
            Self::Message(_) => &[],
            Self::Round(round) => round.results(),
        }
    }
}

impl From<Round> for Turn {
    fn from(round: Round) -> Self {
        Self::Round(round)
    }
}
