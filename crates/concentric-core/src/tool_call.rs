//! The requests of tool services and round services.

use crate::context::Context;
use concentric_proto::{
    Arguments, CallId, Clearance, Delivery, Refusal, Reply, RoundCall, Str, ToolCallPart,
    ToolOutcome, ToolSpec, ToolStatus, Transcript,
    call::{CallResume, CallState},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

/// The tool calls of one model answer: the request of a
/// [`RoundService`](crate::RoundService).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolRound {
    /// The calls, in the model's order.
    pub calls: Vec<RoundCall>,
    /// The conversation before the message with the calls.
    pub transcript: Transcript,
    /// The context of the round.
    pub context: Context,
    // The number of calls that the receiver counts itself; created by the loop.
    counted: Option<Arc<AtomicU64>>,
}

impl ToolRound {
    /// Creates a round at the beginning of a conversation.
    pub fn new(calls: Vec<RoundCall>, context: Context) -> Self {
        Self {
            calls,
            transcript: Transcript::new(),
            context,
            counted: None,
        }
    }

    /// Sets the conversation before the round.
    #[must_use]
    pub fn after(mut self, transcript: Transcript) -> Self {
        self.transcript = transcript;
        self
    }

    /// Declares that the receiver counts each call that is not read-only when it starts the call, by
    /// [`Context::count_effect`].
    ///
    /// Otherwise all of these calls are counted once the receiver has the round: if the run's consumer
    /// disconnects before any of them has started, the run cannot tell, and treats accepted replies as
    /// used. The declaration has no effect after the first poll of the round service's future.
    pub fn counts_effects(&self) {
        if let Some(counted) = &self.counted {
            counted.fetch_add(self.effects().into(), Ordering::AcqRel);
        }
    }

    /// The number of calls that are neither refused nor read-only.
    pub(crate) fn effects(&self) -> u32 {
        let is_read_only = |call: &RoundCall| {
            let spec = call.spec.as_ref();
            spec.is_some_and(|spec| spec.annotations.read_only)
        };
        let calls = self.calls.iter();
        let effects = calls.filter(|call| call.refusal().is_none() && !is_read_only(call));
        u32::try_from(effects.count()).unwrap_or(u32::MAX)
    }

    /// The number of calls that the receiver will count itself. Reuses the counter of an earlier
    /// round, unless that round is still in use.
    pub(crate) fn share_count(&mut self, earlier: Option<Arc<AtomicU64>>) -> Arc<AtomicU64> {
        let mut counted = earlier.unwrap_or_default();
        match Arc::get_mut(&mut counted) {
            Some(count) => *count.get_mut() = 0,
            None => counted = Arc::default(),
        }
        self.counted = Some(Arc::clone(&counted));
        counted
    }
}

/// One tool call: the request of a [`ToolService`](crate::ToolService).
///
/// A layer may change the arguments of a call, and nothing else.
#[derive(Clone, Debug)]
pub struct ToolCall {
    // Shared by the clones, since each layer moves the call, and may keep one.
    call: Arc<CallData>,
    /// The context of the call, which has its idempotency key. A layer may add
    /// [extensions](Context::extensions), and must not replace the context.
    pub context: Context,
}

#[derive(Clone, Debug)]
struct CallData {
    part: Arc<ToolCallPart>,
    spec: Option<Arc<ToolSpec>>,
    clearance: Clearance,
    state: CallState,
    position: usize,
    seal: Option<Seal>,
    attempts: Option<Attempts>,
    transcript: Transcript,
}

impl ToolCall {
    /// Creates a call outside a round, for a tool that is called directly.
    pub fn new(call: ToolCallPart, context: Context) -> Self {
        Self {
            call: Arc::new(CallData {
                part: Arc::new(call),
                spec: None,
                clearance: Clearance::Ungated,
                state: CallState::ready(false),
                position: 0,
                seal: None,
                attempts: Some(Attempts::new()),
                transcript: Transcript::new(),
            }),
            context,
        }
    }

    /// Creates the request of a tool service from a call of a round.
    pub fn of_round(
        call: RoundCall,
        clearance: Clearance,
        transcript: Transcript,
        context: &Context,
    ) -> Self {
        Self {
            context: context.at_call(&call),
            call: Arc::new(CallData {
                clearance,
                state: call.state,
                part: call.call,
                spec: call.spec,
                position: call.position,
                seal: None,
                attempts: None,
                transcript,
            }),
        }
    }

    /// Marks the call as created by the round service that has `seal`.
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

