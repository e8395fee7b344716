//! Checks of the contract of layers over a tool.

use super::{
    calls::{assert_same, broken, fail, for_a_while, in_time, settle},
    ready::readiness_of,
};
use crate::{ScriptedModel, ScriptedTools, Spurious, Strict, drop_at_each_wait};
use concentric_core::{
    AgentLayer, BoxTool, CallId, ChatRequest, Clearance, Context, Error, Interrupt, Outcome, Reply,
    RoundCall, Suspension, ToolCall, ToolCallPart, ToolOutcome, ToolService, ToolSpec, Transcript,
};
use serde_json::json;
use std::{
    cell::RefCell,
    future::{Future, Pending, pending},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context as TaskContext, Poll},
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_service::Service;

/// The services that the checks accept.
trait SharedTool: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static {}

impl<S> SharedTool for S where S: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static
{}

/// Checks a layer over a tool.
///
/// ```
/// use concentric_core::ToolCall;
/// use concentric_test::check_tool_layer;
/// use tower::util::MapRequestLayer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let layer = MapRequestLayer::new(|call: ToolCall| {
///     println!("{}", call.name());
///     call
/// });
/// check_tool_layer(layer).await;
/// # }
/// ```
///
/// The layer
/// - calls only services that it polled ready, does not pass readiness to a clone, and releases it on drop;
/// - passes on each outcome, and an error with its kind and code;
/// - passes on the outcome of a call that is [settled](ToolCall::settled);
/// - passes on a suspension, and hands the replies to the tool when the run is resumed;
/// - tolerates spurious polls, and wakes the waker of its last poll;
/// - drops the inner call when its own is dropped, at any await point.
///
/// The checks need a tokio runtime with a timer, which may be paused. A layer may spawn tasks.
///
/// # Panics
///
/// Panics if the layer breaks a rule; the message names it.
pub async fn check_tool_layer<L>(layer: L)
where
    L: Layer<
            Strict<BoxTool>,
            Service: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
        >,
{
    readiness(&layer).await;
    outcomes(&layer).await;
    settled(&layer).await;
    suspended(&layer).await;
    polled(&layer).await;
    dropped(&layer).await;
}

/// A tool that counts the calls under way.
#[derive(Clone, Default)]
struct Tool(Arc<AtomicUsize>);

impl Tool {
    fn answers<F, Fut>(&self, answer: F) -> BoxTool
    where
        F: Fn(ToolCall) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<ToolOutcome, Error>> + Send + 'static,
    {
        let live = Arc::clone(&self.0);
        BoxTool::new(service_fn(move |call| {
            let running = Running::new(&live);
            let answer = answer(call);
            async move {
                let outcome = answer.await;
                drop(running);
                outcome
            }
        }))
    }

    fn live(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(live: &Arc<AtomicUsize>) -> Self {
        live.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(live))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn part() -> ToolCallPart {
    ToolCallPart::new(CallId::new("c1"), "look", "{}")
}

fn spec() -> Arc<ToolSpec> {
    Arc::new(ToolSpec::new("look", "Looks.", json!({"type": "object"})))
}

/// A call in a run of its own.
fn call() -> ToolCall {
    ToolCall::new(part(), Context::new()).with_spec(spec())
}

fn done() -> BoxTool {
    Tool::default().answers(|_| async { Ok(ToolOutcome::done("seen")) })
}

#[track_caller]
fn assert_outcome<E>(result: Result<ToolOutcome, E>, expected: &ToolOutcome)
where
    E: Into<concentric_core::BoxError>,
{
    match result.map_err(|error| Error::from(error.into())) {
        Ok(outcome) => assert_eq!(&outcome, expected, "the layer replaced the outcome"),
        Err(error) => fail(&format!("the call failed: {error}")),
    }
}

/// Checks that the layer calls only services that are ready, and leaks no readiness.
async fn readiness<L>(layer: &L)
where
    L: Layer<Strict<BoxTool>, Service: SharedTool>,
{
    let seen = ToolOutcome::done("seen");
    let unready = BoxTool::new(Unready);
    readiness_of(layer, done, unready, call, async |outcome| {
        assert_outcome(outcome, &seen);
    })
    .await;
}

/// A tool that fails to become ready.
#[derive(Clone)]
struct Unready;

impl Service<ToolCall> for Unready {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = Pending<Result<ToolOutcome, Error>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Err(broken()))
    }

    fn call(&mut self, _: ToolCall) -> Self::Future {
        pending()
    }
}

/// Checks that outcomes and errors are passed on unchanged.
async fn outcomes<L>(layer: &L)
where
    L: Layer<Strict<BoxTool>, Service: SharedTool>,
{
    for outcome in [
        ToolOutcome::done("seen"),
        ToolOutcome::done("seen").with_data(json!({"at": [1, 2]})),
        ToolOutcome::done("seen").and_halt("enough"),
        ToolOutcome::failed("no"),
        ToolOutcome::denied("no"),
        ToolOutcome::cancelled("no"),
    ] {
        in_time("an outcome", async {
            let answer = outcome.clone();
            let tool = Tool::default().answers(move |_| {
                let answer = answer.clone();
                async { Ok(answer) }
            });
            let service = layer.layer(Strict::new(tool));
            assert_outcome(service.oneshot(call()).await, &outcome);
        })
        .await;
    }

    in_time("a call that fails", async {
        let tool = Tool::default();
        let fails = tool.answers(|_| async { Err(broken()) });
        let service = layer.layer(Strict::new(fails));
        match service.oneshot(call()).await {
            Ok(outcome) => fail(&format!("the error was lost: {outcome:?}")),
            Err(error) => assert_same(&Error::from(error.into())),
        }
        settle().await;
        assert_eq!(tool.live(), 0, "the layer keeps a call that has failed");
    })
    .await;
}

