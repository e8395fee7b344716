//! The capabilities of a model, and the check of a request against them.

use crate::history::parts;
use concentric_core::{
    ChatRequest, Error, ErrorKind, MediaSource, Message, PartKind, Role, Str, ToolChoice, ToolSpec,
};
use serde_json::Value;
use std::{collections::HashSet, fmt};

/// The features that a model supports through its provider's API.
///
/// A layer knows the capabilities of its API; restrictions of a single model are configured with
/// [`capabilities`](crate::ProviderLayer::capabilities). [`check`](Self::check) lists the features
/// that a request needs beyond them; each call is checked before it is sent.
///
/// Assistant messages are never rejected. Where the service does not accept media from an
/// assistant, an image, audio or a document in its messages is replaced with the text `[image]`,
/// `[sound]` or `[document]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each flag is an independent feature"
)]
pub struct Capabilities {
    /// Tool calls.
    pub tools: bool,
    /// A tool choice that forces a call, of any tool or of a named one.
    pub tool_choice: bool,
    /// Control over parallel tool calls.
    pub parallel_tool_calls: bool,
    /// Images in tool results, from the sources in [`images`](Self::images).
    pub images_in_results: bool,
    /// Output that conforms to a JSON schema.
    pub output_schema: bool,
    /// An output schema in requests with tools.
    pub output_schema_with_tools: bool,
    /// Supported sources of images.
    pub images: Sources,
    /// Supported sources of audio.
    pub audio: Sources,
    /// Supported sources of documents.
    pub files: Sources,
    /// A reasoning effort.
    pub reasoning_effort: bool,
    /// Prefill: the model continues an assistant message at the end of the conversation.
    pub prefill: bool,
    /// `temperature`.
    pub temperature: bool,
    /// `top_p`.
    pub top_p: bool,
    /// `frequency_penalty` and `presence_penalty`.
    pub penalties: bool,
    /// `seed`.
    pub seed: bool,
    /// The maximum number of stop sequences.
    pub stop: usize,
}

/// The supported locations of a medium's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sources {
    /// Base64 data in the request.
    pub base64: bool,
    /// A URL.
    pub url: bool,
    /// The id of a file that is stored at the provider.
    pub id: bool,
}

impl Sources {
    /// No source: the model does not support such media.
    pub const NONE: Self = Self {
        base64: false,
        url: false,
        id: false,
    };

    /// Every source.
    pub const ALL: Self = Self {
        base64: true,
        url: true,
        id: true,
    };

    /// Base64 data only.
    pub const BASE64: Self = Self {
        base64: true,
        ..Self::NONE
    };

    const fn take(self, source: &MediaSource) -> bool {
        match source {
            MediaSource::Base64(_) => self.base64,
            MediaSource::Url(_) => self.url,
            MediaSource::Id(_) => self.id,
            _ => false,
        }
    }
}

impl Capabilities {
    /// Every feature that a request can use.
    pub const fn all() -> Self {
        Self {
            tools: true,
            tool_choice: true,
            parallel_tool_calls: true,
            images_in_results: true,
            output_schema: true,
            output_schema_with_tools: true,
            images: Sources::ALL,
            audio: Sources::ALL,
            files: Sources::ALL,
            reasoning_effort: true,
            prefill: true,
            temperature: true,
            top_p: true,
            penalties: true,
            seed: true,
            stop: usize::MAX,
        }
    }

    /// Lists the features that `request` uses and the model does not support.
    pub fn check(&self, request: &ChatRequest) -> Vec<Unsupported> {
        let mut refused = Vec::new();
        let mut no = |is_refused: bool, what: &'static str| {
            if is_refused {
                refused.push(Unsupported::new(what));
            }
        };
        let options = &*request.options;
        let tools = !request.tools.is_empty();
        no(tools && !self.tools, "tools");
        if tools && self.tools {
            let choice = options.tool_choice.as_ref();
            let forces =
                choice.is_some_and(|choice| !matches!(choice, ToolChoice::Auto | ToolChoice::None));
            no(forces && !self.tool_choice, "a forced tool call");
            let is_set = options.parallel_tool_calls.is_some();
            no(is_set && !self.parallel_tool_calls, "`parallel_tool_calls`");
        }
        if options.output_schema.is_some() {
            let with_tools = self.output_schema_with_tools || !tools;
            let what = "an output schema together with tools";
            no(!self.output_schema, "an output schema");
            no(self.output_schema && !with_tools, what);
        }
        let has_effort = options.reasoning_effort.is_some();
        no(has_effort && !self.reasoning_effort, "a reasoning effort");
        let has_temperature = options.temperature.is_some();
        no(has_temperature && !self.temperature, "a temperature");
        no(options.top_p.is_some() && !self.top_p, "`top_p`");
        let (frequency, presence) = (options.frequency_penalty, options.presence_penalty);
        no(
            frequency.is_some() && !self.penalties,
            "a frequency penalty",
        );
        no(presence.is_some() && !self.penalties, "a presence penalty");
        no(options.seed.is_some() && !self.seed, "a seed");
        no(options.stop.len() > self.stop, "that many stop sequences");
        let turns = request.transcript.len();
        for (at, turn) in request.transcript.iter().enumerate() {
            let message = turn.as_message();
            self.check_message(message, at, &mut refused);
            let is_answer = message.role == Role::Assistant && turn.results().is_empty();
            if at + 1 == turns && is_answer && !self.prefill {
                refused.push(Unsupported::new("a prefilled assistant message").at(at));
            }
            let results = turn.results().iter();
            let mut images = results.flat_map(|result| result.outcome.content.images());
            if images.any(|image| !self.images_in_results || !self.images.take(&image.source)) {
                refused.push(Unsupported::new("an image in a tool result").at(at));
            }
        }
        refused
    }

    fn check_message(&self, message: &Message, at: usize, refused: &mut Vec<Unsupported>) {
        // Assistant messages are sent back in the closest form that the service accepts.
        if message.role == Role::Assistant {
            return;
        }
        for part in &message.parts {
            let (medium, sources, what) = match &part.kind {
                PartKind::Image(image) => (image, self.images, "an image"),
                PartKind::Audio(sound) => (sound, self.audio, "audio"),
                PartKind::File(file) => (file, self.files, "a document"),
                _ => continue,
            };
            if sources.take(&medium.source) {
                continue;
            }
            let from = match medium.source {
                _ if sources == Sources::NONE => "",
                MediaSource::Url(_) => " at a URL",
                MediaSource::Id(_) => " referenced by id",
                _ => " as base64 data",
            };
            refused.push(Unsupported::new(format!("{what}{from}")).at(at));
        }
    }
}

