//! The cases of CONFORMANCE.md that are about layers, events and ends; one test each.

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, Context, Error, ErrorKind,
    Event, EventStream, FinishReason, Outcome, ToolCall, ToolOutcome, ToolSpec, Usage,
};
use concentric_layers::{
    CommitLayer, DefaultsLayer, Emit, End, Next, NextTool, Transform, TransformLayer, from_fn,
    inspect_events, map_events, on_end, tool_from_fn,
};
use concentric_test::{
    Gate, ScriptedModel, ScriptedTools, TestEnvironment, assert_fails, assert_finishes,
    collect_events, shape, text_of,
};
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::{
    future::{Ready, ready},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceBuilder, ServiceExt, retry::Policy, service_fn};

fn request() -> ChatRequest {
    ChatRequest::user("hi")
}

fn server_error() -> Error {
    Error::new(ErrorKind::Server, "it broke").with_code("E7")
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, entry: impl Into<String>) {
        self.0.lock().expect("not poisoned").push(entry.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("not poisoned"))
    }
}

fn end_name(end: End<'_>) -> String {
    match end {
        End::Finished(finish) => match &finish.outcome {
            Outcome::Completed => "completed".to_owned(),
            Outcome::Interrupted => "interrupted".to_owned(),
            Outcome::Halted { .. } => "halted".to_owned(),
            Outcome::Aborted { .. } => "aborted".to_owned(),
            Outcome::StepLimit => "step limit".to_owned(),
            other => format!("{other:?}"),
        },
        End::Failed(error) => format!("failed: {}", error.kind()),
        End::Truncated => "truncated".to_owned(),
        End::Dropped => "dropped".to_owned(),
    }
}

/// A layer that logs when its call begins and when it has its answer.
macro_rules! logs {
    ($log:expr, $name:literal) => {{
        let log = $log.clone();
        from_fn(move |request: ChatRequest, mut next: Next| {
            let log = log.clone();
            async move {
                log.add(concat!($name, "-in"));
                let response = next.run(request).await;
                log.add(concat!($name, "-out"));
                response
            }
        })
    }};
}

