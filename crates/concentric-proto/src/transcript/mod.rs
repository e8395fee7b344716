//! The history of a conversation, in which every tool call has an outcome.
//!
//! A [`Transcript`] is a list of [`Turn`]s: messages and rounds. A [`Round`] is an assistant
//! message with tool calls and one outcome for each call that the loop or the client executes. It
//! cannot be created without these outcomes, so every transcript is complete. Calls without an
//! outcome are kept in an [`OpenRound`], which is separate from the transcript and is used to
//! resume a run.
//!
//! Cloning a transcript and appending to it take constant time; a clone shares the existing turns.

mod history;
mod list;
mod round;
mod size;

pub(crate) use self::round::OpenCall;
pub(crate) use self::round::{check_results, needs_outcome};
pub use self::{
    history::{HistoryError, Repair},
    list::Transcript,
    round::{OpenRound, Round},
    size::{json_size, text_size},
};

use crate::{
    message::{Author, Message, Role, ToolResult},
    text::Str,
};
use serde::{Deserialize, Serialize, Serializer};

/// One entry of a [`Transcript`]: a message without calls that require an outcome, or a [`Round`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "TurnData")]
pub struct Turn(TurnData);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
            TurnData::Round(round) => Ok(round.into()),
        }
    }
}

impl Serialize for Turn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Turn {
    /// Creates an entry from one message.
    ///
    /// # Errors
    ///
    /// If the message contains tool calls that require an outcome, or tool results without their
    /// calls.
    pub fn message(message: Message) -> Result<Self, HistoryError> {
        round::check_results(&message)?;
        if let Some(call) = message.tool_calls().find(|call| needs_outcome(call)) {
            return Err(HistoryError::MissingResult(call.id.clone()));
        }
        Ok(Self(TurnData::Message(message)))
    }

    /// Creates an entry from one user message with text.
    pub fn user(text: impl Into<Str>) -> Self {
        Self(TurnData::Message(Message::user(text)))
    }

    /// The message; of a round, the message that makes the calls.
    pub fn as_message(&self) -> &Message {
        match &self.0 {
            TurnData::Message(message) => message,
            TurnData::Round(round) => round.message(),
        }
    }

    fn is_by_user(&self) -> bool {
        let message = self.as_message();
        let mut authors = message.parts.iter().map(|part| &part.author);
        message.role == Role::User && authors.any(|author| *author == Author::User)
    }

    /// The outcomes of the round; empty for a message.
    pub fn results(&self) -> &[ToolResult] {
        match &self.0 {
            TurnData::Message(_) => &[],
            TurnData::Round(round) => round.results(),
        }
    }

    /// The round, if this entry is one.
    pub fn as_round(&self) -> Option<&Round> {
        match &self.0 {
            TurnData::Message(_) => None,
            TurnData::Round(round) => Some(round),
        }
    }
}

impl From<Round> for Turn {
    fn from(round: Round) -> Self {
        Self(TurnData::Round(round))
    }
}
