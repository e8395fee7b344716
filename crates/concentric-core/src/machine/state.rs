use super::step::check_calls;
use crate::{
    Answered, CallId, Effects, Executor, FinishReason, HistoryError, Interrupt, InterruptId,
    Message, OpenRound, Part, PartKind, Pending, Refusal, Reply, Role, Str, ToolCallPart,
    ToolOutcome, ToolResult, ToolSpecs, Transcript, Usage, interrupt, state::StoredSlot,
    transcript::OpenCall,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    error::Error as StdError,
    fmt,
    sync::Arc,
};

/// The newest version of [`MachineState`].
const VERSION: u16 = 1;

/// The state of a run, as plain data that can be written down.
///
/// Whoever can write it decides what runs: it is to come from a store that nobody else writes.
/// [`from_json`](Self::from_json) reads what this version of the library wrote, and every released
/// one before it.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineState(pub(super) Data);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Data {
    version: u16,
    pub(super) transcript: Transcript,
    // How many model calls were finished.
    pub(super) step: u32,
    // How many of them are not charged.
    #[serde(default)]
    pub(super) free: u32,
    #[serde(default)]
    pub(super) calls: Calls,
    pub(super) usage: Usage,
    // The part of it that no finish of an earlier attempt has reported.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub(super) unreported: Usage,
    pub(super) effects: Effects,
    pub(super) reason: Option<FinishReason>,
    pub(super) provider_reason: Option<Str>,
    // What is asked between two steps, before a round, or before the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gate: Option<Box<Answered>>,
    // Whether it is asked before the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) at_end: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) slots: Vec<StoredSlot>,
    pub(super) stage: Stage,
}

fn is_nothing(usage: &Usage) -> bool {
    *usage == Usage::default()
}

/// How many calls were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Calls {
    pub(super) total: u32,
    // Of the tools that have a limit.
    pub(super) by_tool: BTreeMap<Str, u32>,
}

impl Data {
    pub(super) fn new(transcript: Transcript) -> Self {
        Self {
            version: VERSION,
            transcript,
            step: 0,
            free: 0,
            calls: Calls::default(),
            usage: Usage::default(),
            unreported: Usage::default(),
            effects: Effects::None,
            reason: None,
            provider_reason: None,
            gate: None,
            at_end: false,
            slots: Vec::new(),
            stage: Stage::Model,
        }
    }

    fn check(&self) -> Result<(), StateError> {
        if self.version != VERSION {
            return Err(StateError::Version(self.version));
        }
        if self.free > self.step {
            let why = Str::from_static("more steps are free than were made");
            return Err(StateError::Malformed(why));
        }
        match &self.stage {
            Stage::Round(round) => round.check().map_err(StateError::Round),
            Stage::Inner(inner) => {
                let Said { message, slots, .. } = &inner.said;
                check_slots(message, slots).map_err(StateError::Round)?;
                inner.state.check()
            }
            _ => Ok(()),
        }
    }

    /// What gates have asked, and nobody has replied to.
    pub(super) fn asked_by_gates(&self) -> Option<&Pending> {
        let asked = self.gate.as_deref()?;
        asked.pending.as_ref().filter(|_| asked.replies.is_empty())
    }

