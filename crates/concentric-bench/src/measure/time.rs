//! CPU time of the process (user and system, all threads).

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The least CPU time of a sample: long enough to hide the clock's resolution and an interrupt.
const SAMPLE: Duration = Duration::from_millis(4);

fn now() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// Returns the CPU time of this thread.
pub(crate) fn of_thread() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

fn of(run: fn(u64), runs: u64) -> Duration {
    let start = now();
    run(runs);
    now() - start
}

/// Returns the CPU time per operation of each side in nanoseconds: the medians of `samples`, after
/// a warm-up. The sides alternate, so that both are measured under the same conditions.
pub(crate) fn medians<const N: usize>(sides: [fn(u64); N], ops: u64, samples: usize) -> [f64; N] {
    // The last round takes as long as a sample, which also warms up.
    let runs = sides.map(|run| {
        let mut runs = 1;
        while of(run, runs) < SAMPLE {
            runs *= 2;
        }
        runs
    });
    let mut taken = [const { Vec::new() }; N];
    for _ in 0..samples {
        for ((run, runs), taken) in sides.iter().zip(runs).zip(&mut taken) {
            taken.push(of(*run, runs).as_nanos() as f64 / (runs * ops) as f64);
        }
    }
    taken.map(median)
}

/// Returns the median.
pub(crate) fn median(mut taken: Vec<f64>) -> f64 {
    taken.sort_by(f64::total_cmp);
    taken.get(taken.len() / 2).copied().unwrap_or(f64::NAN)
}
