use super::{ConversationBody, turn::Turn};
use crate::wait::Stop;
use concentric_core::{
    ChatRequest, ChatResponse, Error,
    context::HeadHold,
    store::{StoreFuture, StoredThread},
};
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
    /// Response future for [`Conversation`](super::Conversation).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S>
    where
        S: Service<ChatRequest>,
    {
        // The inner service is called when this is first polled.
        #[pin]
        call: Option<Oneshot<S, ChatRequest>>,
        loading: Option<Box<Loading<S>>>,
        // Moved to the body.
        turn: Option<Box<Turn>>,
        failed: Option<Error>,
    }
}

struct Loading<S> {
    load: StoreFuture<Option<StoredThread>>,
    stop: Stop,
    // Dropped when the conversation is loaded.
    hold: HeadHold,
    inner: S,
    request: ChatRequest,
}

impl<S> ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    pub(super) fn load(inner: S, request: ChatRequest, turn: Turn) -> Self {
        let loading = Loading {
            load: turn.load(),
            stop: Stop::new(&request.context),
            hold: request.context.hold_head(),
            inner,
            request,
        };
        Self {
            call: None,
            loading: Some(Box::new(loading)),
            turn: Some(Box::new(turn)),
            failed: None,
        }
    }

    pub(super) fn pass(inner: S, request: ChatRequest) -> Self {
        Self {
            call: Some(Oneshot::new(inner, request)),
            loading: None,
            turn: None,
            failed: None,
        }
    }

    pub(super) const fn fail(error: Error) -> Self {
        Self {
            call: None,
            loading: None,
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
    type Output = Result<ChatResponse<ConversationBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(error) = this.failed.take() {
            return Poll::Ready(Err(error));
        }
        if let Some(loading) = this.loading {
            let loaded = match loading.load.as_mut().poll(cx) {
                Poll::Ready(loaded) => loaded.map_err(Error::from),
                Poll::Pending => Err(ready!(loading.stop.poll("the history", cx))),
            };
            let started = this.loading.take().map(|loading| {
                let Loading {
                    inner,
                    mut request,
                    hold,
                    ..
                } = *loading;
                drop(hold);
                let loaded = loaded?;
                if let Some(turn) = this.turn {
                    turn.start(loaded, &mut request)?;
                }
                Ok(Oneshot::new(inner, request))
            });
            match started.transpose() {
                Ok(call) => this.call.set(call),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let call = this.call.as_mut().as_pin_mut();
        let response = ready!(call.expect("polled after completion").poll(cx));
        this.call.set(None);
        let turn = this.turn.take();
        Poll::Ready(match response {
            Ok(response) => Ok(response.map_body(|body| ConversationBody::new(body, turn))),
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
