//! Decodes the chunks of the service into events.

use super::{
    metadata::Metadata,
    partial::Partial,
    wire::{Candidate, Chunk, Feedback, FunctionCall, Part as WirePart},
};
use crate::{
    api::{self, Answer, Framing},
    calls::{Calls, Piece, STRAY},
    lenient::Text,
};
use concentric_core::{
    CallId, Error, Event, Executor, FinishReason, Media, MediaSource, PartKind, ProviderData, Str,
    ToolCallEvent, ToolCallPart, ToolOutcome, ToolResult, Usage,
};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The state of a response that is being received.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Decoder {
    streaming: bool,
    // Whether a part of the response was emitted.
    has_output: bool,
    usage: Usage,
    reason: Option<Str>,
    // Whether the response is a single JSON body, which is complete if it parses.
    unary: bool,
    open: Open,
    calls: Calls,
    // The number of calls.
    count: u64,
    // The call whose arguments are being received incrementally.
    partial: Option<PartialCall>,
    // Calls of the service's tools that have no result yet.
    running: Vec<ToolCallPart>,
    metadata: Metadata,
}

/// The kind of the last delta, if its part may continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Open {
    #[default]
    Nothing,
    Text,
    Thought,
}

#[derive(Debug, Default)]
struct PartialCall {
    arguments: Partial,
    /// Whether the service has marked the call as complete.
    ended: bool,
}

impl api::Decoder for Decoder {
    type Chunk<'a> = Chunk<'a>;

    fn take(&mut self, chunk: Chunk<'_>, from: Framing, answer: &mut Answer) -> Result<(), Error> {
        answer.check_error(chunk.error.as_ref(), from)?;
        self.check_same(&chunk.response_id, answer)?;
        answer.identify(chunk.response_id.filled(), chunk.model_version.filled());
        let usage = chunk.usage_metadata.0.map(|tokens| tokens.usage());
        self.unary |= !self.streaming
            && from == Framing::Json
            && (usage.is_some() || !chunk.candidates.is_empty());
        // Some chunks of Vertex AI contain no counts.
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
        self.has_output |= !answer.events.is_empty();
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn is_whole(&self) -> bool {
        self.unary || self.reason.is_some()
    }

    fn close(&mut self, answer: &mut Answer) -> Result<(), Error> {
        self.end_partial(answer)?;
        if let Some(metadata) = std::mem::take(&mut self.metadata).into_value() {
            answer.opaque(json!({ "metadata": metadata }));
        }
        let (reason, word) = (self.finish_reason(), self.reason.take());
        self.calls.finish(reason, self.usage, word, answer)
    }
}

impl Decoder {
    pub(super) fn new(streaming: bool) -> Self {
        Self {
            streaming,
            ..Self::default()
        }
    }

    /// Checks that the chunk belongs to the same response: all chunks of a response have the same
    /// id.
    fn check_same(&self, id: &Text<'_>, answer: &Answer) -> Result<(), Error> {
        let (Some(new), Some(old)) = (id.filled(), answer.head.id.as_deref()) else {
            return Ok(());
        };
        if self.has_output && new != old {
            return Err(answer.protocol("another response started after the first one"));
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
        // The enum value for an unset reason.
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
            self.open = Open::Nothing;
            answer.part(media, extras(&mut part, answer));
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

    /// Processes text or a thought.
    #[inline]
    fn text(&mut self, part: WirePart<'_>, extras: Option<Arc<ProviderData>>, answer: &mut Answer) {
        let kind = if part.thought {
            Open::Thought
        } else {
            Open::Text
        };
        // A signed text is a separate part.
        if extras.is_some() && self.open != Open::Nothing {
            answer.end_part(None);
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
            answer.part(empty, Some(extras));
        } else {
            answer.end_part(Some(extras));
        }
        self.open = Open::Nothing;
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
            self.count += 1;
        } else if self.partial.is_none() {
            // The end of a call may arrive again after the call has ended.
            let has_fields = call.id.filled().is_some()
                || call.arguments().is_some()
                || !call.partial_args.is_empty();
            return match has_fields {
                true => Err(answer.protocol(STRAY)),
                false => Ok(()),
            };
        }
        let pieces = call.will_continue() || !call.partial_args.is_empty();
        if begins && !pieces {
            let arguments = call.arguments();
            self.piece(call, arguments.as_deref().unwrap_or("{}"), answer)?;
        } else {
            let arguments = self.partial(call, answer)?;
            self.piece(call, &arguments, answer)?;
        }
        if let Some(kept) = self.calls.last_data()
            && kept.is_none()
        {
            answer.changed |= extras.is_some();
            *kept = extras;
        }
        Ok(())
    }

    /// The next fragment of the arguments of a call that is received incrementally.
    fn partial(&mut self, call: &FunctionCall<'_>, answer: &mut Answer) -> Result<String, Error> {
        let partial = self.partial.get_or_insert_default();
        answer.changed |= !partial.ended && !call.will_continue();
        partial.ended = !call.will_continue();
        let mut arguments = String::new();
        for arg in call.partial_args.iter() {
            let pushed = partial.arguments.push(arg, &mut arguments);
            pushed.map_err(|_| {
                answer.protocol("the arguments of a tool call arrived in an order that does not form valid JSON")
            })?;
        }
        Ok(arguments)
    }

    /// Adds a fragment to the last call.
    fn piece(
        &mut self,
        call: &FunctionCall<'_>,
        arguments: &str,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        let piece = Piece {
            index: Some(self.count),
            id: call.id.filled(),
            name: call.name.filled(),
            arguments,
        };
        self.calls.piece(&piece, answer)
    }

    /// Ends the open call. Truncated arguments stay truncated: since they are not valid JSON, the
    /// call is not executed.
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
        self.calls
            .piece(&Piece::arguments(self.count, &end), answer)
    }

