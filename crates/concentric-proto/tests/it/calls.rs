//! What the stored state of a call keeps when a process ends, or when the call is suspended again.

use crate::v1;
use concentric_proto::{
    Annotations, CallId, CancelReason, Event, Finish, FinishReason, Interrupt, InterruptId,
    Message, MessageId, OpenRound, Outcome, Part, PartKind, Refusal, Reply, Role, RoundCall,
    Suspension, ToolCallPart, ToolOutcome, ToolSpec, ToolSpecs, ToolStatus, Transcript, Usage,
    call::{CallStage, EarlierAttempt},
    interrupt::{self, SuspendedBy},
    machine::{Action, Input, Machine, ModelStart, RunLimits, RunState},
};
use serde_json::json;
use std::{sync::Arc, time::SystemTime};

const NOW: SystemTime = SystemTime::UNIX_EPOCH;

fn rules(ledger: bool) -> RunLimits {
    let mut rules = RunLimits::default();
    (rules.resumes, rules.ledger) = (true, ledger);
    rules.calls_per_round = Some(3);
    rules.asks_before_round = true;
    rules
}

fn tools() -> ToolSpecs {
    ToolSpecs::new(["pay", "search"].map(|name| {
        let mut spec = ToolSpec::new(name, "", json!({"type": "object"}));
        if name == "search" {
            spec.annotations = Annotations::read_only();
        }
        Arc::new(spec)
    }))
}

fn call(id: &str, name: &str) -> ToolCallPart {
    ToolCallPart::new(CallId::new(id), name, "{}")
}

/// Takes all actions, and returns the calls of the last round and the finish.
fn drain(machine: &mut Machine) -> (Vec<RoundCall>, Option<Finish>, Vec<ToolStatus>) {
    let (mut round, mut finish, mut statuses) = (Vec::new(), None, Vec::new());
    while let Some(action) = machine.action() {
        match action {
            Action::RunTools { calls, .. } => round = calls,
            Action::Emit(Event::Finish(ended)) => finish = Some(*ended),
            Action::Emit(Event::ToolResult(result)) => statuses.push(result.outcome.status),
            _ => {}
        }
    }
    (round, finish, statuses)
}

/// A machine that has handed out calls of these tools.
fn round_of(names: &[&str], rules: RunLimits) -> Machine {
    let mut machine = Machine::new(Transcript::new(), rules);
    drain(&mut machine);
    let mut start = ModelStart::new(MessageId::new("m"));
    start.tools = tools();
    machine.input(Input::ModelStarted(start));
    for (at, name) in names.iter().enumerate() {
        let call = call(&format!("c{at}"), name);
        machine.input(Input::ModelEvent(Event::tool_call(call)));
    }
    let finish = Event::finish(FinishReason::ToolCalls, Usage::default());
    machine.input(Input::ModelEvent(finish));
    drain(&mut machine);
    machine
}

fn asking(id: &str) -> Suspension {
    let asked = Interrupt::new(InterruptId::new(id), interrupt::TOOL_CALL);
    Suspension::new(vec![asked])
}

fn wait(machine: &mut Machine, index: usize, on: Suspension) {
    let (on, by) = (Box::new(on), SuspendedBy::Gate);
    machine.input(Input::Suspended { index, on, by });
}

fn stored(state: &RunState) -> RunState {
    let json = state.to_json().unwrap();
    let read = RunState::from_json(json.as_bytes(), json.len()).unwrap();
    assert_eq!(read, *state);
    let old = v1::text(&json);
    let upgraded = RunState::from_json(old.as_bytes(), old.len()).unwrap();
    assert_eq!(upgraded, *state);
    read
}

/// The process ends, and another one continues with the stored run.
fn crash(machine: &Machine, rules: RunLimits) -> Machine {
    Machine::restore(stored(&machine.state().unwrap()), rules)
}

/// The round ends, and another process resumes the suspended run.
fn resume(machine: &mut Machine, rules: RunLimits) -> Machine {
    machine.input(Input::RoundEnded);
    let finish = drain(machine).1.unwrap();
    assert_eq!(finish.outcome, Outcome::Interrupted);
    Machine::restore(stored(&finish.state.unwrap()), rules)
}

fn reply(machine: &mut Machine, id: &str) {
    let reply = Reply::approve(InterruptId::new(id));
    machine.reply(vec![reply], NOW).unwrap();
}

fn statuses_when_cancelled(machine: &mut Machine) -> Vec<ToolStatus> {
    machine.input(Input::Cancel(CancelReason::User));
    drain(machine).2
}

