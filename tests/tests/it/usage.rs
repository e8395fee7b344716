//! The tokens of a whole run, by model (S24).

use bytes::Bytes;
use concentric_core::{
    AgentLayer, Answer, BoxModel, ChatRequest, Context, Event, EventStream, Outcome, Reply,
    ResponseHead, RunUsage, Str, Usage, machine::RunState, service::SharedModel, store::Checkpoint,
};
use concentric_layers::{
    FallbackLayer, Next, from_fn,
    stop::{Judgement, OutputConstraint},
};
use concentric_providers::{
    ApiKey, OpenAiLayer, OpenAiResponsesLayer,
    catalogue::{Catalogue, ModelInfo, Price},
};
use concentric_test::{Pace, ScriptedModel, watched};
use concentric_tools::{Approval, Toolset, agent_tool, output};
use futures_util::{StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};

/// A model that records its tokens under its name, as providers do.
fn named(name: &'static str, used: Usage) -> ScriptedModel {
    ScriptedModel::new()
        .head(ResponseHead::new("test", name))
        .usage(used)
}

fn then(model: ScriptedModel, name: &'static str, used: Usage) -> ScriptedModel {
    model
        .then()
        .head(ResponseHead::new("test", name))
        .usage(used)
}

/// Name, calls and tokens of each model.
fn table(usage: &RunUsage) -> Vec<(&str, u64, u64, u64)> {
    let mut rows: Vec<_> = usage
        .models()
        .iter()
        .map(|of| {
            let (input, output) = (of.usage.input_tokens(), of.usage.output_tokens());
            let name = of.model.as_deref().unwrap_or("");
            (name, of.calls, input.unwrap_or(0), output.unwrap_or(0))
        })
        .collect();
    rows.sort_unstable();
    rows
}

async fn run(agent: BoxModel, request: ChatRequest) -> (Answer, Context) {
    let context = request.context.clone();
    let answer = agent.oneshot(request).await.unwrap().collect().await;
    (answer.unwrap(), context)
}

/// An agent that rejects its first answer, asks a nested agent, and has its final answer judged.
fn tree(pace: Pace) -> BoxModel {
    let used = Usage::new;
    let inner = named("inner", used(1000, 100)).paced(pace).text("No news.");
    let inner = AgentLayer::new(Toolset::new()).layer(inner);
    let model = named("outer", used(10, 1)).paced(pace).text("Hm.");
    let model = then(model, "outer", used(20, 2)).tool_call("research", json!({"task": "t"}));
    let model = then(model, "outer", used(30, 3)).text("Nothing happened.");
    let model = then(model, "outer", used(40, 4)).text("Nothing.");
    // The first answer of the first step is rejected by a layer, as a retry does.
    let retried = from_fn(async |request: ChatRequest, mut next: Next| {
        if request.context.step() == 0 {
            next.run(request.clone()).await?.collect().await?;
        }
        next.run(request).await
    });
    let grader = named("grader", used(500, 5)).text("Shorter.").then();
    let grader = grader
        .head(ResponseHead::new("test", "grader"))
        .usage(used(500, 5))
        .text("OK");
    let grader = BoxModel::new(grader);
    let judge = OutputConstraint::new("short", move |answer: Str, context: Context| {
        let grader = grader.clone();
        async move {
            let request = ChatRequest::user(answer).with_context(context.child().build());
            let grade = grader.oneshot(request).await?.text().await?;
            Ok(match grade.as_str() {
                "OK" => Judgement::Accept,
                grade => Judgement::complain(grade),
            })
        }
    });
    let tools = Toolset::new().tool(agent_tool("research", "", inner));
    BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(tools).gate(judge))
            .layer(retried)
            .service(model),
    )
}

