use super::{Kept, MemoryStore};
use crate::{
    Options,
    events::{PAGE, check},
    rules::end_of,
};
use concentric_core::{
    Str, ThreadId,
    store::{EventBatch, EventKey, EventPage, EventStore, StoreError, StoreFuture, Tenant},
};
use std::{collections::VecDeque, time::SystemTime};

/// The events of a run.
pub(super) struct Log {
    // `None` if the log was removed while it was written.
    tag: Option<Str>,
    pub(super) until: SystemTime,
    at: SystemTime,
    // The order in which the logs began.
    serial: u64,
    // What was written together, without gaps.
    batches: VecDeque<EventBatch>,
    next: u64,
    bytes: usize,
    is_ended: bool,
}

impl Log {
    /// The number of the first event that is kept.
    fn first(&self) -> u64 {
        self.batches.front().map_or(self.next, |batch| batch.first)
    }

    fn append(&mut self, mut batch: EventBatch, options: &Options) -> Result<(), StoreError> {
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
            self.batches.push_back(batch);
        }
        let events = u64::try_from(options.max_log_events).unwrap_or(u64::MAX);
        while self.batches.len() > 1
            && (self.next - self.first() > events || self.bytes > options.max_log_bytes)
        {
            let oldest = self.batches.pop_front();
            self.bytes -= oldest.map_or(0, |batch| batch.bytes());
        }
        Ok(())
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
            .flat_map(|it| (it.first..).zip(&it.frames))
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

impl Kept {
    /// Removes logs. Those that are being written stay without their events, so that their writers do not begin them
    /// again.
    pub(super) fn remove_logs(&mut self, now: SystemTime, is_gone: impl Fn(&EventKey) -> bool) {
        self.logs.retain(|key, log| {
            if !is_gone(key) {
                return true;
            }
            (log.tag, log.bytes) = (None, 0);
            log.batches.clear();
            !log.is_ended && log.until > now
        });
    }
}

impl EventStore for MemoryStore {
    fn begin_events(&self, key: EventKey, tag: Str) -> StoreFuture<()> {
        let options = self.options.clone();
        self.work(move |kept| {
            let now = options.now();
            kept.logs.retain(|_, log| log.until > now);
            if kept
                .logs
                .get(&key)
                .is_some_and(|log| log.tag.as_ref() == Some(&tag))
            {
                return Ok(());
            }
            let log = Log {
                tag: Some(tag),
                until: end_of(now, options.keep_logs),
                at: now,
                serial: kept.count(),
                batches: VecDeque::new(),
                next: 1,
                bytes: 0,
                is_ended: false,
            };
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
            log.append(batch, &options)?;
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
    ) -> StoreFuture<()> {
        let now = self.options.now();
        self.work(move |kept| {
            kept.remove_logs(now, |key| {
                let is_named = name.as_ref().is_none_or(|name| key.name == *name);
                key.tenant == tenant && key.thread == thread && is_named
            });
            Ok(())
        })
    }
}
