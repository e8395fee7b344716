//! Looks for each planted bug, and then explores the machine: `concentric-explorer [small|single|deep|gated|full]`,
//! by default the last three.

use concentric_explorer::{BUGS, Bounds, explore, find};
use std::{env, fs, process::ExitCode};

fn main() -> ExitCode {
    let name = env::args().nth(1);
    let all = match name.as_deref() {
        None => vec![Bounds::deep(), Bounds::gated(), Bounds::full()],
        Some("small") => vec![Bounds::small()],
        Some("single") => vec![Bounds::single()],
        Some("deep") => vec![Bounds::deep()],
        Some("gated") => vec![Bounds::gated()],
        Some("full") => vec![Bounds::full()],
        Some(other) => {
            eprintln!("unknown bounds `{other}`");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = false;
    for bug in BUGS {
        match find(bug) {
            Some(violation) => println!(
                "{bug}: found by {} in {} steps",
                violation.property,
                violation.path.len()
            ),
            None => {
                println!("{bug}: not found");
                failed = true;
            }
        }
    }
    for bounds in all {
        let report = explore(&bounds, |report| eprintln!("{report}"));
        println!("{report}; so far {}", used());
        failed |= report.violation.is_some() || !report.complete;
    }
    ExitCode::from(u8::from(failed))
}

/// The processor time and the largest amount of memory that the process has used, where the system reports
/// them.
fn used() -> String {
    let times = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = times.split(' ').next().and_then(|nanos| nanos.parse().ok());
    let seconds = nanos.unwrap_or(0_u64) / 1_000_000_000;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.unwrap_or("unknown").trim();
    format!("{seconds} s of one processor, peak memory {peak}")
}
