use super::Trim;
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

/// [`Layer`] that sends the newest turns of a conversation ([`Trim`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct TrimLayer {
    pub(super) limit: Limit,
    pub(super) counter: Counter,
    pub(super) head: usize,
    pub(super) marker: Option<Str>,
    pub(super) reasoning: Option<usize>,
    pub(super) media: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    Turns(u64),
    Messages(u64),
    Tokens(u64),
}

impl TrimLayer {
    fn new(limit: Limit) -> Self {
        Self {
            limit,
            counter: default_counter(),
            head: 0,
            marker: None,
            reasoning: None,
            media: None,
        }
    }

    /// Sends at most `turns` turns.
    pub fn turns(turns: usize) -> Self {
        Self::new(Limit::Turns(turns as u64))
    }

    /// Sends at most `messages` messages; the call of a tool is a part of a message, and its result is one.
    pub fn messages(messages: usize) -> Self {
        Self::new(Limit::Messages(messages as u64))
    }

    /// Sends requests of at most `tokens` tokens.
    pub fn tokens(tokens: u64) -> Self {
        Self::new(Limit::Tokens(tokens))
    }

    /// Sets the counter of tokens; the default is an [`Estimator`](crate::tokens::Estimator).
    #[must_use]
    pub fn counter(mut self, counter: impl TokenCounter) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    /// Sets the number of first turns that are always sent, such as the task; the default is 0.
    #[must_use]
    pub const fn head(mut self, turns: usize) -> Self {
        self.head = turns;
        self
    }

    /// Adds a message of this layer, with the role of the user, where turns are left out.
    #[must_use]
    pub fn marker(mut self, text: impl Into<Str>) -> Self {
        self.marker = Some(text.into());
        self
    }

    /// Leaves out the reasoning in exchanges older than the newest `exchanges`. That of the current
    /// exchange is always sent, since providers require it with the tool calls that followed it.
    #[must_use]
    pub const fn drop_reasoning(mut self, exchanges: usize) -> Self {
        self.reasoning = Some(exchanges);
        self
    }

    /// Replaces images, audio clips and documents of the user and of tools by their kinds, in exchanges
    /// older than the newest `exchanges`, at least the current one.
    #[must_use]
    pub const fn drop_media(mut self, exchanges: usize) -> Self {
        self.media = Some(exchanges);
        self
    }
}

impl Declares for TrimLayer {
    type Capabilities = Within<InLoop>;
}

impl<S> Layer<S> for TrimLayer {
    type Service = Trim<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Trim::new(inner, self.clone())
    }
}

impl fmt::Debug for TrimLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrimLayer")
            .field("limit", &self.limit)
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}
