//! Traits for persistent storage: of runs, effects of tools, and decisions.
//!
//! Implementations are trusted: a run is resumed exactly as a [`RunStore`] returns it.
//! `concentric-store` implements the traits over SQLite, and in memory for tests.
//!
//! # Tenants
//!
//! Thread and run ids may come from a client. To keep clients from accessing each other's runs, the
//! host authenticates the caller and puts a [`Tenant`] into the request's
//! [extensions](crate::Context::extensions).

pub use crate::run_key::{RunClaim, RunKey, Tenant};

use crate::{
    capability::{SessionTurn, StoredRun},
    context::Context,
    service::BoxFuture,
};
use concentric_proto::{
    Error, ErrorKind, Interrupt, InterruptId, MessageId, Reply, RunId, Str, ThreadId, ToolOutcome,
    run_state::MachineState,
};
use serde::{Deserialize, Serialize};
use std::{
    error::Error as StdError,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};
use tower::BoxError;

/// The future of a store operation. If it is dropped before it resolves, the operation is executed
/// completely or not at all.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

impl Tenant {
    /// Returns the owner of the run of `context`.
    pub fn of(context: &Context) -> Self {
        context.extensions().get().cloned().unwrap_or_default()
    }
}

impl RunKey {
    /// Returns the key under which the run of `context`, or the run that contains it, is or will be
    /// stored. `None` if the run is not stored.
    pub fn of(context: &Context) -> Option<Self> {
        let cell = context.extensions().get::<ClaimCell>()?;
        Some(match cell.get() {
            Some(claim) => claim.key.clone(),
            None => cell.0.key.clone(),
        })
    }
}

/// A stored run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunRecord {
    /// The key of the run.
    pub key: RunKey,
    /// The run id of the request that started the run ([`Context::run_id`]). It is chosen by the
    /// client and may repeat in a conversation.
    pub client_id: RunId,
    /// The status of the run.
    pub status: RunStatus,
    /// Increases with each write; a claim specifies the version it is based on.
    pub version: u64,
    /// Increases with each claim. Only the owner of the newest fence may write.
    pub fence: u64,
    /// The end of the owner's lease.
    pub lease_until: SystemTime,
    /// The state of the run.
    pub state: MachineState,
    /// The replies that the run was claimed with, until the next state is saved.
    pub replies: Vec<Reply>,
    /// The time at which the replies were accepted.
    pub replied_at: Option<SystemTime>,
    /// All interrupts the run has raised so far, with or without replies.
    pub asked: Vec<InterruptId>,
}

impl RunRecord {
    /// Creates a record of a run that was started by a request with the run id `client_id`.
    pub fn new(key: RunKey, client_id: RunId, state: MachineState) -> Self {
        Self {
            key,
            client_id,
            status: RunStatus::Running,
            version: 0,
            fence: 0,
            lease_until: SystemTime::UNIX_EPOCH,
            state,
            replies: Vec::new(),
            replied_at: None,
            asked: Vec::new(),
        }
    }
}

/// A stored run without its state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunSummary {
    /// The key of the run.
    pub key: RunKey,
    /// The run id of the request that started the run.
    pub client_id: RunId,
    /// The status of the run.
    pub status: RunStatus,
    /// The end of the run's lease, if it is running.
    pub lease_until: SystemTime,
}

impl RunSummary {
    /// Creates a summary.
    pub fn new(key: RunKey, client_id: RunId, status: RunStatus, lease_until: SystemTime) -> Self {
        Self {
            key,
            client_id,
            status,
            lease_until,
        }
    }

    /// Returns whether the run is running and its lease has not expired at `now`.
    pub fn is_driven(&self, now: SystemTime) -> bool {
        self.status == RunStatus::Running && self.lease_until > now
    }
}

/// The status of a stored run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// A process drives the run, or did until it crashed.
    Running,
    /// The run waits for replies.
    Suspended,
    /// The run has ended. The record is kept for a while, to reject late replies.
    Ended,
}

