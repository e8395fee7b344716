//! Frames of a `text/event-stream`.
//!
//! A frame is `data: `, one line of JSON, and two line feeds. Clients split the stream only at two line feeds.

use bytes::BufMut;
use serde::Serialize;

/// Appends a frame with any event.
pub(crate) fn event<B: BufMut>(event: &impl Serialize, buffer: &mut B) {
    buffer.put_slice(b"data: ");
    json(event, buffer);
    buffer.put_slice(b"\n\n");
}

/// Appends a value as JSON.
pub(crate) fn json<B: BufMut>(value: &impl Serialize, buffer: &mut B) {
    // All map keys of an event are strings, and writes to a buffer do not fail.
    serde_json::to_writer((&mut *buffer).writer(), value).expect("an event is always JSON");
}

/// Appends a frame from its prefix, which ends within a JSON string, and the rest of the string: a third less work than
/// with the prefix in parts.
#[inline]
pub(crate) fn delta<B: BufMut>(head: &[u8], delta: &str, buffer: &mut B) {
    buffer.put_slice(head);
    string_end(delta, buffer);
}

/// Appends the rest of a string that ends an event, and the end of the frame.
#[inline]
pub(crate) fn string_end<B: BufMut>(text: &str, buffer: &mut B) {
    escape(text, buffer);
    buffer.put_slice(b"\"}\n\n");
}

/// Appends the content of a JSON string, with quotes, backslashes and control characters escaped.
pub(crate) fn escape<B: BufMut>(text: &str, buffer: &mut B) {
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
