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
    time::{sleep, timeout},
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
    // The indexes at which logs begin that have no tag yet.
    begins: VecDeque<u64>,
    // The tag of the log that is written, and the time at which the process made it: the store keeps the newest log.
    // `None` if there is none, or another process writes it.
    tag: Option<(Str, SystemTime)>,
    // Whether the store has that log.
    is_begun: bool,
    // The number of the next event in that log, and its index.
    number: u64,
    at: u64,
    // The index of the first event of an attempt that continues the log. It begins one if the log turns out to be
    // that of another process.
    resumed: Option<u64>,
    is_running: bool,
}

/// A write to the store.
enum Write {
    Begin(Str, SystemTime),
    Append(EventBatch),
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

    /// Continues the log that was begun last, unless another process has continued it: then a log begins.
    pub(super) fn resume(&mut self, next: u64) {
        match (&self.tag, self.begins.is_empty()) {
            (_, false) => {}
            (None, true) => self.begin(next),
            (Some(_), true) => self.resumed = Some(next),
        }
    }

    /// Notes the result of a write.
    ///
    /// # Errors
    ///
    /// The write has to be repeated.
    fn settle(&mut self, write: &Write, written: Result<(), StoreError>) -> Result<(), StoreError> {
        match (written, write) {
            (Ok(()), Write::Begin(..)) => self.is_begun = true,
            (Ok(()) | Err(StoreError::Unwritable(_)), Write::Append(batch)) => {
                self.number = batch.next();
                self.at += batch.frames.len() as u64;
                self.resumed = self.resumed.filter(|resumed| *resumed >= self.at);
            }
            (Err(StoreError::Stale | StoreError::Ended), _) => {
                // Another process drives the run, and the events until this one resumes it are void.
                self.tag = None;
                let resumed = self.resumed.take().filter(|resumed| *resumed >= self.at);
                if let Some(resumed) = resumed {
                    self.begins.push_front(resumed);
                }
            }
            (Err(error), _) => {
                // The store may have lost the log.
                self.is_begun &= !matches!(error, StoreError::NotFound);
                return Err(error);
            }
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
    loop {
        sleep(COLLECT).await;
        let Some(write) = next(&log) else {
            idle += 1;
            let mut kept = log.lock();
            let is_written = kept.writer.begins.is_empty() && kept.writer.at == kept.next();
            if idle > IDLE && is_written {
                kept.writer.is_running = false;
                return;
            }
            continue;
        };
        idle = 0;
        let written = match &write {
            Write::Begin(tag, since) => begin(&*store, &key, (tag, *since)).await,
            Write::Append(batch) => call(|| store.append_events(key.clone(), batch.clone())).await,
        };
        {
            let mut kept = log.lock();
            let Err(error) = kept.writer.settle(&write, written) else {
                failures = 0;
                continue;
            };
            // The first failure, and about one a minute.
            if failures % 60 == 0 {
                tracing::warn!(error = ?error, "events of a run are not written to their store");
            }
            // The memory of a conversation that is not kept any more must not depend on the store.
            if kept.is_evicted {
                return;
            }
        }
        failures += 1;
        sleep(PAUSE).await;
    }
}

/// Begins a log when readers had the time to read the end of the one that it replaces.
async fn begin(
    store: &dyn EventStore,
    key: &EventKey,
    (tag, since): (&Str, SystemTime),
) -> Result<(), StoreError> {
    // Another process may be about to write that end.
    sleep(COLLECT).await;
    let replaced = call(|| store.read_events(key.clone(), u64::MAX)).await?;
    if let Some(page) = replaced.filter(|page| page.tag != *tag && page.next > 1) {
        sleep(SUCCEED.saturating_sub(page.idle)).await;
    }
    call(|| store.begin_events(key.clone(), tag.clone(), since)).await
}

/// The next write, if there is one.
fn next(log: &Log) -> Option<Write> {
    let mut kept = log.lock();
    let (first, end) = (kept.first, kept.next());
    let writer = &mut kept.writer;
    // The events that are not kept any more are missing in the log.
    let skipped = first.saturating_sub(writer.at);
    writer.at += skipped;
    writer.number += skipped;
    while let Some(begin) = writer.begins.front().filter(|begin| **begin <= writer.at) {
        writer.number = 1 + writer.at - begin;
        let environment = Environment::system();
        writer.tag = Some((environment.ids().next("log"), environment.clock().now()));
        (writer.is_begun, writer.resumed) = (false, None);
        writer.begins.pop_front();
    }
    let until = writer.begins.front().map_or(end, |begin| end.min(*begin));
    let Some((tag, since)) = writer.tag.clone() else {
        writer.at = until;
        return None;
    };
    if !writer.is_begun {
        return Some(Write::Begin(tag, since));
    }
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
    (!frames.is_empty()).then(|| Write::Append(EventBatch::new(tag, number, frames)))
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
    use super::{
        super::{Attached, MAX_THREADS, Publisher, RunEvents},
        EventBatch, EventKey, EventPage, EventStore, Handle, StoreError, Str, Tenant, ThreadId,
    };
    use concentric_core::{Event, store::StoreFuture};
    use concentric_store::MemoryStore;
    use std::time::{Duration, SystemTime};
    use tokio::time::{sleep, timeout};

    const TICK: Duration = Duration::from_millis(200);
    const SECOND: Duration = Duration::from_secs(1);

    async fn read(consumer: &mut Attached, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(consumer.next().await.unwrap());
        }
        events
    }

    async fn reads_nothing(consumer: &mut Attached) -> bool {
        timeout(TICK, consumer.next()).await.is_err()
    }

    fn texts(texts: &[&str]) -> Vec<Event> {
        let event = |text: &&str| match *text {
            "reset" => Event::Reset,
            text => Event::text(text.to_owned()),
        };
        texts.iter().map(event).collect()
    }

    fn publish(run: &Publisher, all: &[&str]) {
        for event in texts(all) {
            run.publish(event);
        }
    }

    fn begin(events: &RunEvents, part: u8) -> Publisher {
        let run = events.drive("t", [part; 16]);
        run.begin();
        run
    }

    fn resume(events: &RunEvents, part: u8) -> Publisher {
        let run = events.drive("t", [part; 16]);
        run.resume();
        run
    }

    #[tokio::test(start_paused = true)]
    async fn consumers_of_any_process_receive_the_events_of_a_run() {
        let store = MemoryStore::new();
        let process = || RunEvents::shared(store.clone(), "Clerk");
        let (here, there) = (process(), process());
        let mut early = there.attach("t");
        let run = begin(&here, 1);
        publish(&run, &["a", "b"]);
        assert_eq!(read(&mut early, 2).await, texts(&["a", "b"]));
        publish(&run, &["c"]);
        let mut late = there.attach("t");
        let mut of_same = here.attach("t");
        for consumer in [&mut late, &mut of_same] {
            assert_eq!(read(consumer, 3).await, texts(&["a", "b", "c"]));
        }
        assert_eq!(read(&mut early, 1).await, texts(&["c"]));
        // A later run, after a while.
        sleep(60 * SECOND).await;
        let run = begin(&here, 2);
        publish(&run, &["d"]);
        for consumer in [&mut early, &mut late] {
            assert_eq!(read(consumer, 1).await, texts(&["d"]));
            assert_eq!(consumer.missed(), 0);
        }
        assert_eq!(read(&mut there.attach("t"), 1).await, texts(&["d"]));
        // Two runs in one batch.
        publish(&run, &["e"]);
        publish(&begin(&here, 3), &["f"]);
        assert_eq!(read(&mut late, 2).await, texts(&["e", "f"]));
        for mut other in [
            there.attach("u"),
            RunEvents::shared(store.clone(), "Other").attach("t"),
        ] {
            assert!(reads_nothing(&mut other).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_continues_in_a_process_that_takes_it_over() {
        let store = MemoryStore::new();
        let process = || RunEvents::shared(store.clone(), "Clerk");
        let [first, second, third] = [process(), process(), process()];
        let mut early = third.attach("t");
        let of_first = begin(&first, 1);
        publish(&of_first, &["a", "b"]);
        assert_eq!(read(&mut early, 2).await, texts(&["a", "b"]));
        // The step that `b` belongs to is made again.
        let of_second = resume(&second, 1);
        publish(&of_second, &["reset", "b"]);
        assert_eq!(read(&mut early, 2).await, texts(&["reset", "b"]));
        // The first process does not know it, and writes nothing.
        publish(&of_first, &["void"]);
        sleep(TICK).await;
        publish(&of_first, &["void"]);
        publish(&of_second, &["c"]);
        assert_eq!(read(&mut early, 1).await, texts(&["c"]));
        let mut late = third.attach("t");
        assert_eq!(read(&mut late, 3).await, texts(&["reset", "b", "c"]));
        // Within a process, a further attempt continues the log.
        publish(&resume(&second, 1), &["reset", "d"]);
        let mut late = third.attach("t");
        assert_eq!(
            read(&mut late, 5).await,
            texts(&["reset", "b", "c", "reset", "d"])
        );
        // The first process takes the run back.
        publish(&resume(&first, 1), &["reset", "e"]);
        assert_eq!(
            read(&mut early, 4).await,
            texts(&["reset", "d", "reset", "e"])
        );
        // The second one does not know that yet.
        publish(&resume(&second, 1), &["reset", "f"]);
        assert_eq!(read(&mut early, 2).await, texts(&["reset", "f"]));
        assert_eq!(early.missed(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_without_events_replaces_the_previous_one() {
        let store = MemoryStore::new();
        let process = || RunEvents::shared(store.clone(), "Clerk");
        let [first, second, third] = [process(), process(), process()];
        let run = begin(&second, 1);
        publish(&run, &["a"]);
        sleep(SECOND).await;
        let mut early = third.attach("t");
        // The end of a run is read, although the next one begins at once.
        publish(&run, &["end"]);
        let of_first = begin(&first, 2);
        assert_eq!(read(&mut early, 2).await, texts(&["a", "end"]));
        sleep(SECOND).await;
        let mut late = third.attach("t");
        assert!(reads_nothing(&mut late).await);
        // It died in the first call of the model. The second process knows the log of the previous run.
        drop(of_first);
        publish(&resume(&second, 2), &["reset", "b"]);
        for consumer in [&mut early, &mut late] {
            assert_eq!(read(consumer, 2).await, texts(&["reset", "b"]));
        }
        let mut late = third.attach("t");
        assert_eq!(read(&mut late, 2).await, texts(&["reset", "b"]));
        assert!(reads_nothing(&mut late).await);
        // A run whose process died before it had begun it in the store.
        publish(&resume(&second, 3), &["reset", "c"]);
        sleep(SECOND).await;
        let mut late = third.attach("t");
        assert_eq!(read(&mut late, 2).await, texts(&["reset", "c"]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_begins_after_a_pause() {
        let store = MemoryStore::new();
        let events = RunEvents::shared(store.clone(), "Clerk");
        publish(&begin(&events, 1), &["a"]);
        for wait in 0..40 {
            // Around the end of the task.
            sleep(Duration::from_millis(5_000 + 10 * wait)).await;
            let run = begin(&events, 2);
            sleep(SECOND).await;
            let mut consumer = events.attach("t");
            assert!(reads_nothing(&mut consumer).await, "{wait}");
            publish(&run, &["b"]);
            assert_eq!(read(&mut consumer, 1).await, texts(&["b"]));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_only_replays_leaves_the_log() {
        let store = MemoryStore::new();
        let process = || RunEvents::shared(store.clone(), "Clerk");
        let [first, second, third] = [process(), process(), process()];
        publish(&begin(&first, 1), &["a", "interrupted"]);
        sleep(SECOND).await;
        let replayed = second.drive("t", [1; 16]);
        sleep(SECOND).await;
        let mut consumer = third.attach("t");
        assert_eq!(read(&mut consumer, 2).await, texts(&["a", "interrupted"]));
        // The replies arrive: another part of the run.
        publish(&begin(&second, 2), &["b"]);
        drop(replayed);
        assert_eq!(read(&mut consumer, 1).await, texts(&["b"]));
        assert_eq!(read(&mut third.attach("t"), 1).await, texts(&["b"]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_driven_run_is_written_beside_many_conversations() {
        let store = MemoryStore::new();
        let events = RunEvents::shared(store.clone(), "Clerk");
        let run = begin(&events, 1);
        publish(&run, &["a"]);
        let mut consumer = events.attach("t");
        assert_eq!(read(&mut consumer, 1).await, texts(&["a"]));
        for at in 0..=MAX_THREADS {
            events.drive(&at.to_string(), [2; 16]).begin();
        }
        publish(&run, &["b"]);
        assert_eq!(read(&mut consumer, 1).await, texts(&["b"]));
        // One that is not driven any more is written to its end.
        publish(&run, &["c"]);
        drop(run);
        for at in 0..=MAX_THREADS {
            events.drive(&at.to_string(), [3; 16]).begin();
        }
        assert!(!events.lock().logs.contains_key("t"));
        assert_eq!(read(&mut consumer, 1).await, texts(&["c"]));
        assert_eq!(consumer.missed(), 0);
    }

    /// A store whose server is down.
    struct Down;

    fn down<T>() -> StoreFuture<T> {
        Box::pin(async { Err(StoreError::failed("down")) })
    }

    impl EventStore for Down {
        fn begin_events(&self, _: EventKey, _: Str, _: SystemTime) -> StoreFuture<()> {
            down()
        }

        fn append_events(&self, _: EventKey, _: EventBatch) -> StoreFuture<()> {
            down()
        }

        fn read_events(&self, _: EventKey, _: u64) -> StoreFuture<Option<EventPage>> {
            down()
        }

        fn newest_events(&self, _: Tenant, _: ThreadId, _: Str) -> StoreFuture<Option<Str>> {
            down()
        }

        fn remove_events(
            &self,
            _: Tenant,
            _: ThreadId,
            _: Option<Str>,
            _: SystemTime,
        ) -> StoreFuture<()> {
            down()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_of_a_failing_store_are_bounded() {
        let events = RunEvents::shared(Down, "Clerk");
        let log = |at: usize| {
            let run = events.drive(&at.to_string(), [1; 16]);
            run.begin();
            publish(&run, &["a"]);
        };
        for at in 0..3 * MAX_THREADS {
            log(at);
        }
        sleep(5 * SECOND).await;
        assert_eq!(Handle::current().metrics().num_alive_tasks(), MAX_THREADS);
    }
}
