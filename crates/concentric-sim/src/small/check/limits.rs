//! The models of the limits: quotas, concurrent calls, circuits and attempts of each process.

use crate::small::{
    agent::Settings,
    history::{Ending, Note, What},
    outside::Provider,
    time::ProcessId,
};
use std::collections::{BTreeMap, VecDeque};

/// The calls of a process to a provider.
#[derive(Default)]
struct Upstream {
    // The monotonic times of the last calls.
    recent: VecDeque<u64>,
    // The circuit's period in which each call was let pass.
    admitted: BTreeMap<u64, u64>,
    under_way: Vec<u64>,
    circuit: Circuit,
}

/// A circuit that opens after a number of consecutive failures.
#[derive(Default)]
struct Circuit {
    // Increases with each change of the state.
    period: u64,
    failures: u32,
    // The time until which it is open, or after which it is half open.
    open_until: Option<u64>,
    // The call that probes it, and when that was let pass.
    probe: Option<(u64, u64)>,
}

pub(super) struct Limits<'a> {
    settings: &'a Settings,
    upstreams: BTreeMap<(ProcessId, Provider), Upstream>,
    // The attempts of a run's step.
    attempts: BTreeMap<(ProcessId, String), u32>,
}

impl<'a> Limits<'a> {
    pub(super) const fn new(settings: &'a Settings) -> Self {
        Self {
            settings,
            upstreams: BTreeMap::new(),
            attempts: BTreeMap::new(),
        }
    }

    /// Follows an event.
    pub(super) fn follow(&mut self, note: &Note, found: &mut Vec<String>) {
        let Some(process) = note.process else { return };
        let settings = self.settings;
        let mut wrong = |what: String| found.push(format!("{} ms: {process:?} {what}", note.at));
        match &note.what {
            What::Step { tag } => {
                self.attempts.insert((process, tag.clone()), 0);
            }
            What::Admitted { provider, id, mono } => {
                let upstream = self.upstreams.entry((process, *provider)).or_default();
                let is_under_way = |id: u64| upstream.under_way.contains(&id);
                if let Some(what) = upstream.circuit.begin(*id, *mono, settings, is_under_way) {
                    wrong(format!("called {provider:?} {what}"));
                }
                upstream.admitted.insert(*id, upstream.circuit.period);
            }
            What::Attempt {
                provider,
                id,
                tag,
                mono,
            } => {
                let attempts = self.attempts.entry((process, tag.clone())).or_default();
                *attempts += 1;
                // Each of two providers has its own retries.
                if *attempts > 2 * settings.attempts {
                    wrong(format!("made {attempts} attempts at a step of {tag}"));
                }
                let upstream = self.upstreams.entry((process, *provider)).or_default();
                upstream.under_way.push(*id);
                // Those that processes share are checked together.
                if settings.shared.is_some() {
                    return;
                }
                upstream.recent.push_back(*mono);
                if upstream.recent.len() as u64 > settings.quota
                    && let Some(first) = upstream.recent.pop_front()
                    && mono - first < settings.period * 1_000
                {
                    let took = mono - first;
                    wrong(format!(
                        "exceeded the quota of {provider:?}: {took} µs for a period"
                    ));
                }
                if upstream.under_way.len() > settings.in_flight {
                    let n = upstream.under_way.len();
                    wrong(format!("has {n} calls of {provider:?} under way"));
                }
            }
            What::AttemptOver {
                provider,
                id,
                mono,
                ending,
            } => {
                let upstream = self.upstreams.entry((process, *provider)).or_default();
                upstream.under_way.retain(|it| it != id);
                // The outcome counts for the period in which the call began.
                if upstream.admitted.remove(id) == Some(upstream.circuit.period) {
                    upstream.circuit.end(*id, *mono, *ending, settings);
                }
            }
            _ => {}
        }
    }
}

impl Circuit {
    /// Returns why a call should not have passed.
    fn begin(
        &mut self,
        id: u64,
        mono: u64,
        settings: &Settings,
        is_under_way: impl Fn(u64) -> bool,
    ) -> Option<String> {
        let until = self.open_until?;
        if mono < until {
            return Some(format!("{} µs before its circuit may close", until - mono));
        }
        let open_for = settings.open_for * 1_000;
        // A probe that waits for a limit may have given its place back, and one that hangs is replaced.
        let probes = |(probe, since): (u64, u64)| is_under_way(probe) && mono < since + open_for;
        if self.probe.is_some_and(probes) {
            return Some("beside the probe of its circuit".to_owned());
        }
        self.probe = Some((id, mono));
        None
    }

    fn end(&mut self, id: u64, mono: u64, ending: Ending, settings: &Settings) {
        match (ending, self.open_until) {
            (Ending::Neither, _) => {
                self.probe = self.probe.filter(|(probe, _)| *probe != id);
            }
            (Ending::Success, _) => {
                self.period += u64::from(self.open_until.is_some());
                (self.failures, self.open_until, self.probe) = (0, None, None);
            }
            (Ending::Failure, None) => {
                self.failures += 1;
                if self.failures >= settings.failures {
                    self.open(mono, settings);
                }
            }
            (Ending::Failure, Some(_)) => self.open(mono, settings),
        }
    }

    fn open(&mut self, mono: u64, settings: &Settings) {
        self.period += 1;
        self.open_until = Some(mono + settings.open_for * 1_000);
        self.probe = None;
    }
}
