//! Panics of code that is handed to a toolset: each is the outcome of its call or the error of its
//! run, and no call runs that something was to decide about and did not.

use crate::common::Log;
use crate::common::hooks::{after_fn, before_fn};
use concentric_core::hooks::{self, BeforeCall, Flow, Hooks, ToolHooksLayer};
use concentric_core::{
    AgentLayer, Arguments, BoxError, BoxTool, CancelReason, ChatRequest, ChatResponse, Error,
    Event, Outcome, Str, ToolCall, ToolOutcome, ToolSpec, ToolStatus,
    agent::ToolSource,
    store::{
        Decisions, EffectKey, Intent, Ledger, LedgerEntry, Once, StoreFuture, StoredDecision,
        Tenant,
    },
};
use concentric_test::{Pace, ScriptedModel, watched};
use concentric_tools::{
    Approval, IntoOutcome, Matcher, NoArguments, ScopedExt, Tool, ToolError, Toolset, ToolsetError,
    agent_tool_with,
    gate::{Decided, Gate, Verdict, gate_fn},
    tool,
};
use futures_util::StreamExt;
use serde_json::json;
use std::{
    fmt,
    future::{Future, Ready, pending, ready},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower::{Layer, Service, ServiceExt, layer::layer_fn, service_fn};

const SECRET: &str = "the password is 4711";

fn boom<T>() -> T {
    panic!("{SECRET}")
}

/// What a panic leads to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// The call has an outcome of that status, after so many executions; the run completes.
    Call(ToolStatus, usize),
    /// The run fails, after so many executions.
    Run(usize),
    /// A person is asked, and nothing was executed.
    Asks,
}

use Then::{Asks, Call, Run};
use ToolStatus::{Denied, Done, Failed, Unknown};

/// Makes the tools of a case of [`act`].
type Tools = fn(Tool, Log) -> Toolset;

/// The tool that is called, which logs that it was executed.
fn act(log: &Log, pace: Pace) -> Tool {
    let log = log.clone();
    concentric_tools::tool_with_context("act", "", move |NoArguments {}, context| {
        let log = log.clone();
        async move {
            pace.pass(&context).await;
            log.add("executed");
            "acted"
        }
    })
}

/// Runs an agent that calls `act` once, at each pace.
#[track_caller]
fn check(name: &str, expected: Then, tools: Tools) {
    for pace in Pace::ALL {
        let about = format!("{name}, {pace:?}");
        watched(async move {
            let log = Log::default();
            let model = ScriptedModel::new().paced(pace).tool_call("act", json!({}));
            let model = model.then().text("Well.");
            let agent = AgentLayer::new(tools(act(&log, pace), log.clone())).layer(model);
            let request = ChatRequest::user("hi");
            let mut items = match agent.oneshot(request).await {
                Ok(response) => response.body.collect::<Vec<_>>().await,
                Err(error) => vec![Err(error)],
            };
            let shown = format!("{items:?}");
            assert!(!shown.contains(SECRET), "{about}: {shown}");
            let end = items.pop().unwrap();
            let statuses = items.iter().filter_map(|item| match item {
                Ok(Event::ToolResult(result)) => Some(result.outcome.status),
                _ => None,
            });
            let statuses: Vec<_> = statuses.collect();
            let executed = log.count("executed");
            match (expected, end) {
                (Call(status, times), Ok(Event::Finish(finish))) => {
                    assert_eq!(finish.outcome, Outcome::Completed, "{about}");
                    assert_eq!((statuses, executed), (vec![status], times), "{about}");
                }
                (Asks, Ok(Event::Finish(finish))) => {
                    assert_eq!(finish.outcome, Outcome::Interrupted, "{about}");
                    assert_eq!(executed, 0, "{about}");
                }
                (Run(times), Err(_)) => assert_eq!(executed, times, "{about}"),
                (_, end) => panic!("{about}: {end:?}"),
            }
        });
    }
}

// ---- tools ----

/// What a tool or a layer is made of; each part panics in one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Layer,
    Clone,
    PollReady,
    Call,
    Future,
    DropOfFuture,
}

/// A service, and a layer for it, around a tool.
struct Panics<S> {
    inner: S,
    part: Part,
}

impl<S: Clone> Clone for Panics<S> {
    fn clone(&self) -> Self {
        if self.part == Part::Clone {
            boom()
        }
        Self {
            inner: self.inner.clone(),
            part: self.part,
        }
    }
}

struct PanicsFuture(
    Pin<Box<dyn Future<Output = Result<ToolOutcome, Error>> + Send>>,
    Part,
);

