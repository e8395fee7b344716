//! A prepared response of a service, which is yielded one frame at a time and read by both sides.

use super::drive::block_on;
use crate::bare;
use bytes::Bytes;
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use http::{HeaderValue, header};
use http_body::Frame;
use http_body_util::Full;
use std::{
    convert::Infallible,
    future::{Ready, poll_fn, ready},
    pin::{Pin, pin},
    task::{Context, Poll},
};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_service::Service;

/// A prepared response.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) media_type: &'static str,
    /// The frames, each of which is yielded by one poll.
    pub(crate) frames: Vec<Bytes>,
    /// The total size of the text in bytes.
    pub(crate) text: usize,
}

impl Wire {
    pub(super) fn new(
        media_type: &'static str,
        frames: impl IntoIterator<Item = String>,
        text: usize,
    ) -> Self {
        Self {
            media_type,
            frames: frames.into_iter().map(Bytes::from).collect(),
            text,
        }
    }

    /// Reads the response `count` times with the model that `layer` creates.
    pub(super) fn concentric<L, B>(&'static self, layer: &L, count: u64)
    where
        L: Layer<Upstream>,
        L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
        B: Stream<Item = Result<Event, Error>>,
    {
        let mut model = layer.layer(Upstream(self));
        for _ in 0..count {
            let text = block_on(async {
                let response = model.ready().await?.call(ChatRequest::user("hi")).await?;
                let mut body = pin!(response.body);
                let mut text = 0;
                while let Some(event) = poll_fn(|cx| body.as_mut().poll_next(cx)).await {
                    if let Event::TextDelta(delta) = event? {
                        text += delta.len();
                    }
                }
                Ok::<_, Error>(text)
            });
            assert_eq!(text.expect("the frames are well-formed"), self.text);
        }
    }

    /// Reads the response `count` times with `decode`.
    pub(super) fn bare(
        &self,
        decode: impl Fn(&[u8], &mut dyn FnMut(bare::Event)) -> serde_json::Result<()>,
        count: u64,
    ) {
        for _ in 0..count {
            let mut text = 0;
            for frame in &self.frames {
                decode(frame, &mut |event| {
                    if let bare::Event::Text(delta) = event {
                        text += delta.len();
                    }
                })
                .expect("the frames are well-formed");
            }
            assert_eq!(text, self.text);
        }
    }
}

/// An HTTP service whose response is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upstream(&'static Wire);

pub(super) struct Frames(std::slice::Iter<'static, Bytes>);

impl Service<http::Request<Full<Bytes>>> for Upstream {
    type Response = http::Response<Frames>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Full<Bytes>>) -> Self::Future {
        let mut response = http::Response::new(Frames(self.0.frames.iter()));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(self.0.media_type),
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
