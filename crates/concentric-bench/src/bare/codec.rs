//! The wire: one frame of an upstream decoded, one frame for a browser encoded.

use super::Event;
use serde::Deserialize;
use smol_str::SmolStr;
use std::borrow::Cow;

/// As much of an OpenAI chat completion chunk as a gateway needs.
#[derive(Debug, Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    usage: Option<Usage>,
}

#[derive(Debug, Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Delta<'a>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "decoded as a gateway would")]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

/// Splits `bytes` into SSE frames, and hands each event in them to `take`.
pub(crate) fn decode(mut bytes: &[u8], mut take: impl FnMut(Event)) -> serde_json::Result<()> {
    while let Some(end) = memchr::memmem::find(bytes, b"\n\n") {
        let (frame, rest) = bytes.split_at(end);
        bytes = rest.get(2..).unwrap_or_default();
        let Some(data) = frame.strip_prefix(b"data: ") else {
            continue;
        };
        if data == b"[DONE]" {
            take(Event::Finish);
            continue;
        }
        let chunk: Chunk<'_> = serde_json::from_slice(data)?;
        if let Some(usage) = &chunk.usage {
            std::hint::black_box(usage);
        }
        for choice in chunk.choices {
            if let Some(text) = choice.delta.content.filter(|text| !text.is_empty()) {
                take(Event::Text(SmolStr::from(text)));
            }
            std::hint::black_box(&choice.finish_reason);
        }
    }
    Ok(())
}

/// Appends an AG-UI frame with a piece of a text message.
pub(crate) fn encode(message_id: &str, text: &str, buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(br#"data: {"type":"TEXT_MESSAGE_CONTENT","messageId":""#);
    buffer.extend_from_slice(message_id.as_bytes());
    buffer.extend_from_slice(br#"","delta":""#);
    for piece in text.split_inclusive(|c: char| matches!(c, '"' | '\\' | '\0'..='\x1f')) {
        let (last, head) = match piece.as_bytes().split_last() {
            Some((last @ (b'"' | b'\\' | 0..0x20), head)) => (Some(*last), head),
            _ => (None, piece.as_bytes()),
        };
        buffer.extend_from_slice(head);
        match last {
            Some(special @ (b'"' | b'\\')) => buffer.extend_from_slice(&[b'\\', special]),
            Some(control) => buffer.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
            None => {}
        }
    }
    buffer.extend_from_slice(b"\"}\n\n");
}