    fn effects(&self) -> Effects {
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
            Stage::Round(round) => round.pending().flat_map(|p| &p.interrupts).collect(),
            Stage::Inner(inner) => inner.state.interrupts(),
            _ => Vec::new(),
        }
    }

    fn replies(&self) -> Vec<&Reply> {
        let of_gates = self.gate.iter().flat_map(|asked| &asked.replies);
        let of_stage: Vec<&Reply> = match &self.stage {
            Stage::Round(round) => {
                let answered = round.slots.iter().filter_map(|slot| slot.answered.as_ref());
                answered.flat_map(|answered| &answered.replies).collect()
            }
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

    /// What came of the calls of the open round that are this loop's own, if it is given up now.
    pub(super) fn given_up(&self) -> Vec<ToolResult> {
        let round = match &self.stage {
            Stage::Round(round) => round,
            Stage::Inner(inner) => return inner.state.given_up(),
            _ => return Vec::new(),
        };
        let own = round
            .slots
            .iter()
            .filter(|slot| slot.call.executor == Executor::Loop);
        let result = |slot: &Slot| {
            let outcome = match &slot.state {
                SlotState::Settled(outcome) => outcome.clone(),
                _ if slot.is_in_doubt() => in_doubt(),
                _ => ToolOutcome::cancelled("The call was not run."),
            };
            ToolResult::new(slot.call.id.clone(), slot.call.name.clone(), outcome)
        };
        own.map(result).collect()
    }
}

impl MachineState {
    /// Reads a state of at most `max_bytes`.
    ///
    /// # Errors
    ///
    /// It is larger, nested deeper than 127 levels, not a state, of a version that this code does
    /// not know, or contradicts itself.
    pub fn from_json(json: &[u8], max_bytes: usize) -> Result<Self, StateError> {
        if json.len() > max_bytes {
            return Err(StateError::TooLarge(json.len()));
        }
        #[derive(Deserialize)]
        struct Versioned {
            version: u16,
        }
        let Versioned { version } = serde_json::from_slice(json)?;
        if version != VERSION {
            return Err(StateError::Version(version));
        }
        let data: Data = serde_json::from_slice(json)?;
        data.check()?;
        Ok(Self(data))
    }

    /// Writes the state. What is written can be read again.
    ///
    /// # Errors
    ///
    /// [`StateError::TooDeep`]: something in it is nested so deep that it could not be read. That is
    /// not the arguments of a call, which are text.
    pub fn to_json(&self) -> Result<String, StateError> {
        let json = serde_json::to_string(&self.0)?;
        match is_deeper_than(MAX_DEPTH, &json) {
            true => Err(StateError::TooDeep),
            false => Ok(json),
        }
    }

    /// What the run waits for.
    pub fn interrupts(&self) -> Vec<&Interrupt> {
        self.0.interrupts()
    }

    /// The replies that were taken in the round that is open, or to what gates have asked.
    pub fn replies(&self) -> Vec<&Reply> {
        self.0.replies()
    }

    /// Whether all that it waits for is to be answered together.
    pub fn asks_together(&self) -> bool {
        self.0.asks_together()
    }

    /// Whether tools may have done something by then.
    pub fn effects(&self) -> Effects {
        self.0.effects()
    }

    /// The conversation before what is open.
    pub fn transcript(&self) -> &Transcript {
        &self.0.transcript
    }

    pub(crate) fn take_slots(&mut self) -> Vec<StoredSlot> {
        std::mem::take(&mut self.0.slots)
    }

    /// The message whose calls are open, and what came of those that are done.
    pub fn open_round(&self) -> Option<OpenRound> {
        match &self.0.stage {
            Stage::Round(round) => Some(round.to_open()),
            _ => None,
        }
    }

    /// The values of the run's durable [slots](crate::state), as they were written down with it.
    pub fn slots(&self) -> &[StoredSlot] {
        &self.0.slots
    }

    /// Writes the values of the run's durable slots down with it, in place of those it had.
    #[must_use]
    pub fn with_slots(mut self, slots: Vec<StoredSlot>) -> Self {
        self.0.slots = slots;
        self
    }

    /// The version of the form it has.
    pub fn version(&self) -> u16 {
        self.0.version
    }
}

/// How deep JSON may be nested for `serde_json` to read it.
const MAX_DEPTH: usize = 127;

fn is_deeper_than(limit: usize, json: &str) -> bool {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth -= 1,
            _ => {}
        }
    }
    false
}

/// Why a run can't go on from a state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// It is of a version that this code does not know.
    Version(u16),
    /// Its open round contradicts itself.
    Round(HistoryError),
    /// It has that many bytes, which are too many.
    TooLarge(usize),
    /// It is nested deeper than 127 levels.
    TooDeep,
    /// It is not a state.
    Malformed(Str),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "the state is of version {version}, and this code knows version {VERSION}"
            ),
            Self::Round(error) => write!(f, "the state's open round: {error}"),
            Self::TooLarge(bytes) => write!(f, "the state is too large: {bytes} bytes"),
            Self::TooDeep => write!(f, "the state is nested deeper than {MAX_DEPTH} levels"),
            Self::Malformed(why) => write!(f, "the state can't be read: {why}"),
        }
    }
}