impl Future for PanicsFuture {
    type Output = Result<ToolOutcome, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.1 == Part::Future {
            boom()
        }
        self.0.as_mut().poll(cx)
    }
}

impl Drop for PanicsFuture {
    fn drop(&mut self) {
        if self.1 == Part::DropOfFuture {
            boom()
        }
    }
}

impl<S> Service<ToolCall> for Panics<S>
where
    S: Service<ToolCall, Response = ToolOutcome, Error = Error, Future: Send + 'static>,
{
    type Response = ToolOutcome;
    type Error = Error;
    type Future = PanicsFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.part == Part::PollReady {
            boom()
        }
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: ToolCall) -> PanicsFuture {
        if self.part == Part::Call {
            boom()
        }
        PanicsFuture(Box::pin(self.inner.call(call)), self.part)
    }
}

/// A layer of that part.
fn layer(part: Part) -> impl Layer<BoxTool, Service = Panics<BoxTool>> + Send + Sync + Clone {
    layer_fn(move |inner| match part {
        Part::Layer => boom(),
        part => Panics { inner, part },
    })
}

/// A tool that is a service, around one that works.
fn service(tool: &Tool, part: Part) -> Tool {
    let inner = tool.clone();
    Tool::new(ToolSpec::clone(tool.spec()), Panics { inner, part })
}

#[derive(schemars::JsonSchema)]
struct Undecodable {}

impl<'de> serde::Deserialize<'de> for Undecodable {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        boom()
    }
}

struct NoOutcome;

impl IntoOutcome for NoOutcome {
    fn into_outcome(self) -> Result<ToolOutcome, ToolError> {
        boom()
    }
}

/// An error whose text panics.
#[derive(Debug)]
struct Unspeakable;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        boom()
    }
}

impl std::error::Error for Unspeakable {}

#[test]
fn a_tool_that_panics_has_an_outcome() {
    // The function may have acted.
    check("function", Call(Unknown, 0), |_, _| {
        Toolset::new().tool(tool("act", "", |NoArguments {}| boom::<Ready<()>>()))
    });
    check("future", Call(Unknown, 0), |_, _| {
        Toolset::new().tool(tool("act", "", |NoArguments {}| async { boom::<()>() }))
    });
    check("read-only", Call(Failed, 0), |_, _| {
        Toolset::new().tool(tool("act", "", |NoArguments {}| async { boom::<()>() }).read_only())
    });
    check("result", Call(Unknown, 0), |_, _| {
        Toolset::new().tool(tool("act", "", |NoArguments {}| async { NoOutcome }))
    });
    check("text of the error", Call(Failed, 0), |_, _| {
        let fails = |NoArguments {}| async {
            Err::<(), _>(ToolError::new("It failed.").with_source(Unspeakable))
        };
        Toolset::new().tool(tool("act", "", fails))
    });
    check("sink of long results", Call(Done, 1), |act, _| {
        Toolset::new().tool(act.max_result_bytes(1).on_truncation(|_| boom()))
    });
    check("reconcile", Call(Unknown, 0), |_, _| {
        let panics = |NoArguments {}| async { boom::<()>() };
        Toolset::new().tool(tool("act", "", panics).reconcile(|_| async { boom() }))
    });
    check("request of an agent", Call(Unknown, 0), |_, _| {
        let agent = service_fn(async |_: ChatRequest| {
            let body = futures_util::stream::empty::<Result<Event, Error>>();
            Ok::<_, Error>(ChatResponse::new(body))
        });
        let request = |NoArguments {}| boom::<ChatRequest>();
        Toolset::new().tool(agent_tool_with("act", "", agent, request))
    });
}

#[test]
fn arguments_that_panic_when_decoded_are_no_call() {
    check("without a gate", Call(Unknown, 0), |_, _| {
        Toolset::new().tool(tool("act", "", |_: Undecodable| async {}))
    });
    check("with a gate", Call(Failed, 0), |_, _| {
        let act = tool("act", "", |_: Undecodable| async {});
        Toolset::new()
            .tool(act)
            .gate(gate_fn("pass", |_| Verdict::Pass))
    });
}

