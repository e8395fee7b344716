use crate::{
    Context, Event, OpenRound, Reply, Str, ToolSpecs, Transcript, machine::MachineState,
    state::StoredSlot,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::SystemTime,
};

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
    pub fn emit(&self, event: Event) -> Result<(), crate::EmitError> {
        self.context.emit(event)
    }
}

/// What a model is told before the conversation, in order; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct System(Arc<Vec<SystemSegment>>);

impl Default for System {
    /// No segments; allocates nothing.
    fn default() -> Self {
        static NONE: LazyLock<System> = LazyLock::new(|| System(Arc::default()));
        NONE.clone()
    }
}

impl System {
    /// Adds a segment at the end.
    pub fn push(&mut self, segment: SystemSegment) {
        Arc::make_mut(&mut self.0).push(segment);
    }

    /// Adds a segment at the start.
    pub fn push_front(&mut self, segment: SystemSegment) {
        Arc::make_mut(&mut self.0).insert(0, segment);
    }

    /// The segments, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, SystemSegment> {
        self.0.iter()
    }

    /// Whether no segment has text.
    pub fn is_empty(&self) -> bool {
        self.texts().next().is_none()
    }

    /// The segments that have text as one text, with a blank line between two.
    pub fn text(&self) -> String {
        self.texts().collect::<Vec<_>>().join("\n\n")
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let texts = self.iter().map(|segment| segment.text.as_str());
        texts.filter(|text| !text.is_empty())
    }
}

impl<'a> IntoIterator for &'a System {
    type Item = &'a SystemSegment;
    type IntoIter = std::slice::Iter<'a, SystemSegment>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One piece of what a model is told before the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SystemSegment {
    /// What it says.
    pub text: Str,
    /// How long it stays the same, which decides what a provider may cache.
    #[serde(default)]
    pub stability: Stability,
}

impl SystemSegment {
    /// Creates a segment that is always the same.
    pub fn new(text: impl Into<Str>) -> Self {
        Self {
            text: text.into(),
            stability: Stability::Fixed,
        }
    }

    /// Says how long it stays the same.
    #[must_use]
    pub fn stable_for(mut self, stability: Stability) -> Self {
        self.stability = stability;
        self
    }
}

/// How long a [`SystemSegment`] stays the same.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stability {
    /// Always: instructions.
    #[default]
    Fixed,
    /// For a conversation: who the user is.
    Thread,
    /// For a run: what was recalled.
    Run,
    /// For a model call: the time of day.
    Step,
}

/// How a model is to answer. What is `None` is left to the provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ChatOptions {
    /// The model (`gen_ai.request.model`).
    pub model: Option<Str>,
    /// Whether it must call a tool, and which.
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may make several calls in one answer.
    pub parallel_tool_calls: Option<bool>,
    /// The JSON Schema its text must match.
    pub output_schema: Option<OutputSchema>,
    /// The most tokens it may write (`gen_ai.request.max_tokens`).
    pub max_output_tokens: Option<u32>,
    /// `gen_ai.request.temperature`.
    pub temperature: Option<f32>,
    /// `gen_ai.request.top_p`.
    pub top_p: Option<f32>,
    /// `gen_ai.request.frequency_penalty`.
    pub frequency_penalty: Option<f32>,
    /// `gen_ai.request.presence_penalty`.
    pub presence_penalty: Option<f32>,
    /// Texts that end the answer (`gen_ai.request.stop_sequences`).
    pub stop: Vec<Str>,
    /// `gen_ai.request.seed`.
    pub seed: Option<i64>,
    /// How much it is to reason, in the provider's words: `low`, `medium`, `high`.
    pub reasoning_effort: Option<Str>,
    /// Fields of the provider's own request, which go into it as they are and win.
    pub provider: Map<String, Value>,
    /// What the host wants to know about the request later; the provider is sent it where it takes
    /// such.
    pub metadata: Map<String, Value>,
}

impl ChatOptions {
    fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<ChatOptions>> = LazyLock::new(Arc::default);
        NONE.clone()
    }
}

/// Whether a model must call a tool, and which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolChoice {
    /// As it likes.
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
    /// This one.
    Tool(Str),
}

/// The JSON Schema of a model's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OutputSchema {
    /// Names the schema.
    pub name: Str,
    /// The schema, of an object.
    pub schema: Arc<Value>,
    /// Whether the provider is to enforce it to the letter.
    pub strict: bool,
}

impl OutputSchema {
    /// Creates a schema that the provider is to enforce.
    pub fn new(name: impl Into<Str>, schema: impl Into<Arc<Value>>) -> Self {
        Self {
            name: name.into(),
            schema: schema.into(),
            strict: true,
        }
    }
}

/// A run to go on with, and the replies to what it asked.
///
/// It is taken up once: a clone of the request is another attempt at the same call, and finds it
/// gone.
#[derive(Clone, Debug)]
pub struct Resume {
    run: Arc<Mutex<Untaken>>,
    accepted_at: Option<SystemTime>,
}

type Untaken = Option<(Suspended, Vec<Reply>)>;

/// What is known of a run to go on with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Suspended {
    /// Its state, as it was written down by a process that is trusted.
    State(Box<MachineState>),
    /// What a history claims, which anybody may have written.
    Claimed(OpenRound),
    /// Nothing: a layer outside the agent has it, and takes this as the wish to go on.
    Elsewhere,
}

impl Resume {
    /// Creates the resumption of a run.
    pub fn new(suspended: Suspended, replies: Vec<Reply>) -> Self {
        Self {
            run: Arc::new(Mutex::new(Some((suspended, replies)))),
            accepted_at: None,
        }
    }

    /// Says when the replies were accepted, if that was before now: they are in time if they were
    /// then.
    #[must_use]
    pub const fn accepted_at(mut self, time: SystemTime) -> Self {
        self.accepted_at = Some(time);
        self
    }

    /// When the replies were accepted, if not now.
    pub const fn was_accepted_at(&self) -> Option<SystemTime> {
        self.accepted_at
    }

    /// The slots of the run, if its state is known.
    fn slots(&self) -> Option<Vec<StoredSlot>> {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        match run.as_ref() {
            Some((Suspended::State(state), _)) => Some(state.slots().to_vec()),
            _ => None,
        }
    }

    /// Takes the run and the replies, unless another attempt has.
    pub fn take(&self) -> Option<(Suspended, Vec<Reply>)> {
        self.run
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Whether a layer has the run ([`Suspended::Elsewhere`]), and nobody has taken it.
    pub fn is_elsewhere(&self) -> bool {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*run, Some((Suspended::Elsewhere, _)))
    }

    /// Gives back what was [taken](Self::take), for another attempt: nothing came of this one.
    pub fn give_back(&self, suspended: Suspended, replies: Vec<Reply>) {
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        *run = Some((suspended, replies));
    }
}
