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
/// The last 4,096 events of each of 1,024 conversations are kept: those that were used last, and in any case those whose
/// runs are driven. A consumer that is further behind [misses](Attached::missed) the oldest ones.
///
/// # Several processes
///
/// With a [store](Self::shared), consumers of any process receive the events, also of a run that another process takes
/// over. Events are written about 50 milliseconds after they were published, and an attached consumer reads every 100
/// milliseconds; one that has not read the end of a run after 300 milliseconds misses it if the next run has begun.
/// Until a run has begun in the store, at most about 400 milliseconds after it was first driven if the store answers at
/// once, a consumer that attaches receives the previous run first: attach before the run starts.
///
/// Events are stored as JSON, the last one with the transcript, for as long as the [store](EventStore) keeps them, under
/// the default tenant and the conversation: if a conversation is deleted, [remove](EventStore::remove_events) them. A
/// store that does not work delays no run: events that it has not received are missed, and those of a conversation that
/// is not kept any more are not written again.
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
    logs: HashMap<String, Entry>,
    // The number of uses until now.
    uses: u64,
}

struct Entry {
    log: Arc<Log>,
    // The number of the latest use.
    used: u64,
    // The number of attempts that drive a run of the conversation.
    drivers: usize,
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
    // The index of the first event of the latest run, and the part of the run that has it.
    begin: u64,
    part: Option<PartId>,
    writer: Writer,
    // Whether a later run of the conversation would have another log.
    is_evicted: bool,
}

/// The id of the part of a run between two waits: the seed of its first record.
pub(crate) type PartId = [u8; 16];

impl Logs {
    /// The log of a conversation, which is used from now on.
    fn entry(&mut self, thread: &str) -> &mut Entry {
        if !self.logs.contains_key(thread) {
            self.evict(MAX_THREADS - 1);
        }
        self.uses += 1;
        let entry = self.logs.entry(thread.to_owned());
        let entry = entry.or_insert_with(|| Entry {
            log: Arc::new(Log {
                kept: Mutex::default(),
                changed: watch::Sender::new(0),
            }),
            used: 0,
            drivers: 0,
        });
        entry.used = self.uses;
        entry
    }

    /// Removes the logs that were not used for the longest time, except those of runs that are driven, until at most
    /// `most` are kept.
    fn evict(&mut self, most: usize) {
        while self.logs.len() > most {
            let idle = self.logs.iter().filter(|(_, entry)| entry.drivers == 0);
            let oldest = idle.min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(thread, _)| thread.clone()) else {
                return;
            };
            if let Some(Entry { log, .. }) = self.logs.remove(&oldest) {
                log.lock().is_evicted = true;
                log.change();
            }
        }
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the consumers.
    fn change(&self) {
        self.changed.send_modify(|version| *version += 1);
    }
}

