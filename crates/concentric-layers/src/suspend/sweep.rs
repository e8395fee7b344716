//! The background task that resumes abandoned runs.

use super::{
    SuspendLayer, policy,
    recover::{Abandoned, GIVEN_UP_WITHIN, within},
};
use concentric_core::{
    BoxModel, ChatRequest, Environment, Error, ErrorKind, Event, Outcome,
    context::Sleep,
    service::SharedModel,
    store::{RunKey, RunStore, StoreError},
};
use futures_core::Stream;
use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};
use tokio::task::JoinSet;
use tower::util::Oneshot;

/// Resumes runs whose process died, and removes expired entries of their store, in the background.
///
/// Any number of processes may sweep one store: each abandoned run is
/// [claimed](SuspendLayer::claim_abandoned) by one of them, which drives it to its end without a
/// consumer. Interrupts of such a run wait in the store for replies.
///
/// ```no_run
/// use concentric_core::AgentLayer;
/// use concentric_layers::{SuspendLayer, suspend::Sweeper};
/// use concentric_store::MemoryStore; // or `SqliteStore`
/// use concentric_test::{ScriptedModel, ScriptedTools};
/// use std::sync::Arc;
/// use tower::ServiceBuilder;
///
/// # async fn serve() {}
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let suspend = SuspendLayer::new(Arc::new(MemoryStore::new()));
/// let agent = ServiceBuilder::new()
///     .layer(suspend.clone())
///     .layer(AgentLayer::new(ScriptedTools::new()))
///     .service(ScriptedModel::new());
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let sweeper = Sweeper::new(&suspend, agent.clone());
/// let sweeper = tokio::spawn(sweeper.run(async { drop(stopped.await) }));
/// serve().await;
/// drop(stop);
/// // Waits for the resumed runs.
/// sweeper.await?;
/// # Ok(())
/// # }
/// ```
///
/// # Failed runs
///
/// | the resumed run | next |
/// |---|---|
/// | has an outcome, or an error that every attempt would return | has ended, or waits |
/// | fails otherwise | is abandoned again ([errors](super#errors-of-recovered-runs)); this sweeper resumes it after an [interval](Self::every) that doubles with each failure, up to an hour, or after the time that the provider asked for, at most an hour as well |
/// | ends its process | is abandoned, and quarantined in the end |
///
/// At most 10,000 failed runs are remembered; further ones are resumed after one interval.
///
/// # Cancel safety
///
/// If the future of [`run`](Self::run) is dropped, no more runs are claimed, a claim in flight is
/// [given up](SuspendLayer::claim_abandoned), and the runs that were resumed continue until
/// the runtime ends.
#[must_use = "a sweeper does nothing until it is run"]
pub struct Sweeper<St: ?Sized> {
    agent: BoxModel,
    layer: SuspendLayer<St>,
    environment: Environment,
    every: Duration,
    purge_every: Duration,
    batch: usize,
    limit: usize,
    #[cfg(feature = "otel")]
    counter: Option<opentelemetry::metrics::Counter<u64>>,
}

/// A failed run is forgotten this long after it could be resumed.
const FORGOTTEN: Duration = Duration::from_secs(60 * 60);

/// The maximum number of failed runs that are remembered.
const REMEMBERED: usize = 10_000;

