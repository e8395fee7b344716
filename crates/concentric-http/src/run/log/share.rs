//! Copies the events of a run to a store, from which other processes read them.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use concentric_core::{
    Environment, Str, ThreadId,
    store::{EventBatch, EventKey, EventStore, StoreError, Tenant},
};
use memchr::memmem;
use tokio::runtime::Handle;
use tracing::instrument::{Instrument, WithSubscriber};

use super::{
    hub::{Hub, Name},
    remote::Readers,
    run_log::{Format, Pulled, Reader, RunLog},
};
use crate::store_call::{store_call, within};

/// The time in which events are collected before they are written.
const COLLECT: Duration = Duration::from_millis(50);

/// The size from which events are written at once, in bytes.
const BATCH: usize = 256 << 10;

/// The time after which the writer of a log without new events shows that it is alive.
const SIGN: Duration = Duration::from_secs(10);

/// The time without a sign after which a writer is taken for dead.
pub(super) const DEAD: Duration = Duration::from_secs(30);

/// The time that a call of the store has.
pub(super) const STALLED: Duration = Duration::from_secs(10);

/// The pauses after failures.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The time between two warnings.
const WARNING: Duration = Duration::from_secs(60);

/// The store of the logs of a hub.
pub(crate) struct Shared {
    pub(super) store: Arc<dyn EventStore>,
    pub(super) readers: Readers,
    // The monotonic time of the last warning.
    warned: Mutex<Option<Duration>>,
}

impl Shared {
    pub(crate) fn new(store: Arc<dyn EventStore>) -> Self {
        Self {
            store,
            readers: Readers::default(),
            warned: Mutex::default(),
        }
    }

    pub(super) fn warn(&self, now: Duration, error: &StoreError, what: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|warned| warned.saturating_add(WARNING) <= now) {
            *warned = Some(now);
            drop(warned);
            tracing::warn!(error = ?error, "{what}");
        }
    }
}

/// The key of a log in the store.
pub(super) fn key((tenant, thread, run): &Name, format: &Format) -> EventKey {
    let name = format!("{}:{run}", format.name);
    EventKey::new(Tenant(tenant.clone()), ThreadId::new(thread.clone()), name)
}

/// The result of a call of the store of events.
pub(super) async fn call<T, F>(
    environment: &Environment,
    method: impl FnOnce() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    store_call(environment, STALLED, method).await
}

/// Starts a task that copies a log to the store of its hub, if it has one. The run does not wait for it.
pub(crate) fn share(hub: &Arc<Hub>, log: &Arc<RunLog>) {
    let (Some(shared), Ok(runtime)) = (&hub.shared, Handle::try_current()) else {
        return;
    };
    let writer = Sharing {
        shared: Arc::clone(shared),
        environment: hub.environment.clone(),
        key: key(log.name(), log.format()),
        reader: log.follow(),
        is_begun: false,
        next: 1,
        written: Duration::ZERO,
    };
    let task = writer
        .run()
        .instrument(tracing::Span::current())
        .with_current_subscriber();
    runtime.spawn(task);
}

/// The writer of a log in the store. It reads the log in memory, which keeps what is not written yet, up to the limits
/// for readers that are behind.
struct Sharing {
    shared: Arc<Shared>,
    environment: Environment,
    key: EventKey,
    reader: Reader,
    is_begun: bool,
    // The number of the event after the last batch.
    next: u64,
    // The monotonic time of the last write.
    written: Duration,
}

