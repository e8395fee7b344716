use super::{ResponseFuture, StepGates, ToolSource, body::AgentBody, run::Run};
use crate::machine::Rules;
use crate::{
    ChatRequest, ChatResponse, Description, Error, Event, Phase, RoundEvent, ToolRound, ToolSpecs,
};
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
    tools: R,
    specs: ToolSpecs,
    // Why no run can begin.
    fault: Option<Error>,
    rules: Arc<Rules>,
    gates: StepGates,
}

impl<M, R> Agent<M, R> {
    pub(super) fn new(model: M, tools: R, rules: Rules, gates: StepGates) -> Self
    where
        R: ToolSource,
    {
        Self {
            specs: tools.specs(),
            fault: tools.check().err(),
            model,
            tools,
            rules: Arc::new(rules),
            gates,
        }
    }

    /// The tools that a run is offered.
    fn offered(&self, context: &crate::Context) -> ToolSpecs
    where
        R: ToolSource,
    {
        let mut specs = self.specs.clone();
        if context.parent().is_some() {
            specs.retain(|spec| self.tools.offers(&spec.name, context));
        }
        specs
    }

    /// Gets a reference to the model.
    pub const fn get_ref(&self) -> &M {
        &self.model
    }

    /// Gets a reference to the tools.
    pub const fn tools(&self) -> &R {
        &self.tools
    }

    /// The agent's stack, one line per layer, the outermost first.
    pub fn describe(&self) -> Description {
        Description::of_type_name(std::any::type_name::<Self>())
    }
}

impl<M, B, R, O> Service<ChatRequest> for Agent<M, R>
where
    M: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
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

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let fault = match &self.fault {
            Some(fault) => Some(fault.clone()),
            None => self.tools.check_run(&request.context).err(),
        };
        ResponseFuture::new(match fault {
            Some(fault) => Err(fault.with_phase(Phase::Run)),
            None => Run::new(
                self.model.clone(),
                self.tools.clone(),
                &self.offered(&request.context),
                Arc::clone(&self.rules),
                &self.gates,
                request,
            ),
        })
    }
}
