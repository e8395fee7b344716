//! Tools: what a model is told of one, the call of one, and what comes of it.

use crate::{
    Answered, Arguments, CallId, Context, Error, ErrorKind, Media, Part, Pending, Str,
    ToolCallPart, Transcript,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fmt,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

/// What a model is told of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolSpec {
    /// Its name (`gen_ai.tool.name`).
    pub name: Str,
    /// What it is for, and when to use it (`gen_ai.tool.description`).
    #[serde(default)]
    pub description: Str,
    /// The JSON Schema of its arguments, an object.
    pub input_schema: Arc<Value>,
    /// The JSON Schema of its structured output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Arc<Value>>,
    /// What it does to the world.
    #[serde(default)]
    pub annotations: Annotations,
    /// What it belongs to, for rules that hold for several tools; the model is not told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Str>,
    /// Whether it passes the call's [idempotency key](Context::idempotency_key) to a service that
    /// executes a key once. Not serialised: only the tool itself can declare it.
    #[serde(skip)]
    pub keyed: bool,
}

impl ToolSpec {
    /// Creates a tool that takes what `input_schema` says.
    pub fn new(
        name: impl Into<Str>,
        description: impl Into<Str>,
        input_schema: impl Into<Arc<Value>>,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            input_schema: input_schema.into(),
            output_schema: None,
            annotations: Annotations::default(),
            groups: Vec::new(),
            keyed: false,
        }
    }

    /// Whether executing a call a second time changes nothing more: the tool is read-only,
    /// idempotent or [keyed](Self::keyed).
    pub fn may_run_again(&self) -> bool {
        self.annotations.read_only || self.annotations.idempotent || self.keyed
    }
}

/// What a tool does to the world, in MCP's terms (`ToolAnnotations`).
///
/// The default is the worst: destructive, not idempotent, open world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct Annotations {
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Str>,
    /// It changes nothing.
    #[serde(rename = "readOnlyHint")]
    pub read_only: bool,
    /// It may destroy something; else it only adds. Means nothing if it is read-only.
    #[serde(rename = "destructiveHint")]
    pub destructive: bool,
    /// To call it again with the same arguments changes nothing more.
    #[serde(rename = "idempotentHint")]
    pub idempotent: bool,
    /// It reaches things outside the system.
    #[serde(rename = "openWorldHint")]
    pub open_world: bool,
}

impl Default for Annotations {
    fn default() -> Self {
        Self {
            title: None,
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: true,
        }
    }
}

impl Annotations {
    /// A tool that only reads, and only here.
    pub fn read_only() -> Self {
        Self {
            read_only: true,
            destructive: false,
            idempotent: true,
            open_world: false,
            ..Self::default()
        }
    }

    /// A tool that changes something, and nothing more when it is called again with the same
    /// arguments.
    pub fn idempotent() -> Self {
        Self {
            idempotent: true,
            ..Self::default()
        }
    }

    /// Says that the tool only reaches what is here.
    #[must_use]
    pub const fn closed_world(mut self) -> Self {
        self.open_world = false;
        self
    }
}

/// The tools of a request; cheap to clone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolSpecs(Arc<Vec<Arc<ToolSpec>>>);

impl Default for ToolSpecs {
    /// No tools; allocates nothing.
    fn default() -> Self {
        static NONE: LazyLock<ToolSpecs> = LazyLock::new(|| ToolSpecs(Arc::default()));
        NONE.clone()
    }
}

impl ToolSpecs {
    /// Creates a list of tools.
    pub fn new(specs: impl IntoIterator<Item = Arc<ToolSpec>>) -> Self {
        Self(Arc::new(specs.into_iter().collect()))
    }

    /// The tool of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.0.iter().find(|spec| spec.name == *name)
    }

    /// The tools, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Arc<ToolSpec>> {
        self.0.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a tool at the end.
    pub fn push(&mut self, spec: Arc<ToolSpec>) {
        Arc::make_mut(&mut self.0).push(spec);
    }

    /// Keeps the tools that `keep` says.
    pub fn retain(&mut self, keep: impl FnMut(&Arc<ToolSpec>) -> bool) {
        Arc::make_mut(&mut self.0).retain(keep);
    }

    /// Whether each name stands once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`]: two tools have one name.
    pub fn check(&self) -> Result<(), Error> {
        match self.duplicate() {
            None => Ok(()),
            Some(name) => Err(Error::new(
                ErrorKind::Configuration,
                format!("two tools are named `{name}`"),
            )),
        }
    }

    /// The first name that stands twice.
    pub fn duplicate(&self) -> Option<&Str> {
        let mut seen = std::collections::HashSet::new();
        self.iter()
            .map(|spec| &spec.name)
            .find(|name| !seen.insert(name.as_str()))
    }
}

