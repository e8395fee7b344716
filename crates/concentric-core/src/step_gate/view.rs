use super::Moment;
use crate::{context::Context, request::ChatRequest};
use concentric_proto::{
    FinishReason, Interrupt, InterruptId, Message, Reply, Suspension, Transcript, Usage,
    machine::Machine,
};

/// The run as a [`StepGate`](super::StepGate) sees it.
///
/// ```
/// use concentric_core::{
///     BoxError,
///     agent::{RoundDecision, StepGate, StepView},
/// };
///
/// /// Runs no round of more than eight calls.
/// struct FewCalls;
///
/// impl StepGate for FewCalls {
///     fn name(&self) -> &str {
///         "few_calls"
///     }
///
///     async fn before_round(&self, view: &StepView) -> Result<RoundDecision, BoxError> {
///         let calls = view.message.iter().flat_map(|message| message.tool_calls());
///         Ok(match calls.count() {
///             ..=8 => RoundDecision::Continue,
///             _ => RoundDecision::skip("Make at most eight calls at once."),
///         })
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepView {
    /// The number of the step: how many model calls were finished before the one that the gate
    /// decides about, or that has just been made.
    pub step: u32,
    /// The conversation so far; every round in it is closed.
    pub transcript: Transcript,
    /// The number of turns, including those that [rewrites](super::StepDraft::rewrite) have
    /// removed. It never decreases, so a difference is the number of turns that were added.
    pub turns: usize,
    /// The message with the round's calls; `None` before a model call and before the end of the
    /// run.
    pub message: Option<Message>,
    /// The usage of the run so far.
    pub usage: Usage,
    /// Why the model stopped in its last call; `None` before the first call.
    pub finish_reason: Option<FinishReason>,
    /// The context of the run.
    pub context: Context,
    /// The interrupts raised at this moment, with their replies.
    pub(super) answered: Option<(Suspension, Vec<Reply>)>,
    moment: &'static str,
}

impl StepView {
    /// Creates the view of a run that is about to make its next step with `request`, for a loop of
    /// another library that calls gates or hooks itself. It may set the fields afterwards.
    pub fn for_request(request: &ChatRequest) -> Self {
        Self {
            step: request.context.step(),
            turns: request.transcript.len(),
            transcript: request.transcript.clone(),
            message: None,
            usage: Usage::default(),
            finish_reason: None,
            context: request.context.clone(),
            answered: None,
            moment: Moment::Step.name(),
        }
    }

    /// Returns the reply to an interrupt that was raised at this moment, by any gate.
    pub fn reply(&self, id: &InterruptId) -> Option<&Reply> {
        self.replies()
            .iter()
            .find(|reply| reply.interrupt_id == *id)
    }

    /// Returns all replies to interrupts that were raised at this moment.
    pub fn replies(&self) -> &[Reply] {
        self.answered.as_ref().map_or(&[], |(_, replies)| replies)
    }

    /// Returns the id of the interrupt that a gate raises at this moment. The id is the same when
    /// the gate is evaluated again with the replies, also in another run. An interrupt raised in
    /// that evaluation is a new one and gets a new id.
    pub fn interrupt_id(&self, gate: &str) -> InterruptId {
        let here = format!("/{}/{}/{gate}", self.step, self.moment);
        let is_here = |id: &InterruptId| {
            let id = id.as_str();
            id.ends_with(&here)
                || id
                    .rsplit_once('#')
                    .is_some_and(|(id, _)| id.ends_with(&here))
        };
        match self.asked().find(|asked| is_here(&asked.id)) {
            Some(asked) => asked.id.clone(),
            None => InterruptId::new(format!("{}{here}", self.context.run_id())),
        }
    }

    /// The interrupts that were raised at this moment and have replies.
    fn asked(&self) -> impl Iterator<Item = &Interrupt> {
        let answered = self.answered.iter();
        answered.flat_map(|(on, _)| &on.interrupts)
    }

    /// Assigns a new id to an interrupt whose id was already answered, so that a duplicate reply
    /// does not answer both.
    pub(super) fn anew(&self, mut interrupt: Interrupt) -> Interrupt {
        if self.asked().any(|asked| asked.id == interrupt.id) {
            let id = interrupt.id.as_str();
            let (base, times) = match id.rsplit_once('#') {
                Some((base, times)) => (base, times.parse().unwrap_or(1)),
                None => (id, 1_u32),
            };
            interrupt.id = InterruptId::new(format!("{base}#{}", times.saturating_add(1)));
        }
        interrupt
    }
}

impl StepView {
    pub(crate) fn new(moment: Moment, step: u32, machine: &mut Machine, context: Context) -> Self {
        Self {
            step,
            transcript: machine.transcript().clone(),
            message: machine.open_message().cloned(),
            usage: machine.usage(),
            finish_reason: machine.last_reason().cloned(),
            context,
            moment: moment.name(),
            turns: machine.turns(),
            answered: machine.take_answers(),
        }
    }
}
