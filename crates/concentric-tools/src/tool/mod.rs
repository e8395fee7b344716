//! A single tool: its specification and its service.
//!
//! A [`Tool`] wraps a function ([`tool`], [`tool_with_context`], [`blocking_tool`]), or a
//! [`ToolSpec`] and any [`ToolService`] ([`Tool::new`]). It implements `Service<ToolCall>`.
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
//! let refund = tool_with_context("refund", "Refunds an order.", |args: Refund, context: Context| {
//!     let key = context.idempotency_key();
//!     async move { format!("refunded {} for {} ({key:?})", args.amount, args.order) }
//! })
//! .exclusive();
//!
//! // A tool whose spec is built at run time.
//! let spec = ToolSpec::new("ping", "Replies with `pong`.", serde_json::json!({"type": "object"}));
//! let ping = Tool::new(spec, service_fn(|_: ToolCall| async {
//!     Ok::<_, tower::BoxError>(ToolOutcome::done("pong"))
//! }));
//! # let _ = (refund, ping);
//! ```
//!
//! # Backpressure
//!
//! A tool is always ready. Its service is cloned for each call, and the clone is called once it is
//! ready; a tool that is not ready delays no other tool.

mod access;
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
    ErrorFormat, ToolsetError, Truncation,
    arguments::{Checks, Validator, generate},
    truncation::Sink,
};
use concentric_core::{
    Annotations, BoxTool, Context, Error, ErrorKind, Seal, Str, ToolCall, ToolOutcome, ToolService,
    ToolSpec,
    agent::{RunTool, ToolLayers},
};
use schemars::JsonSchema;
use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tower_layer::Layer;

/// A tool: the specification that a model receives, and the service that executes its calls.
///
/// See the [module docs](self). Cloning is cheap; clones share what their layers share.
#[derive(Clone)]
pub struct Tool {
    core: Arc<Core>,
    exclusive: bool,
    layers: ToolLayers,
    max_calls: Option<u32>,
    reconcile: Option<Reconcile>,
    requires: Vec<Requirement>,
    // Calls an agent whose tool calls the gates of this toolset decide about, too.
    is_agent: bool,
    // Makes other tools available, so it must always be offered.
    #[cfg(feature = "lazy")]
    reveals: bool,
    max_depth: usize,
    home: Option<Home>,
    // Built from the fields above at the first call; cleared when they change.
    stack: Arc<OnceLock<BoxTool>>,
}

/// The toolset of a tool.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) arrive: Arc<dyn Arrive>,
    /// Marks the calls of the toolset's rounds.
    pub(crate) seal: Seal,
}

/// Runs the calls that arrive at the tools of a toolset.
pub(crate) trait Arrive: Send + Sync {
    /// Calls `tool` if the call is unchanged since it was decided about; a changed call is decided
    /// about again.
    fn arrive(&self, tool: &Tool, call: ToolCall) -> ToolFuture;
}

/// A type that must be in the extensions of a run's context.
#[derive(Clone, Copy)]
struct Requirement {
    type_name: &'static str,
    is_met: fn(&Context) -> bool,
}

type Reconciled = Pin<Box<dyn Future<Output = Option<ToolOutcome>> + Send>>;

#[derive(Clone)]
struct Reconcile(Arc<dyn Fn(ToolCall) -> Reconciled + Send + Sync>);

/// Default limit of the text of a result (bytes).
pub(crate) const MAX_RESULT_BYTES: usize = 64 * 1024;

/// Default limit of the arguments (bytes).
const MAX_ARGUMENT_BYTES: usize = 1024 * 1024;

/// Default limit of nested agent runs.
const MAX_DEPTH: usize = 4;

