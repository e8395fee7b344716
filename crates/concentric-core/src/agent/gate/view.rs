use super::Moment;
use crate::context::Context;
use concentric_proto::{
    Answered, FinishReason, Interrupt, InterruptId, Message, Reply, Transcript, Usage,
};

/// What a [`StepGate`](super::StepGate) goes by.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepView {
    /// The step: how many model calls were finished before the one that is decided about, or that
    /// has just been made.
    pub step: u32,
    /// The conversation so far; every round in it is closed.
    pub transcript: Transcript,
    /// The message whose calls are to be run; `None` before the model is called and before the end.
    pub message: Option<Message>,
    /// What the run has used so far.
    pub usage: Usage,
    /// Why the model stopped when it was called last; `None` before the first call.
    pub finish_reason: Option<FinishReason>,
    /// The run.
    pub context: Context,
    /// What was asked here, and replied.
    pub(super) answered: Option<Box<Answered>>,
    moment: &'static str,
}

impl StepView {
    /// What was replied to a question that was asked here, whoever asked it.
    pub fn reply(&self, id: &InterruptId) -> Option<&Reply> {
        self.replies()
            .iter()
            .find(|reply| reply.interrupt_id == *id)
    }

    /// All that was replied to what was asked here.
    pub fn replies(&self) -> &[Reply] {
        self.answered
            .as_deref()
            .map_or(&[], |answered| &answered.replies)
    }

    /// The id of what a gate asks here: the same when it is asked again with the replies, in
    /// whichever run that is. What it asks then is another question, and gets another id.
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

    /// What was asked here, and was replied to.
    fn asked(&self) -> impl Iterator<Item = &Interrupt> {
        let pending = self
            .answered
            .as_ref()
            .and_then(|answered| answered.pending.as_ref());
        pending.into_iter().flat_map(|pending| &pending.interrupts)
    }

    /// Gives a question another id if it has that of one that was replied to: a reply that comes
    /// twice is not one to both.
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
    pub(in crate::agent) fn new(
        moment: Moment,
        step: u32,
        transcript: Transcript,
        usage: Usage,
        context: Context,
    ) -> Self {
        Self {
            step,
            transcript,
            message: None,
            usage,
            finish_reason: None,
            context,
            answered: None,
            moment: moment.name(),
        }
    }

    pub(in crate::agent) fn of_message(mut self, message: Option<Message>) -> Self {
        self.message = message;
        self
    }

    pub(in crate::agent) fn finished_by(mut self, reason: Option<FinishReason>) -> Self {
        self.finish_reason = reason;
        self
    }

    pub(in crate::agent) fn answered(mut self, answered: Option<Box<Answered>>) -> Self {
        self.answered = answered;
        self
    }
}
