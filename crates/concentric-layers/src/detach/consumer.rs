use concentric_core::Context;
use std::future::Future;
use tokio_util::sync::CancellationToken;

/// Whether somebody still reads what a run says.
///
/// It is in the context of all that is inside [`Detach`](super::Detach), sub-agents too.
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

    /// The consumer of the run; `None` where no [`Detach`](super::Detach) is around it.
    pub fn of(context: &Context) -> Option<&Self> {
        context.extensions().get()
    }

    /// Whether it has dropped the run's future or body before the end.
    pub fn is_gone(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Resolves when it does. Of a run that ends before, it never does.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped at any time.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + '_ {
        self.0.cancelled()
    }

    pub(super) fn leave(&self) {
        self.0.cancel();
    }
}
