use crate::overlong::short;
use jsonschema::{PatternOptions, ValidationError};
use serde_json::Value;
use std::{fmt::Write, sync::Arc};

#[derive(Clone, Debug)]
pub(crate) struct Validator(Arc<jsonschema::Validator>);

impl Validator {
    /// Compiles `schema`, which may be untrusted: it cannot access files or the network, and its
    /// patterns take linear time. Returns an error if `schema` is invalid, refers to another
    /// document, or has a pattern with look-around or back-references.
    pub(crate) fn new(schema: &Value) -> Result<Self, String> {
        jsonschema::options()
            .offline()
            .with_pattern_options(PatternOptions::regex())
            .build(schema)
            .map(|validator| Self(Arc::new(validator)))
            .map_err(|error| short(&describe(&error), 512).into_owned())
    }

    /// Compiles the schema of arguments, which are an object; `None` if it accepts every object.
    /// Returns the errors of [`new`](Self::new).
    pub(crate) fn for_arguments(schema: &Value) -> Result<Option<Self>, String> {
        match accepts_every_object(schema) {
            true => Ok(None),
            false => Self::new(schema).map(Some),
        }
    }

    /// Validates `text`, which must be JSON. Returns the positions and reasons of the first few
    /// violations.
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        // Enough for a correction, and short enough to read.
        const SHOWN: usize = 5;
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if self.0.is_valid(&value) {
            return Ok(());
        }
        let mut all = String::new();
        for error in self.0.iter_errors(&value).take(SHOWN) {
            let separator = if all.is_empty() { "" } else { "; " };
            let _ = write!(all, "{separator}{}", short(&describe(&error), 256));
        }
        Err(all)
    }
}

/// Whether a schema has only annotations and the type `object`, which is checked for every tool.
fn accepts_every_object(schema: &Value) -> bool {
    schema.as_object().is_some_and(|keywords| {
        keywords
            .iter()
            .all(|(keyword, value)| match keyword.as_str() {
                "type" => value == "object",
                "properties" => value.as_object().is_some_and(serde_json::Map::is_empty),
                "title" | "description" | "$schema" => value.is_string(),
                _ => false,
            })
    })
}

fn describe(error: &ValidationError<'_>) -> String {
    let path = error.instance_path().as_str();
    if path.is_empty() {
        error.to_string()
    } else {
        format!("at `{path}`: {error}")
    }
}
