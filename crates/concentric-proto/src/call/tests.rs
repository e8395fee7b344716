use super::{
    CallResume, CallStage, CallState, Clearance, EarlierAttempt, Refusal, RoundCall, Unverified,
};
use crate::{
    id::InterruptId,
    interrupt::{Decision, Interrupt, Reply, SuspendedBy, Suspension, TOOL_CALL},
    message::{Arguments, OutcomeSource, ToolOutcome, ToolStatus},
};
use serde_json::{Map, json};

fn on() -> Suspension {
    Suspension::new(vec![Interrupt::new(InterruptId::new("i"), TOOL_CALL)])
}

fn unverified(refused: bool, replied: bool) -> CallStage {
    CallStage::Unverified(Box::new(Unverified {
        refusal: refused.then_some(Refusal::DuplicateId),
        replies: Vec::from_iter(replied.then(|| Reply::approve(InterruptId::new("i")))),
        ..Unverified::default()
    }))
}

fn resumed(by: SuspendedBy) -> CallStage {
    CallStage::Resumed(Box::new(CallResume {
        on: on(),
        by,
        replies: vec![Reply::approve(InterruptId::new("i"))],
        accepted_at: None,
        interrupted: false,
    }))
}

fn suspended(by: SuspendedBy) -> CallStage {
    let on = Box::new(on());
    CallStage::Suspended { on, by }
}

fn held(by: SuspendedBy) -> CallStage {
    let on = Box::new(Suspension::held());
    CallStage::Held { on, by }
}

fn released(by: SuspendedBy) -> CallStage {
    let on = Box::new(Suspension::held());
    CallStage::Released { on, by }
}

fn running(from: CallStage) -> CallStage {
    CallStage::Running {
        recorded: false,
        from: Some(Box::new(from)),
    }
}

/// When a call in a stage may have executed, unless its tool is read-only.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Executed {
    Never,
    WithAnEarlierAttempt,
    Always,
}

fn stages() -> Vec<(CallStage, Executed)> {
    use Executed::{Always, Never, WithAnEarlierAttempt};
    let refused = || CallStage::Rejected(Refusal::DuplicateId);
    let mut stages = vec![
        (CallStage::Ready, WithAnEarlierAttempt),
        (refused(), Never),
        (running(refused()), Never),
        (CallStage::Settled(ToolOutcome::done("")), Never),
        (
            CallStage::Running {
                recorded: true,
                from: None,
            },
            Always,
        ),
        (unverified(false, false), WithAnEarlierAttempt),
        (unverified(false, true), WithAnEarlierAttempt),
        (unverified(true, false), Never),
        (unverified(true, true), Never),
        // Without a reply, it is handed out only so that approval can be requested.
        (running(unverified(false, false)), WithAnEarlierAttempt),
        (running(unverified(false, true)), Always),
        (running(unverified(true, true)), Never),
    ];
    for (by, executed) in [
        (SuspendedBy::Gate, WithAnEarlierAttempt),
        (SuspendedBy::Change, WithAnEarlierAttempt),
        (SuspendedBy::Tool, Always),
        (SuspendedBy::UnknownEffect, Always),
        (SuspendedBy::Client, WithAnEarlierAttempt),
    ] {
        stages.extend([
            (suspended(by), executed),
            (resumed(by), executed),
            (held(by), executed),
            (released(by), executed),
            (running(resumed(by)), Always),
            (running(released(by)), Always),
        ]);
    }
    stages
}

fn earlier() -> [Option<EarlierAttempt>; 4] {
    [
        None,
        Some(EarlierAttempt::Suspended),
        Some(EarlierAttempt::Lost { recorded: false }),
        Some(EarlierAttempt::Lost { recorded: true }),
    ]
}

/// All stages, with each earlier attempt, for tools that are and are not read-only.
fn states() -> Vec<(CallState, bool)> {
    let mut states = Vec::new();
    for (stage, executed) in stages() {
        for earlier in earlier() {
            for read_only in [false, true] {
                let may_have_executed = match executed {
                    Executed::Never => false,
                    Executed::WithAnEarlierAttempt => earlier.is_some(),
                    Executed::Always => true,
                };
                let state = CallState {
                    stage: stage.clone(),
                    earlier,
                    read_only,
                };
                states.push((state, may_have_executed && !read_only));
            }
        }
    }
    states
}

#[test]
fn a_call_may_have_executed_by_its_state() {
    let states = states();
    assert_eq!(states.len(), (12 + 5 * 6) * 4 * 2);
    for (state, expected) in states {
        assert_eq!(state.may_have_executed(), expected, "{state:?}");
    }
}

