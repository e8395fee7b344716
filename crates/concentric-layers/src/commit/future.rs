use super::{CommitBody, policy::CommitPolicy};
use concentric_core::{ChatResponse, Context, Error, ErrorKind, Event, SideEffects};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{self, Poll, ready},
};
use tower::BoxError;

pin_project! {
    /// Response future for [`Commit`](super::Commit).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F, B> {
        #[pin]
        inner: F,
        policy: CommitPolicy,
        // The number of further bytes that may be held.
        left: usize,
        // The context of the run, and its number of effects before the call.
        context: Context,
        effects: u64,
        held: Option<ChatResponse<CommitBody<B>>>,
    }
}

impl<F, B> ResponseFuture<F, B> {
    pub(super) fn new(inner: F, policy: CommitPolicy, limit: usize, context: Context) -> Self {
        Self {
            inner,
            policy,
            left: limit,
            effects: context.effect_count(),
            context,
            held: None,
        }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
    E: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Output = Result<ChatResponse<CommitBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // The held events may come after effects of tools.
        let fail = |error: Error| match this.context.effect_count() == *this.effects {
            true => error,
            false => {
                let effects = error.effects().max(SideEffects::Possible);
                error.with_effects(effects)
            }
        };
        if this.held.is_none() {
            let response = ready!(this.inner.poll(cx)).map_err(|e| Error::from(e.into()))?;
            *this.held = Some(response.map_body(CommitBody::new));
        }
        let body = &mut this.held.as_mut().expect("the response was just set").body;
        loop {
            match ready!(body.poll_inner(cx)) {
                Some(Ok(event)) => {
                    let Some(left) = this.left.checked_sub(held_bytes(&event)) else {
                        let error = Error::new(
                            ErrorKind::TooLarge,
                            "the answer exceeded the limit of held bytes before its commit point; raise `CommitLayer::limit`",
                        );
                        *this.held = None;
                        return Poll::Ready(Err(fail(error)));
                    };
                    *this.left = left;
                    let reached = event.is_finish() || this.policy.is_reached(&event);
                    body.hold(event);
                    if reached {
                        break;
                    }
                }
                Some(Err(error)) => {
                    *this.held = None;
                    return Poll::Ready(Err(fail(error)));
                }
                None => {
                    *this.held = None;
                    return Poll::Ready(Err(fail(Error::truncated())));
                }
            }
        }
        Poll::Ready(Ok(this.held.take().expect("the response was just set")))
    }
}

/// Returns the size of an event: its content, and the memory it takes in the queue.
pub(crate) fn held_bytes(event: &Event) -> usize {
    size_of::<Event>()
        + match event {
            Event::TextDelta(text) | Event::ReasoningDelta(text) | Event::RefusalDelta(text) => {
                text.len()
            }
            Event::ToolCallDelta(delta) => delta.arguments.len(),
            // Rare, and possibly large: the size of the serialized event.
            Event::StepStart(_)
            | Event::StepFinish(_)
            | Event::ToolCallStart(_)
            | Event::PartEnd(_)
            | Event::Resumed
            | Event::Reset
            | Event::Finish(_) => 0,
            other => serde_json::to_string(other).map_or(0, |text| text.len()),
        }
}

concentric_core::opaque_debug!(ResponseFuture<F, B>);
