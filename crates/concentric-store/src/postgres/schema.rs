//! The version of a schema, and its migrations.

use super::{
    column,
    pool::{Db, config, connection, database, quoted},
    values::params,
};
use crate::{Fault, Options};
use concentric_core::store::StoreError;
use tokio_postgres::{Client, GenericClient};

/// The migrations from version `n` to version `n + 1`, in order.
const MIGRATIONS: &[&str] = &[
    include_str!("schema1.sql"),
    include_str!("schema2.sql"),
    include_str!("schema3.sql"),
    include_str!("schema4.sql"),
];

/// The newest schema version.
const VERSION: i64 = MIGRATIONS.len() as i64;

/// "CCTR": the lock of migrations, together with the hash of the schema's name.
const LOCK: i32 = 0x4343_5452;

/// The number of tables in a schema, and whether one of them is that of its version.
const TABLES: &str = "SELECT count(*), coalesce(bool_or(c.relname = 'meta' AND EXISTS (
        SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'application'
    )), false)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')";

/// The version of a schema, and the oldest one whose release may use it.
struct Found {
    version: i64,
    oldest: i64,
}

/// What [`TABLES`] found.
fn has_version(tables: i64, is_marked: bool) -> Result<bool, Fault> {
    match (tables, is_marked) {
        (_, true) => Ok(true),
        (0, _) => Ok(false),
        _ => Err(Fault::Foreign),
    }
}

fn read_version(schema: &str) -> String {
    format!("SELECT application, version, oldest FROM {schema}.meta")
}

impl Found {
    const NONE: Self = Self {
        version: 0,
        oldest: 0,
    };

    fn new(application: &str, version: i32, oldest: i32) -> Result<Self, Fault> {
        match application {
            "concentric" => Ok(Self {
                version: version.into(),
                oldest: oldest.into(),
            }),
            _ => Err(Fault::Foreign),
        }
    }

    fn check_newer(&self) -> Result<(), Fault> {
        match self.oldest > VERSION {
            true => Err(Fault::Newer {
                found: self.version,
                known: VERSION,
            }),
            false => Ok(()),
        }
    }
}

/// Checks that this release can use the schema.
pub(super) async fn check(db: &Db) -> Result<(), Fault> {
    let found = find(db).await.map_err(fault)??;
    found.check_newer()?;
    match found.version < VERSION {
        true => Err(Fault::Outdated {
            found: found.version,
            needed: VERSION,
        }),
        false => Ok(()),
    }
}

async fn find(db: &Db) -> Result<Result<Found, Fault>, StoreError> {
    let tables = db
        .query(TABLES, params![TEXT: db.options.schema.as_str()])
        .await?;
    let Some(tables) = tables.first() else {
        return Ok(Ok(Found::NONE));
    };
    match has_version(column(tables, 0)?, column(tables, 1)?) {
        Ok(true) => {}
        Ok(false) => return Ok(Ok(Found::NONE)),
        Err(fault) => return Ok(Err(fault)),
    }
    let rows = db.query(&read_version(db.schema()), &[]).await?;
    let Some(row) = rows.first() else {
        return Ok(Err(Fault::Foreign));
    };
    let application: String = column(row, 0)?;
    Ok(Found::new(&application, column(row, 1)?, column(row, 2)?))
}

/// The fault of an error, which is also that of an operation on a store.
fn fault(error: StoreError) -> Fault {
    match error {
        StoreError::Failed(error) => match error.downcast_ref() {
            Some(Fault::Busy) => Fault::Busy,
            Some(Fault::Untrusted(_)) => Fault::Untrusted(Box::new(StoreError::Failed(error))),
            _ => Fault::Database(Box::new(StoreError::Failed(error))),
        },
        error => Fault::Database(Box::new(error)),
    }
}

pub(super) async fn migrate(url: &str, options: &Options) -> Result<(), Fault> {
    let (config, tls) = config(url, options)?;
    let schema = quoted(&options.schema)?;
    let (mut client, io) = config.connect(tls).await.map_err(connection)?;
    // The task ends when the client is dropped.
    let io = tokio::spawn(io);
    let migrated = migrate_in(&mut client, &schema, &options.schema).await;
    drop(client);
    let _ = io.await;
    migrated
}

/// Migrates a schema with this name, whose quoted form is `schema`.
async fn migrate_in(client: &mut Client, schema: &str, name: &str) -> Result<(), Fault> {
    loop {
        let tx = client.transaction().await.map_err(failed)?;
        tx.query_typed(
            "SELECT pg_advisory_xact_lock($1, hashtext($2))",
            params![INT4: LOCK, TEXT: name],
        )
        .await
        .map_err(failed)?;
        let found = find_in(&tx, schema, name).await?;
        found.check_newer()?;
        let done = usize::try_from(found.version).unwrap_or(usize::MAX);
        let Some(step) = MIGRATIONS.get(done) else {
            return Ok(());
        };
        // `IF NOT EXISTS` requires the right to create schemas even if it exists.
        let exists = "SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1";
        let exists = tx.query_typed(exists, params![TEXT: name]).await;
        if exists.map_err(failed)?.is_empty() {
            let create = format!("CREATE SCHEMA {schema}");
            tx.batch_execute(&create).await.map_err(failed)?;
        }
        // Temporary tables come last, so that they cannot replace those of the schema. `SET LOCAL`
        // is a setting of this transaction only; the functions keep it.
        let set_up = format!("SET LOCAL search_path = {schema}, pg_temp");
        tx.batch_execute(&set_up).await.map_err(failed)?;
        tx.batch_execute(step).await.map_err(failed)?;
        tx.batch_execute("UPDATE meta SET version = version + 1")
            .await
            .map_err(failed)?;
        tx.commit().await.map_err(failed)?;
    }
}

async fn find_in(tx: &impl GenericClient, schema: &str, name: &str) -> Result<Found, Fault> {
    let tables = tx.query_typed(TABLES, params![TEXT: name]).await;
    let tables = tables.map_err(failed)?;
    let Some(tables) = tables.first() else {
        return Ok(Found::NONE);
    };
    let (count, is_marked) = (tables.try_get(0), tables.try_get(1));
    if !has_version(count.map_err(failed)?, is_marked.map_err(failed)?)? {
        return Ok(Found::NONE);
    }
    let rows = tx.query_typed(&read_version(schema), &[]).await;
    let rows = rows.map_err(failed)?;
    let Some(row) = rows.first() else {
        return Err(Fault::Foreign);
    };
    let (version, oldest) = (row.try_get(1), row.try_get(2));
    let application: String = row.try_get(0).map_err(failed)?;
    Found::new(
        &application,
        version.map_err(failed)?,
        oldest.map_err(failed)?,
    )
}

fn failed(error: tokio_postgres::Error) -> Fault {
    match error.is_closed() {
        true => database("the connection to the database was lost"),
        false => Fault::Database(Box::new(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest as _, Sha256};

    /// Databases were migrated with it, so what it lacks belongs into the next one.
    #[test]
    fn the_first_migration_does_not_change() {
        let sum = Sha256::digest(MIGRATIONS.first().copied().unwrap_or_default());
        let hex = sum
            .iter()
            .fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        assert_eq!(
            hex,
            "9a45abd6857cc3d12ee1f3d1034edd009ea453d174d80bf1d9112f521815cb98"
        );
    }
}