/// A tool of the request has the name of one of the agent's own tools.
///
/// The source of an [`ErrorKind::InvalidRequest`] error: the request is at fault, not the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolNameTaken {
    /// The name.
    pub name: Str,
}

impl ToolNameTaken {
    /// Creates the error for the tool named `name`.
    pub fn new(name: impl Into<Str>) -> Self {
        Self { name: name.into() }
    }
}

impl fmt::Display for ToolNameTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the agent has a tool named `{}` of its own, rename the request's",
            self.name
        )
    }
}

impl std::error::Error for ToolNameTaken {}

impl<'a> IntoIterator for &'a ToolSpecs {
    type Item = &'a Arc<ToolSpec>;
    type IntoIter = std::slice::Iter<'a, Arc<ToolSpec>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Arc<ToolSpec>> for ToolSpecs {
    fn from_iter<I: IntoIterator<Item = Arc<ToolSpec>>>(specs: I) -> Self {
        Self::new(specs)
    }
}

/// A batch of tool calls that a model made in one answer: the request of a
/// [`RoundService`](crate::RoundService).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolRound {
    /// The calls, in the order the model made them.
    pub calls: Vec<RoundCall>,
    /// The conversation before the message that makes them.
    pub transcript: Transcript,
    /// The run they belong to.
    pub context: Context,
}

impl ToolRound {
    /// Creates a batch of calls, at the beginning of a conversation.
    pub fn new(calls: Vec<RoundCall>, context: Context) -> Self {
        Self {
            calls,
            transcript: Transcript::new(),
            context,
        }
    }

    /// Says what was said before.
    #[must_use]
    pub fn after(mut self, transcript: Transcript) -> Self {
        self.transcript = transcript;
        self
    }
}

/// One call of a [`ToolRound`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RoundCall {
    /// The call.
    pub call: ToolCallPart,
    /// Which of its message's calls it is, from 0; the same when the round is resumed.
    pub position: usize,
    /// The tool as the model was told of it.
    pub spec: Option<Arc<ToolSpec>>,
    /// Why the loop does not let the call run. The round answers it all the same.
    pub refusal: Option<Refusal>,
    /// What became of it, if it waited.
    pub answered: Option<Box<Answered>>,
    /// It was started, and the process died before there was an outcome.
    pub recovered: bool,
    /// Its effect was to be written down when it was started: a ledger was there.
    pub noted: bool,
}

impl RoundCall {
    /// Creates a call that may run, the `position`th of its message.
    pub fn new(position: usize, call: ToolCallPart) -> Self {
        Self {
            call,
            position,
            spec: None,
            refusal: None,
            answered: None,
            recovered: false,
            noted: false,
        }
    }

    /// Whether the call is made for the first time, or taken up again.
    pub fn origin(&self) -> Origin {
        match self.answered.is_some() || self.recovered {
            true => Origin::Replay,
            false => Origin::Live,
        }
    }
}

/// Whether a call is made for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// It is.
    Live,
    /// It waited, or its process died.
    Replay,
}

/// Why the loop does not let a call run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The step did not offer a tool of that name. These it did.
    NotOffered(Arc<[Str]>),
    /// Another call of the same answer has the same id.
    DuplicateId,
    /// The answer was cut off before the first of its arguments.
    CutShort,
    /// As many calls were made as may be.
    Limit {
        /// How many may be.
        calls: u32,
        /// Of what.
        of: LimitOf,
    },
}

/// What a limit on calls counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LimitOf {
    /// The calls of a run.
    Run,
    /// The calls of a round.
    Round,
    /// The calls of a tool in a run.
    Tool,
}

impl Refusal {
    /// What the model is told.
    pub fn outcome(&self, call: &ToolCallPart) -> ToolOutcome {
        ToolOutcome::failed(match self {
            Self::NotOffered(offered) if offered.is_empty() => {
                format!("There is no tool `{}`. No tools are available.", call.name)
            }
            Self::NotOffered(offered) => {
                let names: Vec<&str> = offered.iter().map(Str::as_str).collect();
                format!(
                    "There is no tool `{}`. Available tools: {}.",
                    call.name,
                    names.join(", ")
                )
            }
            Self::DuplicateId => {
                "Two calls of this answer have the same id, so none of them was run.".to_owned()
            }
            Self::CutShort => {
                "The answer was cut off before the arguments of this call, so it was not run."
                    .to_owned()
            }
            Self::Limit { calls, of } => format!(
                "The call was not run: the limit is {calls} calls {}.",
                match of {
                    LimitOf::Run => "in total".to_owned(),
                    LimitOf::Round => "in one answer".to_owned(),
                    LimitOf::Tool => format!("of `{}`", call.name),
                }
            ),
        })
    }
}

