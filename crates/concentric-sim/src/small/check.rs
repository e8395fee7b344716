//! The invariants, checked by a model of runs over the history of a world.
//!
//! The model knows neither the store nor the layers: it follows their writes, and the records of the world, the
//! providers and the clients.

mod history;
mod limits;
mod money;
mod runs;
mod shared;

use self::{limits::Limits, money::Money, runs::Runs, shared::Shared};
use super::{
    agent::{Script, Settings},
    history::{End, Note},
    nemesis::Plan,
};
use concentric_core::Transcript;
use std::collections::BTreeMap;

/// A world that has ended.
pub(super) struct Outcome<'a> {
    pub(super) notes: &'a [Note],
    pub(super) settings: &'a Settings,
    pub(super) plan: &'a Plan,
    pub(super) workers: usize,
    /// The requests of each conversation, and its history in the store.
    pub(super) threads: BTreeMap<String, (Vec<Script>, Transcript)>,
    /// The outcomes that the store has of runs.
    pub(super) ends: BTreeMap<String, End>,
    /// The runs that have not ended.
    pub(super) open: Vec<String>,
    /// Whether a client still waits.
    pub(super) is_open: bool,
    /// The time at the end, and what the budgets of each tenant have then.
    pub(super) ended: u64,
    pub(super) sums: Vec<(String, Vec<[u64; 2]>)>,
}

/// The counts of a world, or of several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) workers: u64,
    pub(crate) requests: u64,
    pub(crate) runs: u64,
    pub(crate) completed: u64,
    pub(crate) steps: u64,
    pub(crate) attempts: u64,
    pub(crate) takeovers: u64,
    pub(crate) quarantines: u64,
    pub(crate) effects: u64,
    pub(crate) decisions: u64,
    pub(crate) inquiries: u64,
    /// The calls that a shared quota let begin, those that began in an outage of it, and the money that was charged.
    pub(crate) shared_calls: u64,
    pub(crate) outage_calls: u64,
    pub(crate) money: u64,
    pub(crate) charged_in_full: u64,
    pub(crate) faults: BTreeMap<String, u64>,
    /// The milliseconds from the crash of a process until another one claimed its runs.
    pub(crate) resumed: Vec<u64>,
    /// The milliseconds from the last fault until the runs that it left have ended.
    pub(crate) settled: Vec<u64>,
}

impl Figures {
    /// The counts in some lines.
    pub(crate) fn text(&mut self) -> String {
        self.resumed.sort_unstable();
        self.settled.sort_unstable();
        let of = |times: &[u64]| {
            let at = |part: usize| {
                let at = (times.len() * part / 100).min(times.len().saturating_sub(1));
                times.get(at).copied().unwrap_or_default()
            };
            let last = times.last().copied().unwrap_or_default();
            format!("{} (p50), {} (p99), {last} (max)", at(50), at(99))
        };
        let faults = self.faults.iter().map(|(fault, n)| format!("{fault} {n}"));
        format!(
            "{} workers, {} requests, {} runs of which {} completed, {} steps, {} model calls, {} takeovers, {} \
             quarantines, {} effects, {} decisions, {} unknown effects determined by a person\n\
             shared limits: {} calls, and {} in outages; {} charged, {} reservations in full\n\
             faults: {}\n\
             ms from a crash until the claim of each run: {}\n\
             ms from the last fault until the end of each run: {}",
            self.workers,
            self.requests,
            self.runs,
            self.completed,
            self.steps,
            self.attempts,
            self.takeovers,
            self.quarantines,
            self.effects,
            self.decisions,
            self.inquiries,
            self.shared_calls,
            self.outage_calls,
            self.money,
            self.charged_in_full,
            faults.collect::<Vec<_>>().join(", "),
            of(&self.resumed),
            of(&self.settled),
        )
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.workers += other.workers;
        self.requests += other.requests;
        self.runs += other.runs;
        self.completed += other.completed;
        self.steps += other.steps;
        self.attempts += other.attempts;
        self.takeovers += other.takeovers;
        self.quarantines += other.quarantines;
        self.effects += other.effects;
        self.decisions += other.decisions;
        self.inquiries += other.inquiries;
        self.shared_calls += other.shared_calls;
        self.outage_calls += other.outage_calls;
        self.money += other.money;
        self.charged_in_full += other.charged_in_full;
        for (fault, n) in other.faults {
            *self.faults.entry(fault).or_default() += n;
        }
        self.resumed.extend(other.resumed);
        self.settled.extend(other.settled);
    }
}

/// Returns the counts of a world, and the violations of the invariants.
pub(super) fn check(outcome: &Outcome<'_>) -> (Figures, Vec<String>) {
    let mut found = Vec::new();
    let mut figures = Figures {
        workers: outcome.workers as u64,
        ..Figures::default()
    };
    let mut runs = Runs::new(outcome);
    let mut limits = Limits::new(outcome.settings);
    let shared = outcome.settings.shared.as_ref();
    let mut shared = shared.map(|it| (Shared::new(outcome.settings, it), Money::new(it)));
    for note in outcome.notes {
        runs.follow(note, &mut figures, &mut found);
        limits.follow(note, &mut found);
        if let Some((shared, money)) = &mut shared {
            shared.follow(note, &mut figures, &mut found);
            money.follow(note, &mut figures, &mut found);
        }
    }
    if let Some((_, money)) = &mut shared {
        money.end(outcome.ended, &outcome.sums, &mut figures, &mut found);
    }
    runs.end(&outcome.ends, &mut found);
    if outcome.is_open || !outcome.open.is_empty() {
        let open = &outcome.open;
        found.push(format!(
            "runs have not ended long after the last fault: {open:?}"
        ));
    }
    history::check(outcome, &runs, &mut found);
    (figures, found)
}
