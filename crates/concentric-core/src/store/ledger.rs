use super::{RunClaim, StoreFuture, Tenant, shared};
use crate::context::Context;
use concentric_proto::{Str, ToolOutcome};
use serde::{Deserialize, Serialize};

shared! {
    /// Records the start and the outcome of tool effects, so that a crash in between is detected.
    pub trait Ledger: Send + Sync + 'static {
        /// Durably records that the call with `key` is about to take effect.
        ///
        /// # Errors
        ///
        /// [`StoreError::Stale`](super::StoreError::Stale) if there is a newer claim of the run. [`StoreError::Mismatch`](super::StoreError::Mismatch) if the
        /// ledger has an effect with this key for another tool or with other arguments. Arguments
        /// are compared as JSON.
        fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<LedgerEntry>;

        /// Records the outcome of the effect. The first outcome is kept, with one exception: if the
        /// effect was started as [repeatable](Intent::repeatable), an outcome that is
        /// [`Done`](crate::ToolStatus::Done) replaces one that is
        /// [`Failed`](crate::ToolStatus::Failed).
        ///
        /// # Errors
        ///
        /// [`StoreError::NotFound`](super::StoreError::NotFound) if the effect was not started.
        fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()>;

        /// Returns the recorded state of the effect with `key`, without starting it.
        fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry>;

        /// Deletes an effect that has no outcome, because its call was dropped before it started.
        /// Succeeds if there is no such effect.
        fn retract(&self, key: EffectKey) -> StoreFuture<()>;
    }
}

/// The key of the effect of a tool call, which is stable across retries and resumes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EffectKey {
    /// The owner of the run.
    pub tenant: Tenant,
    /// The call's [idempotency key](Context::idempotency_key).
    pub key: Str,
}

impl EffectKey {
    /// Creates a key.
    pub fn new(tenant: Tenant, key: impl Into<Str>) -> Self {
        Self {
            tenant,
            key: key.into(),
        }
    }

    /// Returns the key of the effect of the call of `context`; `None` outside a call.
    pub fn of(context: &Context) -> Option<Self> {
        Some(Self {
            tenant: Tenant::of(context),
            key: context.idempotency_key()?,
        })
    }
}

/// The effect that a tool call is about to have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Intent {
    /// The name of the tool.
    pub tool: Str,
    /// The arguments of the call.
    pub arguments: Str,
    /// The claim under which the run is driven, if it is stored.
    pub claim: Option<RunClaim>,
    /// Whether the tool may run again after a failure, so that a later success replaces the
    /// outcome; `false` by default.
    pub repeatable: bool,
}

impl Intent {
    /// Creates the intent of a call of `tool` with `arguments` in the run of `context`.
    pub fn new(tool: Str, arguments: Str, context: &Context) -> Self {
        Self {
            tool,
            arguments,
            claim: RunClaim::of(context),
            repeatable: false,
        }
    }

    /// Sets whether the tool may run again after it has failed.
    #[must_use]
    pub const fn repeatable(mut self, repeatable: bool) -> Self {
        self.repeatable = repeatable;
        self
    }
}

/// The recorded state of an effect in a [`Ledger`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LedgerEntry {
    /// Not recorded: the effect may take place now.
    New,
    /// Started, without a recorded outcome.
    Started,
    /// Finished with this outcome.
    Finished(Box<ToolOutcome>),
}
