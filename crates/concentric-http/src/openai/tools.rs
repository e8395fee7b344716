//! Tools and output formats of requests, of both APIs.

use std::{collections::HashSet, fmt, sync::Arc};

use concentric_core::{OutputSchema, Str, ToolChoice, ToolSpec, ToolSpecs};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Value, json};

use crate::{policy::ClientPolicy, refused::Refused};

/// A tool that the client executes. Its fields are in `function` in chat completions.
#[derive(Deserialize)]
pub(super) struct Tool {
    r#type: Str,
    function: Option<Function>,
    name: Option<Str>,
    description: Option<Str>,
    parameters: Option<Value>,
}

#[derive(Deserialize)]
struct Function {
    name: Str,
    description: Option<Str>,
    parameters: Option<Value>,
}

/// Converts and checks the client's tools.
pub(super) fn specs(tools: Vec<Tool>, policy: &ClientPolicy) -> Result<ToolSpecs, Refused> {
    policy.check_tools(tools.len())?;
    let mut specs = ToolSpecs::default();
    let mut names = HashSet::new();
    for (at, tool) in tools.into_iter().enumerate() {
        let field = format!("tools[{at}]");
        if tool.r#type != "function" {
            let problem = format!("tools of type `{}` are not available", tool.r#type);
            return Err(Refused::field(&format!("{field}.type"), &problem));
        }
        let (
            field,
            Function {
                name,
                description,
                parameters,
            },
        ) = match (tool.function, tool.name) {
            (Some(function), _) => (format!("{field}.function"), function),
            (None, Some(name)) => {
                let (description, parameters) = (tool.description, tool.parameters);
                (
                    field,
                    Function {
                        name,
                        description,
                        parameters,
                    },
                )
            }
            (None, None) => return Err(Refused::field(&format!("{field}.name"), "missing field")),
        };
        let description = description.unwrap_or_default();
        policy.check_tool(&field, &name, &description, parameters.as_ref())?;
        if name.is_empty() {
            return Err(Refused::field(
                &format!("{field}.name"),
                "a tool needs a name",
            ));
        }
        if !names.insert(name.clone()) {
            let problem = format!("two tools are named `{name}`");
            return Err(Refused::field(&format!("{field}.name"), &problem));
        }
        let schema = match parameters {
            None | Some(Value::Null) => json!({"type": "object", "properties": {}}),
            Some(schema @ Value::Object(_)) => schema,
            Some(_) => {
                let problem = "expected a JSON Schema of an object";
                return Err(Refused::field(&format!("{field}.parameters"), problem));
            }
        };
        specs.push(Arc::new(ToolSpec::new(name, description, schema)));
    }
    Ok(specs)
}

/// The field `tool_choice`.
pub(super) struct Choice(pub(super) ToolChoice);

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoiceVisitor;

        #[derive(Deserialize)]
        struct Fields {
            r#type: Str,
            function: Option<Named>,
            name: Option<Str>,
        }

        #[derive(Deserialize)]
        struct Named {
            name: Str,
        }

        impl<'de> Visitor<'de> for ChoiceVisitor {
            type Value = Choice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`none`, `auto`, `required` or a function")
            }

            fn visit_str<E: de::Error>(self, choice: &str) -> Result<Choice, E> {
                match choice {
                    "none" => Ok(Choice(ToolChoice::None)),
                    "auto" => Ok(Choice(ToolChoice::Auto)),
                    "required" => Ok(Choice(ToolChoice::Required)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(choice), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Choice, A::Error> {
                let choice = Fields::deserialize(MapAccessDeserializer::new(map))?;
                let named = choice
                    .function
                    .map(|function| function.name)
                    .or(choice.name);
                match named.filter(|_| choice.r#type == "function") {
                    Some(name) => Ok(Choice(ToolChoice::Tool(name))),
                    None => Err(de::Error::custom("expected the choice of a function")),
                }
            }
        }

        deserializer.deserialize_any(ChoiceVisitor)
    }
}

/// Checks the choice of a tool. A choice that forces a call applies to the client's tools only: those of an agent are
/// not known to the client.
pub(super) fn chosen(
    choice: Option<Choice>,
    tools: &ToolSpecs,
) -> Result<Option<ToolChoice>, Refused> {
    let problem = match &choice {
        Some(Choice(ToolChoice::Tool(name))) if tools.get(name).is_none() => {
            format!("`tools` has no tool of the name `{name}`")
        }
        Some(Choice(ToolChoice::Required)) if tools.is_empty() => {
            "`required` needs a tool in `tools`".to_owned()
        }
        _ => return Ok(choice.map(|Choice(choice)| choice)),
    };
    Err(Refused::field("tool_choice", &problem))
}

/// The format of the answer. The schema's fields are in `json_schema` in chat completions.
#[derive(Deserialize)]
pub(super) struct Format {
    r#type: FormatType,
    json_schema: Option<Schema>,
    name: Option<Str>,
    schema: Option<Value>,
    strict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum FormatType {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Deserialize)]
struct Schema {
    name: Option<Str>,
    schema: Option<Value>,
    strict: Option<bool>,
}

impl Format {
    /// Whether the answer is an object without a schema.
    pub(super) const fn is_any_object(&self) -> bool {
        matches!(self.r#type, FormatType::JsonObject)
    }

    /// The schema of the answer, if it must have one; `field` is the format's field.
    pub(super) fn schema(self, field: &str) -> Result<Option<OutputSchema>, Refused> {
        match self.r#type {
            FormatType::Text => return Ok(None),
            FormatType::JsonObject => {
                let mut object = OutputSchema::new("object", json!({"type": "object"}));
                object.strict = false;
                return Ok(Some(object));
            }
            FormatType::JsonSchema => {}
        }
        let (field, schema) = match self.json_schema {
            Some(schema) => (format!("{field}.json_schema"), schema),
            None => {
                let (name, schema, strict) = (self.name, self.schema, self.strict);
                (
                    field.to_owned(),
                    Schema {
                        name,
                        schema,
                        strict,
                    },
                )
            }
        };
        let Some(json @ Value::Object(_)) = schema.schema else {
            let problem = "expected a JSON Schema of an object";
            return Err(Refused::field(&format!("{field}.schema"), problem));
        };
        let name = schema.name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Refused::field(&format!("{field}.name"), "missing field"))?;
        let mut output = OutputSchema::new(name, json);
        output.strict = schema.strict.unwrap_or(false);
        Ok(Some(output))
    }
}
