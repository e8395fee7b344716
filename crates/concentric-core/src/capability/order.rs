//! Traits with which the compiler checks layers added to [`Layers`](super::Layers).
//!
//! A stack is a list of its layers, `(L, (M, ()))`, innermost first. The compiler looks an entry up
//! in their declarations and encodes its position in an inferred type, `Order`. The position is
//! unique for an entry that occurs once, and inference fails for one that is absent. Traits can't
//! express "no layer outside provides this", but an ambiguity can: [`ProvidesFirst`] holds for every
//! layer in one way, and in a second way for a layer that comes too late, which leaves `Order`
//! ambiguous.

use super::{
    Around, Capabilities, Capability, CapabilityTable, Declares, Encloses, Expects, Outside,
    Provides, Requires, Within,
};
use std::marker::PhantomData;

/// The declaration of `L`, as `(A, (B, ()))`.
pub(super) type ListOf<L> = <<L as Declares>::Capabilities as Capabilities>::List;

/// A member of a stack that stands for a provider of a `C` outside of it.
#[derive(Clone, Debug)]
pub struct Given<C>(PhantomData<fn() -> C>);

/// A member of a stack that stands for a service inside it that uses a `C`.
#[derive(Clone, Debug)]
pub struct Used<C>(PhantomData<fn() -> C>);

/// A member of a stack.
pub trait Member {
    /// Its declaration.
    type List;

    /// Adds the declaration to `table`.
    fn list(table: CapabilityTable) -> CapabilityTable;
}

impl<L> Member for L
where
    L: Declares,
{
    type List = ListOf<L>;

    fn list(table: CapabilityTable) -> CapabilityTable {
        table.of::<L>()
    }
}

impl<C> Member for Given<C> {
    type List = (Provides<C>, ());

    fn list(table: CapabilityTable) -> CapabilityTable {
        table
    }
}

impl<C> Member for Used<C>
where
    C: Capability,
{
    type List = (Requires<C>, ());

    fn list(table: CapabilityTable) -> CapabilityTable {
        table.used::<C>()
    }
}

/// Layers whose declarations can be listed, outermost first.
pub trait Listed {
    /// Returns their declarations.
    fn list() -> CapabilityTable;
}

impl Listed for () {
    fn list() -> CapabilityTable {
        CapabilityTable::new()
    }
}

impl<M, O> Listed for (M, O)
where
    M: Member,
    O: Listed,
{
    fn list() -> CapabilityTable {
        M::list(O::list())
    }
}

// ---- lookups ----

/// The position of the first entry, or of the innermost layer with its entry's position `I`.
#[derive(Debug)]
pub struct Here<I = ()>(PhantomData<I>);

/// A position further along.
#[derive(Debug)]
pub struct There<I>(PhantomData<I>);

/// A declaration with the entry `E`.
pub trait Lists<E, I> {}

impl<E, R> Lists<E, Here> for (E, R) {}

impl<E, F, R, I> Lists<E, There<I>> for (F, R) where R: Lists<E, I> {}

/// A stack with a layer that declares the entry `E`.
pub trait Holds<E, I> {}

impl<E, M, O, I> Holds<E, Here<I>> for (M, O)
where
    M: Member,
    M::List: Lists<E, I>,
{
}

impl<E, M, O, I> Holds<E, There<I>> for (M, O) where O: Holds<E, I> {}

/// A stack that provides a `C` to `L`, the layer being added.
#[diagnostic::on_unimplemented(
    message = "`{L}` requires the capability `{C}`, which no layer before it provides",
    label = "no layer provides `{C}` before this",
    note = "add a layer that provides `{C}` before this one: the first layer added is outermost, and its capabilities are visible to the layers inside",
    note = "if it is provided outside these layers, declare that: `Layers::new().given::<{C}>()`"
)]
pub trait Offers<C, L, I> {}

#[diagnostic::do_not_recommend]
impl<C, L, T, I> Offers<C, L, I> for T where T: Holds<Provides<C>, I> {}

/// A stack with a layer that requires a `C`, as its layer `L` expects.
#[diagnostic::on_unimplemented(
    message = "`{L}` has no effect: no layer inside it uses the capability `{C}`",
    label = "no layer uses `{C}`",
    note = "add `{U}` inside it",
    note = "if a service inside these layers uses it, declare that: `.used::<{C}>()`"
)]
pub trait Uses<C, U, L, I> {}

#[diagnostic::do_not_recommend]
impl<C, U, L, T, I> Uses<C, U, L, I> for T where T: Holds<Requires<C>, I> {}

// ---- mistakes: each trait has a second implementation that only a mistake satisfies ----

/// No layer before it makes the mistake.
#[derive(Debug)]
pub struct First;

/// A layer before it, at the position `I`, makes the mistake.
#[derive(Debug)]
pub struct Second<I>(PhantomData<I>);

