//! What outlives a process, as traits: runs, the effects of tools, decisions.
//!
//! Whoever implements them is trusted: what a [`RunStore`] returns is what runs. `concentric-store`
//! has them over SQLite, and in memory for tests.
//!
//! # Tenants
//!
//! Thread and run ids may come from a client. Whoever must not reach another's runs is told apart
//! by the [`Tenant`], which the host puts into the request's
//! [extensions](crate::Context::extensions) after it has authenticated the caller.

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

/// The future of a store's work. Dropped before it resolves, the work is done or not, as a whole.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

impl Tenant {
    /// Whose run this is.
    pub fn of(context: &Context) -> Self {
        context.extensions().get().cloned().unwrap_or_default()
    }
}

impl RunKey {
    /// The key that the run of `context`, or the run it is part of, is stored under, or will be once
    /// it is; `None` if it is for no store.
    pub fn of(context: &Context) -> Option<Self> {
        let cell = context.extensions().get::<ClaimCell>()?;
        Some(match cell.get() {
            Some(claim) => claim.key.clone(),
            None => cell.0.key.clone(),
        })
    }
}

/// A run as it is written down.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunRecord {
    /// Its name.
    pub key: RunKey,
    /// The run id of the request that began it ([`Context::run_id`]). Clients choose it, and it may
    /// repeat in a conversation.
    pub client_id: RunId,
    /// How it stands.
    pub status: RunStatus,
    /// Grows with each write; a claim names the one it has seen.
    pub version: u64,
    /// Grows with each claim. Whoever holds the newest may write, and nobody else.
    pub fence: u64,
    /// Until when its holder may be thought alive.
    pub lease_until: SystemTime,
    /// The state.
    pub state: MachineState,
    /// The replies it was claimed with, until the next state is saved.
    pub replies: Vec<Reply>,
    /// When these were accepted.
    pub replied_at: Option<SystemTime>,
    /// All it has asked so far, answered or not.
    pub asked: Vec<InterruptId>,
}

impl RunRecord {
    /// Creates a record of a run that was begun by a request with the run id `client_id`.
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

/// A run without its state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunSummary {
    /// Its name.
    pub key: RunKey,
    /// The run id of the request that began it.
    pub client_id: RunId,
    /// Its status.
    pub status: RunStatus,
    /// When its lease ends, if it is running.
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

    /// Whether a process drives the run at `now`: it is running and its lease is not over.
    pub fn is_driven(&self, now: SystemTime) -> bool {
        self.status == RunStatus::Running && self.lease_until > now
    }
}

/// How a run in a store stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Somebody drives it, or did when the process died.
    Running,
    /// It waits for replies.
    Suspended,
    /// It is over; the record stays for a while, so that a late reply is told so.
    Ended,
}

