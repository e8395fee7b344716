//! A run that is, or may come to be, in a store.

use super::live::LiveRun;
use concentric_core::{
    CancelReason, Context, Effects, Environment, Error, ErrorKind, Phase, RunId, Str, ThreadId,
    context::Sleep,
    machine::MachineState,
    store::{Checkpoint, ClaimCell, RunClaim, RunKey, RunStore, StoreError, StoreFuture, Tenant},
};
use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{self, Poll, ready},
    time::{Duration, SystemTime},
};

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How long the store may take to record what becomes of a run. The run's cancel and its deadline do
/// not end this wait: most often they are why the run has ended.
const RECORDED_WITHIN: Duration = Duration::from_secs(30);

/// Where a run is kept, and under which claim. It holds no context, so that the context can hold it.
pub(super) struct Kept<St: ?Sized> {
    store: Arc<St>,
    // What a new run is stored under, by an id of ours: a client may send its own twice.
    key: RunKey,
    client_id: RunId,
    lease: Duration,
    environment: Environment,
    claim: ClaimCell,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    // The run is being written down for the first time. Kept here, so that it is known what came of
    // it if whoever waits for it is dropped.
    begin: Option<StoreFuture<u64>>,
}

impl<St> Kept<St>
where
    St: RunStore + ?Sized,
{
    pub(super) fn new(store: Arc<St>, context: &Context, lease: Duration) -> Self {
        // One without a conversation is found by what it asks.
        let thread = context.thread_id().cloned();
        let thread = thread.unwrap_or_else(|| ThreadId::new(""));
        let run = RunId::new(context.new_id("stored_"));
        let key = RunKey::new(Tenant::of(context), thread, run);
        Self {
            store,
            claim: ClaimCell::new(key.clone()),
            key,
            client_id: context.run_id().clone(),
            lease,
            environment: context.environment().clone(),
            progress: Mutex::default(),
        }
    }

    pub(super) const fn store(&self) -> &Arc<St> {
        &self.store
    }

    pub(super) const fn key(&self) -> &RunKey {
        &self.key
    }

    /// The id of the request that drives it.
    pub(super) const fn client_id(&self) -> &RunId {
        &self.client_id
    }

    /// Where its claim is put.
    pub(super) const fn cell(&self) -> &ClaimCell {
        &self.claim
    }

    pub(super) fn now(&self) -> SystemTime {
        self.environment.clock().now()
    }

    /// Until when a claim is to hold that is made now.
    pub(super) fn until(&self) -> SystemTime {
        let now = self.now();
        // One that no clock can tell is as good as for ever.
        let until = now.checked_add(self.lease);
        until.or_else(|| now.checked_add(YEAR)).unwrap_or(now)
    }

    fn sleep(&self, parts: u32) -> Sleep {
        self.environment.clock().sleep(self.lease / parts)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on under `claim`, which another process may have begun.
    pub(super) fn claimed(&self, claim: RunClaim) {
        self.claim.set(claim);
    }

    /// What has the run's state written down before its tools run.
    pub(super) fn checkpoint(self: &Arc<Self>) -> Checkpoint {
        let kept = Arc::clone(self);
        Checkpoint::new(move |state| {
            let kept = Arc::clone(&kept);
            Box::pin(async move {
                match kept.claim.get().cloned() {
                    None => drop(kept.begin(state).await?),
                    Some(RunClaim { key, fence, .. }) => {
                        kept.store.save(key, fence, state, kept.until()).await?;
                    }
                }
                Ok(())
            })
        })
    }

    /// Writes the run down, which it is not yet.
    async fn begin(&self, state: MachineState) -> Result<RunClaim, StoreError> {
        {
            let (key, client_id) = (self.key.clone(), self.client_id.clone());
            let begin = self.store.begin(key, client_id, state, self.until());
            self.progress().begin = Some(begin);
        }
        match self.begun().await {
            Some(claim) => claim,
            None => Err(StoreError::Stale),
        }
    }

    /// Waits until the run is written down; `None` if it is not, and is not being.
    async fn begun(&self) -> Option<Result<RunClaim, StoreError>> {
        poll_fn(|cx| {
            let mut progress = self.progress();
            if let Some(claim) = self.claim.get() {
                return Poll::Ready(Some(Ok(claim.clone())));
            }
            // Taken out while it is polled, since a store's code must not run under the lock. One that
            // panics is not polled again.
            let Some(mut begin) = progress.begin.take() else {
                return Poll::Ready(None);
            };
            drop(progress);
            let Poll::Ready(begun) = begin.as_mut().poll(cx) else {
                self.progress().begin = Some(begin);
                return Poll::Pending;
            };
            Poll::Ready(Some(begun.map(|fence| {
                let claim = RunClaim::new(self.key.clone(), fence);
                self.claim.set(claim.clone());
                claim
            })))
        })
        .await
    }

    /// Whether it is stored, or is being.
    fn is_kept(&self) -> bool {
        self.claim.get().is_some() || self.progress().begin.is_some()
    }

    /// Has the run wait in `state`; it is over if no store can keep that.
    pub(super) fn suspend(self: &Arc<Self>, state: MachineState) -> StoreFuture<()> {
        let kept = Arc::clone(self);
        let now = self.now();
        Box::pin(async move {
            let claim = match kept.claim.get().cloned() {
                Some(claim) => claim,
                // It has not run a tool yet, so nobody has written it down.
                None => kept.begin(state.clone()).await?,
            };
            let RunClaim { key, fence, .. } = claim;
            let written = kept.store.suspend(key, fence, state, now).await;
            if let Err(StoreError::Unwritable(_) | StoreError::TooManyWaiting { .. }) = &written {
                // Whoever resumed it would come to the same, again and again.
                kept.end().await?;
            }
            written
        })
    }

    /// Says that the run is over.
    fn end(self: &Arc<Self>) -> StoreFuture<()> {
        let now = self.now();
        if let Some(RunClaim { key, fence, .. }) = self.claim.get().cloned() {
            return self.store.end(key, fence, now);
        }
        let kept = Arc::clone(self);
        Box::pin(async move {
            match kept.begun().await {
                Some(Ok(RunClaim { key, fence, .. })) => kept.store.end(key, fence, now).await,
                Some(Err(_)) | None => Ok(()),
            }
        })
    }

    /// Has a task wait until the store has recorded what becomes of the run: up to `limit`, or
    /// [`RECORDED_WITHIN`].
    pub(super) fn record(&self, mut last: StoreFuture<()>, limit: Option<Sleep>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::warn!("no runtime to record what becomes of a run; its lease runs out");
            return;
        };
        let clock = self.environment.clock();
        let mut limit = limit.unwrap_or_else(|| clock.sleep(RECORDED_WITHIN));
        runtime.spawn(async move {
            let recorded = poll_fn(|cx| match last.as_mut().poll(cx) {
                Poll::Pending => limit.as_mut().poll(cx).map(|()| Err(not_recorded())),
                recorded => recorded,
            });
            if let Err(error) = recorded.await {
                tracing::warn!(%error, "the store did not record what becomes of a run");
            }
        });
    }

    /// Lets anybody take the run up at once.
    pub(super) fn leave(&self) -> Option<StoreFuture<()>> {
        let RunClaim { key, fence, .. } = self.claim.get().cloned()?;
        Some(self.store.renew(key, fence, self.now()))
    }
}

