//! CPU time of the process (user and system, all threads).

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The least a sample takes: long against the clock's resolution and an interrupt.
const SAMPLE: Duration = Duration::from_millis(4);

fn now() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
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

/// Nanoseconds of CPU time per operation of both sides: medians of `samples` after warm-up, the
/// sides in turn, so that both see the same machine.
pub(crate) fn medians<const N: usize>(sides: [fn(u64); N], ops: u64, samples: usize) -> [f64; N] {
    // Warms up, too: the last round takes as long as a sample.
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

/// The one in the middle.
pub(super) fn median(mut taken: Vec<f64>) -> f64 {
    taken.sort_by(f64::total_cmp);
    taken.get(taken.len() / 2).copied().unwrap_or(f64::NAN)
}
