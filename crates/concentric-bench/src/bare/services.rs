//! Decoders for the formats of other services, with typed structs that borrow their text and have
//! the fields that a gateway needs.

use super::Event;
use serde::Deserialize;
use smol_str::SmolStr;
use std::{borrow::Cow, hint::black_box};

/// A string that is borrowed if it has no escapes, also in an `Option`.
#[derive(Debug, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Text<'_> {
    fn event(self) -> Option<Event> {
        let Self(text) = self;
        (!text.is_empty()).then(|| Event::Text(SmolStr::new(text)))
    }
}

/// Calls `take` with the data of each SSE frame in `bytes`; `end` is the blank line after a frame.
fn frames(
    mut bytes: &[u8],
    end: &[u8],
    mut take: impl FnMut(&[u8]) -> serde_json::Result<()>,
) -> serde_json::Result<()> {
    while let Some(at) = memchr::memmem::find(bytes, end) {
        let (mut frame, rest) = bytes.split_at(at);
        bytes = rest.get(end.len()..).unwrap_or_default();
        if frame.starts_with(b"event: ")
            && let Some(line) = memchr::memchr(b'\n', frame)
        {
            frame = frame.get(line + 1..).unwrap_or_default();
        }
        if let Some(data) = frame.strip_prefix(b"data: ") {
            take(data)?;
        }
    }
    Ok(())
}

pub(crate) fn anthropic(bytes: &[u8], mut take: impl FnMut(Event)) -> serde_json::Result<()> {
    #[derive(Debug, Deserialize)]
    struct Chunk<'a> {
        #[serde(borrow, rename = "type")]
        type_: Text<'a>,
        index: Option<u64>,
        #[serde(borrow)]
        delta: Option<Delta<'a>>,
        #[serde(borrow)]
        message: Option<Message<'a>>,
        usage: Option<Usage>,
    }

    #[derive(Debug, Deserialize)]
    struct Delta<'a> {
        #[serde(borrow)]
        text: Option<Text<'a>>,
        #[serde(borrow)]
        stop_reason: Option<Text<'a>>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "decoded as a gateway would")]
    struct Message<'a> {
        #[serde(borrow)]
        id: Text<'a>,
        #[serde(borrow)]
        model: Text<'a>,
        usage: Usage,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "decoded as a gateway would")]
    struct Usage {
        input_tokens: Option<u64>,
        output_tokens: u64,
    }

    frames(bytes, b"\n\n", |data| {
        let chunk: Chunk<'_> = serde_json::from_slice(data)?;
        black_box((&chunk.index, &chunk.message, &chunk.usage));
        match &*chunk.type_.0 {
            "content_block_delta" => {
                if let Some(text) = chunk.delta.and_then(|delta| delta.text) {
                    text.event().into_iter().for_each(&mut take);
                }
            }
            "message_delta" => {
                black_box(chunk.delta.and_then(|delta| delta.stop_reason));
            }
            "message_stop" => take(Event::Finish),
            _ => {}
        }
        Ok(())
    })
}

pub(crate) fn responses(bytes: &[u8], mut take: impl FnMut(Event)) -> serde_json::Result<()> {
    #[derive(Debug, Deserialize)]
    struct Chunk<'a> {
        #[serde(borrow, rename = "type")]
        type_: Text<'a>,
        output_index: Option<u64>,
        content_index: Option<u64>,
        #[serde(borrow)]
        delta: Option<Text<'a>>,
        #[serde(borrow)]
        response: Option<Response<'a>>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "decoded as a gateway would")]
    struct Response<'a> {
        #[serde(borrow)]
        id: Text<'a>,
        #[serde(borrow)]
        model: Text<'a>,
        #[serde(borrow)]
        status: Text<'a>,
        usage: Option<Usage>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "decoded as a gateway would")]
    struct Usage {
        input_tokens: u64,
        output_tokens: u64,
    }

    frames(bytes, b"\n\n", |data| {
        let chunk: Chunk<'_> = serde_json::from_slice(data)?;
        black_box((&chunk.output_index, &chunk.content_index, &chunk.response));
        match &*chunk.type_.0 {
            "response.output_text.delta" => {
                let text = chunk.delta.and_then(Text::event);
                text.into_iter().for_each(&mut take);
            }
            "response.completed" => take(Event::Finish),
            _ => {}
        }
        Ok(())
    })
}

pub(crate) fn gemini(bytes: &[u8], mut take: impl FnMut(Event)) -> serde_json::Result<()> {
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Chunk<'a> {
        #[serde(borrow)]
        candidates: Vec<Candidate<'a>>,
        usage_metadata: Option<Usage>,
        #[serde(borrow)]
        model_version: Option<Text<'a>>,
        #[serde(borrow)]
        response_id: Option<Text<'a>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Candidate<'a> {
        #[serde(borrow)]
        content: Option<Content<'a>>,
        #[serde(borrow)]
        finish_reason: Option<Text<'a>>,
    }

    #[derive(Debug, Deserialize)]
    struct Content<'a> {
        #[serde(borrow, default)]
        parts: Vec<Part<'a>>,
    }

    #[derive(Debug, Deserialize)]
    struct Part<'a> {
        #[serde(borrow)]
        text: Option<Text<'a>>,
        thought: Option<bool>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "decoded as a gateway would")]
    struct Usage {
        prompt_token_count: Option<u64>,
        candidates_token_count: Option<u64>,
        thoughts_token_count: Option<u64>,
        total_token_count: Option<u64>,
    }

    // Gemini ends the lines of some streams with CRLF.
    let end: &[u8] = match bytes.ends_with(b"\r\n") {
        true => b"\r\n\r\n",
        false => b"\n\n",
    };
    frames(bytes, end, |data| {
        let chunk: Chunk<'_> = serde_json::from_slice(data)?;
        black_box((
            &chunk.response_id,
            &chunk.model_version,
            &chunk.usage_metadata,
        ));
        for candidate in chunk.candidates {
            for part in candidate.content.into_iter().flat_map(|c| c.parts) {
                if part.thought != Some(true) {
                    let text = part.text.and_then(Text::event);
                    text.into_iter().for_each(&mut take);
                }
            }
            if candidate.finish_reason.is_some() {
                take(Event::Finish);
            }
        }
        Ok(())
    })
}

pub(crate) fn ollama(bytes: &[u8], mut take: impl FnMut(Event)) -> serde_json::Result<()> {
    #[derive(Debug, Deserialize)]
    struct Chunk<'a> {
        #[serde(borrow)]
        model: Text<'a>,
        #[serde(borrow)]
        message: Message<'a>,
        done: bool,
        #[serde(borrow)]
        done_reason: Option<Text<'a>>,
        prompt_eval_count: Option<u64>,
        eval_count: Option<u64>,
    }

    #[derive(Debug, Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        content: Text<'a>,
        #[serde(borrow)]
        thinking: Option<Text<'a>>,
    }

    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    for line in lines.filter(|line| !line.trim_ascii().is_empty()) {
        let chunk: Chunk<'_> = serde_json::from_slice(line)?;
        let counts = (&chunk.prompt_eval_count, &chunk.eval_count);
        black_box((
            &chunk.model,
            &chunk.message.thinking,
            &chunk.done_reason,
            counts,
        ));
        chunk
            .message
            .content
            .event()
            .into_iter()
            .for_each(&mut take);
        if chunk.done {
            take(Event::Finish);
        }
    }
    Ok(())
}
