//! The sizes of clusters, from measured figures: formulas, and simulations of one database with its share of the load.

mod measured;
mod outage;
mod shard;
mod tenants;

use self::{
    measured::Measured,
    outage::{Fault, Outage, Policy},
    shard::{Load, Measures, Shard},
};
use std::{fmt::Write as _, time::Duration};

/// The share of the capacity of a database that is planned with.
const USED: f64 = 0.7;

/// The mean time of a step apart from the store.
const STEP: Duration = Duration::from_secs(6);

/// The transactions of a reply: the run is found and claimed; its state, the start and the outcome of the effect, its
/// turn, and its end or next question are stored.
const PER_REPLY: f64 = 7.0;

/// The live runs of a process.
const PER_WORKER: usize = 500;

const LEASE: Duration = concentric_core::store::LEASE;
const SWEEP: Duration = Duration::from_secs(5);

/// The load of a cluster.
struct Size {
    name: &'static str,
    waiting: usize,
    live: usize,
    replies_per_minute: f64,
}

const SIZES: [Size; 4] = [
    Size {
        name: "1,000,000 suspended runs, each answered within 30 days",
        waiting: 1_000_000,
        live: 0,
        replies_per_minute: 1_000_000.0 / (30.0 * 24.0 * 60.0),
    },
    Size {
        name: "100,000 live runs",
        waiting: 0,
        live: 100_000,
        replies_per_minute: 0.0,
    },
    Size {
        name: "10,000 approvals a minute",
        waiting: 100_000,
        live: 0,
        replies_per_minute: 10_000.0,
    },
    Size {
        name: "all of these together",
        waiting: 1_000_000,
        live: 100_000,
        replies_per_minute: 10_000.0,
    },
];

impl Size {
    /// The steps that follow the replies are those of live runs: eight for each reply, as in the simulation.
    fn steps_per_second(&self) -> f64 {
        self.live as f64 / STEP.as_secs_f64() + 8.0 * self.replies_per_minute / 60.0
    }

    fn transactions_per_second(&self, measured: &Measured) -> f64 {
        let steps = self.steps_per_second() * measured.cluster.transactions_per_step;
        steps + PER_REPLY * self.replies_per_minute / 60.0
    }

    fn databases(&self, measured: &Measured) -> usize {
        let each = measured.postgres.checkpoints_per_second * USED;
        (self.transactions_per_second(measured) / each)
            .ceil()
            .max(1.0) as usize
    }

    /// Live runs, and those that the replies continue.
    fn live(&self) -> f64 {
        self.live as f64 + 8.0 * self.replies_per_minute / 60.0 * STEP.as_secs_f64()
    }

    fn workers(&self) -> usize {
        (self.live() / PER_WORKER as f64).ceil().max(2.0) as usize
    }

    /// The processors that the processes need.
    fn processors(&self, measured: &Measured) -> f64 {
        let process = &measured.process;
        let store =
            self.transactions_per_second(measured) * measured.postgres.process_us_per_checkpoint;
        (store + self.steps_per_second() * process.answer_us) / 1e6
    }

    /// The load of one of the databases.
    fn share(&self, measured: &Measured) -> Load {
        let databases = self.databases(measured);
        Load {
            workers: (self.workers() / databases).max(4),
            live: self.live / databases,
            waiting: self.waiting / databases,
            replies: self.replies_per_minute / 60.0 / databases as f64,
            step: STEP,
            lease: LEASE,
            sweep: SWEEP,
            limit: PER_WORKER,
            dies: 0.0,
            herd: 0,
            fails: Duration::ZERO,
            seconds: 120,
        }
    }
}

fn percentile(times: &[u64], part: usize) -> u64 {
    let at = (times.len() * part / 100).min(times.len().saturating_sub(1));
    times.get(at).copied().unwrap_or_default()
}

/// A time in milliseconds or seconds.
fn time(micros: u64) -> String {
    match micros {
        0..10_000_000 => format!("{} ms", micros.div_ceil(1_000)),
        _ => format!("{:.0} s", micros as f64 / 1e6),
    }
}

fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn simulated(load: &Load, measured: &Measured, seed: u64) -> Measures {
    Shard::new(load, measured, seed).run()
}

/// The seed of the simulations of the page.
const SEED: u64 = 1;

