//! Worlds of some processes: the layers of the product run in them as they are, and everything around them is
//! simulated from one seed: the store's connections, clocks, providers, tools, clients and faults.

mod agent;
mod check;
mod client;
mod history;
mod limits;
mod nemesis;
mod outside;
mod store;
mod time;
mod world;

pub(crate) use self::{
    agent::Retries,
    check::Figures,
    time::{Act, ProcessClock, Time, environment, lock},
    world::Tasks,
};

use self::{
    agent::Settings,
    check::Outcome,
    client::Clients,
    history::Note,
    store::Database,
    world::{CLIENTS, Hosts, tenant_of},
};
use crate::dice::Dice;
use concentric_core::{ThreadId, store::ThreadStore};
use concentric_store::{MemoryStore, Options};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// What happened in a world.
pub(crate) struct Report {
    pub(crate) notes: Vec<Note>,
    /// Of the notes and the times of all events.
    pub(crate) digest: u64,
    pub(crate) events: u64,
    pub(crate) figures: Figures,
    pub(crate) violations: Vec<String>,
}

impl Report {
    /// The report of a world that could not begin.
    pub(crate) fn failed(error: &std::io::Error) -> Self {
        Self {
            notes: Vec::new(),
            digest: 0,
            events: 0,
            figures: Figures::default(),
            violations: vec![error.to_string()],
        }
    }
}

/// How long the runs of a world may take to end after its faults, in milliseconds.
const ENDS_WITHIN: u64 = 600_000;

/// Simulates the world of a seed, and checks it.
pub(crate) fn run(seed: u64) -> std::io::Result<Report> {
    let dice = Dice::new(seed);
    let mut sizes = dice.fork(0);
    let time = Time::new(dice.fork(1));
    let settings = Settings::new(&mut sizes);
    let workers = match sizes.below(10) {
        0..=7 => sizes.range(3, 5),
        8 => sizes.range(6, 10),
        _ => sizes.range(11, 20),
    };
    let workers = usize::try_from(workers).unwrap_or(3);
    let losses = match sizes.below(3) {
        0 => 0,
        _ => sizes.range(20, 400),
    };
    let (threads, thinks) = (sizes.range(2, 8), sizes.range(0, 6_000));
    let clock = || ProcessClock::new(time.clone(), Some(CLIENTS), 0, Arc::new(AtomicI64::new(0)));
    let store = MemoryStore::with_options(Options::new().clock(clock()));
    // In half of the worlds, runs of a conversation overlap, and processes end when a run has begun to wait.
    let mut further = dice.fork(5);
    let overlaps = further.one_in(2);
    let deaths = overlaps.then(|| further.fork(0));
    let database = Database::new(time.clone(), store.clone(), &settings, deaths);
    let clients = Tasks::new()?;
    let plan = nemesis::plan(&time, workers, dice.fork(2));
    let mut hosts = Hosts::new(
        database.clone(),
        settings.clone(),
        workers,
        losses,
        clients,
        dice.fork(3),
    );
    for at in 0..workers {
        hosts.start(at);
    }
    let shared = Arc::new(Clients {
        time: time.clone(),
        database: database.clone(),
        effects: hosts.effects.clone(),
        clock: clock(),
        dice: Mutex::new(dice.fork(4)),
        workers,
        lease: settings.lease,
        thinks,
        overlaps,
        requests: AtomicU64::new(0),
        open: AtomicUsize::new(usize::try_from(threads).unwrap_or(0)),
        scripts: Mutex::default(),
    });
    for n in 0..threads {
        let turns = sizes.range(1, 3);
        let conversation = Arc::clone(&shared).converse(format!("t{n}"), turns);
        hosts.clients.spawn(conversation);
    }
    hosts.clients.spawn(Arc::clone(&shared).approve());
    hosts.clients.run();

    let mut quiet_until = None;
    while let Some((process, act)) = time.next() {
        let now = time.now();
        hosts.happen(process, act);
        let is_over = now > plan.calm
            && shared.open.load(Relaxed) == 0
            && quiet_until.is_some_and(|until| now >= until);
        if is_over || now > plan.calm + ENDS_WITHIN {
            break;
        }
        // Requests that are under way arrive, and are checked as well.
        if quiet_until.is_none() && shared.open.load(Relaxed) == 0 && now > plan.calm {
            quiet_until = database.open().is_empty().then_some(now + 3_000);
        }
    }
    let scripts = lock(&shared.scripts).clone();
    let threads = scripts.into_iter().map(|(thread, scripts)| {
        let load = store.load(tenant_of(&thread), ThreadId::new(thread.as_str()));
        let stored = database.read(load).ok().flatten();
        let history = stored.map(|stored| stored.history).unwrap_or_default();
        (thread, (scripts, history))
    });
    let threads = threads.collect();
    let (open, ends) = (database.open(), database.ends());
    let is_open = shared.open.load(Relaxed) > 0;
    let sums = tenants(&settings, &database);
    let (notes, digest, events) = time.take();
    drop(hosts);
    time.end();
    let outcome = Outcome {
        notes: &notes,
        settings: &settings,
        plan: &plan,
        workers,
        threads,
        ends,
        open: open
            .into_iter()
            .map(|(tag, row)| format!("{tag} {:?}", row.status))
            .collect(),
        is_open,
        ended: time.now(),
        sums,
    };
    let (figures, violations) = check::check(&outcome);
    Ok(Report {
        notes,
        digest,
        events,
        figures,
        violations,
    })
}

/// The spending and the reservations of all tenants in the end.
fn tenants(settings: &Settings, database: &Database) -> Vec<(String, Vec<[u64; 2]>)> {
    let tenants = ["0", "1", "2"].map(tenant_of).into_iter();
    let tenants = tenants.filter(|_| settings.shared.is_some());
    let sums = tenants.map(|tenant| {
        let sums = limits::sums(database, &tenant, &database.budgets);
        (tenant.0.to_string(), sums)
    });
    sums.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(report: &Report) -> Vec<String> {
        report.notes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_seed_has_one_history() {
        for seed in [0, 7, 31] {
            let (one, other) = (run(seed).unwrap(), run(seed).unwrap());
            assert_eq!(text(&one), text(&other));
            assert_eq!((one.digest, one.events), (other.digest, other.events));
            assert_ne!(one.digest, run(seed + 1).unwrap().digest);
        }
    }

    #[test]
    fn processes_that_fail_lose_nothing_and_repeat_nothing() {
        let mut figures = Figures::default();
        for seed in 0..60 {
            let report = run(seed).unwrap();
            assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
            figures.add(report.figures);
        }
        // The worlds have the events that they are for.
        assert!(figures.takeovers > 0 && figures.decisions > 0 && figures.inquiries > 0);
        assert!(figures.shared_calls > 0 && figures.outage_calls > 0);
        assert!(figures.charged_in_full > 0);
    }
}
