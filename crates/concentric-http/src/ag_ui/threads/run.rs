//! The status of a run, and its cancellation.

use concentric_core::{
    ErrorKind, Finish, Outcome, RunId, ThreadId,
    store::{RunRecord, RunStatus, RunStore, RunSummary, StoreError, Tenant},
};
use serde_json::{Value, json};

use super::{
    super::stream::{Translator, stopped_as},
    respond::failed,
};
use crate::{
    refused::Refused,
    run::{Metadata, Translate, stopped},
};

/// The maximum number of a thread's unfinished runs that are listed.
const RUNS: usize = 1000;

/// The unfinished runs of a thread.
pub(super) async fn unfinished(
    store: &dyn RunStore,
    tenant: &Tenant,
    thread: &str,
) -> Result<Vec<RunSummary>, Refused> {
    let (tenant, thread) = (tenant.clone(), ThreadId::new(thread));
    let runs = store.list_by_thread(tenant, thread, None, RUNS).await;
    runs.map_err(|error| failed(&error))
}

/// The live run that the request `run` has started, or else the newest one.
pub(super) async fn find(
    store: &dyn RunStore,
    tenant: &Tenant,
    thread: &str,
    run: &str,
) -> Result<Option<RunSummary>, Refused> {
    let (thread, run) = (ThreadId::new(thread), RunId::new(run));
    match store.find_by_client_id(tenant.clone(), thread, run).await {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

pub(super) const fn status(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Running => "running",
        RunStatus::Abandoned => "abandoned",
        RunStatus::Quarantined => "quarantined",
        RunStatus::Suspended => "waiting",
        RunStatus::Ended => "ended",
    }
}

/// The outcome of a run that waits for replies, as in its terminal event; `None` if it does not wait any more.
pub(super) async fn waiting(
    store: &dyn RunStore,
    run: &RunSummary,
) -> Result<Option<Value>, Refused> {
    match store.get(run.key.clone()).await {
        Ok(record) if record.status == RunStatus::Suspended => Ok(Some(interrupts(record))),
        Ok(_) | Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

fn interrupts(record: RunRecord) -> Value {
    let RunRecord {
        key,
        client_id,
        state,
        ..
    } = record;
    let mut translator = Translator::of_stored(key.thread.as_str(), client_id.as_str());
    translator.finish(&Finish::waiting(state));
    let mut last = translator.last_event();
    match last.get_mut("outcome") {
        Some(outcome) => outcome.take(),
        None => Value::Null,
    }
}

/// Returns the outcome and the metadata, or the error, of a terminal event.
pub(super) fn end(event: &[u8]) -> Metadata {
    let mut event: Metadata = serde_json::from_slice(event).unwrap_or_default();
    let mut end = Metadata::new();
    if event.contains_key("outcome") {
        event.retain(|name, _| name == "outcome" || name == "metadata");
        end = event;
    } else if event.contains_key("code") {
        event.retain(|name, _| name == "code" || name == "message");
        end.insert("error".to_owned(), event.into());
    }
    end
}

/// Returns whether a run waited at this end.
pub(super) fn has_waited(end: &Metadata) -> bool {
    end.get("outcome")
        .is_some_and(|outcome| outcome["type"] == "interrupt")
}

/// Returns the end of a stored run, in the form of [`end`].
pub(super) fn stored_end(outcome: &Result<Outcome, ErrorKind>) -> Metadata {
    let error = match outcome {
        Err(kind) => Some(*kind),
        // No reply to it could be accepted, which is an error for the client.
        Ok(Outcome::Interrupted) => Some(ErrorKind::Configuration),
        Ok(_) => None,
    };
    let mut end = Metadata::new();
    if let Some(kind) = error {
        end.insert("error".to_owned(), json!({"code": kind.as_str()}));
    } else if let Ok(outcome) = outcome {
        let metadata = stopped(outcome);
        end.insert("outcome".to_owned(), json!({"type": stopped_as(outcome)}));
        if !metadata.is_empty() {
            end.insert("metadata".to_owned(), metadata.into());
        }
    }
    end
}

pub(super) fn ended() -> Refused {
    Refused::conflict("run_ended", "the run has ended")
}

/// Requests the cancellation of a stored run.
///
/// # Errors
///
/// The run can't be cancelled.
pub(super) async fn cancel(store: &dyn RunStore, run: RunSummary) -> Result<(), Refused> {
    if run.status == RunStatus::Suspended {
        let why = "the run waits for replies; reply with the status `cancelled`";
        return Err(Refused::conflict("run_waiting", why));
    }
    match store.cancel(run.key).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(ended()),
        Err(error) => Err(failed(&error)),
    }
}
