//! Traits for persistent storage: of runs, conversations, memories, caches, effects of tools, decisions, the events of
//! runs, and the use of quotas and budgets.
//!
//! Implementations are trusted: a run is resumed exactly as a [`RunStore`] returns it.
//! `concentric-store` implements the traits over SQLite, PostgreSQL and Redis, and in memory for tests.
//!
//! # Tenants
//!
//! Thread and run ids may come from a client. To keep clients from accessing each other's runs, the
//! host authenticates the caller and puts a [`Tenant`] into the request's
//! [extensions](crate::Context::extensions).

mod amounts;
mod budget;
mod cache;
mod decision;
mod events;
mod ledger;
mod memory;
mod permits;
mod quota;
mod run;
mod run_context;
mod thread;

pub use self::{
    amounts::{Amounts, Dimension, Limits, OVER_BUDGET, OverBudget},
    budget::{BudgetState, BudgetStore, BudgetWindow, SharedBudget},
    cache::{CacheEntry, CacheKey, CacheStore},
    decision::{Decisions, Once, StoredDecision, StoredScope},
    events::{EventBatch, EventKey, EventPage, EventStore},
    ledger::{EffectKey, Intent, Ledger, LedgerEntry},
    memory::{Memories, Memory},
    permits::PermitState,
    quota::{Quota, QuotaChange, QuotaState, QuotaStore, QuotaTaken, QuotaWant},
    run::{LEASE, MAX_TAKEOVERS, Renewed, RunRecord, RunStatus, RunStore, RunSummary, waiting},
    run_context::{OpenInterrupts, Regenerate, Resumable},
    thread::{StoredThread, SuspendedTurn, ThreadChange, ThreadStore, ThreadSummary},
};
pub use crate::{
    checkpoint::Checkpoint,
    run_key::{RunClaim, RunKey, Tenant},
};
pub use concentric_proto::run_state::{RunChange, RunHead};

use concentric_proto::{Error, ErrorKind};
use std::{error::Error as StdError, fmt, future::Future, pin::Pin, sync::Arc};
use tower::BoxError;

/// The future of a store operation. If it is dropped before it resolves, the operation is executed
/// completely or not at all.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// The error of a store operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The run does not exist.
    NotFound,
    /// The store already has a run with this key.
    Exists,
    /// A run with the same client run id in the same conversation is live.
    Live,
    /// The limit of waiting runs is reached.
    TooManyWaiting {
        /// The limit.
        limit: usize,
        /// Whether this is the limit of the tenant, rather than of the conversation.
        of_tenant: bool,
    },
    /// The ledger has an effect with this key for another tool or with other arguments.
    Mismatch,
    /// Another process has resumed the run.
    Taken,
    /// The run has ended.
    Ended,
    /// There is a newer claim of the run.
    Stale,
    /// The run is [quarantined](RunStatus::Quarantined).
    Quarantined,
    /// The stored conversation has another version.
    Moved {
        /// The version that the change is based on.
        expected: u64,
        /// The stored version; 0 if the conversation does not exist.
        found: u64,
    },
    /// The value can't be stored so that it can be read again, for example because it is too large.
    /// A retry fails with the same error.
    Unwritable(Arc<dyn StdError + Send + Sync>),
    /// The store failed.
    Failed(Arc<dyn StdError + Send + Sync>),
}

impl StoreError {
    /// Creates an [`Unwritable`](Self::Unwritable) error.
    pub fn unwritable(error: impl Into<BoxError>) -> Self {
        Self::Unwritable(Arc::from(error.into()))
    }

    /// Creates a [`Failed`](Self::Failed) error.
    pub fn failed(error: impl Into<BoxError>) -> Self {
        Self::Failed(Arc::from(error.into()))
    }

    /// Returns a machine-readable error code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotFound => "run_not_found",
            Self::Exists => "run_exists",
            Self::Live => "run_live",
            Self::TooManyWaiting { .. } => "too_many_waiting",
            Self::Mismatch => "effect_mismatch",
            Self::Taken => "already_resumed",
            Self::Ended => "run_ended",
            Self::Stale => "stale_claim",
            Self::Quarantined => "run_quarantined",
            Self::Moved { .. } => "thread_moved",
            Self::Unwritable(_) => "unwritable",
            Self::Failed(_) => "store_failed",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "the run to resume does not exist",
            Self::Exists => "the store already has a run with this key",
            Self::Live => {
                "a run with this run id is still running in this conversation; wait for its end, or send \
                 another run id"
            }
            Self::TooManyWaiting { limit, of_tenant } => {
                let of = if *of_tenant { "tenant" } else { "conversation" };
                return write!(
                    f,
                    "{limit} runs of this {of} wait for replies, which is the limit; reply to some of \
                     them, or cancel them"
                );
            }
            Self::Mismatch => {
                "the ledger has an effect with this key for another tool or with other arguments"
            }
            Self::Taken => "another process has already resumed the run",
            Self::Ended => "the run is over",
            Self::Stale => "another process has claimed the run",
            Self::Quarantined => {
                "each process that resumed the run has died; it is not resumed until it is released"
            }
            Self::Moved { expected, found } => {
                return write!(
                    f,
                    "another session has changed the conversation, which has version {found} instead of \
                     {expected}; open it again"
                );
            }
            Self::Unwritable(_) => "the value can't be stored",
            Self::Failed(_) => "the store failed",
        })
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Unwritable(error) | Self::Failed(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let kind = match &error {
            StoreError::NotFound => ErrorKind::NotFound,
            StoreError::Unwritable(_) => ErrorKind::TooLarge,
            StoreError::Failed(_) => ErrorKind::Server,
            _ => ErrorKind::Conflict,
        };
        Self::new(kind, error.to_string())
            .with_code(error.code())
            .with_source(error)
    }
}

/// Defines a trait, and implements it for `Arc`s of its implementations.
macro_rules! shared {
    (
        $(#[$about:meta])*
        pub trait $store:ident: Send + Sync + 'static {
            $(
                $(#[$described:meta])*
                fn $method:ident(&self $(, $argument:ident: $of:ty)* $(,)?) -> $returned:ty;
            )*
        }
    ) => {
        $(#[$about])*
        pub trait $store: Send + Sync + 'static {
            $(
                $(#[$described])*
                fn $method(&self $(, $argument: $of)*) -> $returned;
            )*
        }

        impl<T> $store for std::sync::Arc<T>
        where
            T: $store + ?Sized,
        {
            $(
                fn $method(&self $(, $argument: $of)*) -> $returned {
                    (**self).$method($($argument),*)
                }
            )*
        }
    };
}

use shared;
