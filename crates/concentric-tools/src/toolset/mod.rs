//! The tools of an agent, as the service that executes its rounds.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel};
//! use concentric_tools::{NoArguments, Toolset, tool};
//! use std::time::Duration;
//! use tower::{ServiceBuilder, limit::ConcurrencyLimitLayer, timeout::TimeoutLayer};
//!
//! fn agent(model: BoxModel) -> BoxModel {
//!     let tools = Toolset::new()
//!         .tool(tool("now", "Tells the time.", |NoArguments {}| async { "noon" }).read_only())
//!         .layer(TimeoutLayer::new(Duration::from_secs(30)))
//!         .layer(ConcurrencyLimitLayer::new(4));
//!     BoxModel::new(ServiceBuilder::new().layer(AgentLayer::new(tools)).service(model))
//! }
//! # let _ = agent;
//! ```
//!
//! # Backpressure
//!
//! A toolset is always ready. The calls of a round are made by one clone of the layers' stack, each
//! when it is ready: a stack that is not holds up the calls that come after, but not those that run.

mod outcomes;
mod router;
mod running;
mod service;
mod stack;

pub use self::outcomes::Outcomes;

use self::{
    router::{Router, Table},
    stack::Stack,
};
use crate::{Tool, ToolsetError, layers::Layers};
use concentric_core::{BoxTool, Error, ToolService, ToolSource, ToolSpecs};
use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock},
};
use tower_layer::Layer;

/// Tools, with the layers around their calls.
///
/// See the [module docs](self). Cloning is cheap; clones share what their layers share.
#[derive(Clone, Default)]
pub struct Toolset {
    inner: Arc<Inner>,
}

struct Inner {
    tools: Vec<Tool>,
    layers: Layers,
    max_parallel: usize,
    errors_are_fatal: bool,
    // Made of the above when first used; emptied when they change.
    built: OnceLock<Built>,
}

/// What a toolset is made into before it is used.
struct Built {
    specs: ToolSpecs,
    table: Arc<Table>,
    stack: Stack,
    // One that a round is done with: to reuse it saves a box per layer.
    idle: Mutex<Option<Stack>>,
    fault: Option<ToolsetError>,
}

/// How many calls of a round run at once, unless a toolset says otherwise.
const MAX_PARALLEL: usize = 16;

impl Toolset {
    /// Creates a set of no tools.
    pub fn new() -> Self {
        Self::default()
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        let inner = Arc::make_mut(&mut self.inner);
        inner.built = OnceLock::new();
        change(inner);
        self
    }

    /// Adds a tool.
    ///
    /// Two of one name fail every run, with
    /// [`ErrorKind::Configuration`](concentric_core::ErrorKind::Configuration): see
    /// [`check`](Self::check).
    #[must_use]
    pub fn tool(self, tool: Tool) -> Self {
        self.change(|inner| inner.tools.push(tool))
    }

    /// Adds tools, as of a list that is only known when the program runs.
    #[must_use]
    pub fn tools(self, tools: impl IntoIterator<Item = Tool>) -> Self {
        self.change(|inner| inner.tools.extend(tools))
    }

    /// Wraps every tool call, also those that are refused; the first layer added is the outermost.
    ///
    /// Any tower layer will do, if its service can be cloned. Each is erased when it is added,
    /// which costs two boxes per call; a [`ServiceBuilder`](tower::ServiceBuilder)'s layers, added
    /// at once by `into_inner`, share them. An error of a layer is told to the model, unless it is
    /// [`fatal`](crate::fatal); what it says of itself is all that the model reads.
    #[must_use]
    pub fn layer<L>(self, layer: L) -> Self
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        self.change(|inner| inner.layers.push(layer))
    }

    /// Sets how many calls of a round run at once; the default is 16, the least 1.
    #[must_use]
    pub fn max_parallel(self, calls: usize) -> Self {
        self.change(|inner| inner.max_parallel = calls.max(1))
    }

    /// Has the run fail when a layer returns an error, instead of telling the model.
    #[must_use]
    pub fn errors_are_fatal(self) -> Self {
        self.change(|inner| inner.errors_are_fatal = true)
    }

    /// Whether it can be used; one that can't fails the run.
    ///
    /// # Errors
    ///
    /// Two tools have one name, or one [can't be used](Tool::check).
    pub fn check(&self) -> Result<(), ToolsetError> {
        self.built().fault.clone().map_or(Ok(()), Err)
    }

    /// The tools, in the order they were added.
    pub fn iter(&self) -> std::slice::Iter<'_, Tool> {
        self.inner.tools.iter()
    }

    fn built(&self) -> &Built {
        self.inner.built.get_or_init(|| Built::new(&self.inner))
    }
}

impl<'a> IntoIterator for &'a Toolset {
    type Item = &'a Tool;
    type IntoIter = std::slice::Iter<'a, Tool>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Tool> for Toolset {
    fn from_iter<I: IntoIterator<Item = Tool>>(tools: I) -> Self {
        Self::new().tools(tools)
    }
}

impl ToolSource for Toolset {
    fn specs(&self) -> ToolSpecs {
        self.built().specs.clone()
    }

    fn check(&self) -> Result<(), Error> {
        Ok(Self::check(self)?)
    }
}

impl Built {
    fn new(inner: &Inner) -> Self {
        let specs: ToolSpecs = inner.tools.iter().map(|tool| tool.spec().clone()).collect();
        let duplicate = specs.duplicate().cloned();
        let fault = match duplicate {
            Some(name) => Some(ToolsetError::DuplicateName(name)),
            None => inner.tools.iter().find_map(|tool| tool.check().err()),
        };
        let table = Arc::new(Table::new(inner.tools.clone()));
        let router = Router::new(Arc::clone(&table));
        let stack = if inner.layers.is_empty() {
            Stack::Bare(router)
        } else {
            Stack::Layered(inner.layers.around(BoxTool::new(router)))
        };
        Self {
            specs,
            table,
            stack,
            idle: Mutex::new(None),
            fault,
        }
    }

    /// A service for the calls of a round.
    fn take_stack(&self) -> Stack {
        let idle = match self.idle.try_lock() {
            Ok(mut idle) => idle.take(),
            Err(_) => None,
        };
        idle.unwrap_or_else(|| self.stack.clone())
    }

    /// Takes back a service whose readiness was used up by a call.
    fn put_back(&self, stack: Stack) {
        if let Ok(mut idle) = self.idle.try_lock() {
            *idle = Some(stack);
        }
    }
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            tools: Vec::new(),
            layers: Layers::default(),
            max_parallel: MAX_PARALLEL,
            errors_are_fatal: false,
            built: OnceLock::new(),
        }
    }
}

impl Clone for Inner {
    /// For a change: what was built is left behind.
    fn clone(&self) -> Self {
        Self {
            tools: self.tools.clone(),
            layers: self.layers.clone(),
            max_parallel: self.max_parallel,
            errors_are_fatal: self.errors_are_fatal,
            built: OnceLock::new(),
        }
    }
}

impl fmt::Debug for Toolset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(|tool| &tool.spec().name).collect();
        f.debug_struct("Toolset")
            .field("tools", &names)
            .field("layers", &self.inner.layers)
            .field("max_parallel", &self.inner.max_parallel)
            .field("errors_are_fatal", &self.inner.errors_are_fatal)
            .finish()
    }
}
