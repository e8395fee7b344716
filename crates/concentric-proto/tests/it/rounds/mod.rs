//! Rounds with suspended calls: what is handed out, what is stored, and how rounds are resumed.
//!
//! A failing case prints its seed, which is stored in `rounds/orders.proptest-regressions`.

mod cases;
mod orders;

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
