//! The contents of a request: alternating turns of the user and the model.

use super::super::family::Family;
use crate::{
    data_url,
    fields::One,
    history::{BEGINNING, Input, NameRules, Results, is_own, own_data, parts},
};
use concentric_core::{
    ChatRequest, Executor, Media, MediaSource, Message, Part, PartKind, Role, Str, ToolCallPart,
    ToolResult, ToolStatus, Turn,
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, value::RawValue};
use std::borrow::Cow;

/// The value that the service accepts as the signature of a call by another model.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// Whether the conversation of `request` has any content.
pub(super) fn has_content(request: &ChatRequest, provider: &Str) -> bool {
    let mut contents = Contents::empty(provider, Family::of(""));
    request.transcript.iter().any(|turn| {
        contents.turn(turn);
        !contents.list.is_empty()
    })
}

/// The function names that the service accepts.
pub(super) const NAMES: NameRules = NameRules {
    length: 128,
    punctuation: "_.:-",
    begins_with_letter: true,
};

#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Contents<'a> {
    list: Vec<Content<'a>>,
    #[serde(skip)]
    provider: &'a Str,
    #[serde(skip)]
    family: Family,
}

#[derive(Serialize)]
struct Content<'a> {
    role: &'static str,
    parts: Vec<WirePart<'a>>,
}

struct WirePart<'a> {
    kind: Kind<'a>,
    /// The provider-specific fields of the part.
    extras: Option<&'a Map<String, Value>>,
    /// Whether a required signature is missing.
    unsigned: bool,
}

enum Kind<'a> {
    /// An unchanged part of the service.
    Whole(&'a Value),
    Text(&'a str),
    Thought(&'a str),
    Media(Blob<'a>),
    Call(Call<'a>),
    Response(Response<'a>),
}

impl<'a> From<Kind<'a>> for WirePart<'a> {
    fn from(kind: Kind<'a>) -> Self {
        Self {
            kind,
            extras: None,
            unsigned: false,
        }
    }
}

impl<'a> Contents<'a> {
    pub(super) fn new(request: &'a ChatRequest, provider: &'a Str, family: Family) -> Self {
        let mut contents = Self::empty(provider, family);
        for turn in &request.transcript {
            contents.turn(turn);
        }
        // The service accepts a call only after user content.
        let begins_with_call = contents.list.first().is_some_and(|first| {
            let mut parts = first.parts.iter();
            parts.any(|part| matches!(part.kind, Kind::Call(_)))
        });
        if begins_with_call {
            let content = Content {
                role: "user",
                parts: vec![Kind::Text(BEGINNING).into()],
            };
            contents.list.insert(0, content);
        }
        if family.wants_signatures() {
            contents.list.iter_mut().for_each(Content::mark_unsigned);
        }
        contents
    }

    const fn empty(provider: &'a Str, family: Family) -> Self {
        Self {
            list: Vec::new(),
            provider,
            family,
        }
    }

    fn turn(&mut self, turn: &'a Turn) {
        let message = turn.as_message();
        match message.role {
            Role::Assistant => self.assistant(turn),
            _ => self.user(message),
        }
    }

    /// Adds a part to the last content if it has the same role, or starts a new one.
    fn push(&mut self, role: &'static str, part: impl Into<WirePart<'a>>) {
        let part = part.into();
        match self.list.last_mut().filter(|last| last.role == role) {
            Some(last) => last.parts.push(part),
            None => self.list.push(Content {
                role,
                parts: vec![part],
            }),
        }
    }

    fn user(&mut self, message: &'a Message) {
        for part in &message.parts {
            if let Some(whole) = self.whole(part) {
                self.push("user", Kind::Whole(whole));
            } else if let Some(kind) = common_part(part) {
                self.push("user", kind);
            }
        }
    }

    fn assistant(&mut self, turn: &'a Turn) {
        let parts = &turn.as_message().parts;
        let results = Results::of(turn);
        // The calls whose results have not been added yet.
        let mut open: Vec<(&'a Part, &'a ToolCallPart, &'a ToolResult)> = Vec::new();
        for part in parts {
            if let Some(whole) = self.whole(part) {
                self.push("model", Kind::Whole(whole));
                continue;
            }
            let own = own_data(part, self.provider);
            let extras = own.and_then(|own| own.data.get("fields")?.as_object());
            let kind = match &part.kind {
                PartKind::ToolResult(_) => {
                    self.responses(&mut open);
                    continue;
                }
                // A call by another provider's own tool is omitted, as is its result.
                PartKind::ToolCall(call) if call.executor == Executor::Provider => continue,
                PartKind::ToolCall(call) => {
                    let Some(result) = results.get(&call.id) else {
                        continue;
                    };
                    open.push((part, call, result));
                    Kind::Call(self.call(part, call))
                }
                // Only signed reasoning must be sent back.
                PartKind::Reasoning(text) if extras.is_some() => Kind::Thought(text),
                // A signed text may be empty.
                PartKind::Text(text) if extras.is_some() => Kind::Text(text),
                _ => match common_part(part) {
                    Some(kind) => kind,
                    None => continue,
                },
            };
            let part = WirePart {
                kind,
                extras,
                unsigned: false,
            };
            self.push("model", part);
        }
        self.responses(&mut open);
    }

    /// Adds the results of `open`, in the order of the calls.
    fn responses(&mut self, open: &mut Vec<(&'a Part, &'a ToolCallPart, &'a ToolResult)>) {
        let mut beside = Vec::new();
        for (part, call, result) in open.drain(..) {
            let mut media = Vec::new();
            for medium in parts(&result.outcome.content).iter().filter_map(Blob::of) {
                if self.family.takes_media_in_responses() && medium.fits_response() {
                    media.push(One(medium.field(), medium));
                } else {
                    beside.push(medium);
                }
            }
            let key = match result.outcome.status {
                ToolStatus::Done => "output",
                _ => "error",
            };
            let Call { name, id, .. } = self.call(part, call);
            let response = Response {
                name,
                response: One(key, Output(result.outcome.content.text())),
                id,
                parts: media,
            };
            self.push("user", Kind::Response(response));
        }
        for medium in beside {
            self.push("user", Kind::Media(medium));
        }
    }

    fn call(&self, part: &Part, call: &'a ToolCallPart) -> Call<'a> {
        Call {
            name: NAMES.name(&call.name),
            args: Input(&call.arguments),
            id: call
                .provider_id
                .as_ref()
                .filter(|_| is_own(part, self.provider)),
        }
    }

    /// A part that must be sent back unchanged.
    fn whole(&self, part: &'a Part) -> Option<&'a Value> {
        let can_be = match &part.kind {
            PartKind::ToolCall(call) => call.executor == Executor::Provider,
            PartKind::ToolResult(_) | PartKind::Provider(_) => true,
            _ => false,
        };
        let own = own_data(part, self.provider).filter(|_| can_be)?;
        own.data.get("part").filter(|part| part.is_object())
    }
}

impl Content<'_> {
    /// Marks the first call if its required signature is missing.
    fn mark_unsigned(&mut self) {
        let mut calls = self.parts.iter_mut();
        if let Some(call) = calls.find(|part| matches!(part.kind, Kind::Call(_))) {
            let signed = call
                .extras
                .is_some_and(|all| all.contains_key("thoughtSignature"));
            call.unsigned = !signed;
        }
    }
}

/// Converts a part without provider data.
fn common_part(part: &Part) -> Option<Kind<'_>> {
    match &part.kind {
        PartKind::Text(text) | PartKind::Refusal(text) if !text.is_empty() => {
            Some(Kind::Text(text))
        }
        _ => Blob::of(part).map(Kind::Media),
    }
}

impl Serialize for WirePart<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Kind::Whole(part) = self.kind {
            return part.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        match &self.kind {
            Kind::Whole(_) => {}
            Kind::Text(text) => map.serialize_entry("text", text)?,
            Kind::Thought(text) => {
                map.serialize_entry("text", text)?;
                map.serialize_entry("thought", &true)?;
            }
            Kind::Media(blob) => map.serialize_entry(blob.field(), blob)?,
            Kind::Call(call) => map.serialize_entry("functionCall", call)?,
            Kind::Response(response) => map.serialize_entry("functionResponse", response)?,
        }
        for (name, value) in self.extras.into_iter().flatten() {
            map.serialize_entry(name, value)?;
        }
        if self.unsigned {
            map.serialize_entry("thoughtSignature", NO_SIGNATURE)?;
        }
        map.end()
    }
}

/// A call with its name for the service.
#[derive(Serialize)]
struct Call<'a> {
    name: Cow<'a, str>,
    args: Input<'a>,
    /// The id that the service assigned.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a Str>,
}

/// The result of a call.
#[derive(Serialize)]
struct Response<'a> {
    name: Cow<'a, str>,
    response: One<Output<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a Str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<One<Blob<'a>>>,
}

/// A text as a string, or the JSON value that it contains.
struct Output<'a>(Cow<'a, str>);

impl Serialize for Output<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_structured = self.0.trim_start().starts_with(['{', '[']);
        match serde_json::from_str::<&RawValue>(&self.0) {
            Ok(json) if is_structured => json.serialize(serializer),
            _ => self.0.serialize(serializer),
        }
    }
}

