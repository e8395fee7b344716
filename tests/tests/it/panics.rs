//! Panics of what an agent is made of: each ends its run with an error that does not repeat them.

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, ChatResponse, Context as RunContext, EmitError, Error,
    ErrorKind, Event, FinishReason, Outcome, Phase, ToolSource, ToolSpecs, ToolStatus, Usage,
    machine::RunLimits, store::Checkpoint,
};
use concentric_layers::{Next, from_fn, map_events, on_end};
use concentric_test::{Pace, ScriptedModel, ScriptedTools, watched};
use concentric_tools::Toolset;
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};
use tower::{Layer, Service, ServiceExt};

const SECRET: &str = "the password is 4711";

/// Where a model panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Ready,
    Call,
    Future,
    Body,
    Event,
    Drop,
}

/// A model that answers once with a call, and panics in its next call, or at once.
#[derive(Clone)]
struct Panics {
    at: Where,
    step: u32,
    pace: Pace,
}

struct DropsBadly;

impl Drop for DropsBadly {
    fn drop(&mut self) {
        panic!("{SECRET}");
    }
}

impl Service<ChatRequest> for Panics {
    type Response = ChatResponse<stream::BoxStream<'static, Result<Event, Error>>>;
    type Error = Error;
    type Future = futures_util::future::BoxFuture<'static, Result<Self::Response, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self.at {
            Where::Ready if self.step == 0 => panic!("{SECRET}"),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let Self { at, step, pace } = *self;
        let context = request.context;
        if context.step() < step {
            return Box::pin(async move {
                pace.pass(&context).await;
                let call = concentric_core::CallId::new("c");
                let call = concentric_core::ToolCallPart::new(call, "look", "{}");
                let end = Event::finish(FinishReason::ToolCalls, Usage::new(1, 1));
                let events = stream::iter([Ok(Event::tool_call(call)), Ok(end)]);
                Ok(ChatResponse::new(events.boxed()))
            });
        }
        if let Where::Call | Where::Ready = at {
            panic!("{SECRET}");
        }
        Box::pin(async move {
            pace.pass(&context).await;
            if at == Where::Future {
                panic!("{SECRET}");
            }
            let badly = (at == Where::Drop).then_some(DropsBadly);
            let first = stream::iter([Ok(Event::text("Well. "))]);
            let rest = stream::once(async move {
                let _badly = badly;
                pace.pass(&context).await;
                match at {
                    Where::Body => panic!("{SECRET}"),
                    // It is dropped with its body, after this.
                    _ => std::future::pending::<()>().await,
                }
                Ok(Event::text("never"))
            });
            Ok(ChatResponse::new(first.chain(rest).boxed()))
        })
    }
}

/// Reads a run to its end: what it said, and its error.
async fn read(agent: BoxModel, request: ChatRequest) -> (Vec<Event>, Error) {
    let mut body = match agent.oneshot(request).await {
        Ok(response) => response.body,
        Err(error) => return (Vec::new(), error),
    };
    let mut events = Vec::new();
    loop {
        match body.next().await.expect("a run ends with a terminal item") {
            Ok(event) => {
                assert!(!event.is_finish());
                events.push(event);
            }
            Err(error) => {
                assert!(body.next().await.is_none());
                return (events, error);
            }
        }
    }
}

fn check(error: &Error, phase: Phase) {
    assert_eq!(
        (error.kind(), error.phase()),
        (ErrorKind::Other, Some(phase))
    );
    assert!(error.message().ends_with("panicked"), "{error}");
    assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
    assert!(!error.is_retryable());
}

fn around(inner: BoxModel) -> BoxModel {
    BoxModel::new(AgentLayer::new(Toolset::new()).layer(inner))
}

#[test]
fn a_model_that_panics_fails_its_run_wherever_it_does() {
    for at in [
        Where::Ready,
        Where::Call,
        Where::Future,
        Where::Body,
        Where::Event,
    ] {
        for step in 0..=1 {
            for (levels, pace) in [0, 1].into_iter().flat_map(|n| Pace::ALL.map(|p| (n, p))) {
                let (error, context) = watched(async move {
                    let model = Panics { at, step, pace };
                    let model = match at {
                        Where::Event => {
                            let panics = map_events(move |event: &mut Event| {
                                if let Event::TextDelta(_) = event {
                                    panic!("{SECRET}");
                                }
                            });
                            BoxModel::new(panics.layer(model))
                        }
                        _ => BoxModel::new(model),
                    };
                    let tools = ScriptedTools::new().paced(pace).answers("look", "seen");
                    let agent = BoxModel::new(AgentLayer::new(tools).layer(model));
                    let agent = (0..levels).fold(agent, |inner, _| around(inner));
                    let request = ChatRequest::user("hi");
                    let context = request.context.clone();
                    (read(agent, request).await.1, context)
                });
                check(&error, Phase::Model);
                // It has ended, for whoever would emit into it.
                let note = Event::State(Arc::new(json!(1)));
                let ended = context.emit(note);
                assert!(
                    ended == Err(EmitError::Ended) || step == 0,
                    "{at:?} {ended:?}"
                );
            }
        }
    }
}

