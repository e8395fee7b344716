use crate::{Matcher, matcher::Matched};
use concentric_core::{CallId, Context, Str, ToolCall, ToolCallPart, ToolSpec, ToolSpecs};
use std::sync::Arc;

/// Where a tool stands in what a step offers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Where it stood.
    Always,
    /// Behind those, the lowest first: what comes later changes nothing before it, which providers
    /// have in their caches.
    Revealed(usize),
    /// Not in it.
    Hidden,
}

/// Leaves in `tools` what is not hidden, and returns the names of these, if something is.
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

/// Whether `matcher` is about the tool of `spec`, whatever the arguments; if that can't be told, it
/// is not.
pub(crate) fn is_about(matcher: &Matcher, spec: &Arc<ToolSpec>) -> bool {
    let call = ToolCallPart::new(CallId::new(""), spec.name.clone(), "{}");
    let call = ToolCall::new(call, Context::new()).with_spec(Arc::clone(spec));
    matches!(matcher.matches(&call), Matched::Now(Ok(true)))
}
