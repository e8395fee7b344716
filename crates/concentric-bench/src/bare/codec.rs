//! Decoding of frames from a provider, and encoding of frames for a browser.

use super::Event;
use serde::Deserialize;
use smol_str::SmolStr;
use std::{borrow::Cow, hint::black_box};

/// The fields of an OpenAI chat completion chunk that a gateway needs.
#[derive(Debug, Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    model: Text<'a>,
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    usage: Option<Usage>,
}

#[derive(Debug, Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Delta<'a>,
    #[serde(borrow)]
    finish_reason: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
}

/// A string that is borrowed if it has no escapes, also in an `Option`.
#[derive(Debug, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "decoded as a gateway would")]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

/// Splits `bytes` into SSE frames, and calls `take` with each event.
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
        black_box((&chunk.id, &chunk.model, &chunk.usage));
        for choice in chunk.choices {
            black_box(&choice.finish_reason);
            if let Some(Text(text)) = choice.delta.content
                && !text.is_empty()
            {
                take(Event::Text(SmolStr::new(text)));
            }
        }
    }
    Ok(())
}

/// Appends an AG-UI frame with a text delta.
pub(crate) fn encode(message_id: &str, text: &str, buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(br#"data: {"type":"TEXT_MESSAGE_CONTENT","messageId":""#);
    buffer.extend_from_slice(message_id.as_bytes());
    buffer.extend_from_slice(br#"","delta":""#);
    escape(text, buffer);
    buffer.extend_from_slice(b"\"}\n\n");
}

/// Appends an OpenAI frame with a text delta, or the last frames.
pub(crate) fn encode_chunk(text: Option<&str>, buffer: &mut Vec<u8>) {
    const START: &str = concat!(
        r#"data: {"id":"chatcmpl-run_0123456789abcdefgh","object":"chat.completion.chunk","#,
        r#""created":1700000000,"model":"gpt-5.5","choices":[{"index":0,"delta":{"#,
    );
    buffer.extend_from_slice(START.as_bytes());
    if let Some(text) = text {
        buffer.extend_from_slice(br#""content":""#);
        escape(text, buffer);
        buffer.extend_from_slice(b"\"},\"finish_reason\":null}]}\n\n");
        return;
    }
    buffer.extend_from_slice(b"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
}

fn escape(text: &str, buffer: &mut Vec<u8>) {
    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(is_special) {
        let (plain, [special, tail @ ..]) = rest.split_at(at) else {
            break;
        };
        buffer.extend_from_slice(plain);
        buffer.extend_from_slice(format!("\\u{special:04x}").as_bytes());
        rest = tail;
    }
    buffer.extend_from_slice(rest);
}