/// A layer that logs how its call ended.
macro_rules! ends {
    ($log:expr, $name:literal) => {{
        let log = $log.clone();
        on_end(move |end: End<'_>| log.add(format!("{}: {}", $name, end_name(end))))
    }};
}

// ---- ordering ----

#[tokio::test]
async fn c001_model_layers_nest_in_the_order_added() {
    let log = Log::default();
    let provider = service_fn({
        let log = log.clone();
        move |_: ChatRequest| {
            log.add("provider");
            ready(Ok::<_, Error>(ChatResponse::new(stream::iter([
                Ok(Event::text("ok")),
                Ok(Event::finish(FinishReason::Stop, Usage::new(1, 1))),
            ]))))
        }
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(logs!(log, "LA"))
        .layer(logs!(log, "LB"))
        .service(provider);
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(
        log.take(),
        ["LA-in", "LB-in", "provider", "LB-out", "LA-out"]
    );
}

#[tokio::test]
async fn c003_work_before_a_turn_runs_in_the_order_added_and_work_after_it_in_reverse() {
    let log = Log::default();
    let before = |name: &'static str| {
        let log = log.clone();
        tower::util::MapRequestLayer::new(move |request: ChatRequest| {
            log.add(name);
            request
        })
    };
    let agent = ServiceBuilder::new()
        .layer(before("before A"))
        .layer(ends!(log, "after A"))
        .layer(before("before B"))
        .layer(ends!(log, "after B"))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(ScriptedModel::new().text("ok"));
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(
        log.take(),
        [
            "before A",
            "before B",
            "after B: completed",
            "after A: completed"
        ]
    );
}

#[tokio::test]
async fn c004_layers_of_one_run_are_outside_those_of_the_agent() {
    let log = Log::default();
    let agent = BoxModel::new(
        ServiceBuilder::new()
            .layer(logs!(log, "agent"))
            .layer(AgentLayer::new(ScriptedTools::new()))
            .service(ScriptedModel::new().text("ok").repeat()),
    );
    // Whoever has a run of its own to layer puts it around a clone.
    let run = ServiceBuilder::new()
        .layer(logs!(log, "run"))
        .service(agent.clone());
    assert_finishes(run.oneshot(request()).await.unwrap().body).await;
    assert_eq!(log.take(), ["run-in", "agent-in", "agent-out", "run-out"]);
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(log.take(), ["agent-in", "agent-out"]);
}

#[tokio::test]
async fn c005_the_order_of_a_run_with_two_observers() {
    let log = Log::default();
    let observer = |name: &'static str| {
        let log = log.clone();
        inspect_events(move |event: &Event| log.add(format!("{name} {}", shape([event]))))
    };
    let tool = ServiceBuilder::new()
        .layer(tool_from_fn({
            let log = log.clone();
            move |call: ToolCall, mut next: NextTool| {
                let log = log.clone();
                async move {
                    log.add("before call");
                    let outcome = next.run(call).await;
                    log.add("after call");
                    outcome
                }
            }
        }))
        .service(service_fn(async |_: ToolCall| {
            Ok::<_, Error>(ToolOutcome::done("42"))
        }));
    let agent = ServiceBuilder::new()
        .layer(observer("A"))
        .layer(observer("B"))
        .layer(logs!(log, "run"))
        .layer(AgentLayer::new(
            ScriptedTools::new().service(ToolSpec::new("search", "", json!({})), tool),
        ))
        .layer(logs!(log, "model"))
        .service(
            ScriptedModel::new()
                .tool_call("search", json!({}))
                .then()
                .text("ok"),
        );
    assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(
        log.take(),
        [
            "run-in",
            "model-in",
            "model-out",
            "run-out",
            "B step_start",
            "A step_start",
            "B tool_call",
            "A tool_call",
            "B step_finish",
            "A step_finish",
            "before call",
            "after call",
            "B tool_result",
            "A tool_result",
            "B step_start",
            "A step_start",
            "model-in",
            "model-out",
            "B text",
            "A text",
            "B step_finish",
            "A step_finish",
            "B finish",
            "A finish",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn c007_a_slow_asynchronous_transform_keeps_the_order() {
    let slow = from_fn(async |request: ChatRequest, mut next: Next| {
        let response = next.run(request).await?;
        Ok(response.map_body(|body| {
            body.enumerate().then(async |(at, item)| {
                // The first takes longest.
                let wait = 100 / (at as u64 + 1);
                tokio::time::sleep(Duration::from_millis(wait)).await;
                item
            })
        }))
    });
    let agent = ServiceBuilder::new()
        .layer(slow)
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(ScriptedModel::new().deltas(["a", "b", "c", "d"]));
    let (events, _) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(
        shape(&events),
        "step_start text text text text step_finish finish"
    );
    assert_eq!(text_of(&events), "abcd");
}

// ---- streaming ----

/// A transform that is a function of a text delta.
#[derive(Clone)]
struct Texts<F>(F);

impl<F: FnMut(&str) -> Emit> Transform for Texts<F> {
    fn event(&mut self, event: Event) -> Emit {
        match event {
            Event::TextDelta(text) => (self.0)(&text),
            other => Emit::One(other),
        }
    }
}

fn texts<F>(f: F) -> TransformLayer<impl Fn(&ChatRequest) -> Texts<F> + Clone>
where
    F: FnMut(&str) -> Emit + Clone,
{
    TransformLayer::new(move |_| Texts(f.clone()))
}

#[tokio::test]
async fn c017_a_chunk_that_an_inner_layer_drops_is_seen_by_nobody_outside_it() {
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(inspect_events({
            let log = log.clone();
            move |event: &Event| {
                if let Event::TextDelta(text) = event {
                    log.add(text.as_str());
                }
            }
        }))
        .layer(texts(|text| match text {
            "secret" => Emit::None,
            other => Emit::One(Event::text(other)),
        }))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(ScriptedModel::new().deltas(["a", "secret", "b"]));
    let (events, _) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "ab");
    assert_eq!(log.take(), ["a", "b"]);
}

#[tokio::test]
async fn c018_one_chunk_becomes_two_and_an_outer_layer_drops_one() {
    let agent = ServiceBuilder::new()
        .layer(texts(|text| match text {
            "b" => Emit::None,
            other => Emit::One(Event::text(other)),
        }))
        .layer(texts(|text| {
            Emit::Many(text.chars().map(|c| Event::text(c.to_string())).collect())
        }))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(ScriptedModel::new().text("ab"));
    let (events, _) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(shape(&events), "step_start text step_finish finish");
    assert_eq!(text_of(&events), "a");
}

/// Drops the calls of tools.
#[derive(Clone)]
struct NoCalls;

impl Transform for NoCalls {
    fn event(&mut self, event: Event) -> Emit {
        match event {
            Event::ToolCall(_) => Emit::None,
            other => Emit::One(other),
        }
    }
}

#[tokio::test]
async fn c027_dropped_outside_the_loop_a_call_runs_and_inside_it_does_not() {
    let run = async |outside: bool| {
        let tools = ScriptedTools::new().answers("search", "42");
        let model = ScriptedModel::new()
            .text("Let me see.")
            .tool_call("search", json!({}))
            .then()
            .text("ok");
        let no_calls = TransformLayer::new(|_: &ChatRequest| NoCalls);
        let agent = AgentLayer::new(tools.clone());
        let agent = if outside {
            BoxModel::new(no_calls.layer(agent.layer(model.clone())))
        } else {
            BoxModel::new(agent.layer(no_calls.layer(model.clone())))
        };
        let body = agent.oneshot(request()).await.unwrap().body;
        let (events, finish) = assert_finishes(body).await;
        assert!(!shape(&events).contains("tool_call"));
        (tools.calls().len(), model.calls(), finish.outcome)
    };
    assert_eq!(run(true).await, (1, 2, Outcome::Completed));
    assert_eq!(run(false).await, (0, 1, Outcome::Completed));
}

// ---- errors, and what is tried again ----

/// Tries again three times, while the error says that it may be.
#[derive(Clone)]
struct Retry(usize);

impl<Res> Policy<ChatRequest, Res, Error> for Retry {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut ChatRequest,
        result: &mut Result<Res, Error>,
    ) -> Option<Self::Future> {
        let again = matches!(result, Err(error) if error.is_retryable());
        self.0 = self.0.checked_sub(usize::from(again))?;
        again.then(|| ready(()))
    }

    fn clone_request(&mut self, request: &ChatRequest) -> Option<ChatRequest> {
        Some(request.clone())
    }
}

/// A model under retry and fallback, its stand-in, and the agent.
fn persistent(first: &ScriptedModel, second: &ScriptedModel) -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(ScriptedTools::new()))
            .layer(from_fn({
                let second = second.clone();
                move |request: ChatRequest, mut next: Next| {
                    let second = second.clone();
                    async move {
                        match next.run(request.clone()).await {
                            Err(_) => Ok(second.oneshot(request).await?.map_body(EventStream::new)),
                            ok => ok,
                        }
                    }
                }
            }))
            .retry(Retry(2))
            .service(first.clone()),
    )
}

