use super::{
    Consumer, DetachLayer, ResponseFuture,
    hold::{Continue, Hold},
    runs::DetachedRuns,
};
use crate::rest::{Erased, erase};
#[cfg(feature = "guardrail")]
use concentric_core::capability::CapabilityError;
use concentric_core::{
    ChatRequest, ChatResponse, Error, ModelService, Phase, service::SharedModel,
};
use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};
use tower_service::Service;

/// Middleware that continues a run to its end after its consumer disconnects.
pub struct Detach<S>
where
    S: ModelService,
{
    inner: Erased<S::Body>,
    runs: DetachedRuns,
    within: Duration,
    continue_run: Continue<S::Body>,
}

impl<S> Detach<S>
where
    S: ModelService,
{
    pub(super) fn new(inner: S, runs: DetachedRuns, within: Duration) -> Self
    where
        S: SharedModel,
    {
        Self {
            inner: erase(inner),
            runs,
            within,
            continue_run: Hold::detach,
        }
    }
}

impl<S> Clone for Detach<S>
where
    S: ModelService,
{
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            runs: self.runs.clone(),
            within: self.within,
            continue_run: self.continue_run,
        }
    }
}

impl<S> Service<ChatRequest> for Detach<S>
where
    S: ModelService<Body: 'static>,
{
    type Response = ChatResponse<super::DetachBody<S::Body>>;
    type Error = Error;
    type Future = ResponseFuture<S::Body>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let context = &mut request.context;
        // Inside another loop's model call, or in an agent that is used as a tool, the outer loop
        // is the consumer.
        if context.phase() != Phase::Run || context.parent().is_some() {
            // Cannot fail: it only declares that an agent must be inside, which is checked later.
            let _ = context.enter::<in_loop::DetachLayer>();
            return ResponseFuture::new(self.inner.call(request), None, self.continue_run);
        }
        // An outer layer would treat the drop of its body as the end of the run.
        let entered = context.enter::<DetachLayer>();
        #[cfg(feature = "guardrail")]
        let entered = match context.region::<crate::guardrail::Unjudged>() {
            None => entered,
            Some(outer) => {
                let layer = std::any::type_name::<DetachLayer>();
                Err(CapabilityError::Inside { layer, outer })
            }
        };
        if let Err(fault) = entered {
            let failed = Box::pin(async move { Err(fault.into()) });
            return ResponseFuture::new(failed, None, self.continue_run);
        }
        let consumer = Consumer::new();
        context.extensions_mut().insert(consumer.clone());
        let hold = Hold::new(context.clone(), consumer, self.runs.clone(), self.within);
        ResponseFuture::new(self.inner.call(request), Some(hold), self.continue_run)
    }
}

/// The declaration of the layer where it has no effect, with the layer's name for errors.
mod in_loop {
    use concentric_core::capability::{Around, Declares, InLoop};

    pub(super) struct DetachLayer;

    impl Declares for DetachLayer {
        type Capabilities = Around<InLoop>;
    }
}

impl<S> fmt::Debug for Detach<S>
where
    S: ModelService,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detach")
            .field("runs", &self.runs)
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}
