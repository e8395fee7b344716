use super::{StoreFuture, Tenant, shared};
use concentric_proto::{RunId, Str, ThreadId};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

shared! {
    /// Ensures that a key is used at most once by all processes that share the store.
    pub trait Once: Send + Sync + 'static {
        /// Returns whether `key` is used for the first time. The key may be forgotten after the time
        /// `keep`, by the clock of the store.
        fn once(&self, tenant: Tenant, key: Str, keep: Duration) -> StoreFuture<bool>;
    }
}

shared! {
    /// Stores decisions that apply to more than one call.
    pub trait Decisions: Send + Sync + 'static {
        /// Stores a decision, replacing an earlier one for the same calls.
        fn remember(&self, decision: StoredDecision) -> StoreFuture<()>;

        /// Returns the decisions about calls of `tool` for this `run`, for `thread`, for `session`, and
        /// for all threads, newest first.
        fn recall(
            &self,
            tenant: Tenant,
            tool: Str,
            run: RunId,
            thread: Option<ThreadId>,
            session: Option<ThreadId>,
        ) -> StoreFuture<Vec<StoredDecision>>;

        /// Returns all stored decisions of a tenant, newest first.
        fn list(&self, tenant: Tenant) -> StoreFuture<Vec<StoredDecision>>;

        /// Deletes a decision, and returns whether it existed.
        fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool>;
    }
}

/// A decision that applies to more than one call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredDecision {
    /// The id of the decision; equal for the same calls and span.
    pub id: Str,
    /// The owner of the decision.
    pub tenant: Tenant,
    /// The name of the tool.
    pub tool: Str,
    /// The digest of the tool's definition: a changed tool counts as another tool.
    pub definition: Str,
    /// The digest of the arguments it applies to; `None` for any.
    pub arguments: Option<Str>,
    /// How long the decision applies.
    pub span: StoredScope,
    /// Whether the calls may run.
    pub allow: bool,
    /// The reason for a denial.
    pub reason: Option<Str>,
    /// The time of the decision.
    pub at: SystemTime,
}

/// How long a decision applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoredScope {
    /// In this run, of this conversation if it has one.
    Run {
        /// The conversation; run ids may be chosen by clients and repeat across conversations.
        thread: Option<ThreadId>,
        /// The run.
        run: RunId,
    },
    /// In this conversation.
    Thread(ThreadId),
    /// In the session that began with this conversation ([`Context::session_id`](crate::Context::session_id)).
    Session(ThreadId),
    /// Always, for the tenant.
    Always,
}

impl StoredDecision {
    /// Creates a decision.
    #[allow(
        clippy::too_many_arguments,
        reason = "a record with independent fields"
    )]
    pub fn new(
        tenant: Tenant,
        tool: Str,
        definition: Str,
        arguments: Option<Str>,
        span: StoredScope,
        allow: bool,
        reason: Option<Str>,
        at: SystemTime,
    ) -> Self {
        let kind = match &span {
            // Quoted, so that ids are unique.
            StoredScope::Run { thread, run } => match thread {
                Some(thread) => format!("run:{:?}/{run}", thread.as_str()),
                None => format!("run:/{run}"),
            },
            StoredScope::Thread(thread) => format!("thread:{thread}"),
            StoredScope::Session(thread) => format!("session:{thread}"),
            StoredScope::Always => "always".to_owned(),
        };
        let of = arguments.as_ref().map_or("*", Str::as_str);
        Self {
            id: format!("{tool}/{definition}/{of}/{kind}").into(),
            tenant,
            tool,
            definition,
            arguments,
            span,
            allow,
            reason,
            at,
        }
    }
}
