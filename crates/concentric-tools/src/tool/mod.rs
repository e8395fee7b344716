//! One tool.
//!
//! A [`Tool`] is made of a function ([`tool`], [`tool_with_context`], [`blocking_tool`]), or of a
//! [`ToolSpec`] and any [`ToolService`] ([`Tool::new`]). It is itself a `Service<ToolCall>`.
//!
//! ```
//! use concentric_tools::{Tool, tool_with_context, fatal};
//! use concentric_core::{Context, ToolCall, ToolOutcome, ToolSpec};
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//! use tower::service_fn;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Refund {
//!     /// The order's number.
//!     order: String,
//!     /// In cents.
//!     #[schemars(range(min = 1, max = 10_000))]
//!     amount: u32,
//! }
//!
//! let refund = tool_with_context("refund", "Pays an order back.", |args: Refund, context: Context| {
//!     let key = context.idempotency_key();
//!     async move { format!("paid {} back for {} ({key:?})", args.amount, args.order) }
//! })
//! .exclusive();
//!
//! // A tool that is only known when the program runs.
//! let spec = ToolSpec::new("ping", "Answers.", serde_json::json!({"type": "object"}));
//! let ping = Tool::new(spec, service_fn(|_: ToolCall| async {
//!     Ok::<_, tower::BoxError>(ToolOutcome::done("pong"))
//! }));
//! # let _ = (refund, ping);
//! ```
//!
//! # Backpressure
//!
//! A tool is always ready. What it is made of is cloned for each call, and the clone is called when
//! it is ready; a tool that waits for that holds up no other.

mod blocking;
mod body;
mod function;
mod future;
mod guard;
mod service;

pub use self::{
    blocking::{blocking_tool, blocking_tool_with_context},
    function::{tool, tool_with_context},
    future::ToolFuture,
};

pub(crate) use self::service::Core;

use self::{body::Body, guard::Limits, service::ServiceBody};
use crate::{
    Overlong, ToolsetError,
    arguments::{Checks, Validator, generate, normal},
    layers::Layers,
    lifecycle::Rules,
    overlong::{Sink, limited},
    panic,
};
use concentric_core::{
    Annotations, Arguments, BoxTool, Context, Seal, Str, ToolCall, ToolCallPart, ToolOutcome,
    ToolService, ToolSpec, method::catch,
};
use schemars::JsonSchema;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tower_layer::Layer;

/// A tool: what a model is told of it, and what executes it.
///
/// See the [module docs](self). Cloning is cheap; clones share what their layers share.
#[derive(Clone)]
pub struct Tool {
    core: Arc<Core>,
    exclusive: bool,
    layers: Layers,
    max_calls: Option<u32>,
    reconcile: Option<Reconcile>,
    requires: Vec<Requirement>,
    // What it calls has tools of its own, which the gates of this toolset are asked about, too.
    is_agent: bool,
    // It makes other tools available, so that it must always be offered itself.
    reveals: bool,
    max_depth: usize,
    home: Option<Home>,
    // Made of the above at the first call; emptied when they change.
    stack: Arc<OnceLock<BoxTool>>,
}

/// The toolset that a tool is in.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) rules: Arc<Rules>,
    /// Marks the calls that its rounds make.
    pub(crate) seal: Seal,
}

/// Something that a run's context is to have.
#[derive(Clone, Copy)]
struct Requirement {
    type_name: &'static str,
    is_met: fn(&Context) -> bool,
}

type Reconciled = Pin<Box<dyn Future<Output = Option<ToolOutcome>> + Send>>;

#[derive(Clone)]
struct Reconcile(Arc<dyn Fn(ToolCall) -> Reconciled + Send + Sync>);

/// How many bytes the text of a result may have, unless a tool says otherwise.
pub(crate) const MAX_RESULT_BYTES: usize = 64 * 1024;

/// How many bytes the arguments may have, unless a tool says otherwise.
const MAX_ARGUMENT_BYTES: usize = 1024 * 1024;

/// How many agents may call one another, unless a tool says otherwise.
const MAX_DEPTH: usize = 4;

/// How many runs a run is inside of.
fn depth(context: &Context) -> usize {
    std::iter::successors(context.parent(), |context| context.parent()).count()
}

