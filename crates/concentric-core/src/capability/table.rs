use super::{
    Capabilities, Capability, Declares, Provides,
    declare::{Item, Kind},
};
use crate::capability_error::{self, CapabilityError};
use concentric_proto::Error;
use std::any::type_name;

/// The declarations of a stack's layers, outermost first, for a check at run time.
///
/// ```
/// use concentric_core::{Capability, Declares, capability::{CapabilityError, CapabilityTable, Provides, Requires}};
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
/// let mut table = CapabilityTable::new();
/// for name in ["recall", "store"] {
///     table = match name {
///         "recall" => table.of::<RecallLayer>(),
///         "store" => table.of::<StoreLayer>(),
///         _ => table,
///     };
/// }
/// assert!(matches!(table.errors()[..], [CapabilityError::Late { .. }]));
/// assert!(table.check().is_err());
/// ```
#[derive(Clone, Debug, Default)]
pub struct CapabilityTable {
    declarations: Vec<Declaration>,
}

#[derive(Clone, Copy, Debug)]
struct Declaration {
    layer: &'static str,
    items: &'static [Item],
}

impl CapabilityTable {
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
        self.push("a service inside", const { &[Item::new::<C>(Kind::Uses)] })
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

    /// Returns the names of the layers, outermost first.
    pub fn layers(&self) -> impl Iterator<Item = &'static str> {
        self.declarations.iter().map(|declared| declared.layer)
    }

    /// Checks that each requirement is met and that no two layers provide the same capability.
    ///
    /// # Errors
    ///
    /// All [`errors`](Self::errors), separated by semicolons.
    pub fn check(&self) -> Result<(), Error> {
        match self.errors() {
            errors if errors.is_empty() => Ok(()),
            errors => Err(capability_error::all(&errors)),
        }
    }

    /// Returns all errors, in the order of the layers.
    pub fn errors(&self) -> Vec<CapabilityError> {
        let mut errors = Vec::new();
        for (at, declared) in self.declarations.iter().enumerate() {
            let (before, after) = self.declarations.split_at(at);
            let found = |item| error(declared.layer, item, before, after);
            errors.extend(declared.items.iter().filter_map(found));
        }
        errors
    }
}

/// Returns the error of one entry of `layer`, between the layers `before` and `after` it.
fn error(
    layer: &'static str,
    item: &Item,
    before: &[Declaration],
    after: &[Declaration],
) -> Option<CapabilityError> {
    let capability = (item.name)();
    let enclosing = |layers| other(layers, item, &[Kind::Encloses]);
    let provider = |layers| other(layers, item, &[Kind::Provides]);
    match item.kind {
        Kind::Encloses | Kind::Uses => None,
        Kind::Outside => enclosing(before).map(|outer| CapabilityError::Inside { layer, outer }),
        Kind::Within if enclosing(before).is_some() => None,
        Kind::Within => enclosing(after).map(|inner| CapabilityError::Inside {
            layer: inner,
            outer: layer,
        }),
        Kind::Around if enclosing(after).is_some() => None,
        Kind::Around => enclosing(before).map(|outer| CapabilityError::Inside { layer, outer }),
        Kind::Expects if other(after, item, &[Kind::Requires, Kind::Uses]).is_some() => None,
        Kind::Expects => Some(CapabilityError::Unused {
            layer,
            capability,
            user: (item.other)().unwrap_or_default(),
        }),
        Kind::Provides => provider(before).map(|provider| CapabilityError::Twice {
            layer,
            capability,
            provider,
        }),
        Kind::Requires if provider(before).is_some() => None,
        Kind::Requires => Some(match provider(after) {
            Some(provider) => CapabilityError::Late {
                layer,
                capability,
                provider,
            },
            None => CapabilityError::Missing {
                layer,
                capability,
                provider: (item.other)(),
            },
        }),
    }
}

/// Returns the first layer with an entry of one of `kinds` for the same type as `item`.
fn other(layers: &[Declaration], item: &Item, kinds: &[Kind]) -> Option<&'static str> {
    let is_it = |other: &Item| kinds.contains(&other.kind) && (other.id)() == (item.id)();
    let other = layers.iter().find(|layer| layer.items.iter().any(is_it))?;
    Some(other.layer)
}
