//! The list of tenants, which is in several hash slots, with a time that is not later than the end of any lease
//! of each tenant.

use super::{
    db::{Db, Repeat, SHARDS, shard},
    values::{Call, Of, Reply, int, keep, list, text},
};
use crate::columns::position;
use concentric_core::store::{StoreError, Tenant};
use redis::Value;

/// The number of tenants of each part of the list that are examined at once.
const DUE: i64 = 256;

/// A tenant that may have runs whose leases have ended, and the time of the list.
pub(super) struct Due {
    pub(super) tenant: Tenant,
    pub(super) since: i64,
}

fn tenant(value: &Value) -> Result<Tenant, StoreError> {
    Ok(Tenant(text(value)?.to_owned().into()))
}

/// The first error of the work for many tenants, which goes on with the others.
#[derive(Default)]
pub(super) struct Skipped(pub(super) Option<StoreError>);

impl Skipped {
    /// The value of a part of the work. Logs its error.
    pub(super) fn or_skip<T>(&mut self, done: Result<T, StoreError>) -> Option<T> {
        match done {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::warn!(%error, "some tenants are skipped");
                self.0.get_or_insert(error);
                None
            }
        }
    }
}

/// The tenants that may have runs whose leases have ended, the earliest first.
pub(super) async fn due(db: &Db, skipped: &mut Skipped) -> Vec<Due> {
    let mut all = Vec::new();
    for shard in 0..SHARDS {
        all.extend(skipped.or_skip(due_of(db, shard).await).unwrap_or_default());
    }
    all.sort_by_key(|due| due.since);
    all
}

async fn due_of(db: &Db, shard: u16) -> Result<Vec<Due>, StoreError> {
    let call = Call::new(Of::Shard(shard), "list_due").int(DUE);
    let reply = db.call(call, Repeat::Yes).await?;
    let mut all = Vec::new();
    for pair in list(reply.get(1)?)?.chunks(2) {
        if let [name, since] = pair {
            all.push(Due {
                tenant: tenant(name)?,
                since: int(since)?,
            });
        }
    }
    Ok(all)
}

/// Sets the time of a tenant to the end of its first lease.
pub(super) async fn set_first(db: &Db, tenant: &Tenant) -> Result<(), StoreError> {
    let first = first_lease(db, tenant).await?;
    set(db, tenant, text(first.get(1)?)?).await
}

async fn first_lease(db: &Db, tenant: &Tenant) -> Result<Reply, StoreError> {
    db.call(Call::of(tenant, "first_lease"), Repeat::Yes).await
}

/// Sets the time of a tenant to `first`, the end of its first lease.
async fn set(db: &Db, tenant: &Tenant, first: &str) -> Result<(), StoreError> {
    list_set(db, tenant, first).await?;
    // A run may have got an earlier lease in the meantime.
    let again = first_lease(db, tenant).await?;
    let again = text(again.get(1)?)?;
    let time = |text: &str| text.parse().unwrap_or(f64::INFINITY);
    if time(again) < time(first) {
        list_set(db, tenant, again).await?;
    }
    Ok(())
}

async fn list_set(db: &Db, tenant: &Tenant, deadline: &str) -> Result<(), StoreError> {
    let call = Call::new(Of::Shard(shard(tenant)), "list_set")
        .text(&tenant.0)
        .text(deadline);
    db.call(call, Repeat::Yes).await.map(drop)
}

/// Puts a tenant that cannot be examined behind the others, so that it does not hide them.
pub(super) async fn put_off(db: &Db, tenant: &Tenant) -> Result<(), StoreError> {
    let call = Call::new(Of::Shard(shard(tenant)), "list_put_off").text(&tenant.0);
    db.call(call, Repeat::Yes).await.map(drop)
}

/// Removes some expired entries of each kind of a tenant.
async fn purge(db: &Db, tenant: &Tenant, is_whole: bool) -> Result<Reply, StoreError> {
    let options = &db.options;
    let call = Call::of(tenant, "purge")
        .optional_int(keep(options.keep_waiting))
        .optional_int(keep(options.keep_ended))
        .optional_int(keep(options.keep_effects))
        .int(position(options.keep_used_keys))
        .flag(is_whole);
    db.call(call, Repeat::Yes).await
}

/// Removes some expired entries after another change, which has succeeded regardless.
pub(super) async fn purge_after(db: &Db, tenant: &Tenant) {
    if let Err(error) = purge(db, tenant, false).await {
        tracing::warn!(%error, "expired entries were not removed");
    }
}

/// Removes all expired entries, and repairs the list and a part of the indexes. Fails in the end if it has failed
/// for a tenant.
pub(super) async fn purge_all(db: &Db) -> Result<(), StoreError> {
    let mut skipped = Skipped::default();
    for shard in 0..SHARDS {
        let purged = purge_shard(db, shard, &mut skipped).await;
        skipped.or_skip(purged);
    }
    skipped.0.map_or(Ok(()), Err)
}

async fn purge_shard(db: &Db, shard: u16, skipped: &mut Skipped) -> Result<(), StoreError> {
    let mut cursor = String::from("0");
    loop {
        let call = Call::new(Of::Shard(shard), "list_scan").owned(cursor);
        let reply = db.call(call, Repeat::Yes).await?;
        for pair in list(reply.get(2)?)?.chunks(2) {
            let Some(name) = pair.first() else {
                continue;
            };
            let purged = purge_tenant(db, &tenant(name)?).await;
            skipped.or_skip(purged);
        }
        cursor = text(reply.get(1)?)?.to_owned();
        if cursor == "0" {
            return Ok(());
        }
    }
}

async fn purge_tenant(db: &Db, tenant: &Tenant) -> Result<(), StoreError> {
    let mut purged = purge(db, tenant, true).await?;
    while purged.is(1)? {
        purged = purge(db, tenant, true).await?;
    }
    set(db, tenant, text(purged.get(2)?)?).await
}

/// Deletes the entries of a tenant, and returns the number of conversations among them.
pub(super) async fn delete(db: &Db, tenant: &Tenant) -> Result<u64, StoreError> {
    let before = delete_all(db, tenant).await?;
    let call = Call::new(Of::Shard(shard(tenant)), "list_remove").text(&tenant.0);
    db.call(call, Repeat::Yes).await?;
    // A write in between did not put the tenant into the list again.
    Ok(before + delete_all(db, tenant).await?)
}

async fn delete_all(db: &Db, tenant: &Tenant) -> Result<u64, StoreError> {
    let mut all = 0;
    loop {
        let call = Call::of(tenant, "tenant_delete");
        let deleted = db.call(call, Repeat::No).await?;
        all += deleted.number(1)?;
        if !deleted.is(2)? {
            return Ok(all);
        }
    }
}
