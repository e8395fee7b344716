use super::{Capability, Declares, Region};
use crate::context::Context;
use std::{
    any::{TypeId, type_name},
    fmt,
    marker::PhantomData,
};
use tower_layer::Layer;

/// In [`Declares`]: the layer provides a `C`, which no layer outside of it does.
#[derive(Debug)]
pub struct Provides<C>(PhantomData<fn() -> C>);

/// In [`Declares`]: the layer requires a `C` from a layer outside.
#[derive(Debug)]
pub struct Requires<C>(PhantomData<fn() -> C>);

/// In [`Declares`]: everything inside the layer is in the [region](super::Region) `R`.
#[derive(Debug)]
pub struct Encloses<R>(PhantomData<fn() -> R>);

/// In [`Declares`]: the layer must not be inside the [region](super::Region) `R`.
#[derive(Debug)]
pub struct Outside<R>(PhantomData<fn() -> R>);

/// In [`Declares`]: the layer belongs inside the [region](super::Region) `R`, as a layer for model
/// calls does. A layer that encloses `R` must not be inside this layer, unless another layer that
/// encloses `R` is outside.
///
/// If no layer encloses `R`, nothing is checked: a model without a loop may have such layers.
#[derive(Debug)]
pub struct Within<R>(PhantomData<fn() -> R>);

/// In [`Declares`]: the layer belongs around a layer that encloses the [region](super::Region) `R`,
/// as a layer for runs does. A layer that is itself in `R` must be around another one that encloses
/// `R`.
///
/// Within one [`Layers`](super::Layers) it is checked like [`Outside`]: an agent in the position of
/// a model is a separate stack.
#[derive(Debug)]
pub struct Around<R>(PhantomData<fn() -> R>);

/// In [`Declares`]: a layer inside, such as `U`, must use the available `C`, or this layer has no
/// effect.
#[derive(Debug)]
pub struct Expects<C, U>(PhantomData<fn() -> (C, U)>);

/// The declaration of a layer: one entry, a tuple of up to eight, or `()`.
///
/// Not intended for other implementations.
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

/// An entry of a declaration: for a capability, [`Provides`], [`Requires`] or
/// [`Expects`]; for a region, [`Encloses`], [`Outside`], [`Within`] or [`Around`].
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
    /// Returns whether the context has the capability.
    pub(super) is_in: fn(&Context) -> bool,
    /// Returns the name of the layer that encloses the region.
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
    const fn region<R>(kind: Kind) -> Self
    where
        R: Region,
    {
        Self {
            kind,
            id: TypeId::of::<R>,
            name: type_name::<R>,
            is_in: |context| R::layer(context).is_some(),
            layer: R::layer,
            other: || None,
        }
    }

    pub(super) const fn new<C>(kind: Kind) -> Self
    where
        C: Capability,
    {
        Self {
            kind,
            id: TypeId::of::<C>,
            name: type_name::<C>,
            is_in: |context| context.capability::<C>().is_some(),
            layer: |_| None,
            other: C::provider,
        }
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}<{}>", self.kind, (self.name)())
    }
}

macro_rules! regions {
    ($($entry:ident)*) => {$(
        impl<R> Entry for $entry<R>
        where
            R: Region,
        {
            const ITEM: Item = Item::region::<R>(Kind::$entry);
        }

        impl<R> Capabilities for $entry<R>
        where
            R: Region,
        {
            type List = (Self, ());
            const ITEMS: &'static [Item] = &[Self::ITEM];
        }
    )*};
}

regions!(Encloses Outside Within Around);

impl<C, U> Entry for Expects<C, U>
where
    C: Capability,
{
    const ITEM: Item = Item {
        other: || Some(type_name::<U>()),
        ..Item::new::<C>(Kind::Expects)
    };
}

impl<C, U> Capabilities for Expects<C, U>
where
    C: Capability,
{
    type List = (Self, ());
    const ITEMS: &'static [Item] = &[Self::ITEM];
}

macro_rules! entries {
    ($($entry:ident)*) => {$(
        impl<C> Entry for $entry<C>
        where
            C: Capability,
        {
            const ITEM: Item = Item::new::<C>(Kind::$entry);
        }

        impl<C> Capabilities for $entry<C>
        where
            C: Capability,
        {
            type List = (Self, ());
            const ITEMS: &'static [Item] = &[Self::ITEM];
        }
    )*};
}

entries!(Provides Requires);

impl Capabilities for () {
    type List = ();
    const ITEMS: &'static [Item] = &[];
}

macro_rules! tuples {
    () => {};
    ($first:ident $($rest:ident)*) => {
        impl<$first, $($rest),*> Capabilities for ($first, $($rest,)*)
        where
            $first: Entry,
            $($rest: Entry,)*
        {
            type List = ($first, <($($rest,)*) as Capabilities>::List);
            const ITEMS: &'static [Item] = &[$first::ITEM, $($rest::ITEM),*];
        }

        tuples!($($rest)*);
    };
}

tuples!(A B C D E F G H);

/// Adds a declaration to a layer that does not implement [`Declares`](super::Declares).
///
/// ```
/// use concentric_core::{
///     BoxModel, Capability, ChatRequest, ChatResponse, Error, EventStream, Layers,
///     capability::{Provides, Requires, declaring},
/// };
/// use concentric_layers::{Next, from_fn};
///
/// #[derive(Clone)]
/// struct Language(&'static str);
///
/// impl Capability for Language {}
///
/// async fn detect(mut request: ChatRequest, mut next: Next) -> Result<ChatResponse<EventStream>, Error> {
///     request.context.provide(Language("en"));
///     next.run(request).await
/// }
///
/// async fn translate(request: ChatRequest, mut next: Next) -> Result<ChatResponse<EventStream>, Error> {
///     let Language(language) = *request.context.require()?;
///     println!("{language}");
///     next.run(request).await
/// }
///
/// fn agent(model: BoxModel) -> BoxModel {
///     BoxModel::new(
///         Layers::new()
///             .with(declaring::<Provides<Language>, _>(from_fn(detect)))
///             .with(declaring::<Requires<Language>, _>(from_fn(translate)))
///             .service(model),
///     )
/// }
/// # let _ = agent;
/// ```
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

impl<D, L> fmt::Debug for Declaring<D, L>
where
    L: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Declaring").field(&self.layer).finish()
    }
}
