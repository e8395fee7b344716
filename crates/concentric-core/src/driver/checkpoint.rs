//! Persisting the state of a run.

use super::{nested::InnerState, run::Run};
use crate::{checkpoint::Checkpoint, service::BoxFuture};
use concentric_proto::{Error, Finish, run_state::RunState};
use std::future::ready;
use tokio::sync::mpsc;

/// Where the state of a run is persisted. Boxed, since few runs have it.
pub(super) struct Checkpointing {
    // Not in the context, since nested runs have their own states.
    checkpoint: Checkpoint,
    // Receives the states of an agent in the model's position, to persist them in this run's state.
    pub(super) inner_states: Option<mpsc::UnboundedReceiver<InnerState>>,
}

impl Checkpointing {
    pub(super) fn boxed(checkpoint: Checkpoint) -> Box<Self> {
        Box::new(Self {
            checkpoint,
            inner_states: None,
        })
    }
}

impl<M, R> Run<M, R> {
    /// What the next round waits for: effects that an outer layer holds, and the persisted state.
    pub(super) fn before_round(&mut self) -> Option<BoxFuture<()>> {
        let save = self.checkpoint();
        let Some(held) = self.context.held_effects() else {
            return save;
        };
        self.takes_back = true;
        Some(Box::pin(async move {
            held.await?;
            match save {
                Some(save) => save.await,
                None => Ok(()),
            }
        }))
    }

    /// Persists the run's state, if the run has a checkpoint.
    fn checkpoint(&mut self) -> Option<BoxFuture<()>> {
        self.checkpoint.as_ref()?;
        self.record_unrecorded();
        let saved = self.save(self.machine.state()?);
        self.takes_back = true;
        saved
    }

    pub(super) fn save(&self, state: RunState) -> Option<BoxFuture<()>> {
        let checkpoint = &self.checkpoint.as_ref()?.checkpoint;
        Some(match self.with_slots(state) {
            Ok(state) => checkpoint.save(state),
            Err(error) => Box::pin(ready(Err(error))),
        })
    }

    /// Adds the values of the run's durable slots and its recorded tokens to its state.
    ///
    /// # Errors
    ///
    /// A value can't be serialized.
    fn with_slots(&self, mut state: RunState) -> Result<RunState, Error> {
        if self.claim.is_some()
            && let Some(usage) = self.context.usage_to_store()
        {
            state = state.with_run_usage(usage);
        }
        // Inside another loop's model call, that loop stores the slots.
        match self.context.slots_of_run() {
            Some(slots) if self.claim.is_some() => Ok(state.with_slots(slots.snapshot()?)),
            _ => Ok(state),
        }
    }

    /// Adds the recorded tokens to the end of the run, and the values of durable slots to the state
    /// of an interrupted run.
    ///
    /// # Errors
    ///
    /// A value can't be serialized.
    pub(super) fn complete(&self, finish: &mut Finish) -> Result<(), Error> {
        if self.claim.is_some()
            && let Some(usage) = self.context.recorded_usage()
        {
            finish.set_run_usage(usage);
        }
        if let Some(state) = finish.state.take() {
            finish.state = Some(Box::new(self.with_slots(*state)?));
        }
        Ok(())
    }
}
