use super::{
    router::{Router, Table},
    stack::Stack,
};
use crate::{ErrorFormat, Tool, ToolsetError, call::Arrivals, rules::Policy, tool::Home};
use concentric_core::{Seal, Str, ToolCall, ToolSpecs, agent::ToolLayers, panic::catch};
use std::sync::{Arc, Mutex, OnceLock};

/// The configuration of a toolset.
pub(super) struct Inner {
    pub(super) tools: Vec<Tool>,
    pub(super) layers: ToolLayers,
    pub(super) hints: Vec<Arc<Hint>>,
    pub(super) rules: Arc<Policy>,
    pub(super) max_parallel: usize,
    pub(super) max_calls_per_round: Option<u32>,
    pub(super) errors_are_fatal: bool,
    pub(super) error_format: Option<ErrorFormat>,
    // Built from the fields above on first use; cleared when they change.
    pub(super) built: OnceLock<Built>,
}

/// Describes how the model can obtain a tool that it called and that was not offered.
pub(super) type Hint = dyn Fn(&ToolCall) -> Option<Str> + Send + Sync;

/// The parts of a toolset that are built before its first use.
pub(super) struct Built {
    pub(super) specs: ToolSpecs,
    pub(super) table: Arc<Table>,
    stack: Stack,
    // A stack that a finished round returned: reusing it saves a box per layer.
    idle: Mutex<Option<Stack>>,
    pub(super) fault: Option<ToolsetError>,
}

/// Default limit of concurrent calls of a round.
const MAX_PARALLEL: usize = 16;

impl Inner {
    /// Checks that the gates can decide about the tools.
    fn check_gates(&self, specs: &ToolSpecs) -> Result<(), ToolsetError> {
        for gate in &self.rules.gates {
            match catch(|| gate.check(specs)) {
                Ok(Ok(())) => {}
                // The name may be that of a tool of a nested agent, whose calls these gates decide
                // about, too.
                Ok(Err(error)) => match ToolsetError::of_check(|| gate.policy(), error) {
                    ToolsetError::UnknownTool(name) if self.tools.iter().any(Tool::calls_agent) => {
                        tracing::warn!(tool = %name, "a gate has a rule for a tool that is not in the toolset");
                    }
                    fault => return Err(fault),
                },
                Err(_) => {
                    let policy = catch(|| gate.policy()).unwrap_or_default();
                    return Err(ToolsetError::GatePanicked(policy));
                }
            }
        }
        Ok(())
    }

    /// Checks that the hooks can be called for the tools.
    fn check_hooks(&self, specs: &ToolSpecs) -> Result<(), ToolsetError> {
        let checked = self.layers.check(specs);
        checked.map_err(|error| ToolsetError::of_check(|| Str::from_static("hooks"), error))
    }

    /// Builds the `layers` around the tools of `table`.
    pub(super) fn stack(table: &Arc<Table>, layers: &ToolLayers) -> Stack {
        let router = Router::new(Arc::clone(table));
        match layers.is_empty() {
            true => Stack::Bare(router),
            false => Stack::Layered(layers.around(router, Some(&table.seal))),
        }
    }
}

impl Built {
    pub(super) fn new(inner: &Inner) -> Self {
        let specs: ToolSpecs = inner.tools.iter().map(|tool| tool.spec().clone()).collect();
        let duplicate = specs.duplicate().cloned();
        let fault = match duplicate {
            Some(name) => Some(ToolsetError::DuplicateName(name)),
            None => inner.tools.iter().find_map(|tool| tool.check().err()),
        };
        let fault = fault.or_else(|| inner.check_gates(&specs).err());
        let fault = fault.or_else(|| inner.check_hooks(&specs).err());
        let tools = inner.tools.iter().cloned();
        let home = Home {
            arrive: Arc::new(Arrivals(Arc::clone(&inner.rules))),
            seal: Seal::new(),
        };
        let tools = tools.map(|tool| tool.of_toolset(home.clone(), inner.error_format.as_ref()));
        let table = Arc::new(Table::new(tools.collect(), home.seal.clone()));
        let layered = catch(|| Inner::stack(&table, &inner.layers));
        let (stack, fault) = match layered {
            Ok(stack) => (stack, fault),
            Err(panic) => {
                tracing::error!(panic = panic.text(), "a layer on the tools panicked");
                let bare = Stack::Bare(Router::new(Arc::clone(&table)));
                (bare, fault.or(Some(ToolsetError::LayerPanicked)))
            }
        };
        Self {
            specs,
            table,
            stack,
            idle: Mutex::new(None),
            fault,
        }
    }

    /// Returns a stack for the calls of a round.
    pub(super) fn take_stack(&self) -> Stack {
        let idle = match self.idle.try_lock() {
            Ok(mut idle) => idle.take(),
            Err(_) => None,
        };
        idle.unwrap_or_else(|| self.stack.clone())
    }

    /// Keeps a stack whose readiness was used by a call, for the next round.
    pub(super) fn put_back(&self, stack: Stack) {
        if let Ok(mut idle) = self.idle.try_lock() {
            *idle = Some(stack);
        }
    }
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            tools: Vec::new(),
            layers: ToolLayers::default(),
            hints: Vec::new(),
            rules: Arc::default(),
            max_parallel: MAX_PARALLEL,
            max_calls_per_round: None,
            errors_are_fatal: false,
            error_format: None,
            built: OnceLock::new(),
        }
    }
}

impl Clone for Inner {
    /// Clones for a change: the built parts are not copied.
    fn clone(&self) -> Self {
        Self {
            tools: self.tools.clone(),
            layers: self.layers.clone(),
            hints: self.hints.clone(),
            rules: Arc::clone(&self.rules),
            max_parallel: self.max_parallel,
            max_calls_per_round: self.max_calls_per_round,
            errors_are_fatal: self.errors_are_fatal,
            error_format: self.error_format.clone(),
            built: OnceLock::new(),
        }
    }
}