#[test]
fn an_outcome_without_execution_is_unknown_if_it_may_have_executed() {
    for (state, may_have_executed) in states() {
        for outcome in [
            ToolOutcome::denied("no"),
            ToolOutcome::failed("no"),
            ToolOutcome::cancelled("no"),
        ] {
            let settled = state.settle_unexecuted(outcome.clone());
            match may_have_executed {
                true => {
                    assert_eq!(settled.status, ToolStatus::Unknown);
                    assert!(settled.content.text().ends_with(" It was not retried. no"));
                }
                false => assert_eq!(settled, outcome),
            }
        }
        for outcome in [ToolOutcome::done("yes"), ToolOutcome::unknown("?")] {
            assert_eq!(state.settle_unexecuted(outcome.clone()), outcome);
        }
    }
}

fn decisions() -> Vec<Decision> {
    let edited = Map::from_iter([("eur".to_owned(), json!(4))]);
    let approved = |edited| Decision::Approved {
        edited,
        remember: None,
    };
    let denied = |reason| Decision::Denied {
        reason,
        remember: None,
    };
    vec![
        approved(None),
        approved(Some(edited)),
        denied(None),
        denied(Some("too much".into())),
        Decision::Answered(json!("paid")),
        Decision::Failed("broken".into()),
        Decision::Cancelled,
    ]
}

#[test]
fn a_decision_has_one_meaning_in_each_state() {
    let (asked, arrived) = (Arguments::new("{}"), Arguments::new(r#"{"eur":5}"#));
    for (state, may_have_executed) in states() {
        let by = match &state.stage {
            CallStage::Resumed(resume) => Some(resume.by),
            _ => None,
        };
        for changed in [None, Some(&arrived)] {
            for decision in decisions() {
                let decided = state.decide(&asked, changed, &decision);
                let may_run = !matches!(by, Some(SuspendedBy::UnknownEffect | SuspendedBy::Client));
                if let Decision::Approved { edited, .. } = &decision
                    && may_run
                {
                    let expected = match (edited, changed) {
                        (Some(_), _) => Clearance::Decided(Arguments::new(r#"{"eur":4}"#)),
                        (None, Some(arrived)) => Clearance::Approved(arrived.clone()),
                        (None, None) => Clearance::Decided(asked.clone()),
                    };
                    assert_eq!(decided, Ok(expected));
                    continue;
                }
                let outcome = decided.unwrap_err();
                let (status, text) = match (&decision, by) {
                    (Decision::Answered(_), Some(SuspendedBy::Client)) => {
                        (ToolStatus::Done, "paid")
                    }
                    (Decision::Answered(_), _) => {
                        assert_eq!(outcome.source, OutcomeSource::Person);
                        let text = "A person supplied this result, not the tool:\npaid";
                        (ToolStatus::Done, text)
                    }
                    (_, Some(SuspendedBy::UnknownEffect)) => (ToolStatus::Unknown, ""),
                    (Decision::Denied { reason: None, .. }, _) => {
                        (ToolStatus::Denied, "The call was denied.")
                    }
                    (Decision::Denied { .. }, _) => {
                        (ToolStatus::Denied, "The call was denied: too much")
                    }
                    (Decision::Failed(_), _) => (ToolStatus::Failed, "broken"),
                    _ => (ToolStatus::Cancelled, "The call was cancelled."),
                };
                let expected = match may_have_executed && status != ToolStatus::Done {
                    true => ToolStatus::Unknown,
                    false => status,
                };
                assert_eq!(outcome.status, expected, "{state:?} {decision:?}");
                assert!(outcome.content.text().ends_with(text), "{outcome:?}");
            }
        }
    }
}

// A fresh call, the most frequent one, is handed out and taken back without an allocation.
#[test]
fn a_ready_call_runs_without_a_stage_before() {
    let mut state = CallState::ready(false);
    state.hand_out(true);
    let expected = CallStage::Running {
        recorded: true,
        from: None,
    };
    assert_eq!(state.stage, expected);
    assert_eq!(state.take_back(), Some(true));
    assert_eq!(state, CallState::ready(false));
}

#[test]
fn the_state_of_a_call_has_128_bytes() {
    assert!(size_of::<CallState>() <= 128, "{}", size_of::<CallState>());
    assert!(size_of::<RoundCall>() <= 160, "{}", size_of::<RoundCall>());
}