/// What a round service has to say of one call, as it becomes known: the item of a
/// [`RoundService`](crate::RoundService)'s stream.
///
/// Each call is settled or waits, once.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RoundEvent {
    /// The call has its outcome.
    Settled {
        /// Which call, as an index into [`ToolRound::calls`].
        index: usize,
        /// What came of it.
        outcome: ToolOutcome,
    },
    /// The call waits, and was not run, or can't go on.
    Waiting {
        /// Which call, as an index into [`ToolRound::calls`].
        index: usize,
        /// What it waits for.
        pending: Box<Pending>,
    },
}

impl RoundEvent {
    /// Creates the outcome of the call at `index`.
    pub fn settled(index: usize, outcome: ToolOutcome) -> Self {
        Self::Settled { index, outcome }
    }

    /// Says that the call at `index` waits.
    pub fn waiting(index: usize, pending: Pending) -> Self {
        Self::Waiting {
            index,
            pending: Box::new(pending),
        }
    }

    /// Which call it is about.
    pub const fn index(&self) -> usize {
        match self {
            Self::Settled { index, .. } | Self::Waiting { index, .. } => *index,
        }
    }
}

/// One tool call: the request of a [`ToolService`](crate::ToolService).
///
/// A layer may change its arguments, and nothing else of it.
#[derive(Clone, Debug)]
pub struct ToolCall {
    call: ToolCallPart,
    spec: Option<Arc<ToolSpec>>,
    refusal: Option<Refusal>,
    permit: Permit,
    answered: Option<Box<Answered>>,
    origin: Origin,
    recovered: bool,
    position: usize,
    seal: Option<Seal>,
    attempts: Option<Attempts>,
    transcript: Transcript,
    /// The run it belongs to, with the call's own idempotency key. A layer may add to its
    /// [extensions](Context::extensions); it is not to put another context here.
    pub context: Context,
}

/// Marks the calls that a round service has made as its own, so that it knows them again at the
/// other end of its layers. Who has no seal can't mark a call.
#[derive(Clone, Debug, Default)]
pub struct Seal(Arc<()>);

impl Seal {
    /// Creates a seal unlike any other.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The attempts at one tool call, shared by the clones of the call.
///
/// A layer may drop an attempt that has started, and then return an error or an outcome of its own.
/// Whoever made the call learns here that the tool may have taken effect all the same.
#[derive(Clone, Debug, Default)]
pub struct Attempts(Arc<AttemptCounts>);

#[derive(Debug, Default)]
struct AttemptCounts {
    /// Attempts that have started, and have not ended with a known outcome.
    open: AtomicUsize,
    /// An attempt has taken effect.
    done: AtomicBool,
    /// The last attempt that ended returned an error of the tool.
    error: AtomicBool,
}

impl Attempts {
    /// Creates a record of no attempts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that the tool starts to execute the call.
    pub fn start(&self) -> Attempt {
        self.0.error.store(false, Ordering::Release);
        self.0.open.fetch_add(1, Ordering::AcqRel);
        Attempt(self.clone())
    }

    /// Whether an attempt has started, and has not ended with a known outcome.
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire) > 0
    }

    /// Whether an attempt ended with [`ToolStatus::Done`].
    pub fn is_done(&self) -> bool {
        self.0.done.load(Ordering::Acquire)
    }

    /// Whether the last attempt that ended returned an error of the tool, rather than an outcome
    /// that reports a failure.
    pub fn ended_with_error(&self) -> bool {
        self.0.error.load(Ordering::Acquire)
    }
}

/// One attempt at a tool call. Dropping it leaves the attempt [open](Attempts::is_open).
#[derive(Debug)]
#[must_use = "an attempt that is dropped has no known outcome"]
pub struct Attempt(Attempts);

