use crate::{Tool, tool::ToolFuture};
use concentric_core::{Error, Refusal, Str, ToolCall, ToolOutcome};
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// Tools by name.
pub(super) struct Table {
    // In the order of their names.
    tools: Vec<Tool>,
    // As they were added.
    names: Vec<Str>,
}

impl Table {
    pub(super) fn new(mut tools: Vec<Tool>) -> Self {
        let names = tools.iter().map(|tool| tool.spec().name.clone()).collect();
        tools.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
        Self { tools, names }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tool> {
        let by_name = |tool: &Tool| tool.spec().name.as_str().cmp(name);
        let at = self.tools.binary_search_by(by_name).ok()?;
        self.tools.get(at)
    }
}

/// What a toolset's layers stand around: finds the tool of a call, and answers for none.
#[derive(Clone)]
pub(super) struct Router(Arc<Table>);

impl Router {
    pub(super) const fn new(table: Arc<Table>) -> Self {
        Self(table)
    }
}

impl Service<ToolCall> for Router {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = ToolFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> ToolFuture {
        let name = &call.call.name;
        if let Some(refusal) = &call.refusal {
            return ToolFuture::answered(refusal.outcome(&call.call));
        }
        let Some(tool) = self.0.get(name) else {
            let refusal = Refusal::NotOffered(self.0.names.clone());
            return ToolFuture::answered(refusal.outcome(&call.call));
        };
        // Layers decided about the tool that the call was made to.
        if call.spec.as_ref().is_some_and(|spec| spec.name != *name) {
            tracing::warn!(tool = name.as_str(), "a layer changed which tool is called");
            return ToolFuture::answered(ToolOutcome::failed(Str::from_static(
                "The call was changed on its way to the tool, so it was not run.",
            )));
        }
        tool.start(call)
    }
}