#[tokio::test]
async fn c028_an_error_after_the_first_chunk_is_delivered_and_nothing_is_tried_again() {
    let first = ScriptedModel::new()
        .text("a")
        .error(server_error())
        .repeat();
    let second = ScriptedModel::new().text("b").repeat();
    let agent = persistent(&first, &second);
    let (events, error) = assert_fails(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "a");
    assert_eq!(error.code(), Some("E7"));
    assert_eq!((first.calls(), second.calls()), (1, 0));
}

#[tokio::test]
async fn c029_an_error_before_any_chunk_may_be_tried_again() {
    let first = ScriptedModel::new().error(server_error()).repeat();
    let second = ScriptedModel::new().text("b");
    let agent = persistent(&first, &second);
    let (events, _) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(text_of(&events), "b");
    assert_eq!((first.calls(), second.calls()), (3, 1));
}

/// A layer that tries again after output, and says so first.
async fn start_over(
    request: ChatRequest,
    mut next: Next,
) -> Result<ChatResponse<EventStream>, Error> {
    let first = next.run(request.clone()).await?;
    Ok(first.map_body(|body| {
        EventStream::new(stream::unfold(
            (body, Some((next, request))),
            async |(mut body, again)| match (body.next().await?, again) {
                (Err(error), Some((mut next, request))) if error.is_retryable() => {
                    match next.run(request).await {
                        Ok(second) => Some((Ok(Event::Reset), (second.body, None))),
                        Err(error) => Some((Err(error), (EventStream::new(stream::empty()), None))),
                    }
                }
                (item, again) => Some((item, (body, again))),
            },
        ))
    }))
}

