use crate::{context::Context, tool_call::ToolRound, tool_parts::ToolParts};
use concentric_proto::{
    Error, ErrorKind, Refusal, RoundCall, RoundEvent, Str, ToolSpecs, machine::RunLimits,
};
use futures_core::Stream;
use std::{
    any::Any,
    future::{Ready, ready},
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
};
use tower_service::Service;

/// A [`RoundService`](crate::RoundService) that knows the tools it executes.
#[diagnostic::on_unimplemented(
    message = "an agent cannot take its tools from `{Self}`",
    label = "is not a `ToolSource`",
    note = "put single tools into a `Toolset`: `AgentLayer::new(Toolset::new().tool(tool))`",
    note = "an agent without tools is `AgentLayer::new(NoTools)`; combine a layered round service with its tools by `WithTools`"
)]
pub trait ToolSource {
    /// Returns the specs of the tools.
    fn specs(&self) -> ToolSpecs;

    /// Checks that the tools can be used. Called when an agent is created; an error fails each run.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration); by default, for duplicate
    /// names.
    fn check(&self) -> Result<(), Error> {
        self.specs().check()
    }

    /// Checks, before the first model call, that the run of `context` provides what the tools need.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if something is missing.
    fn check_run(&self, context: &Context) -> Result<(), Error> {
        let _ = context;
        Ok(())
    }

    /// Returns whether the run of `context` is offered `tool`. Called only for nested runs.
    fn offers(&self, tool: &str, context: &Context) -> bool {
        let _ = (tool, context);
        true
    }

    /// Adds the parts that plugins install.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if the source has no place for
    /// them; by default, always.
    fn install(&mut self, parts: ToolParts) -> Result<(), Error> {
        let _ = parts;
        Err(no_place("plugin"))
    }

    /// The source that plugins change ([`Installer::tools_mut`](crate::agent::Installer::tools_mut)): by default
    /// this one; a source that wraps another returns that one.
    fn source_mut(&mut self) -> &mut dyn Any
    where
        Self: Sized + 'static,
    {
        self
    }

    /// Adds the tools of a run, and checks that its gates and layers are applied. Called before the
    /// first model call, with a clone for the run; not called for runs without such parts.
    ///
    /// The gates and layers are [applied](ToolParts::apply) to the context of each round.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if the source has no place for
    /// them; by default, always.
    fn install_for_run(&mut self, parts: &ToolParts) -> Result<(), Error> {
        let _ = parts;
        Err(no_place("overrides"))
    }

    /// Returns the limits of the tools, and whether they accept calls that waited for a reply
    /// ([`RunLimits::resumes`]). By default there is no limit, and such calls are not accepted.
    fn rules(&self) -> RunLimits {
        RunLimits::default()
    }
}

/// The error for parts that a tool source does not apply.
fn no_place(of: &'static str) -> Error {
    let why = "the tools of this agent have no place for the gates, tool layers and tools of \
               a plugin or a run; use a `Toolset`";
    Error::new(ErrorKind::Configuration, Str::from_static(why)).with_code(of)
}

/// Tools that are executed elsewhere.
impl ToolSource for ToolSpecs {
    fn specs(&self) -> ToolSpecs {
        self.clone()
    }
}

/// A round service combined with its tools, for round services under layers that hide them.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools, agent::WithTools};
/// use tower::ServiceBuilder;
///
/// let tools = NoTools;
/// let rounds = ServiceBuilder::new().concurrency_limit(8).service(tools);
/// let layer = AgentLayer::new(WithTools::new(tools, rounds));
/// # let _ = layer;
/// ```
#[derive(Clone, Debug)]
pub struct WithTools<T, R> {
    tools: T,
    inner: R,
}

impl<T, R> WithTools<T, R> {
    /// Combines `tools` with `inner`, the round service that executes them.
    pub const fn new(tools: T, inner: R) -> Self {
        Self { tools, inner }
    }
}

impl<T, R> ToolSource for WithTools<T, R>
where
    T: ToolSource,
{
    fn specs(&self) -> ToolSpecs {
        self.tools.specs()
    }

    fn check(&self) -> Result<(), Error> {
        self.tools.check()
    }

    fn check_run(&self, context: &Context) -> Result<(), Error> {
        self.tools.check_run(context)
    }

    fn offers(&self, tool: &str, context: &Context) -> bool {
        self.tools.offers(tool, context)
    }

    fn install_for_run(&mut self, parts: &ToolParts) -> Result<(), Error> {
        match parts.has_tools() {
            // The round service does not have them.
            true => Err(no_place("overrides")),
            false => self.tools.install_for_run(parts),
        }
    }

    fn rules(&self) -> RunLimits {
        self.tools.rules()
    }
}

impl<T, R> Service<ToolRound> for WithTools<T, R>
where
    R: Service<ToolRound>,
{
    type Response = R::Response;
    type Error = R::Error;
    type Future = R::Future;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), R::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, round: ToolRound) -> R::Future {
        self.inner.call(round)
    }
}

/// The round service of an agent without tools.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTools;

impl ToolSource for NoTools {
    fn specs(&self) -> ToolSpecs {
        ToolSpecs::default()
    }

    // No call reaches them.
    fn install(&mut self, _: ToolParts) -> Result<(), Error> {
        Ok(())
    }

    fn install_for_run(&mut self, parts: &ToolParts) -> Result<(), Error> {
        match parts.has_tools() {
            true => Err(no_place("overrides")),
            false => Ok(()),
        }
    }
}

impl Service<ToolRound> for NoTools {
    type Response = NoOutcomes;
    type Error = Error;
    type Future = Ready<Result<NoOutcomes, Error>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, round: ToolRound) -> Self::Future {
        ready(Ok(NoOutcomes {
            calls: round.calls.into_iter().enumerate(),
        }))
    }
}

/// The outcomes of [`NoTools`]: each call is refused.
#[derive(Debug)]
pub struct NoOutcomes {
    calls: std::iter::Enumerate<std::vec::IntoIter<RoundCall>>,
}

impl Stream for NoOutcomes {
    type Item = Result<RoundEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.calls.next().map(|(index, call)| {
            let not_offered = Refusal::NotOffered(Arc::default());
            let refusal = call.refusal().unwrap_or(&not_offered);
            Ok(RoundEvent::settled(index, refusal.outcome(&call.call)))
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.calls.size_hint()
    }
}
