use concentric_proto::{Error, run_state::RunState};
use std::{future::Future, pin::Pin, sync::Arc};

/// Persists the state of a run before each round of tool calls
/// ([`ChatRequest::checkpoint`](crate::ChatRequest::checkpoint)). The round starts once it is
/// persisted; an error fails the run.
///
/// Also called before the rounds of an agent in the model's position, whose state is part of the
/// run's. Not called before the rounds of an agent that is a tool.
#[derive(Clone)]
pub struct Checkpoint(Arc<dyn Fn(RunState) -> Saved + Send + Sync>);

type Saved = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

impl Checkpoint {
    /// Creates a checkpoint that calls `save`.
    pub fn new(save: impl Fn(RunState) -> Saved + Send + Sync + 'static) -> Self {
        Self(Arc::new(save))
    }

    pub(crate) fn save(&self, state: RunState) -> Saved {
        (self.0)(state)
    }
}

concentric_proto::opaque_debug!(Checkpoint);
