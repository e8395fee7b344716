use concentric_core::{Error, ErrorKind, Str};
use std::{error::Error as StdError, fmt};

/// The rejection of a run's last answer by an [`OutputConstraint`](super::OutputConstraint).
///
/// This is the [source](std::error::Error::source) of the error that the run fails with, whose code
/// is `answer_rejected`.
///
/// ```
/// use concentric_core::Error;
/// use concentric_layers::stop::RejectedAnswer;
/// use std::error::Error as _;
///
/// let error = Error::from(RejectedAnswer::new("short", "It is too long.", "Well, .."));
/// let rejected = error.source().and_then(|source| source.downcast_ref::<RejectedAnswer>());
/// assert_eq!(rejected.map(RejectedAnswer::answer), Some("Well, .."));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedAnswer {
    gate: Str,
    complaint: Str,
    answer: Str,
}

impl RejectedAnswer {
    /// Creates the error for an `answer` that `gate` rejected because of `complaint`.
    pub fn new(gate: impl Into<Str>, complaint: impl Into<Str>, answer: impl Into<Str>) -> Self {
        Self {
            gate: gate.into(),
            complaint: complaint.into(),
            answer: answer.into(),
        }
    }

    /// Returns the name of the gate.
    pub fn gate(&self) -> &str {
        &self.gate
    }

    /// Returns the complaint about the answer.
    pub fn complaint(&self) -> &str {
        &self.complaint
    }

    /// Returns the rejected answer.
    pub fn answer(&self) -> &str {
        &self.answer
    }
}

impl fmt::Display for RejectedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The answer is omitted because it may be long or confidential.
        let Self {
            gate, complaint, ..
        } = self;
        write!(f, "the gate `{gate}` rejected the last answer: {complaint}")
    }
}

impl StdError for RejectedAnswer {}

impl From<RejectedAnswer> for Error {
    fn from(rejected: RejectedAnswer) -> Self {
        Self::new(ErrorKind::Protocol, rejected.to_string())
            .with_code("answer_rejected")
            .with_source(rejected)
    }
}
