//! One test per row of [`concentric_layers::detach`]'s table, and one for each of its bounds.

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, Context, Error, ErrorKind,
    Event, EventStream, Outcome, ToolCall, ToolOutcome, Usage, store::Resumable,
};
use concentric_layers::{DetachLayer, detach::Consumer};
use concentric_layers::{
    End,
    on_end::{OnEndLayer, on_end},
};
use concentric_test::{
    Gate, Pace, ScriptedModel, ScriptedTools, Spurious, TestEnvironment, check_layer,
    drop_at_each_wait, layer_check,
};
use futures_util::{FutureExt, StreamExt, stream};
use serde_json::json;
use std::{
    cell::RefCell,
    fmt::Debug,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, LazyLock, Mutex},
    task::Poll,
    time::Duration,
};
use tokio::{runtime, task::yield_now};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tracing::{
    Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Writes down how the answers at this place end.
    fn ends(
        &self,
        place: &'static str,
    ) -> OnEndLayer<impl Fn(End<'_>) + Clone + Send + Sync + use<>> {
        let log = self.clone();
        on_end(move |end: End<'_>| {
            log.add(match end {
                End::Finished(finish) => match &finish.outcome {
                    Outcome::Completed => format!("{place}: completed"),
                    Outcome::Interrupted => format!("{place}: interrupted"),
                    Outcome::Aborted { reason } => format!("{place}: aborted, {reason:?}"),
                    other => format!("{place}: {other:?}"),
                },
                End::Failed(error) => format!("{place}: failed, {error}"),
                End::Truncated => format!("{place}: truncated"),
                End::Dropped => format!("{place}: dropped"),
            });
        })
    }
}

/// Takes down the warnings of this thread.
impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().contains("detach")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0 += &format!("{}={value:?} ", field.name());
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        self.add(line.0.trim_end());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// With a subscriber for all threads, tracing asks all subscribers about each place that logs. Else it
/// asks that of the thread which logs there first: if that one has none, the place is silent for all.
static EVERYWHERE: LazyLock<()> = LazyLock::new(|| {
    tracing::subscriber::set_global_default(Log::default()).unwrap();
});

/// Every test makes its layer here, so that nothing is logged before [`EVERYWHERE`] is set.
fn detach() -> DetachLayer {
    LazyLock::force(&EVERYWHERE);
    DetachLayer::new()
}

/// The log of the layer's warnings, until the guard is dropped.
fn warnings() -> (Log, tracing::subscriber::DefaultGuard) {
    LazyLock::force(&EVERYWHERE);
    let log = Log::default();
    let guard = tracing::subscriber::set_default(log.clone());
    (log, guard)
}

/// A layer, what is logged around it, and the agent of it all.
struct Scene {
    layer: DetachLayer,
    log: Log,
    tools: ScriptedTools,
    model: ScriptedModel,
    environment: TestEnvironment,
}

impl Scene {
    fn new(model: ScriptedModel) -> Self {
        Self {
            layer: detach(),
            log: Log::default(),
            tools: ScriptedTools::new(),
            model,
            environment: TestEnvironment::new(),
        }
    }

    /// A run that says a word, and waits at the gate.
    fn waiting(gate: &Gate) -> Self {
        Self::new(
            ScriptedModel::new()
                .text("Well,")
                .wait(gate)
                .text(" yes.")
                .repeat(),
        )
    }

    fn layer(self, layer: DetachLayer) -> Self {
        Self { layer, ..self }
    }

    fn tools(self, tools: ScriptedTools) -> Self {
        Self { tools, ..self }
    }

    fn agent(&self) -> BoxModel {
        let agent = ServiceBuilder::new()
            .layer(self.log.ends("outside"))
            .layer(self.layer.clone())
            .layer(self.log.ends("inside"))
            .layer(AgentLayer::new(self.tools.clone()))
            .service(self.model.clone());
        BoxModel::new(agent)
    }

    fn request(&self) -> ChatRequest {
        self.environment.request("hi")
    }

    async fn start(&self) -> (Context, EventStream) {
        let request = self.request();
        let context = request.context.clone();
        let answer = self.agent().oneshot(request).await.unwrap();
        (context, answer.body)
    }

    /// Begins a run whose consumer leaves at once.
    async fn leave(&self) -> Context {
        let (context, body) = self.start().await;
        drop(body);
        context
    }

