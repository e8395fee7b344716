//! Combines the decisions of several gates.

use super::{
    Entry, Erased, FinishDecision, RoundDecision, StepDecision, StepDraft, StepGates, StepView,
    draft::RequestParts,
};
use crate::interest::Interest;
use concentric_proto::{Error, ErrorKind, Interrupt, Phase, Suspension, machine::Input};
use std::{collections::HashSet, future::Future, pin::Pin, sync::Arc};

/// The moment at which gates are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Step,
    Round,
    Finish,
}

impl Moment {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Round => "round",
            Self::Finish => "finish",
        }
    }

    const fn point(self) -> Interest {
        match self {
            Self::Step => Interest::BEFORE_STEP,
            Self::Round => Interest::BEFORE_ROUND,
            Self::Finish => Interest::BEFORE_FINISH,
        }
    }
}

/// The combined decision of all gates.
pub(crate) struct Decided {
    /// The edited draft; `None` before a round, and if the gates ask.
    pub(crate) draft: Option<StepDraft>,
    /// The machine's input; `None` if the step or the round is made.
    pub(crate) input: Option<Input>,
}

/// The pending decision of one gate, or of all.
pub(crate) type PendingDecision<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

impl StepGates {
    /// Starts the evaluation of all gates at `moment`; `None` if no gate decides about it.
    pub(crate) fn decide(
        &self,
        moment: Moment,
        view: impl FnOnce() -> (StepView, RequestParts),
    ) -> Option<PendingDecision<'static, Decided>> {
        let interested = |entry: &&Entry| entry.interest.contains(moment.point());
        let gates = self.0.iter().filter(interested);
        let gates: Vec<_> = gates.map(|entry| Arc::clone(&entry.gate)).collect();
        if gates.is_empty() {
            return None;
        }
        let (view, request) = view();
        Some(match moment {
            Moment::Step => Box::pin(step(gates, StepDraft::new(view, request))),
            Moment::Round => Box::pin(round(gates, view)),
            Moment::Finish => Box::pin(finish(gates, StepDraft::new(view, request))),
        })
    }
}

async fn step(gates: Vec<Arc<dyn Erased>>, mut draft: StepDraft) -> Result<Decided, Error> {
    let (mut asked, mut finish, mut halt) = (Vec::new(), false, None);
    for gate in &gates {
        match gate.before_step(&mut draft).await? {
            StepDecision::Continue => {}
            StepDecision::Ask(interrupt) => asked.push((gate.id(), *interrupt)),
            StepDecision::Finish => finish = true,
            StepDecision::Halt(reason) => halt = halt.or(Some(reason)),
        }
    }
    let input = match (halt, finish) {
        (Some(reason), _) => Some(Input::Halt(reason)),
        (None, true) => Some(Input::Finish),
        (None, false) if asked.is_empty() => None,
        (None, false) => return ask(asked, &draft),
    };
    let draft = Some(draft);
    Ok(Decided { draft, input })
}

async fn round(gates: Vec<Arc<dyn Erased>>, view: StepView) -> Result<Decided, Error> {
    let (mut asked, mut skip, mut answer, mut halt) = (Vec::new(), None, None, None);
    for gate in &gates {
        match gate.before_round(&view).await? {
            RoundDecision::Continue => {}
            RoundDecision::Ask(interrupt) => asked.push((gate.id(), *interrupt)),
            RoundDecision::Skip(reason) => skip = skip.or(Some(reason)),
            RoundDecision::Answer(text) => answer = answer.or(Some(text)),
            RoundDecision::Halt(reason) => halt = halt.or(Some(reason)),
        }
    }
    let input = match (halt, answer, skip) {
        (Some(reason), ..) => Some(Input::Halt(reason)),
        (None, Some(text), _) => Some(Input::AnswerRound(text)),
        (None, None, Some(reason)) => Some(Input::SkipRound(reason)),
        (None, None, None) if asked.is_empty() => None,
        (None, None, None) => return ask(asked, &view),
    };
    let draft = None;
    Ok(Decided { draft, input })
}

async fn finish(gates: Vec<Arc<dyn Erased>>, mut draft: StepDraft) -> Result<Decided, Error> {
    let (mut asked, mut retry, mut halt) = (Vec::new(), None, None);
    for gate in &gates {
        match gate.before_finish(&mut draft).await? {
            FinishDecision::Finish => {}
            FinishDecision::Retry { void } => {
                retry = Some(retry.unwrap_or(false) || void);
                // Replies are passed to all gates.
                if draft.answered.is_none() {
                    break;
                }
            }
            FinishDecision::Ask(interrupt) => asked.push((gate.id(), *interrupt)),
            FinishDecision::Halt(reason) => halt = halt.or(Some(reason)),
        }
    }
    let input = match (halt, retry) {
        (Some(reason), _) => Input::Halt(reason),
        // An interrupt about the end is raised again when the run would end.
        (None, Some(true)) => Input::Reject,
        (None, Some(false)) => Input::Continue,
        (None, None) if asked.is_empty() => Input::Finish,
        (None, None) => return ask(asked, &draft),
    };
    let (draft, input) = (Some(draft), Some(input));
    Ok(Decided { draft, input })
}

/// Combines the interrupts of several gates and records the gates' names, to route replies. The
/// gates are evaluated again with the replies, so the draft is discarded.
///
/// # Errors
///
/// Two of the gates have the same name.
fn ask(asked: Vec<(&str, Interrupt)>, view: &StepView) -> Result<Decided, Error> {
    let asked = asked.into_iter();
    let asked = asked.map(|(name, interrupt)| (name, view.anew(interrupt)));
    let (names, interrupts): (Vec<_>, Vec<_>) = asked.unzip();
    let mut seen = HashSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(**name)) {
        let why = format!(
            "two gates that raise interrupts are named `{twice}`; give each gate its own name"
        );
        return Err(Error::new(ErrorKind::Configuration, why).with_phase(Phase::Run));
    }
    let on = Suspension::new(interrupts)
        .with_state(serde_json::Value::from(names))
        .together();
    let (draft, input) = (None, Some(Input::Ask(Box::new(on))));
    Ok(Decided { draft, input })
}
