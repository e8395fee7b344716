use super::{
    Capability, CapabilityTable, Declares,
    check::Check,
    order::{AllFitInto, Append, Complete, FitsInto, Given, ListOf, Listed, Used},
};
use std::{fmt, marker::PhantomData};
use tower_layer::{Identity, Layer, Stack};

/// A stack of layers whose requirements the compiler checks; the first layer added is outermost.
///
/// `Layers` is a [`Layer`], like `ServiceBuilder`, and can be added to one. See the
/// [module docs](super) for an example.
///
/// # Compile errors
///
/// A layer whose [`Requires`](super::Requires) no layer before it provides does not compile:
///
/// ```compile_fail,E0277
/// # use concentric_core::{Capability, Declares, Layers, capability::{Provides, Requires}};
/// # #[derive(Clone)]
/// # struct Store;
/// # impl Capability for Store {}
/// # struct StoreLayer;
/// # struct RecallLayer;
/// # impl Declares for StoreLayer {
/// #     type Capabilities = Provides<Store>;
/// # }
/// # impl Declares for RecallLayer {
/// #     type Capabilities = Requires<Store>;
/// # }
/// // "`RecallLayer` requires the capability `Store`, which no layer before it provides"
/// Layers::new().with(RecallLayer).with(StoreLayer);
/// ```
///
/// For the other mistakes rustc has no specific message. It reports E0283, "type annotations
/// needed", at the call of [`with`](Self::with) that adds the second of two conflicting layers.
/// Ignore its suggestion to specify generic arguments: no argument makes the order valid. The note
/// names the layer, the stack before it, and a trait that identifies the mistake:
///
/// | "multiple `impl`s satisfying" | mistake and remedy |
/// |---|---|
/// | `L: ProvidesFirst<C, ..>` | The layer [provides](super::Provides) a `C` that a layer before it provides: remove one of the two. |
/// | `L: StaysOutside<R, ..>` | The layer must be [outside](super::Outside) the [region](super::Region) `R` but is inside a layer that [encloses](super::Encloses) it: swap the two, or remove one. |
/// | `L: EnclosesFirst<R, ..>` | The layer encloses the region `R` but is inside a layer that belongs [within](super::Within) `R`: swap the two. |
///
/// One such error is not a mistake: `Uses<C, ..>` at the call of [`service`](Self::service).
/// Several layers use the `C` that a layer [expects](super::Expects) to be used, so inference is
/// ambiguous. [`Layer::layer`]`(&layers, service)` wraps the service without this check; the use of
/// `C` is then checked when the model is called.
///
/// A [`CapabilityTable`] of the same layers reports the mistake with a message.
///
/// ```compile_fail,E0283
/// # use concentric_core::{Capability, Declares, Layers, capability::Provides};
/// # #[derive(Clone)]
/// # struct Store;
/// # impl Capability for Store {}
/// # struct StoreLayer;
/// # impl Declares for StoreLayer {
/// #     type Capabilities = Provides<Store>;
/// # }
/// // "multiple `impl`s satisfying `StoreLayer: ProvidesFirst<Store, ..>` found"
/// Layers::new().with(StoreLayer).with(StoreLayer);
/// ```
///
/// # Cost
///
/// Inside each layer that is added [`with`](Self::with) its declaration, each call checks that the
/// context contains the capabilities the layer provides: one lookup by type per capability and
/// call, nothing per event. The same applies to [`given`](Self::given) capabilities. A stack of
/// 16 such layers takes about as long to compile as one of 16 other layers.
#[derive(Clone)]
pub struct Layers<T = (), S = Identity> {
    stack: S,
    members: PhantomData<fn() -> T>,
}

impl Layers {
    /// Creates a stack without layers.
    pub const fn new() -> Self {
        Self {
            stack: Identity::new(),
            members: PhantomData,
        }
    }
}

impl<T, S> Layers<T, S> {
    fn inside<U, L>(self, layer: L) -> Layers<U, Stack<L, S>> {
        Layers {
            stack: Stack::new(layer, self.stack),
            members: PhantomData,
        }
    }

    /// Declares that a `C` is available from outside: provided by the host in the run's context, or
    /// by a stack around this one.
    ///
    /// The compiler does not check this; calls fail if the capability is absent. When the stack is
    /// [added](Self::and) to another, that stack must provide the capability.
    pub fn given<C>(self) -> Layers<(Given<C>, T), Stack<Check, S>>
    where
        C: Capability,
    {
        self.inside(Check::given::<C>())
    }

    /// Declares that a service inside these layers uses the `C` that one of them
    /// [expects](super::Expects) to be used. An example is a fallback with such a layer around each
    /// model.
    pub fn used<C>(self) -> Layers<(Used<C>, T), Stack<Check, S>>
    where
        C: Capability,
    {
        self.inside(Check::used::<C>())
    }

    /// Adds a layer with its [declaration](Declares), inside the layers added before.
    ///
    /// `Order` is inferred. Error E0283 for it means that the layer is in the wrong position: see
    /// [compile errors](Self#compile-errors).
    pub fn with<L, Order>(self, layer: L) -> Layers<(L, T), Stack<Stack<Check, L>, S>>
    where
        L: Declares,
        ListOf<L>: FitsInto<T, L, Order>,
    {
        self.inside(Stack::new(Check::provided::<L>(), layer))
    }

    /// Adds a layer that declares nothing, inside the layers added before.
    pub fn layer<L>(self, layer: L) -> Layers<T, Stack<L, S>> {
        self.inside(layer)
    }

    /// Adds the layers of another stack as if they were added one by one.
    ///
    /// ```
    /// # use concentric_core::{Capability, Declares, Layers, capability::{Provides, Requires}};
    /// # #[derive(Clone)]
    /// # struct Store;
    /// # impl Capability for Store {}
    /// # struct StoreLayer;
    /// # struct RecallLayer;
    /// # impl Declares for StoreLayer {
    /// #     type Capabilities = Provides<Store>;
    /// # }
    /// # impl Declares for RecallLayer {
    /// #     type Capabilities = Requires<Store>;
    /// # }
    /// let memory = Layers::new().given::<Store>().with(RecallLayer);
    /// let all = Layers::new().with(StoreLayer).and(memory);
    /// # let _ = all;
    /// ```
    pub fn and<U, R, Order>(self, inner: Layers<U, R>) -> Layers<U::Stack, Stack<R, S>>
    where
        U: Append<T> + AllFitInto<T, Order>,
    {
        self.inside(inner.stack)
    }

    /// Wraps a service.
    ///
    /// `Order` is inferred if the layers use the capabilities that others among them
    /// [expect](super::Expects) to be used.
    pub fn service<I, Order>(&self, service: I) -> S::Service
    where
        S: Layer<I>,
        T: Complete<T, Order>,
    {
        self.stack.layer(service)
    }

    /// Returns the declarations of the layers, to check them together with those of other stacks.
    ///
    /// [Given](Self::given) capabilities are not included: the table must contain their provider.
    pub fn table(&self) -> CapabilityTable
    where
        T: Listed,
    {
        T::list()
    }
}

impl Default for Layers {
    fn default() -> Self {
        Self::new()
    }
}

impl<I, T, S> Layer<I> for Layers<T, S>
where
    S: Layer<I>,
{
    type Service = S::Service;

    fn layer(&self, inner: I) -> Self::Service {
        self.stack.layer(inner)
    }
}

impl<T, S> fmt::Debug for Layers<T, S>
where
    S: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layers").field(&self.stack).finish()
    }
}
