//! The order that events must keep.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::error::Error;
use std::fmt;

use super::event::{EncryptedEntity, Event, RunFinished, RunFinishedOutcome, SubagentStarted};
use super::event::{ToolCallStart, UnknownEvent};
use super::message::Message;

/// Checks that a stream of events keeps the protocol's rules.
///
/// It accepts and refuses what `verifyEvents` of `@ag-ui/client` 1.0 does, so a stream that passes
/// here does not fail there. A refused event leaves the verifier as it was. Chunks
/// (`TEXT_MESSAGE_CHUNK` and the like) pass unseen, as they do there: the client expands them
/// before it verifies.
///
/// | rule | for |
/// |---|---|
/// | a run begins with `RUN_STARTED`, or is a `RUN_ERROR` alone | the stream |
/// | nothing follows the terminal event, but an error after `RUN_FINISHED`, or another run | the stream |
/// | an open identifier is not opened again; what is not open is not continued or closed | messages, tool calls, reasoning, steps, sub-agents |
/// | all is closed at `RUN_FINISHED` | the same |
/// | what one agent has opened, no other continues | the same, and activities |
/// | a sub-agent's run identifier is used once, and its parent has been started | sub-agents |
/// | an interrupt outcome has at least one interrupt | `RUN_FINISHED` |
///
/// ```
/// use concentric_http::ag_ui::{Event, RunStarted, TextMessageContent, Verifier};
///
/// let mut verifier = Verifier::new();
/// verifier.verify(&RunStarted::new("thread", "run").into()).unwrap();
/// let error = verifier.verify(&TextMessageContent::new("m", "Hi").into()).unwrap_err();
/// assert_eq!(error.to_string(), "TEXT_MESSAGE_CONTENT: text message `m` is not open");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Verifier {
    phase: Phase,
    run: Run,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// No event yet.
    #[default]
    New,
    Running,
    Finished,
    Failed,
}

/// Who produced something: a sub-agent's run, or the agent itself.
type Owner = Option<String>;

/// What is known of the current run.
#[derive(Clone, Debug, Default)]
struct Run {
    open_messages: BTreeSet<String>,
    open_tool_calls: BTreeSet<String>,
    open_spans: BTreeSet<String>,
    open_reasoning: BTreeSet<String>,
    /// By name, with who opened each.
    open_steps: BTreeSet<(String, Owner)>,
    open_subagents: BTreeSet<String>,
    closed_subagents: HashSet<String>,
    // Owners outlive the close: data about a closed tool call may still arrive. An identifier is
    // unique in its kind only, hence a map for each.
    message_owners: HashMap<String, Owner>,
    tool_call_owners: HashMap<String, Owner>,
    activity_owners: HashMap<String, Owner>,
    // A span and the message in it may share an identifier, and then have one owner.
    reasoning_owners: HashMap<String, Owner>,
}

impl Verifier {
    /// Creates a verifier that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the last run is over.
    pub fn is_terminated(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Failed)
    }

    /// Takes the next event.
    ///
    /// # Errors
    ///
    /// If the event must not come here.
    pub fn verify(&mut self, event: &Event) -> Result<(), VerifyError> {
        let name = event.type_name();
        match (self.phase, event) {
            (Phase::Running, Event::RunStarted(_)) => return Err(VerifyError::RunActive),
            (_, Event::RunStarted(_)) | (Phase::Running, _) => {}
            (Phase::New | Phase::Finished, Event::RunError(_)) => {}
            (Phase::New, _) => {
                return Err(VerifyError::NotStarted {
                    event: name.to_owned(),
                });
            }
            (Phase::Finished | Phase::Failed, _) => {
                return Err(VerifyError::Over {
                    event: name.to_owned(),
                    failed: self.phase == Phase::Failed,
                });
            }
        }
        match event {
            Event::RunStarted(event) => {
                self.run = Run::default();
                if let Some(input) = &event.input {
                    self.run.seed(&input.messages, false);
                }
                self.phase = Phase::Running;
                Ok(())
            }
            Event::RunFinished(event) => {
                self.run.finish(event)?;
                self.phase = Phase::Finished;
                Ok(())
            }
            Event::RunError(_) => {
                self.phase = Phase::Failed;
                Ok(())
            }
            event => self.run.apply(name, event),
        }
    }

    /// Checks that the stream may end here: a client takes a stream that stops without a terminal
    /// event for a success.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Truncated`] if the last event was not a terminal one.
    pub fn finish(&self) -> Result<(), VerifyError> {
        if self.is_terminated() {
            Ok(())
        } else {
            Err(VerifyError::Truncated)
        }
    }
}

