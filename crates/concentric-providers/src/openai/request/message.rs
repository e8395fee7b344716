//! The messages of a request.

use super::{
    super::profile::{Prefill, Profile, Reasoning, Turns},
    content::Content,
};
use crate::history::{
    self, NameRules, NamesBeside, Segment, is_own, joined, own_data, own_reasoning, text, words,
};
use concentric_core::{
    Arguments, ChatRequest, Message, Part, PartKind, Role, Str, ToolCallPart, ToolSpecs, Turn,
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;
use std::borrow::Cow;

/// The messages in the service's format.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Messages<'a> {
    list: Vec<Wire<'a>>,
}

impl<'a> Messages<'a> {
    pub(super) fn new(request: &'a ChatRequest, profile: &'a Profile, provider: &'a Str) -> Self {
        let mut out = Writer {
            list: Vec::with_capacity(request.transcript.len() + 1),
            tools: &request.tools,
            names: NameRules::COMMON.beside(&request.tools),
            profile,
            provider,
        };
        let system = &request.system;
        if !system.is_empty() {
            // A single message, since many servers do not accept a second one.
            let mut segments = system.iter();
            let content = match (segments.next(), segments.next()) {
                (Some(only), None) => Cow::Borrowed(only.text.as_str()),
                _ => system.text().into(),
            };
            out.put(Wire::plain(profile.instructions, content));
        }
        for turn in &request.transcript {
            let message = turn.as_message();
            match message.role {
                Role::System if !out.takes_system() => out.user(message),
                Role::System => {
                    let content = text(&message.parts);
                    if !content.is_empty() {
                        out.put(Wire::plain(profile.instructions, content));
                    }
                }
                Role::Assistant => out.assistant(turn),
                _ => out.user(message),
            }
        }
        if let (Prefill::Field(field), Some(Wire::Assistant(last))) =
            (profile.prefill, out.list.last_mut())
            && last.calls.is_empty()
        {
            last.prefill = Some(field);
        }
        Self { list: out.list }
    }

    /// Whether the last message is a prefilled assistant message.
    pub(super) fn ends_open(&self) -> bool {
        matches!(self.list.last(), Some(Wire::Assistant(last)) if last.calls.is_empty())
    }
}

struct Writer<'a> {
    list: Vec<Wire<'a>>,
    tools: &'a ToolSpecs,
    names: NamesBeside<'a>,
    profile: &'a Profile,
    provider: &'a Str,
}

impl<'a> Writer<'a> {
    /// Whether a system message may come next.
    fn takes_system(&self) -> bool {
        let answered = matches!(self.list.last(), Some(Wire::Assistant(_) | Wire::Tool(_)));
        self.profile.turns == Turns::Any && (!answered || self.profile.system_after_answer)
    }

    fn put(&mut self, message: Wire<'a>) {
        if self.profile.turns != Turns::Any {
            match (self.list.last_mut(), message) {
                (Some(Wire::User(old)), Wire::User(new)) => old.content.extend(new.content),
                (Some(Wire::Assistant(old)), Wire::Assistant(new)) if old.calls.is_empty() => {
                    old.add(new);
                }
                (_, message) => self.list.push(message),
            }
            return;
        }
        let behind_tool = matches!(self.list.last(), Some(Wire::Tool(_)));
        if behind_tool && matches!(message, Wire::User(_)) && !self.profile.user_after_tool {
            self.list.push(Wire::plain("assistant", "OK".into()));
        }
        self.list.push(message);
    }

    fn user(&mut self, message: &'a Message) {
        let content: Vec<Content<'_>> = message
            .parts
            .iter()
            .filter_map(|part| Content::of(part, self.profile.document_url))
            .collect();
        if !content.is_empty() {
            self.put(Wire::user(content));
        }
    }

    fn assistant(&mut self, turn: &'a Turn) {
        for segment in history::segments(turn) {
            self.segment(&segment);
        }
    }

