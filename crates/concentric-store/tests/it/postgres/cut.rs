//! A connection that is lost after a statement was applied, and before its result is known.

use super::*;
use crate::common::postgres::direct;
use concentric_core::{
    Context, Str,
    store::{EffectKey, Intent, Ledger, LedgerEntry, Once, Renewed},
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
    // The number of results up to the one that is dropped; 0 if there is none.
    armed: Arc<AtomicUsize>,
    cuts: Arc<AtomicUsize>,
    // The number of connections that are closed at once.
    refuses: Arc<AtomicUsize>,
}

impl Proxy {
    async fn start(url: &str) -> Self {
        let server = url.split_once('@').unwrap().1.split('/').next().unwrap();
        let server = server.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = url.replacen(&server, &format!("127.0.0.1:{port}"), 1);
        let proxy = Self {
            url,
            armed: Arc::default(),
            cuts: Arc::default(),
            refuses: Arc::default(),
        };
        let refuses = Arc::clone(&proxy.refuses);
        let (armed, cuts) = (Arc::clone(&proxy.armed), Arc::clone(&proxy.cuts));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let left = refuses.load(Ordering::SeqCst);
                refuses.store(left.saturating_sub(1), Ordering::SeqCst);
                if left > 0 {
                    continue;
                }
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
        // The server sends the result of a statement after it has committed it.
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

/// A store with one connection through a proxy, so that the next result is that of the next statement.
async fn proxied() -> Option<(Proxy, PostgresStore)> {
    let (url, schema) = migrated().await?;
    let proxy = Proxy::start(&url).await;
    let options = Options::new().schema(schema).pool_size(1).prepared(false);
    let store = PostgresStore::open_with(&proxy.url, options).await.unwrap();
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

    // The first statement of a `begin` reads the end of the conversation.
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

#[tokio::test]
async fn claims_of_abandoned_runs_whose_result_is_lost_are_returned_again() {
    let Some((proxy, store)) = proxied().await else {
        return;
    };
    for run in ["a", "b", "c"] {
        let change = running("hi").into();
        let begun = RunStore::begin(&store, key(run), client(run), change, Duration::ZERO);
        begun.await.unwrap();
    }
    proxy.cut(1);
    let claimed = store.claim_abandoned(2, LEASE).await.unwrap();
    let claims = claimed.iter().map(|it| (it.key.run.as_str(), it.takeovers));
    assert_eq!(claims.collect::<Vec<_>>(), [("a", 1), ("b", 1)]);
    assert_eq!(proxy.cuts.load(Ordering::SeqCst), 1);
    assert_eq!(store.claim_abandoned(9, LEASE).await.unwrap().len(), 1);
}

#[tokio::test]
async fn one_claim_wins_while_connections_are_lost() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let options = Options::new().schema(schema.as_str()).pool_size(4);
    let one = PostgresStore::open_with(&url, options.clone())
        .await
        .unwrap();
    let other = PostgresStore::open_with(&url, options).await.unwrap();
    let database = connect(&direct().unwrap()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let statements = schema.clone();
    let killer = tokio::spawn(async move {
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE application_name = 'concentric' AND query LIKE $1 AND random() < 0.1";
        let mut killed = 0;
        while !stopped.load(Ordering::SeqCst) {
            let like = format!("%\"{statements}\"%");
            let row = database.query_one(kill, &[&like]).await.unwrap();
            killed += row.get::<_, i64>(0);
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
        let claim = |store: &PostgresStore| {
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
    let Some((store, _schema)) = crate::common::postgres::store(Options::new()).await else {
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
        let after = Duration::from_micros((random >> 33) % 8_000);
        let _ = tokio::time::timeout(after, begun).await;
        // The statement may still be running.
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

#[tokio::test]
async fn a_write_waits_for_a_server_that_is_restarted() {
    let Some((proxy, store)) = proxied().await else {
        return;
    };
    // More often than a statement is repeated. The result of the first one is lost.
    proxy.refuses.store(4, Ordering::SeqCst);
    proxy.cut(1);
    let appended = store.append(tenant("acme"), id("t"), 0, add(0, &["a".into()]));
    appended.await.unwrap();
    let stored = store.load(tenant("acme"), id("t")).await.unwrap().unwrap();
    assert_eq!(stored.history.len(), 1);
    assert_eq!(proxy.refuses.load(Ordering::SeqCst), 0);
}