/// Stores runs so that another process can resume them, and ensures that only one process does.
///
/// Every write except [`begin`](Self::begin) and [`claim`](Self::claim) specifies the fence of its
/// claim. It fails with [`StoreError::Stale`] if there is a newer claim, or if the claim was given
/// up. Acknowledged writes are durable. A write that can never succeed, because the store can't
/// represent the state or the replies, fails with [`StoreError::Unwritable`].
///
/// Operations on a run that can't be read fail. Operations that return several runs log such a run
/// and omit it, so that it does not hide the others.
///
/// Versions and fences are unique in a store, even if the key of a deleted run is used again.
pub trait RunStore: Send + Sync + 'static {
    /// Stores a new run, which a request with the run id `client_id` has started, and claims it
    /// until `lease_until`. Returns the fence.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] if the store has a run with this key, [`StoreError::Live`] if a run
    /// with the same `client_id` in the same conversation [is live](Self::is_live).
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        state: MachineState,
        lease_until: SystemTime,
    ) -> StoreFuture<u64>;

    /// Returns whether a run that was started by a request with the run id `client_id` in this
    /// conversation is live. A run is live while its status is [`Running`](RunStatus::Running),
    /// even if its lease has expired.
    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool>;

    /// Returns a run.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`].
    fn get(&self, key: RunKey) -> StoreFuture<RunRecord>;

    /// Claims a run that waits for replies, or whose lease had expired at `now`, if it was not
    /// written since `version`. Stores `replies` with it, as accepted at `now`. Returns the run
    /// with its new fence.
    ///
    /// Replies that are stored from an earlier claim, whose owner crashed, were accepted and are
    /// not replaced; of `replies`, only those to other interrupts are added. The returned record
    /// contains all stored replies.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`]; [`StoreError::Taken`] if the run was claimed or written in the
    /// meantime, [`StoreError::Ended`] if it has ended.
    fn claim(
        &self,
        key: RunKey,
        version: u64,
        replies: Vec<Reply>,
        now: SystemTime,
        lease_until: SystemTime,
    ) -> StoreFuture<RunRecord>;

    /// Replaces the state of a run that could be [claimed](Self::claim) at `now`, if it was not
    /// written since `version`. Returns the new version. All other fields are unchanged.
    ///
    /// # Errors
    ///
    /// Those of [`claim`](Self::claim).
    fn amend(
        &self,
        key: RunKey,
        version: u64,
        state: MachineState,
        now: SystemTime,
    ) -> StoreFuture<u64>;

    /// Stores the state of a run, and deletes its stored replies, which the state contains.
    fn save(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        lease_until: SystemTime,
    ) -> StoreFuture<()>;

    /// Extends the lease of a run.
    fn renew(&self, key: RunKey, fence: u64, lease_until: SystemTime) -> StoreFuture<()>;

    /// Stores the state of a run that waits for replies since `now`, and gives up the claim.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooManyWaiting`] if the run has not waited before, and the conversation or the
    /// tenant has reached its limit of runs that wait, or have waited and not ended. Then nothing
    /// is stored.
    fn suspend(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        now: SystemTime,
    ) -> StoreFuture<()>;

    /// Records that the run ended at `now`. Repeated calls succeed.
    fn end(&self, key: RunKey, fence: u64, now: SystemTime) -> StoreFuture<()>;

    /// Ends all runs of a conversation that wait for replies, as of `now`, atomically. Returns the
    /// number of ended runs. A claimed run is not ended; a concurrent claim comes before or after.
    fn withdraw(&self, tenant: Tenant, thread: ThreadId, now: SystemTime) -> StoreFuture<usize>;

    /// Returns the newest run, ended or not, that raised any of `questions`, answered or not.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`].
    fn asking(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord>;

    /// Returns at most `limit` runs of a conversation that have not ended: first those that wait
    /// for replies, oldest first, then running ones, by the end of their leases. With a `message`,
    /// returns only runs whose open round belongs to this message. States are not loaded.
    fn of_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>>;

    /// Returns at most `limit` runs, of all tenants, whose lease had expired at `now`.
    fn abandoned(&self, now: SystemTime, limit: usize) -> StoreFuture<Vec<RunRecord>>;
}

impl RunClaim {
    /// Returns the claim of the run of `context`, or of the run that contains it. `None` if the run
    /// is not stored, or not yet: a run is stored before its first round.
    pub fn of(context: &Context) -> Option<Self> {
        context.extensions().get::<ClaimCell>()?.get().cloned()
    }
}

/// The cell for the [`RunClaim`] of a run, as an extension of its [`Context`].
#[derive(Clone, Debug)]
pub struct ClaimCell(Arc<Claimable>);

