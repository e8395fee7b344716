use crate::{Tool, tool::ToolFuture};
use concentric_core::{Error, Refusal, Seal, Str, ToolCall, ToolOutcome};
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

pub(super) struct Table {
    // Sorted by name.
    tools: Vec<Tool>,
    // In the order they were added.
    names: Arc<[Str]>,
    /// Marks the calls of rounds.
    pub(super) seal: Seal,
}

impl Table {
    pub(super) fn new(mut tools: Vec<Tool>, seal: Seal) -> Self {
        let names = tools.iter().map(|tool| tool.spec().name.clone()).collect();
        tools.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
        Self { tools, names, seal }
    }

    pub(super) fn names(&self) -> Arc<[Str]> {
        Arc::clone(&self.names)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tool> {
        let by_name = |tool: &Tool| tool.spec().name.as_str().cmp(name);
        let at = self.tools.binary_search_by(by_name).ok()?;
        self.tools.get(at)
    }
}

/// The service inside a toolset's layers: dispatches a call to its tool.
#[derive(Clone)]
pub(crate) struct Router {
    table: Arc<Table>,
}

impl Router {
    pub(super) const fn new(table: Arc<Table>) -> Self {
        Self { table }
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
        if let Some(outcome) = call.settled() {
            return ToolFuture::answered(outcome.clone());
        }
        match self.table.get(call.name()) {
            Some(tool) => tool.start(call),
            None => {
                let refusal = Refusal::NotOffered(self.table.names());
                ToolFuture::answered(refusal.outcome(call.part()))
            }
        }
    }
}