#[test]
fn a_body_that_panics_when_dropped_leaves_the_outcome() {
    let outcome = watched(async {
        let model = Panics {
            at: Where::Drop,
            step: 0,
            pace: Pace::NextTick,
        };
        let agent = AgentLayer::new(ScriptedTools::new()).layer(model);
        let request = ChatRequest::user("hi");
        let context = request.context.clone();
        let mut body = agent.oneshot(request).await.unwrap().body;
        loop {
            match body.next().await.unwrap().unwrap() {
                Event::TextDelta(_) => context.cancel(concentric_core::CancelReason::User),
                Event::Finish(finish) => return finish.outcome,
                _ => {}
            }
        }
    });
    assert!(matches!(outcome, Outcome::Aborted { .. }));
}

#[test]
fn a_layer_that_panics_fails_its_run() {
    let error = watched(async {
        let panics = from_fn(|request: ChatRequest, mut next: Next| async move {
            assert!(request.context.step() == 0, "{SECRET}");
            next.run(request).await
        });
        let tools = ScriptedTools::new().answers("look", "seen");
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .text("no");
        let agent = AgentLayer::new(tools).layer(panics.layer(model));
        read(BoxModel::new(agent), ChatRequest::user("hi")).await.1
    });
    check(&error, Phase::Model);
}

#[test]
fn a_round_service_that_panics_closes_its_round() {
    for pace in Pace::ALL {
        let (events, error) = watched(async move {
            let tools = ScriptedTools::new().paced(pace).tool("look", |_| async {
                poll_fn::<(), _>(|_| panic!("{SECRET}")).await;
                concentric_core::ToolOutcome::done("never")
            });
            let model = ScriptedModel::new()
                .paced(pace)
                .tool_call("look", json!({}));
            let agent = AgentLayer::new(tools).layer(model);
            read(BoxModel::new(agent), ChatRequest::user("hi")).await
        });
        check(&error, Phase::Round);
        assert!(error.effects() >= concentric_core::SideEffects::Possible);
        let results = events.iter().filter_map(|event| match event {
            Event::ToolResult(result) => Some(result.outcome.status),
            _ => None,
        });
        assert_eq!(
            results.collect::<Vec<_>>(),
            [ToolStatus::Unknown],
            "{pace:?}"
        );
    }
}

#[test]
fn a_store_that_panics_starts_no_tool() {
    let (error, calls) = watched(async {
        let tools = ScriptedTools::new().answers("look", "seen");
        let model = ScriptedModel::new().tool_call("look", json!({}));
        let agent = AgentLayer::new(tools.clone()).layer(model);
        let mut request = ChatRequest::user("hi");
        let panics = Checkpoint::new(|_| Box::pin(async { panic!("{SECRET}") }));
        request.checkpoint = Some(panics);
        let error = read(BoxModel::new(agent), request).await.1;
        (error, tools.calls().len())
    });
    check(&error, Phase::Round);
    assert_eq!(calls, 0);
}

#[test]
fn deferred_work_runs_after_a_panic() {
    let done = watched(async {
        let model = Panics {
            at: Where::Body,
            step: 0,
            pace: Pace::NextTick,
        };
        let agent = BoxModel::new(AgentLayer::new(ScriptedTools::new()).layer(model));
        let request = ChatRequest::user("hi");
        let (sender, done) = tokio::sync::oneshot::channel();
        request.context.defer(async move {
            let _ = sender.send(());
        });
        read(agent, request).await;
        done.await
    });
    done.unwrap();
}

/// Panics when a part is called for the nth time.
#[derive(Clone, Debug)]
struct Fuse {
    part: &'static str,
    at: usize,
    reached: Arc<AtomicUsize>,
}

impl Fuse {
    /// One that does not panic before it is [lit](Self::light).
    fn new(part: &'static str, at: usize) -> Self {
        let reached = Arc::new(AtomicUsize::new(at + 1));
        Self { part, at, reached }
    }

    fn light(&self) {
        self.reached.store(0, Ordering::Relaxed);
    }

    fn reach(&self, part: &str) {
        if part == self.part && self.reached.fetch_add(1, Ordering::Relaxed) == self.at {
            panic!("{SECRET}");
        }
    }

    fn has_blown(&self) -> bool {
        self.reached.load(Ordering::Relaxed) > self.at
    }
}

/// A model or tools, each of whose parts may panic.
#[derive(Debug)]
struct Fused<S> {
    inner: S,
    name: &'static str,
    fuse: Fuse,
}

impl<S> Fused<S> {
    fn reach(&self, part: &str) {
        self.fuse.reach(&format!("{}.{part}", self.name));
    }
}

impl<S: Clone> Clone for Fused<S> {
    fn clone(&self) -> Self {
        self.reach("clone");
        Self {
            inner: self.inner.clone(),
            name: self.name,
            fuse: self.fuse.clone(),
        }
    }
}

