//! Rounds with suspended calls: what is handed out, what is stored, and how rounds are resumed.
//!
//! A failing case prints its seed, which is stored in `rounds.proptest-regressions`.

use concentric_proto::{
    Annotations, CallId, CancelReason, Event, Finish, FinishReason, Interrupt, InterruptId,
    LimitScope, MessageId, Outcome, Refusal, Reply, ReplyError, RoundCall, Str, Suspension,
    ToolCallPart, ToolOutcome, ToolResult, ToolSpec, ToolSpecs, ToolStatus, Transcript, Usage,
    call::CallStage,
    interrupt::{self, SuspendedBy},
    machine::{Action, Input, Machine, ModelStart, RunLimits, RunState},
};
use proptest::{prelude::*, test_runner::FileFailurePersistence};
use serde_json::json;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

const USED: Usage = Usage::new(10, 1);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000)
}

fn rules() -> RunLimits {
    let mut rules = RunLimits::default();
    rules.resumes = true;
    rules
}

fn tools() -> ToolSpecs {
    let spec = |name, annotations| {
        let mut spec = ToolSpec::new(name, "", json!({"type": "object"}));
        spec.annotations = annotations;
        Arc::new(spec)
    };
    ToolSpecs::new([
        spec("act", Annotations::default()),
        spec("look", Annotations::read_only()),
    ])
}

/// All actions until the machine waits for an input.
#[derive(Default)]
struct Drained {
    events: Vec<Event>,
    round: Option<Vec<RoundCall>>,
    step: Option<u32>,
    finish: Option<Finish>,
}

impl Drained {
    fn results(&self) -> Vec<ToolResult> {
        let results = self.events.iter().filter_map(|event| match event {
            Event::ToolResult(result) => Some((**result).clone()),
            _ => None,
        });
        results.collect()
    }

    fn statuses(&self) -> Vec<ToolStatus> {
        let results = self.results();
        results.iter().map(|result| result.outcome.status).collect()
    }

    fn ids(&self) -> Vec<String> {
        let calls = self.round.iter().flatten();
        calls.map(|call| call.call.id.to_string()).collect()
    }

    fn outcome(&self) -> Option<Outcome> {
        self.finish.as_ref().map(|finish| finish.outcome.clone())
    }
}

fn drain(machine: &mut Machine) -> Drained {
    let mut drained = Drained::default();
    while let Some(action) = machine.action() {
        assert!(drained.finish.is_none(), "{action:?} after the end");
        match action {
            Action::Emit(Event::Finish(finish)) => drained.finish = Some(*finish),
            Action::Emit(event) => drained.events.push(event),
            Action::RunTools { calls, .. } => drained.round = Some(calls),
            Action::CallModel { step, .. } => drained.step = Some(step),
            other => panic!("{other:?}"),
        }
    }
    drained
}

/// Answers as a model with these calls, as `(id, tool)`.
fn answer<'a>(machine: &mut Machine, calls: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let mut start = ModelStart::new(MessageId::new("m"));
    start.tools = tools();
    machine.input(Input::ModelStarted(start));
    for (id, tool) in calls {
        let call = ToolCallPart::new(CallId::new(id), tool, "{}");
        machine.input(Input::ModelEvent(Event::tool_call(call)));
    }
    machine.input(Input::ModelEvent(Event::finish(FinishReason::Stop, USED)));
}

/// A machine that has handed out these calls.
fn round_of<'a>(rules: RunLimits, calls: impl IntoIterator<Item = (&'a str, &'a str)>) -> Machine {
    let mut machine = Machine::new(Transcript::new(), rules);
    assert_eq!(drain(&mut machine).step, Some(0));
    answer(&mut machine, calls);
    drain(&mut machine);
    machine
}

fn id(position: usize, call: &str) -> InterruptId {
    InterruptId::new(format!("m/{position}/{call}"))
}

/// A suspension with its replies.
#[derive(Clone, Debug, PartialEq)]
struct Answered {
    on: Suspension,
    replies: Vec<Reply>,
    accepted_at: Option<SystemTime>,
}

impl Answered {
    fn new(on: Suspension, replies: Vec<Reply>) -> Self {
        let accepted_at = (!replies.is_empty()).then(now);
        Self {
            on,
            replies,
            accepted_at,
        }
    }

    /// What a call that is handed out was suspended on.
    fn of(call: &RoundCall) -> Option<Self> {
        match &call.state.stage {
            CallStage::Resumed(resume) => Some(Self {
                on: resume.on.clone(),
                replies: resume.replies.clone(),
                accepted_at: resume.accepted_at,
            }),
            CallStage::Released { on, .. } => Some(Self::new(Suspension::clone(on), Vec::new())),
            _ => None,
        }
    }
}

fn asking(id: InterruptId) -> Suspension {
    Suspension::new(vec![Interrupt::new(id, interrupt::TOOL_CALL)])
}

fn settle(machine: &mut Machine, index: usize, outcome: ToolOutcome) {
    machine.input(Input::Settled { index, outcome });
}

/// Suspends a call by a gate, or by a request for its outcome.
fn wait(machine: &mut Machine, index: usize, on: Suspension) {
    let mut asked = on.interrupts.iter();
    let by = match asked.any(|asked| asked.reason == interrupt::UNKNOWN_EFFECT) {
        true => SuspendedBy::UnknownEffect,
        false => SuspendedBy::Gate,
    };
    wait_by(machine, index, on, by);
}

fn wait_by(machine: &mut Machine, index: usize, on: Suspension, by: SuspendedBy) {
    let on = Box::new(on);
    machine.input(Input::Suspended { index, on, by });
}

/// Serializes the state and reads it back.
fn round_trip(state: &RunState) -> RunState {
    let json = state.to_json().unwrap();
    let read = RunState::from_json(json.as_bytes(), json.len()).unwrap();
    assert_eq!(&read, state, "{json}");
    assert_eq!(read.to_json().unwrap(), json);
    let v1 = crate::v1::text(&json);
    let upgraded = RunState::from_json(v1.as_bytes(), v1.len()).unwrap();
    assert_eq!(&upgraded, state, "{v1}");
    read
}

/// Returns whether the next action reports that the run is resumed.
fn is_resumed(machine: &mut Machine) -> bool {
    matches!(machine.action(), Some(Action::Emit(Event::Resumed)))
}

fn resume(drained: Drained, rules: RunLimits) -> Machine {
    let finish = drained.finish.expect("the run has ended");
    assert_eq!(finish.outcome, Outcome::Interrupted);
    Machine::restore(round_trip(&finish.state.unwrap()), rules)
}