impl Run {
    fn apply(&mut self, name: &str, event: &Event) -> Result<(), VerifyError> {
        match event {
            Event::TextMessageStart(event) => {
                let lane = Lane::text(&mut self.open_messages, &mut self.message_owners);
                lane.open(name, &event.message_id, &event.subagent_run_id)
            }
            Event::TextMessageContent(event) => {
                let lane = Lane::text(&mut self.open_messages, &mut self.message_owners);
                lane.go_on(name, &event.message_id, &event.subagent_run_id)
            }
            Event::TextMessageEnd(event) => {
                let lane = Lane::text(&mut self.open_messages, &mut self.message_owners);
                lane.close(name, &event.message_id, &event.subagent_run_id)
            }

            Event::ToolCallStart(event) => self.tool_call(name, event),
            Event::ToolCallArgs(event) => {
                let lane = Lane::tool(&mut self.open_tool_calls, &mut self.tool_call_owners);
                lane.go_on(name, &event.tool_call_id, &event.subagent_run_id)
            }
            Event::ToolCallEnd(event) => {
                let lane = Lane::tool(&mut self.open_tool_calls, &mut self.tool_call_owners);
                lane.close(name, &event.tool_call_id, &event.subagent_run_id)
            }
            Event::ToolCallResult(event) => {
                // Whoever executes a call need not be who made it: the result has its own owner.
                self.message_owners
                    .insert(event.message_id.clone(), event.subagent_run_id.clone());
                Ok(())
            }

            Event::ReasoningStart(event) => {
                let lane = Lane::span(&mut self.open_spans, &mut self.reasoning_owners);
                lane.open(name, &event.message_id, &event.subagent_run_id)
            }
            Event::ReasoningEnd(event) => {
                let lane = Lane::span(&mut self.open_spans, &mut self.reasoning_owners);
                lane.close(name, &event.message_id, &event.subagent_run_id)
            }
            Event::ReasoningMessageStart(event) => {
                let lane = Lane::reasoning(&mut self.open_reasoning, &mut self.reasoning_owners);
                lane.open(name, &event.message_id, &event.subagent_run_id)
            }
            Event::ReasoningMessageContent(event) => {
                let lane = Lane::reasoning(&mut self.open_reasoning, &mut self.reasoning_owners);
                lane.go_on(name, &event.message_id, &event.subagent_run_id)
            }
            Event::ReasoningMessageEnd(event) => {
                let lane = Lane::reasoning(&mut self.open_reasoning, &mut self.reasoning_owners);
                lane.close(name, &event.message_id, &event.subagent_run_id)
            }
            Event::ReasoningEncryptedValue(event) => {
                let id = event.entity_id.as_str();
                let (entity, owner) = match event.subtype {
                    EncryptedEntity::ToolCall => (Entity::ToolCall, self.tool_call_owners.get(id)),
                    EncryptedEntity::Message => match self.message_owners.get(id) {
                        Some(owner) => (Entity::TextMessage, Some(owner)),
                        None => (Entity::ReasoningMessage, self.reasoning_owners.get(id)),
                    },
                };
                owned(name, entity, id, &event.subagent_run_id, owner)
            }

            Event::ActivitySnapshot(event) => {
                // One that does not replace leaves an activity as it is, its owner too.
                if event.replace != Some(false)
                    || !self.activity_owners.contains_key(&event.message_id)
                {
                    let owner = event.subagent_run_id.clone();
                    self.activity_owners.insert(event.message_id.clone(), owner);
                }
                Ok(())
            }
            Event::ActivityDelta(event) => {
                let id = event.message_id.as_str();
                let owner = self.activity_owners.get(id);
                owned(name, Entity::Activity, id, &event.subagent_run_id, owner)
            }
            Event::MessagesSnapshot(event) => {
                self.seed(&event.messages, true);
                Ok(())
            }

            Event::StepStarted(event) => {
                let step = (event.step_name.clone(), event.subagent_run_id.clone());
                if self.open_steps.insert(step) {
                    Ok(())
                } else {
                    Err(VerifyError::already_open(
                        name,
                        Entity::Step,
                        &event.step_name,
                    ))
                }
            }
            Event::StepFinished(event) => {
                self.step_finished(name, &event.step_name, &event.subagent_run_id)
            }

            Event::SubagentStarted(event) => self.subagent_started(name, event),
            Event::SubagentFinished(event) => self.subagent_over(name, &event.subagent_run_id),
            Event::SubagentError(event) => self.subagent_over(name, &event.subagent_run_id),

            // These neither open nor continue anything.
            Event::StateSnapshot(_)
            | Event::StateDelta(_)
            | Event::Raw(_)
            | Event::Custom(_)
            | Event::TextMessageChunk(_)
            | Event::ToolCallChunk(_)
            | Event::ReasoningMessageChunk(_)
            | Event::RunStarted(_)
            | Event::RunFinished(_)
            | Event::RunError(_)
            | Event::Unknown(UnknownEvent { .. }) => Ok(()),
        }
    }

