use concentric_core::{Arguments, Str, ToolCall, ToolOutcome};
use std::ops::Deref;

/// A call before it is made, for [`ToolHooks::before`](super::ToolHooks::before).
///
/// Its arguments and extensions can be changed; its id and its tool's name cannot.
#[derive(Debug)]
pub struct BeforeCall {
    call: ToolCall,
    edited: bool,
}

impl BeforeCall {
    pub(super) const fn new(call: ToolCall) -> Self {
        Self {
            call,
            edited: false,
        }
    }

    pub(super) fn into_inner(self) -> ToolCall {
        self.call
    }

    pub(super) const fn is_edited(&self) -> bool {
        self.edited
    }

    /// Changes the arguments. They are validated again before the tool runs; if a gate or an
    /// approver had decided about the old ones, the call requires another approval.
    pub fn set_arguments(&mut self, arguments: impl Into<Arguments>) {
        self.edited = true;
        self.call.set_arguments(arguments.into());
    }

    /// Inserts a value into the [extensions](concentric_core::Context::extensions) of the call's
    /// context, for inner layers and the tool; returns the previous value of that type.
    pub fn insert<T>(&mut self, value: T) -> Option<T>
    where
        T: Clone + Send + Sync + 'static,
    {
        self.edited = true;
        self.call.context.extensions_mut().insert(value)
    }
}

impl Deref for BeforeCall {
    type Target = ToolCall;

    fn deref(&self) -> &ToolCall {
        &self.call
    }
}

/// Whether a call continues.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Flow {
    /// Continues with the inner layers.
    Continue,
    /// Answers the call with this outcome.
    Answer(ToolOutcome),
    /// Denies the call; the model receives the reason.
    Block(Str),
    /// Denies the call and all calls of the round that have not started, and ends the run after the
    /// round for this reason.
    Halt(Str),
}

impl Flow {
    /// Answers the call with an outcome.
    pub const fn answer(outcome: ToolOutcome) -> Self {
        Self::Answer(outcome)
    }

    /// Denies the call.
    pub fn block(reason: impl Into<Str>) -> Self {
        Self::Block(reason.into())
    }

    /// Ends the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }
}
