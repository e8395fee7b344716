//! The model of the runs: their claims, leases, decisions, effects and ends.

use super::{Figures, Outcome};
use crate::small::{
    agent::Settings,
    history::{End, Note, What},
    nemesis::Plan,
    outside::Class,
    time::ProcessId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The time after the last fault within which all runs that it left have ended, in milliseconds. A sweeper that has
/// failed to resume a run for the whole minute of the faults waits for about as long again, and people take some
/// seconds for each of up to four questions.
const SETTLED_WITHIN: u64 = 120_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Running,
    Suspended,
    Ended,
}

/// A run that was stored.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) tag: String,
    client: String,
    order: usize,
    begun: u64,
    status: Status,
    fence: u64,
    lease_until: u64,
    takeovers: u32,
    process: Option<ProcessId>,
    /// The questions that wait for a reply.
    open: BTreeSet<String>,
    /// The questions that waited before the run was claimed.
    answered: BTreeSet<String>,
    /// The replies that the run was claimed with since its state was last written.
    accepted: BTreeMap<String, String>,
    /// The decisions about calls that are in effect.
    pub(super) decisions: BTreeMap<String, String>,
    /// The fence that ended the run, how, and when.
    pub(super) end: Option<(u64, End, u64)>,
    /// Whether it was suspended, or taken over.
    pub(super) has_paused: bool,
    /// The model calls that its state counts: the stored one, that of its claim, and now.
    calls: Calls,
}

#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    stored: u64,
    claimed: u64,
    now: u64,
}

/// The starts and effects of a call.
#[derive(Debug, Default)]
pub(super) struct Call {
    keys: BTreeSet<String>,
    starts: u64,
    pub(super) done: u64,
    pub(super) is_inquired: bool,
    class: Option<Class>,
}

pub(super) struct Runs<'a> {
    settings: &'a Settings,
    plan: &'a Plan,
    pub(super) runs: BTreeMap<String, Run>,
    pub(super) calls: BTreeMap<String, Call>,
    fences: BTreeSet<u64>,
    // The runs that a crashed process drove, with the time of the crash.
    left: BTreeMap<String, u64>,
    // The model calls of requests that are not stored, by tag.
    unstored: BTreeMap<String, u64>,
    // The ends that clients received, by tag.
    finished: BTreeMap<String, Vec<End>>,
    // The runs without a process at the last fault, and the latest time of their claims.
    due: BTreeMap<String, u64>,
    is_calm: bool,
}

/// The call that a question or a key is about.
pub(super) fn call_of(key: &str) -> &str {
    let last = key.rsplit('/').next().unwrap_or(key);
    last.split('#').next().unwrap_or(last)
}

impl<'a> Runs<'a> {
    pub(super) fn new(outcome: &Outcome<'a>) -> Self {
        Self {
            settings: outcome.settings,
            plan: outcome.plan,
            runs: BTreeMap::new(),
            calls: BTreeMap::new(),
            fences: BTreeSet::new(),
            left: BTreeMap::new(),
            unstored: BTreeMap::new(),
            finished: BTreeMap::new(),
            due: BTreeMap::new(),
            is_calm: false,
        }
    }

