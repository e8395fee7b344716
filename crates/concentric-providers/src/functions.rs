//! Tools in the format of chat completions, which other APIs share.

use crate::schema::Node;
use concentric_core::{ChatRequest, Str, ToolChoice};
use serde::{
    Serialize, Serializer,
    ser::{Error as _, SerializeSeq},
};
use serde_json::Value;

/// Converts a schema for a service, or describes a property that cannot be expressed.
type Parameters<'a> = fn(&'a Value) -> Result<Node<'a>, &'static str>;

/// The tools, with converted schemas.
pub(crate) struct Tools<'a> {
    request: &'a ChatRequest,
    parameters: Parameters<'a>,
}

impl<'a> Tools<'a> {
    pub(crate) const fn new(request: &'a ChatRequest, parameters: Parameters<'a>) -> Self {
        Self {
            request,
            parameters,
        }
    }
}

impl Serialize for Tools<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tools = &self.request.tools;
        let mut seq = serializer.serialize_seq(Some(tools.len()))?;
        for spec in tools {
            seq.serialize_element(&Tool {
                r#type: "function",
                function: Function {
                    name: &spec.name,
                    description: &spec.description,
                    parameters: (self.parameters)(&spec.input_schema).map_err(S::Error::custom)?,
                },
            })?;
        }
        seq.end()
    }
}

/// A tool choice. `named` is the form of a forced call of one tool.
pub(crate) fn choice(choice: &ToolChoice, required: &str, named: fn(&Str) -> Value) -> Value {
    match choice {
        ToolChoice::None => "none".into(),
        ToolChoice::Required => required.into(),
        ToolChoice::Tool(name) => named(name),
        _ => "auto".into(),
    }
}

#[derive(Serialize)]
struct Tool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    parameters: Node<'a>,
}
