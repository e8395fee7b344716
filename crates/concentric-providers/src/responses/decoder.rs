//! Decodes the events of a service.

mod item;

use super::{
    items::{At, Items, MAX, Place, text},
    tools::{call_id, call_name},
    wire::Chunk,
};
use crate::{
    api::{self, ANOTHER_RESPONSE, Answer, Framing},
    calls::{Calls, Piece},
    failure::has_error,
    lenient::Text,
    sound::Sound,
};
use concentric_core::{Error, ErrorKind, FinishReason, Str, Usage};
use serde_json::{Value, json};

/// The state of a response that is being received.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Decoder {
    begun: bool,
    items: Items,
    calls: Calls,
    usage: Usage,
    sound: Option<Sound>,
    // The media type of the requested audio.
    media_type: Option<Str>,
    end: Option<End>,
    // Whether custom tools are the service's own.
    hosts_custom_tools: bool,
}

#[derive(Debug)]
struct End {
    reason: Option<FinishReason>,
    /// The status or reason that the service reported.
    word: Option<Str>,
}

impl Decoder {
    pub(super) fn new(hosts_custom_tools: bool, media_type: Option<Str>) -> Self {
        Self {
            hosts_custom_tools,
            media_type,
            ..Self::default()
        }
    }
}

impl api::Decoder for Decoder {
    type Chunk<'a> = Chunk<'a>;

