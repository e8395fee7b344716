use super::{Consumer, DetachLayer, ResponseFuture, hold::Hold, runs::DetachedRuns};
#[cfg(feature = "guardrail")]
use concentric_core::capability::CapabilityError;
use concentric_core::{
    ChatRequest, ChatResponse, Error, Phase,
    service::{BoxFuture, SharedModel},
};
use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};
use tower_service::Service;

/// Middleware that continues a run to its end after its consumer disconnects.
#[derive(Clone)]
pub struct Detach<S> {
    inner: S,
    runs: DetachedRuns,
    within: Duration,
}

impl<S> Detach<S> {
    pub(super) const fn new(inner: S, runs: DetachedRuns, within: Duration) -> Self {
        Self {
            inner,
            runs,
            within,
        }
    }
}

// The bounds are not those of the layer: the compiler would prove them once for each layer of the stack.
impl<S> Service<ChatRequest> for Detach<S>
where
    S: SharedModel,
{
    type Response = ChatResponse<super::DetachBody<S::Body>>;
    type Error = Error;
    type Future = ResponseFuture<S::Body>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner
            .poll_ready(cx)
            .map_err(|error| Error::from(error.into()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let context = &mut request.context;
        // Inside another loop's model call, or in an agent that is used as a tool, the outer loop
        // is the consumer.
        if context.phase() != Phase::Run || context.parent().is_some() {
            // Cannot fail: it only declares that an agent must be inside, which is checked later.
            let _ = context.enter::<in_loop::DetachLayer>();
            return ResponseFuture::new(call(&mut self.inner, request), None, Hold::detach);
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
            return ResponseFuture::new(failed, None, Hold::detach);
        }
        let consumer = Consumer::new();
        context.extensions_mut().insert(consumer.clone());
        let hold = Hold::new(context.clone(), consumer, self.runs.clone(), self.within);
        ResponseFuture::new(call(&mut self.inner, request), Some(hold), Hold::detach)
    }
}

/// The call, in a box in which it can move into a task.
fn call<S: SharedModel>(service: &mut S, request: ChatRequest) -> BoxFuture<ChatResponse<S::Body>> {
    let call = service.call(request);
    Box::pin(async move { call.await.map_err(|error| Error::from(error.into())) })
}

/// The declaration of the layer where it has no effect, with the layer's name for errors.
mod in_loop {
    use concentric_core::capability::{Around, Declares, InLoop};

    pub(super) struct DetachLayer;

    impl Declares for DetachLayer {
        type Capabilities = Around<InLoop>;
    }
}

impl<S> fmt::Debug for Detach<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detach")
            .field("runs", &self.runs)
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}
