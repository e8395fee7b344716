//! A run that is stored, or may be stored later.

mod lease;

use self::lease::Lease;
use super::{live::LiveRun, policy};
use crate::turn::{LEASE_LOST, TurnOfRun, failed};
use concentric_core::{
    CancelReason, Context, Environment, Error, ErrorKind, Outcome, Phase, RunId, SideEffects,
    ThreadId,
    context::Sleep,
    machine::RunState,
    store::{Checkpoint, RunChange, RunClaim, RunKey, RunStore, StoreError, StoreFuture, Tenant},
};
use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    task::{self, Poll, ready},
    time::{Duration, SystemTime},
};

/// The time that the store may take to record the end of a run. A cancellation or the deadline of
/// the run does not end this wait, because they are often the reason for the end.
const RECORDED_WITHIN: Duration = Duration::from_secs(30);

/// The store, key and claim of a run. Contains no context, because the context contains this value.
pub(super) struct Kept<St: ?Sized> {
    store: Arc<St>,
    // The key of a new run. Its id is generated, because clients may reuse theirs.
    key: RunKey,
    client_id: RunId,
    lease: Duration,
    environment: Environment,
    claim: Arc<OnceLock<RunClaim>>,
    // The monotonic time, in milliseconds, just before the request that the store granted the lease for.
    leased: AtomicU64,
    // The first write of the run, and the state that it stores. Kept here so that its result is not lost
    // if the waiting future is dropped. Several futures may wait for it, one of which polls it.
    begin: tokio::sync::Mutex<Option<Begin>>,
    // The stored state, on which the next change is based. `None` while a write is under way or if its
    // result is unknown: the next one then writes the whole state.
    stored: Mutex<Option<Arc<RunState>>>,
    // Whether the run is stored or being stored.
    is_kept: AtomicBool,
    turn: TurnOfRun,
}

type Begin = (StoreFuture<u64>, Arc<RunState>, Duration);

