use super::{
    ResponseFuture, SuspendBody, SuspendLayer,
    live::LiveRuns,
    recover::Abandoned,
    run::{Drive, Kept},
    take_up::{self, Lookup},
    task::Task,
};
use concentric_core::{
    ChatRequest, ChatResponse, Error, ModelService, Phase, ResumePoint,
    service::SharedModel,
    store::{RunKey, RunStore},
};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower::{ServiceExt, util::BoxCloneSyncService};
use tower_service::Service;

/// A service whose type is erased, except for its body: an erased body would move each event through
/// memory.
pub(super) type Erased<B> = BoxCloneSyncService<ChatRequest, ChatResponse<B>, Error>;

fn erase<S: SharedModel>(service: S) -> Erased<<S as ModelService>::Body> {
    BoxCloneSyncService::new(service.map_err(|error| Error::from(error.into())))
}

/// Middleware that stores runs.
pub struct Suspend<S, St>
where
    St: RunStore + ?Sized,
{
    inner: S,
    store: Arc<St>,
    lease: Duration,
    buffer: usize,
    live: LiveRuns,
}

impl<S, St> Suspend<S, St>
where
    St: RunStore + ?Sized,
{
    pub(super) const fn new(
        inner: S,
        store: Arc<St>,
        lease: Duration,
        buffer: usize,
        live: LiveRuns,
    ) -> Self {
        Self {
            inner,
            store,
            lease,
            buffer,
            live,
        }
    }
}

impl<S, St> Clone for Suspend<S, St>
where
    S: Clone,
    St: RunStore + ?Sized,
{
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            store: Arc::clone(&self.store),
            lease: self.lease,
            buffer: self.buffer,
            live: self.live.clone(),
        }
    }
}

// The bounds are not those of the layer: the compiler would prove them once for each layer of the stack.
impl<S, St> Service<ChatRequest> for Suspend<S, St>
where
    S: SharedModel,
    St: RunStore + ?Sized,
{
    type Response = ChatResponse<SuspendBody<S::Body, St>>;
    type Error = Error;
    type Future = ResponseFuture<S::Body, St>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // The future waits for the inner service once it is known that it will be called.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let inner = erase(self.inner.clone());
        // In an agent that is used as a tool, the state is part of the calling run's state.
        if request.context.phase() == Phase::Run && request.context.parent().is_some() {
            return ResponseFuture::pass(inner, request);
        }
        if let Err(fault) = request.context.enter::<SuspendLayer<St>>() {
            return ResponseFuture::fail(fault.into());
        }
        let context = request.context.clone();
        let kept = Kept::new(Arc::clone(&self.store), &context, self.lease);
        let kept = Arc::new(kept);
        let extensions = request.context.extensions_mut();
        let abandoned = extensions.remove::<Abandoned<St>>();
        let run = extensions.remove::<RunKey>();
        kept.show_claim(&mut request.context);
        request.checkpoint = Some(Kept::checkpoint(&kept));
        let mut drive = Drive::new(kept, context, self.buffer);

        let Some(resume) = &request.resume else {
            match self.live.enter(&request.context) {
                Ok(live) => drive.enter(live),
                Err(error) => {
                    return ResponseFuture::fail(Error::from(error).with_phase(Phase::Run));
                }
            }
            let lookup = Lookup::new(&drive, abandoned, run);
            let open = request.context.extensions().get().copied();
            let found = take_up::begin(lookup, request.transcript.clone(), open);
            return ResponseFuture::find(found, inner, request, drive, Task::spawn);
        };
        match resume.take() {
            // Another attempt has taken the replies; the agent returns the error.
            None => ResponseFuture::call(inner, request, drive, Task::spawn),
            Some((state @ ResumePoint::State(_), replies)) => {
                resume.give_back(state, replies);
                ResponseFuture::call(inner, request, drive, Task::spawn)
            }
            Some(taken) => {
                let lookup = Lookup::new(&drive, abandoned, run);
                let found = take_up::take_up(lookup, resume.clone(), taken);
                ResponseFuture::find(found, inner, request, drive, Task::spawn)
            }
        }
    }
}

impl<S, St> fmt::Debug for Suspend<S, St>
where
    St: RunStore + ?Sized,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suspend")
            .field("lease", &self.lease)
            .field("buffer", &self.buffer)
            .finish_non_exhaustive()
    }
}
