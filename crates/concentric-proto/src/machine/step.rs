use crate::{
    builder::MessageBuilder,
    call::{CallStage, Refusal},
    event::{Event, StepStart, ToolCallEvent},
    id::{CallId, MessageId},
    message::{Executor, Message, Part, PartKind},
    response_head::ResponseHead,
    run_state::{Said, StoredCall, check_calls},
    spec::ToolSpecs,
    text::Str,
    transcript::{self, HistoryError, Turn},
    usage::{FinishReason, Usage},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// The properties of a model's answer that are known before its body.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelStart {
    /// The id of the message that the model writes.
    pub message_id: MessageId,
    /// The response head.
    pub head: ResponseHead,
    /// The tools that the request offered; calls of other tools are refused.
    pub tools: ToolSpecs,
    /// The names of the tools that the client executes.
    pub client_tools: Arc<[Str]>,
}

impl ModelStart {
    /// Creates the start of an answer to a request without tools.
    pub fn new(message_id: MessageId) -> Self {
        Self {
            message_id,
            head: ResponseHead::default(),
            tools: ToolSpecs::default(),
            client_tools: Arc::default(),
        }
    }

    /// Creates the start of an answer with this head to a request with these tools.
    #[inline]
    pub fn with_tools(
        message_id: MessageId,
        head: ResponseHead,
        tools: ToolSpecs,
        client_tools: Arc<[Str]>,
    ) -> Self {
        Self {
            message_id,
            head,
            tools,
            client_tools,
        }
    }
}

/// A model answer that is being received.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) builder: MessageBuilder,
    tools: ToolSpecs,
    // The tools that were offered, if a layer changed those of the request.
    offered: Option<Arc<[Str]>>,
    client_tools: Arc<[Str]>,
    // The calls to execute, in order.
    calls: Vec<StoredCall>,
    // The number of calls that a reset keeps.
    kept: usize,
    // The ids of the calls, if there are many.
    #[allow(
        clippy::box_collection,
        reason = "a `HashSet` is 48 bytes, and most runs do not need one"
    )]
    ids: Option<Box<HashSet<CallId>>>,
    // Set if the answer continues an interrupted one. Boxed, because few answers do.
    before: Option<Box<Before>>,
}

/// The interrupted part of an answer.
#[derive(Debug)]
struct Before {
    // The tokens used before the answer began.
    used: Usage,
    // Calls that are emitted only when their results arrive.
    unsaid: HashMap<CallId, Part>,
}

impl Step {
    pub(super) fn new(start: ModelStart) -> Self {
        Self {
            before: None,
            builder: MessageBuilder::new(&start.head).with_id(start.message_id),
            tools: start.tools,
            offered: start.head.tools,
            client_tools: start.client_tools,
            calls: Vec::new(),
            kept: 0,
            ids: None,
        }
    }

    /// Continues an interrupted answer.
    pub(super) fn go_on(&mut self, said: Said, unsaid: HashMap<CallId, Part>) {
        for part in said.message.parts {
            self.builder.push(&Event::Part(Box::new(part)));
        }
        // A reset must not discard the interrupted part.
        self.builder.push(&Event::StepStart(Box::new(StepStart::new(
            0,
            MessageId::new(""),
        ))));
        self.kept = said.calls.len();
        self.calls = said.calls;
        let used = said.used;
        self.before = Some(Box::new(Before { used, unsaid }));
    }

    /// The answer so far, in a run that has used `usage` without it.
    pub(super) fn said(&self, usage: Usage) -> Said {
        let message = self.builder.clone().build();
        Said::new(message, self.calls.clone(), self.used_before(usage))
    }

    /// The tokens used before the answer began, in a run that has used `usage` without it.
    pub(super) fn used_before(&self, usage: Usage) -> Usage {
        self.resumed_at().unwrap_or(usage)
    }

    /// The tokens used before an interrupted answer began that this one continues.
    pub(super) fn resumed_at(&self) -> Option<Usage> {
        self.before.as_ref().map(|before| before.used)
    }

    /// Returns whether the answer contains calls for this loop.
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Processes an event, and returns the event to pass on to the consumer, if any.
    pub(super) fn take_in(&mut self, event: Event) -> Option<Event> {
        match event {
            // The steps of a nested agent are not visible outside it, but a reset within it must
            // discard only the current step.
            Event::StepStart(_) => {
                self.builder.push(&event);
                self.kept = self.calls.len();
                None
            }
            // The nested agent has its own conversation.
            Event::StepFinish(_) | Event::Resumed | Event::TranscriptReplaced(_) => None,
            Event::ToolCall(call) => Some(self.take_in_call(call)),
            Event::ToolResult(result) => {
                let before = self.before.as_mut();
                if let Some(call) = before.and_then(|b| b.unsaid.remove(&result.call_id)) {
                    self.builder.push(&Event::Part(Box::new(call)));
                }
                let event = Event::ToolResult(result);
                self.builder.push(&event);
                Some(event)
            }
            Event::Reset => {
                self.calls.truncate(self.kept);
                self.ids = None;
                self.builder.push(&event);
                Some(event)
            }
            event => {
                self.builder.push(&event);
                Some(event)
            }
        }
    }

