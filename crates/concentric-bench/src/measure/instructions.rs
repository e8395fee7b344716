//! Instructions, counted by callgrind. They are exact, and the same for each run of a binary.

use std::{
    env, fs,
    hint::black_box,
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

/// The end of some runs. Callgrind writes its counts at each call of this function.
#[inline(never)]
fn bench_boundary(runs: u64) {
    black_box(runs);
}

/// Executes the batches of runs that [`of`] and [`apart`] count, each with a boundary after it.
pub(crate) fn batches(whole: fn(u64), half: Option<fn(u64)>, runs: u64) {
    let batches = match half {
        None => vec![(whole, 1), (whole, runs), (whole, 2 * runs)],
        Some(half) => vec![(whole, 1), (half, runs), (half, 2 * runs), (whole, runs)],
    };
    for (work, runs) in batches {
        work(runs);
        bench_boundary(runs);
    }
}

/// Returns the instructions of one operation of the work `name` on each of the `sides`, as the
/// difference between two numbers of runs, which excludes the work that is done once for them.
pub(crate) fn of(sides: [&str; 2], name: &str, ops: u64, samples: u64) -> [f64; 2] {
    let runs = runs(ops, samples);
    on_each(sides, |side| {
        let [_, once, twice] = collected(side, name, runs);
        (twice - once) / (runs * ops) as f64
    })
}

/// Returns the instructions of one operation of the work `name` and those of the rest of a run, on each of the
/// `sides`, as the differences between two lengths and two numbers of runs.
///
/// The former are rounded to a tenth: a batch differs by some hundreds of instructions, with the random keys of hash
/// maps.
pub(crate) fn apart(sides: [&str; 2], name: &str, ops: u64, samples: u64) -> [[f64; 2]; 2] {
    let (runs, half) = (runs(ops, samples), ops as f64 / 2.0);
    let [bare, concentric] = on_each(sides, |side| {
        let [_, once, twice, whole] = collected(side, name, runs);
        let op = (whole - once) / (runs as f64 * half);
        let op = (op * 10.0).round() / 10.0;
        let run = (twice - once) / runs as f64;
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

/// Runs that average out the growth of buffers and the random keys of hash maps, as many as there are `samples` of
/// times.
fn runs(ops: u64, samples: u64) -> u64 {
    samples * (1_000 / ops).clamp(1, 10)
}

/// Returns the instructions of each of the [`batches`] of a process.
fn collected<const N: usize>(side: &str, name: &str, runs: u64) -> [f64; N] {
    let binary = env::current_exe().expect("this binary has a path");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let counts = folder.path().join("counts");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--combine-dumps=yes"])
        .arg("--dump-before=*bench_boundary*")
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(binary)
        .args(["work", side, name, &runs.to_string()])
        .output()
        .expect("valgrind was there a moment ago");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{side} {name} failed:\n{stderr}");
    let counts = fs::read_to_string(counts).expect("callgrind writes its counts");
    let totals = counts
        .lines()
        .filter_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    // The last one is of the end of the process.
    let totals: Vec<f64> = totals.collect();
    match totals.first_chunk() {
        Some(batches) if totals.len() == N + 1 => *batches,
        _ => unreachable!("{side} {name}: {totals:?} are not the counts of {N} batches:\n{stderr}"),
    }
}
