//! Each numeric setting with nothing, one and its most: a documented meaning, and never an endless wait.

use concentric_core::hooks::{self, Flow, Hooks, Summary};
use concentric_core::{
    AgentLayer, BoxError, BoxModel, ChatRequest, Error, ErrorKind, Event, Message, Outcome,
    RunOverrides, StepFinish, ThreadId, agent::StepGate,
};
use concentric_layers::{
    BudgetPlugin, DetachLayer, InFlightLimitLayer, Steering,
    budget::{Amounts, Budget, Limits},
    session::{MakeSession, SessionTarget},
    steering::SteerError,
    stop::{
        ErrorLimit, Judgement, LoopDetector, OutputConstraint, StepApproval, StopWhen,
        called_times, input_tokens, output_tokens, steps, total_tokens,
    },
};
use concentric_test::{
    Gate, ScriptedModel, ScriptedTools, TestEnvironment, assert_finishes, watched,
};
use futures_util::FutureExt;
use serde_json::json;
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio_test::task;
use tower::{Layer, ServiceBuilder, ServiceExt};

/// Calls a tool four times, each time in a round of its own, and then answers.
fn works() -> ScriptedModel {
    let model = (0..4).fold(ScriptedModel::new(), |model, _| {
        model.tool_call("work", json!({})).then()
    });
    model.text("done")
}

fn tools() -> ScriptedTools {
    ScriptedTools::new().answers("work", "ok")
}

fn failing() -> ScriptedTools {
    ScriptedTools::new().tool("work", async |_| {
        concentric_core::ToolOutcome::failed("it broke")
    })
}

fn is_halted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Halted { .. })
}

/// Runs an agent with `gate`; how often its model was called, and the outcome.
async fn run(gate: impl StepGate, tools: ScriptedTools) -> (usize, Outcome) {
    let model = works();
    let agent = AgentLayer::new(tools).gate(gate).layer(model.clone());
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (_, finish) = assert_finishes(body).await;
    (model.calls(), finish.outcome)
}

#[test]
fn limits_of_budgets() {
    watched(async {
        type Limit = fn(u64) -> Limits;
        let limits: [Limit; 6] = [
            |n| Limits::new().money(n),
            |n| Limits::new().input_tokens(n),
            |n| Limits::new().output_tokens(n),
            |n| Limits::new().total_tokens(n),
            |n| Limits::new().model_calls(n),
            |n| Limits::new().time_ms(n),
        ];
        for limit in limits {
            for (most, runs) in [(0, false), (u64::MAX, true)] {
                let model = works();
                let budget = BudgetPlugin::new(limit(most)).price(|_| 1);
                let agent = ServiceBuilder::new()
                    .layer(budget.run())
                    .layer(AgentLayer::new(tools()))
                    .layer(budget.model())
                    .service(model.clone());
                let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
                let outcome = answer.collect().await.unwrap().finish.outcome;
                let limit = limit(most);
                assert_eq!(is_halted(&outcome), !runs, "{limit:?}");
                assert_eq!(model.calls(), if runs { 5 } else { 0 }, "{limit:?}");
            }
        }
    });
}

#[test]
fn amounts_of_budgets() {
    for most in [0, 1, u64::MAX] {
        let budget = Budget::new(Limits::new().money(most));
        let nothing = budget.reserve(Amounts::new()).unwrap();
        assert_eq!(budget.reserve(Amounts::new().money(1)).is_ok(), most > 0);
        drop(nothing);
        // More than fits into a number is not less.
        budget.charge(Amounts::new().money(u64::MAX));
        budget.charge(Amounts::new().money(u64::MAX));
        assert_eq!(budget.spent().money, u64::MAX);
        budget.extend(Amounts::new().money(u64::MAX)).unwrap();
        assert_eq!(budget.limits().money, Some(u64::MAX));
    }
}

#[test]
fn limits_of_calls_in_flight() {
    watched(async {
        for (max, available) in [
            (0, 1),
            (1, 1),
            (usize::MAX, tokio::sync::Semaphore::MAX_PERMITS),
        ] {
            for queue in [0, 1, usize::MAX] {
                let limit = InFlightLimitLayer::new(max).queue(queue);
                assert_eq!(limit.available(), available);
                let model = ScriptedModel::new().text("hi").repeat();
                let answer = limit.layer(model).oneshot(ChatRequest::user("hi"));
                assert_finishes(answer.await.unwrap().body).await;
                assert_eq!(limit.available(), available);
            }
        }
    });
}

