//! What a model can do, and what of a request it will not do.

use crate::api::Call;
use concentric_core::{
    ChatRequest, Error, ErrorKind, MediaSource, Message, PartKind, Role, Str, ToolChoice,
    ToolContent,
};
use serde_json::Value;
use std::{collections::HashSet, fmt};

/// What a model can do, by its provider's API.
///
/// A layer knows its API's; what one model of it can't do is for its
/// [`capabilities`](crate::ProviderLayer::capabilities) to say. What a request asks for beyond that,
/// [`check`](Self::check) lists; each call is checked before it is sent.
///
/// What a model has said itself is refused by none. An image, a sound or a document of its own is sent
/// in words where the service takes none from an assistant: `[image]`, `[sound]`, `[document]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a thing of its own, that a model can or can't do"
)]
pub struct Capabilities {
    /// Whether it calls tools.
    pub tools: bool,
    /// Whether it can be told to call a tool, or which.
    pub tool_choice: bool,
    /// Whether it can be told to make one call at a time, or several.
    pub parallel_tool_calls: bool,
    /// Whether a tool's result may hold images, of those it takes.
    pub images_in_results: bool,
    /// Whether it writes JSON of a schema.
    pub output_schema: bool,
    /// Whether it does so where it may call tools as well.
    pub output_schema_with_tools: bool,
    /// Which images it takes.
    pub images: Sources,
    /// Which sound it takes.
    pub audio: Sources,
    /// Which documents it takes.
    pub files: Sources,
    /// Whether it can be told how much to reason.
    pub reasoning_effort: bool,
    /// Whether it goes on with an assistant's message at the end.
    pub prefill: bool,
    /// `temperature`.
    pub temperature: bool,
    /// `top_p`.
    pub top_p: bool,
    /// `frequency_penalty` and `presence_penalty`.
    pub penalties: bool,
    /// `seed`.
    pub seed: bool,
    /// How many texts may end the answer.
    pub stop: usize,
}

/// Where the bytes of a medium may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sources {
    /// In the request.
    pub base64: bool,
    /// At a URL.
    pub url: bool,
    /// At the provider.
    pub id: bool,
}

impl Sources {
    /// Nowhere: the model does not take such media.
    pub const NONE: Self = Self {
        base64: false,
        url: false,
        id: false,
    };

    /// Anywhere.
    pub const ALL: Self = Self {
        base64: true,
        url: true,
        id: true,
    };

    /// In the request only.
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
    /// All that a request can ask for.
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

    /// Lists what `request` asks for that the model will not do.
    pub fn check(&self, request: &ChatRequest) -> Vec<Unsupported> {
        let mut refused = Vec::new();
        let mut no = |what: &'static str| refused.push(Unsupported::new(what));
        let options = &*request.options;
        let tools = !request.tools.is_empty();
        if tools && !self.tools {
            no("tools");
        }
        if tools && self.tools {
            let choice = options.tool_choice.as_ref();
            let forces =
                choice.is_some_and(|choice| !matches!(choice, ToolChoice::Auto | ToolChoice::None));
            if forces && !self.tool_choice {
                no("to be told to call a tool");
            }
            if options.parallel_tool_calls.is_some() && !self.parallel_tool_calls {
                no("to be told whether to make several tool calls at once");
            }
        }
        if options.output_schema.is_some() {
            if !self.output_schema {
                no("an output schema");
            } else if tools && !self.output_schema_with_tools {
                no("an output schema beside tools");
            }
        }
        let asked = [
            (
                options.reasoning_effort.is_some(),
                self.reasoning_effort,
                "a reasoning effort",
            ),
            (
                options.temperature.is_some(),
                self.temperature,
                "a temperature",
            ),
            (options.top_p.is_some(), self.top_p, "`top_p`"),
            (
                options.frequency_penalty.is_some(),
                self.penalties,
                "a frequency penalty",
            ),
            (
                options.presence_penalty.is_some(),
                self.penalties,
                "a presence penalty",
            ),
            (options.seed.is_some(), self.seed, "a seed"),
            (
                options.stop.len() > self.stop,
                false,
                "as many stop sequences",
            ),
        ];
        for (asked, can, what) in asked {
            if asked && !can {
                no(what);
            }
        }
        let turns = request.transcript.len();
        for (at, turn) in request.transcript.iter().enumerate() {
            let message = turn.as_message();
            self.check_message(message, at, &mut refused);
            let is_answer = message.role == Role::Assistant && turn.results().is_empty();
            if at + 1 == turns && is_answer && !self.prefill {
                refused.push(Unsupported::new("to go on with an assistant's message").at(at));
            }
            let results = turn.results().iter();
            let mut images = results.flat_map(|result| result.outcome.content.images());
            if images.any(|image| !self.images_in_results || !self.images.take(&image.source)) {
                refused.push(Unsupported::new("an image in a tool's result").at(at));
            }
        }
        refused
    }