/// How a run that goes on was found.
pub(super) enum Origin {
    /// It waited, in this state.
    Waited(Box<MachineState>),
    /// Its process died.
    Left,
}

/// A run while it is driven; says what becomes of it, at the latest when it is dropped.
pub(super) struct Drive<St>
where
    St: RunStore + ?Sized,
{
    pub(super) kept: Arc<Kept<St>>,
    context: Context,
    origin: Option<Origin>,
    buffer: usize,
    // Until it is known what becomes of the run.
    live: Option<LiveRun>,
    // How many effects there were when the drive began.
    effects: u64,
    lease: Lease,
    // What is being written at the end.
    last: Option<StoreFuture<()>>,
    // Until when; made when it is waited for.
    limit: Option<Sleep>,
    // Whether it is said what becomes of the run.
    settled: bool,
}

impl<St> Drive<St>
where
    St: RunStore + ?Sized,
{
    pub(super) fn new(kept: Arc<Kept<St>>, context: Context, buffer: usize) -> Self {
        Self {
            buffer,
            live: None,
            effects: context.effect_count(),
            kept,
            context,
            origin: None,
            lease: Lease::Unknown,
            last: None,
            limit: None,
            settled: false,
        }
    }

    /// Continues a run that was found.
    pub(super) fn resume(&mut self, claim: RunClaim, origin: Origin) {
        self.kept.claimed(claim);
        self.origin = Some(origin);
    }

    /// Has the run count as live until it has ended.
    pub(super) fn enter(&mut self, live: LiveRun) {
        self.live = Some(live);
    }

    /// Has nothing written: the run was not claimed.
    pub(super) fn forget(&mut self) {
        self.settle();
    }

    pub(super) const fn context(&self) -> &Context {
        &self.context
    }

    /// How many steps the run may be ahead of its consumer.
    pub(super) const fn buffer(&self) -> usize {
        self.buffer
    }

    /// Whether the run is stored, or is being.
    pub(super) fn is_stored(&self) -> bool {
        self.kept.is_kept()
    }

    fn settle(&mut self) {
        self.settled = true;
        self.live = None;
    }

    fn has_effects(&self) -> bool {
        self.context.effect_count() != self.effects
    }

    /// `error`, with what may have been done by now.
    fn tell(&self, error: StoreError) -> Error {
        let effects = match self.has_effects() {
            true => Effects::Possible,
            false => Effects::None,
        };
        Error::from(error)
            .with_phase(Phase::Run)
            .with_effects(effects)
    }

    // ---- the ends ----

    /// The run waits in `state`.
    pub(super) fn suspend(&mut self, state: MachineState) {
        self.last = Some(self.kept.suspend(state));
    }

    /// The run has had its outcome.
    pub(super) fn end(&mut self) {
        if self.kept.is_kept() {
            self.last = Some(self.kept.end());
        }
    }

    /// The run has failed, or was dropped: what was accepted and came to nothing waits on, and the
    /// rest is over.
    pub(super) fn give_up(&mut self, error: Option<&Error>) {
        if self.has_effects() {
            return self.end();
        }
        match self.origin.take() {
            None => self.end(),
            // Those that the state tells of were there before.
            Some(Origin::Waited(state))
                if error.is_some_and(|error| error.effects() > state.effects()) =>
            {
                self.end();
            }
            Some(Origin::Waited(state)) => self.last = Some(self.kept.suspend(*state)),
            Some(Origin::Left) => match error {
                Some(error) if is_of_the_run(error) => self.end(),
                _ => self.last = self.kept.leave(),
            },
        }
    }

    /// Waits until the store has recorded what becomes of the run, up to a limit.
    pub(super) fn poll_last(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), Error>> {
        let written = match &mut self.last {
            Some(last) => match last.as_mut().poll(cx) {
                Poll::Ready(written) => written,
                Poll::Pending => {
                    let environment = &self.kept.environment;
                    let limit = self
                        .limit
                        .get_or_insert_with(|| environment.clock().sleep(RECORDED_WITHIN));
                    ready!(limit.as_mut().poll(cx));
                    Err(not_recorded())
                }
            },
            None => Ok(()),
        };
        self.last = None;
        self.settle();
        Poll::Ready(written.map_err(|error| self.tell(error)))
    }

    // ---- the lease ----

    /// Keeps the claim; resolves once it is lost, and the run with it.
    pub(super) fn poll_lost(&mut self, cx: &mut task::Context<'_>) -> Poll<Error> {
        let Some(claim) = self.kept.claim.get() else {
            return Poll::Pending;
        };
        let lost = ready!(self.lease.poll(&self.kept, claim, cx));
        // Whoever has the run now says what becomes of it.
        self.settle();
        let error = self.tell(lost);
        self.context
            .cancel(CancelReason::Other(Str::from_static("lease lost")));
        Poll::Ready(error)
    }
}

