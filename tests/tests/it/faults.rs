//! The faults of FAULTS.md that a stack must survive: F11, F12, F13, F58.

use concentric_core::{
    Agent, AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, CustomEvent, EmitError,
    Error, ErrorKind, Event, EventStream, FinishReason, Outcome, Reply, ToolOutcome, Usage,
    machine::RunState,
};
use concentric_layers::InFlightLimitLayer;
use concentric_layers::{
    CommitLayer, DebugLayer, Emit, End, Next, RequestDefaultsLayer, Transform, TransformLayer,
    from_fn, inspect_events, map_events, on_end,
};
use concentric_test::{
    ScriptedModel, ScriptedTools, Strict, TestEnvironment, assert_fails, assert_finishes,
    check_layer, shape, text_of,
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use serde_json::json;
use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

fn request() -> ChatRequest {
    ChatRequest::user("hi")
}

/// A transform that changes nothing.
#[derive(Clone, Default)]
struct Same;

impl Transform for Same {
    fn event(&mut self, event: Event) -> Emit {
        Emit::One(event)
    }
}

async fn pass(request: ChatRequest, mut next: Next) -> Result<ChatResponse<EventStream>, Error> {
    next.run(request).await
}

// ---- F11: a consumer that stops reading ----

#[tokio::test(start_paused = true)]
async fn f011_a_stopped_consumer_stops_the_reading_upstream() {
    let model = ScriptedModel::new().deltas(vec!["Word. "; 10_000]);
    let agent = ServiceBuilder::new()
        .layer(on_end(|_: End<'_>| {}))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(InFlightLimitLayer::new(1))
        .buffer(8)
        .layer(from_fn(pass))
        .layer(TransformLayer::new(|_: &ChatRequest| Same))
        .layer(CommitLayer::first_sentence())
        .layer(inspect_events(|_: &Event| {}))
        .service(model.clone());
    let commit = ServiceBuilder::new()
        .layer(CommitLayer::first_event())
        .service(agent);
    let mut body = commit.oneshot(request()).await.unwrap().body;
    for _ in 0..5 {
        body.next().await.unwrap().unwrap();
    }
    let read = model.items();
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(model.items(), read);
    // What was shown, and what the layers that hold back have looked at.
    assert!(read <= 16, "{read} items were read for five");

    drop(body);
    assert_eq!((model.live(), model.dropped()), (0, 1));
}

#[tokio::test]
async fn f011_the_steps_behind_a_stopped_consumer_do_not_begin() {
    let tools = ScriptedTools::new().answers("search", "42");
    let model = ScriptedModel::new()
        .tool_call("search", json!({}))
        .then()
        .text("ok");
    let agent = AgentLayer::new(tools.clone()).layer(model.clone());
    let mut body = agent.oneshot(request()).await.unwrap().body;
    // The step's start, the call, and the step's end.
    for _ in 0..3 {
        body.next().await.unwrap().unwrap();
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((model.calls(), tools.calls().len()), (1, 0));
}

fn said() -> Event {
    Event::Custom(Box::new(CustomEvent::new("said", serde_json::Value::Null)))
}

#[tokio::test]
async fn f011_what_is_emitted_to_a_stopped_consumer_is_bounded() {
    let agent = AgentLayer::new(ScriptedTools::new()).layer(ScriptedModel::new().text("ok"));
    let request = request();
    let context = request.context.clone();
    let mut body = agent.oneshot(request).await.unwrap().body;
    let emitted = (0..).take_while(|_| context.emit(said()).is_ok()).count();
    assert_eq!(emitted, 1024);
    assert_eq!(context.emit(said()), Err(EmitError::Full));
    // One that would rather wait goes on once the consumer reads.
    let mut waits = task::spawn(context.send(said()));
    assert_pending!(waits.poll());
    body.next().await.unwrap().unwrap();
    assert!(waits.is_woken());
    assert_eq!(waits.await, Ok(()));

    let (events, _) = assert_finishes(body).await;
    assert_eq!(text_of(&events), "ok");
    assert_eq!(context.emit(said()), Err(EmitError::Ended));
}

// ---- F12, F13: the consumer goes away, or cancels, anywhere ----

/// A run with every kind of wait in it, and what is counted about it.
struct Specimen {
    model: ScriptedModel,
    tools: ScriptedTools,
    runs_ended: Arc<AtomicUsize>,
    calls_ended: Arc<AtomicUsize>,
    agent: BoxModel,
}

fn counter(count: &Arc<AtomicUsize>) -> impl Fn(End<'_>) + Clone + Send + Sync + 'static {
    let count = Arc::clone(count);
    move |_: End<'_>| {
        count.fetch_add(1, Ordering::SeqCst);
    }
}

impl Specimen {
    fn new() -> Self {
        let (runs_ended, calls_ended) = (Arc::default(), Arc::default());
        let model = ScriptedModel::new()
            .pause()
            .text("Let me ")
            .pause()
            .text("see.")
            .tool_call("slow", json!({}))
            .pause()
            .tool_call("quick", json!({}))
            .pause()
            .then()
            .pause()
            .reasoning("Hm.")
            .pause()
            .tool_call("slow", json!({}))
            .then()
            .pause()
            .text("ok")
            .pause();
        let tools = ScriptedTools::new()
            .tool("slow", |_| async {
                for _ in 0..3 {
                    yield_once().await;
                }
                ToolOutcome::done("done")
            })
            .answers("quick", "42");
        let agent = BoxModel::new(
            ServiceBuilder::new()
                .layer(on_end(counter(&runs_ended)))
                .layer(from_fn(pass))
                .layer(AgentLayer::new(tools.clone()))
                .layer(on_end(counter(&calls_ended)))
                .layer(InFlightLimitLayer::new(1))
                .layer(TransformLayer::new(|_: &ChatRequest| Same))
                .service(Strict::new(model.clone())),
        );
        Self {
            model,
            tools,
            runs_ended,
            calls_ended,
            agent,
        }
    }

    fn assert_all_gone(&self, at: usize) {
        assert_eq!(self.model.live(), 0, "a model's answer lives on, at {at}");
        assert_eq!(self.tools.live(), 0, "a tool runs on, at {at}");
        assert_eq!(self.runs_ended.load(Ordering::SeqCst), 1, "at {at}");
        assert_eq!(
            self.calls_ended.load(Ordering::SeqCst),
            self.model.calls(),
            "not each model call had one end, at {at}"
        );
    }
}

async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Polls a call, and then its body, one poll at a time.
enum Stepper {
    Call(task::Spawn<BoxFuture<'static, Result<ChatResponse<EventStream>, Error>>>),
    Body(task::Spawn<EventStream>),
}

enum Stepped {
    Pending,
    Item(Option<Result<Event, Error>>),
}

impl Stepper {
    fn new(agent: &mut BoxModel, request: ChatRequest) -> Self {
        let mut ready = task::spawn(agent.ready());
        let Poll::Ready(Ok(agent)) = ready.poll() else {
            panic!("an agent is always ready");
        };
        let call = agent.call(request);
        Self::Call(task::spawn(Box::pin(call) as _))
    }

    fn step(&mut self) -> Stepped {
        match self {
            Self::Call(call) => match call.poll() {
                Poll::Pending => Stepped::Pending,
                Poll::Ready(Ok(response)) => {
                    *self = Self::Body(task::spawn(response.body));
                    Stepped::Pending
                }
                Poll::Ready(Err(error)) => Stepped::Item(Some(Err(error))),
            },
            Self::Body(body) => match body.poll_next() {
                Poll::Pending => Stepped::Pending,
                Poll::Ready(item) => Stepped::Item(item),
            },
        }
    }
}

#[tokio::test]
async fn f012_a_run_dropped_at_any_point_takes_all_with_it_and_ends_once() {
    let mut whole = false;
    let mut points = 0;
    for n in 0.. {
        let mut specimen = Specimen::new();
        let mut run = Stepper::new(&mut specimen.agent, request());
        for _ in 0..n {
            if let Stepped::Item(None | Some(Err(_))) = run.step() {
                whole = true;
            }
        }
        drop(run);
        specimen.assert_all_gone(n);
        if whole {
            break;
        }
        points = n;
    }
    assert!(points > 20, "only {points} points");
}

/// The state of a run that asks whether a call of `tool` may run.
async fn interrupted(tool: &'static str) -> RunState {
    let agent = AgentLayer::new(ScriptedTools::new().asks(tool, "done"))
        .layer(ScriptedModel::new().tool_call(tool, json!({})));
    let response = agent.oneshot(request()).await.unwrap();
    *response.collect().await.unwrap().finish.state.unwrap()
}

/// A request to go on with a run, all of whose questions are answered with yes.
fn approved(state: RunState) -> ChatRequest {
    let asked = state.interrupts();
    let replies = asked.iter().map(|asked| Reply::approve(asked.id.clone()));
    let replies = replies.collect();
    ChatRequest::resume(state, replies)
}

#[tokio::test]
async fn f012_a_resumed_run_dropped_at_any_point_takes_its_tools_with_it() {
    let state = interrupted("slow").await;
    for n in 0..100 {
        let mut specimen = Specimen::new();
        let request = approved(state.clone());
        let mut run = Stepper::new(&mut specimen.agent, request);
        let mut ended = false;
        for _ in 0..n {
            ended |= matches!(run.step(), Stepped::Item(None | Some(Err(_))));
        }
        drop(run);
        specimen.assert_all_gone(n);
        if ended {
            return;
        }
    }
    panic!("the run does not end");
}

#[tokio::test]
async fn f013_a_run_cancelled_at_any_point_has_one_terminal_item() {
    for n in 0..200 {
        let mut specimen = Specimen::new();
        let request = request();
        let context = request.context.clone();
        let mut run = Stepper::new(&mut specimen.agent, request);
        let mut finishes = Vec::new();
        let mut steps = 0;
        loop {
            if steps == n {
                context.cancel(CancelReason::User);
            }
            steps += 1;
            match run.step() {
                Stepped::Item(None) => break,
                Stepped::Item(Some(Ok(Event::Finish(finish)))) => finishes.push(finish),
                Stepped::Item(Some(Ok(_))) | Stepped::Pending => {
                    assert!(finishes.is_empty(), "something follows the end, at {n}");
                }
                Stepped::Item(Some(Err(error))) => panic!("{error}, at {n}"),
            }
            assert!(steps < 1_000, "the run does not end, at {n}");
        }
        // Also with the body still there: a run that has ended holds nothing.
        assert_eq!((specimen.model.live(), specimen.tools.live()), (0, 0));
        drop(run);
        specimen.assert_all_gone(n);
        assert_eq!(finishes.len(), 1);
        let finish = finishes.pop().unwrap();
        // Every round of the history is closed, whatever was cut.
        assert!(finish.transcript.is_some());
        if finish.outcome == Outcome::Completed {
            assert!(n > 20, "only {n} points");
            return;
        }
        assert_eq!(
            finish.outcome,
            Outcome::Aborted {
                reason: CancelReason::User
            }
        );
    }
    panic!("the run does not end by itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f013_a_cancel_that_races_with_the_end_leaves_one_outcome() {
    for n in 0..500_u32 {
        let specimen = Specimen::new();
        let request = request();
        let context = request.context.clone();
        let cancel = tokio::spawn(async move {
            for _ in 0..n % 50 {
                tokio::task::yield_now().await;
            }
            context.cancel(CancelReason::Disconnected);
        });
        let response = specimen.agent.clone().oneshot(request).await.unwrap();
        assert_finishes(response.body).await;
        cancel.await.unwrap();
        specimen.assert_all_gone(n as usize);
    }
}

#[tokio::test]
async fn f012_an_attempt_that_is_dropped_leaves_the_other_attempt_its_stream() {
    // As a hedge around an agent does: two attempts at one request, and the first is dropped.
    let test = TestEnvironment::new();
    let model = ScriptedModel::new()
        .never()
        .then()
        .text("a")
        .pause()
        .text("b");
    let agent = AgentLayer::new(ScriptedTools::new()).layer(model);
    let request = test.request("hi");
    let mut first = task::spawn(agent.clone().oneshot(request.clone()));
    assert_pending!(first.poll());
    let mut body = agent.oneshot(request.clone()).await.unwrap().body;
    drop(first);

    assert!(!request.context.is_cancelled());
    assert_eq!(request.context.emit(said()), Ok(()));
    let mut events = Vec::new();
    while let Some(event) = body.next().await {
        events.push(event.unwrap());
    }
    assert!(events.contains(&said()));
}

// ---- F58: readiness, and layers that panic ----

/// A layer of one kind, erased, so that a pair of any two can be made.
struct Erased {
    name: &'static str,
    layer: Arc<dyn Fn(BoxModel) -> BoxModel + Send + Sync>,
}

impl Erased {
    fn new<L, S>(name: &'static str, layer: L) -> Self
    where
        L: Layer<BoxModel, Service = S> + Send + Sync + 'static,
        S: concentric_core::ModelService<Body: Send + 'static, Future: Send + 'static>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        Self {
            name,
            layer: Arc::new(move |model| BoxModel::new(layer.layer(model))),
        }
    }
}

/// A pair of layers, the outer one first.
struct Pair<'a>(&'a Erased, &'a Erased);

impl Layer<Strict<ScriptedModel>> for Pair<'_> {
    type Service = BoxModel;

    fn layer(&self, model: Strict<ScriptedModel>) -> BoxModel {
        (self.0.layer)((self.1.layer)(BoxModel::new(model)))
    }
}

fn our_layers() -> Vec<Erased> {
    vec![
        Erased::new("map_events", map_events(|_: &mut Event| {})),
        Erased::new("inspect_events", inspect_events(|_: &Event| {})),
        Erased::new("transform", TransformLayer::new(|_: &ChatRequest| Same)),
        Erased::new("commit", CommitLayer::first_sentence()),
        Erased::new("commit whole", CommitLayer::whole()),
        Erased::new("defaults", RequestDefaultsLayer::new().system("Be brief.")),
        Erased::new("debug", DebugLayer::new("here")),
        Erased::new("on_end", on_end(|_: End<'_>| {})),
        Erased::new("from_fn", from_fn(pass)),
        Erased::new("agent", AgentLayer::new(ScriptedTools::new())),
        Erased::new("in_flight", InFlightLimitLayer::new(2)),
        Erased::new(
            "concurrency_limit",
            tower::limit::ConcurrencyLimitLayer::new(1),
        ),
        Erased::new(
            "timeout",
            tower::timeout::TimeoutLayer::new(Duration::from_secs(30)),
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn f058_each_layer_keeps_the_contract() {
    check_layer(map_events(|_: &mut Event| {})).await;
    check_layer(inspect_events(|_: &Event| {})).await;
    check_layer(TransformLayer::new(|_: &ChatRequest| Same)).await;
    check_layer(CommitLayer::first_event()).await;
    check_layer(CommitLayer::first_sentence()).await;
    check_layer(CommitLayer::whole()).await;
    check_layer(RequestDefaultsLayer::new().system("Be brief.")).await;
    check_layer(DebugLayer::new("here")).await;
    check_layer(on_end(|_: End<'_>| {})).await;
    check_layer(from_fn(pass)).await;
    check_layer(AgentLayer::new(ScriptedTools::new())).await;
    check_layer(InFlightLimitLayer::new(1)).await;
}

#[tokio::test(start_paused = true)]
async fn f058_each_pair_of_layers_keeps_the_contract() {
    // One limit in flight must not stand inside of itself.
    let (outers, inners) = (our_layers(), our_layers());
    for outer in &outers {
        for inner in &inners {
            // What belongs inside of a loop is refused around one, which the layer's own tests show.
            if (outer.name, inner.name) == ("of_run", "agent") {
                continue;
            }
            println!("{} over {}", outer.name, inner.name);
            check_layer(Pair(outer, inner)).await;
        }
    }
}

#[tokio::test]
async fn f058_a_function_that_does_not_call_next_gives_readiness_back() {
    let model = Strict::with_capacity(ScriptedModel::new(), 1);
    let service = ServiceBuilder::new()
        .layer(from_fn(async |_: ChatRequest, _: Next| {
            Ok(ChatResponse::new(stream::iter([Ok(Event::finish(
                FinishReason::Stop,
                Usage::default(),
            ))])))
        }))
        .service(model.clone());
    for _ in 0..3 {
        assert_finishes(service.clone().oneshot(request()).await.unwrap().body).await;
    }
    assert_eq!((model.reserved(), model.calls()), (0, 0));
}

/// Where a layer panics.
#[derive(Clone, Copy, Debug)]
enum Where {
    Call,
    Future,
    Body,
}

/// Panics in the first call, and passes the others on.
#[derive(Clone)]
struct Panics<S> {
    inner: S,
    place: Where,
    left: Arc<AtomicUsize>,
}

impl<S> Service<ChatRequest> for Panics<S>
where
    S: Service<ChatRequest, Response = ChatResponse<EventStream>, Error = Error>,
    S::Future: Send + 'static,
{
    type Response = ChatResponse<EventStream>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Error>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let call = self.inner.call(request);
        let panics = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
            .is_ok();
        match self.place {
            _ if !panics => Box::pin(call),
            Where::Call => panic!("in call"),
            Where::Future => Box::pin(async { panic!("in the future") }),
            Where::Body => Box::pin(async move {
                Ok(call
                    .await?
                    .map_body(|body| EventStream::new(body.inspect(|_| panic!("in the body")))))
            }),
        }
    }
}

#[tokio::test]
async fn f058_a_layer_that_panics_fails_its_request_and_the_stack_serves_on() {
    for place in [Where::Call, Where::Future, Where::Body] {
        for outside in [true, false] {
            let model = ScriptedModel::new().text("a").text("b").repeat();
            let ended = Arc::default();
            let limit = InFlightLimitLayer::new(1);
            let panics = |inner: BoxModel| {
                BoxModel::new(Panics {
                    inner,
                    place,
                    left: Arc::new(AtomicUsize::new(1)),
                })
            };
            let inner = BoxModel::new(limit.layer(Strict::new(model.clone())));
            let inner = if outside { inner } else { panics(inner) };
            let agent = BoxModel::new(
                ServiceBuilder::new()
                    .layer(on_end(counter(&ended)))
                    .layer(AgentLayer::new(ScriptedTools::new()))
                    .service(inner),
            );
            let agent = if outside { panics(agent) } else { agent };

            let run = |request: ChatRequest| {
                let agent = agent.clone();
                tokio::spawn(async move {
                    let response = agent.oneshot(request).await.unwrap();
                    text_of(&assert_finishes(response.body).await.0)
                })
            };
            let request_that_panics = request();
            let context = request_that_panics.context.clone();
            let failed = run(request_that_panics).await.unwrap_err();
            assert!(failed.is_panic());
            // All of it is let go of, and its end was told.
            assert_eq!((model.live(), limit.available()), (0, 1), "{place:?}");
            assert_eq!(ended.load(Ordering::SeqCst), 1, "{place:?} {outside}");
            // The run is over, or was never driven.
            let _ = context.emit(said());

            assert_eq!(run(request()).await.unwrap(), "ab");
        }
    }
}

#[tokio::test]
async fn f058_a_tool_that_panics_fails_its_run_and_the_stack_serves_on() {
    let left = Arc::new(AtomicUsize::new(1));
    let tools = ScriptedTools::new().tool("search", move |_| {
        let first = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
            .is_ok();
        assert!(!first, "the tool panics");
        ready(ToolOutcome::done("42"))
    });
    let agent = AgentLayer::new(tools.clone()).layer(
        ScriptedModel::new()
            .tool_call("search", json!({}))
            .then()
            .tool_call("search", json!({}))
            .then()
            .text("ok"),
    );
    let run = || {
        let agent = agent.clone();
        tokio::spawn(async move {
            assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
        })
    };
    assert!(run().await.unwrap_err().is_panic());
    assert_eq!(tools.live(), 0);
    run().await.unwrap();
}

#[tokio::test]
async fn f058_an_agent_over_a_model_that_breaks_fails_each_run_and_not_the_agent() {
    let broken = Arc::new(AtomicUsize::new(1));
    let model = service_fn(move |_: ChatRequest| {
        let broken = broken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
            .is_ok();
        ready(if broken {
            Err(Error::new(ErrorKind::Connection, "reset by peer"))
        } else {
            Ok(ChatResponse::new(stream::iter([
                Ok(Event::text("ok")),
                Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
            ])))
        })
    });
    let mut agent = AgentLayer::new(ScriptedTools::new()).layer(model);
    let error = agent
        .ready()
        .await
        .unwrap()
        .call(request())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection);
    let answer = agent.ready().await.unwrap().call(request()).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "ok");
}

// ---- attempts at one run, and its deadline ----

fn server_error() -> Error {
    Error::new(ErrorKind::Server, "it broke")
}

/// Tries once more, and does `between` in between.
fn tries_twice(
    between: impl Fn(&ChatRequest) + Clone + Send + Sync + 'static,
) -> impl Layer<
    Agent<ScriptedModel, ScriptedTools>,
    Service = impl Service<
        ChatRequest,
        Response = ChatResponse<EventStream>,
        Error = Error,
        Future = BoxFuture<'static, Result<ChatResponse<EventStream>, Error>>,
    >,
> {
    from_fn(move |request: ChatRequest, mut next: Next| {
        let between = between.clone();
        async move {
            match next.run(request.clone()).await {
                Err(_) => {
                    between(&request);
                    next.run(request).await
                }
                ok => ok,
            }
        }
        .boxed()
    })
}

fn fails_once() -> Agent<ScriptedModel, ScriptedTools> {
    let model = ScriptedModel::new().error(server_error()).then().text("ok");
    AgentLayer::new(ScriptedTools::new()).layer(model)
}

#[tokio::test]
async fn what_is_emitted_between_two_attempts_reaches_the_consumer() {
    let agent = tries_twice(|request| {
        let retrying = CustomEvent::new("retrying", json!(1));
        assert_eq!(request.emit(Event::Custom(Box::new(retrying))), Ok(()));
    })
    .layer(fails_once());
    let response = agent.oneshot(request()).await.unwrap();
    let (events, _) = assert_finishes(response.body).await;
    assert_eq!(shape(&events), "custom step_start text step_finish finish");
}

#[tokio::test]
async fn deferred_work_waits_for_the_attempt_that_succeeds() {
    let done = Arc::new(AtomicUsize::new(0));
    let request = request();
    request.context.defer({
        let done = Arc::clone(&done);
        async move {
            done.fetch_add(1, Ordering::SeqCst);
        }
    });
    let agent = tries_twice(|_| {}).layer(fails_once());
    let mut body = agent.oneshot(request).await.unwrap().body;
    for expected in [0, 0, 0, 1] {
        body.next().await.unwrap().unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(done.load(Ordering::SeqCst), expected);
    }
}

#[tokio::test]
async fn a_consumer_that_reads_slowly_does_not_carry_a_run_past_its_deadline() {
    let test = TestEnvironment::new();
    let deadline = test.context().now() + Duration::from_secs(30);
    let context = test.context_builder().deadline(deadline).build();
    let tools = ScriptedTools::new().answers("pay", "paid");
    let agent = AgentLayer::new(tools.clone()).layer(
        ScriptedModel::new()
            .tool_call("pay", json!({}))
            .then()
            .text("ok"),
    );
    let request = request().with_context(context);
    let mut body = agent.oneshot(request).await.unwrap().body;
    for _ in 0..3 {
        body.next().await.unwrap().unwrap();
    }
    test.advance(Duration::from_secs(3600));
    let (_, error) = assert_fails(body).await;
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(tools.calls().len(), 0);
}

#[tokio::test]
async fn a_run_whose_deadline_has_passed_does_not_call_its_model() {
    let test = TestEnvironment::new();
    let now = test.context().now();
    let context = test.context_builder().deadline(now).build();
    let model = ScriptedModel::new().text("never asked");
    let agent = AgentLayer::new(ScriptedTools::new()).layer(model.clone());
    let error = match agent.oneshot(request().with_context(context)).await {
        Err(error) => error,
        Ok(response) => assert_fails(response.body).await.1,
    };
    assert_eq!((error.kind(), model.calls()), (ErrorKind::Timeout, 0));
}

#[tokio::test]
async fn a_reset_takes_back_its_step_and_not_those_before() {
    let agent = AgentLayer::new(ScriptedTools::new().answers("search", "42")).layer(
        ScriptedModel::new()
            .text("Let me see.")
            .tool_call("search", json!({}))
            .then()
            .text("I begin")
            .event(Event::Reset)
            .text("I say"),
    );
    let response = agent.oneshot(request()).await.unwrap();
    let answer = response.collect().await.unwrap();
    assert_eq!(answer.text(), "I say");
    assert_eq!(answer.message.tool_calls().count(), 1);
    assert_eq!(answer.message.text(), "Let me see.I say");
}

#[tokio::test]
async fn a_resumed_run_commits_before_its_first_tool_starts() {
    let request = approved(interrupted("pay").await);
    let tools = ScriptedTools::new().answers("pay", "paid");
    let agent = AgentLayer::new(tools.clone()).layer(ScriptedModel::new().text("ok"));
    let mut body = agent.oneshot(request).await.unwrap().body;
    assert!(tools.calls().is_empty());
    assert_eq!(body.next().await.unwrap().unwrap(), Event::Resumed);
    assert!(tools.calls().is_empty());
    let (events, _) = assert_finishes(body).await;
    assert_eq!(
        shape(&events),
        "tool_result step_start text step_finish finish"
    );
}
