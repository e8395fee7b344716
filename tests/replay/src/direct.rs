use crate::Recording;
use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame};
use http_body_util::Full;
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};
use tower::{Service, service_fn};

/// A body that yields the given chunks, with a pause before each.
#[derive(Clone, Debug)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    paused: bool,
}

impl Pieces {
    /// Creates a body.
    pub fn new(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        Self {
            pieces: pieces.into_iter().collect(),
            paused: false,
        }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.paused = !self.paused;
        if self.paused {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.pieces.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}

/// Creates an HTTP service that responds to every request with `recording`, its body in `pieces`.
pub fn direct(
    recording: &Recording,
    pieces: Vec<Bytes>,
) -> impl Service<
    http::Request<Full<Bytes>>,
    Response = Response<Pieces>,
    Error = Infallible,
    Future = Ready<Result<Response<Pieces>, Infallible>>,
> + Clone
+ Send
+ Sync
+ use<> {
    let (status, headers) = (recording.status, recording.headers.clone());
    service_fn(move |_| {
        let mut response = Response::new(Pieces::new(pieces.iter().cloned()));
        // An invalid status stays 200.
        if let Ok(status) = http::StatusCode::from_u16(status) {
            *response.status_mut() = status;
        }
        response.headers_mut().clone_from(&headers);
        ready(Ok(response))
    })
}
