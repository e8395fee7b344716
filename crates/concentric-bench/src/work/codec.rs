//! The wire of W5: a chunk of an OpenAI stream decoded, and a piece of text encoded for AG-UI.
//!
//! Decoding goes through the whole provider layer, over an HTTP service that answers with one frame
//! at a time, and is divided by the chunks.

use super::{
    drive::block_on,
    script::{CHUNK, chunk},
};
use crate::bare;
use bytes::{Bytes, BytesMut};
use concentric_core::{ChatRequest, Error, Event};
use concentric_http::ag_ui::encode;
use concentric_providers::{ApiKey, OpenAiLayer};
use futures_core::Stream;
use http_body::Frame;
use http_body_util::Full;
use std::{
    convert::Infallible,
    future::{Ready, poll_fn, ready},
    hint::black_box,
    pin::{Pin, pin},
    sync::LazyLock,
    task::{Context, Poll},
};
use tower::{ServiceBuilder, ServiceExt};
use tower_service::Service;

/// The chunks of an answer.
pub(crate) const CHUNKS: usize = 1_000;

/// The bytes of a chunk of text on the wire.
pub(super) const WIRE: usize = 229;

static FRAMES: LazyLock<Vec<Bytes>> = LazyLock::new(|| {
    let role = frame(r#"{"role":"assistant","content":""}"#, "null");
    let texts = (0..CHUNKS).map(|i| {
        let frame = frame(&format!(r#"{{"content":"{}"}}"#, chunk(i)), "null");
        assert_eq!(frame.len(), WIRE);
        frame
    });
    let end = [frame("{}", r#""stop""#), "data: [DONE]\n\n".to_owned()];
    std::iter::once(role)
        .chain(texts)
        .chain(end)
        .map(Bytes::from)
        .collect()
});

pub(super) fn frame(delta: &str, finish_reason: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-{:019}\",\"object\":\"chat.completion.chunk\",\
         \"created\":1700000000,\"model\":\"gpt-5.5-2026-04\",\"choices\":[{{\"index\":0,\
         \"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish_reason}}}]}}\n\n",
        0
    )
}

/// An upstream that has answered already.
#[derive(Clone, Copy, Debug)]
struct Upstream;

struct Frames(std::slice::Iter<'static, Bytes>);

impl Service<http::Request<Full<Bytes>>> for Upstream {
    type Response = http::Response<Frames>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Full<Bytes>>) -> Self::Future {
        let mut response = http::Response::new(Frames(FRAMES.iter()));
        response.headers_mut().insert(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("text/event-stream"),
        );
        ready(Ok(response))
    }
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|bytes| Ok(Frame::data(bytes.clone()))))
    }
}

pub(crate) fn decode(count: u64) {
    let mut model = ServiceBuilder::new()
        .layer(OpenAiLayer::new("gpt-5.5", ApiKey::new("key")))
        .service(Upstream);
    for _ in 0..count {
        let bytes = block_on(async {
            let response = model.ready().await?.call(ChatRequest::user("hi")).await?;
            let mut body = pin!(response.body);
            let mut bytes = 0;
            while let Some(event) = poll_fn(|cx| body.as_mut().poll_next(cx)).await {
                if let Event::TextDelta(text) = event? {
                    bytes += text.len();
                }
            }
            Ok::<_, Error>(bytes)
        });
        assert_eq!(bytes.expect("the frames are well-formed"), CHUNKS * CHUNK);
    }
}

pub(crate) fn bare_decode(count: u64) {
    for _ in 0..count {
        let mut bytes = 0;
        for frame in FRAMES.iter() {
            bare::codec::decode(frame, |event| {
                if let bare::Event::Text(text) = event {
                    bytes += text.len();
                }
            })
            .expect("the frames are well-formed");
        }
        assert_eq!(bytes, CHUNKS * CHUNK);
    }
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
