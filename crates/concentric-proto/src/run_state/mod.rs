//! The state of a run, as plain data that can be stored.

mod change;
mod edits;
mod json;
mod nested;
mod reply;
mod round;
mod slot;
mod stored_call;
mod v1;

pub use self::{
    change::{RunChange, RunHead},
    edits::RunEdits,
    slot::{RoundPlace, SlotPlace, StoredSlot},
};
pub(crate) use self::{
    nested::{Inner, Said},
    reply::check_replies,
    round::{RoundState, Stage, check_calls},
    stored_call::StoredCall,
};

use self::{
    json::{MAX_DEPTH, is_deeper_than},
    round::check_open,
};
use crate::{
    error::{Error, ErrorKind, SideEffects},
    id::MessageId,
    interrupt::{Interrupt, Reply, StepResume, Suspension},
    message::{Executor, Message, Role, ToolOutcome, ToolResult},
    run_usage::RunUsage,
    text::Str,
    transcript::{HistoryError, OpenRound, Transcript, Turn},
    usage::{FinishReason, Usage},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashSet},
    error::Error as StdError,
    fmt,
    sync::Arc,
};

/// The current version of [`RunState`].
const VERSION: u16 = 2;

/// The state of a run, as plain data that can be stored.
///
/// A writer of the state controls which tools run, so it must come from a store that only trusted
/// code writes. [`from_json`](Self::from_json) reads states of this version of the library and of
/// all earlier releases.
#[derive(Clone, Debug, PartialEq)]
pub struct RunState(pub(crate) Data);

/// The part of a state that tells how to read the rest.
#[derive(Deserialize)]
struct Versioned {
    version: u16,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Data {
    version: u16,
    pub(crate) transcript: Transcript,
    // The number of completed model calls.
    pub(crate) step: u32,
    // The number of steps that are not charged to the step limit.
    #[serde(default)]
    pub(crate) free: u32,
    #[serde(default)]
    pub(crate) calls: Calls,
    pub(crate) usage: Usage,
    // The part of `usage` that no finish of an earlier attempt has reported. `None` if that is all of
    // it, which most runs neither keep nor add up; a stored state has a value.
    #[serde(default = "nothing", skip_serializing_if = "is_nothing")]
    pub(crate) unreported: Option<Box<Usage>>,
    // The tokens of all models, also of those that this loop does not call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run_usage: Option<Box<RunUsage>>,
    pub(crate) effects: SideEffects,
    pub(crate) reason: Option<FinishReason>,
    pub(crate) provider_reason: Option<Str>,
    // The suspension by a gate between two steps, before a round, or before the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gate: Option<Box<StepResume>>,
    // Whether the gate suspended the run before its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) at_end: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) slots: Vec<StoredSlot>,
    // Messages that arrived with replies; they are appended once the open round is closed.
    #[serde(default, skip_serializing_if = "Transcript::is_empty")]
    pub(crate) queued: Transcript,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) edits: Option<Box<RunEdits>>,
    // The names of the overrides with which the run was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) overrides: Option<Arc<Vec<Str>>>,
    pub(crate) stage: Stage,
}

pub(crate) fn nothing() -> Option<Box<Usage>> {
    Some(Box::default())
}

fn is_nothing(usage: &Option<Box<Usage>>) -> bool {
    *usage == nothing()
}

/// The number of tool calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Calls {
    pub(crate) total: u32,
    // For tools that have a limit.
    pub(crate) by_tool: BTreeMap<Str, u32>,
}

impl Data {
    #[inline]
    pub(crate) fn new(transcript: Transcript) -> Self {
        Self {
            version: VERSION,
            transcript,
            step: 0,
            free: 0,
            calls: Calls::default(),
            usage: Usage::default(),
            unreported: None,
            run_usage: None,
            effects: SideEffects::None,
            reason: None,
            provider_reason: None,
            gate: None,
            at_end: false,
            slots: Vec::new(),
            queued: Transcript::new(),
            edits: None,
            overrides: None,
            stage: Stage::Model,
        }
    }

    pub(crate) fn check(&self) -> Result<(), StateError> {
        if self.version != VERSION {
            return Err(StateError::Version(self.version));
        }
        if self.free > self.step {
            let why = Str::from_static("`free` is larger than `step`");
            return Err(StateError::Malformed(why));
        }
        match &self.stage {
            Stage::Round(round) => round.check().map_err(StateError::Round),
            Stage::Inner(inner) => {
                let Said { message, calls, .. } = &inner.said;
                check_open(message, calls).map_err(StateError::Round)?;
                inner.state.check()
            }
            _ => Ok(()),
        }
    }

    /// The state in the form that is stored.
    pub(crate) fn to_stored(&self) -> Self {
        let mut state = self.clone();
        state.unreported_mut();
        state
    }

