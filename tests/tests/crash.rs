//! Processes that are killed while they run an agent, and others that go on with it.
//!
//! An agent calls tools that only read, that may be repeated, that the world does once per key, and
//! that are not to be repeated; some are asked about. Its process is killed at each point at which
//! something was or is about to be written down, told, or done; or stopped there, and woken up when
//! another process has ended the run; or killed at any time. What is to hold then is in
//! `durable/check.rs`: each call has one result, which says what the world says; nothing is done
//! twice; nothing is done that nobody approved, nor asked again that was answered; and where it can't
//! be known what a tool has done, somebody was asked.
//!
//! | in the environment | | default |
//! |---|---|---|
//! | `CONCENTRIC_CRASH_PASSES` | how often a process is killed at each point; from the second time on, those that go on are killed, too, at a random point | 1 |
//! | `CONCENTRIC_KILLS` | how many processes are killed at random times | 25 |
//! | `CONCENTRIC_ZOMBIES` | a process is stopped at each how manieth point | 4 |
//! | `CONCENTRIC_SEED` | of what is random | random, and printed |
#![cfg(unix)]
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test"
)]

mod durable;

use durable::{
    Dice,
    actor::{Actor, Part, Said, block, drive, say},
    agent::{ALL, Calls},
    check::check,
    points::Plan,
    setting,
    world::{Entry, World},
};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};
use tempfile::TempDir;

/// Goes on with the run, and says what came of it.
#[test]
#[ignore = "a part of the tests below"]
fn host() {
    let Some(part) = Part::mine() else { return };
    let said = block(drive(&part));
    say(&serde_json::to_string(&said).unwrap());
}

/// A run, and the processes that drive it one after the other.
struct Story {
    dir: TempDir,
    generation: u32,
    all_at_once: bool,
}

/// How many processes a run takes at most, however often it is killed.
const PROCESSES: u32 = 60;

impl Story {
    fn new(all_at_once: bool) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            generation: 0,
            all_at_once,
        }
    }

    fn world(&self) -> World {
        World::new(self.dir.path())
    }

    /// Starts the next process, to which the lease of the one before is over.
    fn start(&mut self, plan: Plan) -> Actor {
        assert!(self.generation < PROCESSES, "it does not end");
        let mut part = Part::new(self.dir.path(), "all");
        part.leases = self.generation;
        part.plan = plan;
        part.all_at_once = self.all_at_once;
        self.generation += 1;
        part.start("host")
    }

    /// Goes on until the run is over.
    fn end(&mut self, about: &str) -> Said {
        loop {
            let said = self.start(Plan::Nothing).result();
            match said {
                Some(Said::Waits) => {}
                Some(said @ (Said::Over | Said::Unseen)) => return said,
                other => panic!("{about}: {other:?}"),
            }
        }
    }

    fn check(&self, about: &str) {
        check(&self.world(), script(), about);
    }
}

fn script() -> &'static [Calls] {
    ALL
}

/// The points of a run that nobody kills: of each process, in order.
fn points(all_at_once: bool) -> Vec<(u32, String)> {
    let mut story = Story::new(all_at_once);
    let mut points = Vec::new();
    loop {
        let (generation, before) = (story.generation, points.len());
        let said = story.start(Plan::Trace).result();
        let trace = story.world().lines("trace");
        let new = trace[before..].iter().cloned();
        points.extend(new.map(|name| (generation, name)));
        match said {
            Some(Said::Waits) => {}
            Some(Said::Over) => break,
            other => panic!("{other:?}"),
        }
    }
    story.check("not killed");
    let approved = |entry: &Entry| matches!(entry, Entry::Approved(_));
    let told = story.world().entries().iter().filter(|e| approved(e)).count();
    assert_eq!(told, 2);
    points
}

/// Does `work` for each of `0..n`, on as many threads as there are processors.
fn for_each(n: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(2, Into::into).min(n);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= n {
                        return;
                    }
                    work(at);
                }
            });
        }
    });
}

/// Drives a run to the process that is to meet its fate at a point.
fn up_to(story: &mut Story, generation: u32) {
    for _ in 0..generation {
        assert_eq!(story.start(Plan::Nothing).result(), Some(Said::Waits));
    }
}

