use std::{collections::HashMap, sync::Arc};

use bytes::{Bytes, BytesMut};
use concentric_core::{
    CallId, CancelReason, Context, Custom, Error, ErrorKind, Event, Executor, Finish, Head,
    Interrupt, Media, MediaSource, MessageId, OpenRound, Outcome, Part, PartKind, Str,
    ToolCallPart, ToolContent, ToolResult, ToolStatus, Usage, interrupt::CLIENT_TOOL,
    machine::MachineState,
};
use serde_json::{Value, json};

use super::{super as wire, RunIds, interrupt::interrupt, state::State};
use wire::{
    Content, ContentPart, MediaPart, Metadata, PartSource, RunFinishedOutcome, TextPart,
    TokenUsage, encode,
    layer::{ErrorMessage, refusal},
};

/// Where the metadata of a tool's result says how the call went.
pub(in crate::ag_ui) const STATUS: &str = "status";

/// Where the metadata of an interrupted run's end says which calls the client is to execute; an
/// outcome of success has a field of that name.
const PENDING: &str = "pendingToolCallIds";

/// Writes a run's events as frames of the protocol, in an order that it allows, whatever order they
/// come in.
///
/// What is open is kept here, and closed before something else is opened and before the run ends;
/// what has no place (a delta of a call that nobody began) is left out.
pub(in crate::ag_ui) struct Translator {
    buffer: BytesMut,
    context: Context,
    error_message: ErrorMessage,
    ids: RunIds,

    /// The message, if one is open, and what it says.
    open: Open,
    step: Option<Str>,
    /// Names the messages of this step.
    message_id: Option<Str>,
    /// Whether there is a text of that name.
    texted: bool,
    /// The messages that were said since the step began, or since the last reset.
    said: Vec<Str>,

    calls: Vec<Call>,
    /// How many of them an earlier run made.
    earlier: usize,
    /// The newest call of each id.
    calls_by_id: HashMap<CallId, usize>,
    /// The first of `calls` that was made since the step began, or since the last reset.
    turn: usize,
    /// The calls that deltas go to, by their index in the step.
    previews: Vec<(u32, usize)>,

    state: State,
    provider: Option<Str>,
    model: Option<Str>,
    usage: Usage,
}

/// The message that is open.
#[derive(Debug)]
enum Open {
    Nothing,
    Text {
        id: Str,
        /// What every piece of it begins with.
        head: Vec<u8>,
    },
    Reasoning(Str),
}

/// A tool call that the client has seen.
#[derive(Debug)]
struct Call {
    /// What the client calls it.
    id: Str,
    executor: Executor,
    /// Whether its arguments are not complete.
    open: bool,
    /// Whether some arguments were sent.
    shown: bool,
    answered: bool,
}

impl Translator {
    /// Begins a stream: `RUN_STARTED` is in the buffer.
    pub(in crate::ag_ui) fn new(
        context: Context,
        mut ids: RunIds,
        error_message: ErrorMessage,
    ) -> Self {
        let known = std::mem::take(&mut ids.known);
        let mut translator = Self {
            buffer: BytesMut::with_capacity(1024),
            context,
            error_message,
            ids,
            open: Open::Nothing,
            step: None,
            message_id: None,
            texted: false,
            said: Vec::new(),
            calls: Vec::new(),
            earlier: 0,
            calls_by_id: HashMap::new(),
            turn: 0,
            previews: Vec::new(),
            state: State::default(),
            provider: None,
            model: None,
            usage: Usage::default(),
        };
        for known in known {
            let at = translator.calls.len();
            translator.calls_by_id.insert(known.id, at);
            translator.calls.push(Call {
                id: known.wire,
                executor: Executor::Loop,
                open: false,
                shown: true,
                answered: known.answered,
            });
        }
        translator.earlier = translator.calls.len();
        translator.turn = translator.earlier;
        let RunIds {
            thread,
            run,
            parent,
            ..
        } = &translator.ids;
        let mut started = wire::RunStarted::new(thread.as_str(), run.as_str())
            .protocol_version(wire::PROTOCOL_VERSION);
        started.parent_run_id.clone_from(parent);
        translator.write(started);
        translator
    }

