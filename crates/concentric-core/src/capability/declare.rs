use super::{Capability, Declares, Region};
use crate::context::Context;
use std::{
    any::{TypeId, type_name},
    fmt,
    marker::PhantomData,
};
use tower_layer::Layer;

/// The declaration of a layer: one entry, a tuple of up to eight, or `()`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not declare the capabilities of a layer",
    label = "this is not `()`, an entry, or a tuple of entries",
    note = "an entry is `Provides<C>`, `Requires<C>`, `Encloses<R>`, `Outside<R>`, `Within<R>`, `Around<R>` or `Expects<C, U>`, and a tuple has up to eight"
)]
pub trait Capabilities {
    /// The entries as `(A, (B, ()))`, for the compiler.
    type List;

    /// The entries as values, for checks at run time.
    const ITEMS: &'static [Item];
}

/// An entry of a declaration.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an entry of a declaration",
    label = "not an entry",
    note = "use `Provides<{Self}>` or `Requires<{Self}>`"
)]
pub trait Entry {
    /// The entry as a value.
    const ITEM: Item;
}

/// An [`Entry`] as a value.
#[derive(Clone, Copy)]
pub struct Item {
    pub(super) kind: Kind,
    pub(super) id: fn() -> TypeId,
    pub(super) name: fn() -> &'static str,
    /// Returns the name of the layer that encloses the region; for a capability, an empty name if
    /// the context has it.
    pub(super) layer: fn(&Context) -> Option<&'static str>,
    /// Returns the name of the layer that provides the capability or is expected to use it.
    pub(super) other: fn() -> Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Provides,
    Requires,
    Uses,
    Encloses,
    Outside,
    Within,
    Around,
    Expects,
}

impl Item {
    pub(super) const fn new<C: Capability>(kind: Kind) -> Self {
        Self {
            kind,
            id: TypeId::of::<C>,
            name: type_name::<C>,
            layer: |context| context.capability::<C>().map(|_| ""),
            other: C::provider,
        }
    }

    const fn region<R: Region>(kind: Kind) -> Self {
        Self {
            kind,
            id: TypeId::of::<R>,
            name: type_name::<R>,
            layer: R::layer,
            other: || None,
        }
    }

    /// Returns whether the context has the capability, or is in the region.
    pub(super) fn is_in(&self, context: &Context) -> bool {
        (self.layer)(context).is_some()
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}<{}>", self.kind, (self.name)())
    }
}

macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident<$of:ident: $bound:ident $(, $user:ident)?> = $item:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<$of $(, $user)?>(PhantomData<fn() -> ($of, $($user)?)>);

        impl<$of: $bound $(, $user)?> Entry for $name<$of $(, $user)?> {
            const ITEM: Item = $item;
        }
    )*};
}

entries! {
    /// In [`Declares`]: the layer provides a `C`, which no layer outside of it does.
    Provides<C: Capability> = Item::new::<C>(Kind::Provides);

    /// In [`Declares`]: the layer requires a `C` from a layer outside.
    Requires<C: Capability> = Item::new::<C>(Kind::Requires);

    /// In [`Declares`]: a layer inside, such as `U`, must use the available `C`, or this layer has
    /// no effect.
    Expects<C: Capability, U> = Item {
        other: || Some(type_name::<U>()),
        ..Item::new::<C>(Kind::Expects)
    };

    /// In [`Declares`]: everything inside the layer is in the [region](super::Region) `R`.
    Encloses<R: Region> = Item::region::<R>(Kind::Encloses);

    /// In [`Declares`]: the layer must not be inside the [region](super::Region) `R`.
    Outside<R: Region> = Item::region::<R>(Kind::Outside);

    /// In [`Declares`]: the layer belongs inside the [region](super::Region) `R`, as a layer for
    /// model calls does. A layer that encloses `R` must not be inside this layer, unless another
    /// layer that encloses `R` is outside.
    ///
    /// If no layer encloses `R`, nothing is checked: a model without a loop may have such layers.
    Within<R: Region> = Item::region::<R>(Kind::Within);

    /// In [`Declares`]: the layer belongs around a layer that encloses the
    /// [region](super::Region) `R`, as a layer for runs does. A layer that is itself in `R` must be
    /// around another one that encloses `R`.
    ///
    /// Within one [`Layers`](super::Layers) it is checked like [`Outside`]: an agent in the position
    /// of a model is a separate stack.
    Around<R: Region> = Item::region::<R>(Kind::Around);
}

impl<E: Entry> Capabilities for E {
    type List = (E, ());
    const ITEMS: &'static [Item] = &[E::ITEM];
}

impl Capabilities for () {
    type List = ();
    const ITEMS: &'static [Item] = &[];
}

macro_rules! tuples {
    () => {};
    ($first:ident $($rest:ident)*) => {
        impl<$first: Entry, $($rest: Entry),*> Capabilities for ($first, $($rest,)*) {
            type List = ($first, <($($rest,)*) as Capabilities>::List);
            const ITEMS: &'static [Item] = &[$first::ITEM, $($rest::ITEM),*];
        }

        tuples!($($rest)*);
    };
}

tuples!(A B C D E F G H);

/// Adds a declaration to a layer that does not implement [`Declares`](super::Declares), such as one
/// from another crate: see the [module docs](super).
pub const fn declaring<D, L>(layer: L) -> Declaring<D, L>
where
    D: Capabilities,
{
    Declaring {
        layer,
        declared: PhantomData,
    }
}

/// A layer with an added declaration, created by [`declaring()`].
pub struct Declaring<D, L> {
    layer: L,
    declared: PhantomData<fn() -> D>,
}

impl<D, L> Declares for Declaring<D, L>
where
    D: Capabilities,
{
    type Capabilities = D;
}

impl<S, D, L> Layer<S> for Declaring<D, L>
where
    L: Layer<S>,
{
    type Service = L::Service;

    fn layer(&self, inner: S) -> Self::Service {
        self.layer.layer(inner)
    }
}

impl<D, L> Clone for Declaring<D, L>
where
    L: Clone,
{
    fn clone(&self) -> Self {
        Self {
            layer: self.layer.clone(),
            declared: PhantomData,
        }
    }
}

concentric_proto::opaque_debug!(Declaring<D, L>);
