//! The task that renews leases, all queued renewals in one statement.

use super::{
    column,
    pool::Db,
    unknown,
    values::{now, params, span},
};
use crate::{Fault, rules::renewed};
use concentric_core::store::{Renewed, RunKey, StoreError};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// The maximum number of leases renewed in one statement, and of renewals that wait for it.
const RENEWALS: usize = 256;

/// The pause before a lease that another transaction was changing is renewed.
const PAUSE: Duration = Duration::from_millis(10);

/// A request to renew a lease.
pub(super) struct Renewal {
    pub(super) key: RunKey,
    pub(super) fence: i64,
    pub(super) lease: Duration,
    pub(super) reply: oneshot::Sender<Result<Renewed, StoreError>>,
}

/// Starts the task, which ends after all senders are dropped.
pub(super) fn start(db: Arc<Db>) -> mpsc::Sender<Renewal> {
    let (renewals, mut queue) = mpsc::channel::<Renewal>(RENEWALS);
    tokio::spawn(async move {
        // Those whose lease is being changed, for example by a slow write of the run. The others do not wait.
        let mut locked = Vec::new();
        loop {
            let mut batch = Vec::new();
            let received = queue.recv_many(&mut batch, RENEWALS);
            let received = match locked.is_empty() {
                true => Ok(received.await),
                false => timeout(PAUSE, received).await,
            };
            // Nobody waits for the rest.
            if received == Ok(0) {
                return;
            }
            batch.append(&mut locked);
            batch.retain(|renewal| !renewal.reply.is_closed());
            if !batch.is_empty() {
                locked = renew(&db, batch).await;
            }
        }
    });
    renewals
}

/// Renews leases, and returns those that are being changed.
async fn renew(db: &Db, batch: Vec<Renewal>) -> Vec<Renewal> {
    let mut locked = Vec::new();
    match renew_all(db, &batch).await {
        Ok(renewed) => {
            for (renewal, renewed) in batch.into_iter().zip(renewed) {
                match renewed {
                    Some(renewed) => drop(renewal.reply.send(renewed)),
                    None => locked.push(renewal),
                }
            }
        }
        Err(error) => {
            for renewal in batch {
                let _ = renewal.reply.send(Err(error.clone()));
            }
        }
    }
    locked
}

/// The result of each renewal; `None` if the lease is being changed.
async fn renew_all(
    db: &Db,
    batch: &[Renewal],
) -> Result<Vec<Option<Result<Renewed, StoreError>>>, StoreError> {
    let tenants: Vec<_> = batch.iter().map(|it| it.key.tenant.0.as_str()).collect();
    let threads: Vec<_> = batch.iter().map(|it| it.key.thread.as_str()).collect();
    let runs: Vec<_> = batch.iter().map(|it| it.key.run.as_str()).collect();
    let fences: Vec<_> = batch.iter().map(|it| it.fence).collect();
    let leases: Vec<_> = batch.iter().map(|it| span(it.lease)).collect();
    let now = now(&db.options);
    let params = params![
        TEXT_ARRAY: tenants,
        TEXT_ARRAY: threads,
        TEXT_ARRAY: runs,
        INT8_ARRAY: fences,
        INT8_ARRAY: leases,
        INT8: now,
    ];
    let rows = db.renew("run_renew", params).await?;
    if rows.len() != batch.len() {
        return Err(Fault::corrupt("the leases", "a renewal has no result").into());
    }
    let results = rows.iter().map(|row| {
        Ok(Some(match column(row, 0)? {
            "held" => Ok(renewed(false)),
            "cancel" => Ok(renewed(true)),
            "locked" => return Ok(None),
            "not_found" => Err(StoreError::NotFound),
            "stale" => Err(StoreError::Stale),
            "ended" => Err(StoreError::Ended),
            other => Err(unknown(other)),
        }))
    });
    results.collect()
}