/// Keeps runs, so that one process goes on where another stopped, and only one.
///
/// Every write but [`begin`](Self::begin) and [`claim`](Self::claim) names the fence of the claim it
/// is made under, and is refused with [`StoreError::Stale`] if there is a newer one, or this one was
/// given up. What a write was acknowledged for is durable. A state, or replies, that the store could
/// not keep however often it tried are refused with [`StoreError::Unwritable`].
///
/// A run that cannot be read fails what names it. Where several are looked for it is left out, and
/// logged, so that it does not hide the others.
///
/// No two writes of a store have the same version, and no two claims the same fence, also if a run
/// was forgotten and another of its name was begun.
pub trait RunStore: Send + Sync + 'static {
    /// Stores a new run, which a request with the run id `client_id` began, and claims it until
    /// `lease_until`; returns the fence.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] if the store has a run of this key, [`StoreError::Live`] if a run of
    /// the same `client_id` in the same conversation [is live](Self::is_live).
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        state: MachineState,
        lease_until: SystemTime,
    ) -> StoreFuture<u64>;

    /// Whether a run that a request with the run id `client_id` began in this conversation is live:
    /// its status is [`Running`](RunStatus::Running), whether or not its lease is over. One that
    /// waits for replies, or is over, is not live.
    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool>;

    /// The run.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`].
    fn get(&self, key: RunKey) -> StoreFuture<RunRecord>;

    /// Claims a run that waits, or whose holder's lease was over at `now`, if nobody has written it
    /// since `version`; and keeps `replies` with it, as accepted `now`. Returns it with its new fence.
    ///
    /// Replies that were kept by a claim whose holder died were accepted, and are not replaced: of
    /// `replies`, those to other questions are kept beside them. The record has all that are kept.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`]; [`StoreError::Taken`] if another was first, [`StoreError::Ended`] if
    /// the run is over.
    fn claim(
        &self,
        key: RunKey,
        version: u64,
        replies: Vec<Reply>,
        now: SystemTime,
        lease_until: SystemTime,
    ) -> StoreFuture<RunRecord>;

    /// Replaces the state of a run that a [`claim`](Self::claim) could have, at `now`, if nobody has
    /// written it since `version`; returns its new version. All else stays as it is.
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

    /// Writes the state of a run that goes on, and drops the replies kept with it: they are in the
    /// state.
    fn save(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        lease_until: SystemTime,
    ) -> StoreFuture<()>;

    /// Says that the holder is alive.
    fn renew(&self, key: RunKey, fence: u64, lease_until: SystemTime) -> StoreFuture<()>;

    /// Writes the state of a run that waits for replies, since `now`, and gives up the claim.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooManyWaiting`] if the run has not waited before, and as many runs of the
    /// conversation or of the tenant as the store allows wait, or have waited and are not over.
    /// Nothing is written then.
    fn suspend(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        now: SystemTime,
    ) -> StoreFuture<()>;

    /// Says that the run is over, `now`. To say so again is no error.
    fn end(&self, key: RunKey, fence: u64, now: SystemTime) -> StoreFuture<()>;

    /// Ends the runs of a conversation that wait, `now`, all of them or none; returns how many did. A
    /// run that a claim has is not among them: of a claim and this, one comes first.
    fn withdraw(&self, tenant: Tenant, thread: ThreadId, now: SystemTime) -> StoreFuture<usize>;

    /// The newest run that has asked any of `questions`, answered or not, also if it is over.
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

    /// At most `limit` runs of a conversation that are not over: first those that wait, the oldest
    /// first, then those that are running, by the end of their leases. With a `message`, only those
    /// whose open round is of this message. No state is read.
    fn of_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>>;

    /// At most `limit` runs, of whomever, whose holder's lease was over at `now`: they are to be
    /// claimed and driven on.
    fn abandoned(&self, now: SystemTime, limit: usize) -> StoreFuture<Vec<RunRecord>>;
}

impl RunClaim {
    /// The claim of the run of `context`, or of the run it is part of; `None` if it is in no store,
    /// or not yet: a run is written down before its first round.
    pub fn of(context: &Context) -> Option<Self> {
        context.extensions().get::<ClaimCell>()?.get().cloned()
    }
}

/// Where the [`RunClaim`] of a run is put as soon as there is one, as an extension of its
/// [`Context`].
#[derive(Clone, Debug)]
pub struct ClaimCell(Arc<Claimable>);

#[derive(Debug)]
struct Claimable {
    // What a new run is stored under.
    key: RunKey,
    claim: OnceLock<RunClaim>,
}

impl ClaimCell {
    /// Creates a place without a claim, for a run that will be stored under `key` if it is a new one.
    pub fn new(key: RunKey) -> Self {
        Self(Arc::new(Claimable {
            key,
            claim: OnceLock::new(),
        }))
    }

    /// Puts the run's claim there; it has only one.
    pub fn set(&self, claim: RunClaim) {
        let _ = self.0.claim.set(claim);
    }

    /// The claim, if there is one.
    pub fn get(&self) -> Option<&RunClaim> {
        self.0.claim.get()
    }
}

