use super::ClearToolResults;
use crate::{
    tokens::TokenCounter,
    window::{Counter, default_counter},
};
use concentric_core::{
    Declares, Str,
    capability::{InLoop, Within},
};
use std::{fmt, sync::Arc};
use tower_layer::Layer;

/// [`Layer`] that sends placeholders for old results of tools ([`ClearToolResults`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct ClearToolResultsLayer {
    pub(super) counter: Counter,
    pub(super) trigger: u64,
    pub(super) keep: usize,
    pub(super) at_least: u64,
    pub(super) inputs: bool,
    pub(super) except: Arc<[Str]>,
    pub(super) placeholder: Str,
}

impl Default for ClearToolResultsLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl ClearToolResultsLayer {
    /// Creates a layer that clears all results but the newest three of a request with more than 100,000
    /// tokens.
    pub fn new() -> Self {
        Self {
            counter: default_counter(),
            trigger: 100_000,
            keep: 3,
            at_least: 0,
            inputs: false,
            except: Arc::default(),
            placeholder: "[result cleared: {bytes} bytes]".into(),
        }
    }

    /// Sets the counter of tokens; the default is an [`Estimator`](crate::tokens::Estimator).
    #[must_use]
    pub fn counter(mut self, counter: impl TokenCounter) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    /// Sets the tokens that a request may have before results are cleared.
    #[must_use]
    pub const fn trigger(mut self, tokens: u64) -> Self {
        self.trigger = tokens;
        self
    }

    /// Sets the number of newest results that stay.
    #[must_use]
    pub const fn keep(mut self, results: usize) -> Self {
        self.keep = results;
        self
    }

    /// Clears the oldest results until `tokens` are reclaimed, and none if all would reclaim less. The
    /// default, 0, clears all that may be cleared.
    #[must_use]
    pub const fn clear_at_least(mut self, tokens: u64) -> Self {
        self.at_least = tokens;
        self
    }

    /// Also replaces the arguments of cleared calls by `{}`, except those that a provider has signed.
    #[must_use]
    pub const fn inputs(mut self) -> Self {
        self.inputs = true;
        self
    }

    /// Keeps the results of the tools with these names.
    #[must_use]
    pub fn except<T: Into<Str>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.except = tools.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the text in place of a result, in which `{bytes}` is replaced by the length of its text.
    #[must_use]
    pub fn placeholder(mut self, text: impl Into<Str>) -> Self {
        self.placeholder = text.into();
        self
    }
}

impl Declares for ClearToolResultsLayer {
    type Capabilities = Within<InLoop>;
}

impl<S> Layer<S> for ClearToolResultsLayer {
    type Service = ClearToolResults<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ClearToolResults::new(inner, self.clone())
    }
}

impl fmt::Debug for ClearToolResultsLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClearToolResultsLayer")
            .field("trigger", &self.trigger)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}
