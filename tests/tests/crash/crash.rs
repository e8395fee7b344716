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
//! | `CONCENTRIC_ZOMBIES` | a process is stopped at each how manieth point | 6 |
//! | `CONCENTRIC_SEED` | of what is random | random, and printed |

use crate::durable::{
    Dice,
    actor::{Actor, Part, Said, TOO_EARLY, answer, beginning, block, drive, say},
    agent::{ALL, Calls, bare, store},
    check::{Figures, check},
    points::Plan,
    power, setting,
    world::{Class, Entry, World},
};
use concentric_core::{ChatRequest, machine::RunState, store::MAX_TAKEOVERS};
use std::{
    fs::{self, OpenOptions},
    io::Write,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};
use tempfile::TempDir;
use tower::ServiceExt;

/// Goes on with the run, and says what came of it.
#[test]
#[ignore = "a child process of the tests below"]
fn host() {
    let Some(part) = Part::mine() else { return };
    let said = block(drive(&part));
    say(&serde_json::to_string(&said).unwrap());
}

/// The same for a host that keeps the state of its runs itself, in a file.
#[test]
#[ignore = "a child process of the tests below"]
fn keeper() {
    let Some(part) = Part::mine() else { return };
    let (world, points) = (part.world(), part.points());
    let agent = bare(
        crate::durable::agent::script(&part.script),
        &store(&world, &points, part.clock()),
    );
    let environment = part.environment();
    let request = match world.lines("state").last() {
        None => beginning(&environment),
        Some(state) => {
            let state = RunState::from_json(state.as_bytes(), usize::MAX).unwrap();
            let asked = state.interrupts();
            let replies = asked.iter().map(|asked| answer(&world, asked)).collect();
            ChatRequest::resume(state, replies)
        }
    };
    let finish = block(async {
        let response = agent.oneshot(request).await.unwrap();
        response.collect().await.unwrap().finish
    });
    let said = match finish.state {
        None => Said::Over,
        Some(state) => {
            world.append("state", &state.to_json().unwrap());
            Said::Waits
        }
    };
    say(&serde_json::to_string(&said).unwrap());
}

/// A run, and the processes that drive it one after the other.
struct Story {
    dir: TempDir,
    generation: u32,
    all_at_once: bool,
    /// Whether the power fails with each process that is killed, and not the process alone.
    power_fails: bool,
    /// How many writes were lost so.
    lost: usize,
}

/// How many processes a run takes at most, however often it is killed.
const PROCESSES: u32 = 60;