    /// The tokens that no finish of an earlier attempt has reported.
    pub(crate) fn unreported(&self) -> Usage {
        self.unreported.as_deref().copied().unwrap_or(self.usage)
    }

    /// The tokens that no finish of an earlier attempt has reported, to be counted apart from `usage`.
    pub(crate) fn unreported_mut(&mut self) -> &mut Usage {
        self.unreported.get_or_insert_with(|| Box::new(self.usage))
    }

    /// The suspension by gates, if it has no replies.
    pub(crate) fn asked_by_gates(&self) -> Option<&Suspension> {
        let asked = self.gate.as_deref()?;
        asked.replies.is_empty().then_some(&asked.on)
    }

    /// Adds all of `messages`, or none on error.
    pub(crate) fn push_messages(&mut self, messages: Vec<Message>) -> Result<(), Error> {
        let mut known: HashSet<MessageId> = self
            .transcript
            .iter()
            .chain(&self.queued)
            .filter_map(|turn| turn.as_message().id.clone())
            .collect();
        let mut new = Vec::new();
        for message in messages {
            let id = message.id.clone();
            if id.clone().is_some_and(|id| !known.insert(id)) {
                continue;
            }
            let is_said = matches!(message.role, Role::User | Role::System);
            match Turn::message(message) {
                Ok(turn) if is_said => new.push(turn),
                _ => return Err(unexpected(id.as_ref())),
            }
        }
        let Some(first) = new.first() else {
            return Ok(());
        };
        match self.stage {
            Stage::Round(_) => self.queued.extend(new),
            Stage::Model if !self.at_end => {
                new.into_iter().for_each(|turn| self.transcript.push(turn));
            }
            _ => return Err(unexpected(first.as_message().id.as_ref())),
        }
        Ok(())
    }

    pub(crate) fn effects(&self) -> SideEffects {
        match &self.stage {
            Stage::Inner(inner) => self.effects.max(inner.state.effects()),
            _ => self.effects,
        }
    }

    fn interrupts(&self) -> Vec<&Interrupt> {
        if let Some(pending) = self.asked_by_gates() {
            return pending.interrupts.iter().collect();
        }
        match &self.stage {
            Stage::Round(round) => round.interrupts().collect(),
            Stage::Inner(inner) => inner.state.interrupts(),
            _ => Vec::new(),
        }
    }

    fn replies(&self) -> Vec<&Reply> {
        let of_gates = self.gate.iter().flat_map(|asked| &asked.replies);
        let of_stage: Vec<&Reply> = match &self.stage {
            Stage::Round(round) => round.replies().collect(),
            Stage::Inner(inner) => inner.state.replies(),
            _ => Vec::new(),
        };
        of_gates.chain(of_stage).collect()
    }

    fn asks_together(&self) -> bool {
        if self.asked_by_gates().is_some() {
            return true;
        }
        match &self.stage {
            Stage::Round(round) => round.asked_together().next().is_some(),
            Stage::Inner(inner) => inner.state.asks_together(),
            _ => false,
        }
    }

    /// The outcomes of this loop's open calls if the round is abandoned now.
    pub(crate) fn given_up(&self) -> Vec<ToolResult> {
        let round = match &self.stage {
            Stage::Round(round) => round,
            Stage::Inner(inner) => return inner.state.given_up(),
            _ => return Vec::new(),
        };
        let own = round
            .calls
            .iter()
            .filter(|call| call.call.executor == Executor::Loop);
        let result = |call: &StoredCall| {
            let not_run = || ToolOutcome::cancelled("The call was not run.");
            let outcome = call
                .outcome()
                .cloned()
                .unwrap_or_else(|| call.state.settle_unexecuted(not_run()));
            ToolResult::new(call.call.id.clone(), call.call.name.clone(), outcome)
        };
        own.map(result).collect()
    }
}

impl RunState {
    /// Reads a state of at most `max_bytes`.
    ///
    /// # Errors
    ///
    /// The JSON is too large, nested deeper than 127 levels, not a state, of an unknown version, or
    /// inconsistent.
    pub fn from_json(json: &[u8], max_bytes: usize) -> Result<Self, StateError> {
        if json.len() > max_bytes {
            return Err(StateError::TooLarge(json.len()));
        }
        let Versioned { version } = serde_json::from_slice(json)?;
        let data: Data = match version {
            VERSION => serde_json::from_slice(json)?,
            v1::VERSION => {
                let mut state = serde_json::from_slice(json)?;
                v1::upgrade(&mut state)?;
                serde_json::from_value(state)?
            }
            version => return Err(StateError::Version(version)),
        };
        data.check()?;
        Ok(Self(data))
    }