impl<St> Kept<St>
where
    St: RunStore + ?Sized,
{
    pub(super) fn new(store: Arc<St>, context: &Context, lease: Duration) -> Self {
        // A run without a conversation is found by its interrupts.
        let thread = context.thread_id().cloned();
        let thread = thread.unwrap_or_else(|| ThreadId::new(""));
        let run = RunId::new(context.new_id("stored_"));
        let key = RunKey::new(Tenant::of(context), thread, run);
        Self {
            store,
            claim: Arc::default(),
            leased: AtomicU64::new(0),
            key,
            client_id: context.run_id().clone(),
            lease,
            environment: context.environment().clone(),
            begin: tokio::sync::Mutex::default(),
            stored: Mutex::default(),
            is_kept: AtomicBool::new(false),
            turn: TurnOfRun::default(),
        }
    }

    pub(super) const fn store(&self) -> &Arc<St> {
        &self.store
    }

    pub(super) const fn key(&self) -> &RunKey {
        &self.key
    }

    /// Returns the id of the request that drives the run.
    pub(super) const fn client_id(&self) -> &RunId {
        &self.client_id
    }

    /// Makes the claim available to the run's tools and layers.
    pub(super) fn show_claim(self: &Arc<Self>, context: &mut Context) {
        context.set_run_claim(self.key.clone(), Arc::clone(&self.claim));
        let kept = Arc::downgrade(self);
        self.turn.begin_with(move |state| {
            let kept = kept.upgrade();
            Box::pin(async move {
                let kept = kept.ok_or(StoreError::Stale)?;
                match kept.claim.get().cloned() {
                    Some(claim) => Ok(claim),
                    None => kept.begin(Arc::new(state)).await,
                }
            })
        });
        let kept = Arc::downgrade(self);
        self.turn.pending_with(move || {
            let kept = kept.upgrade().filter(|kept| kept.is_kept())?;
            Some(Box::pin(async move { kept.begun().await.transpose() }))
        });
        context.extensions_mut().insert(self.turn.clone());
    }

    pub(super) fn now(&self) -> SystemTime {
        self.environment.clock().now()
    }

    pub(super) const fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the time on which the lease is measured, which adjustments of the wall clock do not affect.
    pub(super) fn monotonic(&self) -> Duration {
        self.environment.clock().monotonic()
    }

    /// Notes that the store has granted a lease, for a request that was sent after `since`.
    pub(super) fn set_leased(&self, since: Duration) {
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        self.leased.fetch_max(millis, Relaxed);
    }

    fn leased(&self) -> Duration {
        Duration::from_millis(self.leased.load(Relaxed))
    }

    /// Waits until a third of the lease has passed since it was granted.
    fn until_renewal(&self) -> Sleep {
        let due = self
            .leased()
            .saturating_add(policy::renews_after(self.lease));
        let left = due.saturating_sub(self.monotonic());
        self.environment.clock().sleep(left)
    }

    fn stored(&self) -> MutexGuard<'_, Option<Arc<RunState>>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The change that stores `state`, which becomes the stored one when the write has [succeeded](Self::wrote).
    fn change(&self, state: &RunState) -> RunChange {
        match self.stored().take() {
            Some(stored) => RunChange::since(&stored, state),
            None => RunChange::new(state),
        }
    }

    fn wrote(&self, state: Arc<RunState>) {
        *self.stored() = Some(state);
    }

    /// Sets the claim of a stored run, which another process may have created.
    pub(super) fn claimed(&self, claim: RunClaim, state: Arc<RunState>) {
        self.wrote(state);
        let _ = self.claim.set(claim);
        self.is_kept.store(true, Release);
    }

    /// Returns the checkpoint that stores the run's state before its tools are executed.
    pub(super) fn checkpoint(self: &Arc<Self>) -> Checkpoint {
        let kept = Arc::clone(self);
        Checkpoint::new(move |state| {
            let (kept, state) = (Arc::clone(&kept), Arc::new(state));
            Box::pin(async move {
                match kept.claim.get().cloned() {
                    None => {
                        kept.begin(state).await?;
                        // Pending once, because a body moves its run to a task after a poll without an event: so
                        // the task executes the tools.
                        tokio::task::yield_now().await;
                    }
                    Some(RunClaim { key, fence, .. }) => {
                        let (change, since) = (kept.change(&state), kept.monotonic());
                        let saved = kept.store.save(key, fence, change, kept.lease).await;
                        if matches!(saved, Err(StoreError::Failed(_))) {
                            kept.turn.refuse();
                        }
                        saved?;
                        kept.set_leased(since);
                        kept.wrote(state);
                    }
                }
                Ok(())
            })
        })
    }

    /// Stores the run for the first time.
    async fn begin(&self, state: Arc<RunState>) -> Result<RunClaim, StoreError> {
        {
            let mut pending = self.begin.lock().await;
            if pending.is_none() && self.claim.get().is_none() {
                let (key, client_id) = (self.key.clone(), self.client_id.clone());
                let change = RunChange::new(&state);
                let since = self.monotonic();
                let begin = self.store.begin(key, client_id, change, self.lease);
                *pending = Some((begin, state, since));
                self.is_kept.store(true, Release);
            }
        }
        match self.begun().await {
            Some(claim) => claim,
            None => Err(StoreError::Stale),
        }
    }

    /// Waits until the run is stored. Returns `None` if it is not stored and no write is pending.
    async fn begun(&self) -> Option<Result<RunClaim, StoreError>> {
        let mut pending = self.begin.lock().await;
        if let Some(claim) = self.claim.get() {
            return Some(Ok(claim.clone()));
        }
        poll_fn(|cx| {
            // Taken while it is polled: a future that panicked is not polled again.
            let Some((mut begin, state, since)) = pending.take() else {
                return Poll::Ready(None);
            };
            let Poll::Ready(begun) = begin.as_mut().poll(cx) else {
                *pending = Some((begin, state, since));
                return Poll::Pending;
            };
            self.is_kept.store(begun.is_ok(), Release);
            if begun.is_err() {
                self.turn.refuse();
            }
            Poll::Ready(Some(begun.map(|fence| {
                self.set_leased(since);
                self.wrote(state);
                let claim = RunClaim::new(self.key.clone(), fence);
                let _ = self.claim.set(claim.clone());
                claim
            })))
        })
        .await
    }

    /// Returns whether the run is stored or being stored.
    fn is_kept(&self) -> bool {
        self.is_kept.load(Acquire)
    }

    /// Stores the run as waiting in `state`, or as ended if the state cannot be stored.
    pub(super) fn suspend(self: &Arc<Self>, state: Arc<RunState>) -> StoreFuture<()> {
        let kept = Arc::clone(self);
        Box::pin(async move {
            let claim = match kept.claim.get().cloned() {
                Some(claim) => claim,
                // No tool has been executed yet, so the run is not stored.
                None => kept.begin(Arc::clone(&state)).await?,
            };
            let RunClaim { key, fence, .. } = claim;
            let written = kept.store.suspend(key, fence, kept.change(&state)).await;
            if let Err(error @ (StoreError::Unwritable(_) | StoreError::TooManyWaiting { .. })) =
                &written
            {
                // Every attempt to resume it would fail in the same way.
                kept.end(Err(Error::from(error.clone()).kind())).await?;
            }
            written
        })
    }

    /// Stores the end of the run.
    fn end(self: &Arc<Self>, outcome: Result<Outcome, ErrorKind>) -> StoreFuture<()> {
        if let Some(RunClaim { key, fence, .. }) = self.claim.get().cloned() {
            return self.store.end(key, fence, outcome);
        }
        let kept = Arc::clone(self);
        Box::pin(async move {
            match kept.begun().await {
                Some(Ok(RunClaim { key, fence, .. })) => kept.store.end(key, fence, outcome).await,
                Some(Err(_)) | None => Ok(()),
            }
        })
    }

    /// Spawns a task that waits until the store has recorded the end of the run, up to `limit`, or
    /// [`RECORDED_WITHIN`].
    pub(super) fn record(&self, mut last: StoreFuture<()>, limit: Option<Sleep>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::warn!("no tokio runtime to record the end of a run; its lease will expire");
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
                tracing::warn!(%error, "the store did not record the end of a run");
            }
        });
    }

    /// Ends the lease, so that other processes can resume the run immediately.
    pub(super) fn leave(&self) -> Option<StoreFuture<()>> {
        let RunClaim { key, fence, .. } = self.claim.get().cloned()?;
        let left = self.store.renew(key, fence, Duration::ZERO);
        Some(Box::pin(async move { left.await.map(drop) }))
    }
}

