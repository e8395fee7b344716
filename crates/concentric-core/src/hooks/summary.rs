use crate::{context::Context, request::ChatRequest};
use concentric_proto::{
    Event, Message, MessageBuilder, ResponseHead, ToolCallPart, Transcript, Usage,
};
use std::time::{Duration, SystemTime};

/// The progress of a run or a model call when a hook is called.
#[derive(Clone, Debug)]
pub struct Summary {
    context: Context,
    started: SystemTime,
    took: Duration,
    usage: Usage,
    transcript: Transcript,
    message: MessageBuilder,
}

impl Summary {
    pub(super) fn new(context: Context, transcript: Transcript) -> Self {
        Self {
            transcript,
            started: context.now(),
            took: Duration::ZERO,
            usage: Usage::default(),
            message: MessageBuilder::new(&ResponseHead::default()),
            context,
        }
    }

    /// Creates the summary of a run that begins with `request`, for a loop of another library that
    /// calls hooks itself. It [records](Self::record) each event before its hooks receive it.
    ///
    /// ```
    /// use concentric_core::{BoxError, ChatRequest, Event, hooks::{End, Hooks, Summary}};
    ///
    /// async fn after_run(
    ///     hooks: &impl Hooks,
    ///     request: &ChatRequest,
    ///     events: &[Event],
    /// ) -> Result<(), BoxError> {
    ///     let mut run = Summary::for_request(request);
    ///     events.iter().for_each(|event| run.record(event));
    ///     match events.last() {
    ///         Some(Event::Finish(finish)) => hooks.after_run(End::Finished(finish), &run).await,
    ///         _ => hooks.after_run(End::Truncated, &run).await,
    ///     }
    /// }
    /// # async fn run(hooks: &impl Hooks, request: &ChatRequest) {
    /// #     let _ = after_run(hooks, request, &[]).await;
    /// # }
    /// ```
    pub fn for_request(request: &ChatRequest) -> Self {
        Self::new(request.context.clone(), request.transcript.clone())
    }

    /// Adds an event, and updates the [elapsed time](Self::took).
    pub fn record(&mut self, event: &Event) {
        self.push(event);
        self.stop_the_clock();
    }

    /// Sets the head of the answer.
    pub(super) fn of_model(&mut self, head: &ResponseHead) {
        self.message = MessageBuilder::new(head);
    }

    #[inline]
    pub(super) fn push(&mut self, event: &Event) {
        match event {
            Event::StepFinish(step) => self.usage += step.usage,
            Event::Finish(finish) => self.usage = finish.attempt_usage(),
            event => self.message.push(event),
        }
    }

    /// Updates the elapsed time.
    pub(super) fn stop_the_clock(&mut self) {
        let took = self.context.now().duration_since(self.started);
        self.took = took.unwrap_or_default();
    }

    /// Returns the context of the call.
    ///
    /// Work that is [deferred](Context::defer), also in [`after_run`](super::Hooks::after_run),
    /// must copy the data that it needs: work that holds the context itself is never started.
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the elapsed time by the context's clock.
    pub const fn took(&self) -> Duration {
        self.took
    }

    /// Returns the usage of all finished model calls. For a resumed run, only that of this attempt
    /// ([`Finish::attempt_usage`](crate::Finish)).
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the text of the final answer so far. For a run, this is the text of its last step
    /// after its last tool result ([`Answer::text`](crate::Answer::text)).
    pub fn text(&self) -> String {
        self.message.answer_text()
    }

    /// Returns the newest message of the user in the request. `None` if the request only resumes a run.
    pub fn user_message(&self) -> Option<&Message> {
        self.transcript.user_message()
    }

    /// Returns the tool calls of the answer so far. For a run, these are the calls of all steps.
    pub fn tool_calls(&self) -> Vec<ToolCallPart> {
        self.message().tool_calls().cloned().collect()
    }

    /// Returns the whole answer so far as one message. For a run, this includes all steps, tool
    /// calls, results and rejected answers.
    pub fn message(&self) -> Message {
        self.message.clone().build()
    }
}
