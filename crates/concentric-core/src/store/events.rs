//! Logs of the events of runs, which processes share.

use super::{StoreFuture, Tenant, shared};
use bytes::Bytes;
use concentric_proto::{Str, ThreadId};
use std::time::{Duration, SystemTime};

shared! {
    /// Stores the events of runs, so that a client of any process reads them.
    ///
    /// One process writes a log, and any process reads it. A log keeps the last events up to the limits of the store,
    /// for some time after the last write. Events are numbered from 1, and those that are kept follow each other.
    pub trait EventStore: Send + Sync + 'static {
        /// Begins a log, in place of the one with this key that another process has begun, whose further events are
        /// refused. `tag` is a random text that distinguishes the two; with the tag of the current log, nothing is
        /// changed.
        ///
        /// `since` is the time at which the writer took over the run, by its clock, and the same when the call is
        /// repeated: of two logs, the later one stays, in whatever order the calls arrive.
        ///
        /// # Errors
        ///
        /// [`StoreError::Stale`](super::StoreError::Stale) if there is a log with a later time, or the log was
        /// [removed](Self::remove_events).
        fn begin_events(&self, key: EventKey, tag: Str, since: SystemTime) -> StoreFuture<()>;

        /// Appends events. Those that the log already has are not appended again, and a batch without events only
        /// shows that the writer is alive.
        ///
        /// If events are missing before the batch, the log forgets the earlier ones.
        ///
        /// # Errors
        ///
        /// [`StoreError::NotFound`](super::StoreError::NotFound) if there is no log with this key,
        /// [`StoreError::Stale`](super::StoreError::Stale) if it has another tag,
        /// [`StoreError::Ended`](super::StoreError::Ended) if it has ended without these events, and
        /// [`StoreError::Unwritable`](super::StoreError::Unwritable) if the batch is too large.
        fn append_events(&self, key: EventKey, batch: EventBatch) -> StoreFuture<()>;

        /// Returns the events after the one with the number `after`, as many as fit into about 1 MiB but at least
        /// one, if there is one; `None` if there is no log.
        fn read_events(&self, key: EventKey, after: u64) -> StoreFuture<Option<EventPage>>;

        /// Returns the name of the log that was begun last of those of a conversation that have not ended, and whose
        /// names begin with `prefix`; `None` if there is none.
        fn newest_events(
            &self,
            tenant: Tenant,
            thread: ThreadId,
            prefix: Str,
        ) -> StoreFuture<Option<Str>>;

        /// Removes all logs of a conversation, or one log unless its writer took over its run after `until`.
        ///
        /// For an hour, later events of the writers are refused ([`StoreError::Stale`](super::StoreError::Stale)), and so
        /// are begins of writers that took over at the time `until` or before.
        fn remove_events(
            &self,
            tenant: Tenant,
            thread: ThreadId,
            name: Option<Str>,
            until: SystemTime,
        ) -> StoreFuture<()>;
    }
}

/// The key of a log in an [`EventStore`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct EventKey {
    /// The owner of the log.
    pub tenant: Tenant,
    /// The conversation to which the run belongs, and with which the log is deleted; empty if there is none.
    pub thread: ThreadId,
    /// The name of the log, such as that of a protocol and the id of the run.
    pub name: Str,
}

impl EventKey {
    /// Creates a key.
    pub fn new(tenant: Tenant, thread: ThreadId, name: impl Into<Str>) -> Self {
        Self {
            tenant,
            thread,
            name: name.into(),
        }
    }
}

/// Events that are [appended](EventStore::append_events) to a log together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventBatch {
    /// The tag of the log.
    pub tag: Str,
    /// The number of the first event of the batch, or of the next one if the batch is empty; at least 1.
    pub first: u64,
    /// The events, in any form.
    pub frames: Vec<Bytes>,
    /// Whether the log ends with the batch.
    pub is_end: bool,
}

impl EventBatch {
    /// Creates a batch. The log does not end with it.
    pub const fn new(tag: Str, first: u64, frames: Vec<Bytes>) -> Self {
        Self {
            tag,
            first,
            frames,
            is_end: false,
        }
    }

    /// Sets whether the log ends with the batch; `false` by default.
    #[must_use]
    pub const fn end(mut self, is_end: bool) -> Self {
        self.is_end = is_end;
        self
    }

    /// The number of the event after the batch.
    pub const fn next(&self) -> u64 {
        self.first.saturating_add(self.frames.len() as u64)
    }

    /// The size of the events in bytes.
    pub fn bytes(&self) -> usize {
        self.frames.iter().map(Bytes::len).sum()
    }
}

/// Consecutive events that were [read](EventStore::read_events) from a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventPage {
    /// The tag of the log.
    pub tag: Str,
    /// The number of the first event of the page, or of the next one of the log if the page is empty. If it is more
    /// than that of the event that was asked for, those in between are not kept.
    pub first: u64,
    /// The events.
    pub frames: Vec<Bytes>,
    /// The number of the event that the log has next.
    pub next: u64,
    /// Whether the log has ended with the event before `next`.
    pub is_ended: bool,
    /// The time since the last write, by the clock of the store.
    pub idle: Duration,
}

impl EventPage {
    /// Creates a page of a log with this tag that has no events.
    pub fn new(tag: Str) -> Self {
        Self {
            tag,
            first: 1,
            next: 1,
            ..Self::default()
        }
    }
}
