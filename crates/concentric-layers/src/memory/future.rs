use super::{
    DynamicMemoryBody,
    turn::{Search, Turn},
};
use crate::wait::Stop;
use concentric_core::{ChatRequest, ChatResponse, Error};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::{BoxError, util::Oneshot};
use tower_service::Service;

pin_project! {
    /// Response future for [`DynamicMemory`](super::DynamicMemory).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S>
    where
        S: Service<ChatRequest>,
    {
        // The inner service is called when this is first polled.
        #[pin]
        call: Option<Oneshot<S, ChatRequest>>,
        recalling: Option<Box<Recalling<S>>>,
        // Moved to the body.
        turn: Option<Box<Turn>>,
        failed: Option<Error>,
    }
}

struct Recalling<S> {
    search: Search,
    stop: Stop,
    inner: S,
    request: ChatRequest,
}

impl<S> ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    pub(super) fn recall(inner: S, mut request: ChatRequest, turn: Turn) -> Self {
        let mut future = match turn.search(&request) {
            Some(search) => Self {
                call: None,
                recalling: Some(Box::new(Recalling {
                    search,
                    stop: Stop::new(&request.context),
                    inner,
                    request,
                })),
                turn: None,
                failed: None,
            },
            None => {
                turn.start(None, &mut request);
                Self::pass(inner, request)
            }
        };
        future.turn = Some(Box::new(turn));
        future
    }

    pub(super) fn pass(inner: S, request: ChatRequest) -> Self {
        Self {
            call: Some(Oneshot::new(inner, request)),
            recalling: None,
            turn: None,
            failed: None,
        }
    }

    pub(super) const fn fail(error: Error) -> Self {
        Self {
            call: None,
            recalling: None,
            turn: None,
            failed: Some(error),
        }
    }
}

impl<S, B> Future for ResponseFuture<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
{
    type Output = Result<ChatResponse<DynamicMemoryBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(error) = this.failed.take() {
            return Poll::Ready(Err(error));
        }
        if let Some(recalling) = this.recalling {
            let found = match recalling.search.poll(cx) {
                Poll::Ready(found) => found,
                Poll::Pending => {
                    let stopped = ready!(recalling.stop.poll("memories", cx));
                    *this.recalling = None;
                    return Poll::Ready(Err(stopped));
                }
            };
            if let (Some(recalled), Some(turn)) = (this.recalling.take(), &this.turn) {
                let Recalling {
                    inner, mut request, ..
                } = *recalled;
                turn.start(Some(found), &mut request);
                this.call.set(Some(Oneshot::new(inner, request)));
            }
        }
        let call = this.call.as_mut().as_pin_mut();
        let response = ready!(call.expect("polled after completion").poll(cx));
        this.call.set(None);
        let turn = this.turn.take();
        Poll::Ready(match response {
            Ok(response) => Ok(response.map_body(|body| DynamicMemoryBody::new(body, turn))),
            Err(error) => Err(Error::from(error.into())),
        })
    }
}

impl<S> fmt::Debug for ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
