//! What a server says, chunk by chunk, as events.

use super::{
    calls::{CallLimits, Calls, Conflict},
    config::Config,
    reasoning::Reasoning,
    wire::{Audio, Choice, Chunk, Content, ContentPart, Message},
};
use crate::failure::{Failure, Origin};
use concentric_core::{
    Context, Error, ErrorKind, Event, Finish, FinishReason, Head, Media, MediaSource, Part,
    PartKind, ProviderData, Str, Usage,
};
use serde_json::{Value, json};
use std::{collections::VecDeque, sync::Arc};

/// An answer as far as it has arrived.
#[derive(Debug)]
pub(super) struct Answer {
    config: Arc<Config>,
    context: Context,
    head: Head,
    // Something of the answer was said.
    said: bool,
    usage: Usage,
    reason: Option<Str>,
    native_reason: Option<Str>,
    // All came in one message, which is whole since its JSON is.
    unary: bool,
    calls: Calls,
    reasoning: Reasoning,
    audio: Option<Sound>,
    annotations: Vec<Value>,
    /// What nobody has taken yet.
    pub(super) events: VecDeque<Event>,
}

/// Where a chunk comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// An event of a stream.
    Event,
    /// An event that the server calls an error.
    ErrorEvent,
    /// A body of JSON.
    Json,
}

#[derive(Debug, Default)]
struct Sound {
    id: Option<Str>,
    data: String,
    transcript: String,
}

impl Answer {
    pub(super) fn new(config: Arc<Config>, context: Context, head: Head) -> Self {
        Self {
            config,
            context,
            head,
            said: false,
            usage: Usage::default(),
            reason: None,
            native_reason: None,
            unary: false,
            calls: Calls::default(),
            reasoning: Reasoning::default(),
            audio: None,
            annotations: Vec::new(),
            events: VecDeque::new(),
        }
    }

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    pub(super) fn origin(&self) -> Origin<'_> {
        self.config.origin(self.head.request_id.as_ref())
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Whether the service has said how the answer ends, so that nothing of it can be missing.
    pub(super) fn is_whole(&self) -> bool {
        self.unary || self.reason.is_some()
    }

    /// Takes in a chunk.
    pub(super) fn take(&mut self, chunk: Chunk<'_>, from: Framing) -> Result<(), Error> {
        if let Some(failure) = failure(&chunk, from) {
            return Err(self.origin().reported(&failure));
        }
        self.check_same(&chunk)?;
        // Some send a first chunk in which both are empty.
        name(&mut self.head.id, chunk.id.as_str());
        name(&mut self.head.model, chunk.model.as_str());
        let groq = chunk.x_groq.0.and_then(|groq| groq.usage.0);
        if let Some(tokens) = chunk.usage.0.or(groq) {
            self.usage = tokens.usage();
        }
        for choice in chunk.choices.0 {
            if choice.index.0.unwrap_or(0) == 0 {
                self.choice(choice, from)?;
            }
        }
        self.said |= !self.events.is_empty();
        Ok(())
    }

