//! The servers that `.ci/redis` starts.

use concentric_store::{Options, RedisStore};
use redis::{AsyncConnectionConfig, Client, Value, aio::MultiplexedConnection};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// The URL of a server in the environment. Prints why a test is skipped if there is none.
pub(crate) fn url(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok();
    if url.is_none() {
        println!("skipped without {variable}: `.ci/redis` sets it");
    }
    url
}

/// The URL of the server that is not in a cluster.
pub(crate) fn direct() -> Option<String> {
    url("CONCENTRIC_REDIS")
}

/// The name of a store that no other test has.
pub(crate) fn schema() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test_{}_{n}", std::process::id())
}

/// An empty store, and its name.
pub(crate) async fn store(options: Options) -> Option<(RedisStore, String)> {
    let (url, schema) = (direct()?, schema());
    let options = options.schema(schema.as_str());
    let store = RedisStore::open_with(&url, options).await.unwrap();
    Some((store, schema))
}

/// A connection of another program.
pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = Client::open(url).unwrap();
    let made = client.get_multiplexed_async_connection_with_config(&config);
    made.await.unwrap()
}

/// Held by tests that change the server which may lose writes.
pub(crate) static VOLATILE: Mutex<()> = Mutex::const_new(());

/// Executes a command.
pub(crate) async fn command(connection: &mut MultiplexedConnection, command: &[&str]) -> Value {
    let mut packed = redis::Cmd::new();
    packed.arg(command);
    packed.query_async(connection).await.unwrap()
}

pub(crate) fn text(value: Value) -> String {
    redis::from_redis_value(value).unwrap()
}

pub(crate) fn list(value: Value) -> Vec<String> {
    redis::from_redis_value(value).unwrap()
}

/// Closes the connections of a store, and returns their number.
pub(crate) async fn cut(url: &str, schema: &str) -> usize {
    let mut connection = connect(url).await;
    let clients = text(command(&mut connection, &["CLIENT", "LIST"]).await);
    let name = format!("name=concentric:{schema}");
    let mut cut = 0;
    for client in clients.lines() {
        let mut fields = client.split(' ');
        if fields.clone().any(|field| field == name)
            && let Some(id) = fields.find_map(|field| field.strip_prefix("id="))
        {
            let kill = command(&mut connection, &["CLIENT", "KILL", "ID", id]).await;
            cut += usize::from(kill == Value::Int(1));
        }
    }
    cut
}
