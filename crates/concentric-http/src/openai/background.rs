//! Runs that continue without their clients.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use concentric_core::{
    CancelReason, Environment, Str,
    context::{Context as Run, Sleep},
    store::{EventStore, Tenant},
};
use tokio::{runtime::Handle, sync::oneshot};
use tracing::instrument::{Instrument, WithSubscriber};

use super::{
    failure::{Failure, TIME_LIMIT},
    follow::Events,
    input::Job,
    run::Answering,
    stored::{Keep, Live, RENEW_AFTER, STORE_WITHIN},
};
use crate::{
    admission::gate::{self, Arrival, Full, Gate, Permit},
    merge::PIECE,
    run::{After, Format, Hub, Limits, RunLog, Shared, Unreadable, share},
    store_call::store_call,
};

/// The time that a cancelled run may take to end.
const LINGER: Duration = Duration::from_secs(5);

/// The pauses before events are read from the store, where another process writes them later than its clients receive
/// them.
const SHARED_WITHIN: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// The form of the events of a response, which have numbers of their own.
static EVENTS: Format = Format {
    name: "openai",
    has_ids: false,
    cut: |_| Bytes::new(),
};

/// The background runs of a process.
#[derive(Clone)]
pub(super) struct Background {
    hub: Arc<Hub>,
    // Without a queue.
    gate: Arc<Gate>,
    timeout: Duration,
}

impl Background {
    pub(super) fn new(environment: &Environment) -> Self {
        Self {
            hub: hub(environment, None),
            gate: Arc::new(Gate::new(gate::Limits {
                total: 1024,
                per_tenant: usize::MAX,
                queue: 0,
                queue_per_tenant: 0,
            })),
            timeout: Duration::from_secs(3600),
        }
    }

    pub(super) fn set_environment(&mut self, environment: &Environment) {
        self.hub = hub(environment, self.hub.shared.clone());
    }

    pub(super) fn set_events(&mut self, store: Arc<dyn EventStore>) {
        let shared = Arc::new(Shared::new(store));
        self.hub = hub(&self.hub.environment, Some(shared));
    }

    pub(super) fn set_runs(&mut self, total: usize) {
        let limits = self.gate.limits();
        self.gate = Arc::new(Gate::new(gate::Limits { total, ..limits }));
    }

    pub(super) fn set_runs_per_tenant(&mut self, per_tenant: usize) {
        let limits = self.gate.limits();
        self.gate = Arc::new(Gate::new(gate::Limits {
            per_tenant,
            ..limits
        }));
    }

    pub(super) const fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns the log of a response whose run this process drives, or has driven recently.
    pub(super) fn log(&self, tenant: &Tenant, id: &str) -> Option<Arc<RunLog>> {
        self.hub.find(tenant, id, id)
    }

    /// Returns the events of a response after `after`; `None` if there are no more.
    pub(super) async fn events(
        &self,
        tenant: &Tenant,
        id: &str,
        after: &After,
    ) -> Result<Option<Events>, Failure> {
        let log = self.log(tenant, id).filter(|log| !log.is_empty());
        let read = log.map_or(Err(Unreadable::Gone), |log| log.read(after));
        let mut read = read.map(Events::Log);
        for pause in SHARED_WITHIN {
            if !self.hub.is_shared() || !matches!(read, Err(Unreadable::Gone)) {
                break;
            }
            self.hub.environment.clock().sleep(pause).await;
            let found = self.hub.find_shared(tenant, id, id, &EVENTS, after);
            // Which is logged.
            let found = found.await.map_err(|_| Failure::internal())?;
            read = found.map_or(Err(Unreadable::Gone), |it| it.reader.map(Events::Shared));
        }
        match read {
            Ok(events) => Ok(Some(events)),
            Err(Unreadable::Over) => Ok(None),
            Err(Unreadable::Gone) => Err(Failure::no_events()),
            Err(Unreadable::Busy) => Err(Failure::busy(
                "too many clients read the events of the response",
            )),
        }
    }

    /// Cancels the run of a response that was deleted, and removes its events.
    pub(super) async fn remove(&self, tenant: &Tenant, id: &str) {
        if let Some(log) = self.log(tenant, id) {
            log.cancel(CancelReason::User);
            log.discard();
        }
        if let Err(error) = self.hub.remove_shared(tenant, id).await {
            tracing::warn!(%error, "the events of a deleted response remain in their store");
        }
    }

    /// Stores a response and starts its run, which `answering` makes. Returns the stored response, and its events.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before the response is stored, no run starts, and the response is removed.
    pub(super) async fn start(
        &self,
        job: Job,
        keep: Keep,
        answering: impl FnOnce(Job, Option<Keep>) -> Answering + Send + 'static,
    ) -> Result<(Bytes, Option<Events>), Failure> {
        let permit = match self.gate.arrive(keep.tenant().clone()) {
            Arrival::Admitted(permit) => permit,
            Arrival::Refused(Full::Tenant) => {
                let why = "too many responses of this caller run in the background";
                return Err(Failure::rate_limited(why));
            }
            Arrival::Refused(Full::Total) | Arrival::Waits(_) => {
                return Err(Failure::busy("too many responses run in the background"));
            }
        };
        let Ok(runtime) = Handle::try_current() else {
            tracing::error!("a background run of the OpenAI server needs a Tokio runtime");
            return Err(Failure::internal());
        };
        let (sender, begun) = oneshot::channel();
        let task = self.clone().run(permit, job, keep, answering, sender);
        // Logs of the task belong to the span of the request.
        let task = task.instrument(tracing::Span::current());
        runtime.spawn(task.with_current_subscriber());
        begun.await.unwrap_or_else(|_| Err(Failure::internal()))
    }