    fn take_in_call(&mut self, mut event: Box<ToolCallEvent>) -> Event {
        let call = &mut event.call;
        // A nested agent reports calls for this loop as calls for its client.
        if let Executor::Loop | Executor::Client = call.executor {
            call.executor = match self.client_tools.contains(&call.name) {
                true => Executor::Client,
                false => Executor::Loop,
            };
        }
        let needs_outcome = transcript::needs_outcome(call);
        let mut refusal = None;
        if !self.take_id(&call.id, needs_outcome) {
            refusal = Some(Refusal::DuplicateId);
            for other in self.calls.iter_mut().filter(|c| c.call.id == call.id) {
                other.state.stage = CallStage::Rejected(Refusal::DuplicateId);
            }
            // Every call has its own result, so every call requires a unique id.
            let id = call.id.clone();
            let mut n = 2;
            loop {
                call.id = CallId::new(format!("{id}~{n}"));
                n += 1;
                if self.take_id(&call.id, needs_outcome) {
                    break;
                }
            }
        }
        self.builder.push_call(&event);
        if needs_outcome {
            if refusal.is_none() && !self.is_offered(&event.call.name) {
                refusal = Some(Refusal::NotOffered(self.offered()));
            }
            let read_only = self
                .tools
                .get(&event.call.name)
                .is_some_and(|spec| spec.annotations.read_only);
            // Most answers have one call, and the first growth of a vector makes room for four.
            if self.calls.is_empty() {
                self.calls.reserve_exact(1);
            }
            self.calls
                .push(StoredCall::new(event.call.clone(), refusal, read_only));
        }
        // A layer or an agent outside this loop must not execute the loop's calls.
        if event.call.executor == Executor::Loop {
            event.call.executor = Executor::Agent;
        }
        Event::ToolCall(event)
    }

    /// Takes `id` for a call that this answer `keeps`. Returns `false` if another call has it.
    fn take_id(&mut self, id: &CallId, keeps: bool) -> bool {
        // Comparing a few ids is cheaper than hashing one.
        const FEW: usize = 16;
        if self.calls.len() < FEW {
            return self.calls.iter().all(|call| call.call.id != *id);
        }
        let calls = &self.calls;
        let ids = self.ids.get_or_insert_with(|| {
            // An answer with many calls often has more, and growth would hash all ids again.
            let mut ids = HashSet::with_capacity(4 * FEW.max(calls.len()));
            ids.extend(calls.iter().map(|call| call.call.id.clone()));
            Box::new(ids)
        });
        match keeps {
            true => ids.insert(id.clone()),
            false => !ids.contains(id),
        }
    }

    fn is_offered(&self, name: &str) -> bool {
        match &self.offered {
            Some(tools) => tools.iter().any(|tool| *tool == *name),
            None => self.tools.get(name).is_some(),
        }
    }

    fn offered(&self) -> Arc<[Str]> {
        match &self.offered {
            Some(tools) => Arc::clone(tools),
            None => self.tools.iter().map(|tool| tool.name.clone()).collect(),
        }
    }

    /// Returns the complete message, which ended for `reason`, and the calls to execute.
    ///
    /// # Errors
    ///
    /// A call or a result in the answer is invalid in a transcript.
    pub(super) fn end(
        &mut self,
        reason: &FinishReason,
    ) -> Result<(Message, Vec<StoredCall>), HistoryError> {
        // Partial arguments are invalid JSON, but empty arguments would be accepted as no
        // arguments.
        if let FinishReason::Length | FinishReason::ContentFilter = reason
            && let Some(last) = self.calls.last_mut()
            && last.call.arguments.as_str().trim_ascii().is_empty()
        {
            last.refuse(Refusal::Truncated);
        }
        let message = self.builder.take();
        check_calls(&message, &self.calls)?;
        Ok((message, std::mem::take(&mut self.calls)))
    }

    /// The part of an incomplete answer to keep: its text, without calls, because they were not
    /// run.
    pub(super) fn give_up(self) -> Option<Turn> {
        text_of(self.builder.build())
    }
}

/// The part of an incomplete message to keep.
pub(super) fn text_of(mut message: Message) -> Option<Turn> {
    message
        .parts
        .retain(|part| matches!(part.kind, PartKind::Text(_)));
    let said = !message.parts.is_empty();
    said.then(|| Turn::message(message).ok()).flatten()
}
