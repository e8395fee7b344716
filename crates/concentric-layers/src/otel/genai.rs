//! The names and values of the GenAI semantic conventions, version 1.41, and our own.
//!
//! The conventions are in development. What changes with their version is in this file, in the page
//! `attributes.md`, and in the forms of `content.rs`.

use concentric_core::{CancelReason, ErrorKind, FinishReason, SideEffects};
use tracing::Span;

/// The target of the spans.
pub(super) const TARGET: &str = "concentric::otel";

/// The value of a required attribute that is unknown.
pub(super) use crate::wording::OTHER;

pub(super) const INVOKE_AGENT: &str = "invoke_agent";
pub(super) const CHAT: &str = "chat";
pub(super) const EXECUTE_TOOL: &str = "execute_tool";

/// The names of attributes.
pub(super) mod attribute {
    pub(crate) const OPERATION: &str = "gen_ai.operation.name";
    pub(crate) const PROVIDER: &str = "gen_ai.provider.name";
    pub(crate) const AGENT: &str = "gen_ai.agent.name";
    pub(crate) const CONVERSATION: &str = "gen_ai.conversation.id";
    pub(crate) const OUTPUT_TYPE: &str = "gen_ai.output.type";
    pub(crate) const REQUEST_MODEL: &str = "gen_ai.request.model";
    pub(crate) const SEED: &str = "gen_ai.request.seed";
    pub(crate) const STREAM: &str = "gen_ai.request.stream";
    pub(crate) const FREQUENCY_PENALTY: &str = "gen_ai.request.frequency_penalty";
    pub(crate) const PRESENCE_PENALTY: &str = "gen_ai.request.presence_penalty";
    pub(crate) const MAX_TOKENS: &str = "gen_ai.request.max_tokens";
    pub(crate) const STOP_SEQUENCES: &str = "gen_ai.request.stop_sequences";
    pub(crate) const TEMPERATURE: &str = "gen_ai.request.temperature";
    pub(crate) const TOP_P: &str = "gen_ai.request.top_p";
    pub(crate) const RESPONSE_ID: &str = "gen_ai.response.id";
    pub(crate) const RESPONSE_MODEL: &str = "gen_ai.response.model";
    pub(crate) const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
    pub(crate) const TIME_TO_FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
    pub(crate) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
    pub(crate) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
    pub(crate) const CACHE_READ: &str = "gen_ai.usage.cache_read.input_tokens";
    pub(crate) const CACHE_CREATION: &str = "gen_ai.usage.cache_creation.input_tokens";
    pub(crate) const REASONING: &str = "gen_ai.usage.reasoning.output_tokens";
    pub(crate) const TOOL_NAME: &str = "gen_ai.tool.name";
    pub(crate) const TOOL_TYPE: &str = "gen_ai.tool.type";
    pub(crate) const TOOL_DESCRIPTION: &str = "gen_ai.tool.description";
    pub(crate) const TOKEN_TYPE: &str = "gen_ai.token.type";
    pub(crate) const ERROR_TYPE: &str = "error.type";

    // Content, only if it is opted in.
    pub(crate) const INPUT_MESSAGES: &str = "gen_ai.input.messages";
    pub(crate) const OUTPUT_MESSAGES: &str = "gen_ai.output.messages";
    pub(crate) const SYSTEM_INSTRUCTIONS: &str = "gen_ai.system_instructions";
    pub(crate) const TOOL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
    pub(crate) const TOOL_RESULT: &str = "gen_ai.tool.call.result";

    // Not part of the conventions.
    pub(crate) const OUTCOME: &str = "concentric.outcome";
    pub(crate) const ERROR_CODE: &str = "concentric.error.code";
    pub(crate) const EFFECTS: &str = "concentric.effects";
    pub(crate) const CANCEL_REASON: &str = "concentric.cancel_reason";
    pub(crate) const INTERRUPTS: &str = "concentric.interrupts";
    pub(crate) const RESUMED: &str = "concentric.resumed";
    pub(crate) const SETTLED: &str = "concentric.settled";
}

/// The names, units and bucket boundaries of histograms.
pub(super) mod metric {
    pub(crate) const TOKEN_USAGE: &str = "gen_ai.client.token.usage";
    pub(crate) const OPERATION_DURATION: &str = "gen_ai.client.operation.duration";
    pub(crate) const TIME_TO_FIRST_CHUNK: &str = "gen_ai.client.operation.time_to_first_chunk";
    pub(crate) const TIME_PER_OUTPUT_CHUNK: &str = "gen_ai.client.operation.time_per_output_chunk";
    pub(crate) const INVOKE_AGENT_DURATION: &str = "gen_ai.invoke_agent.duration";
    pub(crate) const EXECUTE_TOOL_DURATION: &str = "gen_ai.execute_tool.duration";

    pub(crate) const SECONDS: &str = "s";
    pub(crate) const TOKENS: &str = "{token}";

    pub(crate) const OPERATION_BUCKETS: [f64; 14] = [
        0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
    ];
    pub(crate) const AGENT_BUCKETS: [f64; 13] = [
        0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6,
    ];
    pub(crate) const TOKEN_BUCKETS: [f64; 14] = [
        1., 4., 16., 64., 256., 1024., 4096., 16384., 65536., 262144., 1048576., 4194304.,
        16777216., 67108864.,
    ];
}

// The fields below are literals, since the macro needs them. Of the attributes, only those are fields that
// identify the call in the lines that a subscriber prints within the span.

pub(super) fn run_span(name: &str, run: &str) -> Span {
    tracing::info_span!(
        target: TARGET,
        "invoke_agent",
        otel.name = name,
        otel.kind = "internal",
        concentric.run.id = run,
    )
}

pub(super) fn model_span(name: &str, run: &str, step: u32) -> Span {
    tracing::info_span!(
        target: TARGET,
        "chat",
        otel.name = name,
        otel.kind = "client",
        concentric.run.id = run,
        concentric.step = i64::from(step),
    )
}

pub(super) fn tool_span(name: &str, run: &str, step: u32, call: &str) -> Span {
    tracing::info_span!(
        target: TARGET,
        "execute_tool",
        otel.name = name,
        otel.kind = "internal",
        concentric.run.id = run,
        concentric.step = i64::from(step),
        // Recorded by the layer that has the result.
        concentric.cached = tracing::field::Empty,
        gen_ai.tool.call.id = call,
    )
}

/// A span's name: the operation, and the model, agent or tool if it is known.
pub(super) fn span_name(operation: &str, of: Option<&str>) -> String {
    match of {
        Some(of) => format!("{operation} {of}"),
        None => operation.to_owned(),
    }
}

/// The finish reason in an output message, where the conventions enumerate them.
pub(super) const fn message_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_call",
        FinishReason::ContentFilter => "content_filter",
        _ => "error",
    }
}

/// The class of an error; `None` if it is no failure.
pub(super) const fn error_type(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::Cancelled | ErrorKind::Halted | ErrorKind::Waiting => None,
        kind => Some(kind.as_str()),
    }
}

pub(super) const fn cancel_reason(reason: &CancelReason) -> &'static str {
    match reason {
        CancelReason::User => "user",
        CancelReason::Disconnected => "disconnected",
        CancelReason::Shutdown => "shutdown",
        // The application's own text may be anything.
        _ => "other",
    }
}

pub(super) const fn effects(effects: SideEffects) -> Option<&'static str> {
    match effects {
        SideEffects::None => None,
        SideEffects::Possible => Some("possible"),
        SideEffects::Committed => Some("committed"),
    }
}
