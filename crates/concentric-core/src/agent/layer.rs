use super::{Agent, ToolSource};
use tower_layer::Layer;

/// [`Layer`] that makes an [`Agent`] of a model.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct AgentLayer<R> {
    tools: R,
    step_limit: u32,
}

/// How many model calls a run makes at the most, unless it is told otherwise.
const STEP_LIMIT: u32 = 32;

impl<R> AgentLayer<R> {
    /// Creates a layer whose agents execute tool calls by `tools`.
    pub const fn new(tools: R) -> Self {
        Self {
            tools,
            step_limit: STEP_LIMIT,
        }
    }

    /// Sets how many model calls a run makes at the most; the default is 32, the least 1.
    #[must_use]
    pub const fn step_limit(mut self, steps: u32) -> Self {
        self.step_limit = if steps == 0 { 1 } else { steps };
        self
    }
}

impl<M, R> Layer<M> for AgentLayer<R>
where
    R: ToolSource + Clone,
{
    type Service = Agent<M, R>;

    fn layer(&self, model: M) -> Self::Service {
        Agent::new(model, self.tools.clone(), self.step_limit)
    }
}
