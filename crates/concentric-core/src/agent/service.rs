use super::{AgentLayer, ResponseFuture, ToolSource, body::AgentBody};
use crate::{
    context,
    describe::describe,
    driver::{Driver, DriverParts, Foreign, attempt},
    erased_layers::{EachLayer, ErasedLayers},
    overrides::{self, RunOverrides, unapplied},
    request::ChatRequest,
    response::ChatResponse,
    service::{BoxModel, CloneService},
    step_gate::StepGates,
    tool_call::ToolRound,
    tool_parts::ToolParts,
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
    // Adds the model layers of a run; only a boxed model has room for them.
    around: Option<Around<M>>,
    // Around each of these layers.
    each: EachLayer,
    // An error if the tools panicked when they were cloned; it fails each run.
    tools: Result<R, Error>,
    specs: ToolSpecs,
    // The configuration error that fails each run.
    fault: Option<Error>,
    rules: Arc<RunLimits>,
    gates: StepGates,
}

type Around<M> = fn(&ErasedLayers, M, Phase, &EachLayer) -> M;

impl<R> Agent<BoxModel, R> {
    /// Makes the agent apply the model layers of runs, and `each` around them. `fault` fails each run.
    pub(super) fn boxed(self, fault: Option<Error>, each: EachLayer) -> Self {
        Self {
            around: Some(ErasedLayers::around),
            each,
            fault: fault.or(self.fault),
            ..self
        }
    }
}

impl<M, R> Agent<M, R> {
    pub(super) fn new(
        model: M,
        tools: Result<R, Error>,
        limits: impl FnOnce(RunLimits) -> RunLimits,
        gates: StepGates,
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
            fault: invalid.or_else(|| gates.check().err()),
            model,
            around: None,
            each: EachLayer::default(),
            tools,
            rules: Arc::new(limits(rules)),
            gates,
        }
    }

    /// Returns the parts that drive the run of `request`, and takes its overrides.
    ///
    /// # Errors
    ///
    /// The tools are misconfigured or can't be used by this run; the agent can't apply the run's
    /// overrides; or a part of the stack panicked.
    fn parts(&self, request: &mut ChatRequest) -> Result<DriverParts<M, R>, Error>
    where
        M: Clone,
        R: ToolSource + Clone,
    {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let own = request.take_overrides();
        let context = &mut request.context;
        let tools = || -> Result<_, Error> {
            let mut tools = self.tools.as_ref().map_err(Error::clone)?.clone();
            let extended = match &own {
                Some(own) => self.extend(&mut tools, &own.tools, context)?,
                None => None,
            };
            tools.check_run(context)?;
            let (mut specs, rules) =
                extended.unwrap_or_else(|| (self.specs.clone(), Arc::clone(&self.rules)));
            if context.parent().is_some() {
                specs.retain(|spec| tools.offers(&spec.name, context));
            }
            Ok((tools, specs, rules))
        };
        let (rounds, specs, rules) = attempt(Foreign::Tools, tools).flatten()?;
        let mut parts = DriverParts {
            model: attempt(Foreign::Model, || self.model.clone())?,
            rounds,
            specs,
            rules,
            gates: self.gates.clone(),
            overrides: Vec::new(),
        };
        if let Some(own) = own {
            parts = self.apply(own, parts)?;
        }
        Ok(parts)
    }

    /// Adds the parts of a run to its tools; returns the specs and limits if these have changed.
    fn extend(
        &self,
        tools: &mut R,
        own: &ToolParts,
        context: &mut context::Context,
    ) -> Result<Option<(ToolSpecs, Arc<RunLimits>)>, Error>
    where
        R: ToolSource,
    {
        if own.is_empty() {
            return Ok(None);
        }
        tools.install_for_run(own)?;
        own.apply(context);
        if !own.has_tools() {
            return Ok(None);
        }
        tools.check()?;
        let mut rules = tools.rules();
        rules.steps = self.rules.steps;
        rules.calls = self.rules.calls;
        rules.asks_to_finish = self.rules.asks_to_finish;
        rules.asks_before_round = self.rules.asks_before_round;
        Ok(Some((tools.specs(), Arc::new(rules))))
    }

    /// Adds the step gates and model layers of a run.
    fn apply(
        &self,
        own: RunOverrides,
        mut parts: DriverParts<M, R>,
    ) -> Result<DriverParts<M, R>, Error> {
        let RunOverrides {
            step_gates: mut gates,
            model_layers: layers,
            step_limit,
            call_limit,
            names,
            ..
        } = own;
        if step_limit.is_some() || call_limit.is_some() {
            let rules = Arc::make_mut(&mut parts.rules);
            rules.steps = rules.steps.min(step_limit.unwrap_or(u32::MAX));
            rules.calls = overrides::min(rules.calls, call_limit);
        }
        parts.overrides = names;
        if !gates.is_empty() {
            gates.extend(&self.gates);
            gates.check()?;
            parts.gates = gates;
        }
        if !layers.is_empty() {
            let around = self.around.ok_or_else(|| {
                unapplied(format!(
                    "the run has model layers of its own ({layers:?}), which need a boxed agent: \
                     use `AgentLayer::boxed()`"
                ))
            })?;
            let model = || around(&layers, parts.model, Phase::Model, &self.each);
            parts.model = attempt(Foreign::Model, model)?;
        }
        Ok(parts)
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
    pub fn describe(&self) -> String {
        describe(self)
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
            Err(misplaced) => Err(Error::from(misplaced)),
            Ok(()) => self.parts(&mut request).and_then(|parts| {
                attempt(Foreign::Context, || Driver::new(parts, request)).flatten()
            }),
        };
        let driver = driver.map_err(|error| error.with_phase(Phase::Run));
        ResponseFuture::new(driver)
    }
}
