//! The requests of tool services and round services.

use crate::context::Context;
use concentric_proto::{
    Answered, Arguments, CallId, Origin, Permit, Refusal, RoundCall, Str, ToolCallPart,
    ToolOutcome, ToolSpec, ToolStatus, Transcript,
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

/// A batch of tool calls that a model made in one answer: the request of a
/// [`RoundService`](crate::RoundService).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolRound {
    /// The calls, in the order the model made them.
    pub calls: Vec<RoundCall>,
    /// The conversation before the message that makes them.
    pub transcript: Transcript,
    /// The run they belong to.
    pub context: Context,
    // How many of the calls that may change something the receiver counts itself; made by the loop.
    counted: Option<Arc<AtomicU64>>,
}

impl ToolRound {
    /// Creates a batch of calls, at the beginning of a conversation.
    pub fn new(calls: Vec<RoundCall>, context: Context) -> Self {
        Self {
            calls,
            transcript: Transcript::new(),
            context,
            counted: None,
        }
    }

    /// Says what was said before.
    #[must_use]
    pub fn after(mut self, transcript: Transcript) -> Self {
        self.transcript = transcript;
        self
    }

    /// Says that the receiver counts each call that may change something when it starts it, by
    /// [`Context::count_effect`].
    ///
    /// Otherwise all of them count once the round is handed over: if the run's consumer leaves then,
    /// nobody knows that none had started, and replies that were accepted are not given back. It has
    /// no effect after the first poll of the round service's future.
    pub fn counts_effects(&self) {
        if let Some(counted) = &self.counted {
            counted.fetch_add(self.effects(), Ordering::AcqRel);
        }
    }

    /// How many calls may change something.
    pub(crate) fn effects(&self) -> u64 {
        let is_read_only = |call: &RoundCall| {
            let spec = call.spec.as_ref();
            spec.is_some_and(|spec| spec.annotations.read_only)
        };
        let calls = self.calls.iter();
        let effects = calls.filter(|call| call.refusal.is_none() && !is_read_only(call));
        effects.count() as u64
    }

    /// How many of them the receiver will count itself.
    pub(crate) fn share_count(&mut self) -> Arc<AtomicU64> {
        Arc::clone(self.counted.get_or_insert_default())
    }
}

/// One tool call: the request of a [`ToolService`](crate::ToolService).
///
/// A layer may change its arguments, and nothing else of it.
#[derive(Clone, Debug)]
pub struct ToolCall {
    // Shared by the clones, since each layer moves the call, and may keep one.
    call: Arc<CallData>,
    /// The run it belongs to, with the call's own idempotency key. A layer may add to its
    /// [extensions](Context::extensions); it is not to put another context here.
    pub context: Context,
}

#[derive(Clone, Debug)]
struct CallData {
    part: ToolCallPart,
    spec: Option<Arc<ToolSpec>>,
    refusal: Option<Refusal>,
    permit: Permit,
    answered: Option<Box<Answered>>,
    origin: Origin,
    recovered: bool,
    position: usize,
    seal: Option<Seal>,
    attempts: Option<Attempts>,
    transcript: Transcript,
}

impl ToolCall {
    /// Creates a call, which is part of no round: for a tool that is called by itself.
    pub fn new(call: ToolCallPart, context: Context) -> Self {
        Self {
            call: Arc::new(CallData {
                part: call,
                spec: None,
                refusal: None,
                permit: Permit::Any,
                answered: None,
                origin: Origin::Live,
                recovered: false,
                position: 0,
                seal: None,
                attempts: Some(Attempts::new()),
                transcript: Transcript::new(),
            }),
            context,
        }
    }

    /// Creates the call that a round service makes of `call`.
    pub fn of_round(
        call: RoundCall,
        permit: Permit,
        transcript: Transcript,
        context: &Context,
    ) -> Self {
        Self {
            context: context.at_call(&call),
            call: Arc::new(CallData {
                origin: call.origin(),
                part: call.call,
                spec: call.spec,
                refusal: call.refusal,
                permit,
                answered: call.answered,
                recovered: call.recovered,
                position: call.position,
                seal: None,
                attempts: None,
                transcript,
            }),
        }
    }

    /// Marks the call as one of the round service that has `seal`.
    #[must_use]
    pub fn sealed(mut self, seal: &Seal) -> Self {
        self.data_mut().seal = Some(seal.clone());
        self
    }

    /// Records the attempts at the call in `attempts`, which clones of the call share.
    #[must_use]
    pub fn with_attempts(mut self, attempts: Attempts) -> Self {
        self.data_mut().attempts = Some(attempts);
        self
    }

    /// The attempts at the call, if they are recorded.
    pub fn attempts(&self) -> Option<&Attempts> {
        self.call.attempts.as_ref()
    }

    fn data_mut(&mut self) -> &mut CallData {
        Arc::make_mut(&mut self.call)
    }