// ---- every round of up to five calls ----

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Done,
    Pending,
    Denied,
    Failed,
    Cancelled,
}

const KINDS: [Kind; 5] = [
    Kind::Done,
    Kind::Pending,
    Kind::Denied,
    Kind::Failed,
    Kind::Cancelled,
];

impl Kind {
    fn outcome(self) -> ToolOutcome {
        match self {
            Self::Done => ToolOutcome::done("yes"),
            Self::Pending => unreachable!("has none"),
            Self::Denied => ToolOutcome::denied("no"),
            Self::Failed => ToolOutcome::failed("oh"),
            Self::Cancelled => ToolOutcome::cancelled("well"),
        }
    }
}

/// Runs a round of `kinds`, with one reply per resume, for the last call first.
fn play(kinds: &[Kind], seed: usize) {
    let ids: Vec<String> = (0..kinds.len()).map(|at| format!("c{at}")).collect();
    let mut machine = Machine::new(Transcript::new(), rules());
    drain(&mut machine);
    answer(&mut machine, ids.iter().map(|id| (id.as_str(), "act")));
    let mut drained = drain(&mut machine);
    assert_eq!(drained.ids(), ids);

    let mut expected: Vec<Option<ToolStatus>> = vec![None; kinds.len()];
    // The order of settling depends on the seed.
    for n in 0..kinds.len() {
        let at = match seed % 2 {
            0 => (n + seed) % kinds.len(),
            _ => kinds.len() - 1 - (n + seed) % kinds.len(),
        };
        match kinds[at] {
            Kind::Pending => wait(&mut machine, at, asking(id(at, &ids[at]))),
            kind => {
                expected[at] = Some(kind.outcome().status);
                settle(&mut machine, at, kind.outcome());
            }
        }
        assert!(machine.action().is_none(), "no further call is handed out");
    }
    machine.input(Input::RoundEnded);
    drained = drain(&mut machine);

    let mut pending: Vec<usize> = (0..kinds.len())
        .filter(|at| kinds[*at] == Kind::Pending)
        .collect();
    let mut n = seed;
    while let Some(at) = pending.pop() {
        assert!(drained.results().is_empty(), "the round is open");
        let finish = drained.finish.as_ref().unwrap();
        let asked: Vec<_> = finish.interrupts().iter().map(|i| i.id.clone()).collect();
        let waiting: Vec<_> = pending
            .iter()
            .chain([&at])
            .map(|at| id(*at, &ids[*at]))
            .collect();
        assert_eq!(asked, waiting);
        assert_eq!(finish.usage, USED);
        let open = finish.state.as_ref().unwrap().open_round().unwrap();
        assert_eq!(open.waiting().count(), waiting.len());

        let mut next = resume(drained, rules());
        n += 1;
        let (reply, outcome) = match n % 4 {
            0 => (Reply::approve(id(at, &ids[at])), ToolOutcome::done("paid")),
            1 => (
                Reply::deny(id(at, &ids[at]), "no"),
                ToolOutcome::denied("no"),
            ),
            2 => (Reply::cancel(id(at, &ids[at])), ToolOutcome::cancelled("?")),
            _ => (
                Reply::answer(id(at, &ids[at]), "yes"),
                ToolOutcome::done("yes"),
            ),
        };
        next.reply(vec![reply.clone()], now()).unwrap();
        drained = drain(&mut next);
        assert_eq!(drained.events[0], Event::Resumed);
        assert_eq!(drained.ids(), [ids[at].clone()]);
        let call = &drained.round.as_ref().unwrap()[0];
        assert_eq!((call.position, call.is_recovered()), (at, false));
        let answered = Answered::new(asking(id(at, &ids[at])), vec![reply]);
        assert_eq!(Answered::of(call), Some(answered));
        expected[at] = Some(outcome.status);
        settle(&mut next, 0, outcome);
        next.input(Input::RoundEnded);
        drained = drain(&mut next);
        machine = next;
    }

    // One result for each call, in the order of the calls.
    assert_eq!(drained.finish.as_ref().map(|f| &f.outcome), None);
    let results = drained.results();
    let ended: Vec<_> = results.iter().map(|r| r.call_id.to_string()).collect();
    assert_eq!(ended, ids);
    let statuses: Vec<_> = drained.statuses().into_iter().map(Some).collect();
    assert_eq!(statuses, expected, "{kinds:?}");
    assert_eq!(drained.step, Some(1));
    assert_eq!(machine.transcript().last().unwrap().results(), results);
    answer(&mut machine, []);
    let finish = drain(&mut machine).finish.unwrap();
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(finish.usage, Usage::new(20, 2));
}

#[test]
fn every_call_of_a_round_has_exactly_one_result() {
    let mut rounds = 0;
    for len in 1..=5 {
        for n in 0..KINDS.len().pow(len) {
            let digits = (0..len).map(|at| KINDS[n / KINDS.len().pow(at) % KINDS.len()]);
            play(&digits.collect::<Vec<_>>(), n);
            rounds += 1;
        }
    }
    assert_eq!(rounds, 5 + 25 + 125 + 625 + 3125);
}

// ---- any order of settling, suspending, replying and crashing ----

/// A source of choices.
struct Choices {
    all: Vec<u8>,
    at: usize,
    mixed: u64,
}

impl Choices {
    fn new(all: Vec<u8>) -> Self {
        Self {
            all,
            at: 0,
            mixed: 0,
        }
    }

    fn of(&mut self, n: usize) -> usize {
        // Mixed with earlier choices, so that no choice repeats forever.
        let chosen = u64::from(self.all[self.at % self.all.len()]);
        self.at += 1;
        self.mixed = self.mixed.wrapping_add(chosen * 2 + 1);
        self.mixed = self.mixed.wrapping_mul(6_364_136_223_846_793_005);
        usize::try_from(self.mixed >> 40).unwrap() % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.of(n) == 0
    }
}

/// The expected state of one call of the open round.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    /// Will be handed out.
    Next(Option<Answered>),
    Running,
    Recovered,
    Waits(Suspension),
    Settled(ToolOutcome),
}

/// A run and its expected state.
struct World {
    machine: Machine,
    rules: RunLimits,
    choices: Choices,
    // The open round.
    ids: Vec<String>,
    names: Vec<&'static str>,
    refused: Vec<Option<Refusal>>,
    calls: Vec<Known>,
    // Whether each call was running when its process ended.
    recovered: Vec<bool>,
    asked: u32,
    waited: HashMap<String, u32>,
    // The run.
    steps: u32,
    free: u32,
    total: u32,
    of_tool: u32,
}