    /// Follows an event.
    pub(super) fn follow(&mut self, note: &Note, figures: &mut Figures, found: &mut Vec<String>) {
        let at = note.at;
        let mut wrong = |what: String| found.push(format!("{at} ms: {what}"));
        match &note.what {
            What::Begun {
                run,
                client,
                tag,
                fence,
                lease,
            } => {
                if !self.fences.insert(*fence) {
                    wrong(format!("the fence {fence} of {run} is not new"));
                }
                let live = |it: &Run| it.client == *client && it.status == Status::Running;
                if self.runs.values().any(live) {
                    wrong(format!("{run} began while a run of {client} was live"));
                }
                let now = self.unstored.get(tag).copied().unwrap_or_default();
                let made = Run {
                    tag: tag.clone(),
                    client: client.clone(),
                    order: self.runs.len(),
                    begun: at,
                    status: Status::Running,
                    fence: *fence,
                    lease_until: at + lease,
                    takeovers: 0,
                    process: note.process,
                    open: BTreeSet::new(),
                    answered: BTreeSet::new(),
                    accepted: BTreeMap::new(),
                    decisions: BTreeMap::new(),
                    end: None,
                    has_paused: false,
                    calls: Calls {
                        stored: now,
                        claimed: now,
                        now,
                    },
                };
                if self.runs.values().any(|it| it.tag == *tag) {
                    wrong(format!("{tag} has two runs"));
                }
                if self.runs.insert(run.clone(), made).is_some() {
                    wrong(format!("{run} began twice"));
                }
                figures.runs += 1;
            }
            What::Swept { limit, runs } => {
                let mut overdue: Vec<_> = self
                    .runs
                    .iter()
                    .filter(|(_, run)| run.status == Status::Running && run.lease_until <= at)
                    .filter(|(_, run)| run.takeovers < concentric_core::store::MAX_TAKEOVERS)
                    .collect();
                overdue.sort_by_key(|(_, run)| (run.lease_until, run.order));
                overdue.truncate(*limit);
                let overdue: Vec<_> = overdue.into_iter().map(|(name, _)| name).collect();
                if !runs.iter().eq(overdue.iter().copied()) {
                    wrong(format!(
                        "{runs:?} were claimed, and {overdue:?} were abandoned"
                    ));
                }
            }
            What::Claimed {
                run: name,
                fence,
                lease,
                sent,
                known,
            } => {
                if !self.fences.insert(*fence) {
                    wrong(format!("the fence {fence} of {name} is not new"));
                }
                let Some(run) = self.runs.get_mut(name) else {
                    return wrong(format!("{name} was claimed and never stored"));
                };
                if *fence <= run.fence {
                    wrong(format!("the fence of {name} fell to {fence}"));
                }
                match run.status {
                    Status::Ended => wrong(format!("{name} was claimed after its end")),
                    Status::Running if run.lease_until > at => {
                        let left = run.lease_until - at;
                        wrong(format!(
                            "{name} was claimed {left} ms before the end of its lease"
                        ));
                    }
                    Status::Running => {
                        figures.takeovers += 1;
                        run.takeovers += 1;
                    }
                    Status::Suspended => {}
                }
                run.has_paused = true;
                run.answered = match run.status {
                    Status::Suspended => run.open.clone(),
                    _ => BTreeSet::new(),
                };
                for (question, reply) in sent {
                    if !run.open.remove(question) {
                        wrong(format!(
                            "{name} accepted another reply to {question}: {reply}"
                        ));
                    }
                    figures.decisions += 1;
                    run.accepted.insert(question.clone(), reply.clone());
                    let call = call_of(question).to_owned();
                    run.decisions.insert(call, reply.clone());
                }
                for (question, reply) in &run.accepted {
                    let kept = known.iter().find(|(it, _)| it == question);
                    if kept.is_none_or(|(_, it)| it != reply) {
                        wrong(format!("{name} lost the reply to {question}: {kept:?}"));
                    }
                }
                (run.status, run.fence, run.process) = (Status::Running, *fence, note.process);
                run.lease_until = at + lease;
                run.calls.now = run.calls.stored;
                run.calls.claimed = run.calls.stored;
                if let Some(crashed) = self.left.remove(name) {
                    figures.resumed.push(at - crashed);
                }
                if let Some(due) = self.due.remove(name)
                    && at > due
                {
                    let late = at - due;
                    wrong(format!("{name} was resumed {late} ms later than possible"));
                }
            }
            What::Saved { run, fence, lease } => {
                if let Some(run) = self.owned(run, *fence, "saved", &mut wrong) {
                    run.lease_until = at + lease;
                    run.takeovers = 0;
                    run.accepted.clear();
                    run.calls.stored = run.calls.now;
                }
                self.extend(run, at + lease);
            }
            What::Renewed { run, fence, lease } => {
                if let Some(run) = self.owned(run, *fence, "renewed", &mut wrong) {
                    run.lease_until = at + lease;
                    if *lease == 0 {
                        run.takeovers = 0;
                    }
                }
                self.extend(run, at + lease);
            }
            What::Suspended {
                run,
                fence,
                questions,
            } => {
                if let Some(run) = self.owned(run, *fence, "suspended", &mut wrong) {
                    // A run that had no effects waits as before, in the state that it had then.
                    let is_given_back = questions.iter().eq(&run.answered);
                    run.calls.stored = match is_given_back {
                        true => run.calls.claimed,
                        false => run.calls.now,
                    };
                    run.status = Status::Suspended;
                    run.takeovers = 0;
                    run.has_paused = true;
                    run.accepted.clear();
                    for question in questions {
                        run.decisions.remove(call_of(question));
                    }
                    run.open = questions.iter().cloned().collect();
                }
                self.left.remove(run);
                self.due.remove(run);
            }
            What::Ended {
                run: name,
                fence,
                end,
            } => {
                let Some(run) = self.runs.get_mut(name) else {
                    return wrong(format!("{name} ended and was never stored"));
                };
                match &run.end {
                    // The same process may repeat it, which changes nothing.
                    Some((first, ..)) if first == fence => {}
                    Some((first, ..)) => {
                        wrong(format!("{name} was ended by {first}, and again by {fence}"));
                    }
                    None if run.fence != *fence => {
                        wrong(format!("{name} was ended by {fence} under {}", run.fence));
                    }
                    None => {
                        run.end = Some((*fence, end.clone(), at));
                        figures.completed += u64::from(*end == End::Completed);
                        if self.is_calm && run.begun < self.plan.calm {
                            let took = at - self.plan.calm;
                            figures.settled.push(took);
                            if took > SETTLED_WITHIN {
                                wrong(format!("{name} ended {took} ms after the last fault"));
                            }
                        }
                    }
                }
                run.status = Status::Ended;
                self.left.remove(name);
                self.due.remove(name);
            }
            What::Appended { run, fence } => {
                // The process that has ended the run may do it as well.
                let end = self.runs.get(run).and_then(|run| run.end.as_ref());
                if end.is_none_or(|(by, ..)| by != fence) {
                    self.owned(run, *fence, "changed", &mut wrong);
                }
            }
            What::Released { run } => {
                figures.quarantines += 1;
                if let Some(run) = self.runs.get_mut(run) {
                    if run.takeovers < concentric_core::store::MAX_TAKEOVERS {
                        wrong(format!("{} was quarantined too early", run.tag));
                    }
                    run.takeovers = 0;
                }
            }
            What::EffectBegan { run, fence } => {
                self.owned(run, *fence, "recorded as starting an effect", &mut wrong);
            }
            What::Started {
                call,
                class,
                key,
                run: name,
                fence,
            } => {
                let of = self.calls.entry(call.clone()).or_default();
                of.class = Some(*class);
                of.starts += 1;
                if *class != Class::ReadOnly {
                    of.keys.insert(key.clone());
                }
                if *class == Class::AtMostOnce && of.starts > 1 {
                    wrong(format!("{call} was started {} times", of.starts));
                }
                let Some(run) = self.owned(name, *fence, "driven", &mut wrong) else {
                    return;
                };
                if run.lease_until <= at {
                    let since = at - run.lease_until;
                    wrong(format!("{call} started {since} ms after the lease"));
                }
                if call.ends_with(".wire") {
                    let decision = run.decisions.get(call).map(String::as_str);
                    if !decision.is_some_and(is_approved) {
                        wrong(format!("{call} started, and its decision is {decision:?}"));
                    }
                }
            }
            What::Acted {
                call,
                class,
                run,
                fence,
                did,
                ..
            } => {
                figures.effects += u64::from(*did);
                let of = self.calls.entry(call.clone()).or_default();
                of.done += u64::from(*did);
                if *class == Class::AtMostOnce && of.done > 1 {
                    wrong(format!("{call} was done {} times", of.done));
                }
                if self.runs.get(run).is_none_or(|run| run.fence != *fence) {
                    wrong(format!("{call} was done under the old fence {fence}"));
                }
            }
            What::Inquired { call } => {
                figures.inquiries += 1;
                self.calls.entry(call.clone()).or_default().is_inquired = true;
            }
            What::Step { .. } => figures.steps += 1,
            What::Attempt { tag, .. } => {
                figures.attempts += 1;
                let run = self.runs.values_mut().find(|run| run.tag == *tag);
                let calls = match run {
                    Some(run) => &mut run.calls.now,
                    None => self.unstored.entry(tag.clone()).or_default(),
                };
                *calls += 1;
                if *calls > self.settings.calls {
                    wrong(format!("{tag} made {calls} model calls"));
                }
            }
            What::Finished { tag, outcome } => {
                let ends = self.finished.entry(tag.clone()).or_default();
                ends.push(outcome.clone());
            }
            What::Sent => figures.requests += 1,
            What::Fault(fault) => {
                let kind = fault.split(' ').next().unwrap_or_default();
                *figures.faults.entry(kind.to_owned()).or_default() += 1;
                if kind == "crash" {
                    for (name, run) in &self.runs {
                        if run.process == note.process && run.status == Status::Running {
                            self.left.entry(name.clone()).or_insert(at);
                        }
                    }
                }
            }
            What::Calm => self.calm(at),
            What::Admitted { .. }
            | What::Permitted { .. }
            | What::Passed { .. }
            | What::AttemptOver { .. }
            | What::Answered { .. }
            | What::Taken { .. }
            | What::Returned { .. }
            | What::Held { .. }
            | What::Reserved { .. }
            | What::Settled { .. }
            | What::Told(_) => {}
        }
    }