// Case C126, with a nested agent, a judge and a rejected attempt.
#[test]
fn a_run_counts_the_tokens_of_its_whole_tree() {
    for pace in Pace::ALL {
        watched(async move {
            let (answer, context) = run(tree(pace), ChatRequest::user("News?")).await;
            assert_eq!(answer.text(), "Nothing.");
            let usage = answer.finish.run_usage();
            let expected = [
                ("grader", 2, 1000, 10),
                ("inner", 1, 1000, 100),
                ("outer", 4, 100, 10),
            ];
            assert_eq!(table(&usage), expected);
            assert_eq!(usage.total(), Usage::new(2100, 120));
            assert_eq!(context.run_usage(), usage);
            // The agent's own steps, without the rejected attempt.
            assert_eq!(answer.finish.usage, Usage::new(90, 9));
            // One dollar per million tokens of input.
            let models = ["grader", "inner", "outer"].into_iter();
            let price = |name| ModelInfo::new("test", name).price(Price::new(1_000_000, 0));
            let catalogue = models
                .map(price)
                .fold(Catalogue::builtin(), Catalogue::with);
            assert_eq!(catalogue.cost(&usage).unwrap().micros(), 2100);
            assert_eq!(Catalogue::builtin().cost(&usage), None);
        });
    }
}

#[tokio::test]
async fn models_that_record_nothing_are_counted_by_their_agents() {
    let used = Usage::new(7, 1);
    let inner = ScriptedModel::new().usage(used).text("No.");
    let inner = AgentLayer::new(Toolset::new()).layer(inner);
    let tools = Toolset::new().tool(agent_tool("research", "", inner));
    let model = ScriptedModel::new()
        .usage(used)
        .tool_call("research", json!({"task": "t"}));
    let model = model.then().usage(used).text("No.");
    let agent = BoxModel::new(AgentLayer::new(tools).layer(model));
    let (answer, _) = run(agent, ChatRequest::user("News?")).await;
    assert_eq!(answer.finish.run_usage().total(), Usage::new(21, 3));
}

#[tokio::test]
async fn an_agent_in_the_models_place_is_counted_once() {
    for named in [true, false] {
        let model = ScriptedModel::new().usage(Usage::new(7, 1)).text("Yes.");
        let model = match named {
            true => model.head(ResponseHead::new("test", "m")),
            false => model,
        };
        let inner = AgentLayer::new(Toolset::new()).layer(model);
        let agent = BoxModel::new(AgentLayer::new(Toolset::new()).layer(inner));
        let (answer, context) = run(agent, ChatRequest::user("?")).await;
        assert_eq!(answer.finish.usage, Usage::new(7, 1));
        assert_eq!(context.run_usage().total(), Usage::new(7, 1));
        assert_eq!(answer.finish.run_usage().total(), Usage::new(7, 1));
    }
}

// Case C126, over interrupts.
#[tokio::test]
async fn an_interrupted_run_keeps_the_tokens_of_its_tree() {
    let inner = named("inner", Usage::new(1000, 100)).text("Paid.").repeat();
    let inner = AgentLayer::new(Toolset::new()).layer(inner);
    let model = named("outer", Usage::new(10, 1)).tool_call("pay", json!({"task": "t"}));
    let model = then(model, "outer", Usage::new(20, 2)).tool_call("pay", json!({"task": "t"}));
    let model = then(model, "outer", Usage::new(30, 3)).text("Done.");
    let tools = || {
        let inner = inner.clone();
        Toolset::new()
            .tool(agent_tool("pay", "", inner))
            .gate(Approval::for_tools("pay"))
    };
    let agent = || BoxModel::new(AgentLayer::new(tools()).layer(model.clone()));
    let (mut answer, _) = run(agent(), ChatRequest::user("Pay twice.")).await;
    for outer in [10, 30] {
        assert_eq!(answer.finish.outcome, Outcome::Interrupted);
        let usage = answer.finish.run_usage();
        assert_eq!(table(&usage).last().unwrap().2, outer);
        let state = answer.finish.state.take().unwrap().to_json().unwrap();
        let state = RunState::from_json(state.as_bytes(), usize::MAX).unwrap();
        let reply = Reply::approve(state.interrupts()[0].id.clone());
        (answer, _) = run(agent(), ChatRequest::resume(state, vec![reply])).await;
    }
    let usage = answer.finish.run_usage();
    assert_eq!(usage.total().input_tokens(), Some(60 + 2000));
}

