use super::{Agent, AgentLayer, Installer, Plugin, ToolSource};
use crate::{
    describe::describe_agent,
    erased_layers::{EachLayer, ErasedLayers},
    service::{BoxModel, RoundService, SharedModel},
};
use concentric_proto::{Error, Phase};
use std::any::type_name;
use tower_layer::Layer;

/// The layers that plugins installed around an agent and around its model.
///
/// The second parameter of an [`AgentLayer`] whose agents are boxed.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    pub(super) run: ErasedLayers,
    pub(super) model: ErasedLayers,
    pub(super) each: EachLayer,
    pub(super) fault: Option<Error>,
}

impl<R> AgentLayer<R> {
    /// Adds a plugin, outside of those that are added later. The agents are boxed: their type is a
    /// [`BoxModel`].
    ///
    /// The tool layers of plugins are inside those of the tools.
    #[must_use]
    pub fn with(self, plugin: impl Plugin) -> AgentLayer<R, Plugins>
    where
        R: ToolSource + 'static,
    {
        self.boxed().with(plugin)
    }

    /// Boxes the model and the agent, as a plugin does. Required for
    /// [model layers](crate::RunOverrides::model_layer) of single runs.
    #[must_use]
    pub fn boxed(self) -> AgentLayer<R, Plugins> {
        self.map_plugins(|()| Plugins::default())
    }
}

impl<R> AgentLayer<R, Plugins>
where
    R: ToolSource + 'static,
{
    /// Adds a plugin, outside of those that are added later.
    #[must_use]
    pub fn with(mut self, plugin: impl Plugin) -> Self {
        let mut at = Installer::new(&mut self.tools, &mut self.plugins, &mut self.gates);
        plugin.install(&mut at);
        let parts = at.take_parts();
        if !parts.is_empty()
            && let Err(error) = self.tools.install(parts)
        {
            self.plugins.fault.get_or_insert(error);
        }
        self
    }
}

impl<M, R> Layer<M> for AgentLayer<R, Plugins>
where
    M: SharedModel,
    R: RoundService<Outcomes: Send + 'static, Future: Send + 'static>
        + ToolSource
        + Clone
        + Send
        + Sync
        + 'static,
{
    type Service = BoxModel;

    fn layer(&self, model: M) -> BoxModel {
        let Plugins {
            run,
            model: calls,
            each,
            fault,
        } = &self.plugins;
        let description = describe_agent::<Agent<M, R>>(run.names(), calls.names());
        let model = each.around(Phase::Model, type_name::<M>(), BoxModel::new(model));
        let agent = self.agent(calls.around(model, Phase::Model, each));
        let agent = BoxModel::new(agent.boxed(fault.clone(), each.clone()));
        let agent = each.around(Phase::Run, type_name::<Agent<M, R>>(), agent);
        run.around(agent, Phase::Run, each).describing(description)
    }
}
