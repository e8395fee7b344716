//! Translation of a run's events to chunks.

use std::{borrow::Cow, collections::HashSet};

use bytes::{BufMut, Bytes, BytesMut};
use concentric_core::{
    CancelReason, Context, Error, Event, Finish, FinishReason, Interrupt, Media, MediaSource,
    OpenRound, Outcome, Part, PartKind, ResponseHead, Str, ToolCallPart, ToolResult, Transcript,
    Usage,
    interrupt::{CLIENT_TOOL, TOOL_CALL},
    machine::RunState,
    store::Resumable,
};
use serde_json::{Value, json};

use super::{
    agents::Agents,
    calls::Calls,
    chunk::{Chunk, Data},
    encode::{DONE, reasoning_head, text_head},
    layer::{Options, Sdk},
};
use crate::{
    describe::ErrorMessage,
    run::{
        Cut, Format, Metadata, RunIds, TOKEN, Translate, accepts_reply, interrupt, message,
        reason_of, stopped, subagent_of, token_usage, unanswerable, undecidable,
    },
    sse,
};

/// Writes the events of a run as chunks of one message.
pub(super) struct Translator {
    out: Out,
    options: Options,
    error_message: ErrorMessage,
    /// The id of the message.
    message: Str,
    open: Open,
    /// Whether a step is open.
    in_step: bool,
    /// Whether a step has begun in this run.
    has_steps: bool,
    /// The base id of the texts of this step.
    step_message: Option<Str>,
    calls: Calls,
    agents: Agents,
    provider: Option<Str>,
    model: Option<Str>,
    usage: Usage,
    // Whether a layer stores the run if it ends with interrupts.
    is_stored: bool,
}

/// The stream and the ids of a run.
pub(super) struct Out {
    pub(super) buffer: BytesMut,
    pub(super) context: Context,
    pub(super) ids: RunIds,
}

/// The open part of the message, with the prefix of its deltas.
enum Open {
    Nothing,
    Text { id: Str, head: Vec<u8> },
    Reasoning { id: Str, head: Vec<u8> },
}

impl Out {
    pub(super) fn write(&mut self, chunk: &Chunk<'_>) {
        sse::event(chunk, &mut self.buffer);
    }

    /// Writes data of the type `data-` and `name`.
    pub(super) fn data(&mut self, name: &str, id: Option<&str>, data: &Value, transient: bool) {
        let kind = format!("data-{name}");
        sse::event(&Data::new(&kind, id, data, transient), &mut self.buffer);
    }
}

impl Translator {
    /// Creates a translator with `start` in its buffer.
    pub(super) fn new(
        options: Options,
        context: Context,
        mut ids: RunIds,
        error_message: ErrorMessage,
    ) -> Self {
        let message = match &ids.continued {
            Some(continued) => continued.id.as_str().into(),
            None => context.new_id("msg_"),
        };
        let known = std::mem::take(&mut ids.known);
        let in_message = ids.continued.as_ref().map(|it| &it.calls);
        let calls = Calls::new(known, in_message, options.dynamic_tools);
        let mut translator = Self {
            out: Out {
                buffer: BytesMut::with_capacity(1024),
                context,
                ids,
            },
            options,
            error_message,
            message,
            open: Open::Nothing,
            in_step: false,
            has_steps: false,
            step_message: None,
            calls,
            agents: Agents::new(options.reasoning),
            provider: None,
            model: None,
            usage: Usage::default(),
            is_stored: false,
        };
        translator.restart();
        translator
    }

