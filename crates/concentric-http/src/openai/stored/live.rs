//! Responses in the background, as the process stores them that drives their runs.

use std::time::Duration;

use concentric_core::{
    Str, ThreadId, Transcript,
    store::{StoreError, StoredThread, ThreadChange},
};
use tokio::sync::Mutex;

use super::{ATTEMPTS, EndedBy, Owned, Record};

/// The result of storing the end of a response.
pub(in super::super) enum Written {
    Stored,
    /// The response had ended before, as this JSON.
    Replaced(String),
    /// The response was deleted.
    Deleted,
}

/// A background response, as stored by the process that drives its run.
pub(in super::super) struct Live {
    owned: Owned,
    id: ThreadId,
    // Locked during a write.
    state: Mutex<LiveState>,
}

struct LiveState {
    thread: StoredThread,
    response: String,
    end: Option<LiveEnd>,
}

/// The end of a response that its process has not stored.
#[derive(Clone)]
enum LiveEnd {
    Replaced(String),
    Deleted,
}

impl Live {
    /// A response that is stored.
    pub(super) fn new(owned: Owned, id: ThreadId, thread: StoredThread, response: String) -> Self {
        let state = LiveState {
            thread,
            response,
            end: None,
        };
        Self {
            owned,
            id,
            state: Mutex::new(state),
        }
    }

    pub(in super::super) const fn id(&self) -> &ThreadId {
        &self.id
    }

    pub(in super::super) const fn owned(&self) -> &Owned {
        &self.owned
    }

    /// Renews the lease. Returns whether the response has not ended and was not deleted.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease may be renewed or not, and later writes find that out.
    pub(in super::super) async fn renew(&self) -> Result<bool, StoreError> {
        let mut state = self.state.lock().await;
        for _ in 0..ATTEMPTS {
            if state.end.is_some() {
                return Ok(false);
            }
            let mut change = ThreadChange::default();
            change.keep = state.thread.history.len();
            change.slots = vec![self.owned.lease()];
            let version = state.thread.version;
            match self.owned.append(&self.id, version, change).await {
                Ok(version) => {
                    state.thread.version = version;
                    return Ok(true);
                }
                Err(StoreError::Moved { .. } | StoreError::NotFound) => {
                    self.reload(&mut state).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads a response that was changed: by an earlier write of this process, whose result was lost, or by a
    /// request that has ended it.
    async fn reload(&self, state: &mut LiveState) -> Result<(), StoreError> {
        match self.owned.load(self.id.clone()).await? {
            None => state.end = Some(LiveEnd::Deleted),
            Some(found) if found.lease.is_none() => {
                state.end = Some(LiveEnd::Replaced(found.record.response));
            }
            Some(found) => state.thread = found.thread,
        }
        Ok(())
    }

    /// Stores the end of the response, unless it has ended. Repeats a write that fails until the future is dropped.
    pub(super) async fn end(
        &self,
        history: &Transcript,
        mut record: Record,
    ) -> Result<Written, StoreError> {
        let mut state = self.state.lock().await;
        let mut wait = Duration::from_millis(100);
        loop {
            match state.end.clone() {
                Some(LiveEnd::Replaced(response)) => return Ok(Written::Replaced(response)),
                Some(LiveEnd::Deleted) => return Ok(Written::Deleted),
                None => {}
            }
            let mut change = state.thread.change_to(history, &record.slots()?);
            // A repeated write whose result was lost is not applied twice.
            change.id = Some(Str::concat([self.id.as_str(), "/end"]));
            let version = state.thread.version;
            let error = match self.owned.append(&self.id, version, change).await {
                Ok(_) => return Ok(Written::Stored),
                Err(StoreError::Moved { .. } | StoreError::NotFound) => {
                    match self.reload(&mut state).await {
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
                Err(StoreError::Unwritable(error)) if !record.is_failed => {
                    tracing::error!(response = %self.id, %error, "a response is too large for its store");
                    record.response = std::mem::take(&mut state.response);
                    record.end(EndedBy::Unwritable);
                    continue;
                }
                Err(error @ StoreError::Unwritable(_)) => return Err(error),
                Err(error) => error,
            };
            tracing::warn!(response = %self.id, %error, "the end of a response was not stored yet");
            self.owned.environment.clock().sleep(wait).await;
            wait = wait.saturating_mul(2);
        }
    }
}