    /// The task of a run.
    async fn run(
        self,
        _permit: Permit,
        job: Job,
        keep: Keep,
        answering: impl FnOnce(Job, Option<Keep>) -> Answering + Send,
        begun: oneshot::Sender<Result<(Bytes, Option<Events>), Failure>>,
    ) {
        let response = job.encoder.live();
        let context = job.request.context.clone();
        let environment = context.environment().clone();
        let stored = keep.begin_background(&response);
        let stored = store_call(&environment, STORE_WITHIN, || stored).await;
        let (keep, live) = match stored {
            Ok(stored) => stored,
            Err(error) => {
                tracing::error!(%error, "a background response was not stored, and its run not started");
                let _ = begun.send(Err(Failure::internal()));
                return;
            }
        };
        let owned = live.owned();
        let id = Str::from(live.id().as_str());
        let name = (owned.tenant.0.clone(), id.clone(), id);
        let log = RunLog::new(&self.hub, name, &EVENTS, Bytes::new(), &context);
        self.hub.add(&log);
        let is_streamed = job.is_streamed;
        let mut run = answering(job, Some(keep));
        let mut events = Publisher::new(log);
        events.publish(run.out(), false);
        // The first reader begins before events are removed.
        let reader = is_streamed.then(|| events.log.read(&After::default()).ok());
        let reader = reader.flatten().map(Events::Log);
        if begun.send(Ok((response, reader))).is_err() {
            // Its client has left, and no other knows the id.
            drop(run);
            events.log.discard();
            let deleted = async { Ok(owned.delete(live.id().clone()).await) };
            let _ = store_call(&environment, STORE_WITHIN, || deleted).await;
            return;
        }
        if is_streamed {
            share(&self.hub, &events.log);
        }
        drive(run, &live, &mut events, (&context, self.timeout)).await;
    }
}

fn hub(environment: &Environment, shared: Option<Arc<Shared>>) -> Arc<Hub> {
    let limits = Limits {
        events: 4096,
        bytes: 1 << 20,
        total: 256 << 20,
        // The end of a response repeats its text, and may be much larger than all of its other events. Readers that do
        // not read are disconnected.
        behind: (usize::MAX, usize::MAX),
        linger: Duration::from_secs(300),
    };
    Arc::new(Hub::new(limits, environment.clone(), shared))
}

/// The writer of a log. It ends the log, on drop at the latest.
struct Publisher {
    log: Arc<RunLog>,
    is_ended: bool,
    woken: Vec<Waker>,
}

impl Publisher {
    const fn new(log: Arc<RunLog>) -> Self {
        Self {
            log,
            is_ended: false,
            woken: Vec::new(),
        }
    }

    fn publish(&mut self, events: &mut BytesMut, is_end: bool) {
        self.is_ended |= is_end;
        if is_end || !events.is_empty() {
            self.log.append(events, is_end, &mut self.woken);
            events.clear();
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if !self.is_ended {
            self.publish(&mut BytesMut::new(), true);
        }
    }
}

/// Drives a run until its end is stored.
async fn drive(
    mut run: Answering,
    live: &Live,
    events: &mut Publisher,
    (context, timeout): (&Run, Duration),
) {
    let clock = context.environment().clock();
    let mut stopped = pin!(until_stopped(live, context, timeout));
    let mut cancelled = pin!(context.cancelled());
    let mut linger = None::<Sleep>;
    let (mut is_stopped, mut is_cancelled) = (false, false);
    poll_fn(|cx| {
        if !is_stopped && let Poll::Ready(reason) = stopped.as_mut().poll(cx) {
            is_stopped = true;
            context.cancel(reason);
        }
        if !is_cancelled && cancelled.as_mut().poll(cx).is_ready() {
            is_cancelled = true;
            linger = Some(clock.sleep(LINGER));
        }
        if let Some(sleep) = &mut linger
            && sleep.as_mut().poll(cx).is_ready()
        {
            linger = None;
            run.abort();
        }
        run.poll(cx);
        let end = run.take_end();
        if let Some(end) = &end {
            run.write_end(end);
        }
        if run.is_deleted() {
            // Another process has deleted the response, and nobody may read its events.
            events.log.discard();
        }
        let is_full = run.out().len() >= PIECE;
        events.publish(run.out(), end.is_some());
        match end {
            Some(_) => Poll::Ready(()),
            None => {
                if is_full {
                    // The readers have their turn.
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    })
    .await;
}

/// Renews the lease of a response until it is lost or the run takes too long, and returns the reason to cancel the run.
async fn until_stopped(live: &Live, context: &Run, timeout: Duration) -> CancelReason {
    let clock = context.environment().clock();
    let begun = clock.monotonic();
    loop {
        let left = timeout.saturating_sub(clock.monotonic().saturating_sub(begun));
        if left.is_zero() {
            return CancelReason::Other(TIME_LIMIT.into());
        }
        clock.sleep(left.min(RENEW_AFTER)).await;
        if left <= RENEW_AFTER {
            continue;
        }
        match store_call(context.environment(), RENEW_AFTER, || live.renew()).await {
            Ok(true) => {}
            Ok(false) => return CancelReason::User,
            Err(error) => {
                tracing::warn!(response = %live.id(), %error, "the lease of a response was not renewed");
            }
        }
    }
}
