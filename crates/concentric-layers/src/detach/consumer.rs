use concentric_core::Context;
use std::future::Future;
use tokio_util::sync::CancellationToken;

/// The consumer of a run, which may disconnect before the run ends.
///
/// The contexts of all calls inside [`Detach`](super::Detach) contain it, including those of
/// sub-agents.
///
/// ```
/// use concentric_core::ToolCall;
/// use concentric_layers::detach::Consumer;
///
/// fn shows_progress(call: &ToolCall) -> bool {
///     Consumer::of(&call.context).is_none_or(|consumer| !consumer.is_gone())
/// }
/// # let _ = shows_progress;
/// ```
#[derive(Clone, Debug)]
pub struct Consumer(CancellationToken);

impl Consumer {
    pub(super) fn new() -> Self {
        Self(CancellationToken::new())
    }

    /// Returns the consumer of the run, or `None` if no [`Detach`](super::Detach) is around it.
    pub fn of(context: &Context) -> Option<&Self> {
        context.extensions().get()
    }

    /// Returns whether the consumer has dropped the run's future or body before its end.
    pub fn is_gone(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Resolves when the consumer disconnects. Never resolves if the run ends first.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + '_ {
        self.0.cancelled()
    }

    pub(super) fn leave(&self) {
        self.0.cancel();
    }
}
