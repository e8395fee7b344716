use super::service::applies;
use concentric_core::{Error, ToolCall, ToolOutcome, ToolService, service::BoxFuture};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::util::Oneshot;
use tower_service::Service;

pin_project! {
    /// Response future for [`Scoped`](super::Scoped).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<L, S>
    where
        L: Service<ToolCall>,
        S: Service<ToolCall>,
    {
        #[pin]
        state: State<L, S>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<L, S>
    where
        L: Service<ToolCall>,
        S: Service<ToolCall>,
    {
        Matching {
            matching: BoxFuture<bool>,
            rest: Option<(L, S, ToolCall)>,
        },
        Layered {
            #[pin]
            future: Oneshot<L, ToolCall>,
        },
        Inner {
            #[pin]
            future: Oneshot<S, ToolCall>,
        },
    }
}

impl<L, S> ResponseFuture<L, S>
where
    L: Service<ToolCall>,
    S: Service<ToolCall>,
{
    pub(super) fn layered(service: L, call: ToolCall) -> Self {
        let future = Oneshot::new(service, call);
        Self {
            state: State::Layered { future },
        }
    }

    pub(super) fn inner(service: S, call: ToolCall) -> Self {
        let future = Oneshot::new(service, call);
        Self {
            state: State::Inner { future },
        }
    }

    pub(super) fn matching(
        matching: BoxFuture<bool>,
        layered: L,
        inner: S,
        call: ToolCall,
    ) -> Self {
        Self {
            state: State::Matching {
                matching,
                rest: Some((layered, inner, call)),
            },
        }
    }
}

impl<L, S> Future for ResponseFuture<L, S>
where
    L: ToolService,
    S: ToolService,
{
    type Output = Result<ToolOutcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProj::Layered { future } => {
                    return future.poll(cx).map_err(|e| Error::from(e.into()));
                }
                StateProj::Inner { future } => {
                    return future.poll(cx).map_err(|e| Error::from(e.into()));
                }
                StateProj::Matching { matching, rest } => {
                    let matched = ready!(matching.as_mut().poll(cx));
                    let (layered, inner, call) = rest.take().expect("polled after completion");
                    state.set(match applies(matched) {
                        true => State::Layered {
                            future: Oneshot::new(layered, call),
                        },
                        false => State::Inner {
                            future: Oneshot::new(inner, call),
                        },
                    });
                }
            }
        }
    }
}

impl<L, S> fmt::Debug for ResponseFuture<L, S>
where
    L: Service<ToolCall>,
    S: Service<ToolCall>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