#[test]
fn queues_of_sessions() {
    watched(async {
        for queue in [0, 1, usize::MAX] {
            let model = ScriptedModel::new().text("I ").never().repeat();
            let agent = BoxModel::new(AgentLayer::new(tools()).layer(model));
            let sessions = MakeSession::new(agent).queue(queue);
            let target = SessionTarget::new(ThreadId::new("t"));
            let session = sessions.oneshot(target).await.unwrap();
            let held = session.clone().oneshot(session.user("hi")).await.unwrap();
            let mut waits = Vec::new();
            let mut refused = None;
            for _ in 0..3 {
                let call = session.clone().oneshot(session.user("hi"));
                let mut call = tokio_test::task::spawn(call);
                match call.poll() {
                    std::task::Poll::Pending => waits.push(call),
                    std::task::Poll::Ready(answer) => refused = answer.err(),
                }
            }
            assert_eq!(waits.len(), queue.min(3));
            let kind = refused.as_ref().map(Error::kind);
            assert_eq!(kind, (queue < 3).then_some(ErrorKind::Overloaded));
            drop((held, waits));
        }
    });
}

#[test]
fn capacities_of_steering() {
    for (capacity, put) in [(0, 0), (1, 1), (usize::MAX, 3)] {
        let steering = Steering::new(capacity);
        let said = (0..3).map(|_| steering.at_next_step(Message::user("Hm.")));
        let said: Vec<_> = said.collect();
        assert_eq!(said.iter().filter(|said| said.is_ok()).count(), put);
        assert!(
            said.iter()
                .flat_map(|said| said.as_ref().err())
                .all(|e| *e == SteerError::Full)
        );
        assert_eq!(steering.len(), put);
    }
}

#[test]
fn a_steering_without_room_lets_the_run_be() {
    watched(async {
        let steering = Steering::new(0);
        let gates = RunOverrides::new().step_gate(steering.gate());
        let request = ChatRequest::user("hi").with_overrides(gates);
        let agent = AgentLayer::new(tools()).layer(works());
        let body = agent.oneshot(request).await.unwrap().body;
        assert_eq!(assert_finishes(body).await.1.outcome, Outcome::Completed);
    });
}

#[test]
fn limits_of_errors() {
    watched(async {
        for calls in [false, true] {
            for (limit, models) in [(0, 1), (1, 1), (usize::MAX, 5)] {
                let gate = |gate: ErrorLimit| match calls {
                    true => gate.counting_calls(),
                    false => gate,
                };
                let in_a_row = gate(ErrorLimit::new().consecutive(limit));
                assert_eq!(run(in_a_row, failing()).await.0, models);
                let in_all = gate(ErrorLimit::new().consecutive(usize::MAX).total(limit));
                assert_eq!(run(in_all, failing()).await.0, models);
            }
        }
    });
}

#[test]
fn limits_of_loops() {
    watched(async {
        // At the least a second call is a loop, and at the least one round is looked at.
        for (limit, window, models) in [
            (0, 8, 2),
            (1, 8, 2),
            (u32::MAX, 8, 5),
            (2, 0, 5),
            (2, 1, 5),
            (2, usize::MAX, 2),
        ] {
            let gate = LoopDetector::new(limit).window(window);
            let (calls, outcome) = run(gate, tools()).await;
            assert_eq!((calls, is_halted(&outcome)), (models, models < 5));
        }
    });
}

#[test]
fn steps_that_are_approved() {
    watched(async {
        for (after, models) in [(0, 1), (1, 1), (u32::MAX, 5)] {
            for more in [0, 1, u32::MAX] {
                for within in [Duration::ZERO, Duration::MAX] {
                    let gate = StepApproval::after(after).steps(more).within(within);
                    let (calls, outcome) = run(gate, tools()).await;
                    assert_eq!(calls, models);
                    assert_eq!(outcome == Outcome::Interrupted, models < 5);
                }
            }
        }
    });
}

#[test]
fn conditions() {
    watched(async {
        for (condition, models) in [
            (steps(0), 0),
            (steps(1), 1),
            (steps(u32::MAX), 5),
            (called_times("work", 0), 0),
            (called_times("work", usize::MAX), 5),
            (input_tokens(0), 0),
            (input_tokens(u64::MAX), 5),
            (output_tokens(0), 0),
            (output_tokens(u64::MAX), 5),
            (total_tokens(0), 0),
            (total_tokens(u64::MAX), 5),
        ] {
            let gate = StopWhen::halt("enough", condition);
            assert_eq!(run(gate, tools()).await.0, models);
        }
    });
}

#[test]
fn tries_of_constraints() {
    watched(async {
        static JUDGED: AtomicUsize = AtomicUsize::new(0);
        for (tries, judged) in [(0, 1), (1, 2), (usize::MAX, 3)] {
            JUDGED.store(0, Ordering::SeqCst);
            let gate = OutputConstraint::new("third", |_, _| async {
                Ok(match JUDGED.fetch_add(1, Ordering::SeqCst) {
                    2 => Judgement::Accept,
                    _ => Judgement::complain("Again."),
                })
            });
            let model = ScriptedModel::new().text("hi").repeat();
            let agent = AgentLayer::new(tools())
                .gate(gate.tries(tries))
                .layer(model);
            let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
            assert_eq!(answer.collect().await.is_ok(), judged == 3);
            assert_eq!(JUDGED.load(Ordering::SeqCst), judged);
        }
    });
}

