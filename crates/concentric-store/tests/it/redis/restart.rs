//! Tests that restart the server, or measure what it writes. They run alone: `.ci/redis` starts them one
//! by one.

use super::*;
use crate::common::crash::loses_no_acknowledged_write;

/// The command that kills the server, and starts it again.
const RESTART: &str = "CONCENTRIC_REDIS_RESTART";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "restarts the server"]
async fn acknowledged_writes_survive_a_crash_of_the_server() {
    let options = Options::new().pool_wait(Duration::from_secs(20));
    let Some((store, _schema)) = redis::store(options).await else {
        return;
    };
    let restart = std::env::var(RESTART).unwrap();
    loses_no_acknowledged_write(store, restart).await;
}

/// The bytes that the server has appended to its log, which contains what it has written.
async fn logged(server: &mut ::redis::aio::MultiplexedConnection) -> u64 {
    let info = redis::text(command(server, &["INFO", "persistence"]).await);
    let size = info
        .lines()
        .find_map(|line| line.strip_prefix("aof_current_size:"));
    size.unwrap().trim().parse().unwrap()
}

/// The time of the server's processor, in microseconds.
async fn spent(server: &mut ::redis::aio::MultiplexedConnection) -> u64 {
    let info = redis::text(command(server, &["INFO", "cpu"]).await);
    let time = |name| {
        let time = info.lines().find_map(|line| line.strip_prefix(name));
        // Seconds with six decimals.
        let digits = time.unwrap().trim().replace('.', "");
        digits.parse::<u64>().unwrap()
    };
    time("used_cpu_user_main_thread:") + time("used_cpu_sys_main_thread:")
}

#[tokio::test]
#[ignore = "measures what the server writes"]
async fn the_bytes_and_the_time_of_a_step_do_not_depend_on_the_transcript() {
    let Some((store, _schema)) = redis::store(Options::new()).await else {
        return;
    };
    let mut server = connect(&direct().unwrap()).await;
    let mut figures = Vec::new();
    for kib in [16, 1_024, 4_096] {
        let run = format!("of_{kib}");
        let texts = (0..kib).map(|n| format!("{n:01024}"));
        let mut transcript: concentric_core::Transcript = texts.map(Turn::user).collect();
        transcript.push_user("hi");
        let state = crate::common::running_after(transcript);
        let turns = state.transcript().len();
        let before = spent(&mut server).await;
        let begun = store.begin(key(&run), client(&run), state.clone().into(), LEASE);
        let fence = begun.await.unwrap();
        let began = spent(&mut server).await - before;
        let before = spent(&mut server).await;
        assert_eq!(store.get(key(&run)).await.unwrap().state, state);
        let read = spent(&mut server).await - before;
        let mut next = RunChange::new(&state);
        (next.keep, next.turns) = (turns, Vec::new());
        let mut times = Vec::new();
        let (before, bytes) = (spent(&mut server).await, logged(&mut server).await);
        for _ in 0..50 {
            let began = std::time::Instant::now();
            let saved = store.save(key(&run), fence, next.clone(), LEASE);
            saved.await.unwrap();
            times.push(began.elapsed());
        }
        let bytes = (logged(&mut server).await - bytes) / 50;
        let script = (spent(&mut server).await - before) / 50;
        times.sort();
        let step = times[times.len() / 2];
        println!(
            "transcript of {kib} KiB: a step {bytes} bytes, {step:?}, {script} µs in the server; \
             begin {began} µs, read {read} µs in the server"
        );
        figures.push((bytes, script));
    }
    let [small, _, large] = figures[..] else {
        panic!("{figures:?}");
    };
    // A head contains the number of turns.
    assert!(large.0 * 10 < small.0 * 11, "{figures:?}");
    assert!(large.1 < small.1 * 2 + 200, "{figures:?}");
}
