//! The input of a run.

use serde::Deserialize;
use serde_json::Value;

use super::{Message, Metadata, names::Continued};

/// The input that starts a run, or resumes a suspended one.
#[derive(Debug, Default)]
pub(crate) struct RunInput {
    pub(crate) thread_id: String,
    /// The run, if the client chooses it.
    pub(crate) run_id: Option<String>,
    /// The run that this one continues or branches from.
    pub(crate) parent_run_id: Option<String>,
    /// The client's copy of the state.
    pub(crate) state: Option<Value>,
    /// The conversation so far, the new message last.
    pub(crate) messages: Vec<Message>,
    /// Tools that the client executes.
    pub(crate) tools: Vec<Tool>,
    pub(crate) context: Vec<Context>,
    /// Application-defined data for the server.
    pub(crate) forwarded_props: Option<Value>,
    /// Replies to the interrupts of the previous run.
    pub(crate) resume: Option<Vec<ResumeEntry>>,
    /// The message of the client that the answer continues.
    pub(crate) continued: Option<Continued>,
    /// Whether the answer replaces those after the last message of the user.
    pub(crate) is_regenerated: bool,
}

/// A tool that the client executes.
#[derive(Debug, Deserialize)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: String,
    /// A JSON Schema of its arguments.
    pub(crate) parameters: Option<Value>,
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
pub(crate) struct ResumeEntry {
    pub(crate) interrupt_id: String,
    pub(crate) status: ResumeStatus,
    pub(crate) payload: Option<Value>,
    pub(crate) metadata: Option<Metadata>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ResumeStatus {
    Resolved,
    /// The user declined to answer.
    Cancelled,
}
