//! The events that the server sends.

use serde::Serialize;
use serde_json::{Map, Value};

use super::stream::Operation;
use crate::run::Metadata;

/// One event of a run, according to `https://ag-ui.com/spec/1.0/schema.json`.
///
/// The two crates on crates.io lack parts of 1.0 (interrupts, sub-agents, the `cancelled` outcome).
/// An absent field is omitted: the reference client ends a run if an optional field is `null`.
#[derive(Debug, Serialize)]
#[serde(
    tag = "type",
    rename_all = "SCREAMING_SNAKE_CASE",
    rename_all_fields = "camelCase"
)]
pub(super) enum Event<'a> {
    TextMessageStart {
        message_id: &'a str,
        role: &'static str,
    },
    TextMessageEnd {
        message_id: &'a str,
    },
    ToolCallStart {
        tool_call_id: &'a str,
        tool_call_name: &'a str,
        parent_message_id: &'a str,
    },
    ToolCallArgs {
        tool_call_id: &'a str,
        delta: &'a str,
    },
    ToolCallEnd {
        tool_call_id: &'a str,
    },
    ToolCallResult {
        message_id: &'a str,
        tool_call_id: &'a str,
        /// Text, or content parts.
        content: Value,
        role: &'static str,
        #[serde(skip_serializing_if = "Map::is_empty")]
        metadata: Metadata,
    },
    MessagesSnapshot {
        messages: Vec<Value>,
    },
    StateDelta {
        delta: Vec<Operation>,
    },
    Custom {
        name: &'a str,
        value: Value,
        #[serde(skip_serializing_if = "Map::is_empty")]
        metadata: Metadata,
    },
    RunStarted {
        thread_id: &'a str,
        run_id: &'a str,
        protocol_version: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_run_id: Option<&'a str>,
    },
    RunFinished {
        thread_id: &'a str,
        run_id: &'a str,
        outcome: Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<[Metadata; 1]>,
        #[serde(skip_serializing_if = "Map::is_empty")]
        metadata: Metadata,
    },
    RunError {
        message: &'a str,
        code: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<[Metadata; 1]>,
    },
    StepStarted {
        step_name: &'a str,
    },
    StepFinished {
        step_name: &'a str,
    },
    ReasoningStart {
        message_id: &'a str,
    },
    ReasoningMessageStart {
        message_id: &'a str,
        role: &'static str,
    },
    ReasoningMessageContent {
        message_id: &'a str,
        delta: &'a str,
    },
    ReasoningMessageEnd {
        message_id: &'a str,
    },
    ReasoningEnd {
        message_id: &'a str,
    },
    SubagentStarted {
        subagent_run_id: &'a str,
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_subagent_run_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_tool_call_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_message_id: Option<&'a str>,
    },
    SubagentFinished {
        subagent_run_id: &'a str,
        outcome: Value,
    },
    SubagentError {
        subagent_run_id: &'a str,
        message: &'a str,
        code: &'a str,
    },
}

/// An event of a sub-agent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Attributed<'a> {
    #[serde(flatten)]
    pub(super) event: Event<'a>,
    pub(super) subagent_run_id: &'a str,
}
