//! Serialization of a [`ChatRequest`] for `/api/chat` and `/api/generate`.
//!
//! The serialized data are borrowed from the request.

use super::{
    api::{Endpoint, Ollama},
    message::{Messages, images, user_text},
    schema,
};
use crate::{
    api::Call,
    fields::{Fields, unless_empty},
    functions,
    schema::Budget,
};
use concentric_core::{ChatOptions, ToolChoice};
use serde::{
    Serialize, Serializer,
    ser::{Error, SerializeMap},
};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The supported reasoning efforts.
pub(super) const EFFORTS: [&str; 5] = ["none", "low", "medium", "high", "max"];

/// The body of a call.
pub(super) struct Wire<'a> {
    pub(super) call: Call<'a>,
    pub(super) api: &'a Ollama,
}

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let call = self.call;
        let request = call.request;
        let options = &*request.options;
        // The options of the request and the provider options are merged into one object.
        let replaced = match options.provider.contains_key("options") {
            false => Cow::Borrowed(&options.provider),
            true => {
                let mut replaced = options.provider.clone();
                replaced.remove("options");
                Cow::Owned(replaced)
            }
        };
        let mut fields = Fields {
            map: serializer.serialize_map(None)?,
            replaced: &replaced,
        };
        fields.put("model", call.model)?;
        match self.api.endpoint {
            Endpoint::Chat => {
                fields.put("messages", &Messages::new(request, &self.api.provider))?
            }
            Endpoint::Generate => {
                let parts = request.transcript.iter().next();
                let parts = parts.map_or(&[][..], |turn| &turn.as_message().parts);
                fields.put("prompt", &*user_text(parts))?;
                let images = images(parts);
                if !images.is_empty() {
                    fields.put("images", &images)?;
                }
                if !request.system.is_empty() {
                    fields.put("system", &request.system.text())?;
                }
            }
        }
        fields.put("stream", &call.streaming)?;
        // The only way to disable calls is to omit the tools.
        let may_call = options.tool_choice != Some(ToolChoice::None);
        if !request.tools.is_empty() && may_call {
            // `check` has counted the size of all schemas.
            let tools = functions::tools(&request.tools, |schema| {
                schema::parameters(schema, &mut Budget::new())
            });
            fields.put("tools", &tools.map_err(S::Error::custom)?)?;
        }
        let format = options.output_schema.as_ref().map(|format| &format.schema);
        fields.put_some("format", format)?;
        match options.reasoning_effort.as_deref() {
            None => {}
            Some("none") => fields.put("think", &false)?,
            Some(effort) => fields.put("think", effort)?,
        }
        let theirs = options.provider.get("options");
        match theirs {
            None | Some(Value::Object(_)) => {
                let empty = Map::new();
                let theirs = theirs.and_then(Value::as_object).unwrap_or(&empty);
                if let Some(sampling) = unless_empty(&Sampling { options, theirs })? {
                    fields.map.serialize_entry("options", &sampling)?;
                }
            }
            Some(odd) => fields.map.serialize_entry("options", odd)?,
        }
        fields.end()
    }
}

/// The `options` object: the options of the request, and other parameters from the provider options
/// (`num_ctx`, `top_k`), which take precedence.
struct Sampling<'a> {
    options: &'a ChatOptions,
    theirs: &'a Map<String, Value>,
}

impl Serialize for Sampling<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let options = self.options;
        let mut fields = Fields {
            map: serializer.serialize_map(None)?,
            replaced: self.theirs,
        };
        fields.put_some("num_predict", options.max_output_tokens.as_ref())?;
        fields.put_some("temperature", options.temperature.as_ref())?;
        fields.put_some("top_p", options.top_p.as_ref())?;
        fields.put_some("frequency_penalty", options.frequency_penalty.as_ref())?;
        fields.put_some("presence_penalty", options.presence_penalty.as_ref())?;
        fields.put_some("seed", options.seed.as_ref())?;
        if !options.stop.is_empty() {
            fields.put("stop", &options.stop)?;
        }
        fields.end()
    }
}
