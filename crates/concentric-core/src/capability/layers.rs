use super::{
    Capability, CapabilityTable, Declares,
    order::{
        AllFitInto, Append, Complete, FitsInto, Given, ListOf, Listed, Nothing, Plain, Used, With,
    },
};
use std::marker::PhantomData;
use tower_layer::Layer;

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
/// ```compile_fail,E0283
/// # use concentric_core::{AgentLayer, Declares, Layers, NoTools, capability::{InLoop, Outside}};
/// # struct OncePerRunLayer;
/// # impl Declares for OncePerRunLayer {
/// #     type Capabilities = Outside<InLoop>;
/// # }
/// // "multiple `impl`s satisfying `OncePerRunLayer: StaysOutside<InLoop, ..>` found"
/// Layers::new().with(AgentLayer::new(NoTools)).with(OncePerRunLayer);
/// ```
///
/// ```compile_fail,E0283
/// # use concentric_core::{AgentLayer, Declares, Layers, NoTools, capability::{InLoop, Within}};
/// # struct OncePerCallLayer;
/// # impl Declares for OncePerCallLayer {
/// #     type Capabilities = Within<InLoop>;
/// # }
/// // "multiple `impl`s satisfying `AgentLayer<NoTools>: EnclosesFirst<InLoop, ..>` found"
/// Layers::new().with(OncePerCallLayer).with(AgentLayer::new(NoTools));
/// ```
///
/// # Cost
///
/// Inside each layer that is added [`with`](Self::with) its declaration, each call checks that the
/// context contains the capabilities the layer provides: one lookup by type per capability and
/// call, nothing per event. The same applies to [`given`](Self::given) capabilities. A stack of
/// 16 such layers takes about as long to compile as one of 16 other layers.
#[derive(Clone, Debug)]
pub struct Layers<T = Nothing>(T);

impl Layers {
    /// Creates a stack without layers.
    pub const fn new() -> Self {
        Self(Nothing)
    }
}

impl<T> Layers<T> {
    /// Declares that a `C` is available from outside: provided by the host in the run's context, or
    /// by a stack around this one.
    ///
    /// The compiler does not check this; calls fail if the capability is absent. When the stack is
    /// [added](Self::and) to another, that stack must provide the capability.
    pub fn given<C>(self) -> Layers<Given<T, C>>
    where
        C: Capability,
    {
        Layers(Given {
            outer: self.0,
            given: PhantomData,
        })
    }

    /// Declares that a service inside these layers uses the `C` that one of them
    /// [expects](super::Expects) to be used. An example is a fallback with such a layer around each
    /// model.
    pub fn used<C>(self) -> Layers<Used<T, C>>
    where
        C: Capability,
    {
        Layers(Used {
            outer: self.0,
            used: PhantomData,
        })
    }

    /// Adds a layer with its [declaration](Declares), inside the layers added before.
    ///
    /// `Order` is inferred. Error E0283 for it means that the layer is in the wrong position: see
    /// [compile errors](Self#compile-errors).
    pub fn with<L, Order>(self, layer: L) -> Layers<With<T, L>>
    where
        L: Declares + FitsInto<T, ListOf<L>, Order>,
    {
        Layers(With {
            outer: self.0,
            layer,
        })
    }

    /// Adds a layer that declares nothing, inside the layers added before.
    pub fn layer<L>(self, layer: L) -> Layers<Plain<T, L>> {
        Layers(Plain {
            outer: self.0,
            layer,
        })
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
    pub fn and<U, Order>(self, inner: Layers<U>) -> Layers<U::Stack>
    where
        U: Append<T> + AllFitInto<T, Order>,
    {
        Layers(inner.0.append(self.0))
    }

    /// Wraps a service.
    ///
    /// `Order` is inferred if the layers use the capabilities that others among them
    /// [expect](super::Expects) to be used.
    pub fn service<S, Order>(&self, service: S) -> T::Service
    where
        T: Layer<S> + Complete<T, Order>,
    {
        self.0.layer(service)
    }

    /// Returns the declarations of the layers, to check them together with those of other stacks.
    ///
    /// [Given](Self::given) capabilities are not included: the table must contain their provider.
    pub fn table(&self) -> CapabilityTable
    where
        T: Listed,
    {
        T::list(CapabilityTable::new())
    }
}

impl Default for Layers {
    fn default() -> Self {
        Self::new()
    }
}

impl<S, T> Layer<S> for Layers<T>
where
    T: Layer<S>,
{
    type Service = T::Service;

    fn layer(&self, inner: S) -> Self::Service {
        self.0.layer(inner)
    }
}
