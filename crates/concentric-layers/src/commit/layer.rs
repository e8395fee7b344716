use super::{Commit, policy::CommitPolicy};
use concentric_core::Event;
use tower_layer::Layer;

/// [`Layer`] that delays the commit point of an answer ([`Commit`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct CommitLayer {
    policy: CommitPolicy,
    limit: usize,
}

/// The default limit of held bytes.
const LIMIT: usize = 1 << 20;

impl CommitLayer {
    const fn new(policy: CommitPolicy) -> Self {
        Self {
            policy,
            limit: LIMIT,
        }
    }

    /// Commits an answer at its first content. For a model whose future resolves earlier.
    pub const fn first_event() -> Self {
        Self::new(CommitPolicy::FirstEvent)
    }

    /// Commits an answer after its first sentence, or at its first tool call.
    pub const fn first_sentence() -> Self {
        Self::new(CommitPolicy::FirstSentence {
            is_after_stop: false,
        })
    }

    /// Commits an answer when it is complete.
    pub const fn whole() -> Self {
        Self::new(CommitPolicy::Whole)
    }

    /// Commits an answer at the first event for which `predicate` returns `true`. Each call uses a
    /// clone of the predicate.
    pub fn until<F>(predicate: F) -> Self
    where
        F: FnMut(&Event) -> bool + Clone + Send + Sync + 'static,
    {
        Self::new(CommitPolicy::Until(Box::new(predicate)))
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

impl<S> Layer<S> for CommitLayer {
    type Service = Commit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Commit::new(inner, self.policy.clone(), self.limit)
    }
}