    /// The record of the attempts at the call, if there is one.
    pub fn attempts(&self) -> Option<&Attempts> {
        self.call.attempts.as_ref()
    }

    fn data_mut(&mut self) -> &mut CallData {
        Arc::make_mut(&mut self.call)
    }

    /// Sets the spec of the tool.
    #[must_use]
    pub fn with_spec(mut self, spec: Arc<ToolSpec>) -> Self {
        self.data_mut().spec = Some(spec);
        self
    }

    /// The call, with the current arguments.
    pub fn part(&self) -> &ToolCallPart {
        &self.call.part
    }

    /// The id of the call.
    pub fn id(&self) -> &CallId {
        &self.call.part.id
    }

    /// The name of the tool.
    pub fn name(&self) -> &Str {
        &self.call.part.name
    }

    /// The current arguments.
    pub fn arguments(&self) -> &Arguments {
        &self.call.part.arguments
    }

    /// Sets the arguments. They are validated again before the tool runs; if a person or a gate had
    /// decided about other arguments, the call requires another decision.
    pub fn set_arguments(&mut self, arguments: Arguments) {
        Arc::make_mut(&mut self.data_mut().part).arguments = arguments;
    }

    /// The spec of the tool, if a tool of that name exists.
    pub fn spec(&self) -> Option<&Arc<ToolSpec>> {
        self.call.spec.as_ref()
    }

    /// The reason why the loop refused the call, if it did.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.call.state.stage.refusal()
    }

    /// The clearance of the call by the round service.
    pub fn clearance(&self) -> &Clearance {
        &self.call.clearance
    }

    /// The outcome of a call that layers only observe, since it was refused or denied, or executed
    /// elsewhere.
    pub fn settled(&self) -> Option<&ToolOutcome> {
        match &self.call.clearance {
            Clearance::Settled(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// The state of the call before it was handed out.
    pub fn state(&self) -> &CallState {
        &self.call.state
    }

    /// The replies to a call that was suspended, with its suspension. `None` for a call that only a
    /// client's history claims to be suspended; it has [replies](Self::replies) as well.
    pub fn resumed(&self) -> Option<&CallResume> {
        self.call.state.resumed()
    }

    /// The replies that the call has received.
    pub fn replies(&self) -> &[Reply] {
        self.call.state.stage.replies()
    }

    /// Whether the call is executed for the first time or resumed.
    pub fn delivery(&self) -> Delivery {
        self.call.state.delivery()
    }

    /// Whether an earlier process started the call and ended without a recorded outcome.
    pub fn is_recovered(&self) -> bool {
        self.call.state.is_recovered()
    }

    /// Whether the call was [sealed](Self::sealed) with `seal`, and still has the context with its own
    /// idempotency key.
    pub fn is_sealed(&self, seal: &Seal) -> bool {
        let of = self.call.seal.as_ref();
        of.is_some_and(|of| Arc::ptr_eq(&of.0, &seal.0))
            && self
                .context
                .is_at_call(self.call.position, &self.call.part.id)
    }

    /// The conversation before the message with the call.
    pub fn transcript(&self) -> &Transcript {
        &self.call.transcript
    }
}

/// Marks the calls that a round service created, so that the service recognises them behind its
/// layers. Without the seal, a layer cannot mark a call.
#[derive(Clone, Debug, Default)]
pub struct Seal(Arc<()>);

impl Seal {
    /// Creates a unique seal.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The attempts at one tool call, shared by the clones of the call.
///
/// A layer may drop an attempt that has started, and then return an error or an outcome of its own.
/// The record shows the caller that the tool may have taken effect nevertheless.
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
    /// Creates a record without attempts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that the tool starts to execute the call.
    pub fn start(&self) {
        self.0.error.store(false, Ordering::Release);
        self.0.open.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that a started attempt ended with an outcome of `status`; [`ToolStatus::Unknown`] leaves it
    /// open. `with_error` states that the tool returned an error.
    pub fn end(&self, status: ToolStatus, with_error: bool) {
        if status == ToolStatus::Unknown {
            return;
        }
        if status == ToolStatus::Done {
            self.0.done.store(true, Ordering::Release);
        }
        self.0.error.store(with_error, Ordering::Release);
        self.0.open.fetch_sub(1, Ordering::AcqRel);
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

#[cfg(test)]
mod tests {
    use super::*;

    // Each layer moves it.
    #[test]
    fn a_call_has_the_size_of_a_pointer_and_a_context() {
        assert!(size_of::<ToolCall>() <= 40);
    }
}