/// Extension of a [`ChatResponse`](crate::ChatResponse) whose run is stored if it ends with interrupts,
/// so that replies to them resume it.
///
/// `SuspendLayer` inserts it. A host that stores [`Finish::state`](crate::Finish::state) in another way,
/// and resumes the run from it, inserts it too, in a layer around the agent: an endpoint, as
/// `AgUiLayer` of `concentric-http`, does not show a client a question that no reply can answer.
///
/// ```
/// use concentric_core::{ChatRequest, ChatResponse, Error, EventStream, layers::Next, store::Resumable};
///
/// async fn store(request: ChatRequest, mut next: Next) -> Result<ChatResponse<EventStream>, Error> {
///     // Where the request has replies, the state is loaded here ..
///     let mut response = next.run(request).await?;
///     // .. and stored when the body ends as interrupted.
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
/// interrupts, as the clients of an endpoint do.
///
/// `AgUiLayer` of `concentric-http` inserts it. Inside of a layer that stores such runs, it means
/// nothing: `SuspendLayer` and sessions of `concentric-layers`, or a layer of the host that
/// [encloses](crate::capability::Encloses) the region [`StoredRun`]. Elsewhere a run must not wait
/// for what only its state can take the reply to: a toolset with a ledger then reports an unknown
/// outcome to the model, and does not ask a person about it.
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

/// Writes a run's state down before a round of tool calls begins, where its [`Context`] has it of
/// its [own](Context::own_mut). The round begins once it is written; if that fails, so does the run.
///
/// It is also told of the rounds of an agent in the model's place: the agent's state is in the
/// run's. It is not told of the rounds of an agent that is a tool: the call is what is written down.
#[derive(Clone)]
pub struct Checkpoint(Arc<dyn Fn(MachineState) -> BoxFuture<()> + Send + Sync>);

impl Checkpoint {
    /// Creates a place to write to.
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

/// Keeps what tools were about to do and what came of it, so that a crash in between is seen.
pub trait Ledger: Send + Sync + 'static {
    /// Records that the call of `key` is about to take effect; durable when it resolves.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`]: there is a newer claim of the run. [`StoreError::Mismatch`]: the ledger
    /// has an effect of this key, of another tool or with other arguments.
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<Effect>;

