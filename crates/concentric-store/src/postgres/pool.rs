//! Connections, and the execution of statements.

use super::{
    tls::{Connector, connector, is_untrusted},
    values::Param,
};
use crate::{Fault, Options, options::check_schema};
use concentric_core::{context::Environment, store::StoreError};
use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use std::{fmt, time::Duration};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Config, Error, Row, error::SqlState};

/// How often a statement is repeated, not counting attempts that found no server.
const REPEATS: u32 = 3;

/// How long a connection may take to be made, unless the URL has `connect_timeout`.
const CONNECT: Duration = Duration::from_secs(10);

/// How long the cancellation of a statement may take.
const CANCEL: Duration = Duration::from_secs(1);

/// The parts of a store that its statements need.
pub(super) struct Db {
    pool: Pool,
    // For renewals only, so that they do not wait for other statements.
    renewals: Pool,
    tls: Connector,
    // Quoted.
    schema: String,
    pub(super) options: Options,
}

/// Whether a statement may be repeated after the connection was lost, when it may have been applied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Yes: it recognises that it has been applied, or has the same result again.
    Yes,
    /// No: its result would be another one.
    No,
}

/// The failure of one attempt to execute a statement.
enum Failure {
    /// Nothing was sent.
    NotSent(Fault),
    Statement(Error),
    TimedOut,
}

/// Reads the URL of a database. Errors do not contain it, since it may contain a password.
pub(super) fn config(url: &str, options: &Options) -> Result<(Config, Connector), Fault> {
    let malformed = |_| database("the URL of the database is malformed");
    let mut config: Config = url.parse().map_err(malformed)?;
    let tls = connector(&mut config, options)?;
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT);
    }
    if config.get_application_name().is_none() {
        config.application_name("concentric");
    }
    Ok((config, tls))
}

pub(super) fn database(why: &'static str) -> Fault {
    Fault::Database(why.into())
}

/// Quotes the name of a schema, which must be a plain one.
pub(super) fn quoted(schema: &str) -> Result<String, Fault> {
    check_schema(schema)?;
    Ok(format!("\"{schema}\""))
}

impl Db {
    pub(super) fn new(url: &str, options: Options) -> Result<Self, Fault> {
        let (config, tls) = config(url, &options)?;
        let schema = quoted(&options.schema)?;
        let pool = |size| pool(&config, &tls, &options, size);
        Ok(Self {
            pool: pool(options.pool_size.max(1))?,
            renewals: pool(1)?,
            tls,
            schema,
            options,
        })
    }

    /// The quoted name of the schema.
    pub(super) fn schema(&self) -> &str {
        &self.schema
    }

