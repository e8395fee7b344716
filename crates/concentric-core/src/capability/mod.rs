//! What a layer offers to the layers inside of it, and what it needs of those outside.
//!
//! A [`Capability`] is a value of a type of its own that one layer puts into the run's
//! [`Context`] and others take out: a store, a budget, who is asking. A layer that says so in
//! [`Declares`] can be added [`with`](Layers::with) its needs checked by the compiler:
//!
//! ```
//! use concentric_core::{
//!     BoxModel, Capability, ChatRequest, Declares, Error, Layers, SystemSegment,
//!     capability::{Provides, Requires},
//! };
//! use std::{sync::Arc, task::{Context, Poll}};
//! use tower::{Layer, Service};
//!
//! /// What is known of the user.
//! #[derive(Clone)]
//! struct Profile(Arc<str>);
//!
//! impl Capability for Profile {}
//!
//! struct ProfileLayer;
//!
//! impl Declares for ProfileLayer {
//!     type Capabilities = Provides<Profile>;
//! }
//!
//! struct GreetLayer;
//!
//! impl Declares for GreetLayer {
//!     type Capabilities = Requires<Profile>;
//! }
//! #
//! # impl<S> Layer<S> for ProfileLayer {
//! #     type Service = Profiled<S>;
//! #     fn layer(&self, inner: S) -> Profiled<S> {
//! #         Profiled { inner }
//! #     }
//! # }
//! #
//! # impl<S> Layer<S> for GreetLayer {
//! #     type Service = Greet<S>;
//! #     fn layer(&self, inner: S) -> Greet<S> {
//! #         Greet { inner }
//! #     }
//! # }
//! #
//! # struct Profiled<S> {
//! #     inner: S,
//! # }
//! #
//! # struct Greet<S> {
//! #     inner: S,
//! # }
//!
//! impl<S> Service<ChatRequest> for Profiled<S>
//! where
//!     S: Service<ChatRequest>,
//! {
//! #     type Response = S::Response;
//! #     type Error = S::Error;
//! #     type Future = S::Future;
//! #     fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
//! #         self.inner.poll_ready(cx)
//! #     }
//!     // ...
//!     fn call(&mut self, mut request: ChatRequest) -> S::Future {
//!         request.context.provide(Profile("Ada".into()));
//!         self.inner.call(request)
//!     }
//! }
//!
//! impl<S> Service<ChatRequest> for Greet<S>
//! where
//!     S: Service<ChatRequest>,
//! {
//! #     type Response = S::Response;
//! #     type Error = S::Error;
//! #     type Future = S::Future;
//! #     fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
//! #         self.inner.poll_ready(cx)
//! #     }
//!     // ...
//!     fn call(&mut self, mut request: ChatRequest) -> S::Future {
//!         if let Some(Profile(name)) = request.context.capability() {
//!             let text = format!("The user's name is {name}.");
//!             request.system.push_front(SystemSegment::new(text));
//!         }
//!         self.inner.call(request)
//!     }
//! }
//!
//! fn agent(model: BoxModel) -> impl Service<ChatRequest> {
//!     Layers::new().with(ProfileLayer).with(GreetLayer).service(model)
//! }
//! # let _ = agent;
//! ```
//!
//! # When what is checked
//!
//! | | [`Layers`] | [`Table`] | a bare `ServiceBuilder` |
//! |---|---|---|---|
//! | nobody provides what a layer requires | does not compile | [`Table::check`] | fails the call |
//! | its provider comes later, inside of it | does not compile | [`Table::check`] | fails the call |
//! | so does the provider of what it would like to have | does not compile | [`Table::check`] | is not seen |
//! | two layers provide the same | does not compile | [`Table::check`] | the inner one counts |
//! | a layer does not provide what it says it does | fails the call | | fails the call |
//! | a layer stands inside of a [region](Region) that it must be [outside](Outside) of | does not compile | [`Table::check`] | fails the call |
//! | a layer [within](Within) a region stands around the layer that encloses it | does not compile | [`Table::check`] | fails the call |
//! | a layer [around](Around) a region stands in it, and not around another layer that encloses it | does not compile | [`Table::check`] | the model call fails ([`Context::check_stack`]) |
//! | no layer inside does what a layer [expects](Expects) | [`Layers::service`] does not compile | [`Table::check`] | the model call fails ([`Context::check_stack`]) |
//!
//! All go by the one declaration. A call fails before anything inside is called, with
//! [`ErrorKind::Configuration`](crate::ErrorKind::Configuration); in a bare stack, for a layer in a
//! [`CheckedLayer`], or one that checks itself with [`Context::enter`] or [`Context::require`]. The
//! built-in layers do.
//!
//! What is missing inside is known where the model is called. The models of `concentric-providers`
//! [check](Context::check_stack) it before anything is sent. For a model that does not, an agent
//! checks when the model begins to answer, and the run fails before anything of the answer is
//! delivered. A layer that may answer in place of the model, as a cache does, calls
//! [`Context::skip_stack_check`] when it does, unless it is a [`from_fn`](crate::layers::from_fn()).
//!
//! [`Layers`] compares the layers of one value. An agent in the place of a model is a stack of its own
//! there: `.service(inner)`, where `inner` is made by other `Layers`.
//!
//! # Orders that are errors
//!
//! | outside | inside | since |
//! |---|---|---|
//! | `AgentLayer` | `SuspendLayer` | a run is kept by the store once, and not once per model call |
//! | `SuspendLayer` | `SuspendLayer` | one run would be stored twice |
//! | `SuspendLayer` | `DetachLayer` | the store would be told that a run has ended that goes on |
//! | `DetachLayer` | `DetachLayer` | the inner one would continue the runs that the outer one stops |
//! | a `Session` | `DetachLayer` | a turn would give its place to the next one while its run goes on |
//! | `SuspendLayer` | a `Session` | both would keep the run that waits |
//! | `BudgetLayer::run` | no `BudgetLayer::model` | nothing would be charged, so nothing would be limited |
//! | no `BudgetLayer::run` | `BudgetLayer::model`, `BudgetLayer::tool` | there would be no budget to charge |
//! | `BudgetLayer::model` | `BudgetLayer::model` | one call would be charged twice |
//! | `InFlightLimitLayer` | the same limit again | a call would wait for itself |
//! | `AgentLayer` | a `Session` | the history would grow with each model call |
//! | a `Session` | a `Session` | the inner one would put the whole history behind its own, at each turn |
//! | `AgentLayer` | `BudgetLayer::run`, `HooksLayers::run` or `DetachLayer`, and no agent inside of it | each model call would be a run with a budget and an end of its own |
//! | `BudgetLayer::model`, `HooksLayers::model`, `OfRunLayer`, `Output::layer`, the layers of lazy tools, of `offer_tools` and of skills | `AgentLayer` | they would see one call per run, and none of the agent's tools |
//!
//! The gates of a loop have an [order](crate::agent::GateOrder), too: a wrong one fails each run.
//!
//! A table is for stacks that are put together while the program runs, and for what one stack needs
//! of another: the tools' of the run's.
//!
//! # Who sees what
//!
//! What is provided is seen by the layers inside of its provider, in the order of the stack. The
//! loop hands the run's on to its model calls and its tools, and an agent that is called as a tool
//! sees what its caller does; what is provided on a model's stack is not seen by the tools. The host
//! may provide something, too, in the context that it starts the run with: [`Layers::given`].

