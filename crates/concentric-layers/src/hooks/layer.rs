use super::{Hooked, Hooks, OnModel, OnRun, OnStep, OnTool, place::Place};
use concentric_core::{Context, Declares, agent::StepGates, layers::ModelLayers};
use concentric_tools::{ToolHooksLayer, ToolLayers};
use std::{any::type_name, fmt, sync::Arc};
use tower_layer::Layer;

/// Takes `hooks` in, for their [layers](HooksLayers).
///
/// See the [module docs](super) for an example.
pub fn hooks<H>(hooks: H) -> HooksLayers<H>
where
    H: Hooks,
{
    HooksLayers(Arc::new(hooks))
}

/// The layers of one [`Hooks`], which they share.
pub struct HooksLayers<H>(Arc<H>);

impl<H> HooksLayers<H>
where
    H: Hooks,
{
    /// The layer for runs, outside of the agent.
    pub fn run(&self) -> HooksLayer<OnRun<H>> {
        HooksLayer {
            place: OnRun(Arc::clone(&self.0)),
        }
    }

    /// The layer for model calls, inside of the agent.
    pub fn model(&self) -> HooksLayer<OnModel<H>> {
        HooksLayer {
            place: OnModel(Arc::clone(&self.0)),
        }
    }

    /// The layer for tool calls, on a toolset or on a tool; see
    /// [`scoped`](ToolHooksLayer::scoped) to have it for some calls only.
    pub fn tool(&self) -> ToolHooksLayer<OnTool<H>> {
        ToolHooksLayer::new(OnTool(Arc::clone(&self.0)))
    }

    /// What decides between the steps, for [`AgentLayer::gate`](concentric_core::AgentLayer::gate).
    pub fn gate(&self) -> OnStep<H> {
        OnStep(Arc::clone(&self.0))
    }

    /// Has the hooks called in the run of `context` only, inside of those it has already and outside
    /// of the agent's own: between its steps, at its tools, and at its model calls where the stack
    /// has an [`OfRunLayer`](concentric_core::layers::OfRunLayer).
    ///
    /// Around the run, they are put by [`run`](Self::run) around a clone of the agent. A run
    /// [inside](Context::child) it, as that of an agent that is its tool, has none of them; the tools
    /// of an agent in the model's place do. A run that goes on is another one: attach them again.
    pub fn attach(&self, context: &mut Context) {
        let own = context.own_mut();
        let gates = own.remove::<StepGates>().unwrap_or_default();
        own.insert(gates.gate(self.gate()));
        let model = own.remove::<ModelLayers>().unwrap_or_default();
        own.insert(model.layer(self.model()));
        let tools = own.remove::<ToolLayers>().unwrap_or_default();
        own.insert(tools.hooks(self.tool()));
    }

    /// The hooks.
    pub fn get_ref(&self) -> &H {
        &self.0
    }
}

impl<H> Clone for HooksLayers<H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<H> fmt::Debug for HooksLayers<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HooksLayers")
            .field(&format_args!("{}", type_name::<H>()))
            .finish()
    }
}

/// [`Layer`] that calls [`Hooks`] at a place `P`: [`OnRun`] or [`OnModel`].
///
/// See the [module docs](super) for an example. Its services share the hooks.
#[derive(Clone, Debug)]
pub struct HooksLayer<P> {
    place: P,
}

impl<P> Declares for HooksLayer<P>
where
    P: Place,
{
    type Capabilities = P::Capabilities;
}

impl<S, P> Layer<S> for HooksLayer<P>
where
    P: Place,
{
    type Service = Hooked<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        Hooked::new(inner, self.place.clone())
    }
}
