//! The properties of the machine, each of them a law of ARCHITECTURE.

use super::{
    op::Op,
    proto::{
        CallId, Event, Outcome, ToolResult, ToolStatus, Turn,
        machine::{Action, Machine},
    },
    world::{Call, Fed, Mode, World},
};
use crate::Kind;

/// A transition.
pub(super) struct View<'a> {
    pub(super) before: &'a World,
    pub(super) after: &'a World,
    pub(super) op: Op,
    pub(super) fed: &'a Fed,
    pub(super) machine: &'a Machine,
}

/// The name of a property, and whether a transition has it.
type Property = (&'static str, fn(&View<'_>) -> bool);

/// The properties that are checked at each transition.
pub(super) const PROPERTIES: &[Property] = &[
    ("nothing_starts_after_a_stop", nothing_starts_after_a_stop),
    ("one_terminal_outcome", one_terminal_outcome),
    ("every_exit_closes_the_round", every_exit_closes_the_round),
    ("one_outcome_per_call", one_outcome_per_call),
    (KEPT, an_outcome_is_kept),
    ("an_effect_is_not_denied", an_effect_is_not_denied),
    ("no_effect_without_a_decision", no_effect_without_a_decision),
    ("a_decision_is_consumed_once", a_decision_is_consumed_once),
    ("nothing_executes_twice", nothing_executes_twice),
    (
        "the_model_receives_closed_rounds",
        the_model_receives_closed_rounds,
    ),
    ("a_suspension_has_a_question", a_suspension_has_a_question),
    ("a_run_progresses", a_run_progresses),
];

/// The name of the property that late inputs change nothing: each state is compared with the one after
/// them. (An input that no longer matters is ignored.)
pub(super) const LATE: &str = "late_inputs_are_ignored";

/// The name of the property that the first outcome of a call counts. After an outcome that is reported
/// again, the state is the same.
pub(super) const KEPT: &str = "an_outcome_is_kept";

impl View<'_> {
    fn results(&self) -> impl Iterator<Item = &ToolResult> {
        self.fed.actions.iter().filter_map(|action| match action {
            Action::Emit(Event::ToolResult(result)) => Some(&**result),
            _ => None,
        })
    }

    fn call(&self, result: &ToolResult) -> Option<(usize, &Call)> {
        let number = super::op::number(&result.call_id);
        Some((number, self.before.facts.calls.get(number)?))
    }

    /// Whether the run ends here, other than by a suspension.
    fn ends(&self) -> bool {
        let is_end = |action: &Action| match action {
            Action::Emit(Event::Finish(finish)) => finish.outcome != Outcome::Interrupted,
            Action::Fail(_) => true,
            _ => false,
        };
        self.op == Op::Dropped || self.fed.actions.iter().any(is_end)
    }

    /// Whether the transcript has one result of each call of each answer that was whole.
    fn rounds_are_closed(&self) -> bool {
        let transcript = self.machine.transcript();
        let ids: Vec<&CallId> = transcript
            .iter()
            .flat_map(Turn::results)
            .map(|result| &result.call_id)
            .collect();
        let made = self.after.facts.made.iter().enumerate();
        let mut calls = made.flat_map(|(round, made)| {
            let first = round * super::op::CALLS;
            first..first + usize::from(*made)
        });
        calls.all(|call| {
            let has = |id: &&&CallId| super::op::number(id) == call;
            ids.iter().filter(has).count() == 1
        })
    }
}

/// A run has one terminal outcome, and it is the last action. (Law 4: one terminal outcome per run.)
fn one_terminal_outcome(view: &View<'_>) -> bool {
    let terminal =
        |action: &Action| matches!(action, Action::Emit(Event::Finish(_)) | Action::Fail(_));
    let actions = &view.fed.actions;
    let last = actions.iter().position(terminal);
    let expected = match view.after.mode {
        Mode::Ended => u8::from(!view.after.dropped),
        Mode::Suspended => 1,
        _ => 0,
    };
    last.is_none_or(|last| last + 1 == actions.len()) && view.after.terminal == expected
}

/// A call has at most one result. (Law 4: one outcome per call.)
fn one_outcome_per_call(view: &View<'_>) -> bool {
    view.after.facts.calls.iter().all(|call| call.results <= 1)
}

/// The result of a call is the outcome that the round service reported first. (Law 4: one outcome per
/// call.)
fn an_outcome_is_kept(view: &View<'_>) -> bool {
    view.results().all(|result| {
        let reported = view.call(result).and_then(|(_, call)| call.reported);
        reported.is_none_or(|how| result.outcome == how.outcome())
    })
}

