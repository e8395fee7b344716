//! Decodes the chunks of a server into events.

use super::{
    reasoning::Reasoning,
    wire::{Audio, Call, Choice, Chunk, Content, ContentPart, Message},
};
use crate::{
    api::{self, ANOTHER_RESPONSE, Answer, Framing},
    calls::{Calls, Piece},
    data_url,
    failure::has_error,
    lenient::Text,
    sound::Sound,
};
use concentric_core::{
    Error, ErrorKind, Event, FinishReason, Media, MediaSource, PartKind, Str, Usage,
};
use serde_json::{Value, json};

/// The state of a response that is being received.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Decoder {
    // Whether a part of the response was emitted.
    has_output: bool,
    // Whether the output tokens do not include reasoning.
    reasoning_apart: bool,
    usage: Usage,
    reason: Option<Str>,
    native_reason: Option<Str>,
    // Whether the response is a single JSON body, which is complete if it parses.
    unary: bool,
    calls: Calls,
    reasoning: Reasoning,
    audio: Option<Sound>,
    audio_id: Option<Str>,
    // The media type of the requested audio.
    media_type: Option<Str>,
    annotations: Vec<Value>,
}

impl api::Decoder for Decoder {
    type Chunk<'a> = Chunk<'a>;

    fn text<'c>(chunk: &'c Chunk<'_>) -> Option<&'c str> {
        chunk.only_text()
    }

