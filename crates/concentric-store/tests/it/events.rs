//! The limits and the retention of the events of runs.

use crate::{
    common::tenant,
    kinds::{Kind, Memory},
};
use bytes::Bytes;
use concentric_core::{
    Str, ThreadId,
    store::{EventBatch, EventKey, EventPage, EventStore, StoreError},
};
use concentric_store::Options;
use concentric_test::ManualClock;
use std::time::{Duration, SystemTime};

const HOUR: Duration = Duration::from_secs(60 * 60);
const BEHIND: Duration = Duration::from_secs(2);

fn key() -> EventKey {
    EventKey::new(tenant("acme"), ThreadId::new("thread"), "run")
}

fn begun() -> SystemTime {
    SystemTime::UNIX_EPOCH + HOUR * 1000
}

async fn append<S: EventStore>(store: &S, first: u64, count: usize) -> Result<(), StoreError> {
    let frame = Bytes::from_static(b"0123456789");
    let batch = EventBatch::new(Str::from("tag"), first, vec![frame; count]);
    store.append_events(key(), batch).await
}

async fn page<S: EventStore>(store: &S) -> Option<EventPage> {
    store.read_events(key(), 0).await.unwrap()
}

/// A store of a kind with these options, and its clock; `None` if its server does not run.
async fn open<K>(options: Options) -> Option<(K::Store, ManualClock)>
where
    K: Kind<Store: EventStore>,
{
    let clock = ManualClock::at(begun());
    let harness = K::is_available().then(|| K::with(options.clock(clock.clone())));
    let store = harness?.await.open().await;
    store
        .begin_events(key(), "tag".into(), begun())
        .await
        .unwrap();
    Some((store, clock))
}

async fn limits<K: Kind<Store: EventStore>>() {
    // Events that were written together are removed together.
    for options in [
        Options::new().max_log_events(10),
        Options::new().max_log_bytes(100),
    ] {
        let Some((store, clock)) = open::<K>(options).await else {
            return;
        };
        for first in (1..=17).step_by(4) {
            append(&store, first, 4).await.unwrap();
            clock.advance(BEHIND);
        }
        append(&store, 21, 0).await.unwrap();
        let read = page(&store).await.unwrap();
        assert_eq!((read.first, read.next, read.frames.len()), (13, 21, 8));
        append(&store, 21, 40).await.unwrap();
        let read = page(&store).await.unwrap();
        assert_eq!((read.first, read.next, read.frames.len()), (21, 61, 40));
    }
    recent::<K>().await;
    let options = Options::new().max_log_events(0).max_state_bytes(100);
    let Some((store, _)) = open::<K>(options).await else {
        return;
    };
    append(&store, 1, 1).await.unwrap();
    append(&store, 2, 10).await.unwrap();
    let error = append(&store, 12, 11).await.unwrap_err();
    assert!(matches!(error, StoreError::Unwritable(_)), "{error:?}");
    let read = page(&store).await.unwrap();
    assert_eq!((read.first, read.next), (2, 12));
}

/// Readers have time for what is written at once.
async fn recent<K: Kind<Store: EventStore>>() {
    for (options, most) in [
        (Options::new().max_log_events(10), 80),
        (Options::new().max_log_bytes(100), 30),
    ] {
        let Some((store, clock)) = open::<K>(options).await else {
            return;
        };
        for first in (1..=most).step_by(10) {
            append(&store, first, 10).await.unwrap();
            let read = page(&store).await.unwrap();
            assert_eq!((read.first, read.next), (1, first + 10));
        }
        append(&store, most + 1, 10).await.unwrap();
        assert_eq!(page(&store).await.unwrap().first, 11);
        clock.advance(BEHIND - Duration::from_millis(1));
        append(&store, most + 11, 0).await.unwrap();
        assert_eq!(page(&store).await.unwrap().first, 11);
        clock.advance(Duration::from_millis(1));
        append(&store, most + 11, 0).await.unwrap();
        assert_eq!(page(&store).await.unwrap().first, most + 1);
    }
}

