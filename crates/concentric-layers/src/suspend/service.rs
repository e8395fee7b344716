use super::{
    ResponseFuture, SuspendBody,
    run::{Drive, Kept},
    take_up::{self, Lookup},
};
use concentric_core::{
    ChatRequest, ChatResponse, Error, Event, Phase, Suspended, Turn,
    store::{ClaimCell, RunStore},
    transcript::Round,
};
use futures_core::Stream;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower::BoxError;
use tower_service::Service;

/// Middleware that keeps runs in a store.
///
/// See the [module docs](super) for an example.
pub struct Suspend<S, St: ?Sized> {
    inner: S,
    store: Arc<St>,
    lease: Duration,
}

impl<S, St: ?Sized> Suspend<S, St> {
    /// Wraps `inner`, whose runs are kept in `store`, each claimed for a `lease` at a time.
    pub const fn new(inner: S, store: Arc<St>, lease: Duration) -> Self {
        Self {
            inner,
            store,
            lease,
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Gets a mutable reference to the inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes `self`, returning the inner service.
    pub fn into_inner(self) -> S
    where
        St: Sized,
    {
        self.inner
    }
}

impl<S, St> Clone for Suspend<S, St>
where
    S: Clone,
    St: ?Sized,
{
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            store: Arc::clone(&self.store),
            lease: self.lease,
        }
    }
}

impl<S, B, St> Service<ChatRequest> for Suspend<S, St>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    St: RunStore + ?Sized,
{
    type Response = ChatResponse<SuspendBody<B, St>>;
    type Error = Error;
    type Future = ResponseFuture<S, St>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // The inner service is waited for once it is known that it is to be called.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let inner = self.inner.clone();
        // Inside another loop's model call, or in an agent that is its tool, the run's state is part of
        // that loop's.
        if request.context.phase() != Phase::Run || request.context.parent().is_some() {
            return ResponseFuture::call(inner, request, None);
        }
        let store = Arc::clone(&self.store);
        let cell = ClaimCell::new();
        let kept = Kept::new(store, &request.context, self.lease, cell.clone());
        let kept = Arc::new(kept);
        let context = request.context.clone();
        let extensions = request.context.extensions_mut();
        let recover = extensions.remove::<take_up::Abandoned>();
        extensions.insert(cell);
        request.context.own_mut().insert(Kept::checkpoint(&kept));
        let drive = Drive::new(kept, context);

        let Some(resume) = &request.resume else {
            // A client whose tools were called may have just their results to say.
            let round = request.transcript.last().and_then(Turn::as_round);
            let results = round.map(Round::client_replies).unwrap_or_default();
            if results.is_empty() {
                return ResponseFuture::call(inner, request, Some(drive));
            }
            let found = take_up::by_results(Lookup::new(&drive, recover), results);
            return ResponseFuture::take_up(found, inner, request, drive);
        };
        match resume.take() {
            // Another attempt has it; the agent says so.
            None => ResponseFuture::call(inner, request, Some(drive)),
            Some((state @ Suspended::State(_), replies)) => {
                resume.give_back(state, replies);
                ResponseFuture::call(inner, request, Some(drive))
            }
            Some(taken) => {
                let lookup = Lookup::new(&drive, recover);
                let found = take_up::take_up(lookup, resume.clone(), taken);
                ResponseFuture::take_up(found, inner, request, drive)
            }
        }
    }
}

impl<S, St> fmt::Debug for Suspend<S, St>
where
    S: fmt::Debug,
    St: ?Sized,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suspend")
            .field("inner", &self.inner)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
