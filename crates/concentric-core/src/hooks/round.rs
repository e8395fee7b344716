use concentric_proto::{CallId, Event, Executor, ToolResult};

/// The current round, reconstructed from the events of a run.
#[derive(Debug, Default)]
pub(super) struct Closing {
    // The calls of the step without a result; `None` before the first step, where a resumed run
    // closes a round whose calls are not among its events.
    open: Option<Vec<CallId>>,
    // Whether the model's answer is streaming. Results in this phase are those of the provider, or
    // of an agent that is used as a model.
    in_step: bool,
    results: Vec<ToolResult>,
}

impl Closing {
    /// Processes an event, and returns whether the round is closed.
    pub(super) fn record(&mut self, event: &Event) -> bool {
        match event {
            Event::StepStart(_) => {
                self.open = Some(Vec::new());
                self.in_step = true;
                self.is_due()
            }
            Event::ToolCall(event) => {
                if let Some(open) = &mut self.open
                    && event.call.executor != Executor::Provider
                {
                    open.push(event.call.id.clone());
                }
                false
            }
            Event::StepFinish(_) => {
                self.in_step = false;
                false
            }
            Event::ToolResult(result) => {
                if let Some(open) = &mut self.open {
                    open.retain(|id| *id != result.call_id);
                }
                if !self.in_step {
                    self.results.push((**result).clone());
                }
                !self.in_step && self.open.as_ref().is_some_and(Vec::is_empty)
            }
            Event::Finish(_) => self.is_due(),
            _ => false,
        }
    }

    /// Returns whether there are unreported results.
    pub(super) const fn is_due(&self) -> bool {
        !self.results.is_empty()
    }

    pub(super) fn take(&mut self) -> Vec<ToolResult> {
        std::mem::take(&mut self.results)
    }
}