impl Tool {
    /// Creates a tool that `service` executes.
    ///
    /// The service receives arguments that match the schema of `spec`; empty arguments become `{}`.
    /// Its outcomes and errors are treated like those of a function. The schema may be untrusted:
    /// see [`check`](Self::check).
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
            Err(reason) => (None, Some(invalid_schema(&spec, reason))),
        };
        let mut core = Core {
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
                on_truncation: None,
            },
            output: None,
            error_format: None,
            fault,
        };
        core.compile_output();
        Self {
            core: Arc::new(core),
            exclusive: false,
            max_calls: None,
            reconcile: None,
            requires: Vec::new(),
            is_agent: false,
            #[cfg(feature = "lazy")]
            reveals: false,
            max_depth: MAX_DEPTH,
            home: None,
            layers: ToolLayers::default(),
            stack: Arc::default(),
        }
    }

    /// Creates a tool that decodes its arguments as `A`.
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

    /// The specification that a model receives.
    pub fn spec(&self) -> &Arc<ToolSpec> {
        &self.core.spec
    }

    /// Whether the tool never runs concurrently with other calls of its round.
    pub const fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Checks that the tool can be used; a run with an invalid tool in its
    /// [`Toolset`](crate::Toolset) fails before the first model call.
    ///
    /// # Errors
    ///
    /// Returns an error if the schema cannot be enforced: it does not describe an object, refers to
    /// another document, or has a pattern that cannot be matched in linear time (look-around,
    /// back-references). The same holds for the output schema, which may describe any value.
    pub fn check(&self) -> Result<(), ToolsetError> {
        self.core.fault.clone().map_or(Ok(()), Err)
    }

    fn change(mut self, change: impl FnOnce(&mut Core)) -> Self {
        change(Arc::make_mut(&mut self.core));
        self.stack = Arc::default();
        self
    }

    /// Limits the depth of nested agent runs at which a tool that calls an agent is still offered;
    /// the default is 4. The outermost run has depth 0 and is always offered the tool: 0 counts as
    /// 1.
    #[must_use]
    pub const fn max_depth(mut self, depth: usize) -> Self {
        self.max_depth = if depth == 0 { 1 } else { depth };
        self
    }

    /// Requires a `T` in the [extensions](concentric_core::Context::extensions) of the context of
    /// every run that is offered the tool. A run without it fails before its first model call, with
    /// [`ErrorKind::Configuration`].
    ///
    /// ```
    /// use concentric_core::Context;
    /// use concentric_tools::{NoArguments, tool_with_context};
    ///
    /// #[derive(Clone)]
    /// struct User(String);
    ///
    /// let whoami = tool_with_context("whoami", "Returns the user's name.", async |_: NoArguments, cx: Context| {
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

    /// Renames the tool to `namespace__name`, so that tools of two sources do not collide.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        self.change_spec(|spec| spec.name = format!("{namespace}__{}", spec.name).into())
    }

    /// Adds the tool to a group that [matchers](crate::Matcher::group) select by; a tool may be in
    /// several groups.
    #[must_use]
    pub fn group(self, group: impl Into<Str>) -> Self {
        self.change_spec(|spec| spec.groups.push(group.into()))
    }

    /// Limits the calls of this tool per run; the default is no limit, and 0 refuses every call. A
    /// call over the limit fails. Denied and blocked calls count.
    #[must_use]
    pub const fn max_calls(mut self, calls: u32) -> Self {
        self.max_calls = Some(calls);
        self
    }

    /// Declares that the tool passes the call's [idempotency
    /// key](concentric_core::Context::idempotency_key) to a service that executes each key once.
    /// After a crash the tool is called again with the same key.
    #[must_use]
    pub fn keyed(self) -> Self {
        self.change_spec(|spec| spec.keyed = true)
    }

    /// Finds the outcome of a call that was started and abandoned because its process ended or it
    /// [timed out](Self::timeout). `reconcile` is called instead of the tool, which is not run
    /// again. If it returns `None` and there is a [ledger](crate::Toolset::ledger), the run is
    /// interrupted to ask for the outcome.
    ///
    /// The call may still take effect after `reconcile` has returned: its process may only have
    /// been slow, and a [blocking](crate::blocking_tool) function continues after a timeout. If
    /// this matters, let the service reject the call's key from now on, or reject callers with an
    /// older [fence](concentric_core::store::RunClaim::fence).
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

    /// Declares the tool read-only and closed-world: [`Annotations::read_only`].
    #[must_use]
    pub fn read_only(self) -> Self {
        self.annotations(Annotations::read_only())
    }

    /// Sets the tool's annotations; the default is the most restrictive.
    #[must_use]
    pub fn annotations(self, annotations: Annotations) -> Self {
        self.change_spec(|spec| spec.annotations = annotations)
    }

    /// Sets the JSON Schema of the result to that of `T`.
    ///
    /// The [data](ToolOutcome::data) of a successful call, or its text if it has no data, must match
    /// the schema, and so must the results of a tool whose spec has a schema. Otherwise the call
    /// fails: the model reads that the tool was executed and that its result is invalid, and the
    /// violation is logged. The result is checked before it is
    /// [truncated](Self::max_result_bytes), and before layers receive it.
    ///
    /// ```
    /// use concentric_tools::{Json, NoArguments, tool};
    /// use schemars::JsonSchema;
    /// use serde::Serialize;
    ///
    /// #[derive(Serialize, JsonSchema)]
    /// struct Time {
    ///     #[schemars(range(max = 23))]
    ///     hour: u8,
    /// }
    ///
    /// let now = tool("now", "Returns the time.", async |NoArguments {}| Json(Time { hour: 12 }))
    ///     .output_schema::<Time>();
    /// assert!(now.check().is_ok());
    /// ```
    #[must_use]
    pub fn output_schema<T>(self) -> Self
    where
        T: JsonSchema,
    {
        self.change(|core| {
            Arc::make_mut(&mut core.spec).output_schema = Some(Arc::new(generate::<T>().schema));
            core.compile_output();
        })
    }

    /// Sets the text that the model reads for errors that were not written for it; see
    /// [`ErrorFormat`].
    #[must_use]
    pub fn error_format(self, format: ErrorFormat) -> Self {
        self.change(|core| core.error_format = Some(format))
    }

    /// Runs calls of this tool alone: after all earlier calls of the round have ended, and before
    /// later ones start. By default calls run concurrently.
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
    /// ended: its [ledger](crate::Toolset::ledger) entry stays started, [`reconcile`](Self::reconcile)
    /// may report the outcome, and otherwise an interrupt is raised. No interrupt is raised without a ledger, or
    /// where [a run that waits is not stored](concentric_core::Context::is_suspension_stored): the
    /// model reads that the outcome is unknown. The same holds for a panic of the function, for an error of kind
    /// [`Timeout`](concentric_core::ErrorKind::Timeout) that it returns by `?`, and for a layer that
    /// drops the call while it runs, such as tower's `Timeout`.
    ///
    /// Time is measured by the run's clock
    /// ([`Environment::clock`](concentric_core::Environment::clock)), from the first time the
    /// function returns `Pending`. [`Duration::ZERO`] ends every call that waits at all;
    /// [`Duration::MAX`] is no limit.
    #[must_use]
    pub fn timeout(self, limit: Duration) -> Self {
        self.change(|core| core.limits.timeout = Some(limit))
    }

    /// Fails the run with [`ErrorKind::Timeout`] if a call
    /// times out. The call's [ledger](crate::Toolset::ledger) entry stays started.
    #[must_use]
    pub fn timeout_is_fatal(self) -> Self {
        self.change(|core| core.limits.timeout_is_fatal = true)
    }

    /// Limits the text of a result (bytes); the default is 64 KiB.
    ///
    /// The model reads the first 80 % and the last 20 % of the limit of a longer result, with a
    /// marker between them, cut between characters. The marker counts, unless the limit is too
    /// small for it: 0 leaves only the marker. Images and other media do not count.
    #[must_use]
    pub fn max_result_bytes(self, bytes: usize) -> Self {
        self.change(|core| core.limits.max_result_bytes = bytes)
    }

    /// Passes the full text of results that are over [`max_result_bytes`](Self::max_result_bytes)
    /// to `sink`.
    ///
    /// `sink` is called while the call is polled, and must not block.
    #[must_use]
    pub fn on_truncation(self, sink: impl Fn(Truncation) + Send + Sync + 'static) -> Self {
        self.change(|core| core.limits.on_truncation = Some(Sink(Arc::new(sink))))
    }

    /// Limits the arguments of a call (bytes); the default is 1 MiB. With a limit below 2, the
    /// length of `{}`, every call is refused.
    #[must_use]
    pub fn max_argument_bytes(self, bytes: usize) -> Self {
        self.change(|core| core.checks.max_bytes = bytes)
    }

    /// Adds a layer around the calls of this tool that may run; the first layer added is the
    /// outermost.
    ///
    /// Accepts any tower layer whose service can be cloned. It is inside the toolset's layers, and
    /// outside of [`timeout`](Self::timeout) and the tool's other checks and limits.
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

impl Core {
    /// Compiles the output schema, which must be valid.
    fn compile_output(&mut self) {
        let schema = self.spec.output_schema.as_deref();
        match schema.map(Validator::new).transpose() {
            Ok(output) => self.output = output,
            Err(reason) => {
                self.fault = self
                    .fault
                    .take()
                    .or(Some(invalid_schema(&self.spec, reason)))
            }
        }
    }
}

fn invalid_schema(spec: &ToolSpec, reason: String) -> ToolsetError {
    let (tool, reason) = (spec.name.clone(), reason.into());
    ToolsetError::InvalidSchema { tool, reason }
}

impl RunTool for Tool {
    fn name(&self) -> &str {
        &self.spec().name
    }
}

/// The tool that a run adds.
///
/// # Errors
///
/// The tool is of another crate.
pub(crate) fn run_tool(tool: &dyn RunTool) -> Result<&Tool, Error> {
    (tool as &dyn Any).downcast_ref().ok_or_else(|| {
        let why = format!(
            "the run's tool `{}` is not a `Tool` of this crate",
            tool.name()
        );
        Error::new(ErrorKind::Configuration, why).with_code("overrides")
    })
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