#[test]
fn a_service_that_panics_has_an_outcome() {
    let ends: [(Part, Then, Tools); 5] = [
        (Part::Clone, Call(Unknown, 0), |act, _| {
            Toolset::new().tool(service(&act, Part::Clone))
        }),
        (Part::PollReady, Call(Unknown, 0), |act, _| {
            Toolset::new().tool(service(&act, Part::PollReady))
        }),
        (Part::Call, Call(Unknown, 0), |act, _| {
            Toolset::new().tool(service(&act, Part::Call))
        }),
        (Part::Future, Call(Unknown, 0), |act, _| {
            Toolset::new().tool(service(&act, Part::Future))
        }),
        (Part::DropOfFuture, Call(Unknown, 1), |act, _| {
            Toolset::new().tool(service(&act, Part::DropOfFuture))
        }),
    ];
    for (part, expected, tools) in ends {
        check(&format!("{part:?}"), expected, tools);
    }
}

#[test]
fn a_layer_that_panics_is_an_outcome_or_an_error() {
    let all: [(Part, Then, Tools); 6] = [
        (Part::Layer, Run(0), |act, _| {
            Toolset::new().tool(act).layer(layer(Part::Layer))
        }),
        (Part::Clone, Call(Failed, 0), |act, _| {
            Toolset::new().tool(act).layer(layer(Part::Clone))
        }),
        (Part::PollReady, Call(Failed, 0), |act, _| {
            Toolset::new().tool(act).layer(layer(Part::PollReady))
        }),
        (Part::Call, Call(Failed, 0), |act, _| {
            Toolset::new().tool(act).layer(layer(Part::Call))
        }),
        (Part::Future, Call(Failed, 0), |act, _| {
            Toolset::new().tool(act).layer(layer(Part::Future))
        }),
        (Part::DropOfFuture, Call(Done, 1), |act, _| {
            Toolset::new().tool(act).layer(layer(Part::DropOfFuture))
        }),
    ];
    for (part, expected, tools) in all {
        check(&format!("{part:?}"), expected, tools);
    }
    let one: [(Part, Then, Tools); 5] = [
        (Part::Layer, Call(Failed, 0), |act, _| {
            Toolset::new().tool(act.layer(layer(Part::Layer)))
        }),
        (Part::Clone, Call(Failed, 0), |act, _| {
            Toolset::new().tool(act.layer(layer(Part::Clone)))
        }),
        (Part::PollReady, Call(Failed, 0), |act, _| {
            Toolset::new().tool(act.layer(layer(Part::PollReady)))
        }),
        (Part::Call, Call(Failed, 0), |act, _| {
            Toolset::new().tool(act.layer(layer(Part::Call)))
        }),
        (Part::Future, Call(Failed, 0), |act, _| {
            Toolset::new().tool(act.layer(layer(Part::Future)))
        }),
    ];
    for (part, expected, tools) in one {
        check(&format!("{part:?} of one tool"), expected, tools);
    }
    check("text of a layer's error", Call(Failed, 0), |act, _| {
        let fails = layer_fn(|_: BoxTool| {
            service_fn(async |_: ToolCall| Err::<ToolOutcome, BoxError>(Unspeakable.into()))
        });
        Toolset::new().tool(act).layer(fails)
    });
}

#[test]
fn a_layer_that_panics_when_it_is_put_around_fails_the_check() {
    let tools = || {
        let nothing = tool("act", "", |NoArguments {}| async {});
        Toolset::new().tool(nothing).layer(layer(Part::Layer))
    };
    assert_eq!(tools().check(), Err(ToolsetError::LayerPanicked));
    assert!(ToolSource::check(&tools()).is_err());
}

// ---- hooks ----

/// Hooks of which one method panics.
struct Panicking(&'static str);

impl Panicking {
    fn reach(&self, method: &str) {
        if self.0.split(' ').any(|panics| panics == method) {
            boom()
        }
    }
}

impl Hooks for Panicking {
    fn id(&self) -> &str {
        self.reach("id");
        "hooks"
    }

    async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        self.reach("before");
        Ok(Flow::Continue)
    }

    async fn after_call(
        &self,
        _: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        self.reach("after");
        Ok(None)
    }

    async fn on_call_error(
        &self,
        _: &ToolCall,
        _: &Error,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        self.reach("on_error");
        Ok(None)
    }

    fn call_cancelled(&self, _: &ToolCall) {
        self.reach("cancelled");
    }
}

fn panicking(panics: &'static str) -> ToolHooksLayer<Panicking> {
    hooks::tool(Arc::new(Panicking(panics)))
}

