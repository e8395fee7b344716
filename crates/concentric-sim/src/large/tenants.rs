//! Tenants that share a quota, one of which has half of the load: with the arithmetic of the stores.

use crate::dice::Dice;
use concentric_core::store::{Quota, QuotaState, QuotaWant};
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    time::Duration,
};

/// The calls a second that may begin, that one tenant makes, and that each of the others makes.
pub(super) const QUOTA: u64 = 100;
pub(super) const HOT: u64 = 75;
pub(super) const EACH: u64 = 5;
pub(super) const OTHERS: u64 = 15;

const PROCESSES: usize = 4;

/// After this many milliseconds, a waiting call fails: the default of `RateLimitLayer::wait`.
const GIVES_UP: u64 = 30_000;

const SECONDS: u64 = 240;

/// The calls that arrive in this time count, in milliseconds: the first ones have a quota that is not used yet, and the
/// last ones are not decided.
const COUNTED: Range<u64> = 60_000..200_000;

/// The calls for which a process asks at once.
const MOST: usize = 64;

/// The calls of some tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    pub(super) calls: u64,
    pub(super) failed: u64,
    /// The milliseconds that each call waited that began.
    pub(super) waited: Vec<u64>,
}

#[derive(Default)]
struct Process {
    // The calls that wait, by owner: the tenants and times of their arrival.
    queues: BTreeMap<String, VecDeque<(u64, u64)>>,
    due: u64,
}

/// The calls of the hot tenant and of the others. Without turns, all calls have one owner.
pub(super) fn run(seed: u64, has_turns: bool) -> [Waits; 2] {
    let mut dice = Dice::new(seed);
    let mut state = QuotaState::default();
    let quota = Quota::per(Duration::from_secs(1)).requests(QUOTA);
    let mut processes: Vec<Process> = (0..PROCESSES).map(|_| Process::default()).collect();
    let mut waits = [Waits::default(), Waits::default()];
    for now in 0..SECONDS * 1_000 {
        for tenant in 0..=OTHERS {
            let rate = if tenant == 0 { HOT } else { EACH };
            let place = dice.below(PROCESSES as u64);
            if dice.share() * 1_000.0 >= rate as f64 {
                continue;
            }
            if let Some(process) = processes.get_mut(usize::try_from(place).unwrap_or_default()) {
                let owner = if has_turns { tenant } else { 0 };
                let queue = process.queues.entry(owner.to_string()).or_default();
                // It is asked at once for an owner who did not wait.
                if queue.is_empty() {
                    process.due = now;
                }
                queue.push_back((tenant, now));
            }
            of(&mut waits, tenant).calls += u64::from(COUNTED.contains(&now));
        }
        for (n, process) in processes.iter_mut().enumerate() {
            process.give_up(now, &mut waits);
            if process.due <= now && !process.queues.is_empty() {
                process.ask(now, &n.to_string(), &mut state, &quota, &mut waits);
            }
        }
    }
    for waits in &mut waits {
        waits.waited.sort_unstable();
    }
    waits
}

fn of(waits: &mut [Waits; 2], tenant: u64) -> &mut Waits {
    let [hot, others] = waits;
    if tenant == 0 { hot } else { others }
}

impl Process {
    fn give_up(&mut self, now: u64, waits: &mut [Waits; 2]) {
        for queue in self.queues.values_mut() {
            while let Some((tenant, since)) = queue.front().copied()
                && now - since >= GIVES_UP
            {
                queue.pop_front();
                of(waits, tenant).failed += u64::from(COUNTED.contains(&since));
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    fn ask(
        &mut self,
        now: u64,
        caller: &str,
        state: &mut QuotaState,
        quota: &Quota,
        waits: &mut [Waits; 2],
    ) {
        let most = (MOST / self.queues.len()).max(1);
        let wants = self.queues.iter().map(|(owner, queue)| {
            QuotaWant::new(owner.as_str(), vec![[1, 0, 0]; queue.len().min(most)])
        });
        let wants: Vec<_> = wants.collect();
        let taken = state.take(quota, caller, &wants, [0; 3], Duration::from_millis(now));
        for (queue, granted) in self.queues.values_mut().zip(&taken.granted) {
            let begun = queue.drain(..*granted);
            for (tenant, since) in begun.filter(|(_, since)| COUNTED.contains(since)) {
                of(waits, tenant).waited.push(now - since);
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        let wait = taken.wait.as_micros().div_ceil(1_000);
        self.due = now + u64::try_from(wait).unwrap_or(1_000).max(2);
    }
}