    fn tool_call(&mut self, name: &str, event: &ToolCallStart) -> Result<(), VerifyError> {
        let id = event.tool_call_id.as_str();
        if self.open_tool_calls.contains(id) {
            return Err(VerifyError::already_open(name, Entity::ToolCall, id));
        }
        // A tool call has no owner of its own on the wire: it is part of a message, whose owner it
        // has, and says no other.
        let tag = &event.subagent_run_id;
        let parent = event.parent_message_id.as_ref();
        let parent = parent.and_then(|parent| Some((parent, self.message_owners.get(parent)?)));
        if let Some((parent, owner)) = parent {
            owned(name, Entity::TextMessage, parent, tag, Some(owner))?;
        }
        let effective = match (tag, parent) {
            (None, Some((_, owner))) => owner,
            (tag, _) => tag,
        };
        match self.tool_call_owners.get(id) {
            // Without a word on who it is, whoever opened it before opens it again.
            Some(_) if tag.is_none() && parent.is_none() => {}
            Some(owner) if owner != effective => {
                return Err(VerifyError::other_owner(
                    name,
                    Entity::ToolCall,
                    id,
                    effective,
                    owner,
                ));
            }
            Some(_) => {}
            None => {
                let owner = effective.clone();
                self.tool_call_owners.insert(id.to_owned(), owner);
            }
        }
        self.open_tool_calls.insert(id.to_owned());
        Ok(())
    }

    fn step_finished(&mut self, name: &str, step: &str, owner: &Owner) -> Result<(), VerifyError> {
        let own = (step.to_owned(), owner.clone());
        if self.open_steps.remove(&own) {
            return Ok(());
        }
        // Closed under the wrong agent's name is the likelier mistake than never opened.
        let mut others = self.open_steps.range((own.0, None)..);
        match others.next() {
            Some((name_of, opener)) if name_of == step => Err(VerifyError::other_owner(
                name,
                Entity::Step,
                step,
                owner,
                opener,
            )),
            _ => Err(VerifyError::not_open(name, Entity::Step, step)),
        }
    }

    fn subagent_started(&mut self, name: &str, event: &SubagentStarted) -> Result<(), VerifyError> {
        let id = event.subagent_run_id.as_str();
        if self.open_subagents.contains(id) {
            return Err(VerifyError::already_open(name, Entity::Subagent, id));
        }
        if self.closed_subagents.contains(id) {
            return Err(VerifyError::SubagentReused { id: id.to_owned() });
        }
        if let Some(parent) = &event.parent_subagent_run_id
            && !self.open_subagents.contains(parent)
            && !self.closed_subagents.contains(parent)
        {
            return Err(VerifyError::not_open(name, Entity::Subagent, parent));
        }
        self.open_subagents.insert(id.to_owned());
        Ok(())
    }

    fn subagent_over(&mut self, name: &str, id: &str) -> Result<(), VerifyError> {
        if !self.open_subagents.remove(id) {
            return Err(VerifyError::not_open(name, Entity::Subagent, id));
        }
        self.closed_subagents.insert(id.to_owned());
        Ok(())
    }

    fn finish(&self, event: &RunFinished) -> Result<(), VerifyError> {
        let steps = self.open_steps.iter().map(|(step, _)| step.clone());
        let steps: BTreeSet<String> = steps.collect();
        for (entity, open) in [
            (Entity::Step, &steps),
            (Entity::TextMessage, &self.open_messages),
            (Entity::ReasoningMessage, &self.open_reasoning),
            (Entity::ReasoningSpan, &self.open_spans),
            (Entity::ToolCall, &self.open_tool_calls),
            (Entity::Subagent, &self.open_subagents),
        ] {
            if !open.is_empty() {
                let ids = open.iter().cloned().collect();
                return Err(VerifyError::StillOpen { entity, ids });
            }
        }
        match &event.outcome {
            Some(RunFinishedOutcome::Interrupt { interrupts }) if interrupts.is_empty() => {
                Err(VerifyError::NoInterrupts)
            }
            _ => Ok(()),
        }
    }