    /// How many runs go on without their consumers.
    fn detached(&self) -> usize {
        64 - self.layer.runs().available()
    }
}

async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

/// Polls `future` this often, with all that is spawned in between.
async fn poll_times<F: Future>(future: &mut Pin<Box<F>>, times: usize) -> Option<F::Output> {
    for _ in 0..times {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

// ---- what every layer keeps ----

#[tokio::test(start_paused = true)]
async fn it_keeps_the_rules_while_its_consumer_is_there() {
    let layer = detach();
    layer_check::readiness(&layer).await;
    layer_check::finished(&layer).await;
    layer_check::failed(&layer).await;
    layer_check::ended_early(&layer).await;
    layer_check::polled(&layer).await;
    layer_check::size_hint(&layer).await;
}

#[tokio::test(start_paused = true)]
async fn it_keeps_all_of_them_where_no_run_may_go_on() {
    check_layer(detach().limit(0)).await;
}

#[tokio::test]
async fn it_names_what_it_wraps() {
    let model = ScriptedModel::new();
    let agent = detach().layer(AgentLayer::new(ScriptedTools::new()).layer(model));
    let described = concentric_core::Description::of(&agent).to_string();
    let names: Vec<_> = described
        .lines()
        .map(|line| line.split_whitespace().last().unwrap())
        .collect();
    assert_eq!(names, ["Detach", "Agent", "ScriptedTools", "ScriptedModel"]);
}

// ---- the consumer leaves ----

#[tokio::test]
async fn f012_a_run_whose_consumer_is_gone_goes_on_to_its_end() {
    let gate = Gate::new();
    let open = gate.clone();
    let tools = ScriptedTools::new().tool("order", move |_| {
        let gate = open.clone();
        async move {
            gate.pass().await;
            ToolOutcome::done("ordered")
        }
    });
    let model = ScriptedModel::new()
        .tool_call("order", json!({}))
        .then()
        .text("Done.");
    let scene = Scene::new(model).tools(tools);
    let context = scene.leave().await;
    assert_eq!(scene.log.lines(), ["outside: dropped"]);
    gate.reached().await;
    assert_eq!((scene.detached(), scene.tools.live()), (1, 1));
    assert!(!context.is_cancelled(), "the run goes on");

    gate.open();
    scene.layer.runs().shutdown().await;
    assert_eq!(scene.log.lines(), ["outside: dropped", "inside: completed"]);
    assert_eq!((scene.model.calls(), scene.tools.done()), (2, 1));
    assert!(!context.is_cancelled(), "nobody has cancelled it");
}

#[tokio::test]
async fn f012_without_the_layer_it_is_stopped() {
    let gate = Gate::new();
    let scene = Scene::waiting(&gate).layer(detach().limit(0));
    let context = scene.leave().await;
    assert_eq!(scene.log.lines(), ["inside: dropped", "outside: dropped"]);
    assert_eq!(context.cancel_reason(), Some(CancelReason::Disconnected));
    assert_eq!((scene.model.live(), scene.model.dropped()), (0, 1));
}

#[tokio::test]
async fn f012_it_goes_on_from_every_await_point() {
    let model = || {
        ScriptedModel::new()
            .pause()
            .text("Let ")
            .pause()
            .text("me see. ")
            .tool_call("order", json!({}))
            .pause()
            .then()
            .pause()
            .text("Done.")
            .pause()
    };
    let tools = || {
        ScriptedTools::new().tool("order", |_| async {
            yield_now().await;
            ToolOutcome::done("ordered")
        })
    };
    let mut times = 0;
    loop {
        let scene = Scene::new(model()).tools(tools());
        let agent = scene.agent();
        let request = scene.request();
        let context = request.context.clone();
        let mut answer =
            Box::pin(async move { agent.oneshot(request).await.unwrap().text().await });
        let whole = poll_times(&mut answer, times).await;
        drop(answer);
        scene.layer.runs().shutdown().await;

        if times == 0 {
            // Nothing has begun.
            assert_eq!((scene.model.calls(), scene.log.lines().len()), (0, 0));
            times += 1;
            continue;
        }
        let ends = match &whole {
            Some(_) => ["inside: completed", "outside: completed"],
            None => ["outside: dropped", "inside: completed"],
        };
        assert_eq!(scene.log.lines(), ends, "after {times} polls");
        assert_eq!((scene.model.calls(), scene.model.live()), (2, 0));
        assert_eq!((scene.tools.done(), scene.tools.dropped()), (1, 0));
        assert!(!context.is_cancelled());
        if let Some(text) = whole {
            assert_eq!(text.unwrap(), "Done.");
            break;
        }
        times += 1;
    }
    assert!(times > 5, "there are some await points: {times}");
}

#[tokio::test]
async fn a_future_that_was_never_polled_is_dropped() {
    let scene = Scene::new(ScriptedModel::new().text("hi"));
    let mut service = scene.layer.layer(scene.model.clone());
    let call = tower::Service::call(service.ready().await.unwrap(), scene.request());
    drop(call);
    settle().await;
    assert_eq!((scene.detached(), scene.model.live()), (0, 0));
    assert_eq!(scene.model.items(), 0);
}

#[tokio::test]
async fn a_body_that_has_ended_is_over() {
    let scene = Scene::new(ScriptedModel::new().text("hi"));
    let (_, mut body) = scene.start().await;
    while let Some(item) = body.next().await {
        if item.unwrap().is_finish() {
            break;
        }
    }
    assert_eq!(scene.model.live(), 0);
    assert!(body.next().await.is_none());
    drop(body);
    assert_eq!(scene.detached(), 0);
    assert_eq!(
        scene.log.lines(),
        ["inside: completed", "outside: completed"]
    );
}

#[tokio::test]
async fn a_body_whose_poll_has_panicked_is_not_polled_again() {
    let body = stream::iter([Ok(Event::text("hi"))])
        .chain(stream::once(async { panic!("this is wrong") }));
    let body = Mutex::new(Some(EventStream::new(body)));
    let body = Arc::new(body);
    let model = service_fn(move |_: ChatRequest| {
        let body = body.lock().unwrap().take().unwrap();
        async { Ok::<_, Error>(ChatResponse::new(body)) }
    });
    let layer = detach();
    let agent = layer.layer(model);
    let read =
        tokio::spawn(async move { agent.oneshot(ChatRequest::user("hi")).await?.text().await });
    assert!(read.await.unwrap_err().is_panic());
    assert_eq!(layer.runs().available(), 64);
}

// ---- the ends of a run that goes on ----

#[tokio::test]
async fn one_that_fails_is_logged_with_its_run() {
    let (warnings, _guard) = warnings();
    let broken = Error::new(ErrorKind::Server, "it broke");
    let scene = Scene::new(ScriptedModel::new().text("Well,").error(broken));
    let context = scene.leave().await;
    scene.layer.runs().shutdown().await;
    assert_eq!(
        scene.log.lines(),
        ["outside: dropped", "inside: failed, server: it broke"]
    );
    let run = context.run_id();
    assert_eq!(
        warnings.lines(),
        [format!(
            "message=a detached run failed run={run} error=server: it broke"
        )]
    );
}

#[tokio::test]
async fn one_that_ends_early_is_logged() {
    let (warnings, _guard) = warnings();
    let model = ScriptedModel::new().text("Well,").end_early();
    let layer = detach();
    let agent = layer.layer(model);
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    layer.runs().shutdown().await;
    let lines = warnings.lines();
    assert_eq!(lines.len(), 1);
    assert!(
        lines.concat().contains("ended without a terminal item"),
        "{lines:?}"
    );
}

#[tokio::test]
async fn one_that_panics_is_logged_and_gives_its_place_back() {
    let (warnings, _guard) = warnings();
    let model = service_fn(async |_: ChatRequest| {
        let panics = stream::once(async { panic!("this is wrong") });
        let body = stream::iter([Ok(Event::text("hi"))]).chain(panics);
        Ok::<_, Error>(ChatResponse::new(body))
    });
    let layer = detach();
    let agent = layer.layer(model);
    let mut answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    answer.body.next().await.unwrap().unwrap();
    drop(answer);
    layer.runs().shutdown().await;
    let lines = warnings.lines().concat();
    assert!(
        lines.contains("panicked") && lines.contains("this is wrong"),
        "{lines}"
    );
}

#[tokio::test]
async fn a_model_that_always_has_more_to_say_lets_others_have_their_turn() {
    let endless = service_fn(async |_: ChatRequest| {
        let more = stream::repeat_with(|| Ok(Event::text("more ")));
        Ok::<_, Error>(ChatResponse::new(more))
    });
    let environment = TestEnvironment::new();
    let layer = detach().within(Duration::from_secs(60));
    let agent = layer.layer(endless);
    drop(agent.oneshot(environment.request("hi")).await.unwrap());
    settle().await;
    assert_eq!(layer.runs().available(), 63);
    environment.advance(Duration::from_secs(60));
    settle().await;
    assert_eq!(layer.runs().available(), 64);
}

#[tokio::test]
async fn dropped_wherever_it_waits_a_run_ends_once() {
    let scene = RefCell::new(None);
    let run = || {
        let look = |_| async {
            // It is woken, and has nothing to say yet.
            yield_now().await;
            ToolOutcome::done("seen")
        };
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .text("Se")
            .pause()
            .text("en.");
        let tools = ScriptedTools::new().tool("look", look);
        let next = Scene::new(model.paced(Pace::NextTick)).tools(tools.paced(Pace::NextTick));
        let call = next.agent().oneshot(next.request());
        *scene.borrow_mut() = Some(next);
        async move {
            let answer = Spurious::new(call).await?.map_body(Spurious::new);
            Ok::<_, Error>(answer.collect().await?)
        }
    };
    let drops = drop_at_each_wait(run, async |polls| {
        settle().await;
        let scene = scene.take().unwrap();
        let begun = usize::from(polls > 0);
        assert_eq!((scene.detached(), scene.model.live()), (0, 0), "{polls}");
        assert_eq!(scene.tools.done(), begun, "{polls}");
        let ends = scene.log.lines();
        let inside: Vec<_> = ends.iter().filter(|end| end.contains("inside")).collect();
        assert_eq!(inside.len(), begun, "{polls}: {ends:?}");
    });
    let drops = drops.await;
    assert!(drops > 5, "{drops}");
}

// ---- a user's cancel ----

#[tokio::test]
async fn a_cancel_stops_it_and_is_no_disconnect() {
    let scene = Scene::waiting(&Gate::new());
    let context = scene.leave().await;
    settle().await;
    context.cancel(CancelReason::User);
    settle().await;
    assert_eq!(
        scene.log.lines(),
        ["outside: dropped", "inside: aborted, User"]
    );
    assert_eq!((scene.detached(), scene.model.live()), (0, 0));
    assert_eq!(context.cancel_reason(), Some(CancelReason::User));
}

#[tokio::test]
async fn a_run_that_was_cancelled_before_its_consumer_left_ends_as_one() {
    let scene = Scene::waiting(&Gate::new());
    let (context, body) = scene.start().await;
    context.cancel(CancelReason::User);
    drop(body);
    settle().await;
    assert_eq!(
        scene.log.lines(),
        ["outside: dropped", "inside: aborted, User"]
    );
}

#[tokio::test]
async fn what_does_not_hear_a_cancel_is_dropped_30_seconds_later() {
    let (warnings, _guard) = warnings();
    let model = ScriptedModel::new().text("Well,").never();
    let environment = TestEnvironment::new();
    let layer = detach();
    let request = environment.request("hi");
    let context = request.context.clone();
    let agent = layer.layer(model.clone());
    drop(agent.oneshot(request).await.unwrap());
    settle().await;
    context.cancel(CancelReason::User);
    settle().await;
    environment.advance(Duration::from_secs(29));
    settle().await;
    assert_eq!(model.live(), 1);
    environment.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(model.live(), 0);
    assert!(warnings.lines().concat().contains("did not end after"));
}

#[tokio::test]
async fn what_does_not_honour_its_deadline_is_dropped_30_seconds_later() {
    let (warnings, _guard) = warnings();
    let model = ScriptedModel::new().text("Well,").never();
    let environment = TestEnvironment::new();
    let deadline = environment.context().now() + Duration::from_secs(7);
    let context = environment.context_builder().deadline(deadline).build();
    let request = ChatRequest::user("hi").with_context(context);
    let layer = detach().within(Duration::MAX);
    drop(layer.layer(model.clone()).oneshot(request).await.unwrap());
    settle().await;
    for (seconds, live) in [(6, 1), (1, 1), (29, 1), (1, 0)] {
        environment.advance(Duration::from_secs(seconds));
        settle().await;
        assert_eq!(model.live(), live);
    }
    assert!(warnings.lines().concat().contains("did not end after"));
}

#[tokio::test]
async fn a_cancel_gives_a_run_no_more_time_than_it_had() {
    let model = ScriptedModel::new().text("Well,").never();
    let environment = TestEnvironment::new();
    let layer = detach().within(Duration::from_secs(60));
    let request = environment.request("hi");
    let context = request.context.clone();
    drop(layer.layer(model.clone()).oneshot(request).await.unwrap());
    settle().await;
    environment.advance(Duration::from_secs(50));
    context.cancel(CancelReason::User);
    settle().await;
    environment.advance(Duration::from_secs(9));
    settle().await;
    assert_eq!(model.live(), 1);
    environment.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(model.live(), 0);
}

// ---- the bounds ----

#[tokio::test]
async fn one_over_the_limit_is_stopped_and_logged() {
    let (warnings, _guard) = warnings();
    let gate = Gate::new();
    let scene = Scene::waiting(&gate).layer(detach().limit(2));
    let first = scene.leave().await;
    let second = scene.leave().await;
    let third = scene.leave().await;
    let reasons = [first, second, third.clone()].map(|context| context.cancel_reason());
    assert_eq!(reasons, [None, None, Some(CancelReason::Disconnected)]);
    let lines = warnings.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines.concat().contains(third.run_id().as_str()),
        "{lines:?}"
    );
    assert!(
        lines.concat().contains("the limit of 2 is reached"),
        "{lines:?}"
    );

    gate.open();
    settle().await;
    // There is room again.
    let fourth = scene.leave().await;
    settle().await;
    assert!(!fourth.is_cancelled());
}

#[tokio::test]
async fn by_default_64_runs_go_on_without_their_consumers() {
    let (warnings, _guard) = warnings();
    let gate = Gate::new();
    let scene = Scene::waiting(&gate);
    for _ in 0..65 {
        scene.leave().await;
    }
    assert_eq!((scene.detached(), scene.model.live()), (64, 64));
    let lines = warnings.lines().concat();
    assert!(lines.contains("the limit of 64 is reached"), "{lines}");
}

#[tokio::test]
async fn clones_share_the_limit() {
    let gate = Gate::new();
    let scene = Scene::waiting(&gate).layer(detach().limit(1));
    let agent = scene.agent();
    let mut reasons = Vec::new();
    for agent in [agent.clone(), agent] {
        let request = scene.request();
        let context = request.context.clone();
        drop(agent.oneshot(request).await.unwrap());
        reasons.push(context.cancel_reason());
    }
    assert_eq!(reasons, [None, Some(CancelReason::Disconnected)]);
}

#[tokio::test]
async fn one_that_takes_too_long_by_the_clock_of_its_context_is_stopped() {
    let (warnings, _guard) = warnings();
    let scene = Scene::waiting(&Gate::new()).layer(detach());
    let context = scene.leave().await;
    settle().await;
    scene.environment.advance(Duration::from_secs(599));
    settle().await;
    assert_eq!(scene.detached(), 1);
    scene.environment.advance(Duration::from_secs(1));
    settle().await;
    assert_eq!(scene.detached(), 0);
    assert_eq!(scene.log.lines(), ["outside: dropped", "inside: dropped"]);
    assert_eq!(context.cancel_reason(), Some(CancelReason::Disconnected));
    assert!(
        warnings
            .lines()
            .concat()
            .contains("exceeded its time limit")
    );
}

#[tokio::test]
async fn one_that_waits_for_a_reply_without_a_store_is_logged() {
    for is_stored in [false, true] {
        let (warnings, _guard) = warnings();
        let tools = ScriptedTools::new().asks("pay", "paid");
        let gate = Gate::new();
        let model = ScriptedModel::new()
            .text("Well,")
            .wait(&gate)
            .tool_call("pay", json!({}));
        let layer = DetachLayer::new();
        let agent = ServiceBuilder::new()
            .layer(layer.clone())
            // As a layer does that stores the state itself.
            .map_response(move |mut answer: ChatResponse<EventStream>| {
                if is_stored {
                    answer.extensions.insert(Resumable);
                }
                answer
            })
            .service(BoxModel::new(AgentLayer::new(tools).layer(model)));
        drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
        gate.open();
        layer.runs().shutdown().await;
        let lines = warnings.lines();
        let is_reported = lines
            .iter()
            .any(|line| line.contains("SuspendLayer") && line.contains("DetachLayer"));
        assert_eq!(is_reported, !is_stored, "{lines:?}");
    }
}

#[tokio::test]
async fn the_time_counts_from_when_the_consumer_leaves() {
    let scene = Scene::waiting(&Gate::new()).layer(detach().within(Duration::from_secs(5)));
    let (_, body) = scene.start().await;
    scene.environment.advance(Duration::from_secs(60));
    settle().await;
    drop(body);
    settle().await;
    scene.environment.advance(Duration::from_secs(4));
    settle().await;
    assert_eq!(scene.detached(), 1);
}

#[tokio::test]
async fn the_runs_own_deadline_holds_on() {
    let scene = Scene::waiting(&Gate::new());
    let deadline = scene.environment.context().now() + Duration::from_secs(7);
    let context = scene
        .environment
        .context_builder()
        .deadline(deadline)
        .build();
    let request = ChatRequest::user("hi").with_context(context);
    drop(scene.agent().oneshot(request).await.unwrap());
    settle().await;
    scene.environment.advance(Duration::from_secs(7));
    settle().await;
    assert_eq!(
        scene.log.lines(),
        [
            "outside: dropped",
            "inside: failed, timeout: the run's deadline has passed"
        ]
    );
}

// ---- shutdown ----

#[tokio::test]
async fn a_shutdown_waits_for_those_that_go_on_and_refuses_others() {
    let gate = Gate::new();
    let scene = Scene::waiting(&gate);
    let (late, body) = scene.start().await;
    let early = scene.leave().await;
    let runs = scene.layer.runs();
    let mut shutdown = Box::pin(runs.shutdown());
    assert!(poll_times(&mut shutdown, 50).await.is_none());

    // Its consumer is there, until now.
    drop(body);
    assert_eq!(late.cancel_reason(), Some(CancelReason::Disconnected));

    gate.open();
    shutdown.await;
    assert!(!early.is_cancelled());
    assert!(scene.log.lines().contains(&"inside: completed".to_owned()));
    // And again, by whoever else is told to; and from now on.
    runs.shutdown().await;
    let refused = scene.leave().await;
    assert!(refused.is_cancelled());
}

#[tokio::test]
async fn a_shutdown_that_is_given_up_has_refused_nobody_for_good() {
    let scene = Scene::waiting(&Gate::new());
    let first = scene.leave().await;
    assert!(scene.layer.runs().shutdown().now_or_never().is_none());
    let second = scene.leave().await;
    settle().await;
    assert_eq!([first, second].map(|c| c.is_cancelled()), [false, false]);
    assert_eq!(scene.detached(), 2);
}

#[test]
fn where_there_is_no_runtime_it_is_stopped_with_a_warning() {
    let (warnings, _guard) = warnings();
    let scene = Scene::waiting(&Gate::new());
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    let (context, body) = runtime.block_on(scene.start());
    drop(runtime);
    drop(body);
    assert_eq!(scene.log.lines(), ["inside: dropped", "outside: dropped"]);
    assert_eq!(context.cancel_reason(), Some(CancelReason::Disconnected));
    assert_eq!(scene.detached(), 0);
    assert!(warnings.lines().concat().contains("no tokio runtime"));
}

#[test]
fn a_runtime_that_shuts_down_drops_what_goes_on() {
    let scene = Scene::waiting(&Gate::new());
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        scene.leave().await;
        settle().await;
    });
    assert_eq!(scene.detached(), 1);
    drop(runtime);
    assert_eq!(scene.log.lines(), ["outside: dropped", "inside: dropped"]);
    assert_eq!((scene.detached(), scene.model.live()), (0, 0));
}