#[test]
fn hooks_that_panic_check_nothing_and_change_nothing() {
    // What could not be checked does not run.
    check("before", Call(Failed, 0), |act, _| {
        Toolset::new().tool(act).hooks(panicking("before"))
    });
    check("before_fn", Call(Failed, 0), |act, _| {
        Toolset::new().tool(act).layer(before_fn("b", |_| boom()))
    });
    check("after", Call(Done, 1), |act, _| {
        Toolset::new().tool(act).hooks(panicking("after"))
    });
    check("after_fn", Call(Done, 1), |act, _| {
        Toolset::new()
            .tool(act)
            .layer(after_fn("a", |_, _, _| boom()))
    });
    check("on_error", Call(Failed, 0), |act, _| {
        let fails = layer_fn(|_: BoxTool| {
            service_fn(async |_: ToolCall| Err::<ToolOutcome, BoxError>("broken".into()))
        });
        let tools = Toolset::new().tool(act);
        tools.layer(panicking("on_error")).layer(fails)
    });
    check("the matcher of hooks", Call(Done, 1), |act, _| {
        let hooks = panicking("id").scoped(Matcher::when(|_| boom()));
        Toolset::new().tool(act).layer(hooks)
    });
    check("of a settled call", Call(Denied, 0), |act, _| {
        let denies = gate_fn("denies", |_| Verdict::deny("no"));
        let tools = Toolset::new().tool(act).gate(denies);
        tools.hooks(panicking("id after cancelled"))
    });
}

#[test]
fn hooks_that_panic_when_dropped_abort_nothing() {
    let unwound = watched(async {
        let waits = tool("act", "", |NoArguments {}| pending::<()>());
        let tools = Toolset::new().tool(waits).hooks(panicking("cancelled"));
        let model = ScriptedModel::new().tool_call("act", json!({}));
        let agent = AgentLayer::new(tools).layer(model);
        let request = ChatRequest::user("hi");
        let context = request.context.clone();
        let mut body = agent.oneshot(request).await.unwrap().body;
        // The call begins, and the body is dropped while another panic unwinds.
        loop {
            let next = tokio::time::timeout(Duration::from_millis(20), body.next());
            if next.await.is_err() {
                break;
            }
        }
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _body = body;
            panic!("another");
        }));
        context.cancel(CancelReason::User);
        unwound
    });
    assert!(unwound.is_err());
}

#[test]
fn a_matcher_that_panics_applies() {
    check("when", Call(Failed, 0), |act, _| {
        let blocks = before_fn("blocks", |_| Err("not checked".into()));
        Toolset::new()
            .tool(act)
            .layer(blocks.scoped(Matcher::when(|_| boom())))
    });
    check("when_async", Call(Failed, 0), |act, _| {
        let blocks = before_fn("blocks", |_| Err("not checked".into()));
        let when = Matcher::when_async(|_| boom::<Ready<Result<bool, BoxError>>>());
        Toolset::new().tool(act).layer(blocks.scoped(when))
    });
    check("future of when_async", Call(Failed, 0), |act, _| {
        let blocks = before_fn("blocks", |_| Err("not checked".into()));
        let when = Matcher::when_async(async |_| boom());
        let blocks = layer_fn(move |inner| blocks.layer(inner)).scoped(when);
        Toolset::new().tool(act).layer(blocks)
    });
    check("annotated", Call(Failed, 0), |act, _| {
        let blocks = before_fn("blocks", |_| Err("not checked".into()));
        let annotated = Matcher::annotated(|_| boom());
        Toolset::new().tool(act).layer(blocks.scoped(annotated))
    });
}

// ---- gates ----