mod check;
mod declare;
mod layers;
pub mod order;
mod region;
mod table;

pub use self::{
    check::{Checked, CheckedLayer, ResponseFuture},
    declare::{
        Around, Capabilities, Declaring, Encloses, Entry, Expects, Item, Optional, Outside,
        Provides, Replaces, Requires, Within, declaring,
    },
    layers::Layers,
    region::{InLoop, Region, SessionTurn, StoredRun},
    table::{Declaration, Faults, Table},
};

pub use crate::fault::Fault;

use crate::context::Context;

/// A value that a layer provides for the layers inside of it.
///
/// It is found by its type, so the type says what it is for: a `Budget`, not a `u64`. It is cloned
/// whenever the context is, once per step and once per tool call: put what is big behind an `Arc`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a capability",
    label = "this is not a `Capability`",
    note = "if it is what one layer provides for others, say `impl Capability for {Self} {{}}`"
)]
pub trait Capability: Clone + Send + Sync + 'static {
    /// Returns the name of the layer that provides it, for the errors of layers that miss it.
    fn provider() -> Option<&'static str> {
        None
    }
}

/// What a layer offers to others, and what it needs of them.
///
/// ```
/// use concentric_core::{Capability, Declares, capability::{Optional, Provides, Requires}};
///
/// #[derive(Clone)]
/// struct Store;
/// impl Capability for Store {}
///
/// #[derive(Clone)]
/// struct Memories;
/// impl Capability for Memories {}
///
/// #[derive(Clone)]
/// struct Metrics;
/// impl Capability for Metrics {}
///
/// struct RecallLayer;
///
/// impl Declares for RecallLayer {
///     type Capabilities = (Requires<Store>, Optional<Metrics>, Provides<Memories>);
/// }
/// ```
///
/// A layer of somebody else's is declared where it is added: [`declaring()`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not declare what it provides and requires",
    label = "this does not implement `Declares`",
    note = "if it provides and requires nothing, add it with `.layer(..)`; else implement `Declares` for it, or wrap it in `declaring::<..>(..)`"
)]
pub trait Declares {
    /// [`Provides`], [`Requires`], [`Optional`], [`Replaces`], [`Encloses`], [`Outside`],
    /// [`Within`], [`Around`] or [`Expects`], a tuple of up to eight of them, or `()`.
    type Capabilities: Capabilities;
}

impl Context {
    /// Provides `capability` for the layers inside, and returns what was there of its type.
    ///
    /// Contexts that were cloned before don't see it.
    pub fn provide<C>(&mut self, capability: C) -> Option<C>
    where
        C: Capability,
    {
        self.extensions_mut().insert(capability)
    }

    /// What a layer outside has provided, or the host.
    pub fn capability<C>(&self) -> Option<&C>
    where
        C: Capability,
    {
        let capability = self.extensions().get();
        if capability.is_some() {
            self.marks.used::<C>(self.phase());
        }
        capability
    }

    /// The same, for one that must be there.
    ///
    /// # Errors
    ///
    /// Nobody has provided it.
    pub fn require<C>(&self) -> Result<&C, Fault>
    where
        C: Capability,
    {
        self.capability().ok_or_else(|| Fault::Absent {
            capability: std::any::type_name::<C>(),
            provider: C::provider(),
        })
    }
}