    /// How many bytes wait to be taken.
    pub(in crate::ag_ui) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// What was written since the last time; none if that is nothing.
    pub(in crate::ag_ui) fn take(&mut self) -> Option<Bytes> {
        (!self.buffer.is_empty()).then(|| self.buffer.split().freeze())
    }

    /// Writes a comment.
    pub(in crate::ag_ui) fn keep_alive(&mut self) {
        encode::keep_alive(&mut self.buffer);
    }

    /// Notes who answers.
    pub(in crate::ag_ui) fn head(&mut self, head: &Head) {
        self.provider.clone_from(&head.provider);
        self.model.clone_from(&head.model);
    }

    /// Writes what `event` is to the client.
    #[inline]
    pub(in crate::ag_ui) fn event(&mut self, event: Event) {
        if let (Event::TextDelta(text), Open::Text { head, .. }) = (&event, &self.open)
            && !text.is_empty()
        {
            encode::text_message_more(head, text, &mut self.buffer);
            return;
        }
        self.other_event(event);
    }

    fn other_event(&mut self, event: Event) {
        match event {
            Event::TextDelta(text) | Event::RefusalDelta(text) => self.text(&text),
            Event::ReasoningDelta(text) => self.reasoning(&text),
            Event::PartEnd(_) => {
                // The text of one step stays one message, however many parts its provider makes
                // of it; reasoning comes in paragraphs.
                if let Open::Reasoning(_) = self.open {
                    self.close_message();
                }
            }
            Event::Part(part) => self.part(*part),
            Event::ToolCallStart(start) => self.preview(start.index, &start.id, &start.name),
            Event::ToolCallDelta(delta) => self.preview_delta(delta.index, &delta.arguments),
            Event::ToolCall(event) => self.tool_call(&event.call),
            Event::ToolResult(result) => self.tool_result(&result),
            Event::State(state) => self.state(&state),
            Event::Custom(custom) => self.custom(*custom),
            Event::StepStart(start) => self.step_start(start.step, &start.message_id),
            Event::StepFinish(finish) => {
                self.usage += finish.usage;
                self.step_finish();
            }
            Event::Reset => self.reset(),
            Event::Finish(finish) => self.finish(&finish),
            // A run that goes on looks like any other, and what is added to the core later is not
            // the client's to know before somebody has decided what it is to it.
            _ => {}
        }
    }

    fn write(&mut self, event: impl Into<wire::Event>) {
        encode::event(&event.into(), &mut self.buffer);
    }

