//! The context of a run: its identity, deadline, cancellation and stream.
//!
//! Every [`ChatRequest`](crate::ChatRequest), [`ToolRound`](crate::ToolRound) and
//! [`ToolCall`](crate::ToolCall) has a [`Context`]: a handle, whose clones refer to the same run.
//! A context is never serialised.
//!
//! ```
//! use concentric_core::{CancelReason, ChatRequest};
//!
//! let request = ChatRequest::user("hi");
//! let context = request.context.clone();
//! // Later, on any thread: the model's stream, the running tools and the waits of the run stop.
//! context.cancel(CancelReason::User);
//! assert_eq!(request.context.cancel_reason(), Some(CancelReason::User));
//! ```

mod build;
mod cancel;
mod closed;
mod deferred;
mod effects;
mod head;
mod place;
mod stream;
mod time;
mod usage;

pub use self::{
    build::ContextBuilder, closed::ClosedTranscript, effects::EffectHold, head::HeadHold,
};
pub use crate::{
    environment::{Clock, Environment, Ids, Random, Sleep},
    outbox::EmitError,
};

pub(crate) use self::{cancel::cancelled, deferred::Release};

use self::{build::RunIds, cancel::Cancel, deferred::Deferred, head::Holds, usage::Recorded};
use crate::{
    hub::InterruptHub,
    marks::{Marks, Noted},
    outbox::Outbox,
    slots::Slots,
};
use concentric_proto::{CallId, MessageId, Phase, RequestId, RunId, Str, StreamId, ThreadId};
use std::{
    any::Any,
    fmt,
    sync::{
        Arc, LazyLock, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::SystemTime,
};

/// A handle to a run, with a position in it: a step, a round or a tool call.
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
    // The gates and tool layers of the run, whose types are defined in terms of contexts.
    gates: Option<Opaque>,
    tool_layers: Option<Opaque>,
    // The marks of the layers outside.
    marks: Marks,
    // The cancellation of a call that other runs wait for as well.
    shared: Option<Arc<Cancel>>,
}

impl Local {
    const NONE: Self = Self {
        message_id: None,
        call: None,
        extensions: Values(None),
        gates: None,
        tool_layers: None,
        marks: Marks::NONE,
        shared: None,
    };
}

type Opaque = Arc<dyn Any + Send + Sync>;