impl<S: Service<Q>, Q> Service<Q> for Fused<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.reach("poll_ready");
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Q) -> S::Future {
        self.reach("call");
        self.inner.call(request)
    }
}

impl<S: ToolSource> ToolSource for Fused<S> {
    fn specs(&self) -> ToolSpecs {
        self.reach("specs");
        self.inner.specs()
    }

    fn check(&self) -> Result<(), Error> {
        self.reach("check");
        self.inner.check()
    }

    fn check_run(&self, context: &RunContext) -> Result<(), Error> {
        self.reach("check_run");
        self.inner.check_run(context)
    }

    fn offers(&self, tool: &str, context: &RunContext) -> bool {
        self.reach("offers");
        self.inner.offers(tool, context)
    }

    fn rules(&self) -> RunLimits {
        self.reach("rules");
        self.inner.rules()
    }
}

#[test]
fn a_part_that_panics_whenever_it_is_called_fails_the_run() {
    let parts = [
        "model.clone",
        "model.poll_ready",
        "model.call",
        "tools.clone",
        "tools.poll_ready",
        "tools.call",
        "tools.check_run",
        "tools.offers",
        "value.clone",
    ];
    for (part, pace) in parts
        .into_iter()
        .flat_map(|part| Pace::ALL.map(|pace| (part, pace)))
    {
        for at in 0.. {
            let has_blown = watched(async move {
                let fuse = Fuse::new(part, at);
                let tools = ScriptedTools::new().paced(pace).answers("look", "seen");
                let model = ScriptedModel::new()
                    .paced(pace)
                    .tool_call("look", json!({}))
                    .then()
                    .text("Well.");
                let rounds = Fused {
                    inner: tools.clone(),
                    name: "tools",
                    fuse: fuse.clone(),
                };
                let model = Fused {
                    inner: model,
                    name: "model",
                    fuse: fuse.clone(),
                };
                // A run inside another, which its tools may not be offered to.
                let mut context = RunContext::new().child().build();
                let value = Fused {
                    inner: (),
                    name: "value",
                    fuse: fuse.clone(),
                };
                context.extensions_mut().insert(value);
                // The host and a layer share the values, so that a change clones them.
                let mut request = ChatRequest::user("hi").with_context(context.clone());
                request.checkpoint = Some(Checkpoint::new(|_| Box::pin(async { Ok(()) })));
                let changes = from_fn(|mut request: ChatRequest, mut next: Next| async move {
                    request.context.extensions_mut().insert(1_u8);
                    next.run(request).await
                });
                let mut agent = AgentLayer::new(rounds).layer(changes.layer(model));
                fuse.light();
                let response = agent.ready().await.unwrap().call(request).await;
                let mut items = match response {
                    Ok(response) => response.body.collect::<Vec<_>>().await,
                    Err(error) => vec![Err(error)],
                };
                let end = items.pop().expect("a run ends with a terminal item");
                assert!(items.iter().all(Result::is_ok), "{part} {at} {pace:?}");
                assert!(tools.calls().len() <= 1, "{part} {at} {pace:?}");
                match (fuse.has_blown(), end) {
                    (false, end) => assert!(end.unwrap().is_finish(), "{part} {at} {pace:?}"),
                    (true, end) => {
                        let error = end.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::Other, "{part} {at} {pace:?}");
                        assert!(error.message().ends_with("panicked"), "{error}");
                        assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
                        let may = error.effects() >= concentric_core::SideEffects::Possible;
                        assert!(may || tools.calls().is_empty(), "{part} {at} {pace:?}");
                    }
                }
                fuse.has_blown()
            });
            if !has_blown {
                assert!(at > 0, "{part} is not called");
                break;
            }
        }
    }
}

#[test]
fn tools_that_panic_when_they_are_read_fail_each_run() {
    for part in ["tools.clone", "tools.specs", "tools.check", "tools.rules"] {
        let calls = watched(async move {
            let model = ScriptedModel::new().text("never").then().text("never");
            let fuse = Fuse::new(part, 0);
            fuse.light();
            let rounds = Fused {
                inner: ScriptedTools::new().answers("look", "seen"),
                name: "tools",
                fuse,
            };
            let agent = BoxModel::new(AgentLayer::new(rounds).layer(model.clone()));
            for _ in 0..2 {
                let (events, error) = read(agent.clone(), ChatRequest::user("hi")).await;
                assert!(events.is_empty());
                check(&error, Phase::Run);
            }
            model.requests().len()
        });
        assert_eq!(calls, 0, "{part}");
    }
}

#[test]
fn a_function_for_ends_aborts_nothing_while_a_panic_unwinds() {
    let panicked = watched(async {
        let panics = on_end(|_| panic!("{SECRET}"));
        let model = panics.layer(ScriptedModel::new().text("hi"));
        let body = model.oneshot(ChatRequest::user("hi")).await.unwrap().body;
        catch_unwind(AssertUnwindSafe(|| {
            let _body = body;
            panic!("another");
        }))
    });
    assert!(panicked.is_err());
}
