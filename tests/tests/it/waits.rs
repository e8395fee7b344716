//! Waits that are not for a model or a tool: they end when their run is cancelled or late.

use concentric_core::{
    AgentLayer, BoxError, BoxModel, CancelReason, ChatRequest, Context, CustomEvent, EmitError,
    ErrorKind, Event, Interrupt, InterruptId, Outcome,
    agent::{FinishDecision, RoundDecision, StepDecision, StepDraft, StepGate, StepView},
    ask::AskError,
    store::{Checkpoint, Tenant},
};
use concentric_test::{ScriptedModel, ScriptedTools, TestEnvironment};
use futures_util::StreamExt;
use serde_json::json;
use std::{future::pending, time::Duration};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceExt};

fn note(n: u32) -> Event {
    Event::Custom(Box::new(CustomEvent::new("note", json!(n))))
}

fn with_deadline(left: Duration) -> (TestEnvironment, Context) {
    let world = TestEnvironment::new();
    let deadline = world.context().now() + left;
    let context = world.context_builder().deadline(deadline).build();
    (world, context)
}

#[test]
fn waits_of_a_context_end_when_its_run_is_cancelled_or_late() {
    let minute = Duration::from_secs(60);
    for late in [false, true] {
        let (world, context) = with_deadline(minute);
        while context.emit(note(0)).is_ok() {}
        let mut sleeps = task::spawn(context.sleep(Duration::MAX));
        assert_pending!(sleeps.poll());
        // There is no room, and nobody makes any.
        let mut sends = task::spawn(context.send(note(1)));
        assert_pending!(sends.poll());
        assert_pending!(sends.poll());
        let ask = Interrupt::new(InterruptId::new("q"), "row");
        let mut asks = task::spawn(context.ask(ask, Duration::MAX));
        assert_pending!(asks.poll());
        match late {
            false => context.cancel(CancelReason::User),
            true => world.advance(minute),
        }
        assert!(sleeps.is_woken() && sends.is_woken() && asks.is_woken());
        let kind = match late {
            false => ErrorKind::Cancelled,
            true => ErrorKind::Timeout,
        };
        assert_eq!(assert_ready!(sleeps.poll()).unwrap_err().kind(), kind);
        assert_eq!(assert_ready!(sends.poll()), Err(EmitError::Full));
        let unanswered = match late {
            false => AskError::Cancelled,
            true => AskError::TimedOut,
        };
        assert_eq!(assert_ready!(asks.poll()), Err(unanswered));
        drop(asks);
        assert_eq!(context.live().interrupts(&Tenant::default()).len(), 0);
        drop((sleeps, sends));
        assert_eq!(world.clock().sleepers(), 0);
    }
}

#[test]
fn a_sleep_that_ends_with_the_deadline_has_ended() {
    let second = Duration::from_secs(1);
    for (duration, ends) in [
        (Duration::ZERO, Ok(())),
        (second, Ok(())),
        (second + Duration::from_nanos(1), Err(ErrorKind::Timeout)),
        (Duration::MAX, Err(ErrorKind::Timeout)),
    ] {
        let (world, context) = with_deadline(second);
        let mut sleep = task::spawn(context.sleep(duration));
        if !duration.is_zero() {
            assert_pending!(sleep.poll());
        }
        world.advance(second);
        let slept = assert_ready!(sleep.poll()).map_err(|error| error.kind());
        assert_eq!(slept, ends, "{duration:?}");
    }
}

/// Where a run waits for something that never comes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    BeforeStep,
    BeforeRound,
    BeforeFinish,
    Store,
}

impl StepGate for Place {
    fn name(&self) -> &str {
        "place"
    }

    async fn before_step(&self, _: &mut StepDraft) -> Result<StepDecision, BoxError> {
        match self {
            Self::BeforeStep => pending().await,
            _ => Ok(StepDecision::Continue),
        }
    }

    async fn before_round(&self, _: &StepView) -> Result<RoundDecision, BoxError> {
        match self {
            Self::BeforeRound => pending().await,
            _ => Ok(RoundDecision::Continue),
        }
    }

    async fn before_finish(&self, _: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        match self {
            Self::BeforeFinish => pending().await,
            _ => Ok(FinishDecision::Finish),
        }
    }
}

/// A run that waits at `place`, in an agent in the model's place of so many others.
fn waiting(place: Place, levels: usize) -> BoxModel {
    let model = match place {
        Place::BeforeFinish => ScriptedModel::new().text("Seen."),
        _ => ScriptedModel::new().tool_call("look", json!({})),
    };
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = BoxModel::new(AgentLayer::new(tools).gate(place).layer(model));
    (0..levels).fold(agent, |inner, _| {
        BoxModel::new(AgentLayer::new(ScriptedTools::new()).layer(inner))
    })
}

#[tokio::test]
async fn a_run_that_waits_for_a_gate_or_store_ends_when_cancelled_or_late() {
    use Place::{BeforeFinish, BeforeRound, BeforeStep, Store};
    let minute = Duration::from_secs(60);
    for place in [BeforeStep, BeforeRound, BeforeFinish, Store] {
        for levels in 0..=2 {
            for late in [false, true] {
                let (world, context) = with_deadline(minute);
                let mut request = ChatRequest::user("hi").with_context(context.clone());
                let stalls = || Checkpoint::new(|_| Box::pin(pending()));
                request.checkpoint = (place == Store).then(stalls);
                let agent = waiting(place, levels);
                let mut run = task::spawn(async {
                    let body = agent.oneshot(request).await?.body;
                    body.collect::<Vec<_>>().await.pop().unwrap()
                });
                for _ in 0..3 {
                    assert_pending!(run.poll());
                }
                match late {
                    false => context.cancel(CancelReason::User),
                    true => world.advance(minute),
                }
                assert!(run.is_woken());
                let last = assert_ready!(run.poll());
                match (late, last) {
                    (false, Ok(Event::Finish(finish))) => assert_eq!(
                        finish.outcome,
                        Outcome::Aborted {
                            reason: CancelReason::User
                        }
                    ),
                    (true, Err(error)) => assert_eq!(error.kind(), ErrorKind::Timeout),
                    (_, last) => assert!(last.is_err(), "{place:?} {levels}: {last:?}"),
                }
            }
        }
    }
}