/// What a run did before it is resumed.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// It waited.
    Waited,
    /// Its process died.
    Left,
}

/// A run while it is looked up and driven. Records its end in the store, on drop at the latest, if it has
/// [started](Self::start).
pub(super) struct Drive<St>
where
    St: RunStore + ?Sized,
{
    pub(super) kept: Arc<Kept<St>>,
    context: Context,
    // Of a resumed run, with its stored state.
    origin: Option<(Origin, Arc<RunState>)>,
    buffer: usize,
    // Set until the end of the run is recorded.
    live: Option<LiveRun>,
    // The number of effects when the drive began.
    effects: u64,
    lease: Lease,
    // The pending write of the end.
    last: Option<StoreFuture<()>>,
    // The time limit of that write, started by the first wait.
    limit: Option<Sleep>,
    // Whether the end of the run is still to be recorded.
    is_open: bool,
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
            is_open: false,
        }
    }

    /// Notes that the run is driven from now on. Until then a dropped claim is released by
    /// [its own future](super::claim::Claim), possibly at the same time.
    pub(super) const fn start(&mut self) {
        self.is_open = true;
    }

    /// Resumes a claimed run.
    pub(super) fn resume(&mut self, claim: RunClaim, state: Arc<RunState>, origin: Origin) {
        self.kept.claimed(claim, Arc::clone(&state));
        self.origin = Some((origin, state));
    }

    /// Marks the run as live until it has ended.
    pub(super) fn enter(&mut self, live: LiveRun) {
        self.live = Some(live);
    }

    pub(super) const fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the number of items by which the run may be ahead of its consumer.
    pub(super) const fn buffer(&self) -> usize {
        self.buffer
    }

    /// Returns whether the run is stored or being stored.
    pub(super) fn is_stored(&self) -> bool {
        self.kept.is_kept()
    }

    fn settle(&mut self) {
        self.is_open = false;
        self.live = None;
    }

    fn has_effects(&self) -> bool {
        self.context.effect_count() != self.effects
    }

    /// Converts `error`, and adds whether this attempt may have had effects.
    fn tell(&self, error: StoreError) -> Error {
        let effects = match self.has_effects() {
            true => SideEffects::Possible,
            false => SideEffects::None,
        };
        Error::from(error)
            .with_phase(Phase::Run)
            .with_effects(effects)
    }

    // ---- the ends ----

    /// Records that the run waits in `state`.
    pub(super) fn suspend(&mut self, state: RunState) {
        self.last = Some(self.kept.suspend(Arc::new(state)));
    }

    /// Records that the run has ended.
    pub(super) fn end(&mut self, outcome: Result<Outcome, ErrorKind>) {
        if self.kept.is_kept() {
            self.last = Some(self.kept.end(outcome));
        }
    }

    /// Records that the run has failed or was dropped: a resumed run without effects waits again, one whose
    /// turn or state could not be stored is abandoned, and any other run has ended.
    pub(super) fn give_up(&mut self, error: Option<&Error>) {
        if self.kept.turn.is_unstored() {
            // Resumed, it stores its turn when the store has recovered.
            self.last = self.kept.leave();
            return;
        }
        let outcome = failed(&self.context, error);
        if self.has_effects() {
            return self.stop(outcome);
        }
        match self.origin.take() {
            None => self.stop(outcome),
            // Effects that the stored state reports are not new.
            Some((Origin::Waited, state))
                if error.is_some_and(|error| error.effects() > state.effects()) =>
            {
                self.stop(outcome);
            }
            Some((Origin::Waited, state)) => self.last = Some(self.kept.suspend(state)),
            Some((Origin::Left, _)) => match error {
                Some(error) if is_of_the_run(error) => self.end(outcome),
                _ => self.last = self.kept.leave(),
            },
        }
    }

    /// Records that the run has ended, or abandons it if its state could not be stored: it can be resumed
    /// from the stored one.
    fn stop(&mut self, outcome: Result<Outcome, ErrorKind>) {
        match self.kept.turn.is_refused() {
            true => self.last = self.kept.leave(),
            false => self.end(outcome),
        }
    }

    /// Waits until the store has recorded the end of the run, up to a limit.
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

    /// Returns whether the run was not driven, or its lease not renewed, for so long that the lease counts as lost.
    pub(super) fn is_late(&self) -> bool {
        self.kept.claim.get().is_some() && self.kept.monotonic() >= Lease::end(&self.kept)
    }

    /// Renews the lease. Resolves when the claim is lost, which ends the run.
    pub(super) fn poll_lost(&mut self, cx: &mut task::Context<'_>) -> Poll<Error> {
        let Some(claim) = self.kept.claim.get() else {
            return Poll::Pending;
        };
        let lost = ready!(self.lease.poll(&self.kept, claim, &self.context, cx));
        // The process that has the claim now records the end.
        self.settle();
        let error = self.tell(lost);
        self.context.cancel(CancelReason::Other(LEASE_LOST));
        Poll::Ready(error)
    }
}

impl<St> Drop for Drive<St>
where
    St: RunStore + ?Sized,
{
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        if self.last.is_none() {
            self.give_up(None);
        }
        let Some(last) = self.last.take() else {
            return;
        };
        // The run's futures are already dropped, so no two processes drive the run concurrently.
        self.kept.record(last, self.limit.take());
    }
}

fn not_recorded() -> StoreError {
    StoreError::failed("the store did not record the end of a run within 30 seconds")
}

/// Returns whether every attempt would fail with `error`. Other errors may not recur, because they
/// are caused by a missing key, tool or credit, or by a service that is not available.
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