/// A feature that a request uses and its model does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsupported {
    /// A description of the feature.
    pub what: Str,
    /// The turn of the transcript that uses it, from 0; `None` if it concerns the whole request.
    pub turn: Option<usize>,
}

impl Unsupported {
    /// Creates an entry that concerns the whole request.
    pub fn new(what: impl Into<Str>) -> Self {
        Self {
            what: what.into(),
            turn: None,
        }
    }

    /// Sets the turn.
    #[must_use]
    pub const fn at(mut self, turn: usize) -> Self {
        self.turn = Some(turn);
        self
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match self.turn {
            Some(turn) => write!(f, " (turn {turn})"),
            None => Ok(()),
        }
    }
}

/// Lists audio and documents in tool results, for services that accept only text and images there.
pub(crate) fn check_results(request: &ChatRequest, refused: &mut Vec<Unsupported>) {
    for (at, turn) in request.transcript.iter().enumerate() {
        let contents = turn.results().iter().map(|result| &result.outcome.content);
        for part in contents.flat_map(parts) {
            let what = match part.kind {
                PartKind::Audio(_) => "audio in a tool result",
                PartKind::File(_) => "a document in a tool result",
                _ => continue,
            };
            refused.push(Unsupported::new(what).at(at));
        }
    }
}

/// The entry for a tool whose input schema has an unsupported property.
pub(crate) fn input_schema(tool: &ToolSpec, property: impl fmt::Display) -> Unsupported {
    let what = format!("the input schema of tool `{}`: {property}", tool.name);
    Unsupported::new(what)
}

/// Describes a request that would be sent without any message.
pub(crate) const NO_CONTENT: &str = "a conversation without content";

/// Lists the properties of a request that are invalid for every service. `theirs` are the tools that
/// the service defines itself, which are available in addition to those of the request.
pub(crate) fn invalid(request: &ChatRequest, model: &str, theirs: &[Value]) -> Vec<Unsupported> {
    let mut refused = Vec::new();
    let mut no = |what: Str| refused.push(Unsupported::new(what));
    let options = &*request.options;
    if model.is_empty() {
        no("an empty model name".into());
    }
    let (mut names, mut twice) = (HashSet::new(), HashSet::new());
    for name in request.tools.iter().map(|tool| &tool.name) {
        if !names.insert(name.as_str()) && twice.insert(name.as_str()) {
            no(format!("two tools named `{name}`").into());
        }
    }
    // The names of tools that replace the request's are not known.
    if !options.provider.contains_key("tools") {
        names.extend(theirs.iter().filter_map(|tool| tool.get("name")?.as_str()));
        match &options.tool_choice {
            Some(ToolChoice::Required) if request.tools.is_empty() && theirs.is_empty() => {
                no("a forced tool call without tools".into());
            }
            Some(ToolChoice::Tool(name)) if !names.contains(name.as_str()) => {
                no(format!("a forced call of `{name}`, which is not among the tools").into());
            }
            _ => {}
        }
    }
    for (number, name) in [
        (options.temperature, "temperature"),
        (options.top_p, "`top_p`"),
        (options.frequency_penalty, "frequency penalty"),
        (options.presence_penalty, "presence penalty"),
    ] {
        if number.is_some_and(|number| !number.is_finite()) {
            no(format!("a {name} that is not a number").into());
        }
    }
    refused
}

/// The error for a request that uses unsupported features.
pub(crate) fn refused(model: &str, unsupported: &[Unsupported]) -> Error {
    // Bounds the message, since each part of a request may add an entry.
    const NAMED: usize = 16;
    let named = unsupported.iter().take(NAMED);
    let all: Vec<String> = named.map(ToString::to_string).collect();
    let of = match model {
        "" => String::new(),
        model => format!(" for `{}`", model.escape_debug()),
    };
    let all = all.join(", ");
    let mut what = format!("the request{of} was not sent: the provider does not support {all}");
    match unsupported.len().saturating_sub(NAMED) {
        0 => {}
        more => what.push_str(&format!(", and {more} more")),
    }
    Error::new(ErrorKind::InvalidRequest, what).with_code("unsupported")
}
