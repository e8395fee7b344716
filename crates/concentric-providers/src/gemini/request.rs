//! Serialization of a [`ChatRequest`](concentric_core::ChatRequest) for `generateContent`.
//!
//! The serialized data are borrowed from the request.

mod contents;
mod schema;

use self::contents::Contents;
use super::family::Family;
use crate::{
    Unsupported,
    api::Call,
    capabilities::{NO_CONTENT, input_schema},
    fields::{Fields, One, unless_empty},
    schema::Budget,
};
use concentric_core::{ChatOptions, Str, ToolChoice, ToolSpec};
use serde::{
    Serialize, Serializer,
    ser::{Error as _, SerializeMap},
};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// The body of a call.
pub(super) struct Wire<'a> {
    call: Call<'a>,
    provider: &'a Str,
    family: Family,
}

impl<'a> Wire<'a> {
    pub(super) fn new(call: Call<'a>, provider: &'a Str) -> Self {
        Self {
            call,
            provider,
            family: Family::of(call.model),
        }
    }

    fn options(&self) -> &'a ChatOptions {
        &self.call.request.options
    }

    /// The fields of `name` in the request's provider options, if it is an object.
    fn theirs(&self, name: &str) -> Option<&'a Map<String, Value>> {
        self.options().provider.get(name)?.as_object()
    }
}

/// Adds the features that `wire` uses and the service does not support.
pub(super) fn check(wire: &Wire<'_>, unsupported: &mut Vec<Unsupported>) {
    let Wire { call, family, .. } = wire;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/@:".contains(c);
    if call.model.contains("..") || !call.model.chars().all(is_plain) {
        let what = "a model name with characters other than letters, digits and `._-/@:`";
        unsupported.push(Unsupported::new(what));
    }
    let options = wire.options();
    let mut budget = Budget::new();
    for tool in &call.request.tools {
        if !contents::NAMES.fits(&tool.name) {
            let what = format!("a tool named `{}`", tool.name.escape_debug());
            unsupported.push(Unsupported::new(what));
        }
        if let Err(what) = schema::adapt(&tool.input_schema, *family, &mut budget) {
            unsupported.push(input_schema(tool, what));
        }
    }
    let mut no = |what: String| unsupported.push(Unsupported::new(what));
    if let Some(output) = &options.output_schema
        && let Err(what) = schema::adapt(&output.schema, *family, &mut budget)
    {
        no(format!("the output schema `{}`: {what}", output.name));
    }
    if options
        .seed
        .is_some_and(|seed| i32::try_from(seed).is_err())
    {
        no("a seed of more than 32 bits".to_owned());
    }
    if let Some(effort) = &options.reasoning_effort
        && family.thinks()
        && thinking(effort, *family).is_none()
    {
        no(format!("the reasoning effort `{effort}`"));
    }
    if !contents::has_content(call.request, wire.provider) {
        no(NO_CONTENT.to_owned());
    }
}

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = self.call.request;
        let options = self.options();
        let mut replaced = Cow::Borrowed(&options.provider);
        for name in ["toolConfig", "generationConfig"] {
            // An object is merged with the generated fields; any other value replaces them.
            if self.theirs(name).is_some() {
                replaced.to_mut().remove(name);
            }
        }
        let mut fields = Fields {
            map: serializer.serialize_map(None)?,
            replaced: &replaced,
        };
        if !request.system.is_empty() {
            let segments = request.system.iter();
            let parts: Vec<_> = segments.map(|part| One("text", &part.text)).collect();
            fields.put("systemInstruction", &One("parts", parts))?;
        }
        fields.put(
            "contents",
            &Contents::new(request, self.provider, self.family),
        )?;
        if !request.tools.is_empty() {
            let family = self.family;
            let tools = request.tools.iter();
            let tools: Vec<_> = tools.map(|tool| Declaration { tool, family }).collect();
            fields.put("tools", &[One("functionDeclarations", tools)])?;
        }
        let tool_config = unless_empty(&ToolConfig(self))?;
        fields.put_some("toolConfig", tool_config.as_ref())?;
        let config = unless_empty(&Config(self))?;
        fields.put_some("generationConfig", config.as_ref())?;
        fields.end()
    }
}

