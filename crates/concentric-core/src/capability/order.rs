//! Traits with which the compiler checks layers added to [`Layers`](super::Layers).
//!
//! The compiler looks a capability up in the type of the stack and encodes its position in an
//! inferred type, `Order`. The position is unique for a capability that occurs once, and inference
//! fails for one that is absent. Traits can't express "no layer outside provides this", but an
//! ambiguity can: [`ProvidesFirst`] holds for every layer in one way, and in a second way for a
//! layer that comes too late, which leaves `Order` ambiguous.

use super::{
    Around, Capabilities, Capability, CapabilityTable, Declares, Encloses, Expects, Outside,
    Provides, Requires, Within,
    check::Checked,
    declare::{Item, Kind},
};
use std::{any::type_name, fmt, marker::PhantomData};
use tower_layer::Layer;

/// The declaration of `L`, as `(A, (B, ()))`.
pub(super) type ListOf<L> = <<L as Declares>::Capabilities as Capabilities>::List;

/// An empty stack.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

/// `O`, with the layer `L` and its declaration inside.
#[derive(Clone, Debug)]
pub struct With<O, L> {
    pub(super) outer: O,
    pub(super) layer: L,
}

/// `O`, with the layer `L` inside, which declares nothing.
#[derive(Clone, Debug)]
pub struct Plain<O, L> {
    pub(super) outer: O,
    pub(super) layer: L,
}

/// `O`, inside a provider of a `C`.
#[derive(Clone)]
pub struct Given<O, C> {
    pub(super) outer: O,
    pub(super) given: PhantomData<fn() -> C>,
}

impl<O, C> fmt::Debug for Given<O, C>
where
    O: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given")
            .field("outer", &self.outer)
            .field("given", &type_name::<C>())
            .finish()
    }
}

/// `O`, around a service that uses a `C`.
#[derive(Clone)]
pub struct Used<O, C> {
    pub(super) outer: O,
    pub(super) used: PhantomData<fn() -> C>,
}

impl<O, C> Used<O, C>
where
    C: Capability,
{
    pub(super) const ITEMS: &'static [Item] = &[Item::new::<C>(Kind::Uses)];
}

impl<O, C> fmt::Debug for Used<O, C>
where
    O: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Used")
            .field("outer", &self.outer)
            .field("used", &type_name::<C>())
            .finish()
    }
}

/// The position of the innermost layer, or of the first entry.
#[derive(Debug)]
pub struct Here<I = ()>(PhantomData<I>);

/// A position further out, or further along.
#[derive(Debug)]
pub struct There<I>(PhantomData<I>);

// ---- lookups ----

/// A declaration with the entry `E`.
pub trait Lists<E, I> {}

impl<E, R> Lists<E, Here> for (E, R) {}

impl<E, F, R, I> Lists<E, There<I>> for (F, R) where R: Lists<E, I> {}

/// A stack that provides a `C` to `L`, the layer being added.
#[diagnostic::on_unimplemented(
    message = "`{L}` requires the capability `{C}`, which no layer before it provides",
    label = "no layer provides `{C}` before this",
    note = "add a layer that provides `{C}` before this one: the first layer added is outermost, and its capabilities are visible to the layers inside",
    note = "if it is provided outside these layers, declare that: `Layers::new().given::<{C}>()`"
)]
pub trait Offers<C, L, I> {}

#[diagnostic::do_not_recommend]
impl<C, L, O, M, I> Offers<C, L, Here<I>> for With<O, M>
where
    M: Declares,
    ListOf<M>: Lists<Provides<C>, I>,
{
}

#[diagnostic::do_not_recommend]
impl<C, L, O, M, I> Offers<C, L, There<I>> for With<O, M> where O: Offers<C, L, I> {}

#[diagnostic::do_not_recommend]
impl<C, L, O, M, I> Offers<C, L, I> for Plain<O, M> where O: Offers<C, L, I> {}

