//! The arguments of a call: from the model's own bytes to a value of the tool's type.

mod schema;
mod strict;
mod validate;

pub(crate) use self::{schema::generate, validate::Validator};

use crate::overlong::short;
use concentric_core::{Arguments, ToolCallPart, ToolOutcome};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

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
    /// The schema that the model was shown; `None` if every object is valid by it.
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
        decode(text).map_err(|error| invalid(call, &explain::<A>(text, &error)))
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

/// Reads a value that is valid by its schema. For a schema `1.0` is an integer, for serde it is not.
///
/// # Errors
///
/// It is not a `T`.
pub(crate) fn decode<T>(text: &str) -> Result<T, serde_json::Error>
where
    T: DeserializeOwned,
{
    serde_json::from_str(text).or_else(|error| {
        let mut value = serde_json::from_str(text)?;
        match integral(&mut value) {
            true => T::deserialize(value).map_err(|_| error),
            false => Err(error),
        }
    })
}

/// Writes whole numbers such as `1.0` as integers. Returns whether there was one.
fn integral(value: &mut Value) -> bool {
    // Above this, not every integer is a float.
    const MAX: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) if !number.is_i64() && !number.is_u64() => {
            let whole = number
                .as_f64()
                .filter(|n| n.fract() == 0.0 && n.abs() <= MAX);
            whole.is_some_and(|whole| {
                *value = Value::from(whole as i64);
                true
            })
        }
        Value::Array(items) => items
            .iter_mut()
            .fold(false, |any, item| integral(item) | any),
        Value::Object(fields) => fields
            .values_mut()
            .fold(false, |any, field| integral(field) | any),
        _ => false,
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
