use super::StepView;
use crate::request::ChatRequest;
use concentric_proto::{
    ChatOptions, HistoryError, System, ToolSpec, ToolSpecs, Turn, run_state::RunEdits,
};
use std::{ops::Deref, sync::Arc};

/// The next step of a run, or its end, which a [`StepGate`](super::StepGate) may edit.
///
/// It dereferences to a [`StepView`]. The gates of a moment receive the same draft one after the
/// other, so each sees the edits of those before it. If the gates [ask](super::StepDecision::Ask),
/// edits and messages are discarded, and all gates are evaluated again with the replies.
///
/// Edits last: all later steps of the run have them. They are stored with the run's state, so a
/// run that is resumed in another process keeps them, whatever its new request has; a run that is
/// resumed from a client's history has none. To change a single call, use a layer around the model.
///
/// ```
/// use concentric_core::{
///     BoxError, Str, Turn,
///     agent::{StepDecision, StepDraft, StepGate},
///     hooks::Interest,
/// };
///
/// /// Replaces old turns by a note when the conversation gets long.
/// struct Shorten;
///
/// impl StepGate for Shorten {
///     fn name(&self) -> &str {
///         "shorten"
///     }
///
///     fn interest(&self) -> Interest {
///         Interest::BEFORE_STEP
///     }
///
///     async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
///         let old = draft.transcript.len().saturating_sub(20);
///         if draft.transcript.size() > 100_000 && old > 0 {
///             draft.rewrite(old, vec![Turn::user("(Earlier messages were removed.)")])?;
///             draft.retain_tools(|tool| tool.name != "load_history");
///             draft.options_mut().max_output_tokens = Some(2_000);
///         }
///         Ok(StepDecision::Continue)
///     }
/// }
/// ```
#[derive(Debug)]
pub struct StepDraft {
    view: StepView,
    request: RequestParts,
    // Which parts of the request were edited.
    system: bool,
    tools: bool,
    options: bool,
    // The edits of the conversation.
    edits: Option<RunEdits>,
    pushed: Vec<Turn>,
}

/// The parts of a run's request that gates edit.
#[derive(Debug)]
pub(crate) struct RequestParts {
    pub(crate) system: System,
    pub(crate) tools: ToolSpecs,
    pub(crate) options: Arc<ChatOptions>,
}

impl StepDraft {
    pub(crate) const fn new(view: StepView, request: RequestParts) -> Self {
        Self {
            view,
            request,
            system: false,
            tools: false,
            options: false,
            edits: None,
            pushed: Vec::new(),
        }
    }

    /// Creates the draft of the next step of a run, for a loop of another library that calls gates or
    /// hooks itself; [`apply_to`](Self::apply_to) then applies the edits.
    ///
    /// ```
    /// use concentric_core::{
    ///     BoxError, ChatRequest,
    ///     agent::{StepDecision, StepDraft, StepView},
    ///     hooks::Hooks,
    /// };
    ///
    /// async fn before_step(hooks: &impl Hooks, request: &mut ChatRequest) -> Result<StepDecision, BoxError> {
    ///     let mut draft = StepDraft::for_request(StepView::for_request(request), request);
    ///     let decision = hooks.before_step(&mut draft).await?;
    ///     draft.apply_to(request);
    ///     Ok(decision)
    /// }
    /// # async fn run(hooks: &impl Hooks, request: &mut ChatRequest) {
    /// #     let _ = before_step(hooks, request).await;
    /// # }
    /// ```
    pub fn for_request(view: StepView, request: &ChatRequest) -> Self {
        let parts = RequestParts {
            system: request.system.clone(),
            tools: request.tools.clone(),
            options: Arc::clone(&request.options),
        };
        Self::new(view, parts)
    }

    /// Applies the edits to `request`: its system text, tools, options and conversation become those
    /// of the draft, with the pushed messages at the end.
    pub fn apply_to(self, request: &mut ChatRequest) {
        request.system = self.request.system;
        request.tools = self.request.tools;
        request.options = self.request.options;
        request.transcript = self.view.transcript;
        for turn in self.pushed {
            request.transcript.push(turn);
        }
    }

    /// Appends a message to the conversation, after those of earlier gates.
    ///
    /// [`transcript`](StepView::transcript) does not contain it yet.
    pub fn push(&mut self, turn: Turn) {
        self.pushed.push(turn);
    }

    /// The system text.
    pub fn system(&self) -> &System {
        &self.request.system
    }

    /// The system text, to be edited. A resumed run has the edited text instead of that of its
    /// request.
    pub fn system_mut(&mut self) -> &mut System {
        self.system = true;
        &mut self.request.system
    }

    /// The options of the model calls.
    pub fn options(&self) -> &ChatOptions {
        &self.request.options
    }

    /// The options, to be edited. A resumed run has the edited options instead of those of its
    /// request.
    pub fn options_mut(&mut self) -> &mut ChatOptions {
        self.options = true;
        Arc::make_mut(&mut self.request.options)
    }

    /// The tools that are offered.
    pub fn tools(&self) -> &ToolSpecs {
        &self.request.tools
    }

    /// Restricts the offered tools to those for which `keep` returns true. A call of another tool
    /// is refused. Tools that were removed, or that a later version of the agent adds, are not
    /// offered in this run again.
    pub fn retain_tools(&mut self, mut keep: impl FnMut(&ToolSpec) -> bool) {
        self.tools = true;
        self.request.tools.retain(|tool| keep(tool));
    }

    /// Replaces the first `turns` turns of the conversation by `by`. The user's last message is
    /// kept, after `by`. The consumer receives [`Event::TranscriptReplaced`].
    ///
    /// [`Event::TranscriptReplaced`]: crate::Event::TranscriptReplaced
    ///
    /// # Errors
    ///
    /// [`HistoryError::TooShort`]: the conversation has fewer turns. A [`Turn`] has the results of
    /// its calls, so no other rewrite is invalid.
    pub fn rewrite(&mut self, turns: usize, by: Vec<Turn>) -> Result<(), HistoryError> {
        let edits = self.edits.get_or_insert_default();
        edits.rewrite(&mut self.view.transcript, turns, by)
    }

    /// Returns the edits and the pushed messages.
    pub(crate) fn into_edits(self) -> (Option<RunEdits>, Vec<Turn>) {
        let RequestParts {
            system,
            tools,
            options,
        } = self.request;
        let mut edits = self.edits;
        if self.system || self.tools || self.options {
            let names = || tools.iter().map(|tool| tool.name.clone()).collect();
            let edits = edits.get_or_insert_default();
            edits.system = self.system.then_some(system);
            edits.offered = self.tools.then(names);
            edits.options = self.options.then_some(options);
        }
        (edits, self.pushed)
    }
}

impl Deref for StepDraft {
    type Target = StepView;

    fn deref(&self) -> &StepView {
        &self.view
    }
}
