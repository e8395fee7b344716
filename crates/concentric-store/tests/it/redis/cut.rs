//! A connection that is lost after a script was executed, and before its result is known.

use super::*;
use crate::common::{question, redis::schema, running_after};
use ::redis::Value;
use concentric_core::{
    Context, Reply, Str, Transcript,
    machine::RunState,
    store::{CacheKey, CacheStore, EffectKey, Intent, Ledger, LedgerEntry, Renewed},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A proxy that can drop a result, and its connection.
struct Proxy {
    url: String,
    // The name of the store behind it.
    schema: String,
    // The number of results up to the one that is dropped; 0 if there is none.
    armed: Arc<AtomicUsize>,
    cuts: Arc<AtomicUsize>,
}

impl Proxy {
    async fn start(url: &str) -> Self {
        let server = url.split("//").nth(1).unwrap().split('/').next().unwrap();
        let server = server.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = url.replacen(&server, &format!("127.0.0.1:{port}"), 1);
        let proxy = Self {
            url,
            schema: schema(),
            armed: Arc::default(),
            cuts: Arc::default(),
        };
        let (armed, cuts) = (Arc::clone(&proxy.armed), Arc::clone(&proxy.cuts));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(forward(
                    client,
                    server,
                    Arc::clone(&armed),
                    Arc::clone(&cuts),
                ));
            }
        });
        proxy
    }

    /// Drops the result number `nth`, beginning with 1.
    fn cut(&self, nth: usize) {
        self.armed.store(nth, Ordering::SeqCst);
    }
}

async fn forward(
    client: TcpStream,
    server: TcpStream,
    armed: Arc<AtomicUsize>,
    cuts: Arc<AtomicUsize>,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    });
    let mut buffer = vec![0; 1 << 16];
    while let Ok(len) = from_server.read(&mut buffer).await
        && len > 0
    {
        // The server sends the result of a script after it has executed it.
        let left = armed.load(Ordering::SeqCst);
        armed.store(left.saturating_sub(1), Ordering::SeqCst);
        if left == 1 {
            cuts.fetch_add(1, Ordering::SeqCst);
            break;
        }
        if to_client.write_all(&buffer[..len]).await.is_err() {
            break;
        }
    }
    requests.abort();
}

/// A store with one connection through a proxy, so that the next result is that of the next call.
async fn proxied() -> Option<(Proxy, RedisStore)> {
    let proxy = Proxy::start(&direct()?).await;
    let options = Options::new().schema(&*proxy.schema).pool_size(1);
    let store = RedisStore::open_with(&proxy.url, options).await.unwrap();
    // Lists the tenant, and makes the connections.
    let change = running("hi").into();
    let warm = RunStore::begin(&store, key("warm"), client("warm"), change, Duration::ZERO);
    let fence = warm.await.unwrap();
    let _ = store
        .renew(key("warm"), fence, Duration::ZERO)
        .await
        .unwrap();
    assert!(
        store
            .once(tenant("acme"), "warm".into(), LEASE)
            .await
            .unwrap()
    );
    Some((proxy, store))
}

#[tokio::test]
async fn a_write_whose_result_is_lost_is_applied_once() {
    let Some((proxy, store)) = proxied().await else {
        return;
    };
    let lost = || proxy.cut(1);
    let intent = |arguments: &'static str| {
        Intent::new("pay".into(), Str::from_static(arguments), &Context::new())
    };
    let effect = EffectKey::new(tenant("acme"), "effect");
    lost();
    let begun = Ledger::begin(&store, effect.clone(), intent("{}")).await;
    assert_eq!(begun.unwrap(), LedgerEntry::New);
    let begun = Ledger::begin(&store, effect.clone(), intent("{ }")).await;
    assert_eq!(begun.unwrap(), LedgerEntry::Started);
    let once = || store.once(tenant("acme"), "key".into(), LEASE);
    lost();
    assert!(once().await.unwrap());
    assert!(!once().await.unwrap());

    lost();
    let appended = store
        .append(tenant("acme"), id("t"), 0, add(0, &["a".into()]))
        .await;
    let version = appended.unwrap();
    lost();
    let appended = store.append(tenant("acme"), id("t"), version, add(1, &["b".into()]));
    let version = appended.await.unwrap();
    lost();
    let forked = store.fork(
        tenant("acme"),
        id("t"),
        version,
        id("u"),
        add(2, &["c".into()]),
    );
    forked.await.unwrap();
    for (thread, turns) in [("t", 2), ("u", 3)] {
        let stored = store
            .load(tenant("acme"), id(thread))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(stored.history.len(), turns);
    }

    // The first call of a `begin` reads the end of the conversation.
    proxy.cut(2);
    let fence = begin(&store, "run").await;
    assert_eq!(store.get(key("run")).await.unwrap().fence, fence);
    lost();
    let write = store
        .save(key("run"), fence, running("1").into(), LEASE)
        .await;
    write.unwrap();
    assert_eq!(store.get(key("run")).await.unwrap().state, running("1"));
    let version = store.get(key("run")).await.unwrap().version;
    lost();
    let write = store
        .suspend(key("run"), fence, waiting("2", "q").into())
        .await;
    write.unwrap();
    let suspended = store.get(key("run")).await.unwrap();
    assert_eq!(suspended.status, RunStatus::Suspended);
    assert!(suspended.version > version);
    lost();
    let amended = store.amend(key("run"), suspended.version, waiting("3", "q").into());
    let version = amended.await.unwrap();
    let amended = store.get(key("run")).await.unwrap();
    assert_eq!(amended.version, version);
    lost();
    let replies = vec![Reply::approve(question("q"))];
    let claimed = store.claim(amended, replies, LEASE);
    let claimed = claimed.await.unwrap();
    assert_eq!(store.get(key("run")).await.unwrap(), claimed);
    lost();
    assert!(store.cancel(key("run")).await.unwrap());
    lost();
    let renewed = store.renew(key("run"), claimed.fence, LEASE).await;
    assert_eq!(renewed.unwrap(), Renewed::CancelRequested);
    lost();
    store
        .end(key("run"), claimed.fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    let ended = store.get(key("run")).await.unwrap();
    assert_eq!(ended.status, RunStatus::Ended);
    // A count would be another one the second time.
    lost();
    let deleted = store.delete(tenant("acme"), id("u")).await.unwrap_err();
    assert!(matches!(fault(&deleted), Fault::Database(_)), "{deleted:?}");
    assert!(store.load(tenant("acme"), id("u")).await.unwrap().is_none());
    assert_eq!(proxy.cuts.load(Ordering::SeqCst), 14);
}