impl<St> Sweeper<St>
where
    St: RunStore + ?Sized,
{
    /// Creates a sweeper of the store of `layer`, which `agent` contains.
    pub fn new(layer: &SuspendLayer<St>, agent: impl SharedModel) -> Self {
        Self {
            agent: BoxModel::new(agent),
            layer: layer.clone(),
            environment: Environment::system(),
            every: Duration::from_secs(5),
            purge_every: Duration::from_secs(10 * 60),
            batch: 16,
            limit: 64,
            #[cfg(feature = "otel")]
            counter: None,
        }
    }

    /// Sets the environment of the resumed runs, and the clock; the system's by default.
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Sets the interval between two looks for abandoned runs, at least a millisecond; 5 seconds by
    /// default. Each interval differs randomly by up to half, so that processes do not look at the same
    /// time.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(Duration::from_millis(1));
        self
    }

    /// Sets the interval at which expired entries are [removed](RunStore::purge); 10 minutes by
    /// default. They are removed in a separate task, so that a large backlog does not delay the runs, and
    /// only by one at a time; it ends with [`run`](Self::run).
    pub fn purge_every(mut self, interval: Duration) -> Self {
        self.purge_every = interval;
        self
    }

    /// Sets the maximum number of runs that are claimed at once, at least 1; 16 by default.
    pub fn batch(mut self, runs: usize) -> Self {
        self.batch = runs.max(1);
        self
    }

    /// Sets the maximum number of runs that are driven at the same time, at least 1; 64 by default.
    pub fn limit(mut self, runs: usize) -> Self {
        self.limit = runs.max(1);
        self
    }

    /// Counts the resumed runs with an instrument of `meter`: `concentric.recovered_runs`, with the
    /// attribute `concentric.outcome` (`completed`, `interrupted`, `stopped`, `failed`, `taken`).
    #[cfg(feature = "otel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "otel")))]
    pub fn meter(mut self, meter: &opentelemetry::metrics::Meter) -> Self {
        let counter = meter.u64_counter("concentric.recovered_runs");
        let counter = counter.with_unit("{run}");
        let counter = counter.with_description("Number of runs resumed after their process died.");
        self.counter = Some(counter.build());
        self
    }

    /// Sweeps until `shutdown` resolves, and then waits for the resumed runs. Runs that are being claimed
    /// at that time are given up, so that other processes can resume them at once; this takes at most 30
    /// seconds.
    ///
    /// To bound that wait, drop the future; see [cancel safety](Self#cancel-safety).
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime once a run is resumed, or expired entries are removed.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut runs = Runs::default();
        let mut purge = Purge::new(self.now());
        let is_stopped = AtomicBool::new(false);
        loop {
            purge.start(&self);
            {
                let mut round = pin!(self.sweep(&mut runs, &is_stopped));
                if until(shutdown.as_mut(), round.as_mut()).await.is_none() {
                    is_stopped.store(true, Relaxed);
                    let limit = self.environment.clock().sleep(GIVEN_UP_WITHIN);
                    within(limit, round).await;
                    break;
                }
            }
            let mut interval = self.interval();
            // Until the interval ends, or there is room for further runs.
            let rest = poll_fn(|cx| {
                let was_full = runs.tasks.len() >= self.limit;
                while let Poll::Ready(Some(ended)) = runs.tasks.poll_join_next(cx) {
                    self.note(&mut runs.failures, ended);
                }
                if was_full && runs.tasks.len() < self.limit {
                    return Poll::Ready(());
                }
                interval.as_mut().poll(cx)
            });
            if until(shutdown.as_mut(), rest).await.is_none() {
                break;
            }
        }
        while let Some(ended) = runs.tasks.join_next().await {
            self.note(&mut runs.failures, ended);
        }
    }

    fn now(&self) -> Duration {
        self.environment.clock().monotonic()
    }

    fn interval(&self) -> Sleep {
        let random = self.environment.random().next_u64();
        let clock = self.environment.clock();
        clock.sleep(policy::sweeps_after(self.every, random))
    }

    /// Claims and resumes abandoned runs, as far as there is room. Gives up what it has claimed if the
    /// sweeper is stopped.
    async fn sweep(&self, runs: &mut Runs, is_stopped: &AtomicBool) {
        let now = self.now();
        runs.failures
            .retain(|_, failed| failed.until.saturating_add(FORGOTTEN) > now);
        loop {
            let room = self.limit.saturating_sub(runs.tasks.len());
            let batch = room.min(self.batch);
            if batch == 0 || is_stopped.load(Relaxed) {
                break;
            }
            let claimed = self.layer.claim_abandoned(&self.environment, batch).await;
            let requests = claimed.unwrap_or_else(|error| {
                tracing::warn!(%error, "could not claim abandoned runs");
                Vec::new()
            });
            if is_stopped.load(Relaxed) {
                for request in &requests {
                    Abandoned::<St>::give_up(&request.context).await;
                }
                break;
            }
            let (claimed, before) = (requests.len(), runs.tasks.len());
            for request in requests {
                let Some(key) = Abandoned::<St>::key(&request.context) else {
                    continue;
                };
                // Dropped, a request gives up its claim.
                let failed = runs.failures.get(&key);
                if failed.is_none_or(|failed| failed.until <= now) {
                    let run = resume(self.agent.clone(), request);
                    runs.tasks.spawn(async move { (key, run.await) });
                }
            }
            if claimed < batch || runs.tasks.len() == before {
                break;
            }
        }
    }

    fn note(&self, failures: &mut HashMap<RunKey, Failed>, ended: Ended) {
        let (key, ended) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                tracing::error!(%error, "a resumed run panicked");
                return;
            }
        };
        let outcome = match &ended {
            Ok(Outcome::Completed) => "completed",
            Ok(Outcome::Interrupted) => "interrupted",
            Ok(_) => "stopped",
            Err(error) if is_taken(error) => "taken",
            Err(_) => "failed",
        };
        tracing::info!(tenant = %key.tenant.0, thread = %key.thread, run = %key.run, outcome, "resumed a run");
        #[cfg(feature = "otel")]
        if let Some(counter) = &self.counter {
            counter.add(
                1,
                &[opentelemetry::KeyValue::new("concentric.outcome", outcome)],
            );
        }
        match ended {
            Err(error) if outcome == "failed" => {
                // Not the message, which may quote the conversation.
                let (kind, code) = (error.kind().as_str(), error.code());
                tracing::warn!(run = %key.run, kind, code, "a resumed run failed");
                self.pause(failures, key, &error);
            }
            _ => drop(failures.remove(&key)),
        }
    }

    fn pause(&self, failures: &mut HashMap<RunKey, Failed>, key: RunKey, error: &Error) {
        let count = failures.get(&key).map_or(0, |failed| failed.count);
        if count == 0 && failures.len() >= REMEMBERED {
            return;
        }
        let asked_for = error.retry_after().unwrap_or_default();
        let pause = policy::resumes_after(self.every, count, asked_for);
        let failed = Failed {
            count: count + 1,
            until: self.now().saturating_add(pause),
        };
        failures.insert(key, failed);
    }
}

