//! Gateways that decode each frame of a provider and encode it for a client, without a loop.

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

/// The size of a chunk, in bytes, at which no further frames are added to it.
const PIECE: usize = 16 << 10;

/// The number of polls without a further frame after which a chunk is sent. hyper polls a body twice
/// before it yields.
const POLLS: u8 = 2;

/// Answers a request from a client of OpenAI with the text of a provider's response to it.
pub(crate) async fn chat<B>(
    client: HttpClient,
    url: String,
    request: Request<B>,
) -> Result<Response<impl Body<Data = Bytes, Error = BoxError> + Send>, BoxError>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send,
{
    let body = request.into_body().collect().await.map_err(Into::into)?;
    let upstream = Request::post(url)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body.to_bytes()))?;
    let response = client.oneshot(upstream).await?;
    let mut response = response.map(|body| {
        StreamBody::new(Merged {
            body: Box::pin(body),
            read: BytesMut::new(),
            encoded: Vec::new(),
            polls: 0,
        })
    });
    *response.headers_mut() = http::HeaderMap::from_iter([(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    )]);
    Ok(response)
}

/// The frames for a client; those that are ready together are one chunk.
struct Merged<B> {
    body: Pin<Box<B>>,
    read: BytesMut,
    encoded: Vec<u8>,
    // The number of polls since the last frame.
    polls: u8,
}

impl<B> Merged<B> {
    /// Decodes and encodes the frames in `data`.
    fn take(&mut self, data: &[u8]) -> Result<(), BoxError> {
        self.read.extend_from_slice(data);
        let Some(end) = memchr::memmem::rfind(&self.read, b"\n\n") else {
            return Ok(());
        };
        let whole = self.read.split_to(end + 2);
        let encoded = &mut self.encoded;
        codec::decode(&whole, |event| match event {
            Event::Text(text) => codec::encode_chunk(Some(&text), encoded),
            _ => codec::encode_chunk(None, encoded),
        })?;
        Ok(())
    }
}

impl<B> Stream for Merged<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Item = Result<Frame<Bytes>, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while self.encoded.len() < PIECE {
            match self.body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.polls = 0;
                        self.take(&data)?;
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) if self.encoded.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) => break,
                Poll::Pending if self.encoded.is_empty() => return Poll::Pending,
                Poll::Pending if self.polls < POLLS => {
                    self.polls += 1;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Pending => break,
            }
        }
        self.polls = 0;
        let encoded = std::mem::take(&mut self.encoded);
        Poll::Ready(Some(Ok(Frame::data(encoded.into()))))
    }
}
