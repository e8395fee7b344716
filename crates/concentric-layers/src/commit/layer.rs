use super::{Commit, FirstEvent, FirstSentence, Until, Whole};
use concentric_core::Event;
use tower_layer::Layer;

/// [`Layer`] that applies [`Commit`].
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy, Debug)]
pub struct CommitLayer<P> {
    point: P,
    limit: usize,
}

/// The default limit of held bytes.
const LIMIT: usize = 1 << 20;

impl<P> CommitLayer<P> {
    const fn new(point: P) -> Self {
        Self {
            point,
            limit: LIMIT,
        }
    }

    /// Sets the maximum number of bytes of held events; the default is 1 MiB. An answer that
    /// exceeds it before its commit point fails with
    /// [`ErrorKind::TooLarge`](concentric_core::ErrorKind::TooLarge). With 0, every answer fails.
    #[must_use]
    pub const fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }
}

impl CommitLayer<FirstEvent> {
    /// Commits an answer at its first content. For a model whose future resolves earlier.
    pub const fn first_event() -> Self {
        Self::new(FirstEvent)
    }
}

impl CommitLayer<FirstSentence> {
    /// Commits an answer after its first sentence, or at its first tool call.
    pub fn first_sentence() -> Self {
        Self::new(FirstSentence::default())
    }
}

impl CommitLayer<Whole> {
    /// Commits an answer when it is complete.
    pub const fn whole() -> Self {
        Self::new(Whole)
    }
}

impl<F> CommitLayer<Until<F>>
where
    F: FnMut(&Event) -> bool + Clone,
{
    /// Commits an answer at the first event for which `predicate` returns `true`. Each call uses a
    /// clone of the predicate.
    pub const fn until(predicate: F) -> Self {
        Self::new(Until(predicate))
    }
}

impl<S, P> Layer<S> for CommitLayer<P>
where
    P: Clone,
{
    type Service = Commit<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        Commit::new(inner, self.point.clone(), self.limit)
    }
}