// ---- who is inside ----

#[tokio::test]
async fn who_is_inside_can_tell_that_the_consumer_is_gone() {
    let (gate, log) = (Gate::new(), Log::default());
    let (open, told) = (gate.clone(), log.clone());
    let look = move |call: ToolCall| {
        let (gate, log) = (open.clone(), told.clone());
        async move {
            let consumer = Consumer::of(&call.context).unwrap();
            log.add(format!("gone: {}", consumer.is_gone()));
            gate.pass().await;
            consumer.gone().await;
            log.add(format!("gone: {}", consumer.is_gone()));
            ToolOutcome::done("seen")
        }
    };
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("ok");
    let scene = Scene::new(model).tools(ScriptedTools::new().tool("look", look));
    let (_, mut body) = scene.start().await;
    // The step, the call, the step's end; and the tool begins.
    for _ in 0..3 {
        body.next().await.unwrap().unwrap();
    }
    assert!(body.next().now_or_never().is_none());
    gate.open();
    drop(body);
    scene.layer.runs().shutdown().await;
    assert_eq!(log.lines(), ["gone: false", "gone: true"]);
    assert!(Consumer::of(&Context::new()).is_none());
}

#[tokio::test]
async fn inside_another_run_it_does_nothing() {
    let gate = Gate::new();
    let inner = Scene::waiting(&gate);
    let agent = inner.agent();
    let outer = Context::new();
    let sub_agent = ChatRequest::user("hi").with_context(outer.child().build());
    drop(agent.clone().oneshot(sub_agent).await.unwrap());
    assert_eq!(inner.log.lines(), ["inside: dropped", "outside: dropped"]);

    // In a model's place.
    let nested = AgentLayer::new(ScriptedTools::new()).layer(agent);
    drop(nested.oneshot(ChatRequest::user("hi")).await.unwrap());
    assert_eq!(inner.log.lines().len(), 4);
    assert_eq!((inner.detached(), inner.model.live()), (0, 0));
}

