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
use serde::Serialize;
use serde_json::Value;

/// Appends a frame with any event.
pub(super) fn event<B: BufMut>(event: &impl Serialize, buffer: &mut B) {
    buffer.put_slice(b"data: ");
    // All map keys of an event are strings, and writes to a buffer do not fail.
    serde_json::to_writer((&mut *buffer).writer(), event).expect("an event is always JSON");
    buffer.put_slice(b"\n\n");
}

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
    // A `Value` is always JSON, and writes to a buffer do not fail.
    serde_json::to_writer((&mut *buffer).writer(), state).expect("a value is always JSON");
    if let Some(run) = run {
        buffer.put_slice(br#","subagentRunId":""#);
        escape(run, buffer);
        buffer.put_slice(b"\"");
    }
    buffer.put_slice(b"}\n\n");
}

/// The constant prefix of all deltas of one text message, for [`text_message_more`]; `run` is the
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

/// Appends a frame like [`text_message_content`], from a prefix with the escaped id: a third less
/// work.
#[inline]
pub(super) fn text_message_more<B: BufMut>(head: &[u8], delta: &str, buffer: &mut B) {
    buffer.put_slice(head);
    escape(delta, buffer);
    buffer.put_slice(TAIL);
}

const TEXT: &[u8] = br#"data: {"type":"TEXT_MESSAGE_CONTENT","messageId":""#;
const DELTA: &[u8] = br#"","delta":""#;
const TAIL: &[u8] = b"\"}\n\n";

fn head<B: BufMut>(start: &[u8], id: &str, buffer: &mut B) {
    buffer.put_slice(start);
    escape(id, buffer);
    buffer.put_slice(DELTA);
}

fn piece<B: BufMut>(start: &[u8], id: &str, delta: &str, buffer: &mut B) {
    head(start, id, buffer);
    escape(delta, buffer);
    buffer.put_slice(TAIL);
}

/// Appends the content of a JSON string, with quotes, backslashes and control characters escaped.
fn escape<B: BufMut>(text: &str, buffer: &mut B) {
    let mut rest = text.as_bytes();
    while let Some(at) = first_special(rest) {
        let Some((plain, [byte, tail @ ..])) = rest.split_at_checked(at) else {
            break;
        };
        buffer.put_slice(plain);
        match byte {
            b'"' => buffer.put_slice(br#"\""#),
            b'\\' => buffer.put_slice(br"\\"),
            b'\n' => buffer.put_slice(br"\n"),
            b'\r' => buffer.put_slice(br"\r"),
            b'\t' => buffer.put_slice(br"\t"),
            0x08 => buffer.put_slice(br"\b"),
            0x0c => buffer.put_slice(br"\f"),
            byte => buffer.put_slice(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 0xf)]),
        }
        rest = tail;
    }
    buffer.put_slice(rest);
}

const fn hex(digit: u8) -> u8 {
    if digit < 10 {
        b'0' + digit
    } else {
        b'a' + digit - 10
    }
}

/// The index of the first byte that must be escaped in a JSON string.
fn first_special(bytes: &[u8]) -> Option<usize> {
    let (words, tail) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let special = special(u64::from_le_bytes(*word));
        if special != 0 {
            return Some(i * 8 + special.trailing_zeros() as usize / 8);
        }
    }
    let at = tail
        .iter()
        .position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'))?;
    Some(words.len() * 8 + at)
}

/// Sets the highest bit of each byte of a word that must be escaped. Only the lowest mark is exact:
/// a borrow may mark bytes above it.
const fn special(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES * 0x80;
    let control = word.wrapping_sub(ONES * 0x20);
    let quote = (word ^ (ONES * b'"' as u64)).wrapping_sub(ONES);
    let backslash = (word ^ (ONES * b'\\' as u64)).wrapping_sub(ONES);
    // Bytes above 0x7f are never marked, even by a borrow.
    (control | quote | backslash) & !word & HIGH
}