    /// Calls a function of the schema.
    pub(super) async fn call(
        &self,
        function: &str,
        params: &[Param<'_>],
        repeat: Repeat,
    ) -> Result<Vec<Row>, StoreError> {
        let call = self.statement(function, params.len());
        self.execute(&self.pool, &call, params, repeat).await
    }

    /// Calls a function that returns one row.
    pub(super) async fn call_one(
        &self,
        function: &str,
        params: &[Param<'_>],
        repeat: Repeat,
    ) -> Result<Row, StoreError> {
        let rows = self.call(function, params, repeat).await?;
        let row = rows.into_iter().next();
        row.ok_or_else(|| database("a function of the schema returned no row").into())
    }

    /// Calls a function that renews leases.
    pub(super) async fn renew(
        &self,
        function: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let call = self.statement(function, params.len());
        self.execute(&self.renewals, &call, params, Repeat::Yes)
            .await
    }

    /// Executes a statement that reads.
    pub(super) async fn query(
        &self,
        statement: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.execute(&self.pool, statement, params, Repeat::Yes)
            .await
    }

    /// The statement that calls a function. It contains no values but the name of the schema.
    fn statement(&self, function: &str, params: usize) -> String {
        let places: Vec<_> = (1..=params).map(|n| format!("${n}")).collect();
        let (schema, places) = (&self.schema, places.join(", "));
        format!("SELECT * FROM {schema}.{function}({places})")
    }

    async fn execute(
        &self,
        pool: &Pool,
        statement: &str,
        params: &[Param<'_>],
        repeat: Repeat,
    ) -> Result<Vec<Row>, StoreError> {
        let began = Instant::now();
        for repeats in 0.. {
            let failure = match self.attempt(pool, statement, params).await {
                Ok(rows) => return Ok(rows),
                Err(failure) => failure,
            };
            let pause = pause(repeats);
            let ends = began.elapsed().saturating_add(pause) > self.options.pool_wait;
            let was_last = repeats >= REPEATS && !failure.is_of_connection();
            if was_last || ends || !failure.may_repeat(repeat) {
                return Err(failure.into());
            }
            tracing::debug!(error = %failure, "a statement is repeated");
            sleep(pause).await;
        }
        Err(Fault::Closed.into())
    }

    async fn attempt(
        &self,
        pool: &Pool,
        statement: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Failure> {
        let client = pool.get().await.map_err(not_sent)?;
        let limit = self.options.statement_timeout;
        let cancel = client.cancel_token();
        match timeout(limit, self.run(&client, statement, params)).await {
            Ok(done) => done.map_err(Failure::of_statement),
            Err(_) => {
                // The connection is in use until the server has noticed.
                drop(Object::take(client));
                let _ = timeout(CANCEL, cancel.cancel_query(Connector::clone(&self.tls))).await;
                Err(Failure::TimedOut)
            }
        }
    }

    async fn run(
        &self,
        client: &Object,
        statement: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Error> {
        if !self.options.prepared {
            return client.query_typed(statement, params).await;
        }
        let types: Vec<_> = params.iter().map(|(_, of)| of.clone()).collect();
        let values: Vec<_> = params.iter().map(|(value, _)| *value).collect();
        let prepared = client.prepare_typed_cached(statement, &types).await?;
        client.query(&prepared, &values).await
    }
}

fn pool(config: &Config, tls: &Connector, options: &Options, size: usize) -> Result<Pool, Fault> {
    let manager = ManagerConfig {
        // Without a round trip: a statement on a lost connection is repeated.
        recycling_method: RecyclingMethod::Fast,
    };
    let wait = Some(options.pool_wait);
    let timeouts = Timeouts {
        wait,
        create: wait,
        recycle: wait,
    };
    let pool = Pool::builder(Manager::from_config(
        config.clone(),
        Connector::clone(tls),
        manager,
    ))
    .max_size(size)
    .timeouts(timeouts)
    .runtime(Runtime::Tokio1)
    .build();
    pool.map_err(|error| Fault::Database(Box::new(error)))
}

/// The pause before a repetition, random so that the losers of a conflict do not meet again.
fn pause(repeats: u32) -> Duration {
    const FIRST: u64 = 20;
    let longest = FIRST << (3 * repeats.min(REPEATS - 1));
    let random = Environment::system().random().next_u64();
    Duration::from_millis(longest / 2 + random % (longest / 2))
}

fn not_sent(error: PoolError) -> Failure {
    Failure::NotSent(match error {
        PoolError::Timeout(deadpool_postgres::TimeoutType::Wait) => Fault::Busy,
        PoolError::Timeout(_) => database("the connection to the database timed out"),
        PoolError::Backend(error) => connection(error),
        error => Fault::Database(Box::new(error)),
    })
}

/// The failure to make a connection.
pub(super) fn connection(error: Error) -> Fault {
    match is_untrusted(&error) {
        true => Fault::Untrusted(Box::new(error)),
        false => Fault::Database(Box::new(error)),
    }
}

/// The message of pgbouncer if a server ends a connection before the statement of a client is sent to it.
const NOT_FORWARDED: &str = "invalid server parameter";

fn is_not_forwarded(error: &Error) -> bool {
    let error = error.as_db_error();
    error.is_some_and(|error| error.message() == NOT_FORWARDED)
}

impl Failure {
    fn of_statement(error: Error) -> Self {
        match is_not_forwarded(&error) {
            true => Self::NotSent(Fault::Database(Box::new(error))),
            false => Self::Statement(error),
        }
    }

    /// Returns whether the server was not reached, or is starting. Attempts to connect have no effects, so their
    /// number is limited by the time only.
    fn is_of_connection(&self) -> bool {
        let Self::NotSent(Fault::Database(error)) = self else {
            return false;
        };
        error.downcast_ref::<Error>().is_some_and(|error| {
            error.code() == Some(&SqlState::CANNOT_CONNECT_NOW)
                || is_lost(error)
                || is_not_forwarded(error)
        })
    }

    fn may_repeat(&self, repeat: Repeat) -> bool {
        match self {
            // The wait for a connection was long enough.
            Self::NotSent(Fault::Busy | Fault::Untrusted(_)) | Self::TimedOut => false,
            Self::NotSent(_) => true,
            Self::Statement(error) => match error.code() {
                Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED) => {
                    true
                }
                // The server ends the connection, or is starting.
                Some(code) => {
                    repeat == Repeat::Yes
                        && (code.code().starts_with("08") || code.code().starts_with("57P"))
                }
                None => repeat == Repeat::Yes && is_lost(error),
            },
        }
    }
}

/// Returns whether the connection was lost.
fn is_lost(error: &Error) -> bool {
    let mut cause = std::error::Error::source(error);
    let mut is_io = false;
    while let Some(error) = cause {
        is_io |= error.is::<std::io::Error>();
        cause = error.source();
    }
    error.is_closed() || is_io
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(fault) => fault.fmt(f),
            Self::Statement(error) => error.fmt(f),
            Self::TimedOut => f.write_str("timed out"),
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::NotSent(fault) => return fault.into(),
            Failure::TimedOut => {
                return database("the statement timed out and was cancelled").into();
            }
            Failure::Statement(error) => error,
        };
        let message = error.as_db_error().map_or("", |error| error.message());
        match error.code() {
            Some(&SqlState::UNIQUE_VIOLATION) => Self::Exists,
            Some(&SqlState::DATA_CORRUPTED) => Fault::corrupt("a log of turns", message).into(),
            // A name contains the character 0, which PostgreSQL cannot store, or is too long for an index.
            Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE | &SqlState::PROGRAM_LIMIT_EXCEEDED) => {
                Self::unwritable(error)
            }
            _ => Fault::Database(Box::new(error)).into(),
        }
    }
}