async fn retention<K: Kind<Store: EventStore>>() {
    let Some((store, clock)) = open::<K>(Options::new()).await else {
        return;
    };
    clock.advance(HOUR - Duration::from_secs(1));
    append(&store, 1, 1).await.unwrap();
    clock.advance(HOUR - Duration::from_secs(1));
    assert_eq!(
        page(&store).await.unwrap().idle,
        HOUR - Duration::from_secs(1)
    );
    clock.advance(Duration::from_secs(1));
    assert_eq!(page(&store).await, None);
    let newest = store.newest_events(tenant("acme"), ThreadId::new("thread"), "".into());
    assert_eq!(newest.await.unwrap(), None);
    let late = append(&store, 2, 1).await.unwrap_err();
    assert!(matches!(late, StoreError::NotFound), "{late:?}");
    // The mark of a log that was removed while it was written expires, too.
    store
        .begin_events(key(), "tag".into(), begun())
        .await
        .unwrap();
    let EventKey { tenant, thread, .. } = key();
    store
        .remove_events(tenant, thread, None, begun())
        .await
        .unwrap();
    let stale = append(&store, 1, 1).await.unwrap_err();
    assert!(matches!(stale, StoreError::Stale), "{stale:?}");
    clock.advance(HOUR);
    let late = append(&store, 1, 1).await.unwrap_err();
    assert!(matches!(late, StoreError::NotFound), "{late:?}");
}

#[tokio::test]
async fn events_in_memory_are_limited() {
    limits::<Memory>().await;
    retention::<Memory>().await;
}

#[cfg(feature = "redis")]
mod redis {
    use super::*;
    use crate::{
        common::redis::{command, connect, direct, list, store},
        kinds::Redis,
    };

    #[tokio::test]
    async fn events_in_redis_are_limited() {
        limits::<Redis<false>>().await;
        retention::<Redis<false>>().await;
    }

    /// The server removes what no process asks for any more.
    #[tokio::test]
    async fn all_keys_of_events_expire() {
        let Some((store, schema)) = store(Options::new().keep_logs(HOUR)).await else {
            return;
        };
        store
            .begin_events(key(), "tag".into(), begun())
            .await
            .unwrap();
        append(&store, 1, 3).await.unwrap();
        let mut database = connect(&direct().unwrap()).await;
        let pattern = format!("{schema}:{{t:*");
        let keys = list(command(&mut database, &["KEYS", &pattern]).await);
        assert_eq!(keys.len(), 5, "{keys:?}");
        for key in keys {
            let left = command(&mut database, &["TTL", &key]).await;
            let ::redis::Value::Int(left) = left else {
                panic!("{left:?}");
            };
            assert!((3500..=3600).contains(&left), "{key}: {left}");
        }
        let EventKey { tenant, thread, .. } = key();
        store
            .remove_events(tenant, thread, None, begun())
            .await
            .unwrap();
        let keys = list(command(&mut database, &["KEYS", &pattern]).await);
        assert_eq!(keys.len(), 2, "{keys:?}");
        for key in keys {
            let left = command(&mut database, &["TTL", &key]).await;
            assert!(matches!(left, ::redis::Value::Int(3500..=3600)), "{key}");
        }
    }

    /// The server evicts the events of a log, and keeps what describes them.
    #[tokio::test]
    async fn evicted_events_are_a_gap() {
        let options = Options::new().max_log_events(10);
        let Some((store, schema)) = store(options).await else {
            return;
        };
        store
            .begin_events(key(), "tag".into(), begun())
            .await
            .unwrap();
        append(&store, 1, 9).await.unwrap();
        let mut database = connect(&direct().unwrap()).await;
        let pattern = format!("{schema}:*:js:*");
        let keys = list(command(&mut database, &["KEYS", &pattern]).await);
        assert_eq!(keys.len(), 1, "{keys:?}");
        command(&mut database, &["DEL", &keys[0]]).await;
        let numbers = async |after| {
            let page = store.read_events(key(), after).await.unwrap().unwrap();
            (page.first, page.next, page.frames.len())
        };
        assert_eq!(numbers(0).await, (10, 10, 0));
        append(&store, 10, 2).await.unwrap();
        for after in [0, 8, 9] {
            assert_eq!(numbers(after).await, (10, 12, 2));
        }
        assert_eq!(numbers(10).await, (11, 12, 1));
        append(&store, 12, 8).await.unwrap();
        assert_eq!(numbers(0).await, (10, 20, 10));
    }

    /// Those that have ended are not examined.
    #[tokio::test]
    async fn a_live_log_is_found_among_many_ended_ones() {
        let Some((store, _)) = store(Options::new()).await else {
            return;
        };
        store
            .begin_events(key(), "tag".into(), begun())
            .await
            .unwrap();
        for n in 0..1100 {
            let mut key = key();
            key.name = format!("ended {n}").into();
            let begin = store.begin_events(key.clone(), "tag".into(), begun());
            begin.await.unwrap();
            let end = EventBatch::new("tag".into(), 1, Vec::new()).end(true);
            store.append_events(key, end).await.unwrap();
        }
        let EventKey { tenant, thread, .. } = key();
        let newest = store.newest_events(tenant, thread, "".into()).await;
        assert_eq!(newest.unwrap().as_deref(), Some("run"));
    }
}
