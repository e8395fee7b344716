use concentric_core::Capability;

/// The tokens that a request may have, in place of the limits of the layers that shorten conversations.
///
/// A layer or a host provides it, so that the limit follows a switch of the model; a session derives it from
/// its agent (`MakeSession::context_budget`).
///
/// ```
/// use concentric_core::ChatRequest;
/// use concentric_layers::tokens::ContextBudget;
///
/// fn is_too_long(request: &ChatRequest, tokens: u64) -> bool {
///     let budget = request.context.capability::<ContextBudget>();
///     budget.is_some_and(|budget| tokens > budget.0)
/// }
/// # let _ = is_too_long;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextBudget(pub u64);

impl Capability for ContextBudget {}
