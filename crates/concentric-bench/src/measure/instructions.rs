//! Instructions, counted by callgrind. They are exact, and the same for each run of a binary.

use std::{
    env,
    process::{Command, Stdio},
    thread,
};

/// Returns `true` if valgrind is installed.
pub(crate) fn is_available() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns the instructions of one operation of the work `name` on each of the `sides`, as the
/// difference between two numbers of runs, which excludes the start of the process and one-time work.
pub(crate) fn of(sides: [&str; 2], name: &str, ops: u64) -> [f64; 2] {
    let runs = runs(ops);
    on_each(sides, |side| {
        let once = collected(side, name, runs);
        let twice = collected(side, name, 2 * runs);
        (twice as f64 - once as f64) / (runs * ops) as f64
    })
}

/// Returns the instructions of one operation of the work `name` and those of the rest of a run, on each of the
/// `sides`, as the differences between two lengths and two numbers of runs.
///
/// The former are rounded to a tenth: the start of a process differs by some hundreds of instructions, with its
/// arguments and the random keys of hash maps.
pub(crate) fn apart(sides: [&str; 2], name: &str, ops: u64) -> [[f64; 2]; 2] {
    let (runs, half) = (runs(ops), ops as f64 / 2.0);
    let [bare, concentric] = on_each(sides, |side| {
        let short = format!("{side}-half");
        let once = collected(&short, name, runs);
        let twice = collected(&short, name, 2 * runs);
        let whole = collected(side, name, runs);
        let op = (whole as f64 - once as f64) / (runs as f64 * half);
        let op = (op * 10.0).round() / 10.0;
        let run = (twice as f64 - once as f64) / runs as f64;
        [op, run - half * op]
    });
    let ([op, run], [our_op, our_run]) = (bare, concentric);
    [[op, our_op], [run, our_run]]
}

/// Counts the sides at the same time: other processes do not change the counts.
fn on_each<T: Send>(sides: [&str; 2], count: impl Fn(&str) -> T + Sync) -> [T; 2] {
    thread::scope(|scope| {
        let counts = sides.map(|side| {
            let count = &count;
            scope.spawn(move || count(side))
        });
        counts.map(|count| count.join().expect("the count panicked"))
    })
}

/// Enough runs to average out the growth of buffers and the random keys of hash maps.
fn runs(ops: u64) -> u64 {
    (20_000 / ops).clamp(8, 200)
}

/// Returns the instructions of a process that executes `runs` runs.
fn collected(side: &str, name: &str, runs: u64) -> u64 {
    let binary = env::current_exe().expect("this binary has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(binary)
        .args(["work", side, name, &runs.to_string()])
        .output()
        .expect("valgrind was there a moment ago");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{side} {name} failed:\n{stderr}");
    stderr
        .lines()
        .find_map(|line| line.split_once("Collected : "))
        .and_then(|(_, count)| count.trim().parse().ok())
        .unwrap_or_else(|| unreachable!("callgrind collected nothing:\n{stderr}"))
}
