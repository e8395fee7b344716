//! The status of a run, and its cancellation.

use concentric_core::{
    Finish, ThreadId,
    store::{RunRecord, RunStatus, RunStore, RunSummary, StoreError, Tenant},
};
use serde_json::Value;

use super::{
    super::{Metadata, reply::Refused, stream::Translator},
    respond::failed,
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

/// The newest unfinished run that the request `run` has started.
pub(super) async fn find(
    store: &dyn RunStore,
    tenant: &Tenant,
    thread: &str,
    run: &str,
) -> Result<Option<RunSummary>, Refused> {
    let runs = unfinished(store, tenant, thread).await?;
    let mut found = runs.into_iter().rev();
    // A run that is driven is newer than one that waits.
    Ok(found.find(|it| it.client_id.as_str() == run))
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

/// Adds the outcome or the error of a terminal event to the status of a run.
pub(super) fn end(event: &[u8], status: &mut Metadata) {
    let Ok(mut event) = serde_json::from_slice::<Metadata>(event) else {
        return;
    };
    if let Some(outcome) = event.remove("outcome") {
        status.insert("outcome".to_owned(), outcome);
        return;
    }
    event.retain(|name, _| name == "code" || name == "message");
    status.insert("error".to_owned(), event.into());
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
