//! Serialization of a [`ChatRequest`](concentric_core::ChatRequest) for Responses.
//!
//! The serialized data are borrowed from the request, except for rewritten schemas.

mod content;
mod input;
mod output;

use super::Compat;
use crate::{
    Unsupported,
    api::Call,
    capabilities::NO_CONTENT,
    fields::{Fields, Typed, is_empty_list},
    functions::{self, Function},
    history,
    openai::{Format, Metadata, schema},
};
use concentric_core::{ChatOptions, PartKind};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, json};

/// The body of a call.
pub(super) struct Wire<'a> {
    pub(super) call: Call<'a>,
    pub(super) compat: &'a Compat,
}

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { call, compat } = self;
        let request = call.request;
        let options = &*request.options;
        let provider = &options.provider;
        let mut fields = Fields {
            map: serializer.serialize_map(None)?,
            replaced: provider,
        };
        fields.put("model", call.model)?;
        let system = &request.system;
        let in_input = input::has_breakpoints(options);
        if !system.is_empty() && !in_input {
            fields.put("instructions", &system.text())?;
        }
        fields.put("input", &input::Input::new(request, compat, in_input))?;
        fields.put("stream", &call.streaming)?;
        fields.put("store", &false)?;
        if !is_stored(options) && reasons(call.model) {
            fields.put("include", &["reasoning.encrypted_content"])?;
        }
        if !request.tools.is_empty() {
            let tools = request.tools.iter().map(|spec| {
                let schema = &spec.input_schema;
                let strict = match compat.strict_tools {
                    true => schema::strict(schema),
                    false => None,
                };
                let is_strict = Some(strict.is_some());
                let schema = strict.unwrap_or_else(|| schema::parameters(schema));
                Typed::new("function", Function::new(spec, schema, is_strict))
            });
            let tools: Vec<_> = tools.collect();
            fields.put("tools", &tools)?;
            let choice = options.tool_choice.as_ref().map(|choice| {
                functions::choice(
                    choice,
                    "required",
                    |name| json!({ "type": "function", "name": name }),
                )
            });
            fields.put_some("tool_choice", choice.as_ref())?;
            fields.put_some("parallel_tool_calls", options.parallel_tool_calls.as_ref())?;
        }
        fields.put_some("max_output_tokens", options.max_output_tokens.as_ref())?;
        fields.put_some("temperature", options.temperature.as_ref())?;
        fields.put_some("top_p", options.top_p.as_ref())?;
        // Rejected by `check`, unless the configured capabilities allow them.
        fields.put_some("frequency_penalty", options.frequency_penalty.as_ref())?;
        fields.put_some("presence_penalty", options.presence_penalty.as_ref())?;
        fields.put_some("seed", options.seed.as_ref())?;
        if !options.stop.is_empty() {
            fields.put("stop", &options.stop)?;
        }
        if compat.metadata && !options.metadata.is_empty() {
            fields.put("metadata", &Metadata(&options.metadata))?;
        }
        let format = options.output_schema.as_ref();
        let format = format.map(|output| Typed::new("json_schema", Format::new(output, true)));
        let text = Beside::new("format", format.as_ref(), provider.get("text"));
        let effort = options.reasoning_effort.as_ref();
        let reasoning = Beside::new("effort", effort, provider.get("reasoning"));
        if let Some(text) = &text {
            fields.map.serialize_entry("text", text)?;
        }
        if let Some(reasoning) = &reasoning {
            fields.map.serialize_entry("reasoning", reasoning)?;
        }
        for (name, value) in provider {
            if !matches!(&**name, "text" | "reasoning") {
                fields.map.serialize_entry(name, value)?;
            }
        }
        fields.map.end()
    }
}

/// Whether the service stores its responses, which can then be referenced by id.
fn is_stored(options: &ChatOptions) -> bool {
    options.provider.get("store") == Some(&Value::Bool(true))
}

/// Whether `model` may reason. OpenAI's other models reject a request for encrypted reasoning.
fn reasons(model: &str) -> bool {
    // Names of fine-tuned models contain the base model; names at gateways start with the vendor.
    let model = model.strip_prefix("ft:").unwrap_or(model);
    let model = model.strip_prefix("openai/").unwrap_or(model);
    !["gpt-3", "gpt-4", "chatgpt-4", "gpt-5-chat"]
        .iter()
        .any(|name| model.starts_with(name))
}

/// An object of the request with one generated field, unless the provider options contain that
/// field.
struct Beside<'a, T> {
    name: &'static str,
    ours: Option<&'a T>,
    theirs: Option<&'a Value>,
}

impl<'a, T> Beside<'a, T> {
    fn new(name: &'static str, ours: Option<&'a T>, theirs: Option<&'a Value>) -> Option<Self> {
        (ours.is_some() || theirs.is_some()).then_some(Self { name, ours, theirs })
    }
}

impl<T: Serialize> Serialize for Beside<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let none = Map::new();
        let replaced = match self.theirs {
            Some(Value::Object(theirs)) => theirs,
            Some(other) => return other.serialize(serializer),
            None => &none,
        };
        let mut fields = Fields {
            map: serializer.serialize_map(None)?,
            replaced,
        };
        fields.put_some(self.name, self.ours)?;
        fields.end()
    }
}

/// Adds the features that `call` uses and the service does not support.
pub(super) fn check(call: &Call<'_>, compat: &Compat, unsupported: &mut Vec<Unsupported>) {
    let request = call.request;
    let options = &*request.options;
    let elsewhere = ["input", "prompt", "previous_response_id", "conversation"];
    let is_elsewhere = |name: &&str| options.provider.contains_key(*name);
    let in_input = input::has_breakpoints(options);
    let input = input::Input::new(request, compat, in_input);
    if !elsewhere.iter().any(is_elsewhere) && is_empty_list(&input) {
        unsupported.push(Unsupported::new(NO_CONTENT));
    }
    for (at, turn) in request.transcript.iter().enumerate() {
        let contents = turn.results().iter().map(|result| &result.outcome.content);
        let mut parts = contents.flat_map(history::parts);
        if parts.any(|part| matches!(part.kind, PartKind::Audio(_))) {
            unsupported.push(Unsupported::new("audio in a tool result").at(at));
        }
    }
    // The restrictions of other services are not known.
    if compat.strict_tools {
        schema::check(request, 128, unsupported);
    }
}