/// The resumed runs, and those that have failed.
#[derive(Default)]
struct Runs {
    tasks: JoinSet<(RunKey, Result<Outcome, Error>)>,
    failures: HashMap<RunKey, Failed>,
}

/// The removal of expired entries.
struct Purge {
    // The time of the last start.
    since: Duration,
    // At most one, which is aborted when this is dropped.
    task: JoinSet<()>,
}

impl Purge {
    fn new(since: Duration) -> Self {
        let task = JoinSet::new();
        Self { since, task }
    }

    /// Starts the task if it is time, and the last one has ended.
    fn start<St>(&mut self, sweeper: &Sweeper<St>)
    where
        St: RunStore + ?Sized,
    {
        let now = sweeper.now();
        while let Some(ended) = self.task.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "the removal of expired entries panicked");
            }
        }
        if !self.task.is_empty() || now.saturating_sub(self.since) < sweeper.purge_every {
            return;
        }
        self.since = now;
        let store = Arc::clone(&sweeper.layer.store);
        self.task.spawn(async move {
            if let Err(error) = store.purge().await {
                tracing::warn!(%error, "could not remove expired entries of the store");
            }
        });
    }
}

type Ended = Result<(RunKey, Result<Outcome, Error>), tokio::task::JoinError>;

struct Failed {
    count: u32,
    /// The monotonic time from which it is resumed again.
    until: Duration,
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.tasks.detach_all();
    }
}

/// Returns whether another process has the run, because the lease was lost.
fn is_taken(error: &Error) -> bool {
    let codes = [StoreError::Stale.code(), StoreError::Taken.code()];
    error.code().is_some_and(|code| codes.contains(&code))
}

/// Resumes a run, and drives it to its end.
async fn resume(agent: BoxModel, request: ChatRequest) -> Result<Outcome, Error> {
    let mut body = Oneshot::new(agent, request).await?.body;
    while let Some(event) = poll_fn(|cx| Pin::new(&mut body).poll_next(cx)).await {
        if let Event::Finish(finish) = event? {
            return Ok(finish.outcome);
        }
    }
    let cut = "the body of a resumed run ended early";
    Err(Error::new(ErrorKind::Truncated, cut))
}

/// Polls `future` until `shutdown` resolves; then returns `None`.
async fn until<T>(
    mut shutdown: Pin<&mut impl Future<Output = ()>>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match shutdown.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => future.as_mut().poll(cx).map(Some),
    })
    .await
}

impl<St> fmt::Debug for Sweeper<St>
where
    St: ?Sized,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sweeper")
            .field("layer", &self.layer)
            .field("every", &self.every)
            .field("purge_every", &self.purge_every)
            .field("batch", &self.batch)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
