//! The request body.

use serde::Deserialize;
use serde_json::Value;

use crate::run::{Context, Message, ResumeEntry, RunInput, Tool};

/// The request that starts a run, or resumes a suspended one.
///
/// Unknown fields are ignored, since clients send more than the protocol defines.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunAgentInput {
    thread_id: String,
    /// The run, chosen by the client.
    run_id: String,
    /// The run that this one continues or branches from.
    parent_run_id: Option<String>,
    /// The client's copy of the state.
    state: Option<Value>,
    /// The conversation so far, the new message last.
    messages: Vec<Message>,
    /// Tools that the client executes.
    #[serde(default)]
    tools: Vec<Tool>,
    #[serde(default)]
    context: Vec<Context>,
    /// Application-defined data for the server.
    forwarded_props: Option<Value>,
    /// Replies to the interrupts of the previous run.
    resume: Option<Vec<ResumeEntry>>,
}

impl From<RunAgentInput> for RunInput {
    fn from(input: RunAgentInput) -> Self {
        Self {
            thread_id: input.thread_id,
            run_id: Some(input.run_id),
            parent_run_id: input.parent_run_id,
            state: input.state,
            messages: input.messages,
            tools: input.tools,
            context: input.context,
            forwarded_props: input.forwarded_props,
            resume: input.resume,
            continued: None,
            is_regenerated: false,
        }
    }
}