#[derive(Debug)]
struct Claimable {
    // The key for a new run.
    key: RunKey,
    claim: OnceLock<RunClaim>,
}

impl ClaimCell {
    /// Creates an empty cell, for a run that is stored under `key` if it is new.
    pub fn new(key: RunKey) -> Self {
        Self(Arc::new(Claimable {
            key,
            claim: OnceLock::new(),
        }))
    }

    /// Sets the claim of the run. Only the first call has an effect.
    pub fn set(&self, claim: RunClaim) {
        let _ = self.0.claim.set(claim);
    }

    /// Returns the claim, if it is set.
    pub fn get(&self) -> Option<&RunClaim> {
        self.0.claim.get()
    }
}

/// Extension of a [`ChatResponse`](crate::ChatResponse) whose run is stored if it ends with
/// interrupts, so that replies resume it.
///
/// `SuspendLayer` inserts it. A host that stores [`Finish::state`](crate::Finish::state) in another
/// way, and resumes the run from it, inserts it in a layer around the agent. Endpoints such as
/// `AgUiLayer` of `concentric-http` use it to avoid presenting an interrupt that can't be answered.
///
/// ```
/// use concentric_core::{ChatRequest, ChatResponse, Error, EventStream, store::Resumable};
/// use concentric_layers::Next;
///
/// async fn store(request: ChatRequest, mut next: Next) -> Result<ChatResponse<EventStream>, Error> {
///     // If the request has replies, load the state here,
///     let mut response = next.run(request).await?;
///     // and store it when the body ends with interrupts.
///     response.extensions.insert(Resumable);
///     Ok(response)
/// }
/// # let _ = store;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumable;

/// What a request without a [`resume`](crate::ChatRequest::resume) does with the open interrupts of its
/// conversation: an extension of its [`Context`]. Without it, they stay open beside the new run.
///
/// `SuspendLayer` of `concentric-layers` reads it, and `AgUiLayer` of `concentric-http` inserts it. A host
/// whose own endpoint allows one run per conversation, like AG-UI, inserts it too:
///
/// ```
/// use concentric_core::{ChatRequest, Context, ThreadId, store::OpenInterrupts};
///
/// let mut context = Context::builder().thread_id(ThreadId::new("thread_1")).build();
/// context.extensions_mut().insert(OpenInterrupts::Withdraw);
/// let request = ChatRequest::user("Never mind. What is the weather?").with_context(context);
/// # let _ = request;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenInterrupts {
    /// Withdraws the interrupts before the run begins ([`RunStore::withdraw`]), if the transcript ends
    /// with a user message: it was sent instead of replies. A late reply fails with
    /// [`StoreError::Ended`]. If the store fails, so does the request.
    Withdraw,
    /// Answers with the interrupts of the newest waiting run of the conversation, without resuming it, if
    /// that run has the newest user message of the request (by id), or the request has no user message. If
    /// no run waits, the request resumes a run whose process died, or fails with [`StoreError::Taken`] if
    /// that run is driven.
    ///
    /// If there is no such run, a request that ends with a user message is treated like
    /// [`Withdraw`](Self::Withdraw), and any other fails with [`StoreError::NotFound`].
    Show,
}

/// Extension of a request's [`Context`] whose caller drops the state of a run that ends with
/// interrupts, as clients of an endpoint do.
///
/// `AgUiLayer` of `concentric-http` inserts it. It has no effect inside a layer that stores such
/// runs: `SuspendLayer` and sessions of `concentric-layers`, or a layer of the host that
/// [encloses](crate::capability::Encloses) the region [`StoredRun`]. Elsewhere, a run must not wait
/// for a reply that requires its state: a toolset with a ledger then reports an unknown outcome to
/// the model instead of raising an interrupt about it.
///
/// ```
/// use concentric_core::{ChatRequest, store::StatelessCaller};
///
/// let mut request = ChatRequest::user("hi");
/// assert!(request.context.is_suspension_stored());
/// request.context.extensions_mut().insert(StatelessCaller);
/// assert!(!request.context.is_suspension_stored());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatelessCaller;

impl Context {
    /// Whether the state of this run is kept if it ends with interrupts: by its caller, unless that is a
    /// [`StatelessCaller`], or by a layer around the run or around a run that encloses it.
    pub fn is_suspension_stored(&self) -> bool {
        let mut all = std::iter::successors(Some(self), |context| context.parent());
        self.extensions().get::<StatelessCaller>().is_none()
            || all.any(|it| {
                it.region::<StoredRun>().is_some() || it.region::<SessionTurn>().is_some()
            })
    }
}