    /// Records the outcome of the effect. The first outcome stays, with one exception: if the effect
    /// was begun as [repeatable](Intent::repeatable), an outcome that is
    /// [`Done`](crate::ToolStatus::Done) replaces one that is [`Failed`](crate::ToolStatus::Failed).
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`]: the effect was not begun.
    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()>;

    /// What is known of the effect of `key`; begins nothing.
    fn known(&self, key: EffectKey) -> StoreFuture<Effect>;

    /// Forgets an effect that was begun and has no outcome, since its call was dropped before it
    /// started. That there is none is no error.
    fn retract(&self, key: EffectKey) -> StoreFuture<()>;
}

/// Names the effect of a tool call, as the same over retries and resumes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EffectKey {
    /// Whose it is.
    pub tenant: Tenant,
    /// The call's [idempotency key](Context::idempotency_key).
    pub key: Str,
}

impl EffectKey {
    /// Creates a name.
    pub fn new(tenant: Tenant, key: impl Into<Str>) -> Self {
        Self {
            tenant,
            key: key.into(),
        }
    }

    /// The name of the effect of the call that `context` is of; `None` outside a call.
    pub fn of(context: &Context) -> Option<Self> {
        Some(Self {
            tenant: Tenant::of(context),
            key: context.idempotency_key()?,
        })
    }
}

/// What a tool call is about to do.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Intent {
    /// The tool.
    pub tool: Str,
    /// Its arguments.
    pub arguments: Str,
    /// The claim that the run goes on under, if it is in a store.
    pub claim: Option<RunClaim>,
    /// Whether the tool may run again after it has failed, so that a later success is the outcome;
    /// `false` by default.
    pub repeatable: bool,
}

impl Intent {
    /// Creates what a call of `tool` with `arguments` is about to do in the run of `context`.
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

/// What a [`Ledger`] knows of an effect.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Effect {
    /// Nothing: it may take place now.
    New,
    /// It was begun, and nobody said what came of it.
    Begun,
    /// This came of it.
    Done(Box<ToolOutcome>),
}

/// Does each thing at most once, over all processes that share it.
pub trait Once: Send + Sync + 'static {
    /// Whether `key` is used for the first time. It may be forgotten after `until`.
    fn once(&self, tenant: Tenant, key: Str, until: SystemTime) -> StoreFuture<bool>;
}

/// Keeps what people decided for more than one call.
pub trait Decisions: Send + Sync + 'static {
    /// Keeps a decision, in place of one that holds for the same calls.
    fn remember(&self, decision: Remembered) -> StoreFuture<()>;

    /// What was decided about calls of `tool`, in this `run` of this `thread`, in `thread` and for
    /// always.
    fn recall(
        &self,
        tenant: Tenant,
        tool: Str,
        run: RunId,
        thread: Option<ThreadId>,
    ) -> StoreFuture<Vec<Remembered>>;

    /// All that is kept for a tenant, the newest first.
    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<Remembered>>;

    /// Forgets a decision; whether there was one.
    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool>;
}

/// A decision that holds for more than one call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Remembered {
    /// Names it: the same for the same calls and span.
    pub id: Str,
    /// Whose it is.
    pub tenant: Tenant,
    /// The tool.
    pub tool: Str,
    /// The digest of the tool's definition: a tool that changed is another.
    pub definition: Str,
    /// The digest of the arguments it holds for; `None`: any.
    pub arguments: Option<Str>,
    /// How long it holds.
    pub span: Span,
    /// Whether such calls may run.
    pub allow: bool,
    /// Why not.
    pub reason: Option<Str>,
    /// When it was decided.
    pub at: SystemTime,
}

/// How long a decision holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Span {
    /// In this run of this conversation, if it is of one.
    Run {
        /// The conversation: the ids of runs may be a client's, and the same in another one.
        thread: Option<ThreadId>,
        /// The run.
        run: RunId,
    },
    /// In this conversation.
    Thread(ThreadId),
    /// For the tenant.
    Always,
}

impl Remembered {
    /// Creates a decision.
    #[allow(
        clippy::too_many_arguments,
        reason = "a record, all of whose fields are its own"
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
            // Quoted, so that no two have the same.
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

/// Why a store did not do what it was asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such run.
    NotFound,
    /// The store has a run of this key.
    Exists,
    /// A run that was begun under the same run id in the same conversation is live.
    Live,
    /// As many runs wait as the store allows.
    TooManyWaiting {
        /// How many may wait.
        limit: usize,
        /// Whether this is the limit of the tenant, and not of the conversation.
        of_tenant: bool,
    },
    /// The ledger has an effect of this key, of another tool or with other arguments.
    Mismatch,
    /// Another was first to go on with the run.
    Taken,
    /// The run is over.
    Ended,
    /// There is a newer claim of the run.
    Stale,
    /// What was to be kept is such that it could not be read again: it is too large, say. Another
    /// attempt would come to the same.
    Unwritable(Arc<dyn StdError + Send + Sync>),
    /// The store failed.
    Failed(Arc<dyn StdError + Send + Sync>),
}

impl StoreError {
    /// What was to be kept cannot be.
    pub fn unwritable(error: impl Into<BoxError>) -> Self {
        Self::Unwritable(Arc::from(error.into()))
    }

    /// The store failed.
    pub fn failed(error: impl Into<BoxError>) -> Self {
        Self::Failed(Arc::from(error.into()))
    }

    /// A name of what is wrong, for programs.
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
            Self::NotFound => "there is no such run to go on with",
            Self::Exists => "the store has a run of this key",
            Self::Live => {
                "a run of this run id has not ended in this conversation; wait for its end, or send \
                 another run id"
            }
            Self::TooManyWaiting { limit, of_tenant } => {
                let of = if *of_tenant { "tenant" } else { "conversation" };
                return write!(
                    f,
                    "{limit} runs of this {of} wait for replies, and no more may; reply to some of \
                     them, or cancel them"
                );
            }
            Self::Mismatch => {
                "the ledger has an effect of this key, of another tool or with other arguments"
            }
            Self::Taken => "somebody else goes on with the run",
            Self::Ended => "the run is over",
            Self::Stale => "somebody else has taken the run over",
            Self::Unwritable(_) => "what is to be kept cannot be written",
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

/// How long a claim is held for when it is not renewed.
pub const LEASE: Duration = Duration::from_secs(30);

/// The interrupts that the runs of a conversation wait on, the oldest run's first. The states are
/// loaded one after the other. A run that cannot be read is left out and logged, if another can be.
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
            // It was resumed, or forgotten, meanwhile.
            Ok(_) | Err(StoreError::NotFound) => {}
            Err(error) => {
                let run = &run.key.run;
                tracing::error!(%run, %error, "a waiting run is left out, which cannot be read");
                failed = Some(error);
            }
        }
    }
    match failed {
        // It may be the store, and not this run.
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