    fn check_message(&self, message: &Message, at: usize, refused: &mut Vec<Unsupported>) {
        // What a model has said itself it is told as far as it can be.
        if message.role == Role::Assistant {
            return;
        }
        for part in &message.parts {
            let (medium, sources, what) = match &part.kind {
                PartKind::Image(image) => (image, self.images, "an image"),
                PartKind::Audio(sound) => (sound, self.audio, "sound"),
                PartKind::File(file) => (file, self.files, "a document"),
                _ => continue,
            };
            if sources.take(&medium.source) {
                continue;
            }
            let from = match medium.source {
                _ if sources == Sources::NONE => "",
                MediaSource::Url(_) => " at a URL",
                MediaSource::Id(_) => " under a provider's id",
                _ => " in the request",
            };
            refused.push(Unsupported::new(format!("{what}{from}")).at(at));
        }
    }
}

/// Something that a request asks for, and its model will not do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsupported {
    /// What it is.
    pub what: Str,
    /// In which turn of the transcript, from 0, if it is in one.
    pub turn: Option<usize>,
}

impl Unsupported {
    /// Creates something of the whole request.
    pub fn new(what: impl Into<Str>) -> Self {
        Self {
            what: what.into(),
            turn: None,
        }
    }

    /// Says in which turn it is.
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

/// Adds the sound and the documents in tools' results, where the service takes text and images only.
pub(crate) fn check_results(request: &ChatRequest, refused: &mut Vec<Unsupported>) {
    for (at, turn) in request.transcript.iter().enumerate() {
        let contents = turn.results().iter().map(|result| &result.outcome.content);
        let parts = contents.flat_map(|content| match content {
            ToolContent::Parts(parts) => parts.as_slice(),
            _ => &[],
        });
        for part in parts {
            let what = match part.kind {
                PartKind::Audio(_) => "sound in a tool's result",
                PartKind::File(_) => "a document in a tool's result",
                _ => continue,
            };
            refused.push(Unsupported::new(what).at(at));
        }
    }
}

/// What is missing of a request that would be sent without any message.
pub(crate) const NOTHING_SAID: &str = "a conversation in which nothing is said";

/// Lists what of `call` makes no sense to any service. `theirs` are the tools that the service defines
/// itself, and that it is told of besides the request's.
pub(crate) fn nonsense(call: &Call<'_>, theirs: &[Value]) -> Vec<Unsupported> {
    let mut refused = Vec::new();
    let mut no = |what: Str| refused.push(Unsupported::new(what));
    let request = call.request;
    let options = &*request.options;
    if call.model.is_empty() {
        no("a model without a name".into());
    }
    let (mut names, mut twice) = (HashSet::new(), HashSet::new());
    for name in request.tools.iter().map(|tool| &tool.name) {
        if !names.insert(name.as_str()) && twice.insert(name.as_str()) {
            no(format!("two tools named `{name}`").into());
        }
    }
    // What is offered instead is not known.
    if !options.provider.contains_key("tools") {
        names.extend(theirs.iter().filter_map(|tool| tool.get("name")?.as_str()));
        match &options.tool_choice {
            Some(ToolChoice::Required) if request.tools.is_empty() && theirs.is_empty() => {
                no("to be told to call a tool where there is none".into());
            }
            Some(ToolChoice::Tool(name)) if !names.contains(name.as_str()) => {
                no(format!("to be told to call `{name}`, which is not offered").into());
            }
            _ => {}
        }
    }
    let numbers = [
        (options.temperature, "a temperature that is not a number"),
        (options.top_p, "a `top_p` that is not a number"),
        (
            options.frequency_penalty,
            "a frequency penalty that is not a number",
        ),
        (
            options.presence_penalty,
            "a presence penalty that is not a number",
        ),
    ];
    for (number, what) in numbers {
        if number.is_some_and(|number| !number.is_finite()) {
            no(what.into());
        }
    }
    refused
}

/// The error of a request that asks for what a model will not do.
pub(crate) fn refused(model: &str, unsupported: &[Unsupported]) -> Error {
    // There may be one for each part of a request.
    const NAMED: usize = 16;
    let all: Vec<String> = unsupported
        .iter()
        .take(NAMED)
        .map(ToString::to_string)
        .collect();
    let of = match model {
        "" => String::new(),
        model => format!(" for `{}`", model.escape_debug()),
    };
    let all = all.join(", ");
    let mut what = format!("the request{of} was not sent: the provider does not take {all}");
    match unsupported.len().saturating_sub(NAMED) {
        0 => {}
        more => what.push_str(&format!(", and {more} more")),
    }
    Error::new(ErrorKind::InvalidRequest, what).with_code("unsupported")
}