impl Attempt {
    /// Ends the attempt with an outcome of `status`; [`ToolStatus::Unknown`] leaves it open.
    /// `with_error` states that the tool returned an error.
    pub fn end(self, status: ToolStatus, with_error: bool) {
        let counts = &self.0.0;
        if status == ToolStatus::Unknown {
            return;
        }
        if status == ToolStatus::Done {
            counts.done.store(true, Ordering::Release);
        }
        counts.error.store(with_error, Ordering::Release);
        counts.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a round service lets a call do.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Permit {
    /// It runs with whatever arguments it arrives with.
    #[default]
    Any,
    /// No gate minds it with these arguments; if it arrives with others, the gates are asked again.
    Passed(Arguments),
    /// It runs with these arguments; if it arrives with others, somebody is asked.
    Exactly(Arguments),
    /// It runs with these arguments, which it arrived with before; with others it does not run.
    AsAsked(Arguments),
    /// It does not run, and this is its outcome. It does not enter the stack; hooks may observe it.
    Settled(Arc<ToolOutcome>),
}

impl ToolCall {
    /// Creates a call, which is part of no round: for a tool that is called by itself.
    pub fn new(call: ToolCallPart, context: Context) -> Self {
        Self {
            call,
            spec: None,
            refusal: None,
            permit: Permit::Any,
            answered: None,
            origin: Origin::Live,
            recovered: false,
            position: 0,
            seal: None,
            attempts: Some(Attempts::new()),
            transcript: Transcript::new(),
            context,
        }
    }

    /// Creates the call that a round service makes of `call`.
    pub fn of_round(
        call: RoundCall,
        permit: Permit,
        transcript: Transcript,
        context: &Context,
    ) -> Self {
        Self {
            origin: call.origin(),
            context: context.at_call(&call),
            call: call.call,
            spec: call.spec,
            refusal: call.refusal,
            permit,
            answered: call.answered,
            recovered: call.recovered,
            position: call.position,
            seal: None,
            attempts: None,
            transcript,
        }
    }

    /// Marks the call as one of the round service that has `seal`.
    #[must_use]
    pub fn sealed(mut self, seal: &Seal) -> Self {
        self.seal = Some(seal.clone());
        self
    }

    /// Records the attempts at the call in `attempts`, which clones of the call share.
    #[must_use]
    pub fn with_attempts(mut self, attempts: Attempts) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// The attempts at the call, if they are recorded.
    pub fn attempts(&self) -> Option<&Attempts> {
        self.attempts.as_ref()
    }

    /// Sets the tool that is called.
    #[must_use]
    pub fn with_spec(mut self, spec: Arc<ToolSpec>) -> Self {
        self.spec = Some(spec);
        self
    }

    /// The call as it is now.
    pub fn part(&self) -> &ToolCallPart {
        &self.call
    }

    /// The call's id.
    pub fn id(&self) -> &CallId {
        &self.call.id
    }

    /// The tool's name.
    pub fn name(&self) -> &Str {
        &self.call.name
    }

    /// The arguments.
    pub fn arguments(&self) -> &Arguments {
        &self.call.arguments
    }

    /// Changes the arguments. They are checked again before the tool runs; if somebody, or a rule,
    /// has decided about the others, the call asks again.
    pub fn set_arguments(&mut self, arguments: Arguments) {
        self.call.arguments = arguments;
    }

    /// The tool that is called, if there is one of that name.
    pub fn spec(&self) -> Option<&Arc<ToolSpec>> {
        self.spec.as_ref()
    }

    /// Why the loop does not let the call run.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    /// What the round service lets it do.
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// What came of it already, if it is only shown to the layers: it was refused or denied, or
    /// somebody else executed it.
    pub fn settled(&self) -> Option<&ToolOutcome> {
        match &self.permit {
            Permit::Settled(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// What became of it, if it waited.
    pub fn answered(&self) -> Option<&Answered> {
        self.answered.as_deref()
    }

    /// Whether it is made for the first time.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether it was started before, in a process that died.
    pub fn is_recovered(&self) -> bool {
        self.recovered
    }

    /// Whether it is a call that was [sealed](Self::sealed) with `seal`, and still has the context
    /// of its own that names its effect.
    pub fn is_sealed(&self, seal: &Seal) -> bool {
        let of = self.seal.as_ref();
        of.is_some_and(|of| Arc::ptr_eq(&of.0, &seal.0))
            && self.context.is_at_call(self.position, &self.call.id)
    }

    /// The conversation before the message that makes the call.
    pub fn transcript(&self) -> &Transcript {
        &self.transcript
    }
}

/// What came of one tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolOutcome {
    /// How it went.
    pub status: ToolStatus,
    /// What the model is told.
    pub content: ToolContent,
    /// Structured data for observers and user interfaces; the model does not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Arc<Value>>,
    /// The run ends when the round is closed, for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<Str>,
    /// The step that made the call is not charged to the step limit, if this holds for all of its
    /// calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free: bool,
    /// Who supplied it.
    #[serde(default, skip_serializing_if = "OutcomeSource::is_executor")]
    pub source: OutcomeSource,
}

/// Who supplied a [`ToolOutcome`].
///
/// A history that a client writes never says so: what it brings counts as its executor's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutcomeSource {
    /// Whoever executes the call: its tool, or what decided that it does not run.
    #[default]
    Executor,
    /// A person, in the tool's place: by the reply to a question about the call.
    Person,
}

impl OutcomeSource {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    const fn is_executor(&self) -> bool {
        matches!(self, Self::Executor)
    }
}

impl ToolOutcome {
    fn new(status: ToolStatus, content: ToolContent) -> Self {
        Self {
            status,
            content,
            data: None,
            halt: None,
            free: false,
            source: OutcomeSource::Executor,
        }
    }

    /// The tool did its work, and says this to the model.
    pub fn done(content: impl Into<ToolContent>) -> Self {
        Self::new(ToolStatus::Done, content.into())
    }

    /// The tool, or the call, failed; the model is told why.
    pub fn failed(message: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Failed, ToolContent::Text(message.into()))
    }

    /// The call was not allowed; the model is told why.
    pub fn denied(reason: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Denied, ToolContent::Text(reason.into()))
    }

    /// The call was given up before it was done.
    pub fn cancelled(reason: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Cancelled, ToolContent::Text(reason.into()))
    }

