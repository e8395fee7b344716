//! The machine's invariants hold for every order of inputs.
//!
//! A failing case prints its seed, which is stored in `machine.proptest-regressions`.

use concentric_proto::{
    CallId, CancelReason, Delivery, Error, ErrorKind, Event, Executor, FinishReason, Interrupt,
    InterruptId, Message, MessageId, OpenRound, Outcome, Part, PartKind, Reply, ReplyError, Role,
    SideEffects, Suspension, ToolCallPart, ToolOutcome, ToolResult, ToolSpec, ToolSpecs,
    ToolStatus, Transcript, Turn, Usage,
    call::CallState,
    interrupt::{self, SuspendedBy},
    machine::{Action, Input, Machine, ModelStart, RunLimits, RunState, StateError},
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::SystemTime,
};

const STEP_LIMIT: u32 = 4;

fn rules() -> RunLimits {
    let mut rules = RunLimits::default();
    rules.steps = STEP_LIMIT;
    rules
}

/// The rules of an agent whose round service can resume calls.
fn resuming() -> RunLimits {
    let mut rules = rules();
    rules.resumes = true;
    rules
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH
}

fn serialized(machine: &Machine) -> String {
    machine.state().unwrap().to_json().unwrap()
}

fn read(json: &str) -> Result<RunState, StateError> {
    RunState::from_json(json.as_bytes(), 1 << 20)
}

/// A step of the environment, valid or not.
#[derive(Clone, Debug)]
enum Move {
    Start,
    Text,
    Call { id: u8, name: u8, client: bool },
    // A tool call that arrives as an ordinary part, which is invalid.
    CallAsPart { id: u8 },
    Result { id: u8 },
    Reset,
    FinishModel,
    EndModel,
    FailModel,
    Settle { index: usize, how: u8 },
    Wait { index: usize, held: bool },
    EndRound,
    FailRound,
    Halt,
    Cancel,
    Deadline,
    // Ends the run with an answer that is not the model's.
    Answer,
    Drop,
    // Takes all pending actions.
    Drain,
    // Serializes the machine and restores it.
    Restart,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        8 => Just(Move::Start),
        4 => Just(Move::Text),
        8 => (0..6_u8, 0..4_u8, prop::bool::weighted(0.15))
            .prop_map(|(id, name, client)| Move::Call { id, name, client }),
        1 => (0..6_u8).prop_map(|id| Move::CallAsPart { id }),
        1 => (0..6_u8).prop_map(|id| Move::Result { id }),
        1 => Just(Move::Reset),
        8 => Just(Move::FinishModel),
        1 => Just(Move::EndModel),
        1 => Just(Move::FailModel),
        8 => (0..6_usize, 0..5_u8).prop_map(|(index, how)| Move::Settle { index, how }),
        3 => (0..6_usize, any::<bool>()).prop_map(|(index, held)| Move::Wait { index, held }),
        6 => Just(Move::EndRound),
        1 => Just(Move::FailRound),
        1 => Just(Move::Halt),
        1 => Just(Move::Cancel),
        1 => Just(Move::Deadline),
        1 => Just(Move::Answer),
        1 => Just(Move::Drop),
        16 => Just(Move::Drain),
        4 => Just(Move::Restart),
    ];
    prop::collection::vec(one, 1..120)
}

fn outcome(how: u8) -> ToolOutcome {
    match how {
        0 => ToolOutcome::failed("no"),
        1 => ToolOutcome::denied("no"),
        2 => ToolOutcome::unknown("?"),
        3 => ToolOutcome::done("yes").and_halt("enough"),
        _ => ToolOutcome::done("yes"),
    }
}

fn tools() -> ToolSpecs {
    ToolSpecs::new(
        ["t0", "t1", "t2"].map(|name| Arc::new(ToolSpec::new(name, "", json!({"type": "object"})))),
    )
}

/// The observed behavior of a machine.
#[derive(Default)]
struct Seen {
    terminal: usize,
    outcome: Option<Outcome>,
    // Calls that were handed out, by the id that the machine assigned.
    started: Vec<CallId>,
    may_run: Vec<CallId>,
    resumed: Vec<CallState>,
    refused: HashSet<CallId>,
    results: HashMap<CallId, Vec<ToolStatus>>,
    calls: Vec<(CallId, Executor)>,
    after_stop: bool,
    stopped: bool,
    // Whether a round is running.
    running: bool,
}

