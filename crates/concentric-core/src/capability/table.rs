use super::{
    Capabilities, Capability, Declares, Optional, Provides,
    declare::{Item, Kind},
};
use crate::{Error, ErrorKind, Str, describe::short};
use std::{any::type_name, error::Error as StdError, fmt};

/// What the layers of a stack declare, the outermost first, to be checked while the program runs.
///
/// ```
/// use concentric_core::{Capability, Declares, capability::{Fault, Provides, Requires, Table}};
///
/// #[derive(Clone)]
/// struct Store;
///
/// impl Capability for Store {}
///
/// struct StoreLayer;
///
/// impl Declares for StoreLayer {
///     type Capabilities = Provides<Store>;
/// }
///
/// struct RecallLayer;
///
/// impl Declares for RecallLayer {
///     type Capabilities = Requires<Store>;
/// }
///
/// let mut table = Table::new();
/// for name in ["recall", "store"] {
///     table = match name {
///         "recall" => table.of::<RecallLayer>(),
///         "store" => table.of::<StoreLayer>(),
///         _ => table,
///     };
/// }
/// let faults = table.check().unwrap_err();
/// assert!(matches!(faults.faults(), [Fault::Late { .. }]));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Table {
    declarations: Vec<Declaration>,
}

/// What one layer of a [`Table`] declares.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    layer: &'static str,
    items: &'static [Item],
}

impl Table {
    /// Creates a table of no layers.
    pub const fn new() -> Self {
        Self {
            declarations: Vec::new(),
        }
    }

    /// Says that the host provides a `C`, in the context that it starts runs with.
    #[must_use]
    pub fn given<C>(self) -> Self
    where
        C: Capability,
    {
        self.push("the host", Provides::<C>::ITEMS)
    }

    /// Says that a service inside of the layers uses the `C` that one of them
    /// [expects](super::Expects) to be used.
    #[must_use]
    pub fn used<C>(self) -> Self
    where
        C: Capability,
    {
        self.push("a service inside", Optional::<C>::ITEMS)
    }

    /// Adds a layer, inside of those before.
    #[must_use]
    pub fn with<L>(self, layer: &L) -> Self
    where
        L: Declares,
    {
        let _ = layer;
        self.of::<L>()
    }

    /// Adds a layer by its type, inside of those before.
    #[must_use]
    pub fn of<L>(self) -> Self
    where
        L: Declares,
    {
        self.push(type_name::<L>(), L::Capabilities::ITEMS)
    }

    /// Adds the layers of another table: those of the tools', inside of the run's.
    #[must_use]
    pub fn and(mut self, inner: Self) -> Self {
        self.declarations.extend(inner.declarations);
        self
    }

    fn push(mut self, layer: &'static str, items: &'static [Item]) -> Self {
        self.declarations.push(Declaration { layer, items });
        self
    }

    /// The layers, the outermost first.
    pub fn declarations(&self) -> &[Declaration] {
        &self.declarations
    }

