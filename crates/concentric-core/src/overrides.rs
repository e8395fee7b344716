//! What one run has beyond the configuration of its agent.

use crate::{
    erased_layers::ErasedLayers,
    gate::Gate,
    hooks::{self, Hooks, Interest},
    request::ChatRequest,
    service::{BoxModel, BoxTool, CloneService, SharedModel, ToolService},
    step_gate::{StepGate, StepGates},
    tool_layers::ObserveSettled,
    tool_parts::{RunTool, ToolParts},
};
use concentric_proto::{Error, ErrorKind, Phase, Str};
use std::sync::Arc;
use tower_layer::Layer;

/// The gates, layers, tools and limits of one run, in addition to those of its agent.
///
/// ```
/// use concentric_core::{AgentLayer, BoxModel, ChatRequest, Error, Event, NoTools, RunOverrides};
/// use concentric_layers::inspect_events;
/// use tower::{Layer, ServiceExt};
///
/// async fn watched(model: BoxModel) -> Result<String, Error> {
///     let agent = AgentLayer::new(NoTools).boxed().layer(model);
///     let watch = inspect_events(|event: &Event| println!("{event:?}"));
///     let request = ChatRequest::user("hi").with_overrides(RunOverrides::new().model_layer(watch));
///     agent.oneshot(request).await?.text().await
/// }
/// # let _ = watched;
/// ```
///
/// A layer around the agent adds overrides with [`ChatRequest::overrides_mut`]. The layers that run
/// once per run are layers around a clone of the agent.
///
/// # Order
///
/// Of two overrides of one kind, the first added is outermost. Overrides are outside the agent's
/// own parts of that kind, and step gates are evaluated before the agent's. Gates of tool calls
/// decide after the agent's.
///
/// # What the loop cannot apply
///
/// The outermost loop takes the overrides. What it cannot apply fails the run with
/// [`ErrorKind::Configuration`] before its first model call: model layers, if the agent is not
/// [boxed](crate::AgentLayer::boxed), and tools, gates and tool layers, if its
/// [`ToolSource`](crate::ToolSource) has no place for them. If there is no loop, models that
/// [check their stack](ChatRequest::check_stack), such as those of `concentric-providers`, fail.
///
/// # Nested agents
///
/// | override | an agent that is a tool | an agent in the model's place |
/// |---|---|---|
/// | [`gate`](Self::gate) | applied | applied |
/// | [`tool_layer`](Self::tool_layer) | | applied |
/// | [`step_gate`](Self::step_gate), [`model_layer`](Self::model_layer), [`tool`](Self::tool), [`shadow`](Self::shadow) | | |
///
/// # Suspended runs
///
/// Overrides are not stored with the run: a request that resumes it needs the same overrides. The
/// names of [named](Self::named) overrides are stored; a request without one of these fails with
/// [`ErrorKind::Configuration`], whose message names it, and the run waits as before. A process
/// that resumes a run from a store finds the names in [`RunState::overrides`].
///
/// [`RunState::overrides`]: crate::run_state::RunState::overrides
#[derive(Clone, Debug, Default)]
#[must_use = "overrides do nothing unless they are added to a request"]
pub struct RunOverrides {
    pub(crate) step_gates: StepGates,
    // How many of them a model without a loop ignores.
    optional: usize,
    pub(crate) model_layers: ErasedLayers,
    pub(crate) tools: ToolParts,
    pub(crate) step_limit: Option<u32>,
    pub(crate) call_limit: Option<u32>,
    pub(crate) names: Vec<Str>,
}

impl RunOverrides {
    /// Creates overrides that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a gate that decides about the tool calls of the run.
    ///
    /// The strictest verdict of all gates applies, so a gate of a run makes decisions stricter. An
    /// `Approval` of `concentric-tools` may loosen an agent's `Approval` that permits it. Nested agents
    /// inherit the gate, so it may name tools that this agent does not have: unlike the names of a
    /// toolset's gates, these are not checked.
    pub fn gate(mut self, gate: impl Gate) -> Self {
        self.tools.gates.push(Arc::new(gate));
        self
    }

    /// Adds a gate that is evaluated between the steps of the run.
    pub fn step_gate(mut self, gate: impl StepGate) -> Self {
        self.step_gates.push(gate);
        self
    }

    /// Adds a [step gate](Self::step_gate) that a model without a loop ignores: for layers that
    /// also work around such a model.
    pub fn optional_step_gate(mut self, gate: impl StepGate) -> Self {
        self.optional += 1;
        self.step_gate(gate)
    }

    /// Adds a layer around the model calls of the run. Its agent must be
    /// [boxed](crate::AgentLayer::boxed).
    pub fn model_layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<BoxModel, Service: SharedModel> + Send + Sync + 'static,
    {
        self.model_layers.push(layer);
        self
    }

