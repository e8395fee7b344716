//! What the store costs at the sizes that it is built for. The figures are printed, since they depend on the
//! machine. `CONCENTRIC_FIGURES=full` has the sizes that a goal is stated for; without it, the sizes are small, and
//! only the results matter.

use super::*;
use crate::common::postgres::number;
use concentric_core::store::{Renewed, RunChange, RunKey};
use futures_util::future::join_all;
use std::time::Instant;

fn is_full() -> bool {
    std::env::var("CONCENTRIC_FIGURES").is_ok_and(|sizes| sizes == "full")
}

async fn opened() -> Option<(PostgresStore, Client)> {
    let (url, schema) = migrated().await?;
    let options = Options::new()
        .schema(schema.as_str())
        .pool_size(16)
        .pool_wait(Duration::from_secs(60))
        .max_waiting_per_tenant(usize::MAX);
    let store = PostgresStore::open_with(&url, options).await.unwrap();
    let database = connect(&url).await;
    let set = format!("SET search_path TO {schema}");
    database.batch_execute(&set).await.unwrap();
    Some((store, database))
}

/// A run of a conversation of its own.
fn own(run: &str) -> RunKey {
    let mut key = key(run);
    key.thread = id(run);
    key
}

/// The time that the processors have spent on this process.
fn spent() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit(") ").next().unwrap().split(' ');
    // In hundredths of a second, in the user's code and in the kernel.
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .map(|it| it.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(10 * ticks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn checkpoints_of_sixteen_runs() {
    let Some((store, database)) = opened().await else {
        return;
    };
    for (kib, goal) in [
        (2, "at least 3,000 a second"),
        (4, "at most 60 µs of this process"),
    ] {
        let limit = Duration::from_secs(if is_full() { 20 } else { 1 });
        let (began, before) = (Instant::now(), spent());
        let drive = |n: usize| {
            let store = store.clone();
            tokio::spawn(async move {
                let run = own(&format!("of_{kib}_{n}"));
                let state = running("hi");
                let begun = store.begin(run.clone(), client("c"), state.clone().into(), LEASE);
                let fence = begun.await.unwrap();
                let mut change = RunChange::new(&state);
                change.keep = state.transcript().len();
                change.turns = vec![Turn::user("x".repeat(kib << 10))];
                let mut steps = 0_u32;
                while began.elapsed() < limit {
                    let saved = store.save(run.clone(), fence, change.clone(), LEASE);
                    saved.await.unwrap();
                    change.keep += 1;
                    steps += 1;
                }
                steps
            })
        };
        let steps: u32 = join_all((0..16).map(drive))
            .await
            .into_iter()
            .map(Result::unwrap)
            .sum();
        let turns = format!("SELECT sum(len)::bigint FROM runs WHERE run LIKE 'of_{kib}_%'");
        let begun = 16 * running("hi").transcript().len() as i64;
        assert_eq!(number(&database, &turns).await, begun + i64::from(steps));
        let each = (spent() - before) / steps.max(1);
        let rate = f64::from(steps) / began.elapsed().as_secs_f64();
        println!(
            "checkpoints of {kib} KiB, 16 connections: {rate:.0} a second, {each:?} of this process; goal {goal}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn renewals_of_many_live_runs() {
    let Some((store, _)) = opened().await else {
        return;
    };
    let runs = if is_full() { 10_000 } else { 300 };
    let begin = async |n: usize| {
        let run = own(&n.to_string());
        let begun = store.begin(run.clone(), client("c"), running("hi").into(), LEASE * 100);
        (run, begun.await.unwrap())
    };
    let mut begun = Vec::new();
    for first in (0..runs).step_by(100) {
        begun.extend(join_all((first..runs.min(first + 100)).map(begin)).await);
    }
    for _ in 0..5 {
        let began = Instant::now();
        let renewals = begun
            .iter()
            .map(|(run, fence)| store.renew(run.clone(), *fence, LEASE * 100));
        let renewed = join_all(renewals).await;
        let took = began.elapsed();
        assert!(renewed.iter().all(|it| matches!(it, Ok(Renewed::Held))));
        println!("renewals of {runs} runs at once: {took:?}; goal for 10,000: 30 ms");
    }
}

/// Copies the suspended run `seed` so often, with conversations, turns, leases and interrupts of their own. Their
/// checksums are those of the run, so the copies cannot be read. A tenth of them is running.
async fn copy(database: &Client, count: usize) {
    let copies = format!(
        "WITH made AS (
             INSERT INTO logs (parent, parent_len, depth)
             SELECT NULL, 0, 0 FROM generate_series(1, {count}) RETURNING id
         )
         INSERT INTO runs (tenant, thread, run, client_id, status, version, fence, attempt, since, waited, message,
             log, len, bytes, head, replies, replied_at, checksum)
         SELECT 'tenant_' || made.id % 1000, 'copy_' || made.id, 'copy_' || made.id, client_id,
             CASE WHEN made.id % 10 = 0 THEN 'running' ELSE status END, version, fence, attempt, since, waited,
             message, made.id, len, bytes, head, replies, replied_at, checksum
         FROM made, (SELECT * FROM runs WHERE run = 'seed') AS seed;
         INSERT INTO turns (log, n, chain, total, body)
         SELECT runs.log, turns.n, turns.chain, turns.total, turns.body
         FROM runs, turns WHERE runs.run LIKE 'copy%' AND turns.log = (SELECT log FROM runs WHERE run = 'seed');
         INSERT INTO leases (run, held, fence, until)
         SELECT id, status = 'running', fence, 9000000000000000000 FROM runs WHERE run LIKE 'copy%';
         INSERT INTO questions (run, tenant, thread, question)
         SELECT id, tenant, thread, 'q' FROM runs WHERE run LIKE 'copy%';
         ANALYZE"
    );
    database.batch_execute(&copies).await.unwrap();
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    let (p50, p99) = (at(50), at(99));
    println!(
        "{what}: {p50:?} (p50), {p99:?} (p99) of {}; goal for 1,000,000: 10 ms (p99)",
        times.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn claims_among_many_suspended_runs() {
    let Some((store, database)) = opened().await else {
        return;
    };
    let (copies, own_runs) = if is_full() {
        (1_000_000, 1_000)
    } else {
        (1_000, 50)
    };
    let suspend = async |name: String| {
        let run = own(&name);
        let begun = store.begin(run.clone(), client("c"), running("hi").into(), LEASE);
        let fence = begun.await.unwrap();
        let suspended = store.suspend(run.clone(), fence, waiting("hi", "q").into());
        suspended.await.unwrap();
        run
    };
    suspend("seed".to_owned()).await;
    let began = Instant::now();
    copy(&database, copies).await;
    let stored = number(&database, "SELECT count(*) FROM runs").await;
    let bytes = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
                 WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'";
    let bytes = number(&database, bytes).await;
    println!(
        "{stored} runs, copied in {:?}: {bytes} bytes of tables and indexes",
        began.elapsed()
    );
    let mut runs = Vec::new();
    for n in 0..own_runs {
        runs.push(suspend(format!("own_{n}")).await);
    }
    let mut found = Vec::new();
    let mut claimed = Vec::new();
    for run in runs {
        let began = Instant::now();
        let record =
            store.find_by_interrupt(run.tenant.clone(), run.thread.clone(), vec![question("q")]);
        let record = record.await.unwrap();
        found.push(began.elapsed());
        let began = Instant::now();
        let claim = store.claim(record, vec![Reply::approve(question("q"))], Duration::ZERO);
        claim.await.unwrap();
        claimed.push(began.elapsed());
    }
    print("find a run by its interrupt", found);
    print("claim a run", claimed);
    // The leases of all of them have ended.
    let (mut times, mut taken) = (Vec::new(), 0);
    loop {
        let began = Instant::now();
        let some = store.claim_abandoned(16, LEASE).await.unwrap();
        if some.is_empty() {
            break;
        }
        times.push(began.elapsed());
        taken += some.len();
    }
    assert_eq!(taken, own_runs);
    print("claim 16 abandoned runs", times);
}