#[diagnostic::do_not_recommend]
impl<C, L, O> Offers<C, L, Here> for Given<O, C> {}

#[diagnostic::do_not_recommend]
impl<C, L, O, D, I> Offers<C, L, There<I>> for Given<O, D> where O: Offers<C, L, I> {}

#[diagnostic::do_not_recommend]
impl<C, L, O, D, I> Offers<C, L, I> for Used<O, D> where O: Offers<C, L, I> {}

/// A stack with a layer that declares the entry `E`.
pub trait Holds<E, I> {}

impl<E, O, M, I> Holds<E, Here<I>> for With<O, M>
where
    M: Declares,
    ListOf<M>: Lists<E, I>,
{
}

impl<E, O, M, I> Holds<E, There<I>> for With<O, M> where O: Holds<E, I> {}

impl<E, O, M, I> Holds<E, I> for Plain<O, M> where O: Holds<E, I> {}

impl<E, O, D, I> Holds<E, I> for Given<O, D> where O: Holds<E, I> {}

impl<E, O, D, I> Holds<E, I> for Used<O, D> where O: Holds<E, I> {}

/// A stack with a layer that requires a `C`, as its layer `L` expects.
#[diagnostic::on_unimplemented(
    message = "`{L}` has no effect: no layer inside it uses the capability `{C}`",
    label = "no layer uses `{C}`",
    note = "add `{U}` inside it",
    note = "if a service inside these layers uses it, declare that: `.used::<{C}>()`"
)]
pub trait Uses<C, U, L, I> {}

#[diagnostic::do_not_recommend]
impl<C, U, L, O, M, I> Uses<C, U, L, Here<I>> for With<O, M>
where
    M: Declares,
    ListOf<M>: Lists<Requires<C>, I>,
{
}

#[diagnostic::do_not_recommend]
impl<C, U, L, O, M, I> Uses<C, U, L, There<I>> for With<O, M> where O: Uses<C, U, L, I> {}

#[diagnostic::do_not_recommend]
impl<C, U, L, O, M, I> Uses<C, U, L, I> for Plain<O, M> where O: Uses<C, U, L, I> {}

#[diagnostic::do_not_recommend]
impl<C, U, L, O, D, I> Uses<C, U, L, I> for Given<O, D> where O: Uses<C, U, L, I> {}

#[diagnostic::do_not_recommend]
impl<C, U, L, O> Uses<C, U, L, Here> for Used<O, C> {}

#[diagnostic::do_not_recommend]
impl<C, U, L, O, D, I> Uses<C, U, L, There<I>> for Used<O, D> where O: Uses<C, U, L, I> {}

// ---- checks ----

/// A layer, with the declaration list `D`, that can be added to the stack `T`.
pub trait FitsInto<T, D, Order> {}

impl<L, T> FitsInto<T, (), ()> for L {}

impl<L, T, C, R, I, J> FitsInto<T, (Requires<C>, R), (I, J)> for L
where
    T: Offers<C, L, I>,
    L: FitsInto<T, R, J>,
{
}

impl<L, T, C, R, I, J> FitsInto<T, (Provides<C>, R), (I, J)> for L where
    L: ProvidesFirst<C, T, I> + FitsInto<T, R, J>
{
}

impl<L, T, Z, R, I, J> FitsInto<T, (Encloses<Z>, R), (I, J)> for L where
    L: EnclosesFirst<Z, T, I> + FitsInto<T, R, J>
{
}

impl<L, T, Z, R, J> FitsInto<T, (Within<Z>, R), J> for L where L: FitsInto<T, R, J> {}

impl<L, T, Z, R, I, J> FitsInto<T, (Around<Z>, R), (I, J)> for L where
    L: StaysOutside<Z, T, I> + FitsInto<T, R, J>
{
}

impl<L, T, C, U, R, J> FitsInto<T, (Expects<C, U>, R), J> for L where L: FitsInto<T, R, J> {}