/// Returns the figures of the page about sizes, and whether the simulations have kept all runs.
///
/// # Errors
///
/// A file of measured figures can't be read.
pub(crate) fn figures() -> Result<(String, bool), Box<dyn std::error::Error>> {
    let measured = Measured::read()?;
    let mut page = String::new();
    let mut is_whole = true;
    one_machine(&mut page, &measured)?;
    sizes(&mut page, &measured)?;
    writeln!(
        page,
        "\n| one of the databases, simulated for two minutes | connections busy | transaction, p50; p99 | reply to claim, p50; p99 | transactions a second |"
    )?;
    writeln!(page, "|---|---|---|---|---|")?;
    for size in &SIZES {
        let measures = simulated(&size.share(&measured), &measured, SEED);
        is_whole &= measures.violations == 0;
        row(&mut page, size.name, &measures, 120)?;
    }
    let [_, _, _, all] = &SIZES;
    faults(&mut page, all, &measured, &mut is_whole)?;
    failover(&mut page, all, &measured, &mut is_whole)?;
    outages(&mut page)?;
    tenants(&mut page)?;
    validation(&mut page, &measured)?;
    Ok((page, is_whole))
}

fn row(page: &mut String, name: &str, measures: &Measures, seconds: u64) -> std::fmt::Result {
    let of = |times: &[u64]| match times {
        [] => "–".to_owned(),
        times => format!(
            "{}; {}",
            time(percentile(times, 50)),
            time(percentile(times, 99))
        ),
    };
    writeln!(
        page,
        "| {name} | {:.0} % | {} | {} | {} |",
        100.0 * measures.busy,
        of(&measures.stored),
        of(&measures.replied),
        thousands(measures.transactions as f64 / seconds as f64),
    )
}

fn one_machine(page: &mut String, measured: &Measured) -> std::fmt::Result {
    let Measured {
        postgres,
        cluster,
        process,
    } = measured;
    let steps = postgres.checkpoints_per_second / cluster.transactions_per_step;
    let live = steps * STEP.as_secs_f64();
    let suspended = 1e6;
    writeln!(page, "| one machine holds | | from |")?;
    writeln!(page, "|---|---|---|")?;
    let rate = postgres.checkpoints_per_second;
    writeln!(
        page,
        "| transactions a second | {} | measured |",
        thousands(rate)
    )?;
    let per_step = cluster.transactions_per_step;
    writeln!(
        page,
        "| steps a second | {} | {} ÷ {per_step} transactions of a step |",
        thousands(steps),
        thousands(rate)
    )?;
    writeln!(
        page,
        "| live runs, with a step each {} s | {} | {} × {} s |",
        STEP.as_secs(),
        thousands(live),
        thousands(steps),
        STEP.as_secs()
    )?;
    writeln!(
        page,
        "| memory of these runs, without their transcripts | {:.1} MB | {} × {} bytes |",
        live * process.live_run_bytes / 1e6,
        thousands(live),
        thousands(process.live_run_bytes)
    )?;
    let replies = rate / PER_REPLY;
    writeln!(
        page,
        "| replies a second, of runs that end then | {} | {} ÷ {PER_REPLY} transactions of a reply |",
        thousands(replies),
        thousands(rate)
    )?;
    writeln!(
        page,
        "| disk of {} suspended runs | {:.2} GB | {} × {} bytes |",
        thousands(suspended),
        suspended * postgres.waiting_bytes / 1e9,
        thousands(suspended),
        thousands(postgres.waiting_bytes)
    )?;
    writeln!(
        page,
        "| find a run among {}; claim it, p99 | {} ms; {} ms | measured |",
        thousands(suspended),
        postgres.find_p99_ms,
        postgres.claim_p99_ms
    )?;
    let renewed = postgres.renewed_rows_per_second * LEASE.as_secs_f64() / 3.0;
    writeln!(
        page,
        "| live runs without steps, whose leases of {} s are renewed each {} s | {} | {} rows a second × {} s |",
        LEASE.as_secs(),
        LEASE.as_secs() / 3,
        thousands(renewed),
        thousands(postgres.renewed_rows_per_second),
        LEASE.as_secs() / 3
    )?;
    writeln!(
        page,
        "\nMeasured: {}. {}. {}.\n",
        postgres.source, cluster.source, process.source
    )
}

fn sizes(page: &mut String, measured: &Measured) -> std::fmt::Result {
    writeln!(
        page,
        "| a cluster for | steps a second | transactions a second | databases | processes | their processors | disk of suspended runs |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|")?;
    for size in &SIZES {
        let disk = size.waiting as f64 * measured.postgres.waiting_bytes / 1e9;
        writeln!(
            page,
            "| {} | {} | {} | {} | {} | {:.1} | {disk:.2} GB |",
            size.name,
            thousands(size.steps_per_second()),
            thousands(size.transactions_per_second(measured)),
            size.databases(measured),
            size.workers(),
            size.processors(measured),
        )?;
    }
    Ok(())
}