/// The state of a run with so many turns that they are staged in several pieces.
fn long() -> RunState {
    let mut transcript = Transcript::new();
    for n in 0..1_200 {
        transcript.push_user(format!("message {n}"));
    }
    running_after(transcript)
}

/// The keys of staged turns of a store.
async fn staged(schema: &str) -> Vec<String> {
    let mut staged = keys(schema).await;
    staged.retain(|key| key.contains(":p:"));
    staged
}

#[tokio::test]
async fn a_write_of_many_turns_whose_result_is_lost_is_applied_once() {
    let Some((proxy, store)) = proxied().await else {
        return;
    };
    // Each call of a write: its pieces, and those before and after them.
    for nth in 1..=6 {
        let run = nth.to_string();
        proxy.cut(nth);
        let begun = RunStore::begin(&store, key(&run), client(&run), long().into(), LEASE);
        let fence = begun.await.unwrap();
        assert_eq!(store.get(key(&run)).await.unwrap().state, long());
        proxy.cut(nth);
        let saved = store.save(key(&run), fence, long().into(), LEASE);
        saved.await.unwrap();
        assert_eq!(store.get(key(&run)).await.unwrap().state, long());

        let texts: Vec<_> = (0..1_200).map(|n| n.to_string()).collect();
        let mut version = 0;
        for keep in [0, 1_200] {
            proxy.cut(nth);
            let appended = store.append(tenant("acme"), id(&run), version, add(keep, &texts));
            version = appended.await.unwrap();
        }
        let stored = store.load(tenant("acme"), id(&run)).await.unwrap().unwrap();
        let texts = texts
            .iter()
            .chain(&texts)
            .map(|text| Turn::user(text.clone()));
        assert!(stored.history.iter().cloned().eq(texts));
    }
    assert_eq!(proxy.cuts.load(Ordering::SeqCst), 24);
    assert!(staged(&proxy.schema).await.is_empty());
}

#[tokio::test]
async fn a_write_that_ends_between_its_pieces_leaves_nothing_that_is_read() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let mut database = connect(&direct().unwrap()).await;
    for n in 0.. {
        let run = n.to_string();
        let begun = RunStore::begin(&store, key(&run), client(&run), long().into(), LEASE);
        let after = Duration::from_micros(200 * n);
        let ended = tokio::time::timeout(after, begun).await;
        let left = staged(&schema).await;
        if ended.is_err() && !left.is_empty() {
            let read = store.get(key(&run)).await;
            assert!(matches!(read, Err(StoreError::NotFound)), "{read:?}");
            let expires = command(&mut database, &["TTL", &left[0]]).await;
            assert!(matches!(expires, Value::Int(1..=600)), "{expires:?}");
            break;
        }
    }
}

#[tokio::test]
async fn turns_that_are_removed_before_they_are_written_are_staged_again() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let mut database = connect(&direct().unwrap()).await;
    let remover = tokio::spawn(async move {
        loop {
            for key in staged(&schema).await {
                let removed = command(&mut database, &["DEL", &key]).await;
                if removed == Value::Int(1) {
                    return;
                }
            }
        }
    });
    for n in 0.. {
        let run = n.to_string();
        let begun = RunStore::begin(&store, key(&run), client(&run), long().into(), LEASE);
        begun.await.unwrap();
        assert_eq!(store.get(key(&run)).await.unwrap().state, long());
        if remover.is_finished() {
            break;
        }
    }
    remover.await.unwrap();
}

