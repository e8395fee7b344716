//! What a run carries with it: who it is, when it must end, and how to reach its stream.
//!
//! Every [`ChatRequest`](crate::ChatRequest), [`ToolRound`](crate::ToolRound) and
//! [`ToolCall`](crate::ToolCall) has a [`Context`]. It is a handle: clones speak of the same run.
//! It is never serialised.
//!
//! ```
//! use concentric_core::{CancelReason, ChatRequest};
//!
//! let request = ChatRequest::user("hi");
//! let context = request.context.clone();
//! // Later, from anywhere: the model stream, the running tools and any wait of the run stop.
//! context.cancel(CancelReason::User);
//! assert_eq!(request.context.cancel_reason(), Some(CancelReason::User));
//! ```

mod build;
mod cancel;
mod deferred;
mod head;
mod place;
mod stream;
mod time;

pub use self::{build::ContextBuilder, head::HeadHold};
pub use crate::{
    environment::{Clock, Environment, Ids, Random, Sleep},
    outbox::EmitError,
};

pub(crate) use self::{cancel::cancelled, deferred::Release};

use self::{build::RunIds, deferred::Deferred, head::Holds};
use crate::{
    hub::LiveInterrupts,
    marks::{Marks, Noted},
    outbox::Outbox,
    slots::Slots,
};
use concentric_proto::{
    CallId, CancelReason, MessageId, Phase, RequestId, RunId, Str, StreamId, ThreadId,
};
use std::{
    fmt,
    sync::{
        Arc, LazyLock, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::SystemTime,
};
use tokio_util::sync::CancellationToken;

/// A handle to a run, and where in the run its holder stands.
///
/// See the [module docs](self).
#[derive(Clone)]
pub struct Context {
    run: Arc<Run>,
    local: Option<Arc<Local>>,
    phase: Phase,
    // With 16 bits the handle has the size of three pointers.
    depth: u16,
    step: u32,
}

/// The rest of a context that differs within its run. Clones share it until one of them is changed.
#[derive(Clone)]
struct Local {
    message_id: Option<MessageId>,
    // The position of the call in its message, and its id.
    call: Option<(usize, CallId)>,
    extensions: Values,
    own: Values,
    // The marks of the layers outside.
    marks: Marks,
}

impl Local {
    const NONE: Self = Self {
        message_id: None,
        call: None,
        extensions: Values(None),
        own: Values(None),
        marks: Marks::NONE,
    };
}

/// Values of any type, which contexts share until one of them is changed: a clone does not call the
/// `Clone` of a value, which may be slow, or panic.
#[derive(Clone, Default)]
struct Values(Option<Arc<http::Extensions>>);

impl Values {
    fn new(values: http::Extensions) -> Self {
        Self((!values.is_empty()).then(|| Arc::new(values)))
    }

    fn get(&self) -> &http::Extensions {
        static NONE: LazyLock<http::Extensions> = LazyLock::new(http::Extensions::new);
        self.0.as_deref().unwrap_or(&NONE)
    }

    fn get_mut(&mut self) -> &mut http::Extensions {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

struct Run {
    ids: RunIds,
    // Boxed, since few runs have one.
    parent: Option<Box<Context>>,
    cancel: CancellationToken,
    cancel_reason: OnceLock<CancelReason>,
    deadline: Option<SystemTime>,
    environment: Environment,
    outbox: Outbox,
    events: AtomicU64,
    effects: AtomicU64,
    deferred: Mutex<Vec<Deferred>>,
    holds: Holds,
    // Made when somebody asks something.
    live: OnceLock<LiveInterrupts>,
    // Made when somebody asks for a slot.
    slots: OnceLock<Slots>,
    // Made when a layer inside of a model call expects something of those inside of it.
    noted: OnceLock<Noted>,
    // How many loops drive the run: nested ones, and attempts at the same call.
    drivers: AtomicUsize,
    had_outcome: AtomicBool,
}

impl Context {
    #[inline]
    fn local(&self) -> &Local {
        static NONE: Local = Local::NONE;
        self.local.as_deref().unwrap_or(&NONE)
    }

    fn local_mut(&mut self) -> &mut Local {
        Arc::make_mut(self.local.get_or_insert_with(|| Arc::new(Local::NONE)))
    }

    #[inline]
    pub(crate) fn marks(&self) -> &Marks {
        &self.local().marks
    }

    pub(crate) fn marks_mut(&mut self) -> &mut Marks {
        &mut self.local_mut().marks
    }

    /// The agent that runs (`gen_ai.agent.name`).
    pub fn agent(&self) -> Option<&Str> {
        self.run.ids.agent.as_ref()
    }

    /// The run.
    pub fn run_id(&self) -> &RunId {
        // `build` always sets it.
        static NONE: LazyLock<RunId> = LazyLock::new(|| RunId::new(""));
        self.run.ids.run.as_ref().unwrap_or(&NONE)
    }

    /// The conversation that the run belongs to; `None` unless whoever made the request has set it
    /// ([`ContextBuilder::thread_id`]), as the AG-UI server does. Runs inside this one have the same.
    pub fn thread_id(&self) -> Option<&ThreadId> {
        self.run.ids.thread.as_ref()
    }

    /// The HTTP request that started the run; `None` unless the server has set it
    /// ([`ContextBuilder::request_id`]). Runs inside this one have the same.
    pub fn request_id(&self) -> Option<&RequestId> {
        self.run.ids.request.as_ref()
    }

    /// The stream that the run's events go out on; `None` unless the server has set it
    /// ([`ContextBuilder::stream_id`]). A run inside this one has none: its events go out on this
    /// run's stream.
    pub fn stream_id(&self) -> Option<&StreamId> {
        self.run.ids.stream.as_ref()
    }

    /// The run that this one is part of.
    pub fn parent(&self) -> Option<&Self> {
        self.run.parent.as_deref()
    }

    /// Values of any type that travel with the request, put there by whoever made it.
    pub fn extensions(&self) -> &http::Extensions {
        self.local().extensions.get()
    }

    /// The same, to be changed; clones made before don't see it.
    ///
    /// Clones share the values: where there are others, each value is cloned first.
    pub fn extensions_mut(&mut self) -> &mut http::Extensions {
        self.local_mut().extensions.get_mut()
    }

    /// Values of this run only, as gates and layers that just one run has. A run
    /// [inside](Self::child) it has [`extensions`](Self::extensions), and not these.
    pub fn own(&self) -> &http::Extensions {
        self.local().own.get()
    }

    /// The same, to be changed; clones made before don't see it.
    ///
    /// Clones share the values: where there are others, each value is cloned first.
    pub fn own_mut(&mut self) -> &mut http::Extensions {
        self.local_mut().own.get_mut()
    }

    /// Takes a value out of what is the run's [own](Self::own).
    pub(crate) fn take_own<T>(&mut self) -> Option<T>
    where
        T: Clone + Send + Sync + 'static,
    {
        // Most runs have none, which needs no values of their own.
        self.own().get::<T>()?;
        self.own_mut().remove()
    }

    /// The clock, ids and randomness of the run.
    pub fn environment(&self) -> &Environment {
        &self.run.environment
    }

    /// A new id: `prefix` and 18 characters.
    pub fn new_id(&self, prefix: &str) -> Str {
        self.run.environment.ids().next(prefix)
    }

    /// How many tool calls that may change something were started in this run, and in the runs
    /// inside it, and how many decisions were [remembered](crate::store::Decisions).
    ///
    /// A retry of a whole run compares it before and after an attempt: once it has moved, another
    /// attempt may do things twice, whatever the error that came back says of its
    /// [`effects`](crate::Error::effects); a layer in between may have replaced it.
    pub fn effect_count(&self) -> u64 {
        self.run.effects.load(Ordering::Acquire)
    }

    /// Counts one more such call or decision, in this run and in those that it is part of.
    ///
    /// For a round service that [counts its calls itself](crate::ToolRound::counts_effects), as
    /// `Toolset` of `concentric-tools` does: before anything of the call runs that may have an effect.
    pub fn count_effect(&self) {
        self.count_effects(1);
    }

    pub(crate) fn count_effects(&self, calls: u64) {
        self.run.effects.fetch_add(calls, Ordering::AcqRel);
        if let Some(parent) = self.parent() {
            parent.count_effects(calls);
        }
    }

    /// The values of the run's own slots.
    pub(crate) fn run_slots(&self) -> &Slots {
        self.run.slots.get_or_init(Slots::new)
    }

    /// The same, if somebody has asked for one.
    pub(crate) fn slots_of_run(&self) -> Option<&Slots> {
        self.run.slots.get()
    }

    pub(crate) fn noted(&self) -> Option<&Noted> {
        self.run.noted.get()
    }

    pub(crate) fn noted_or_new(&self) -> &Noted {
        self.run.noted.get_or_init(Noted::default)
    }
}

impl Default for Context {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Extensions hold what the host put there, which may be secret.
        f.debug_struct("Context")
            .field("agent", &self.run.ids.agent)
            .field("run", &self.run.ids.run)
            .field("thread", &self.run.ids.thread)
            .field("phase", &self.phase)
            .field("step", &self.step)
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each request, round and call has one, and each layer moves it.
    #[test]
    fn a_context_has_the_size_of_three_pointers() {
        assert!(size_of::<Context>() <= 24);
    }
}
