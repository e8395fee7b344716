//! The capabilities that layers provide and require.
//!
//! A [`Capability`] is a value of a dedicated type that one layer puts into the run's [`Context`]
//! and others read: a store, a budget, the identity of the user. A layer that implements
//! [`Declares`] can be added [`with`](Layers::with) its requirements checked by the compiler:
//!
//! ```
//! use concentric_core::{
//!     BoxModel, Capability, ChatRequest, ChatResponse, Error, EventStream, Layers,
//!     capability::{Provides, Requires, declaring},
//! };
//! use concentric_layers::{Next, from_fn};
//!
//! #[derive(Clone)]
//! struct Language(&'static str);
//!
//! impl Capability for Language {}
//!
//! async fn detect(mut request: ChatRequest, mut next: Next) -> Result<ChatResponse<EventStream>, Error> {
//!     request.context.provide(Language("en"));
//!     next.run(request).await
//! }
//!
//! async fn translate(request: ChatRequest, mut next: Next) -> Result<ChatResponse<EventStream>, Error> {
//!     let Language(language) = *request.context.require()?;
//!     println!("{language}");
//!     next.run(request).await
//! }
//!
//! fn agent(model: BoxModel) -> BoxModel {
//!     BoxModel::new(
//!         Layers::new()
//!             .with(declaring::<Provides<Language>, _>(from_fn(detect)))
//!             .with(declaring::<Requires<Language>, _>(from_fn(translate)))
//!             .service(model),
//!     )
//! }
//! # let _ = agent;
//! ```
//!
//! # Checks
//!
//! | mistake | [`Layers`] | [`CapabilityTable`] | plain `ServiceBuilder` |
//! |---|---|---|---|
//! | no layer provides a required capability | does not compile | [`check`](CapabilityTable::check) | fails the call |
//! | the provider is inside the layer that requires it | does not compile | [`check`](CapabilityTable::check) | fails the call |
//! | two layers provide the same capability | does not compile | [`check`](CapabilityTable::check) | the inner one applies |
//! | a layer does not provide a capability that it declares | fails the call | | fails the call |
//! | a layer is inside a [region](Region) that it must be [outside](Outside) of | does not compile | [`check`](CapabilityTable::check) | fails the call |
//! | a layer [within](Within) a region is around the layer that encloses it | does not compile | [`check`](CapabilityTable::check) | fails the call |
//! | a layer [around](Around) a region is inside it, and not around another layer that encloses it | does not compile | [`check`](CapabilityTable::check) | fails the model call ([`ChatRequest::check_stack`](crate::ChatRequest::check_stack)) |
//! | no layer inside uses a capability that a layer [expects](Expects) to be used | [`Layers::service`] does not compile | [`check`](CapabilityTable::check) | fails the model call ([`ChatRequest::check_stack`](crate::ChatRequest::check_stack)) |
//!
//! All checks use the same declaration. A call fails with
//! [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) before any inner service is
//! called. In a plain stack, this applies to a layer that checks itself with [`Context::enter`] or
//! [`Context::require`], as the built-in layers do.
//!
//! Missing inner layers are detected when the model is called. The models of `concentric-providers`
//! [check](crate::ChatRequest::check_stack) before they send a request. For a model that does not, the agent
//! checks when the model begins to answer, and the run fails before any part of the answer is
//! delivered. A layer that may answer in place of the model, such as a cache, must call
//! [`Context::skip_stack_check`] when it does, unless it is a
//! `from_fn` of `concentric-layers`.
//!
//! [`Layers`] compares the layers of one value. An agent in the position of a model is a separate
//! stack: `.service(inner)`, where `inner` is built from other `Layers`.
//!
//! # Rejected orders
//!
//! | outside | inside | reason |
//! |---|---|---|
//! | `AgentLayer` | `SuspendLayer` | a run must be stored once, not once per model call |
//! | `SuspendLayer` | `SuspendLayer` | the run would be stored twice |
//! | `SuspendLayer` | `DetachLayer` | the store would record the end of a run that still continues |
//! | `ConversationLayer`, `DynamicMemoryLayer` | `SuspendLayer`, `DetachLayer`, a `Session` | a resumed run would be a new one for them, and a run whose consumer disconnects would have ended |
//! | `TrimLayer`, `ClearToolResultsLayer`, `CompactionLayer`, inside a `ConversationLayer` or a `Session` | `AgentLayer` | the run would store the shortened conversation in place of the whole one |
//! | `GuardrailLayer` with `Input::Parallel` | `DetachLayer` | a blocked run would continue (not checked by the compiler) |
//! | `DetachLayer` | `DetachLayer` | the inner layer would continue the runs that the outer one stops |
//! | a `Session` | `DetachLayer` | the next turn would start while the run of this turn continues |
//! | `SuspendLayer` | a `Session` | both would keep the suspended run |
//! | `BudgetPlugin::run` | no `BudgetPlugin::model` | nothing would be charged, so the budget would limit nothing |
//! | no `BudgetPlugin::run` | `BudgetPlugin::model`, `BudgetPlugin::tool` | there would be no budget to charge |
//! | `BudgetPlugin::model` | `BudgetPlugin::model` | each call would be charged twice |
//! | `InFlightLimitLayer` | the same limit again | a call would wait for itself |
//! | `AgentLayer` | a `Session` | the history would grow with each model call |
//! | a `Session` | a `Session` | the inner session would append the whole history to its own at each turn |
//! | `AgentLayer` | `BudgetPlugin::run`, `HooksLayers::run` or `DetachLayer`, without an agent inside | each model call would be a run with its own budget and end |
//! | `BudgetPlugin::model`, `HooksLayers::model`, `Output`, the layers of lazy tools, of `offer_tools` and of skills | `AgentLayer` | the layers would see one call per run, and none of the agent's tools |
//!
//! The step gates of a loop have an [order](crate::agent::GateOrder) too; a wrong one fails each
//! run.
//!
//! A table serves stacks that are built at run time, and requirements between stacks, such as those
//! of the tools on the run's layers.
//!
//! # Visibility
//!
//! A capability is visible to the layers inside its provider, in the order of the stack. The loop
//! passes the run's capabilities to its model calls and tools, and an agent that is called as a
//! tool sees those of its caller. Capabilities provided on a model's stack are not visible to
//! tools. The host may provide capabilities in a run's context: see [`Layers::given`].

