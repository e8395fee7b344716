//! Many runs at the same time.

use super::*;
use crate::common::postgres;
use concentric_core::store::Renewed;
use futures_util::future::join_all;
use std::time::Instant;

/// The number of races, from the environment.
fn races() -> usize {
    std::env::var("CONCENTRIC_POSTGRES_RACES").map_or(1_000, |races| races.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_handles_wins_each_race_for_a_suspended_run() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let options = Options::new()
        .schema(schema)
        .max_waiting_per_thread(usize::MAX)
        .max_waiting_per_tenant(usize::MAX);
    let one = PostgresStore::open_with(&url, options.clone())
        .await
        .unwrap();
    let other = PostgresStore::open_with(&url, options).await.unwrap();
    let race = async |n: usize| {
        let mut run = key(&n.to_string());
        run.thread = id(&n.to_string());
        let begun = one.begin(run.clone(), client("c"), running("hi").into(), LEASE);
        let fence = begun.await.unwrap();
        let suspended = one.suspend(run.clone(), fence, waiting("hi", "q").into());
        suspended.await.unwrap();
        let record = one.get(run.clone()).await.unwrap();
        let claim = |store: &PostgresStore| {
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
async fn abandoned_runs_are_claimed_by_one_process_each() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let options = Options::new().schema(schema);
    let open = async || {
        PostgresStore::open_with(&url, options.clone())
            .await
            .unwrap()
    };
    let stores = [open().await, open().await, open().await, open().await];
    for n in 0..40 {
        let run = n.to_string();
        let begun = stores[0].begin(
            key(&run),
            client(&run),
            running("hi").into(),
            Duration::ZERO,
        );
        begun.await.unwrap();
    }
    let claim = async |store: &PostgresStore| {
        let mut claimed = Vec::new();
        loop {
            let some = store.claim_abandoned(3, LEASE).await.unwrap();
            if some.is_empty() {
                return claimed;
            }
            claimed.extend(some.into_iter().map(|record| record.key.run.to_string()));
        }
    };
    let claimed = join_all(stores.iter().map(claim)).await;
    let mut claimed = claimed.concat();
    // A row that another call had locked at the time is found by a later call.
    claimed.extend(claim(&stores[0]).await);
    assert_eq!(claimed.len(), 40);
    claimed.sort();
    claimed.dedup();
    assert_eq!(claimed.len(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_two_processes_are_ordered() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let options = Options::new().schema(schema);
    let one = PostgresStore::open_with(&url, options.clone())
        .await
        .unwrap();
    let other = PostgresStore::open_with(&url, options).await.unwrap();
    let append = async |store: &PostgresStore, name: &str| {
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
async fn two_connections_serve_two_hundred_runs() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let options = Options::new()
        .schema(schema)
        .pool_size(2)
        .pool_wait(Duration::from_secs(60));
    let store = PostgresStore::open_with(&url, options).await.unwrap();
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
    // Renewals do not wait for the other statements.
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

#[tokio::test]
async fn a_run_that_is_being_written_delays_no_other_lease() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let store = PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
    let store = store.await.unwrap();
    let slow = begin(&store, "slow").await;
    let mut other = key("run");
    other.tenant = tenant("other");
    let begun = store.begin(other.clone(), client("c"), running("hi").into(), LEASE);
    let fence = begun.await.unwrap();
    // A write of the run has not ended.
    let database = connect(&url).await;
    let write = format!(
        "BEGIN; UPDATE {schema}.leases SET takeovers = 0
         WHERE run = (SELECT id FROM {schema}.runs WHERE run = 'slow')"
    );
    database.batch_execute(&write).await.unwrap();
    // Both are renewed by one statement.
    let mut locked = store.renew(key("slow"), slow, LEASE);
    let renewed = tokio::select! {
        biased;
        locked = &mut locked => panic!("{locked:?}"),
        renewed = store.renew(other, fence, LEASE) => renewed,
    };
    assert_eq!(renewed.unwrap(), Renewed::Held);
    database.batch_execute("COMMIT").await.unwrap();
    assert_eq!(locked.await.unwrap(), Renewed::Held);

    // A lease that is taken over meanwhile is lost.
    let take = format!(
        "BEGIN; UPDATE {schema}.leases SET fence = fence + 1000;
         UPDATE {schema}.runs SET fence = fence + 1000"
    );
    database.batch_execute(&take).await.unwrap();
    let mut locked = store.renew(key("slow"), slow, LEASE);
    let next = store.get(key("slow"));
    tokio::select! {
        biased;
        locked = &mut locked => panic!("{locked:?}"),
        record = next => assert_eq!(record.unwrap().fence, slow),
    }
    database.batch_execute("COMMIT").await.unwrap();
    let lost = locked.await.unwrap_err();
    assert!(matches!(lost, StoreError::Stale), "{lost:?}");
}

#[tokio::test]
async fn an_exhausted_pool_and_a_blocked_statement_fail_in_time() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let options = Options::new()
        .schema(schema.as_str())
        .pool_size(1)
        .pool_wait(Duration::from_millis(200))
        .statement_timeout(Duration::from_millis(900));
    let store = PostgresStore::open_with(&url, options).await.unwrap();
    let fence = begin(&store, "run").await;
    let database = postgres::connect(&url).await;
    let lock = format!("BEGIN; LOCK TABLE {schema}.runs");
    database.batch_execute(&lock).await.unwrap();
    let blocked = tokio::spawn(store.get(key("run")));
    while postgres::number(
        &postgres::connect(&url).await,
        &format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{schema}.runs'::regclass"),
    )
    .await
        == 0
    {}
    let busy = store.get(key("run")).await.unwrap_err();
    assert!(matches!(fault(&busy), Fault::Busy), "{busy:?}");
    let blocked = blocked.await.unwrap().unwrap_err();
    let text = format!("{:?}", fault(&blocked));
    assert!(text.contains("timed out"), "{text}");
    // It was cancelled in the server, too.
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass";
    let mut left = 1;
    while left > 0 {
        let row = database
            .query_one(waiting, &[&format!("{schema}.runs")])
            .await;
        left = row.unwrap().get::<_, i64>(0);
    }
    database.batch_execute("ROLLBACK").await.unwrap();
    store
        .end(key("run"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
}