impl Story {
    fn new(all_at_once: bool) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            generation: 0,
            all_at_once,
            power_fails: false,
            lost: 0,
        }
    }

    fn with_power_failures(mut self, fails: bool) -> Self {
        self.power_fails = fails;
        self
    }

    fn world(&self) -> World {
        World::new(self.dir.path())
    }

    /// The next process, to which the lease of the one before is over.
    fn next(&mut self) -> Part {
        assert!(self.generation < PROCESSES, "it does not end");
        let mut part = Part::new(self.dir.path(), "all");
        part.leases = self.generation;
        part.all_at_once = self.all_at_once;
        part.power_may_fail = self.power_fails;
        self.generation += 1;
        part
    }

    /// Starts the next process; the one before has ended.
    fn start(&mut self, plan: Plan) -> Actor {
        if self.power_fails {
            self.lost += power::fail(self.dir.path());
        }
        let mut part = self.next();
        part.plan = plan;
        part.start("crash::host")
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

    fn check(&self, about: &str) -> Figures {
        check(&self.world(), script(), about)
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
    let told = story
        .world()
        .entries()
        .iter()
        .filter(|e| approved(e))
        .count();
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
fn f044_killed_at_each_point_a_run_goes_on_and_loses_and_repeats_nothing() {
    let dice = Dice::cast();
    let passes: usize = setting("CONCENTRIC_CRASH_PASSES", 1);
    // Answered one by one, and in the passes between these all at once.
    let points = [false, true].map(points);
    let scenes: Vec<_> = (0..passes)
        .flat_map(|pass| points[pass % 2].iter().map(move |point| (pass, point)))
        .collect();
    let killed = AtomicUsize::new(0);
    let unseen = AtomicUsize::new(0);
    let lost = AtomicUsize::new(0);
    let figures = Mutex::new(Figures::default());
    for_each(scenes.len(), |at| {
        let (pass, (generation, name)) = scenes[at];
        let mut dice = dice.fork(at as u64);
        let power_fails = dice.below(2) == 0;
        let mut story = Story::new(pass % 2 == 1).with_power_failures(power_fails);
        let mut about = format!("killed at {name} of process {generation}, pass {pass}");
        if power_fails {
            about += ", with the power";
        }
        up_to(&mut story, *generation);
        let fate = Plan::KillAt(name.clone());
        assert_eq!(story.start(fate).result(), None, "{about}");
        killed.fetch_add(1, Ordering::Relaxed);
        // Those that go on are killed, too, the more of them the later the pass.
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
        lost.fetch_add(story.lost, Ordering::Relaxed);
        *figures.lock().unwrap() += story.check(&about);
    });
    println!(
        "{killed:?} kills at {} points, {lost:?} writes lost with the power, {unseen:?} ends that \
         no consumer saw; {}",
        scenes.len(),
        figures.into_inner().unwrap()
    );
}

#[test]
fn f045_killed_at_any_time_a_run_goes_on_and_loses_and_repeats_nothing() {
    let dice = Dice::cast();
    let kills: usize = setting("CONCENTRIC_KILLS", 25);
    let (killed, runs) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let lost = AtomicUsize::new(0);
    let figures = Mutex::new(Figures::default());
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
            let power_fails = dice.below(2) == 0;
            let about = format!("run {run}, power fails: {power_fails}");
            let mut story = Story::new(dice.below(2) == 0).with_power_failures(power_fails);
            let mut in_a_row = 0;
            // At most so often, so that it ends.
            for _ in 0..PROCESSES / 2 {
                let mut process = story.start(Plan::Nothing);
                // One in three continues, so that most runs get on, and so does one before the run is
                // quarantined. Some do not come as far as the run, and are killed while they open the store.
                match dice.below(9) {
                    0..3 => {}
                    _ if in_a_row + 1 == MAX_TAKEOVERS => {}
                    3 => {
                        thread::sleep(took.mul_f64(dice.below(1000) as f64 / 1000.0));
                        process.kill();
                    }
                    _ if process.hear().as_deref() == Some("ready") => {
                        thread::sleep(took.mul_f64(dice.below(1200) as f64 / 1000.0));
                        process.kill();
                    }
                    _ => {}
                }
                match process.result() {
                    None => {
                        killed.fetch_add(1, Ordering::Relaxed);
                        in_a_row += 1;
                    }
                    Some(Said::Waits) => in_a_row = 0,
                    Some(Said::Over | Said::Unseen) => break,
                    other => panic!("{about}: {other:?}"),
                }
            }
            story.end(&about);
            lost.fetch_add(story.lost, Ordering::Relaxed);
            *figures.lock().unwrap() += story.check(&about);
        }
    });
    println!(
        "{killed:?} kills in {runs:?} runs, {lost:?} writes lost with the power; {}",
        figures.into_inner().unwrap()
    );
}

#[test]
#[ignore = "a child process of the test below"]
fn writer() {
    let Some(part) = Part::mine() else { return };
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true);
    let mut file = options.open(part.dir.join("some.db")).unwrap();
    file.write_all(b"kept ").unwrap();
    file.sync_data().unwrap();
    file.write_all(b"lost").unwrap();
    file.set_len(2).unwrap();
    part.points().hit("written");
}

#[test]
fn a_power_failure_loses_what_was_not_synced() {
    if power::library().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut part = Part::new(dir.path(), "all");
    part.power_may_fail = true;
    part.plan = Plan::KillAt("written#1".to_owned());
    assert_eq!(part.start("crash::writer").result(), None);
    let file = dir.path().join("some.db");
    assert_eq!(fs::read(&file).unwrap(), b"ke");
    assert_eq!(power::fail(dir.path()), 2);
    assert_eq!(fs::read(&file).unwrap(), b"kept ");
    assert_eq!(power::fail(dir.path()), 0);
}