#[tokio::test]
async fn c030_a_reset_goes_before_a_second_attempt_after_output() {
    let tools = ScriptedTools::new().answers("pay", "paid");
    let model = ScriptedModel::new()
        .text("I begin")
        .tool_call("pay", json!({}))
        .error(server_error())
        .then()
        .text("I say");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .layer(from_fn(start_over))
        .service(model.clone());
    let response = agent.oneshot(request()).await.unwrap();
    let (events, finish) = assert_finishes(response.body).await;
    assert_eq!(
        shape(&events),
        "step_start text tool_call reset text step_finish finish"
    );
    // The history knows the second attempt only, and the first one's call was not run.
    let transcript = finish.transcript.unwrap();
    assert_eq!(transcript.len(), 2);
    let message = transcript.last().unwrap().as_message();
    assert_eq!(message.text(), "I say");
    assert_eq!(message.parts.len(), 1);
    assert!(tools.calls().is_empty());
    assert_eq!(finish.reason, FinishReason::Stop);

    // So does a consumer that collects.
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(from_fn(start_over))
        .service(
            ScriptedModel::new()
                .text("I begin")
                .error(server_error())
                .then()
                .text("I say"),
        );
    assert_eq!(
        agent
            .oneshot(request())
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        "I say"
    );
}

