//! The parts that the endpoints for user interfaces share: a run that a request starts or resumes, its response, and
//! the log of its events.

mod body;
mod content;
mod edit;
mod ending;
mod events;
mod future;
mod input;
mod interrupt;
mod log;
mod map;
mod message;
mod names;
mod output;
mod protocol;
mod resume;
mod state;

pub use self::{
    body::ResponseBody,
    future::ResponseFuture,
    input::Context,
    state::{AgUiContext, AgUiState, StateError},
};
pub(crate) use self::{
    content::Content,
    ending::{accepts_reply, message, reason_of, stopped, token_usage, unanswerable, undecidable},
    events::Events,
    future::{empty, joined_response},
    input::{ResumeEntry, ResumeStatus, RunInput, Tool},
    interrupt::{interrupt, object, subagent_of},
    log::{
        After, Format, Found, Hub, Limits, LogBody, Offer, Reader, RunLog, Shared, Unreadable,
        Writer,
    },
    map::Start,
    message::{Assistant, FunctionCall, Message, MessageKind, ToolCall, ToolMessage},
    names::{Continued, KnownCall, Names, RunIds, original},
    output::{Cut, LogStream},
    protocol::{Config, Parsed, Protocol, Translate, run_setters},
    resume::TOKEN,
};

#[cfg(feature = "console")]
pub(crate) use self::interrupt::rfc3339;
#[cfg(any(feature = "console", feature = "openai"))]
pub(crate) use self::log::Read;
#[cfg(feature = "openai")]
pub(crate) use self::log::{Remote, share};

/// Extra information on an event, a message or a reply, of any JSON values.
pub(crate) type Metadata = serde_json::Map<String, serde_json::Value>;

/// The metadata key of a tool result's status.
pub(crate) const STATUS: &str = "status";
