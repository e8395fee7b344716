//! The messages of a request.

use super::super::compat::Compat;
use crate::history::{self, Said, is_own, own_data};
use concentric_core::{
    ChatRequest, Media, MediaSource, Message, Part, PartKind, Role, Str, ToolCallPart, Turn,
};
use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq},
};
use std::{borrow::Cow, fmt};

pub(super) struct Messages<'a> {
    request: &'a ChatRequest,
    compat: &'a Compat,
}

impl<'a> Messages<'a> {
    pub(super) const fn new(request: &'a ChatRequest, compat: &'a Compat) -> Self {
        Self { request, compat }
    }
}

impl Serialize for Messages<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = Writer {
            seq: serializer.serialize_seq(None)?,
            compat: self.compat,
        };
        let system = &self.request.system;
        if !system.is_empty() {
            // One message: many servers take no second.
            let mut segments = system.iter();
            let content = match (segments.next(), segments.next()) {
                (Some(only), None) => Cow::Borrowed(only.text.as_str()),
                _ => system.text().into(),
            };
            out.plain("system", &content)?;
        }
        for turn in &self.request.transcript {
            let message = turn.as_message();
            match message.role {
                Role::System => out.plain("system", &text(&message.parts))?,
                Role::Assistant => out.assistant(turn)?,
                _ => out.user(message)?,
            }
        }
        out.seq.end()
    }
}

struct Writer<'a, S> {
    seq: S,
    compat: &'a Compat,
}

impl<'a, S: SerializeSeq> Writer<'a, S> {
    fn plain(&mut self, role: &'static str, content: &str) -> Result<(), S::Error> {
        self.seq.serialize_element(&Plain { role, content })
    }

    fn user(&mut self, message: &Message) -> Result<(), S::Error> {
        if let [
            Part {
                kind: PartKind::Text(text),
                ..
            },
        ] = &*message.parts
        {
            return self.plain("user", text);
        }
        let content: Vec<Content<'_>> = message.parts.iter().filter_map(Content::of).collect();
        self.seq.serialize_element(&User {
            role: "user",
            content: &content,
        })
    }

    fn assistant(&mut self, turn: &Turn) -> Result<(), S::Error> {
        for said in history::said(turn) {
            self.said(&said)?;
        }
        Ok(())
    }

    fn said(&mut self, said: &Said<'_>) -> Result<(), S::Error> {
        let compat = self.compat;
        let content = text(said.parts);
        if content.is_empty() && said.calls.is_empty() {
            return Ok(());
        }
        let calls: Vec<Call<'_>> = said
            .calls
            .iter()
            .map(|(part, call, _)| Call::new(part, call, compat))
            .collect();
        self.seq.serialize_element(&Assistant {
            parts: said.parts,
            content: &content,
            calls: &calls,
            compat,
        })?;
        for (call, (_, _, result)) in calls.iter().zip(&said.calls) {
            self.seq.serialize_element(&Tool {
                role: "tool",
                tool_call_id: &call.id,
                content: &result.outcome.content.text(),
            })?;
        }
        // A tool's message can hold text only.
        let images: Vec<Content<'_>> = said
            .calls
            .iter()
            .flat_map(|(_, _, result)| result.outcome.content.images())
            .filter_map(Content::image)
            .collect();
        if images.is_empty() {
            return Ok(());
        }
        let mut content = vec![Content::text("Images that the tools returned:")];
        content.extend(images);
        self.seq.serialize_element(&User {
            role: "user",
            content: &content,
        })
    }
}

/// The text of `parts`, and, since an answer may be nothing else, the refusals in them.
pub(crate) fn text(parts: &[Part]) -> Cow<'_, str> {
    let mut texts = parts.iter().filter_map(|part| match &part.kind {
        PartKind::Text(text) | PartKind::Refusal(text) => Some(text.as_str()),
        _ => None,
    });
    match (texts.next(), texts.next()) {
        (None, _) => "".into(),
        (Some(only), None) => only.into(),
        (Some(first), Some(second)) => {
            let mut all = [first, second].concat();
            all.extend(texts);
            all.into()
        }
    }
}

#[derive(Serialize)]
struct Plain<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
struct User<'a> {
    role: &'static str,
    content: &'a [Content<'a>],
}

#[derive(Serialize)]
struct Tool<'a> {
    role: &'static str,
    tool_call_id: &'a str,
    content: &'a str,
}

struct Assistant<'a> {
    parts: &'a [Part],
    content: &'a str,
    calls: &'a [Call<'a>],
    compat: &'a Compat,
}

