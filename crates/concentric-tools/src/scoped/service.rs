use super::ResponseFuture;
use crate::{Matcher, matcher::Matched};
use concentric_core::{Error, ToolCall, ToolOutcome, ToolService};
use std::task::{Context, Poll};
use tower_service::Service;

/// Middleware that applies a layer to some of the tool calls.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct Scoped<L, S> {
    matcher: Matcher,
    // Never polled; calls use clones.
    layered: L,
    inner: S,
}

impl<L, S> Scoped<L, S> {
    /// Sends calls that match to `layered`, and the others to `inner`.
    pub const fn new(matcher: Matcher, layered: L, inner: S) -> Self {
        Self {
            matcher,
            layered,
            inner,
        }
    }

    /// Gets a reference to the inner service, without the layer.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<L, S> Service<ToolCall> for Scoped<L, S>
where
    L: ToolService + Clone,
    S: ToolService + Clone,
{
    type Response = ToolOutcome;
    type Error = Error;
    type Future = ResponseFuture<L, S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        match self.matcher.evaluate(&call) {
            Matched::Now(matched) => match applies(matched) {
                true => ResponseFuture::layered(self.layered.clone(), call),
                false => ResponseFuture::inner(self.inner.clone(), call),
            },
            Matched::Later(later) => {
                ResponseFuture::matching(later, self.layered.clone(), self.inner.clone(), call)
            }
        }
    }
}

/// Whether the layer applies to a call: if it matches, or the matcher failed.
pub(crate) fn applies(matched: Result<bool, Error>) -> bool {
    matched.unwrap_or_else(|error| {
        // Not within the current span, into which its exporter would copy the text.
        tracing::warn!(parent: None, %error, "the matcher of a scoped layer failed; the layer applies");
        true
    })
}