/// A medium.
struct Blob<'a> {
    media_type: Option<&'a str>,
    /// Whether `bytes` is base64, not a URL.
    is_inline: bool,
    bytes: Cow<'a, str>,
}

impl<'a> Blob<'a> {
    fn of(part: &'a Part) -> Option<Self> {
        let (media, default): (&Media, _) = match &part.kind {
            PartKind::Image(image) => (image, "image/png"),
            PartKind::Audio(sound) => (sound, "audio/wav"),
            PartKind::File(file) => (file, "application/pdf"),
            _ => return None,
        };
        let known = media.media_type.as_deref();
        let at = |url: Cow<'a, str>| (known, false, url);
        // Inline data require a media type; for other sources, the service determines it.
        let (media_type, is_inline, bytes) = match &media.source {
            MediaSource::Base64(data) => (known.or(Some(default)), true, data.as_str().into()),
            MediaSource::Url(url) => match data_url::read(url) {
                Some((media_type, data)) => (Some(media_type), true, data.into()),
                None => at(url.as_str().into()),
            },
            // The Files API accepts such names only as URLs.
            MediaSource::Id(id) if id.starts_with("files/") => {
                at(format!("https://generativelanguage.googleapis.com/v1beta/{id}").into())
            }
            MediaSource::Id(id) => at(id.as_str().into()),
            _ => return None,
        };
        Some(Self {
            media_type,
            is_inline,
            bytes,
        })
    }

    const fn field(&self) -> &'static str {
        match self.is_inline {
            true => "inlineData",
            false => "fileData",
        }
    }

    /// Whether a function response may contain the medium.
    fn fits_response(&self) -> bool {
        let kind = self.media_type.unwrap_or_default();
        self.is_inline
            && (kind.starts_with("image/") || matches!(kind, "application/pdf" | "text/plain"))
    }
}

impl Serialize for Blob<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(media_type) = self.media_type {
            map.serialize_entry("mimeType", media_type)?;
        }
        let field = if self.is_inline { "data" } else { "fileUri" };
        map.serialize_entry(field, &self.bytes)?;
        map.end()
    }
}
