//! The storage of a run, as recorded in its context and its response.

use super::{RunClaim, RunKey, Tenant};
use crate::{
    capability::{SessionTurn, StoredRun},
    context::Context,
};
use std::sync::{Arc, OnceLock};

impl Tenant {
    /// Returns the owner of the run of `context`.
    pub fn of(context: &Context) -> Self {
        context.extensions().get().cloned().unwrap_or_default()
    }
}

// An extension of a context.
#[derive(Clone)]
struct Stored {
    // The key for a new run.
    key: RunKey,
    claim: Arc<OnceLock<RunClaim>>,
}

impl RunKey {
    /// Returns the key under which the run of `context`, or the run that contains it, is or will be
    /// stored. `None` if the run is not stored.
    pub fn of(context: &Context) -> Option<Self> {
        let stored = context.extensions().get::<Stored>()?;
        let claim = stored.claim.get();
        Some(claim.map_or(&stored.key, |claim| &claim.key).clone())
    }
}

impl RunClaim {
    /// Returns the claim of the run of `context`, or of the run that contains it. `None` if the run
    /// is not stored, or not yet: a run is stored before its first round.
    pub fn of(context: &Context) -> Option<Self> {
        context.extensions().get::<Stored>()?.claim.get().cloned()
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
    /// Withdraws the interrupts before the run begins ([`RunStore::withdraw`](super::RunStore::withdraw)), if the transcript ends
    /// with a user message: it was sent instead of replies. A late reply fails with
    /// [`StoreError::Ended`](super::StoreError::Ended). If the store fails, so does the request.
    Withdraw,
    /// Answers with the interrupts of the newest waiting run of the conversation, without resuming it, if
    /// that run has the newest user message of the request (by id), or the request has no user message. If
    /// no run waits, the request resumes a run whose process died, or fails with [`StoreError::Taken`](super::StoreError::Taken) if
    /// that run is driven.
    ///
    /// If there is no such run, a request that ends with a user message is treated like
    /// [`Withdraw`](Self::Withdraw), and any other fails with [`StoreError::NotFound`](super::StoreError::NotFound).
    Show,
}

/// States that the answer of a run replaces the answers to the last message of its request: an extension of its
/// [`Context`].
///
/// A layer that keeps the history reads it, such as `ConversationLayer` of `concentric-layers`; `UiMessagesLayer` of
/// `concentric-http` inserts it. Without such a layer, the request has the history without those answers.
///
/// ```
/// use concentric_core::{ChatRequest, Context, ThreadId, store::Regenerate};
///
/// let mut context = Context::builder().thread_id(ThreadId::new("thread_1")).build();
/// context.extensions_mut().insert(Regenerate);
/// let request = ChatRequest::user("What is the weather?").with_context(context);
/// # let _ = request;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regenerate;

// An extension of a context.
#[derive(Clone)]
struct StatelessCaller;

impl Context {
    /// States that a layer stores the run, under `key` if it is new, and sets `claim` once it has
    /// claimed the run.
    pub fn set_run_claim(&mut self, key: RunKey, claim: Arc<OnceLock<RunClaim>>) {
        self.extensions_mut().insert(Stored { key, claim });
    }

    /// States that the caller drops the state of a run that ends with interrupts, as clients of an
    /// endpoint do.
    ///
    /// `AgUiLayer` of `concentric-http` calls it. It has no effect inside a layer that stores such
    /// runs: `SuspendLayer` and sessions of `concentric-layers`, or a layer of the host that
    /// [encloses](crate::capability::Encloses) the region [`StoredRun`]. Elsewhere, a run must not wait
    /// for a reply that requires its state: a toolset with a ledger then reports an unknown outcome to
    /// the model instead of raising an interrupt about it.
    ///
    /// ```
    /// let mut request = concentric_core::ChatRequest::user("hi");
    /// assert!(request.context.is_suspension_stored());
    /// request.context.set_stateless_caller();
    /// assert!(!request.context.is_suspension_stored());
    /// ```
    pub fn set_stateless_caller(&mut self) {
        self.extensions_mut().insert(StatelessCaller);
    }

    /// Whether the state of this run is kept if it ends with interrupts: by its caller, unless that is
    /// [stateless](Self::set_stateless_caller), or by a layer around the run or around a run that encloses it.
    pub fn is_suspension_stored(&self) -> bool {
        let mut all = std::iter::successors(Some(self), |context| context.parent());
        self.extensions().get::<StatelessCaller>().is_none()
            || all.any(|it| {
                it.region::<StoredRun>().is_some() || it.region::<SessionTurn>().is_some()
            })
    }
}