    /// Adds a layer around the tool calls of the run.
    pub fn tool_layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        self.tools.layers.push(layer);
        self
    }

    /// Adds a layer of hooks around the tool calls of the run, which also observe the calls that do
    /// not enter layers.
    pub fn tool_hooks<L>(mut self, hooks: L) -> Self
    where
        L: ObserveSettled + Layer<BoxTool> + Clone,
        L::Service: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        self.tools.layers.push_hooks(hooks);
        self
    }

    /// Adds a tool. A run whose agent has a tool of that name fails.
    ///
    /// A run with tools of its own builds the stack of its tools anew, so limits in layers of the
    /// agent's tools are not shared with other runs.
    pub fn tool(mut self, tool: impl RunTool) -> Self {
        self.tools.tools.push(Arc::new(tool));
        self
    }

    /// Adds a tool; replaces the agent's tool of the same name, if there is one.
    pub fn shadow(mut self, tool: impl RunTool) -> Self {
        self.tools.shadows.push(Arc::new(tool));
        self
    }

    /// Adds hooks at each place inside the loop that they are
    /// [interested](Hooks::interest) in: step gate, model layer and tool layer.
    ///
    /// Their methods for the run itself, such as `before_run`, are called by [`hooks::run`] around
    /// the agent.
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        let interest = hooks.interest();
        let hooks = Arc::new(hooks);
        if interest.intersects(Interest::MODEL) {
            self = self.model_layer(hooks::model(Arc::clone(&hooks)));
        }
        if interest.intersects(Interest::TOOL) {
            self = self.tool_hooks(hooks::tool(Arc::clone(&hooks)));
        }
        if interest.intersects(Interest::STEPS) {
            self = self.step_gate(hooks::step_gate(hooks));
        }
        self
    }

    /// Limits the model calls of the run. The smaller of this and the agent's
    /// [limit](crate::AgentLayer::step_limit) applies; the minimum is 1.
    pub fn step_limit(mut self, steps: u32) -> Self {
        self.step_limit = min(self.step_limit, Some(steps.max(1)));
        self
    }

    /// Limits the tool calls of the run. The smaller of this and the agent's
    /// [limit](crate::AgentLayer::call_limit) applies; with 0, the first call is refused.
    pub fn call_limit(mut self, calls: u32) -> Self {
        self.call_limit = min(self.call_limit, Some(calls));
        self
    }

    /// Names these overrides. A request that [resumes](Self#suspended-runs) the run must have
    /// overrides of that name.
    pub fn named(mut self, name: impl Into<Str>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Adds the overrides of `more`, inside those of `self`.
    pub fn extend(&mut self, more: Self) {
        self.step_gates.extend(&more.step_gates);
        self.optional += more.optional;
        self.model_layers.extend(more.model_layers);
        self.tools.extend(more.tools);
        self.step_limit = min(self.step_limit, more.step_limit);
        self.call_limit = min(self.call_limit, more.call_limit);
        self.names.extend(more.names);
    }

    /// Returns the parts for tool calls, for a loop that has neither a model nor step gates.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`] if there are model layers, step gates, limits or names.
    pub fn into_tool_parts(self) -> Result<ToolParts, Error> {
        let is_for_tools = self.model_layers.is_empty()
            && self.step_gates.is_empty()
            && !self.has_limits()
            && self.names.is_empty();
        is_for_tools.then_some(self.tools).ok_or_else(|| {
            let why = "the overrides of this run have model layers, step gates, limits or names, \
                       which this loop does not apply; use `AgentLayer`";
            unapplied(Str::from_static(why))
        })
    }
}

impl RunOverrides {
    fn require_a_loop(&self) -> bool {
        let has_gates = self.step_gates.len() > self.optional;
        has_gates
            || !self.model_layers.is_empty()
            || !self.tools.is_empty()
            || self.has_limits()
            || !self.names.is_empty()
    }

    pub(crate) const fn has_limits(&self) -> bool {
        self.step_limit.is_some() || self.call_limit.is_some()
    }
}

/// The smaller of two limits, if there is one.
pub(crate) fn min(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    a.into_iter().chain(b).min()
}

/// The error for overrides that nothing applies.
pub(crate) fn unapplied(why: impl Into<Str>) -> Error {
    Error::new(ErrorKind::Configuration, why)
        .with_code("overrides")
        .with_phase(Phase::Run)
}

/// The overrides of the run.
impl ChatRequest {
    /// Adds overrides for the run, inside those that the request has.
    #[must_use]
    pub fn with_overrides(mut self, overrides: RunOverrides) -> Self {
        self.overrides_mut().extend(overrides);
        self
    }

    /// The overrides of the run; `None` if there are none, or the loop has taken them.
    pub fn overrides(&self) -> Option<&RunOverrides> {
        self.overrides.as_deref()?.downcast_ref()
    }

    /// Mutable access to the [overrides](Self::overrides) of the run. Clones of the request keep the
    /// ones that they have.
    pub fn overrides_mut(&mut self) -> &mut RunOverrides {
        let own = self.take_overrides().unwrap_or_default();
        let own = self.overrides.insert(Arc::new(own));
        let own = Arc::get_mut(own).and_then(|own| own.downcast_mut());
        own.expect("a new `Arc` of overrides has one owner")
    }

    pub(crate) fn take_overrides(&mut self) -> Option<RunOverrides> {
        let own = self.overrides.take()?.downcast().ok();
        own.map(Arc::unwrap_or_clone)
    }

    /// Checks that the stack around this model call is complete: the
    /// [expectations](crate::capability::Expects) of outer layers are met, and a loop has taken the
    /// run's [overrides](Self::overrides).
    ///
    /// Models call this before they send a request; those of `concentric-providers` do. For a model
    /// that does not, the loop detects most unmet expectations when the model begins to answer, and
    /// then fails the run.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`]; the message names the layers.
    pub fn check_stack(&self) -> Result<(), Error> {
        self.context.check_stack()?;
        match self.overrides() {
            Some(own) if own.require_a_loop() => Err(unapplied(format!(
                "no agent applies the overrides of this run: {own:?}"
            ))),
            _ => Ok(()),
        }
    }
}
