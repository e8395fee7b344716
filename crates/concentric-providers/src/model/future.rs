use super::{Body, clocks::Clocks};
use crate::{
    api::{Answer, Api},
    rate_limits,
};
use bytes::Bytes;
use concentric_core::{BoxError, ChatResponse, Error, ErrorKind, RateLimits, Str, Usage};
use http::{HeaderMap, StatusCode, header, response::Parts};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{self, Poll, ready},
};

pin_project! {
    /// Response future of [`Model`](super::Model): resolves when the first content arrives.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F, RB, A: Api> {
        #[pin]
        call: Option<F>,
        // Whether the request may have been sent.
        was_polled: bool,
        clocks: Option<Box<Clocks>>,
        state: State<RB, A>,
    }

    impl<F, RB, A: Api> PinnedDrop for ResponseFuture<F, RB, A> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let State::Called(answer, _) = this.state
                && *this.was_polled
            {
                answer.record_estimate(Usage::default());
            }
        }
    }
}

enum State<RB, A: Api> {
    /// The request was sent, and the response head is awaited.
    Called(Answer, A::Decoder),
    /// Waits for the first content.
    Answered(Body<RB, A>, Option<Box<RateLimits>>),
    /// Waits for the body of an error.
    Refused(Box<Refused<RB>>),
    Failed(Error),
    Done,
}

pub(crate) struct Refused<RB> {
    status: StatusCode,
    headers: HeaderMap,
    // Boxed for the same reason as in `Body`.
    body: Pin<Box<RB>>,
    clocks: Option<Box<Clocks>>,
    read: Vec<u8>,
    answer: Answer,
    now: std::time::SystemTime,
}

impl<F, RB, A: Api> ResponseFuture<F, RB, A> {
    pub(super) const fn new(
        call: F,
        clocks: Option<Box<Clocks>>,
        answer: Answer,
        decoder: A::Decoder,
    ) -> Self {
        Self {
            call: Some(call),
            was_polled: false,
            clocks,
            state: State::Called(answer, decoder),
        }
    }

    pub(super) const fn failed(error: Error) -> Self {
        Self {
            call: None,
            was_polled: false,
            clocks: None,
            state: State::Failed(error),
        }
    }
}

impl<F, RB, A, E> Future for ResponseFuture<F, RB, A>
where
    A: Api,
    F: Future<Output = Result<http::Response<RB>, E>>,
    E: Into<BoxError>,
    RB: http_body::Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
{
    type Output = Result<ChatResponse<Body<RB, A>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        *this.was_polled = true;
        loop {
            match this.state {
                State::Called(answer, _) => {
                    let Some(call) = this.call.as_mut().as_pin_mut() else {
                        return Poll::Ready(Err(done()));
                    };
                    let response = match ready!(Clocks::poll(this.clocks, cx, |cx| call.poll(cx))) {
                        Ok(Ok(response)) => Ok(response),
                        Ok(Err(error)) => Err(answer.origin().transport(error.into())),
                        Err(expired) => {
                            answer.record_estimate(Usage::default());
                            Err(expired.error(answer.origin()))
                        }
                    };
                    // A completed future holds no resources.
                    this.call.set(None);
                    let State::Called(answer, decoder) = std::mem::replace(this.state, State::Done)
                    else {
                        return Poll::Ready(Err(done()));
                    };
                    let (parts, body) = response?.into_parts();
                    let mut clocks = this.clocks.take();
                    if let Some(clocks) = &mut clocks {
                        clocks.byte();
                    }
                    *this.state = answered(parts, body, clocks, answer, decoder);
                }
                State::Answered(body, _) => {
                    let result = ready!(body.poll_content(cx));
                    let State::Answered(body, limits) = std::mem::replace(this.state, State::Done)
                    else {
                        return Poll::Ready(Err(done()));
                    };
                    return Poll::Ready(match (result, limits) {
                        (Err(error), Some(limits)) => Err(error.with_rate_limits(*limits)),
                        (Err(error), None) => Err(error),
                        (Ok(()), limits) => {
                            let head = body.head().clone();
                            let mut response = ChatResponse::new(body).with_head(head);
                            if let Some(limits) = limits {
                                response.extensions.insert(*limits);
                            }
                            Ok(response)
                        }
                    });
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

fn answered<RB, A: Api>(
    parts: Parts,
    body: RB,
    clocks: Option<Box<Clocks>>,
    mut answer: Answer,
    decoder: A::Decoder,
) -> State<RB, A> {
    answer.head.request_id = request_id(&parts.headers);
    let body = Box::pin(body);
    if parts.status.is_success() && is_compressed(&parts.headers) {
        // A compressed body cannot be parsed, and its end would be reported as a truncated
        // response.
        let what = "the response is compressed, although no compression was requested";
        State::Failed(answer.origin().error(ErrorKind::Protocol, what))
    } else if parts.status.is_success() {
        let limits = rate_limits::read(&parts.headers, answer.context.now()).map(Box::new);
        State::Answered(
            Body::new(body, clocks, &parts.headers, answer, decoder),
            limits,
        )
    } else {
        State::Refused(Box::new(Refused::new(parts, body, clocks, answer)))
    }
}

/// Whether the body has a content coding. A decompression layer below removes the header. Other
/// values of the header (`none`, `utf-8`) are ignored.
pub(crate) fn is_compressed(headers: &HeaderMap) -> bool {
    const CODINGS: [&str; 6] = ["br", "compress", "deflate", "gzip", "x-gzip", "zstd"];
    let codings = headers.get_all(header::CONTENT_ENCODING).into_iter();
    codings
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            CODINGS
                .iter()
                .any(|c| coding.trim().eq_ignore_ascii_case(c))
        })
}

pub(crate) fn request_id(headers: &HeaderMap) -> Option<Str> {
    ["x-request-id", "request-id", "apim-request-id", "cf-ray"]
        .iter()
        .find_map(|name| headers.get(*name)?.to_str().ok())
        .map(Str::from)
}

impl<RB> Refused<RB> {
    pub(crate) fn new(
        parts: Parts,
        body: Pin<Box<RB>>,
        mut clocks: Option<Box<Clocks>>,
        answer: Answer,
    ) -> Self {
        if let Some(clocks) = &mut clocks {
            clocks.refused();
        }
        Self {
            status: parts.status,
            headers: parts.headers,
            body,
            clocks,
            read: Vec::new(),
            now: answer.context.now(),
            answer,
        }
    }
}

impl<RB: http_body::Body<Data = Bytes>> Refused<RB> {
    pub(crate) fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Error> {
        let limits = self.answer.limits;
        while self.read.len() < limits.error {
            let body = &mut self.body;
            match ready!(Clocks::poll(&mut self.clocks, cx, |cx| body
                .as_mut()
                .poll_frame(cx)))
            {
                Ok(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    if let Some(clocks) = &mut self.clocks
                        && !data.is_empty()
                    {
                        clocks.byte();
                    }
                    let room = limits.error - self.read.len();
                    self.read.extend(data.iter().take(room));
                }
                // The status is sufficient for the error.
                Ok(Some(Err(_)) | None) | Err(_) => break,
            }
        }
        Poll::Ready(self.answer.origin().refused(
            self.status,
            &self.headers,
            &self.read,
            self.now,
            &limits,
        ))
    }
}

impl<F, RB, A: Api> fmt::Debug for ResponseFuture<F, RB, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
