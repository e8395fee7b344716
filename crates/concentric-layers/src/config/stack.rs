use concentric_core::{
    AgentLayer, Plugin, ToolSource,
    agent::{Installer, Plugins},
};
use schemars::JsonSchema;
use serde::Deserialize;

/// A configured layer, which installs itself around the agent, or inside its loop.
pub(super) type Part = Box<dyn FnOnce(&mut Installer<'_>, Place) + Send + Sync>;

/// The position of a layer, relative to the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Outside,
    Inside,
}

/// The options of the loop.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AgentOptions {
    /// The maximum number of model calls per run.
    #[schemars(range(min = 1))]
    step_limit: Option<u32>,
    /// The maximum number of tool calls per run.
    call_limit: Option<u32>,
}

/// Creates an agent with the configured layers.
pub(super) fn agent<R>(
    options: &AgentOptions,
    parts: Vec<(Place, Part)>,
    tools: R,
) -> AgentLayer<R, Plugins>
where
    R: ToolSource + 'static,
{
    let mut agent = AgentLayer::new(tools);
    if let Some(steps) = options.step_limit {
        agent = agent.step_limit(steps);
    }
    if let Some(calls) = options.call_limit {
        agent = agent.call_limit(calls);
    }
    agent.with(Parts(parts))
}

struct Parts(Vec<(Place, Part)>);

impl Plugin for Parts {
    fn install(self, at: &mut Installer<'_>) {
        for (place, part) in self.0 {
            part(at, place);
        }
    }
}
