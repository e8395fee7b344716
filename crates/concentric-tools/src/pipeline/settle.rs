//! Settle: classifies the end of a call that entered the stack.

use super::running::Started;
use crate::{
    Tool, ToolError, Toolset,
    call::{
        gates::definition,
        suspend_record::{Bound, SuspendRecord},
    },
    is_fatal, panic,
    rules::Policy,
};
use concentric_core::{
    Clearance, Context, Error, ErrorKind, Phase, Suspension, ToolOutcome, ToolStatus,
    interrupt::SuspendedBy,
};

/// The end of a call that entered the stack.
#[derive(Debug)]
pub(super) enum End {
    /// The call has its outcome.
    Settled(ToolOutcome),
    /// The call was abandoned and may have executed. This is its outcome, unless it is recovered.
    Abandoned(ToolOutcome),
    /// The call is suspended.
    Suspended(Suspension, SuspendedBy),
    /// The run fails.
    Fatal(Error),
}

/// Classifies the result of a call of `tools`.
pub(super) fn classify(
    result: Result<ToolOutcome, Error>,
    started: &Started,
    tools: &Toolset,
) -> End {
    let is_abandoned = started.is_abandoned(&result);
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(error) if error.kind() == ErrorKind::Halted => {
            ToolOutcome::failed(error.message()).and_halt(error.message())
        }
        Err(error) => match error.suspension() {
            Some((on, by)) => return End::Suspended(on.clone(), by),
            None if tools.has_fatal_errors() || is_fatal(&error) => {
                return End::Fatal(match error.phase() {
                    Some(_) => error,
                    None => error.with_phase(Phase::Call),
                });
            }
            None => {
                let tool = started.call.name().as_str();
                let error_text = panic::text(&format_args!("{error:#}"));
                let run = started.call.context.run_id();
                // Not within the current span, into which its exporter would copy the text.
                let call = started.call.id();
                tracing::warn!(parent: None, %run, %call, tool, error = error_text, "a layer on a tool failed");
                let format = tools.error_format_for(tool);
                ToolOutcome::failed(ToolError::from(error).text(format))
            }
        },
    };
    if is_abandoned {
        return End::Abandoned(outcome.into_indeterminate());
    }
    let is_not_run = matches!(outcome.status, ToolStatus::Denied | ToolStatus::Cancelled);
    End::Settled(match started.was_lost() && is_not_run {
        // The call did not run now, but may have run earlier.
        true => outcome.into_indeterminate(),
        false => outcome,
    })
}

/// The suspension of a started call, with the record for calling its tool again.
pub(super) fn suspend_started(
    rules: &Policy,
    context: &Context,
    tool: Option<&Tool>,
    started: &Started,
    mut on: Suspension,
    by: SuspendedBy,
) -> Suspension {
    on.together |= rules.together;
    // A suspension by the pipeline is already complete.
    if by != SuspendedBy::Tool {
        return on;
    }
    let record = SuspendRecord {
        arguments: started.call.arguments().as_str().into(),
        bound: match started.call.clearance() {
            Clearance::Ungated => Bound::No,
            Clearance::Passed(_) => Bound::ToGates,
            // Unknown variants get the strictest bound.
            _ => Bound::ToDecision,
        },
        arrived: match started.call.clearance() {
            Clearance::Approved(arrived) => Some(arrived.as_str().into()),
            _ => None,
        },
        definition: definition(tool.map(Tool::spec)),
        policy: rules.policy(context),
        effect: None,
        inner: on.state.take(),
    };
    let mut suspended = record.suspension(on.interrupts);
    suspended.together = on.together;
    suspended
}

#[cfg(test)]
mod tests {
    use super::*;
    use concentric_core::{
        Attempts, CallId, Interrupt, InterruptId, RoundCall, ToolCall, ToolCallPart, Transcript,
        call::CallStage,
    };

    fn round_call() -> RoundCall {
        RoundCall::new(0, ToolCallPart::new(CallId::new("c"), "pay", "{}"))
    }

    fn entered(call: RoundCall) -> ToolCall {
        let context = Context::new();
        ToolCall::of_round(call, Clearance::Ungated, Transcript::new(), &context)
    }

    fn started(can_repeat: bool, attempts: Option<Attempts>) -> Started {
        let call = entered(round_call());
        let mut started = Started::new(
            0,
            match attempts {
                Some(attempts) => call.with_attempts(attempts),
                None => call,
            },
        );
        started.can_repeat = can_repeat;
        started
    }

    /// A record with one attempt, which ended as given; `None` if it was dropped.
    fn attempts(end: Option<ToolStatus>) -> Attempts {
        let attempts = Attempts::new();
        attempts.start();
        if let Some(status) = end {
            attempts.end(status, false);
        }
        attempts
    }

