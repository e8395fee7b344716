//! Every number and length of time that the core is set up with, at nothing, one and its maximum.

use concentric_core::{
    AgentLayer, Answer, BoxModel, ChatRequest, Context, Error, ErrorKind, Event, Interrupt,
    InterruptId, Outcome, Reply, ToolSpecs, ToolStatus, Transcript, Turn,
    agent::{ToolSource, WithTools},
    ask::AskError,
    machine::{Machine, RunLimits, RunState},
};
use concentric_layers::CommitLayer;
use concentric_test::{Pace, ScriptedModel, ScriptedTools, watched};
use serde_json::json;
use std::{
    future::Future,
    time::{Duration, SystemTime},
};
use tower::{Layer, ServiceExt};

/// A model that calls `look` in each of three steps, and then is done.
fn looks(pace: Pace) -> ScriptedModel {
    let model = ScriptedModel::new().paced(pace);
    let model = (0..3).fold(model, |model, _| model.tool_call("look", json!({})).then());
    model.text("Seen.")
}

fn tools(pace: Pace) -> ScriptedTools {
    ScriptedTools::new().paced(pace).answers("look", "seen")
}

async fn ask(agent: BoxModel, request: ChatRequest) -> Result<Answer, Error> {
    Ok(agent.oneshot(request).await?.collect().await?)
}

fn statuses(answer: &Answer) -> Vec<ToolStatus> {
    let turns = answer.transcript().unwrap().iter();
    let results = turns.flat_map(Turn::results);
    results.map(|result| result.outcome.status).collect()
}

fn at_each_pace<F>(test: impl Fn(Pace) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    for pace in Pace::ALL {
        watched(test(pace));
    }
}

#[test]
fn a_step_limit_of_nothing_is_one() {
    at_each_pace(|pace| async move {
        for (limit, steps, outcome) in [
            (0, 1, Outcome::StepLimit),
            (1, 1, Outcome::StepLimit),
            (u32::MAX, 4, Outcome::Completed),
        ] {
            let model = looks(pace);
            let agent = AgentLayer::new(tools(pace))
                .step_limit(limit)
                .layer(model.clone());
            let answer = ask(BoxModel::new(agent), ChatRequest::user("hi"))
                .await
                .unwrap();
            assert_eq!(
                (model.calls(), answer.finish.outcome),
                (steps, outcome),
                "{limit}"
            );
        }
    });
}

#[test]
fn a_call_limit_of_nothing_refuses_the_first_call() {
    use ToolStatus::{Denied, Done, Failed};
    at_each_pace(|pace| async move {
        for (limit, ran, outcome) in [
            (0, 0, Outcome::CallLimit),
            (1, 1, Outcome::CallLimit),
            (u32::MAX, 3, Outcome::Completed),
        ] {
            let scripted = tools(pace);
            let agent = AgentLayer::new(scripted.clone())
                .call_limit(limit)
                .layer(looks(pace));
            let answer = ask(BoxModel::new(agent), ChatRequest::user("hi"))
                .await
                .unwrap();
            assert_eq!(
                (scripted.done(), &answer.finish.outcome),
                (ran, &outcome),
                "{limit}"
            );
            let done = statuses(&answer).into_iter().filter(|s| *s == Done).count();
            assert_eq!(done, ran);
            let refused = |s: &&ToolStatus| matches!(s, Failed | Denied);
            let refused = statuses(&answer).iter().filter(refused).count();
            assert_eq!(refused, usize::from(outcome == Outcome::CallLimit));
        }
    });
}

/// Tools with rules of their own.
#[derive(Clone)]
struct Ruled(ScriptedTools, RunLimits);

impl ToolSource for Ruled {
    fn specs(&self) -> ToolSpecs {
        self.0.specs()
    }

    fn rules(&self) -> RunLimits {
        self.1.clone()
    }
}

#[test]
fn limits_per_round_and_per_tool_refuse_what_is_over_them() {
    at_each_pace(|pace| async move {
        for (limit, ran) in [(0, 0), (1, 1), (u32::MAX, 2)] {
            for per_tool in [false, true] {
                let mut rules = RunLimits::default();
                match per_tool {
                    true => rules.calls_per_tool = vec![("look".into(), limit)],
                    false => rules.calls_per_round = Some(limit),
                }
                let scripted = tools(pace);
                let ruled = WithTools::new(Ruled(scripted.clone(), rules), scripted.clone());
                let model = ScriptedModel::new()
                    .paced(pace)
                    .tool_call("look", json!({}))
                    .tool_call("look", json!({}))
                    .then()
                    .text("Seen.");
                let agent = BoxModel::new(AgentLayer::new(ruled).layer(model));
                let answer = ask(agent, ChatRequest::user("hi")).await.unwrap();
                assert_eq!(answer.finish.outcome, Outcome::Completed);
                assert_eq!(scripted.done(), ran, "{limit} {per_tool}");
                assert_eq!(statuses(&answer).len(), 2);
            }
        }
    });
}

