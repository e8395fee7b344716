use super::{AgentLayer, ResponseFuture, ToolSource, body::AgentBody};
use crate::{
    describe::Description,
    driver::{Driver, DriverParts, Foreign, attempt},
    request::ChatRequest,
    response::ChatResponse,
    service::CloneService,
    step_gate::StepGates,
    tool_call::ToolRound,
};
use concentric_proto::machine::RunLimits;
use concentric_proto::{Error, Event, Phase, RoundEvent, ToolSpecs};
use futures_core::Stream;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower::BoxError;
use tower_service::Service;

/// A model and its tools, with the loop between them.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct Agent<M, R> {
    model: M,
    // An error if the tools panicked when they were cloned; it fails each run.
    tools: Result<R, Error>,
    specs: ToolSpecs,
    // The configuration error that fails each run.
    fault: Option<Error>,
    rules: Arc<RunLimits>,
    gates: StepGates,
}

impl<M, R> Agent<M, R> {
    pub(super) fn new(
        model: M,
        tools: Result<R, Error>,
        limits: impl FnOnce(RunLimits) -> RunLimits,
        gates: StepGates,
        fault: Option<Error>,
    ) -> Self
    where
        R: ToolSource,
    {
        // A panic of the tools here fails each run, like a failed check.
        let read = tools.as_ref().map_err(Error::clone).and_then(|tools| {
            attempt(Foreign::Tools, || {
                (tools.specs(), tools.check().err(), tools.rules())
            })
        });
        let (specs, invalid, rules) =
            read.unwrap_or_else(|error| (ToolSpecs::default(), Some(error), RunLimits::default()));
        Self {
            specs,
            fault: fault.or(invalid).or_else(|| gates.check().err()),
            model,
            tools,
            rules: Arc::new(limits(rules)),
            gates,
        }
    }

    /// Returns the model, the tools, and the tool specs that the run is offered.
    ///
    /// # Errors
    ///
    /// The tools are misconfigured or can't be used by this run; or a part of the stack panicked.
    fn parts(&self, context: &crate::context::Context) -> Result<(M, R, ToolSpecs), Error>
    where
        M: Clone,
        R: ToolSource + Clone,
    {
        let tools = || -> Result<_, Error> {
            if let Some(fault) = &self.fault {
                return Err(fault.clone());
            }
            let tools = self.tools.as_ref().map_err(Error::clone)?;
            tools.check_run(context)?;
            Ok((tools.clone(), self.offered(tools, context)))
        };
        attempt(Foreign::Tools, tools)
            .flatten()
            .and_then(|(tools, offered)| {
                let model = attempt(Foreign::Model, || self.model.clone())?;
                Ok((model, tools, offered))
            })
            .map_err(|error| error.with_phase(Phase::Run))
    }

    /// Returns the specs of the tools that a run is offered.
    fn offered(&self, tools: &R, context: &crate::context::Context) -> ToolSpecs
    where
        R: ToolSource,
    {
        let mut specs = self.specs.clone();
        if context.parent().is_some() {
            specs.retain(|spec| tools.offers(&spec.name, context));
        }
        specs
    }

    /// Gets a reference to the model.
    pub const fn get_ref(&self) -> &M {
        &self.model
    }

    /// Gets a reference to the tools, or `None` if they panicked when they were cloned. That fails
    /// each run.
    pub fn tools(&self) -> Option<&R> {
        self.tools.as_ref().ok()
    }

    /// Describes the agent's stack, one line per layer, outermost first.
    pub fn describe(&self) -> Description {
        Description::of_type_name(std::any::type_name::<Self>())
    }
}

impl<M, B, R, O> Service<ChatRequest> for Agent<M, R>
where
    M: Service<ChatRequest, Response = ChatResponse<B>> + CloneService,
    M::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    R: Service<ToolRound, Response = O> + ToolSource + Clone,
    R::Error: Into<BoxError>,
    O: Stream<Item = Result<RoundEvent, Error>>,
{
    type Response = ChatResponse<AgentBody<M, B, R, O>>;
    type Error = Error;
    type Future = ResponseFuture<M, B, R, O>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let driver = match request.context.enter_loop::<AgentLayer<R>>() {
            Err(misplaced) => Err(Error::from(misplaced).with_phase(Phase::Run)),
            Ok(()) => self
                .parts(&request.context)
                .and_then(|(model, rounds, specs)| {
                    let parts = DriverParts {
                        model,
                        rounds,
                        specs: &specs,
                        rules: Arc::clone(&self.rules),
                        gates: &self.gates,
                    };
                    attempt(Foreign::Context, || Driver::new(parts, request))
                        .map_err(|error| error.with_phase(Phase::Run))
                        .flatten()
                }),
        };
        ResponseFuture::new(driver)
    }
}
