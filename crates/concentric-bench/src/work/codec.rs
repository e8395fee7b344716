//! Decoding of an OpenAI stream, and encoding of a text event for AG-UI.
//!
//! Decoding uses the complete provider layer, over an HTTP service that yields one frame at a time.
//! The cost is divided by the number of chunks.

use super::{
    script::{CHUNK, chunk},
    wire::Wire,
};
use crate::bare;
use bytes::BytesMut;
use concentric_http::ag_ui::encode;
use concentric_providers::{ApiKey, OpenAiLayer};
use std::{hint::black_box, slice, sync::LazyLock};

/// The number of text chunks in a response.
pub(crate) const CHUNKS: usize = 1_000;

/// The size of a text chunk on the wire, in bytes.
pub(super) const WIRE: usize = 229;

static CHAT: LazyLock<Wire> = LazyLock::new(|| {
    let role = frame(r#"{"role":"assistant","content":""}"#, "null");
    let texts = (0..CHUNKS).map(|i| {
        let frame = frame(&format!(r#"{{"content":"{}"}}"#, chunk(i)), "null");
        assert_eq!(frame.len(), WIRE);
        frame
    });
    let end = [frame("{}", r#""stop""#), "data: [DONE]\n\n".to_owned()];
    let frames = std::iter::once(role).chain(texts).chain(end);
    Wire::new("text/event-stream", frames, CHUNKS * CHUNK)
});

pub(super) fn frame(delta: &str, finish_reason: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-{:019}\",\"object\":\"chat.completion.chunk\",\
         \"created\":1700000000,\"model\":\"gpt-5.5-2026-04\",\"choices\":[{{\"index\":0,\
         \"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish_reason}}}]}}\n\n",
        0
    )
}

pub(super) fn wires() -> &'static [Wire] {
    slice::from_ref(&CHAT)
}

pub(super) fn layer() -> OpenAiLayer {
    OpenAiLayer::new("gpt-5.5", ApiKey::new("key"))
}

pub(crate) fn decode(count: u64) {
    CHAT.concentric(&layer(), count);
}

pub(crate) fn bare_decode(count: u64) {
    CHAT.bare(|bytes, take| bare::codec::decode(bytes, take), count);
}

const ID: &str = "msg_0123456789abcdefgh";
const TEXT: &str = "tok0000 lorem ipsum ";

fn encoded() -> usize {
    let frame =
        format!(r#"data: {{"type":"TEXT_MESSAGE_CONTENT","messageId":"{ID}","delta":"{TEXT}"}}"#);
    frame.len() + 2
}

pub(crate) fn encode(count: u64) {
    let mut buffer = BytesMut::with_capacity(encoded());
    for _ in 0..count {
        buffer.clear();
        encode::text_message_content(black_box(ID), black_box(TEXT), &mut buffer);
        black_box(&buffer);
    }
    assert!(count == 0 || buffer.len() == encoded());
}

pub(crate) fn bare_encode(count: u64) {
    let mut buffer = Vec::with_capacity(encoded());
    for _ in 0..count {
        buffer.clear();
        bare::codec::encode(black_box(ID), black_box(TEXT), &mut buffer);
        black_box(&buffer);
    }
    assert!(count == 0 || buffer.len() == encoded());
}
