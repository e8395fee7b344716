//! The events of runs, for consumers in this process or, with a store, in any.

mod shared;

use self::shared::{Reader, Writer};
use concentric_core::{Event, Str, store::EventStore};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// The number of events of a run that are kept.
const MAX_EVENTS: usize = 4096;

/// The number of conversations whose latest runs are kept.
const MAX_THREADS: usize = 1024;

/// The events of the runs that this process drives, as a side channel: Restate's journal has none.
///
/// Clones share the events. A consumer [attaches](Self::attach) to a conversation at any time, and receives the
/// events of its latest run from the first one that is kept. Each live event is published once; when a step is
/// executed again after a crash, [`Event::Reset`] precedes its events. Replayed steps publish nothing, so a consumer
/// that attaches after another process has taken a run over has the events from then on; the whole answer is that of
/// the invocation.
///
/// The last 4,096 events of each of 1,024 conversations are kept. A consumer that is further behind
/// [misses](Attached::missed) the oldest ones.
///
/// # Several processes
///
/// With a [store](Self::shared), consumers of any process receive the events, also of a run that another process takes
/// over. Events are written about 50 milliseconds after they were published, and an attached consumer reads every 100
/// milliseconds; one that has not read the end of a run after 300 milliseconds misses it if the next run has begun.
/// Events are stored as JSON, the last one with the transcript, for as long as the [store](EventStore) keeps them. A store
/// that does not work delays no run: what it has not received is missed.
#[derive(Clone, Default)]
pub struct RunEvents {
    logs: Arc<Mutex<Logs>>,
    shared: Option<Shared>,
}

/// The store of the events, and the name of the logs in it.
#[derive(Clone)]
struct Shared {
    store: Arc<dyn EventStore>,
    name: Str,
}

#[derive(Default)]
struct Logs {
    logs: HashMap<String, Arc<Log>>,
    // The conversations by their latest use, the oldest first.
    order: VecDeque<String>,
}

struct Log {
    kept: Mutex<Kept>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<Event>,
    // The index of the first kept event.
    first: u64,
    // The index of the first event of the latest run.
    begin: u64,
    writer: Writer,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// The index of the next event.
    fn next(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}

impl RunEvents {
    /// Creates a channel without events.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a channel over a store, in which the logs of all processes with the same `name` are the same ones, such
    /// as that of the service.
    pub fn shared(store: impl EventStore, name: impl Into<Str>) -> Self {
        let shared = Shared {
            store: Arc::new(store),
            name: name.into(),
        };
        Self {
            logs: Arc::default(),
            shared: Some(shared),
        }
    }

    fn log(&self, thread: &str) -> Arc<Log> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = logs.logs.get(thread) {
            return Arc::clone(log);
        }
        if logs.logs.len() >= MAX_THREADS
            && let Some(oldest) = logs.order.pop_front()
        {
            logs.logs.remove(&oldest);
        }
        let log = Arc::new(Log {
            kept: Mutex::default(),
            changed: watch::Sender::new(0),
        });
        logs.logs.insert(thread.to_owned(), Arc::clone(&log));
        logs.order.push_back(thread.to_owned());
        log
    }

    /// Attaches to the latest run of a conversation, or to its next one.
    pub fn attach(&self, thread: &str) -> Attached {
        if let Some(shared) = &self.shared {
            return Attached(Source::Store(Reader::new(shared, thread)));
        }
        let log = self.log(thread);
        let next = log.lock().begin;
        Attached(Source::Log {
            changed: log.changed.subscribe(),
            log,
            next,
            missed: 0,
        })
    }

    /// Begins a run: consumers that attach from now on receive its events.
    pub(crate) fn begin(&self, thread: &str) {
        let log = self.log(thread);
        let mut kept = log.lock();
        let next = kept.next();
        kept.begin = next;
        kept.writer.begin(next);
    }

    /// Continues a run that another attempt has begun, possibly in another process.
    pub(crate) fn resume(&self, thread: &str) {
        let log = self.log(thread);
        let mut kept = log.lock();
        let next = kept.next();
        kept.writer.resume(next);
    }

    pub(crate) fn publish(&self, thread: &str, event: Event) {
        let log = self.log(thread);
        let mut kept = log.lock();
        if kept.events.len() == MAX_EVENTS {
            kept.events.pop_front();
            kept.first += 1;
        }
        kept.events.push_back(event);
        let starts = self.shared.is_some() && kept.writer.starts();
        drop(kept);
        log.changed.send_modify(|version| *version += 1);
        if let (Some(shared), true) = (&self.shared, starts) {
            shared::write(shared, thread, log);
        }
    }
}

/// A consumer of the events of a conversation.
pub struct Attached(Source);

enum Source {
    Log {
        log: Arc<Log>,
        changed: watch::Receiver<u64>,
        next: u64,
        missed: u64,
    },
    Store(Reader),
}

impl Attached {
    /// Waits for the next event; `None` once the conversation is not kept any more.
    ///
    /// With a store, it waits until the next run at the latest, since a log that the store does not keep any more is
    /// followed by that of the next run. A store that fails is read again after a second.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Event> {
        let (log, changed, next, missed) = match &mut self.0 {
            Source::Store(reader) => return Some(reader.next().await),
            Source::Log {
                log,
                changed,
                next,
                missed,
            } => (log, changed, next, missed),
        };
        loop {
            changed.mark_unchanged();
            {
                let kept = log.lock();
                let skipped = kept.first.saturating_sub(*next);
                *missed += skipped;
                *next += skipped;
                let at = usize::try_from(*next - kept.first).unwrap_or(usize::MAX);
                if let Some(event) = kept.events.get(at) {
                    *next += 1;
                    return Some(event.clone());
                }
            }
            changed.changed().await.ok()?;
        }
    }

    /// The number of events that were dropped before this consumer read them.
    pub const fn missed(&self) -> u64 {
        match &self.0 {
            Source::Log { missed, .. } => *missed,
            Source::Store(reader) => reader.missed(),
        }
    }
}

concentric_core::opaque_debug!(RunEvents);
concentric_core::opaque_debug!(Attached);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_consumer_receives_the_events_of_the_latest_run() {
        let events = RunEvents::new();
        let mut early = events.attach("t");
        events.begin("t");
        events.publish("t", Event::text("a"));
        let mut late = events.attach("t");
        events.publish("t", Event::text("b"));
        for consumer in [&mut early, &mut late] {
            assert_eq!(consumer.next().await, Some(Event::text("a")));
            assert_eq!(consumer.next().await, Some(Event::text("b")));
        }
        events.begin("t");
        events.publish("t", Event::text("c"));
        assert_eq!(events.attach("t").next().await, Some(Event::text("c")));
        assert_eq!(early.next().await, Some(Event::text("c")));
    }

    #[tokio::test]
    async fn a_slow_consumer_misses_the_oldest_events() {
        let events = RunEvents::new();
        let mut slow = events.attach("t");
        for at in 0..MAX_EVENTS + 3 {
            events.publish("t", Event::text(at.to_string()));
        }
        assert_eq!(slow.next().await, Some(Event::text("3")));
        assert_eq!(slow.missed(), 3);
    }

    #[test]
    fn the_number_of_conversations_is_bounded() {
        let events = RunEvents::new();
        for at in 0..MAX_THREADS + 5 {
            events.publish(&at.to_string(), Event::Reset);
        }
        let logs = events.logs.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(
            (logs.logs.len(), logs.order.len()),
            (MAX_THREADS, MAX_THREADS)
        );
        assert!(!logs.logs.contains_key("0"));
    }
}
