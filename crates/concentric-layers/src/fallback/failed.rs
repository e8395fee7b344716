use concentric_core::{Error, Str};
use std::{error::Error as StdError, fmt};

/// The failed calls of other models before an answer or an error, each with the model's name.
///
/// In the [extensions](concentric_core::ChatResponse::extensions) of an answer of another model than the first,
/// and the [source](StdError::source) of an error that follows others. The latter's own source is the last
/// error's.
#[derive(Clone, Debug)]
pub struct FailedAttempts {
    failed: Vec<(Str, Error)>,
    // The error whose source this is.
    last: Option<Error>,
}

impl FailedAttempts {
    pub(super) const fn new(failed: Vec<(Str, Error)>) -> Self {
        Self { failed, last: None }
    }

    /// Makes these attempts the source of `last`.
    pub(super) fn before(failed: Vec<(Str, Error)>, last: Error) -> Error {
        let last_before = Some(last.clone());
        last.with_source(Self {
            failed,
            last: last_before,
        })
    }

    /// Replaces the errors.
    #[cfg(feature = "guard")]
    pub(crate) fn edit(&mut self, edit: impl Fn(Error) -> Error) {
        let all = self.failed.iter_mut().map(|(_, error)| error);
        for error in all.chain(&mut self.last) {
            *error = edit(error.clone());
        }
    }

    /// The names of the models and their errors, in the order of the calls.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Error)> {
        self.failed.iter().map(|(name, error)| (&**name, error))
    }
}

impl fmt::Display for FailedAttempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("earlier attempts failed")?;
        for (at, (name, error)) in self.failed.iter().enumerate() {
            let separator = if at == 0 { ": " } else { "; " };
            write!(f, "{separator}`{name}`: {error}")?;
        }
        Ok(())
    }
}

impl StdError for FailedAttempts {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.last.as_ref()?.source()
    }
}
