//! Calls that are given up while they run: their outcome is unknown, unless the tool may run again.

use crate::common::{Log, ask, one, pace, paced, tool};
use crate::kit::Memory;
use concentric_core::{
    Annotations, Answer, BoxModel, BoxTool, ChatRequest, Error, ErrorKind, InterruptHub, Outcome,
    Reply, RunOverrides, ToolCall, ToolOutcome, ToolSpec, ToolStatus,
    capability::{Declares, Encloses, StoredRun},
    interrupt,
    machine::RunState,
};
use concentric_layers::{NextTool, tool_from_fn};
use concentric_tools::{
    Approval, ApprovalTokens, NoArguments, RetryTool, ScopedExt, Tool, ToolError, Toolset,
    agent_tool, blocking_tool, token::TokenKeys,
};
use futures_util::StreamExt;
use std::{
    future::pending,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};
use tokio::time::{sleep, timeout};
use tower::{
    ServiceExt, layer::layer_fn, limit::ConcurrencyLimitLayer, load_shed::LoadShedLayer,
    retry::RetryLayer, service_fn, timeout::TimeoutLayer,
};

const SECOND: Duration = Duration::from_secs(1);
const TEXT: &str = "This call was started earlier and its outcome is unknown. It was not retried.";

/// What a tool declares.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    Once,
    ReadOnly,
    Idempotent,
    Keyed,
}

const CLASSES: [Class; 4] = [
    Class::Once,
    Class::ReadOnly,
    Class::Idempotent,
    Class::Keyed,
];

fn of_class(tool: Tool, class: Class) -> Tool {
    match class {
        Class::Once => tool,
        Class::ReadOnly => tool.read_only(),
        Class::Idempotent => tool.annotations(Annotations::idempotent()),
        Class::Keyed => tool.keyed(),
    }
}

/// A tool that acts, and then waits for ever.
fn hangs(log: &Log) -> Tool {
    let log = log.clone();
    tool("t", "", move |NoArguments {}| {
        let log = log.clone();
        async move {
            log.add("acted");
            pending::<()>().await;
        }
    })
}

/// The same as a service, which is called a tick after it is made.
fn hangs_as_service(log: &Log) -> Tool {
    let log = log.clone();
    let spec = ToolSpec::new("t", "", serde_json::json!({"type": "object"}));
    Tool::new(
        spec,
        service_fn(move |call: ToolCall| {
            let log = log.clone();
            async move {
                tokio::task::yield_now().await;
                pace().pass(&call.context).await;
                log.add("acted");
                pending::<Result<ToolOutcome, Error>>().await
            }
        }),
    )
}

fn panics_later(log: &Log) -> Tool {
    let log = log.clone();
    tool("t", "", move |NoArguments {}| {
        let log = log.clone();
        async move {
            log.add("acted");
            tokio::task::yield_now().await;
            panic!("secret") as ()
        }
    })
}

/// A function that itself gives up what it waits for.
fn gives_up_inside(log: &Log) -> Tool {
    let log = log.clone();
    tool("t", "", move |NoArguments {}| {
        let log = log.clone();
        async move {
            log.add("acted");
            timeout(SECOND, pending::<()>()).await?;
            Ok::<_, ToolError>(())
        }
    })
}

/// A layer that gives up, and says so in an outcome of its own.
async fn answers_for(call: ToolCall, mut next: NextTool) -> Result<ToolOutcome, Error> {
    match timeout(SECOND, next.run(call)).await {
        Ok(outcome) => outcome,
        Err(_) => Ok(ToolOutcome::failed("too slow")),
    }
}