    /// Whether each layer has what it requires, and no two provide the same.
    ///
    /// # Errors
    ///
    /// Not so: all that is wrong.
    pub fn check(&self) -> Result<(), Faults> {
        let mut faults = Vec::new();
        for (at, declaration) in self.declarations.iter().enumerate() {
            let (before, after) = self.declarations.split_at(at);
            for item in declaration.items {
                let layer = declaration.layer;
                let capability = (item.name)();
                match item.kind {
                    Kind::Encloses => continue,
                    Kind::Outside => {
                        if let Some(outer) = other(before, item, &[Kind::Encloses]) {
                            faults.push(Fault::Inside { layer, outer });
                        }
                        continue;
                    }
                    Kind::Within => {
                        let is_in = other(before, item, &[Kind::Encloses]).is_some();
                        if let (false, Some(inner)) = (is_in, other(after, item, &[Kind::Encloses]))
                        {
                            faults.push(Fault::Inside {
                                layer: inner,
                                outer: layer,
                            });
                        }
                        continue;
                    }
                    Kind::Around => {
                        let has_inner = other(after, item, &[Kind::Encloses]).is_some();
                        if let (false, Some(outer)) =
                            (has_inner, other(before, item, &[Kind::Encloses]))
                        {
                            faults.push(Fault::Inside { layer, outer });
                        }
                        continue;
                    }
                    Kind::Expects => {
                        let uses = [Kind::Requires, Kind::Replaces, Kind::Optional];
                        if other(after, item, &uses).is_none() {
                            faults.push(Fault::Unused {
                                layer,
                                capability,
                                user: (item.other)().unwrap_or_default(),
                            });
                        }
                        continue;
                    }
                    Kind::Provides | Kind::Requires | Kind::Optional | Kind::Replaces => {}
                }
                let is_optional = item.kind == Kind::Optional;
                match (item.kind, provider(before, item), provider(after, item)) {
                    (Kind::Provides, Some(provider), _) => faults.push(Fault::Twice {
                        layer,
                        capability,
                        provider,
                    }),
                    (Kind::Provides, None, _) | (_, Some(_), _) => {}
                    (_, None, Some(provider)) => faults.push(Fault::Late {
                        layer,
                        capability,
                        provider,
                        is_optional,
                    }),
                    (_, None, None) if is_optional => {}
                    (_, None, None) => faults.push(Fault::Missing {
                        layer,
                        capability,
                        provider: (item.other)(),
                    }),
                }
            }
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Faults(faults)),
        }
    }
}

/// The first of the layers that provides what `item` speaks of.
fn provider(layers: &[Declaration], item: &Item) -> Option<&'static str> {
    other(layers, item, &[Kind::Provides])
}

/// The first of the layers that does one of `kinds` with what `item` is about.
fn other(layers: &[Declaration], item: &Item, kinds: &[Kind]) -> Option<&'static str> {
    let is_it = |other: &Item| kinds.contains(&other.kind) && (other.id)() == (item.id)();
    let other = layers.iter().find(|layer| layer.items.iter().any(is_it))?;
    Some(other.layer)
}

impl Declaration {
    /// The name of the layer's type.
    pub const fn layer(&self) -> &'static str {
        self.layer
    }

    /// The names of what it [provides](Provides).
    pub fn provides(&self) -> impl Iterator<Item = &'static str> {
        self.names(Kind::Provides)
    }

    /// The names of what it [requires](super::Requires).
    pub fn requires(&self) -> impl Iterator<Item = &'static str> {
        self.names(Kind::Requires)
    }

    /// The names of what it uses [if it is there](super::Optional).
    pub fn optional(&self) -> impl Iterator<Item = &'static str> {
        self.names(Kind::Optional)
    }

    /// The names of what it [replaces](super::Replaces).
    pub fn replaces(&self) -> impl Iterator<Item = &'static str> {
        self.names(Kind::Replaces)
    }

    fn names(&self, kind: Kind) -> impl Iterator<Item = &'static str> + use<> {
        let items = self.items.iter().filter(move |item| item.kind == kind);
        items.map(|item| (item.name)())
    }
}

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
        /// The layer that provides it, if the capability [names](Capability::provider) one.
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
        /// The layer that provides it, if the capability [names](Capability::provider) one.
        provider: Option<&'static str>,
    },
    /// A layer stands inside of another that it must be [outside](super::Outside) of.
    Inside {
        /// The layer.
        layer: &'static str,
        /// The layer that it stands inside of.
        outer: &'static str,
    },
    /// No layer inside uses the capability, as a layer [expects](super::Expects).
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
            Self::Inside { layer, outer } => write!(
                f,
                "`{}` stands inside of `{}`, and must stand outside of it: swap the two, or leave \
                 one of them out",
                short(layer),
                short(outer)
            ),
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

/// All that is wrong with a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// What is wrong, in the order of the layers; there is at least one thing.
    pub fn faults(&self) -> &[Fault] {
        &self.0
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl StdError for Faults {}

impl From<Faults> for Error {
    fn from(faults: Faults) -> Self {
        configuration(faults)
    }
}

fn configuration(fault: impl StdError + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Configuration, Str::from(fault.to_string()))
        .with_code("capability")
        .with_source(fault)
}
