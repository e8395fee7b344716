use concentric_core::{Context, Event, Head, Message, MessageBuilder, Usage};
use std::time::{Duration, SystemTime};

/// What there is of a run, or of a model call, when a hook is told of it.
#[derive(Clone, Debug)]
pub struct Summary {
    context: Context,
    started: SystemTime,
    took: Duration,
    usage: Usage,
    message: MessageBuilder,
}

impl Summary {
    pub(super) fn new(context: Context) -> Self {
        Self {
            started: context.now(),
            took: Duration::ZERO,
            usage: Usage::default(),
            message: MessageBuilder::new(&Head::default()),
            context,
        }
    }

    /// Says whose answer it is.
    pub(super) fn of_model(&mut self, head: &Head) {
        self.message = MessageBuilder::new(head);
    }

    #[inline]
    pub(super) fn push(&mut self, event: &Event) {
        match event {
            Event::StepFinish(step) => self.usage += step.usage,
            Event::Finish(finish) => self.usage = finish.attempt_usage(),
            said => self.message.push(said),
        }
    }

    /// Looks at the clock.
    pub(super) fn stop_the_clock(&mut self) {
        let took = self.context.now().duration_since(self.started);
        self.took = took.unwrap_or_default();
    }

    /// The run, and where in it this is. To [leave work](Context::defer) for later, in
    /// [`after_run`](super::Hooks::after_run) too, take out of it what the work needs: work that
    /// holds the context itself is never begun.
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// How long it took so far, by the context's clock.
    pub const fn took(&self) -> Duration {
        self.took
    }

    /// The tokens used so far, over all model calls that came to their end. Of a run that was
    /// resumed, this attempt's only ([`Finish::attempt_usage`](concentric_core::Finish)).
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// The final answer so far: of a run, the text of its last step after its last tool result
    /// ([`Answer::text`](concentric_core::Answer::text)).
    pub fn text(&self) -> String {
        self.message.answer_text()
    }

    /// The whole answer so far in one message: of a run over all its steps, with tool calls and
    /// their results, and with answers that were rejected.
    pub fn message(&self) -> Message {
        self.message.clone().build()
    }
}
