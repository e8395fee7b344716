//! A gateway: decodes each frame of a provider and encodes it for a browser, without a loop.

use super::{Event, codec};
use bytes::{Bytes, BytesMut};
use concentric_providers::HttpClient;
use futures_core::Stream;
use http::{HeaderValue, Request, Response, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::{BoxError, ServiceExt};

const ID: &str = "msg_0123456789abcdefgh";

/// Answers a request from a browser with the text of a provider's response.
pub(crate) async fn answer<B>(
    client: HttpClient,
    upstream: Request<Full<Bytes>>,
    request: Request<B>,
    seen: fn(usize),
) -> Result<Response<impl Body<Data = Bytes, Error = BoxError> + Send>, BoxError>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send,
{
    request.into_body().collect().await.map_err(Into::into)?;
    let response = client.oneshot(upstream).await?;
    let mut response = response.map(|body| {
        StreamBody::new(Frames {
            body: Box::pin(body),
            read: BytesMut::new(),
            seen,
        })
    });
    *response.headers_mut() = http::HeaderMap::from_iter([(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    )]);
    Ok(response)
}

/// The frames for a browser, one for each read of the provider's response.
struct Frames<B> {
    body: Pin<Box<B>>,
    read: BytesMut,
    seen: fn(usize),
}

impl<B> Stream for Frames<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Item = Result<Frame<Bytes>, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let frame = match ready!(self.body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            self.read.extend_from_slice(&data);
            let Some(end) = memchr::memmem::rfind(&self.read, b"\n\n") else {
                continue;
            };
            let whole = self.read.split_to(end + 2);
            let (mut encoded, seen) = (Vec::with_capacity(256), self.seen);
            codec::decode(&whole, |event| {
                if let Event::Text(text) = event {
                    seen(text.len());
                    codec::encode(ID, &text, &mut encoded);
                }
            })?;
            if !encoded.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(encoded.into()))));
            }
        }
    }
}
