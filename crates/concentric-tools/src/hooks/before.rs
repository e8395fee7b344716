use concentric_core::{Arguments, Str, ToolCall, ToolOutcome};
use std::ops::Deref;

/// A call that is about to be made, as [`ToolHooks::before`](super::ToolHooks::before) sees it.
///
/// Its arguments can be changed, and what travels with it; its id and the tool's name can't.
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

    /// Whether it is another than it was.
    pub(super) const fn is_edited(&self) -> bool {
        self.edited
    }

    /// Changes the arguments. They are checked again before the tool runs; if somebody, or a rule,
    /// has decided about the others, the call asks again.
    pub fn set_arguments(&mut self, arguments: impl Into<Arguments>) {
        self.edited = true;
        self.call.set_arguments(arguments.into());
    }

    /// Puts a value into the [extensions](concentric_core::Context::extensions) of the call's
    /// context, for inner layers and the tool; returns the one of that type that was there.
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

/// Whether a call goes on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Flow {
    /// It does.
    Continue,
    /// It does not: this is its outcome.
    Answer(ToolOutcome),
    /// It does not: it is denied, and the model is told why.
    Block(Str),
    /// It does not, and neither do the other calls of the round that have not started: the run ends
    /// once the round is closed, for this reason.
    Halt(Str),
}

impl Flow {
    /// Answers the call.
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