    /// Sets the tool that is called.
    #[must_use]
    pub fn with_spec(mut self, spec: Arc<ToolSpec>) -> Self {
        self.data_mut().spec = Some(spec);
        self
    }

    /// The call as it is now.
    pub fn part(&self) -> &ToolCallPart {
        &self.call.part
    }

    /// The call's id.
    pub fn id(&self) -> &CallId {
        &self.call.part.id
    }

    /// The tool's name.
    pub fn name(&self) -> &Str {
        &self.call.part.name
    }

    /// The arguments.
    pub fn arguments(&self) -> &Arguments {
        &self.call.part.arguments
    }

    /// Changes the arguments. They are checked again before the tool runs; if somebody, or a rule,
    /// has decided about the others, the call asks again.
    pub fn set_arguments(&mut self, arguments: Arguments) {
        self.data_mut().part.arguments = arguments;
    }

    /// The tool that is called, if there is one of that name.
    pub fn spec(&self) -> Option<&Arc<ToolSpec>> {
        self.call.spec.as_ref()
    }

    /// Why the loop does not let the call run.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.call.refusal.as_ref()
    }

    /// What the round service lets it do.
    pub fn permit(&self) -> &Permit {
        &self.call.permit
    }

    /// What came of it already, if it is only shown to the layers: it was refused or denied, or
    /// somebody else executed it.
    pub fn settled(&self) -> Option<&ToolOutcome> {
        match &self.call.permit {
            Permit::Settled(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// What became of it, if it waited.
    pub fn answered(&self) -> Option<&Answered> {
        self.call.answered.as_deref()
    }

    /// Whether it is made for the first time.
    pub fn origin(&self) -> Origin {
        self.call.origin
    }

    /// Whether it was started before, in a process that died.
    pub fn is_recovered(&self) -> bool {
        self.call.recovered
    }

    /// Whether it is a call that was [sealed](Self::sealed) with `seal`, and still has the context
    /// of its own that names its effect.
    pub fn is_sealed(&self, seal: &Seal) -> bool {
        let of = self.call.seal.as_ref();
        of.is_some_and(|of| Arc::ptr_eq(&of.0, &seal.0))
            && self
                .context
                .is_at_call(self.call.position, &self.call.part.id)
    }

    /// The conversation before the message that makes the call.
    pub fn transcript(&self) -> &Transcript {
        &self.call.transcript
    }
}

/// Marks the calls that a round service has made as its own, so that it knows them again at the
/// other end of its layers. Who has no seal can't mark a call.
#[derive(Clone, Debug, Default)]
pub struct Seal(Arc<()>);

impl Seal {
    /// Creates a seal unlike any other.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The attempts at one tool call, shared by the clones of the call.
///
/// A layer may drop an attempt that has started, and then return an error or an outcome of its own.
/// Whoever made the call learns here that the tool may have taken effect all the same.
#[derive(Clone, Debug, Default)]
pub struct Attempts(Arc<AttemptCounts>);

#[derive(Debug, Default)]
struct AttemptCounts {
    /// Attempts that have started, and have not ended with a known outcome.
    open: AtomicUsize,
    /// An attempt has taken effect.
    done: AtomicBool,
    /// The last attempt that ended returned an error of the tool.
    error: AtomicBool,
}

impl Attempts {
    /// Creates a record of no attempts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that the tool starts to execute the call.
    pub fn start(&self) -> Attempt {
        self.0.error.store(false, Ordering::Release);
        self.0.open.fetch_add(1, Ordering::AcqRel);
        Attempt(self.clone())
    }

    /// Whether an attempt has started, and has not ended with a known outcome.
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire) > 0
    }

    /// Whether an attempt ended with [`ToolStatus::Done`].
    pub fn is_done(&self) -> bool {
        self.0.done.load(Ordering::Acquire)
    }

    /// Whether the last attempt that ended returned an error of the tool, rather than an outcome
    /// that reports a failure.
    pub fn ended_with_error(&self) -> bool {
        self.0.error.load(Ordering::Acquire)
    }
}

/// One attempt at a tool call. Dropping it leaves the attempt [open](Attempts::is_open).
#[derive(Debug)]
#[must_use = "an attempt that is dropped has no known outcome"]
pub struct Attempt(Attempts);

impl Attempt {
    /// Ends the attempt with an outcome of `status`; [`ToolStatus::Unknown`] leaves it open.
    /// `with_error` states that the tool returned an error.
    pub fn end(self, status: ToolStatus, with_error: bool) {
        let counts = &self.0.0;
        if status == ToolStatus::Unknown {
            return;
        }
        if status == ToolStatus::Done {
            counts.done.store(true, Ordering::Release);
        }
        counts.error.store(with_error, Ordering::Release);
        counts.open.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each layer moves it.
    #[test]
    fn a_call_has_the_size_of_a_pointer_and_a_context() {
        assert!(size_of::<ToolCall>() <= 40);
    }
}