/// A machine with an open call of `pay` and one of the missing tool `gone` from a history.
fn claimed() -> Machine {
    let calls = [call("c0", "pay"), call("c1", "gone")];
    let parts = calls.map(|call| Part::new(PartKind::ToolCall(call)));
    let mut message = Message::new(Role::Assistant, parts.into());
    message.id = Some(MessageId::new("m"));
    let open = OpenRound::new(message).unwrap();
    Machine::claimed(Transcript::new(), open, &tools(), rules(false))
}

#[test]
fn a_call_keeps_its_replies_when_it_is_taken_back_or_its_process_ends() {
    let mut machine = round_of(&["pay"], rules(false));
    wait(&mut machine, 0, asking("q"));
    let mut machine = resume(&mut machine, rules(false));
    reply(&mut machine, "q");
    for how in ["handed out", "taken back", "crashed"] {
        match how {
            "taken back" => machine.input(Input::TakeBack),
            "crashed" => machine = crash(&machine, rules(false)),
            _ => {}
        }
        let round = drain(&mut machine).0;
        let CallStage::Resumed(resume) = &round[0].state.stage else {
            panic!("{round:?}")
        };
        assert_eq!(resume.replies.len(), 1);
        assert_eq!(resume.interrupted, how == "crashed");
        assert_eq!(round[0].is_recovered(), how == "crashed");
    }
}

#[test]
fn a_refused_call_stays_refused_after_a_crash() {
    let mut machine = round_of(&["gone"], rules(false));
    assert!(machine.is_round_new());
    for _ in 0..2 {
        machine = crash(&machine, rules(false));
        let round = drain(&mut machine).0;
        assert!(matches!(round[0].refusal(), Some(Refusal::NotOffered(_))));
        assert!(!round[0].is_recovered());
        // The gates of the round have decided about it before.
        assert!(!machine.is_round_new());
    }
    let cancelled = [ToolStatus::Cancelled];
    assert_eq!(statuses_when_cancelled(&mut machine), cancelled);
}

#[test]
fn a_refused_call_that_is_suspended_is_settled_with_its_refusal() {
    let mut machine = round_of(&["gone", "pay"], rules(false));
    wait(&mut machine, 0, asking("q"));
    wait(&mut machine, 1, asking("r"));
    machine.input(Input::RoundEnded);
    let finish = drain(&mut machine).1.unwrap();
    let asked: Vec<_> = finish
        .interrupts()
        .iter()
        .map(|it| it.id.as_str())
        .collect();
    assert_eq!(asked, ["r"]);
    let open = finish.state.unwrap().open_round().unwrap();
    let outcome = open.calls().next().unwrap().1.unwrap().clone();
    assert_eq!(outcome.status, ToolStatus::Failed);
}

#[test]
fn a_released_call_keeps_the_data_of_its_holder_after_a_crash() {
    let mut machine = round_of(&["pay", "pay"], rules(false));
    wait(&mut machine, 0, Suspension::held().with_state(json!("own")));
    wait(&mut machine, 1, asking("q"));
    let mut machine = resume(&mut machine, rules(false));
    reply(&mut machine, "q");
    drain(&mut machine);
    let mut machine = crash(&machine, rules(false));
    let round = drain(&mut machine).0;
    let CallStage::Released { on, .. } = &round[0].state.stage else {
        panic!("{round:?}")
    };
    assert_eq!(on.state, Some(Arc::new(json!("own"))));
    // A round whose calls were held is not decided about again.
    assert!(!machine.is_round_new());
    // A call that holds again without a reason fails.
    machine.input(Input::Settled {
        index: 1,
        outcome: ToolOutcome::done("paid"),
    });
    wait(&mut machine, 0, Suspension::held());
    machine.input(Input::RoundEnded);
    drain(&mut machine);
    wait(&mut machine, 0, Suspension::held());
    machine.input(Input::RoundEnded);
    let statuses = drain(&mut machine).2;
    assert_eq!(statuses, [ToolStatus::Unknown, ToolStatus::Done]);
}

#[test]
fn a_call_that_its_tool_held_may_have_executed() {
    let mut machine = round_of(&["pay", "pay"], rules(false));
    machine.input(Input::Suspended {
        index: 0,
        on: Box::new(Suspension::held()),
        by: SuspendedBy::Tool,
    });
    wait(&mut machine, 1, asking("q"));
    let mut machine = resume(&mut machine, rules(false));
    let statuses = [ToolStatus::Unknown, ToolStatus::Cancelled];
    assert_eq!(statuses_when_cancelled(&mut machine), statuses);
}

#[test]
fn an_unverified_call_keeps_its_replies_after_a_crash() {
    let mut machine = claimed();
    reply(&mut machine, "m/0/c0");
    drain(&mut machine);
    let mut machine = crash(&machine, rules(false));
    let round = drain(&mut machine).0;
    let CallStage::Unverified(call) = &round[0].state.stage else {
        panic!("{round:?}")
    };
    assert_eq!(call.replies.len(), 1);
    assert!(call.interrupted && round[0].is_recovered());
    // The other call has no reply, so it was not started.
    let CallStage::Unverified(call) = &round[1].state.stage else {
        panic!("{round:?}")
    };
    assert!(!call.interrupted && !round[1].is_recovered());
}

