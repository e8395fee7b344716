//! Simulations of Concentric: of processes that fail, and of the sizes of clusters.
//!
//! ```text
//! cargo run --profile bench -p concentric-sim -- seeds 0..2000
//! cargo run --profile bench -p concentric-sim -- seed 17
//! cargo run --profile bench -p concentric-sim -- find 0..10000
//! cargo run --profile bench -p concentric-sim -- sizing [--write] [docs/sizing.md]
//! ```
//!
//! - `seeds` checks the worlds of these seeds, and prints the first violations of each, with the command that repeats
//!   it. The exit code is 1 if there are any.
//! - `seed` prints the history of one world, and its violations.
//! - `find` ends with the first seed that has a violation. The exit code is 1 if there is none: this is used with
//!   mutations of the code, each of which must be found.
//! - `sizing` prints the figures of a page about sizes; with a file, it compares them with those in it, or writes
//!   them.
//!
//! # Worlds
//!
//! In a world, some processes serve runs with the real layers, tools, sweeper and store, over connections, disks and
//! clocks that fail ([`small`]). All of it happens in one thread, in the order of simulated time, and comes from one
//! seed: the same seed has the same history. Invariants are checked on that history by a model that does not know the
//! code.
//!
//! # Sizes
//!
//! The figures of a cluster are computed from measured ones (`measured/*.json`), and one of its databases is simulated
//! with discrete events ([`large`]).

mod dice;
mod large;
mod small;

use small::{Figures, Report};
use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

const USAGE: &str =
    "concentric-sim seeds FIRST..END | seed N | find FIRST..END | sizing [--write] [FILE]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let range = |text: &str| -> Option<(u64, u64)> {
        let (first, end) = text.split_once("..")?;
        Some((first.parse().ok()?, end.parse().ok()?))
    };
    let done = match arguments[..] {
        ["seed", seed] => seed.parse().ok().map(one),
        ["seeds", seeds] => range(seeds).map(|(first, end)| many(first, end)),
        ["find", seeds] => range(seeds).map(|(first, end)| find(first, end)),
        ["sizing"] => Some(sizing(None, false)),
        ["sizing", "--write", file] => Some(sizing(Some(file), true)),
        ["sizing", file] => Some(sizing(Some(file), false)),
        _ => None,
    };
    match done {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::FAILURE,
        None => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn world(seed: u64) -> Report {
    match small::run(seed) {
        Ok(report) => report,
        Err(error) => Report::failed(&error),
    }
}

/// Prints the history of a world.
fn one(seed: u64) -> bool {
    let report = world(seed);
    for note in &report.notes {
        println!("{note}");
    }
    println!("{:?}", report.figures);
    println!("{} events, digest {:016x}", report.events, report.digest);
    for violation in &report.violations {
        println!("violation: {violation}");
    }
    report.violations.is_empty()
}

/// Runs the worlds of some seeds on all processors, until `then` returns `false`.
fn worlds(first: u64, end: u64, then: impl Fn(u64, Report) -> bool + Sync) {
    let (next, is_over) = (AtomicU64::new(first), AtomicBool::new(false));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= end {
                        break;
                    }
                    if !then(seed, world(seed)) {
                        is_over.store(true, Relaxed);
                    }
                }
            });
        }
    });
}

/// Checks the worlds of many seeds.
fn many(first: u64, end: u64) -> bool {
    let began = Instant::now();
    let total = Mutex::new((Figures::default(), 0_u64, BTreeMap::new()));
    worlds(first, end, |seed, report| {
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        total.0.add(report.figures);
        total.1 += report.events;
        if !report.violations.is_empty() {
            total.2.insert(seed, report.violations);
        }
        true
    });
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (mut figures, events, violations) = total;
    for (seed, violations) in violations.iter().take(20) {
        println!("seed {seed}: cargo run --profile bench -p concentric-sim -- seed {seed}");
        for violation in violations.iter().take(5) {
            println!("  {violation}");
        }
    }
    let took = began.elapsed().as_secs_f64();
    println!("{} seeds, {events} events, {took:.1} s", end - first);
    println!("{}", figures.text());
    println!("{} seeds with violations", violations.len());
    violations.is_empty()
}

/// Ends with the first seed that has a violation.
fn find(first: u64, end: u64) -> bool {
    let found = Mutex::new(BTreeMap::new());
    worlds(first, end, |seed, report| {
        let is_kept = report.violations.is_empty();
        if !is_kept {
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.insert(seed, report.violations);
        }
        is_kept
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let Some((seed, violations)) = found.first_key_value() else {
        println!("not found by {} seeds", end - first);
        return false;
    };
    let why = violations.first().map_or("", String::as_str);
    println!(
        "found by seed {seed}, after {} seeds: {why}",
        seed - first + 1
    );
    true
}

/// The lines around the figures in a page.
const MARKS: [&str; 2] = ["<!-- figures -->\n", "<!-- end of figures -->\n"];

/// Prints the figures of the page about sizes, or compares them with those in a file, or writes them.
fn sizing(file: Option<&str>, writes: bool) -> bool {
    let done = large::figures().and_then(|(figures, is_whole)| {
        if !is_whole {
            return Err("the simulations have lost runs".into());
        }
        let Some(file) = file else {
            print!("{figures}");
            return Ok(());
        };
        let page = std::fs::read_to_string(file)?;
        let [begin, end] = MARKS;
        let parts = page.split_once(begin).and_then(|(before, rest)| {
            let (kept, after) = rest.split_once(end)?;
            Some((before, kept, after))
        });
        let (before, kept, after) = parts.ok_or("the page has no figures")?;
        if writes {
            std::fs::write(file, format!("{before}{begin}{figures}{end}{after}"))?;
            return Ok(());
        }
        match kept == figures {
            true => Ok(()),
            false => Err(format!("the figures of {file} are others than these:\n{figures}").into()),
        }
    });
    if let Err(error) = &done {
        eprintln!("{error}");
    }
    done.is_ok()
}
