//! Layers around the calls of all tools, and of one.

use crate::common::{Hook, Log, hook, note, one, paced, polled, round, text, tool};
use concentric_core::{
    Arguments, BoxTool, Context, Error, ErrorKind, Refusal, ToolCall, ToolOutcome, ToolSource,
    ToolStatus,
};
use concentric_tools::{NoArguments, Tool, Toolset, fatal};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use std::{future::pending, time::Duration};
use tokio_test::{assert_pending, assert_ready};
use tower::{
    Service, ServiceBuilder, ServiceExt, buffer::BufferLayer, layer::layer_fn,
    limit::ConcurrencyLimitLayer, timeout::TimeoutLayer,
};

#[derive(Deserialize, JsonSchema)]
struct Number {
    n: u8,
}

fn number(log: &Log) -> Tool {
    let log = log.clone();
    tool("t", "", move |Number { n }| {
        log.add(format!("ran {n}"));
        async move { n.to_string() }
    })
}

paced!(c002_the_first_layer_added_is_the_outermost);
async fn c002_the_first_layer_added_is_the_outermost() {
    // For all tools, and inside of those for one.
    let log = Log::default();
    let tools = Toolset::new()
        .layer(note("A", &log))
        .tool(
            tool("t", "", |NoArguments {}| async { "ok" })
                .layer(note("C", &log))
                .layer(note("D", &log)),
        )
        .layer(note("B", &log));
    assert_eq!(text(&tools, "t", "").await, "ok");
    let order: Vec<_> = log
        .lines()
        .iter()
        .map(|line| line[..3].to_owned())
        .collect();
    assert_eq!(
        order,
        ["A b", "B b", "C b", "D b", "D a", "C a", "B a", "A a"]
    );
}