#[test]
fn an_answer_that_may_not_be_held_fails_before_it_is_shown() {
    at_each_pace(|pace| async move {
        for (limit, fits) in [(0, false), (1, false), (usize::MAX, true)] {
            let model = ScriptedModel::new().paced(pace).text("Hello.");
            let model = BoxModel::new(CommitLayer::whole().limit(limit).layer(model));
            match ask(model, ChatRequest::user("hi")).await {
                Ok(answer) => assert!(fits && answer.text() == "Hello.", "{limit}"),
                Err(error) => {
                    assert!(!fits, "{limit}");
                    assert_eq!(error.kind(), ErrorKind::TooLarge);
                }
            }
        }
    });
}

/// As far ahead as the system's clock can tell.
fn far_ahead() -> SystemTime {
    let ahead = |time: SystemTime, secs| time.checked_add(Duration::from_secs(secs));
    let powers = (0..63).rev().map(|power| 1 << power);
    powers.fold(SystemTime::now(), |time, secs| {
        ahead(time, secs).unwrap_or(time)
    })
}

#[test]
fn a_deadline_that_has_passed_calls_no_model() {
    at_each_pace(|pace| async move {
        let now = SystemTime::now();
        for (deadline, in_time) in [
            (SystemTime::UNIX_EPOCH, false),
            (now.checked_sub(Duration::from_nanos(1)).unwrap(), false),
            (far_ahead(), true),
        ] {
            let model = looks(pace);
            let agent = BoxModel::new(AgentLayer::new(tools(pace)).layer(model.clone()));
            let context = Context::builder().deadline(deadline).build();
            let request = ChatRequest::user("hi").with_context(context);
            match ask(agent, request).await {
                Ok(answer) => assert!(in_time && answer.text() == "Seen."),
                Err(error) => {
                    assert_eq!((error.kind(), model.calls()), (ErrorKind::Timeout, 0));
                    assert!(!in_time);
                }
            }
        }
    });
}

#[test]
fn a_question_with_no_time_is_late_and_one_with_all_is_answered() {
    let interrupt = |context: &Context| {
        let id = InterruptId::new(context.new_id("ask_"));
        Interrupt::new(id, "tool_call")
    };
    for timeout in [Duration::ZERO, Duration::from_nanos(1)] {
        let late = watched(async move {
            let context = Context::new();
            context.ask(interrupt(&context), timeout).await.map(drop)
        });
        assert_eq!(late, Err(AskError::TimedOut), "{timeout:?}");
    }
    let answered = watched(async move {
        let context = Context::new();
        let ask = interrupt(&context);
        let reply = Reply::approve(ask.id.clone());
        let asked = context.clone();
        let asks = tokio::spawn(async move { asked.ask(ask, Duration::MAX).await });
        while context.reply(reply.clone()).is_err() {
            tokio::task::yield_now().await;
        }
        asks.await.unwrap().map(drop)
    });
    assert_eq!(answered, Ok(()));
}

#[test]
fn a_sleep_of_nothing_ends_and_one_of_all_time_is_cancelled() {
    watched(async {
        let context = Context::new();
        context.sleep(Duration::ZERO).await.unwrap();
        context.sleep(Duration::from_nanos(1)).await.unwrap();
        let sleeper = context.clone();
        let sleeps = tokio::spawn(async move { sleeper.sleep(Duration::MAX).await });
        tokio::task::yield_now().await;
        context.cancel(concentric_core::CancelReason::User);
        assert_eq!(
            sleeps.await.unwrap().unwrap_err().kind(),
            ErrorKind::Cancelled
        );
    });
}

#[test]
fn a_state_is_read_only_within_its_limit() {
    let state = Machine::new(Transcript::new(), RunLimits::default())
        .state()
        .unwrap();
    let json = state.to_json().unwrap();
    for (limit, fits) in [
        (0, false),
        (1, false),
        (json.len() - 1, false),
        (json.len(), true),
        (usize::MAX, true),
    ] {
        assert_eq!(
            RunState::from_json(json.as_bytes(), limit).is_ok(),
            fits,
            "{limit}"
        );
    }
}

#[test]
fn a_time_to_retry_after_is_kept_as_it_is() {
    for after in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let error = Error::new(ErrorKind::RateLimited, "slow down").with_retry_after(after);
        assert_eq!(error.retry_after(), Some(after));
    }
}

#[test]
fn the_index_of_a_pieces_call_may_be_any() {
    let piece = |index| {
        let delta = concentric_core::ToolCallDelta::new(index, "{}");
        Event::ToolCallDelta(delta)
    };
    at_each_pace(move |pace| async move {
        let model = ScriptedModel::new().paced(pace);
        let model = model
            .events([piece(0), piece(1), piece(u32::MAX)])
            .text("Hello.");
        let agent = BoxModel::new(AgentLayer::new(tools(pace)).layer(model));
        let answer = ask(agent, ChatRequest::user("hi")).await.unwrap();
        assert_eq!(answer.text(), "Hello.");
    });
}
