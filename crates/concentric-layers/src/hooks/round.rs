use concentric_core::{CallId, Event, Executor, ToolResult};

/// The round that a run is about to close, as its events tell it.
#[derive(Debug, Default)]
pub(super) struct Closing {
    // Calls of the step that have no result yet; `None` before the first step, where a run that was
    // taken up closes a round whose calls it does not tell.
    open: Option<Vec<CallId>>,
    // Whether the model speaks: results are the provider's own then, or those of an agent in the
    // model's place.
    in_step: bool,
    results: Vec<ToolResult>,
}

impl Closing {
    /// Takes in an event, and returns whether the round is closed with it, or was before.
    pub(super) fn see(&mut self, event: &Event) -> bool {
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

    /// Whether there are results that nobody was told of.
    pub(super) const fn is_due(&self) -> bool {
        !self.results.is_empty()
    }

    pub(super) fn take(&mut self) -> Vec<ToolResult> {
        std::mem::take(&mut self.results)
    }
}
