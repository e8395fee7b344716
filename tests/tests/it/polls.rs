//! The futures and bodies of the core, polled without a wake and dropped wherever they wait.

use concentric_core::{
    AgentLayer, BoxError, BoxModel, ChatRequest, Context, CustomEvent, Event, Interrupt,
    InterruptId, Reply,
    agent::{FinishDecision, RoundDecision, StepDecision, StepDraft, StepGate, StepView},
    store::{Checkpoint, Tenant},
};
use concentric_layers::{CommitLayer, Next, envelope::Envelopes, from_fn};
use concentric_test::{Pace, ScriptedModel, ScriptedTools, Spurious, drop_at_each_wait, watched};
use concentric_tools::Toolset;
use futures_util::StreamExt;
use serde_json::json;
use std::{cell::RefCell, future::poll_fn, time::Duration};
use tower::{Layer, ServiceExt};

const NEVER: Duration = Duration::from_secs(3_600);

/// A gate that takes a tick for each decision.
#[derive(Clone)]
struct Slow(Pace);

impl StepGate for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        self.0.pass(&step.context).await;
        Ok(StepDecision::Continue)
    }

    async fn before_round(&self, step: &StepView) -> Result<RoundDecision, BoxError> {
        self.0.pass(&step.context).await;
        Ok(RoundDecision::Continue)
    }

    async fn before_finish(&self, step: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        self.0.pass(&step.context).await;
        Ok(FinishDecision::Finish)
    }
}

/// An agent with gates, layers and tools that all wait, inside so many others.
fn agent(levels: usize, pace: Pace, model: &ScriptedModel, tools: &ScriptedTools) -> BoxModel {
    let waits = from_fn(move |request: ChatRequest, mut next: Next| async move {
        pace.pass(&request.context).await;
        next.run(request).await
    });
    let model = CommitLayer::first_sentence().layer(waits.layer(model.clone()));
    let agent = AgentLayer::new(tools.clone()).gate(Slow(pace)).layer(model);
    let around = |inner| {
        BoxModel::new(
            AgentLayer::new(Toolset::new())
                .gate(Slow(pace))
                .layer(inner),
        )
    };
    (0..levels).fold(BoxModel::new(agent), |inner, _| around(inner))
}

fn looks(pace: Pace) -> ScriptedModel {
    ScriptedModel::new()
        .paced(pace)
        .text("I look.\n")
        .tool_call("look", json!({}))
        .then()
        .text("Seen.\n")
}

fn tools(pace: Pace) -> ScriptedTools {
    ScriptedTools::new().paced(pace).answers("look", "seen")
}

/// A request whose run is stored, which takes a tick.
fn stored(pace: Pace) -> ChatRequest {
    let mut request = ChatRequest::user("hi");
    let context = request.context.clone();
    request.checkpoint = Some(Checkpoint::new(move |_| {
        let context = context.clone();
        Box::pin(async move {
            pace.pass(&context).await;
            Ok(())
        })
    }));
    request
}

#[test]
fn a_run_that_is_polled_without_a_wake_ends() {
    for levels in 0..=2 {
        for pace in Pace::ALL {
            let finishes = watched(async move {
                let agent = agent(levels, pace, &looks(pace), &tools(pace));
                let request = stored(pace);
                let context = request.context.clone();
                let answer = Spurious::new(agent.oneshot(request)).await.unwrap();
                let mut body = Spurious::new(Envelopes::new(answer.body, &context));
                let mut finishes = 0;
                while let Some(envelope) = body.next().await {
                    finishes += usize::from(envelope.unwrap().event.is_finish());
                }
                finishes
            });
            assert_eq!(finishes, 1, "{levels} {pace:?}");
        }
    }
}

#[tokio::test]
async fn a_run_that_is_dropped_where_it_waits_leaves_nothing() {
    for levels in 0..=1 {
        for pace in [Pace::NextTick, Pace::AfterEvent] {
            let doubles = RefCell::new(None);
            let run = || {
                let (model, tools) = (looks(pace), tools(pace));
                let agent = agent(levels, pace, &model, &tools);
                *doubles.borrow_mut() = Some((model, tools));
                async move { agent.oneshot(stored(pace)).await?.text().await }
            };
            let drops = drop_at_each_wait(run, async |polls| {
                let doubles = doubles.borrow();
                let (model, tools) = doubles.as_ref().unwrap();
                assert_eq!((model.live(), tools.live()), (0, 0), "{polls}");
            });
            let drops = drops.await;
            assert!(drops > 8, "{levels} {pace:?}: {drops}");
        }
    }
}

#[tokio::test]
async fn a_question_that_is_dropped_or_polled_without_a_wake_is_taken_back() {
    let context = Context::new();
    let ask = || {
        let id = InterruptId::new("ask");
        let (asked, replies) = (context.clone(), context.clone());
        let question = Interrupt::new(id.clone(), "tool_call");
        async move {
            let asks = std::pin::pin!(asked.ask(question, NEVER));
            let reply = async {
                Pace::NextTick.pass(&replies).await;
                replies.reply(Reply::approve(id)).unwrap();
            };
            tokio::join!(Spurious::new(asks), reply).0.unwrap()
        }
    };
    let drops = drop_at_each_wait(ask, async |_| {
        assert!(context.live().interrupts(&Tenant::of(&context)).is_empty());
    });
    assert!(drops.await > 0);
}

#[test]
fn emitted_events_that_wait_for_room_all_arrive_without_a_wake() {
    watched(async {
        const MANY: usize = 3_000;
        let context = Context::new();
        let senders: Vec<_> = (0..4)
            .map(|_| {
                let context = context.clone();
                tokio::spawn(async move {
                    for _ in 0..MANY {
                        let event = Event::Custom(Box::new(CustomEvent::new("note", json!(1))));
                        Spurious::new(std::pin::pin!(context.send(event)))
                            .await
                            .unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..4 * MANY {
            Spurious::new(poll_fn(|cx| context.poll_emitted(cx))).await;
        }
        for sender in senders {
            sender.await.unwrap();
        }
    });
}