/// Persists a run's state before each round of tool calls, if set in the [own](Context::own_mut)
/// extensions of its [`Context`]. The round starts once it is persisted; an error fails the run.
///
/// Also called before the rounds of an agent in the model's position, whose state is part of the
/// run's. Not called before the rounds of an agent that is a tool.
#[derive(Clone)]
pub struct Checkpoint(Arc<dyn Fn(MachineState) -> BoxFuture<()> + Send + Sync>);

impl Checkpoint {
    /// Creates a checkpoint that calls `save`.
    pub fn new(save: impl Fn(MachineState) -> BoxFuture<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(save))
    }

    pub(crate) fn save(&self, state: MachineState) -> BoxFuture<()> {
        (self.0)(state)
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").finish_non_exhaustive()
    }
}

/// Records the start and the outcome of tool effects, so that a crash in between is detected.
pub trait Ledger: Send + Sync + 'static {
    /// Durably records that the call with `key` is about to take effect.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`] if there is a newer claim of the run. [`StoreError::Mismatch`] if the
    /// ledger has an effect with this key for another tool or with other arguments.
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<Effect>;

    /// Records the outcome of the effect. The first outcome is kept, with one exception: if the
    /// effect was started as [repeatable](Intent::repeatable), an outcome that is
    /// [`Done`](crate::ToolStatus::Done) replaces one that is
    /// [`Failed`](crate::ToolStatus::Failed).
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if the effect was not started.
    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()>;

    /// Returns the recorded state of the effect with `key`, without starting it.
    fn known(&self, key: EffectKey) -> StoreFuture<Effect>;

    /// Deletes an effect that has no outcome, because its call was dropped before it started.
    /// Succeeds if there is no such effect.
    fn retract(&self, key: EffectKey) -> StoreFuture<()>;
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
pub enum Effect {
    /// Not recorded: the effect may take place now.
    New,
    /// Started, without a recorded outcome.
    Begun,
    /// Finished with this outcome.
    Done(Box<ToolOutcome>),
}

/// Ensures that a key is used at most once by all processes that share the store.
pub trait Once: Send + Sync + 'static {
    /// Returns whether `key` is used for the first time. The key may be forgotten after `until`.
    fn once(&self, tenant: Tenant, key: Str, until: SystemTime) -> StoreFuture<bool>;
}

/// Stores decisions that apply to more than one call.
pub trait Decisions: Send + Sync + 'static {
    /// Stores a decision, replacing an earlier one for the same calls.
    fn remember(&self, decision: Remembered) -> StoreFuture<()>;

    /// Returns the decisions about calls of `tool` for this `run`, for `thread`, and for all
    /// threads.
    fn recall(
        &self,
        tenant: Tenant,
        tool: Str,
        run: RunId,
        thread: Option<ThreadId>,
    ) -> StoreFuture<Vec<Remembered>>;

    /// Returns all stored decisions of a tenant, newest first.
    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<Remembered>>;

    /// Deletes a decision, and returns whether it existed.
    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool>;
}

/// A decision that applies to more than one call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Remembered {
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
    pub span: Span,
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
pub enum Span {
    /// In this run, of this conversation if it has one.
    Run {
        /// The conversation; run ids may be chosen by clients and repeat across conversations.
        thread: Option<ThreadId>,
        /// The run.
        run: RunId,
    },
    /// In this conversation.
    Thread(ThreadId),
    /// Always, for the tenant.
    Always,
}

