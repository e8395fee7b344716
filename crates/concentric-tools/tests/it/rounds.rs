//! Which calls of a round run beside each other, which never start, and how each is settled.

use crate::common::{
    Log, hook, note, one, pace, paced, polled, round, round_in, tool, tool_with_context,
};
use concentric_core::{
    AgentLayer, CancelReason, ChatRequest, Context, Error, ErrorKind, Outcome, Refusal, RoundEvent,
    ToolCall, ToolOutcome, ToolRound, ToolStatus, agent::WithTools,
};
use concentric_layers::{NextTool, tool_from_fn};
use concentric_test::Pace;
use concentric_tools::{NoArguments, Tool, Toolset, blocking_tool};
use futures_util::{Stream, StreamExt};
use proptest::{prelude::*, test_runner::FileFailurePersistence};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::oneshot;
use tokio_test::{assert_pending, assert_ready};
use tower::{Layer, Service, ServiceExt};

#[derive(Deserialize, JsonSchema)]
struct Wait {
    #[serde(default)]
    key: u32,
}

/// Work that waits until the test says so.
#[derive(Clone, Default)]
struct Gates {
    log: Log,
    gates: Arc<Mutex<HashMap<u32, oneshot::Sender<()>>>>,
}

/// Notes when it is dropped.
struct Dropped(Log, u32);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.add(format!("drop {}", self.1));
    }
}

impl Gates {
    fn tool(&self, name: &str) -> Tool {
        let this = self.clone();
        tool(name, "", move |Wait { key }| {
            let this = this.clone();
            async move {
                let (open, gate) = oneshot::channel();
                this.gates.lock().unwrap().insert(key, open);
                this.log.add(format!("start {key}"));
                let _dropped = Dropped(this.log.clone(), key);
                gate.await.unwrap();
                this.log.add(format!("end {key}"));
                key.to_string()
            }
        })
    }

    fn open(&self, key: u32) {
        let gate = self.gates.lock().unwrap().remove(&key);
        gate.expect("it has not started").send(()).unwrap();
    }
}

fn settled(item: Option<Result<RoundEvent, Error>>) -> (usize, ToolStatus) {
    let settled = crate::common::settled(item.unwrap().unwrap());
    (settled.index, settled.outcome.status)
}