#[tokio::test]
async fn an_agent_that_is_a_tool_may_have_one_too() {
    let inner = Scene::new(ScriptedModel::new().text("Yes.").repeat());
    let agent = inner.agent();
    let tools = ScriptedTools::new().tool("ask", move |call| {
        let agent = agent.clone();
        async move {
            let request = ChatRequest::user("hi").with_context(call.context.child().build());
            let answer = agent.oneshot(request).await.unwrap();
            ToolOutcome::done(answer.text().await.unwrap())
        }
    });
    let model = ScriptedModel::new()
        .tool_call("ask", json!({}))
        .then()
        .text("Done.");
    let layer = detach();
    let outer = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(AgentLayer::new(tools))
        .service(model);
    drop(outer.oneshot(ChatRequest::user("hi")).await.unwrap());
    layer.runs().shutdown().await;
    assert_eq!(
        inner.log.lines(),
        ["inside: completed", "outside: completed"]
    );
}

#[tokio::test]
async fn around_all_of_it_an_agent_in_a_models_place_goes_on() {
    let inner = AgentLayer::new(ScriptedTools::new());
    let layer = detach();
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(log.ends("inside"))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(detach())
        .layer(inner)
        .service(ScriptedModel::new().text("Well,").pause().text(" yes."));
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    layer.runs().shutdown().await;
    assert_eq!(log.lines(), ["inside: completed"]);
}