#[allow(unnameable_types, reason = "sealed: only the compiler uses them")]
mod check;
#[allow(unnameable_types, reason = "sealed: only the compiler uses them")]
mod declare;
mod layers;
#[allow(unnameable_types, reason = "sealed: only the compiler uses them")]
mod order;
mod region;
mod table;

pub use self::{
    declare::{Around, Encloses, Expects, Outside, Provides, Requires, Within, declaring},
    layers::Layers,
    region::{InLoop, PreparedRun, Region, SessionTurn, StoredRun},
    table::CapabilityTable,
};
pub use crate::capability_error::CapabilityError;

use self::declare::Capabilities;
use crate::context::Context;

/// A value that a layer provides to the layers inside it.
///
/// It is looked up by type, so the type must name its purpose: a `Budget`, not a `u64`. It is
/// cloned with the context, once per step and once per tool call; put large values behind an `Arc`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a capability",
    label = "not a `Capability`",
    note = "if one layer provides it to others, add `impl Capability for {Self} {{}}`"
)]
pub trait Capability: Clone + Send + Sync + 'static {
    /// Returns the name of the layer that provides the capability, for errors.
    fn provider() -> Option<&'static str> {
        None
    }
}

/// Declares the capabilities that a layer provides and requires.
///
/// ```
/// # use concentric_core::{Capability, Declares, capability::{Provides, Requires}};
/// # #[derive(Clone)]
/// # struct Store;
/// # impl Capability for Store {}
/// # #[derive(Clone)]
/// # struct Memories;
/// # impl Capability for Memories {}
/// struct RecallLayer;
///
/// impl Declares for RecallLayer {
///     type Capabilities = (Requires<Store>, Provides<Memories>);
/// }
/// ```
///
/// Use [`declaring()`] for a layer from another crate.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not declare what it provides and requires",
    label = "`Declares` is not implemented",
    note = "if it provides and requires nothing, add it with `.layer(..)`; otherwise implement `Declares` for it, or wrap it in `declaring::<..>(..)`"
)]
pub trait Declares {
    /// [`Provides`], [`Requires`], [`Encloses`], [`Outside`], [`Within`], [`Around`] or [`Expects`],
    /// a tuple of up to eight of them, or `()`.
    type Capabilities: Capabilities;
}

impl Context {
    /// Provides `capability` to the layers inside, and returns the value it replaces.
    ///
    /// Earlier clones of the context are not affected.
    pub fn provide<C>(&mut self, capability: C) -> Option<C>
    where
        C: Capability,
    {
        self.extensions_mut().insert(capability)
    }

    /// Returns the capability, if a layer outside or the host has provided it.
    pub fn capability<C>(&self) -> Option<&C>
    where
        C: Capability,
    {
        let capability = self.extensions().get();
        if capability.is_some() {
            self.marks().used::<C>(self.phase());
        }
        capability
    }

    /// Returns the capability, or an error if it is missing.
    ///
    /// # Errors
    ///
    /// No layer outside has provided it, nor has the host.
    pub fn require<C>(&self) -> Result<&C, CapabilityError>
    where
        C: Capability,
    {
        self.capability().ok_or_else(|| CapabilityError::Absent {
            capability: std::any::type_name::<C>(),
            provider: C::provider(),
        })
    }
}