struct Declaration<'a> {
    tool: &'a ToolSpec,
    family: Family,
}

impl Serialize for Declaration<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tool, family } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &tool.name)?;
        if !tool.description.is_empty() {
            map.serialize_entry("description", &tool.description)?;
        }
        // `check` has counted the size of all schemas.
        let schema = schema::adapt(&tool.input_schema, *family, &mut Budget::new());
        let schema = schema.map_err(S::Error::custom)?;
        if family.takes_json_schema() {
            map.serialize_entry("parametersJsonSchema", &schema)?;
        } else if schema
            .as_object()
            .and_then(|schema| schema.get("properties")?.as_object())
            .is_some_and(|properties| !properties.is_empty())
        {
            // The service rejects an object without properties; a function without parameters has
            // no field.
            map.serialize_entry("parameters", &schema)?;
        }
        map.end()
    }
}

struct ToolConfig<'a>(&'a Wire<'a>);

impl Serialize for ToolConfig<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let wire = self.0;
        let none = Map::new();
        let mut fields = Fields {
            map: serializer.serialize_map(None)?,
            replaced: wire.theirs("toolConfig").unwrap_or(&none),
        };
        let choice = wire.options().tool_choice.as_ref();
        // The service rejects the field without tools.
        let choice = choice.filter(|_| !wire.call.request.tools.is_empty());
        fields.put_some("functionCallingConfig", choice.map(calling).as_ref())?;
        fields.end()
    }
}

fn calling(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::None => json!({ "mode": "NONE" }),
        ToolChoice::Required => json!({ "mode": "ANY" }),
        ToolChoice::Tool(name) => json!({ "mode": "ANY", "allowedFunctionNames": [name] }),
        _ => json!({ "mode": "AUTO" }),
    }
}

struct Config<'a>(&'a Wire<'a>);

impl Serialize for Config<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Wire { family, .. } = self.0;
        let options = self.0.options();
        let none = Map::new();
        let mut fields = Fields {
            map: serializer.serialize_map(None)?,
            replaced: self.0.theirs("generationConfig").unwrap_or(&none),
        };
        if let Some(output) = &options.output_schema {
            let schema = schema::adapt(&output.schema, *family, &mut Budget::new());
            let schema = schema.map_err(S::Error::custom)?;
            let field = match family.takes_json_schema() {
                true => "responseJsonSchema",
                false => "responseSchema",
            };
            fields.put("responseMimeType", "application/json")?;
            fields.put(field, &schema)?;
        }
        fields.put_some("maxOutputTokens", options.max_output_tokens.as_ref())?;
        fields.put_some("temperature", options.temperature.as_ref())?;
        fields.put_some("topP", options.top_p.as_ref())?;
        fields.put_some("frequencyPenalty", options.frequency_penalty.as_ref())?;
        fields.put_some("presencePenalty", options.presence_penalty.as_ref())?;
        if !options.stop.is_empty() {
            fields.put("stopSequences", &options.stop)?;
        }
        fields.put_some("seed", options.seed.as_ref())?;
        let effort = options.reasoning_effort.as_deref();
        let thinking = effort.and_then(|effort| thinking(effort, *family));
        fields.put_some("thinkingConfig", thinking.as_ref())?;
        fields.end()
    }
}

/// Converts `effort` for a model of `family`; `None` if it is not supported.
fn thinking(effort: &str, family: Family) -> Option<Value> {
    let word = effort.to_ascii_lowercase();
    let budget: i64 = match (effort.parse(), &*word) {
        (Ok(budget), _) => budget,
        (_, "none") => 0,
        _ if family.takes_level() => {
            let level = effort.to_ascii_uppercase();
            return Some(json!({ "thinkingLevel": level, "includeThoughts": true }));
        }
        // The values of Google's OpenAI endpoint.
        (_, "minimal" | "low") => 1024,
        (_, "medium") => 8192,
        (_, "high") => 24_576,
        _ => return None,
    };
    match budget {
        // Thinking cannot be disabled for these models.
        0 if family.takes_level() => None,
        0 => Some(json!({ "thinkingBudget": 0 })),
        budget => Some(json!({ "thinkingBudget": budget, "includeThoughts": true })),
    }
}
