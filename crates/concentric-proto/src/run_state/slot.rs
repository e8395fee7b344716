use crate::{id::MessageId, text::Str};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The stored value of a durable slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredSlot {
    /// The name of the slot.
    pub slot: Str,
    /// The version of the slot that wrote the value.
    pub version: u32,
    /// The value.
    pub value: Value,
    /// The part of the run that the value belongs to.
    #[serde(default, skip_serializing_if = "SlotPlace::is_whole")]
    pub place: SlotPlace,
}

impl StoredSlot {
    /// Creates the stored form of a value.
    pub fn new(slot: impl Into<Str>, version: u32, value: Value, place: SlotPlace) -> Self {
        Self {
            slot: slot.into(),
            version,
            value,
            place,
        }
    }
}

/// The part of a run, a conversation or a session that a slot value belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotPlace {
    /// The whole run, conversation or session.
    #[default]
    Whole,
    /// A round.
    Round(RoundPlace),
    /// A call of a round, by its position.
    Call(RoundPlace, usize),
}

/// The round that a slot value belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundPlace {
    /// The round of the message with this id.
    Message(MessageId),
    /// The round of this step, whose message has no id.
    Step(u32),
}

impl SlotPlace {
    const fn is_whole(&self) -> bool {
        matches!(self, Self::Whole)
    }

    /// The round, unless the value belongs to the whole.
    pub const fn round(&self) -> Option<&RoundPlace> {
        match self {
            Self::Whole => None,
            Self::Round(round) | Self::Call(round, _) => Some(round),
        }
    }
}