    fn other_event(&mut self, event: Event) {
        match event {
            Event::TextDelta(text) | Event::RefusalDelta(text) => self.text(&text),
            Event::ReasoningDelta(text) => self.reasoning(&text),
            Event::PartEnd(_) => {
                // The text of a step is one part, even if the provider splits it.
                if let Open::Reasoning { .. } = self.open {
                    self.close();
                }
            }
            Event::Part(part) => self.part(*part),
            Event::ToolCallStart(start) => {
                self.close();
                let (index, id) = (start.index, &start.id);
                self.calls.preview(index, id, &start.name, &mut self.out);
            }
            Event::ToolCallDelta(delta) => {
                let (index, arguments) = (delta.index, &delta.arguments);
                self.calls.preview_delta(index, arguments, &mut self.out);
            }
            Event::ToolCall(event) => self.tool_call(&event.call),
            Event::ToolResult(result) => self.tool_result(&result),
            Event::State(state) => self.out.data("state", Some("state"), &state, false),
            Event::Custom(event) => {
                let call = event.call_id.as_ref();
                self.custom(&event.name, &event.value, call.map(|id| id.as_str()));
            }
            Event::SubAgent(event) => {
                self.close();
                self.agents.event(*event, &self.calls, &mut self.out);
            }
            Event::StepStart(start) => {
                self.end_step();
                self.out.write(&Chunk::StartStep);
                self.in_step = true;
                self.has_steps = true;
                self.calls.start_step();
                let wanted = start.message_id.as_str();
                self.step_message = Some(self.out.ids.messages.unique(wanted));
            }
            Event::StepFinish(finish) => {
                self.usage += finish.usage;
                self.end_step();
            }
            Event::Reset => self.reset(),
            Event::Finish(finish) => self.finish(&finish),
            // The client's messages can't be replaced, and a resumed run looks like any other. Event types added to the
            // core later are not sent until a mapping for them is defined.
            _ => {}
        }
    }

