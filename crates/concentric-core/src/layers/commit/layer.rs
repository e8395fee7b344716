use super::{Commit, FirstEvent, FirstSentence, Until, Whole};
use concentric_proto::Event;
use tower_layer::Layer;

/// [`Layer`] that applies [`Commit`].
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy, Debug)]
pub struct CommitLayer<P> {
    point: P,
    limit: usize,
}

/// How many bytes of events are held at the most, unless it is told otherwise.
const LIMIT: usize = 1 << 20;

impl<P> CommitLayer<P> {
    const fn new(point: P) -> Self {
        Self {
            point,
            limit: LIMIT,
        }
    }

    /// Sets how many bytes of events are held at the most; the default is 1 MiB. An answer that needs
    /// more before it may be shown fails with [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge),
    /// with 0 each answer.
    #[must_use]
    pub const fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }
}

impl CommitLayer<FirstEvent> {
    /// Shows an answer from its first content on: for a model whose future resolves before that.
    pub const fn first_event() -> Self {
        Self::new(FirstEvent)
    }
}

impl CommitLayer<FirstSentence> {
    /// Shows an answer once its first sentence, or a tool call, is there.
    pub fn first_sentence() -> Self {
        Self::new(FirstSentence::default())
    }
}

impl CommitLayer<Whole> {
    /// Shows an answer once it is whole.
    pub const fn whole() -> Self {
        Self::new(Whole)
    }
}

impl<F> CommitLayer<Until<F>>
where
    F: FnMut(&Event) -> bool + Clone,
{
    /// Shows an answer once `predicate` says so of an event of it; each call has a clone of it.
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
