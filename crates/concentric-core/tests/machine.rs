//! The machine keeps its promises for every order of inputs.
//!
//! A failing case prints its seed and is kept in `machine.proptest-regressions`.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test")]

use concentric_core::{
    CallId, CancelReason, Decision, Error, ErrorKind, Event, Executor, FinishReason, Message,
    MessageId, OpenRound, Outcome, Part, PartKind, Role, ToolCallPart, ToolOutcome, ToolResult,
    ToolSpec, ToolSpecs, ToolStatus, Transcript, Turn, Usage, Verdict,
    machine::{Action, Input, Machine, MachineState, ModelStart},
};
use proptest::prelude::*;
use serde_json::json;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

const STEP_LIMIT: u32 = 4;

/// One thing that the world around a machine may do next, whether or not it makes sense.
#[derive(Clone, Debug)]
enum Move {
    Start,
    Text,
    Call { id: u8, name: u8, client: bool },
    // What no model should say.
    CallAsPart { id: u8 },
    Result { id: u8 },
    Reset,
    FinishModel,
    EndModel,
    FailModel,
    Settle { index: usize, how: u8 },
    EndRound,
    FailRound,
    Halt,
    Cancel,
    Deadline,
    Drop,
    // Reads what the machine has to say before going on.
    Drain,
    // Writes the machine down and reads it back.
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
        6 => Just(Move::EndRound),
        1 => Just(Move::FailRound),
        1 => Just(Move::Halt),
        1 => Just(Move::Cancel),
        1 => Just(Move::Deadline),
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

/// What the world has seen of a machine.
#[derive(Default)]
struct Seen {
    terminal: usize,
    outcome: Option<Outcome>,
    // Calls handed out to be run, by the id the machine gave them.
    started: Vec<CallId>,
    may_run: Vec<CallId>,
    refused: HashSet<CallId>,
    results: HashMap<CallId, Vec<ToolStatus>>,
    calls: Vec<(CallId, Executor)>,
    after_stop: bool,
    stopped: bool,
    // A round is being run.
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
                        finish.open_round.is_some()
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
                        let id = call.call.id;
                        if call.refusal.is_some() {
                            self.refused.insert(id.clone());
                        } else {
                            self.may_run.push(id.clone());
                        }
                        self.started.push(id);
                    }
                }
                Action::CallModel { step } => {
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

fn take_in(machine: &mut Machine, step: &Move, seen: &mut Seen) {
    let input = match step {
        Move::Drain => return seen.drain(machine),
        Move::Restart => {
            // Only what may be written down is, and it comes back the same.
            if let Some(state) = machine.state() {
                let text = serde_json::to_string(state).unwrap();
                let read: MachineState = serde_json::from_str(&text).unwrap();
                assert_eq!(&read, state);
                // A round that goes on would ask about the calls that ran; without one the run
                // goes on as if nothing had happened.
                if !seen.running && !machine.is_ended() {
                    *machine = Machine::restore(read).unwrap();
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

/// Plays on until the machine has ended, as an honest driver would.
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

/// What must hold of a machine that has ended, however it came there.
fn check(machine: &Machine, seen: &Seen, dropped: bool) {
    assert!(machine.is_ended());
    if dropped {
        assert!(seen.terminal <= 1);
    } else {
        assert_eq!(seen.terminal, 1, "exactly one terminal outcome");
    }
    assert!(!seen.after_stop, "something was started after a stop");
    let unique: HashSet<_> = seen.started.iter().collect();
    assert_eq!(unique.len(), seen.started.len(), "a call was started twice");
    for (id, statuses) in &seen.results {
        assert_eq!(statuses.len(), 1, "{id} has {} results", statuses.len());
    }
    // The transcript is whole: reading it back checks every round.
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
            "{id} was started and has no outcome"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn keeps_its_promises_for_every_order_of_inputs(moves in moves()) {
        // Every step has its own ids, as those that a provider's layer makes.
        let mut machine = Machine::new(Transcript::new(), STEP_LIMIT);
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
            take_in(&mut machine, &each, &mut seen);
            if machine.is_ended() { break; }
        }
        let dropped = moves.iter().any(|m| matches!(m, Move::Drop));
        seen.drain(&mut machine);
        play_out(&mut machine, &mut seen);
        check(&machine, &seen, dropped);
    }

    #[test]
    fn an_open_round_runs_only_what_was_decided(
        verdicts in prop::collection::vec(0..4_u8, 1..6),
        settled in prop::collection::vec(any::<bool>(), 6),
    ) {
        // 0: waits; 1: run; 2: denied; 3: decided to be run, in a round that is cancelled first.
        let parts = (0..verdicts.len())
            .map(|at| {
                let call = ToolCallPart::new(CallId::new(format!("c{at}")), "t0", "{}");
                Part::new(PartKind::ToolCall(call))
            })
            .collect();
        let message = concentric_core::Message::new(concentric_core::Role::Assistant, parts);
        let open = OpenRound::new(message).unwrap();
        let mut machine = Machine::with_open_round(Transcript::new(), open, &tools(), STEP_LIMIT);
        let decisions: Vec<Decision> = verdicts
            .iter()
            .enumerate()
            .filter(|(_, verdict)| **verdict != 0)
            .map(|(at, verdict)| {
                let verdict = match verdict {
                    2 => Verdict::Settle(ToolOutcome::denied("no")),
                    _ => Verdict::Run,
                };
                Decision::new(CallId::new(format!("c{at}")), verdict)
            })
            .collect();

        // Deciding twice about one call is refused, and changes nothing.
        if let Some(first) = decisions.first() {
            let twice = vec![first.clone(), first.clone()];
            prop_assert!(machine.decide(twice).is_err());
        }
        machine.decide(decisions.clone()).unwrap();
        if !decisions.is_empty() {
            prop_assert!(machine.decide(decisions).is_err(), "a decision is taken once");
        }

        prop_assert!(matches!(machine.action(), Some(Action::Emit(Event::Resumed))));
        let mut seen = Seen::default();
        seen.drain(&mut machine);
        let run: HashSet<CallId> = seen.started.iter().cloned().collect();
        for (at, verdict) in verdicts.iter().enumerate() {
            let id = CallId::new(format!("c{at}"));
            prop_assert_eq!(run.contains(&id), matches!(verdict, 1 | 3));
        }
        for (index, settle) in settled.iter().enumerate().take(run.len()) {
            if *settle {
                machine.input(Input::Settled { index, outcome: ToolOutcome::done("ok") });
                // A second outcome of the same call is ignored.
                machine.input(Input::Settled { index, outcome: ToolOutcome::failed("late") });
            }
        }
        if !run.is_empty() && verdicts.contains(&3) {
            machine.input(Input::Cancel(CancelReason::User));
            seen.stopped = true;
        } else {
            machine.input(Input::RoundEnded);
        }
        seen.drain(&mut machine);
        play_out(&mut machine, &mut seen);
        check(&machine, &seen, false);

        let waits = verdicts.contains(&0);
        if seen.outcome == Some(Outcome::Interrupted) {
            prop_assert!(waits);
        } else {
            prop_assert_eq!(seen.results.len(), verdicts.len());
            for (at, verdict) in verdicts.iter().enumerate() {
                let id = CallId::new(format!("c{at}"));
                let statuses = &seen.results[&id];
                if *verdict == 2 {
                    prop_assert_eq!(statuses, &vec![ToolStatus::Denied]);
                }
                prop_assert!(!statuses.contains(&ToolStatus::Failed), "the first outcome counts");
            }
        }
    }
}

#[test]
fn a_call_that_ran_when_the_process_died_asks_before_it_runs_again() {
    let mut machine = Machine::new(Transcript::new(), STEP_LIMIT);
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    machine.input(Input::ModelStarted(start()));
    let call = ToolCallPart::new(CallId::new("a"), "t0", "{}");
    machine.input(Input::ModelEvent(Event::tool_call(call)));
    machine.input(Input::ModelEvent(Event::finish(
        FinishReason::ToolCalls,
        Usage::new(1, 1),
    )));
    seen.drain(&mut machine);
    assert_eq!(seen.started.len(), 1);

    let state = serde_json::to_value(machine.state().unwrap()).unwrap();
    let mut again = Machine::restore(serde_json::from_value(state).unwrap()).unwrap();
    let mut seen = Seen::default();
    seen.drain(&mut again);
    assert!(seen.started.is_empty());
    assert_eq!(seen.outcome, Some(Outcome::Interrupted));
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

fn decide(id: &str, verdict: Verdict) -> Decision {
    Decision::new(CallId::new(id), verdict)
}

#[test]
fn nothing_starts_after_an_outcome_that_halts() {
    let open = open_round([call("a", "t0"), call("b", "t0")]);
    let mut machine = Machine::with_open_round(Transcript::new(), open, &tools(), STEP_LIMIT);
    let halt = ToolOutcome::done("done").and_halt("enough");
    machine
        .decide(vec![
            decide("a", Verdict::Settle(halt)),
            decide("b", Verdict::Run),
        ])
        .unwrap();
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    assert!(seen.started.is_empty());
    assert!(matches!(seen.outcome, Some(Outcome::Halted { .. })));
}

#[test]
fn a_resumed_call_of_a_tool_that_is_gone_is_refused() {
    let open = open_round([call("a", "gone")]);
    let mut machine = Machine::with_open_round(Transcript::new(), open, &tools(), STEP_LIMIT);
    machine.decide(vec![decide("a", Verdict::Run)]).unwrap();
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    assert!(seen.may_run.is_empty());
    assert_eq!(seen.refused.len(), 1);
}

#[test]
fn a_clients_call_is_not_run_here() {
    let open = open_round([call("a", "t0").executed_by(Executor::Client)]);
    let mut machine = Machine::with_open_round(Transcript::new(), open, &tools(), STEP_LIMIT);
    assert!(machine.decide(vec![decide("a", Verdict::Run)]).is_err());
}

#[test]
fn a_call_that_was_cut_off_while_it_ran_is_unknown() {
    let open = open_round([call("a", "t0"), call("b", "t0")]);
    let mut machine = Machine::with_open_round(Transcript::new(), open, &tools(), STEP_LIMIT);
    machine.decide(vec![decide("a", Verdict::Run)]).unwrap();
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    machine.input(Input::Cancel(CancelReason::User));
    seen.drain(&mut machine);
    assert_eq!(seen.results[&CallId::new("a")], [ToolStatus::Unknown]);
    assert_eq!(seen.results[&CallId::new("b")], [ToolStatus::Cancelled]);
}

#[test]
fn a_round_that_contradicts_itself_is_not_read() {
    let open = open_round([call("a", "t0")]);
    let mut data = serde_json::to_value(&open).unwrap();
    data["calls"][0]["call"]["name"] = json!("t1");
    assert!(serde_json::from_value::<OpenRound>(data).is_err());

    let machine = Machine::with_open_round(Transcript::new(), open, &tools(), STEP_LIMIT);
    let mut machine = machine;
    assert!(matches!(
        machine.action(),
        Some(Action::Emit(Event::Resumed))
    ));
    let mut state = serde_json::to_value(machine.state().unwrap()).unwrap();
    state["stage"]["round"]["slots"] = json!([]);
    assert!(Machine::restore(serde_json::from_value(state).unwrap()).is_err());
}

#[test]
fn an_answer_that_no_transcript_can_hold_fails_the_run() {
    let mut machine = Machine::new(Transcript::new(), STEP_LIMIT);
    let mut seen = Seen::default();
    seen.drain(&mut machine);
    for step in [Move::Start, Move::CallAsPart { id: 1 }, Move::FinishModel] {
        take_in(&mut machine, &step, &mut seen);
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
fn a_state_of_a_newer_version_is_refused() {
    let machine = Machine::new(Transcript::new(), STEP_LIMIT);
    let mut state = serde_json::to_value(machine.state().unwrap()).unwrap();
    state["version"] = json!(2);
    assert!(Machine::restore(serde_json::from_value(state).unwrap()).is_err());
}
