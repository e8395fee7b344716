//! Errors in the order of layers.

use crate::describe::short;
use concentric_proto::{Error, ErrorKind, Str};
use std::{error::Error as StdError, fmt};

/// A mismatch between the capabilities or regions that layers declare.
///
/// The fields are names of types; `Display` prints them without their modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CapabilityError {
    /// No layer provides a required capability.
    Missing {
        /// The layer that requires it.
        layer: &'static str,
        /// The required capability.
        capability: &'static str,
        /// The layer that provides it, if the capability [names](crate::Capability::provider) one.
        provider: Option<&'static str>,
    },
    /// The provider is inside the layer that uses the capability, where the layer can't see it.
    Late {
        /// The layer that uses it.
        layer: &'static str,
        /// The capability that the layer requires.
        capability: &'static str,
        /// The layer that provides it.
        provider: &'static str,
    },
    /// Two layers provide the same capability.
    Twice {
        /// The inner layer.
        layer: &'static str,
        /// The capability.
        capability: &'static str,
        /// The outer layer.
        provider: &'static str,
    },
    /// A layer has not provided a capability that it declares.
    NotProvided {
        /// The layer.
        layer: &'static str,
        /// The missing capability.
        capability: &'static str,
    },
    /// [`Context::require`](crate::Context::require) found no such capability.
    Absent {
        /// The required capability.
        capability: &'static str,
        /// The layer that provides it, if the capability [names](crate::Capability::provider) one.
        provider: Option<&'static str>,
    },
    /// A layer is inside another that it must be [outside](crate::capability::Outside) of.
    Inside {
        /// The inner layer.
        layer: &'static str,
        /// The outer layer.
        outer: &'static str,
    },
    /// No inner layer uses the capability, as a layer [expects](crate::capability::Expects).
    Unused {
        /// The layer with the expectation.
        layer: &'static str,
        /// The capability.
        capability: &'static str,
        /// A layer that uses the capability.
        user: &'static str,
    },
}

impl fmt::Display for CapabilityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The remedy for a missing capability.
        let add = |provider: Option<&'static str>| {
            provider.map_or_else(String::new, |it| format!(": add `{}` outside", short(it)))
        };
        match *self {
            Self::Missing {
                layer,
                capability,
                provider,
            } => write!(
                f,
                "`{}` requires `{}`, which no outer layer provides{}",
                short(layer),
                short(capability),
                add(provider)
            ),
            Self::Late {
                layer,
                capability,
                provider,
            } => write!(
                f,
                "`{}` requires `{}`, which only the inner layer `{2}` provides: add `{2}` first",
                short(layer),
                short(capability),
                short(provider)
            ),
            Self::Twice {
                layer,
                capability,
                provider,
            } => write!(
                f,
                "`{}` provides `{}`, which `{}` already provides: remove one of them",
                short(layer),
                short(capability),
                short(provider)
            ),
            Self::NotProvided { layer, capability } => write!(
                f,
                "`{}` declares `{}` but does not provide it",
                short(layer),
                short(capability)
            ),
            Self::Absent {
                capability,
                provider,
            } => write!(
                f,
                "`{}` is required here, but no outer layer provides it{}",
                short(capability),
                add(provider)
            ),
            Self::Inside { layer, outer } if short(layer) == short(outer) => write!(
                f,
                "`{}` is inside another `{}`: remove one of them",
                short(layer),
                short(outer)
            ),
            Self::Inside { layer, outer } => write!(
                f,
                "`{}` is inside `{}` but must be outside it: swap the two, or remove one of them",
                short(layer),
                short(outer)
            ),
            Self::Unused {
                layer,
                capability,
                user,
            } => write!(
                f,
                "`{}` has no effect because no inner layer uses `{}`: add `{}` inside it",
                short(layer),
                short(capability),
                short(user)
            ),
        }
    }
}

impl StdError for CapabilityError {}

impl From<CapabilityError> for Error {
    fn from(error: CapabilityError) -> Self {
        all(&[error])
    }
}

/// Returns one error for several; its source is the first.
pub(crate) fn all(errors: &[CapabilityError]) -> Error {
    let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let error = Error::new(ErrorKind::Configuration, Str::from(messages.join("; ")));
    let error = error.with_code("capability");
    match errors.first() {
        Some(first) => error.with_source(*first),
        None => error,
    }
}
