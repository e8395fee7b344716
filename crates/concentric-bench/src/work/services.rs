//! Streams in the formats of other services, with the same number of text deltas each, decoded by
//! the complete provider layer and by the bare decoder.
//!
//! The length of a delta is typical of the service: from one token to a few lines.

use super::{
    codec::CHUNKS,
    script::{CHUNK, chunk},
    wire::Wire,
};
use crate::bare;
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiResponsesLayer,
};
use std::{iter::once, slice, sync::LazyLock};

/// Returns the text of a delta, `times` times [`CHUNK`] bytes. It has no escapes, which would cost
/// both sides two more allocations in serde_json.
fn text(i: usize, times: usize) -> String {
    chunk(i).repeat(times)
}

fn event(data: &str) -> String {
    let type_ = data.split('"').nth(3).expect("the type comes first");
    format!("event: {type_}\ndata: {data}\n\n")
}

static ANTHROPIC: LazyLock<Wire> = LazyLock::new(|| {
    const TIMES: usize = 2;
    let begin = [
        r#"{"type":"message_start","message":{"model":"claude-sonnet-4-6","id":"msg_013Zva2CMHLNnXjNJJKqJ2EF","type":"message","role":"assistant","content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0},"output_tokens":1,"service_tier":"standard","inference_geo":"global"}}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"{"type":"ping"}"#,
    ];
    let texts = (0..CHUNKS).map(|i| {
        // The service pads its events with spaces.
        event(&format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{}"}}{:pad$}}}"#,
            text(i, TIMES),
            "",
            pad = i * 7 % 16,
        ))
    });
    let end = [
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null,"stop_details":null},"usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":9000}}"#,
        r#"{"type":"message_stop"}"#,
    ];
    let frames = begin.map(event).into_iter().chain(texts);
    let frames = frames.chain(end.map(event));
    Wire::new("text/event-stream", frames, CHUNKS * CHUNK * TIMES)
});

pub(super) fn anthropic_wires() -> &'static [Wire] {
    slice::from_ref(&ANTHROPIC)
}

pub(super) fn anthropic_layer() -> AnthropicLayer {
    AnthropicLayer::new("claude-sonnet-4-6", ApiKey::new("key"))
}

pub(super) fn anthropic(count: u64) {
    ANTHROPIC.concentric(&anthropic_layer(), count);
}

pub(super) fn bare_anthropic(count: u64) {
    ANTHROPIC.bare(|bytes, take| bare::services::anthropic(bytes, take), count);
}

/// Returns a response object.
fn response(status: &str, output: &str, usage: &str) -> String {
    format!(
        r#"{{"id":"resp_0123456789abcdef0123456789abcdef0123456789abcdef","object":"response","created_at":1700000000,"status":"{status}","background":false,"completed_at":null,"error":null,"frequency_penalty":0.0,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"model":"gpt-5.5-2026-04","output":[{output}],"parallel_tool_calls":true,"presence_penalty":0.0,"previous_response_id":null,"prompt_cache_key":null,"prompt_cache_retention":null,"reasoning":{{"effort":"none","summary":null}},"safety_identifier":null,"service_tier":"auto","store":false,"temperature":1.0,"text":{{"format":{{"type":"text"}},"verbosity":"medium"}},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"truncation":"disabled","usage":{usage},"user":null,"metadata":{{}}}}"#
    )
}

