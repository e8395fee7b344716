use super::{Kept, MemoryStore};
use crate::{
    Options,
    events::{BEHIND, PAGE, check},
    rules::{REMEMBER_DELETED, end_of},
};
use concentric_core::{
    Str, ThreadId,
    store::{EventBatch, EventKey, EventPage, EventStore, StoreError, StoreFuture, Tenant},
};
use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, SystemTime},
};

/// The events of a run.
pub(super) struct Log {
    // `None` if the log was removed.
    tag: Option<Str>,
    since: SystemTime,
    pub(super) until: SystemTime,
    at: SystemTime,
    // The order in which the logs began.
    serial: u64,
    // What was written together, without gaps, and the times of the writes.
    batches: VecDeque<(SystemTime, EventBatch)>,
    next: u64,
    bytes: usize,
    is_ended: bool,
}

impl Log {
    /// A log without events.
    fn new(tag: Option<Str>, since: SystemTime, now: SystemTime, keep: Duration) -> Self {
        Self {
            tag,
            since,
            until: end_of(now, keep),
            at: now,
            serial: 0,
            batches: VecDeque::new(),
            next: 1,
            bytes: 0,
            is_ended: false,
        }
    }

    /// The number of the first event that is kept.
    fn first(&self) -> u64 {
        self.batches
            .front()
            .map_or(self.next, |(_, batch)| batch.first)
    }

    fn append(
        &mut self,
        mut batch: EventBatch,
        options: &Options,
        now: SystemTime,
    ) -> Result<(), StoreError> {
        if self.tag.as_ref() != Some(&batch.tag) {
            return Err(StoreError::Stale);
        }
        if self.is_ended {
            let is_known = batch.next() <= self.next;
            return is_known.then_some(()).ok_or(StoreError::Ended);
        }
        if batch.first > self.next {
            self.batches.clear();
            (self.bytes, self.next) = (0, batch.first);
        }
        self.is_ended = batch.is_end;
        if batch.next() > self.next {
            let known = usize::try_from(self.next - batch.first).unwrap_or(usize::MAX);
            batch.frames.drain(..known);
            batch.first = self.next;
            self.next = batch.next();
            self.bytes += batch.bytes();
            self.batches.push_back((now, batch));
        }
        let events = u64::try_from(options.max_log_events).unwrap_or(u64::MAX);
        while self.batches.len() > 1 {
            let exceeds = |(of_events, of_bytes): (u64, usize)| {
                self.next - self.first() > events.saturating_mul(of_events)
                    || self.bytes > options.max_log_bytes.saturating_mul(of_bytes)
            };
            let is_new = self
                .batches
                .front()
                .is_some_and(|(at, _)| end_of(*at, BEHIND.0) > now);
            if !exceeds((1, 1)) || (is_new && !exceeds(BEHIND.1)) {
                break;
            }
            let oldest = self.batches.pop_front();
            self.bytes -= oldest.map_or(0, |(_, batch)| batch.bytes());
        }
        Ok(())
    }

    /// Removes the events. The log stays, so that its writer does not begin it again.
    fn remove(&mut self, until: SystemTime, now: SystemTime) {
        *self = Self::new(None, self.since.max(until), now, REMEMBER_DELETED);
    }

    /// The events from `wanted` on.
    fn page(&self, tag: Str, wanted: u64, now: SystemTime) -> EventPage {
        let mut page = EventPage::new(tag);
        page.first = wanted.clamp(self.first(), self.next);
        page.next = self.next;
        page.is_ended = self.is_ended;
        page.idle = now.duration_since(self.at).unwrap_or_default();
        let mut bytes = 0;
        for (n, frame) in self
            .batches
            .iter()
            .flat_map(|(_, it)| (it.first..).zip(&it.frames))
        {
            if n < page.first {
                continue;
            }
            if !page.frames.is_empty() && bytes + frame.len() > PAGE {
                break;
            }
            bytes += frame.len();
            page.frames.push(frame.clone());
        }
        page
    }
}

/// The tenants and the conversations whose logs were removed, the time of that, and the time until which begins of
/// earlier logs are refused.
pub(super) type Removed = HashMap<(Tenant, Option<ThreadId>), (SystemTime, SystemTime)>;