#[test]
fn killed_at_each_point_a_run_goes_on_and_loses_and_repeats_nothing() {
    let dice = Dice::cast();
    let passes: usize = setting("CONCENTRIC_CRASH_PASSES", 1);
    let points: Vec<Vec<_>> = [false, true].map(points).into();
    let flat = |all: usize| points[all].iter().map(move |point| (all == 1, point));
    let scenes: Vec<_> = flat(0).chain(flat(1)).collect();
    let killed = AtomicUsize::new(0);
    let unseen = AtomicUsize::new(0);
    // The second half asks the same of other processes: one of `passes` is enough of it.
    for_each(scenes.len() * passes, |at| {
        let (pass, (all_at_once, (generation, name))) = (at / scenes.len(), scenes[at % scenes.len()]);
        let mut dice = dice.fork(at as u64);
        let mut story = Story::new(all_at_once);
        let mut about = format!("killed at {name} of process {generation}, {at}");
        up_to(&mut story, *generation);
        let fate = Plan::KillAt(name.clone());
        assert_eq!(story.start(fate).result(), None, "{about}");
        killed.fetch_add(1, Ordering::Relaxed);
        for _ in 0..pass.min(3) {
            let nth = 1 + dice.below(40) as u32;
            about += &format!(", then at point {nth}");
            match story.start(Plan::KillAtNth(nth)).result() {
                None => {
                    killed.fetch_add(1, Ordering::Relaxed);
                }
                Some(Said::Over | Said::Unseen) => break,
                Some(Said::Waits) => {}
                other => panic!("{about}: {other:?}"),
            }
        }
        if story.end(&about) == Said::Unseen {
            unseen.fetch_add(1, Ordering::Relaxed);
        }
        story.check(&about);
    });
    println!(
        "{} points, {killed:?} kills, of {unseen:?} runs nobody saw the end",
        scenes.len()
    );
}

#[test]
fn killed_at_any_time_a_run_goes_on_and_loses_and_repeats_nothing() {
    let dice = Dice::cast();
    let kills: usize = setting("CONCENTRIC_KILLS", 25);
    let (killed, runs) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // How long a process takes that is not killed.
    let mut calm = Story::new(true);
    let mut first = calm.start(Plan::Nothing);
    assert_eq!(first.hear().as_deref(), Some("ready"));
    let since = Instant::now();
    first.result();
    let took = since.elapsed();

    let threads = thread::available_parallelism().map_or(2, Into::into);
    for_each(threads, |thread| {
        let mut dice = dice.fork(thread as u64);
        while killed.load(Ordering::Relaxed) < kills {
            let run = runs.fetch_add(1, Ordering::Relaxed);
            let about = format!("run {run}");
            let mut story = Story::new(dice.below(2) == 0);
            // At most so often, so that it ends.
            for _ in 0..PROCESSES / 2 {
                let mut process = story.start(Plan::Nothing);
                // One in three is let be, so that most runs get on.
                if dice.below(3) > 0 && process.hear().as_deref() == Some("ready") {
                    thread::sleep(took.mul_f64(dice.below(1200) as f64 / 1000.0));
                    process.kill();
                }
                match process.result() {
                    None => {
                        killed.fetch_add(1, Ordering::Relaxed);
                    }
                    Some(Said::Waits) => {}
                    Some(Said::Over | Said::Unseen) => break,
                    other => panic!("{about}: {other:?}"),
                }
            }
            story.end(&about);
            story.check(&about);
        }
    });
    println!("{killed:?} kills of {runs:?} runs");
}

#[test]
fn stopped_at_a_point_and_woken_up_later_a_process_changes_nothing() {
    let each: usize = setting("CONCENTRIC_ZOMBIES", 4);
    let all = points(false);
    let first = Dice::cast().below(each as u64) as usize;
    let chosen: Vec<_> = all.iter().skip(first).step_by(each.max(1)).collect();
    let refused = AtomicUsize::new(0);
    for_each(chosen.len(), |at| {
        let (generation, name) = chosen[at];
        let about = format!("stopped at {name} of process {generation}");
        let mut story = Story::new(false);
        up_to(&mut story, *generation);
        let zombie = story.start(Plan::StopAt(name.clone()));
        assert!(zombie.has_stopped(), "{about}");
        story.end(&about);
        let started = |entry: &Entry| matches!(entry, Entry::Started { .. });
        let starts = || story.world().entries().iter().filter(|e| started(e)).count();
        let _ = starts;
        zombie.wake_up();
        match zombie.result() {
            Some(Said::Failed(kind, code)) => {
                assert_eq!(kind, "Conflict", "{about}: {code}");
                refused.fetch_add(1, Ordering::Relaxed);
            }
            // What it had written down by then counts.
            Some(Said::Waits) => assert!(is_settled(name), "{about}"),
            Some(Said::Over) => assert!(is_settled(name), "{about}"),
            other => panic!("{about}: {other:?}"),
        }
        story.check(&about);
    });
    println!("{} zombies, {refused:?} refused", chosen.len());
}

/// Whether a process that is at this point has written down what becomes of the run.
fn is_settled(point: &str) -> bool {
    ["suspend:after", "end:after", "finish"]
        .iter()
        .any(|settled| point.starts_with(settled))
}