    #[inline]
    fn take(&mut self, chunk: Chunk<'_>, from: Framing, answer: &mut Answer) -> Result<(), Error> {
        if self.items.are_too_many() {
            return Err(too_many(answer));
        }
        match chunk.type_.as_str().unwrap_or_default() {
            "response.output_text.delta" => {
                self.delta(Place::Text(content(&chunk)), chunk, answer);
            }
            "response.refusal.delta" => {
                self.delta(Place::Refusal(content(&chunk)), chunk, answer);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_summary.delta" => {
                self.delta(Place::Summary(summary(&chunk)), chunk, answer);
            }
            "response.reasoning_text.delta" | "response.reasoning.delta" => {
                self.delta(Place::Reasoning(content(&chunk)), chunk, answer);
            }
            "response.function_call_arguments.delta"
            | "response.custom_tool_call_input.delta"
            | "response.mcp_call_arguments.delta" => {
                let at = self.at(&chunk, Place::Arguments);
                return self.arguments(at, chunk.delta.as_str(), answer);
            }
            _ => return self.other(chunk, from, answer),
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn is_whole(&self) -> bool {
        self.end.is_some()
    }

    fn is_over(&self) -> bool {
        self.end.is_some()
    }

    fn close(&mut self, answer: &mut Answer) -> Result<(), Error> {
        self.items.end_part(answer);
        if let Some(sound) = self.sound.take() {
            sound.emit(self.media_type.take(), json!({}), answer);
        }
        let end = self.end.take();
        let (reason, word) = end.map_or((None, None), |end| (end.reason, end.word));
        let reason = reason.unwrap_or(match self.calls.wait_for_results() {
            true => FinishReason::ToolCalls,
            false => FinishReason::Stop,
        });
        self.calls.finish(reason, self.usage, word, answer)
    }
}

impl Decoder {
    #[inline]
    fn at(&mut self, chunk: &Chunk<'_>, place: Place) -> At {
        let (index, id) = (chunk.output_index.0, chunk.item_id.filled());
        self.items.at(index, id, place)
    }

    #[inline]
    fn delta(&mut self, place: Place, chunk: Chunk<'_>, answer: &mut Answer) {
        let at = self.at(&chunk, place);
        if let Some(text) = chunk.delta.into_filled() {
            self.items.append(at, place, text, answer);
        }
    }

    /// Emits the text of `place` if no delta has filled it.
    fn fill(&mut self, at: At, place: Place, text: Option<&str>, answer: &mut Answer) {
        if let Some(text) = text.filter(|text| !text.is_empty())
            && !self.items.is_filled(at, place)
        {
            self.items.append(at, place, text.into(), answer);
        }
    }

    /// Processes the complete text of `place`.
    fn done(&mut self, place: Place, chunk: &Chunk<'_>, text: &Text<'_>, answer: &mut Answer) {
        let at = self.at(chunk, place);
        self.fill(at, place, text.as_str(), answer);
    }

    fn other(&mut self, chunk: Chunk<'_>, from: Framing, answer: &mut Answer) -> Result<(), Error> {
        let type_ = chunk.type_.as_str().unwrap_or_default();
        match type_ {
            "response.output_text.done" => {
                self.done(Place::Text(content(&chunk)), &chunk, &chunk.text, answer);
            }
            "response.refusal.done" => {
                self.done(
                    Place::Refusal(content(&chunk)),
                    &chunk,
                    &chunk.refusal,
                    answer,
                );
            }
            "response.reasoning_summary_text.done" => {
                self.done(Place::Summary(summary(&chunk)), &chunk, &chunk.text, answer);
            }
            "response.reasoning_text.done" => {
                self.done(
                    Place::Reasoning(content(&chunk)),
                    &chunk,
                    &chunk.text,
                    answer,
                );
            }
            "response.function_call_arguments.done" | "response.mcp_call_arguments.done" => {
                let at = self.at(&chunk, Place::Arguments);
                self.fill_arguments(at, chunk.arguments.0.filled(), answer)?;
            }
            "response.custom_tool_call_input.done" => {
                let at = self.at(&chunk, Place::Arguments);
                self.fill_arguments(at, chunk.input.filled(), answer)?;
            }
            "response.output_text.annotation.added" => {
                let content = content(&chunk);
                let at = self.at(&chunk, Place::Text(content));
                if let Some(annotation) = chunk.annotation {
                    answer.changed();
                    self.items.annotate(at, content, annotation);
                }
            }
            "response.output_item.added" => {
                if let Some(item) = chunk.item {
                    self.item_begins(chunk.output_index.0, item, answer)?;
                }
            }
            "response.output_item.done" => {
                if let Some(item) = chunk.item {
                    let at = self.items.done(chunk.output_index.0, &item);
                    self.item_done(at, item, answer)?;
                }
            }
            // The completed item contains all of the code.
            "response.code_interpreter_call_code.delta" => {
                answer.changed |= chunk.delta.filled().is_some();
            }
            // The completed item also contains the image of which this is a preview.
            "response.image_generation_call.partial_image" => {
                answer.changed |= chunk.partial_image_b64.filled().is_some();
            }
            "response.audio.delta" => {
                let data = chunk.delta.filled();
                answer.changed |= data.is_some();
                self.sound.get_or_insert_default().append(data, None);
            }
            "response.audio.transcript.delta" => {
                let transcript = chunk.delta.filled();
                answer.changed |= transcript.is_some();
                self.sound.get_or_insert_default().append(None, transcript);
            }
            "response.created" | "response.in_progress" | "response.queued" => {
                let again = std::mem::replace(&mut self.begun, true);
                if again && type_ == "response.created" && !self.items.is_empty() {
                    return Err(answer.protocol(ANOTHER_RESPONSE));
                }
                if let Some(response) = chunk.response.0 {
                    answer.identify(response.id.as_str(), response.model.as_str());
                }
            }
            "response.completed"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled"
            | "response.done" => {
                let word = type_.strip_prefix("response.").unwrap_or(type_);
                let word = Str::from(word);
                let response = chunk.response.0.unwrap_or_default();
                self.ended(*response, word, answer)?;
            }
            _ if chunk.is_response() => self.ended(chunk, Str::default(), answer)?,
            _ => {
                if let Some(error) = error(chunk, from) {
                    return Err(answer.origin().reported(&error));
                }
            }
        }
        Ok(())
    }

    fn item_begins(
        &mut self,
        index: Option<u64>,
        item: Value,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        let (id, name) = (call_id(&item).map(Str::from), call_name(&item));
        let Some((at, is_new)) = self.items.begin(index, item) else {
            return Err(answer.protocol("the provider sent two items with the same index"));
        };
        answer.changed |= is_new;
        self.call_begins(at, id, name, answer)
    }

    fn call_begins(
        &mut self,
        at: At,
        id: Option<Str>,
        name: Option<Str>,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok(());
        };
        // The id is set only once, since the completed item may have a different one.
        let id = id.filter(|_| !self.items.is_filled(at, Place::Name));
        self.items.note(at, Place::Name);
        self.piece(at, id.as_deref(), Some(&name), "", answer)
    }

    fn arguments(
        &mut self,
        at: At,
        arguments: Option<&str>,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        let Some(arguments) = arguments.filter(|arguments| !arguments.is_empty()) else {
            return Ok(());
        };
        self.items.note(at, Place::Arguments);
        answer.changed();
        self.piece(at, None, None, arguments, answer)
    }

    fn fill_arguments(
        &mut self,
        at: At,
        arguments: Option<&str>,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        match self.items.is_filled(at, Place::Arguments) {
            true => Ok(()),
            false => self.arguments(at, arguments, answer),
        }
    }

    fn piece(
        &mut self,
        at: At,
        id: Option<&str>,
        name: Option<&str>,
        arguments: &str,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        self.items.end_part(answer);
        let piece = Piece {
            index: Some(Items::key(at)),
            id,
            name,
            arguments,
        };
        self.calls.piece(&piece, answer)
    }

    /// Processes the terminal event. Fields of the response that earlier events have not filled are
    /// taken from it.
    fn ended(&mut self, response: Chunk<'_>, event: Str, answer: &mut Answer) -> Result<(), Error> {
        answer.identify(response.id.as_str(), response.model.as_str());
        if let Some(tokens) = &response.usage.0 {
            self.usage = tokens.usage();
        }
        let status = response.status.filled().map(Str::from);
        let status = status.unwrap_or(event);
        let error = response.error.filter(has_error);
        match &*status {
            _ if error.is_some() => {}
            "failed" => {}
            "cancelled" => {
                let what = "the provider cancelled the response";
                return Err(answer.origin().error(ErrorKind::Other, what));
            }
            // The response continues in the background, and cannot be received here.
            "queued" | "in_progress" => return Ok(()),
            _ => {
                return self.end(
                    response.output,
                    response.incomplete_details.0,
                    status,
                    answer,
                );
            }
        }
        Err(answer.origin().reported(&error.unwrap_or_default()))
    }

    fn end(
        &mut self,
        output: Option<Value>,
        incomplete: Option<super::wire::Incomplete<'_>>,
        status: Str,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        if let Some(Value::Array(items)) = output {
            if items.len() > MAX {
                return Err(too_many(answer));
            }
            let places = self.items.listed(&items);
            for (at, item) in places.into_iter().zip(items) {
                self.item_done(at, item, answer)?;
            }
        }
        for (at, item) in self.items.left() {
            // Other items are not useful if they are incomplete.
            if text(&item, "type") == Some("message") || call_id(&item).is_some() {
                self.item_done(at, item, answer)?;
            }
        }
        let why = incomplete.and_then(|incomplete| incomplete.reason.into_filled());
        let reason = match why.as_deref() {
            Some("max_output_tokens" | "max_tokens" | "length") => Some(FinishReason::Length),
            Some("content_filter") => Some(FinishReason::ContentFilter),
            Some(why) => Some(FinishReason::Other(why.into())),
            None if status == *"incomplete" => Some(FinishReason::Other(status.clone())),
            None => None,
        };
        self.end = Some(End {
            reason,
            word: why.or_else(|| Some(status).filter(|status| !status.is_empty())),
        });
        Ok(())
    }
}

fn too_many(answer: &Answer) -> Error {
    let what = "the response has more items, or an item has more parts, than the limit";
    answer.origin().error(ErrorKind::TooLarge, what)
}

fn content(chunk: &Chunk<'_>) -> u64 {
    chunk.content_index.0.unwrap_or(0)
}

fn summary(chunk: &Chunk<'_>) -> u64 {
    chunk.summary_index.0.unwrap_or(0)
}

/// The error that an event reports.
fn error(chunk: Chunk<'_>, from: Framing) -> Option<Value> {
    let type_ = chunk.type_.filled();
    let is_error = from == Framing::ErrorEvent || type_.is_some_and(|t| t.ends_with("error"));
    if type_.is_some() && !is_error {
        return None;
    }
    let message = chunk.message.filter(has_error);
    let message = message.or_else(|| chunk.detail.filter(has_error));
    if let Some(error) = chunk.error.filter(has_error) {
        // The error may be only a name, with the message beside it.
        return Some(json!({ "error": error, "message": message, "code": chunk.code }));
    }
    let type_ = type_.filter(|type_| !matches!(*type_, "error" | "response.error"));
    (is_error || message.is_some())
        .then(|| json!({ "message": message, "code": chunk.code, "type": type_ }))
}