#[tokio::test]
async fn c031_reasoning_counts_as_output() {
    let first = ScriptedModel::new()
        .reasoning("Hm.")
        .error(server_error())
        .repeat();
    let second = ScriptedModel::new().text("b").repeat();
    let agent = persistent(&first, &second);
    let (events, _) = assert_fails(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(shape(&events), "step_start reasoning");
    assert_eq!((first.calls(), second.calls()), (1, 0));
}

#[tokio::test]
async fn c032_a_layer_that_answers_itself_keeps_the_provider_from_being_called() {
    let log = Log::default();
    let model = ScriptedModel::new().text("never asked");
    let cached = from_fn(async |_: ChatRequest, _: Next| {
        Ok(ChatResponse::new(stream::iter([
            Ok(Event::text("from the cache")),
            Ok(Event::finish(FinishReason::Stop, Usage::default())),
        ])))
    });
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(inspect_events({
            let log = log.clone();
            move |event: &Event| log.add(shape([event]))
        }))
        .layer(cached)
        .layer(logs!(log, "inner"))
        .service(model.clone());
    let answer = agent
        .oneshot(request())
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(answer.text(), "from the cache");
    assert_eq!(answer.transcript().unwrap().len(), 2);
    assert_eq!(log.take(), ["text", "finish"]);
    assert_eq!(model.calls(), 0);
}

// ---- cancelling ----

#[tokio::test]
async fn c052_a_cancel_drops_a_tool_that_ignores_it() {
    let tools = ScriptedTools::new().never("slow").answers("quick", "42");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .service(
            ScriptedModel::new()
                .tool_call("slow", json!({}))
                .tool_call("quick", json!({}))
                .then()
                .text("never asked"),
        );
    let request = request();
    let context = request.context.clone();
    let mut body = Box::pin(agent.oneshot(request).await.unwrap().body);
    let mut run = task::spawn(async { assert_finishes(&mut body).await });
    assert_pending!(run.poll());
    assert_eq!((tools.live(), tools.done()), (1, 1));

    context.cancel(CancelReason::User);
    assert!(run.is_woken());
    let (events, finish) = assert_ready!(run.poll());
    assert_eq!((tools.live(), tools.dropped()), (0, 1));
    let aborted = Outcome::Aborted {
        reason: CancelReason::User,
    };
    assert_eq!(finish.outcome, aborted);
    assert_eq!(
        shape(&events),
        "step_start tool_call tool_call step_finish tool_result tool_result finish"
    );
    // The call that was done keeps its result.
    let transcript = finish.transcript.unwrap();
    let results = transcript.last().unwrap().results();
    let texts: Vec<_> = results.iter().map(|r| r.outcome.content.text()).collect();
    assert_eq!(texts.len(), 2);
    assert_eq!(texts[1], "42");
}

/// A layer that waits a minute before its second attempt.
async fn with_back_off(
    request: ChatRequest,
    mut next: Next,
) -> Result<ChatResponse<EventStream>, Error> {
    match next.run(request.clone()).await {
        Err(error) if error.is_retryable() => {
            request.context.sleep(Duration::from_secs(60)).await?;
            next.run(request).await
        }
        other => other,
    }
}

#[tokio::test]
async fn c053_a_cancel_ends_a_back_off_at_once() {
    let test = TestEnvironment::new();
    let model = ScriptedModel::new().error(server_error()).repeat();
    let agent = |outside: bool| {
        let agent = AgentLayer::new(ScriptedTools::new());
        if outside {
            BoxModel::new(from_fn(with_back_off).layer(agent.layer(model.clone())))
        } else {
            BoxModel::new(agent.layer(from_fn(with_back_off).layer(model.clone())))
        }
    };
    for outside in [true, false] {
        let request = test.request("hi");
        let context = request.context.clone();
        let mut call = task::spawn(agent(outside).oneshot(request));
        assert_pending!(call.poll());
        assert_eq!(test.clock().sleepers(), 1);
        let before = model.calls();

        context.cancel(CancelReason::User);
        assert!(call.is_woken());
        let result = assert_ready!(call.poll());
        match result {
            // Outside the loop the layer's own sleep says so.
            Err(error) => assert_eq!((outside, error.kind()), (true, ErrorKind::Cancelled)),
            // Inside it the loop drops the call, sleep and all.
            Ok(response) => {
                let (events, _) = assert_finishes(response.body).await;
                assert_eq!((outside, shape(&events).as_str()), (false, "finish"));
            }
        }
        assert_eq!((test.clock().sleepers(), model.calls()), (0, before));
    }
}

#[tokio::test]
async fn c054_a_cancel_before_the_first_model_call_leaves_one_outcome_and_no_chunk() {
    let log = Log::default();
    let model = ScriptedModel::new().text("never asked");
    let agent = ServiceBuilder::new()
        .layer(ends!(log, "run"))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(model.clone());
    let request = request();
    request.context.cancel(CancelReason::User);
    let (events, _) = assert_finishes(agent.oneshot(request).await.unwrap().body).await;
    assert_eq!(shape(&events), "finish");
    assert_eq!(log.take(), ["run: aborted"]);
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn c056_the_step_limit_after_tools_is_an_outcome_of_its_own() {
    let tools = ScriptedTools::new().answers("search", "42");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()).step_limit(2))
        .service(ScriptedModel::new().tool_call("search", json!({})).repeat());
    let (_, finish) = assert_finishes(agent.oneshot(request()).await.unwrap().body).await;
    assert_eq!(finish.outcome, Outcome::StepLimit);
    assert_eq!(tools.done(), 2);
    assert_eq!(finish.transcript.unwrap().len(), 3);
}

// ---- outcomes ----

