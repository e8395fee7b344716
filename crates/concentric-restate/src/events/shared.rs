//! The events of runs in a store, in which another process reads them.

use super::{Log, MAX_EVENTS, Shared};
use bytes::Bytes;
use concentric_core::{
    Event, Str, ThreadId,
    context::Environment,
    panic::caught,
    store::{EventBatch, EventKey, EventPage, EventStore, StoreError, Tenant},
};
use std::{
    collections::VecDeque,
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, sleep_until, timeout},
};

/// The time in which events are collected before they are written.
const COLLECT: Duration = Duration::from_millis(50);

/// The time in which readers receive the end of a log before the next one replaces it.
const SUCCEED: Duration = Duration::from_millis(300);

/// The number of events that are written together.
const BATCH: usize = 256;

/// How often a writer finds no events before it ends.
const IDLE: u32 = 100;

/// The time between two reads of a log that has no new events.
const POLL: Duration = Duration::from_millis(100);

/// The time that a call of the store has, and the pause after one that has failed.
const STALLED: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(1);

fn key(shared: &Shared, thread: &str) -> EventKey {
    let name = format!("restate:{}", shared.name);
    EventKey::new(Tenant::default(), ThreadId::new(thread), name)
}

async fn call<T, F>(method: impl FnOnce() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    match timeout(STALLED, caught(method)).await {
        Ok(Ok(called)) => called,
        Ok(Err(_)) => Err(StoreError::failed("the store of events panicked")),
        Err(_) => Err(StoreError::failed("the store of events did not answer")),
    }
}

/// What of a conversation's events is written.
#[derive(Default)]
pub(super) struct Writer {
    // The indexes at which logs begin that are not begun yet.
    begins: VecDeque<u64>,
    // The tag of the log that is written; `None` if there is none, or another process writes it.
    tag: Option<Str>,
    // The time at which that log began; `None` if there was none.
    since: Option<SystemTime>,
    // The number of the next event in that log, and its index.
    number: u64,
    at: u64,
    // The index of the first event of an attempt that continues the log. It begins one if the log turns out to be
    // that of another process.
    resumed: Option<u64>,
    is_running: bool,
}

impl Writer {
    /// Begins a log with the event that has this index.
    pub(super) fn begin(&mut self, next: u64) {
        // Runs that no task writes are not in the store.
        if self.begins.len() == MAX_EVENTS {
            self.begins.pop_front();
        }
        self.begins.push_back(next);
    }

    /// Begins a log, unless the current one is continued.
    pub(super) fn resume(&mut self, next: u64) {
        if self.tag.is_none() && self.begins.is_empty() {
            self.begin(next);
        } else {
            self.resumed = Some(next);
        }
    }

