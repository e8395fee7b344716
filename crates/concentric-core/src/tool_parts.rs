//! The parts that plugins and runs add to the tools of an agent.

use crate::{context::Context, gate::Gate, tool_layers::ToolLayers};
use std::{any::Any, fmt, sync::Arc};

/// What plugins, or one run, add to the tools of an agent; see
/// [`ToolSource`](crate::ToolSource::install).
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct ToolParts {
    /// Layers around each call: those of a plugin are inside the layers that the tools have, those
    /// of a run are outside.
    pub layers: ToolLayers,
    /// Gates of each call.
    pub gates: Vec<Arc<dyn Gate>>,
    /// Tools of a run; the agent has none of that name.
    pub tools: Vec<Arc<dyn RunTool>>,
    /// Tools of a run; each replaces a tool of the agent of the same name, if there is one.
    pub shadows: Vec<Arc<dyn RunTool>>,
}

/// A tool that a single run adds to those of its agent, as `Tool` of `concentric-tools` is.
///
/// The agent's [`ToolSource`](crate::ToolSource) downcasts it.
pub trait RunTool: Any + Send + Sync {
    /// Returns the name of the tool.
    fn name(&self) -> &str;
}

impl ToolParts {
    /// Returns whether there are no parts.
    pub fn is_empty(&self) -> bool {
        let Self { layers, gates, .. } = self;
        layers.is_empty() && gates.is_empty() && !self.has_tools()
    }

    /// Returns whether a run adds tools.
    pub fn has_tools(&self) -> bool {
        !self.tools.is_empty() || !self.shadows.is_empty()
    }

    /// Adds the parts of `more`, inside those of `self`.
    pub fn extend(&mut self, more: Self) {
        self.layers.extend(&more.layers);
        self.gates.extend(more.gates);
        self.tools.extend(more.tools);
        self.shadows.extend(more.shadows);
    }

    /// Makes the gates and layers apply to the tool calls of the run of `context`, in addition to
    /// those that do already.
    pub fn apply(&self, context: &mut Context) {
        if !self.gates.is_empty() {
            let mut all = RunGates::of(context).cloned().unwrap_or_default();
            all.own.extend_from_slice(&self.gates);
            context.set_gates(Arc::new(all));
        }
        if !self.layers.is_empty() {
            let mut all = context.tool_layers().cloned().unwrap_or_default();
            all.extend(&self.layers);
            context.set_layers(Arc::new(all));
        }
    }
}

impl fmt::Debug for ToolParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |tools: &[Arc<dyn RunTool>]| -> Vec<String> {
            tools.iter().map(|tool| tool.name().to_owned()).collect()
        };
        f.debug_struct("ToolParts")
            .field("layers", &self.layers)
            .field("gates", &self.gates.len())
            .field("tools", &names(&self.tools))
            .field("shadows", &names(&self.shadows))
            .finish()
    }
}

/// The gates of a run that are not part of its agent.
#[derive(Clone, Default)]
struct RunGates {
    // Those of the agents that this agent is a tool of, the innermost first.
    inherited: Vec<Arc<dyn Gate>>,
    own: Vec<Arc<dyn Gate>>,
}

impl RunGates {
    fn of(context: &Context) -> Option<&Self> {
        context.gates()?.downcast_ref()
    }
}

/// Additions of runs, for round services.
impl Context {
    /// The gates that the run itself has, and those that the runs around it have: they decide about
    /// its tool calls after the agent's gates and the [inherited](Self::inherited_gates) ones.
    pub fn run_gates(&self) -> &[Arc<dyn Gate>] {
        RunGates::of(self).map_or(&[], |gates| &gates.own)
    }

    /// The gates of the agents that the run's agent is a tool of, the innermost agent's first.
    pub fn inherited_gates(&self) -> &[Arc<dyn Gate>] {
        RunGates::of(self).map_or(&[], |gates| &gates.inherited)
    }

    /// Makes `gates`, those of an agent, decide about the calls of [nested](Self::child) agents,
    /// too.
    pub fn bequeath(&mut self, gates: &[Arc<dyn Gate>]) {
        if !gates.is_empty() {
            let mut all = RunGates::of(self).cloned().unwrap_or_default();
            all.inherited.splice(0..0, gates.iter().cloned());
            self.set_gates(Arc::new(all));
        }
    }

    /// The layers that the run has around its tool calls, outside those of its agent. A nested run
    /// does not inherit them.
    pub fn tool_layers(&self) -> Option<&ToolLayers> {
        self.layers()?.downcast_ref()
    }
}