type Way = (&'static str, fn(&Log, Class) -> Toolset);

const WAYS: &[Way] = &[
    ("the tool's own limit", |log, class| {
        Toolset::new().tool(of_class(hangs(log), class).timeout(SECOND))
    }),
    ("the own limit of a service", |log, class| {
        Toolset::new().tool(of_class(hangs_as_service(log), class).timeout(SECOND))
    }),
    ("a layer of the toolset", |log, class| {
        Toolset::new()
            .tool(of_class(hangs(log), class))
            .layer(TimeoutLayer::new(SECOND))
    }),
    ("a layer of the toolset around a service", |log, class| {
        Toolset::new()
            .tool(of_class(hangs_as_service(log), class))
            .layer(TimeoutLayer::new(SECOND))
    }),
    ("a layer of the tool", |log, class| {
        Toolset::new().tool(of_class(hangs(log), class).layer(TimeoutLayer::new(SECOND)))
    }),
    ("a scoped layer", |log, class| {
        Toolset::new()
            .tool(of_class(hangs(log), class))
            .layer(TimeoutLayer::new(SECOND).scoped("t"))
    }),
    ("a layer that answers", |log, class| {
        Toolset::new()
            .tool(of_class(hangs(log), class))
            .layer(tool_from_fn(answers_for))
    }),
    ("a panic", |log, class| {
        Toolset::new().tool(of_class(panics_later(log), class))
    }),
    ("a panic below a layer", |log, class| {
        Toolset::new()
            .tool(of_class(panics_later(log), class))
            .layer(TimeoutLayer::new(SECOND))
    }),
    ("an error of the function by `?`", |log, class| {
        Toolset::new().tool(of_class(gives_up_inside(log), class))
    }),
];

paced!(paused a_call_given_up_is_unknown_unless_it_may_run_again);
async fn a_call_given_up_is_unknown_unless_it_may_run_again() {
    for (way, tools) in WAYS {
        for class in CLASSES {
            let log = Log::default();
            let outcome = one(&tools(&log, class), "t", "").await;
            assert_eq!(log.count("acted"), 1, "{way}, {class:?}");
            let text = outcome.content.text().into_owned();
            let is_unknown = class == Class::Once;
            let expected = match is_unknown {
                true => ToolStatus::Unknown,
                false => ToolStatus::Failed,
            };
            assert_eq!(outcome.status, expected, "{way}, {class:?}: {text}");
            assert_eq!(
                text.starts_with(TEXT),
                is_unknown,
                "{way}, {class:?}: {text}"
            );
            assert!(!text.contains("secret"), "{text}");
        }
    }
}

paced!(paused a_layer_of_the_run_that_gives_up_leaves_it_unknown);
async fn a_layer_of_the_run_that_gives_up_leaves_it_unknown() {
    let log = Log::default();
    let own = RunOverrides::new().tool_layer(TimeoutLayer::new(SECOND));
    let request = ChatRequest::user("hi").with_overrides(own);
    let tools = Toolset::new().tool(hangs(&log));
    let answer = ask(request, tools, vec![vec![("t", "")]]).await.unwrap();
    assert_eq!(statuses(&answer), [ToolStatus::Unknown]);
}

paced!(paused a_call_that_never_started_has_failed);
async fn a_call_that_never_started_has_failed() {
    let log = Log::default();
    let shed = Toolset::new()
        .tool(hangs(&log))
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(0));
    let before = Toolset::new()
        .tool(hangs(&log))
        .layer(TimeoutLayer::new(SECOND))
        .layer(tool_from_fn(async |call: ToolCall, mut next: NextTool| {
            sleep(SECOND * 2).await;
            next.run(call).await
        }));
    for (tools, told) in [
        (shed, "The tool is overloaded. Try again later."),
        (before, "The tool timed out."),
    ] {
        assert_eq!(one(&tools, "t", "").await, ToolOutcome::failed(told));
    }
    assert!(log.lines().is_empty());
}

paced!(paused a_tool_that_failed_before_the_layer_gave_up_has_failed);
async fn a_tool_that_failed_before_the_layer_gave_up_has_failed() {
    let fails = tool("t", "", |NoArguments {}| async {
        Err::<(), _>(ToolError::new("no"))
    });
    let tools = Toolset::new()
        .tool(fails)
        .layer(TimeoutLayer::new(SECOND))
        .layer(tool_from_fn(async |call: ToolCall, mut next: NextTool| {
            let outcome = next.run(call).await;
            sleep(SECOND * 2).await;
            outcome
        }));
    assert_eq!(one(&tools, "t", "").await.status, ToolStatus::Failed);
}

/// Waits until `log` has `line`.
async fn has(log: &Log, line: &str) {
    while log.count(line) == 0 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_blocking_call_that_waits_for_a_thread_fails_and_never_runs() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let log = Log::default();
    let (end, ended) = mpsc::channel::<()>();
    let ended = Mutex::new(ended);
    let (first, second) = (log.clone(), log.clone());
    let tools = Toolset::new()
        .tool(blocking_tool("first", "", move |NoArguments {}| {
            first.add("first");
            let _ = ended.lock().unwrap().recv();
        }))
        .tool(
            blocking_tool("second", "", move |NoArguments {}| second.add("second"))
                .timeout(Duration::ZERO),
        );
    runtime.block_on(async {
        let (busy, tools) = (tools.clone(), tools);
        let first = tokio::spawn(async move { one(&busy, "first", "").await.status });
        has(&log, "first").await;
        let outcome = one(&tools, "second", "").await;
        assert_eq!(
            outcome,
            ToolOutcome::failed("The tool timed out after 0ns.")
        );
        drop(end);
        assert_eq!(first.await.unwrap(), ToolStatus::Done);
        // What waited for the thread would run now.
        tokio::task::spawn_blocking(|| ()).await.unwrap();
    });
    assert_eq!(log.lines(), ["first"]);
}