    // ---- parts ----

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if !matches!(self.open, Open::Text { .. }) {
            self.close();
            let base = self.step_message();
            let id = self.out.ids.messages.unique(&format!("{base}~text"));
            self.out.write(&Chunk::TextStart { id: &id });
            let head = text_head(&id);
            self.open = Open::Text { id, head };
        }
        if let Open::Text { head, .. } = &self.open {
            sse::delta(head, text, &mut self.out.buffer);
        }
    }

    fn reasoning(&mut self, text: &str) {
        if text.is_empty() || !self.options.reasoning {
            return;
        }
        if !matches!(self.open, Open::Reasoning { .. }) {
            self.close();
            let base = self.step_message();
            let id = self.out.ids.messages.unique(&format!("{base}~reasoning"));
            self.out.write(&Chunk::ReasoningStart { id: &id });
            let head = reasoning_head(&id);
            self.open = Open::Reasoning { id, head };
        }
        if let Open::Reasoning { head, .. } = &self.open {
            sse::delta(head, text, &mut self.out.buffer);
        }
    }

    fn step_message(&mut self) -> Str {
        let new = || self.out.context.new_id("msg_");
        self.step_message.get_or_insert_with(new).clone()
    }

    fn close(&mut self) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => {}
            Open::Text { id, .. } => self.out.write(&Chunk::TextEnd { id: &id }),
            Open::Reasoning { id, .. } => self.out.write(&Chunk::ReasoningEnd { id: &id }),
        }
    }

    fn part(&mut self, part: Part) {
        match part.kind {
            PartKind::Text(text) | PartKind::Refusal(text) => self.text(&text),
            PartKind::Reasoning(text) => {
                self.reasoning(&text);
                self.close();
            }
            PartKind::ToolCall(call) => self.tool_call(&call),
            PartKind::ToolResult(result) => self.tool_result(&result),
            PartKind::Image(media) | PartKind::Audio(media) | PartKind::File(media) => {
                self.file(&media);
            }
            // Opaque provider data, which may be confidential.
            _ => {}
        }
    }

    fn file(&mut self, media: &Media) {
        self.close();
        if let Some((url, media_type)) = file(media) {
            let url = &url;
            self.out.write(&Chunk::File { url, media_type });
        }
    }

    fn tool_call(&mut self, call: &ToolCallPart) {
        self.close();
        self.calls.call(call, &mut self.out);
    }

    fn tool_result(&mut self, result: &ToolResult) {
        self.close();
        let (call, outcome) = (&result.call_id, &result.outcome);
        self.agents.end_call(None, call, outcome, &mut self.out);
        self.calls.result(result, &mut self.out);
    }

    fn custom(&mut self, name: &str, value: &Value, call: Option<&str>) {
        let field = |name: &str| value.get(name).and_then(Value::as_str);
        match (name, call) {
            ("progress", Some(call)) => {
                if let Some(tool_call_id) = self.calls.running(call) {
                    let output = value;
                    self.out.write(&Chunk::ToolOutputAvailable {
                        tool_call_id: &tool_call_id,
                        output,
                        preliminary: true,
                    });
                }
            }
            ("source-url", _) if field("url").is_some() => {
                if self.options.sources
                    && let Some(url) = field("url")
                {
                    let source_id = field("sourceId").unwrap_or(url);
                    let title = field("title");
                    self.out.write(&Chunk::SourceUrl {
                        source_id,
                        url,
                        title,
                    });
                }
            }
            ("source-document", _) if field("title").is_some() => {
                if self.options.sources
                    && let (Some(title), Some(media_type)) = (field("title"), field("mediaType"))
                {
                    let source_id = field("sourceId").unwrap_or(title);
                    let filename = field("filename");
                    self.out.write(&Chunk::SourceDocument {
                        source_id,
                        media_type,
                        title,
                        filename,
                    });
                }
            }
            _ => self.out.data(name, None, value, self.options.transient),
        }
    }

    // ---- steps ----

    fn end_step(&mut self) {
        self.close();
        self.calls.end_step(&mut self.out);
        self.step_message = None;
        if std::mem::take(&mut self.in_step) {
            self.out.write(&Chunk::FinishStep);
        }
    }

    /// Invalidates the parts of this step, or of the last one.
    fn reset(&mut self) {
        match self.options.sdk {
            Sdk::V6 => {
                self.close();
                self.calls.withdraw(&mut self.out);
                self.out.data("reset", None, &json!({}), false);
            }
            Sdk::V7 => {
                // The client would remove parts of an earlier run.
                if self.out.ids.continued.is_some() && !self.has_steps {
                    self.close();
                    self.calls.withdraw(&mut self.out);
                    self.out.write(&Chunk::StartStep);
                    self.in_step = true;
                }
                self.open = Open::Nothing;
                self.out.write(&Chunk::ResetStep);
            }
        }
        self.calls.reset();
    }

    // ---- the end ----

    /// Writes the missing calls of an open round, and the outcomes of its finished calls.
    ///
    /// The run emits these results only when the round is closed, possibly in another process.
    fn round_so_far(&mut self, open: &OpenRound) {
        for (call, outcome) in open.calls() {
            self.calls.missed(call, &mut self.out);
            if let Some(outcome) = outcome {
                let (id, name) = (call.id.clone(), call.name.clone());
                self.tool_result(&ToolResult::new(id, name, outcome.clone()));
            }
        }
    }

    fn interrupted(&mut self, finish: &Finish) {
        let interrupts = finish.interrupts();
        if interrupts.is_empty() {
            return self.fail(&undecidable());
        }
        self.end_step();
        let open = finish.state.as_deref().and_then(RunState::open_round);
        if let Some(open) = &open {
            self.round_so_far(open);
        }
        let mut all = interrupts.iter();
        if let Some(interrupt) = all.find(|it| !accepts_reply(self.is_stored, it)) {
            return self.fail(&unanswerable(interrupt));
        }
        let mut asked = HashSet::new();
        for interrupt in interrupts {
            self.ask(interrupt, &mut asked);
        }
        self.agents.end_all("waiting", &mut self.out);
        self.write_finish("tool-calls", Metadata::new());
    }

    /// Writes one interrupt; `asked` has the calls that the client has an approval for.
    fn ask(&mut self, of: &Interrupt, asked: &mut HashSet<Str>) {
        let is_own = subagent_of(of).is_none();
        if is_own && of.reason == CLIENT_TOOL {
            return;
        }
        let call = of.call_id.as_ref().filter(|_| is_own);
        let call = call.and_then(|id| self.calls.wire(id));
        let mut data = interrupt(of, subagent_of(of), call.as_ref().map(|id| id.as_str()));
        match call {
            Some(call) if of.reason == TOOL_CALL && asked.insert(call.clone()) => {
                let token = match data.get_mut("metadata") {
                    Some(Value::Object(metadata)) => metadata.remove(TOKEN),
                    _ => None,
                };
                let descriptor = Value::from(data);
                self.out.write(&Chunk::ToolApprovalRequest {
                    approval_id: of.id.as_str(),
                    tool_call_id: &call,
                    approval_descriptor: Some(&descriptor),
                    reason: of.message.as_ref().map(|it| it.as_str()),
                    signature: token.as_ref().and_then(Value::as_str),
                });
            }
            _ => {
                let (id, data) = (of.id.as_str(), data.into());
                self.out.data("interrupt", Some(id), &data, false);
            }
        }
    }

    fn write_finish(&mut self, finish_reason: &'static str, mut metadata: Metadata) {
        let (provider, model) = (self.provider.as_ref(), self.model.as_ref());
        if let Some(usage) = token_usage(&self.usage, provider, model) {
            metadata.insert("usage".to_owned(), usage.into());
        }
        self.out.write(&Chunk::Finish {
            finish_reason,
            message_metadata: metadata,
        });
        self.out.buffer.put_slice(DONE);
    }

    /// Ends the parts of a run that does not continue.
    fn end_all(&mut self) {
        self.end_step();
        self.calls.withdraw(&mut self.out);
        self.agents.end_all("stopped", &mut self.out);
    }
}

