//! Single cases.

use super::*;

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
    const MANY: usize = 20_000;
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
