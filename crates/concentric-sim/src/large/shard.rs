//! One database, the processes that share it, and the runs of its tenants, as discrete events.

use super::measured::Measured;
use crate::dice::Dice;
use concentric_layers::suspend::policy::{is_lost_after, renews_after, sweeps_after};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, VecDeque},
    time::Duration,
};

/// The load of a database.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) workers: usize,
    pub(super) live: usize,
    pub(super) waiting: usize,
    /// Replies in a second.
    pub(super) replies: f64,
    /// The mean time of a step apart from the store: the model's answer, and its tools.
    pub(super) step: Duration,
    pub(super) lease: Duration,
    pub(super) sweep: Duration,
    /// The runs that a sweeper resumes at the same time.
    pub(super) limit: usize,
    /// The share of the workers that dies halfway.
    pub(super) dies: f64,
    /// The replies that arrive together halfway.
    pub(super) herd: usize,
    /// How long no server takes connections after the loss of the first one, halfway; zero for none.
    pub(super) fails: Duration,
    pub(super) seconds: u64,
}

/// What a simulation measures.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measures {
    pub(super) events: u64,
    pub(super) transactions: u64,
    /// The share of the time in which the connections were busy.
    pub(super) busy: f64,
    /// From the arrival of a reply to the claim of its run, and of a transaction to its end, in microseconds.
    pub(super) replied: Vec<u64>,
    pub(super) stored: Vec<u64>,
    /// From the death of processes to the claim of each of their runs.
    pub(super) resumed: Vec<u64>,
    pub(super) sweeps: u64,
    /// The live runs when a server is lost, the runs whose last transaction the new server does not have, and those that were resumed by replies that it does
    /// not have.
    pub(super) live: usize,
    pub(super) lost: u64,
    pub(super) lost_replies: u64,
    pub(super) violations: u64,
}

/// The sweeper's default number of runs of a claim.
const BATCH: usize = 16;

/// The commits of this time before the loss of a server are not on the other one, which follows it.
const LOST: u64 = 200_000;