/// A layer that provides a `C` before any layer of the stack `T` provides one.
pub trait ProvidesFirst<C, T, Order> {}

impl<L, C, T> ProvidesFirst<C, T, First> for L {}

impl<L, C, T, I> ProvidesFirst<C, T, Second<I>> for L where T: Holds<Provides<C>, I> {}

/// A layer that is not inside the region `R` of the stack `T`.
pub trait StaysOutside<R, T, Order> {}

impl<L, R, T> StaysOutside<R, T, First> for L {}

impl<L, R, T, I> StaysOutside<R, T, Second<I>> for L where T: Holds<Encloses<R>, I> {}

/// A layer that encloses the region `R`, outside all layers of the stack `T` that belong within
/// `R`.
pub trait EnclosesFirst<R, T, Order> {}

impl<L, R, T> EnclosesFirst<R, T, First> for L {}

impl<L, R, T, I> EnclosesFirst<R, T, Second<I>> for L where T: Holds<Within<R>, I> {}

// ---- checks ----

/// A declaration of the layer `L` that fits into the stack `T` around it.
pub trait FitsInto<T, L, Order> {}

impl<T, L> FitsInto<T, L, ()> for () {}

impl<T, L, C, R, I, J> FitsInto<T, L, (I, J)> for (Requires<C>, R)
where
    T: Offers<C, L, I>,
    R: FitsInto<T, L, J>,
{
}

impl<T, L, C, R, I, J> FitsInto<T, L, (I, J)> for (Provides<C>, R)
where
    L: ProvidesFirst<C, T, I>,
    R: FitsInto<T, L, J>,
{
}

impl<T, L, Z, R, I, J> FitsInto<T, L, (I, J)> for (Encloses<Z>, R)
where
    L: EnclosesFirst<Z, T, I>,
    R: FitsInto<T, L, J>,
{
}

macro_rules! stays_outside {
    ($($entry:ident)*) => {$(
        impl<T, L, Z, R, I, J> FitsInto<T, L, (I, J)> for ($entry<Z>, R)
        where
            L: StaysOutside<Z, T, I>,
            R: FitsInto<T, L, J>,
        {
        }
    )*};
}

stays_outside!(Outside Around);

impl<T, L, Z, R, J> FitsInto<T, L, J> for (Within<Z>, R) where R: FitsInto<T, L, J> {}

impl<T, L, C, U, R, J> FitsInto<T, L, J> for (Expects<C, U>, R) where R: FitsInto<T, L, J> {}

/// A stack, as a part of the whole stack `T`, whose expectations are met.
pub trait Complete<T, Order> {}

impl<T> Complete<T, ()> for () {}

impl<T, M, O, I, J> Complete<T, (I, J)> for (M, O)
where
    O: Complete<T, I>,
    M: Member,
    M::List: MetBy<T, M, J>,
{
}

/// A declaration of the layer `L` whose expectations the stack `T` meets.
pub trait MetBy<T, L, Order> {}

impl<T, L> MetBy<T, L, ()> for () {}

impl<T, L, C, U, R, I, J> MetBy<T, L, (I, J)> for (Expects<C, U>, R)
where
    T: Uses<C, U, L, I>,
    R: MetBy<T, L, J>,
{
}

macro_rules! expects_nothing {
    ($($entry:ident)*) => {$(
        impl<T, L, C, R, J> MetBy<T, L, J> for ($entry<C>, R) where R: MetBy<T, L, J> {}
    )*};
}

expects_nothing!(Provides Requires Encloses Outside Within Around);

/// Layers that can be added inside the stack `T`.
pub trait Append<T> {
    /// The combined stack.
    type Stack;
}

impl<T> Append<T> for () {
    type Stack = T;
}

impl<T, L, O> Append<T> for (L, O)
where
    L: Declares,
    O: Append<T>,
{
    type Stack = (L, O::Stack);
}

// The combined stack must provide the capability, so its users are checked again.
impl<T, C, O> Append<T> for (Given<C>, O)
where
    O: Append<T>,
{
    type Stack = O::Stack;
}

impl<T, C, O> Append<T> for (Used<C>, O)
where
    O: Append<T>,
{
    type Stack = (Used<C>, O::Stack);
}

/// Layers that can be added to the stack `T` one by one.
pub trait AllFitInto<T, Order> {}

impl<T> AllFitInto<T, ()> for () {}

impl<T, L, O, I, J> AllFitInto<T, (I, J)> for (L, O)
where
    O: AllFitInto<T, I> + Append<T>,
    L: Declares,
    ListOf<L>: FitsInto<O::Stack, L, J>,
{
}

impl<T, C, O, I> AllFitInto<T, I> for (Given<C>, O) where O: AllFitInto<T, I> {}

impl<T, C, O, I> AllFitInto<T, I> for (Used<C>, O) where O: AllFitInto<T, I> {}