    // ---- messages ----

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if !matches!(self.open, Open::Text { .. }) {
            self.close_message();
            let mut id = self.step_message();
            // A second text of a step, after a tool call, would be appended to the first.
            if std::mem::replace(&mut self.texted, true) {
                id = self.ids.messages.unique(&id);
            }
            self.saying(&id);
            self.write(
                wire::TextMessageStart::new(id.as_str()).role(wire::TextMessageRole::Assistant),
            );
            let head = encode::text_message_head(&id);
            self.open = Open::Text { id, head };
        }
        if let Open::Text { head, .. } = &self.open {
            encode::text_message_more(head, text, &mut self.buffer);
        }
    }

    fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let id = match &self.open {
            Open::Reasoning(id) => id.clone(),
            _ => {
                self.close_message();
                let wanted = format!("{}~reasoning", self.step_message());
                let id = self.ids.messages.unique(&wanted);
                self.saying(&id);
                self.write(wire::ReasoningStart::new(id.as_str()));
                self.write(wire::ReasoningMessageStart::new(
                    id.as_str(),
                    wire::ReasoningRole::Reasoning,
                ));
                self.open = Open::Reasoning(id.clone());
                id
            }
        };
        encode::reasoning_message_content(&id, text, &mut self.buffer);
    }

    /// The message that this step writes.
    fn step_message(&mut self) -> Str {
        match &self.message_id {
            Some(id) => id.clone(),
            None => {
                let wanted = self.context.new_id("msg_");
                let id = self.ids.messages.unique(&wanted);
                self.message_id = Some(id.clone());
                id
            }
        }
    }

    fn saying(&mut self, id: &Str) {
        if !self.said.contains(id) {
            self.said.push(id.clone());
        }
    }

    fn close_message(&mut self) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => {}
            Open::Text { id, .. } => self.write(wire::TextMessageEnd::new(id.as_str())),
            Open::Reasoning(id) => {
                self.write(wire::ReasoningMessageEnd::new(id.as_str()));
                self.write(wire::ReasoningEnd::new(id.as_str()));
            }
        }
    }

    fn part(&mut self, part: Part) {
        match part.kind {
            PartKind::Text(text) | PartKind::Refusal(text) => self.text(&text),
            PartKind::Reasoning(text) => {
                self.reasoning(&text);
                self.close_message();
            }
            PartKind::ToolCall(call) => self.tool_call(&call),
            PartKind::ToolResult(result) => self.tool_result(&result),
            PartKind::Image(image) => self.media(ContentPart::Image, &image),
            PartKind::Audio(audio) => self.media(ContentPart::Audio, &audio),
            PartKind::File(file) => self.media(ContentPart::Document, &file),
            // Only its provider understands it, and it may hold what is not for the client.
            _ => {}
        }
    }

    /// The protocol has no event for media in an answer.
    fn media(&mut self, kind: fn(MediaPart) -> ContentPart, media: &Media) {
        let part = media_part(kind, media).and_then(|part| serde_json::to_value(part).ok());
        if let Some(part) = part {
            self.write(wire::Custom::new("concentric.part", part));
        }
    }

    // ---- tool calls ----

    fn preview(&mut self, index: u32, id: &CallId, name: &str) {
        // Of two calls of one id, one will be renamed; which of them these deltas are of is known
        // when they are whole.
        if self.call_of_turn(id).is_some() {
            self.previews.retain(|(of, _)| *of != index);
            return;
        }
        let at = self.open_call(id, name, Executor::Loop);
        self.previews.retain(|(of, _)| *of != index);
        self.previews.push((index, at));
    }

    fn preview_delta(&mut self, index: u32, arguments: &str) {
        if arguments.is_empty() {
            return;
        }
        let at = self.previews.iter().find(|(of, _)| *of == index);
        if let Some(call) = at.and_then(|(_, at)| self.calls.get_mut(*at))
            && call.open
        {
            call.shown = true;
            encode::tool_call_args(&call.id, arguments, &mut self.buffer);
        }
    }

    /// The newest call of that id, if it was made since the step began.
    fn call_of_turn(&self, id: &CallId) -> Option<usize> {
        let at = self.calls_by_id.get(id).copied();
        at.filter(|at| *at >= self.turn)
    }

    fn open_call(&mut self, call_id: &CallId, name: &str, executor: Executor) -> usize {
        self.close_message();
        let id = self.ids.calls.unique(call_id.as_str());
        let parent = self.step_message();
        // A client makes a message of this id for the call if there is none.
        self.saying(&parent);
        self.write(wire::ToolCallStart::new(id.as_str(), name).parent_message_id(parent.as_str()));
        let at = self.calls.len();
        self.calls.push(Call {
            id,
            executor,
            open: true,
            shown: false,
            answered: false,
        });
        self.calls_by_id.insert(call_id.clone(), at);
        at
    }

    fn tool_call(&mut self, call: &ToolCallPart) {
        self.close_message();
        let preview = self
            .call_of_turn(&call.id)
            .filter(|at| self.calls.get(*at).is_some_and(|call| call.open));
        let at = preview.unwrap_or_else(|| self.open_call(&call.id, &call.name, call.executor));
        let Some(entry) = self.calls.get_mut(at) else {
            return;
        };
        entry.executor = call.executor;
        if !entry.shown {
            entry.shown = true;
            let arguments = match call.arguments.as_str() {
                // What a client can parse, and a model means by nothing.
                arguments if arguments.trim().is_empty() => "{}",
                arguments => arguments,
            };
            encode::tool_call_args(&entry.id, arguments, &mut self.buffer);
        }
        self.close_call(at);
    }

    fn close_call(&mut self, at: usize) {
        if let Some(call) = self.calls.get_mut(at)
            && std::mem::take(&mut call.open)
        {
            let end = wire::ToolCallEnd::new(call.id.as_str());
            self.write(end);
        }
    }

    /// Gives calls of this turn a result, so that nobody executes them and the history is whole.
    fn withdraw(&mut self, which: impl Fn(&Call) -> bool) {
        for at in self.turn..self.calls.len() {
            let Some(call) = self.calls.get_mut(at).filter(|call| which(call)) else {
                continue;
            };
            call.answered = true;
            let id = call.id.clone();
            self.close_call(at);
            let mut metadata = Metadata::new();
            metadata.insert(STATUS.to_owned(), status(ToolStatus::Cancelled).into());
            self.write_result(&id, "The call was withdrawn.".into(), metadata);
        }
    }

    fn tool_result(&mut self, result: &ToolResult) {
        let at = self.calls_by_id.get(&result.call_id).copied();
        // A round that is taken up has all of its results again; the client has some.
        if at.is_some_and(|at| at < self.earlier && self.calls.get(at).is_some_and(|c| c.answered))
        {
            return;
        }
        self.close_message();
        if let Some(at) = at {
            self.close_call(at);
        }
        let call = at.and_then(|at| self.calls.get_mut(at));
        let id = match call {
            Some(call) => {
                call.answered = true;
                call.id.clone()
            }
            None => Str::from(result.call_id.as_str()),
        };
        let outcome = &result.outcome;
        let mut metadata = Metadata::new();
        if outcome.status != ToolStatus::Done {
            metadata.insert(STATUS.to_owned(), status(outcome.status).into());
        }
        if let Some(data) = &outcome.data {
            metadata.insert("data".to_owned(), Value::clone(data));
        }
        self.write_result(&id, content(&outcome.content), metadata);
    }

    fn write_result(&mut self, call: &str, content: Content, metadata: Metadata) {
        let wanted = self.context.new_id("msg_");
        let id = self.ids.messages.unique(&wanted);
        let mut event =
            wire::ToolCallResult::new(id.as_str(), call, content).role(wire::ToolRole::Tool);
        event.metadata = (!metadata.is_empty()).then_some(metadata);
        self.write(event);
    }

    // ---- the rest ----

    fn state(&mut self, state: &Arc<Value>) {
        if let Some(event) = self.state.event(state) {
            self.write(event);
        }
    }

    fn custom(&mut self, custom: Custom) {
        let mut event = wire::Custom::new(custom.name.as_str(), custom.value);
        if let Some(id) = &custom.call_id {
            let mut metadata = Metadata::new();
            metadata.insert("toolCallId".to_owned(), self.wire_id(id).into());
            event.metadata = Some(metadata);
        }
        self.write(event);
    }

    /// Closes what is open, and forgets what was said.
    fn end_turn(&mut self) {
        self.close_message();
        // The model began to write them, and that is all that came of it.
        self.withdraw(|call| call.open && !call.answered);
        self.previews.clear();
        self.turn = self.calls.len();
        self.said.clear();
        self.message_id = None;
        self.texted = false;
    }

    fn step_start(&mut self, step: u32, message_id: &MessageId) {
        self.step_finish();
        let name = Str::from(format!("step {step}"));
        self.write(wire::StepStarted::new(name.as_str()));
        self.step = Some(name);
        self.message_id = Some(self.ids.messages.unique(message_id.as_str()));
    }

    fn step_finish(&mut self) {
        self.end_turn();
        if let Some(name) = self.step.take() {
            self.write(wire::StepFinished::new(name.as_str()));
        }
    }

    /// Takes back what was said in this step, as far as that can be done: the client is told which
    /// messages are void.
    fn reset(&mut self) {
        self.close_message();
        self.withdraw(|call| !call.answered);
        let said: Vec<&str> = self.said.iter().map(Str::as_str).collect();
        let value = json!({"messageIds": said});
        self.write(wire::Custom::new("concentric.reset", value));
        // What comes now is another message: a client would append it to the one it has.
        let again = self.message_id.take();
        self.end_turn();
        self.message_id = again.map(|id| self.ids.messages.unique(&id));
    }

    // ---- the end ----

    fn finish(&mut self, finish: &Finish) {
        self.usage = finish.usage;
        let finished = match &finish.outcome {
            Outcome::Completed => {
                // Calls that nobody was there to execute are for the client.
                let pending: Vec<String> = self
                    .calls
                    .iter()
                    .skip(self.earlier)
                    .filter(|call| {
                        !call.answered
                            && !call.open
                            && matches!(call.executor, Executor::Client | Executor::Loop)
                    })
                    .map(|call| call.id.as_str().to_owned())
                    .collect();
                self.finished(success(pending), Metadata::new())
            }
            Outcome::Interrupted => {
                let interrupts = finish.interrupts();
                if interrupts.is_empty() {
                    return self.fail(&undecidable());
                }
                self.step_finish();
                self.results_so_far(finish);
                self.interrupted(&interrupts)
            }
            Outcome::Aborted { reason } => return self.cancelled(reason),
            Outcome::Halted { reason } => {
                let mut metadata = Metadata::new();
                metadata.insert("outcome".to_owned(), "halted".into());
                metadata.insert("reason".to_owned(), reason.as_str().into());
                self.finished(RunFinishedOutcome::success(), metadata)
            }
            Outcome::StepLimit => {
                let mut metadata = Metadata::new();
                metadata.insert("outcome".to_owned(), "step_limit".into());
                self.finished(RunFinishedOutcome::success(), metadata)
            }
            Outcome::CallLimit => {
                let mut metadata = Metadata::new();
                metadata.insert("outcome".to_owned(), "call_limit".into());
                self.finished(RunFinishedOutcome::success(), metadata)
            }
            _ => self.finished(RunFinishedOutcome::success(), Metadata::new()),
        };
        self.step_finish();
        self.write(finished);
    }

    /// Writes what came of those calls of an open round that are done. The run says so when the round
    /// is closed, which may be in another process, that has it from this client.
    fn results_so_far(&mut self, finish: &Finish) {
        let open = finish.state.as_deref().and_then(MachineState::open_round);
        for open in open.iter().flat_map(OpenRound::calls) {
            if let Some(outcome) = &open.outcome {
                let ToolCallPart { id, name, .. } = &open.call;
                let outcome = outcome.clone();
                self.tool_result(&ToolResult::new(id.clone(), name.clone(), outcome));
            }
        }
    }

    /// The end of a run that waits: for the client to execute calls, or for answers.
    fn interrupted(&self, interrupts: &[&Interrupt]) -> wire::RunFinished {
        let is_clients = |interrupt: &&&Interrupt| interrupt.reason == CLIENT_TOOL;
        let pending: Vec<String> = interrupts
            .iter()
            .filter(is_clients)
            .filter_map(|interrupt| Some(self.wire_id(interrupt.call_id.as_ref()?).to_owned()))
            .collect();
        let asked: Vec<wire::Interrupt> = interrupts
            .iter()
            .filter(|interrupt| !is_clients(interrupt))
            .map(|asked| interrupt(asked, asked.call_id.as_ref().map(|id| self.wire_id(id))))
            .collect();
        if asked.is_empty() {
            return self.finished(success(pending), Metadata::new());
        }
        let mut metadata = Metadata::new();
        if !pending.is_empty() {
            metadata.insert(PENDING.to_owned(), pending.into());
        }
        self.finished(RunFinishedOutcome::interrupt(asked), metadata)
    }

    /// What the client calls a call.
    fn wire_id<'a>(&'a self, id: &'a CallId) -> &'a str {
        let call = self.calls_by_id.get(id).and_then(|at| self.calls.get(*at));
        call.map_or(id.as_str(), |call| call.id.as_str())
    }

    /// Ends the stream of a run that was cancelled.
    pub(in crate::ag_ui) fn cancelled(&mut self, reason: &CancelReason) {
        let reason = match reason {
            CancelReason::User => "user",
            CancelReason::Disconnected => "disconnected",
            CancelReason::Shutdown => "shutdown",
            CancelReason::Other(reason) => reason.as_str(),
            _ => "other",
        };
        let mut metadata = Metadata::new();
        metadata.insert("reason".to_owned(), reason.into());
        let finished = self.finished(RunFinishedOutcome::Cancelled, metadata);
        self.step_finish();
        self.write(finished);
    }

    fn finished(&self, outcome: RunFinishedOutcome, metadata: Metadata) -> wire::RunFinished {
        let RunIds { thread, run, .. } = &self.ids;
        let mut finished = wire::RunFinished::new(thread.as_str(), run.as_str()).outcome(outcome);
        finished.usage = self.token_usage();
        finished.metadata = (!metadata.is_empty()).then_some(metadata);
        finished
    }

    /// Ends the stream of a run that failed.
    pub(in crate::ag_ui) fn fail(&mut self, error: &Error) {
        if error.kind() == ErrorKind::Cancelled
            && let Some(reason) = self.context.cancel_reason()
        {
            return self.cancelled(&reason);
        }
        let code = refusal(error);
        let RunIds { thread, run, .. } = &self.ids;
        match code {
            Some(code) => {
                tracing::warn!(thread_id = %thread, run_id = %run, code, "an AG-UI run was not resumed");
            }
            None => {
                tracing::error!(thread_id = %thread, run_id = %run, error = ?error, "an AG-UI run failed");
            }
        }
        let message = (self.error_message)(error);
        let mut event = wire::RunError::new(message).code(code.unwrap_or(error.kind().as_str()));
        event.usage = self.token_usage();
        self.step_finish();
        self.write(event);
    }

    /// Ends the stream of a run whose answer stops without a terminal item.
    pub(in crate::ag_ui) fn truncated(&mut self) {
        self.fail(&Error::new(
            ErrorKind::Truncated,
            "the answer ended before its terminal event",
        ));
    }

    fn token_usage(&self) -> Option<Vec<TokenUsage>> {
        (self.usage != Usage::default()).then(|| {
            vec![TokenUsage {
                provider: self.provider.as_ref().map(|name| name.as_str().to_owned()),
                model: self.model.as_ref().map(|name| name.as_str().to_owned()),
                input_tokens: self.usage.input_tokens,
                output_tokens: self.usage.output_tokens,
                total_tokens: self.usage.total_tokens,
                reasoning_tokens: self.usage.reasoning_tokens,
                cached_input_tokens: self.usage.cached_input_tokens,
                cache_write_input_tokens: self.usage.cache_write_tokens,
            }]
        })
    }
}