paced!(layers_of_a_builder_are_added_at_once);
async fn layers_of_a_builder_are_added_at_once() {
    let log = Log::default();
    let layers = ServiceBuilder::new()
        .layer(note("A", &log))
        .layer(note("B", &log))
        .into_inner();
    let tools = Toolset::new().tool(number(&log)).layer(layers);
    text(&tools, "t", r#"{"n":1}"#).await;
    assert_eq!(log.lines()[..2], ["A before call-0", "B before call-0"]);
}

paced!(c033_a_layer_that_answers_keeps_inner_layers_and_the_tool_from_running);
async fn c033_a_layer_that_answers_keeps_inner_layers_and_the_tool_from_running() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(note("outer", &log))
        .layer(hook(|_| Hook::Answer(ToolOutcome::done("cached"))))
        .layer(note("inner", &log));
    let answer = crate::common::agent(tools, vec![vec![("t", r#"{"n":1}"#)]])
        .await
        .unwrap();
    assert_eq!(crate::common::results(&answer), ["call-0-0: cached"]);
    assert_eq!(
        log.lines(),
        ["outer before call-0-0", "outer after call-0-0: Done"]
    );
}

paced!(c034_of_two_calls_one_is_blocked_and_the_other_runs);
async fn c034_of_two_calls_one_is_blocked_and_the_other_runs() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(hook(|call: ToolCall| {
            if call.arguments().as_str().contains('1') {
                Hook::Answer(ToolOutcome::denied("1 is not allowed"))
            } else {
                Hook::Call(call)
            }
        }));
    let script = vec![vec![("t", r#"{"n":1}"#), ("t", r#"{"n":2}"#)]];
    let answer = crate::common::agent(tools, script).await.unwrap();
    assert_eq!(
        crate::common::results(&answer),
        ["call-0-0: 1 is not allowed", "call-0-1: 2"]
    );
    assert_eq!(log.lines(), ["ran 2"]);
}

fn edit(arguments: &'static str) -> impl Fn(ToolCall) -> Hook + Clone + Send + Sync + 'static {
    move |mut call: ToolCall| {
        call.set_arguments(Arguments::new(arguments));
        Hook::Call(call)
    }
}

paced!(c036_an_inner_layer_and_the_tool_see_edited_arguments);
async fn c036_an_inner_layer_and_the_tool_see_edited_arguments() {
    let log = Log::default();
    let seen = log.clone();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(hook(edit(r#"{"n":7}"#)))
        .layer(hook(move |call: ToolCall| {
            seen.add(call.arguments().as_str());
            Hook::Call(call)
        }));
    assert_eq!(text(&tools, "t", r#"{"n":1}"#).await, "7");
    assert_eq!(log.lines(), [r#"{"n":7}"#, "ran 7"]);
}

paced!(c037_edited_arguments_that_the_schema_does_not_allow_are_refused);
async fn c037_edited_arguments_that_the_schema_does_not_allow_are_refused() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(hook(edit(r#"{"n":700}"#)));
    let outcome = one(&tools, "t", r#"{"n":1}"#).await;
    assert_eq!(outcome.status, ToolStatus::Failed);
    let told = outcome.content.text();
    assert!(told.contains("at `/n`: 700 is greater than"), "{told}");
    assert!(log.lines().is_empty());
}

/// Makes a call of its own of each call.
fn forge(call: ToolCall) -> Hook {
    let part = crate::common::part(9, "t", call.arguments().as_str());
    Hook::Call(ToolCall::new(part, call.context))
}

paced!(c035_a_layer_that_changes_which_call_is_made_is_named_and_nothing_runs);
async fn c035_a_layer_that_changes_which_call_is_made_is_named_and_nothing_runs() {
    let log = Log::default();
    let tool = || tool("other", "", |NoArguments {}| async { "other" });
    let outer = Toolset::new().tool(number(&log)).tool(tool());
    let innermost = outer.clone().layer(hook(forge));
    let outermost = outer.clone().layer(hook(forge)).layer(note("inner", &log));
    let of_the_tool = Toolset::new()
        .tool(number(&log))
        .tool(tool().layer(hook(forge)));
    for tools in [innermost, outermost, of_the_tool] {
        let mut all = crate::common::run(&tools, &[("other", r#"{"n":1}"#)]).await;
        let error = all.pop().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.message().contains("hook"), "{error}");
        assert!(log.lines().is_empty());
    }
}

paced!(layers_see_calls_that_may_run_and_no_refused_ones);
async fn layers_see_calls_that_may_run_and_no_refused_ones() {
    let log = Log::default();
    let tools = Toolset::new().tool(number(&log)).layer(note("audit", &log));
    let mut round = round(&[
        ("unknown", ""),
        ("t", "{"),
        ("t", r#"{"n":700}"#),
        ("t", r#"{"n":1}"#),
    ]);
    round.calls[3].state.stage =
        concentric_core::call::CallStage::Rejected(Refusal::NotOffered(["a".into()].into()));
    let mut all: Vec<_> = tools
        .oneshot(round)
        .await
        .unwrap()
        .map(|item| crate::common::settled(item.unwrap()))
        .collect()
        .await;
    all.sort_by_key(|settled| settled.index);
    let told: Vec<_> = all
        .iter()
        .map(|settled| settled.outcome.content.text())
        .collect();
    assert_eq!(told[0], "There is no tool `unknown`. Available tools: t.");
    assert!(told[1].contains("ends early"));
    assert!(told[2].contains("at `/n`: 700 is greater than"));
    assert_eq!(told[3], "There is no tool `t`. Available tools: a.");
    for index in 1..3 {
        assert_eq!(log.count(&format!("audit before call-{index}")), 1);
        assert_eq!(log.count(&format!("audit after call-{index}: Failed")), 1);
    }
    assert_eq!(log.lines().len(), 4);
}

paced!(c041_an_audit_layer_outside_a_guard_sees_the_call_and_the_block);
async fn c041_an_audit_layer_outside_a_guard_sees_the_call_and_the_block() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(note("audit", &log))
        .layer(hook(|_| Hook::Answer(ToolOutcome::denied("no"))));
    one(&tools, "t", r#"{"n":1}"#).await;
    assert_eq!(
        log.lines(),
        ["audit before call-0", "audit after call-0: Denied"]
    );
}

paced!(layers_see_the_tools_spec);
async fn layers_see_the_tools_spec() {
    let log = Log::default();
    let seen = log.clone();
    let tools = Toolset::new()
        .tool(number(&log).read_only())
        .layer(hook(move |call: ToolCall| {
            let spec = call.spec().map(|spec| spec.annotations.read_only);
            seen.add(format!("{} {spec:?}", call.name()));
            Hook::Call(call)
        }));
    crate::common::run(&tools, &[("t", r#"{"n":1}"#), ("unknown", "")]).await;
    assert_eq!(log.lines(), ["t Some(true)", "ran 1"]);
    assert_eq!(tools.specs().len(), 1);
}

paced!(the_text_of_a_layers_error_does_not_reach_the_model);
async fn the_text_of_a_layers_error_does_not_reach_the_model() {
    let fails = || {
        Toolset::new()
            .tool(tool("t", "", |NoArguments {}| async { "ok" }))
            .layer(hook(|_| Hook::Fail("the quota is used up".into())))
    };
    let answer = crate::common::agent(fails(), vec![vec![("t", "")]])
        .await
        .unwrap();
    assert_eq!(
        crate::common::results(&answer),
        ["call-0-0: The tool failed."]
    );

    let error = crate::common::agent(fails().errors_are_fatal(), vec![vec![("t", "")]]).await;
    assert_eq!(error.unwrap_err().message(), "the quota is used up");
}

paced!(a_fatal_error_of_a_layer_fails_the_run_even_when_wrapped);
async fn a_fatal_error_of_a_layer_fails_the_run_even_when_wrapped() {
    #[derive(Debug)]
    struct Wrapped(Error);
    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("wrapped")
        }
    }
    impl std::error::Error for Wrapped {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| async { "ok" }))
        .layer(hook(|_| {
            Hook::Fail(Box::new(Wrapped(fatal("the ledger is broken"))))
        }));
    let error = crate::common::agent(tools, vec![vec![("t", "")]])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tool);
    assert_eq!(error.message(), "the ledger is broken");
}

paced!(paused towers_timeout_bounds_a_call);
async fn towers_timeout_bounds_a_call() {
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| pending::<()>()).read_only())
        .layer(TimeoutLayer::new(Duration::from_secs(1)));
    assert_eq!(
        one(&tools, "t", "").await,
        ToolOutcome::failed("The tool timed out.")
    );
}

paced!(towers_concurrency_limit_bounds_the_calls_of_all_rounds);
async fn towers_concurrency_limit_bounds_the_calls_of_all_rounds() {
    let log = Log::default();
    let started = log.clone();
    let tools = Toolset::new()
        .tool(tool("t", "", move |NoArguments {}| {
            started.add("start");
            pending::<()>()
        }))
        .layer(ConcurrencyLimitLayer::new(2));
    let calls = [("t", ""), ("t", ""), ("t", "")];
    let mut first = tokio_test::task::spawn(tools.clone().oneshot(round(&calls)).await.unwrap());
    let mut second = tokio_test::task::spawn(tools.clone().oneshot(round(&calls)).await.unwrap());
    assert_pending!(polled!(first.poll_next()));
    assert_pending!(polled!(second.poll_next()));
    assert_eq!(log.count("start"), 2);
    // The permits go with the calls that hold them.
    drop(first);
    assert!(second.is_woken());
    assert_pending!(polled!(second.poll_next()));
    assert_eq!(log.count("start"), 4);
}

paced!(towers_buffer_is_a_layer_too);
async fn towers_buffer_is_a_layer_too() {
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| async { "ok" }))
        .layer(BufferLayer::<ToolCall>::new(4));
    let all = crate::common::run(&tools, &[("t", ""), ("t", "")]).await;
    assert_eq!(all.len(), 2);
    for settled in all {
        assert_eq!(settled.unwrap().outcome, ToolOutcome::done("ok"));
    }
}

paced!(the_stack_is_called_when_it_is_ready);
async fn the_stack_is_called_when_it_is_ready() {
    // The mock panics when it is called unready.
    let (mock, mut handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    handle.allow(1);
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| async { "ok" }))
        .layer(layer_fn(move |_: BoxTool| mock.clone()));
    let calls = [("t", ""), ("t", "")];
    let mut outcomes = tokio_test::task::spawn(tools.oneshot(round(&calls)).await.unwrap());
    assert_pending!(polled!(outcomes.poll_next()));
    let (_, first) = handle.next_request().await.unwrap();
    first.send_response(ToolOutcome::done("first"));
    let settled = crate::common::settled(
        assert_ready!(polled!(outcomes.poll_next()))
            .unwrap()
            .unwrap(),
    );
    assert_eq!(
        (settled.index, settled.outcome),
        (0, ToolOutcome::done("first"))
    );
    assert_pending!(polled!(outcomes.poll_next()));
    handle.allow(1);
    assert!(outcomes.is_woken());
    assert_pending!(polled!(outcomes.poll_next()));
    let (_, second) = handle.next_request().await.unwrap();
    second.send_error("broken");
    let settled = crate::common::settled(
        assert_ready!(polled!(outcomes.poll_next()))
            .unwrap()
            .unwrap(),
    );
    assert_eq!(
        (settled.index, settled.outcome),
        (1, ToolOutcome::failed("The tool failed."))
    );
}

/// Fails, or panics, when it is asked whether it is ready.
#[derive(Clone)]
struct Broken {
    panics: bool,
}

impl Service<ToolCall> for Broken {
    type Response = ToolOutcome;
    type Error = tower::BoxError;
    type Future = std::future::Ready<Result<ToolOutcome, tower::BoxError>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        assert!(!self.panics, "secret");
        std::task::Poll::Ready(Err("gone".into()))
    }

    fn call(&mut self, _: ToolCall) -> Self::Future {
        panic!("it was not ready")
    }
}

paced!(a_stack_that_fails_before_it_is_called_fails_each_call);
async fn a_stack_that_fails_before_it_is_called_fails_each_call() {
    for (panics, told) in [
        (false, "The tool failed."),
        (true, "The tool failed unexpectedly."),
    ] {
        let tools = Toolset::new()
            .tool(tool("t", "", |NoArguments {}| async { "ok" }))
            .layer(layer_fn(move |_: BoxTool| Broken { panics }));
        let all = crate::common::run(&tools, &[("t", ""), ("t", "")]).await;
        let all: Vec<_> = all.into_iter().map(|item| item.unwrap().outcome).collect();
        assert_eq!(all, vec![ToolOutcome::failed(told); 2]);
    }
}

paced!(a_layered_tool_is_a_service_of_its_own);
async fn a_layered_tool_is_a_service_of_its_own() {
    let log = Log::default();
    let mut tool = number(&log).layer(note("A", &log));
    let call = ToolCall::new(crate::common::part(0, "t", r#"{"n":1}"#), Context::new());
    let outcome = tool.ready().await.unwrap().call(call).await.unwrap();
    assert_eq!(outcome, ToolOutcome::done("1"));
    assert_eq!(
        log.lines(),
        ["A before call-0", "ran 1", "A after call-0: Done"]
    );
}

paced!(sixteen_layers_are_one_type);
async fn sixteen_layers_are_one_type() {
    let log = Log::default();
    let mut tools = Toolset::new().tool(tool("t", "", |NoArguments {}| async { "ok" }));
    for _ in 0..16 {
        tools = tools.layer(note("n", &log));
    }
    assert_eq!(text(&tools, "t", "").await, "ok");
    assert_eq!(log.lines().len(), 32);
}
