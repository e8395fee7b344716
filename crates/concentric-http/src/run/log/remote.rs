//! Reads the events of a run that another process drives.

use std::{
    collections::{HashMap, hash_map::Entry},
    future::Future,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use concentric_core::{
    Environment, Str, ThreadId,
    context::Sleep,
    panic::catch,
    store::{EventKey, EventPage, StoreError, StoreFuture, Tenant},
};

use super::{
    super::Cut,
    hub::Hub,
    run_log::{After, Format, JOINED, READERS, Unreadable},
    share::{DEAD, STALLED, Shared, call, key},
};
use crate::store_call::{not_answered, panicked, within};

/// The time between two reads of a log that has no new events.
const POLL: Duration = Duration::from_millis(100);

/// The time for which a client that joins a run waits for the store.
const JOIN: Duration = Duration::from_secs(2);

/// The numbers of the readers of logs in the store.
#[derive(Default)]
pub(crate) struct Readers(Mutex<HashMap<EventKey, usize>>);

impl Readers {
    fn lock(&self) -> MutexGuard<'_, HashMap<EventKey, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a reader, unless there is the maximum number.
    fn enter(&self, key: &EventKey) -> bool {
        let mut readers = self.lock();
        let count = readers.entry(key.clone()).or_default();
        let has_place = *count < READERS;
        *count += usize::from(has_place);
        has_place
    }

    fn leave(&self, key: &EventKey) {
        if let Entry::Occupied(mut count) = self.lock().entry(key.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// A log in the store.
pub(crate) struct Found {
    pub(crate) tag: Str,
    pub(crate) is_ended: bool,
    pub(crate) reader: Result<Box<Remote>, Unreadable>,
}

impl Hub {
    /// Returns the log of a run in the store, and a reader of the events after `after`; `None` if there is none, or
    /// its writer is dead.
    ///
    /// # Errors
    ///
    /// The store fails, or does not answer in 2 seconds. One warning a minute is logged.
    pub(crate) async fn find_shared(
        &self,
        tenant: &Tenant,
        thread: &str,
        run: &str,
        format: &'static Format,
        after: &After,
    ) -> Result<Option<Found>, StoreError> {
        self.join(self.find_in_store(tenant, thread, run, format, after))
            .await
    }

    /// Waits for what a client that joins a run waits for.
    async fn join<T>(
        &self,
        joined: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let joined = within(&self.environment, JOIN, joined).await;
        let joined = joined.unwrap_or_else(|| Err(not_answered()));
        if let (Err(error), Some(shared)) = (&joined, &self.shared) {
            let now = self.environment.clock().monotonic();
            shared.warn(now, error, "events of runs are not read from their store");
        }
        joined
    }

    async fn find_in_store(
        &self,
        tenant: &Tenant,
        thread: &str,
        run: &str,
        format: &'static Format,
        after: &After,
    ) -> Result<Option<Found>, StoreError> {
        let Some(shared) = &self.shared else {
            return Ok(None);
        };
        let key = key(&(tenant.0.clone(), thread.into(), run.into()), format);
        let read = |after| {
            let key = key.clone();
            call(&self.environment, move || {
                shared.store.read_events(key, after)
            })
        };
        let mut number = after.number;
        let mut page = read(number).await?;
        // The events of another log have other numbers.
        let is_other = |page: &EventPage| after.tag.as_ref().is_some_and(|tag| *tag != page.tag);
        if number > 0 && page.as_ref().is_some_and(is_other) {
            number = 0;
            page = read(number).await?;
        }
        let is_alive = |page: &EventPage| page.is_ended || page.idle < DEAD;
        let Some(page) = page.filter(is_alive) else {
            return Ok(None);
        };
        let next = number.saturating_add(1);
        let (tag, is_ended) = (page.tag.clone(), page.is_ended);
        let reader = if next > page.next || next < page.first {
            Err(Unreadable::Gone)
        } else if next == page.next && page.is_ended {
            Err(Unreadable::Over)
        } else if !shared.readers.enter(&key) {
            Err(Unreadable::Busy)
        } else {
            let mut reader = Remote {
                shared: Arc::clone(shared),
                environment: self.environment.clone(),
                key,
                format,
                tag: page.tag.clone(),
                next,
                frames: Vec::new(),
                is_over: false,
                answered: self.environment.clock().monotonic(),
                state: State::Due,
            };
            match reader.receive(page) {
                Ok(()) => Ok(Box::new(reader)),
                Err(_) => Err(Unreadable::Gone),
            }
        };
        Ok(Some(Found {
            tag,
            is_ended,
            reader,
        }))
    }

    /// Returns the id of the newest live run of a thread in the store.
    ///
    /// # Errors
    ///
    /// As of [`find_shared`](Self::find_shared).
    pub(crate) async fn newest_shared(
        &self,
        tenant: &Tenant,
        thread: &str,
        format: &Format,
    ) -> Result<Option<Str>, StoreError> {
        let Some(shared) = &self.shared else {
            return Ok(None);
        };
        let prefix = format!("{}:", format.name);
        let name = call(&self.environment, || {
            let thread = ThreadId::new(thread);
            shared
                .store
                .newest_events(tenant.clone(), thread, prefix.clone().into())
        });
        let name = self.join(name).await?;
        Ok(name.and_then(|name| Some(name.strip_prefix(&prefix)?.into())))
    }

    /// Removes the logs of a thread from the store.
    pub(crate) async fn remove_shared(
        &self,
        tenant: &Tenant,
        thread: &str,
    ) -> Result<(), StoreError> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let now = self.environment.clock().now();
        call(&self.environment, || {
            let thread = ThreadId::new(thread);
            shared
                .store
                .remove_events(tenant.clone(), thread, None, now)
        })
        .await
    }
}

/// A reader of a log in the store.
pub(crate) struct Remote {
    shared: Arc<Shared>,
    environment: Environment,
    key: EventKey,
    format: &'static Format,
    tag: Str,
    // The number of the next event that is read.
    next: u64,
    // What was read, in reverse order.
    frames: Vec<Bytes>,
    // Whether the log has no more events.
    is_over: bool,
    // The monotonic time of the last answer of the store.
    answered: Duration,
    state: State,
}

enum State {
    /// The next read begins.
    Due,
    Waiting(Sleep),
    Reading(StoreFuture<Option<EventPage>>, Option<Sleep>),
}

impl Remote {
    pub(crate) const fn format(&self) -> &'static Format {
        self.format
    }

    /// Returns the next events; `None` at the end of the log.
    ///
    /// # Errors
    ///
    /// The events are not read further.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Cut>> {
        loop {
            if let Some(frames) = self.take() {
                return Poll::Ready(Ok(Some(frames)));
            }
            if self.is_over {
                return Poll::Ready(Ok(None));
            }
            let read = match &mut self.state {
                State::Due => {
                    let (store, after) = (&self.shared.store, self.next - 1);
                    match catch(|| store.read_events(self.key.clone(), after)) {
                        Ok(read) => {
                            self.state = State::Reading(read, None);
                            continue;
                        }
                        Err(panic) => Err(panicked(&panic)),
                    }
                }
                State::Waiting(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    self.state = State::Due;
                    continue;
                }
                State::Reading(read, stalled) => match catch(|| read.as_mut().poll(cx)) {
                    Ok(Poll::Ready(read)) => read,
                    Ok(Poll::Pending) => {
                        let clock = self.environment.clock();
                        let stalled = stalled.get_or_insert_with(|| clock.sleep(STALLED));
                        ready!(stalled.as_mut().poll(cx));
                        Err(not_answered())
                    }
                    Err(panic) => Err(panicked(&panic)),
                },
            };
            let clock = self.environment.clock();
            let now = clock.monotonic();
            let mut pause = POLL;
            match read {
                Ok(Some(page)) => {
                    self.answered = now;
                    self.receive(page)?;
                    // The rest of a log that was longer than a page.
                    if !matches!(self.state, State::Waiting(_)) {
                        continue;
                    }
                }
                Ok(None) => return Poll::Ready(Err(Cut::Lost)),
                Err(error) => {
                    tracing::debug!(error = ?error, "the store of events failed");
                    if self.answered.saturating_add(DEAD) <= now {
                        return Poll::Ready(Err(Cut::Lost));
                    }
                    pause = POLL.saturating_mul(5);
                }
            }
            self.state = State::Waiting(self.environment.clock().sleep(pause));
        }
    }

    /// Receives a page, after which the next read follows at once or later.
    fn receive(&mut self, page: EventPage) -> Result<(), Cut> {
        if page.tag != self.tag {
            return Err(Cut::Resumed);
        }
        // A page has at least one event, unless the log has none.
        if page.first > self.next || page.frames.is_empty() && self.next < page.next {
            return Err(Cut::Gap);
        }
        if page.frames.is_empty() && !page.is_ended && page.idle >= DEAD {
            return Err(Cut::Lost);
        }
        self.next += page.frames.len() as u64;
        self.frames = page.frames;
        self.frames.reverse();
        self.is_over = page.is_ended && self.next >= page.next;
        self.state = match self.next < page.next {
            true => State::Due,
            false => State::Waiting(self.environment.clock().sleep(POLL)),
        };
        Ok(())
    }

    /// Takes what was read, up to the size of a chunk.
    fn take(&mut self) -> Option<Bytes> {
        let first = self.frames.pop()?;
        let fits = |joined: usize, next: &Bytes| joined + next.len() <= JOINED;
        if !self
            .frames
            .last()
            .is_some_and(|next| fits(first.len(), next))
        {
            return Some(first);
        }
        let mut joined = BytesMut::from(&*first);
        while let Some(next) = self.frames.last().filter(|next| fits(joined.len(), next)) {
            joined.extend_from_slice(next);
            self.frames.pop();
        }
        Some(joined.freeze())
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.shared.readers.leave(&self.key);
        // A future of the store may panic when it is dropped.
        let _ = catch(|| drop(mem::replace(&mut self.state, State::Due)));
    }
}