    /// Records the owners of replayed messages. A snapshot replaces messages, and so their owners;
    /// history does not.
    fn seed(&mut self, messages: &[Message], replace: bool) {
        let record = |owners: &mut HashMap<String, Owner>, id: &str, owner: Option<&str>| {
            if replace || !owners.contains_key(id) {
                owners.insert(id.to_owned(), owner.map(str::to_owned));
            }
        };
        for message in messages {
            let owners = match message {
                Message::Reasoning(_) => &mut self.reasoning_owners,
                Message::Activity(_) => &mut self.activity_owners,
                _ => &mut self.message_owners,
            };
            let owner = message.subagent_run_id();
            record(owners, message.id(), owner);
            if let Message::Assistant(message) = message {
                for call in message.tool_calls.iter().flatten() {
                    record(&mut self.tool_call_owners, &call.id, owner);
                }
            }
        }
    }
}

/// What is open of one kind, and who owns what.
struct Lane<'a> {
    entity: Entity,
    open: &'a mut BTreeSet<String>,
    owners: &'a mut HashMap<String, Owner>,
}

impl<'a> Lane<'a> {
    fn text(open: &'a mut BTreeSet<String>, owners: &'a mut HashMap<String, Owner>) -> Self {
        Self {
            entity: Entity::TextMessage,
            open,
            owners,
        }
    }

    fn tool(open: &'a mut BTreeSet<String>, owners: &'a mut HashMap<String, Owner>) -> Self {
        Self {
            entity: Entity::ToolCall,
            open,
            owners,
        }
    }

    fn span(open: &'a mut BTreeSet<String>, owners: &'a mut HashMap<String, Owner>) -> Self {
        Self {
            entity: Entity::ReasoningSpan,
            open,
            owners,
        }
    }

    fn reasoning(open: &'a mut BTreeSet<String>, owners: &'a mut HashMap<String, Owner>) -> Self {
        Self {
            entity: Entity::ReasoningMessage,
            open,
            owners,
        }
    }

    fn open(self, name: &str, id: &str, tag: &Owner) -> Result<(), VerifyError> {
        if self.open.contains(id) {
            return Err(VerifyError::already_open(name, self.entity, id));
        }
        let owner = self.owners.get(id);
        owned(name, self.entity, id, tag, owner)?;
        if owner.is_none() {
            self.owners.insert(id.to_owned(), tag.clone());
        }
        self.open.insert(id.to_owned());
        Ok(())
    }

    fn go_on(&self, name: &str, id: &str, tag: &Owner) -> Result<(), VerifyError> {
        if !self.open.contains(id) {
            return Err(VerifyError::not_open(name, self.entity, id));
        }
        owned(name, self.entity, id, tag, self.owners.get(id))
    }

    fn close(self, name: &str, id: &str, tag: &Owner) -> Result<(), VerifyError> {
        self.go_on(name, id, tag)?;
        self.open.remove(id);
        Ok(())
    }
}

/// Checks that an event does not claim for `tag` what another has opened. Without a tag it claims
/// nothing; without an opener there is nothing to claim.
fn owned(
    name: &str,
    entity: Entity,
    id: &str,
    tag: &Owner,
    owner: Option<&Owner>,
) -> Result<(), VerifyError> {
    match owner {
        Some(owner) if tag.is_some() && tag != owner => {
            Err(VerifyError::other_owner(name, entity, id, tag, owner))
        }
        _ => Ok(()),
    }
}

/// What a [`VerifyError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Entity {
    /// A text message.
    TextMessage,
    /// A tool call.
    ToolCall,
    /// A span of reasoning.
    ReasoningSpan,
    /// A reasoning message.
    ReasoningMessage,
    /// An activity message.
    Activity,
    /// A step.
    Step,
    /// A sub-agent.
    Subagent,
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TextMessage => "text message",
            Self::ToolCall => "tool call",
            Self::ReasoningSpan => "reasoning span",
            Self::ReasoningMessage => "reasoning message",
            Self::Activity => "activity",
            Self::Step => "step",
            Self::Subagent => "sub-agent",
        })
    }
}

