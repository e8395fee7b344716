//! Encoding of chunks as frames of a `text/event-stream`.
//!
//! Most of a stream is deltas, which have a prefix of their own.

use bytes::BufMut;

use crate::sse::escape;

/// The frame of the end of a stream, which clients ignore and some proxies expect.
pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";

/// The constant prefix of all deltas of a text.
pub(super) fn text_head(id: &str) -> Vec<u8> {
    head(
        br#"data: {"type":"text-delta","id":""#,
        id,
        br#"","delta":""#,
    )
}

/// The constant prefix of all deltas of a reasoning text.
pub(super) fn reasoning_head(id: &str) -> Vec<u8> {
    head(
        br#"data: {"type":"reasoning-delta","id":""#,
        id,
        br#"","delta":""#,
    )
}

/// The constant prefix of all deltas of a call's arguments.
pub(super) fn input_head(tool_call_id: &str) -> Vec<u8> {
    head(
        br#"data: {"type":"tool-input-delta","toolCallId":""#,
        tool_call_id,
        br#"","inputTextDelta":""#,
    )
}

fn head(start: &[u8], id: &str, end: &[u8]) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(start.len() + id.len() + end.len());
    buffer.put_slice(start);
    escape(id, &mut buffer);
    buffer.put_slice(end);
    buffer
}