#[tokio::test]
async fn c059_each_observer_is_told_one_outcome_of_any_run() {
    let tools = || {
        ScriptedTools::new()
            .answers("search", "42")
            .never("slow")
            .tool("stop", |_| {
                ready(ToolOutcome::done("ok").and_halt("enough"))
            })
    };
    let client_tool = |mut request: ChatRequest| {
        request
            .tools
            .push(Arc::new(ToolSpec::new("ask", "", json!({}))));
        request
    };
    type Prepare = Box<dyn Fn(ChatRequest) -> ChatRequest>;
    let as_it_is = || -> Prepare { Box::new(|request| request) };
    let model = ScriptedModel::new;
    let cases: Vec<(&str, ScriptedModel, Prepare)> = vec![
        ("completed", model().text("ok"), as_it_is()),
        ("failed: server", model().error(server_error()), as_it_is()),
        (
            "failed: server",
            model().text("a").error(server_error()),
            as_it_is(),
        ),
        (
            "failed: truncated",
            model().text("a").end_early(),
            as_it_is(),
        ),
        ("halted", model().tool_call("stop", json!({})), as_it_is()),
        (
            "step limit",
            model().tool_call("search", json!({})).repeat(),
            as_it_is(),
        ),
        (
            "interrupted",
            model().tool_call("ask", json!({})),
            Box::new(client_tool),
        ),
        (
            "aborted",
            model().text("a").never(),
            Box::new(|request| {
                let context = request.context.clone();
                tokio::spawn(async move { context.cancel(CancelReason::User) });
                request
            }),
        ),
        (
            "aborted",
            model().tool_call("slow", json!({})),
            Box::new(|request| {
                let context = request.context.clone();
                tokio::spawn(async move { context.cancel(CancelReason::User) });
                request
            }),
        ),
    ];
    for (outcome, model, prepare) in cases {
        let log = Log::default();
        let agent = ServiceBuilder::new()
            .layer(ends!(log, "A"))
            .layer(map_events(|_: &mut Event| {}))
            .layer(ends!(log, "B"))
            .layer(AgentLayer::new(tools()).step_limit(2))
            .service(model);
        if let Ok(response) = agent.oneshot(prepare(request())).await {
            let _ = collect_events(response.body).await;
        }
        assert_eq!(
            log.take(),
            [format!("B: {outcome}"), format!("A: {outcome}")]
        );
    }
}

#[tokio::test]
async fn c060_a_consumer_that_drops_the_stream_leaves_one_outcome() {
    let log = Log::default();
    let model = ScriptedModel::new().text("a").text("b").never();
    let agent = ServiceBuilder::new()
        .layer(ends!(log, "run"))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(ends!(log, "model"))
        .service(model.clone());
    let mut body = agent.oneshot(request()).await.unwrap().body;
    body.next().await.unwrap().unwrap();
    body.next().await.unwrap().unwrap();
    assert!(log.take().is_empty());
    drop(body);
    let mut told = log.take();
    told.sort();
    assert_eq!(told, ["model: dropped", "run: dropped"]);
    assert_eq!((model.live(), model.dropped()), (0, 1));
}

#[tokio::test]
async fn c067_a_provider_failure_is_one_error_with_its_code() {
    let scripts = [
        ScriptedModel::new().error(server_error()),
        ScriptedModel::new().text("a").error(server_error()),
        ScriptedModel::new()
            .tool_call("search", json!({}))
            .then()
            .error(server_error()),
    ];
    for model in scripts {
        let log = Log::default();
        let codes = Log::default();
        let agent = ServiceBuilder::new()
            .layer(ends!(log, "run"))
            .layer(on_end({
                let codes = codes.clone();
                move |end: End<'_>| {
                    if let End::Failed(error) = end {
                        codes.add(error.code().unwrap_or_default());
                    }
                }
            }))
            .layer(AgentLayer::new(
                ScriptedTools::new().answers("search", "42"),
            ))
            .service(model);
        let error = match agent.oneshot(request()).await {
            Err(error) => error,
            Ok(response) => assert_fails(response.body).await.1,
        };
        assert_eq!(error.code(), Some("E7"));
        assert_eq!(log.take(), ["run: failed: server"]);
        assert_eq!(codes.take(), ["E7"]);
    }
}

// ---- what the cases above rest on ----

#[tokio::test]
async fn the_run_commits_when_the_first_content_is_there() {
    let gate = Gate::new();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(ScriptedModel::new().wait(&gate).text("a").never());
    let mut call = task::spawn(agent.oneshot(request()));
    assert_pending!(call.poll());
    gate.open();
    assert!(call.is_woken());
    let mut body = assert_ready!(call.poll()).unwrap().body;
    // Both are there at once.
    let mut read = task::spawn(async { (body.next().await, body.next().await) });
    let (start, text) = assert_ready!(read.poll());
    assert_eq!(
        shape([&start.unwrap().unwrap(), &text.unwrap().unwrap()]),
        "step_start text"
    );
}

