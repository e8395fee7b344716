use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use concentric_core::context::Sleep;
use http::{HeaderValue, StatusCode, header};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::util::Oneshot;
use tower_service::Service;

use super::{
    AdmissionBody,
    gate::{Arrival, Full, Permit, Waiting},
    layer::Config,
};

pin_project! {
    /// Response future for [`Admission`](super::Admission).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the request leaves the queue, or no longer counts as running.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, RB>
    where
        S: Service<http::Request<RB>>,
    {
        #[pin]
        state: State<S, RB>,
        retry_after: Duration,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, RB>
    where
        S: Service<http::Request<RB>>,
    {
        Waits {
            // Taken when the request is admitted.
            call: Option<(S, http::Request<RB>)>,
            waiting: Waiting,
            timeout: Sleep,
        },
        Runs {
            #[pin]
            call: Oneshot<S, http::Request<RB>>,
            // Moved to the response body, or dropped on an error.
            permit: Option<Permit>,
        },
        Refused {
            full: Full,
        },
        // A completed future holds no resources.
        Done,
    }
}

impl<S, RB> ResponseFuture<S, RB>
where
    S: Service<http::Request<RB>>,
{
    pub(super) fn new(
        arrival: Arrival,
        inner: S,
        request: http::Request<RB>,
        config: &Config,
    ) -> Self {
        let state = match arrival {
            Arrival::Admitted(permit) => State::Runs {
                call: Oneshot::new(inner, request),
                permit: Some(permit),
            },
            // A zero timeout means that requests do not wait.
            Arrival::Waits(waiting) if config.queue_timeout.is_zero() => State::Refused {
                full: waiting.full(),
            },
            Arrival::Waits(waiting) => State::Waits {
                call: Some((inner, request)),
                waiting,
                timeout: config.environment.clock().sleep(config.queue_timeout),
            },
            Arrival::Refused(full) => State::Refused { full },
        };
        Self {
            state,
            retry_after: config.retry_after,
        }
    }
}

impl<S, B, RB> Future for ResponseFuture<S, RB>
where
    S: Service<http::Request<RB>, Response = http::Response<B>>,
    B: Body<Data: From<Bytes>>,
{
    type Output = Result<http::Response<AdmissionBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Waits {
                    call,
                    waiting,
                    timeout,
                } => match Pin::new(&mut waiting.receiver).poll(cx) {
                    Poll::Ready(Ok(permit)) => match call.take() {
                        Some((inner, request)) => State::Runs {
                            call: Oneshot::new(inner, request),
                            permit: Some(permit),
                        },
                        None => State::Done,
                    },
                    // Unreachable: the sender is in the queue until a permit is sent.
                    Poll::Ready(Err(_)) => State::Refused {
                        full: waiting.full(),
                    },
                    Poll::Pending => {
                        ready!(timeout.as_mut().poll(cx));
                        State::Refused {
                            full: waiting.full(),
                        }
                    }
                },
                StateProj::Runs { call, permit } => {
                    let result = ready!(call.poll(cx));
                    let permit = permit.take();
                    this.state.set(State::Done);
                    return Poll::Ready(result.map(|response| {
                        response.map(|body| AdmissionBody::admitted(body, permit))
                    }));
                }
                StateProj::Refused { full } => {
                    let response = refuse(*full, *this.retry_after);
                    this.state.set(State::Done);
                    return Poll::Ready(Ok(response.map(AdmissionBody::refused)));
                }
                // Polled after it resolved.
                StateProj::Done => return Poll::Pending,
            };
            this.state.set(next);
        }
    }
}

fn refuse(full: Full, retry_after: Duration) -> http::Response<Bytes> {
    let (status, body) = match full {
        Full::Tenant => (
            StatusCode::TOO_MANY_REQUESTS,
            &br#"{"error":{"code":"too_many_runs_of_tenant","message":"too many concurrent runs of this tenant; try again later"}}"#[..],
        ),
        Full::Total => (
            StatusCode::SERVICE_UNAVAILABLE,
            &br#"{"error":{"code":"too_many_runs","message":"too many concurrent runs; try again later"}}"#[..],
        ),
    };
    let mut response = http::Response::new(Bytes::from_static(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    let part = u64::from(retry_after.subsec_nanos() > 0);
    let seconds = retry_after.as_secs().saturating_add(part).max(1);
    headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

impl<S, RB> fmt::Debug for ResponseFuture<S, RB>
where
    S: Service<http::Request<RB>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