#[test]
fn an_unverified_call_without_a_reply_accepts_one_after_a_crash() {
    let mut machine = claimed();
    drain(&mut machine);
    let mut machine = crash(&machine, rules(false));
    reply(&mut machine, "m/0/c0");
    let round = drain(&mut machine).0;
    let CallStage::Unverified(call) = &round[0].state.stage else {
        panic!("{round:?}")
    };
    // The reply is new, so a token that was used before must not be accepted.
    assert!(!call.interrupted && !round[0].is_recovered());
}

#[test]
fn an_unverified_call_of_a_missing_tool_accepts_its_reply_and_is_refused() {
    let mut machine = claimed();
    reply(&mut machine, "m/1/c1");
    for _ in 0..2 {
        let round = drain(&mut machine).0;
        assert!(matches!(round[1].refusal(), Some(Refusal::NotOffered(_))));
        assert!(!round[1].state.may_have_executed());
        machine = crash(&machine, rules(false));
    }
}

#[test]
fn an_earlier_attempt_survives_suspensions_and_holds() {
    for again in [asking("r"), Suspension::held()] {
        let mut machine = round_of(&["pay", "pay"], rules(false));
        let mut machine = {
            wait(&mut machine, 1, asking("q"));
            crash(&machine, rules(false))
        };
        assert!(drain(&mut machine).0[0].is_recovered());
        wait(&mut machine, 0, again);
        let mut machine = resume(&mut machine, rules(false));
        reply(&mut machine, "q");
        let round = drain(&mut machine).0;
        let lost = Some(EarlierAttempt::Lost { recorded: false });
        assert!(
            round
                .iter()
                .all(|it| it.position == 1 || it.state.earlier == lost)
        );
        assert_eq!(
            statuses_when_cancelled(&mut machine)[0],
            ToolStatus::Unknown
        );
    }
}

#[test]
fn replies_after_a_crash_are_not_those_of_the_process_that_ended() {
    let machine = round_of(&["pay"], rules(false));
    let mut machine = crash(&machine, rules(false));
    drain(&mut machine);
    wait(&mut machine, 0, asking("q"));
    let mut machine = resume(&mut machine, rules(false));
    reply(&mut machine, "q");
    let round = drain(&mut machine).0;
    let CallStage::Resumed(resume) = &round[0].state.stage else {
        panic!("{round:?}")
    };
    assert!(round[0].is_recovered() && !resume.interrupted);
}

#[test]
fn a_call_is_read_only_as_declared_when_the_model_called() {
    let machine = round_of(&["search", "pay"], rules(false));
    let mut machine = crash(&machine, rules(false));
    let round = drain(&mut machine).0;
    assert!(round[0].state.read_only && !round[1].state.read_only);
    let statuses = [ToolStatus::Cancelled, ToolStatus::Unknown];
    assert_eq!(statuses_when_cancelled(&mut machine), statuses);
}

#[test]
fn an_attempt_without_a_ledger_is_not_recorded_later() {
    let machine = round_of(&["pay"], rules(true));
    let recorded = |machine: &mut Machine| drain(machine).0[0].state.earlier;
    let mut machine = crash(&machine, rules(true));
    let lost = |recorded| Some(EarlierAttempt::Lost { recorded });
    assert_eq!(recorded(&mut machine), lost(true));
    // The call runs without a ledger, and is suspended.
    let mut machine = crash(&machine, rules(false));
    drain(&mut machine);
    wait(&mut machine, 0, asking("q"));
    let mut machine = resume(&mut machine, rules(true));
    reply(&mut machine, "q");
    assert_eq!(recorded(&mut machine), lost(false));
}

#[test]
fn a_round_keeps_the_replies_to_its_settled_calls() {
    let mut machine = round_of(&["pay", "pay"], rules(false));
    wait(&mut machine, 0, asking("q"));
    wait(&mut machine, 1, asking("r"));
    let mut machine = resume(&mut machine, rules(false));
    reply(&mut machine, "q");
    drain(&mut machine);
    let outcome = ToolOutcome::done("paid");
    machine.input(Input::Settled { index: 0, outcome });
    machine.input(Input::RoundEnded);
    let state = drain(&mut machine).1.unwrap().state.unwrap();
    let accepted: Vec<_> = state
        .replies()
        .iter()
        .map(|it| it.interrupt_id.as_str())
        .collect();
    assert_eq!(accepted, ["q"]);
}