impl Tool {
    /// Creates a tool that `service` executes.
    ///
    /// The service is called with arguments that are valid by the schema of `spec`, and are `{}` where
    /// the model wrote nothing. Its answers and errors are treated as those of a function are. The
    /// schema may be untrusted: see [`check`](Self::check).
    pub fn new<S>(spec: ToolSpec, service: S) -> Self
    where
        S: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        let validator = Validator::for_arguments(&spec.input_schema);
        Self::of_body(spec, ServiceBody::new(service), validator)
    }

    fn of_body(
        spec: ToolSpec,
        body: impl Body,
        validator: Result<Option<Validator>, String>,
    ) -> Self {
        let (validator, fault) = match validator {
            Ok(validator) => (validator, None),
            Err(reason) => {
                let (tool, reason) = (spec.name.clone(), reason.into());
                (None, Some(ToolsetError::InvalidSchema { tool, reason }))
            }
        };
        Self {
            core: Arc::new(Core {
                spec: Arc::new(spec),
                body: Arc::new(body),
                checks: Checks {
                    validator,
                    max_bytes: MAX_ARGUMENT_BYTES,
                },
                limits: Limits {
                    timeout: None,
                    timeout_is_fatal: false,
                    max_result_bytes: MAX_RESULT_BYTES,
                    on_overlong: None,
                },
                fault,
            }),
            exclusive: false,
            max_calls: None,
            reconcile: None,
            requires: Vec::new(),
            is_agent: false,
            reveals: false,
            max_depth: MAX_DEPTH,
            home: None,
            layers: Layers::default(),
            stack: Arc::default(),
        }
    }

    /// A tool that decodes its arguments as `A`.
    fn of_type<A>(name: Str, description: Str, body: impl Body) -> Self
    where
        A: JsonSchema,
    {
        let generated = generate::<A>();
        let validator = match generated.fault {
            Some(fault) => Err(fault.to_owned()),
            None => Validator::for_arguments(&generated.schema),
        };
        let spec = ToolSpec::new(name, description, generated.schema);
        Self::of_body(spec, body, validator)
    }

    /// What a model is told of it.
    pub fn spec(&self) -> &Arc<ToolSpec> {
        &self.core.spec
    }

    /// Whether it never runs beside other calls of its round.
    pub const fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Returns an error if the tool cannot be used; a run with such a tool in its
    /// [`Toolset`](crate::Toolset) fails before the model is called.
    ///
    /// # Errors
    ///
    /// Its schema cannot be enforced: it is not one of an object, refers to another document, or has
    /// a pattern that does not take linear time (look-around, back-references).
    pub fn check(&self) -> Result<(), ToolsetError> {
        self.core.fault.clone().map_or(Ok(()), Err)
    }

    fn change(mut self, change: impl FnOnce(&mut Core)) -> Self {
        change(Arc::make_mut(&mut self.core));
        self.stack = Arc::default();
        self
    }

    /// The tool as one of a toolset.
    pub(crate) fn of_toolset(mut self, home: Home) -> Self {
        self.home = Some(home);
        self.stack = Arc::default();
        self
    }

    /// Whether it calls an agent.
    pub(crate) fn calls_agent(&self) -> bool {
        self.is_agent
    }

    /// Whether it makes other tools available.
    pub(crate) const fn reveals(&self) -> bool {
        self.reveals
    }

    /// The tool as one that makes other tools available.
    pub(crate) fn revealing(mut self) -> Self {
        self.reveals = true;
        self.stack = Arc::default();
        self
    }

    /// The tool as one that calls an agent.
    pub(crate) fn calling_agent(mut self) -> Self {
        self.is_agent = true;
        self.stack = Arc::default();
        self
    }

    /// Whether the run of `context` may be told of the tool.
    pub(crate) fn is_offered_to(&self, context: &Context) -> bool {
        !self.is_agent || depth(context) < self.max_depth
    }

    /// Sets how deep in runs of agents a tool that calls an agent is still offered; the default is
    /// 4. The run that a user starts has depth 0, and is always offered the tool: 0 counts as 1.
    #[must_use]
    pub const fn max_depth(mut self, depth: usize) -> Self {
        self.max_depth = if depth == 0 { 1 } else { depth };
        self
    }

    /// The arguments as they are checked: `{}` if the model wrote nothing.
    pub(crate) fn normal(&self, arguments: &Arguments) -> Arguments {
        normal(arguments)
    }

    /// Whether the arguments of a call are sound, and of the tool's type.
    ///
    /// # Errors
    ///
    /// They are not; the outcome tells the model where and why.
    pub(crate) fn validate(&self, call: &ToolCallPart) -> Result<(), ToolOutcome> {
        match catch(|| self.core.body.validate(call, &self.core.checks)) {
            Ok(result) => result,
            Err(panic) => Err(panic::outcome(&panic, &call.name)),
        }
    }

    /// Whether to run a call again does no harm.
    pub(crate) fn may_run_again(&self) -> bool {
        self.core.spec.may_run_again()
    }

    /// Whether layers of its own surround it.
    pub(crate) fn has_layers(&self) -> bool {
        !self.layers.is_empty()
    }

    /// Whether it can report the outcome of a call that was given up.
    pub(crate) const fn has_reconcile(&self) -> bool {
        self.reconcile.is_some()
    }

    /// What came of a call that was begun, if the tool can tell.
    pub(crate) async fn reconciled(&self, call: &ToolCall) -> Option<ToolOutcome> {
        let Reconcile(reconcile) = self.reconcile.as_ref()?;
        reconcile(call.clone()).await
    }

    /// Leaves of an outcome that somebody gave in the tool's place what the model is to read.
    pub(crate) fn limited(&self, outcome: ToolOutcome) -> ToolOutcome {
        limited(outcome, self.core.limits.max_result_bytes)
    }

    pub(crate) fn max_calls_of_run(&self) -> Option<(Str, u32)> {
        Some((self.core.spec.name.clone(), self.max_calls?))
    }

    /// What the run of `context` lacks for the tool.
    pub(crate) fn misses(&self, context: &Context) -> Option<ToolsetError> {
        let mut missing = self.requires.iter().filter(|r| !(r.is_met)(context));
        missing.next().map(|missing| ToolsetError::MissingContext {
            tool: self.core.spec.name.clone(),
            type_name: missing.type_name,
        })
    }

    /// Says that a run that is offered the tool has a `T` in the
    /// [extensions](concentric_core::Context::extensions) of its context: one that has not fails
    /// before its first model call, with
    /// [`ErrorKind::Configuration`](concentric_core::ErrorKind::Configuration).
    ///
    /// ```
    /// use concentric_core::Context;
    /// use concentric_tools::{NoArguments, tool_with_context};
    ///
    /// #[derive(Clone)]
    /// struct User(String);
    ///
    /// let whoami = tool_with_context("whoami", "Tells who asks.", async |_: NoArguments, cx: Context| {
    ///     cx.extensions().get::<User>().map_or_else(String::new, |user| user.0.clone())
    /// })
    /// .requires::<User>();
    /// # let _ = whoami;
    /// ```
    #[must_use]
    pub fn requires<T>(mut self) -> Self
    where
        T: Clone + Send + Sync + 'static,
    {
        self.requires.push(Requirement {
            type_name: std::any::type_name::<T>(),
            is_met: |context| context.extensions().get::<T>().is_some(),
        });
        self
    }

    /// The tool under a name of its own within `namespace`: `namespace__name`, so that tools of two
    /// sources don't take each other's names.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        self.change_spec(|spec| spec.name = format!("{namespace}__{}", spec.name).into())
    }

    /// Says what it belongs to, for [matchers](crate::Matcher::group); a tool may be in several groups.
    #[must_use]
    pub fn group(self, group: impl Into<Str>) -> Self {
        self.change_spec(|spec| spec.groups.push(group.into()))
    }

    /// Sets how many calls of it a run may make; the default is no limit, and 0 refuses every call. A
    /// call over the limit is answered with an error. Calls that are denied or blocked count.
    #[must_use]
    pub const fn max_calls(mut self, calls: u32) -> Self {
        self.max_calls = Some(calls);
        self
    }

    /// Says that it hands the call's [idempotency key](concentric_core::Context::idempotency_key)
    /// to a service that takes a call once: after a crash it is called again with the same key.
    #[must_use]
    pub fn keyed(self) -> Self {
        self.change_spec(|spec| spec.keyed = true)
    }

    /// Finds the outcome of a call that was started and given up: its process ended, or it
    /// [timed out](Self::timeout). `None` if the outcome cannot be found, and a person is asked if there
    /// is a [ledger](crate::Toolset::ledger). It is called in place of the tool, which is not run again.
    ///
    /// The call may still take effect after this has answered: a process may only have been slow, and
    /// a [blocking](crate::blocking_tool) function continues after a timeout. Where that matters, have the service refuse the call's key from now on, or
    /// those who come with an older [fence](concentric_core::store::RunClaim::fence).
    #[must_use]
    pub fn reconcile<F, Fut>(mut self, reconcile: F) -> Self
    where
        F: Fn(ToolCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<ToolOutcome>> + Send + 'static,
    {
        self.reconcile = Some(Reconcile(Arc::new(move |call| Box::pin(reconcile(call)))));
        self
    }

    fn change_spec(self, change: impl FnOnce(&mut ToolSpec)) -> Self {
        self.change(|core| change(Arc::make_mut(&mut core.spec)))
    }

    /// Says that it only reads, and only here: [`Annotations::read_only`].
    #[must_use]
    pub fn read_only(self) -> Self {
        self.annotations(Annotations::read_only())
    }

    /// Says what it does to the world; the default is the worst.
    #[must_use]
    pub fn annotations(self, annotations: Annotations) -> Self {
        self.change_spec(|spec| spec.annotations = annotations)
    }

    /// Says what `T` its result is, as a JSON Schema.
    ///
    /// Results are not checked against it.
    #[must_use]
    pub fn output_schema<T>(self) -> Self
    where
        T: JsonSchema,
    {
        self.change_spec(|spec| spec.output_schema = Some(Arc::new(generate::<T>().schema)))
    }

    /// Runs it alone: after the calls before it in its round have ended, and before those after it
    /// start. Otherwise it may run beside other calls, and itself.
    #[must_use]
    pub const fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Drops a call that takes longer than `limit`; the default is no limit.
    ///
    /// The function may have taken effect by then. The outcome is
    /// [`Failed`](concentric_core::ToolStatus::Failed) only if the tool may run again: if it is
    /// read-only, idempotent or [keyed](Self::keyed), or had not started. Otherwise it is
    /// [`Unknown`](concentric_core::ToolStatus::Unknown), and the call is treated as one whose process
    /// ended: its [ledger](crate::Toolset::ledger) entry stays begun, [`reconcile`](Self::reconcile)
    /// may report the outcome, and a person is asked otherwise. Nobody is asked without a ledger, or
    /// where [a run that waits is not stored](concentric_core::Context::is_suspension_stored): the
    /// model reads that the outcome is unknown. The same holds for a panic of the function, for an error of kind
    /// [`Timeout`](concentric_core::ErrorKind::Timeout) that it returns by `?`, and for a layer that
    /// drops the call while it runs, such as tower's `Timeout`.
    ///
    /// Time is the run's own ([`Environment::clock`](concentric_core::Environment::clock)), counted
    /// from when the function first waits. [`Duration::ZERO`] ends every call that waits at all;
    /// [`Duration::MAX`] is no limit.
    #[must_use]
    pub fn timeout(self, limit: Duration) -> Self {
        self.change(|core| core.limits.timeout = Some(limit))
    }

    /// Fails the run with [`ErrorKind::Timeout`](concentric_core::ErrorKind::Timeout) if a call times
    /// out. Its [ledger](crate::Toolset::ledger) entry stays begun.
    #[must_use]
    pub fn timeout_is_fatal(self) -> Self {
        self.change(|core| core.limits.timeout_is_fatal = true)
    }

    /// Sets how many bytes of text a result may have; the default is 64 KiB.
    ///
    /// Of a longer one the model reads the first 80 % and the last 20 % of the limit, with a marker
    /// between them, cut between characters. The marker counts, unless the limit is too small for it: 0
    /// leaves only the marker. Images and the like don't count.
    #[must_use]
    pub fn max_result_bytes(self, bytes: usize) -> Self {
        self.change(|core| core.limits.max_result_bytes = bytes)
    }

    /// Hands results that are over [`max_result_bytes`](Self::max_result_bytes) to `sink`, whole.
    ///
    /// It is called from within the call, and is not to block.
    #[must_use]
    pub fn on_overlong(self, sink: impl Fn(Overlong) + Send + Sync + 'static) -> Self {
        self.change(|core| core.limits.on_overlong = Some(Sink(Arc::new(sink))))
    }

    /// Sets how many bytes the arguments may have; the default is 1 MiB. With fewer than 2, the length
    /// of `{}`, every call is refused.
    #[must_use]
    pub fn max_argument_bytes(self, bytes: usize) -> Self {
        self.change(|core| core.checks.max_bytes = bytes)
    }

    /// Wraps the calls of this tool that may run; the first layer added is the outermost.
    ///
    /// Any tower layer will do, if its service can be cloned. It stands inside the toolset's layers,
    /// and outside of [`timeout`](Self::timeout) and the rest of the tool's own care.
    #[must_use]
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        self.layers.push(layer);
        self.stack = Arc::default();
        self
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool")
            .field("spec", &self.core.spec)
            .field("exclusive", &self.exclusive)
            .field("layers", &self.layers)
            .finish_non_exhaustive()
    }
}