    /// Returns a run if `fence` is that of its newest claim, and the run may be written.
    fn owned(
        &mut self,
        name: &str,
        fence: u64,
        what: &str,
        wrong: &mut impl FnMut(String),
    ) -> Option<&mut Run> {
        let Some(run) = self.runs.get_mut(name) else {
            wrong(format!("{name} was {what} and never stored"));
            return None;
        };
        if run.fence != fence || run.status != Status::Running {
            let (status, newest) = (run.status, run.fence);
            wrong(format!(
                "{name} was {what} by {fence}, and is {status:?} under {newest}"
            ));
        }
        Some(run)
    }

    /// The longest time between two looks of a sweeper: half an interval more, by a clock that is slow by a tenth; and
    /// the way to the store.
    const fn look(&self) -> u64 {
        self.settings.sweep * 3 / 2 * 10 / 9 + 50
    }

    /// A request of a dead process may still extend its lease.
    fn extend(&mut self, run: &str, lease_until: u64) {
        let look = self.look();
        if let Some(due) = self.due.get_mut(run) {
            *due = (*due).max(lease_until + look);
        }
    }

    /// After a restart of all processes, the next look of a sweeper claims each run whose lease is over.
    fn calm(&mut self, at: u64) {
        self.is_calm = true;
        if !self.plan.restarts {
            return;
        }
        let look = self.look();
        for (name, run) in &self.runs {
            let is_quarantined = run.takeovers >= concentric_core::store::MAX_TAKEOVERS;
            if run.status == Status::Running && !is_quarantined {
                self.due
                    .insert(name.clone(), run.lease_until.max(at) + look);
            }
        }
    }