#[test]
fn f046_stopped_at_a_point_and_woken_up_later_a_process_changes_nothing() {
    let each: usize = setting("CONCENTRIC_ZOMBIES", 6);
    let all = points(false);
    let first = Dice::cast().below(each as u64) as usize;
    let chosen: Vec<_> = all.iter().skip(first).step_by(each.max(1)).collect();
    let (refused, settled) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let figures = Mutex::new(Figures::default());
    // It is woken up when another has ended the run, and when another has only claimed it.
    for_each(chosen.len() * 2, |at| {
        let ((generation, name), is_over) = (chosen[at / 2], at % 2 == 0);
        let about = format!("stopped at {name} of process {generation}, {is_over}");
        let mut story = Story::new(false);
        up_to(&mut story, *generation);
        let mut zombie = story.start(Plan::StopAt(name.clone()));
        assert!(zombie.has_stopped(), "{about}");
        if is_over {
            story.end(&about);
        } else {
            story
                .start(Plan::KillAt("claim:after#1".to_owned()))
                .result();
        }
        let before = story.world().entries().len();
        zombie.wake_up();
        match zombie.result() {
            Some(Said::Failed(kind, code)) => {
                assert_eq!(kind, "Conflict", "{about}: {code}");
                refused.fetch_add(1, Ordering::Relaxed);
            }
            // What it had written down by then counts.
            Some(Said::Waits | Said::Over) => {
                assert!(is_settled(name), "{about}");
                settled.fetch_add(1, Ordering::Relaxed);
            }
            other => panic!("{about}: {other:?}"),
        }
        for entry in &story.world().entries()[before..] {
            if let Entry::Started { call, class, .. } = entry
                && *class != Class::ReadOnly
            {
                // What it had begun goes on; nothing is begun, of this round or the next.
                assert!(
                    !name.starts_with(&format!("ledger.begin.{call}:before")),
                    "{about}"
                );
                assert!(is_of_round(name, call), "{about}: {call} was started");
            }
        }
        if !is_over {
            story.end(&about);
        }
        *figures.lock().unwrap() += story.check(&about);
    });
    println!(
        "{} zombies, {refused:?} refused, {settled:?} stopped after their last write; {}",
        chosen.len() * 2,
        figures.into_inner().unwrap()
    );
}

#[test]
fn f044_a_tool_that_asked_by_itself_and_was_then_begun_is_not_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(dir.path());
    let mut part = Part::new(dir.path(), "confirm");
    let starts = |n: usize, about: &str| {
        let entries = world.entries();
        let started = |entry: &&Entry| matches!(entry, Entry::Started { .. });
        assert_eq!(entries.iter().filter(started).count(), n, "{about}");
    };
    assert_eq!(part.start("crash::keeper").result(), Some(Said::Waits));
    // Before it is begun it can be tried again.
    part.plan = Plan::KillAt("ledger.begin.confirm:before#1".to_owned());
    assert_eq!(part.start("crash::keeper").result(), None);
    starts(0, "killed before it was begun");
    part.plan = Plan::KillAt("tool.confirm:after#1".to_owned());
    assert_eq!(part.start("crash::keeper").result(), None);
    starts(1, "killed when it was done");
    // The host has the state of before, and brings the same reply.
    part.plan = Plan::Nothing;
    assert_eq!(part.start("crash::keeper").result(), Some(Said::Waits));
    assert_eq!(part.start("crash::keeper").result(), Some(Said::Over));
    starts(1, "somebody was asked");
}

#[test]
fn f046_a_process_that_was_thought_dead_and_did_it_is_believed() {
    let mut story = Story::new(false);
    let mut zombie = story.start(Plan::StopAt("tool.a_mail:effect#1".to_owned()));
    assert!(zombie.has_stopped());
    assert_eq!(story.start(Plan::Nothing).result(), Some(Said::Waits));
    // Somebody looks, and sees that it was not sent; and then it is.
    zombie.wake_up();
    assert!(matches!(zombie.result(), Some(Said::Failed(..))));
    assert!(story.world().done().contains(&"a_mail".to_owned()));
    let mut part = story.next();
    part.extra = TOO_EARLY.to_owned();
    assert_eq!(part.start("crash::host").result(), Some(Said::Waits));
    assert_eq!(story.end("the mail"), Said::Over);
    story.check("the mail");
}

/// Whether a point is at a call of the round that `call` is of.
fn is_of_round(point: &str, call: &str) -> bool {
    let round = script()
        .iter()
        .find(|calls| calls.iter().any(|(_, id)| *id == call));
    let mut of_point = round.unwrap().iter();
    of_point.any(|(_, id)| point.contains(&format!(".{id}:")))
}

/// Whether a process that is at this point has written down what becomes of the run.
fn is_settled(point: &str) -> bool {
    ["suspend:after", "end:after", "finish"]
        .iter()
        .any(|settled| point.starts_with(settled))
}