    /// Notes the result of a write of `count` events, after which the log has the number `until` next.
    ///
    /// # Errors
    ///
    /// The events have to be written again.
    fn settle(
        &mut self,
        written: Result<(), StoreError>,
        until: u64,
        count: u64,
    ) -> Result<(), StoreError> {
        match written {
            Ok(()) | Err(StoreError::Unwritable(_)) => {
                self.number = until;
                self.at += count;
                self.resumed = self.resumed.filter(|resumed| *resumed >= self.at);
            }
            Err(StoreError::Stale | StoreError::Ended) => {
                // Another process drives the run, and the events until this one resumes it are void.
                self.tag = None;
                let resumed = self.resumed.take().filter(|resumed| *resumed >= self.at);
                if let Some(resumed) = resumed {
                    self.begins.push_front(resumed);
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns whether a task has to be started.
    pub(super) const fn starts(&mut self) -> bool {
        !std::mem::replace(&mut self.is_running, true)
    }
}

/// Starts the task that writes the events of a conversation.
pub(super) fn write(shared: &Shared, thread: &str, log: Arc<Log>) {
    let Ok(runtime) = Handle::try_current() else {
        log.lock().writer.is_running = false;
        return;
    };
    let key = key(shared, thread);
    runtime.spawn(run(Arc::clone(&shared.store), key, log));
}

async fn run(store: Arc<dyn EventStore>, key: EventKey, log: Arc<Log>) {
    let (mut idle, mut failures) = (0, 0_u32);
    let mut last: Option<Instant> = None;
    loop {
        sleep(COLLECT).await;
        let Some((batch, begins)) = next(&log) else {
            idle += 1;
            let mut kept = log.lock();
            if idle > IDLE && kept.writer.at == kept.next() {
                kept.writer.is_running = false;
                return;
            }
            continue;
        };
        idle = 0;
        let (tag, until) = (batch.tag.clone(), batch.next());
        let count = batch.frames.len() as u64;
        let since = log.lock().writer.since.unwrap_or(SystemTime::UNIX_EPOCH);
        let written = async {
            if begins {
                if let Some(last) = last {
                    sleep_until(last + SUCCEED).await;
                }
                call(|| store.begin_events(key.clone(), tag.clone(), since)).await?;
            }
            match call(|| store.append_events(key.clone(), batch.clone())).await {
                // The store has lost the log.
                Err(StoreError::NotFound) => {
                    call(|| store.begin_events(key.clone(), tag.clone(), since)).await?;
                    call(|| store.append_events(key.clone(), batch.clone())).await
                }
                appended => appended,
            }
        };
        let written = written.await;
        let settled = log.lock().writer.settle(written, until, count);
        last = Some(Instant::now());
        let Err(error) = settled else {
            failures = 0;
            continue;
        };
        // The first failure, and about one a minute.
        if failures % 60 == 0 {
            tracing::warn!(error = ?error, "events of a run are not written to their store");
        }
        failures += 1;
        sleep(PAUSE).await;
    }
}

/// The next events, and whether their log begins with them.
fn next(log: &Log) -> Option<(EventBatch, bool)> {
    let mut kept = log.lock();
    let (first, end) = (kept.first, kept.next());
    let writer = &mut kept.writer;
    // The events that are not kept any more are missing in the log.
    let skipped = first.saturating_sub(writer.at);
    writer.at += skipped;
    writer.number += skipped;
    while let Some(begin) = writer.begins.front().filter(|begin| **begin <= writer.at) {
        writer.at = writer.at.max(*begin);
        writer.number = 1;
        writer.tag = Some(Environment::system().ids().next("log"));
        writer.since = Some(Environment::system().clock().now());
        writer.begins.pop_front();
    }
    let until = writer.begins.front().map_or(end, |begin| end.min(*begin));
    let Some(tag) = writer.tag.clone() else {
        writer.at = until;
        return None;
    };
    let (number, at) = (writer.number, writer.at);
    let from = usize::try_from(at - first).unwrap_or(usize::MAX);
    let count = usize::try_from(until - at).unwrap_or(usize::MAX);
    let events: Vec<Event> = kept
        .events
        .range(from..)
        .take(count.min(BATCH))
        .cloned()
        .collect();
    drop(kept);
    let frames: Vec<Bytes> = events.iter().map(encode).collect();
    (!frames.is_empty()).then(|| (EventBatch::new(tag, number, frames), number == 1))
}

/// The JSON of an event; without one that has none, a consumer misses it.
fn encode(event: &Event) -> Bytes {
    serde_json::to_vec(event).unwrap_or_default().into()
}

/// A consumer of the events in the store.
pub(super) struct Reader {
    store: Arc<dyn EventStore>,
    key: EventKey,
    // The tag of the log that is read.
    tag: Option<Str>,
    next: u64,
    events: VecDeque<Event>,
    missed: u64,
}

impl Reader {
    pub(super) fn new(shared: &Shared, thread: &str) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            key: key(shared, thread),
            tag: None,
            next: 1,
            events: VecDeque::new(),
            missed: 0,
        }
    }

    pub(super) const fn missed(&self) -> u64 {
        self.missed
    }

    pub(super) async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let (store, key, after) = (&self.store, self.key.clone(), self.next - 1);
            let pause = match call(|| store.read_events(key, after)).await {
                Ok(Some(page)) => self.receive(&page),
                Ok(None) => Some(POLL),
                Err(error) => {
                    tracing::debug!(error = ?error, "the store of events failed");
                    Some(PAUSE)
                }
            };
            if let Some(pause) = pause {
                sleep(pause).await;
            }
        }
    }

