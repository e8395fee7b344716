//! Tests that restart the server, or measure what it writes. They run alone: `.ci/postgres` starts them one
//! by one.

use super::*;
use crate::common::{crash::loses_no_acknowledged_write, postgres};

/// The command that kills the server, and starts it again.
const RESTART: &str = "CONCENTRIC_POSTGRES_RESTART";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "restarts the server"]
async fn acknowledged_writes_survive_a_crash_of_the_server() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let restart = std::env::var(RESTART).unwrap();
    let options = Options::new()
        .schema(schema)
        .pool_wait(Duration::from_secs(20));
    let store = PostgresStore::open_with(&url, options).await.unwrap();
    loses_no_acknowledged_write(store, restart).await;
}

/// The bytes that the server has logged.
async fn logged(database: &tokio_postgres::Client) -> i64 {
    let position = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
    postgres::number(database, position).await
}

#[tokio::test]
#[ignore = "measures what the server writes"]
async fn the_bytes_of_a_step_do_not_depend_on_the_transcript() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let store = PostgresStore::open_with(&url, Options::new().schema(schema));
    let store = store.await.unwrap();
    let database = connect(&url).await;
    let mut figures = Vec::new();
    for kib in [16, 4_096] {
        let run = format!("of_{kib}");
        let text = (0..kib).map(|n| format!("{n:01024}")).collect::<String>();
        let state = running(&text);
        let turns = state.transcript().len();
        let begun = store.begin(key(&run), client(&run), state.clone().into(), LEASE);
        let fence = begun.await.unwrap();
        let mut next = concentric_core::store::RunChange::new(&state);
        (next.keep, next.turns) = (turns, Vec::new());
        // A checkpoint makes the first write of each page a large one.
        database.batch_execute("CHECKPOINT").await.unwrap();
        let mut times = Vec::new();
        let mut bytes = 0;
        for step in 0..60 {
            let before = logged(&database).await;
            let began = std::time::Instant::now();
            let saved = store.save(key(&run), fence, next.clone(), LEASE);
            saved.await.unwrap();
            if step >= 10 {
                times.push(began.elapsed());
                bytes += logged(&database).await - before;
            }
        }
        times.sort();
        figures.push((kib, bytes / 50, times[times.len() / 2]));
    }
    for (kib, bytes, time) in &figures {
        println!("transcript of {kib} KiB: {bytes} bytes and {time:?} a step");
    }
    let [(_, small, _), (_, large, _)] = figures[..] else {
        panic!("{figures:?}");
    };
    assert!(large < small * 13 / 10 + 2_048, "{figures:?}");
}
