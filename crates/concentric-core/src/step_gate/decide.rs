//! Combines the decisions of several gates.

use super::{BeforeFinish, BeforeRound, BeforeStep, Entry, Erased, StepGates, StepView};
use crate::interest::Interest;
use concentric_proto::{Error, ErrorKind, Interrupt, Phase, Str, Suspension, Turn};
use std::{collections::HashSet, future::Future, pin::Pin, sync::Arc};

/// The moment at which gates are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Step,
    Round,
    Finish,
}

impl Moment {
    pub(super) const fn name(self) -> &'static str {
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

/// An evaluation of gates in progress.
pub(crate) enum Deciding {
    Step(PendingDecision<Said<StepVerdict>>),
    Round(PendingDecision<RoundVerdict>),
    Finish(PendingDecision<Said<FinishVerdict>>),
}

/// The combined decision of all gates before a step or before the end.
pub(crate) struct Said<V> {
    /// Added to the conversation whatever the verdict is.
    pub(crate) turns: Vec<Turn>,
    pub(crate) verdict: V,
}

pub(crate) enum StepVerdict {
    Continue,
    Ask(Suspension),
    Finish,
    Halt(Str),
}

/// The combined decision of all gates before a round.
pub(crate) enum RoundVerdict {
    Continue,
    Ask(Suspension),
    Skip(Str),
    Halt(Str),
}

pub(crate) enum FinishVerdict {
    Finish,
    Continue,
    Reject,
    Ask(Suspension),
    Halt(Str),
}

/// The pending decision of one gate, or of all.
pub(super) type PendingDecision<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

impl StepGates {
    /// Starts the evaluation of all gates at `moment`; `None` if no gate decides about it.
    pub(crate) fn decide(
        &self,
        moment: Moment,
        view: impl FnOnce() -> StepView,
    ) -> Option<Deciding> {
        let interested = |entry: &&Entry| entry.interest.contains(moment.point());
        let asked = self.0.iter().filter(interested);
        let asked: Vec<_> = asked.map(|entry| Arc::clone(&entry.gate)).collect();
        if asked.is_empty() {
            return None;
        }
        let view = Arc::new(view());
        Some(match moment {
            Moment::Step => Deciding::Step(Box::pin(async move {
                let mut said = Vec::with_capacity(asked.len());
                for gate in &asked {
                    said.push(Arc::clone(gate).before_step(Arc::clone(&view)).await?);
                }
                step(&asked, said, &view)
            })),
            Moment::Round => Deciding::Round(Box::pin(async move {
                let mut said = Vec::with_capacity(asked.len());
                for gate in &asked {
                    said.push(Arc::clone(gate).before_round(Arc::clone(&view)).await?);
                }
                round(&asked, said, &view)
            })),
            Moment::Finish => Deciding::Finish(Box::pin(async move {
                let mut said = Vec::with_capacity(asked.len());
                for gate in &asked {
                    said.push(Arc::clone(gate).before_finish(Arc::clone(&view)).await?);
                    // Replies are passed to all gates.
                    let goes_on = matches!(
                        said.last(),
                        Some(BeforeFinish::Continue(_) | BeforeFinish::Reject(_))
                    );
                    if goes_on && view.answered.is_none() {
                        break;
                    }
                }
                finish(&asked, said, &view)
            })),
        })
    }
}

fn step(
    gates: &[Arc<dyn Erased>],
    said: Vec<BeforeStep>,
    view: &StepView,
) -> Result<Said<StepVerdict>, Error> {
    let (mut turns, mut asked, mut finish, mut halt) = (Vec::new(), Vec::new(), false, None);
    for (gate, said) in gates.iter().zip(said) {
        match said {
            BeforeStep::Continue => {}
            BeforeStep::Say(more) => turns.extend(more),
            BeforeStep::Ask(interrupt) => asked.push((gate.id(), *interrupt)),
            BeforeStep::Finish => finish = true,
            BeforeStep::Halt(reason) => halt = halt.or(Some(reason)),
        }
    }
    let verdict = match (halt, finish, asked.is_empty()) {
        (Some(reason), ..) => StepVerdict::Halt(reason),
        (None, true, _) => StepVerdict::Finish,
        (None, false, false) => {
            // All gates are evaluated again when the interrupts are answered.
            turns.clear();
            StepVerdict::Ask(batch(asked, view)?)
        }
        (None, false, true) => StepVerdict::Continue,
    };
    Ok(Said { turns, verdict })
}

fn round(
    gates: &[Arc<dyn Erased>],
    said: Vec<BeforeRound>,
    view: &StepView,
) -> Result<RoundVerdict, Error> {
    let (mut asked, mut skip, mut halt) = (Vec::new(), None, None);
    for (gate, said) in gates.iter().zip(said) {
        match said {
            BeforeRound::Continue => {}
            BeforeRound::Ask(interrupt) => asked.push((gate.id(), *interrupt)),
            BeforeRound::Skip(reason) => skip = skip.or(Some(reason)),
            BeforeRound::Halt(reason) => halt = halt.or(Some(reason)),
        }
    }
    Ok(match (halt, skip, asked.is_empty()) {
        (Some(reason), ..) => RoundVerdict::Halt(reason),
        (None, Some(reason), _) => RoundVerdict::Skip(reason),
        (None, None, false) => RoundVerdict::Ask(batch(asked, view)?),
        (None, None, true) => RoundVerdict::Continue,
    })
}

fn finish(
    gates: &[Arc<dyn Erased>],
    said: Vec<BeforeFinish>,
    view: &StepView,
) -> Result<Said<FinishVerdict>, Error> {
    let (mut turns, mut asked, mut goes_on, mut halt) = (Vec::new(), Vec::new(), false, None);
    let mut rejects = false;
    for (gate, said) in gates.iter().zip(said) {
        match said {
            BeforeFinish::Finish => {}
            BeforeFinish::Reject(more) => {
                turns.extend(more);
                rejects = true;
            }
            BeforeFinish::Continue(more) => {
                turns.extend(more);
                goes_on = true;
            }
            BeforeFinish::Ask(interrupt) => asked.push((gate.id(), *interrupt)),
            BeforeFinish::Halt(reason) => halt = halt.or(Some(reason)),
        }
    }
    let verdict = match (halt, goes_on, asked.is_empty()) {
        (Some(reason), ..) => FinishVerdict::Halt(reason),
        // An interrupt about the end is raised again when the run would end.
        (None, ..) if rejects => FinishVerdict::Reject,
        (None, true, _) => FinishVerdict::Continue,
        (None, false, false) => FinishVerdict::Ask(batch(asked, view)?),
        (None, false, true) => FinishVerdict::Finish,
    };
    Ok(Said { turns, verdict })
}

/// Combines the interrupts of several gates and records the gates' names, to route replies.
///
/// # Errors
///
/// Two of the gates have the same name.
fn batch(asked: Vec<(&str, Interrupt)>, view: &StepView) -> Result<Suspension, Error> {
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
    Ok(Suspension::new(interrupts)
        .with_state(serde_json::Value::from(names))
        .together())
}