    /// Sees that the answer is still the same.
    ///
    /// A gateway that lost its upstream may ask another one, and send that one's answer behind what
    /// there was. It then has another id and opens anew, with a role and nothing said. The id alone
    /// says little: Perplexity changes it within an answer.
    fn check_same(&self, chunk: &Chunk<'_>) -> Result<(), Error> {
        let (Some(new), Some(old)) = (chunk.id.as_str(), &self.head.id) else {
            return Ok(());
        };
        let renamed = !old.is_empty() && !new.is_empty() && *old != *new;
        let opens = |message: &Message<'_>| {
            message.role.as_str().is_some_and(|role| !role.is_empty()) && message.says_nothing()
        };
        let mut deltas = chunk
            .choices
            .0
            .iter()
            .filter(|choice| choice.finish_reason.as_str().is_none())
            .filter_map(|choice| choice.delta.0.as_ref());
        if renamed && self.said && !self.is_whole() && deltas.any(opens) {
            return Err(self.origin().error(
                ErrorKind::Protocol,
                "another answer began before the first one was whole",
            ));
        }
        Ok(())
    }

    fn choice(&mut self, choice: Choice<'_>, from: Framing) -> Result<(), Error> {
        if let Some(tokens) = choice.usage.0 {
            self.usage = tokens.usage();
        }
        // Perplexity sends both: in a stream the message is all that was said so far, in a unary
        // answer the delta is empty.
        match (choice.delta.0, choice.message.0) {
            (Some(delta), None) => self.message(delta)?,
            (Some(delta), Some(_)) if from != Framing::Json => self.message(delta)?,
            (_, Some(message)) => {
                self.unary = true;
                self.message(*message)?;
            }
            // Azure leaves out the message of an answer that it filtered.
            (None, None) => self.unary |= from == Framing::Json,
        }
        if let Some(error) = choice.error.filter(|error| !error.is_null()) {
            return Err(self.origin().reported(&Failure::of_json(&error)));
        }
        if self.unary && choice.finish_reason.as_str() == Some("") {
            // Snowflake's whole answers end for no reason.
            self.reason = Some(Str::default());
        } else if let Some(reason) = choice.finish_reason.into_filled() {
            if reason == *"error" {
                return Err(self.origin().error(
                    ErrorKind::Server,
                    "the service ended the answer with the reason `error`",
                ));
            }
            self.reason = Some(reason);
        }
        if let Some(reason) = choice.native_finish_reason.into_filled() {
            self.native_reason = Some(reason);
        }
        Ok(())
    }

    #[inline]
    fn message(&mut self, message: Message<'_>) -> Result<(), Error> {
        let shown = match message.reasoning.into_filled() {
            // Some send both, with the same in them.
            Some(text) => Some(text),
            None => message.reasoning_content.into_filled(),
        };
        if let Some(details) = message.reasoning_details {
            self.reasoning.details(details, shown, &mut self.events);
        } else if let Some(text) = shown {
            self.reasoning.text(text, &mut self.events);
        }
        match message.content {
            Content::Text(text) => self.text(text.into_filled()),
            Content::Parts(parts) => parts.into_iter().for_each(|part| self.part(part)),
        }
        if let Some(refusal) = message.refusal.into_filled() {
            self.speak(Event::RefusalDelta(refusal));
        }
        for piece in message.tool_calls.0 {
            self.end_reasoning();
            let limits = self.call_limits();
            self.calls
                .piece(piece, &self.context, &limits, &mut self.events)
                .map_err(|conflict| self.conflict(&conflict))?;
        }
        if let Some(function) = message.function_call.0 {
            self.end_reasoning();
            let limits = self.call_limits();
            self.calls
                .legacy(&function, &self.context, &limits, &mut self.events)
                .map_err(|conflict| self.conflict(&conflict))?;
        }
        for image in message.images.0 {
            self.part(image);
        }
        if let Some(audio) = message.audio.0 {
            self.audio(&audio);
        }
        if let Some(Value::Array(annotations)) = message.annotations {
            self.annotations.extend(annotations);
        }
        Ok(())
    }

    #[inline]
    fn text(&mut self, text: Option<Str>) {
        if let Some(text) = text {
            self.speak(Event::TextDelta(text));
        }
    }

    #[inline]
    fn speak(&mut self, event: Event) {
        self.end_reasoning();
        self.events.push_back(event);
    }

    fn end_reasoning(&mut self) {
        self.reasoning
            .end(&self.config.compat.provider, &mut self.events);
    }

    fn part(&mut self, part: ContentPart<'_>) {
        match part.thinking {
            Content::Text(text) => {
                if let Some(text) = text.into_filled() {
                    self.reasoning.text(text, &mut self.events);
                }
            }
            Content::Parts(parts) => {
                for text in parts.into_iter().filter_map(|part| part.text.into_filled()) {
                    self.reasoning.text(text, &mut self.events);
                }
            }
        }
        self.text(part.text.into_filled());
        if let Some(refusal) = part.refusal.into_filled() {
            self.speak(Event::RefusalDelta(refusal));
        }
        if let Some(url) = part.image_url.0.and_then(|image| image.url.into_filled()) {
            let part = Part::new(PartKind::Image(image(&url)));
            self.speak(Event::Part(Box::new(part)));
        }
    }

    fn audio(&mut self, audio: &Audio<'_>) {
        let text = |text: &super::lenient::Text<'_>| text.filled().map(str::to_owned);
        let (id, data, transcript) = (text(&audio.id), text(&audio.data), text(&audio.transcript));
        if id.is_none() && data.is_none() && transcript.is_none() {
            return;
        }
        let sound = self.audio.get_or_insert_default();
        sound.id = sound.id.take().or_else(|| id.map(Str::from));
        sound.data.extend(data);
        sound.transcript.extend(transcript);
    }

    fn call_limits(&self) -> CallLimits {
        CallLimits {
            arguments: self.config.limits.tool_arguments,
            calls: self.config.limits.tool_calls,
        }
    }

    fn conflict(&self, conflict: &Conflict) -> Error {
        let kind = if conflict.is_size() {
            ErrorKind::TooLarge
        } else {
            ErrorKind::Protocol
        };
        self.origin().error(kind, conflict.as_str())
    }

    /// Nothing more will come: emits what was held back, and the end.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        if !self.is_whole() {
            return Err(self.truncated());
        }
        self.end_reasoning();
        let provider = &self.config.compat.provider;
        if let Some(sound) = self.audio.take() {
            let data = json!({ "audio": { "id": sound.id }, "transcript": sound.transcript });
            let media = Media::new(MediaSource::Base64(sound.data.into()));
            let part = Part::new(PartKind::Audio(media))
                .with_provider_data(Some(Arc::new(ProviderData::new(provider.clone(), data))));
            self.events.push_back(Event::Part(Box::new(part)));
        }
        if !self.annotations.is_empty() {
            let data = json!({ "annotations": std::mem::take(&mut self.annotations) });
            let part = PartKind::Provider(ProviderData::new(provider.clone(), data));
            self.events
                .push_back(Event::Part(Box::new(Part::new(part))));
        }
        let reason = self.finish_reason();
        self.calls
            .finish(&mut self.events)
            .map_err(|conflict| self.conflict(&conflict))?;
        let mut finish = Finish::new(reason, self.usage);
        finish.provider_reason = self.reason.take();
        self.events.push_back(Event::Finish(Box::new(finish)));
        Ok(())
    }

    pub(super) fn truncated(&self) -> Error {
        self.origin().error(
            ErrorKind::Truncated,
            "the answer ended before the service said how it ends",
        )
    }

    fn finish_reason(&self) -> FinishReason {
        let reason = match self.reason.as_deref() {
            None => FinishReason::Stop,
            Some(reason) => known_reason(reason)
                .unwrap_or_else(|| FinishReason::Other(self.reason.clone().unwrap_or_default())),
        };
        // OpenRouter says `tool_calls` of calls that were cut short.
        let native = self.native_reason.as_deref().and_then(known_reason);
        match (reason, native) {
            (FinishReason::Stop | FinishReason::ToolCalls, Some(FinishReason::Length)) => {
                FinishReason::Length
            }
            // Some say `stop` of tool calls.
            (FinishReason::Stop, _) if !self.calls.is_empty() => FinishReason::ToolCalls,
            (reason, _) => reason,
        }
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
fn failure(chunk: &Chunk<'_>, from: Framing) -> Option<Failure> {
    let some = |value: &Option<Value>| {
        value
            .clone()
            .filter(|value| !value.is_null() && *value != json!({}) && *value != json!(""))
    };
    let groq = chunk.x_groq.0.as_ref().and_then(|groq| some(&groq.error));
    if let Some(error) = some(&chunk.error).or(groq) {
        // A name alone may stand beside its message.
        let outer =
            json!({ "error": error, "message": chunk.message, "code": chunk.code.as_str() });
        return Some(Failure::of_json(&outer));
    }
    let bare = chunk.object.as_str() == Some("error")
        || (chunk.choices.0.is_empty() && (chunk.message.is_some() || chunk.detail.is_some()));
    (bare || from == Framing::ErrorEvent).then(|| {
        Failure::of_json(&json!({
            "message": chunk.message,
            "detail": chunk.detail,
            "code": chunk.code.as_str(),
            "type": chunk.type_.as_str(),
        }))
    })
}

/// Sets what the service calls something, unless it has said so before.
#[inline]
fn name(field: &mut Option<Str>, said: Option<&str>) {
    if let Some(said) = said
        && field.as_ref().is_none_or(|field| field.is_empty())
    {
        *field = Some(said.into());
    }
}

/// An image at `url`, which may be a data URL (RFC 2397).
fn image(url: &Str) -> Media {
    let data = url
        .strip_prefix("data:")
        .and_then(|data| data.split_once(";base64,"));
    match data {
        Some((media_type, data)) => {
            Media::new(MediaSource::Base64(data.into())).with_media_type(media_type)
        }
        None => Media::new(MediaSource::Url(url.clone())),
    }
}
