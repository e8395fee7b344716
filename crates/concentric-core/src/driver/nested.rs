//! The states of an agent in the model's position, which are part of this run's state.

use super::run::Run;
use crate::{checkpoint::Checkpoint, context::cancelled, service::BoxFuture};
use concentric_proto::run_state::RunState;
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};

/// A state of an agent in the model's position that must be persisted.
pub(super) struct InnerState {
    state: RunState,
    // Receives the future that persists it.
    save: oneshot::Sender<BoxFuture<()>>,
}

impl<M, R> Run<M, R> {
    /// Returns a checkpoint for the agent in the model's position, if this run has one.
    pub(super) fn inner_checkpoint(&mut self) -> Option<Checkpoint> {
        let checkpoint = self.checkpoint.as_mut()?;
        // A channel for each call, so that remaining states of an earlier call are not persisted.
        let (states, inner_states) = mpsc::unbounded_channel();
        checkpoint.inner_states = Some(inner_states);
        Some(through(states))
    }

    /// Persists the states of an agent in the model's position as part of this run's state.
    pub(super) fn poll_inner_states(&mut self, cx: &mut Context<'_>) {
        while let Some(checkpoint) = &mut self.checkpoint
            && let Some(states) = &mut checkpoint.inner_states
            && let Poll::Ready(Some(InnerState { state, save })) = states.poll_recv(cx)
        {
            self.record_unrecorded();
            if let Some(state) = self.machine.state_around(state)
                && let Some(saved) = self.save(state)
            {
                // The inner run may have been dropped.
                let _ = save.send(saved);
            }
        }
    }
}

/// Creates a checkpoint that passes states to an outer run and waits until they are persisted.
fn through(states: mpsc::UnboundedSender<InnerState>) -> Checkpoint {
    Checkpoint::new(move |state| {
        let (save, saved) = oneshot::channel();
        let _ = states.send(InnerState { state, save });
        Box::pin(async move {
            match saved.await {
                Ok(saved) => saved.await,
                // The outer run has dropped its model call.
                Err(_) => Err(cancelled()),
            }
        })
    })
}