#[tokio::test]
async fn a_large_deletion_has_several_steps() {
    let Some((proxy, store)) = proxied().await else {
        return;
    };
    // With the one that exists.
    for n in 0..59 {
        begin(&store, &n.to_string()).await;
    }
    let appended = store.append(tenant("acme"), id("thread"), 0, add(0, &["a".into()]));
    appended.await.unwrap();
    let entry = |n: u8| CacheKey::new(tenant("acme"), None, "space", [n; 32]);
    for n in 0..250 {
        let put = store.put_entry(entry(n), vec![n], LEASE);
        put.await.unwrap();
    }
    let left = async || {
        let runs = store.list_by_thread(tenant("acme"), id("thread"), None, 999);
        runs.await.unwrap().len()
    };
    proxy.cut(2);
    let deleted = store.delete(tenant("acme"), id("thread")).await;
    let error = deleted.unwrap_err();
    assert!(matches!(fault(&error), Fault::Database(_)), "{error:?}");
    assert_eq!(left().await, 10);
    assert!(store.delete(tenant("acme"), id("thread")).await.unwrap());
    assert_eq!(left().await, 0);

    proxy.cut(2);
    let removed = store.remove_entries(tenant("acme"), None, None).await;
    let error = removed.unwrap_err();
    assert!(matches!(fault(&error), Fault::Database(_)), "{error:?}");
    let removed = store.remove_entries(tenant("acme"), None, None).await;
    assert!((1..250).contains(&removed.unwrap()));
    for n in 0..250 {
        assert!(store.get_entry(entry(n)).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn one_claim_wins_while_connections_are_lost() {
    let (Some(url), schema) = (direct(), schema()) else {
        return;
    };
    let options = Options::new().schema(schema.as_str()).pool_size(2);
    let one = RedisStore::open_with(&url, options.clone()).await.unwrap();
    let other = RedisStore::open_with(&url, options).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let killer = tokio::spawn(async move {
        let mut killed = 0;
        while !stopped.load(Ordering::SeqCst) {
            killed += redis::cut(&url, &schema).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        killed
    });
    let mut unknown = 0;
    for n in 0..30 {
        let run = n.to_string();
        let begun = RunStore::begin(&one, key(&run), client(&run), running("hi").into(), LEASE);
        // Lost three times in a row.
        let Ok(fence) = begun.await else {
            continue;
        };
        let suspended = one.suspend(key(&run), fence, waiting("hi", &run).into());
        if suspended.await.is_err() {
            continue;
        }
        let Ok(record) = one.get(key(&run)).await else {
            continue;
        };
        let claim = |store: &RedisStore| {
            let replies = vec![Reply::approve(question(&run))];
            store.claim(record.clone(), replies, LEASE)
        };
        let (a, b) = tokio::join!(claim(&one), claim(&other));
        let mut won = 0;
        for claim in [a, b] {
            match claim {
                Ok(claimed) => {
                    won += 1;
                    let saved = one.save(key(&run), claimed.fence, running("x").into(), LEASE);
                    if let Err(error) = saved.await {
                        assert!(matches!(error, StoreError::Failed(_)), "{error:?}");
                    }
                }
                Err(StoreError::Taken) => {}
                Err(StoreError::Failed(_)) => unknown += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        assert!(won <= 1, "run {run}");
        let _ = one.withdraw(tenant("acme"), id("thread")).await;
    }
    stop.store(true, Ordering::SeqCst);
    let killed = killer.await.unwrap();
    println!("{killed} connections were killed, and {unknown} claims failed");
    assert!(killed > 0);
}

#[tokio::test]
async fn a_dropped_write_is_applied_completely_or_not_at_all() {
    let Some((store, _schema)) = redis::store(Options::new()).await else {
        return;
    };
    let seed = std::env::var("CONCENTRIC_SEED").map_or(7, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random: u64 = seed;
    let (mut applied, mut none) = (0, 0);
    for n in 0..60 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let run = n.to_string();
        let begun = RunStore::begin(&store, key(&run), client(&run), running("hi").into(), LEASE);
        let after = Duration::from_micros((random >> 33) % 3_000);
        let _ = tokio::time::timeout(after, begun).await;
        // The script may not have been executed yet.
        let mut found = store.get(key(&run)).await;
        for _ in 0..3 {
            if found.is_err() {
                found = store.get(key(&run)).await;
            }
        }
        match found {
            Ok(record) => {
                assert_eq!(record.state, running("hi"));
                applied += 1;
            }
            Err(StoreError::NotFound) => none += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    println!("{applied} writes were applied, and {none} were not");
}
