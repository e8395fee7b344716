//! The faults of a world, all of which are planned when it begins.

use super::{
    history::What,
    outside::{Health, Provider},
    time::{Act, Time},
    world::Hosts,
};
use crate::dice::Dice;

/// When the faults of a world end, and how.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) calm: u64,
    /// Whether all processes are started anew in the end.
    pub(super) restarts: bool,
}

/// The time in which faults happen: what would happen later is left out.
struct Window<'a>(&'a Time, u64);

fn at(window: &Window<'_>, at: u64, act: impl FnOnce(&mut Hosts) + Send + 'static) {
    let Window(time, end) = window;
    if at < *end {
        time.at(at, None, Act::World(Box::new(act)));
    }
}

/// Plans the faults of a world.
pub(super) fn plan(time: &Time, workers: usize, mut dice: Dice) -> Plan {
    let plan = Plan {
        calm: dice.range(20, 60) * 1_000,
        restarts: dice.one_in(2),
    };
    let pace = dice.range(1, 6) * 1_000;
    let mut now = dice.range(1_000, 4_000);
    while now + 1_000 < plan.calm {
        fault(&Window(time, plan.calm), now, workers, &mut dice);
        now += dice.range(1, 2 * pace);
    }
    let restarts = plan.restarts;
    let act = move |hosts: &mut Hosts| {
        hosts.set_slow(0);
        hosts.lose(0);
        hosts.database.cure(None);
        for provider in [Provider::First, Provider::Second] {
            hosts.set_health(provider, Health::Well);
        }
        for at in 0..hosts.len() {
            if restarts {
                hosts.crash(at);
            }
            hosts.heal(at);
        }
        hosts.time.note(None, What::Calm);
    };
    time.at(plan.calm, None, Act::World(Box::new(act)));
    plan
}

fn fault(time: &Window<'_>, now: u64, workers: usize, dice: &mut Dice) {
    let worker = usize::try_from(dice.below(workers as u64)).unwrap_or_default();
    let lasts = dice.range(200, 12_000);
    let until = now + lasts;
    match dice.below(20) {
        0..=4 => {
            at(time, now, move |hosts| hosts.crash(worker));
            at(time, now + lasts / 2, move |hosts| hosts.start(worker));
        }
        // As at a deployment.
        5 => {
            at(time, now, move |hosts| hosts.stop(worker));
            at(time, now + lasts / 4, move |hosts| {
                hosts.crash(worker);
                hosts.start(worker);
            });
        }
        // The whole fleet, at once or one after the other.
        6 => {
            let (stops, step) = (dice.one_in(2), dice.below(2_000));
            for worker in 0..workers {
                let began = now + step * worker as u64;
                if stops {
                    at(time, began, move |hosts| hosts.stop(worker));
                }
                at(time, began + 1_000, move |hosts| {
                    hosts.crash(worker);
                    hosts.start(worker);
                });
            }
        }
        7..=9 => {
            at(time, now, move |hosts| hosts.pause(worker));
            at(time, until, move |hosts| hosts.unpause(worker));
        }
        10..=12 => {
            let (to, back) = match dice.below(3) {
                0 => (true, false),
                1 => (false, true),
                _ => (true, true),
            };
            at(time, now, move |hosts| hosts.cut(worker, to, back));
            at(time, until, move |hosts| hosts.cut(worker, false, false));
        }
        13 => {
            let minutes = dice.range(1, 5) * 60_000;
            let off = i64::try_from(minutes).unwrap_or_default();
            let off = if dice.one_in(2) { off } else { -off };
            at(time, now, move |hosts| hosts.set_clock(worker, off));
        }
        14..=15 => {
            let slow = dice.range(50, 1_500);
            at(time, now, move |hosts| hosts.set_slow(slow));
            at(time, until, |hosts| hosts.set_slow(0));
        }
        _ => {
            let health = match dice.below(5) {
                0..=1 => Health::Out,
                2 => Health::Hangs,
                3 => Health::Rejects,
                _ => Health::Brown,
            };
            let which: &[_] = match dice.below(3) {
                0 => &[Provider::First, Provider::Second],
                1 => &[Provider::First],
                _ => &[Provider::Second],
            };
            // Some outages end with calls that hang, for longer than a run waits for them: the circuits are open by then,
            // and replace their probes.
            let hangs = matches!(health, Health::Out) && dice.one_in(2);
            let hangs_from = now + lasts / 3;
            let until = if hangs { hangs_from + 12_000 } else { until };
            for provider in which {
                at(time, now, move |hosts| hosts.set_health(*provider, health));
                if hangs {
                    at(time, hangs_from, move |hosts| {
                        hosts.set_health(*provider, Health::Hangs);
                    });
                }
                at(time, until, move |hosts| {
                    hosts.set_health(*provider, Health::Well);
                });
            }
        }
    }
}