#[tokio::test]
async fn what_it_used_is_known_inside() {
    let used = Arc::new(Mutex::new(Usage::default()));
    let seen = Arc::clone(&used);
    let layer = detach();
    let model = ScriptedModel::new()
        .text("Well,")
        .pause()
        .text(" yes.")
        .usage(Usage::new(9, 2));
    let agent = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(on_end(move |end: End<'_>| {
            if let End::Finished(finish) = end {
                *seen.lock().unwrap() = finish.usage;
            }
        }))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(model);
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    layer.runs().shutdown().await;
    assert_eq!(*used.lock().unwrap(), Usage::new(9, 2));
}

#[tokio::test]
async fn many_that_hang_up_on_many_threads_all_come_to_their_end() {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap();
    let log = Log::default();
    let layer = detach().limit(1_000);
    let model = || {
        ScriptedModel::new()
            .text("Well,")
            .pause()
            .text(" yes.")
            .repeat()
    };
    let agent = BoxModel::new(
        ServiceBuilder::new()
            .layer(layer.clone())
            .layer(log.ends("inside"))
            .layer(AgentLayer::new(ScriptedTools::new()))
            .service(model()),
    );
    let consumers: Vec<_> = (0..1_000_usize)
        .map(|n| {
            let agent = agent.clone();
            runtime.spawn(async move {
                let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
                let _ = answer.body.take(n % 5).count().await;
            })
        })
        .collect();
    for consumer in consumers {
        consumer.await.unwrap();
    }
    layer.runs().shutdown().await;
    let lines = log.lines();
    assert_eq!(lines.len(), 1_000);
    let other = lines.iter().find(|line| **line != "inside: completed");
    assert_eq!(other, None);
    runtime.shutdown_background();
}

