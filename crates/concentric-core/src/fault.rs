//! Faults in the order of layers.

use crate::describe::short;
use concentric_proto::{Error, ErrorKind, Str};
use std::{error::Error as StdError, fmt};

/// What is wrong with what layers provide and require: names of types, which `Display` prints without
/// modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nobody provides what a layer requires.
    Missing {
        /// The layer.
        layer: &'static str,
        /// What it requires.
        capability: &'static str,
        /// The layer that provides it, if the capability [names](crate::Capability::provider) one.
        provider: Option<&'static str>,
    },
    /// What provides it stands inside of the layer, which does not see it.
    Late {
        /// The layer.
        layer: &'static str,
        /// What it requires, or uses if it is there.
        capability: &'static str,
        /// The layer that provides it.
        provider: &'static str,
        /// Whether it would do without.
        is_optional: bool,
    },
    /// Two layers provide the same, and the later does not say that it replaces it.
    Twice {
        /// The later one.
        layer: &'static str,
        /// What they provide.
        capability: &'static str,
        /// The earlier one.
        provider: &'static str,
    },
    /// A layer has not provided what it says it does.
    NotProvided {
        /// The layer.
        layer: &'static str,
        /// What it did not provide.
        capability: &'static str,
    },
    /// Somebody asked for what nobody has provided: [`Context::require`](crate::Context::require).
    Absent {
        /// What was asked for.
        capability: &'static str,
        /// The layer that provides it, if the capability [names](crate::Capability::provider) one.
        provider: Option<&'static str>,
    },
    /// A layer stands inside of another that it must be [outside](crate::capability::Outside) of.
    Inside {
        /// The layer.
        layer: &'static str,
        /// The layer that it stands inside of.
        outer: &'static str,
    },
    /// No layer inside uses the capability, as a layer [expects](crate::capability::Expects).
    Unused {
        /// The layer.
        layer: &'static str,
        /// The capability.
        capability: &'static str,
        /// A layer that uses it.
        user: &'static str,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing {
                layer,
                capability,
                provider,
            } => {
                let [layer, capability] = [layer, capability].map(|name| short(name));
                write!(
                    f,
                    "`{layer}` requires `{capability}`, and no layer outside of it provides that"
                )?;
                add(f, *provider)
            }
            Self::Late {
                layer,
                capability,
                provider,
                is_optional,
            } => {
                let [layer, capability, provider] =
                    [layer, capability, provider].map(|name| short(name));
                let uses = if *is_optional { "uses" } else { "requires" };
                write!(
                    f,
                    "`{layer}` {uses} `{capability}`, which `{provider}` provides only inside of \
                     it: add `{provider}` first"
                )
            }
            Self::Twice {
                layer,
                capability,
                provider,
            } => {
                let [layer, capability, provider] =
                    [layer, capability, provider].map(|name| short(name));
                write!(
                    f,
                    "`{layer}` provides `{capability}`, which `{provider}` does already: leave one \
                     of them out, or let `{layer}` declare that it replaces it"
                )
            }
            Self::NotProvided { layer, capability } => write!(
                f,
                "`{}` declares that it provides `{}`, and did not",
                short(layer),
                short(capability)
            ),
            Self::Absent {
                capability,
                provider,
            } => {
                let capability = short(capability);
                write!(
                    f,
                    "`{capability}` is required here, and no layer outside provides it"
                )?;
                add(f, *provider)
            }
            Self::Inside { layer, outer } => {
                let [layer, outer] = [layer, outer].map(|name| short(name));
                if layer == outer {
                    return write!(
                        f,
                        "`{layer}` stands inside of another `{outer}`: leave one of them out"
                    );
                }
                write!(
                    f,
                    "`{layer}` stands inside of `{outer}`, and must stand outside of it: swap the \
                     two, or leave one of them out"
                )
            }
            Self::Unused {
                layer,
                capability,
                user,
            } => {
                let [layer, capability, user] = [layer, capability, user].map(|name| short(name));
                write!(
                    f,
                    "`{layer}` has no effect, since no layer inside of it uses `{capability}`: add \
                     `{user}` inside of it"
                )
            }
        }
    }
}

/// What to do where a capability is missing.
fn add(f: &mut fmt::Formatter<'_>, provider: Option<&'static str>) -> fmt::Result {
    match provider {
        Some(provider) => write!(f, ": add `{}` outside", short(provider)),
        None => Ok(()),
    }
}

impl StdError for Fault {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        configuration(fault)
    }
}

pub(crate) fn configuration(fault: impl StdError + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Configuration, Str::from(fault.to_string()))
        .with_code("capability")
        .with_source(fault)
}
