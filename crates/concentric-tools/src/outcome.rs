use crate::ToolError;
use concentric_core::{Part, Str, ToolContent, ToolOutcome};
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;

/// The name of the event with the typed value of an answer; see `output::VALUE_COMPLETE`.
#[cfg(any(feature = "agent-tool", feature = "output"))]
pub(crate) const VALUE_COMPLETE: Str = Str::from_static("value-complete");

/// A return type of a tool's function.
///
/// Implemented for text types, [`Json`], the parts of a message, `()` (the model reads `Done.`),
/// [`ToolOutcome`], `(text, Json(data))` for data that the model does not receive, and a [`Result`]
/// of any of these.
#[diagnostic::on_unimplemented(
    message = "a tool cannot return `{Self}`",
    label = "not an outcome of a tool",
    note = "return text, `Json(value)`, `(text, Json(data))`, a `ToolOutcome`, or a `Result<_, E>` of one, whose error converts into a `ToolError`"
)]
pub trait IntoOutcome {
    /// Converts the value into the outcome of the call.
    ///
    /// # Errors
    ///
    /// Returns an error if the tool failed.
    fn into_outcome(self) -> Result<ToolOutcome, ToolError>;
}

impl IntoOutcome for ToolOutcome {
    fn into_outcome(self) -> Result<ToolOutcome, ToolError> {
        Ok(self)
    }
}

impl<T, E> IntoOutcome for Result<T, E>
where
    T: IntoOutcome,
    E: Into<ToolError>,
{
    fn into_outcome(self) -> Result<ToolOutcome, ToolError> {
        self.map_err(Into::into)?.into_outcome()
    }
}

macro_rules! content {
    ($($type:ty),*) => {$(
        impl IntoOutcome for $type {
            fn into_outcome(self) -> Result<ToolOutcome, ToolError> {
                Ok(ToolOutcome::done(self))
            }
        }
    )*};
}

content!(ToolContent, Str, String, &'static str, Vec<Part>);

impl IntoOutcome for Cow<'static, str> {
    fn into_outcome(self) -> Result<ToolOutcome, ToolError> {
        Ok(ToolOutcome::done(Str::from(self)))
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Result<ToolOutcome, ToolError> {
        // Providers reject a result without content.
        Ok(ToolOutcome::done(Str::from_static("Done.")))
    }
}

impl IntoOutcome for Value {
    fn into_outcome(self) -> Result<ToolOutcome, ToolError> {
        Json(self).into_outcome()
    }
}

/// A value that the model reads as JSON.
///
/// After a text, as in `("3 files", Json(files))`, it is the [data](ToolOutcome::data) of the
/// outcome, which observers receive and the model does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Json<T>(pub T);

impl<T> IntoOutcome for Json<T>
where
    T: Serialize,
{
    fn into_outcome(self) -> Result<ToolOutcome, ToolError> {
        let text = serde_json::to_string(&self.0).map_err(unserialisable)?;
        Ok(ToolOutcome::done(text))
    }
}

impl<T, D> IntoOutcome for (T, Json<D>)
where
    T: IntoOutcome,
    D: Serialize,
{
    fn into_outcome(self) -> Result<ToolOutcome, ToolError> {
        let data = serde_json::to_value(self.1.0).map_err(unserialisable)?;
        Ok(self.0.into_outcome()?.with_data(data))
    }
}

fn unserialisable(error: serde_json::Error) -> ToolError {
    ToolError::new("The tool's result could not be serialized as JSON.").with_source(error)
}