    /// Serializes the state so that [`from_json`](Self::from_json) can read it.
    ///
    /// # Errors
    ///
    /// [`StateError::TooDeep`]: a value in the state is nested too deeply to be read. Arguments of
    /// calls cannot cause this, because they are stored as text.
    pub fn to_json(&self) -> Result<String, StateError> {
        let json = serde_json::to_string(&self.0)?;
        match is_deeper_than(MAX_DEPTH, &json) {
            true => Err(StateError::TooDeep),
            false => Ok(json),
        }
    }

    /// The interrupts that the run waits on.
    pub fn interrupts(&self) -> Vec<&Interrupt> {
        self.0.interrupts()
    }

    /// The accepted replies to interrupts of the open round or of gates.
    pub fn replies(&self) -> Vec<&Reply> {
        self.0.replies()
    }

    /// Returns whether all interrupts must be replied to together.
    pub fn asks_together(&self) -> bool {
        self.0.asks_together()
    }

    /// Whether tools may have had side effects so far.
    pub fn effects(&self) -> SideEffects {
        self.0.effects()
    }

    /// The conversation before the open round.
    pub fn transcript(&self) -> &Transcript {
        &self.0.transcript
    }

    /// Replaces the conversation before the open round, for a store that keeps its turns elsewhere:
    /// it writes the state with the turns that it lacks, and reads it with all of them.
    #[must_use]
    pub fn with_transcript(mut self, transcript: Transcript) -> Self {
        self.0.transcript = transcript;
        self
    }

    /// The names of the overrides that the run has, which a request that resumes it needs, too.
    pub fn overrides(&self) -> &[Str] {
        self.0
            .overrides
            .as_ref()
            .map_or(&[], |names| names.as_slice())
    }

    /// Removes and returns the values of the durable slots.
    pub fn take_slots(&mut self) -> Vec<StoredSlot> {
        std::mem::take(&mut self.0.slots)
    }

    /// Adds `messages` that came with replies, of [`Role::User`] or [`Role::System`], to the transcript once
    /// the open round is closed, before the model is called. Messages whose id the run already has are
    /// skipped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] with the code `unexpected_message`, without adding any message: the run
    /// waits before its end, or in an agent in place of its model; or a message has another role.
    pub fn push_messages(&mut self, messages: Vec<Message>) -> Result<(), Error> {
        self.0.push_messages(messages)
    }

    /// The message with the open calls, with the outcomes so far.
    pub fn open_round(&self) -> Option<OpenRound> {
        match &self.0.stage {
            Stage::Round(round) => Some(round.to_open()),
            _ => None,
        }
    }

    /// The values of the run's durable slots.
    pub fn slots(&self) -> &[StoredSlot] {
        &self.0.slots
    }

    /// Sets the values of the run's durable slots.
    #[must_use]
    pub fn with_slots(mut self, slots: Vec<StoredSlot>) -> Self {
        self.0.slots = slots;
        self
    }

    /// Removes and returns the tokens of all model calls of the run.
    pub fn take_run_usage(&mut self) -> Option<RunUsage> {
        self.0.run_usage.take().map(|usage| *usage)
    }

    /// Sets the tokens of all model calls of the run ([`Finish::run_usage`](crate::Finish::run_usage)).
    #[must_use]
    pub fn with_run_usage(mut self, usage: RunUsage) -> Self {
        self.0.run_usage = Some(Box::new(usage));
        self
    }

    /// The version of the state's format.
    pub fn version(&self) -> u16 {
        self.0.version
    }
}

fn unexpected(id: Option<&MessageId>) -> Error {
    let id = id.map_or("", MessageId::as_str);
    let what = format!(
        "message `{id}` cannot be sent with the replies to this run; send it after the run has ended"
    );
    Error::new(ErrorKind::InvalidRequest, what).with_code("unexpected_message")
}

/// The reason why a run cannot be resumed from a state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// The version is unknown.
    Version(u16),
    /// The open round is inconsistent.
    Round(HistoryError),
    /// The state has this many bytes, which exceeds the limit.
    TooLarge(usize),
    /// The state is nested deeper than 127 levels.
    TooDeep,
    /// The data is not a valid state.
    Malformed(Str),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "unsupported run state version {version}; this library reads versions {} to {VERSION}",
                v1::VERSION
            ),
            Self::Round(error) => write!(f, "the open round in the run state is invalid: {error}"),
            Self::TooLarge(bytes) => write!(f, "the run state is too large: {bytes} bytes"),
            Self::TooDeep => write!(f, "the run state is nested deeper than {MAX_DEPTH} levels"),
            Self::Malformed(why) => write!(f, "the run state is invalid: {why}"),
        }
    }
}

impl StdError for StateError {}

impl From<serde_json::Error> for StateError {
    fn from(error: serde_json::Error) -> Self {
        Self::Malformed(error.to_string().into())
    }
}