fn success(pending: Vec<String>) -> RunFinishedOutcome {
    if pending.is_empty() {
        RunFinishedOutcome::success()
    } else {
        RunFinishedOutcome::pending(pending)
    }
}

fn undecidable() -> Error {
    Error::new(
        ErrorKind::Configuration,
        "the run waits for a decision, which this endpoint cannot take",
    )
}

fn status(status: ToolStatus) -> &'static str {
    match status {
        ToolStatus::Done => "done",
        ToolStatus::Failed => "failed",
        ToolStatus::Denied => "denied",
        ToolStatus::Cancelled => "cancelled",
        _ => "unknown",
    }
}

fn content(content: &ToolContent) -> Content {
    let parts = match content {
        ToolContent::Parts(parts)
            if parts
                .iter()
                .any(|part| !matches!(part.kind, PartKind::Text(_))) =>
        {
            parts
        }
        // Every client reads text; some read nothing else.
        _ => return Content::Text(content.text().into_owned()),
    };
    let parts = parts.iter().filter_map(|part| match &part.kind {
        PartKind::Text(text) => Some(ContentPart::Text(TextPart::new(text.as_str()))),
        PartKind::Image(image) => media_part(ContentPart::Image, image),
        PartKind::Audio(audio) => media_part(ContentPart::Audio, audio),
        PartKind::File(file) => media_part(ContentPart::Document, file),
        _ => None,
    });
    Content::Parts(parts.collect())
}

fn media_part(kind: fn(MediaPart) -> ContentPart, media: &Media) -> Option<ContentPart> {
    let mime_type = media
        .media_type
        .as_ref()
        .map(|name| name.as_str().to_owned());
    let source = match &media.source {
        MediaSource::Base64(value) => PartSource::Data {
            value: value.as_str().to_owned(),
            mime_type: mime_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
        },
        MediaSource::Id(value) => PartSource::File {
            value: value.as_str().to_owned(),
            provider: None,
            mime_type,
        },
        MediaSource::Url(value) => PartSource::Url {
            value: value.as_str().to_owned(),
            mime_type,
        },
        _ => return None,
    };
    let mut part = MediaPart::new(source);
    part.metadata = media
        .name
        .as_ref()
        .map(|name| json!({"filename": name.as_str()}));
    Some(kind(part))
}
