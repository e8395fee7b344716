use super::{ActivityRequest, ActivityResponse};
use crate::{
    api::Answer,
    model::{Clocks, Refused, is_compressed, request_id},
};
use bytes::Bytes;
use concentric_core::{BoxError, Error, ErrorKind};
use http::{HeaderMap, header, response::Parts};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{self, Poll, ready},
};

pin_project! {
    /// Response future of [`Activity`](super::Activity): resolves when the response is complete.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ActivityFuture<F, RB, R> {
        #[pin]
        call: Option<F>,
        clocks: Option<Box<Clocks>>,
        state: State<RB, R>,
    }
}

enum State<RB, R> {
    Called(Box<Answer>, R),
    Reading(Box<Reading<RB, R>>),
    Refused(Box<Refused<RB>>),
    Failed(Error),
    Done,
}

struct Reading<RB, R> {
    headers: HeaderMap,
    body: Pin<Box<RB>>,
    read: Vec<u8>,
    answer: Box<Answer>,
    request: R,
}

impl<F, RB, R> ActivityFuture<F, RB, R> {
    pub(super) fn new(call: F, clocks: Option<Box<Clocks>>, answer: Answer, request: R) -> Self {
        Self {
            call: Some(call),
            clocks,
            state: State::Called(Box::new(answer), request),
        }
    }

    pub(super) const fn failed(error: Error) -> Self {
        Self {
            call: None,
            clocks: None,
            state: State::Failed(error),
        }
    }
}

impl<F, RB, R, E> Future for ActivityFuture<F, RB, R>
where
    F: Future<Output = Result<http::Response<RB>, E>>,
    E: Into<BoxError>,
    R: ActivityRequest,
    RB: http_body::Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
{
    type Output = Result<ActivityResponse<R::Output>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state {
                State::Called(answer, _) => {
                    let Some(call) = this.call.as_mut().as_pin_mut() else {
                        return Poll::Ready(Err(done()));
                    };
                    let response = match ready!(Clocks::poll(this.clocks, cx, |cx| call.poll(cx))) {
                        Ok(Ok(response)) => Ok(response),
                        Ok(Err(error)) => Err(answer.origin().transport(error.into())),
                        Err(expired) => Err(expired.error(answer.origin())),
                    };
                    // A completed future holds no resources.
                    this.call.set(None);
                    let State::Called(answer, request) = mem::replace(this.state, State::Done)
                    else {
                        return Poll::Ready(Err(done()));
                    };
                    let (parts, body) = response?.into_parts();
                    *this.state = answered(parts, Box::pin(body), this.clocks, answer, request);
                }
                State::Reading(reading) => {
                    let result = ready!(reading.poll(this.clocks, cx));
                    *this.state = State::Done;
                    return Poll::Ready(result);
                }
                State::Refused(refused) => {
                    let error = ready!(refused.poll(cx));
                    *this.state = State::Done;
                    return Poll::Ready(Err(error));
                }
                State::Failed(error) => {
                    let error = error.clone();
                    *this.state = State::Done;
                    return Poll::Ready(Err(error));
                }
                State::Done => return Poll::Ready(Err(done())),
            }
        }
    }
}

fn done() -> Error {
    Error::new(ErrorKind::Other, "the future was polled after completion")
}

fn answered<RB, R>(
    parts: Parts,
    body: Pin<Box<RB>>,
    clocks: &mut Option<Box<Clocks>>,
    mut answer: Box<Answer>,
    request: R,
) -> State<RB, R> {
    answer.head.request_id = request_id(&parts.headers);
    if let Some(clocks) = clocks {
        clocks.byte();
    }
    if !parts.status.is_success() {
        return State::Refused(Box::new(Refused::new(parts, body, clocks.take(), *answer)));
    }
    if is_compressed(&parts.headers) {
        let what = "the response is compressed, although no compression was requested";
        return State::Failed(answer.origin().error(ErrorKind::Protocol, what));
    }
    State::Reading(Box::new(Reading {
        headers: parts.headers,
        body,
        read: Vec::new(),
        answer,
        request,
    }))
}

impl<RB, R> Reading<RB, R>
where
    R: ActivityRequest,
    RB: http_body::Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
{
    fn poll(
        &mut self,
        clocks: &mut Option<Box<Clocks>>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<ActivityResponse<R::Output>, Error>> {
        let origin = self.answer.origin();
        loop {
            let body = &mut self.body;
            match ready!(Clocks::poll(clocks, cx, |cx| body.as_mut().poll_frame(cx))) {
                Err(expired) => return Poll::Ready(Err(expired.error(origin))),
                Ok(Some(Err(error))) => return Poll::Ready(Err(origin.transport(error.into()))),
                Ok(None) => break,
                Ok(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    if let Some(clocks) = clocks
                        && !data.is_empty()
                    {
                        clocks.byte();
                        clocks.progress();
                    }
                    if self.read.len() + data.len() > self.answer.limits.response {
                        let what = "the response is larger than the limit";
                        return Poll::Ready(Err(origin.error(ErrorKind::TooLarge, what)));
                    }
                    self.read.extend_from_slice(&data);
                }
            }
        }
        let media_type = self.headers.get(header::CONTENT_TYPE);
        let media_type = media_type.and_then(|value| value.to_str().ok());
        let read = Bytes::from(mem::take(&mut self.read));
        let response = self.request.read(read, media_type, &self.answer);
        Poll::Ready(response.map(|mut response| {
            response.request_id = self.answer.head.request_id.take();
            response
        }))
    }
}

impl<F, RB, R> fmt::Debug for ActivityFuture<F, RB, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivityFuture").finish_non_exhaustive()
    }
}