impl Sharing {
    async fn run(mut self) {
        let environment = self.environment.clone();
        let clock = environment.clock();
        let mut pause = PAUSE.0;
        // The time of the first failure after the end of the run.
        let mut late: Option<Duration> = None;
        loop {
            let error = match self.step().await {
                Ok(true) => {
                    pause = PAUSE.0;
                    continue;
                }
                Ok(false) => return,
                Err(error) => error,
            };
            match &error {
                StoreError::Stale | StoreError::Ended => {
                    tracing::debug!(
                        "another process has resumed the run, or its events are deleted"
                    );
                    return;
                }
                // The store has lost the log, and gets what is left of it.
                StoreError::NotFound => {
                    self.is_begun = false;
                    self.reader.advance(1);
                }
                StoreError::Unwritable(_) => self.reader.advance(self.next),
                _ => {}
            }
            let now = clock.monotonic();
            let what = "events of a run are not written to their store";
            self.shared.warn(now, &error, what);
            if self.reader.log().is_ended() && late.get_or_insert(now).saturating_add(DEAD) <= now {
                return;
            }
            clock.sleep(pause).await;
            pause = pause.saturating_mul(2).min(PAUSE.1);
        }
    }

    /// Writes the next events. Returns whether there may be more.
    async fn step(&mut self) -> Result<bool, StoreError> {
        let (environment, key) = (&self.environment, &self.key);
        let (store, tag) = (&self.shared.store, self.reader.log().tag().clone());
        let since = self.reader.log().since();
        if !self.is_begun && !self.reader.log().is_discarded() {
            call(environment, || {
                store.begin_events(key.clone(), tag.clone(), since)
            })
            .await?;
            self.is_begun = true;
            self.written = environment.clock().monotonic();
        }
        // After a failure, a part of this time is over.
        let since_written = environment.clock().monotonic().saturating_sub(self.written);
        let quiet = SIGN.saturating_sub(since_written);
        let reader = &mut self.reader;
        let pulled = poll_fn(|cx| reader.pull(BATCH, cx));
        let (batch, is_full) = match within(environment, quiet, pulled).await {
            None => (EventBatch::new(tag, self.reader.next(), Vec::new()), false),
            Some(Pulled::Events {
                first,
                pieces,
                is_end,
                is_full,
            }) => {
                let earlier = (first == 1).then(|| self.reader.log().earlier());
                let batch = batch(tag, first, &pieces, earlier);
                (batch.end(is_end), is_full)
            }
            Some(Pulled::Removed { next, is_ended }) => {
                (EventBatch::new(tag, next, Vec::new()).end(is_ended), false)
            }
            Some(Pulled::Discarded) => {
                let EventKey {
                    tenant,
                    thread,
                    name,
                    ..
                } = key.clone();
                call(environment, || {
                    store.remove_events(tenant, thread, Some(name), since)
                })
                .await?;
                return Ok(false);
            }
        };
        let is_end = batch.is_end;
        self.next = batch.next();
        call(environment, || store.append_events(key.clone(), batch)).await?;
        self.written = environment.clock().monotonic();
        self.reader.advance(self.next);
        if !is_end && !is_full {
            environment.clock().sleep(COLLECT).await;
        }
        // The client may have received an error status meanwhile.
        Ok(!is_end || self.reader.log().end_copy())
    }
}

/// The events of pieces. The first one of the log is followed by what the client had before, or omitted if that is
/// not kept, since no client could begin with it.
fn batch(tag: Str, first: u64, pieces: &[Bytes], earlier: Option<Option<Bytes>>) -> EventBatch {
    let mut frames: Vec<Bytes> = pieces.iter().flat_map(split).collect();
    let mut batch = EventBatch::new(tag, first, Vec::new());
    match earlier {
        Some(Some(earlier)) if !earlier.is_empty() => {
            if let Some(frame) = frames.first_mut() {
                *frame = Bytes::from([&**frame, &*earlier].concat());
            }
        }
        Some(None) if !frames.is_empty() => {
            frames.remove(0);
            batch.first = 2;
        }
        _ => {}
    }
    batch.frames = frames;
    batch
}

/// The frames of a piece, which share its memory.
fn split(piece: &Bytes) -> impl Iterator<Item = Bytes> {
    let ends = memmem::find_iter(piece, b"\n\n").map(|end| end + 2);
    ends.scan(0, |start, end| {
        let frame = piece.slice(*start..end);
        *start = end;
        Some(frame)
    })
}