impl World {
    fn new(rules: RunLimits, choices: Vec<u8>) -> Self {
        Self {
            machine: Machine::new(Transcript::new(), rules.clone()),
            rules,
            choices: Choices::new(choices),
            ids: Vec::new(),
            names: Vec::new(),
            refused: Vec::new(),
            calls: Vec::new(),
            recovered: Vec::new(),
            asked: 0,
            waited: HashMap::new(),
            steps: 0,
            free: 0,
            total: 0,
            of_tool: 0,
        }
    }

    fn run(mut self) {
        let drained = drain(&mut self.machine);
        assert_eq!(drained.step, Some(0));
        loop {
            let drained = self.step();
            let Some(drained) = drained else { return };
            if let Some(finish) = &drained.finish {
                self.check_end(finish);
                return;
            }
            assert_eq!(drained.step, Some(self.steps), "counted once");
            assert!(self.steps - self.free < self.rules.steps);
        }
    }

    fn check_end(&self, finish: &Finish) {
        let usage = u64::from(self.steps);
        assert_eq!(finish.usage, Usage::new(10 * usage, usage), "counted once");
        let over = self.rules.calls.is_some_and(|limit| self.total > limit);
        match &finish.outcome {
            Outcome::Completed => assert!(self.calls.is_empty()),
            Outcome::CallLimit => assert!(over),
            Outcome::StepLimit => {
                assert!(!over);
                assert_eq!(self.steps - self.free, self.rules.steps);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Runs one step; `None` if the run was cancelled.
    fn step(&mut self) -> Option<Drained> {
        let n = match self.steps {
            0..6 => self.choices.of(6),
            _ => 0,
        };
        self.ids = (0..n).map(|at| format!("s{}c{at}", self.steps)).collect();
        let names: Vec<&'static str> = (0..n)
            .map(|_| ["act", "look"][self.choices.of(2)])
            .collect();
        self.count(&names);
        self.calls = vec![Known::Next(None); n];
        self.recovered = vec![false; n];
        self.names.clone_from(&names);
        let calls = self.ids.iter().map(String::as_str).zip(names);
        answer(&mut self.machine, calls.collect::<Vec<_>>());
        self.steps += 1;
        let mut drained = drain(&mut self.machine);
        if n == 0 {
            return Some(drained);
        }
        loop {
            if drained.round.is_some() {
                self.check_handed_out(&drained);
                if !self.settle(drained.round.as_deref().unwrap_or_default()) {
                    return None;
                }
                drained = drain(&mut self.machine);
                continue;
            }
            let Some(finish) = &drained.finish else { break };
            if finish.outcome != Outcome::Interrupted {
                break;
            }
            self.check_open(finish);
            let state = finish.state.as_deref().unwrap();
            self.machine = Machine::restore(round_trip(state), self.rules.clone());
            assert!(is_resumed(&mut self.machine));
            self.reply();
            drained = drain(&mut self.machine);
        }
        self.check_closed(&drained);
        Some(drained)
    }

    /// Counts the calls of a new round against the limits.
    fn count(&mut self, names: &[&str]) {
        self.refused.clear();
        for (at, name) in (1..).zip(names) {
            self.total += 1;
            let limits = [
                (self.rules.calls, self.total, LimitScope::Run),
                (self.rules.calls_per_round, at, LimitScope::Round),
            ];
            let mut over = limits.into_iter().find_map(|(limit, count, of)| {
                let calls = limit.filter(|limit| count > *limit)?;
                Some(Refusal::Limit { calls, of })
            });
            if *name == "act"
                && let Some((_, calls)) = self.rules.calls_per_tool.first()
            {
                self.of_tool += 1;
                if self.of_tool > *calls {
                    let of = LimitScope::Tool;
                    over = over.or(Some(Refusal::Limit { calls: *calls, of }));
                }
            }
            self.refused.push(over);
        }
    }

    /// Checks that exactly the expected calls were handed out.
    fn check_handed_out(&mut self, drained: &Drained) {
        let calls = drained.round.as_deref().unwrap();
        let positions: Vec<usize> = calls.iter().map(|call| call.position).collect();
        let may_be = |known: &Known| matches!(known, Known::Next(_) | Known::Recovered);
        let expected: Vec<usize> = (0..self.calls.len())
            .filter(|at| may_be(&self.calls[*at]))
            .collect();
        assert_eq!(positions, expected);
        for call in calls {
            let known = &mut self.calls[call.position];
            assert_eq!(call.call.id.as_str(), self.ids[call.position]);
            assert_eq!(call.refusal(), self.refused[call.position].as_ref());
            assert_eq!(call.is_recovered(), self.recovered[call.position]);
            if let Known::Next(answered) = known {
                assert_eq!(Answered::of(call), *answered);
            }
            *known = Known::Running;
        }
        assert!(drained.results().is_empty(), "the round is open");
    }

    /// Acts as a round service on `calls`; returns whether the run continues.
    fn settle(&mut self, calls: &[RoundCall]) -> bool {
        let mut left: Vec<usize> = (0..calls.len()).collect();
        // Whether each call had only waited for other calls before.
        let mut held = Vec::new();
        for call in calls {
            held.push(matches!(call.state.stage, CallStage::Released { .. }));
        }
        while !left.is_empty() {
            if self.choices.one_in(24) {
                self.cancel();
                return false;
            }
            if self.choices.one_in(16) {
                self.crash();
                return true;
            }
            let index = left.swap_remove(self.choices.of(left.len()));
            self.settle_one(index, &calls[index]);
            if self.calls[calls[index].position] == Known::Running {
                continue;
            }
            // Further reports about a settled call are ignored.
            settle(&mut self.machine, index, ToolOutcome::done("twice"));
            wait(&mut self.machine, index, Suspension::held());
            assert!(self.machine.action().is_none());
        }
        self.machine.input(Input::RoundEnded);
        let asks = |known: &Known| matches!(known, Known::Waits(pending) if !pending.is_held());
        let asks = self.calls.iter().any(asks);
        let is_settled = |call: &RoundCall| matches!(self.calls[call.position], Known::Settled(_));
        let continues = asks || calls.iter().any(is_settled);
        let is_indeterminate: Vec<bool> = (0..self.calls.len())
            .map(|at| self.is_indeterminate(at))
            .collect();
        for (call, held) in calls.iter().zip(held) {
            let known = &mut self.calls[call.position];
            match known {
                Known::Running => *known = Known::Settled(ToolOutcome::unknown("silent")),
                Known::Waits(pending) if pending.is_held() && held && !continues => {
                    *known = Known::Settled(match is_indeterminate[call.position] {
                        true => ToolOutcome::unknown("held forever"),
                        false => ToolOutcome::failed("held forever"),
                    });
                }
                _ => {}
            }
        }
        self.release();
        true
    }

    /// Whether a call may have executed without a recorded outcome.
    fn is_indeterminate(&self, at: usize) -> bool {
        self.recovered[at] && self.names[at] != "look"
    }

    /// Resumes calls that waited for other calls, if none of those waits any more.
    fn release(&mut self) {
        let asks = |known: &Known| matches!(known, Known::Waits(pending) if !pending.is_held());
        if self.calls.iter().any(asks) {
            return;
        }
        for known in &mut self.calls {
            if let Known::Waits(pending) = known {
                *known = Known::Next(Some(Answered::new(pending.clone(), Vec::new())));
            }
        }
    }

    fn settle_one(&mut self, index: usize, call: &RoundCall) {
        let known = call.position;
        if let Some(refusal) = call.refusal() {
            let outcome = refusal.outcome(&call.call);
            settle(&mut self.machine, index, outcome.clone());
            self.calls[known] = Known::Settled(outcome);
            return;
        }
        if let Some(Answered {
            on: pending,
            replies,
            ..
        }) = Answered::of(call)
        {
            let replied = |asked: &Interrupt| replies.iter().any(|r| r.interrupt_id == asked.id);
            let open: Vec<_> = pending
                .interrupts
                .iter()
                .filter(|i| !replied(i))
                .cloned()
                .collect();
            if !open.is_empty() {
                let pending = Suspension::new(open);
                wait(&mut self.machine, index, pending.clone());
                self.calls[known] = Known::Waits(pending);
                return;
            }
        }
        let waited = self.waited.entry(call.call.id.to_string()).or_default();
        let how = match *waited {
            0..3 => self.choices.of(10),
            _ => 6 + self.choices.of(4),
        };
        let outcome = match how {
            0..3 => {
                *waited += 1;
                let mut pending = Suspension::new(Vec::new());
                for _ in 0..=self.choices.of(3) {
                    self.asked += 1;
                    let id = InterruptId::new(format!("i{}", self.asked));
                    let mut asked =
                        Interrupt::new(id, interrupt::TOOL_CALL).about(call.call.id.clone());
                    if self.choices.one_in(4) {
                        asked = asked.until(now() + Duration::from_secs(1));
                    }
                    pending.interrupts.push(asked);
                }
                if self.choices.one_in(4) {
                    pending = pending.together();
                }
                pending = pending.with_state(json!({"asked": self.asked}));
                wait(&mut self.machine, index, pending.clone());
                self.calls[known] = Known::Waits(pending);
                return;
            }
            3 => {
                *waited += 1;
                wait(&mut self.machine, index, Suspension::held());
                self.calls[known] = Known::Waits(Suspension::held());
                return;
            }
            // No report.
            4 => return,
            5 => ToolOutcome::failed("oh"),
            6 => ToolOutcome::denied("no"),
            7 => ToolOutcome::cancelled("well"),
            8 => ToolOutcome::done("yes").free_of_charge(),
            _ => ToolOutcome::done("yes"),
        };
        settle(&mut self.machine, index, outcome.clone());
        self.calls[known] = Known::Settled(outcome);
    }

    /// Ends the process and restores the run from its stored state.
    fn crash(&mut self) {
        let state = self.machine.state().expect("no model is being read");
        self.machine = Machine::restore(round_trip(&state), self.rules.clone());
        assert!(is_resumed(&mut self.machine));
        self.machine.reply(Vec::new(), now()).unwrap();
        for (at, known) in self.calls.iter_mut().enumerate() {
            if *known == Known::Running {
                *known = Known::Recovered;
                self.recovered[at] = self.refused[at].is_none();
            }
        }
        self.release();
    }

    /// Cancels the run.
    fn cancel(&mut self) {
        self.machine.input(Input::Cancel(CancelReason::User));
        let drained = drain(&mut self.machine);
        assert!(drained.round.is_none() && drained.step.is_none());
        assert!(matches!(drained.outcome(), Some(Outcome::Aborted { .. })));
        let results = drained.results();
        assert_eq!(results.len(), self.ids.len());
        for (at, result) in results.iter().enumerate() {
            assert_eq!(result.call_id.as_str(), self.ids[at]);
            let status = result.outcome.status;
            match &self.calls[at] {
                Known::Settled(outcome) => assert_eq!(status, outcome.status),
                _ if self.is_indeterminate(at) => assert_eq!(status, ToolStatus::Unknown),
                Known::Running => {
                    assert!(matches!(
                        status,
                        ToolStatus::Unknown | ToolStatus::Cancelled
                    ));
                }
                _ => assert_eq!(status, ToolStatus::Cancelled),
            }
        }
    }

    /// Checks that an interrupted run has exactly the expected interrupts.
    fn check_open(&self, finish: &Finish) {
        let mut asked = Vec::new();
        for known in &self.calls {
            if let Known::Waits(pending) = known {
                asked.extend(&pending.interrupts);
            }
        }
        assert!(!asked.is_empty());
        assert_eq!(finish.interrupts(), asked);
        let open = finish.state.as_ref().unwrap().open_round().unwrap();
        assert_eq!(open.calls().len(), self.ids.len());
        for (call, known) in open.calls().iter().zip(&self.calls) {
            match known {
                Known::Settled(outcome) => {
                    assert_eq!(call.outcome.as_ref().unwrap().status, outcome.status);
                }
                Known::Waits(_) => assert_eq!(call.outcome, None),
                other => panic!("{other:?} when the run was interrupted"),
            }
        }
    }

    /// Replies to some interrupts, after invalid replies that must be rejected.
    fn reply(&mut self) {
        let mut asked: Vec<(usize, Interrupt)> = Vec::new();
        let mut together = false;
        for (at, known) in self.calls.iter().enumerate() {
            if let Known::Waits(pending) = known {
                together |= pending.together;
                asked.extend(pending.interrupts.iter().cloned().map(|i| (at, i)));
            }
        }
        let before = self.machine.state().unwrap();
        self.reply_invalidly(&asked, together);
        assert_eq!(self.machine.state().unwrap(), before, "nothing has changed");

        let all = together && !self.choices.one_in(4);
        let mut replies = Vec::new();
        let mut answered: HashMap<usize, Vec<Reply>> = HashMap::new();
        for (at, asked) in &asked {
            if all || (!together && !self.choices.one_in(3)) {
                let id = asked.id.clone();
                let reply = match self.choices.of(4) {
                    0 => Reply::deny(id, "no"),
                    1 => Reply::cancel(id),
                    2 => Reply::answer(id, json!({"a": 1})),
                    _ => Reply::approve(id),
                };
                replies.push((*at, reply));
            }
        }
        if self.choices.one_in(2) {
            replies.reverse();
        }
        for (at, reply) in &replies {
            answered.entry(*at).or_default().push(reply.clone());
        }
        let replies: Vec<Reply> = replies.into_iter().map(|(_, reply)| reply).collect();
        self.machine.reply(replies.clone(), now()).unwrap();
        if let Some(first) = replies.first() {
            let again = self.machine.reply(vec![first.clone()], now());
            assert!(again.is_err(), "a reply is accepted once");
        }
        for (at, replies) in answered {
            if let Known::Waits(pending) = &self.calls[at] {
                let answered = Answered::new(pending.clone(), replies);
                self.calls[at] = Known::Next(Some(answered));
            }
        }
        self.release();
    }

    fn reply_invalidly(&mut self, asked: &[(usize, Interrupt)], together: bool) {
        let good: Vec<Reply> = asked
            .iter()
            .map(|(_, i)| Reply::approve(i.id.clone()))
            .collect();
        let at = self.choices.of(good.len());
        let mut bad = vec![good.clone(); 5];
        // An unknown interrupt, together with valid replies.
        bad[0].push(Reply::approve(InterruptId::new("unknown")));
        // A duplicate reply.
        bad[1].push(Reply::cancel(good[at].interrupt_id.clone()));
        // An invalid payload.
        bad[2][at] = Reply::resolve(good[at].interrupt_id.clone(), json!({"approved": "yes"}));
        bad[3][at].payload = None;
        // Invalid arguments.
        let edited = Reply::approve_edited(good[at].interrupt_id.clone(), json!([]));
        bad[4][at] = edited;
        for bad in bad {
            assert!(self.machine.reply(bad, now()).is_err());
        }
        if together && good.len() > 1 {
            let mut rest = good.clone();
            let missing = rest.remove(at).interrupt_id;
            let refused = self.machine.reply(rest, now());
            assert_eq!(refused, Err(ReplyError::Missing(missing)));
        }
        if asked.iter().any(|(_, asked)| asked.expires_at.is_some()) {
            let late = now() + Duration::from_secs(1);
            let refused = self.machine.reply(good, late);
            assert!(matches!(refused, Err(ReplyError::Expired(_))));
        }
    }

    /// Checks that a closed round has one result for each call, with the expected outcome.
    fn check_closed(&mut self, drained: &Drained) {
        let results = drained.results();
        assert_eq!(results.len(), self.ids.len());
        let mut free = true;
        for (result, (id, known)) in results.iter().zip(self.ids.iter().zip(&self.calls)) {
            let Known::Settled(outcome) = known else {
                panic!("{id} is closed as {result:?}, but was {known:?}");
            };
            free &= outcome.free;
            assert_eq!(result.call_id.as_str(), id);
            assert_eq!(result.outcome.status, outcome.status);
        }
        // At most as many steps are free as are charged, so that a run ends.
        self.free = (self.free + u32::from(free)).min(self.rules.steps);
        assert_eq!(self.machine.transcript().last().unwrap().results(), results);
    }
}

fn limits() -> impl Strategy<Value = RunLimits> {
    let limit = || prop_oneof![3 => Just(None), 1 => (0..9_u32).prop_map(Some)];
    (1..8_u32, limit(), limit(), limit()).prop_map(|(steps, calls, per_round, per_tool)| {
        let mut limits = rules();
        limits.steps = steps;
        limits.calls = calls;
        limits.calls_per_round = per_round;
        limits.calls_per_tool = per_tool
            .map(|calls| ("act".into(), calls))
            .into_iter()
            .collect();
        limits
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_round_resumes_according_to_its_replies(
        rules in limits(),
        choices in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        World::new(rules, choices).run();
    }
}

// ---- single cases ----

#[test]
fn a_held_call_resumes_with_the_last_of_the_others() {
    let mut machine = round_of(rules(), [("a", "act"), ("b", "act"), ("c", "act")]);
    wait(&mut machine, 0, asking(id(0, "a")));
    wait(
        &mut machine,
        1,
        Suspension::held().with_state(json!("b's own")),
    );
    wait(&mut machine, 2, asking(id(2, "c")));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    machine
        .reply(vec![Reply::deny(id(0, "a"), "no")], now())
        .unwrap();
    let drained = drain(&mut machine);
    assert_eq!(drained.ids(), ["a"]);
    settle(&mut machine, 0, ToolOutcome::denied("no"));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    machine
        .reply(vec![Reply::approve(id(2, "c"))], now())
        .unwrap();
    let drained = drain(&mut machine);
    assert_eq!(drained.ids(), ["b", "c"]);
    let held = Answered::of(&drained.round.unwrap()[0]).unwrap();
    assert_eq!(held.on.state, Some(Arc::new(json!("b's own"))));
    assert!(held.replies.is_empty());
}

#[test]
fn a_held_call_without_waiting_siblings_fails() {
    let mut machine = round_of(rules(), [("a", "act"), ("b", "act")]);
    settle(&mut machine, 0, ToolOutcome::done("yes"));
    wait(&mut machine, 1, Suspension::held());
    machine.input(Input::RoundEnded);
    // The call is handed out once more, because it may have waited too early.
    assert_eq!(drain(&mut machine).ids(), ["b"]);
    wait(&mut machine, 0, Suspension::held());
    machine.input(Input::RoundEnded);
    let drained = drain(&mut machine);
    assert_eq!(drained.statuses(), [ToolStatus::Done, ToolStatus::Failed]);
}

#[test]
fn a_call_with_several_interrupts_receives_all_replies() {
    let mut machine = round_of(rules(), [("a", "act")]);
    let ids = ["m/0/a", "m/0/a#2"].map(InterruptId::new);
    let ask = ids
        .clone()
        .map(|id| Interrupt::new(id, interrupt::TOOL_CALL));
    wait(&mut machine, 0, Suspension::new(ask.to_vec()));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    let replies = ids.map(Reply::approve).to_vec();
    machine.reply(replies.clone(), now()).unwrap();
    let drained = drain(&mut machine);
    let round = drained.round.unwrap();
    assert_eq!(Answered::of(&round[0]).unwrap().replies, replies);
}

#[test]
fn a_reply_to_an_earlier_interrupt_is_rejected() {
    let mut machine = round_of(rules(), [("a", "act")]);
    wait(&mut machine, 0, asking(id(0, "a")));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    let first = vec![Reply::approve(id(0, "a"))];
    machine.reply(first.clone(), now()).unwrap();
    drain(&mut machine);
    // The call raises another interrupt.
    let second = InterruptId::new("m/0/a#2");
    wait(&mut machine, 0, asking(second.clone()));
    machine.input(Input::RoundEnded);
    let drained = drain(&mut machine);
    assert_eq!(drained.finish.as_ref().unwrap().interrupts()[0].id, second);
    let mut machine = resume(drained, rules());
    assert_eq!(
        machine.reply(first, now()),
        Err(ReplyError::Unknown(id(0, "a")))
    );
}

#[test]
fn joint_interrupts_require_all_replies() {
    let mut machine = round_of(rules(), [("a", "act"), ("b", "act")]);
    wait(&mut machine, 0, asking(id(0, "a")));
    wait(&mut machine, 1, asking(id(1, "b")).together());
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    assert_eq!(
        machine.reply(vec![Reply::approve(id(1, "b"))], now()),
        Err(ReplyError::Missing(id(0, "a")))
    );
    let both = [(0, "a"), (1, "b")].map(|(at, call)| Reply::approve(id(at, call)));
    machine.reply(both.to_vec(), now()).unwrap();
    assert_eq!(drain(&mut machine).ids(), ["a", "b"]);
}

#[test]
fn a_late_approval_is_rejected_but_not_a_denial() {
    for reply in [Reply::cancel(id(0, "a")), Reply::deny(id(0, "a"), "no")] {
        let mut machine = round_of(rules(), [("a", "act")]);
        let until = now() + Duration::from_millis(1);
        let asked = Interrupt::new(id(0, "a"), interrupt::TOOL_CALL).until(until);
        wait(&mut machine, 0, Suspension::new(vec![asked]));
        machine.input(Input::RoundEnded);
        let mut machine = resume(drain(&mut machine), rules());
        let late = machine.reply(vec![Reply::approve(id(0, "a"))], until);
        assert_eq!(late, Err(ReplyError::Expired(id(0, "a"))));
        machine.reply(vec![reply], until).unwrap();
    }
}

#[test]
fn a_recovered_call_keeps_its_replies() {
    let mut machine = round_of(rules(), [("a", "act")]);
    wait(&mut machine, 0, asking(id(0, "a")));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    let reply = Reply::approve(id(0, "a"));
    machine.reply(vec![reply.clone()], now()).unwrap();
    assert_eq!(drain(&mut machine).ids(), ["a"]);

    // The process ends twice before there is an outcome.
    for _ in 0..2 {
        machine = Machine::restore(round_trip(&machine.state().unwrap()), rules());
        let refused = machine.reply(vec![reply.clone()], now());
        assert!(refused.is_err(), "a reply is accepted once");
        let round = drain(&mut machine).round.unwrap();
        assert!(round[0].is_recovered());
        let replies = &Answered::of(&round[0]).unwrap().replies;
        assert_eq!(replies.as_slice(), std::slice::from_ref(&reply));
    }
    // The call may have executed, so it requests its outcome.
    let asked = Interrupt::new(InterruptId::new("m/0/a#2"), interrupt::UNKNOWN_EFFECT);
    wait(&mut machine, 0, Suspension::new(vec![asked]));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    let again = vec![Reply::approve(InterruptId::new("m/0/a#2"))];
    assert!(
        machine.reply(again, now()).is_err(),
        "an approval does not run the call again"
    );
    let reply = Reply::answer(InterruptId::new("m/0/a#2"), "it was paid");
    machine.reply(vec![reply], now()).unwrap();
    let round = drain(&mut machine).round.unwrap();
    assert!(round[0].is_recovered() && Answered::of(&round[0]).is_some());
}

// Case f044.
#[test]
fn a_started_call_is_unknown_without_an_outcome() {
    for how in [asking(id(0, "a")), Suspension::held()] {
        let mut machine = round_of(rules(), [("a", "act"), ("b", "act"), ("c", "look")]);
        settle(&mut machine, 1, ToolOutcome::done("yes"));
        let mut machine = Machine::restore(round_trip(&machine.state().unwrap()), rules());
        assert_eq!(drain(&mut machine).ids(), ["a", "c"]);
        // One call requests its outcome or waits, and another raises an interrupt.
        wait(&mut machine, 0, how);
        wait(&mut machine, 1, asking(id(2, "c")));
        machine.input(Input::RoundEnded);
        let drained = drain(&mut machine);
        let mut machine = resume(drained, rules());
        machine.input(Input::Cancel(CancelReason::User));
        let statuses = [ToolStatus::Unknown, ToolStatus::Done, ToolStatus::Cancelled];
        assert_eq!(drain(&mut machine).statuses(), statuses);
    }
}

#[test]
fn a_repeatedly_suspended_call_is_not_indeterminate() {
    let mut machine = round_of(rules(), [("a", "act")]);
    for n in 0..3 {
        let question = InterruptId::new(format!("{n}"));
        let reason = Str::from_static("its own");
        let asked = Interrupt::new(question.clone(), reason);
        wait(&mut machine, 0, Suspension::new(vec![asked]));
        machine.input(Input::RoundEnded);
        machine = resume(drain(&mut machine), rules());
        let reply = Reply::resolve(question, json!(n));
        machine.reply(vec![reply], now()).unwrap();
        let round = drain(&mut machine).round.unwrap();
        assert!(!round[0].is_recovered());
    }
    wait(&mut machine, 0, asking(id(0, "a")));
    machine.input(Input::Cancel(CancelReason::User));
    assert_eq!(drain(&mut machine).statuses(), [ToolStatus::Cancelled]);
}

/// What a tool asks, which may have had an effect before.
fn asked_by_tool(question: &str) -> Suspension {
    let question = InterruptId::new(question);
    let asked = Interrupt::new(question, Str::from_static("choice"));
    Suspension::new(vec![asked])
}

#[test]
fn a_machine_that_settles_replies_keeps_a_begun_call_unknown() {
    for reply in [Reply::approve, Reply::cancel] {
        let mut rules = rules();
        rules.resumes = false;
        let mut machine = round_of(rules.clone(), [("a", "act")]);
        wait_by(&mut machine, 0, asked_by_tool("q"), SuspendedBy::Tool);
        machine.input(Input::RoundEnded);
        let mut machine = resume(drain(&mut machine), rules);
        let replies = vec![reply(InterruptId::new("q"))];
        machine.reply(replies, now()).unwrap();
        assert_eq!(drain(&mut machine).statuses(), [ToolStatus::Unknown]);
    }
}

#[test]
fn a_begun_call_stays_unknown_when_it_waits_again() {
    for how in [asking(id(0, "a")), Suspension::held()] {
        let mut machine = round_of(rules(), [("a", "act")]);
        wait_by(&mut machine, 0, asked_by_tool("q"), SuspendedBy::Tool);
        machine.input(Input::RoundEnded);
        let mut machine = resume(drain(&mut machine), rules());
        let replies = vec![Reply::resolve(InterruptId::new("q"), json!(1))];
        machine.reply(replies, now()).unwrap();
        drain(&mut machine);
        wait(&mut machine, 0, how);
        let mut machine = Machine::restore(round_trip(&machine.state().unwrap()), rules());
        machine.input(Input::Cancel(CancelReason::User));
        assert_eq!(drain(&mut machine).statuses(), [ToolStatus::Unknown]);
    }
}

#[test]
fn a_round_that_has_reported_is_not_decided_about_again() {
    let mut rules = rules();
    rules.asks_before_round = true;
    let mut machine = round_of(rules.clone(), [("a", "act")]);
    assert!(machine.is_round_new());
    wait_by(&mut machine, 0, asked_by_tool("q"), SuspendedBy::Tool);
    assert!(!machine.is_round_new());
    // The process ends before the round does.
    let mut machine = Machine::restore(round_trip(&machine.state().unwrap()), rules);
    assert!(is_resumed(&mut machine));
    let said = drain(&mut machine);
    assert!(said.round.is_none());
    assert_eq!(said.outcome(), Some(Outcome::Interrupted));
}

#[test]
fn a_call_receives_the_time_its_reply_was_accepted() {
    let mut machine = round_of(rules(), [("a", "act")]);
    wait(&mut machine, 0, asking(id(0, "a")));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    let accepted = now() + Duration::from_nanos(1_999_999);
    let replies = vec![Reply::approve(id(0, "a"))];
    machine.reply(replies, accepted).unwrap();
    drain(&mut machine);
    // The stored time is the same.
    let mut machine = Machine::restore(round_trip(&machine.state().unwrap()), rules());
    let round = drain(&mut machine).round.unwrap();
    let accepted_at = Answered::of(&round[0]).unwrap().accepted_at;
    assert_eq!(accepted_at, Some(now() + Duration::from_millis(1)));
}

#[test]
fn an_interrupt_with_a_duplicate_id_fails_its_call() {
    let ask = |ids: &[&str]| {
        let asked = |id: &&str| Interrupt::new(InterruptId::new(*id), interrupt::TOOL_CALL);
        Suspension::new(ids.iter().map(asked).collect())
    };
    let calls = ["a", "b", "c", "d"].map(|id| (id, "act"));
    let mut machine = round_of(rules(), calls);
    wait(&mut machine, 0, ask(&["x", "y", "x"]));
    wait(&mut machine, 2, ask(&["y", "z"]));
    wait(&mut machine, 1, ask(&["z"]));
    wait(&mut machine, 3, Suspension::held());
    machine.input(Input::RoundEnded);
    let drained = drain(&mut machine);
    let asked: Vec<_> = drained.finish.as_ref().unwrap().interrupts();
    let asked: Vec<_> = asked.iter().map(|asked| asked.id.as_str()).collect();
    assert_eq!(asked, ["y", "z"]);

    // An id of an interrupt that is still open is also in use.
    let mut machine = resume(drained, rules());
    let replies = ["y", "z"].map(|id| Reply::approve(InterruptId::new(id)));
    machine.reply(replies.to_vec(), now()).unwrap();
    assert_eq!(drain(&mut machine).ids(), ["c", "d"]);
    wait(&mut machine, 1, ask(&["w"]));
    settle(&mut machine, 0, ToolOutcome::done("yes"));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    machine.input(Input::Cancel(CancelReason::User));
    let drained = drain(&mut machine);
    let statuses = [
        ToolStatus::Failed,
        ToolStatus::Failed,
        ToolStatus::Done,
        ToolStatus::Cancelled,
    ];
    assert_eq!(drained.statuses(), statuses);
    let text = drained.results()[0].outcome.content.text().into_owned();
    assert!(text.contains("an id that is already in use"), "{text}");
}

#[test]
fn an_open_interrupt_keeps_its_id() {
    let mut machine = round_of(rules(), [("a", "act"), ("b", "act")]);
    wait(&mut machine, 0, asking(id(0, "a")));
    wait(&mut machine, 1, asking(id(1, "b")));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    machine
        .reply(vec![Reply::approve(id(0, "a"))], now())
        .unwrap();
    assert_eq!(drain(&mut machine).ids(), ["a"]);
    wait(&mut machine, 0, asking(id(1, "b")));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    machine
        .reply(vec![Reply::approve(id(1, "b"))], now())
        .unwrap();
    assert_eq!(drain(&mut machine).ids(), ["b"]);
}

#[test]
fn a_round_accepts_many_replies() {
    const MANY: usize = 100_000;
    let ids: Vec<String> = (0..MANY).map(|at| format!("c{at}")).collect();
    let calls = ids.iter().map(|id| (id.as_str(), "act"));
    let mut machine = round_of(rules(), calls);
    for (at, call) in ids.iter().enumerate() {
        wait(&mut machine, at, asking(id(at, call)).together());
    }
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), rules());
    let replies = ids.iter().enumerate();
    let replies: Vec<_> = replies
        .map(|(at, call)| Reply::approve(id(at, call)))
        .collect();
    assert!(matches!(
        machine.reply(replies[1..].to_vec(), now()),
        Err(ReplyError::Missing(missing)) if missing == id(0, "c0")
    ));
    machine.reply(replies, now()).unwrap();
    assert_eq!(drain(&mut machine).ids().len(), MANY);
}

#[test]
fn without_recovery_only_read_only_calls_run_again() {
    let mut machine = round_of(rules(), [("a", "act"), ("b", "look"), ("c", "gone")]);
    let mut old = rules();
    old.resumes = false;
    settle(&mut machine, 2, ToolOutcome::failed("no such tool"));
    let mut machine = Machine::restore(round_trip(&machine.state().unwrap()), old);
    machine.reply(Vec::new(), now()).unwrap();
    let drained = drain(&mut machine);
    assert_eq!(drained.ids(), ["b"]);
    assert!(drained.round.unwrap()[0].is_recovered());
    settle(&mut machine, 0, ToolOutcome::done("seen"));
    machine.input(Input::RoundEnded);
    assert_eq!(
        drain(&mut machine).statuses(),
        [ToolStatus::Unknown, ToolStatus::Done, ToolStatus::Failed]
    );
}

/// Settles the calls that were handed out; refused calls with their refusal.
fn settle_all(machine: &mut Machine, drained: &Drained) -> Drained {
    for (index, call) in drained.round.as_ref().unwrap().iter().enumerate() {
        let outcome = match call.refusal() {
            Some(refusal) => refusal.outcome(&call.call),
            None => ToolOutcome::done("yes"),
        };
        settle(machine, index, outcome);
    }
    machine.input(Input::RoundEnded);
    drain(machine)
}

// Case c98.
#[test]
fn a_call_over_the_limit_fails_and_no_step_starts() {
    let mut limited = rules();
    limited.calls = Some(2);
    let mut machine = Machine::new(Transcript::new(), limited);
    drain(&mut machine);
    answer(&mut machine, [("a", "act")]);
    let drained = drain(&mut machine);
    assert_eq!(settle_all(&mut machine, &drained).step, Some(1));
    // At the limit the model still receives the results and can answer.
    answer(&mut machine, [("b", "act"), ("c", "act")]);
    let drained = drain(&mut machine);
    let refused = Refusal::Limit {
        calls: 2,
        of: LimitScope::Run,
    };
    let round = drained.round.as_ref().unwrap();
    assert_eq!(
        [round[0].refusal(), round[1].refusal()],
        [None, Some(&refused)]
    );
    let drained = settle_all(&mut machine, &drained);
    assert_eq!(drained.statuses(), [ToolStatus::Done, ToolStatus::Failed]);
    assert_eq!(
        (drained.step, drained.outcome()),
        (None, Some(Outcome::CallLimit))
    );
}

#[test]
fn a_run_at_its_call_limit_completes() {
    let mut limited = rules();
    limited.calls = Some(1);
    let mut machine = Machine::new(Transcript::new(), limited);
    drain(&mut machine);
    answer(&mut machine, [("a", "act")]);
    let drained = drain(&mut machine);
    assert_eq!(settle_all(&mut machine, &drained).step, Some(1));
    answer(&mut machine, []);
    assert_eq!(drain(&mut machine).outcome(), Some(Outcome::Completed));
}

#[test]
fn round_and_tool_limits_refuse_calls_but_continue_the_run() {
    let mut limited = rules();
    limited.calls_per_round = Some(2);
    limited.calls_per_tool = vec![("look".into(), 2)];
    let mut machine = Machine::new(Transcript::new(), limited);
    drain(&mut machine);
    answer(&mut machine, [("a", "look"), ("b", "act"), ("c", "act")]);
    let drained = drain(&mut machine);
    let of = |drained: &Drained| {
        let calls = drained.round.as_ref().unwrap().iter();
        let refused = calls.map(|call| match call.refusal() {
            Some(Refusal::Limit { of, .. }) => Some(*of),
            _ => None,
        });
        refused.collect::<Vec<_>>()
    };
    assert_eq!(of(&drained), [None, None, Some(LimitScope::Round)]);
    assert_eq!(settle_all(&mut machine, &drained).step, Some(1));
    answer(&mut machine, [("d", "look")]);
    let drained = drain(&mut machine);
    assert_eq!(of(&drained), [None]);
    assert_eq!(settle_all(&mut machine, &drained).step, Some(2));
    answer(&mut machine, [("e", "look"), ("f", "act")]);
    let drained = drain(&mut machine);
    assert_eq!(of(&drained), [Some(LimitScope::Tool), None]);
    assert_eq!(settle_all(&mut machine, &drained).step, Some(3));
}

// Case c99.
#[test]
fn usage_and_limits_survive_interrupts() {
    let mut limited = rules();
    limited.steps = 3;
    limited.calls = Some(3);
    limited.calls_per_tool = vec![("act".into(), 2)];
    let mut machine = Machine::new(Transcript::new(), limited.clone());
    drain(&mut machine);
    for step in 0..2 {
        answer(&mut machine, [("a", "act")]);
        drain(&mut machine);
        wait(&mut machine, 0, asking(id(0, "a")));
        machine.input(Input::RoundEnded);
        // Interrupted repeatedly at the same call.
        for _ in 0..5 {
            machine = resume(drain(&mut machine), limited.clone());
        }
        let reply = Reply::approve(id(0, "a"));
        machine.reply(vec![reply], now()).unwrap();
        let drained = drain(&mut machine);
        assert_eq!(drained.round.as_ref().unwrap()[0].refusal(), None);
        assert_eq!(settle_all(&mut machine, &drained).step, Some(step + 1));
    }
    answer(&mut machine, [("a", "act")]);
    let drained = drain(&mut machine);
    assert!(drained.round.as_ref().unwrap()[0].refusal().is_some());
    let drained = settle_all(&mut machine, &drained);
    // The third step was the last one; the third call did not exceed the limit of the run.
    assert_eq!(drained.outcome(), Some(Outcome::StepLimit));
    assert_eq!(drained.finish.unwrap().usage, Usage::new(30, 3));
}

#[test]
fn a_step_is_free_if_all_its_calls_are() {
    let mut limited = rules();
    limited.steps = 1;
    let free = || ToolOutcome::done("loaded").free_of_charge();
    let mut machine = round_of(limited.clone(), [("a", "act"), ("b", "act")]);
    settle(&mut machine, 0, free());
    wait(&mut machine, 1, asking(id(1, "b")));
    machine.input(Input::RoundEnded);
    let mut machine = resume(drain(&mut machine), limited.clone());
    machine
        .reply(vec![Reply::approve(id(1, "b"))], now())
        .unwrap();
    drain(&mut machine);
    settle(&mut machine, 0, free());
    machine.input(Input::RoundEnded);
    assert_eq!(drain(&mut machine).step, Some(1));

    let mut machine = round_of(limited, [("a", "act"), ("b", "act")]);
    settle(&mut machine, 0, free());
    settle(&mut machine, 1, ToolOutcome::done("paid"));
    machine.input(Input::RoundEnded);
    assert_eq!(drain(&mut machine).outcome(), Some(Outcome::StepLimit));
}

#[test]
fn a_halt_ends_a_run_with_an_open_interrupt() {
    let mut machine = round_of(rules(), [("a", "act"), ("b", "act")]);
    wait(&mut machine, 0, asking(id(0, "a")));
    settle(&mut machine, 1, ToolOutcome::done("yes").and_halt("enough"));
    machine.input(Input::RoundEnded);
    let drained = drain(&mut machine);
    assert_eq!(
        drained.statuses(),
        [ToolStatus::Cancelled, ToolStatus::Done]
    );
    assert!(matches!(drained.outcome(), Some(Outcome::Halted { .. })));
}