impl Kept {
    /// The index of the next event.
    fn next(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    fn begin(&mut self, part: PartId) {
        self.begin = self.next();
        self.part = Some(part);
        self.writer.begin(self.begin);
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

    fn lock(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches to the latest run of a conversation, or to its next one.
    pub fn attach(&self, thread: &str) -> Attached {
        if let Some(shared) = &self.shared {
            return Attached(Source::Store(Reader::new(shared, thread)));
        }
        let log = Arc::clone(&self.lock().entry(thread).log);
        let next = log.lock().begin;
        Attached(Source::Log {
            changed: log.changed.subscribe(),
            log,
            next,
            missed: 0,
        })
    }

    /// Keeps the log of a conversation for an attempt that drives a part of its run.
    pub(crate) fn drive(&self, thread: &str, part: PartId) -> Publisher {
        let mut logs = self.lock();
        let entry = logs.entry(thread);
        entry.drivers += 1;
        Publisher {
            events: self.clone(),
            thread: thread.to_owned(),
            log: Arc::clone(&entry.log),
            part,
        }
    }
}

/// Publishes the events of a part of a run. The log of the conversation is kept until the publisher is dropped.
pub(crate) struct Publisher {
    events: RunEvents,
    thread: String,
    log: Arc<Log>,
    part: PartId,
}

impl Publisher {
    /// Begins the log of the part: consumers that attach from now on receive its events.
    pub(crate) fn begin(&self) {
        let mut kept = self.log.lock();
        kept.begin(self.part);
        self.write(kept);
    }

    /// Continues the log of the part that another attempt has begun, with the event that is published next. If that
    /// attempt was in another process, a log begins.
    pub(crate) fn resume(&self) {
        let mut kept = self.log.lock();
        if kept.part == Some(self.part) {
            let next = kept.next();
            kept.writer.resume(next);
        } else {
            kept.begin(self.part);
        }
        self.write(kept);
    }

    pub(crate) fn publish(&self, event: Event) {
        let mut kept = self.log.lock();
        if kept.events.len() == MAX_EVENTS {
            kept.events.pop_front();
            kept.first += 1;
        }
        kept.events.push_back(event);
        self.write(kept);
        self.log.change();
    }

    /// Starts the task that writes to the store, unless it runs.
    fn write(&self, mut kept: MutexGuard<'_, Kept>) {
        if let Some(shared) = &self.events.shared
            && kept.writer.starts()
        {
            drop(kept);
            shared::write(shared, &self.thread, Arc::clone(&self.log));
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let mut logs = self.events.lock();
        let entry = logs.entry(&self.thread);
        entry.drivers = entry.drivers.saturating_sub(1);
        logs.evict(MAX_THREADS);
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
                if kept.is_evicted {
                    return None;
                }
            }
            changed.changed().await.ok()?;
        }
    }

    /// The number of events that were dropped before this consumer read them. With a store, events of a run that the
    /// next one has replaced before they were read, and the last ones of a run if they were not written, are not
    /// counted.
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
        let run = events.drive("t", [1; 16]);
        run.begin();
        run.publish(Event::text("a"));
        let mut late = events.attach("t");
        run.publish(Event::text("b"));
        for consumer in [&mut early, &mut late] {
            assert_eq!(consumer.next().await, Some(Event::text("a")));
            assert_eq!(consumer.next().await, Some(Event::text("b")));
        }
        let run = events.drive("t", [2; 16]);
        run.begin();
        run.publish(Event::text("c"));
        assert_eq!(events.attach("t").next().await, Some(Event::text("c")));
        assert_eq!(early.next().await, Some(Event::text("c")));
        // A run that another process has begun.
        let run = events.drive("t", [3; 16]);
        run.resume();
        run.publish(Event::Reset);
        run.resume();
        run.publish(Event::text("d"));
        let mut late = events.attach("t");
        assert_eq!(late.next().await, Some(Event::Reset));
        assert_eq!(late.next().await, Some(Event::text("d")));
    }

    #[tokio::test]
    async fn a_slow_consumer_misses_the_oldest_events() {
        let events = RunEvents::new();
        let mut slow = events.attach("t");
        let run = events.drive("t", [1; 16]);
        for at in 0..MAX_EVENTS + 3 {
            run.publish(Event::text(at.to_string()));
        }
        assert_eq!(slow.next().await, Some(Event::text("3")));
        assert_eq!(slow.missed(), 3);
    }

    #[tokio::test]
    async fn conversations_without_a_driven_run_are_evicted_by_latest_use() {
        let events = RunEvents::new();
        let publish = |thread: &str| {
            let run = events.drive(thread, [1; 16]);
            run.begin();
            run.publish(Event::text(thread));
            run
        };
        let driven = publish("driven");
        drop(publish("used"));
        let mut unused = {
            drop(publish("unused"));
            events.attach("unused")
        };
        for at in 0..MAX_THREADS - 3 {
            drop(publish(&at.to_string()));
        }
        let mut used = events.attach("used");
        drop(publish("more"));
        assert_eq!(unused.next().await, Some(Event::text("unused")));
        assert_eq!(unused.next().await, None);
        assert_eq!(used.next().await, Some(Event::text("used")));
        assert_eq!(events.lock().logs.len(), MAX_THREADS);
        // The limit may be passed by conversations whose runs are driven.
        let many: Vec<_> = (0..MAX_THREADS)
            .map(|at| publish(&format!("many {at}")))
            .collect();
        assert_eq!(events.lock().logs.len(), MAX_THREADS + 1);
        drop(many);
        assert_eq!(events.lock().logs.len(), MAX_THREADS);
        driven.publish(Event::Reset);
        let mut consumer = events.attach("driven");
        assert_eq!(consumer.next().await, Some(Event::text("driven")));
        assert_eq!(consumer.next().await, Some(Event::Reset));
    }
}
