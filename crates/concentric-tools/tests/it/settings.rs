//! Every number and length of time that tools are set up with, at zero, one and its maximum.

use crate::common::{Log, one, pace, paced, round_in, run, tool};
use concentric_core::{
    AgentLayer, Answer, BoxModel, ChatRequest, ChatResponse, Context, CustomEvent, Event,
    FinishReason, Outcome, ToolStatus, Turn, Usage, agent::ToolSource,
};
use concentric_tools::{
    NoArguments, RetryTool, Tool, Toolset, agent_tool,
    output::{VALUE_FOLLOWS, output},
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::task::yield_now;
use tower::{Layer, ServiceExt, retry::RetryLayer, service_fn};

const NANOSECOND: Duration = Duration::from_nanos(1);

/// Ready at once, at every pace.
fn quick() -> Tool {
    concentric_tools::tool("t", "", |NoArguments {}| async { "seen" })
}

fn a_tick_later() -> Tool {
    tool("t", "", |NoArguments {}| async {
        yield_now().await;
        "seen"
    })
}

fn statuses(answer: &Answer) -> Vec<ToolStatus> {
    let turns = answer.transcript().unwrap().iter();
    let results = turns.flat_map(Turn::results);
    results.map(|result| result.outcome.status).collect()
}

// ---- one call ----

paced!(paused a_timeout_of_zero_ends_every_call_that_waits);
async fn a_timeout_of_zero_ends_every_call_that_waits() {
    use ToolStatus::{Done, Unknown};
    for (limit, later, never) in [
        (Duration::ZERO, Unknown, Some(Unknown)),
        (NANOSECOND, Done, Some(Unknown)),
        (Duration::MAX, Done, None),
    ] {
        let status = |tool: Tool| async move {
            let tools = Toolset::new().tool(tool.timeout(limit));
            one(&tools, "t", "").await.status
        };
        assert_eq!(status(quick()).await, Done, "{limit:?}");
        assert_eq!(status(a_tick_later()).await, later, "{limit:?}");
        let hangs = tool("t", "", |NoArguments {}| pending::<()>());
        let hour = Duration::from_secs(60 * 60);
        let ended = tokio::time::timeout(hour, status(hangs)).await.ok();
        assert_eq!(ended, never, "{limit:?}");
    }
}

paced!(a_result_limit_of_zero_leaves_the_marker);
async fn a_result_limit_of_zero_leaves_the_marker() {
    let long = || tool("t", "", |NoArguments {}| async { "abc" });
    const MARKER: &str = "\n[... cut here: the whole result has 3 bytes ...]\n";
    for (limit, expected) in [
        (0, MARKER.to_owned()),
        (1, format!("a{MARKER}")),
        (usize::MAX, "abc".to_owned()),
    ] {
        let tools = Toolset::new().tool(long().max_result_bytes(limit));
        assert_eq!(crate::common::text(&tools, "t", "").await, expected);
    }
    let empty = tool("t", "", |NoArguments {}| async { "" }).max_result_bytes(0);
    assert_eq!(
        crate::common::text(&Toolset::new().tool(empty), "t", "").await,
        ""
    );
}

paced!(an_argument_limit_of_zero_refuses_every_object);
async fn an_argument_limit_of_zero_refuses_every_object() {
    for (limit, expected) in [
        (0, ToolStatus::Failed),
        (1, ToolStatus::Failed),
        (usize::MAX, ToolStatus::Done),
    ] {
        for tool in [quick(), a_tick_later()] {
            let tools = Toolset::new().tool(tool.max_argument_bytes(limit));
            assert_eq!(one(&tools, "t", "{}").await.status, expected, "{limit}");
        }
    }
}

// ---- the calls of a run and of a round ----

paced!(a_call_limit_of_zero_refuses_every_call);
async fn a_call_limit_of_zero_refuses_every_call() {
    for (limit, ran) in [(0, 0), (1, 1), (u32::MAX, 3)] {
        for tool in [quick(), a_tick_later()] {
            let tools = Toolset::new().tool(tool.max_calls(limit));
            let script = vec![vec![("t", "{}"), ("t", "{}")], vec![("t", "{}")]];
            let answer = crate::common::agent(tools, script).await.unwrap();
            assert_eq!(answer.finish.outcome, Outcome::Completed);
            let statuses = statuses(&answer);
            assert_eq!(statuses.len(), 3);
            let done = statuses.iter().filter(|it| **it == ToolStatus::Done);
            assert_eq!(done.count(), ran, "{limit}");
        }
    }
}

paced!(a_round_limit_of_zero_refuses_every_call);
async fn a_round_limit_of_zero_refuses_every_call() {
    for (limit, ran) in [(0, 0), (1, 2), (u32::MAX, 3)] {
        for tool in [quick(), a_tick_later()] {
            let tools = Toolset::new().tool(tool).max_calls_per_round(limit);
            let script = vec![vec![("t", "{}"), ("t", "{}")], vec![("t", "{}")]];
            let answer = crate::common::agent(tools, script).await.unwrap();
            assert_eq!(answer.finish.outcome, Outcome::Completed);
            let statuses = statuses(&answer);
            assert_eq!(statuses.len(), 3);
            let done = statuses.iter().filter(|it| **it == ToolStatus::Done);
            assert_eq!(done.count(), ran, "{limit}");
        }
    }
}

paced!(no_parallel_calls_means_one_at_a_time);
async fn no_parallel_calls_means_one_at_a_time() {
    for (limit, most) in [(0, 1), (1, 1), (2, 2), (usize::MAX, 5)] {
        let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (running, highest) = (Arc::clone(&now), Arc::clone(&peak));
        let counted = tool("t", "", move |NoArguments {}| {
            let (running, highest) = (Arc::clone(&running), Arc::clone(&highest));
            async move {
                let count = running.fetch_add(1, Ordering::SeqCst) + 1;
                highest.fetch_max(count, Ordering::SeqCst);
                for _ in 0..5 {
                    yield_now().await;
                }
                running.fetch_sub(1, Ordering::SeqCst);
            }
        });
        let tools = Toolset::new().tool(counted).max_parallel(limit);
        let all = run(&tools, &[("t", "{}"); 5]).await;
        assert!(
            all.iter()
                .all(|it| it.as_ref().unwrap().outcome.status == ToolStatus::Done)
        );
        assert_eq!(peak.load(Ordering::SeqCst), most, "{limit}");
    }
}

// ---- agents that are tools ----

#[test]
fn a_depth_of_zero_counts_as_one() {
    let root = Context::new();
    let inner = root.child().build();
    let contexts = [inner.child().build(), inner, root];
    for (depth, offered) in [
        (0, [false, false, true]),
        (1, [false, false, true]),
        (2, [false, true, true]),
        (usize::MAX, [true, true, true]),
    ] {
        let agent = agent_tool("t", "", answers(0, &Log::default())).max_depth(depth);
        let tools = Toolset::new().tool(agent);
        let offers = contexts.each_ref().map(|it| tools.offers("t", it));
        assert_eq!(offers, offered, "{depth}");
    }
}

// ---- attempts ----

/// A tool whose function fails `failures` times.
fn fails(failures: usize, log: &Log) -> Tool {
    let log = log.clone();
    tool("t", "", move |NoArguments {}| {
        let log = log.clone();
        async move {
            yield_now().await;
            let before = log.lines().len();
            log.add("ran");
            match before < failures {
                true => Err(std::io::Error::other("broken")),
                false => Ok("seen"),
            }
        }
    })
    .read_only()
}

async fn retried(policy: RetryTool, tool: Tool, context: &Context) -> ToolStatus {
    let tools = Toolset::new().tool(tool).layer(RetryLayer::new(policy));
    let outcomes = tools.oneshot(round_in(context, &[("t", "{}")])).await;
    let mut all: Vec<_> = outcomes.unwrap().collect().await;
    crate::common::settled(all.remove(0).unwrap())
        .outcome
        .status
}

paced!(paused zero_attempts_are_one);
async fn zero_attempts_are_one() {
    use ToolStatus::{Done, Failed};
    // More failures than the pause can double.
    const MANY: usize = 70;
    for (attempts, ran, status) in [(0, 1, Failed), (1, 1, Failed), (u32::MAX, MANY + 1, Done)] {
        let log = Log::default();
        let policy = RetryTool::new(attempts);
        let context = Context::new();
        assert_eq!(retried(policy, fails(MANY, &log), &context).await, status);
        assert_eq!(log.count("ran"), ran, "{attempts}");
    }
}

paced!(paused a_backoff_may_be_any_duration);
async fn a_backoff_may_be_any_duration() {
    let any = [Duration::ZERO, NANOSECOND, Duration::MAX];
    for (first, longest) in any.iter().flat_map(|a| any.map(|b| (*a, b))) {
        let waits_forever = first == Duration::MAX && longest == Duration::MAX;
        let (log, hour) = (Log::default(), Duration::from_secs(60 * 60));
        let policy = || RetryTool::new(3).backoff(first, longest);
        let context = Context::new();
        let run = retried(policy(), fails(2, &log), &context);
        let status = tokio::time::timeout(hour, run).await.ok();
        match waits_forever {
            true => assert_eq!((status, log.count("ran")), (None, 1)),
            false => assert_eq!((status, log.count("ran")), (Some(ToolStatus::Done), 3)),
        }
        // With a deadline, no attempt follows that it leaves no time for.
        let (log, deadline) = (Log::default(), SystemTime::now() + hour);
        let context = Context::builder().deadline(deadline).build();
        let status = retried(policy(), fails(2, &log), &context).await;
        match waits_forever {
            true => assert_eq!((status, log.count("ran")), (ToolStatus::Failed, 1)),
            false => assert_eq!((status, log.count("ran")), (ToolStatus::Done, 3)),
        }
    }
}

// ---- typed answers ----

/// A model whose first `wrong` answers are no number.
fn answers(wrong: usize, log: &Log) -> BoxModel {
    let log = log.clone();
    BoxModel::new(service_fn(move |request: ChatRequest| {
        let text = match log.lines().len() < wrong {
            true => "no",
            false => "1",
        };
        log.add("called");
        async move {
            pace().pass(&request.context).await;
            let finish = Event::finish(FinishReason::Stop, Usage::new(1, 1));
            let events = [Ok(Event::text(text)), Ok(finish)];
            Ok::<_, concentric_core::Error>(ChatResponse::new(stream::iter(events)))
        }
    }))
}

paced!(zero_tries_fail_with_the_first_answer);
async fn zero_tries_fail_with_the_first_answer() {
    for separately in [false, true] {
        for (tries, calls, value) in [(0, 1, None), (1, 2, None), (u32::MAX, 4, Some(1))] {
            let log = Log::default();
            let number = output::<u8>("number").tries(tries);
            // The first answer is not asked for the value.
            let (number, before) = match separately {
                true => (number.separately(), 1),
                false => (number, 0),
            };
            let inner = number.layer(answers(3 + before, &log));
            let agent = AgentLayer::new(Toolset::new())
                .gate(number.gate())
                .layer(inner);
            let response = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
            let answer = response.collect().await;
            let read = answer.ok().map(|answer| number.of_answer(&answer).unwrap());
            assert_eq!(
                (read, log.count("called")),
                (value, calls + before),
                "{tries}"
            );
        }
    }
}

#[test]
fn partial_values_read_at_most_the_bytes_set() {
    for (bytes, shown) in [
        (0, None),
        (1, None),
        (2, Some(json!({}))),
        (usize::MAX, Some(json!({}))),
    ] {
        let mut partials = output::<Value>("any").partials::<Value>().max_bytes(bytes);
        let follows = CustomEvent::new(VALUE_FOLLOWS, json!({ "schema": "any" }));
        partials.push(&Event::Custom(Box::new(follows)));
        assert_eq!(partials.push(&Event::text("{}")), shown, "{bytes}");
    }
}