    /// Checks what must be true in the end.
    pub(super) fn end(&self, stored: &BTreeMap<String, End>, found: &mut Vec<String>) {
        let outcome_of = |run: &'_ Run| run.end.as_ref().map(|(_, end, _)| end.clone());
        for (name, run) in &self.runs {
            let (end, stored) = (outcome_of(run), stored.get(name));
            if end.as_ref() != stored {
                found.push(format!(
                    "{name} ended as {end:?}, and is stored as {stored:?}"
                ));
            }
        }
        for (name, run) in &self.runs {
            if run.end.is_none() {
                found.push(format!("{name} of {} has no outcome: {run:?}", run.tag));
            }
        }
        for (call, of) in &self.calls {
            if of.keys.len() > 1 {
                found.push(format!("{call} has several keys: {:?}", of.keys));
            }
        }
        for (tag, ends) in &self.finished {
            if ends.len() > 1 {
                found.push(format!("{tag} has several outcomes: {ends:?}"));
            }
            let stored = self.runs.values().find(|run| run.tag == *tag);
            let stored = stored.and_then(|run| run.end.as_ref());
            let stored = stored.map(|(_, end, _)| end);
            for end in ends {
                // A run is stored before its first round, and all of them have rounds.
                let is_right = match stored {
                    Some(stored) => stored == end,
                    None => *end != End::Completed,
                };
                if !is_right {
                    found.push(format!(
                        "{tag} ended as {stored:?}, and its client received {end:?}"
                    ));
                }
            }
        }
    }
}

pub(super) fn is_approved(reply: &str) -> bool {
    reply.contains("\"approved\"") && reply.contains("true")
}