impl<L, T, Z, R, I, J> FitsInto<T, (Outside<Z>, R), (I, J)> for L where
    L: StaysOutside<Z, T, I> + FitsInto<T, R, J>
{
}

/// A layer that is not inside the region `R` of the stack `T`.
pub trait StaysOutside<R, T, Order> {}

/// A layer before it encloses the region.
#[derive(Debug)]
pub struct StandsInside<I>(PhantomData<I>);

impl<L, R, T> StaysOutside<R, T, First> for L {}

impl<L, R, T, I> StaysOutside<R, T, StandsInside<I>> for L where T: Holds<Encloses<R>, I> {}

/// A layer that encloses the region `R`, outside all layers of the stack `T` that belong within
/// `R`.
pub trait EnclosesFirst<R, T, Order> {}

/// A layer before it belongs inside the region, but would be around it.
#[derive(Debug)]
pub struct StandsAround<I>(PhantomData<I>);

impl<L, R, T> EnclosesFirst<R, T, First> for L {}

impl<L, R, T, I> EnclosesFirst<R, T, StandsAround<I>> for L where T: Holds<Within<R>, I> {}

/// A stack, as a part of the whole stack `T`, whose expectations are met.
pub trait Complete<T, Order> {}

impl<T> Complete<T, ()> for Nothing {}

impl<T, O, L, I, J> Complete<T, (I, J)> for With<O, L>
where
    O: Complete<T, I>,
    L: Declares + Meets<T, ListOf<L>, J>,
{
}

impl<T, O, L, I> Complete<T, I> for Plain<O, L> where O: Complete<T, I> {}

impl<T, O, C, I> Complete<T, I> for Given<O, C> where O: Complete<T, I> {}

impl<T, O, C, I> Complete<T, I> for Used<O, C> where O: Complete<T, I> {}

/// A layer, with the declaration list `D`, whose expectations the stack `T` meets.
pub trait Meets<T, D, Order> {}

impl<L, T> Meets<T, (), ()> for L {}

impl<L, T, C, U, R, I, J> Meets<T, (Expects<C, U>, R), (I, J)> for L
where
    T: Uses<C, U, L, I>,
    L: Meets<T, R, J>,
{
}

macro_rules! nothing_to_meet {
    ($($entry:ident)*) => {$(
        impl<L, T, C, R, J> Meets<T, ($entry<C>, R), J> for L where L: Meets<T, R, J> {}
    )*};
}

nothing_to_meet!(Provides Requires Encloses Outside Within Around);

/// Layers that can be added to the stack `T` one by one.
pub trait AllFitInto<T, Order> {}

impl<T> AllFitInto<T, ()> for Nothing {}

impl<T, O, L, I, J> AllFitInto<T, (I, J)> for With<O, L>
where
    O: AllFitInto<T, I> + Append<T>,
    L: Declares + FitsInto<O::Stack, ListOf<L>, J>,
{
}

impl<T, O, L, I> AllFitInto<T, I> for Plain<O, L> where O: AllFitInto<T, I> {}

impl<T, O, C, I> AllFitInto<T, I> for Given<O, C> where O: AllFitInto<T, I> {}

impl<T, O, C, I> AllFitInto<T, I> for Used<O, C> where O: AllFitInto<T, I> {}

/// A layer that provides a `C` before any layer of the stack `T` provides one.
pub trait ProvidesFirst<C, T, Order> {}

/// No layer before it does.
#[derive(Debug)]
pub struct First;

/// A layer before it provides the same capability.
#[derive(Debug)]
pub struct AlreadyProvided<I>(PhantomData<I>);

impl<L, C, T> ProvidesFirst<C, T, First> for L {}

impl<L, C, T, I> ProvidesFirst<C, T, AlreadyProvided<I>> for L where T: Offers<C, L, I> {}

// ---- construction ----

/// Layers that can be added inside the stack `T`.
pub trait Append<T> {
    /// The combined stack.
    type Stack;

