//! What the service says, chunk by chunk, as events.

use super::{
    metadata::Metadata,
    partial::Partial,
    wire::{Blob, Candidate, Chunk, Feedback, File, FunctionCall, Part as WirePart},
};
use crate::{
    api::{self, Answer, Framing},
    calls::{Calls, Piece},
    failure::{Failure, is_said},
    lenient::Text,
    openai::name,
};
use concentric_core::{
    CallId, Error, ErrorKind, Event, Executor, Finish, FinishReason, Media, MediaSource, Part,
    PartEnd, PartKind, ProviderData, Str, ToolCallEvent, ToolCallPart, ToolOutcome, ToolResult,
    Usage,
};
use serde_json::{Map, Value, json};
use std::{collections::VecDeque, sync::Arc};

/// An answer as far as it has arrived.
#[doc(hidden)]
#[derive(Debug)]
pub struct Decoder {
    streaming: bool,
    // Something of the answer was said.
    said: bool,
    usage: Usage,
    reason: Option<Str>,
    // All came in one message, which is whole since its JSON is.
    unary: bool,
    open: Open,
    calls: Calls,
    // What came with each call, for the service.
    extras: Vec<Option<Arc<ProviderData>>>,
    // The call whose arguments come in pieces.
    partial: Option<PartialCall>,
    // The service's own calls that have no result yet.
    running: Vec<ToolCallPart>,
    metadata: Metadata,
}

/// What the last delta was of, if the part may go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Open {
    #[default]
    Nothing,
    Text,
    Thought,
}

#[derive(Debug)]
struct PartialCall {
    arguments: Partial,
    /// The service has said that nothing more of it is to come.
    ended: bool,
}

impl api::Decoder for Decoder {
    type Chunk<'a> = Chunk<'a>;

    fn take(&mut self, chunk: Chunk<'_>, from: Framing, answer: &mut Answer) -> Result<(), Error> {
        if let Some(error) = chunk.error.filter(is_said) {
            let failure = Failure::of_json(&json!({ "error": error }));
            return Err(answer.origin().reported(&failure));
        }
        if from == Framing::ErrorEvent {
            return Err(answer.origin().reported(&Failure::default()));
        }
        self.check_same(&chunk.response_id, answer)?;
        answer.changed |= name(&mut answer.head.id, chunk.response_id.filled());
        answer.changed |= name(&mut answer.head.model, chunk.model_version.filled());
        let usage = chunk.usage_metadata.0.map(|tokens| tokens.usage());
        self.unary |= !self.streaming
            && from == Framing::Json
            && (usage.is_some() || !chunk.candidates.is_empty());
        // Some chunks of Vertex's have no counts in it.
        if let Some(usage) = usage.filter(|usage| *usage != Usage::default()) {
            answer.changed |= usage != self.usage;
            self.usage = usage;
        }
        if let Some(feedback) = chunk.prompt_feedback.0 {
            check_prompt(&feedback, answer)?;
        }
        for candidate in chunk.candidates {
            if candidate.index.0.unwrap_or(0) == 0 {
                self.candidate(candidate, answer)?;
            }
        }
        self.said |= !answer.events.is_empty();
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.unary || self.reason.is_some()
    }

    fn close(&mut self, answer: &mut Answer) -> Result<(), Error> {
        self.end_partial(answer)?;
        if let Some(metadata) = std::mem::take(&mut self.metadata).into_value() {
            let data = json!({ "metadata": metadata });
            let part = PartKind::Provider(ProviderData::new(answer.provider.clone(), data));
            answer.emit(Event::Part(Box::new(Part::new(part))));
        }
        let reason = self.finish_reason();
        let mut calls = VecDeque::new();
        let closed = self.calls.finish(&mut calls);
        closed.map_err(|conflict| conflict.error(answer))?;
        for (mut event, extras) in calls.into_iter().zip(self.extras.drain(..)) {
            if let Event::ToolCall(call) = &mut event {
                call.provider_data = extras;
            }
            answer.emit(event);
        }
        let mut finish = Finish::new(reason, self.usage);
        finish.provider_reason = self.reason.take();
        answer.emit(Event::Finish(Box::new(finish)));
        Ok(())
    }
}

