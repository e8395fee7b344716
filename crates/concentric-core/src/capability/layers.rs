use super::{
    Capability, Declares, Table,
    order::{
        AllFitInto, Append, Complete, FitsInto, Given, ListOf, Listed, Nothing, Plain, Used, With,
    },
};
use std::marker::PhantomData;
use tower_layer::Layer;

/// A stack of layers, the first added outermost, in which each has what it requires.
///
/// It is a [`Layer`], as `ServiceBuilder` is, and can be put into one. See the
/// [module docs](super) for an example.
///
/// # What does not compile
///
/// A layer whose [`Requires`](super::Requires) nobody before it provides:
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
/// // "`RecallLayer` requires the capability `Store`, and no layer before it provides that"
/// Layers::new().with(RecallLayer).with(StoreLayer);
/// ```
///
/// For the other mistakes rustc has no message of its own. It reports E0283, "type annotations needed",
/// at the call of [`with`](Self::with) that adds the second of two layers. Ignore its help, to specify
/// generic arguments: no argument makes the order right. The note names the layer, the stack before it
/// and a trait, which is the mistake:
///
/// | "multiple `impl`s satisfying" | the layer |
/// |---|---|
/// | `L: `[`ProvidesFirst`](super::order::ProvidesFirst)`<C, ..>` | [provides](super::Provides) the `C` that a layer before it provides, or uses [if it is there](super::Optional): leave one out, or swap the two |
/// | `L: `[`StaysOutside`](super::order::StaysOutside)`<R, ..>` | stands inside of one that [encloses](super::Encloses) the [region](super::Region) `R`, which it must be [outside](super::Outside) of: swap the two, or leave one out |
/// | `L: `[`EnclosesFirst`](super::order::EnclosesFirst)`<R, ..>` | encloses the region `R`, and stands inside of one that belongs [within](super::Within) `R`: swap the two |
///
/// One such error is no mistake: with `Uses<C, ..>`, at the call of [`service`](Self::service), several
/// layers use the `C` that one [expects](super::Expects) to be used, and the compiler finds more than
/// one answer. [`Layer::layer`]`(&layers, service)` wraps the service without asking; that `C` is used is
/// then checked where the model is called.
///
/// A [`Table`] of the same layers reports the mistake in words ([`Table::check`]).
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
/// # use concentric_core::{AgentLayer, Layers, NoTools, layers::OfRunLayer};
/// // "multiple `impl`s satisfying `AgentLayer<NoTools>: EnclosesFirst<InLoop, ..>` found"
/// Layers::new().with(OfRunLayer::new()).with(AgentLayer::new(NoTools));
/// ```
///
/// # Costs
///
/// Inside of each layer that was added [`with`](Self::with) what it declares stands a
/// [`Checked`], which looks up in the context what the layer was to provide: one lookup by type for
/// each, at each call, and nothing per event. The same is done for what is [`given`](Self::given).
/// A stack of 16 such layers takes about as long to build as one of 16 others.
///
/// [`Checked`]: super::Checked
#[derive(Clone, Debug)]
pub struct Layers<T = Nothing>(T);

impl Layers {
    /// Creates a stack without layers.
    pub const fn new() -> Self {
        Self(Nothing)
    }
}

impl<T> Layers<T> {
    /// Says that a `C` is there from outside: provided by the host in the run's context, or by a
    /// stack around this one.
    ///
    /// The compiler takes it at its word; where it is not so, calls fail. When the stack is
    /// [added](Self::and) to another, that must provide it.
    pub fn given<C>(self) -> Layers<Given<T, C>>
    where
        C: Capability,
    {
        Layers(Given {
            outer: self.0,
            given: PhantomData,
        })
    }

    /// Says that a service inside of these layers uses the `C` that one of them
    /// [expects](super::Expects) to be used, as a fallback does that has such a layer around each of
    /// its models.
    pub fn used<C>(self) -> Layers<Used<T, C>>
    where
        C: Capability,
    {
        Layers(Used {
            outer: self.0,
            used: PhantomData,
        })
    }

    /// Adds a layer by what it [declares](Declares), inside of those before.
    ///
    /// `Order` is inferred. An error that it cannot be (E0283) means that the layer must not stand here:
    /// see [what does not compile](Self#what-does-not-compile).
    pub fn with<L, Order>(self, layer: L) -> Layers<With<T, L>>
    where
        L: Declares + FitsInto<T, ListOf<L>, Order>,
    {
        Layers(With {
            outer: self.0,
            layer,
        })
    }

    /// Adds a layer that declares nothing, inside of those before.
    pub fn layer<L>(self, layer: L) -> Layers<Plain<T, L>> {
        Layers(Plain {
            outer: self.0,
            layer,
        })
    }

    /// Adds the layers of another stack, as though they were added here one by one.
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
    /// `Order` is inferred, if the layers use what others among them [expect](super::Expects) to be
    /// used.
    pub fn service<S, Order>(&self, service: S) -> T::Service
    where
        T: Layer<S> + Complete<T, Order>,
    {
        self.0.layer(service)
    }

    /// What its layers declare, to be checked with what other stacks do.
    ///
    /// What was [given](Self::given) is not in it: the table is to say who provides that.
    pub fn table(&self) -> Table
    where
        T: Listed,
    {
        T::list(Table::new())
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
