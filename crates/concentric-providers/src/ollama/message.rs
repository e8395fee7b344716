//! The messages of a request.

use crate::history::{self, IdRules, Input, NameRules, NamesBeside, Segment, is_own};
use concentric_core::{ChatRequest, MediaSource, Message, Part, PartKind, Role, Str, Turn};
use serde::{Serialize, Serializer, ser::SerializeSeq};
use std::borrow::Cow;

pub(super) struct Messages<'a> {
    request: &'a ChatRequest,
    provider: &'a Str,
}

impl<'a> Messages<'a> {
    pub(super) const fn new(request: &'a ChatRequest, provider: &'a Str) -> Self {
        Self { request, provider }
    }
}

impl Serialize for Messages<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = Writer {
            seq: serializer.serialize_seq(None)?,
            provider: self.provider,
            names: NameRules::COMMON.beside(&self.request.tools),
        };
        if !self.request.system.is_empty() {
            out.put(&Wire::new("system", &self.request.system.text()))?;
        }
        for turn in &self.request.transcript {
            let message = turn.as_message();
            match message.role {
                Role::System => out.plain("system", message)?,
                Role::Assistant => out.assistant(turn)?,
                _ => out.plain("user", message)?,
            }
        }
        out.seq.end()
    }
}

/// The text of a user's `parts`, joined with line breaks, since images are sent separately.
pub(super) fn user_text(parts: &[Part]) -> Cow<'_, str> {
    let mut texts = parts.iter().filter_map(|part| match &part.kind {
        PartKind::Text(text) | PartKind::Refusal(text) => Some(text.as_str()),
        _ => None,
    });
    match (texts.next(), texts.next()) {
        (None, _) => "".into(),
        (Some(only), None) => only.into(),
        (Some(first), Some(second)) => {
            let mut all = [first, "\n", second].concat();
            for text in texts {
                all.push('\n');
                all.push_str(text);
            }
            all.into()
        }
    }
}

/// The base64 images in `parts`.
pub(super) fn images(parts: &[Part]) -> Vec<&str> {
    let images = parts.iter().filter_map(|part| match &part.kind {
        PartKind::Image(image) => Some(image),
        _ => None,
    });
    images.filter_map(|image| base64(&image.source)).collect()
}

fn base64(source: &MediaSource) -> Option<&str> {
    match source {
        MediaSource::Base64(data) => Some(data),
        _ => None,
    }
}

struct Writer<'a, S> {
    seq: S,
    provider: &'a Str,
    names: NamesBeside<'a>,
}

impl<S: SerializeSeq> Writer<'_, S> {
    fn put(&mut self, message: &Wire<'_>) -> Result<(), S::Error> {
        self.seq.serialize_element(message)
    }

    fn plain(&mut self, role: &'static str, message: &Message) -> Result<(), S::Error> {
        let content = user_text(&message.parts);
        let images = images(&message.parts);
        // A message without supported content is omitted.
        if images.is_empty() && content.is_empty() {
            return Ok(());
        }
        self.put(&Wire {
            images,
            ..Wire::new(role, &content)
        })
    }

    fn assistant(&mut self, turn: &Turn) -> Result<(), S::Error> {
        for segment in history::segments(turn) {
            self.segment(&segment)?;
        }
        Ok(())
    }

    fn segment(&mut self, segment: &Segment<'_>) -> Result<(), S::Error> {
        let content = segment.parts.iter().filter_map(|part| match &part.kind {
            PartKind::Image(image) if base64(&image.source).is_some() => None,
            _ => history::words(part),
        });
        let content = history::joined(content);
        let images = images(segment.parts);
        if content.is_empty() && images.is_empty() && segment.calls.is_empty() {
            return Ok(());
        }
        let thinking = history::own_reasoning(segment.parts, self.provider);
        let calls = segment.calls.iter().enumerate();
        let calls = calls.map(|(index, (part, call, _))| Call {
            id: IdRules::ANY.id(call, is_own(part, self.provider)),
            function: Function {
                index,
                name: self.names.name(&call.name),
                arguments: Input(&call.arguments),
            },
        });
        let calls: Vec<Call<'_>> = calls.collect();
        self.put(&Wire {
            thinking: &thinking,
            images,
            tool_calls: &calls,
            ..Wire::new("assistant", &content)
        })?;
        for (call, (.., result)) in calls.iter().zip(&segment.calls) {
            self.put(&Wire {
                // Templates identify a result by the name or by the id.
                tool_name: &call.function.name,
                tool_call_id: &call.id,
                ..Wire::new("tool", &result.outcome.content.text())
            })?;
        }
        let results = segment.calls.iter().map(|(.., result)| result);
        let images: Vec<&str> = results
            .flat_map(|result| result.outcome.content.images())
            .filter_map(|image| base64(&image.source))
            .collect();
        if images.is_empty() {
            return Ok(());
        }
        // Few templates include the images of a tool message.
        self.put(&Wire {
            images,
            ..Wire::new("user", "Images that the tools returned:")
        })
    }
}

#[derive(Serialize)]
struct Wire<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tool_calls: &'a [Call<'a>],
    #[serde(skip_serializing_if = "str::is_empty")]
    tool_name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tool_call_id: &'a str,
}

impl<'a> Wire<'a> {
    const fn new(role: &'static str, content: &'a str) -> Self {
        Self {
            role,
            content,
            thinking: "",
            images: Vec::new(),
            tool_calls: &[],
            tool_name: "",
            tool_call_id: "",
        }
    }
}

#[derive(Serialize)]
struct Call<'a> {
    id: Cow<'a, str>,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    index: usize,
    name: Cow<'a, str>,
    arguments: Input<'a>,
}