    fn take(
        &mut self,
        mut chunk: Chunk<'_>,
        from: Framing,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        if let Some(error) = error(&chunk, from) {
            return Err(answer.origin().reported(&error));
        }
        self.check_same(&chunk, answer)?;
        // Some servers send a first chunk in which both are empty.
        answer.identify(chunk.id.as_str(), chunk.model.as_str());
        let groq = chunk.x_groq.0.and_then(|groq| groq.usage.0);
        if let Some(tokens) = chunk.usage.0.or(groq) {
            self.count(tokens.usage(self.reasoning_apart), answer);
        }
        for choice in chunk.choices.iter_mut() {
            if choice.index.0.unwrap_or(0) == 0 {
                self.choice(choice, from, answer)?;
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
        self.end_reasoning(answer);
        if let Some(sound) = self.audio.take() {
            let data = json!({ "audio": { "id": self.audio_id } });
            sound.emit(self.media_type.take(), data, answer);
        }
        if !self.annotations.is_empty() {
            let annotations = std::mem::take(&mut self.annotations);
            answer.opaque(json!({ "annotations": annotations }));
        }
        let (reason, word) = (self.finish_reason(), self.reason.take());
        self.calls.finish(reason, self.usage, word, answer)
    }
}

impl Decoder {
    pub(super) fn new(reasoning_apart: bool, media_type: Option<Str>) -> Self {
        Self {
            reasoning_apart,
            media_type,
            ..Self::default()
        }
    }

    /// Checks that the chunk belongs to the same response.
    ///
    /// A gateway that lost its upstream may append the response of another one. That response has
    /// another id and starts with a role and without content. The id alone is not sufficient:
    /// Perplexity changes it within a response.
    fn check_same(&self, chunk: &Chunk<'_>, answer: &Answer) -> Result<(), Error> {
        let (Some(new), Some(old)) = (chunk.id.as_str(), &answer.head.id) else {
            return Ok(());
        };
        let renamed = !old.is_empty() && !new.is_empty() && *old != *new;
        let opens = |message: &Message<'_>| {
            message.role.as_str().is_some_and(|role| !role.is_empty()) && message.is_empty()
        };
        let mut deltas = chunk
            .choices
            .iter()
            .filter(|choice| choice.finish_reason.as_str().is_none())
            .filter_map(|choice| choice.delta.0.as_ref());
        if renamed && self.has_output && !api::Decoder::is_whole(self) && deltas.any(opens) {
            return Err(answer.protocol(ANOTHER_RESPONSE));
        }
        Ok(())
    }

    /// Updates the usage, which some servers repeat in each chunk.
    fn count(&mut self, usage: Usage, answer: &mut Answer) {
        if usage != self.usage {
            self.usage = usage;
            answer.changed();
        }
    }

    fn choice(
        &mut self,
        choice: &mut Choice<'_>,
        from: Framing,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        if let Some(tokens) = choice.usage.0.take() {
            self.count(tokens.usage(self.reasoning_apart), answer);
        }
        // Perplexity sends both: in a stream, the message contains the text so far; without
        // streaming, the delta is empty.
        match (&mut choice.delta.0, &mut choice.message.0) {
            (Some(delta), None) => self.message(delta, answer)?,
            (Some(delta), Some(_)) if from != Framing::Json => self.message(delta, answer)?,
            (_, Some(message)) => {
                self.unary = true;
                self.message(message, answer)?;
            }
            // Azure omits the message of a filtered response.
            (None, None) => self.unary |= from == Framing::Json,
        }
        if let Some(error) = choice.error.take().filter(|error| has_error(error)) {
            return Err(answer.origin().reported(&error));
        }
        if self.unary && choice.finish_reason.as_str() == Some("") {
            // Complete responses of Snowflake have an empty finish reason.
            self.reason = Some(Str::default());
        } else if let Some(reason) = choice.finish_reason.take_filled() {
            if reason == *"error" {
                return Err(answer.origin().error(
                    ErrorKind::Server,
                    "the provider ended the response with the reason `error`",
                ));
            }
            answer.changed |= self.reason.as_ref() != Some(&reason);
            self.reason = Some(reason);
        }
        if let Some(reason) = choice.native_finish_reason.take_filled() {
            self.native_reason = Some(reason);
        }
        Ok(())
    }

    #[inline]
    fn message(&mut self, message: &mut Message<'_>, answer: &mut Answer) -> Result<(), Error> {
        let shown = match message.reasoning.take_filled() {
            // Some servers send both fields with the same content.
            Some(text) => Some(text),
            None => message.reasoning_content.take_filled(),
        };
        if let Some(details) = message.reasoning_details.take() {
            self.reasoning.details(*details, shown, answer);
        } else if let Some(text) = shown {
            self.reasoning.text(text, answer);
        }
        match &mut message.content {
            Content::Text(text) => self.text(text.take_filled(), answer),
            Content::Parts(parts) => parts.drain(..).for_each(|part| self.part(part, answer)),
        }
        if let Some(refusal) = message.refusal.take_filled() {
            self.speak(Event::RefusalDelta(refusal), answer);
        }
        for call in message.tool_calls.iter_mut() {
            self.end_reasoning(answer);
            self.calls.piece(&piece(call), answer)?;
            if let Some(extra) = call.extra_content.take().filter(|extra| !extra.is_null())
                && let Some(known) = self.calls.last_data()
            {
                let data = answer.data(json!({ "extra_content": extra }));
                answer.changed |= *known != data;
                *known = data;
            }
        }
        if let Some(function) = &message.function_call.0 {
            self.end_reasoning(answer);
            let arguments = function.arguments.0.filled().unwrap_or_default();
            let name = function.name.filled();
            self.calls.legacy(name, arguments, answer)?;
        }
        for image in std::mem::take(&mut message.images) {
            self.part(*image, answer);
        }
        if let Some(audio) = &message.audio.0 {
            self.audio(audio, answer);
        }
        if let Some(Value::Array(annotations)) = message.annotations.take().map(|list| *list) {
            answer.changed |= !annotations.is_empty();
            self.annotations.extend(annotations);
        }
        Ok(())
    }

    #[inline]
    fn text(&mut self, text: Option<Str>, answer: &mut Answer) {
        if let Some(text) = text {
            self.speak(Event::TextDelta(text), answer);
        }
    }

    #[inline]
    fn speak(&mut self, event: Event, answer: &mut Answer) {
        self.end_reasoning(answer);
        answer.emit(event);
    }

    #[inline]
    fn end_reasoning(&mut self, answer: &mut Answer) {
        self.reasoning.end(answer);
    }

    fn part(&mut self, part: ContentPart<'_>, answer: &mut Answer) {
        match part.thinking {
            Content::Text(text) => {
                if let Some(text) = text.into_filled() {
                    self.reasoning.text(text, answer);
                }
            }
            Content::Parts(parts) => {
                for text in parts.into_iter().filter_map(|part| part.text.into_filled()) {
                    self.reasoning.text(text, answer);
                }
            }
        }
        self.text(part.text.into_filled(), answer);
        if let Some(refusal) = part.refusal.into_filled() {
            self.speak(Event::RefusalDelta(refusal), answer);
        }
        if let Some(url) = part.image_url.0.and_then(|image| image.url.into_filled()) {
            self.end_reasoning(answer);
            answer.part(PartKind::Image(image(&url)), None);
        }
    }

    fn audio(&mut self, audio: &Audio<'_>, answer: &mut Answer) {
        let (id, data) = (audio.id.filled(), audio.data.filled());
        let transcript = audio.transcript.filled();
        if id.is_none() && data.is_none() && transcript.is_none() {
            return;
        }
        answer.changed |= data.is_some() || transcript.is_some() || self.audio_id.is_none();
        self.audio_id = self.audio_id.take().or_else(|| id.map(Str::from));
        let sound = self.audio.get_or_insert_default();
        sound.append(data, transcript);
    }

    fn finish_reason(&self) -> FinishReason {
        let reason = match self.reason.as_deref() {
            None => FinishReason::Stop,
            Some(reason) => known_reason(reason)
                .unwrap_or_else(|| FinishReason::Other(self.reason.clone().unwrap_or_default())),
        };
        // OpenRouter reports `tool_calls` for truncated calls.
        let native = self.native_reason.as_deref().and_then(known_reason);
        match (reason, native) {
            (FinishReason::Stop | FinishReason::ToolCalls, Some(FinishReason::Length)) => {
                FinishReason::Length
            }
            // Some servers report `stop` for tool calls.
            (FinishReason::Stop, _) if self.calls.wait_for_results() => FinishReason::ToolCalls,
            (reason, _) => reason,
        }
    }
}

/// Converts a fragment of a call.
fn piece<'a>(call: &'a Call<'_>) -> Piece<'a> {
    let (name, arguments) = match (&call.function.0, &call.custom.0) {
        (Some(function), None) => (&function.name, &function.arguments.0),
        // Some servers send both, one of them empty.
        (Some(function), Some(custom)) if custom.name.filled().is_none() => {
            (&function.name, &function.arguments.0)
        }
        (_, Some(custom)) => (&custom.name, &custom.input),
        (None, None) => (&Text::Absent, &Text::Absent),
    };
    Piece {
        index: call.index.0,
        // Mistral sends `"id": "null"`.
        id: call.id.filled().filter(|id| *id != "null"),
        name: name.filled(),
        arguments: arguments.filled().unwrap_or_default(),
    }
}

fn known_reason(reason: &str) -> Option<FinishReason> {
    Some(match reason.to_ascii_lowercase().as_str() {
        "" | "stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence" | "completed"
        | "complete" => FinishReason::Stop,
        "length"
        | "max_tokens"
        | "max_output_tokens"
        | "max_completion_tokens"
        | "model_length"
        | "model_context_window_exceeded" => FinishReason::Length,
        "tool_calls" | "tool_call" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "content_filter" | "safety" | "refusal" | "recitation" | "prohibited_content"
        | "blocklist" | "spii" => FinishReason::ContentFilter,
        _ => return None,
    })
}

/// The error that a chunk reports.
fn error(chunk: &Chunk<'_>, from: Framing) -> Option<Value> {
    let some = |value: &Option<Box<Value>>| value.clone().filter(|value| has_error(value));
    let groq = chunk.x_groq.0.as_ref().and_then(|groq| some(&groq.error));
    let (message, code) = (&chunk.message, chunk.code.as_str());
    if let Some(error) = some(&chunk.error).or(groq) {
        // The error may be only a name, with the message beside it.
        return Some(json!({ "error": error, "message": message, "code": code }));
    }
    let bare = chunk.object.as_str() == Some("error")
        || (chunk.choices.is_empty() && (message.is_some() || chunk.detail.is_some()));
    (bare || from == Framing::ErrorEvent).then(|| {
        let (detail, type_) = (&chunk.detail, chunk.type_.as_str());
        json!({ "message": message, "detail": detail, "code": code, "type": type_ })
    })
}

/// An image at `url`, which may be a data URL.
fn image(url: &Str) -> Media {
    match data_url::read(url) {
        Some((media_type, data)) => {
            Media::new(MediaSource::Base64(data.into())).with_media_type(media_type)
        }
        None => Media::new(MediaSource::Url(url.clone())),
    }
}
