//! Runs an agent under load, and fails if it leaks resources.
//!
//! ```console
//! $ cargo run --release -p concentric-soak -- --streams 2000 --seconds 600
//! ```
//!
//! The test has three participants on this machine: a provider that paces its responses and fails
//! in every way that a provider can ([`upstream`]); a server process with the complete stack, from
//! AG-UI to the provider's HTTP requests, over a SQLite file ([`server`]); and clients that read,
//! reply to interrupts, and disconnect ([`client`]). The server reports its resident memory, file
//! descriptors and tasks each second.
//!
//! Once the clients have stopped, the program checks that
//!
//! - each stream that was read to its end had exactly one terminal event, at its end,
//! - the server has as many tasks and file descriptors as before the first client,
//! - the store records no run as running,
//! - the heap has its size from before the first client, within 1 MiB,
//! - the resident memory is constant: the slope of a regression line through the second half of the
//!   samples is under 1 MiB per hour, if the run took at least ten minutes.
//!
//! The memory that an allocator holds follows the largest heap of the past, page by page as each is
//! first written, long after the heap itself has stopped growing. Two measures bring the process to
//! that state early, so that growth in the second half is a leak: the server writes each allocation
//! at once (glibc's `MALLOC_PERTURB_`), and there are ten percent more clients for the first
//! quarter of the time.
//!
//! The exit code is 0 if all checks pass. `--seed` repeats the choices of the clients and the
//! provider.

#![allow(
    clippy::indexing_slicing,
    reason = "a test program; a JSON value is indexed without a panic"
)]

mod client;
mod dice;
mod measure;
mod server;
mod upstream;

use client::{Clients, Counts};
use measure::Samples;
use stats_alloc::StatsAlloc;
use std::{
    alloc::System,
    env,
    process::ExitCode,
    time::{Duration, Instant},
};

#[global_allocator]
static ALLOCATOR: StatsAlloc<System> = StatsAlloc::system();

/// The command line options.
struct Options {
    streams: usize,
    time: Duration,
    seed: u64,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            streams: 100,
            time: Duration::from_secs(20),
            seed: dice::seed(),
        };
        while let Some(name) = args.next() {
            let value = args.next().ok_or(format!("{name} requires a value"))?;
            let number: u64 = value
                .parse()
                .map_err(|_| format!("{name}: invalid number `{value}`"))?;
            match name.as_str() {
                "--streams" => options.streams = usize::try_from(number).unwrap_or(usize::MAX),
                "--seconds" => options.time = Duration::from_secs(number),
                "--seed" => options.seed = number,
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let mut args = env::args().skip(1).peekable();
    if args.peek().is_some_and(|arg| arg == server::ROLE) {
        return server::main(args.skip(1));
    }
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    match runtime
        .map_err(Into::into)
        .and_then(|it| it.block_on(soak(&options)))
    {
        Ok(failures) if failures.is_empty() => ExitCode::SUCCESS,
        Ok(failures) => {
            for failure in failures {
                eprintln!("FAILED: {failure}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A failure of the program itself, rather than of the server.
type Fault = Box<dyn std::error::Error + Send + Sync>;

/// The time limit for the server to release its resources after its clients have stopped. Its HTTP
/// client checks every 90 seconds for provider connections that were idle for 90 seconds, so the
/// last ones are closed after 180.
const SETTLE: Duration = Duration::from_secs(210);

/// The allowed growth of the heap from before the first client to after the last one, in KiB, for
/// pools and caches.
const KEPT: u64 = 1024;

/// The least length of a run whose memory is checked. In shorter ones, caches are still filling.
const JUDGED: Duration = Duration::from_secs(600);

async fn soak(options: &Options) -> Result<Vec<String>, Fault> {
    let Options {
        streams,
        time,
        seed,
    } = *options;
    println!("{streams} streams for {} s, seed {seed}", time.as_secs());
    let provider = upstream::start(seed).await?;
    let folder = tempfile::tempdir()?;
    let mut server = server::start(&provider, &folder.path().join("runs.db")).await?;
    // One request of each kind first, to create pools and threads.
    let clients = Clients::new(server.url(), seed);
    clients.warm_up().await?;
    let before = server.settled(None, SETTLE).await?;

    let mut samples = Samples::default();
    let began = Instant::now();
    let running = clients.start(0..streams, began + time);
    let more = clients.start(streams..streams + streams / 10, began + time / 4);
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    while began.elapsed() < time {
        tick.tick().await;
        let status = server.status().await?;
        samples.push(began.elapsed(), &status);
        if samples.len().is_multiple_of(60) {
            println!(
                "after {} s: {:.1} MiB resident, {:.1} MiB heap, {} tasks, {} file descriptors",
                began.elapsed().as_secs(),
                status.memory_mib(),
                status.heap_mib(),
                status.tasks,
                status.files,
            );
        }
    }
    more.join_all().await;
    running.join_all().await;
    let counts: Counts = clients.counts();
    let after = server.settled(Some(&before), SETTLE).await?;
    let left = server.runs_left().await?;
    server.stop().await?;

    let slope = samples.slope_of_second_half();
    println!("{counts}");
    println!(
        "memory: {:.1} MiB before, at most {:.1} MiB, {:.1} MiB after; slope {:+.2} MiB/h",
        before.memory_mib(),
        samples.most_memory_mib(),
        after.memory_mib(),
        slope,
    );
    println!(
        "heap: {:.1} MiB before, at most {:.1} MiB, {:.1} MiB after",
        before.heap_mib(),
        samples.most_heap_mib(),
        after.heap_mib(),
    );
    println!(
        "tasks {} before, {} after; file descriptors {} before, at most {}, {} after; running runs {left:?}",
        before.tasks,
        after.tasks,
        before.files,
        samples.most_files(),
        after.files,
    );

    let mut failures = counts.failures();
    if after.tasks > before.tasks {
        failures.push(format!("{} tasks leaked", after.tasks - before.tasks));
    }
    if after.files > before.files {
        failures.push(format!(
            "{} file descriptors leaked",
            after.files - before.files
        ));
    }
    if after.heap > before.heap + KEPT {
        failures.push(format!("{} KiB of heap leaked", after.heap - before.heap));
    }
    if !left.is_empty() {
        failures.push(format!("{} runs are still recorded as running", left.len()));
    }
    if time >= JUDGED && slope >= 1.0 {
        failures.push(format!("memory grows by {slope:.2} MiB/h"));
    }
    Ok(failures)
}
