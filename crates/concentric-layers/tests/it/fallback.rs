//! One test per statement of [`concentric_layers::fallback`].

use concentric_core::{
    AgentLayer, BoxError, BoxModel, CancelReason, ChatRequest, ChatResponse, Error, ErrorKind,
    Event, EventStream, FinishReason, Outcome, Reply, ResponseHead, SideEffects, Usage,
    machine::RunState,
};
use concentric_layers::{
    CommitLayer, FallbackLayer, GuardLayer, GuardrailLayer, Next, RetryModel,
    fallback::{FIRST_CONTENT, FailedAttempts},
    from_fn,
    guard::{self, Rule, Rules},
    guardrail::{self, Assessment, Input, Subject},
};
use concentric_test::{
    Pace, ScriptedModel, ScriptedTools, Strict, TestEnvironment, assert_fails, assert_finishes,
    check_layer, drop_at_each_wait, text_of,
};
use concentric_tools::{Approval, NoArguments, Toolset, agent_tool, tool};
use serde_json::{Value, json};
use std::{error::Error as _, time::Duration};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};

const SECOND: Duration = Duration::from_secs(1);

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "no")
}

/// Fails always.
fn fails(error: Error) -> ScriptedModel {
    ScriptedModel::new().error(error).repeat()
}

fn says(text: &'static str) -> ScriptedModel {
    ScriptedModel::new().text(text).repeat()
}

async fn text(
    service: impl concentric_core::service::SharedModel,
    request: ChatRequest,
) -> Result<String, Error> {
    BoxModel::new(service).oneshot(request).await?.text().await
}

/// The names of the models in failed attempts.
fn names(failed: &FailedAttempts) -> Vec<&str> {
    failed.iter().map(|(name, _)| name).collect()
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    check_layer(FallbackLayer::new("a")).await;
    check_layer(
        FallbackLayer::new("a")
            .or("b", says("b"))
            .time_to_first(SECOND * 60),
    )
    .await;
}

// Case C115.
#[tokio::test]
async fn another_model_receives_the_same_request() {
    let (first, second) = (fails(error(ErrorKind::Server)), says("b"));
    let tools = ScriptedTools::new().answers("search", "42");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools))
        .layer(FallbackLayer::new("a").or("b", second.clone()))
        .layer(RetryLayer::new(
            RetryModel::new(2).backoff(Duration::ZERO, Duration::ZERO),
        ))
        .service(first.clone());
    let mut request = ChatRequest::user("hi").with_system("Be brief.");
    let options = request.options_mut();
    options.model = Some("a-1".into());
    options
        .provider
        .insert("service_tier".to_owned(), json!("flex"));
    options.temperature = Some(0.5);
    let answer = agent.oneshot(request).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "b");
    assert_eq!((first.calls(), second.calls()), (2, 1));
    let (a, b) = (first.request(0), second.request(0));
    assert_eq!((&a.transcript, &a.system), (&b.transcript, &b.system));
    assert_eq!(
        a.tools.iter().collect::<Vec<_>>(),
        b.tools.iter().collect::<Vec<_>>()
    );
    assert_eq!(a.context.run_id(), b.context.run_id());
    assert_eq!(a.context.message_id(), b.context.message_id());
    // Options in terms of the first model's provider are not for another one.
    assert_eq!(
        (b.options.model.clone(), b.options.provider.len()),
        (None, 0)
    );
    assert_eq!(
        (b.options.temperature, a.options.model.as_deref()),
        (Some(0.5), Some("a-1"))
    );
    assert_eq!(a.options.provider.len(), 1);
}

// Case C115; the second half.
#[tokio::test]
async fn after_the_deadline_the_latest_error_is_returned() {
    let env = TestEnvironment::new();
    let first = ScriptedModel::new()
        .sleep(SECOND)
        .error(error(ErrorKind::Server).with_code("E1"));
    let second = ScriptedModel::new()
        .sleep(SECOND)
        .error(error(ErrorKind::Overloaded).with_code("E2"));
    let third = says("c");
    let layer = FallbackLayer::new("a")
        .or("b", second.clone())
        .or("c", third.clone());
    let context = env
        .context_builder()
        .deadline(env.context().now() + SECOND * 2)
        .build();
    let request = ChatRequest::user("hi").with_context(context);
    let mut call = task::spawn(layer.layer(first).oneshot(request));
    for _ in 0..2 {
        assert_pending!(call.poll());
        env.advance(SECOND);
    }
    let failed = assert_ready!(call.poll()).unwrap_err();
    assert_eq!((failed.code(), failed.attempts()), (Some("E2"), 2));
    assert_eq!((second.calls(), third.calls()), (1, 0));
    let earlier: &FailedAttempts = failed.source().unwrap().downcast_ref().unwrap();
    assert_eq!(names(earlier), ["a"]);
    assert_eq!(earlier.iter().next().unwrap().1.code(), Some("E1"));
}

