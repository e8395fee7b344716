use super::{
    Compaction, CompactionDecision, Plan, Report, Trigger,
    hooks::{After, Before},
    summary::PROMPT,
};
use crate::{
    tokens::TokenCounter,
    window::{Counter, default_counter},
};
use concentric_core::{
    BoxModel, Declares, Str,
    capability::{InLoop, Within},
};
use std::{fmt, future::Future, sync::Arc, time::Duration};
use tower_layer::Layer;

/// [`Layer`] that summarises the older part of a conversation ([`Compaction`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct CompactionLayer(Settings);

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) model: BoxModel,
    pub(super) window: u64,
    pub(super) counter: Counter,
    // Empty for the default.
    pub(super) triggers: Vec<Trigger>,
    pub(super) keep: u64,
    pub(super) head: usize,
    pub(super) prompt: Str,
    pub(super) max_summary: u32,
    pub(super) max_input: usize,
    pub(super) timeout: Duration,
    pub(super) commits: bool,
    pub(super) recovers: bool,
    pub(super) before: Option<Before>,
    pub(super) after: Option<After>,
}

impl CompactionLayer {
    /// Creates a layer in which `model` summarises, for an inner model with a context window of `window`
    /// tokens (`ModelInfo::context_window` of `concentric-providers`).
    pub fn new(model: BoxModel, window: u64) -> Self {
        Self(Settings {
            model,
            window,
            counter: default_counter(),
            triggers: Vec::new(),
            keep: 20_000,
            head: 1,
            prompt: PROMPT.into(),
            max_summary: 4_000,
            max_input: 256 << 10,
            timeout: Duration::from_secs(60),
            commits: false,
            recovers: true,
            before: None,
            after: None,
        })
    }

    /// Sets the counter of tokens; the default is an [`Estimator`](crate::tokens::Estimator).
    #[must_use]
    pub fn counter(mut self, counter: impl TokenCounter) -> Self {
        self.0.counter = Arc::new(counter);
        self
    }

    /// Adds a trigger; any of them suffices. The default is [`Trigger::fraction(0.85)`](Trigger::fraction).
    #[must_use]
    pub fn when(mut self, trigger: Trigger) -> Self {
        self.0.triggers.push(trigger);
        self
    }

    /// Sets the tokens of the newest turns that are kept, at most 40 % of the window; the default is
    /// 20,000.
    #[must_use]
    pub fn keep(mut self, tokens: u64) -> Self {
        self.0.keep = tokens;
        self
    }

    /// Sets the number of first turns that are kept, such as the task; the default is 1.
    #[must_use]
    pub fn head(mut self, turns: usize) -> Self {
        self.0.head = turns;
        self
    }

    /// Sets the instruction of the model that summarises. The user message that follows it is a JSON object with
    /// `previous_summary` and `conversation`, a list of objects with one field each: the role or the tool, and the text.
    #[must_use]
    pub fn prompt(mut self, text: impl Into<Str>) -> Self {
        self.0.prompt = text.into();
        self
    }

    /// Sets the maximum number of output tokens of a summary, including those of reasoning; the default is
    /// 4,000.
    #[must_use]
    pub fn max_summary(mut self, tokens: u32) -> Self {
        self.0.max_summary = tokens;
        self
    }

    /// Sets the length of the text that is summarised; the default is 256 KiB. Of a longer one, the middle is
    /// left out. Each text of a message and each result is limited to 8 KiB, or an eighth of `bytes`, in the same way.
    #[must_use]
    pub fn max_input(mut self, bytes: usize) -> Self {
        self.0.max_input = bytes;
        self
    }

    /// Sets the time for a summary, by the clock of the run; the default is 60 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// Rewrites the conversation of the run, in place of sending a view.
    #[must_use]
    pub fn commit(mut self) -> Self {
        self.0.commits = true;
        self
    }

    /// Passes the error of a model that rejects the conversation.
    #[must_use]
    pub fn no_recovery(mut self) -> Self {
        self.0.recovers = false;
        self
    }

    /// Calls `hook` before each compaction. The last hook that was set is called.
    ///
    /// ```
    /// use concentric_core::BoxModel;
    /// use concentric_layers::{CompactionLayer, compaction::{CompactionDecision, Plan}};
    ///
    /// fn layer(model: BoxModel) -> CompactionLayer {
    ///     CompactionLayer::new(model, 200_000).before(async |plan: Plan| match plan.turns.len() {
    ///         ..10 => CompactionDecision::Skip,
    ///         _ => CompactionDecision::Proceed,
    ///     })
    /// }
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn before<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(Plan) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = CompactionDecision> + Send + 'static,
    {
        self.0.before = Some(Arc::new(move |plan| Box::pin(hook(plan))));
        self
    }

    /// Calls `hook` after each compaction. The last hook that was set is called.
    #[must_use]
    pub fn after(mut self, hook: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.0.after = Some(Arc::new(hook));
        self
    }
}

impl fmt::Debug for CompactionLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactionLayer")
            .field("window", &self.0.window)
            .field("triggers", &self.0.triggers)
            .field("keep", &self.0.keep)
            .field("head", &self.0.head)
            .finish_non_exhaustive()
    }
}

impl Declares for CompactionLayer {
    type Capabilities = Within<InLoop>;
}

impl<S> Layer<S> for CompactionLayer {
    type Service = Compaction<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Compaction::new(inner, Arc::new(self.0.clone()))
    }
}