impl Remembered {
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
        span: Span,
        allow: bool,
        reason: Option<Str>,
        at: SystemTime,
    ) -> Self {
        let kind = match &span {
            // Quoted, so that ids are unique.
            Span::Run { thread, run } => match thread {
                Some(thread) => format!("run:{:?}/{run}", thread.as_str()),
                None => format!("run:/{run}"),
            },
            Span::Thread(thread) => format!("thread:{thread}"),
            Span::Always => "always".to_owned(),
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

/// The duration of a claim that is not renewed.
pub const LEASE: Duration = Duration::from_secs(30);

/// Returns the open interrupts of a conversation's runs, oldest run first. States are loaded one
/// after the other. A run that can't be read is logged and omitted if another one can be read.
///
/// # Errors
///
/// The store failed, or none of the runs can be read.
pub async fn waiting<St>(
    store: &St,
    tenant: Tenant,
    thread: ThreadId,
) -> Result<Vec<Interrupt>, StoreError>
where
    St: RunStore + ?Sized,
{
    let runs = store.of_thread(tenant, thread, None, usize::MAX).await?;
    let waiting = runs
        .into_iter()
        .filter(|run| run.status == RunStatus::Suspended);
    let mut interrupts = Vec::new();
    let mut failed = None;
    for run in waiting {
        match store.get(run.key.clone()).await {
            Ok(record) if record.status == RunStatus::Suspended => {
                interrupts.extend(record.state.interrupts().into_iter().cloned());
            }
            // The run was resumed or deleted in the meantime.
            Ok(_) | Err(StoreError::NotFound) => {}
            Err(error) => {
                let run = &run.key.run;
                tracing::error!(%run, %error, "omitted a waiting run that can't be read");
                failed = Some(error);
            }
        }
    }
    match failed {
        // The store may have failed, rather than this run.
        Some(error) if interrupts.is_empty() => Err(error),
        _ => Ok(interrupts),
    }
}

impl<T> RunStore for Arc<T>
where
    T: RunStore + ?Sized,
{
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        state: MachineState,
        lease_until: SystemTime,
    ) -> StoreFuture<u64> {
        (**self).begin(key, client_id, state, lease_until)
    }

    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool> {
        (**self).is_live(tenant, thread, client_id)
    }

    fn get(&self, key: RunKey) -> StoreFuture<RunRecord> {
        (**self).get(key)
    }

    fn claim(
        &self,
        key: RunKey,
        version: u64,
        replies: Vec<Reply>,
        now: SystemTime,
        lease_until: SystemTime,
    ) -> StoreFuture<RunRecord> {
        (**self).claim(key, version, replies, now, lease_until)
    }

    fn amend(
        &self,
        key: RunKey,
        version: u64,
        state: MachineState,
        now: SystemTime,
    ) -> StoreFuture<u64> {
        (**self).amend(key, version, state, now)
    }

    fn save(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        lease_until: SystemTime,
    ) -> StoreFuture<()> {
        (**self).save(key, fence, state, lease_until)
    }

    fn renew(&self, key: RunKey, fence: u64, lease_until: SystemTime) -> StoreFuture<()> {
        (**self).renew(key, fence, lease_until)
    }

    fn suspend(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        now: SystemTime,
    ) -> StoreFuture<()> {
        (**self).suspend(key, fence, state, now)
    }

    fn end(&self, key: RunKey, fence: u64, now: SystemTime) -> StoreFuture<()> {
        (**self).end(key, fence, now)
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId, now: SystemTime) -> StoreFuture<usize> {
        (**self).withdraw(tenant, thread, now)
    }

    fn asking(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        (**self).asking(tenant, thread, questions)
    }

    fn of_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        (**self).of_thread(tenant, thread, message, limit)
    }

    fn abandoned(&self, now: SystemTime, limit: usize) -> StoreFuture<Vec<RunRecord>> {
        (**self).abandoned(now, limit)
    }
}

impl<T> Ledger for Arc<T>
where
    T: Ledger + ?Sized,
{
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<Effect> {
        (**self).begin(key, intent)
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        (**self).finish(key, outcome)
    }

    fn known(&self, key: EffectKey) -> StoreFuture<Effect> {
        (**self).known(key)
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        (**self).retract(key)
    }
}

impl<T> Once for Arc<T>
where
    T: Once + ?Sized,
{
    fn once(&self, tenant: Tenant, key: Str, until: SystemTime) -> StoreFuture<bool> {
        (**self).once(tenant, key, until)
    }
}

impl<T> Decisions for Arc<T>
where
    T: Decisions + ?Sized,
{
    fn remember(&self, decision: Remembered) -> StoreFuture<()> {
        (**self).remember(decision)
    }

    fn recall(
        &self,
        tenant: Tenant,
        tool: Str,
        run: RunId,
        thread: Option<ThreadId>,
    ) -> StoreFuture<Vec<Remembered>> {
        (**self).recall(tenant, tool, run, thread)
    }

    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<Remembered>> {
        (**self).list(tenant)
    }

    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool> {
        (**self).revoke(tenant, id)
    }
}