#[tokio::test]
async fn the_kind_of_an_error_decides() {
    use ErrorKind::*;
    let kinds = [
        Authentication,
        Permission,
        NotFound,
        InvalidRequest,
        ContextWindow,
        ContentFilter,
        RateLimited,
        Quota,
        Overloaded,
        Server,
        Timeout,
        Connection,
        Truncated,
        Protocol,
        TooLarge,
        Tool,
        Configuration,
        Cancelled,
        Waiting,
        Conflict,
        Halted,
        Other,
    ];
    for kind in kinds {
        let falls = async |code: &'static str, on: Option<bool>| {
            let second = says("b");
            let layer = FallbackLayer::new("a")
                .or("b", second.clone())
                .on(move |_| on);
            let result = text(
                layer.layer(fails(error(kind).with_code(code))),
                ChatRequest::user("hi"),
            )
            .await;
            if let Err(failed) = &result {
                assert_eq!(
                    (failed.kind(), failed.code(), failed.attempts()),
                    (kind, Some(code), 1)
                );
                assert!(failed.source().is_none());
            }
            assert_eq!(result.is_ok(), second.calls() == 1);
            result.is_ok()
        };
        let by_default = matches!(
            kind,
            RateLimited
                | Overloaded
                | Server
                | Timeout
                | Connection
                | Truncated
                | Protocol
                | NotFound
                | Quota
                | ContextWindow
        );
        assert_eq!(falls("E7", None).await, by_default, "{kind}");
        assert_eq!(
            falls("unsupported", None).await,
            by_default || kind == InvalidRequest,
            "{kind}"
        );
        assert_eq!(
            falls("E7", Some(true)).await,
            !matches!(kind, Waiting | Cancelled),
            "{kind}"
        );
        assert!(!falls("unsupported", Some(false)).await, "{kind}");
    }
}

#[tokio::test]
async fn what_a_guard_blocked_is_not_sent_to_another_model() {
    const OWN: [&str; 3] = [guard::BLOCKED, guardrail::BLOCKED, guardrail::FAILED];
    let rules = || Rules::new([Rule::literals("codename", ["Bluebird"]).block()]).unwrap();
    let classifies = || GuardrailLayer::new("codename", rules());
    let unjudged = || {
        let fails = service_fn(async |_: Subject| Err::<Assessment, BoxError>("no".into()));
        GuardrailLayer::new("fails", fails).input(Input::Blocking)
    };
    let first = || says("It is Bluebird.");
    let filtered = || fails(error(ErrorKind::ContentFilter).with_code("content_filter"));
    let cases: [(BoxModel, &str, bool); 7] = [
        // The input, and the answer.
        (
            BoxModel::new(GuardLayer::new(rules()).layer(first())),
            "Bluebird?",
            false,
        ),
        (
            BoxModel::new(GuardLayer::new(rules()).layer(first())),
            "hi",
            false,
        ),
        (
            BoxModel::new(classifies().input(Input::Blocking).layer(first())),
            "Bluebird?",
            false,
        ),
        (
            BoxModel::new(classifies().output(guardrail::Output::Whole).layer(first())),
            "hi",
            false,
        ),
        (BoxModel::new(unjudged().layer(first())), "hi", false),
        // An answer of another code.
        (BoxModel::new(filtered()), "hi", true),
        (
            BoxModel::new(GuardLayer::new(rules()).layer(filtered())),
            "hi",
            true,
        ),
    ];
    for (model, request, is_called) in cases {
        for is_set in [false, true] {
            let other = says("b");
            let mut layer = FallbackLayer::new("a").or("b", other.clone());
            if is_set {
                layer = layer.on(|error| {
                    let is_own = error.code().is_some_and(|code| OWN.contains(&code));
                    (error.kind() == ErrorKind::ContentFilter && !is_own).then_some(true)
                });
            }
            let answer = text(layer.layer(model.clone()), ChatRequest::user(request)).await;
            assert_eq!(answer.is_ok(), is_set && is_called, "{answer:?}");
            assert_eq!(other.calls(), usize::from(is_set && is_called));
        }
    }
}

