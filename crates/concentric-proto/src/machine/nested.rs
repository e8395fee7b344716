//! Nested agents: agents that are used as the model of another agent.

use super::{Action, Machine};
use crate::{
    interrupt::Reply,
    run_state::{Inner, RunState, Said},
};
use std::time::SystemTime;

/// The state and the replies to resume an agent that is used as the model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelResume {
    /// The state of the agent when it was interrupted.
    pub state: RunState,
    /// The replies to its interrupts.
    pub replies: Vec<Reply>,
    /// The time at which the replies were accepted; `None` without replies.
    pub accepted_at: Option<SystemTime>,
}

impl Machine {
    /// The state of the run while the nested agent is in the state `inner`; `None` unless the model
    /// is being called or read.
    ///
    /// Used by drivers that store the run before the nested agent starts its tools.
    pub fn state_around(&self, inner: RunState) -> Option<RunState> {
        let used = self.state.usage;
        let said = match (&self.stream, &self.interrupted) {
            (Some(step), _) => step.said(used),
            (None, Some(interrupted)) => interrupted.0.clone(),
            (None, None) if self.asked => Said::nothing(used),
            (None, None) => return None,
        };
        Some(self.state.to_stored().around(said, inner))
    }

    /// Creates the model call that resumes a nested agent from `inner`.
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
                state: RunState(inner.state),
                replies,
                accepted_at,
            })),
        }
    }
}
