//! Serialization of a [`ChatRequest`](concentric_core::ChatRequest) for chat completions.
//!
//! The serialized data are borrowed from the request, except for rewritten schemas.

mod content;
mod message;

#[cfg(any(feature = "activities", feature = "responses"))]
pub(crate) use self::content::DataUrl;

use self::message::Messages;
use super::{chat::Chat, profile::Prefill, schema};
use crate::{
    api::Call,
    fields::{Fields, One, Typed, is_empty_list},
    functions,
    schema::Node,
};
use concentric_core::{OutputSchema, ToolChoice};
use serde::{
    Serialize, Serializer,
    ser::{Error, SerializeMap},
};
use serde_json::{Map, Value, json};

/// The body of a call.
pub(super) struct Wire<'a> {
    pub(super) call: Call<'a>,
    pub(super) api: &'a Chat,
}

impl<'a> Wire<'a> {
    fn messages(&self) -> Messages<'a> {
        let Chat { profile, provider } = self.api;
        Messages::new(self.call.request, profile, provider)
    }

    /// Whether there is a message to send.
    pub(super) fn has_messages(&self) -> bool {
        self.call.request.options.provider.contains_key("messages")
            || !is_empty_list(&self.messages())
    }
}

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { call, api } = self;
        let (request, profile) = (call.request, &api.profile);
        let options = &*request.options;
        let mut fields = Fields {
            map: serializer.serialize_map(None)?,
            replaced: &options.provider,
        };
        fields.put("model", call.model)?;
        let messages = self.messages();
        fields.put("messages", &messages)?;
        if profile.prefill == Prefill::Continue && messages.ends_open() {
            fields.put("continue_final_message", &true)?;
            fields.put("add_generation_prompt", &false)?;
        }
        fields.put("stream", &call.streaming)?;
        if call.streaming && profile.stream_options {
            fields.put("stream_options", &One("include_usage", true))?;
        }
        // Without a tool choice, the only way to disable calls is to omit the tools.
        let may_call =
            profile.capabilities.tool_choice || options.tool_choice != Some(ToolChoice::None);
        if !request.tools.is_empty() && may_call {
            let tools = functions::tools(
                &request.tools,
                match profile.strict_subset {
                    true => |schema| Ok(schema::parameters(schema)),
                    false => |schema| Ok(Node::Kept(schema)),
                },
            );
            fields.put("tools", &tools.map_err(S::Error::custom)?)?;
            // The service rejects these two fields without tools.
            let choice = options.tool_choice.as_ref().map(|choice| {
                functions::choice(
                    choice,
                    profile.required,
                    |name| json!({ "type": "function", "function": { "name": name } }),
                )
            });
            fields.put_some("tool_choice", choice.as_ref())?;
            fields.put_some("parallel_tool_calls", options.parallel_tool_calls.as_ref())?;
        }
        let output = options.output_schema.as_ref();
        let format = output.map(|output| {
            let format = Format::new(output, profile.strict_subset);
            Typed::new("json_schema", One("json_schema", format))
        });
        fields.put_some("response_format", format.as_ref())?;
        fields.put_some(profile.max_tokens, options.max_output_tokens.as_ref())?;
        fields.put_some("temperature", options.temperature.as_ref())?;
        fields.put_some("top_p", options.top_p.as_ref())?;
        fields.put_some("frequency_penalty", options.frequency_penalty.as_ref())?;
        fields.put_some("presence_penalty", options.presence_penalty.as_ref())?;
        if !options.stop.is_empty() {
            fields.put("stop", &options.stop)?;
        }
        fields.put_some(profile.seed, options.seed.as_ref())?;
        fields.put_some("reasoning_effort", options.reasoning_effort.as_ref())?;
        if profile.metadata && !options.metadata.is_empty() {
            fields.put("metadata", &Metadata(&options.metadata))?;
        }
        fields.end()
    }
}

/// An output schema.
#[derive(Serialize)]
pub(crate) struct Format<'a> {
    name: &'a str,
    schema: Node<'a>,
    strict: bool,
}

impl<'a> Format<'a> {
    /// `in_subset` means that the service accepts only a subset of JSON Schema with `strict`.
    pub(crate) fn new(output: &'a OutputSchema, in_subset: bool) -> Self {
        let (schema, strict) = schema::output(output, in_subset);
        Self {
            name: &output.name,
            schema,
            strict,
        }
    }
}

/// Metadata, whose values must be strings.
pub(crate) struct Metadata<'a>(pub(crate) &'a Map<String, Value>);

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            match value {
                Value::String(text) => map.serialize_entry(name, text)?,
                value => map.serialize_entry(name, &value.to_string())?,
            }
        }
        map.end()
    }
}