impl StdError for StateError {}

impl From<serde_json::Error> for StateError {
    fn from(error: serde_json::Error) -> Self {
        Self::Malformed(error.to_string().into())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// The model is to be called.
    Model,
    /// The model is to be called; it is an agent that goes on.
    Inner(Box<Inner>),
    /// Tool calls are to be run, or wait.
    Round(Box<RoundState>),
    /// The run is over.
    Ended,
}

/// The answer of an agent in the model's place, which waits for replies, or is to run its tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Inner {
    pub(super) state: Data,
    pub(super) said: Said,
}

/// What an agent in the model's place has said so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) message: Message,
    // Those of its calls that this loop runs once it is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) slots: Vec<Slot>,
    // The tokens used before it began: its own count goes on where it was.
    pub(super) used: Usage,
}

impl Inner {
    /// The calls that it has yet to tell the results of, and that a layer around it held back when
    /// this was written: a result is to have its call before it.
    pub(super) fn unsaid(&self) -> HashMap<CallId, Part> {
        let message = match &self.state.stage {
            Stage::Round(round) => &round.message,
            Stage::Inner(inner) => &inner.said.message,
            Stage::Model | Stage::Ended => return HashMap::new(),
        };
        let said: HashSet<&CallId> = self
            .said
            .message
            .tool_calls()
            .map(|call| &call.id)
            .collect();
        let unsaid = message.parts.iter().filter_map(|part| match &part.kind {
            PartKind::ToolCall(call) if !said.contains(&call.id) => {
                let mut part = part.clone();
                part.kind = PartKind::ToolCall(call.clone().executed_by(Executor::Agent));
                Some((call.id.clone(), part))
            }
            _ => None,
        });
        unsaid.collect()
    }
}

impl Said {
    pub(super) const fn new(message: Message, slots: Vec<Slot>, used: Usage) -> Self {
        Self {
            message,
            slots,
            used,
        }
    }

    pub(super) const fn nothing(used: Usage) -> Self {
        let message = Message {
            id: None,
            role: Role::Assistant,
            parts: Vec::new(),
        };
        Self::new(message, Vec::new(), used)
    }
}

/// A run whose model is asked, which the states of an agent in the model's place are kept in.
#[derive(Debug)]
pub(crate) struct Outer {
    state: Data,
    said: Said,
}

impl Outer {
    pub(super) const fn new(state: Data, said: Said) -> Self {
        Self { state, said }
    }

