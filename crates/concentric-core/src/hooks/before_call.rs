use crate::tool_call::ToolCall;
use concentric_proto::Arguments;
use std::ops::Deref;

/// A call before it is made, for [`Hooks::before_call`](super::Hooks::before_call).
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

    /// Inserts a value into the [extensions](crate::Context::extensions) of the call's
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
