use concentric_core::{
    AgentLayer, Plugin, ToolSource,
    agent::{Installer, Plugins},
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::fmt;

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

/// The configured layers of an agent, outermost first.
///
/// See the [module docs](super) for an example.
#[must_use = "a stack does nothing unless it becomes an agent"]
pub struct Stack {
    pub(super) agent: AgentOptions,
    pub(super) parts: Vec<(Place, Part)>,
}

impl Stack {
    /// Creates the layer that turns a model into an agent with these layers.
    ///
    /// The agent is a boxed one. Its description is that of the same stack built by hand.
    pub fn agent<R>(self, tools: R) -> AgentLayer<R, Plugins>
    where
        R: ToolSource + 'static,
    {
        let mut agent = AgentLayer::new(tools);
        if let Some(steps) = self.agent.step_limit {
            agent = agent.step_limit(steps);
        }
        if let Some(calls) = self.agent.call_limit {
            agent = agent.call_limit(calls);
        }
        agent.with(Parts(self.parts))
    }
}

struct Parts(Vec<(Place, Part)>);

impl Plugin for Parts {
    fn install(self, at: &mut Installer<'_>) {
        for (place, part) in self.0 {
            part(at, place);
        }
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack")
            .field("layers", &self.parts.len())
            .finish_non_exhaustive()
    }
}
