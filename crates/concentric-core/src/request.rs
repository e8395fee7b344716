use crate::{
    checkpoint::Checkpoint,
    context::Context,
    outbox::EmitError,
    resume::{Resume, ResumePoint},
};
use concentric_proto::{
    ChatOptions, Event, Message, OpenRound, Reply, Str, System, SystemSegment, ToolSpecs,
    Transcript, run_state::RunState,
};
use std::{any::Any, sync::Arc};

/// A request to a model or an agent.
///
/// Cloning is cheap. A clone is another attempt at the same call, with a handle to the same run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChatRequest {
    /// The conversation so far.
    pub transcript: Transcript,
    /// The system prompt, which precedes the conversation.
    pub system: System,
    /// The tools the model may call; for an agent, the client's tools, to which the agent adds its
    /// own.
    pub tools: ToolSpecs,
    /// The options for the answer; shared until they are changed
    /// ([`options_mut`](Self::options_mut)).
    pub options: Arc<ChatOptions>,
    /// An open round to resume before the model is called.
    pub resume: Option<Resume>,
    /// Persists the run's state before each round of tool calls.
    pub checkpoint: Option<Checkpoint>,
    /// The context of the run that the request belongs to.
    pub context: Context,
    // A `RunOverrides`, which is defined in terms of requests.
    pub(crate) overrides: Option<Arc<dyn Any + Send + Sync>>,
}

impl ChatRequest {
    /// Creates a request that continues `transcript` as a new run.
    pub fn new(transcript: Transcript) -> Self {
        Self {
            transcript,
            system: System::default(),
            tools: ToolSpecs::default(),
            options: ChatOptions::none(),
            resume: None,
            checkpoint: None,
            context: Context::new(),
            overrides: None,
        }
    }

    /// Creates a request with a single user message.
    pub fn user(text: impl Into<Str>) -> Self {
        let mut transcript = Transcript::new();
        transcript.push_user(text);
        Self::new(transcript)
    }

    /// The newest message of the user. `None` for a request that only resumes a run.
    pub fn user_message(&self) -> Option<&Message> {
        self.transcript.user_message()
    }

    /// Creates a request to resume a run that was interrupted.
    ///
    /// `state` is the state that the run ended with ([`Finish::state`](crate::Finish::state)), or
    /// that a trusted store has kept. If a reply is missing, the run is interrupted again.
    pub fn resume(state: RunState, replies: Vec<Reply>) -> Self {
        let mut request = Self::new(Transcript::new());
        let state = ResumePoint::State(Box::new(state));
        request.set_resume(Resume::new(state, replies));
        request
    }

    /// Creates a request to resume a run that a layer around the agent stores
    /// ([`ResumePoint::InStore`]): the run of the context's conversation that `replies` refer to.
    pub fn replying(replies: Vec<Reply>) -> Self {
        let mut request = Self::new(Transcript::new());
        request.resume = Some(Resume::new(ResumePoint::InStore, replies));
        request
    }

    /// Creates a request to resume `open`, the open round of an unverified history.
    ///
    /// A reply is accepted only with a proof ([`Reply::token`]).
    pub fn resume_history(transcript: Transcript, open: OpenRound, replies: Vec<Reply>) -> Self {
        let mut request = Self::new(transcript);
        request.resume = Some(Resume::new(ResumePoint::UnverifiedHistory(open), replies));
        request
    }

    /// Sets the context of the run. If the request resumes a run whose state is known, its durable
    /// [slots](crate::state) replace those in `context`.
    #[must_use]
    pub fn with_context(mut self, context: Context) -> Self {
        self.context = context;
        self.replace_slots();
        self
    }

    /// Sets the run to resume. If its state is known, its durable [slots](crate::state) replace
    /// those in the context.
    pub fn set_resume(&mut self, resume: Resume) {
        self.resume = Some(resume);
        self.replace_slots();
    }

    fn replace_slots(&self) {
        if let Some(slots) = self.resume.as_ref().and_then(Resume::slots) {
            self.context.run_slots().replace(slots);
        }
    }

    /// Appends a system segment.
    #[must_use]
    pub fn with_system(mut self, text: impl Into<Str>) -> Self {
        self.system.push(SystemSegment::new(text));
        self
    }

    /// Gets a mutable reference to the options. Shared options are cloned first.
    pub fn options_mut(&mut self) -> &mut ChatOptions {
        Arc::make_mut(&mut self.options)
    }

    /// Emits `event` into the run's stream; see [`Context::emit`].
    ///
    /// # Errors
    ///
    /// Those of [`Context::emit`].
    pub fn emit(&self, event: Event) -> Result<(), EmitError> {
        self.context.emit(event)
    }
}
