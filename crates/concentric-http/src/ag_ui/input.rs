//! The request body.

use serde::Deserialize;
use serde_json::Value;

use super::{Metadata, message::Message};

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