/// A model that does not record its tokens, calls the tool once, and then says that it is done.
fn unnamed() -> ScriptedModel {
    ScriptedModel::new()
        .usage(Usage::new(10, 1))
        .tool_call("pay", json!({"task": "t"}))
        .then()
        .usage(Usage::new(20, 2))
        .text("Done.")
}

/// The same call of a model that records its tokens.
fn named_call() -> ScriptedModel {
    named("outer", Usage::new(10, 1)).tool_call("pay", json!({"task": "t"}))
}

/// An agent that asks before it calls a nested agent, whose model records its tokens.
fn asking(model: ScriptedModel) -> BoxModel {
    let inner = named("inner", Usage::new(1000, 100)).text("Paid.");
    let inner = AgentLayer::new(Toolset::new()).layer(inner);
    let tools = Toolset::new()
        .tool(agent_tool("pay", "", inner))
        .gate(Approval::for_tools("pay"));
    BoxModel::new(AgentLayer::new(tools).layer(model))
}

/// The request that approves the call, from the stored state.
fn resumed(answer: Answer) -> ChatRequest {
    let state = answer.finish.state.unwrap().to_json().unwrap();
    let state = RunState::from_json(state.as_bytes(), usize::MAX).unwrap();
    let reply = Reply::approve(state.interrupts()[0].id.clone());
    ChatRequest::resume(state, vec![reply])
}

#[tokio::test]
async fn tokens_that_no_model_recorded_are_kept_over_an_interrupt() {
    let agent = asking(unnamed());
    let (answer, _) = run(agent.clone(), ChatRequest::user("Pay.")).await;
    let request = resumed(answer);
    let (answer, context) = run(agent, request).await;
    let usage = answer.finish.run_usage();
    assert_eq!(usage.total(), Usage::new(1030, 103));
    assert_eq!(context.run_usage(), usage);
}

#[tokio::test]
async fn what_is_recorded_before_a_run_resumes_is_added_to_the_stored_tokens() {
    let outer = from_fn(async |request: ChatRequest, mut next: Next| {
        let head = ResponseHead::new("test", "guard");
        request.context.record_usage(&head, Usage::new(5, 5));
        next.run(request).await
    });
    for named in [true, false] {
        let model = match named {
            true => {
                let model = named_call();
                then(model, "outer", Usage::new(20, 2)).text("Done.")
            }
            false => unnamed(),
        };
        let agent = BoxModel::new(outer.clone().layer(asking(model)));
        let (answer, _) = run(agent.clone(), ChatRequest::user("Pay.")).await;
        let (answer, _) = run(agent, resumed(answer)).await;
        let usage = answer.finish.run_usage();
        assert_eq!(usage.total(), Usage::new(1040, 113), "{named}");
    }
}

#[tokio::test]
async fn a_run_that_resumes_in_the_same_context_counts_once() {
    let model = named_call();
    let model = then(model, "outer", Usage::new(20, 2)).text("Done.");
    for model in [model, unnamed()] {
        let agent = asking(model);
        let (answer, context) = run(agent.clone(), ChatRequest::user("Pay.")).await;
        let (answer, _) = run(agent, resumed(answer).with_context(context)).await;
        let usage = answer.finish.run_usage();
        assert_eq!(usage.total(), Usage::new(1030, 103));
    }
}

