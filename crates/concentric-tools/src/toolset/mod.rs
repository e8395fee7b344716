//! The tools of an agent, as a service that executes rounds of tool calls.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel};
//! use concentric_tools::{NoArguments, Toolset, tool};
//! use std::time::Duration;
//! use tower::{ServiceBuilder, limit::ConcurrencyLimitLayer, timeout::TimeoutLayer};
//!
//! fn agent(model: BoxModel) -> BoxModel {
//!     let tools = Toolset::new()
//!         .tool(tool("now", "Returns the time.", |NoArguments {}| async { "noon" }).read_only())
//!         .layer(TimeoutLayer::new(Duration::from_secs(30)))
//!         .layer(ConcurrencyLimitLayer::new(4));
//!     BoxModel::new(ServiceBuilder::new().layer(AgentLayer::new(tools)).service(model))
//! }
//! # let _ = agent;
//! ```
//!
//! # Backpressure
//!
//! A toolset is always ready. One clone of the layered stack makes all calls of a round, each once
//! it is ready: a stack that is not ready delays later calls, but not running ones.

mod build;
mod error_format;
mod router;
mod stack;

pub(crate) use self::stack::{Observation, Stack, StackFuture};

use self::build::{Built, Inner};
use crate::{
    Approval, Tool, ToolError, ToolsetError,
    gate::Gate,
    rules::{LedgerHandle, Policy, Prepare, SiblingPolicy},
    tool::run_tool,
};
use concentric_core::{
    Arguments, BoxTool, Context, Error, ErrorKind, Seal, Str, ToolCall, ToolCallPart, ToolOutcome,
    ToolService, ToolSource, ToolSpecs,
    agent::{ObserveSettled, ToolLayers, ToolParts},
    hooks::Flow,
    machine,
    service::CloneService,
    store::{Ledger, Once},
    trace::{Trace, TraceEntry},
};
use std::{
    any::Any,
    fmt,
    future::Future,
    sync::{Arc, OnceLock},
};
use tower_layer::Layer;

/// Tools, with the layers around their calls.
///
/// See the [module docs](self). Cloning is cheap; clones share what their layers share.
#[derive(Clone, Default)]
pub struct Toolset {
    inner: Arc<Inner>,
}

impl Toolset {
    /// Creates an empty toolset.
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
    /// Two tools of one name fail every run with
    /// [`ErrorKind::Configuration`]: see
    /// [`check`](Self::check).
    #[must_use]
    pub fn tool(self, tool: Tool) -> Self {
        self.change(|inner| inner.tools.push(tool))
    }

    /// Adds tools, such as a list that is built at run time.
    #[must_use]
    pub fn tools(self, tools: impl IntoIterator<Item = Tool>) -> Self {
        self.change(|inner| inner.tools.extend(tools))
    }

    /// Adds a tool; replaces the one of the same name, if any.
    #[must_use]
    pub fn shadow(self, tool: Tool) -> Self {
        self.change(|inner| {
            let name = &tool.spec().name;
            match inner.tools.iter_mut().find(|t| t.spec().name == *name) {
                Some(shadowed) => *shadowed = tool,
                None => inner.tools.push(tool),
            }
        })
    }