// ---- detached runs ----

/// Starts as many runs as that, whose consumers leave at once; how many go on.
async fn left(layer: &DetachLayer, runs: usize) -> usize {
    let gate = Gate::new();
    let model = ScriptedModel::new().text("Well,").wait(&gate).repeat();
    let agent = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(model.clone());
    let before = layer.available();
    for _ in 0..runs {
        drop(
            agent
                .clone()
                .oneshot(ChatRequest::user("hi"))
                .await
                .unwrap(),
        );
    }
    let detached = before - layer.available();
    assert_eq!(detached, model.live());
    gate.open();
    watched_shutdown(layer).await;
    assert_eq!(model.live(), 0);
    detached
}

/// Waits for the detached runs, which must end.
async fn watched_shutdown(layer: &DetachLayer) {
    let mut shutdown = Box::pin(layer.shutdown());
    for _ in 0..10_000 {
        if (&mut shutdown).now_or_never().is_some() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the detached runs do not end");
}

#[tokio::test]
async fn limits_of_detached_runs() {
    for (limit, expected) in [(0, 0), (1, 1), (u32::MAX, 3)] {
        let layer = DetachLayer::new().limit(limit);
        assert_eq!(left(&layer, 3).await, expected, "{limit}");
        // After a shutdown none goes on.
        assert_eq!(left(&layer, 1).await, 0, "{limit}");
    }
}

#[tokio::test]
async fn times_of_detached_runs() {
    const LONG: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    for (within, ends_at) in [
        (Duration::ZERO, Some(Duration::ZERO)),
        (Duration::from_nanos(1), Some(Duration::from_nanos(1))),
        (Duration::from_secs(1), Some(Duration::from_secs(1))),
        // Only its own deadline ends it, and it has none.
        (Duration::MAX, None),
    ] {
        let world = TestEnvironment::new();
        let layer = DetachLayer::new().within(within);
        let model = ScriptedModel::new().text("Well,").never();
        let agent = AgentLayer::new(ScriptedTools::new()).layer(model.clone());
        drop(
            layer
                .layer(agent)
                .oneshot(world.request("hi"))
                .await
                .unwrap(),
        );
        settle().await;
        assert_eq!(model.live() == 0, within.is_zero(), "{within:?}");
        world.advance(ends_at.unwrap_or(LONG));
        settle().await;
        assert_eq!(model.live() == 0, ends_at.is_some(), "{within:?}");
    }
}

async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

// ---- hooks, whose methods have as long as their run, and 30 seconds at the most ----

struct Hangs;

impl Hooks for Hangs {
    fn id(&self) -> &str {
        "hangs"
    }

    async fn before_model(&self, _: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
        pending().await
    }

    async fn step_finished(&self, _: &StepFinish, _: &Summary) -> Result<(), BoxError> {
        pending().await
    }
}

#[tokio::test]
async fn times_of_hooks() {
    const LIMIT: Duration = Duration::from_secs(30);
    let in_all = Duration::from_secs(1_000_000);
    for left in [Duration::ZERO, Duration::from_nanos(1), in_all] {
        let world = TestEnvironment::new();
        let deadline = world.context().now() + left;
        let request = || {
            let context = world.context_builder().deadline(deadline).build();
            ChatRequest::user("hi").with_context(context)
        };
        // It decides about the call: only the run's end ends it.
        let model = hooks::model(Arc::new(Hangs)).layer(ScriptedModel::new().text("hi"));
        let mut call = task::spawn(model.oneshot(request()));
        let mut polled = call.poll();
        if polled.is_pending() {
            world.advance(left);
            assert!(call.is_woken(), "{left:?}");
            polled = call.poll();
        }
        let error = tokio_test::assert_ready!(polled).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{left:?}");
    }
    for left in [Duration::from_nanos(1), in_all] {
        let world = TestEnvironment::new();
        let deadline = world.context().now() + left;
        let context = world.context_builder().deadline(deadline).build();
        let request = ChatRequest::user("hi").with_context(context);
        // It observes: it is given up on, and the run continues.
        let agent = AgentLayer::new(ScriptedTools::new()).layer(ScriptedModel::new().text("hi"));
        let answer = hooks::run(Arc::new(Hangs))
            .layer(agent)
            .oneshot(request)
            .await;
        let mut body = task::spawn(answer.unwrap().body);
        while body.poll_next().is_ready() {}
        world.advance(left.min(LIMIT));
        assert!(body.is_woken(), "{left:?}");
        assert!(body.poll_next().is_ready(), "{left:?}");
    }
}