/// A gate of which one method panics.
struct Asking(&'static str);

impl Asking {
    fn reach(&self, method: &str) {
        if self.0.split(' ').any(|panics| panics == method) {
            boom()
        }
    }
}

impl Gate for Asking {
    fn policy(&self) -> Str {
        self.reach("policy");
        "asks".into()
    }

    fn decide(&self, _: &ToolCall) -> Decided {
        self.reach("decide");
        match self.0 {
            "later" => Decided::later(async { boom() }),
            _ => Verdict::ask().into(),
        }
    }

    fn check(&self, _: &concentric_core::ToolSpecs) -> Result<(), BoxError> {
        self.reach("check");
        Ok(())
    }
}

#[test]
fn a_gate_that_panics_lets_nothing_run() {
    check("decide", Call(Denied, 0), |act, _| {
        Toolset::new().tool(act).gate(Asking("decide"))
    });
    check("later", Call(Denied, 0), |act, _| {
        Toolset::new().tool(act).gate(Asking("later"))
    });
    check("gate_fn", Call(Denied, 0), |act, _| {
        Toolset::new().tool(act).gate(gate_fn("panics", |_| boom()))
    });
    check("check", Run(0), |act, _| {
        Toolset::new().tool(act).gate(Asking("check"))
    });
    check("check and policy", Run(0), |act, _| {
        Toolset::new().tool(act).gate(Asking("check policy"))
    });
    check("decide and policy", Call(Denied, 0), |act, _| {
        Toolset::new().tool(act).gate(Asking("decide policy"))
    });
    check("policy", Run(0), |act, _| {
        Toolset::new().tool(act).gate(Asking("policy"))
    });
}

/// A store that panics, in the methods that it names.
#[derive(Clone)]
struct Store(&'static str, crate::kit::Memory);

impl Store {
    fn reach(&self, method: &str) {
        if self.0.split(' ').any(|panics| panics == method) {
            boom()
        }
    }
}

impl Ledger for Store {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<LedgerEntry> {
        self.reach("begin");
        let begins = self.1.begin(key, intent);
        let store = self.clone();
        Box::pin(async move {
            store.reach("begin-later");
            begins.await
        })
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        self.reach("finish");
        self.1.finish(key, outcome)
    }

    fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry> {
        self.reach("known");
        self.1.known(key)
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        self.reach("retract");
        self.1.retract(key)
    }
}

impl Once for Store {
    fn once(&self, _: Tenant, _: Str, _: Duration) -> StoreFuture<bool> {
        self.reach("once");
        Box::pin(ready(Ok(true)))
    }
}

impl Decisions for Store {
    fn remember(&self, _: StoredDecision) -> StoreFuture<()> {
        Box::pin(ready(Ok(())))
    }

    fn recall(
        &self,
        _: Tenant,
        _: Str,
        _: concentric_core::RunId,
        _: Option<concentric_core::ThreadId>,
        _: Option<concentric_core::ThreadId>,
    ) -> StoreFuture<Vec<StoredDecision>> {
        self.reach("recall");
        Box::pin(ready(Ok(Vec::new())))
    }

    fn list(&self, _: Tenant) -> StoreFuture<Vec<StoredDecision>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn revoke(&self, _: Tenant, _: Str) -> StoreFuture<bool> {
        Box::pin(ready(Ok(false)))
    }
}

fn store(panics: &'static str) -> Store {
    Store(panics, crate::kit::Memory::default())
}

#[test]
fn an_approval_that_panics_asks() {
    check("message", Asks, |act, _| {
        let approval = Approval::for_tools("act").message(|_| boom());
        Toolset::new().tool(act).gate(approval)
    });
    check("watch", Asks, |act, _| {
        let approval = Approval::for_tools("act").on_approval(|_| boom());
        Toolset::new().tool(act).gate(approval)
    });
    check("matcher", Asks, |act, _| {
        let allows = Approval::for_tools("act").allow(Matcher::when(|_| boom()));
        Toolset::new().tool(act).gate(allows)
    });
    check("decisions", Asks, |act, _| {
        let approval = Approval::for_tools("act").remember(store("recall"));
        Toolset::new().tool(act).gate(approval)
    });
    check("once", Asks, |act, _| {
        let approval = Approval::for_tools("act").on_approval(|_| {});
        Toolset::new()
            .tool(act)
            .gate(approval)
            .notify_once(store("once"))
    });
}

#[test]
fn what_prepares_and_records_a_call_may_panic() {
    check("prepare", Call(Failed, 0), |act, _| {
        let panics = |_: ToolCall| boom::<Ready<Result<Arguments, ToolError>>>();
        Toolset::new().tool(act).prepare(panics)
    });
    check("future of prepare", Call(Failed, 0), |act, _| {
        Toolset::new().tool(act).prepare(async |_| boom())
    });
    check("protocol", Call(Done, 1), |act, _| {
        Toolset::new().tool(act).trace(|_| boom())
    });
}

#[test]
fn a_ledger_that_panics_has_failed() {
    check("begin", Run(0), |act, _| {
        Toolset::new().tool(act).ledger(store("begin"))
    });
    check("future of begin", Run(0), |act, _| {
        Toolset::new().tool(act).ledger(store("begin-later"))
    });
    // It was executed; that this can't be written down changes nothing.
    check("finish", Call(Done, 1), |act, _| {
        Toolset::new().tool(act).ledger(store("finish"))
    });
    check("known, of a call that was given up", Run(0), |_, _| {
        let panics = tool("act", "", |NoArguments {}| async { boom::<()>() });
        Toolset::new().tool(panics).ledger(store("known"))
    });
}