impl Serialize for Assistant<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("role", "assistant")?;
        let content = (!self.content.is_empty()).then_some(self.content);
        map.serialize_entry("content", &content)?;
        if !self.calls.is_empty() {
            map.serialize_entry("tool_calls", self.calls)?;
        }
        if let Some(field) = &self.compat.reasoning {
            let reasoning: String = self
                .parts
                .iter()
                .filter_map(|part| match &part.kind {
                    PartKind::Reasoning(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            if !reasoning.is_empty() {
                map.serialize_entry(field, &reasoning)?;
            }
        }
        let details = self.parts.iter().filter_map(|part| {
            let own = own_data(part, &self.compat.provider)?;
            own.data.get("reasoning_details")
        });
        let details: Vec<_> = details
            .filter_map(|list| list.as_array())
            .flatten()
            .collect();
        if !details.is_empty() {
            map.serialize_entry("reasoning_details", &details)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Call<'a> {
    id: Cow<'a, str>,
    r#type: &'static str,
    function: Function<'a>,
}

impl<'a> Call<'a> {
    fn new(part: &Part, call: &'a ToolCallPart, compat: &Compat) -> Self {
        Self {
            id: compat.ids.id(call, is_own(part, &compat.provider)),
            r#type: "function",
            function: Function {
                name: &call.name,
                arguments: call.arguments.for_history(),
            },
        }
    }
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a Str,
    arguments: &'a str,
}

/// One part of a message's content.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    Text { text: &'a str },
    ImageUrl { image_url: Url<'a> },
    InputAudio { input_audio: Audio<'a> },
    AudioUrl { audio_url: Url<'a> },
    File { file: File<'a> },
}

#[derive(Serialize)]
struct Url<'a> {
    url: DataUrl<'a>,
}

#[derive(Serialize)]
struct Audio<'a> {
    data: &'a str,
    format: &'a str,
}

#[derive(Default, Serialize)]
struct File<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filename: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_data: Option<DataUrl<'a>>,
}

impl<'a> Content<'a> {
    fn of(part: &'a Part) -> Option<Self> {
        match &part.kind {
            PartKind::Text(text) | PartKind::Refusal(text) => Some(Self::text(text)),
            PartKind::Image(image) => Self::image(image),
            PartKind::Audio(audio) => Self::audio(audio),
            PartKind::File(file) => Self::file(file),
            _ => None,
        }
    }

    const fn text(text: &'a str) -> Self {
        Self::Text { text }
    }

    fn image(image: &'a Media) -> Option<Self> {
        match DataUrl::of(image, "image/png") {
            Some(url) => Some(Self::ImageUrl {
                image_url: Url { url },
            }),
            None => Self::file(image),
        }
    }

    fn audio(audio: &'a Media) -> Option<Self> {
        match &audio.source {
            MediaSource::Base64(data) => {
                let media_type = audio.media_type.as_deref().unwrap_or("audio/wav");
                let format = match media_type.rsplit('/').next().unwrap_or_default() {
                    "mpeg" | "mpga" => "mp3",
                    "x-wav" | "wave" | "vnd.wave" => "wav",
                    other => other,
                };
                Some(Self::InputAudio {
                    input_audio: Audio { data, format },
                })
            }
            MediaSource::Url(_) => DataUrl::of(audio, "audio/wav").map(|url| Self::AudioUrl {
                audio_url: Url { url },
            }),
            _ => Self::file(audio),
        }
    }

    fn file(file: &'a Media) -> Option<Self> {
        let wire = match &file.source {
            MediaSource::Id(id) => File {
                file_id: Some(id),
                ..File::default()
            },
            _ => File {
                file_id: None,
                filename: Some(file.name.as_deref().unwrap_or("file")),
                file_data: Some(DataUrl::of(file, "application/pdf")?),
            },
        };
        Some(Self::File { file: wire })
    }
}

/// A medium as a URL, which holds its bytes (RFC 2397) unless they are elsewhere.
pub(crate) enum DataUrl<'a> {
    Url(&'a str),
    Data {
        media_type: &'a str,
        base64: &'a str,
    },
}

impl<'a> DataUrl<'a> {
    pub(crate) fn of(media: &'a Media, default: &'a str) -> Option<Self> {
        match &media.source {
            MediaSource::Url(url) => Some(Self::Url(url)),
            MediaSource::Base64(base64) => Some(Self::Data {
                media_type: media.media_type.as_deref().unwrap_or(default),
                base64,
            }),
            _ => None,
        }
    }
}

impl fmt::Display for DataUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Data { media_type, base64 } => write!(f, "data:{media_type};base64,{base64}"),
        }
    }
}

impl Serialize for DataUrl<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