// ---- with stores and hooks inside ----

#[cfg(feature = "suspend")]
mod suspended {
    use super::*;
    use concentric_core::{
        Reply, ThreadId,
        store::{RunStore, Tenant, waiting},
    };
    use concentric_layers::SuspendLayer;
    use concentric_store::MemoryStore;

    #[tokio::test]
    async fn one_that_asks_is_found_in_the_store_and_goes_on() {
        let store = Arc::new(MemoryStore::new());
        let (layer, log) = (detach(), Log::default());
        let tools = ScriptedTools::new().asks("pay", "paid");
        let model = ScriptedModel::new()
            .text("Well, ")
            .tool_call("pay", json!({}))
            .then()
            .text("Done.");
        let agent = ServiceBuilder::new()
            .layer(layer.clone())
            .layer(log.ends("inside"))
            .layer(SuspendLayer::new(Arc::clone(&store)))
            .layer(AgentLayer::new(tools.clone()))
            .service(model);
        let thread = ThreadId::new("t");
        let context = || Context::builder().thread_id(thread.clone()).build();
        let request = ChatRequest::user("Pay.").with_context(context());
        drop(agent.clone().oneshot(request).await.unwrap());
        let runs = layer.runs();
        while runs.available() < 64 {
            yield_now().await;
        }
        assert_eq!(log.lines(), ["inside: interrupted"]);

        let asked = waiting(&*store, Tenant::default(), thread.clone());
        let asked = asked.await.unwrap();
        assert_eq!(asked.len(), 1);
        let replies = asked.iter().map(|asked| Reply::approve(asked.id.clone()));
        let request = ChatRequest::replying(replies.collect()).with_context(context());
        // Nobody hears that either.
        drop(agent.oneshot(request).await.unwrap());
        runs.shutdown().await;
        assert_eq!(log.lines(), ["inside: interrupted", "inside: completed"]);
        assert_eq!(tools.done(), 1);
        let open = store.of_thread(Tenant::default(), thread, None, 1).await;
        assert!(open.unwrap().is_empty());
    }
}