    /// Adds a layer around every tool call that may run; the first layer added is the outermost.
    ///
    /// A call that has an outcome before it enters the stack, because it was refused, denied or
    /// executed elsewhere, does not reach the layer. [`hooks`](Self::hooks) can observe it, as can layers that
    /// are added with them.
    ///
    /// Accepts any tower layer whose service can be cloned. Each layer is erased when it is added,
    /// which costs two boxes per call; the layers of a [`ServiceBuilder`](tower::ServiceBuilder),
    /// added together by `into_inner`, share them. An error of a layer is logged, and the model
    /// reads a fixed text, unless the error is [`fatal`](crate::fatal). A layer that returns its
    /// own text to the model returns [`ToolOutcome::failed`](concentric_core::ToolOutcome::failed).
    #[must_use]
    pub fn layer<L>(self, layer: L) -> Self
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        self.change(|inner| inner.layers.push(layer))
    }

    /// Adds [`hooks::tool`](concentric_core::hooks::tool) as a [`layer`](Self::layer), and calls
    /// their [`after_call`](concentric_core::Hooks::after_call) also for calls that do not run
    /// because they were refused, denied or executed elsewhere.
    ///
    /// Other layers that implement [`ObserveSettled`] can be added in the same way, such as `LogLayer` and
    /// `Otel::tool` of `concentric-layers`.
    ///
    /// The outcome of such a call cannot be replaced. To call the hooks for some calls only, add
    /// [`ScopedExt::scoped`](crate::ScopedExt::scoped) hooks.
    ///
    /// ```
    /// use concentric_core::{BoxError, ToolCall, ToolOutcome, hooks::{self, Hooks}};
    /// use concentric_tools::{Approval, NoArguments, ScopedExt, Toolset, tool};
    /// use std::{sync::Arc, time::Duration};
    ///
    /// struct Audit;
    ///
    /// impl Hooks for Audit {
    ///     fn id(&self) -> &str {
    ///         "audit"
    ///     }
    ///
    ///     async fn after_call(
    ///         &self,
    ///         call: &ToolCall,
    ///         outcome: &ToolOutcome,
    ///         _took: Duration,
    ///     ) -> Result<Option<ToolOutcome>, BoxError> {
    ///         // Denied calls are recorded, too.
    ///         println!("{}: {:?}", call.name(), outcome.status);
    ///         Ok(None)
    ///     }
    /// }
    ///
    /// let tools = Toolset::new()
    ///     .tool(tool("refund", "", |NoArguments {}| async { "paid" }))
    ///     .gate(Approval::for_tools("refund"))
    ///     .hooks(hooks::tool(Arc::new(Audit)).scoped("refund"));
    /// # let _ = tools;
    /// ```
    #[must_use]
    pub fn hooks<L>(self, hooks: L) -> Self
    where
        L: ObserveSettled + Layer<BoxTool> + Clone,
        L::Service: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        self.change(|inner| inner.layers.push_hooks(hooks))
    }

    /// Adds a gate, which decides about the calls of each round before any of them enters the
    /// layers.
    ///
    /// All gates decide, in the order they were added; the strictest verdict applies. A call that
    /// is allowed or approved runs with the arguments that were decided about. If a layer changes
    /// them afterwards, the gates decide about the changed call once more.
    #[must_use]
    pub fn gate(self, gate: impl Gate) -> Self {
        self.rules_mut(|rules| rules.gates.push(Arc::new(gate)))
    }

    /// Edits the arguments of calls before the gates receive them. They are decoded and validated
    /// before and after the edit, and an approver approves the edited arguments.
    ///
    /// `prepare` may be called several times for one call, and must be deterministic. Arguments
    /// that an approver edits are not prepared again; the gates decide about them, and they are
    /// validated.
    ///
    /// ```
    /// use concentric_core::Arguments;
    /// use concentric_tools::Toolset;
    ///
    /// let tools = Toolset::new().prepare(async |call| {
    ///     let text = call.arguments().as_str().replace("~/", "/home/me/");
    ///     Ok(Arguments::new(text))
    /// });
    /// # let _ = tools;
    /// ```
    #[must_use]
    pub fn prepare<F, Fut>(self, prepare: F) -> Self
    where
        F: Fn(ToolCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arguments, ToolError>> + Send + 'static,
    {
        self.rules_mut(|rules| rules.prepare.push(Prepare::new(prepare)))
    }

    /// Sets the treatment of the other calls of a round while some wait for an approval; the
    /// default is [`SiblingPolicy::RunReadOnly`].
    #[must_use]
    pub fn siblings(self, siblings: SiblingPolicy) -> Self {
        self.rules_mut(|rules| rules.siblings = siblings)
    }

    /// Requires all interrupts of a round to be answered together: a request that omits one runs
    /// nothing. By default the answered calls run, and the others keep waiting.
    #[must_use]
    pub fn all_at_once(self) -> Self {
        self.rules_mut(|rules| rules.together = true)
    }

    /// Accepts replies to interrupts that are not stored, if each carries a signed proof; see
    /// [`ApprovalTokens`](crate::ApprovalTokens).
    #[cfg(feature = "approval-tokens")]
    #[must_use]
    pub fn tokens(self, tokens: crate::ApprovalTokens) -> Self {
        self.rules_mut(|rules| rules.tokens = Some(Arc::new(tokens)))
    }

    /// Notifies observers of each interrupt and of its end once, across all processes that share
    /// `once`.
    #[must_use]
    pub fn notify_once(self, once: impl Once) -> Self {
        self.rules_mut(|rules| rules.once = Some(Arc::new(once)))
    }

    /// Records the effects of tools that are not read-only before and after they execute.
    ///
    /// A call whose process ended in between is not run again, unless its tool is idempotent or
    /// [keyed](Tool::keyed): the tool may [report](Tool::reconcile) the outcome, or the run is
    /// interrupted to ask for it ([`UNKNOWN_EFFECT`](concentric_core::interrupt::UNKNOWN_EFFECT)).
    /// The same applies to a call that is [abandoned](Tool::timeout) while it runs. A call that is
    /// recorded as finished is not run. If the ledger fails, the tool is not run and the run fails.
    ///
    /// Without a ledger, no interrupt is raised for an abandoned call: the model reads that its
    /// outcome is [`Unknown`](concentric_core::ToolStatus::Unknown). So it does with one where a run
    /// that waits is not stored, as behind `AgUiLayer` without `SuspendLayer`
    /// ([`Context::is_suspension_stored`]): the entry stays started then.
    #[must_use]
    pub fn ledger(self, ledger: impl Ledger) -> Self {
        self.rules_mut(|rules| rules.ledger = Some(LedgerHandle::new(ledger)))
    }

    /// Passes each lifecycle step of each call to `sink`, in any loop. A [`Trace`] of an agent also
    /// has the steps of the run. `sink` is called while the round is polled, and must not block.
    #[must_use]
    pub fn trace(self, sink: impl Fn(TraceEntry) + Send + Sync + 'static) -> Self {
        self.rules_mut(|rules| rules.trace = Some(Trace::new(sink)))
    }

    /// Adds a text for the model to the refusal of a call whose tool was not offered.
    #[cfg(feature = "lazy")]
    #[must_use]
    pub(crate) fn hint(
        self,
        hint: impl Fn(&ToolCall) -> Option<Str> + Send + Sync + 'static,
    ) -> Self {
        self.change(|inner| inner.hints.push(Arc::new(hint)))
    }

    /// The text for the refusal of `call`, whose tool was not offered.
    pub(crate) fn hint_about(&self, call: impl FnOnce() -> ToolCall) -> Option<Str> {
        let hints = &self.inner.hints;
        if hints.is_empty() {
            return None;
        }
        let call = call();
        hints.iter().find_map(|hint| hint(&call))
    }

    fn rules_mut(self, change: impl FnOnce(&mut Policy)) -> Self {
        self.change(|inner| change(Arc::make_mut(&mut inner.rules)))
    }

    /// Limits the calls in one answer of the model; the default is no limit, and 0 refuses every
    /// call. A call over the limit fails.
    #[must_use]
    pub fn max_calls_per_round(self, calls: u32) -> Self {
        self.change(|inner| inner.max_calls_per_round = Some(calls))
    }

    /// Limits the concurrent calls of a round; the default is 16, and 0 means 1.
    #[must_use]
    pub fn max_parallel(self, calls: usize) -> Self {
        self.change(|inner| inner.max_parallel = calls.max(1))
    }

    /// Fails the run if a layer returns an error. By default the model reads a fixed text.
    #[must_use]
    pub fn errors_are_fatal(self) -> Self {
        self.change(|inner| inner.errors_are_fatal = true)
    }

    /// Checks that the toolset can be used; a run with an invalid toolset fails.
    ///
    /// # Errors
    ///
    /// Returns an error if two tools have the same name, a tool [is invalid](Tool::check), or a
    /// gate [rejects the tools](Gate::check), for example because it names an unknown tool. Also if
    /// [hooks](Self::hooks) are [scoped](crate::ScopedExt::scoped) to an unknown tool, or to none.
    pub fn check(&self) -> Result<(), ToolsetError> {
        self.built().fault.clone().map_or(Ok(()), Err)
    }

    /// Iterates over the tools in the order they were added.
    pub fn iter(&self) -> std::slice::Iter<'_, Tool> {
        self.inner.tools.iter()
    }

    fn built(&self) -> &Built {
        self.inner.built.get_or_init(|| Built::new(&self.inner))
    }

    pub(crate) fn rules(&self) -> &Arc<Policy> {
        &self.inner.rules
    }

    pub(crate) fn seal(&self) -> &Seal {
        &self.built().table.seal
    }

    /// The tool named `name`.
    pub(crate) fn find(&self, name: &str) -> Option<&Tool> {
        self.built().table.get(name)
    }

    /// Accepts the edited arguments of an approver only if the call's tool does.
    pub(crate) fn check_edited(&self, call: &ToolCallPart) -> Result<(), Str> {
        match self.find(&call.name) {
            Some(tool) => tool
                .validate(call)
                .map_err(|refused| refused.content.text().into_owned().into()),
            // An unknown tool is refused when the call resumes.
            None => Ok(()),
        }
    }

    pub(crate) fn names(&self) -> Arc<[Str]> {
        self.built().table.names()
    }

    /// The number of calls of a round that run concurrently.
    pub(crate) fn parallel_calls(&self) -> usize {
        self.inner.max_parallel
    }

    /// Whether the error of a layer fails the run.
    pub(crate) fn has_fatal_errors(&self) -> bool {
        self.inner.errors_are_fatal
    }

    /// The layers around the calls of a run, if it has layers of its own.
    fn layers_of_run(&self, context: &Context) -> Option<ToolLayers> {
        let mut layers = context.tool_layers()?.clone();
        layers.extend(&self.inner.layers);
        Some(layers)
    }

    /// Calls the hooks that observe a call which was settled before it entered the stack.
    pub(crate) fn observe(
        &self,
        context: &Context,
        call: impl FnOnce() -> ToolCall,
    ) -> Option<Observation> {
        match self.layers_of_run(context) {
            Some(layers) => layers.observe(call),
            None => self.inner.layers.observe(call),
        }
    }

    /// Calls `before_call` of the hooks around the calls of a run, for a call that is not made.
    pub(crate) async fn ask_hooks(
        &self,
        context: &Context,
        call: ToolCall,
    ) -> (ToolCall, Result<Flow<ToolOutcome>, Error>) {
        match self.layers_of_run(context) {
            Some(layers) => layers.ask(call).await,
            None => self.inner.layers.ask(call).await,
        }
    }

    pub(crate) fn take_stack(&self, context: &Context) -> Stack {
        match self.layers_of_run(context) {
            Some(layers) => Inner::stack(&self.built().table, &layers),
            None => self.built().take_stack(),
        }
    }

    pub(crate) fn put_back(&self, stack: Stack, context: &Context) {
        if context.tool_layers().is_none() {
            self.built().put_back(stack);
        }
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

    fn install(&mut self, parts: ToolParts) -> Result<(), Error> {
        let ToolParts { layers, gates, .. } = parts;
        *self = std::mem::take(self)
            .change(|inner| inner.layers.extend(&layers))
            .rules_mut(|rules| rules.gates.extend(gates));
        Ok(())
    }

    fn install_for_run(&mut self, parts: &ToolParts) -> Result<(), Error> {
        for gate in &parts.gates {
            if let Some(approval) = (&**gate as &dyn Any).downcast_ref::<Approval>() {
                approval.check_rules()?;
            }
        }
        for tool in &parts.tools {
            let tool = run_tool(&**tool)?;
            let name = &tool.spec().name;
            if self.iter().any(|own| own.spec().name == *name) {
                let why = format!(
                    "the agent has a tool of the name of the run's tool `{name}`; rename it, or use \
                     `RunOverrides::shadow` to replace the agent's"
                );
                return Err(Error::new(ErrorKind::Configuration, why).with_code("overrides"));
            }
            *self = std::mem::take(self).tool(tool.clone());
        }
        for tool in &parts.shadows {
            *self = std::mem::take(self).shadow(run_tool(&**tool)?.clone());
        }
        let checked = parts.layers.check(&self.built().specs);
        Ok(checked.map_err(|error| ToolsetError::of_check(|| "hooks".into(), error))?)
    }

    fn check_run(&self, context: &Context) -> Result<(), Error> {
        let mut missing = self.iter().filter_map(|tool| tool.misses(context));
        match missing.next() {
            None => Ok(()),
            Some(missing) => Err(missing.into()),
        }
    }

    fn offers(&self, tool: &str, context: &Context) -> bool {
        self.find(tool)
            .is_none_or(|tool| tool.is_offered_to(context))
    }

    fn rules(&self) -> machine::RunLimits {
        let mut rules = machine::RunLimits::default();
        rules.calls_per_round = self.inner.max_calls_per_round;
        rules.calls_per_tool = self.iter().filter_map(Tool::max_calls_of_run).collect();
        rules.resumes = true;
        rules.ledger = self.inner.rules.ledger.is_some();
        let tools = self.clone();
        rules.edits = Some(Arc::new(move |call| tools.check_edited(call)));
        rules
    }
}

impl fmt::Debug for Toolset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(|tool| &tool.spec().name).collect();
        f.debug_struct("Toolset")
            .field("tools", &names)
            .field("layers", &self.inner.layers)
            .field("rules", &self.inner.rules)
            .field("max_parallel", &self.inner.max_parallel)
            .field("errors_are_fatal", &self.inner.errors_are_fatal)
            .finish()
    }
}
