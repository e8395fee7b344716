use std::{error::Error, fmt};

use super::Owner;

/// The kind of thing that a [`VerifyError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Entity {
    /// A text message.
    TextMessage,
    /// A tool call.
    ToolCall,
    /// A span of reasoning.
    ReasoningSpan,
    /// A reasoning message.
    ReasoningMessage,
    /// An activity message.
    Activity,
    /// A step.
    Step,
    /// A sub-agent.
    Subagent,
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TextMessage => "text message",
            Self::ToolCall => "tool call",
            Self::ReasoningSpan => "reasoning span",
            Self::ReasoningMessage => "reasoning message",
            Self::Activity => "activity",
            Self::Step => "step",
            Self::Subagent => "sub-agent",
        })
    }
}

/// A violation of the protocol's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyError {
    /// The first event is neither `RUN_STARTED` nor `RUN_ERROR`.
    #[non_exhaustive]
    NotStarted {
        /// The event's type.
        event: String,
    },
    /// `RUN_STARTED` during a run.
    RunActive,
    /// An event after the end of the run.
    #[non_exhaustive]
    Over {
        /// The event's type.
        event: String,
        /// Whether the run ended with `RUN_ERROR`.
        failed: bool,
    },
    /// An event opens an id that is already open.
    #[non_exhaustive]
    AlreadyOpen {
        /// The event's type.
        event: String,
        /// The kind of the id.
        entity: Entity,
        /// The id.
        id: String,
    },
    /// An event continues, closes or names as a parent an id that is not open.
    #[non_exhaustive]
    NotOpen {
        /// The event's type.
        event: String,
        /// The kind of the id.
        entity: Entity,
        /// The id.
        id: String,
    },
    /// Ids that are still open at `RUN_FINISHED`.
    #[non_exhaustive]
    StillOpen {
        /// The kind of the ids.
        entity: Entity,
        /// All open ids of this kind.
        ids: Vec<String>,
    },
    /// An event is attributed to another agent than the one that opened the id.
    #[non_exhaustive]
    OtherOwner {
        /// The event's type.
        event: String,
        /// The kind of the id.
        entity: Entity,
        /// The id.
        id: String,
        /// The sub-agent that the event is attributed to; `None` for the agent itself.
        claimed_by: Option<String>,
        /// The sub-agent that opened the id; `None` for the agent itself.
        owner: Option<String>,
    },
    /// A sub-agent's run id that is used a second time in a run.
    #[non_exhaustive]
    SubagentReused {
        /// The id.
        id: String,
    },
    /// An interrupt outcome without interrupts.
    NoInterrupts,
    /// The end of the stream without a terminal event.
    Truncated,
}

impl VerifyError {
    pub(super) fn already_open(event: &str, entity: Entity, id: &str) -> Self {
        Self::AlreadyOpen {
            event: event.to_owned(),
            entity,
            id: id.to_owned(),
        }
    }

    pub(super) fn not_open(event: &str, entity: Entity, id: &str) -> Self {
        Self::NotOpen {
            event: event.to_owned(),
            entity,
            id: id.to_owned(),
        }
    }

    pub(super) fn other_owner(
        event: &str,
        entity: Entity,
        id: &str,
        tag: &Owner,
        owner: &Owner,
    ) -> Self {
        Self::OtherOwner {
            event: event.to_owned(),
            entity,
            id: id.to_owned(),
            claimed_by: tag.clone(),
            owner: owner.clone(),
        }
    }
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted { event } => {
                write!(
                    f,
                    "{event}: the first event must be RUN_STARTED or RUN_ERROR"
                )
            }
            Self::RunActive => f.write_str("RUN_STARTED: a run is already in progress"),
            Self::Over {
                event,
                failed: true,
            } => write!(f, "{event}: the run has already failed"),
            Self::Over {
                event,
                failed: false,
            } => write!(f, "{event}: the run has already finished"),
            Self::AlreadyOpen { event, entity, id } => {
                write!(f, "{event}: {entity} `{id}` is already open")
            }
            Self::NotOpen { event, entity, id } => {
                write!(f, "{event}: {entity} `{id}` is not open")
            }
            Self::StillOpen { entity, ids } => {
                write!(
                    f,
                    "RUN_FINISHED: still open: {entity} `{}`",
                    ids.join("`, `")
                )
            }
            Self::OtherOwner {
                event,
                entity,
                id,
                claimed_by,
                owner,
            } => write!(
                f,
                "{event}: {entity} `{id}` belongs to {}, not to {}",
                Agent(owner),
                Agent(claimed_by),
            ),
            Self::SubagentReused { id } => {
                write!(f, "SUBAGENT_STARTED: sub-agent id `{id}` was used before")
            }
            Self::NoInterrupts => f.write_str("RUN_FINISHED: interrupt outcome without interrupts"),
            Self::Truncated => f.write_str("stream ended without a terminal event"),
        }
    }
}

impl Error for VerifyError {}

struct Agent<'a>(&'a Owner);

impl fmt::Display for Agent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "sub-agent `{id}`"),
            None => f.write_str("the agent"),
        }
    }
}
