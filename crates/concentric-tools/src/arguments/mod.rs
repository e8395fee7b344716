//! Decoding and validation of a call's arguments.

mod plain;
mod schema;
mod strict;
mod validate;

pub(crate) use self::{schema::generate, validate::Validator};

use crate::truncation::short;
use concentric_core::{Arguments, ToolCallPart, ToolOutcome};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

/// The arguments of a tool that takes none.
///
/// ```
/// use concentric_tools::{NoArguments, tool};
///
/// let now = tool("now", "Returns the time.", |NoArguments {}| async { "noon" });
/// assert_eq!(now.spec().input_schema["type"], "object");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
pub struct NoArguments {}

/// The checks of arguments before they are decoded.
#[derive(Clone, Debug)]
pub(crate) struct Checks {
    /// The tool's schema; `None` if it accepts every object.
    pub(crate) validator: Option<Validator>,
    /// The limit of the arguments (bytes).
    pub(crate) max_bytes: usize,
}

/// Decodes the arguments of `call` after `checks`, which are `None` if the arguments have passed
/// them. Returns an outcome with the position and the reason if they are invalid.
pub(crate) fn decode_call<A>(call: &ToolCallPart, checks: Option<&Checks>) -> Result<A, ToolOutcome>
where
    A: DeserializeOwned,
{
    let text = checked(call, checks)?;
    decode(text).map_err(|error| invalid(call, &explain::<A>(text, &error)))
}

/// The text of the arguments of `call` after `checks`, as for [`decode_call`].
pub(crate) fn checked<'a>(
    call: &'a ToolCallPart,
    checks: Option<&Checks>,
) -> Result<&'a str, ToolOutcome> {
    match checks {
        Some(checks) => checks.check(call),
        None => Ok(text(&call.arguments)),
    }
}

impl Checks {
    /// Checks the arguments of `call`, and returns their text. Returns an outcome with the position
    /// and the reason if they are invalid.
    fn check<'a>(&self, call: &'a ToolCallPart) -> Result<&'a str, ToolOutcome> {
        let text = text(&call.arguments);
        if text.len() > self.max_bytes {
            let max = self.max_bytes;
            return Err(invalid(call, &format!("longer than {max} bytes")));
        }
        // A separate pass: serde only checks the keys of the target type and the depth of stored
        // values, but every reader of an approved call must find the same arguments.
        let schema = self.validator.as_ref().and_then(Validator::plain);
        let matches = strict::check(text, schema);
        let matches = matches.map_err(|error| invalid(call, &malformed(&error)))?;
        if !text.starts_with('{') {
            // serde would decode an array as a struct's fields.
            return Err(invalid(call, "not a JSON object"));
        }
        if let Some(validator) = &self.validator
            && !(matches && schema.is_some())
        {
            validator.check(text).map_err(|why| invalid(call, &why))?;
        }
        Ok(text)
    }
}

/// Decodes a value that matches its schema. A schema accepts `1.0` as an integer, serde does not.
/// Returns an error if the value is not a `T`.
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

/// Converts whole numbers such as `1.0` to integers. Returns whether there was one.
fn integral(value: &mut Value) -> bool {
    // Above this limit floats cannot represent all integers.
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

/// The same arguments; `{}` if the model sent none.
pub(crate) fn normal(arguments: &Arguments) -> Arguments {
    match text(arguments) {
        text if text == arguments.as_str() => arguments.clone(),
        text => Arguments::new(text),
    }
}

/// The text of the arguments; `{}` if it is empty, as some models send it for no arguments.
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
        "The call was not run. The arguments of `{name}` are invalid: {}",
        short(why, MAX)
    ))
}

fn malformed(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    if error.is_eof() {
        return format!("the JSON ends early, at line {line} column {column}");
    }
    let text = error.to_string();
    if text.starts_with("recursion limit exceeded") {
        format!("nested deeper than 127 levels, at line {line} column {column}")
    } else if text.starts_with("trailing characters") {
        format!("unexpected text after the JSON, at line {line} column {column}")
    } else if error.is_data() {
        text
    } else {
        format!("not JSON: {text}")
    }
}

/// Names the invalid field; only called after an error.
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
