use super::{Hooked, Hooks, OnModel, OnRun, OnStep, OnTool, place::Place};
use concentric_core::{Context, Declares, agent::StepGates, of_run::ModelLayers};
use concentric_tools::{ToolHooksLayer, ToolLayers};
use std::{any::type_name, fmt, sync::Arc};
use tower_layer::Layer;

/// Creates the [layers](HooksLayers) of `hooks`.
///
/// See the [module docs](super) for an example.
pub fn hooks<H>(hooks: H) -> HooksLayers<H>
where
    H: Hooks,
{
    HooksLayers(Arc::new(hooks))
}

/// The layers of one [`Hooks`] value, which they share.
pub struct HooksLayers<H>(Arc<H>);

impl<H> HooksLayers<H>
where
    H: Hooks,
{
    /// Returns the layer for runs, which goes outside the agent.
    pub fn run(&self) -> HooksLayer<OnRun<H>> {
        HooksLayer {
            place: OnRun(Arc::clone(&self.0)),
        }
    }

    /// Returns the layer for model calls, which goes inside the agent.
    pub fn model(&self) -> HooksLayer<OnModel<H>> {
        HooksLayer {
            place: OnModel(Arc::clone(&self.0)),
        }
    }

    /// Returns the layer for tool calls, for a toolset or a single tool. To restrict it to some
    /// calls, use [`scoped`](ToolHooksLayer::scoped).
    pub fn tool(&self) -> ToolHooksLayer<OnTool<H>> {
        ToolHooksLayer::new(OnTool(Arc::clone(&self.0)))
    }

    /// Returns the step gate, for [`AgentLayer::gate`](concentric_core::AgentLayer::gate).
    pub fn gate(&self) -> OnStep<H> {
        OnStep(Arc::clone(&self.0))
    }

    /// Adds the hooks to the run of `context` only, inside hooks that were attached before and
    /// outside those of the agent.
    ///
    /// They are called between the steps of the run, for its tool calls, and for its model calls if
    /// the stack has an [`OfRunLayer`](concentric_core::of_run::OfRunLayer).
    ///
    /// To call them around the run too, apply [`run`](Self::run) to a clone of the agent. A
    /// [child](Context::child) run, such as that of an agent that is used as a tool, does not
    /// inherit the hooks, but the tools of an agent that is used as a model do. A resumed run is a
    /// new run: attach the hooks again.
    pub fn attach(&self, context: &mut Context) {
        let own = context.own_mut();
        let gates = own.remove::<StepGates>().unwrap_or_default();
        own.insert(gates.gate(self.gate()));
        let model = own.remove::<ModelLayers>().unwrap_or_default();
        own.insert(model.layer(self.model()));
        let tools = own.remove::<ToolLayers>().unwrap_or_default();
        own.insert(tools.hooks(self.tool()));
    }

    /// Returns a reference to the hooks.
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

/// [`Layer`] that calls [`Hooks`] for runs ([`OnRun`]) or model calls ([`OnModel`]).
///
/// See the [module docs](super) for an example. Services of one layer share the hooks.
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
