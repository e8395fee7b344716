//! Verification of the order of events.

mod error;

pub use self::error::{Entity, VerifyError};

use std::collections::{BTreeSet, HashMap, HashSet};

use super::event::{EncryptedEntity, Event, RunFinished, RunFinishedOutcome, SubagentStarted};
use super::event::{ToolCallStart, UnknownEvent};
use super::message::Message;

/// Verifies that a stream of events follows the rules of the protocol.
///
/// The rules are those of `verifyEvents` in `@ag-ui/client` 1.0, so a stream that passes here does
/// not fail there. A rejected event does not change the verifier. Chunk events
/// (`TEXT_MESSAGE_CHUNK` and the like) are not verified: the client expands them before
/// verification.
///
/// | rule | applies to |
/// |---|---|
/// | a run begins with `RUN_STARTED`, or consists of a `RUN_ERROR` | the stream |
/// | only an error after `RUN_FINISHED`, or another run, follows a terminal event | the stream |
/// | an open id is not opened again; only an open id is continued or closed | messages, tool calls, reasoning, steps, sub-agents |
/// | everything is closed at `RUN_FINISHED` | the same |
/// | an id that one agent opened is not continued by another | the same, and activities |
/// | a sub-agent's run id is used once, and its parent was started before | sub-agents |
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
    /// Before the first event.
    #[default]
    New,
    Running,
    Finished,
    Failed,
}

/// The producer of an event: a sub-agent's run, or `None` for the agent itself.
type Owner = Option<String>;

/// The state of the current run.
#[derive(Clone, Debug, Default)]
struct Run {
    open_messages: BTreeSet<String>,
    open_tool_calls: BTreeSet<String>,
    open_spans: BTreeSet<String>,
    open_reasoning: BTreeSet<String>,
    /// The name and the owner of each open step.
    open_steps: BTreeSet<(String, Owner)>,
    open_subagents: BTreeSet<String>,
    closed_subagents: HashSet<String>,
    // Owners are kept after a close, since data about a closed tool call may still arrive. One map
    // per kind, since an id is unique only within its kind.
    message_owners: HashMap<String, Owner>,
    tool_call_owners: HashMap<String, Owner>,
    activity_owners: HashMap<String, Owner>,
    // A span and a message in it may share an id, and then have one owner.
    reasoning_owners: HashMap<String, Owner>,
}

impl Verifier {
    /// Creates a verifier for a new stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the last run has ended.
    pub fn is_terminated(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Failed)
    }

    /// Verifies the next event.
    ///
    /// # Errors
    ///
    /// The event violates a rule of the protocol at this position.
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

    /// Verifies that the stream may end here.
    ///
    /// Clients treat a stream that ends without a terminal event as a success.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Truncated`] if the last event was not terminal.
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
                lane.update(name, &event.message_id, &event.subagent_run_id)
            }
            Event::TextMessageEnd(event) => {
                let lane = Lane::text(&mut self.open_messages, &mut self.message_owners);
                lane.close(name, &event.message_id, &event.subagent_run_id)
            }

            Event::ToolCallStart(event) => self.tool_call(name, event),
            Event::ToolCallArgs(event) => {
                let lane = Lane::tool(&mut self.open_tool_calls, &mut self.tool_call_owners);
                lane.update(name, &event.tool_call_id, &event.subagent_run_id)
            }
            Event::ToolCallEnd(event) => {
                let lane = Lane::tool(&mut self.open_tool_calls, &mut self.tool_call_owners);
                lane.close(name, &event.tool_call_id, &event.subagent_run_id)
            }
            Event::ToolCallResult(event) => {
                // The result has its own owner, since another agent may have executed the call.
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
                lane.update(name, &event.message_id, &event.subagent_run_id)
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
                // A snapshot that does not replace keeps an existing activity and its owner.
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

            // These events neither open nor continue an id.
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
        // On the wire, a tool call is part of a message and has its owner; another tag is an error.
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
            // An untagged call without a known parent keeps its previous owner.
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
        // A step with this name of another agent makes a wrong owner the likelier mistake.
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

/// The open ids of one kind, and the owners of all.
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

    fn update(&self, name: &str, id: &str, tag: &Owner) -> Result<(), VerifyError> {
        if !self.open.contains(id) {
            return Err(VerifyError::not_open(name, self.entity, id));
        }
        owned(name, self.entity, id, tag, self.owners.get(id))
    }

    fn close(self, name: &str, id: &str, tag: &Owner) -> Result<(), VerifyError> {
        self.update(name, id, tag)?;
        self.open.remove(id);
        Ok(())
    }
}

/// Checks that `tag` is the `owner` of `id`. An event without a tag, or an id without an owner,
/// passes.
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
