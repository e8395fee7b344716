//! Encoding of events as frames of a `text/event-stream`.
//!
//! A frame is `data: `, one line of JSON, and two line feeds. The reference client splits the
//! stream only at two line feeds, so a `CRLF` fails the run, and it parses every `data:` line, so a
//! `[DONE]` fails it too.
//!
//! Most of a stream is deltas, which have functions of their own. A 20-byte delta takes fewer than
//! 500 instructions, and no allocation if the buffer has capacity (`benches/encode.rs`).
//!
//! All functions append to the buffer, a `Vec<u8>` or a `BytesMut`, and panic only where a
//! [`BufMut`] of a fixed size is full.

use bytes::BufMut;
use serde_json::Value;

pub(super) use crate::sse::{delta as text_message_more, event};
use crate::sse::{escape, json, string_end};

/// Appends a frame with a delta of a text message (`TEXT_MESSAGE_CONTENT`).
pub fn text_message_content<B: BufMut>(message_id: &str, delta: &str, buffer: &mut B) {
    piece(TEXT, message_id, delta, buffer);
}

/// Appends a frame with a delta of a reasoning message (`REASONING_MESSAGE_CONTENT`).
pub fn reasoning_message_content<B: BufMut>(message_id: &str, delta: &str, buffer: &mut B) {
    piece(
        br#"data: {"type":"REASONING_MESSAGE_CONTENT","messageId":""#,
        message_id,
        delta,
        buffer,
    );
}

/// Appends a frame with a delta of a tool call's arguments (`TOOL_CALL_ARGS`).
pub fn tool_call_args<B: BufMut>(tool_call_id: &str, delta: &str, buffer: &mut B) {
    piece(
        br#"data: {"type":"TOOL_CALL_ARGS","toolCallId":""#,
        tool_call_id,
        delta,
        buffer,
    );
}

/// Appends a frame with the whole state (`STATE_SNAPSHOT`); `run` is the sub-agent's run, if any.
///
/// A typed event would need a copy of the state.
pub(super) fn state_snapshot<B: BufMut>(state: &Value, run: Option<&str>, buffer: &mut B) {
    buffer.put_slice(br#"data: {"type":"STATE_SNAPSHOT","snapshot":"#);
    json(state, buffer);
    if let Some(run) = run {
        buffer.put_slice(br#","subagentRunId":""#);
        escape(run, buffer);
        buffer.put_slice(b"\"");
    }
    buffer.put_slice(b"}\n\n");
}

/// The constant prefix of all deltas of one text message, for `text_message_more`; `run` is the
/// sub-agent's run, if any.
pub(super) fn text_message_head(message_id: &str, run: Option<&str>) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(TEXT.len() + message_id.len() + DELTA.len());
    buffer.put_slice(TEXT);
    escape(message_id, &mut buffer);
    if let Some(run) = run {
        buffer.put_slice(br#"","subagentRunId":""#);
        escape(run, &mut buffer);
    }
    buffer.put_slice(DELTA);
    buffer
}

const TEXT: &[u8] = br#"data: {"type":"TEXT_MESSAGE_CONTENT","messageId":""#;
const DELTA: &[u8] = br#"","delta":""#;

fn head<B: BufMut>(start: &[u8], id: &str, buffer: &mut B) {
    buffer.put_slice(start);
    escape(id, buffer);
    buffer.put_slice(DELTA);
}

fn piece<B: BufMut>(start: &[u8], id: &str, delta: &str, buffer: &mut B) {
    head(start, id, buffer);
    string_end(delta, buffer);
}
