use super::{Agent, ToolSource};
use crate::{
    capability::{Declares, Encloses, InLoop},
    driver::{Foreign, attempt},
    step_gate::{StepGate, StepGates},
};
use concentric_proto::{Error, machine::RunLimits};
use tower_layer::Layer;

/// [`Layer`] that turns a model into an [`Agent`].
///
/// See the [module docs](super) for an example. With [plugins](Self::with), `P` is
/// [`Plugins`](super::Plugins), and the agents are boxed.
#[derive(Clone, Debug)]
pub struct AgentLayer<R, P = ()> {
    pub(super) tools: R,
    step_limit: u32,
    call_limit: Option<u32>,
    pub(super) gates: StepGates,
    pub(super) plugins: P,
}

/// The default limit of model calls per run.
const STEP_LIMIT: u32 = 32;

impl<R: ToolSource> AgentLayer<R> {
    /// Creates a layer whose agents execute tool calls with `tools`.
    pub fn new(tools: R) -> Self {
        Self {
            tools,
            step_limit: STEP_LIMIT,
            call_limit: None,
            gates: StepGates::new(),
            plugins: (),
        }
    }
}

impl<R, P> AgentLayer<R, P> {
    /// Adds a gate that is evaluated between the steps of each run.
    #[must_use]
    pub fn gate(mut self, gate: impl StepGate) -> Self {
        self.gates = self.gates.gate(gate);
        self
    }

    pub(super) fn map_plugins<Q>(self, f: impl FnOnce(P) -> Q) -> AgentLayer<R, Q> {
        AgentLayer {
            tools: self.tools,
            step_limit: self.step_limit,
            call_limit: self.call_limit,
            gates: self.gates,
            plugins: f(self.plugins),
        }
    }

    /// Sets the maximum number of model calls per run; the default is 32, the minimum 1.
    #[must_use]
    pub fn step_limit(mut self, steps: u32) -> Self {
        self.step_limit = if steps == 0 { 1 } else { steps };
        self
    }

    /// Sets the maximum number of tool calls per run; the default is no limit.
    ///
    /// Refused and denied calls count, as do calls before an interruption. A call over the limit is
    /// answered with an error, and the run ends with
    /// [`Outcome::CallLimit`](crate::Outcome::CallLimit) when its round is closed. With a limit of
    /// 0, the first call is refused.
    #[must_use]
    pub fn call_limit(mut self, calls: u32) -> Self {
        self.call_limit = Some(calls);
        self
    }
}

impl<R, P> AgentLayer<R, P>
where
    R: ToolSource + Clone,
{
    pub(super) fn agent<M>(&self, model: M, fault: Option<Error>) -> Agent<M, R> {
        let limits = |mut rules: RunLimits| {
            rules.steps = self.step_limit;
            rules.calls = self.call_limit;
            rules.asks_to_finish = self.gates.ask_to_finish();
            rules.asks_before_round = self.gates.ask_before_round();
            rules
        };
        let tools = attempt(Foreign::Tools, || self.tools.clone());
        Agent::new(model, tools, limits, self.gates.clone(), fault)
    }
}

impl<R, P> Declares for AgentLayer<R, P> {
    type Capabilities = Encloses<InLoop>;
}

impl<M, R> Layer<M> for AgentLayer<R>
where
    R: ToolSource + Clone,
{
    type Service = Agent<M, R>;

    fn layer(&self, model: M) -> Self::Service {
        self.agent(model, None)
    }
}