#[tokio::test]
async fn a_checkpoint_has_the_tokens_that_no_model_recorded() {
    let inner = named("inner", Usage::new(1000, 100)).text("Paid.").repeat();
    let inner = AgentLayer::new(Toolset::new()).layer(inner);
    let model = || {
        ScriptedModel::new()
            .usage(Usage::new(10, 1))
            .tool_call("pay", json!({"task": "t"}))
            .then()
            .usage(Usage::new(20, 2))
            .tool_call("pay", json!({"task": "t"}))
            .then()
            .usage(Usage::new(30, 3))
            .text("Done.")
    };
    for in_place in [false, true] {
        let tools = Toolset::new().tool(agent_tool("pay", "", inner.clone()));
        let agent = BoxModel::new(AgentLayer::new(tools).layer(model()));
        let agent = match in_place {
            true => BoxModel::new(AgentLayer::new(Toolset::new()).layer(agent)),
            false => agent,
        };
        let saved = Arc::new(Mutex::new(Vec::new()));
        let states = Arc::clone(&saved);
        let mut request = ChatRequest::user("Pay twice.");
        request.checkpoint = Some(Checkpoint::new(move |state| {
            states.lock().unwrap().push(state);
            Box::pin(async { Ok(()) })
        }));
        let (answer, _) = run(agent, request).await;
        let total = answer.finish.run_usage().total();
        assert_eq!(total, Usage::new(2060, 206));
        let mut states = std::mem::take(&mut *saved.lock().unwrap());
        let state = states.get_mut(1).unwrap();
        let total = state.take_run_usage().unwrap().total();
        assert_eq!(total, Usage::new(1030, 103), "{in_place}");
    }
}

#[tokio::test]
async fn a_judge_inside_the_loop_does_not_hide_or_repeat_the_models_tokens() {
    fn judge(request: &ChatRequest) {
        let head = ResponseHead::new("test", "judge");
        request.context.record_usage(&head, Usage::new(500, 5));
    }
    let model = || {
        ScriptedModel::new()
            .usage(Usage::new(10, 1))
            .text("Yes.")
            .repeat()
    };
    for model in [model(), model().head(ResponseHead::new("test", "m"))] {
        let before = from_fn(async |request: ChatRequest, mut next: Next| {
            judge(&request);
            next.run(request).await
        });
        let after = from_fn(async |request: ChatRequest, mut next: Next| {
            let response = next.run(request.clone()).await?;
            Ok(response.map_body(|body| {
                EventStream::new(body.inspect(move |item| {
                    if let Ok(Event::Finish(_)) = item {
                        judge(&request);
                    }
                }))
            }))
        });
        let agent = AgentLayer::new(Toolset::new());
        let before = BoxModel::new(agent.clone().layer(before.layer(model.clone())));
        let after = BoxModel::new(agent.layer(after.layer(model)));
        for agent in [before, after] {
            let (answer, _) = run(agent, ChatRequest::user("?")).await;
            assert_eq!(answer.finish.run_usage().total(), Usage::new(510, 6));
        }
    }
}

#[derive(Deserialize, JsonSchema)]
struct Answered {
    #[expect(dead_code, reason = "only its schema matters")]
    yes: bool,
}

#[tokio::test]
async fn the_call_for_the_structured_output_counts() {
    let model = named("m", Usage::new(10, 1)).text("Yes.");
    let model = then(model, "m", Usage::new(30, 3)).text(r#"{"yes": true}"#);
    let agent = AgentLayer::new(Toolset::new()).with(output::<Answered>("a").separately());
    let agent = BoxModel::new(agent.layer(BoxModel::new(model)));
    let (answer, _) = run(agent, ChatRequest::user("?")).await;
    assert_eq!(table(&answer.finish.run_usage()), [("m", 2, 40, 4)]);
}

#[tokio::test]
async fn no_tokens_and_the_most_tokens_are_counted() {
    for used in [
        Usage::default(),
        Usage::new(0, 0),
        Usage::new(u64::MAX, u64::MAX),
    ] {
        let model = named("m", used).tool_call("none", json!({}));
        let model = then(model, "m", used).text("Done.");
        let agent = BoxModel::new(AgentLayer::new(Toolset::new()).layer(model));
        let (answer, _) = run(agent, ChatRequest::user("?")).await;
        assert_eq!(answer.finish.run_usage().total(), used);
    }
}

#[test]
fn long_calls_keep_their_own_price() {
    let head = ResponseHead::new("test", "m");
    let mut usage = RunUsage::default();
    for input in [100_000, 100_000, 100_000, 300_000, 300_000] {
        usage.record(&head, Usage::new(input, 0));
    }
    let calls: Vec<_> = usage.models().iter().map(|of| of.calls).collect();
    assert_eq!(calls, [3, 1, 1]);
    let catalogue = json!({
        "version": 1,
        "date": "2026-11-23",
        "models": [{
            "provider": "test",
            "model": "m",
            "price": {
                "input": 1_000_000, "output": 0,
                "above": {"input_tokens": 200_000, "input": 2_000_000}
            }
        }]
    });
    let catalogue = Catalogue::from_json(&catalogue.to_string()).unwrap();
    let cost = catalogue.cost(&usage).unwrap();
    assert_eq!(cost.micros(), 300_000 + 2 * 600_000);
}

/// A model of a service that sends `body` and then stays silent.
fn served<L>(layer: L, body: &'static str) -> BoxModel
where
    L: Layer<BoxHttp>,
    L::Service: SharedModel,
{
    let http = service_fn(move |_: http::Request<Full<Bytes>>| async move {
        let sent = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(body)))]);
        let body = StreamBody::new(sent.chain(stream::pending()));
        Ok::<_, Infallible>(http::Response::new(BodyExt::boxed(body)))
    });
    BoxModel::new(layer.layer(BoxCloneSyncService::new(http)))
}