impl<St> Drop for Drive<St>
where
    St: RunStore + ?Sized,
{
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if self.last.is_none() {
            self.give_up(None);
        }
        let Some(last) = self.last.take() else {
            return;
        };
        // The run's own futures are dropped by now: whoever resumes it is alone with it.
        self.kept.record(last, self.limit.take());
    }
}

fn not_recorded() -> StoreError {
    StoreError::failed("the store did not record what becomes of a run within 30 seconds")
}

/// Whether it is the run's own fault, so that another attempt would come no further, wherever it is
/// made. A key, a tool, money, or a service that works may be there by then.
fn is_of_the_run(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidRequest
            | ErrorKind::ContextWindow
            | ErrorKind::ContentFilter
            | ErrorKind::TooLarge
            | ErrorKind::Tool
            | ErrorKind::Conflict
    )
}

/// The renewal of a claim.
enum Lease {
    /// There was none when it was last looked at.
    Unknown,
    /// It holds until then, and is renewed after the sleep.
    Holds { until: SystemTime, sleep: Sleep },
    /// It is being renewed until `next`, and is lost if that takes too long.
    Renewing {
        until: SystemTime,
        next: SystemTime,
        work: StoreFuture<()>,
        limit: Sleep,
    },
}

impl Lease {
    fn poll<St>(
        &mut self,
        kept: &Kept<St>,
        claim: &RunClaim,
        cx: &mut task::Context<'_>,
    ) -> Poll<StoreError>
    where
        St: RunStore + ?Sized,
    {
        loop {
            *self = match self {
                Self::Unknown => Self::Holds {
                    until: kept.until(),
                    sleep: kept.sleep(3),
                },
                Self::Holds { until, sleep } => {
                    ready!(Pin::new(sleep).poll(cx));
                    let (until, next) = (*until, kept.until());
                    // One that was not polled for long may still have its claim: it has time to ask.
                    let left = until.duration_since(kept.now()).unwrap_or_default();
                    let left = left.max(kept.lease / 3);
                    Self::Renewing {
                        until,
                        next,
                        work: kept.store.renew(claim.key.clone(), claim.fence, next),
                        limit: kept.environment.clock().sleep(left),
                    }
                }
                Self::Renewing {
                    until,
                    next,
                    work,
                    limit,
                } => match work.as_mut().poll(cx) {
                    Poll::Ready(Ok(())) => Self::Holds {
                        until: *next,
                        sleep: kept.sleep(3),
                    },
                    // The store may be back before the lease is over.
                    Poll::Ready(Err(StoreError::Failed(error))) if kept.now() < *until => {
                        tracing::warn!(%error, "a run's lease was not renewed");
                        Self::Holds {
                            until: *until,
                            sleep: kept.sleep(6),
                        }
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(error),
                    Poll::Pending => {
                        ready!(Pin::new(limit).poll(cx));
                        return Poll::Ready(StoreError::failed("the run's lease is over"));
                    }
                },
            };
        }
    }
}