/// The transactions that store the rest of a reply: the state, the start and the outcome of the effect, the turn,
/// and the end or the next question.
const AFTER_REPLY: u32 = 5;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A run's model and tools are done; `drive` is that of the run then.
    Step {
        run: usize,
        drive: u32,
    },
    /// A connection is free, and has done this.
    Done {
        work: Work,
        since: u64,
    },
    Sweep {
        worker: usize,
    },
    Reply,
    Herd,
    Death,
    Failure,
    Recovery,
    Tick,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// One of the transactions of a step, and those that follow.
    Transaction {
        run: usize,
        drive: u32,
        left: u32,
    },
    Claim {
        worker: usize,
        arrived: u64,
    },
    Sweep {
        worker: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Run {
    worker: usize,
    drive: u32,
    begun: u64,
    stored: u64,
    // Whether it has a commit, and whether its first one is the claim of a reply.
    has_stored: bool,
    is_reply: bool,
    lease_until: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    Left,
    Ended,
}

pub(super) struct Shard<'a> {
    load: &'a Load,
    measured: &'a Measured,
    dice: Dice,
    now: u64,
    count: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Event>,
    free: Vec<usize>,
    runs: Vec<Run>,
    // The runs whose processes died, by the ends of their leases.
    left: BTreeSet<(u64, usize)>,
    alive: Vec<bool>,
    resuming: Vec<usize>,
    waiting: usize,
    started: usize,
    ended: usize,
    claiming: usize,
    live: usize,
    // Whether the database takes connections.
    is_up: bool,
    busy: usize,
    queue: VecDeque<(Work, u64)>,
    busy_time: u64,
    died: u64,
    measures: Measures,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl<'a> Shard<'a> {
    pub(super) fn new(load: &'a Load, measured: &'a Measured, seed: u64) -> Self {
        Self {
            load,
            measured,
            dice: Dice::new(seed),
            now: 0,
            count: 0,
            events: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            runs: Vec::new(),
            left: BTreeSet::new(),
            alive: vec![true; load.workers],
            resuming: vec![0; load.workers],
            waiting: load.waiting,
            started: load.waiting,
            ended: 0,
            claiming: 0,
            live: 0,
            is_up: true,
            busy: 0,
            queue: VecDeque::new(),
            busy_time: 0,
            died: 0,
            measures: Measures::default(),
        }
    }

    /// Simulates the load, and returns what it measures.
    pub(super) fn run(mut self) -> Measures {
        let half = self.load.seconds * 500_000;
        for _ in 0..self.load.live {
            let run = self.begin();
            let after = self.dice.below(micros(self.load.step).max(1));
            self.at(after, Event::Step { run, drive: 0 });
        }
        for worker in 0..self.load.workers {
            let after = self.dice.below(micros(self.load.sweep).max(1));
            self.at(after, Event::Sweep { worker });
        }
        if self.load.replies > 0.0 {
            self.at(0, Event::Reply);
        }
        if self.load.dies > 0.0 {
            self.at(half, Event::Death);
        }
        if self.load.herd > 0 {
            self.at(half, Event::Herd);
        }
        if !self.load.fails.is_zero() {
            self.at(half, Event::Failure);
        }
        self.at(1_000_000, Event::Tick);
        let end = self.load.seconds * 1_000_000;
        while let Some(Reverse((at, _, slot))) = self.events.pop() {
            if at > end {
                break;
            }
            self.now = at;
            self.measures.events += 1;
            self.free.push(slot);
            if let Some(event) = self.slots.get(slot).copied() {
                self.happen(event);
            }
        }
        let connections = self.measured.postgres.connections as f64;
        self.measures.busy = self.busy_time as f64 / (end as f64 * connections);
        for times in [
            &mut self.measures.replied,
            &mut self.measures.stored,
            &mut self.measures.resumed,
        ] {
            times.sort_unstable();
        }
        self.measures
    }

    fn at(&mut self, at: u64, event: Event) {
        self.count += 1;
        let slot = match self.free.pop() {
            Some(slot) => {
                if let Some(free) = self.slots.get_mut(slot) {
                    *free = event;
                }
                slot
            }
            None => {
                self.slots.push(event);
                self.slots.len() - 1
            }
        };
        self.events.push(Reverse((at, self.count, slot)));
    }

    fn after(&mut self, micros: u64, event: Event) {
        self.at(self.now + micros, event);
    }

    /// A random time with this mean.
    fn random(&mut self, mean: f64) -> u64 {
        let share = 1.0 - self.dice.share();
        (-share.ln() * mean) as u64
    }

    fn worker(&mut self) -> usize {
        loop {
            let worker = self.dice.below(self.load.workers as u64) as usize;
            if self.alive.get(worker) == Some(&true) {
                return worker;
            }
        }
    }

    fn begin(&mut self) -> usize {
        let worker = self.worker();
        self.started += 1;
        self.live += 1;
        self.runs.push(Run {
            worker,
            drive: 0,
            begun: self.now,
            stored: self.now,
            has_stored: false,
            is_reply: false,
            lease_until: self.now + micros(self.load.lease),
            state: State::Live,
        });
        self.runs.len() - 1
    }

    // ---- the database ----

    /// The time of a work on a connection, at the rate that all of them reach together.
    fn takes(&mut self, work: Work) -> u64 {
        let postgres = &self.measured.postgres;
        let transaction = 1e6 * postgres.connections as f64 / postgres.checkpoints_per_second;
        match work {
            // Half of it always, and the rest by chance.
            Work::Transaction { .. } => (transaction / 2.0) as u64 + self.random(transaction / 2.0),
            // Finding the run, and claiming it.
            Work::Claim { .. } => transaction as u64 + self.random(transaction),
            Work::Sweep { .. } => {
                let (p50, p99) = (postgres.sweep_p50_ms, postgres.sweep_p99_ms);
                let share = self.dice.share();
                (1e3 * (p50 + (p99 - p50) * share * share)) as u64
            }
        }
    }

    fn send(&mut self, work: Work) {
        match self.is_up && self.busy < self.measured.postgres.connections {
            true => self.serve(work, self.now),
            false => self.queue.push_back((work, self.now)),
        }
    }

    fn serve(&mut self, work: Work, since: u64) {
        self.busy += 1;
        let takes = self.takes(work);
        self.busy_time += takes;
        self.after(takes, Event::Done { work, since });
    }

    fn done(&mut self, work: Work, since: u64) {
        self.busy -= 1;
        if !self.is_up {
            // The server was lost meanwhile: the work is done by the other one.
            return self.queue.push_back((work, since));
        }
        if let Some((work, since)) = self.queue.pop_front() {
            self.serve(work, since);
        }
        match work {
            Work::Transaction { run, drive, left } => {
                self.measures.transactions += 1;
                self.measures.stored.push(self.now - since);
                self.stored(run, drive, left);
            }
            Work::Claim { worker, arrived } => {
                self.measures.transactions += 2;
                self.measures.replied.push(self.now - arrived);
                self.claiming -= 1;
                self.started -= 1;
                let run = self.begin();
                if let Some(run) = self.runs.get_mut(run) {
                    run.worker = worker;
                    (run.has_stored, run.is_reply) = (true, true);
                }
                self.send(Work::Transaction {
                    run,
                    drive: 0,
                    left: AFTER_REPLY,
                });
            }
            Work::Sweep { worker } => {
                self.measures.transactions += 1;
                self.swept(worker);
            }
        }
    }

    fn stored(&mut self, at: usize, drive: u32, left: u32) {
        let lease = micros(self.load.lease);
        let Some(run) = self.runs.get_mut(at) else {
            return;
        };
        if run.drive != drive || run.state != State::Live {
            return;
        }
        run.lease_until = self.now + lease;
        (run.stored, run.has_stored) = (self.now, true);
        if left > 1 {
            let left = left - 1;
            return self.send(Work::Transaction {
                run: at,
                drive,
                left,
            });
        }
        // One in eight steps is the last one, and another run begins; runs that wait are replaced by others.
        if self.dice.one_in(8) {
            run.state = State::Ended;
            let worker = run.worker;
            if drive > 0
                && let Some(resuming) = self.resuming.get_mut(worker)
            {
                *resuming = resuming.saturating_sub(1);
            }
            self.live -= 1;
            // A share of the runs waits, so that as many wait as before.
            if self.waiting < self.load.waiting {
                self.waiting += 1;
            } else {
                self.ended += 1;
            }
            if self.live < self.load.live {
                let run = self.begin();
                self.model(run, 0);
            }
            return;
        }
        self.model(at, drive);
    }

    fn model(&mut self, run: usize, drive: u32) {
        let after = self.random(micros(self.load.step) as f64);
        self.after(after, Event::Step { run, drive });
    }

    // ---- events ----

    fn happen(&mut self, event: Event) {
        match event {
            Event::Step { run, drive } => {
                let per_step = self.measured.cluster.transactions_per_step;
                let left = per_step as u32 + u32::from(self.dice.share() < per_step.fract());
                let is_live = |it: &Run| it.drive == drive && it.state == State::Live;
                if self.runs.get(run).is_some_and(is_live) {
                    self.send(Work::Transaction { run, drive, left });
                }
            }
            Event::Done { work, since } => self.done(work, since),
            Event::Sweep { worker } => {
                if self.alive.get(worker) == Some(&true) {
                    self.measures.sweeps += 1;
                    self.send(Work::Sweep { worker });
                }
            }
            Event::Reply => {
                self.reply();
                let after = self.random(1e6 / self.load.replies);
                self.after(after, Event::Reply);
            }
            Event::Herd => {
                for _ in 0..self.load.herd {
                    self.reply();
                }
            }
            Event::Death => self.death(),
            Event::Failure => self.failure(),
            Event::Recovery => {
                self.is_up = true;
                while self.busy < self.measured.postgres.connections
                    && let Some((work, since)) = self.queue.pop_front()
                {
                    self.serve(work, since);
                }
            }
            Event::Tick => {
                let all = self.ended + self.waiting + self.live + self.left.len() + self.claiming;
                self.measures.violations += u64::from(all != self.started);
                self.after(1_000_000, Event::Tick);
            }
        }
    }

    fn reply(&mut self) {
        if self.waiting == 0 {
            return;
        }
        self.waiting -= 1;
        self.claiming += 1;
        let worker = self.worker();
        let arrived = self.now;
        self.send(Work::Claim { worker, arrived });
    }

    fn death(&mut self) {
        self.died = self.now;
        let dead = (self.load.workers as f64 * self.load.dies) as usize;
        self.alive.iter_mut().take(dead).for_each(|it| *it = false);
        self.leave(|run| run.worker < dead);
    }

    /// Some runs are not driven any more, and are resumed after their leases.
    fn leave(&mut self, is_left: impl Fn(&Run) -> bool) {
        // A process renews or writes at least once until its lease counts as lost.
        let most = micros(self.load.lease);
        let least = most - micros(is_lost_after(self.load.lease));
        for (at, run) in self.runs.iter_mut().enumerate() {
            if run.state == State::Live && is_left(run) {
                run.state = State::Left;
                run.lease_until = run.lease_until.max(self.now + least).min(self.now + most);
                self.left.insert((run.lease_until, at));
                self.live -= 1;
            }
        }
    }

    /// The server is lost with its last commits, and another one is there after a time.
    fn failure(&mut self) {
        self.died = self.now;
        self.is_up = false;
        self.measures.live = self.live;
        let since = self.now.saturating_sub(LOST);
        for run in &self.runs {
            let is_new = run.has_stored && run.stored >= since && run.state != State::Left;
            self.measures.lost += u64::from(is_new);
            self.measures.lost_replies += u64::from(is_new && run.is_reply && run.begun >= since);
        }
        // The processes give up the runs whose leases they could not extend in time.
        let (now, until) = (self.now, self.now + micros(self.load.fails));
        let lost_after = micros(is_lost_after(self.load.lease));
        let renews_after = micros(renews_after(self.load.lease));
        self.leave(|run| {
            let extended = now - (now - run.stored) % renews_after;
            extended + lost_after <= until
        });
        self.resuming.iter_mut().for_each(|it| *it = 0);
        self.after(micros(self.load.fails), Event::Recovery);
    }

    fn swept(&mut self, worker: usize) {
        if self.alive.get(worker) != Some(&true) {
            return;
        }
        let limit = self.load.limit;
        let room = limit.saturating_sub(self.resuming.get(worker).copied().unwrap_or(limit));
        let batch = room.min(BATCH);
        let mut claimed = 0;
        while claimed < batch
            && let Some((until, at)) = self.left.first().copied()
            && until <= self.now
        {
            self.left.pop_first();
            claimed += 1;
            self.live += 1;
            self.measures.resumed.push(self.now - self.died);
            if let Some(run) = self.runs.get_mut(at) {
                run.state = State::Live;
                run.worker = worker;
                run.drive += 1;
                run.lease_until = self.now + micros(self.load.lease);
                let drive = run.drive;
                self.send(Work::Transaction {
                    run: at,
                    drive,
                    left: 1,
                });
            }
        }
        if let Some(resuming) = self.resuming.get_mut(worker) {
            *resuming += claimed;
        }
        // A full batch is followed by another one at once.
        let after = match claimed == batch && batch > 0 {
            true => 0,
            false => micros(sweeps_after(self.load.sweep, self.dice.next())),
        };
        self.after(after, Event::Sweep { worker });
    }
}
