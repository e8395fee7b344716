//! The workload on plain tower, as the lower limit of its cost.
//!
//! These types, layers and loop support nothing beyond the workload: no type erasure, cancellation,
//! timing or metadata. The additional cost of Concentric is the cost of its features.

pub(crate) mod agent;
pub(crate) mod codec;
pub(crate) mod gateway;
pub(crate) mod layers;
pub(crate) mod services;

use smol_str::SmolStr;
use std::{fmt, sync::Arc};

/// A request to a model, with the conversation so far.
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

/// An entry of the conversation.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "the mock model ignores its input")]
pub(crate) enum Turn {
    User(SmolStr),
    Assistant(SmolStr),
    Round {
        calls: Vec<Call>,
        results: Vec<Arc<ToolResult>>,
    },
}

/// An event of a response.
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

/// The result of a tool call.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "the mock model ignores its input")]
pub(crate) struct ToolResult {
    pub(crate) id: SmolStr,
    pub(crate) content: SmolStr,
}

/// The errors of the bare stack.
#[derive(Debug)]
pub(crate) enum Error {
    Json(serde_json::Error),
    UnknownTool,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => error.fmt(f),
            Self::UnknownTool => f.write_str("unknown tool"),
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