static RESPONSES: LazyLock<Wire> = LazyLock::new(|| {
    const ID: &str = "msg_0123456789abcdef0123456789abcdef0123456789abcdef";
    let part = |text: &str| {
        format!(r#"{{"type":"output_text","annotations":[],"logprobs":[],"text":"{text}"}}"#)
    };
    let item = |status: &str, content: &str| {
        format!(
            r#"{{"id":"{ID}","type":"message","status":"{status}","content":[{content}],"role":"assistant"}}"#
        )
    };
    let place = format!(r#""item_id":"{ID}","output_index":0,"content_index":0"#);
    let whole: String = (0..CHUNKS).map(|i| text(i, 1)).collect();
    let whole_item = item("completed", &part(&whole));
    let begun = response("in_progress", "", "null");
    let usage = r#"{"input_tokens":25,"input_tokens_details":{"cached_tokens":0},"output_tokens":5000,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":5025}"#;
    let completed = response("completed", &whole_item, usage);
    let added = item("in_progress", "");
    let begin = [
        format!(r#"{{"type":"response.created","sequence_number":0,"response":{begun}}}"#),
        format!(r#"{{"type":"response.in_progress","sequence_number":1,"response":{begun}}}"#),
        format!(
            r#"{{"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{added}}}"#
        ),
        format!(
            r#"{{"type":"response.content_part.added","sequence_number":3,{place},"part":{}}}"#,
            part("")
        ),
    ];
    let texts = (0..CHUNKS).map(|i| {
        // The service obfuscates the length of the text.
        let padding = "aB3dE6gH9jK2mN5p".get(..i * 7 % 16).unwrap_or_default();
        format!(
            r#"{{"type":"response.output_text.delta","sequence_number":{},{place},"delta":"{}","logprobs":[],"obfuscation":"{padding}"}}"#,
            i + 4,
            text(i, 1),
        )
    });
    let end = [
        format!(
            r#"{{"type":"response.output_text.done","sequence_number":1004,{place},"text":"{whole}","logprobs":[]}}"#
        ),
        format!(
            r#"{{"type":"response.content_part.done","sequence_number":1005,{place},"part":{}}}"#,
            part(&whole)
        ),
        format!(
            r#"{{"type":"response.output_item.done","sequence_number":1006,"output_index":0,"item":{whole_item}}}"#
        ),
        format!(r#"{{"type":"response.completed","sequence_number":1007,"response":{completed}}}"#),
    ];
    let frames = begin.into_iter().chain(texts).chain(end);
    let frames = frames.map(|data| event(&data));
    Wire::new("text/event-stream; charset=utf-8", frames, CHUNKS * CHUNK)
});

pub(super) fn responses_wires() -> &'static [Wire] {
    slice::from_ref(&RESPONSES)
}

pub(super) fn responses_layer() -> OpenAiResponsesLayer {
    OpenAiResponsesLayer::new("gpt-5.5", ApiKey::new("key"))
}

pub(super) fn responses(count: u64) {
    RESPONSES.concentric(&responses_layer(), count);
}

pub(super) fn bare_responses(count: u64) {
    RESPONSES.bare(|bytes, take| bare::services::responses(bytes, take), count);
}

static GEMINI: LazyLock<Wire> = LazyLock::new(|| {
    const TIMES: usize = 6;
    let frames = (0..CHUNKS).map(|i| {
        let end = match i + 1 == CHUNKS {
            true => r#""finishReason": "STOP","#,
            false => "",
        };
        let (output, total) = (30 * (i + 1), 30 * (i + 1) + 241);
        format!(
            "data: {{\"candidates\": [{{\"content\": {{\"parts\": [{{\"text\": \"{}\"}}],\
             \"role\": \"model\"}},{end}\"index\": 0}}],\"usageMetadata\": {{\
             \"promptTokenCount\": 9,\"candidatesTokenCount\": {output},\
             \"totalTokenCount\": {total},\"promptTokensDetails\": [{{\"modality\": \"TEXT\",\
             \"tokenCount\": 9}}],\"thoughtsTokenCount\": 232}},\
             \"modelVersion\": \"gemini-2.5-flash\",\
             \"responseId\": \"cpHtaMTcEaXUjMcPqNPB0Qs\"}}\r\n\r\n",
            text(i, TIMES),
        )
    });
    Wire::new("text/event-stream", frames, CHUNKS * CHUNK * TIMES)
});

pub(super) fn gemini_wires() -> &'static [Wire] {
    slice::from_ref(&GEMINI)
}

pub(super) fn gemini_layer() -> GeminiLayer {
    GeminiLayer::new("gemini-2.5-flash", ApiKey::new("key"))
}

pub(super) fn gemini(count: u64) {
    GEMINI.concentric(&gemini_layer(), count);
}

pub(super) fn bare_gemini(count: u64) {
    GEMINI.bare(|bytes, take| bare::services::gemini(bytes, take), count);
}

static OLLAMA: LazyLock<Wire> = LazyLock::new(|| {
    let line = |i: usize, text: &str, end: &str| {
        format!(
            "{{\"model\":\"qwen3:4b\",\"created_at\":\"2026-08-17T15:57:{:02}.{:06}Z\",\
             \"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}},{end}}}\n",
            i * 12 / 1_000,
            i * 12_000 % 1_000_000,
        )
    };
    let texts = (0..CHUNKS).map(|i| line(i, &text(i, 1), r#""done":false"#));
    let end = line(
        CHUNKS,
        "",
        r#""done":true,"done_reason":"stop","total_duration":12471383958,"load_duration":64202792,"prompt_eval_count":18,"prompt_eval_duration":591535833,"eval_count":1000,"eval_duration":11717143165"#,
    );
    let frames = texts.chain(once(end));
    Wire::new("application/x-ndjson", frames, CHUNKS * CHUNK)
});

pub(super) fn ollama_wires() -> &'static [Wire] {
    slice::from_ref(&OLLAMA)
}

pub(super) fn ollama_layer() -> OllamaLayer {
    OllamaLayer::new("qwen3:4b")
}

pub(super) fn ollama(count: u64) {
    OLLAMA.concentric(&ollama_layer(), count);
}

pub(super) fn bare_ollama(count: u64) {
    OLLAMA.bare(|bytes, take| bare::services::ollama(bytes, take), count);
}