/// How a stream breaks the protocol's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyError {
    /// The first event is neither `RUN_STARTED` nor `RUN_ERROR`.
    #[non_exhaustive]
    NotStarted {
        /// The event's type.
        event: String,
    },
    /// `RUN_STARTED` while a run is going on.
    RunActive,
    /// An event after the run's end.
    #[non_exhaustive]
    Over {
        /// The event's type.
        event: String,
        /// Whether the end was `RUN_ERROR`.
        failed: bool,
    },
    /// Something is opened that is open already.
    #[non_exhaustive]
    AlreadyOpen {
        /// The event's type.
        event: String,
        /// What is opened.
        entity: Entity,
        /// Its identifier.
        id: String,
    },
    /// Something is continued, closed or named as a parent that is not open.
    #[non_exhaustive]
    NotOpen {
        /// The event's type.
        event: String,
        /// What is not open.
        entity: Entity,
        /// Its identifier.
        id: String,
    },
    /// Something is still open at `RUN_FINISHED`.
    #[non_exhaustive]
    StillOpen {
        /// What is open.
        entity: Entity,
        /// All that is open of this kind.
        ids: Vec<String>,
    },
    /// An event claims for one agent what another has opened.
    #[non_exhaustive]
    OtherOwner {
        /// The event's type.
        event: String,
        /// What is claimed.
        entity: Entity,
        /// Its identifier.
        id: String,
        /// The sub-agent that the event is attributed to; `None` is the agent itself.
        claimed_by: Option<String>,
        /// The sub-agent that has opened it; `None` is the agent itself.
        owner: Option<String>,
    },
    /// A sub-agent's run identifier is used a second time in a run.
    #[non_exhaustive]
    SubagentReused {
        /// The identifier.
        id: String,
    },
    /// An interrupt outcome without an interrupt.
    NoInterrupts,
    /// The stream stops without a terminal event.
    Truncated,
}

impl VerifyError {
    fn already_open(event: &str, entity: Entity, id: &str) -> Self {
        Self::AlreadyOpen {
            event: event.to_owned(),
            entity,
            id: id.to_owned(),
        }
    }

    fn not_open(event: &str, entity: Entity, id: &str) -> Self {
        Self::NotOpen {
            event: event.to_owned(),
            entity,
            id: id.to_owned(),
        }
    }

    fn other_owner(event: &str, entity: Entity, id: &str, tag: &Owner, owner: &Owner) -> Self {
        Self::OtherOwner {
            event: event.to_owned(),
            entity,
            id: id.to_owned(),
            claimed_by: tag.clone(),
            owner: owner.clone(),
        }
    }
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted { event } => {
                write!(f, "{event}: the first event is RUN_STARTED or RUN_ERROR")
            }
            Self::RunActive => f.write_str("RUN_STARTED: a run is going on"),
            Self::Over {
                event,
                failed: true,
            } => write!(f, "{event}: the run has failed"),
            Self::Over {
                event,
                failed: false,
            } => write!(f, "{event}: the run has finished"),
            Self::AlreadyOpen { event, entity, id } => {
                write!(f, "{event}: {entity} `{id}` is open already")
            }
            Self::NotOpen { event, entity, id } => {
                write!(f, "{event}: {entity} `{id}` is not open")
            }
            Self::StillOpen { entity, ids } => {
                write!(
                    f,
                    "RUN_FINISHED: still open: {entity} `{}`",
                    ids.join("`, `")
                )
            }
            Self::OtherOwner {
                event,
                entity,
                id,
                claimed_by,
                owner,
            } => write!(
                f,
                "{event}: {entity} `{id}` belongs to {}, not to {}",
                Agent(owner),
                Agent(claimed_by),
            ),
            Self::SubagentReused { id } => {
                write!(f, "SUBAGENT_STARTED: sub-agent `{id}` has been used before")
            }
            Self::NoInterrupts => f.write_str("RUN_FINISHED: an interrupt outcome is empty"),
            Self::Truncated => f.write_str("the stream stops without a terminal event"),
        }
    }
}

impl Error for VerifyError {}

struct Agent<'a>(&'a Owner);

impl fmt::Display for Agent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "sub-agent `{id}`"),
            None => f.write_str("the agent"),
        }
    }
}
