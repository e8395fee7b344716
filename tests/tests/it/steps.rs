//! What happens once per step, and what is refused before a provider is called.

use concentric_core::{
    AgentLayer, BoxError, CancelReason, ChatRequest, Error, ErrorKind, Event, Finish, FinishReason,
    Outcome, Phase, Reply, RunOverrides, ToolSpec, Usage,
    agent::{StepDecision, StepDraft, StepGate},
};
use concentric_layers::{Next, from_fn, inspect_events};
use concentric_providers::{ApiKey, OpenAiLayer};
use concentric_test::{ScriptedModel, ScriptedTools, assert_finishes, shape};
use concentric_tools::{NoArguments, Toolset, tool};
use futures_util::StreamExt;
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

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        self.add(format!("step {}", step.step));
        Ok(StepDecision::Continue)
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
    assert_eq!(
        log.take(),
        [
            // The first step is shown with the commit point, once its model answers.
            "step 0",
            "transform 0",
            "start 0",
            "said",
            "step 1",
            "start 1",
            "transform 1",
            "said",
        ]
    );
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
        .layer(AgentLayer::new(ScriptedTools::new()).boxed())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(ScriptedModel::new().text("hi").repeat());
    for _ in 0..2 {
        let seen = seen.clone();
        let watch = inspect_events(move |_: &Event| seen.add("event"));
        let own = RunOverrides::new().model_layer(watch);
        let request = ChatRequest::user("hi").with_overrides(own);
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
        assert_eq!(result.unwrap().contains("truncated"), !runs, "{case}");
    }
}

#[tokio::test]
async fn a_later_step_is_shown_before_its_model_is_called() {
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("It is.");
    let agent = AgentLayer::new(ScriptedTools::new().answers("look", "seen")).layer(model.clone());
    let mut body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let mut starts = Vec::new();
    let mut transcript = None;
    while let Some(event) = body.next().await {
        match event.unwrap() {
            Event::StepStart(start) => {
                starts.push((start.step, model.calls(), start.message_id.clone()));
            }
            Event::Finish(finish) => transcript = finish.transcript,
            _ => {}
        }
    }
    let [(0, 1, _), (1, 1, id)] = &*starts else {
        panic!("{starts:?}");
    };
    let transcript = transcript.unwrap();
    assert_eq!(
        transcript.last().unwrap().as_message().id.as_ref(),
        Some(id)
    );
    assert_eq!(model.request(1).context.message_id(), Some(id));
}

#[tokio::test]
async fn a_resumed_run_shows_its_step_before_its_model_is_called() {
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .text("Paid.");
    let tools = ScriptedTools::new().asks("pay", "paid");
    let agent = AgentLayer::new(tools).layer(model.clone());
    let asked = agent.clone().oneshot(ChatRequest::user("Pay.")).await;
    let finish = asked.unwrap().collect().await.unwrap().finish;
    let replies = finish.interrupts().into_iter();
    let replies = replies
        .map(|asked| Reply::approve(asked.id.clone()))
        .collect();
    let request = ChatRequest::resume(*finish.state.unwrap(), replies);
    let mut body = agent.oneshot(request).await.unwrap().body;
    let mut events = Vec::new();
    while let Some(event) = body.next().await {
        let event = event.unwrap();
        if let Event::StepStart(_) = event {
            assert_eq!(model.calls(), 1);
        }
        events.push(event);
    }
    assert_eq!(
        shape(&events),
        "resumed tool_result step_start text step_finish finish"
    );
}

#[tokio::test]
async fn a_step_whose_model_fails_or_never_answers_has_begun() {
    for (error, ends) in [(true, "fails"), (false, "is cancelled")] {
        let model = ScriptedModel::new().tool_call("look", json!({})).then();
        let model = match error {
            true => model.error(Error::new(ErrorKind::Server, "down")),
            false => model.never(),
        };
        let agent = AgentLayer::new(ScriptedTools::new().answers("look", "seen")).layer(model);
        let request = ChatRequest::user("hi");
        let context = request.context.clone();
        let mut body = agent.oneshot(request).await.unwrap().body;
        let mut events = Vec::new();
        let mut end = None;
        while let Some(event) = body.next().await {
            let Ok(event) = event else {
                end = Some("fails");
                break;
            };
            if let Event::StepStart(start) = &event
                && start.step == 1
                && !error
            {
                context.cancel(CancelReason::User);
            }
            if let Event::Finish(finish) = &event {
                assert!(matches!(finish.outcome, Outcome::Aborted { .. }));
                end = Some("is cancelled");
            }
            events.push(event);
        }
        assert_eq!(end, Some(ends));
        let starts = events.iter().filter(|e| matches!(e, Event::StepStart(_)));
        assert_eq!(starts.count(), 2);
    }
}

/// A gate that decides by the step's number.
struct Before(fn(u32) -> StepDecision);

impl StepGate for Before {
    fn name(&self) -> &str {
        "before"
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        Ok((self.0)(step.step))
    }
}

#[tokio::test]
async fn a_step_that_a_gate_prevents_is_not_shown() {
    let halts = Before(|step| match step {
        0 => StepDecision::Continue,
        _ => StepDecision::Halt("enough".into()),
    });
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("no");
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = AgentLayer::new(tools).gate(halts).layer(model.clone());
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (events, finish) = assert_finishes(body).await;
    assert!(matches!(finish.outcome, Outcome::Halted { .. }));
    let starts = events.iter().filter(|e| matches!(e, Event::StepStart(_)));
    assert_eq!((starts.count(), model.calls()), (1, 1));
}
