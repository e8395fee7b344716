//! Many runs at the same time.

use super::*;
use crate::common::{key_of, question, redis::schema, redis::url};
use bytes::Bytes;
use concentric_core::{
    Reply, Str,
    store::{EventBatch, EventKey, EventStore as _, RunRecord},
};
use futures_util::future::join_all;
use std::time::{Instant, SystemTime};

/// The number of races, from the environment.
fn races() -> usize {
    std::env::var("CONCENTRIC_REDIS_RACES").map_or(300, |races| races.parse().unwrap())
}

/// Two handles of a store, each with connections of its own.
async fn two(options: Options) -> Option<[RedisStore; 2]> {
    let url = direct()?;
    let options = options.schema(schema());
    let open = async || RedisStore::open_with(&url, options.clone()).await.unwrap();
    Some([open().await, open().await])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_handles_wins_each_race_for_a_suspended_run() {
    let options = Options::new()
        .max_waiting_per_thread(usize::MAX)
        .max_waiting_per_tenant(usize::MAX);
    let Some([one, other]) = two(options).await else {
        return;
    };
    let race = async |n: usize| {
        let mut run = key(&n.to_string());
        run.thread = id(&n.to_string());
        let begun = one.begin(run.clone(), client("c"), running("hi").into(), LEASE);
        let fence = begun.await.unwrap();
        let suspended = one.suspend(run.clone(), fence, waiting("hi", "q").into());
        suspended.await.unwrap();
        let record = one.get(run.clone()).await.unwrap();
        let claim = |store: &RedisStore| {
            let replies = vec![Reply::approve(question("q"))];
            store.claim(record.clone(), replies, LEASE)
        };
        let (a, b) = tokio::join!(claim(&one), claim(&other));
        let (won, lost) = match (a, b) {
            (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
            other => panic!("{other:?}"),
        };
        assert!(matches!(lost, StoreError::Taken), "{lost:?}");
        assert_eq!(one.get(run).await.unwrap(), won);
    };
    let (races, began) = (races(), Instant::now());
    for first in (0..races).step_by(8) {
        join_all((first..races.min(first + 8)).map(race)).await;
    }
    println!("{races} races in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_runs_of_all_tenants_are_claimed_by_one_process_each() {
    let Some(stores) = two(Options::new()).await else {
        return;
    };
    for n in 0..60 {
        let of = ["acme", "other", "third"][n % 3];
        let key = key_of(of, &n.to_string());
        let begun = stores[0].begin(key, client("c"), running("hi").into(), Duration::ZERO);
        // A client id is that of one live run in a conversation.
        let _ = begun.await;
        let key = key_of(of, &n.to_string());
        let name = client(&n.to_string());
        let _ = stores[0]
            .begin(key, name, running("hi").into(), Duration::ZERO)
            .await;
    }
    let claim = async |store: &RedisStore| {
        let mut claimed: Vec<RunRecord> = Vec::new();
        loop {
            let some = store.claim_abandoned(3, LEASE).await.unwrap();
            if some.is_empty() {
                return claimed;
            }
            assert!(some.len() <= 3);
            claimed.extend(some);
        }
    };
    let claimed = join_all(stores.iter().map(claim)).await;
    let mut claimed = claimed.concat();
    // A run for which two calls competed is found by a later one.
    claimed.extend(claim(&stores[0]).await);
    let mut keys: Vec<_> = claimed.iter().map(|it| it.key.run.to_string()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!((claimed.len(), keys.len()), (60, 60));
    let tenants = [tenant("acme"), tenant("other"), tenant("third")];
    for tenant in tenants {
        assert_eq!(stores[1].delete_tenant(tenant).await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_two_processes_are_ordered() {
    let Some([one, other]) = two(Options::new()).await else {
        return;
    };
    let append = async |store: &RedisStore, name: &str| {
        let (mut version, mut len, mut lost) = (0, 0, 0);
        for n in 0..100 {
            loop {
                let change = add(len, &[format!("{name}{n}")]);
                match store.append(tenant("acme"), id("t"), version, change).await {
                    Ok(next) => {
                        (version, len) = (next, len + 1);
                        break;
                    }
                    Err(StoreError::Moved { .. }) => {
                        lost += 1;
                        let stored = store.load(tenant("acme"), id("t")).await.unwrap();
                        let stored = stored.unwrap();
                        (version, len) = (stored.version, stored.history.len());
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        lost
    };
    let lost = tokio::join!(append(&one, "a"), append(&other, "b"));
    println!("{lost:?} appends were repeated");
    let stored = one.load(tenant("acme"), id("t")).await.unwrap().unwrap();
    let texts: Vec<_> = stored
        .history
        .iter()
        .map(|turn| turn.as_message().text())
        .collect();
    assert_eq!(texts.len(), 200);
    for name in ["a", "b"] {
        let own = texts.iter().filter(|text| text.starts_with(name));
        let expected: Vec<_> = (0..100).map(|n| format!("{name}{n}")).collect();
        assert!(own.eq(&expected), "{texts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_is_loaded_again_after_it_was_flushed() {
    let Some([one, other]) = two(Options::new()).await else {
        return;
    };
    let mut server = connect(&direct().unwrap()).await;
    let drive = async |store: &RedisStore, n: usize| {
        let run = n.to_string();
        let fence = begin(store, &run).await;
        for step in 0..5 {
            let state = running(&step.to_string());
            store
                .save(key(&run), fence, state.into(), LEASE)
                .await
                .unwrap();
            let _ = store.renew(key(&run), fence, LEASE).await.unwrap();
        }
        assert_eq!(store.get(key(&run)).await.unwrap().state, running("4"));
        store
            .end(key(&run), fence, Ok(Outcome::Completed))
            .await
            .unwrap();
    };
    let flush = async {
        for _ in 0..40 {
            command(&mut server, &["SCRIPT", "FLUSH"]).await;
            tokio::task::yield_now().await;
        }
    };
    let drives = (0..20).map(|n| drive(if n % 2 == 0 { &one } else { &other }, n));
    tokio::join!(join_all(drives), flush);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_serves_two_hundred_runs() {
    let Some((store, _schema)) = redis::store(Options::new().pool_size(1)).await else {
        return;
    };
    let drive = async |n: usize| {
        let mut run = key("run");
        run.thread = id(&n.to_string());
        let begun = store.begin(run.clone(), client("c"), running("hi").into(), LEASE);
        let fence = begun.await.unwrap();
        let mut slowest = Duration::ZERO;
        for step in 0..3 {
            let state = running(&step.to_string());
            let saved = store.save(run.clone(), fence, state.into(), LEASE);
            saved.await.unwrap();
            let began = Instant::now();
            let _ = store.renew(run.clone(), fence, LEASE).await.unwrap();
            slowest = slowest.max(began.elapsed());
        }
        store.end(run, fence, Ok(Outcome::Completed)).await.unwrap();
        slowest
    };
    let slowest = join_all((0..200).map(drive)).await;
    let slowest = slowest.into_iter().max().unwrap();
    println!("the slowest renewal took {slowest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_fails_in_time() {
    let Some(url) = url("CONCENTRIC_REDIS_VOLATILE") else {
        return;
    };
    let _held = redis::VOLATILE.lock().await;
    let options = Options::new()
        .schema(schema())
        .accept_loss(true)
        .pool_size(1)
        .pool_wait(Duration::from_secs(20))
        .statement_timeout(Duration::from_millis(300));
    let store = RedisStore::open_with(&url, options).await.unwrap();
    let fence = begin(&store, "run").await;
    let mut server = connect(&url).await;
    command(&mut server, &["CLIENT", "PAUSE", "1000", "ALL"]).await;
    let began = Instant::now();
    let saved = store.save(key("run"), fence, running("late").into(), LEASE);
    let saved = saved.await.unwrap_err();
    let text = format!("{:?}", fault(&saved));
    assert!(text.contains("did not return in time"), "{text}");
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    // Returns after the pause.
    command(&mut server, &["PING"]).await;
    // It may have been applied, once or not at all.
    let state = store.get(key("run")).await.unwrap().state;
    assert!([running("hi"), running("late")].contains(&state));
    store
        .end(key("run"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
}

#[tokio::test]
#[ignore = "prints figures"]
async fn figures_of_the_events_of_runs() {
    let (url, options) = (url("CONCENTRIC_REDIS_VOLATILE"), Options::new());
    let Some(url) = url else {
        return;
    };
    let options = options.schema(schema()).accept_loss(true);
    let store = RedisStore::open_with(&url, options).await.unwrap();
    let key = |run: usize| EventKey::new(tenant("acme"), id("thread"), run.to_string());
    let tag = || Str::from("tag");
    let frame = Bytes::from(vec![b'x'; 150]);
    for run in 0..64 {
        store
            .begin_events(key(run), tag(), SystemTime::now())
            .await
            .unwrap();
    }
    for (events, batches) in [(1, 4000), (8, 4000), (64, 1000)] {
        let (began, frames) = (Instant::now(), vec![frame.clone(); events]);
        let append = async |run: usize| {
            let mut next = store.read_events(key(run), 0).await.unwrap().unwrap().next;
            for _ in 0..batches / 64 {
                let batch = EventBatch::new(tag(), next, frames.clone());
                next = batch.next();
                store.append_events(key(run), batch).await.unwrap();
            }
        };
        join_all((0..64).map(append)).await;
        let each = began.elapsed() / (batches / 64 * 64);
        println!("append of {events} events of 150 bytes, 64 runs at once: {each:?}");
    }
    let began = Instant::now();
    let read = async |run: usize| {
        for _ in 0..200 {
            store
                .read_events(key(run), u64::MAX >> 16)
                .await
                .unwrap()
                .unwrap();
        }
    };
    join_all((0..64).map(read)).await;
    let each = began.elapsed() / (64 * 200);
    println!("read without new events, 64 readers at once: {each:?}");
    let mut large = EventBatch::new(tag(), 1 << 30, vec![frame; 1000]);
    for _ in 0..7 {
        let next = large.next();
        store.append_events(key(0), large.clone()).await.unwrap();
        large.first = next;
    }
    let (began, mut bytes) = (Instant::now(), 0);
    for _ in 0..100 {
        let page = store.read_events(key(0), 0).await.unwrap().unwrap();
        bytes = page.frames.iter().map(Bytes::len).sum();
    }
    println!("read of {bytes} bytes: {:?}", began.elapsed() / 100);
}