    /// The run's state while the agent in its model's place is in the state `inner`.
    pub(crate) fn around(self, MachineState(inner): MachineState) -> MachineState {
        let Self { mut state, said } = self;
        state.usage = said.used;
        state.usage += inner.usage;
        state.stage = Stage::Inner(Box::new(Inner { state: inner, said }));
        MachineState(state)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RoundState {
    pub(super) step: u32,
    pub(super) message: Message,
    pub(super) slots: Vec<Slot>,
    // Its calls were handed out before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) begun: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Slot {
    pub(super) call: ToolCallPart,
    pub(super) refusal: Option<Refusal>,
    pub(super) read_only: bool,
    // What became of it, if it waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) answered: Option<Box<Answered>>,
    // It was last handed out where a ledger was there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) noted: bool,
    // It was running when a process died.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) recovered: bool,
    pub(super) state: SlotState,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SlotState {
    /// To be run.
    Ready,
    /// Waits, for replies or for its siblings. `None`: nobody has recorded for what.
    Waiting(Option<Box<Pending>>),
    /// Handed out to be run.
    Running,
    /// Has its outcome.
    Settled(ToolOutcome),
}

impl Stage {
    pub(super) fn round(step: u32, message: Message, slots: Vec<Slot>) -> Self {
        Self::Round(Box::new(RoundState {
            step,
            message,
            slots,
            begun: false,
        }))
    }

    pub(super) fn claimed(open: OpenRound, tools: &ToolSpecs) -> Self {
        let names: Arc<[Str]> = tools.iter().map(|tool| tool.name.clone()).collect();
        let slot = |OpenCall { call, outcome }| {
            let spec = tools.get(&call.name);
            let gone = || Refusal::NotOffered(Arc::clone(&names));
            Slot {
                read_only: spec.is_some_and(|spec| spec.annotations.read_only),
                // A client answers for its own tools.
                refusal: (spec.is_none() && call.executor == Executor::Loop).then(gone),
                call,
                answered: None,
                recovered: false,
                noted: false,
                state: outcome.map_or(SlotState::Waiting(None), SlotState::Settled),
            }
        };
        let mut slots: Vec<Slot> = open.calls.into_iter().map(slot).collect();
        for (position, slot) in slots.iter_mut().enumerate() {
            if slot.state == SlotState::Waiting(None) {
                slot.await_client(&open.message, position);
            }
        }
        Self::Round(Box::new(RoundState {
            step: 0,
            message: open.message,
            slots,
            // Nobody knows whether it was.
            begun: true,
        }))
    }
}

/// What is said of a call that is [in doubt](Slot::is_in_doubt), if the run does not go on.
pub(super) fn in_doubt() -> ToolOutcome {
    ToolOutcome::unknown(
        "The call was started by a process that ended, and nobody knows what came of it.",
    )
}

/// Checks that `slots` are the calls of `message` that need an outcome, each of another id.
fn check_slots(message: &Message, slots: &[Slot]) -> Result<(), HistoryError> {
    check_calls(message, slots)?;
    let mut seen = HashSet::new();
    match slots.iter().find(|slot| !seen.insert(&slot.call.id)) {
        Some(slot) => Err(HistoryError::DuplicateCall(slot.call.id.clone())),
        None => Ok(()),
    }
}

impl RoundState {
    fn check(&self) -> Result<(), HistoryError> {
        check_slots(&self.message, &self.slots)?;
        match self.slots.is_empty() {
            true => Err(HistoryError::NoCalls),
            false => Ok(()),
        }
    }

    pub(super) fn to_open(&self) -> OpenRound {
        OpenRound {
            message: self.message.clone(),
            calls: self
                .slots
                .iter()
                .map(|slot| OpenCall {
                    call: slot.call.clone(),
                    outcome: match &slot.state {
                        SlotState::Settled(outcome) => Some(outcome.clone()),
                        _ => None,
                    },
                })
                .collect(),
        }
    }

    pub(super) fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.slots.iter().filter_map(Slot::pending)
    }

    /// The questions of the round that are to be answered together.
    pub(super) fn asked_together(&self) -> impl Iterator<Item = &Interrupt> {
        let together = self.pending().any(|pending| pending.together);
        self.pending()
            .filter(move |_| together)
            .flat_map(|pending| &pending.interrupts)
    }

    pub(super) fn questions(&self) -> Questions<'_> {
        let mut recorded = HashMap::new();
        for (at, slot) in self.slots.iter().enumerate() {
            for asked in slot.pending().into_iter().flat_map(|p| &p.interrupts) {
                recorded.entry(&asked.id).or_insert((at, asked));
            }
        }
        Questions {
            recorded,
            round: self,
        }
    }
}

/// What the calls of a round wait to be told.
pub(super) struct Questions<'a> {
    // Each with the call that asks it.
    recorded: HashMap<&'a InterruptId, (usize, &'a Interrupt)>,
    round: &'a RoundState,
}

impl<'a> Questions<'a> {
    /// The call that waits for a reply to `id`, and the question if it was recorded.
    pub(super) fn get(&self, id: &InterruptId) -> Option<(usize, Option<&'a Interrupt>)> {
        match self.recorded.get(id) {
            Some((at, asked)) => Some((*at, Some(asked))),
            None => self.claimed(id.as_str()).map(|at| (at, None)),
        }
    }