type BoxHttp = BoxCloneSyncService<
    http::Request<Full<Bytes>>,
    http::Response<BoxBody<Bytes, Infallible>>,
    Infallible,
>;

// Case C126, with attempts that were dropped, and that have failed.
#[tokio::test(start_paused = true)]
async fn the_tokens_of_dropped_and_failed_attempts_are_recorded() {
    let silent = served(OpenAiLayer::new("silent", ApiKey::new("key")), "");
    let failed = concat!(
        r#"data: {"type": "response.failed", "response": {"id": "r", "status": "failed", "model": "fails", "#,
        r#""error": {"code": "server_error", "message": "down"}, "#,
        r#""usage": {"input_tokens": 60, "output_tokens": 7}}}"#,
        "\n\n"
    );
    let fails = served(
        OpenAiResponsesLayer::new("fails", ApiKey::new("key")),
        failed,
    );
    let answers = named("answers", Usage::new(10, 1)).text("Yes.");
    let model = FallbackLayer::new("silent")
        .or("fails", fails)
        .or("answers", answers)
        .time_to_first(Duration::from_secs(5))
        .layer(silent);
    let agent = BoxModel::new(AgentLayer::new(Toolset::new()).layer(model));
    // Each attempt sends 40 bytes of text, about 10 tokens.
    let (answer, context) = run(agent, ChatRequest::user("a".repeat(40))).await;
    assert_eq!(answer.text(), "Yes.");
    let usage = answer.finish.run_usage();
    let expected = [
        ("answers", 1, 10, 1),
        ("fails", 1, 60, 7),
        ("silent", 1, 10, 0),
    ];
    assert_eq!(table(&usage), expected);
    let estimated = usage.models().iter().filter(|of| of.estimated > 0);
    let estimated: Vec<_> = estimated.map(|of| of.model.as_deref()).collect();
    assert_eq!(estimated, [Some("silent")]);
    assert_eq!(answer.finish.usage, Usage::new(10, 1));
    assert_eq!(context.run_usage(), usage);
}

// Case C126, with a dropped run.
#[tokio::test]
async fn the_tokens_of_a_dropped_run_are_recorded() {
    let body = concat!(
        r#"data: {"id": "c", "model": "gpt", "choices": [{"index": 0, "delta": {"content": "Hello, world"}}]}"#,
        "\n\n"
    );
    let model = served(OpenAiLayer::new("gpt", ApiKey::new("key")), body);
    let agent = AgentLayer::new(Toolset::new()).layer(model);
    let request = ChatRequest::user("a".repeat(40));
    let context = request.context.clone();
    let mut response = agent.oneshot(request).await.unwrap();
    while !matches!(response.body.next().await, Some(Ok(Event::TextDelta(_)))) {}
    drop(response);
    let usage = context.run_usage();
    assert_eq!(table(&usage), [("gpt", 1, 10, 3)]);
    assert_eq!(usage.models()[0].estimated, 1);
}