#[cfg(feature = "session")]
#[tokio::test]
async fn around_detach_a_session_is_refused() {
    use concentric_core::ThreadId;
    use concentric_layers::session::{SessionTarget, Sessions};

    let scene = Scene::new(ScriptedModel::new().text("Yes.").repeat());
    let sessions = Sessions::new(scene.agent());
    let target = SessionTarget::new(ThreadId::new("t"));
    let session = sessions.oneshot(target).await.unwrap();
    let error = session.clone().oneshot(session.user("hi")).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    for name in ["DetachLayer", "Sessions"] {
        assert!(error.message().contains(name), "{error}");
    }
    assert_eq!(scene.model.calls(), 0);
    assert_eq!(session.history().len(), 0);
}

#[cfg(feature = "hooks")]
mod hooked {
    use super::*;
    use concentric_core::BoxError;
    use concentric_layers::hooks::{Hooks, Summary, hooks};

    struct Told(&'static str, Log);

    impl Hooks for Told {
        fn id(&self) -> &str {
            self.0
        }

        async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
            // One that waits is waited for, detached too.
            yield_now().await;
            let used = run.usage().output_tokens().unwrap_or_default();
            self.1.add(match end {
                End::Finished(finish) => format!("{}: {:?}, {used}", self.0, finish.outcome),
                End::Dropped => format!("{}: dropped", self.0),
                other => format!("{}: {other:?}", self.0),
            });
            Ok(())
        }
    }

    #[tokio::test]
    async fn hooks_inside_see_the_end_and_those_outside_a_drop() {
        let (layer, log) = (detach(), Log::default());
        let tools = ScriptedTools::new().answers("look", "seen");
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .text("Done.");
        let agent = ServiceBuilder::new()
            .layer(hooks(Arc::new(Told("outside", log.clone()))).run())
            .layer(layer.clone())
            .layer(hooks(Arc::new(Told("inside", log.clone()))).run())
            .layer(AgentLayer::new(tools))
            .service(model);
        drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
        layer.runs().shutdown().await;
        settle().await;
        let mut lines = log.lines();
        lines.sort();
        assert_eq!(lines, ["inside: Completed, 2", "outside: dropped"]);
    }
}
