//! The limit: what the workload costs on tower alone.
//!
//! Types, layers and a loop that know nothing but the workload. Nothing is erased, shared with a
//! framework, cancelled, timed or described here; what Concentric costs more is what it offers.

pub(crate) mod agent;
pub(crate) mod codec;
pub(crate) mod layers;
pub(crate) mod services;

use smol_str::SmolStr;
use std::{fmt, sync::Arc};

/// What a model is asked: the conversation so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) history: Arc<Vec<Turn>>,
}

impl Request {
    pub(crate) fn user(text: &str) -> Self {
        Self {
            history: Arc::new(vec![Turn::User(text.into())]),
        }
    }
}

/// One entry of the conversation.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "the mock model does not read what it is sent")]
pub(crate) enum Turn {
    User(SmolStr),
    Assistant(SmolStr),
    Round {
        calls: Vec<Call>,
        results: Vec<Arc<ToolResult>>,
    },
}

/// One event of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Text(SmolStr),
    Call(Box<Call>),
    Result(Arc<ToolResult>),
    Finish,
}

/// A tool call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) id: SmolStr,
    pub(crate) name: SmolStr,
    pub(crate) arguments: SmolStr,
}

/// What came of a tool call.
#[derive(Clone, Debug)]
#[expect(
    dead_code,
    reason = "the mock model does not read which call a result is of"
)]
pub(crate) struct ToolResult {
    pub(crate) id: SmolStr,
    pub(crate) content: SmolStr,
}

/// What may go wrong.
#[derive(Debug)]
pub(crate) enum Error {
    Json(serde_json::Error),
    UnknownTool,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => error.fmt(f),
            Self::UnknownTool => f.write_str("there is no tool of that name"),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_24_bytes() {
        assert_eq!(size_of::<Option<Result<Event, Error>>>(), 24);
    }
}
