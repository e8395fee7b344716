use super::{
    Capabilities, Capability, Declares, Optional, Provides,
    declare::{Item, Kind},
};
use crate::fault::{Fault, configuration};
use concentric_proto::Error;
use std::{any::type_name, error::Error as StdError, fmt};

/// The declarations of a stack's layers, outermost first, for a check at run time.
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

/// The declaration of one layer of a [`Table`].
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    layer: &'static str,
    items: &'static [Item],
}

impl Table {
    /// Creates an empty table.
    pub const fn new() -> Self {
        Self {
            declarations: Vec::new(),
        }
    }

    /// Declares that the host provides a `C` in the context with which it starts runs.
    #[must_use]
    pub fn given<C>(self) -> Self
    where
        C: Capability,
    {
        self.push("the host", Provides::<C>::ITEMS)
    }

    /// Declares that a service inside the layers uses the `C` that one of them
    /// [expects](super::Expects) to be used.
    #[must_use]
    pub fn used<C>(self) -> Self
    where
        C: Capability,
    {
        self.push("a service inside", Optional::<C>::ITEMS)
    }

    /// Adds a layer inside the layers added before.
    #[must_use]
    pub fn with<L>(self, layer: &L) -> Self
    where
        L: Declares,
    {
        let _ = layer;
        self.of::<L>()
    }

    /// Adds a layer by its type, inside the layers added before.
    #[must_use]
    pub fn of<L>(self) -> Self
    where
        L: Declares,
    {
        self.push(type_name::<L>(), L::Capabilities::ITEMS)
    }

    /// Adds the layers of another table inside these, such as those of the tools.
    #[must_use]
    pub fn and(mut self, inner: Self) -> Self {
        self.declarations.extend(inner.declarations);
        self
    }

    fn push(mut self, layer: &'static str, items: &'static [Item]) -> Self {
        self.declarations.push(Declaration { layer, items });
        self
    }

    /// Returns the declarations, outermost first.
    pub fn declarations(&self) -> &[Declaration] {
        &self.declarations
    }

    /// Checks that each requirement is met and that no two layers provide the same capability.
    ///
    /// # Errors
    ///
    /// All faults that were found.
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

/// Returns the first layer that provides the capability of `item`.
fn provider(layers: &[Declaration], item: &Item) -> Option<&'static str> {
    other(layers, item, &[Kind::Provides])
}

/// Returns the first layer with an entry of one of `kinds` for the same type as `item`.
fn other(layers: &[Declaration], item: &Item, kinds: &[Kind]) -> Option<&'static str> {
    let is_it = |other: &Item| kinds.contains(&other.kind) && (other.id)() == (item.id)();
    let other = layers.iter().find(|layer| layer.items.iter().any(is_it))?;
    Some(other.layer)
}

impl Declaration {
    /// Returns the name of the layer's type.
    pub const fn layer(&self) -> &'static str {
        self.layer
    }

    /// Returns the names of the capabilities it [provides](Provides).
    pub fn provides(&self) -> impl Iterator<Item = &'static str> {
        self.names(Kind::Provides)
    }

    /// Returns the names of the capabilities it [requires](super::Requires).
    pub fn requires(&self) -> impl Iterator<Item = &'static str> {
        self.names(Kind::Requires)
    }

    /// Returns the names of the capabilities it [optionally](super::Optional) uses.
    pub fn optional(&self) -> impl Iterator<Item = &'static str> {
        self.names(Kind::Optional)
    }

    /// Returns the names of the capabilities it [replaces](super::Replaces).
    pub fn replaces(&self) -> impl Iterator<Item = &'static str> {
        self.names(Kind::Replaces)
    }

    fn names(&self, kind: Kind) -> impl Iterator<Item = &'static str> + use<> {
        let items = self.items.iter().filter(move |item| item.kind == kind);
        items.map(|item| (item.name)())
    }
}

/// The faults found in a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Returns the faults in the order of the layers; there is at least one.
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