    /// The call that only a history says to wait, and that `id` names: all that is known of its
    /// question.
    fn claimed(&self, id: &str) -> Option<usize> {
        let RoundState { message, slots, .. } = self.round;
        let at = interrupt::position(message.id.as_ref(), id)?;
        let slot = slots.get(at)?;
        let key = interrupt::key(message.id.as_ref(), at, &slot.call.id);
        let rest = id.strip_prefix(key.as_str())?;
        let waits = slot.state == SlotState::Waiting(None);
        (waits && (rest.is_empty() || rest.starts_with('#'))).then_some(at)
    }
}

impl Slot {
    pub(super) fn new(call: ToolCallPart, refusal: Option<Refusal>, read_only: bool) -> Self {
        Self {
            call,
            refusal,
            read_only,
            answered: None,
            recovered: false,
            noted: false,
            state: SlotState::Ready,
        }
    }

    /// Has a call of the client's wait for it.
    pub(super) fn await_client(&mut self, message: &Message, position: usize) {
        if self.call.executor != Executor::Client || self.refusal.is_some() {
            return;
        }
        let id: &CallId = &self.call.id;
        let key = interrupt::key(message.id.as_ref(), position, id);
        let asked = Interrupt::new(InterruptId::new(key), interrupt::CLIENT_TOOL).about(id.clone());
        self.state = SlotState::Waiting(Some(Box::new(Pending::asking(vec![asked]))));
    }

    /// What it waits for, if that was recorded.
    fn pending(&self) -> Option<&Pending> {
        match &self.state {
            SlotState::Waiting(pending) => pending.as_deref(),
            _ => None,
        }
    }

    /// Hands a call out that nobody has replied to, and that only a history says was asked about:
    /// to be asked about, and for nothing else.
    pub(super) fn ask_again(&mut self, resumes: bool) {
        if self.state != SlotState::Waiting(None) {
            return;
        }
        if resumes {
            self.answered = Some(Box::default());
            self.state = SlotState::Ready;
        } else {
            self.state = SlotState::Settled(ToolOutcome::cancelled("The call was not run."));
        }
    }

    /// Whether it was handed out to be asked about, and for nothing else.
    pub(super) fn is_only_asked_about(&self) -> bool {
        let answered = self.answered.as_deref();
        answered.is_some_and(|answered| answered.pending.is_none() && answered.replies.is_empty())
    }

    /// Whether it is to be run.
    pub(super) const fn is_ready(&self) -> bool {
        matches!(self.state, SlotState::Ready)
    }

    /// Whether it was handed out to be run.
    pub(super) const fn is_running(&self) -> bool {
        matches!(self.state, SlotState::Running)
    }

    /// Whether its outcome ends the run.
    pub(super) fn halts(&self) -> bool {
        matches!(&self.state, SlotState::Settled(outcome) if outcome.halt.is_some())
    }

    /// Whether a process that ended has started it, and nobody has said what came of it.
    pub(super) fn is_in_doubt(&self) -> bool {
        let asks = |pending: &Pending| {
            let mut asked = pending.interrupts.iter();
            pending.begun || asked.any(|asked| asked.reason == interrupt::UNKNOWN_EFFECT)
        };
        let pending = match &self.state {
            SlotState::Settled(_) => return false,
            SlotState::Waiting(pending) => pending.as_deref(),
            _ => self
                .answered
                .as_deref()
                .and_then(|answered| answered.pending.as_ref()),
        };
        self.refusal.is_none() && !self.read_only && (self.recovered || pending.is_some_and(asks))
    }

    /// Whether it waits for its siblings only.
    pub(super) fn is_held(&self) -> bool {
        matches!(&self.state, SlotState::Waiting(Some(pending)) if pending.is_held())
    }

    /// Whether it waits for somebody.
    pub(super) fn asks(&self) -> bool {
        matches!(&self.state, SlotState::Waiting(_)) && !self.is_held()
    }
}