    /// Processes the service's own tool calls and results, and unknown parts.
    fn other(&mut self, part: WirePart<'_>, answer: &mut Answer) {
        let mut fields = part.rest;
        if part.thought {
            fields.insert("thought".to_owned(), true.into());
        }
        if let Some(signature) = part.signature.into_filled() {
            fields.insert("thoughtSignature".to_owned(), signature.as_str().into());
        }
        self.open = Open::Nothing;
        if let Some(call) = server_call(&fields, answer) {
            self.running.push(call.clone());
            let data = answer.data(json!({ "part": fields }));
            answer.emit(Event::ToolCall(Box::new(ToolCallEvent::new(call, data))));
        } else if let Some(result) = self.server_result(&fields) {
            let data = answer.data(json!({ "part": fields }));
            answer.part(PartKind::ToolResult(result), data);
        } else {
            answer.opaque(json!({ "part": fields }));
        }
    }

    /// The result of a call of one of the service's tools.
    fn server_result(&mut self, fields: &Map<String, Value>) -> Option<ToolResult> {
        let text = |value: &Value| match value {
            Value::String(text) => Str::from(text),
            Value::Null => Str::default(),
            other => other.to_string().into(),
        };
        let (data, outcome) = if let Some(data) = fields.get("codeExecutionResult") {
            let output = data.get("output").map(text).unwrap_or_default();
            let outcome = match data.get("outcome").and_then(Value::as_str) {
                Some("OUTCOME_OK") | None => ToolOutcome::done(output),
                Some(_) => ToolOutcome::failed(output),
            };
            (data, outcome)
        } else {
            let data = fields.get("toolResponse")?;
            let output = data.get("response").map(text).unwrap_or_default();
            (data, ToolOutcome::done(output))
        };
        let id = data.get("id").and_then(Value::as_str);
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

/// Checks that the prompt was not blocked.
fn check_prompt(feedback: &Feedback<'_>, answer: &Answer) -> Result<(), Error> {
    let reason = feedback.block_reason.filled();
    let Some(reason) = reason.filter(|reason| *reason != "BLOCKED_REASON_UNSPECIFIED") else {
        return Ok(());
    };
    let why = feedback.block_reason_message.filled().unwrap_or(reason);
    let message = format!("the prompt was blocked: {why}");
    let error = json!({ "message": message, "code": reason, "type": "content_filter" });
    Err(answer.origin().reported(&error))
}

/// The other fields of a part, which must be sent back with it.
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
    answer.data(json!({ "fields": fields }))
}

/// The medium of a part, if it has one.
fn media(part: &mut WirePart<'_>) -> Option<PartKind> {
    let (source, media_type) = match (part.inline_data.0.take(), part.file_data.0.take()) {
        (Some(blob), _) => (
            MediaSource::Base64(blob.data.into_filled()?),
            blob.mime_type,
        ),
        (None, Some(file)) => (
            MediaSource::Url(file.file_uri.into_filled()?),
            file.mime_type,
        ),
        (None, None) => return None,
    };
    let mut media = Media::new(source);
    media.media_type = media_type.into_filled();
    Some(match media.media_type.as_deref() {
        Some(kind) if kind.starts_with("image/") => PartKind::Image(media),
        Some(kind) if kind.starts_with("audio/") => PartKind::Audio(media),
        _ => PartKind::File(media),
    })
}

/// The call of one of the service's tools.
fn server_call(fields: &Map<String, Value>, answer: &Answer) -> Option<ToolCallPart> {
    let (data, name, arguments) = if let Some(code) = fields.get("executableCode") {
        let arguments = json!({ "language": code.get("language"), "code": code.get("code") });
        (code, Str::from_static("code_execution"), arguments)
    } else {
        let call = fields.get("toolCall")?;
        let name = call.get("toolType").and_then(Value::as_str);
        let arguments = call.get("args").cloned().unwrap_or_else(|| json!({}));
        (call, name.unwrap_or("tool").into(), arguments)
    };
    let id = data.get("id").and_then(Value::as_str);
    let call = ToolCallPart::new(CallId::new(answer.context.new_id("call_")), name, arguments);
    Some(
        call.executed_by(Executor::Provider)
            .with_provider_id(id.filter(|id| !id.is_empty()).map(Str::from)),
    )
}
