//! The commit point of a run.

use super::{Driver, work::Work};
use crate::{request::ChatRequest, response::ChatResponse, tool_call::ToolRound};
use concentric_proto::{Error, Event, ResponseHead, RoundEvent};
use futures_core::Stream;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::BoxError;
use tower_service::Service;

impl<M, B, R, O> Driver<M, B, R, O>
where
    M: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    M::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    R: Service<ToolRound, Response = O> + Clone,
    R::Error: Into<BoxError>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    /// Drives the run until it has a body, and returns the head of the model's answer.
    ///
    /// No event is taken from the machine, so those that precede the model's answer are yielded by
    /// the body.
    ///
    /// # Errors
    ///
    /// The run failed before the model answered; it may be retried.
    pub(crate) fn poll_commit(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, Error>> {
        let mut this = self.project();
        let run = this.run;
        let mut head = ResponseHead::default();
        // A run that resumes an open round, or that a gate has stopped, has a body at once.
        while !run.machine.is_ended()
            && (run.machine.is_model_next()
                || matches!(&*this.work, Work::Gates { .. } | Work::Model { .. }))
        {
            if let Some(stop) = run.stops() {
                this.work.as_mut().stop(run, stop, cx);
            } else if run.machine.is_model_next()
                && let Some(action) = run.machine.action()
            {
                // A model call has no item.
                this.work.as_mut().perform(run, action);
            } else if this
                .work
                .as_mut()
                .poll(run, Some(&mut head), cx)
                .is_pending()
            {
                let stop = ready!(run.poll_stop(cx));
                this.work.as_mut().stop(run, stop, cx);
            }
        }
        if let Some(error) = run.machine.take_failure() {
            return Poll::Ready(Err(error));
        }
        run.commit();
        // The model's tools are those of this loop, not those of a loop around it.
        head.tools = None;
        Poll::Ready(Ok(head))
    }
}
