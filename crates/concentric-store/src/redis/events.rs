use super::{
    RedisStore,
    db::Repeat,
    unknown,
    values::{Call, Reply, bytes, escape, int, micros, span, text, unescape},
};
use crate::{
    Fault,
    columns::{number, position},
    events::{PAGE, check},
};
use bytes::{Buf, Bytes};
use concentric_core::{
    Str, ThreadId,
    store::{EventBatch, EventKey, EventPage, EventStore, StoreError, StoreFuture, Tenant},
};
use redis::Value;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

/// The size of the length before each event.
const LENGTH: usize = 4;

impl EventStore for RedisStore {
    fn begin_events(&self, key: EventKey, tag: Str, since: SystemTime) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = of_log(&key, "events_begin").text(&tag);
            let call = call.int(span(db.options.keep_logs)).int(micros(since));
            expect_ok(&db.call(call, Repeat::Yes).await?)
        })
    }

    fn append_events(&self, key: EventKey, batch: EventBatch) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let options = &db.options;
            check(&batch, options)?;
            let call = of_log(&key, "events_append")
                .text(&batch.tag)
                .int(span(options.keep_logs))
                .int(position(options.max_log_events))
                .int(position(options.max_log_bytes))
                .int(i64::try_from(batch.first).unwrap_or(i64::MAX))
                .int(position(batch.frames.len()))
                .flag(batch.is_end)
                .owned(encode(&batch.frames));
            expect_ok(&db.call(call, Repeat::Yes).await?)
        })
    }

    fn read_events(&self, key: EventKey, after: u64) -> StoreFuture<Option<EventPage>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = of_log(&key, "events_read")
                .int(i64::try_from(after).unwrap_or(i64::MAX))
                .int(position(PAGE));
            let reply = db.call(call, Repeat::Yes).await?;
            match reply.code()? {
                "ok" => page(reply).map(Some),
                "none" => Ok(None),
                other => Err(unknown(other)),
            }
        })
    }

    fn newest_events(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        prefix: Str,
    ) -> StoreFuture<Option<Str>> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let call = Call::of(&tenant, "events_newest")
                .name(thread.as_str())
                .name(&prefix);
            let reply = db.call(call, Repeat::Yes).await?;
            match reply.code()? {
                "ok" => Ok(Some(unescape(bytes(reply.get(1)?)?)?.into())),
                "none" => Ok(None),
                other => Err(unknown(other)),
            }
        })
    }

    fn remove_events(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        name: Option<Str>,
        until: SystemTime,
    ) -> StoreFuture<()> {
        let db = Arc::clone(&self.db);
        Box::pin(async move {
            let name = name.map(|name| escape(&name));
            loop {
                let call = Call::of(&tenant, "events_remove")
                    .name(thread.as_str())
                    .optional(name.as_deref())
                    .int(micros(until));
                let reply = db.call(call, Repeat::Yes).await?;
                expect_ok(&reply)?;
                if !reply.is(1)? {
                    return Ok(());
                }
            }
        })
    }
}

/// A call for a log.
fn of_log<'a>(key: &'a EventKey, method: &'static str) -> Call<'a> {
    Call::of(&key.tenant, method)
        .name(key.thread.as_str())
        .name(&key.name)
}

fn expect_ok(reply: &Reply) -> Result<(), StoreError> {
    match reply.code()? {
        "ok" => Ok(()),
        "none" => Err(StoreError::NotFound),
        "stale" => Err(StoreError::Stale),
        "ended" => Err(StoreError::Ended),
        other => Err(unknown(other)),
    }
}

/// The events, each after its length.
fn encode(frames: &[Bytes]) -> Vec<u8> {
    let bytes: usize = frames.iter().map(|frame| LENGTH + frame.len()).sum();
    let mut encoded = Vec::with_capacity(bytes);
    for frame in frames {
        // A batch is smaller than 4 GiB, since its size was checked; a server takes at most 512 MiB.
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        encoded.extend_from_slice(&length.to_le_bytes());
        encoded.extend_from_slice(frame);
    }
    encoded
}

fn page(reply: Reply) -> Result<EventPage, StoreError> {
    let corrupt = |why: &str| StoreError::from(Fault::corrupt("the events of a run", why));
    let mut page = EventPage::new(text(reply.get(1)?)?.to_owned().into());
    page.next = reply.number(2)?;
    page.is_ended = reply.is(3)?;
    page.idle = Duration::from_micros(reply.number(4)?);
    page.first = reply.number(5)?;
    let mut values = reply.into_rest(6);
    let mut expected = None;
    while let (Some(first), Some(frames)) = (values.next(), values.next()) {
        let mut n = number(int(&first)?);
        if n > *expected.get_or_insert(page.first) {
            return Err(corrupt("events are missing"));
        }
        let Value::BulkString(frames) = frames else {
            return Err(corrupt("unexpected form"));
        };
        let mut frames = Bytes::from(frames);
        while let Ok(length) = frames.try_get_u32_le() {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > frames.len() {
                return Err(corrupt("an event is too short"));
            }
            let frame = frames.split_to(length);
            if n >= page.first {
                page.frames.push(frame);
            }
            n += 1;
        }
        expected = Some(n);
    }
    Ok(page)
}