/// Processes that die, and people who answer at the same time.
fn faults(
    page: &mut String,
    size: &Size,
    measured: &Measured,
    is_whole: &mut bool,
) -> std::fmt::Result {
    writeln!(
        page,
        "\n| one database of all of these together | until half of its runs; until all are resumed | transaction, p99 | reply to claim, p99 |"
    )?;
    writeln!(page, "|---|---|---|---|")?;
    let base = size.share(measured);
    let cases = [
        (
            "a quarter of the processes die at once",
            0.25,
            0,
            PER_WORKER,
        ),
        (
            "the same, with the default `Sweeper::limit`, 64",
            0.25,
            0,
            64,
        ),
        ("half of them die", 0.5, 0, PER_WORKER),
        ("2,000 replies arrive at once", 0.0, 2_000, PER_WORKER),
    ];
    for (name, dies, herd, limit) in cases {
        let load = Load {
            dies,
            herd,
            limit,
            seconds: 240,
            ..base.clone()
        };
        let measures = simulated(&load, measured, SEED);
        *is_whole &= measures.violations == 0;
        let resumed = resumed(&measures.resumed);
        let (stored, replied) = (
            percentile(&measures.stored, 99),
            percentile(&measures.replied, 99),
        );
        writeln!(
            page,
            "| {name} | {resumed} | {} | {} |",
            time(stored),
            time(replied)
        )?;
    }
    Ok(())
}

/// The times until half of the runs, and until all, are resumed.
fn resumed(times: &[u64]) -> String {
    match times.last() {
        Some(last) => format!("{}; {}", time(percentile(times, 50)), time(*last)),
        None => "–".to_owned(),
    }
}

/// A database whose first server is lost, and whose second one has not received its last commits.
fn failover(
    page: &mut String,
    size: &Size,
    measured: &Measured,
    is_whole: &mut bool,
) -> std::fmt::Result {
    writeln!(
        page,
        "\n| the database of all of these together loses its first server, and the last 200 ms of commits | live runs; interrupted | runs whose last commit is lost; of these, resumed by a reply that is lost as well | until half of the interrupted runs; until all are resumed |"
    )?;
    writeln!(page, "|---|---|---|---|")?;
    let base = size.share(measured);
    for (seconds, limit) in [
        (10, PER_WORKER),
        (20, PER_WORKER),
        (30, PER_WORKER),
        (30, 64),
    ] {
        let load = Load {
            fails: Duration::from_secs(seconds),
            limit,
            seconds: 480,
            ..base.clone()
        };
        let measures = simulated(&load, measured, SEED);
        *is_whole &= measures.violations == 0;
        let resumed = resumed(&measures.resumed);
        let limit = match limit {
            PER_WORKER => String::new(),
            limit => format!(", with the default `Sweeper::limit`, {limit}"),
        };
        writeln!(
            page,
            "| for {seconds} s{limit} | {}; {} | {}; {} | {resumed} |",
            thousands(measures.live as f64),
            thousands(measures.resumed.len() as f64),
            measures.lost,
            measures.lost_replies,
        )?;
    }
    Ok(())
}

/// Providers that fail, with the layers of the product and with naive retries.
fn outages(page: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    writeln!(
        page,
        "\n| a provider, called ten times a second by four processes | retries | requests for a call | most requests in a second | calls answered | from the recovery to the last failed call |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|")?;
    let cases = [
        ("fails for 10 minutes", Fault::Errors(1.0), 600),
        ("fails for one minute", Fault::Errors(1.0), 60),
        (
            "fails three of ten requests for an hour",
            Fault::Errors(0.3),
            3_600,
        ),
        (
            "accepts five requests a second for 10 minutes, and rejects the others with 429",
            Fault::Accepts(5),
            600,
        ),
    ];
    for (name, fault, lasts) in cases {
        for (policy, retries) in [
            (
                Policy::Layers,
                "three layers of three attempts, a circuit, a shared quota",
            ),
            (Policy::Naive, "three times three attempts"),
        ] {
            let outage = Outage {
                fault,
                policy,
                lasts,
                calls: 10,
            };
            let seen = outage.run(SEED)?;
            let calls = seen.calls.max(1) as f64;
            writeln!(
                page,
                "| {name} | {retries} | {:.2} | {} | {:.0} % | {} |",
                seen.requests as f64 / calls,
                seen.most,
                100.0 * seen.answered as f64 / calls,
                match seen.recovered {
                    0 => "–".to_owned(),
                    millis => time(millis * 1_000),
                },
            )?;
        }
    }
    Ok(())
}