    fn segment(&mut self, segment: &Segment<'a>) {
        let (profile, provider) = (self.profile, self.provider);
        let is_apart = |part: &Part| profile.refusals && matches!(part.kind, PartKind::Refusal(_));
        // The transcript of generated audio; the service stores the audio itself for only an hour.
        let aloud = |part: &'a Part| own_data(part, provider)?.data.get("transcript")?.as_str();
        let parts = segment.parts.iter();
        let content = joined(parts.clone().filter_map(|part| match aloud(part) {
            Some(aloud) if !aloud.is_empty() => Some(aloud),
            _ => words(part).filter(|_| !is_apart(part)),
        }));
        let refusal = joined(parts.filter(|part| is_apart(part)).filter_map(words));
        let has_text = !content.is_empty() || !refusal.is_empty();
        if !has_text && segment.calls.is_empty() {
            return;
        }
        let can_call = profile.capabilities.tools;
        if can_call || has_text {
            let mut assistant = Assistant::new(segment.parts, content, profile, provider);
            assistant.refusal = refusal;
            if can_call {
                let calls = segment.calls.iter();
                assistant.calls = calls
                    .map(|(part, call, _)| Call::new(part, call, self))
                    .collect();
            }
            let misses_reasoning = assistant.reasoning.is_empty()
                && matches!(profile.reasoning, Reasoning::Demanded(_));
            if misses_reasoning && (!self.tools.is_empty() || !assistant.calls.is_empty()) {
                // The service treats an empty string as missing.
                assistant.reasoning.push(' ');
            }
            self.put(Wire::Assistant(assistant));
        }
        for (part, call, result) in &segment.calls {
            let content = result.outcome.content.text();
            self.put(match can_call {
                true => Wire::Tool(Tool {
                    role: "tool",
                    tool_call_id: profile.ids.id(call, is_own(part, provider)),
                    content,
                }),
                // A model without tool calls receives only their results.
                false => {
                    let text = format!("The tool `{}` returned:\n{content}", call.name);
                    Wire::user(vec![Content::Text { text: text.into() }])
                }
            });
        }
        // A tool message can only contain text.
        let images: Vec<Content<'_>> = segment
            .calls
            .iter()
            .flat_map(|(_, _, result)| result.outcome.content.images())
            .filter_map(|image| Content::image(image, profile.document_url))
            .collect();
        if images.is_empty() {
            return;
        }
        let mut content = vec![Content::text("Images that the tools returned:")];
        content.extend(images);
        self.put(Wire::user(content));
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Wire<'a> {
    Plain(Plain<'a>),
    User(User<'a>),
    Assistant(Assistant<'a>),
    Tool(Tool<'a>),
}

impl<'a> Wire<'a> {
    const fn plain(role: &'static str, content: Cow<'a, str>) -> Self {
        Self::Plain(Plain { role, content })
    }

    const fn user(content: Vec<Content<'a>>) -> Self {
        Self::User(User { content })
    }
}

#[derive(Serialize)]
struct Plain<'a> {
    role: &'static str,
    content: Cow<'a, str>,
}

struct User<'a> {
    content: Vec<Content<'a>>,
}

impl Serialize for User<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("role", "user")?;
        match &*self.content {
            // Some servers do not accept a list.
            [Content::Text { text }] => map.serialize_entry("content", text)?,
            content => map.serialize_entry("content", content)?,
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Tool<'a> {
    role: &'static str,
    tool_call_id: Cow<'a, str>,
    content: Cow<'a, str>,
}

struct Assistant<'a> {
    content: Cow<'a, str>,
    refusal: Cow<'a, str>,
    calls: Vec<Call<'a>>,
    reasoning: String,
    details: Vec<&'a Value>,
    prefill: Option<&'static str>,
    profile: &'a Profile,
}

impl<'a> Assistant<'a> {
    fn new(parts: &'a [Part], content: Cow<'a, str>, profile: &'a Profile, provider: &Str) -> Self {
        let details = parts.iter().filter_map(|part| {
            let own = own_data(part, provider)?;
            own.data.get("reasoning_details")?.as_array()
        });
        Self {
            content,
            refusal: "".into(),
            calls: Vec::new(),
            reasoning: match profile.reasoning {
                Reasoning::No => String::new(),
                _ => own_reasoning(parts, provider),
            },
            details: details.flatten().collect(),
            prefill: None,
            profile,
        }
    }

    /// Appends the content of a directly following message.
    fn add(&mut self, more: Self) {
        if self.content.is_empty() {
            self.content = more.content;
        } else if !more.content.is_empty() {
            let content = self.content.to_mut();
            content.push_str("\n\n");
            content.push_str(&more.content);
        }
        self.refusal.to_mut().push_str(&more.refusal);
        self.calls = more.calls;
        self.reasoning.push_str(&more.reasoning);
        self.details.extend(more.details);
    }
}

impl Serialize for Assistant<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("role", "assistant")?;
        if self.profile.reasoning == Reasoning::Content && !self.reasoning.is_empty() {
            let text = |text| Content::Text {
                text: Cow::Borrowed(text),
            };
            let mut content = vec![Content::Thinking {
                thinking: [Box::new(text(&self.reasoning))],
            }];
            if !self.content.is_empty() {
                content.push(text(&self.content));
            }
            map.serialize_entry("content", &content)?;
        } else {
            let filled = !self.content.is_empty() || self.profile.empty_content;
            map.serialize_entry("content", &filled.then_some(&self.content))?;
        }
        if !self.refusal.is_empty() {
            map.serialize_entry("refusal", &self.refusal)?;
        }
        if !self.calls.is_empty() {
            map.serialize_entry("tool_calls", &self.calls)?;
        }
        if let Reasoning::Field(field) | Reasoning::Demanded(field) = self.profile.reasoning
            && !self.reasoning.is_empty()
        {
            map.serialize_entry(field, &self.reasoning)?;
        }
        if !self.details.is_empty() {
            map.serialize_entry("reasoning_details", &self.details)?;
        }
        if let Some(field) = self.prefill {
            map.serialize_entry(field, &true)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Call<'a> {
    id: Cow<'a, str>,
    r#type: &'static str,
    function: Function<'a>,
    // Gemini's thought signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_content: Option<&'a Value>,
}

impl<'a> Call<'a> {
    fn new(part: &'a Part, call: &'a ToolCallPart, to: &Writer<'_>) -> Self {
        Self {
            id: to.profile.ids.id(call, is_own(part, to.provider)),
            r#type: "function",
            function: Function {
                name: to.names.name(&call.name),
                arguments: &call.arguments,
            },
            extra_content: own_data(part, to.provider)
                .and_then(|own| own.data.get("extra_content")),
        }
    }
}

#[derive(Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    #[serde(serialize_with = "for_history")]
    arguments: &'a Arguments,
}

// Requests are also built only to be checked, which does not need the arguments to be parsed.
fn for_history<S: Serializer>(arguments: &Arguments, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(arguments.for_history())
}
