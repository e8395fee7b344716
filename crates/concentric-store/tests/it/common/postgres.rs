//! The server that `.ci/postgres` starts.

use concentric_store::{Options, PostgresStore};
use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};
use tokio_postgres::{Client, NoTls};

/// The URL of a server in the environment. Prints why a test is skipped if there is none.
pub(crate) fn url(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok();
    if url.is_none() {
        println!("skipped without {variable}: `.ci/postgres` sets it");
    }
    url
}

/// The URL of the server.
pub(crate) fn direct() -> Option<String> {
    url("CONCENTRIC_POSTGRES")
}

/// The name of a schema that no other test has.
pub(crate) fn schema() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test_{}_{n}", std::process::id())
}

/// A new schema of the server, and its URL.
pub(crate) async fn migrated() -> Option<(String, String)> {
    let (url, schema) = (direct()?, schema());
    PostgresStore::migrate(&url, &schema).await.unwrap();
    Some((url, schema))
}

/// A schema without rows, which another test gets afterwards: the migration takes longer than most tests.
pub(crate) struct Emptied(String);

static UNUSED: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Emptied {
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// The schema with this name, also for other processes.
    pub(crate) async fn named(name: &str) -> Self {
        let migrated = PostgresStore::migrate(&direct().unwrap(), name).await;
        migrated.unwrap();
        Self(name.to_owned())
    }

    pub(crate) async fn new() -> Option<(String, Self)> {
        let unused = UNUSED.lock().unwrap().pop();
        let Some(schema) = unused else {
            let (url, schema) = migrated().await?;
            return Some((url, Self(schema)));
        };
        let url = direct()?;
        let client = connect(&url).await;
        let delete = |table: &str| format!("DELETE FROM {schema}.{table};");
        let delete: String = TABLES.iter().map(|table| delete(table)).collect();
        client.batch_execute(&delete).await.unwrap();
        Some((url, Self(schema)))
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            UNUSED.lock().unwrap().push(std::mem::take(&mut self.0));
        }
    }
}

/// The tables of a schema, except that of its version.
pub(crate) const TABLES: [&str; 14] = [
    "runs",
    "leases",
    "questions",
    "threads",
    "slots",
    "turns",
    "logs",
    "effects",
    "once",
    "decisions",
    "memories",
    "cache",
    "deleted_runs",
    "limits",
];

/// A store in an empty schema.
pub(crate) async fn store(options: Options) -> Option<(PostgresStore, Emptied)> {
    let (url, schema) = Emptied::new().await?;
    let options = options.pool_size(4).schema(schema.0.as_str());
    let store = PostgresStore::open_with(&url, options).await.unwrap();
    Some((store, schema))
}

/// A connection of another program.
pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The first column of the first row, as a number.
pub(crate) async fn number(client: &Client, query: &str) -> i64 {
    let row = client.query_one(query, &[]).await.unwrap();
    row.get::<_, i64>(0)
}

/// Closes the connections of the application with this name, and returns their number.
pub(crate) async fn cut(application: &str) -> i64 {
    let client = connect(&direct().unwrap()).await;
    let cut = format!(
        "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE application_name = '{application}'"
    );
    number(&client, &cut).await
}