/// A tenant with half of the load, beside others.
fn tenants(page: &mut String) -> std::fmt::Result {
    use tenants::{EACH, HOT, OTHERS, QUOTA};
    writeln!(
        page,
        "\n| {QUOTA} calls a second for a tenant that makes {HOT} and {OTHERS} that make {EACH} each, on four processes | calls that fail after 30 s | wait of those that begin, p50; p99 |"
    )?;
    writeln!(page, "|---|---|---|")?;
    for (name, has_turns) in [
        ("in turns of the tenants", true),
        ("in the order of arrival", false),
    ] {
        let [hot, others] = tenants::run(SEED, has_turns);
        for (of, waits) in [("the tenant", &hot), ("the others", &others)] {
            writeln!(
                page,
                "| {name}: {of} | {:.0} % | {}; {} |",
                100.0 * waits.failed as f64 / waits.calls.max(1) as f64,
                time(1_000 * percentile(&waits.waited, 50)),
                time(1_000 * percentile(&waits.waited, 99)),
            )?;
        }
    }
    Ok(())
}

/// The simulation of the cluster test, beside what it measured.
fn validation(page: &mut String, measured: &Measured) -> std::fmt::Result {
    let cluster = &measured.cluster;
    let load = Load {
        workers: 4,
        live: 20,
        waiting: 100,
        replies: 2.4,
        step: Duration::from_secs(1),
        lease: Duration::from_secs(cluster.lease_s),
        sweep: Duration::from_secs(cluster.sweep_s),
        limit: 64,
        dies: 0.25,
        herd: 0,
        fails: Duration::ZERO,
        seconds: 40,
    };
    let mut resumed = Vec::new();
    for seed in 0..200 {
        resumed.extend(simulated(&load, measured, seed).resumed);
    }
    resumed.sort_unstable();
    writeln!(
        page,
        "\n| four processes, lease and sweep of {} s, one dies | simulated | measured |",
        cluster.lease_s
    )?;
    writeln!(page, "|---|---|---|")?;
    writeln!(
        page,
        "| until its runs are resumed, p50; p99 | {}; {} | {} ms; {} ms, beside other faults |",
        time(percentile(&resumed, 50)),
        time(percentile(&resumed, 99)),
        thousands(cluster.resumed_p50_s * 1e3),
        thousands(cluster.resumed_p99_s * 1e3),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        let measured = Measured::read().unwrap();
        let [_, _, _, all] = &SIZES;
        Load {
            dies: 0.3,
            herd: 500,
            seconds: 90,
            ..all.share(&measured)
        }
    }

    #[test]
    fn a_seed_has_one_result() {
        let measured = Measured::read().unwrap();
        let load = load();
        let one = simulated(&load, &measured, 3);
        assert_eq!(one, simulated(&load, &measured, 3));
        assert_ne!(one, simulated(&load, &measured, 4));
        assert_eq!(tenants::run(3, true), tenants::run(3, true));
    }

    #[test]
    fn each_run_is_live_or_waits_or_is_left_or_has_ended() {
        let measured = Measured::read().unwrap();
        for seed in 0..5 {
            let measures = simulated(&load(), &measured, seed);
            assert_eq!(measures.violations, 0);
            assert!(!measures.resumed.is_empty());
        }
    }

    #[test]
    fn a_failover_interrupts_runs_only_beyond_their_leases() {
        let measured = Measured::read().unwrap();
        for (seconds, is_interrupted) in [(13, false), (30, true)] {
            let load = Load {
                dies: 0.0,
                fails: Duration::from_secs(seconds),
                ..load()
            };
            let measures = simulated(&load, &measured, 5);
            assert_eq!(measures.violations, 0);
            assert_ne!(measures.resumed.is_empty(), is_interrupted);
            assert!(measures.lost > 0);
        }
    }

    #[test]
    fn tenants_in_turns_do_not_wait_for_one_with_more_calls() {
        let [hot, others] = tenants::run(3, true);
        assert!(hot.failed > 0 && others.failed == 0);
        assert!(percentile(&others.waited, 99) < 1_000);
    }

    #[test]
    fn the_runs_of_dead_processes_are_resumed_after_their_leases() {
        let measured = Measured::read().unwrap();
        let measures = simulated(&load(), &measured, 5);
        // A renewal has come a third of the lease before, at the latest, and a sweeper looks within one and a half
        // intervals.
        let first = measures.resumed.first().copied().unwrap();
        let last = measures.resumed.last().copied().unwrap();
        assert!(first >= 6_000_000, "{first}");
        assert!(last <= 30_000_000 + 7_500_000 + 5_000_000, "{last}");
    }
}
