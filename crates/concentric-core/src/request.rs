use crate::{
    context::Context,
    outbox::EmitError,
    resume::{Resume, Suspended},
};
use concentric_proto::{
    ChatOptions, Event, OpenRound, Reply, Str, System, SystemSegment, ToolSpecs, Transcript,
    run_state::MachineState,
};
use std::sync::Arc;

/// A request to a model or to an agent: they take the same.
///
/// Cloning is cheap, and a clone is another attempt at the same call: its [`Context`] is a handle
/// to the same run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChatRequest {
    /// The conversation so far.
    pub transcript: Transcript,
    /// What the model is told before it.
    pub system: System,
    /// The tools the model may call. To an agent, these are the client's own; the agent adds its.
    pub tools: ToolSpecs,
    /// How the model is to answer; shared until it is changed ([`options_mut`](Self::options_mut)).
    pub options: Arc<ChatOptions>,
    /// An open round to go on with, before the model is called.
    pub resume: Option<Resume>,
    /// The run it belongs to.
    pub context: Context,
}

impl ChatRequest {
    /// Creates a request to go on with `transcript`, as a run of its own.
    pub fn new(transcript: Transcript) -> Self {
        Self {
            transcript,
            system: System::default(),
            tools: ToolSpecs::default(),
            options: ChatOptions::none(),
            resume: None,
            context: Context::new(),
        }
    }

    /// Creates a request of one user's message.
    pub fn user(text: impl Into<Str>) -> Self {
        let mut transcript = Transcript::new();
        transcript.push_user(text);
        Self::new(transcript)
    }

    /// Creates a request to go on with a run that was interrupted.
    ///
    /// `state` is what the run ended with ([`Finish::state`](crate::Finish::state)), or what a
    /// store that nobody else writes kept of it. What is not answered keeps waiting: the run is
    /// interrupted again.
    pub fn resume(state: MachineState, replies: Vec<Reply>) -> Self {
        let mut request = Self::new(Transcript::new());
        let state = Suspended::State(Box::new(state));
        request.set_resume(Resume::new(state, replies));
        request
    }

    /// Creates a request to go on with a run that a layer around the agent keeps
    /// ([`Suspended::Elsewhere`]): the one of the context's conversation that asked what `replies`
    /// are to.
    pub fn replying(replies: Vec<Reply>) -> Self {
        let mut request = Self::new(Transcript::new());
        request.resume = Some(Resume::new(Suspended::Elsewhere, replies));
        request
    }

    /// Creates a request to go on with `open`, which follows `transcript`, as a history claims that
    /// it is open.
    ///
    /// No reply is believed without a proof ([`Reply::token`]).
    pub fn resume_history(transcript: Transcript, open: OpenRound, replies: Vec<Reply>) -> Self {
        let mut request = Self::new(transcript);
        request.resume = Some(Resume::new(Suspended::Claimed(open), replies));
        request
    }

    /// Sets the run. If it goes on with one whose state is known, the durable [slots](crate::state) of
    /// that stand in `context` from now on, in place of all that stood there.
    #[must_use]
    pub fn with_context(mut self, context: Context) -> Self {
        self.context = context;
        self.replace_slots();
        self
    }

    /// Has the request go on with a run. If its state is known, its durable [slots](crate::state)
    /// stand in the context from now on, in place of all that stood there.
    pub fn set_resume(&mut self, resume: Resume) {
        self.resume = Some(resume);
        self.replace_slots();
    }

    fn replace_slots(&self) {
        if let Some(slots) = self.resume.as_ref().and_then(Resume::slots) {
            self.context.run_slots().replace(slots);
        }
    }

    /// Adds a system segment at the end.
    #[must_use]
    pub fn with_system(mut self, text: impl Into<Str>) -> Self {
        self.system.push(SystemSegment::new(text));
        self
    }

    /// The options, to be changed; a request that shares them keeps its own.
    pub fn options_mut(&mut self) -> &mut ChatOptions {
        Arc::make_mut(&mut self.options)
    }

    /// Puts `event` into the run's stream; see [`Context::emit`].
    ///
    /// # Errors
    ///
    /// Those of [`Context::emit`].
    pub fn emit(&self, event: Event) -> Result<(), EmitError> {
        self.context.emit(event)
    }
}
