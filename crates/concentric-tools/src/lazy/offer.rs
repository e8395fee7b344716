use crate::{Matcher, matcher::Matched};
use concentric_core::{CallId, Context, Str, ToolCall, ToolCallPart, ToolSpec, ToolSpecs};
use std::sync::Arc;

/// The position of a tool in the offered list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// At its original position.
    Always,
    /// After those, in ascending order: a later tool does not change the earlier part, which
    /// providers cache.
    Revealed(usize),
    /// Not offered.
    Hidden,
}

/// Removes hidden tools from `tools`; returns the names of the others if any was hidden.
pub(crate) fn offer(
    tools: &mut ToolSpecs,
    mut place: impl FnMut(&ToolSpec) -> Place,
) -> Option<Arc<[Str]>> {
    let mut offered = Vec::with_capacity(tools.len());
    let mut revealed = Vec::new();
    for spec in tools.iter() {
        match place(spec) {
            Place::Always => offered.push(Arc::clone(spec)),
            Place::Revealed(at) => revealed.push((at, Arc::clone(spec))),
            Place::Hidden => {}
        }
    }
    let all = tools.len();
    if offered.len() == all {
        return None;
    }
    revealed.sort_by_key(|(at, _)| *at);
    offered.extend(revealed.into_iter().map(|(_, spec)| spec));
    *tools = ToolSpecs::new(offered);
    (tools.len() < all).then(|| tools.iter().map(|spec| spec.name.clone()).collect())
}

/// Whether `matcher` matches the tool of `spec` for any arguments; `false` if the matcher fails or
/// is asynchronous.
pub(crate) fn is_about(matcher: &Matcher, spec: &Arc<ToolSpec>) -> bool {
    let call = ToolCallPart::new(CallId::new(""), spec.name.clone(), "{}");
    let call = ToolCall::new(call, Context::new()).with_spec(Arc::clone(spec));
    matches!(matcher.evaluate(&call), Matched::Now(Ok(true)))
}