paced!(a_blocking_call_that_runs_on_is_unknown);
async fn a_blocking_call_that_runs_on_is_unknown() {
    let log = Log::default();
    let (begun, (end, ended)) = (log.clone(), mpsc::channel::<()>());
    let ended = Mutex::new(ended);
    let tools = Toolset::new()
        .tool(blocking_tool("t", "", move |NoArguments {}| {
            begun.add("begun");
            let _ = ended.lock().unwrap().recv();
        }))
        .layer(layer_fn(move |inner: BoxTool| {
            let log = log.clone();
            service_fn(move |call: ToolCall| {
                let (inner, log) = (inner.clone(), log.clone());
                async move {
                    let mut call = Box::pin(inner.oneshot(call));
                    tokio::select! {
                        outcome = &mut call => outcome,
                        () = has(&log, "begun") => Err(Error::new(ErrorKind::Other, "no patience")),
                    }
                }
            })
        }));
    assert_eq!(one(&tools, "t", "").await.status, ToolStatus::Unknown);
    drop(end);
}

// ---- the ledger, and who knows ----

fn agent(tools: &Toolset) -> BoxModel {
    crate::kit::Model::new(vec![vec![("t", "{}")]]).agent(tools)
}

async fn ran(agent: BoxModel, request: ChatRequest) -> Answer {
    agent
        .oneshot(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap()
}

fn statuses(answer: &Answer) -> Vec<ToolStatus> {
    let turns = answer.transcript().unwrap().iter();
    turns
        .flat_map(|turn| turn.results().iter().map(|result| result.outcome.status))
        .collect()
}

/// Ways to give up a call whose effect is recorded.
fn recorded(ledger: &Memory, log: &Log) -> [Toolset; 3] {
    [
        Toolset::new().tool(hangs(log).timeout(SECOND)),
        Toolset::new()
            .tool(hangs(log))
            .layer(TimeoutLayer::new(SECOND)),
        Toolset::new().tool(panics_later(log)),
    ]
    .map(|tools| tools.ledger(ledger.clone()))
}

paced!(paused with_a_ledger_a_person_is_asked_what_it_did);
async fn with_a_ledger_a_person_is_asked_what_it_did() {
    let ways = (0..3).flat_map(|way| [(way, true), (way, false)]);
    for (way, answers) in ways {
        let (ledger, log) = (Memory::new(), Log::default());
        let tools = &recorded(&ledger, &log)[way];
        let agent = agent(tools);
        let asked = ran(agent.clone(), ChatRequest::user("hi")).await;
        assert_eq!(asked.finish.outcome, Outcome::Interrupted);
        assert_eq!(
            asked.finish.interrupts()[0].reason,
            interrupt::UNKNOWN_EFFECT
        );
        // It stays begun.
        assert_eq!(ledger.effects(), [None]);
        let state: RunState = crate::kit::written(asked.finish.state.as_deref().unwrap());
        let id = asked.finish.interrupts()[0].id.clone();
        let reply = match answers {
            true => Reply::answer(id, serde_json::json!("paid")),
            false => Reply::cancel(id),
        };
        let after = ran(agent, ChatRequest::resume(state, vec![reply])).await;
        let recorded = ledger.effects()[0].as_ref().unwrap().status;
        if answers {
            let result = format!("call-0-0: {}", crate::kit::by_person("paid"));
            assert_eq!(crate::common::results(&after), [result]);
            assert_eq!(recorded, ToolStatus::Done, "{way}");
        } else {
            assert_eq!(statuses(&after), [ToolStatus::Unknown]);
            assert_eq!(recorded, ToolStatus::Unknown, "{way}");
        }
        assert_eq!(log.count("acted"), 1);
    }
}

/// Ways to ask people about calls.
const WAYS_TO_ASK: [fn(Toolset, &Memory) -> Toolset; 3] = [
    |tools, _| tools,
    |tools, store| {
        let keys = TokenKeys::new("k", vec![7; 32]).unwrap();
        let tokens = ApprovalTokens::new(keys, "https://agent.example", store.clone());
        tools.gate(Approval::for_tools("other")).tokens(tokens)
    },
    |tools, _| {
        let approval = Approval::for_tools("other");
        tools.gate(approval.live(&InterruptHub::new(), SECOND))
    },
];

paced!(paused a_run_that_nothing_stores_reports_an_unknown_outcome);
async fn a_run_that_nothing_stores_reports_an_unknown_outcome() {
    for (ask, way) in (0..3).flat_map(|ask| (0..3).map(move |way| (ask, way))) {
        for inner in [false, true] {
            let (ledger, log) = (Memory::new(), Log::default());
            let other = tool("other", "", |NoArguments {}| async {});
            let tools = recorded(&ledger, &log)[way].clone().tool(other);
            let mut tools = WAYS_TO_ASK[ask](tools, &ledger);
            if inner {
                // The call of an agent that is a tool.
                let sub = agent_tool("t", "", agent(&tools));
                tools = Toolset::new().tool(sub);
            }
            let mut request = ChatRequest::user("hi");
            request.context.set_stateless_caller();
            let arguments = if inner { r#"{"task":"act"}"# } else { "{}" };
            let agent = crate::kit::Model::new(vec![vec![("t", arguments)]]).agent(&tools);
            let answer = ran(agent, request).await;
            assert_eq!(answer.finish.outcome, Outcome::Completed, "{ask} {way}");
            if !inner {
                assert_eq!(statuses(&answer), [ToolStatus::Unknown], "{ask} {way}");
                let text = crate::common::results(&answer).remove(0);
                assert!(text.contains(TEXT), "{text}");
            }
            // In the ledger it stays begun, which is unknown as well.
            assert_eq!(ledger.effects(), [None]);
            assert_eq!(log.count("acted"), 1);
        }
    }
}

paced!(paused a_layer_that_stores_the_run_has_a_person_asked);
async fn a_layer_that_stores_the_run_has_a_person_asked() {
    struct Stores;
    impl Declares for Stores {
        type Capabilities = Encloses<StoredRun>;
    }
    let (ledger, log) = (Memory::new(), Log::default());
    let agent = agent(&recorded(&ledger, &log)[0]);
    let mut request = ChatRequest::user("hi");
    request.context.set_stateless_caller();
    request.context.enter::<Stores>().unwrap();
    let asked = ran(agent, request).await;
    assert_eq!(asked.finish.outcome, Outcome::Interrupted);
}

paced!(paused without_a_ledger_the_model_reads_that_it_is_unknown);
async fn without_a_ledger_the_model_reads_that_it_is_unknown() {
    let log = Log::default();
    let tools = Toolset::new().tool(hangs(&log).timeout(SECOND));
    let answer = ran(agent(&tools), ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(statuses(&answer), [ToolStatus::Unknown]);
    assert_eq!(log.count("acted"), 1);
}

paced!(a_layer_that_panics_behind_its_tool_loses_no_effect);
async fn a_layer_that_panics_behind_its_tool_loses_no_effect() {
    for ledger in [None, Some(Memory::new())] {
        let log = Log::default();
        let acts = log.clone();
        let pays = tool("t", "", move |NoArguments {}| {
            acts.add("acted");
            async { "paid" }
        });
        let tools = Toolset::new().tool(pays).layer(tool_from_fn(
            async |call: ToolCall, mut next: NextTool| -> Result<ToolOutcome, Error> {
                let outcome = next.run(call).await;
                panic!("{outcome:?}")
            },
        ));
        let expected = match &ledger {
            None => ToolStatus::Unknown,
            Some(_) => ToolStatus::Done,
        };
        let tools = match ledger {
            None => tools,
            Some(ledger) => tools.ledger(ledger),
        };
        let answer = ran(agent(&tools), ChatRequest::user("hi")).await;
        assert_eq!(statuses(&answer), [expected]);
        assert_eq!(log.count("acted"), 1);
    }
}

paced!(paused a_tool_that_can_tell_is_asked_before_people);
async fn a_tool_that_can_tell_is_asked_before_people() {
    for ledger in [None, Some(Memory::new())] {
        for way in 0..2 {
            let log = Log::default();
            let tool = hangs(&log).reconcile(|_| async {
                tokio::task::yield_now().await;
                Some(ToolOutcome::done("it is paid"))
            });
            let mut tools = match way {
                0 => Toolset::new().tool(tool.timeout(SECOND)),
                _ => Toolset::new().tool(tool).layer(TimeoutLayer::new(SECOND)),
            };
            if let Some(ledger) = &ledger {
                tools = tools.ledger(ledger.clone());
            }
            let answer = ran(agent(&tools), ChatRequest::user("hi")).await;
            assert_eq!(statuses(&answer), [ToolStatus::Done]);
            assert_eq!(crate::common::results(&answer), ["call-0-0: it is paid"]);
        }
        if let Some(ledger) = ledger {
            let done = ToolOutcome::done("it is paid");
            assert!(ledger.effects().iter().all(|it| *it == Some(done.clone())));
        }
    }
}

paced!(paused a_ledger_knows_better_than_a_layer_that_gave_up_late);
async fn a_ledger_knows_better_than_a_layer_that_gave_up_late() {
    let ledger = Memory::new();
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| async { "paid" }))
        .ledger(ledger.clone())
        .layer(TimeoutLayer::new(SECOND))
        .layer(tool_from_fn(async |call: ToolCall, mut next: NextTool| {
            let outcome = next.run(call).await;
            sleep(SECOND * 2).await;
            outcome
        }));
    assert_eq!(one(&tools, "t", "").await, ToolOutcome::done("paid"));
}

paced!(paused a_fatal_timeout_leaves_the_effect_begun);
async fn a_fatal_timeout_leaves_the_effect_begun() {
    let (ledger, log) = (Memory::new(), Log::default());
    let tools = Toolset::new()
        .tool(hangs(&log).timeout(SECOND).timeout_is_fatal())
        .ledger(ledger.clone());
    let error = crate::common::agent(tools, vec![vec![("t", "")]])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(!error.is_retryable());
    assert_eq!(ledger.effects(), [None]);
}

paced!(paused what_may_run_again_is_recorded_as_failed);
async fn what_may_run_again_is_recorded_as_failed() {
    let (ledger, log) = (Memory::new(), Log::default());
    let tools = Toolset::new()
        .tool(hangs(&log).keyed().timeout(SECOND))
        .ledger(ledger.clone());
    assert_eq!(one(&tools, "t", "").await.status, ToolStatus::Failed);
    let status = |it: &Option<ToolOutcome>| it.as_ref().map(|it| it.status);
    assert_eq!(
        ledger.effects().iter().map(status).collect::<Vec<_>>(),
        [Some(ToolStatus::Failed)]
    );
}

paced!(paused no_retry_follows_an_unknown_outcome);
async fn no_retry_follows_an_unknown_outcome() {
    for class in [Class::Once, Class::Keyed] {
        let count = Arc::new(Mutex::new(0));
        let counts = count.clone();
        let unknown = tool("t", "", move |NoArguments {}| {
            *counts.lock().unwrap() += 1;
            async { ToolOutcome::unknown("perhaps") }
        });
        let tools = Toolset::new()
            .tool(of_class(unknown, class))
            .layer(RetryLayer::new(RetryTool::new(3).failures_too()));
        assert_eq!(one(&tools, "t", "").await.status, ToolStatus::Unknown);
        assert_eq!(*count.lock().unwrap(), 1);
    }
    let log = Log::default();
    let tools = Toolset::new()
        .tool(hangs(&log).timeout(SECOND))
        .layer(RetryLayer::new(RetryTool::new(3).failures_too()));
    assert_eq!(one(&tools, "t", "").await.status, ToolStatus::Unknown);
    assert_eq!(log.count("acted"), 1);
}

paced!(paused siblings_of_a_call_given_up_keep_their_outcomes);
async fn siblings_of_a_call_given_up_keep_their_outcomes() {
    let (ledger, log) = (Memory::new(), Log::default());
    let tools = Toolset::new()
        .tool(hangs(&log).timeout(SECOND))
        .tool(tool("ok", "", |NoArguments {}| async { "ok" }).read_only())
        .ledger(ledger);
    let round = crate::common::round(&[("t", ""), ("ok", ""), ("ok", "")]);
    let events: Vec<_> = tools.oneshot(round).await.unwrap().collect().await;
    let settled = events
        .iter()
        .filter(|event| matches!(event, Ok(concentric_core::RoundEvent::Settled { .. })));
    assert_eq!((events.len(), settled.count()), (3, 2));
}