#[tokio::test]
async fn a_layer_that_drops_the_first_content_commits_later() {
    let gate = Gate::new();
    let model = ScriptedModel::new()
        .text("secret")
        .wait(&gate)
        .error(server_error())
        .then()
        .text("ok");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .retry(Retry(1))
        .layer(texts(|text| match text {
            "secret" => Emit::None,
            other => Emit::One(Event::text(other)),
        }))
        .service(model.clone());
    let mut call = task::spawn(agent.oneshot(request()));
    assert_pending!(call.poll());
    gate.open();
    let (events, _) = assert_finishes(assert_ready!(call.poll()).unwrap().body).await;
    // Nothing had been shown, so the failure was tried again.
    assert_eq!(text_of(&events), "ok");
}

#[tokio::test]
async fn commit_holds_until_its_point() {
    let gate = Gate::new();
    let model = ScriptedModel::new()
        .text("One. ")
        .wait(&gate)
        .text("Two.")
        .repeat();
    let whole = CommitLayer::whole().layer(model.clone());
    let mut whole = task::spawn(whole.oneshot(request()));
    assert_pending!(whole.poll());
    let sentence = CommitLayer::first_sentence().layer(model);
    let mut sentence = task::spawn(sentence.oneshot(request()));
    let sentence = assert_ready!(sentence.poll()).unwrap();
    gate.open();
    let whole = assert_ready!(whole.poll()).unwrap();
    for body in [
        EventStream::new(whole.body),
        EventStream::new(sentence.body),
    ] {
        assert_eq!(text_of(&assert_finishes(body).await.0), "One. Two.");
    }
}

#[tokio::test]
async fn defaults_are_the_same_for_the_model_inside_and_outside_the_loop() {
    let defaults = DefaultsLayer::new().system("Be brief.").model("small");
    let script = || {
        ScriptedModel::new()
            .tool_call("search", json!({}))
            .then()
            .text("ok")
    };
    let tools = ScriptedTools::new().answers("search", "42");
    let (outside, inside) = (script(), script());
    let a = ServiceBuilder::new()
        .layer(defaults.clone())
        .layer(AgentLayer::new(tools.clone()))
        .service(outside.clone());
    let b = ServiceBuilder::new()
        .layer(AgentLayer::new(tools))
        .layer(defaults)
        .service(inside.clone());
    assert_finishes(a.oneshot(request()).await.unwrap().body).await;
    assert_finishes(b.oneshot(request()).await.unwrap().body).await;
    for (a, b) in outside.requests().iter().zip(inside.requests()) {
        assert_eq!(a.system.text(), "Be brief.");
        assert_eq!((&a.system, &a.options), (&b.system, &b.options));
    }
}

#[tokio::test]
async fn ids_and_time_are_the_environments() {
    let test = TestEnvironment::new();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("search", "42"),
        ))
        .service(
            ScriptedModel::new()
                .tool_call("search", json!({}))
                .then()
                .sleep(Duration::from_secs(5))
                .text("ok"),
        );
    let mut body = Box::pin(agent.oneshot(test.request("hi")).await.unwrap().body);
    let mut run = task::spawn(async { assert_finishes(&mut body).await });
    assert_pending!(run.poll());
    test.advance(Duration::from_secs(5));
    assert!(run.is_woken());
    let (events, _) = assert_ready!(run.poll());
    let ids: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            Event::StepStart(start) => Some(start.message_id.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(ids, ["msg_1", "msg_2"]);
}

#[tokio::test]
async fn a_deadline_ends_a_run_by_the_environments_clock() {
    let test = TestEnvironment::new();
    let context: Context = test
        .context_builder()
        .deadline(test.context().now() + Duration::from_secs(30))
        .build();
    let tools = ScriptedTools::new().never("slow");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .service(ScriptedModel::new().tool_call("slow", json!({})));
    let request = request().with_context(context);
    let mut body = Box::pin(agent.oneshot(request).await.unwrap().body);
    let mut run = task::spawn(async { assert_fails(&mut body).await });
    assert_pending!(run.poll());
    test.advance(Duration::from_secs(30));
    let (events, error) = assert_ready!(run.poll());
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(
        shape(&events),
        "step_start tool_call step_finish tool_result"
    );
    assert_eq!((tools.live(), test.clock().sleepers()), (0, 0));
}
