//! Errors of tools that end the run.

use crate::capability_error::CapabilityError;
use concentric_proto::{Error, ErrorKind, Phase};
use std::{error::Error as StdError, fmt};
use tower::BoxError;

/// Marks `error` as fatal, so that it ends the run instead of being sent to the model.
///
/// Use it in tool layers and tool services. The error
/// keeps its fields; one without a kind gets [`ErrorKind::Tool`]. Layers may wrap it: the mark is
/// also found among the sources.
pub fn fatal(error: impl Into<BoxError>) -> Error {
    let error = Error::from(error.into());
    if is_fatal(&error) {
        return error;
    }
    let marked = match error.kind() {
        ErrorKind::Other => Error::new(ErrorKind::Tool, error.message()),
        _ => error.clone(),
    };
    marked.with_phase(Phase::Call).with_source(Fatal(error))
}

/// Whether `error` was marked by [`fatal`], or reports a missing capability of the stack.
pub fn is_fatal(error: &Error) -> bool {
    StdError::source(error)
        .is_some_and(|source| source.is::<Fatal>() || source.is::<CapabilityError>())
}

/// Marks the error whose source it is.
#[derive(Debug)]
struct Fatal(Error);

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the error was marked as fatal")
    }
}

impl StdError for Fatal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}
