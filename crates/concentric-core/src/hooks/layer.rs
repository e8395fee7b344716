use super::{Hooked, Hooks, ToolHooksLayer, at::At, gate::Gate};
use crate::{
    capability::{Around, Declares, InLoop, Within},
    step_gate::StepGate,
};
use std::{any::type_name, fmt, sync::Arc};
use tower_layer::Layer;

/// Creates the layer that calls `hooks` for runs; it goes outside the agent.
pub fn run<H>(hooks: Arc<H>) -> HooksLayer<H, false>
where
    H: Hooks,
{
    HooksLayer { hooks }
}

/// Creates the layer that calls `hooks` for model calls; it goes inside the agent.
pub fn model<H>(hooks: Arc<H>) -> HooksLayer<H, true>
where
    H: Hooks,
{
    HooksLayer { hooks }
}

/// Creates the layer that calls `hooks` for tool calls, for a toolset or a single tool.
pub fn tool<H>(hooks: Arc<H>) -> ToolHooksLayer<H>
where
    H: Hooks,
{
    ToolHooksLayer::new(hooks)
}

/// Creates the gate that calls `hooks` between the steps of a run, for
/// [`AgentLayer::gate`](crate::AgentLayer::gate).
pub fn step_gate<H>(hooks: Arc<H>) -> impl StepGate
where
    H: Hooks,
{
    Gate(hooks)
}

/// [`Layer`] that calls [`Hooks`] for runs, or for model calls if `MODEL` is true.
///
/// Created by [`run`] and [`model`]. See the [module docs](super) for an example.
pub struct HooksLayer<H, const MODEL: bool> {
    hooks: Arc<H>,
}

impl<H> Declares for HooksLayer<H, false> {
    type Capabilities = Around<InLoop>;
}

impl<H> Declares for HooksLayer<H, true> {
    type Capabilities = Within<InLoop>;
}

impl<S, H, const MODEL: bool> Layer<S> for HooksLayer<H, MODEL>
where
    H: Hooks,
{
    type Service = Hooked<S, H, MODEL>;

    fn layer(&self, inner: S) -> Self::Service {
        Hooked::new(inner, At::new(Arc::clone(&self.hooks), MODEL))
    }
}

impl<H, const MODEL: bool> Clone for HooksLayer<H, MODEL> {
    fn clone(&self) -> Self {
        Self {
            hooks: Arc::clone(&self.hooks),
        }
    }
}

impl<H, const MODEL: bool> fmt::Debug for HooksLayer<H, MODEL> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HooksLayer")
            .field("hooks", &format_args!("{}", type_name::<H>()))
            .finish()
    }
}
