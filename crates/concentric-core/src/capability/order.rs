//! What the compiler goes by when a layer is added to [`Layers`](super::Layers): nothing to call.
//!
//! It looks a capability up in the type of the stack so far, and notes where it was, in a type that
//! is inferred, `Order`. There is one answer for what is there once, and none for what is not.
//! "Nobody outside says this" can't be asked so, but "is there one answer?" can: [`ProvidesFirst`]
//! is true of every layer in one way, and in a second way of one that comes too late, which leaves
//! `Order` open.

use super::{
    Around, Capabilities, Capability, Checked, Declares, Encloses, Expects, Optional, Outside,
    Provides, Replaces, Requires, Table, Within,
};
use std::{any::type_name, fmt, marker::PhantomData};
use tower_layer::Layer;

/// What `L` declares, as `(A, (B, ()))`.
pub type ListOf<L> = <<L as Declares>::Capabilities as Capabilities>::List;

/// No layers yet.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

/// `O`, and inside of it `L`, which declares what it does.
#[derive(Clone, Debug)]
pub struct With<O, L> {
    pub(super) outer: O,
    pub(super) layer: L,
}

/// `O`, and inside of it `L`, which declares nothing.
#[derive(Clone, Debug)]
pub struct Plain<O, L> {
    pub(super) outer: O,
    pub(super) layer: L,
}

/// `O`, which stands inside of something that provides a `C`.
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

/// `O`, inside of which something uses a `C`.
#[derive(Clone)]
pub struct Used<O, C> {
    pub(super) outer: O,
    pub(super) used: PhantomData<fn() -> C>,
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

/// It is this one.
#[derive(Debug)]
pub struct Here<I = ()>(PhantomData<I>);

/// It is further out, or further on.
#[derive(Debug)]
pub struct There<I>(PhantomData<I>);

// ---- what is there ----

/// A declaration that has the entry `E`.
pub trait Lists<E, I> {}

impl<E, R> Lists<E, Here> for (E, R) {}

impl<E, F, R, I> Lists<E, There<I>> for (F, R) where R: Lists<E, I> {}

/// A stack that provides a `C` for `L`, which is added to it.
#[diagnostic::on_unimplemented(
    message = "`{L}` requires the capability `{C}`, and no layer before it provides that",
    label = "nobody provides `{C}` up to here",
    note = "add a layer that provides `{C}` before this one: the first added is the outermost, and what it provides is seen by those inside",
    note = "if it comes from outside of these layers, say so: `Layers::new().given::<{C}>()`"
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

/// A stack with a layer that requires a `C`, as the layer `L` of it expects.
#[diagnostic::on_unimplemented(
    message = "`{L}` has no effect: no layer inside of it uses the capability `{C}`",
    label = "no layer uses `{C}`",
    note = "add `{U}` inside of it",
    note = "if a service inside of these layers uses it, say so: `.used::<{C}>()`"
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

/// A stack with a layer that uses a `C` if there is one.
pub trait LooksFor<C, I> {}

impl<C, O, M, I> LooksFor<C, Here<I>> for With<O, M>
where
    M: Declares,
    ListOf<M>: Lists<Optional<C>, I>,
{
}

impl<C, O, M, I> LooksFor<C, There<I>> for With<O, M> where O: LooksFor<C, I> {}

impl<C, O, M, I> LooksFor<C, I> for Plain<O, M> where O: LooksFor<C, I> {}

impl<C, O, D, I> LooksFor<C, I> for Given<O, D> where O: LooksFor<C, I> {}

impl<C, O, D, I> LooksFor<C, I> for Used<O, D> where O: LooksFor<C, I> {}

// ---- what fits ----

/// A layer that can be added to the stack `T`, by the list `D` of what it declares.
pub trait FitsInto<T, D, Order> {}

impl<L, T> FitsInto<T, (), ()> for L {}

impl<L, T, C, R, I, J> FitsInto<T, (Requires<C>, R), (I, J)> for L
where
    T: Offers<C, L, I>,
    L: FitsInto<T, R, J>,
{
}

impl<L, T, C, R, I, J> FitsInto<T, (Replaces<C>, R), (I, J)> for L
where
    T: Offers<C, L, I>,
    L: FitsInto<T, R, J>,
{
}

impl<L, T, C, R, J> FitsInto<T, (Optional<C>, R), J> for L where L: FitsInto<T, R, J> {}

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

/// A layer that is not inside of the region `R` of the stack `T`.
pub trait StaysOutside<R, T, Order> {}

/// A layer before it encloses the region.
#[derive(Debug)]
pub struct StandsInside<I>(PhantomData<I>);

impl<L, R, T> StaysOutside<R, T, First> for L {}

impl<L, R, T, I> StaysOutside<R, T, StandsInside<I>> for L where T: Holds<Encloses<R>, I> {}

/// A layer that encloses the region `R`, and is not inside of one of the stack `T` that belongs into
/// the region.
pub trait EnclosesFirst<R, T, Order> {}

/// A layer before it belongs inside of the region, and would stand around it.
#[derive(Debug)]
pub struct StandsAround<I>(PhantomData<I>);

impl<L, R, T> EnclosesFirst<R, T, First> for L {}

impl<L, R, T, I> EnclosesFirst<R, T, StandsAround<I>> for L where T: Holds<Within<R>, I> {}

/// A stack, of which the whole is `T`, whose layers use what others of them expect to be used.
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

/// A layer of which the stack `T` does what it expects, by the list `D` of what it declares.
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

nothing_to_meet!(Provides Requires Optional Replaces Encloses Outside Within Around);

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

/// A layer that provides a `C`, and is the first in the stack `T` to do so, or to look for one.
pub trait ProvidesFirst<C, T, Order> {}

/// It is the first.
#[derive(Debug)]
pub struct First;

/// Another layer before it provides the same: only one may, or the later one `Replaces` it.
#[derive(Debug)]
pub struct AlreadyProvided<I>(PhantomData<I>);

/// A layer before it uses that if it is there, and would not see it.
#[derive(Debug)]
pub struct AlreadyLookedFor<I>(PhantomData<I>);

impl<L, C, T> ProvidesFirst<C, T, First> for L {}

impl<L, C, T, I> ProvidesFirst<C, T, AlreadyProvided<I>> for L where T: Offers<C, L, I> {}

impl<L, C, T, I> ProvidesFirst<C, T, AlreadyLookedFor<I>> for L where T: LooksFor<C, I> {}

// ---- what it is made of ----

/// Layers that stand inside of the stack `T`, once they are added to it.
pub trait Append<T> {
    /// The stack with them.
    type Stack;

    /// Adds them to it.
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
    // It is to be provided now: whoever requires it is asked again.
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
    /// Adds them to `table`, the outermost first.
    fn list(table: Table) -> Table;
}

impl Listed for Nothing {
    fn list(table: Table) -> Table {
        table
    }
}

impl<O, L> Listed for With<O, L>
where
    O: Listed,
    L: Declares,
{
    fn list(table: Table) -> Table {
        O::list(table).of::<L>()
    }
}

impl<O, L> Listed for Plain<O, L>
where
    O: Listed,
{
    fn list(table: Table) -> Table {
        O::list(table)
    }
}

impl<O, C> Listed for Given<O, C>
where
    O: Listed,
    C: Capability,
{
    fn list(table: Table) -> Table {
        O::list(table)
    }
}

impl<O, C> Listed for Used<O, C>
where
    O: Listed,
    C: Capability,
{
    fn list(table: Table) -> Table {
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
        // What it requires is there, if all before it do as they say.
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
