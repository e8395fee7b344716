//! The request body.

use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::{Metadata, message::Message, reply::Refused};

/// The request that starts a run, or resumes a suspended one.
///
/// Unknown fields are ignored, since clients send more than the protocol defines.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunAgentInput {
    pub(super) thread_id: String,
    /// The run, chosen by the client.
    pub(super) run_id: String,
    /// The run that this one continues or branches from.
    pub(super) parent_run_id: Option<String>,
    /// The client's copy of the state.
    pub(super) state: Option<Value>,
    /// The conversation so far, the new message last.
    pub(super) messages: Vec<Message>,
    /// Tools that the client executes.
    #[serde(default)]
    pub(super) tools: Vec<Tool>,
    #[serde(default)]
    pub(super) context: Vec<Context>,
    /// Application-defined data for the server.
    pub(super) forwarded_props: Option<Value>,
    /// Replies to the interrupts of the previous run.
    pub(super) resume: Option<Vec<ResumeEntry>>,
}

/// A tool that the client executes.
#[derive(Debug, Deserialize)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) description: String,
    /// A JSON Schema of its arguments.
    pub(super) parameters: Option<Value>,
}

/// A fact that the client's application offers to the agent.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Context {
    /// The meaning of the value.
    pub description: String,
    /// The value.
    pub value: String,
}

/// A reply to one interrupt.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResumeEntry {
    pub(super) interrupt_id: String,
    pub(super) status: ResumeStatus,
    pub(super) payload: Option<Value>,
    pub(super) metadata: Option<Metadata>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ResumeStatus {
    Resolved,
    /// The user declined to answer.
    Cancelled,
}

impl RunAgentInput {
    /// Parses a request body; `None` if it is invalid.
    pub(super) fn from_slice(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    /// Parses an invalid request body again, which may take twice as long: the error names the
    /// invalid field, as a path from the root of the body (`messages[1].content`), unless the body
    /// is not JSON or not an object.
    pub(super) fn with_paths(body: &[u8]) -> Result<Self, Refused> {
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let input = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let path = error.path().to_string();
            refused(&path, &error.into_inner())
        })?;
        match deserializer.end() {
            Ok(()) => Ok(input),
            Err(error) => Err(refused(".", &error)),
        }
    }
}

/// The response to an invalid body, with the path at which serde found `error`.
fn refused(path: &str, error: &serde_json::Error) -> Refused {
    let text = error.to_string();
    let named = named(&text);
    // serde reports a missing field at the value that lacks it.
    let field = match (path, named) {
        (path, None) if path != "." && error.is_data() => path.to_owned(),
        (".", Some((_, name, _))) if error.is_data() => name.to_owned(),
        (path, Some((_, name, _))) if error.is_data() => format!("{path}.{name}"),
        _ => {
            let status = StatusCode::BAD_REQUEST;
            return Refused::new(status, "invalid_request", &text, None);
        }
    };
    // The position in the body does not help, since bodies are generated.
    let problem = |text: &str| {
        text.rsplit_once(" at line ")
            .map_or(text, |(text, _)| text)
            .to_owned()
    };
    let problem = match named {
        Some(("missing field", ..)) => "missing field".to_owned(),
        Some((_, _, rest)) => problem(rest.trim_start_matches(": ")),
        None => problem(&text),
    };
    Refused::field(&field, &problem)
}

/// Splits a message that begins with a field error into the problem, the field's name and the rest.
fn named(message: &str) -> Option<(&str, &str, &str)> {
    let (problem, rest) = ["missing field", "invalid field"]
        .iter()
        .find_map(|problem| Some((*problem, message.strip_prefix(problem)?.strip_prefix(" `")?)))?;
    let (name, rest) = rest.split_once('`')?;
    Some((problem, name, rest))
}
