use super::AgentBody;
use crate::{
    driver::{BoxDriver, discard},
    request::ChatRequest,
    response::ChatResponse,
    service::CloneService,
    tool_call::ToolRound,
};
use concentric_proto::{Error, Event, RoundEvent};
use futures_core::Stream;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use tower::BoxError;
use tower_service::Service;

/// Response future for [`Agent`](super::Agent).
///
/// It resolves when the first model call does, or at once for a run that resumes an open round. No
/// event is emitted before it resolves, including
/// [`Event::StepStart`](crate::Event::StepStart) of the first step, so a retry around the agent
/// repeats only that model call.
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct ResponseFuture<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    // Taken when the future resolves.
    driver: Option<Result<BoxDriver<M, B, R, O>, Error>>,
}

impl<M, B, R, O> ResponseFuture<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    pub(super) const fn new(driver: Result<BoxDriver<M, B, R, O>, Error>) -> Self {
        Self {
            driver: Some(driver),
        }
    }
}

impl<M, B, R, O> Future for ResponseFuture<M, B, R, O>
where
    M: Service<ChatRequest, Response = ChatResponse<B>> + CloneService,
    M::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    R: Service<ToolRound, Response = O> + Clone,
    R::Error: Into<BoxError>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    type Output = Result<ChatResponse<AgentBody<M, B, R, O>>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut driver = self.driver.take().expect("polled after completion")?;
        match driver.as_mut().poll_commit(cx) {
            Poll::Pending => {
                self.driver = Some(Ok(driver));
                Poll::Pending
            }
            Poll::Ready(Ok(head)) => {
                let body = AgentBody::new(driver);
                Poll::Ready(Ok(ChatResponse::new(body).with_head(head)))
            }
            Poll::Ready(Err(error)) => {
                discard(|| drop(driver));
                Poll::Ready(Err(error))
            }
        }
    }
}

impl<M, B, R, O> fmt::Debug for ResponseFuture<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
