//! What happens once per step, and what is refused before a provider is called.
#![allow(clippy::unwrap_used, reason = "a test")]

use concentric_core::{
    AgentLayer, BoxError, ChatRequest, Error, ErrorKind, Event, Finish, FinishReason, Phase,
    ToolSpec, Usage,
    agent::{BeforeStep, StepGate, StepView},
    layers::{ModelLayers, Next, OfRunLayer, from_fn, inspect_events},
};
use concentric_providers::{ApiKey, OpenAiLayer};
use concentric_test::{ScriptedModel, ScriptedTools, assert_finishes};
use concentric_tools::{NoArguments, Toolset, tool};
use http_body_util::Full;
use serde_json::json;
use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tower::{Layer, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl StepGate for Log {
    fn name(&self) -> &str {
        "log"
    }

    async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
        self.add(format!("step {}", step.step));
        Ok(BeforeStep::Continue)
    }
}

#[tokio::test]
async fn c006_a_request_transform_runs_once_per_model_call_after_its_step_began() {
    let log = Log::default();
    let (asked, seen) = (log.clone(), log.clone());
    let agent = ServiceBuilder::new()
        .layer(inspect_events(move |event: &Event| match event {
            Event::StepStart(step) => seen.add(format!("start {}", step.step)),
            Event::ToolCall(_) | Event::TextDelta(_) => seen.add("said"),
            _ => {}
        }))
        .layer(AgentLayer::new(ScriptedTools::new().answers("look", "seen")).gate(log.clone()))
        .layer(from_fn(move |request: ChatRequest, mut next: Next| {
            asked.add(format!("transform {}", request.context.step()));
            async move { next.run(request).await }
        }))
        .service(
            ScriptedModel::new()
                .tool_call("look", json!({}))
                .then()
                .text("It is."),
        );
    assert_finishes(agent.oneshot(ChatRequest::user("hi")).await.unwrap().body).await;
    let step = |step: u32| {
        let all = [
            format!("step {step}"),
            format!("transform {step}"),
            format!("start {step}"),
        ];
        [all.to_vec(), vec!["said".to_owned()]].concat()
    };
    assert_eq!(log.take(), [step(0), step(1)].concat());
}

#[tokio::test]
async fn c015_two_tools_of_one_name_are_an_error_before_the_provider_is_called() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&calls);
    let http = service_fn(move |_: http::Request<Full<bytes::Bytes>>| {
        counts.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(http::Response::new(Full::<bytes::Bytes>::default())) }
    });
    // Two layers that do not know of each other.
    let adds = || {
        from_fn(|mut request: ChatRequest, mut next: Next| async move {
            let spec = ToolSpec::new("search", "", json!({"type": "object"}));
            request.tools.push(Arc::new(spec));
            next.run(request).await
        })
    };
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(adds())
        .layer(adds())
        .layer(OpenAiLayer::new("gpt-5.5", ApiKey::new("k")))
        .service(http);
    let error: Error = agent.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.phase()),
        (ErrorKind::Configuration, Some(Phase::Model))
    );
    assert!(error.message().contains("`search`"), "{error}");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn the_layers_of_a_run_do_not_wait_for_the_permit_that_was_taken_for_them() {
    let log = Log::default();
    let seen = log.clone();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(OfRunLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(ScriptedModel::new().text("hi").repeat());
    for _ in 0..2 {
        let mut request = ChatRequest::user("hi");
        let seen = seen.clone();
        let own = ModelLayers::new().layer(inspect_events(move |_: &Event| seen.add("event")));
        request.context.own_mut().insert(own);
        let call = agent.clone().oneshot(request);
        let answer = tokio::time::timeout(Duration::from_secs(1), call)
            .await
            .unwrap();
        assert_finishes(answer.unwrap().body).await;
    }
    assert!(log.take().len() >= 4);
}

#[tokio::test]
async fn a_call_that_was_cut_off_before_its_arguments_is_not_run() {
    for (reason, arguments, runs) in [
        (FinishReason::Length, "", false),
        (FinishReason::ContentFilter, " ", false),
        (FinishReason::Length, "{}", true),
        (FinishReason::ToolCalls, "", true),
    ] {
        let log = Log::default();
        let ran = log.clone();
        let wipe = tool("wipe", "", move |NoArguments {}| {
            ran.add("ran");
            async { "wiped" }
        });
        let model = ScriptedModel::new()
            .tool_call("wipe", arguments)
            .finish(Finish::new(reason.clone(), Usage::default()))
            .then()
            .text("Done.");
        let agent = AgentLayer::new(Toolset::new().tool(wipe)).layer(model);
        let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
        let (events, _) = assert_finishes(body).await;
        let result = events.iter().find_map(|event| match event {
            Event::ToolResult(result) => Some(format!("{:?}", result.outcome)),
            _ => None,
        });
        let case = format!("{reason:?} {arguments:?} {result:?}");
        assert_eq!(log.take().len(), usize::from(runs), "{case}");
        assert_eq!(result.unwrap().contains("cut off"), !runs, "{case}");
    }
}