impl Seen {
    fn drain(&mut self, machine: &mut Machine) {
        while let Some(action) = machine.action() {
            assert_eq!(
                self.terminal, 0,
                "an action after the terminal one: {action:?}"
            );
            match action {
                Action::Emit(Event::Finish(finish)) => {
                    self.terminal += 1;
                    assert_eq!(
                        finish.outcome == Outcome::Interrupted,
                        finish.state.is_some()
                    );
                    assert_eq!(finish.transcript.as_ref(), Some(machine.transcript()));
                    self.outcome = Some(finish.outcome);
                }
                Action::Emit(Event::ToolResult(result)) => {
                    let results = self.results.entry(result.call_id.clone()).or_default();
                    results.push(result.outcome.status);
                }
                Action::Emit(Event::ToolCall(call)) => {
                    self.calls.push((call.call.id.clone(), call.call.executor));
                }
                Action::Emit(_) => {}
                Action::Fail(_) => self.terminal += 1,
                Action::RunTools { calls, .. } => {
                    self.after_stop |= self.stopped;
                    self.running = true;
                    for call in calls {
                        let delivery = call.delivery();
                        let id = call.call.id.clone();
                        if delivery == Delivery::Resumed {
                            self.resumed.push(call.state.clone());
                        }
                        // Resumed, after the call had only waited for other calls.
                        if delivery == Delivery::Resumed && self.started.contains(&id) {
                            assert!(!self.results.contains_key(&id), "{id} is settled");
                            continue;
                        }
                        if call.refusal().is_some() {
                            self.refused.insert(id.clone());
                        } else {
                            self.may_run.push(id.clone());
                        }
                        self.started.push(id);
                    }
                }
                Action::CallModel { step, .. } => {
                    self.after_stop |= self.stopped;
                    self.running = false;
                    assert!(step < STEP_LIMIT, "a model call over the limit");
                }
                _ => unreachable!("no other actions"),
            }
        }
    }
}

fn start() -> ModelStart {
    let mut start = ModelStart::new(MessageId::new("m"));
    start.tools = tools();
    start
}

