use crate::{
    driver::BoxDriver, request::ChatRequest, response::ChatResponse, service::CloneService,
    tool_call::ToolRound,
};
use concentric_proto::{Error, Event, RoundEvent};
use futures_core::Stream;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};
use tower::BoxError;
use tower_service::Service;

/// The response body of an [`Agent`](super::Agent), which drives the run.
///
/// Polling the body advances the run. Dropping it stops the run and its running tools.
#[must_use = "streams do nothing unless polled"]
pub struct AgentBody<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    driver: BoxDriver<M, B, R, O>,
}

impl<M, B, R, O> AgentBody<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    pub(super) const fn new(driver: BoxDriver<M, B, R, O>) -> Self {
        Self { driver }
    }
}

impl<M, B, R, O> Stream for AgentBody<M, B, R, O>
where
    M: Service<ChatRequest, Response = ChatResponse<B>> + CloneService,
    M::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    R: Service<ToolRound, Response = O> + Clone,
    R::Error: Into<BoxError>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    type Item = Result<Event, Error>;

    #[inline(always)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.driver.as_mut().poll_event(cx)
    }
}

impl<M, B, R, O> fmt::Debug for AgentBody<M, B, R, O>
where
    M: Service<ChatRequest>,
    R: Service<ToolRound>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBody").finish_non_exhaustive()
    }
}