impl Decoder {
    pub(super) fn new(streaming: bool) -> Self {
        Self {
            streaming,
            said: false,
            usage: Usage::default(),
            reason: None,
            unary: false,
            open: Open::default(),
            calls: Calls::default(),
            extras: Vec::new(),
            partial: None,
            running: Vec::new(),
            metadata: Metadata::default(),
        }
    }

    /// Sees that the answer is still the same: each chunk of one says the same id.
    fn check_same(&self, id: &Text<'_>, answer: &Answer) -> Result<(), Error> {
        let (Some(new), Some(old)) = (id.filled(), answer.head.id.as_deref()) else {
            return Ok(());
        };
        if self.said && new != old {
            return Err(answer.origin().error(
                ErrorKind::Protocol,
                "another answer began behind the first one",
            ));
        }
        Ok(())
    }

    fn candidate(
        &mut self,
        mut candidate: Candidate<'_>,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        answer.changed |= self.metadata.take(&mut candidate);
        for part in candidate.content.0.into_iter().flat_map(|c| c.parts) {
            self.part(part, answer)?;
        }
        // Of an enumeration, this is the word for nothing.
        let reason = candidate.finish_reason.into_filled();
        if let Some(reason) = reason.filter(|reason| *reason != "FINISH_REASON_UNSPECIFIED") {
            answer.changed |= self.reason.as_ref() != Some(&reason);
            self.reason = Some(reason);
        }
        Ok(())
    }

    #[inline]
    fn part(&mut self, mut part: WirePart<'_>, answer: &mut Answer) -> Result<(), Error> {
        if let Some(call) = part.call.0.take() {
            let extras = extras(&mut part, answer);
            return self.call(&call, extras, answer);
        }
        if let Some(media) = media(&mut part) {
            let thought = std::mem::take(&mut part.thought);
            if thought {
                part.rest.insert("thought".to_owned(), true.into());
            }
            let part = Part::new(media).with_provider_data(extras(&mut part, answer));
            self.whole(part, answer);
            return Ok(());
        }
        if part.text.as_str().is_none() && !part.rest.is_empty() {
            self.other(part, answer);
            return Ok(());
        }
        let extras = extras(&mut part, answer);
        self.text(part, extras, answer);
        Ok(())
    }

    /// Text, or a thought.
    #[inline]
    fn text(&mut self, part: WirePart<'_>, extras: Option<Arc<ProviderData>>, answer: &mut Answer) {
        let kind = if part.thought {
            Open::Thought
        } else {
            Open::Text
        };
        // What is signed is a part by itself.
        if extras.is_some() && self.open != Open::Nothing {
            answer.emit(Event::PartEnd(Box::default()));
            self.open = Open::Nothing;
        }
        if let Some(text) = part.text.into_filled() {
            answer.emit(match kind {
                Open::Thought => Event::ReasoningDelta(text),
                _ => Event::TextDelta(text),
            });
            self.open = kind;
        }
        let Some(extras) = extras else { return };
        if self.open == Open::Nothing {
            let empty = match kind {
                Open::Thought => PartKind::Reasoning(Str::default()),
                _ => PartKind::Text(Str::default()),
            };
            let part = Part::new(empty).with_provider_data(Some(extras));
            answer.emit(Event::Part(Box::new(part)));
        } else {
            answer.emit(Event::PartEnd(Box::new(PartEnd::new(Some(extras)))));
        }
        self.open = Open::Nothing;
    }

    fn whole(&mut self, part: Part, answer: &mut Answer) {
        self.open = Open::Nothing;
        answer.emit(Event::Part(Box::new(part)));
    }