    /// The tool was started, and nobody knows what it did.
    pub fn unknown(reason: impl Into<Str>) -> Self {
        Self::new(ToolStatus::Unknown, ToolContent::Text(reason.into()))
    }

    /// The tool did its work, and this is its result: the model reads a string as it is, and the
    /// rest as JSON.
    pub fn of_value(result: &Value) -> Self {
        match result {
            Value::String(text) => Self::done(text.as_str()),
            other => Self::done(other.to_string()),
        }
    }

    /// A result that a person supplied in the tool's place: its [source](Self::source) says so, and
    /// so does the text that the model reads.
    ///
    /// ```
    /// use concentric_core::{OutcomeSource, ToolOutcome};
    ///
    /// let outcome = ToolOutcome::by_person(&"paid in cash".into());
    /// assert_eq!(outcome.source, OutcomeSource::Person);
    /// assert_eq!(
    ///     outcome.content.text(),
    ///     "A person supplied this result, not the tool:\npaid in cash"
    /// );
    /// ```
    pub fn by_person(result: &Value) -> Self {
        let text = match result {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut outcome = Self::done(format!(
            "A person supplied this result, not the tool:\n{text}"
        ));
        outcome.source = OutcomeSource::Person;
        outcome
    }

    /// Attaches structured data that the model does not see.
    #[must_use]
    pub fn with_data(mut self, data: impl Into<Arc<Value>>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Does not charge the step that made the call to the step limit, as for one that only loads
    /// instructions.
    #[must_use]
    pub fn free_of_charge(mut self) -> Self {
        self.free = true;
        self
    }

    /// Ends the run once the round is closed.
    #[must_use]
    pub fn and_halt(mut self, reason: impl Into<Str>) -> Self {
        self.halt = Some(reason.into());
        self
    }
}

/// How a tool call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolStatus {
    /// The tool did its work.
    Done,
    /// The tool failed, or the call was wrong.
    Failed,
    /// The call was not allowed.
    Denied,
    /// The call was given up.
    Cancelled,
    /// Nobody knows.
    Unknown,
}

/// What a model is told of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolContent {
    /// Text, which may be JSON.
    Text(Str),
    /// Text, images and more.
    Parts(Vec<Part>),
}

impl ToolContent {
    /// The text in it, joined.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        use crate::PartKind;
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| match &part.kind {
                    PartKind::Text(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect::<String>()
                .into(),
        }
    }

    /// The images in it.
    pub fn images(&self) -> impl Iterator<Item = &Media> {
        use crate::PartKind;
        let parts = match self {
            Self::Text(_) => &[][..],
            Self::Parts(parts) => parts,
        };
        parts.iter().filter_map(|part| match &part.kind {
            PartKind::Image(image) => Some(image),
            _ => None,
        })
    }
}

impl From<Str> for ToolContent {
    fn from(text: Str) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for ToolContent {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for ToolContent {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<Vec<Part>> for ToolContent {
    fn from(parts: Vec<Part>) -> Self {
        Self::Parts(parts)
    }
}