    /// Adds the layers inside `outer`.
    fn append(self, outer: T) -> Self::Stack;
}

impl<T> Append<T> for Nothing {
    type Stack = T;

    fn append(self, outer: T) -> T {
        outer
    }
}

impl<T, O, L> Append<T> for With<O, L>
where
    O: Append<T>,
{
    type Stack = With<O::Stack, L>;

    fn append(self, outer: T) -> Self::Stack {
        With {
            outer: self.outer.append(outer),
            layer: self.layer,
        }
    }
}

impl<T, O, L> Append<T> for Plain<O, L>
where
    O: Append<T>,
{
    type Stack = Plain<O::Stack, L>;

    fn append(self, outer: T) -> Self::Stack {
        Plain {
            outer: self.outer.append(outer),
            layer: self.layer,
        }
    }
}

impl<T, O, C> Append<T> for Given<O, C>
where
    O: Append<T>,
{
    // The combined stack must provide the capability, so its users are checked again.
    type Stack = O::Stack;

    fn append(self, outer: T) -> Self::Stack {
        self.outer.append(outer)
    }
}

impl<T, O, C> Append<T> for Used<O, C>
where
    O: Append<T>,
{
    type Stack = Used<O::Stack, C>;

    fn append(self, outer: T) -> Self::Stack {
        Used {
            outer: self.outer.append(outer),
            used: PhantomData,
        }
    }
}

/// Layers whose declarations can be listed.
pub trait Listed {
    /// Adds the declarations to `table`, outermost first.
    fn list(table: CapabilityTable) -> CapabilityTable;
}

impl Listed for Nothing {
    fn list(table: CapabilityTable) -> CapabilityTable {
        table
    }
}

impl<O, L> Listed for With<O, L>
where
    O: Listed,
    L: Declares,
{
    fn list(table: CapabilityTable) -> CapabilityTable {
        O::list(table).of::<L>()
    }
}

impl<O, L> Listed for Plain<O, L>
where
    O: Listed,
{
    fn list(table: CapabilityTable) -> CapabilityTable {
        O::list(table)
    }
}

impl<O, C> Listed for Given<O, C>
where
    O: Listed,
    C: Capability,
{
    fn list(table: CapabilityTable) -> CapabilityTable {
        O::list(table)
    }
}

impl<O, C> Listed for Used<O, C>
where
    O: Listed,
    C: Capability,
{
    fn list(table: CapabilityTable) -> CapabilityTable {
        O::list(table).used::<C>()
    }
}

impl<S> Layer<S> for Nothing {
    type Service = S;

    fn layer(&self, inner: S) -> S {
        inner
    }
}

impl<S, O, L> Layer<S> for With<O, L>
where
    L: Layer<Checked<S>> + Declares,
    O: Layer<L::Service>,
{
    type Service = O::Service;

    fn layer(&self, inner: S) -> Self::Service {
        // The compiler has checked the requirements against the declarations of the layers before.
        let inner = Checked::provided::<L>(inner);
        self.outer.layer(self.layer.layer(inner))
    }
}

impl<S, O, L> Layer<S> for Plain<O, L>
where
    L: Layer<S>,
    O: Layer<L::Service>,
{
    type Service = O::Service;

    fn layer(&self, inner: S) -> Self::Service {
        self.outer.layer(self.layer.layer(inner))
    }
}

impl<S, O, C> Layer<S> for Given<O, C>
where
    O: Layer<Checked<S>>,
    C: Capability,
{
    type Service = O::Service;

    fn layer(&self, inner: S) -> Self::Service {
        self.outer.layer(Checked::given::<C>(inner))
    }
}

impl<S, O, C> Layer<S> for Used<O, C>
where
    O: Layer<Checked<S>>,
    C: Capability,
{
    type Service = O::Service;

    fn layer(&self, inner: S) -> Self::Service {
        self.outer.layer(Checked::used::<C>(inner))
    }
}
