use super::{Body, answer::Answer, config::Config};
use bytes::Bytes;
use concentric_core::{BoxError, ChatResponse, Context, Error, ErrorKind, Head, Str};
use http::{HeaderMap, StatusCode, response::Parts};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
};

pin_project! {
    /// Response future for [`OpenAi`](super::OpenAi): resolves when the first content is there.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F, RB> {
        #[pin]
        call: Option<F>,
        state: State<RB>,
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "most futures end as the largest, and a box would be an allocation per call"
)]
enum State<RB> {
    /// The response's head is awaited.
    Called(Arc<Config>, Context, Head),
    /// The answer's first content is.
    Answered(Body<RB>),
    /// The rest of an error is.
    Refused(Box<Refused<RB>>),
    Failed(Error),
    Done,
}

struct Refused<RB> {
    status: StatusCode,
    headers: HeaderMap,
    // Boxed for the same reason as that of `Body`.
    body: Pin<Box<RB>>,
    read: Vec<u8>,
    answer: Answer,
    now: std::time::SystemTime,
}

impl<F, RB> ResponseFuture<F, RB> {
    pub(super) const fn new(call: F, config: Arc<Config>, context: Context, head: Head) -> Self {
        Self {
            call: Some(call),
            state: State::Called(config, context, head),
        }
    }

    pub(super) const fn failed(error: Error) -> Self {
        Self {
            call: None,
            state: State::Failed(error),
        }
    }
}

impl<F, RB, E> Future for ResponseFuture<F, RB>
where
    F: Future<Output = Result<http::Response<RB>, E>>,
    E: Into<BoxError>,
    RB: http_body::Body<Data = Bytes>,
    RB::Error: Into<BoxError>,
{
    type Output = Result<ChatResponse<Body<RB>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state {
                State::Called(config, ..) => {
                    let Some(call) = this.call.as_mut().as_pin_mut() else {
                        return Poll::Ready(Err(done()));
                    };
                    let response = ready!(call.poll(cx))
                        .map_err(|error| config.origin(None).transport(error.into()));
                    // A future that is done holds nothing.
                    this.call.set(None);
                    let State::Called(config, context, head) =
                        std::mem::replace(this.state, State::Done)
                    else {
                        return Poll::Ready(Err(done()));
                    };
                    let (parts, body) = response?.into_parts();
                    *this.state = answered(parts, body, config, context, head);
                }
                State::Answered(body) => {
                    let result = ready!(body.poll_content(cx));
                    let state = std::mem::replace(this.state, State::Done);
                    return Poll::Ready(match (result, state) {
                        (Err(error), _) => Err(error),
                        (Ok(()), State::Answered(body)) => {
                            let head = body.head().clone();
                            Ok(ChatResponse::new(body).with_head(head))
                        }
                        _ => Err(done()),
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
    Error::new(ErrorKind::Other, "the future was polled after it was done")
}

fn answered<RB>(
    parts: Parts,
    body: RB,
    config: Arc<Config>,
    context: Context,
    mut head: Head,
) -> State<RB> {
    head.request_id = request_id(&parts.headers);
    let now = context.now();
    let answer = Answer::new(config, context, head);
    let body = Box::pin(body);
    if parts.status.is_success() {
        State::Answered(Body::new(body, &parts.headers, answer))
    } else {
        State::Refused(Box::new(Refused {
            status: parts.status,
            headers: parts.headers,
            body,
            read: Vec::new(),
            answer,
            now,
        }))
    }
}

fn request_id(headers: &HeaderMap) -> Option<Str> {
    ["x-request-id", "request-id", "apim-request-id", "cf-ray"]
        .iter()
        .find_map(|name| headers.get(*name)?.to_str().ok())
        .map(Str::from)
}

impl<RB> Refused<RB>
where
    RB: http_body::Body<Data = Bytes>,
{
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Error> {
        let limits = self.answer.config().limits;
        while self.read.len() < limits.error {
            match ready!(self.body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    let room = limits.error - self.read.len();
                    self.read.extend(data.iter().take(room));
                }
                // The status says enough.
                Some(Err(_)) | None => break,
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

impl<F, RB> fmt::Debug for ResponseFuture<F, RB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Called(..) => "called",
            State::Answered(_) => "answered",
            State::Refused(_) => "refused",
            State::Failed(_) => "failed",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