    fn status(end: &End) -> (&'static str, Option<ToolStatus>) {
        match end {
            End::Settled(outcome) => ("settled", Some(outcome.status)),
            End::Abandoned(outcome) => ("abandoned", Some(outcome.status)),
            End::Suspended(..) => ("suspended", None),
            End::Fatal(_) => ("fatal", None),
        }
    }

    #[test]
    fn the_end_of_a_call_follows_from_its_result_and_attempts() {
        use ToolStatus::{Cancelled, Denied, Done, Failed, Unknown};
        let error = || Err(Error::new(ErrorKind::Server, "a layer failed"));
        let outcomes = || {
            [
                (Done, ToolOutcome::done("")),
                (Failed, ToolOutcome::failed("")),
                (Denied, ToolOutcome::denied("")),
                (Cancelled, ToolOutcome::cancelled("")),
                (Unknown, ToolOutcome::unknown("")),
            ]
        };
        for can_repeat in [false, true] {
            // The attempts at the call: none, one that was dropped, one that ended.
            for (attempts, is_open, is_done) in [
                (None, false, false),
                (Some(attempts(None)), true, false),
                (Some(attempts(Some(Failed))), false, false),
                (Some(attempts(Some(Done))), false, true),
            ] {
                let started = started(can_repeat, attempts);
                for (status_of, outcome) in outcomes() {
                    let end = classify(Ok(outcome), &started, &Toolset::new());
                    let abandoned =
                        !can_repeat && (status_of == Unknown || (is_open && status_of != Done));
                    let expected = match abandoned {
                        true => ("abandoned", Some(Unknown)),
                        false => ("settled", Some(status_of)),
                    };
                    assert_eq!(status(&end), expected, "{status_of:?}");
                }
                let abandoned = !can_repeat && (is_open || is_done);
                let expected = match abandoned {
                    true => ("abandoned", Some(Unknown)),
                    false => ("settled", Some(Failed)),
                };
                assert_eq!(
                    status(&classify(error(), &started, &Toolset::new())),
                    expected
                );
                assert_eq!(
                    status(&classify(
                        error(),
                        &started,
                        &Toolset::new().errors_are_fatal()
                    )),
                    ("fatal", None)
                );
            }
        }
    }

    #[test]
    fn a_layer_that_panics_after_its_tool_has_run_abandons_the_call() {
        for (end, expected) in [
            (ToolStatus::Done, "abandoned"),
            (ToolStatus::Failed, "settled"),
        ] {
            let mut started = started(false, Some(attempts(Some(end))));
            started.has_panicked = true;
            let end = classify(Ok(ToolOutcome::failed("")), &started, &Toolset::new());
            assert_eq!(status(&end).0, expected);
        }
    }

    #[test]
    fn a_recovered_outcome_is_final() {
        let mut started = started(false, Some(attempts(None)));
        started.is_recovered = true;
        for outcome in [ToolOutcome::unknown(""), ToolOutcome::failed("")] {
            let expected = ("settled", Some(outcome.status));
            assert_eq!(
                status(&classify(Ok(outcome), &started, &Toolset::new())),
                expected
            );
        }
    }

    #[test]
    fn a_lost_call_that_does_not_run_again_is_unknown() {
        let mut call = round_call();
        // Only a stored state has an earlier attempt.
        let lost = r#"{"lost":{"recorded":false}}"#;
        call.state.earlier = serde_json::from_str(lost).ok();
        let started = Started::new(0, entered(call.clone()));
        for (outcome, expected) in [
            (ToolOutcome::denied(""), ToolStatus::Unknown),
            (ToolOutcome::cancelled(""), ToolStatus::Unknown),
            (ToolOutcome::failed(""), ToolStatus::Failed),
        ] {
            let end = classify(Ok(outcome), &started, &Toolset::new());
            assert_eq!(status(&end), ("settled", Some(expected)));
        }
        call.state.read_only = true;
        let started = Started::new(0, entered(call));
        let end = classify(Ok(ToolOutcome::denied("")), &started, &Toolset::new());
        assert_eq!(status(&end), ("settled", Some(ToolStatus::Denied)));
    }

    #[test]
    fn an_error_may_suspend_or_halt() {
        let started = started(false, None);
        let asked = Interrupt::new(InterruptId::new("i"), "choice");
        let suspended = Error::suspended(Suspension::new(vec![asked]));
        assert_eq!(
            status(&classify(
                Err(suspended),
                &started,
                &Toolset::new().errors_are_fatal()
            ))
            .0,
            "suspended"
        );
        let End::Settled(halted) = classify(
            Err(Error::halted("enough")),
            &started,
            &Toolset::new().errors_are_fatal(),
        ) else {
            panic!("a halt settles the call");
        };
        assert_eq!(halted.halt.as_deref(), Some("enough"));
        assert!(matches!(started.call.state().stage, CallStage::Ready));
    }
}