impl Kept {
    /// Removes the logs of a tenant or of one of its conversations, and refuses those that were to begin until `until`.
    pub(super) fn remove_logs(
        &mut self,
        tenant: &Tenant,
        thread: Option<&ThreadId>,
        until: SystemTime,
        now: SystemTime,
    ) {
        let is_of = |key: &EventKey| {
            key.tenant == *tenant && thread.is_none_or(|thread| key.thread == *thread)
        };
        for (_, log) in self.logs.iter_mut().filter(|(key, _)| is_of(key)) {
            log.remove(until, now);
        }
        let of = (tenant.clone(), thread.cloned());
        let removed = self.removed_logs.entry(of).or_insert((until, now));
        *removed = (removed.0.max(until), end_of(now, REMEMBER_DELETED));
    }

    pub(super) fn expire_logs(&mut self, now: SystemTime) {
        self.logs.retain(|_, log| log.until > now);
        self.removed_logs.retain(|_, (_, until)| *until > now);
    }

    /// Whether a log that was begun at this time was removed with others.
    fn is_removed(&self, key: &EventKey, since: SystemTime) -> bool {
        let of = [None, Some(key.thread.clone())];
        let of = of.map(|thread| self.removed_logs.get(&(key.tenant.clone(), thread)));
        of.into_iter()
            .flatten()
            .any(|(removed, _)| since <= *removed)
    }
}

impl EventStore for MemoryStore {
    fn begin_events(&self, key: EventKey, tag: Str, since: SystemTime) -> StoreFuture<()> {
        let options = self.options.clone();
        self.work(move |kept| {
            let now = options.now();
            kept.expire_logs(now);
            if kept.is_removed(&key, since) {
                return Err(StoreError::Stale);
            }
            if let Some(log) = kept.logs.get(&key) {
                if log.tag.as_ref() == Some(&tag) {
                    return Ok(());
                }
                if log.since > since || log.tag.is_none() && log.since == since {
                    return Err(StoreError::Stale);
                }
            }
            let mut log = Log::new(Some(tag), since, now, options.keep_logs);
            log.serial = kept.count();
            kept.logs.insert(key, log);
            Ok(())
        })
    }

    fn append_events(&self, key: EventKey, batch: EventBatch) -> StoreFuture<()> {
        let options = self.options.clone();
        self.work(move |kept| {
            check(&batch, &options)?;
            let now = options.now();
            let log = kept.logs.get_mut(&key).filter(|log| log.until > now);
            let log = log.ok_or(StoreError::NotFound)?;
            log.append(batch, &options, now)?;
            (log.at, log.until) = (now, end_of(now, options.keep_logs));
            Ok(())
        })
    }

    fn read_events(&self, key: EventKey, after: u64) -> StoreFuture<Option<EventPage>> {
        let options = self.options.clone();
        self.work(move |kept| {
            let now = options.now();
            let log = kept.logs.get(&key).filter(|log| log.until > now);
            let tagged = log.and_then(|log| Some((log, log.tag.clone()?)));
            Ok(tagged.map(|(log, tag)| log.page(tag, after.saturating_add(1), now)))
        })
    }

    fn newest_events(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        prefix: Str,
    ) -> StoreFuture<Option<Str>> {
        let options = self.options.clone();
        self.work(move |kept| {
            let now = options.now();
            let logs = kept.logs.iter().filter(|(key, log)| {
                let is_live = log.tag.is_some() && !log.is_ended && log.until > now;
                let is_of = key.tenant == tenant && key.thread == thread;
                is_live && is_of && key.name.starts_with(prefix.as_str())
            });
            let newest = logs.max_by_key(|(_, log)| log.serial);
            Ok(newest.map(|(key, _)| key.name.clone()))
        })
    }

    fn remove_events(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        name: Option<Str>,
        until: SystemTime,
    ) -> StoreFuture<()> {
        let now = self.options.now();
        self.work(move |kept| {
            let Some(name) = name else {
                kept.remove_logs(&tenant, Some(&thread), until, now);
                return Ok(());
            };
            let removed = || Log::new(None, until, now, REMEMBER_DELETED);
            let key = EventKey::new(tenant, thread, name);
            let log = kept.logs.entry(key).or_insert_with(removed);
            if log.since <= until {
                log.remove(until, now);
            }
            Ok(())
        })
    }
}