    fn call(
        &mut self,
        call: &FunctionCall<'_>,
        extras: Option<Arc<ProviderData>>,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        self.open = Open::Nothing;
        let begins = call.name.filled().is_some();
        if begins {
            self.end_partial(answer)?;
            self.extras.push(None);
        } else if self.partial.is_none() {
            // The end of a call that has ended already may come by itself.
            let says = call.id.filled().is_some()
                || call.arguments().is_some()
                || !call.partial_args.0.is_empty();
            return match says {
                true => Err(crate::calls::Conflict::Stray.error(answer)),
                false => Ok(()),
            };
        }
        if let Some(kept) = self.extras.last_mut()
            && kept.is_none()
        {
            answer.changed |= extras.is_some();
            *kept = extras;
        }
        let pieces = call.will_continue() || !call.partial_args.0.is_empty();
        if begins && !pieces {
            let arguments = call.arguments();
            return self.piece(call, arguments.as_deref().unwrap_or("{}"), answer);
        }
        let partial = self.partial.get_or_insert_with(|| PartialCall {
            arguments: Partial::default(),
            ended: false,
        });
        answer.changed |= !partial.ended && !call.will_continue();
        partial.ended = !call.will_continue();
        let mut arguments = String::new();
        for arg in &call.partial_args.0 {
            let pushed = partial.arguments.push(arg, &mut arguments);
            pushed.map_err(|_| {
                let what = "the arguments of a tool call come in an order that makes no JSON";
                answer.origin().error(ErrorKind::Protocol, what)
            })?;
        }
        self.piece(call, &arguments, answer)
    }

    /// More of the last call.
    fn piece(
        &mut self,
        call: &FunctionCall<'_>,
        arguments: &str,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        let piece = Piece {
            index: Some(self.extras.len() as u64),
            id: call.id.filled(),
            name: call.name.filled(),
            arguments,
        };
        let taken = self.calls.piece(&piece, answer);
        taken.map_err(|conflict| conflict.error(answer))
    }

    /// Another call begins, or nothing more comes. What was cut short stays so: that it is no JSON
    /// keeps it from being executed.
    fn end_partial(&mut self, answer: &mut Answer) -> Result<(), Error> {
        let Some(mut partial) = self.partial.take() else {
            return Ok(());
        };
        let stopped = self.reason.as_deref().is_none_or(|reason| reason == "STOP");
        if !partial.ended && !stopped {
            return Ok(());
        }
        let mut end = String::new();
        partial.arguments.end(&mut end);
        let piece = Piece {
            index: Some(self.extras.len() as u64),
            id: None,
            name: None,
            arguments: &end,
        };
        let taken = self.calls.piece(&piece, answer);
        taken.map_err(|conflict| conflict.error(answer))
    }

    /// What the service's own tools do, and what is not known here.
    fn other(&mut self, part: WirePart<'_>, answer: &mut Answer) {
        let mut fields = part.rest;
        if part.thought {
            fields.insert("thought".to_owned(), true.into());
        }
        if let Some(signature) = part.signature.into_filled() {
            fields.insert("thoughtSignature".to_owned(), signature.as_str().into());
        }
        let provider = &answer.provider;
        let event = if let Some(call) = server_call(&fields, answer) {
            self.running.push(call.clone());
            let data = ProviderData::new(provider.clone(), json!({ "part": fields }));
            Event::ToolCall(Box::new(ToolCallEvent::new(call, Some(Arc::new(data)))))
        } else {
            let result = self.server_result(&fields);
            let data = ProviderData::new(provider.clone(), json!({ "part": fields }));
            let part = match result {
                Some(result) => {
                    Part::new(PartKind::ToolResult(result)).with_provider_data(Some(Arc::new(data)))
                }
                None => Part::new(PartKind::Provider(data)),
            };
            Event::Part(Box::new(part))
        };
        self.open = Open::Nothing;
        answer.emit(event);
    }

    /// The result of one of the service's own calls.
    fn server_result(&mut self, fields: &Map<String, Value>) -> Option<ToolResult> {
        let text = |value: &Value| match value {
            Value::String(text) => Str::from(text),
            Value::Null => Str::default(),
            other => other.to_string().into(),
        };
        let (said, outcome) = if let Some(said) = fields.get("codeExecutionResult") {
            let output = said.get("output").map(text).unwrap_or_default();
            let outcome = match said.get("outcome").and_then(Value::as_str) {
                Some("OUTCOME_OK") | None => ToolOutcome::done(output),
                Some(_) => ToolOutcome::failed(output),
            };
            (said, outcome)
        } else {
            let said = fields.get("toolResponse")?;
            let output = said.get("response").map(text).unwrap_or_default();
            (said, ToolOutcome::done(output))
        };
        let id = said.get("id").and_then(Value::as_str);
        let at = self
            .running
            .iter()
            .position(|call| id.is_none() || call.provider_id.as_deref() == id)?;
        let call = self.running.remove(at);
        Some(ToolResult::new(call.id, call.name, outcome))
    }