fn apply(machine: &mut Machine, step: &Move, seen: &mut Seen) {
    let input = match step {
        Move::Drain => return seen.drain(machine),
        Move::Answer => {
            seen.stopped = true;
            return machine.finish_with(Some("enough".into()), Outcome::Completed);
        }
        Move::Restart => {
            // `state` returns only states that can be stored, and they round-trip.
            if let Some(state) = machine.state() {
                let read = read(&state.to_json().unwrap()).unwrap();
                assert_eq!(read, state);
                // An open round would resume with recovered calls; without one the run continues as
                // if nothing had happened.
                if !seen.running && !machine.is_ended() {
                    *machine = Machine::restore(read, rules());
                }
            }
            return;
        }
        Move::Start => Input::ModelStarted(start()),
        Move::Text => Input::ModelEvent(Event::text("hello")),
        Move::Call { id, name, client } => {
            let call = ToolCallPart::new(CallId::new(format!("c{id}")), format!("t{name}"), "{}")
                .executed_by(if *client {
                    Executor::Client
                } else {
                    Executor::Loop
                });
            Input::ModelEvent(Event::tool_call(call))
        }
        Move::CallAsPart { id } => {
            let call = ToolCallPart::new(CallId::new(format!("c{id}")), "t0", "{}");
            Input::ModelEvent(Event::Part(Box::new(Part::new(PartKind::ToolCall(call)))))
        }
        Move::Result { id } => {
            let id = CallId::new(format!("c{id}"));
            let result = ToolResult::new(id, "t0", ToolOutcome::done("made up"));
            Input::ModelEvent(Event::Part(Box::new(Part::new(PartKind::ToolResult(
                result,
            )))))
        }
        Move::Reset => Input::ModelEvent(Event::Reset),
        Move::FinishModel => Input::ModelEvent(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
        Move::EndModel => Input::ModelEnded,
        Move::FailModel => Input::ModelFailed(Error::new(ErrorKind::Server, "broken")),
        Move::Settle { index, how } => Input::Settled {
            index: *index,
            outcome: outcome(*how),
        },
        Move::Wait { index, held } => Input::Suspended {
            index: *index,
            on: Box::new(match held {
                true => Suspension::held(),
                false => {
                    let id = InterruptId::new(format!("i{index}"));
                    Suspension::new(vec![Interrupt::new(id, interrupt::TOOL_CALL)])
                }
            }),
            by: SuspendedBy::Gate,
        },
        Move::EndRound => Input::RoundEnded,
        Move::FailRound => Input::RoundFailed(Error::new(ErrorKind::Tool, "fatal")),
        Move::Halt => Input::Halt("stop".into()),
        Move::Cancel => Input::Cancel(CancelReason::User),
        Move::Deadline => Input::Deadline,
        Move::Drop => Input::Dropped,
    };
    if matches!(
        step,
        Move::Halt | Move::Cancel | Move::Deadline | Move::Drop
    ) {
        seen.stopped = true;
    }
    machine.input(input);
}

/// Acts as a correct driver until the machine has ended.
fn play_out(machine: &mut Machine, seen: &mut Seen) {
    for _ in 0..64 {
        seen.drain(machine);
        if machine.is_ended() {
            return;
        }
        machine.input(Input::ModelStarted(start()));
        machine.input(Input::ModelEvent(Event::finish(
            FinishReason::Stop,
            Usage::new(1, 1),
        )));
        seen.drain(machine);
        machine.input(Input::RoundEnded);
    }
    panic!("the run does not end: {machine:?}");
}

/// Checks the invariants of a machine that has ended.
fn check(machine: &Machine, seen: &Seen, dropped: bool) {
    assert!(machine.is_ended());
    if dropped {
        assert!(seen.terminal <= 1);
    } else {
        assert_eq!(seen.terminal, 1, "exactly one terminal outcome");
    }
    assert!(!seen.after_stop, "an action started after a stop");
    let unique: HashSet<_> = seen.started.iter().collect();
    assert_eq!(unique.len(), seen.started.len(), "a call started twice");
    for (id, statuses) in &seen.results {
        assert_eq!(statuses.len(), 1, "{id} has {} results", statuses.len());
    }
    // Deserializing the transcript checks every round.
    let text = serde_json::to_string(machine.transcript()).unwrap();
    let read: Transcript = serde_json::from_str(&text).unwrap();
    assert_eq!(&read, machine.transcript());
    let closed: HashSet<&CallId> = machine
        .transcript()
        .rev()
        .flat_map(Turn::results)
        .map(|result: &ToolResult| &result.call_id)
        .collect();
    for id in &seen.started {
        let open = seen.outcome == Some(Outcome::Interrupted);
        assert!(
            closed.contains(id) || open,
            "{id} was started but has no outcome"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_for_every_order_of_inputs(moves in moves()) {
        // Ids are unique per step, as a provider layer assigns them.
        let mut machine = Machine::new(Transcript::new(), rules());
        let mut seen = Seen::default();
        let mut step = 0_u32;
        for each in &moves {
            let each = match each {
                Move::Call { id, name, client } => Move::Call {
                    id: u8::try_from(step * 16).unwrap_or(u8::MAX) + id,
                    name: *name,
                    client: *client,
                },
                Move::FinishModel => { step = (step + 1).min(12); Move::FinishModel }
                other => other.clone(),
            };
            apply(&mut machine, &each, &mut seen);
            if machine.is_ended() { break; }
        }
        let dropped = moves.iter().any(|m| matches!(m, Move::Drop));
        seen.drain(&mut machine);
        play_out(&mut machine, &mut seen);
        check(&machine, &seen, dropped);
    }

    #[test]
    fn a_claimed_call_without_a_reply_must_not_run(
        replied in prop::collection::vec(0..5_u8, 1..6),
        settled in prop::collection::vec(any::<bool>(), 6),
        cancelled in any::<bool>(),
        resumes in any::<bool>(),
    ) {
        // 0: no reply; 1: approved; 2: denied; 3: cancelled; 4: answered.
        let open = open_round((0..replied.len()).map(|at| call(&format!("c{at}"), "t0")));
        let rules = if resumes { resuming() } else { rules() };
        let mut machine = Machine::claimed(Transcript::new(), open, &tools(), rules);
        let replies: Vec<Reply> = replied
            .iter()
            .enumerate()
            .filter_map(|(at, how)| {
                let id = asked(at, &format!("c{at}"));
                match how {
                    0 => None,
                    1 => Some(Reply::approve(id)),
                    2 => Some(Reply::deny(id, "no")),
                    3 => Some(Reply::cancel(id)),
                    _ => Some(Reply::answer(id, "said")),
                }
            })
            .collect();

        // Two replies for one interrupt are rejected, and nothing changes.
        let before = machine_state(&mut machine);
        if let Some(first) = replies.first() {
            let twice = vec![first.clone(), first.clone()];
            let refused = machine.reply(twice, now());
            prop_assert_eq!(refused, Err(ReplyError::Duplicate(first.interrupt_id.clone())));
            prop_assert_eq!(&machine_state(&mut machine), &before);
        }
        machine.reply(replies.clone(), now()).unwrap();
        if !replies.is_empty() {
            prop_assert!(machine.reply(replies, now()).is_err(), "a reply is accepted once");
        }

        let mut seen = Seen::default();
        seen.drain(&mut machine);
        let run: HashSet<CallId> = seen.started.iter().cloned().collect();
        for (at, how) in replied.iter().enumerate() {
            let id = CallId::new(format!("c{at}"));
            prop_assert_eq!(run.contains(&id), resumes);
            if let Some(state) = seen.resumed.get(at) {
                prop_assert_eq!(state.stage.replies().len(), usize::from(*how != 0));
            }
        }
        for state in &seen.resumed {
            prop_assert!(state.resumed().is_none(), "no suspension is recorded");
        }
        for (index, settle) in settled.iter().enumerate().take(run.len()) {
            if *settle {
                machine.input(Input::Settled { index, outcome: ToolOutcome::done("ok") });
                // A second outcome and a late suspension of the same call are ignored.
                machine.input(Input::Settled { index, outcome: ToolOutcome::failed("late") });
                let (on, by) = (Box::new(Suspension::held()), SuspendedBy::Gate);
                machine.input(Input::Suspended { index, on, by });
            }
        }
        if !run.is_empty() && cancelled {
            machine.input(Input::Cancel(CancelReason::User));
            seen.stopped = true;
        } else {
            machine.input(Input::RoundEnded);
        }
        seen.drain(&mut machine);
        play_out(&mut machine, &mut seen);
        check(&machine, &seen, false);

        if seen.outcome == Some(Outcome::Interrupted) {
            prop_assert!(replied.contains(&0));
        } else {
            prop_assert_eq!(seen.results.len(), replied.len());
        }
        for (at, how) in replied.iter().enumerate() {
            let Some(statuses) = seen.results.get(&CallId::new(format!("c{at}"))) else { continue };
            if !resumes {
                // No call ran, and no approval was requested.
                prop_assert_eq!(statuses, &vec![match how {
                    0 | 3 => ToolStatus::Cancelled,
                    _ => ToolStatus::Denied,
                }]);
            }
            prop_assert!(!statuses.contains(&ToolStatus::Failed), "the first outcome counts");
        }
    }
}

/// The id of the interrupt for the `at`th call of [`open_round`].
fn asked(at: usize, call: &str) -> InterruptId {
    InterruptId::new(format!("-/{at}/{call}"))
}

/// The state, after the pending actions were taken.
fn machine_state(machine: &mut Machine) -> Option<RunState> {
    if machine.state().is_none() {
        assert!(matches!(
            machine.action(),
            Some(Action::Emit(Event::Resumed))
        ));
    }
    machine.state()
}

/// A machine with one running call, `a`.
fn running(rules: RunLimits) -> Machine {
    let mut machine = Machine::new(Transcript::new(), rules);
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    machine.input(Input::ModelStarted(start()));
    machine.input(Input::ModelEvent(Event::tool_call(call("a", "t0"))));
    machine.input(Input::ModelEvent(Event::finish(
        FinishReason::ToolCalls,
        Usage::new(1, 1),
    )));
    seen.drain(&mut machine);
    assert_eq!(seen.started.len(), 1);
    machine
}

#[test]
fn a_call_that_ran_when_its_process_ended_is_recovered() {
    let state = read(&serialized(&running(resuming()))).unwrap();
    let mut again = Machine::restore(state, resuming());
    assert!(matches!(again.action(), Some(Action::Emit(Event::Resumed))));
    let Some(Action::RunTools { calls, .. }) = again.action() else {
        panic!("the round resumes");
    };
    assert_eq!(calls.len(), 1);
    assert!(calls[0].is_recovered());
    assert_eq!(calls[0].delivery(), Delivery::Resumed);
}

#[test]
fn without_recovery_an_interrupted_call_is_unknown() {
    let state = read(&serialized(&running(resuming()))).unwrap();
    let mut again = Machine::restore(state, rules());
    let mut seen = Seen::default();
    seen.drain(&mut again);
    assert!(seen.started.is_empty());
    assert_eq!(seen.results[&CallId::new("a")], [ToolStatus::Unknown]);
}

fn open_round(calls: impl IntoIterator<Item = ToolCallPart>) -> OpenRound {
    let parts = calls
        .into_iter()
        .map(|call| Part::new(PartKind::ToolCall(call)));
    OpenRound::new(Message::new(Role::Assistant, parts.collect())).unwrap()
}

fn call(id: &str, name: &str) -> ToolCallPart {
    ToolCallPart::new(CallId::new(id), name, "{}")
}

/// A machine that resumes these calls from a history.
fn claimed(calls: impl IntoIterator<Item = ToolCallPart>) -> Machine {
    Machine::claimed(Transcript::new(), open_round(calls), &tools(), resuming())
}

#[test]
fn no_call_starts_after_an_outcome_that_halts() {
    let mut open = open_round([call("a", "t0"), call("b", "t0")]);
    let halt = ToolOutcome::done("done").and_halt("enough");
    open.settle(&CallId::new("a"), halt).unwrap();
    let mut machine = Machine::claimed(Transcript::new(), open, &tools(), resuming());
    machine
        .reply(vec![Reply::approve(asked(1, "b"))], now())
        .unwrap();
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    assert!(seen.started.is_empty());
    assert!(matches!(seen.outcome, Some(Outcome::Halted { .. })));
}

#[test]
fn a_resumed_call_of_a_removed_tool_is_refused() {
    let mut machine = claimed([call("a", "gone")]);
    machine
        .reply(vec![Reply::approve(asked(0, "a"))], now())
        .unwrap();
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    assert!(seen.may_run.is_empty());
    assert_eq!(seen.refused.len(), 1);
}

#[test]
fn a_client_call_cannot_be_approved() {
    let client = || call("a", "t0").executed_by(Executor::Client);
    let mut machine = claimed([client()]);
    let refused = machine.reply(vec![Reply::approve(asked(0, "a"))], now());
    assert!(matches!(refused, Err(ReplyError::Malformed { .. })));
    for rules in [rules(), resuming()] {
        let mut machine = running_client(rules);
        let id = InterruptId::new("m/0/a");
        let refused = machine.reply(vec![Reply::approve(id)], now());
        assert!(matches!(refused, Err(ReplyError::Malformed { .. })));
    }
}

/// A machine that resumes a run with an open client call, `a`.
fn running_client(rules: RunLimits) -> Machine {
    let mut machine = Machine::new(Transcript::new(), rules.clone());
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    let mut start = start();
    start.client_tools = vec!["t0".into()].into();
    machine.input(Input::ModelStarted(start));
    machine.input(Input::ModelEvent(Event::tool_call(call("a", "t0"))));
    machine.input(Input::ModelEvent(Event::finish(
        FinishReason::ToolCalls,
        Usage::new(1, 1),
    )));
    let mut state = None;
    while let Some(action) = machine.action() {
        if let Action::Emit(Event::Finish(finish)) = action {
            state = finish.state;
        }
    }
    Machine::restore(*state.unwrap(), rules)
}

#[test]
fn a_reply_settles_a_client_call() {
    let id = || InterruptId::new("m/0/a");
    for (reply, status) in [
        (Reply::answer(id(), 42), ToolStatus::Done),
        (Reply::answer_failed(id(), "no"), ToolStatus::Failed),
        (Reply::deny(id(), "no"), ToolStatus::Denied),
        (Reply::cancel(id()), ToolStatus::Cancelled),
    ] {
        let mut machine = running_client(rules());
        machine.reply(vec![reply], now()).unwrap();
        let mut seen = Seen::default();
        seen.drain(&mut machine);
        assert!(seen.started.is_empty());
        assert_eq!(seen.results[&CallId::new("a")], [status]);
    }
}

#[test]
fn a_running_call_is_unknown_after_a_cancellation() {
    let mut machine = claimed([call("a", "t0"), call("b", "t0")]);
    machine
        .reply(vec![Reply::approve(asked(0, "a"))], now())
        .unwrap();
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    machine.input(Input::Cancel(CancelReason::User));
    seen.drain(&mut machine);
    assert_eq!(seen.results[&CallId::new("a")], [ToolStatus::Unknown]);
    assert_eq!(seen.results[&CallId::new("b")], [ToolStatus::Cancelled]);
}

#[test]
fn an_answer_without_the_model_closes_the_open_round() {
    let mut machine = claimed([call("a", "t0")]);
    machine.finish_with(Some("Closed.".into()), Outcome::Completed);
    machine.finish_with(Some("Again.".into()), Outcome::Completed);
    let mut events = Vec::new();
    while let Some(Action::Emit(event)) = machine.action() {
        events.push(event);
    }
    assert!(matches!(
        &events[..],
        [Event::Resumed, Event::ToolResult(result), Event::TextDelta(text), Event::Finish(finish)]
            if result.outcome.status == ToolStatus::Cancelled
                && *text == *"Closed."
                && finish.outcome == Outcome::Completed
                && finish.transcript.as_ref() == Some(machine.transcript())
    ));
    let last = machine.transcript().last().unwrap();
    assert_eq!(last.as_message().text(), "Closed.");
}

#[test]
fn a_failure_is_taken_with_the_events_before_it() {
    let mut machine = Machine::new(Transcript::new(), rules());
    assert!(machine.action().is_some());
    machine.input(Input::StepStarted(MessageId::new("m")));
    assert!(machine.take_failure().is_none());
    machine.input(Input::ModelFailed(Error::new(ErrorKind::Server, "down")));
    assert_eq!(machine.take_failure().unwrap().kind(), ErrorKind::Server);
    assert!(machine.action().is_none());
}

#[test]
fn a_refused_round_has_no_effects() {
    let mut machine = running(resuming());
    machine.input(Input::RoundRefused(Error::new(ErrorKind::Server, "full")));
    let mut statuses = Vec::new();
    let mut effects = None;
    while let Some(action) = machine.action() {
        match action {
            Action::Emit(Event::ToolResult(result)) => statuses.push(result.outcome.status),
            Action::Fail(error) => effects = Some(error.effects()),
            _ => {}
        }
    }
    assert_eq!(statuses, [ToolStatus::Cancelled]);
    assert_eq!(effects, Some(SideEffects::None));
}

#[test]
fn a_started_round_cannot_be_refused() {
    let mut machine = running(resuming());
    machine.input(Input::RoundEnded);
    // No call is running now.
    machine.input(Input::RoundRefused(Error::new(ErrorKind::Server, "late")));
    while let Some(action) = machine.action() {
        assert!(!matches!(action, Action::Fail(_)));
    }
}

#[test]
fn an_inconsistent_round_is_rejected() {
    let open = open_round([call("a", "t0")]);
    let mut data = serde_json::to_value(&open).unwrap();
    data["calls"][0]["call"]["name"] = json!("t1");
    assert!(serde_json::from_value::<OpenRound>(data).is_err());

    let mut machine = Machine::claimed(Transcript::new(), open, &tools(), rules());
    assert!(matches!(
        machine.action(),
        Some(Action::Emit(Event::Resumed))
    ));
    let mut state: Value = serde_json::from_str(&serialized(&machine)).unwrap();
    state["stage"]["round"]["calls"] = json!([]);
    assert!(matches!(
        read(&state.to_string()),
        Err(StateError::Round(_))
    ));
}

#[test]
fn an_invalid_answer_fails_the_run() {
    let mut machine = Machine::new(Transcript::new(), rules());
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    for step in [Move::Start, Move::CallAsPart { id: 1 }, Move::FinishModel] {
        apply(&mut machine, &step, &mut seen);
    }
    let mut failed = None;
    while let Some(action) = machine.action() {
        if let Action::Fail(error) = action {
            failed = Some(error.kind());
        }
    }
    assert_eq!(failed, Some(ErrorKind::Protocol));
}

#[test]
fn a_state_of_a_newer_version_is_rejected() {
    let machine = Machine::new(Transcript::new(), rules());
    let mut state: Value = serde_json::from_str(&serialized(&machine)).unwrap();
    state["version"] = json!(3);
    assert_eq!(read(&state.to_string()), Err(StateError::Version(3)));
}

#[test]
fn a_run_that_a_gate_suspended_finishes_once() {
    let asked = || {
        let mut machine = Machine::new(Transcript::new(), rules());
        machine.action().unwrap();
        let question = Interrupt::new(InterruptId::new("q"), "test");
        let pending = Suspension::new(vec![question]);
        machine.input(Input::Ask(Box::new(pending)));
        machine
    };
    let finishes = |mut machine: Machine| {
        let mut outcomes = Vec::new();
        // More polls than there are actions.
        for _ in 0..4 {
            if let Some(Action::Emit(Event::Finish(finish))) = machine.action() {
                outcomes.push(finish.outcome);
            }
        }
        outcomes
    };
    assert_eq!(finishes(asked()), [Outcome::Interrupted]);
    let mut stopped = asked();
    stopped.input(Input::Halt("enough".into()));
    let reason = "enough".into();
    assert_eq!(finishes(stopped), [Outcome::Halted { reason }]);
}