/// Checks that a call that does not run keeps its outcome.
async fn settled<L>(layer: &L)
where
    L: Layer<Strict<BoxTool>, Service: SharedTool>,
{
    for outcome in [
        ToolOutcome::denied("no"),
        ToolOutcome::failed("unknown tool"),
    ] {
        in_time("a settled call", async {
            // A round service responds to such a call with its outcome.
            let tool = Tool::default().answers(|call| async move {
                let outcome = call.settled().cloned();
                Ok(outcome.unwrap_or_else(|| ToolOutcome::done("executed")))
            });
            let service = layer.layer(Strict::new(tool));
            let clearance = Clearance::Settled(Arc::new(outcome.clone()));
            let call = RoundCall::new(0, part());
            let call = ToolCall::of_round(call, clearance, Transcript::new(), &Context::new());
            assert_outcome(service.oneshot(call).await, &outcome);
        })
        .await;
    }
}

/// Checks that a tool can suspend its call, and receives the replies.
async fn suspended<L>(layer: &L)
where
    L: Layer<Strict<BoxTool>, Service: SharedTool>,
{
    in_time("a call that waits for a reply", async {
        let tool = Tool::default().answers(|call| async move {
            if call.resumed().is_none() {
                let id = call.context.interrupt_id().ok_or_else(broken)?;
                let asks = Interrupt::new(id, "which").about(call.id().clone());
                return Err(Error::suspended(Suspension::new(vec![asks])));
            }
            Ok(ToolOutcome::done(format!("{} reply", call.replies().len())))
        });
        let tools =
            ScriptedTools::new().service(ToolSpec::clone(&spec()), layer.layer(Strict::new(tool)));
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .text("Done.");
        let agent = AgentLayer::new(tools).layer(model.clone());
        let run = async |request| {
            let response = agent.clone().oneshot(request).await?;
            response.collect().await.map_err(Error::from)
        };
        let mut finish = match run(ChatRequest::user("hi")).await {
            Ok(answer) => answer.finish,
            Err(error) => fail(&format!("the layer lost the suspension: {error}")),
        };
        let state = finish.state.take();
        let Some(state) = state.filter(|_| finish.outcome == Outcome::Interrupted) else {
            fail(&format!("the layer lost the suspension: {finish:?}"));
        };
        let replies = state.interrupts().into_iter();
        let replies = replies.map(|asked| Reply::approve(asked.id.clone()));
        let replies = replies.collect();
        if let Err(error) = run(ChatRequest::resume(*state, replies)).await {
            fail(&format!("the run could not be resumed: {error}"));
        }
        let turn = model.request(1).transcript.last().cloned();
        let results = turn.iter().flat_map(|turn| turn.results());
        let results: Vec<_> = results
            .map(|it| it.outcome.content.text().into_owned())
            .collect();
        assert_eq!(results, ["1 reply"], "the tool did not receive the reply");
    })
    .await;
}

/// Checks that spurious polls change nothing, and lose no wakeup.
async fn polled<L>(layer: &L)
where
    L: Layer<Strict<BoxTool>, Service: SharedTool>,
{
    in_time("a call that is polled without a wakeup", async {
        let tool = Tool::default().answers(|_| async {
            tokio::task::yield_now().await;
            Ok(ToolOutcome::done("seen"))
        });
        let service = layer.layer(Strict::new(tool));
        let result = Spurious::new(service.oneshot(call())).await;
        assert_outcome(result, &ToolOutcome::done("seen"));
    })
    .await;
}

/// Checks that dropping a call, at any await point, drops the inner one.
async fn dropped<L>(layer: &L)
where
    L: Layer<Strict<BoxTool>, Service: SharedTool>,
{
    in_time("a call that is dropped", async {
        let tool = Tool::default();
        {
            let never = tool.answers(|_| pending());
            let mut call = Box::pin(layer.layer(Strict::new(never)).oneshot(call()));
            let _ = for_a_while(call.as_mut()).await;
        }
        settle().await;
        assert_eq!(tool.live(), 0, "the layer keeps a call that was dropped");
    })
    .await;

    in_time("a call that is dropped at each await point", async {
        let tools = RefCell::new(Vec::new());
        let run = || {
            let tool = Tool::default();
            let waits = tool.answers(|_| async {
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                Ok(ToolOutcome::done("seen"))
            });
            tools.borrow_mut().push(tool);
            layer.layer(Strict::new(waits)).oneshot(call())
        };
        drop_at_each_wait(run, async |polls| {
            settle().await;
            let live: usize = tools.take().iter().map(Tool::live).sum();
            assert_eq!(
                live, 0,
                "the layer keeps a call dropped after {polls} polls"
            );
        })
        .await;
    })
    .await;
}
