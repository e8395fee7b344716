//! Messages of errors for clients.

use std::{error::Error as StdError, sync::Arc};

use concentric_core::{Error, ErrorKind, ReplyError, ToolNameTaken, store::StoreError};

/// Makes the message of an error that a client reads.
pub(crate) type ErrorMessage = Arc<dyn Fn(&Error) -> String + Send + Sync>;

/// The code of an error by which a run was rejected or not resumed, for the client.
pub(crate) fn refusal(error: &Error) -> Option<&str> {
    if let Some(error) = source::<ReplyError>(error) {
        return Some(error.code());
    }
    match source::<StoreError>(error) {
        Some(StoreError::Failed(_) | StoreError::Unwritable(_)) => None,
        Some(error) => Some(error.code()),
        None if error.kind() == ErrorKind::Conflict => error.code().or(Some("conflict")),
        None => None,
    }
}

/// The first source of `error` that is a `T`.
pub(crate) fn source<T: StdError + 'static>(error: &Error) -> Option<&T> {
    let first = error.source();
    std::iter::successors(first, |error| (**error).source()).find_map(|error| error.downcast_ref())
}

/// The default message of an error: the text of a reply error, or else one sentence per kind.
pub(crate) fn describe(error: &Error) -> String {
    if let Some(taken) = source::<ToolNameTaken>(error) {
        return format!("{taken}.");
    }
    match (source::<ReplyError>(error), refusal(error)) {
        (Some(error), _) => format!("{error}."),
        (None, Some("run_live")) => "This run is already in progress.".to_owned(),
        (None, Some("run_exists")) => "A run with this id already exists.".to_owned(),
        (None, Some("too_many_waiting")) => {
            "Too many runs wait for replies. Answer or cancel some of them.".to_owned()
        }
        (None, Some(_)) => describe_kind(ErrorKind::Conflict).to_owned(),
        (None, None) => describe_kind(error.kind()).to_owned(),
    }
}

fn describe_kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Authentication | ErrorKind::Permission | ErrorKind::Quota => {
            "The agent has no access to its model."
        }
        ErrorKind::NotFound | ErrorKind::Configuration => "The agent is not set up correctly.",
        ErrorKind::InvalidRequest => "The request was rejected.",
        ErrorKind::ContextWindow => "The conversation is too long for the model.",
        ErrorKind::ContentFilter => "The request was rejected by the model's safety system.",
        ErrorKind::RateLimited | ErrorKind::Overloaded => {
            "There are too many requests at the moment. Please try again later."
        }
        ErrorKind::Timeout => "The answer took too long.",
        ErrorKind::Server | ErrorKind::Connection | ErrorKind::Protocol => {
            "The model could not be reached. Please try again."
        }
        ErrorKind::Truncated => "The answer was cut off.",
        ErrorKind::TooLarge => "Part of the request is too large.",
        ErrorKind::Tool => "A tool failed.",
        ErrorKind::Cancelled => "The run was cancelled.",
        ErrorKind::Halted => "The run was stopped.",
        ErrorKind::Conflict => {
            "There is nothing to resume: the questions were already answered, or have expired."
        }
        _ => "Something went wrong.",
    }
}