    /// Takes the events of a page. Returns the time until the next read.
    fn receive(&mut self, page: &EventPage) -> Option<Duration> {
        if self.tag.as_ref() != Some(&page.tag) {
            // Another run, or the same one in another process.
            let is_read = std::mem::replace(&mut self.next, 1) == 1;
            self.tag = Some(page.tag.clone());
            if !is_read {
                return None;
            }
        }
        self.missed += page.first.saturating_sub(self.next);
        self.next = page.first + page.frames.len() as u64;
        for frame in &page.frames {
            match serde_json::from_slice(frame) {
                Ok(event) => self.events.push_back(event),
                Err(error) => {
                    tracing::debug!(%error, "an event in the store can't be read");
                    self.missed += 1;
                }
            }
        }
        page.frames.is_empty().then_some(POLL)
    }
}

#[cfg(test)]
mod tests {
    use super::super::RunEvents;
    use concentric_core::Event;
    use concentric_store::MemoryStore;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    const TICK: Duration = Duration::from_millis(200);

    async fn read(consumer: &mut super::super::Attached, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(consumer.next().await.unwrap());
        }
        events
    }

    fn texts(texts: &[&str]) -> Vec<Event> {
        let event = |text: &&str| match *text {
            "reset" => Event::Reset,
            text => Event::text(text.to_owned()),
        };
        texts.iter().map(event).collect()
    }

    fn publish(events: &RunEvents, all: &[&str]) {
        for event in texts(all) {
            events.publish("t", event);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn consumers_of_any_process_receive_the_events_of_a_run() {
        let store = MemoryStore::new();
        let process = || RunEvents::shared(store.clone(), "Clerk");
        let (here, there) = (process(), process());
        let mut early = there.attach("t");
        here.begin("t");
        publish(&here, &["a", "b"]);
        assert_eq!(read(&mut early, 2).await, texts(&["a", "b"]));
        publish(&here, &["c"]);
        let mut late = there.attach("t");
        let mut of_same = here.attach("t");
        for consumer in [&mut late, &mut of_same] {
            assert_eq!(read(consumer, 3).await, texts(&["a", "b", "c"]));
        }
        assert_eq!(read(&mut early, 1).await, texts(&["c"]));
        // A later run, after a while.
        sleep(Duration::from_secs(60)).await;
        here.begin("t");
        publish(&here, &["d"]);
        for consumer in [&mut early, &mut late, &mut there.attach("t")] {
            assert_eq!(read(consumer, 1).await, texts(&["d"]));
            assert_eq!(consumer.missed(), 0);
        }
        // Two runs in one batch.
        publish(&here, &["e"]);
        here.begin("t");
        publish(&here, &["f"]);
        assert_eq!(read(&mut late, 2).await, texts(&["e", "f"]));
        for mut other in [
            there.attach("u"),
            RunEvents::shared(store.clone(), "Other").attach("t"),
        ] {
            assert!(timeout(TICK, other.next()).await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_continues_in_a_process_that_takes_it_over() {
        let store = MemoryStore::new();
        let process = || RunEvents::shared(store.clone(), "Clerk");
        let [first, second, third] = [process(), process(), process()];
        let mut early = third.attach("t");
        first.begin("t");
        publish(&first, &["a", "b"]);
        assert_eq!(read(&mut early, 2).await, texts(&["a", "b"]));
        // The step that `b` belongs to is made again.
        second.resume("t");
        publish(&second, &["reset", "b"]);
        assert_eq!(read(&mut early, 2).await, texts(&["reset", "b"]));
        // The first process does not know it, and writes nothing.
        publish(&first, &["void"]);
        sleep(TICK).await;
        publish(&first, &["void"]);
        publish(&second, &["c"]);
        assert_eq!(read(&mut early, 1).await, texts(&["c"]));
        let mut late = third.attach("t");
        assert_eq!(read(&mut late, 3).await, texts(&["reset", "b", "c"]));
        // Within a process, a further attempt continues the log.
        second.resume("t");
        publish(&second, &["reset", "d"]);
        let mut late = third.attach("t");
        assert_eq!(
            read(&mut late, 5).await,
            texts(&["reset", "b", "c", "reset", "d"])
        );
        // The first process takes the run back.
        first.resume("t");
        publish(&first, &["reset", "e"]);
        assert_eq!(
            read(&mut early, 4).await,
            texts(&["reset", "d", "reset", "e"])
        );
        // The second one does not know that yet.
        second.resume("t");
        publish(&second, &["reset", "f"]);
        assert_eq!(read(&mut early, 2).await, texts(&["reset", "f"]));
        assert_eq!(early.missed(), 0);
    }
}
