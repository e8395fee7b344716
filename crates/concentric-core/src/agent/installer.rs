use super::{Plugins, ToolSource};
use crate::{
    gate::Gate,
    hooks::{self, Hooks, Interest, ToolHooksLayer},
    service::{BoxModel, BoxTool, CloneService, SharedModel, ToolService},
    step_gate::{StepGate, StepGates},
    tool_layers::ObserveSettled,
    tool_parts::ToolParts,
};
use concentric_proto::{Error, Phase, ToolSpecs};
use std::{any::Any, fmt, mem, sync::Arc};
use tower_layer::Layer;

/// One concern that installs itself at each of its places in an agent.
///
/// [`Hooks`] are plugins. Added by [`AgentLayer::with`](crate::AgentLayer::with).
///
/// ```
/// use concentric_core::{AgentLayer, NoTools, agent::{Installer, Plugin}};
/// use tower::limit::ConcurrencyLimitLayer;
///
/// /// Limits concurrent model calls.
/// struct Limit(usize);
///
/// impl Plugin for Limit {
///     fn install(self, at: &mut Installer<'_>) {
///         at.model_layer(ConcurrencyLimitLayer::new(self.0));
///     }
/// }
///
/// let agent = AgentLayer::new(NoTools).with(Limit(4));
/// # let _ = agent;
/// ```
pub trait Plugin {
    /// Adds the layers and gates of the plugin.
    fn install(self, at: &mut Installer<'_>);
}

/// Installs the plugin if there is one.
impl<P> Plugin for Option<P>
where
    P: Plugin,
{
    fn install(self, at: &mut Installer<'_>) {
        if let Some(plugin) = self {
            plugin.install(at);
        }
    }
}

impl<H> Plugin for H
where
    H: Hooks,
{
    fn install(self, at: &mut Installer<'_>) {
        at.hooks(self, |calls| calls);
    }
}

/// Collects the parts of a [`Plugin`] while an agent is built.
///
/// Parts that were added first are outermost.
pub struct Installer<'a> {
    tools: &'a mut dyn Any,
    specs: fn(&dyn Any) -> ToolSpecs,
    source: fn(&mut dyn Any) -> Option<&mut dyn Any>,
    plugins: &'a mut Plugins,
    gates: &'a mut StepGates,
    parts: ToolParts,
}

impl<'a> Installer<'a> {
    pub(super) fn new<R>(
        tools: &'a mut R,
        plugins: &'a mut Plugins,
        gates: &'a mut StepGates,
    ) -> Self
    where
        R: ToolSource + 'static,
    {
        Self {
            tools,
            specs: |tools| tools.downcast_ref::<R>().map(R::specs).unwrap_or_default(),
            source: |tools| tools.downcast_mut::<R>().map(R::source_mut),
            plugins,
            gates,
            parts: ToolParts::default(),
        }
    }

    pub(super) fn take_parts(&mut self) -> ToolParts {
        mem::take(&mut self.parts)
    }

    /// Returns the tools of the agent's tool source.
    pub fn specs(&self) -> ToolSpecs {
        (self.specs)(&*self.tools)
    }

    /// Returns the agent's tool source, or the one that it [wraps](ToolSource::source_mut), if it is a `T`, for
    /// plugins that add or change tools.
    pub fn tools_mut<T>(&mut self) -> Option<&mut T>
    where
        T: ToolSource + 'static,
    {
        (self.source)(self.tools)?.downcast_mut()
    }

    /// Adds a layer that is called once per run.
    pub fn run_layer<L>(&mut self, layer: L)
    where
        L: Layer<BoxModel, Service: SharedModel> + Send + Sync + 'static,
    {
        self.plugins.run.push(layer);
    }

    /// Adds a layer that is called once per model call.
    pub fn model_layer<L>(&mut self, layer: L)
    where
        L: Layer<BoxModel, Service: SharedModel> + Send + Sync + 'static,
    {
        self.plugins.model.push(layer);
    }

    /// Adds layers that observe the agent from within: one around the agent and each
    /// [run layer](Self::run_layer), one around the model and each [model layer](Self::model_layer),
    /// also those of other plugins and of [single runs](crate::RunOverrides::model_layer). `make`
    /// receives the phase and the type name of what the layer is around.
    ///
    /// A [description](BoxModel::describe) of the agent omits these layers.
    pub fn each_layer<L>(&mut self, make: impl Fn(Phase, &str) -> L + Send + Sync + 'static)
    where
        L: Layer<BoxModel, Service: SharedModel>,
    {
        self.plugins.each.push(make);
    }

    /// Adds a layer that is called once per tool call, inside the layers of the tool source.
    pub fn tool_layer<L>(&mut self, layer: L)
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        self.parts.layers.push(layer);
    }

    /// Adds hooks at each place that they are [interested](Hooks::interest) in. `calls` may wrap
    /// the layer that calls them for tool calls, for example to select calls.
    pub fn hooks<H, L>(&mut self, hooks: H, calls: impl FnOnce(ToolHooksLayer<H>) -> L)
    where
        H: Hooks,
        L: ObserveSettled + Layer<BoxTool> + Clone,
        L::Service: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        let interest = hooks.interest();
        let hooks = Arc::new(hooks);
        if interest.intersects(Interest::RUN) {
            self.run_layer(hooks::run(Arc::clone(&hooks)));
        }
        if interest.intersects(Interest::MODEL) {
            self.model_layer(hooks::model(Arc::clone(&hooks)));
        }
        if interest.intersects(Interest::TOOL) {
            let layer = hooks::tool(Arc::clone(&hooks));
            self.parts.layers.push_hooks(calls(layer));
        }
        if interest.intersects(Interest::STEPS) {
            self.step_gate(hooks::step_gate(hooks));
        }
    }

    /// Adds a gate that decides about tool calls.
    pub fn gate(&mut self, gate: impl Gate) {
        self.parts.gates.push(Arc::new(gate));
    }

    /// Adds a gate that decides between the steps of each run.
    pub fn step_gate(&mut self, gate: impl StepGate) {
        self.gates.push(gate);
    }

    /// Reports a configuration error; every run of the agent fails with it. Only the first one is
    /// kept.
    pub fn fault(&mut self, error: Error) {
        self.plugins.fault.get_or_insert(error);
    }
}

impl fmt::Debug for Installer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Installer")
            .field("plugins", &self.plugins)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}
