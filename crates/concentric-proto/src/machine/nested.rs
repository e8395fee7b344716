//! An agent in the model's place.

use super::{Action, Machine};
use crate::{
    interrupt::Reply,
    run_state::{Inner, MachineState, Said},
};
use std::time::SystemTime;

/// The state and the replies with which an agent in the model's place resumes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelResume {
    /// The state that the agent was interrupted in.
    pub state: MachineState,
    /// The replies to its interrupts.
    pub replies: Vec<Reply>,
    /// When the replies were accepted, which decides whether they were in time; `None` without replies.
    pub accepted_at: Option<SystemTime>,
}

impl Machine {
    /// The state of the run while the agent in its model's place is in the state `inner`; `None`
    /// unless the model is being called or read.
    ///
    /// For a driver that stores the run when that agent is about to start its tools.
    pub fn state_around(&self, inner: MachineState) -> Option<MachineState> {
        let used = self.state.usage;
        let said = match (&self.stream, &self.interrupted) {
            (Some(step), _) => step.said(used),
            (None, Some(interrupted)) => interrupted.0.clone(),
            (None, None) if self.asked => Said::nothing(used),
            (None, None) => return None,
        };
        Some(self.state.clone().around(said, inner))
    }

    /// The call of the model, an agent that was interrupted in the state `inner`.
    pub(super) fn resume_inner(&mut self, inner: Inner) -> Action {
        self.asked = true;
        let unsaid = inner.unsaid();
        self.interrupted = Some(Box::new((inner.said, unsaid)));
        let (replies, accepted_at) = match self.replies.take().map(|taken| *taken) {
            Some((replies, at)) => (replies, Some(at)),
            None => (Vec::new(), None),
        };
        Action::CallModel {
            step: self.state.step,
            resume: Some(Box::new(ModelResume {
                state: MachineState(inner.state),
                replies,
                accepted_at,
            })),
        }
    }
}