    fn finish_reason(&self) -> FinishReason {
        let Some(reason) = &self.reason else {
            return self.stop();
        };
        match reason.to_ascii_uppercase().as_str() {
            "STOP" => self.stop(),
            "MAX_TOKENS" => FinishReason::Length,
            "SAFETY"
            | "RECITATION"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "MODEL_ARMOR"
            | "JAILBREAK"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION" => FinishReason::ContentFilter,
            _ => FinishReason::Other(reason.clone()),
        }
    }

    fn stop(&self) -> FinishReason {
        match self.calls.wait_for_results() {
            true => FinishReason::ToolCalls,
            false => FinishReason::Stop,
        }
    }
}

/// Sees that the prompt was not blocked.
fn check_prompt(feedback: &Feedback<'_>, answer: &Answer) -> Result<(), Error> {
    let reason = feedback.block_reason.filled();
    let Some(reason) = reason.filter(|reason| *reason != "BLOCKED_REASON_UNSPECIFIED") else {
        return Ok(());
    };
    let said = feedback.block_reason_message.filled();
    let what = match said {
        Some(said) => format!("the prompt was blocked: {said}"),
        None => format!("the prompt was blocked: {reason}"),
    };
    let failure = Failure::of_json(&json!({
        "message": what,
        "code": reason,
        "type": "content_filter",
    }));
    Err(answer.origin().reported(&failure))
}

/// What else the service said with a part that has a kind of its own, for it to be sent back.
#[inline]
fn extras(part: &mut WirePart<'_>, answer: &Answer) -> Option<Arc<ProviderData>> {
    let signature = std::mem::take(&mut part.signature).into_filled();
    if signature.is_none() && part.rest.is_empty() {
        return None;
    }
    let mut fields = std::mem::take(&mut part.rest);
    if let Some(signature) = signature {
        fields.insert("thoughtSignature".to_owned(), signature.as_str().into());
    }
    let data = json!({ "fields": fields });
    Some(Arc::new(ProviderData::new(answer.provider.clone(), data)))
}

/// The medium that a part is, if it is one.
fn media(part: &mut WirePart<'_>) -> Option<PartKind> {
    let (source, media_type) = if let Some(blob) = part.inline_data.0.take() {
        let Blob { mime_type, data } = *blob;
        (MediaSource::Base64(data.into_filled()?), mime_type)
    } else {
        let File {
            mime_type,
            file_uri,
        } = *part.file_data.0.take()?;
        (MediaSource::Url(file_uri.into_filled()?), mime_type)
    };
    let mut media = Media::new(source);
    media.media_type = media_type.into_filled();
    Some(match media.media_type.as_deref() {
        Some(kind) if kind.starts_with("image/") => PartKind::Image(media),
        Some(kind) if kind.starts_with("audio/") => PartKind::Audio(media),
        _ => PartKind::File(media),
    })
}

/// The call of one of the service's own tools.
fn server_call(fields: &Map<String, Value>, answer: &Answer) -> Option<ToolCallPart> {
    let (said, name, arguments) = if let Some(code) = fields.get("executableCode") {
        let arguments = json!({ "language": code.get("language"), "code": code.get("code") });
        (code, Str::from_static("code_execution"), arguments)
    } else {
        let call = fields.get("toolCall")?;
        let name = call.get("toolType").and_then(Value::as_str);
        let arguments = call.get("args").cloned().unwrap_or_else(|| json!({}));
        (call, name.unwrap_or("tool").into(), arguments)
    };
    let id = said.get("id").and_then(Value::as_str);
    let call = ToolCallPart::new(CallId::new(answer.context.new_id("call_")), name, arguments);
    Some(
        call.executed_by(Executor::Provider)
            .with_provider_id(id.filter(|id| !id.is_empty()).map(Str::from)),
    )
}