impl Translate for Translator {
    fn format(&self) -> &'static Format {
        &FORMAT
    }

    fn buffer(&mut self) -> &mut BytesMut {
        &mut self.out.buffer
    }

    fn len(&self) -> usize {
        self.out.buffer.len()
    }

    fn restart(&mut self) {
        self.out.buffer.clear();
        let message_id = &self.message;
        self.out.write(&Chunk::Start { message_id });
    }

    fn earlier(&self) -> Bytes {
        let continued = self.out.ids.continued.as_ref();
        continued.map_or_else(Bytes::new, |continued| continued.frames.clone())
    }

    fn snapshot(&mut self, _: &Transcript, open: Option<&OpenRound>) {
        if let Some(open) = open {
            self.round_so_far(open);
        }
    }

    fn head(&mut self, head: &ResponseHead, extensions: &http::Extensions) {
        self.is_stored = extensions.get::<Resumable>().is_some();
        self.provider.clone_from(&head.provider);
        self.model.clone_from(&head.model);
    }

    #[inline]
    fn event(&mut self, event: Event) {
        if let (Event::TextDelta(text), Open::Text { head, .. }) = (&event, &self.open)
            && !text.is_empty()
        {
            sse::delta(head, text, &mut self.out.buffer);
            return;
        }
        self.other_event(event);
    }

    fn finish(&mut self, finish: &Finish) {
        // A resumed run is a new run for the client, which got the earlier usage before.
        self.usage = finish.attempt_usage();
        match &finish.outcome {
            Outcome::Interrupted => self.interrupted(finish),
            Outcome::Aborted { reason } => self.cancelled(reason),
            Outcome::Completed => {
                self.end_step();
                self.agents.end_all("done", &mut self.out);
                self.write_finish(reason(&finish.reason), Metadata::new());
            }
            outcome => {
                self.end_all();
                self.write_finish("other", stopped(outcome));
            }
        }
    }

    fn cancelled(&mut self, reason: &CancelReason) {
        self.end_all();
        let reason = reason_of(reason);
        self.out.write(&Chunk::Abort { reason });
        self.out.buffer.put_slice(DONE);
    }

    fn write_error(&mut self, error: &Error, code: &str) {
        self.end_all();
        // The protocol has no code, and ends the answer at the error.
        self.out.data("error", None, &json!({"code": code}), true);
        let text = message(&self.error_message, error);
        self.out.write(&Chunk::Error { error_text: &text });
        self.out.buffer.put_slice(DONE);
    }

    fn run(&self) -> (&Context, &RunIds) {
        (&self.out.context, &self.out.ids)
    }
}

/// The frames of this protocol.
pub(super) static FORMAT: Format = Format {
    name: "ui-messages",
    has_ids: true,
    cut: cut_off,
};

/// The last frames of a stream that ends before its run.
fn cut_off(cut: Cut) -> Bytes {
    let error_text = match cut {
        Cut::Gap => "The connection was too slow for the events of the run.",
        Cut::Lost => "The events of the run can't be read.",
        Cut::Resumed => "Another process has resumed the run.",
        Cut::Shutdown => "The server is shutting down.",
    };
    let mut frames = BytesMut::new();
    sse::event(&Chunk::Error { error_text }, &mut frames);
    frames.put_slice(DONE);
    frames.freeze()
}

/// The URL and the type of a file; `None` if it is in the store of a provider, where a client can't load it.
pub(super) fn file(media: &Media) -> Option<(Cow<'_, str>, &str)> {
    let media_type = media.media_type.as_ref().map(|it| it.as_str());
    let media_type = media_type.unwrap_or("application/octet-stream");
    let url = match &media.source {
        MediaSource::Url(url) => Cow::Borrowed(url.as_str()),
        MediaSource::Base64(data) => Cow::Owned(format!("data:{media_type};base64,{data}")),
        _ => return None,
    };
    Some((url, media_type))
}

const fn reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool-calls",
        FinishReason::ContentFilter => "content-filter",
        _ => "other",
    }
}