#[tokio::test]
async fn no_model_is_called_after_a_possible_effect() {
    let second = says("b");
    let layer = FallbackLayer::new("a")
        .or("b", second.clone())
        .on(|_| Some(true));
    for effects in [SideEffects::Possible, SideEffects::Committed] {
        let failing = fails(error(ErrorKind::Server).with_effects(effects));
        text(layer.layer(failing), ChatRequest::user("hi"))
            .await
            .unwrap_err();
    }
    // An agent whose error a layer in between has replaced.
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .error(error(ErrorKind::Server));
    let agent = ServiceBuilder::new()
        .layer(layer)
        .layer(from_fn(async |request: ChatRequest, mut next: Next| {
            next.run(request)
                .await
                .map_err(|_| error(ErrorKind::Server))
        }))
        .layer(CommitLayer::whole())
        .layer(AgentLayer::new(ScriptedTools::new().answers("pay", "paid")))
        .service(model);
    text(agent, ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!(second.calls(), 0);
}

#[tokio::test]
async fn an_error_after_content_is_delivered() {
    let second = says("b");
    for first in [
        ScriptedModel::new().reasoning("Hm."),
        ScriptedModel::new().text("a"),
    ] {
        let model = FallbackLayer::new("a").or("b", second.clone());
        let model = model.layer(first.error(error(ErrorKind::Server)));
        let (_, failed) =
            assert_fails(model.oneshot(ChatRequest::user("hi")).await.unwrap().body).await;
        assert_eq!((failed.kind(), second.calls()), (ErrorKind::Server, 0));
    }
    // Also that of another model.
    let second = ScriptedModel::new()
        .text("b")
        .error(error(ErrorKind::Server));
    let third = says("c");
    let layer = FallbackLayer::new("a")
        .or("b", second)
        .or("c", third.clone());
    let response = layer
        .layer(fails(error(ErrorKind::Server)))
        .oneshot(ChatRequest::user("hi"));
    let (events, _) = assert_fails(response.await.unwrap().body).await;
    assert_eq!((text_of(&events).as_str(), third.calls()), ("b", 0));
}

#[tokio::test]
async fn a_held_answer_that_fails_is_replaced() {
    let first = ScriptedModel::new()
        .text("a")
        .error(error(ErrorKind::Server));
    let layer = FallbackLayer::new("a").or("b", says("b"));
    let model = layer.layer(CommitLayer::whole().layer(first));
    assert_eq!(text(model, ChatRequest::user("hi")).await.unwrap(), "b");
}

#[tokio::test]
async fn every_failed_attempt_is_in_the_answer_and_the_error() {
    let cable = std::io::Error::other("a cable");
    let failing = |code: &'static str| fails(error(ErrorKind::Server).with_code(code));
    let request = || ChatRequest::user("hi");
    let layer = FallbackLayer::new("a").or("b", failing("E2"));
    let answering = layer.clone().or("c", says("c"));
    let answer = answering
        .layer(failing("E1"))
        .oneshot(request())
        .await
        .unwrap();
    let failed: &FailedAttempts = answer.extensions.get().unwrap();
    let codes: Vec<_> = failed
        .iter()
        .map(|(name, error)| (name, error.code().unwrap()))
        .collect();
    assert_eq!(codes, [("a", "E1"), ("b", "E2")]);

    let last = error(ErrorKind::Overloaded).with_source(cable);
    let exhausted = layer.or("c", fails(last));
    let failed = exhausted
        .layer(failing("E1"))
        .oneshot(request())
        .await
        .unwrap_err();
    assert_eq!(
        (failed.kind(), failed.attempts()),
        (ErrorKind::Overloaded, 3)
    );
    assert_eq!(
        format!("{failed:#}"),
        "overloaded: no: earlier attempts failed: `a`: server: no; `b`: server: no: a cable"
    );

    let first = FallbackLayer::new("a").or("b", says("b")).layer(says("a"));
    let answer = first.oneshot(request()).await.unwrap();
    assert!(answer.extensions.get::<FailedAttempts>().is_none());
}

// Case F020.
#[tokio::test]
async fn a_retry_around_a_fallback_does_not_repeat_it() {
    let (first, second) = (
        fails(error(ErrorKind::Server)),
        fails(error(ErrorKind::Server)),
    );
    let retry = || RetryLayer::new(RetryModel::new(3).backoff(Duration::ZERO, Duration::ZERO));
    let model = ServiceBuilder::new()
        .layer(retry())
        .layer(FallbackLayer::new("a").or("b", retry().layer(second.clone())))
        .layer(retry())
        .service(first.clone());
    let failed = text(model, ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!(
        (failed.attempts(), first.calls(), second.calls()),
        (6, 3, 3)
    );
}

#[tokio::test]
async fn later_calls_of_a_run_begin_with_the_last_answer() {
    let run = async |layer: FallbackLayer, first: &ScriptedModel| {
        let tools = ScriptedTools::new().answers("search", "42");
        let agent = AgentLayer::new(tools).layer(layer.layer(first.clone()));
        text(agent, ChatRequest::user("hi")).await.unwrap()
    };
    let searching = || {
        ScriptedModel::new()
            .tool_call("search", json!({}))
            .then()
            .tool_call("search", json!({}))
            .then()
    };
    let (first, second) = (fails(error(ErrorKind::Server)), searching().text("b"));
    let layer = FallbackLayer::new("a").or("b", second.clone());
    assert_eq!(run(layer, &first).await, "b");
    assert_eq!((first.calls(), second.calls()), (1, 3));

    let (first, second) = (fails(error(ErrorKind::Server)), searching().text("b"));
    let layer = FallbackLayer::new("a")
        .or("b", second.clone())
        .sticky(false);
    assert_eq!(run(layer, &first).await, "b");
    assert_eq!((first.calls(), second.calls()), (3, 3));

    // The model that was chosen fails: those before it follow the last one.
    let first = ScriptedModel::new()
        .error(error(ErrorKind::Server))
        .then()
        .text("a");
    let second = ScriptedModel::new()
        .tool_call("search", json!({}))
        .then()
        .error(error(ErrorKind::Server));
    let third = fails(error(ErrorKind::Server));
    let layer = FallbackLayer::new("a")
        .or("b", second.clone())
        .or("c", third.clone());
    assert_eq!(run(layer, &first).await, "a");
    assert_eq!((first.calls(), second.calls(), third.calls()), (2, 2, 1));
}

#[tokio::test]
async fn a_resumed_run_begins_with_the_last_answer() {
    let agent = |layer: FallbackLayer, first: &ScriptedModel| {
        let pay = tool("pay", "", |NoArguments {}| async { "paid" });
        let tools = Toolset::new().tool(pay).gate(Approval::for_tools(["pay"]));
        AgentLayer::new(tools).layer(layer.layer(first.clone()))
    };
    let first = fails(error(ErrorKind::Server));
    let second = ScriptedModel::new().tool_call("pay", json!({}));
    let layer = FallbackLayer::new("a").or("b", second);
    let answer = agent(layer, &first)
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    let stored = answer.finish.state.unwrap().to_json().unwrap();
    let resume = || {
        let state = RunState::from_json(stored.as_bytes(), stored.len()).unwrap();
        let replies = state
            .interrupts()
            .into_iter()
            .map(|it| Reply::approve(it.id.clone()));
        let replies = replies.collect();
        ChatRequest::resume(state, replies)
    };
    // In another process.
    let (first, second) = (says("a"), says("b"));
    let layer = FallbackLayer::new("a")
        .or("c", says("c"))
        .or("b", second.clone());
    assert_eq!(text(agent(layer, &first), resume()).await.unwrap(), "b");
    assert_eq!(first.calls(), 0);
    // The configuration no longer has the model.
    let layer = FallbackLayer::new("a").or("c", says("c"));
    assert_eq!(text(agent(layer, &first), resume()).await.unwrap(), "a");
    // A layer of another name has its own choice.
    let layer = FallbackLayer::new("z").or("b", second);
    assert_eq!(text(agent(layer, &first), resume()).await.unwrap(), "a");
}

#[tokio::test]
async fn a_nested_agent_makes_its_own_choice() {
    let second = ScriptedModel::new()
        .tool_call("ask", json!({"task": "do it"}))
        .then()
        .text("b");
    let inner_first = says("inner");
    let shared = |second: &ScriptedModel| FallbackLayer::new("a").or("b", second.clone());
    let inner =
        AgentLayer::new(ScriptedTools::new()).layer(shared(&second).layer(inner_first.clone()));
    let tools = Toolset::new().tool(agent_tool("ask", "", inner));
    let agent =
        AgentLayer::new(tools).layer(shared(&second).layer(fails(error(ErrorKind::Server))));
    assert_eq!(text(agent, ChatRequest::user("hi")).await.unwrap(), "b");
    assert_eq!((inner_first.calls(), second.calls()), (1, 2));
}

#[tokio::test]
async fn concurrent_runs_choose_for_themselves() {
    let calls = |model: ScriptedModel| model.tool_call("search", json!({})).then();
    // The first call is that of the first run.
    let first = ScriptedModel::new().error(error(ErrorKind::Server)).then();
    let first = calls(first).text("a").paced(Pace::NextTick);
    let second = calls(ScriptedModel::new()).text("b").paced(Pace::NextTick);
    let layer = FallbackLayer::new("a").or("b", second.clone());
    let tools = ScriptedTools::new().answers("search", "42");
    let agent = AgentLayer::new(tools).layer(layer.layer(first.clone()));
    let run = || text(agent.clone(), ChatRequest::user("hi"));
    let (one, other) = tokio::join!(run(), run());
    assert_eq!((one.unwrap().as_str(), other.unwrap().as_str()), ("b", "a"));
    assert_eq!((first.calls(), second.calls()), (3, 2));
}

#[tokio::test]
async fn a_model_without_content_in_time_is_replaced() {
    let env = TestEnvironment::new();
    let first = ScriptedModel::new().never();
    let second = ScriptedModel::new()
        .sleep(SECOND)
        .text("b")
        .sleep(SECOND * 60)
        .text("c");
    let layer = FallbackLayer::new("a")
        .or("b", second)
        .time_to_first(SECOND * 2);
    let mut call = task::spawn(layer.layer(first.clone()).oneshot(env.request("hi")));
    assert_pending!(call.poll());
    env.advance(SECOND * 2);
    // The first call ends before the second begins.
    assert_pending!(call.poll());
    assert_eq!((first.live(), first.dropped()), (0, 1));
    env.advance(SECOND);
    let response = assert_ready!(call.poll()).unwrap();
    let failed: FailedAttempts = response.extensions.get::<FailedAttempts>().unwrap().clone();
    let (_, late) = failed.iter().next().unwrap();
    assert_eq!(
        (late.kind(), late.code(), late.advice()),
        (ErrorKind::Timeout, Some(FIRST_CONTENT), Some(false))
    );
    // There is no limit for the rest.
    let mut rest = task::spawn(response.text());
    assert_pending!(rest.poll());
    env.advance(SECOND * 60);
    assert_eq!(assert_ready!(rest.poll()).unwrap(), "bc");

    // The last model fails with it, and a model that answers at once is in time with none at all.
    let none = FallbackLayer::new("a").time_to_first(Duration::ZERO);
    let failed = none
        .layer(ScriptedModel::new().never())
        .oneshot(env.request("hi"));
    assert_eq!(failed.await.unwrap_err().code(), Some(FIRST_CONTENT));
    assert_eq!(
        text(none.layer(says("a")), env.request("hi"))
            .await
            .unwrap(),
        "a"
    );
    let most = FallbackLayer::new("a").time_to_first(Duration::MAX);
    assert_eq!(
        text(most.layer(says("a")), env.request("hi"))
            .await
            .unwrap(),
        "a"
    );
}

#[tokio::test]
async fn a_model_that_does_not_become_ready_has_failed() {
    let first = says("a").unready(error(ErrorKind::Overloaded));
    let layer = FallbackLayer::new("a").or("b", says("b"));
    assert_eq!(
        text(layer.layer(first.clone()), ChatRequest::user("hi"))
            .await
            .unwrap(),
        "b"
    );
    assert_eq!(first.calls(), 0);
    // And a model that is not needed is not polled.
    let second = Strict::new(says("b").unready(error(ErrorKind::Overloaded)));
    let layer = FallbackLayer::new("a").or("b", second.clone());
    assert_eq!(
        text(layer.layer(says("a")), ChatRequest::user("hi"))
            .await
            .unwrap(),
        "a"
    );
    assert_eq!((second.reserved(), second.calls()), (0, 0));
}

#[tokio::test]
async fn a_request_is_edited_for_its_model_only() {
    let (second, third) = (fails(error(ErrorKind::Server)), says("c"));
    let layer = FallbackLayer::new("a")
        .or_with("b", second.clone(), |request| {
            request.options_mut().model = Some("b-1".into())
        })
        .or("c", third.clone());
    let first = fails(error(ErrorKind::Server));
    text(layer.layer(first.clone()), ChatRequest::user("hi"))
        .await
        .unwrap();
    let models = [&first, &second, &third].map(|model| model.request(0).options.model.clone());
    assert_eq!(models, [None, Some("b-1".into()), None]);
}

#[tokio::test]
async fn the_usage_of_every_answer_is_in_the_finish() {
    let head = || ResponseHead::new("scripted", "scripted-1");
    // Its answer is complete, and a layer rejects it.
    let first = ScriptedModel::new()
        .head(head())
        .text("a")
        .usage(Usage::new(10, 1));
    let rejecting = from_fn(async |request: ChatRequest, mut next: Next| {
        next.run(request).await?.collect().await?;
        Err::<ChatResponse<EventStream>, _>(error(ErrorKind::Server))
    });
    let second = ScriptedModel::new()
        .head(head())
        .text("b")
        .usage(Usage::new(10, 2));
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(FallbackLayer::new("a").or("b", second))
        .layer(rejecting)
        .service(first);
    let response = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let (_, finish) = assert_finishes(response.body).await;
    assert_eq!(finish.reason, FinishReason::Stop);
    assert_eq!(finish.run_usage().total(), Usage::new(20, 3));
}

#[tokio::test]
async fn a_change_of_the_model_is_reported() {
    let first = fails(error(ErrorKind::Quota).with_code("E7"));
    let layer = FallbackLayer::new("a").or("b", says("b"));
    let agent = AgentLayer::new(ScriptedTools::new()).layer(layer.layer(first));
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (events, _) = assert_finishes(body).await;
    let reports: Vec<(&str, &Value)> = events
        .iter()
        .filter_map(|event| match event {
            Event::Custom(event) => Some((event.name.as_str(), &event.value)),
            _ => None,
        })
        .collect();
    let value = json!({"from": "a", "to": "b", "kind": "quota", "code": "E7"});
    assert_eq!(reports, [("concentric.fallback", &value)]);
}

#[tokio::test]
async fn a_cancelled_run_calls_no_other_model() {
    let env = TestEnvironment::new();
    let first = ScriptedModel::new()
        .sleep(SECOND)
        .error(error(ErrorKind::Server));
    let second = says("b");
    let request = env.request("hi");
    let context = request.context.clone();
    let layer = FallbackLayer::new("a").or("b", second.clone());
    let mut call = task::spawn(layer.layer(first).oneshot(request));
    assert_pending!(call.poll());
    context.cancel(CancelReason::User);
    env.advance(SECOND);
    assert_eq!(
        assert_ready!(call.poll()).unwrap_err().kind(),
        ErrorKind::Server
    );
    assert_eq!(second.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_point_leaves_no_model_running() {
    let env = TestEnvironment::new();
    let paced = |model: ScriptedModel| model.paced(Pace::NextTick).repeat();
    let models = [
        paced(ScriptedModel::new().pause().error(error(ErrorKind::Server))),
        paced(ScriptedModel::new().pause().error(error(ErrorKind::Server))),
        paced(ScriptedModel::new().text("c").pause().text("d")),
    ];
    let [first, second, third] = models.clone().map(Strict::new);
    let layer = FallbackLayer::new("a")
        .or("b", second)
        .or("c", third)
        .time_to_first(SECOND);
    let service = layer.layer(first);
    let run = || text(service.clone(), env.request("hi"));
    let drops = drop_at_each_wait(run, async |_| {
        assert_eq!(models.each_ref().map(ScriptedModel::live), [0, 0, 0]);
        assert_eq!(env.clock().sleepers(), 0);
    });
    assert!(drops.await > 6);
    assert_eq!(models.each_ref().map(ScriptedModel::most_live), [1, 1, 1]);
}

#[tokio::test]
async fn an_answer_of_4_mib_passes() {
    let long = "x".repeat(4 << 20);
    let second = ScriptedModel::new().text(long.clone());
    let layer = FallbackLayer::new("a").or("b", second);
    let model = layer.layer(fails(error(ErrorKind::Server)));
    assert_eq!(
        text(model, ChatRequest::user(long.clone())).await.unwrap(),
        long
    );
}