/// A call whose tool began has the outcome that was reported, or an unknown one. (Law 4: resuming twice
/// executes nothing twice, so an effect is never reported as not executed.)
fn an_effect_is_not_denied(view: &View<'_>) -> bool {
    view.results().all(|result| {
        let call = view.call(result);
        call.is_none_or(|(number, call)| {
            call.kind != Some(Kind::Effect)
                || call.reported.is_some()
                || !view.before.may_have_run(number)
                || result.outcome.status == ToolStatus::Unknown
        })
    })
}

/// A call is handed out only if it has no outcome and waits for no reply, and with the reply that was
/// accepted. (Law 4: no effect after a denial or while a decision is pending.)
fn no_effect_without_a_decision(view: &View<'_>) -> bool {
    let is_round = view
        .fed
        .actions
        .iter()
        .any(|it| matches!(it, Action::RunTools { .. }));
    let mut handed = view.after.handed.iter().take(view.after.handed_out);
    !is_round
        || handed.all(|handed| {
            let call = view.before.facts.calls.get(handed.call);
            call.is_some_and(|call| {
                !call.open
                    && call.reported.is_none()
                    && call.results == 0
                    && call.reply == handed.reply.map(|(answer, _)| answer)
            })
        })
}

/// A question accepts one reply, and the reply is delivered once, unless a process has ended since and the
/// delivery says so. (Law 4: a decision is consumed once.)
fn a_decision_is_consumed_once(view: &View<'_>) -> bool {
    let (before, after) = (&view.before.facts, &view.after.facts);
    match view.op {
        Op::Reply(..) => {
            let is_accepted = matches!(view.fed.reply, Some(Ok(())));
            is_accepted == (before.accepted != after.accepted)
        }
        Op::Begin => {
            let mut handed = view.before.handed.iter().take(view.before.handed_out);
            handed.all(|handed| {
                let question = handed.reply.map_or(0, |(_, question)| 1 << question);
                handed.repeated || before.delivered & question == 0
            })
        }
        Op::TakeAnswers => before.delivered != after.delivered,
        _ => true,
    }
}

/// After a stop, or a round in which a call halts the run, neither the model nor a tool is called. (Law 4: a
/// halt or cancel starts no further call.)
fn nothing_starts_after_a_stop(view: &View<'_>) -> bool {
    let starts = |action: &Action| {
        matches!(
            action,
            Action::RunTools { .. } | Action::CallModel { .. } | Action::MayFinish
        )
    };
    let is_stopped = view.before.stopped || view.before.facts.halted;
    !is_stopped || !view.fed.actions.iter().any(starts)
}

/// At the end of a run each call has its result in the transcript. (Law 4: every exit but a suspension closes
/// the round.)
fn every_exit_closes_the_round(view: &View<'_>) -> bool {
    !view.ends() || (view.machine.open_message().is_none() && view.rounds_are_closed())
}

/// A tool does not begin again after its effect began. (Law 4: resuming twice executes nothing twice.)
fn nothing_executes_twice(view: &View<'_>) -> bool {
    match view.op {
        Op::Start(_) => view.before.started != view.after.started || !view.starts_an_effect(),
        _ => true,
    }
}

impl View<'_> {
    fn starts_an_effect(&self) -> bool {
        let Op::Start(index) = self.op else {
            return false;
        };
        let handed = self.before.handed.get(usize::from(index));
        let call = handed.and_then(|handed| self.before.facts.calls.get(handed.call));
        call.is_some_and(|call| call.kind == Some(Kind::Effect))
    }
}

/// The model is called with a transcript that has the result of each call. (Law 3: a round is closed, or it is
/// not in the transcript.)
fn the_model_receives_closed_rounds(view: &View<'_>) -> bool {
    let calls_model = |action: &Action| matches!(action, Action::CallModel { .. });
    !view.fed.actions.iter().any(calls_model) || view.rounds_are_closed()
}

/// A suspended run has a state, and the state has a question. (Law 4: every exit but a suspension closes the
/// round.)
fn a_suspension_has_a_question(view: &View<'_>) -> bool {
    view.fed.actions.iter().all(|action| match action {
        Action::Emit(Event::Finish(finish)) => match (&finish.outcome, &finish.state) {
            (Outcome::Interrupted, Some(state)) => !state.interrupts().is_empty(),
            (Outcome::Interrupted, None) | (_, Some(_)) => false,
            (_, None) => true,
        },
        _ => true,
    })
}

/// A machine that waits for no input has an action. (Law 4: all that happens next is the machine's to decide.)
fn a_run_progresses(view: &View<'_>) -> bool {
    view.op != Op::Take || !view.fed.actions.is_empty()
}