paced!(c008_parallel_calls_that_end_in_reverse_have_their_results_in_call_order);
async fn c008_parallel_calls_that_end_in_reverse_have_their_results_in_call_order() {
    let gates = Gates::default();
    let tools = Toolset::new().tool(gates.tool("wait"));
    let script = vec![vec![("wait", r#"{"key":0}"#), ("wait", r#"{"key":1}"#)]];
    let mut run = tokio_test::task::spawn(crate::common::agent(tools, script));
    assert_pending!(polled!(run.poll()));
    assert_eq!(gates.log.lines(), ["start 0", "start 1"]);
    gates.open(1);
    assert_pending!(polled!(run.poll()));
    gates.open(0);
    let answer = assert_ready!(polled!(run.poll())).unwrap();
    assert_eq!(
        crate::common::results(&answer),
        ["call-0-0: 0", "call-0-1: 1"]
    );
}

paced!(outcomes_come_as_they_are_known);
async fn outcomes_come_as_they_are_known() {
    let gates = Gates::default();
    let mut tools = Toolset::new().tool(gates.tool("wait"));
    let calls = [("wait", r#"{"key":0}"#), ("wait", r#"{"key":1}"#)];
    let mut outcomes = tokio_test::task::spawn(
        tools
            .ready()
            .await
            .unwrap()
            .oneshot(round(&calls))
            .await
            .unwrap(),
    );
    assert_eq!(outcomes.size_hint(), (1, Some(2)));
    assert_pending!(polled!(outcomes.poll_next()));
    gates.open(1);
    assert!(outcomes.is_woken());
    assert_eq!(
        settled(assert_ready!(polled!(outcomes.poll_next()))),
        (1, ToolStatus::Done)
    );
    assert_pending!(polled!(outcomes.poll_next()));
    gates.open(0);
    assert_eq!(
        settled(assert_ready!(polled!(outcomes.poll_next()))),
        (0, ToolStatus::Done)
    );
    assert!(assert_ready!(polled!(outcomes.poll_next())).is_none());
    assert_eq!(outcomes.size_hint(), (0, Some(0)));
}

paced!(c009_an_exclusive_call_runs_after_those_before_it_and_before_those_after_it);
async fn c009_an_exclusive_call_runs_after_those_before_it_and_before_those_after_it() {
    let gates = Gates::default();
    let tools = Toolset::new()
        .tool(gates.tool("read"))
        .tool(gates.tool("write").exclusive());
    let calls = [
        ("read", r#"{"key":0}"#),
        ("write", r#"{"key":1}"#),
        ("read", r#"{"key":2}"#),
    ];
    let mut outcomes = tokio_test::task::spawn(tools.oneshot(round(&calls)).await.unwrap());
    assert_pending!(polled!(outcomes.poll_next()));
    assert_eq!(gates.log.lines(), ["start 0"]);
    gates.open(0);
    assert_eq!(settled(assert_ready!(polled!(outcomes.poll_next()))).0, 0);
    assert_pending!(polled!(outcomes.poll_next()));
    assert_eq!(gates.log.count("start 2"), 0);
    gates.open(1);
    assert_eq!(settled(assert_ready!(polled!(outcomes.poll_next()))).0, 1);
    assert_pending!(polled!(outcomes.poll_next()));
    gates.open(2);
    assert_eq!(settled(assert_ready!(polled!(outcomes.poll_next()))).0, 2);
}

paced!(no_more_calls_run_at_once_than_may);
async fn no_more_calls_run_at_once_than_may() {
    let gates = Gates::default();
    let tools = Toolset::new().tool(gates.tool("wait")).max_parallel(2);
    let calls = [
        ("wait", r#"{"key":0}"#),
        ("wait", r#"{"key":1}"#),
        ("wait", r#"{"key":2}"#),
    ];
    let mut outcomes = tokio_test::task::spawn(tools.oneshot(round(&calls)).await.unwrap());
    assert_pending!(polled!(outcomes.poll_next()));
    assert_eq!(gates.log.lines(), ["start 0", "start 1"]);
    gates.open(1);
    assert_eq!(settled(assert_ready!(polled!(outcomes.poll_next()))).0, 1);
    assert_pending!(polled!(outcomes.poll_next()));
    assert_eq!(gates.log.count("start 2"), 1);
}

paced!(c050_after_a_halt_no_call_starts_and_those_that_run_are_kept);
async fn c050_after_a_halt_no_call_starts_and_those_that_run_are_kept() {
    let gates = Gates::default();
    let tools = Toolset::new()
        .tool(gates.tool("wait"))
        // At every pace before the call behind it has started.
        .tool(concentric_tools::tool("halt", "", |NoArguments {}| async {
            ToolOutcome::done("enough").and_halt("enough")
        }));
    let script = vec![vec![
        ("wait", r#"{"key":0}"#),
        ("halt", ""),
        ("wait", r#"{"key":2}"#),
    ]];
    let mut run = tokio_test::task::spawn(crate::common::agent(tools, script));
    assert_pending!(polled!(run.poll()));
    gates.open(0);
    let answer = assert_ready!(polled!(run.poll())).unwrap();
    assert_eq!(gates.log.count("start 2"), 0);
    assert_eq!(
        crate::common::results(&answer),
        [
            "call-0-0: 0",
            "call-0-1: enough",
            "call-0-2: The run was stopped before the call was started."
        ]
    );
    assert!(matches!(answer.finish.outcome, Outcome::Halted { .. }));
}

paced!(c048_a_layer_halts_the_run_for_calls_that_may_run);
async fn c048_a_layer_halts_the_run_for_calls_that_may_run() {
    let tools = || {
        Toolset::new()
            .tool(tool("t", "", |NoArguments {}| async { "done" }))
            .layer(tool_from_fn(async |_: ToolCall, _: NextTool| {
                Err::<ToolOutcome, _>(Error::halted("enough"))
            }))
    };
    for tools in [tools(), tools().errors_are_fatal()] {
        let halted = Outcome::Halted {
            reason: "enough".into(),
        };
        for (name, ends, said) in [
            ("t", halted, "call-0-0: enough"),
            // No layer sees it.
            ("gone", Outcome::Completed, "call-0-0: There is no"),
        ] {
            let answer = crate::common::agent(tools.clone(), vec![vec![(name, "")]]).await;
            let answer = answer.unwrap();
            assert_eq!(answer.finish.outcome, ends, "{name}");
            let results = crate::common::results(&answer);
            assert!(results.iter().all(|r| r.starts_with(said)), "{results:?}");
        }
    }
}

paced!(c051_after_a_cancel_from_inside_a_hook_no_call_starts);
async fn c051_after_a_cancel_from_inside_a_hook_no_call_starts() {
    // As seen by whoever drives the round: the agent drops it at once.
    let log = Log::default();
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| async { "done" }))
        .layer(note("outer", &log))
        .layer(hook(|call: ToolCall| {
            call.context.cancel(CancelReason::User);
            crate::common::Hook::Call(call)
        }));
    let tools = match pace() {
        Pace::AtOnce => tools,
        // The hook cancels later: those behind its call would have started beside it.
        _ => tools.max_parallel(1),
    };
    let calls = [("t", ""), ("t", ""), ("t", "")];
    let outcomes = tools.clone().oneshot(round(&calls)).await.unwrap();
    let mut all: Vec<_> = outcomes.map(|item| settled(Some(item))).collect().await;
    // Those that never start do not wait for the one that runs.
    all.sort_by_key(|(index, _)| *index);
    assert_eq!(
        all,
        [
            (0, ToolStatus::Done),
            (1, ToolStatus::Cancelled),
            (2, ToolStatus::Cancelled)
        ]
    );
    // The others never enter the layers.
    assert_eq!(
        log.lines(),
        ["outer before call-0", "outer after call-0: Done"]
    );

    let answer = crate::common::agent(tools, vec![calls.to_vec()])
        .await
        .unwrap();
    assert_eq!(crate::common::results(&answer).len(), 3);
    assert!(matches!(answer.finish.outcome, Outcome::Aborted { .. }));
}

paced!(c052_a_cancel_drops_a_tool_that_ignores_it);
async fn c052_a_cancel_drops_a_tool_that_ignores_it() {
    let gates = Gates::default();
    let tools = Toolset::new().tool(gates.tool("wait"));
    let context = Context::new();
    let script = vec![vec![("wait", r#"{"key":0}"#), ("wait", r#"{"key":1}"#)]];
    let mut run = tokio_test::task::spawn(crate::common::agent_in(context.clone(), tools, script));
    assert_pending!(polled!(run.poll()));
    context.cancel(CancelReason::User);
    assert!(run.is_woken());
    let answer = assert_ready!(polled!(run.poll())).unwrap();
    assert!(matches!(answer.finish.outcome, Outcome::Aborted { .. }));
    assert_eq!(gates.log.count("drop 0"), 1);
    assert_eq!(gates.log.count("drop 1"), 1);
    assert_eq!(crate::common::results(&answer).len(), 2);
}

paced!(dropping_the_stream_drops_every_running_call_at_once);
async fn dropping_the_stream_drops_every_running_call_at_once() {
    let gates = Gates::default();
    let tools = Toolset::new().tool(gates.tool("wait"));
    let calls = [("wait", r#"{"key":0}"#), ("wait", r#"{"key":1}"#)];
    let mut outcomes = tokio_test::task::spawn(tools.oneshot(round(&calls)).await.unwrap());
    assert_pending!(polled!(outcomes.poll_next()));
    drop(outcomes);
    assert_eq!(gates.log.count("drop 0") + gates.log.count("drop 1"), 2);
}

paced!(c040_f027_a_call_of_an_unknown_tool_is_answered_and_its_siblings_run);
async fn c040_f027_a_call_of_an_unknown_tool_is_answered_and_its_siblings_run() {
    let tools = Toolset::new().tool(tool("t", "", |NoArguments {}| async { "ok" }));
    let answer = crate::common::agent(tools, vec![vec![("tt", ""), ("t", "")], vec![("t", "{")]])
        .await
        .unwrap();
    let results = crate::common::results(&answer);
    assert_eq!(
        results[0],
        "call-0-0: There is no tool `tt`. Available tools: t."
    );
    assert_eq!(results[1], "call-0-1: ok");
    assert!(results[2].contains("ends early"), "{results:?}");
    assert_eq!(answer.text(), "done");
}

paced!(a_call_that_the_loop_refused_is_not_run_even_if_the_tool_exists);
async fn a_call_that_the_loop_refused_is_not_run_even_if_the_tool_exists() {
    let tools = Toolset::new().tool(tool("t", "", |NoArguments {}| async { "ran" }).exclusive());
    let mut round = round(&[("t", "")]);
    round.calls[0].state.stage = concentric_core::call::CallStage::Rejected(Refusal::DuplicateId);
    let mut outcomes = tools.oneshot(round).await.unwrap();
    let outcome = crate::common::settled(outcomes.next().await.unwrap().unwrap()).outcome;
    assert_eq!(outcome.status, ToolStatus::Failed);
}

paced!(f026_of_two_calls_with_one_id_none_runs);
async fn f026_of_two_calls_with_one_id_none_runs() {
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let tools = Toolset::new().tool(tool("t", "", move |NoArguments {}| {
        count.fetch_add(1, Ordering::SeqCst);
        async {}
    }));
    let context = Context::new();
    let mut round = round_in(&context, &[("t", ""), ("t", "")]);
    for call in &mut round.calls {
        call.state.stage = concentric_core::call::CallStage::Rejected(Refusal::DuplicateId);
    }
    let all: Vec<_> = tools.oneshot(round).await.unwrap().collect().await;
    assert_eq!((all.len(), ran.load(Ordering::SeqCst)), (2, 0));
}

#[test]
fn a_blocking_call_that_waits_for_a_thread_never_starts_once_it_is_dropped() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let log = Log::default();
    let started = log.clone();
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let tools = Toolset::new().tool(blocking_tool("t", "", move |Wait { key }| {
        started.add(format!("start {key}"));
        let _ = wait.lock().unwrap().recv();
    }));
    runtime.block_on(async {
        let calls = [("t", r#"{"key":0}"#), ("t", r#"{"key":1}"#)];
        let mut outcomes = tokio_test::task::spawn(tools.oneshot(round(&calls)).await.unwrap());
        assert_pending!(polled!(outcomes.poll_next()));
        while log.count("start 0") == 0 {
            tokio::task::yield_now().await;
        }
        drop(outcomes);
        drop(release);
        // Stands behind the call in the queue for the one thread.
        tokio::task::spawn_blocking(|| ()).await.unwrap();
    });
    assert_eq!(log.lines(), ["start 0"]);
}

paced!(a_tool_may_start_calls_of_the_same_set);
async fn a_tool_may_start_calls_of_the_same_set() {
    let inner = Toolset::new().tool(tool("leaf", "", |NoArguments {}| async { "leaf" }));
    let tools = Toolset::new().tool(tool_with_context(
        "tree",
        "",
        move |NoArguments {}, context: Context| {
            let inner = inner.clone();
            async move {
                let round = round_in(&context, &[("leaf", ""), ("leaf", "")]);
                let all: Vec<_> = inner.oneshot(round).await?.collect().await;
                Ok::<_, tower::BoxError>(all.len().to_string())
            }
        },
    ));
    assert_eq!(one(&tools, "tree", "").await.content.text(), "2");
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    /// Whatever is exclusive, and in whatever order calls end: each call has one outcome, an
    /// exclusive one never has another beside it, and no more run at once than may.
    #[test]
    fn every_round_is_settled_once_and_in_order(
        calls in prop::collection::vec((any::<bool>(), 0_u32..4), 0..20),
        max in 1_usize..5,
    ) {
        let running = Arc::new(Mutex::new((0_usize, false)));
        let starts = Arc::new(Mutex::new(Vec::new()));
        let make = |name: &str, exclusive: bool| {
            let running = Arc::clone(&running);
            let starts = Arc::clone(&starts);
            tool_with_context(name, "", move |Wait { key }, context: Context| {
                let running = Arc::clone(&running);
                let key_text = context.idempotency_key().unwrap().to_string();
                let index: usize = key_text.rsplit('/').nth(1).unwrap().parse().unwrap();
                let starts = Arc::clone(&starts);
                async move {
                    {
                        let mut running = running.lock().unwrap();
                        assert!(!running.1 && (!exclusive || running.0 == 0) && running.0 < max);
                        *running = (running.0 + 1, exclusive);
                        starts.lock().unwrap().push(index);
                    }
                    for _ in 0..key {
                        tokio::task::yield_now().await;
                    }
                    let mut running = running.lock().unwrap();
                    *running = (running.0 - 1, false);
                }
            })
        };
        let tools = Toolset::new()
            .tool(make("read", false))
            .tool(make("write", true).exclusive())
            .max_parallel(max);
        let arguments: Vec<_> = calls
            .iter()
            .map(|(exclusive, key)| {
                (if *exclusive { "write" } else { "read" }, format!(r#"{{"key":{key}}}"#))
            })
            .collect();
        let calls: Vec<_> = arguments.iter().map(|(name, a)| (*name, a.as_str())).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let all = runtime.block_on(crate::common::run(&tools, &calls));
        let mut indices: Vec<_> = all
            .into_iter()
            .map(|item| {
                let settled = item.unwrap();
                assert_eq!(settled.outcome.status, ToolStatus::Done, "{settled:?}");
                settled.index
            })
            .collect();
        indices.sort_unstable();
        prop_assert_eq!(&indices, &(0..calls.len()).collect::<Vec<_>>());
        prop_assert_eq!(&*starts.lock().unwrap(), &indices);
    }
}

paced!(c039_a_round_that_a_layer_answers_has_a_result_for_every_call);
async fn c039_a_round_that_a_layer_answers_has_a_result_for_every_call() {
    /// Answers each call of a round, and runs none.
    #[derive(Clone)]
    struct Skip;

    impl Service<ToolRound> for Skip {
        type Response = futures_util::stream::Iter<std::vec::IntoIter<Result<RoundEvent, Error>>>;
        type Error = Error;
        type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Self::Error>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, round: ToolRound) -> Self::Future {
            let skipped = |index| Ok(RoundEvent::settled(index, ToolOutcome::done("skipped")));
            let all: Vec<_> = (0..round.calls.len()).map(skipped).collect();
            std::future::ready(Ok(futures_util::stream::iter(all)))
        }
    }

    let log = Log::default();
    let ran = log.clone();
    let tools = Toolset::new().tool(tool("t", "", move |NoArguments {}| {
        ran.add("ran");
        async { "ok" }
    }));
    let rounds = WithTools::new(tools, Skip);
    let script = vec![vec![("t", ""), ("t", ""), ("unknown", "")]];
    let agent = AgentLayer::new(rounds).layer(crate::common::model(script));
    let answer = agent.oneshot(ChatRequest::user("go"));
    let answer = answer.await.unwrap().collect().await.unwrap();
    assert_eq!(
        crate::common::results(&answer),
        [
            "call-0-0: skipped",
            "call-0-1: skipped",
            "call-0-2: skipped"
        ]
    );
    assert!(log.lines().is_empty());
}

paced!(c111_a_run_without_what_a_tool_requires_fails_before_its_first_model_call);
async fn c111_a_run_without_what_a_tool_requires_fails_before_its_first_model_call() {
    #[derive(Clone)]
    struct User;

    let tools = Toolset::new()
        .tool(tool("whoami", "", |NoArguments {}| async { "you" }).requires::<User>());
    let script = || vec![vec![("whoami", "")]];
    let error = crate::common::agent(tools.clone(), script())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.message().contains("`whoami` requires a"), "{error}");
    assert!(error.message().contains("User"), "{error}");

    let mut context = Context::new();
    context.extensions_mut().insert(User);
    let answer = crate::common::agent_in(context, tools, script())
        .await
        .unwrap();
    assert_eq!(crate::common::results(&answer), ["call-0-0: you"]);
}

paced!(f032_a_model_that_calls_a_tool_for_ever_comes_to_a_limit);
async fn f032_a_model_that_calls_a_tool_for_ever_comes_to_a_limit() {
    let endless = || vec![vec![("t", ""); 3]; 1_000];
    let tools = || Toolset::new().tool(tool("t", "", |NoArguments {}| async { "again" }));
    let layers = [
        (
            AgentLayer::new(tools()).step_limit(5),
            Outcome::StepLimit,
            15,
        ),
        (
            AgentLayer::new(tools()).call_limit(4),
            Outcome::CallLimit,
            6,
        ),
    ];
    for (layer, outcome, results) in layers {
        let agent = layer.layer(crate::common::model(endless()));
        let answer = agent.oneshot(ChatRequest::user("go")).await.unwrap();
        let answer = answer.collect().await.unwrap();
        assert_eq!(answer.finish.outcome, outcome);
        assert_eq!(crate::common::results(&answer).len(), results);
    }
}
