//! Instructions, counted by callgrind: exact, and the same on every run of the same binary.

use std::{
    env,
    process::{Command, Stdio},
};

/// Whether there is a callgrind to count with.
pub(crate) fn is_available() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The instructions of one operation of the work `name` on `side`: the difference of two counts of runs, so
/// that the start of the process and what is made once do not count.
pub(crate) fn of(side: &str, name: &str, ops: u64) -> f64 {
    // Enough for the growth of a buffer, or a hash map's keys, to show as what it is on average.
    let runs = (20_000 / ops).clamp(8, 200);
    let once = collected(side, name, runs);
    let twice = collected(side, name, 2 * runs);
    (twice as f64 - once as f64) / (runs * ops) as f64
}

/// The instructions of a process that does `runs` runs.
fn collected(side: &str, name: &str, runs: u64) -> u64 {
    let binary = env::current_exe().expect("this binary has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(binary)
        .args(["work", side, name, &runs.to_string()])
        .output()
        .expect("valgrind was there a moment ago");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{side} {name} failed:\n{said}");
    said.lines()
        .find_map(|line| line.split_once("Collected : "))
        .and_then(|(_, count)| count.trim().parse().ok())
        .unwrap_or_else(|| unreachable!("callgrind collected nothing:\n{said}"))
}
