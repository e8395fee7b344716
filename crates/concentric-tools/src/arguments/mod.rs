//! The arguments of a call: from the model's own bytes to a value of the tool's type.

mod schema;
mod strict;
mod validate;

pub(crate) use self::{schema::generate, validate::Validator};

use crate::overlong::short;
use concentric_core::{Arguments, ToolCallPart, ToolOutcome};
use serde::{Deserialize, de::DeserializeOwned};

/// The arguments of a tool that takes none.
///
/// ```
/// use concentric_tools::{NoArguments, tool};
///
/// let now = tool("now", "Tells the time.", |NoArguments {}| async { "noon" });
/// assert_eq!(now.spec().input_schema["type"], "object");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
pub struct NoArguments {}

/// What arguments are checked against before they are decoded.
#[derive(Clone, Debug)]
pub(crate) struct Checks {
    /// What serde does not enforce.
    pub(crate) validator: Option<Validator>,
    /// How many bytes they may have.
    pub(crate) max_bytes: usize,
}

impl Checks {
    /// Reads the arguments of `call`, once they are known to be sound.
    ///
    /// # Errors
    ///
    /// They are not; the outcome tells the model where and why.
    pub(crate) fn decode<A>(&self, call: &ToolCallPart) -> Result<A, ToolOutcome>
    where
        A: DeserializeOwned,
    {
        let text = self.check(call)?;
        serde_json::from_str(text).map_err(|error| invalid(call, &explain::<A>(text, &error)))
    }

    /// The text of the arguments, once they are known to be sound.
    ///
    /// # Errors
    ///
    /// They are not; the outcome tells the model where and why.
    pub(crate) fn check<'a>(&self, call: &'a ToolCallPart) -> Result<&'a str, ToolOutcome> {
        let text = text(&call.arguments);
        if text.len() > self.max_bytes {
            let max = self.max_bytes;
            return Err(invalid(call, &format!("they are longer than {max} bytes")));
        }
        // A pass of its own, since serde looks at the keys that a type has, and at the depth of
        // what it keeps: an approval must be about what runs, whoever reads it.
        strict::check(text).map_err(|error| invalid(call, &malformed(&error)))?;
        if !text.starts_with('{') {
            // serde would take an array's items for a struct's fields.
            return Err(invalid(call, "they are not a JSON object"));
        }
        if let Some(validator) = &self.validator {
            validator.check(text).map_err(|why| invalid(call, &why))?;
        }
        Ok(text)
    }
}

/// The same arguments, `{}` if the model wrote nothing.
pub(crate) fn normal(arguments: &Arguments) -> Arguments {
    match text(arguments) {
        text if text == arguments.as_str() => arguments.clone(),
        text => Arguments::new(text),
    }
}

/// What the model wrote; `{}` if it wrote nothing, which some models do for no arguments.
fn text(arguments: &Arguments) -> &str {
    match arguments.as_str().trim_ascii() {
        "" | "null" => "{}",
        text => text,
    }
}

fn invalid(call: &ToolCallPart, why: &str) -> ToolOutcome {
    const MAX: usize = 2048;
    let name = &call.name;
    ToolOutcome::failed(format!(
        "The arguments of `{name}` are invalid, and it was not run: {}",
        short(why, MAX)
    ))
}

fn malformed(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    if error.is_eof() {
        return format!("the JSON is cut short, at line {line} column {column}");
    }
    let text = error.to_string();
    if text.starts_with("recursion limit exceeded") {
        format!("they are nested deeper than 127 levels, at line {line} column {column}")
    } else if text.starts_with("trailing characters") {
        format!("something follows the end of the JSON, at line {line} column {column}")
    } else if error.is_data() {
        text
    } else {
        format!("they are not JSON: {text}")
    }
}

/// Names the field that does not fit; only worked out once one does not.
fn explain<A>(text: &str, error: &serde_json::Error) -> String
where
    A: DeserializeOwned,
{
    let json = &mut serde_json::Deserializer::from_str(text);
    let Err(error_at) = serde_path_to_error::deserialize::<_, A>(json) else {
        return error.to_string();
    };
    let path = error_at.path().to_string();
    if path == "." {
        error.to_string()
    } else {
        format!("`{path}`: {}", error_at.inner())
    }
}