/// Values of any type, shared by contexts until one of them changes its own: cloning a context does
/// not clone the values, which may be slow or panic.
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
    cancel: Cancel,
    deadline: Option<SystemTime>,
    environment: Environment,
    outbox: Outbox,
    events: AtomicU64,
    effects: AtomicU64,
    deferred: Mutex<Vec<Deferred>>,
    holds: Holds,
    // Created with the first interrupt.
    live: OnceLock<InterruptHub>,
    // Created at the first use of a slot.
    slots: OnceLock<Slots>,
    // Created when a layer inside a model call has an expectation of the layers inside it.
    noted: OnceLock<Noted>,
    // Created when a model records its usage.
    usage: OnceLock<Box<Recorded>>,
    // The number of loops that drive the run: nested loops, and attempts at the same call.
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

    /// The name of the agent (`gen_ai.agent.name`).
    pub fn agent(&self) -> Option<&Str> {
        self.run.ids.agent.as_ref()
    }

    /// The id of the run: the one that its creator set, or a new one, created when it is first read.
    pub fn run_id(&self) -> &RunId {
        let new_id = || RunId::new(self.new_id("run_"));
        self.run.ids.run.get_or_init(new_id)
    }

    /// The id of the conversation; `None` unless the creator of the request set it
    /// ([`ContextBuilder::thread_id`]), as the AG-UI server does. Nested runs have the same. No id is
    /// created, since no later request could belong to that conversation.
    pub fn thread_id(&self) -> Option<&ThreadId> {
        self.run.ids.thread.as_ref()
    }

    /// The id of the request that started the run: the one that the server set
    /// ([`ContextBuilder::request_id`]), or a new one, created when it is first read. Nested runs have
    /// the same.
    pub fn request_id(&self) -> &RequestId {
        match (self.run.ids.request.get(), self.parent()) {
            (Some(id), _) => id,
            (None, Some(outer)) => outer.request_id(),
            (None, None) => {
                let new_id = || RequestId::new(self.new_id("req_"));
                self.run.ids.request.get_or_init(new_id)
            }
        }
    }

    /// The id of the stream that delivers the run's events: the one that the server set
    /// ([`ContextBuilder::stream_id`]), or a new one, created when it is first read. The stream of the
    /// outermost run delivers the events of nested runs, unless they have their own.
    pub fn stream_id(&self) -> &StreamId {
        match (self.run.ids.stream.get(), self.parent()) {
            (Some(id), _) => id,
            (None, Some(outer)) => outer.stream_id(),
            (None, None) => {
                let new_id = || StreamId::new(self.new_id("stream_"));
                self.run.ids.stream.get_or_init(new_id)
            }
        }
    }

    /// The context of the run around this one.
    pub fn parent(&self) -> Option<&Self> {
        self.run.parent.as_deref()
    }

    /// Values of any type that travel with the request.
    pub fn extensions(&self) -> &http::Extensions {
        self.local().extensions.get()
    }

    /// The [`extensions`](Self::extensions), if there are any.
    #[inline]
    pub(crate) fn own_extensions(&self) -> Option<&http::Extensions> {
        self.local.as_deref()?.extensions.0.as_deref()
    }

    /// Mutable access to the [`extensions`](Self::extensions); earlier clones of the context keep the
    /// values they have.
    ///
    /// Clones share the values, so each value is cloned first if there are other clones.
    pub fn extensions_mut(&mut self) -> &mut http::Extensions {
        self.local_mut().extensions.get_mut()
    }

    /// The gates that apply to the run beyond those of its agent; a nested run inherits them.
    pub(crate) fn gates(&self) -> Option<&Opaque> {
        self.local().gates.as_ref()
    }

    pub(crate) fn set_gates(&mut self, gates: Opaque) {
        self.local_mut().gates = Some(gates);
    }

    /// The layers around the run's tool calls beyond those of its agent.
    pub(crate) fn layers(&self) -> Option<&Opaque> {
        self.local().tool_layers.as_ref()
    }

    pub(crate) fn set_layers(&mut self, layers: Opaque) {
        self.local_mut().tool_layers = Some(layers);
    }

    /// The run's source of time, ids and randomness.
    pub fn environment(&self) -> &Environment {
        &self.run.environment
    }

    /// Creates an id: `prefix` and 18 characters.
    pub fn new_id(&self, prefix: &str) -> Str {
        self.run.environment.ids().next(prefix)
    }

    /// The number of started tool calls that are not read-only, and of decisions that were
    /// [stored](crate::store::Decisions), in this run and in nested runs.
    ///
    /// A layer that retries whole runs compares the count before and after an attempt: if it has
    /// grown, another attempt may repeat an effect, whatever the [`effects`](crate::Error::effects) of
    /// the error are, since a layer in between may have replaced the error.
    pub fn effect_count(&self) -> u64 {
        self.run.effects.load(Ordering::Acquire)
    }

    /// Increments the [`effect_count`](Self::effect_count) of this run and of the runs around it.
    ///
    /// For a round service that [counts its calls itself](crate::ToolRound::counts_effects), such as
    /// `Toolset` of `concentric-tools`, which does so before it starts any part of a call that may have
    /// an effect.
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

    /// The values of the run's own slots, if one was used.
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
        // Extensions are omitted, since the host may store secrets in them.
        f.debug_struct("Context")
            .field("agent", &self.run.ids.agent)
            .field("run", &self.run.ids.run.get())
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
