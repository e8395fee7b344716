//! The chunks that the server sends.

use serde::Serialize;
use serde_json::Value;

use crate::run::Metadata;

/// One chunk of an answer, according to `uiMessageChunkSchema` of `ai` 7.0.
///
/// The schema is closed: a client throws at an unknown type, or if an optional field is `null`, so an absent field is
/// omitted.
#[derive(Debug, Serialize)]
#[serde(
    tag = "type",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase"
)]
pub(super) enum Chunk<'a> {
    Start {
        message_id: &'a str,
    },
    /// Adds to the metadata of the message.
    MessageMetadata {
        message_metadata: &'a Value,
    },
    StartStep,
    FinishStep,
    /// The parts since the last `start-step` are invalid. Unknown to `ai` 6.
    ResetStep,
    TextStart {
        id: &'a str,
    },
    TextDelta {
        id: &'a str,
        delta: &'a str,
    },
    TextEnd {
        id: &'a str,
    },
    ReasoningStart {
        id: &'a str,
    },
    ReasoningDelta {
        id: &'a str,
        delta: &'a str,
    },
    ReasoningEnd {
        id: &'a str,
    },
    ToolInputStart {
        tool_call_id: &'a str,
        tool_name: &'a str,
        #[serde(skip_serializing_if = "is_false")]
        dynamic: bool,
    },
    ToolInputAvailable {
        tool_call_id: &'a str,
        tool_name: &'a str,
        input: &'a Value,
        #[serde(skip_serializing_if = "is_false")]
        dynamic: bool,
        #[serde(skip_serializing_if = "is_false")]
        provider_executed: bool,
    },
    ToolInputError {
        tool_call_id: &'a str,
        tool_name: &'a str,
        input: &'a str,
        #[serde(skip_serializing_if = "is_false")]
        dynamic: bool,
        error_text: &'a str,
    },
    ToolApprovalRequest {
        approval_id: &'a str,
        tool_call_id: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        approval_descriptor: Option<&'a Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signature: Option<&'a str>,
    },
    /// The client has answered an approval. Unknown to `ai` 6.
    ToolApprovalResponse {
        approval_id: &'a str,
        approved: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
    },
    ToolOutputAvailable {
        tool_call_id: &'a str,
        output: &'a Value,
        #[serde(skip_serializing_if = "is_false")]
        preliminary: bool,
    },
    ToolOutputError {
        tool_call_id: &'a str,
        error_text: &'a str,
    },
    ToolOutputDenied {
        tool_call_id: &'a str,
    },
    File {
        url: &'a str,
        media_type: &'a str,
    },
    SourceUrl {
        source_id: &'a str,
        url: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<&'a str>,
    },
    SourceDocument {
        source_id: &'a str,
        media_type: &'a str,
        title: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        filename: Option<&'a str>,
    },
    Finish {
        finish_reason: &'static str,
        #[serde(skip_serializing_if = "Metadata::is_empty")]
        message_metadata: Metadata,
    },
    Abort {
        reason: &'a str,
    },
    Error {
        error_text: &'a str,
    },
}

/// A chunk with data of the application, whose type begins with `data-`.
#[derive(Debug, Serialize)]
pub(super) struct Data<'a> {
    r#type: &'a str,
    /// A later chunk with the same type and id replaces the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    data: &'a Value,
    /// Whether the client does not add the data to the message.
    #[serde(skip_serializing_if = "is_false")]
    transient: bool,
}

impl<'a> Data<'a> {
    pub(super) const fn new(
        r#type: &'a str,
        id: Option<&'a str>,
        data: &'a Value,
        transient: bool,
    ) -> Self {
        Self {
            r#type,
            id,
            data,
            transient,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
const fn is_false(value: &bool) -> bool {
    !*value
}
