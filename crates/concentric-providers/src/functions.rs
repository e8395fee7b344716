//! Tools in the format of chat completions, which other APIs share.

use crate::{
    fields::{One, Typed},
    schema::Node,
};
use concentric_core::{Str, ToolChoice, ToolSpec, ToolSpecs};
use serde::Serialize;
use serde_json::Value;

/// The tools, with their schemas converted by `parameters`.
pub(crate) fn tools<'a>(
    tools: &'a ToolSpecs,
    parameters: fn(&'a Value) -> Result<Node<'a>, &'static str>,
) -> Result<Vec<impl Serialize + 'a>, &'static str> {
    let tools = tools.iter().map(|spec| {
        let function = Function::new(spec, parameters(&spec.input_schema)?, None);
        Ok(Typed::new("function", One("function", function)))
    });
    tools.collect()
}

#[derive(Serialize)]
pub(crate) struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    parameters: Node<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

impl<'a> Function<'a> {
    pub(crate) fn new(spec: &'a ToolSpec, parameters: Node<'a>, strict: Option<bool>) -> Self {
        Self {
            name: &spec.name,
            description: &spec.description,
            parameters,
            strict,
        }
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
