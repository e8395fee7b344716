//! Tools without the machinery of tools.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error};
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use serde_json::json;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let tools = ScriptedTools::new().answers("search", "42");
//! let agent = ServiceBuilder::new().layer(AgentLayer::new(tools.clone())).service(
//!     ScriptedModel::new()
//!         .tool_call("search", json!({ "query": "the answer" }))
//!         .then()
//!         .text("It is 42."),
//! );
//!
//! let answer = agent.oneshot(ChatRequest::user("What is the answer?")).await?.collect().await?;
//! assert_eq!(answer.text(), "It is 42.");
//! assert_eq!(tools.calls()[0].arguments.as_str(), r#"{"query":"the answer"}"#);
//! # Ok(())
//! # }
//! ```

use concentric_core::{
    BoxTool, Error, Refusal, Settled, Str, ToolCall, ToolCallPart, ToolContent, ToolOutcome,
    ToolRound, ToolService, ToolSource, ToolSpec, ToolSpecs,
};
use futures_util::{
    FutureExt, Stream,
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use serde_json::json;
use std::{
    fmt,
    future::{Future, Ready, ready},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};
use tower::{ServiceExt, service_fn};
use tower_service::Service;

/// A round service that runs the calls of a round all at once, and remembers them.
///
/// It is for tests of the loop, and of layers around it. Clones share the memory. See the
/// [module docs](self) for an example.
#[derive(Clone, Debug, Default)]
pub struct ScriptedTools {
    tools: Vec<(Arc<ToolSpec>, BoxTool)>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    calls: Vec<ToolCallPart>,
    live: usize,
    done: usize,
    dropped: usize,
}

impl ScriptedTools {
    /// Creates a round service without tools.
    pub fn new() -> Self {
        Self::default()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a tool that answers `content`.
    #[must_use]
    pub fn answers(self, name: impl Into<Str>, content: impl Into<ToolContent>) -> Self {
        let outcome = ToolOutcome::done(content);
        self.tool(name, move |_| ready(outcome.clone()))
    }

    /// Adds a tool that never answers.
    #[must_use]
    pub fn never(self, name: impl Into<Str>) -> Self {
        self.tool(name, |_| std::future::pending())
    }

    /// Adds a tool that is a function.
    #[must_use]
    pub fn tool<F, Fut>(self, name: impl Into<Str>, f: F) -> Self
    where
        F: Fn(ToolCall) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = ToolOutcome> + Send + 'static,
    {
        self.service(
            any_object(name),
            service_fn(move |call| f(call).map(Ok::<_, Error>)),
        )
    }

    /// Adds a tool that is a service, as a tool under layers.
    #[must_use]
    pub fn service<S>(mut self, spec: ToolSpec, service: S) -> Self
    where
        S: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        self.tools.push((Arc::new(spec), BoxTool::new(service)));
        self
    }

    /// The calls that were started, in order.
    pub fn calls(&self) -> Vec<ToolCallPart> {
        self.seen().calls.clone()
    }

    /// How many calls are running.
    pub fn live(&self) -> usize {
        self.seen().live
    }

    /// How many calls have come to their end.
    pub fn done(&self) -> usize {
        self.seen().done
    }

    /// How many calls were dropped before their end.
    pub fn dropped(&self) -> usize {
        self.seen().dropped
    }
}

fn any_object(name: impl Into<Str>) -> ToolSpec {
    ToolSpec::new(name, "", json!({ "type": "object" }))
}

impl ToolSource for ScriptedTools {
    fn specs(&self) -> ToolSpecs {
        self.tools.iter().map(|(spec, _)| spec.clone()).collect()
    }
}

impl Service<ToolRound> for ScriptedTools {
    type Response = ScriptedOutcomes;
    type Error = Error;
    type Future = Ready<Result<ScriptedOutcomes, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, round: ToolRound) -> Self::Future {
        let outcomes = FuturesUnordered::new();
        for (index, round_call) in round.calls.into_iter().enumerate() {
            let tool = self
                .tools
                .iter()
                .find(|(spec, _)| spec.name == round_call.call.name);
            let refusal = match (&round_call.refusal, tool) {
                (None, None) => Some(Refusal::NotOffered(Vec::new())),
                (refusal, _) => refusal.clone(),
            };
            let (Some((spec, tool)), None) = (tool, &refusal) else {
                let refusal = refusal.unwrap_or(Refusal::NotOffered(Vec::new()));
                let settled = Settled::new(index, refusal.outcome(&round_call.call));
                outcomes.push(ready(Ok(settled)).boxed());
                continue;
            };
            let context = round.context.at_call(&round_call);
            let mut call = ToolCall::new(round_call.call, context);
            call.spec = Some(spec.clone());
            let running = Running::new(&self.seen, call.call.clone());
            let outcome = tool.clone().oneshot(call);
            outcomes.push(
                async move {
                    let outcome = outcome.await?;
                    running.done();
                    Ok(Settled::new(index, outcome))
                }
                .boxed(),
            );
        }
        ready(Ok(ScriptedOutcomes(outcomes)))
    }
}

/// Counts a call as live while it is there.
struct Running {
    seen: Arc<Mutex<Seen>>,
    done: bool,
}

impl Running {
    fn new(seen: &Arc<Mutex<Seen>>, call: ToolCallPart) -> Self {
        let mut lock = seen.lock().unwrap_or_else(PoisonError::into_inner);
        lock.calls.push(call);
        lock.live += 1;
        drop(lock);
        Self {
            seen: Arc::clone(seen),
            done: false,
        }
    }

    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.live -= 1;
        if self.done {
            seen.done += 1;
        } else {
            seen.dropped += 1;
        }
    }
}

/// The outcomes of [`ScriptedTools`], as they come.
#[must_use = "streams do nothing unless polled"]
pub struct ScriptedOutcomes(FuturesUnordered<BoxFuture<'static, Result<Settled, Error>>>);

impl Stream for ScriptedOutcomes {
    type Item = Result<Settled, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl fmt::Debug for ScriptedOutcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedOutcomes")
            .field("running", &self.0.len())
            .finish()
    }
}
