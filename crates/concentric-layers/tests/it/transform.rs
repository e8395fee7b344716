//! Errors that a transform receives, and the order of wrapping layers.

use concentric_core::{
    AgentLayer, Answer, ChatRequest, Error, ErrorKind, Event, FinishReason, NoTools, Outcome, Usage,
};
use concentric_layers::{Emit, Next, Transform, TransformLayer, from_fn};
use concentric_test::ScriptedModel;
use std::sync::{Arc, Mutex};
use tower::{Layer, ServiceBuilder, ServiceExt};

type OnError = fn(Error) -> Emit;

/// Holds text, and converts errors.
struct Convert(String, OnError);

impl Transform for Convert {
    fn event(&mut self, event: Event) -> Emit {
        match event {
            Event::TextDelta(text) => {
                self.0.push_str(&text);
                Emit::None
            }
            event => Emit::One(event),
        }
    }

    fn flush(&mut self) -> Emit {
        Emit::One(Event::text(std::mem::take(&mut self.0)))
    }

    fn error(&mut self, error: Error) -> Emit {
        (self.1)(error)
    }
}

fn overloaded() -> Error {
    Error::new(ErrorKind::Overloaded, "busy")
}

/// The answer of a model that fails before its first event, or after some text.
async fn answer(fails_at_once: bool, convert: OnError) -> Result<Answer, Error> {
    let model = match fails_at_once {
        true => ScriptedModel::new().error(overloaded()),
        false => ScriptedModel::new().text("half").error(overloaded()),
    };
    let layer = TransformLayer::new(move |_: &ChatRequest| Convert(String::new(), convert));
    let response = layer.layer(model).oneshot(ChatRequest::user("hi")).await?;
    Ok(response.collect().await?)
}

#[tokio::test]
async fn an_error_is_passed_on_by_default() {
    struct Nothing;
    impl Transform for Nothing {
        fn event(&mut self, event: Event) -> Emit {
            Emit::One(event)
        }
    }
    for model in [
        ScriptedModel::new().error(overloaded()),
        ScriptedModel::new().text("half").error(overloaded()),
    ] {
        let service = TransformLayer::new(|_: &ChatRequest| Nothing).layer(model);
        let error = match service.oneshot(ChatRequest::user("hi")).await {
            Ok(response) => response.collect().await.unwrap_err().into(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Overloaded);
    }
}

#[tokio::test]
async fn an_error_is_replaced_after_held_events() {
    for fails_at_once in [true, false] {
        let failed = answer(fails_at_once, |_| {
            Emit::Fail(Error::new(ErrorKind::Quota, "no money"))
        });
        assert_eq!(failed.await.unwrap_err().kind(), ErrorKind::Quota);

        let finished = answer(fails_at_once, |_| {
            let finish = Event::finish(FinishReason::Stop, Usage::default());
            Emit::Many(vec![Event::text("."), finish, Event::text("late")])
        });
        let expected = if fails_at_once { "." } else { "half." };
        assert_eq!(finished.await.unwrap().text(), expected);
    }
}

#[tokio::test]
async fn an_error_that_nothing_replaces_ends_the_answer_early() {
    for fails_at_once in [true, false] {
        let failed = answer(fails_at_once, |_| Emit::None).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Truncated);
        let failed = answer(fails_at_once, |_| Emit::One(Event::text("."))).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Truncated);
    }
}

#[tokio::test]
async fn an_error_becomes_a_halt_inside_the_loop() {
    for fails_at_once in [true, false] {
        let model = match fails_at_once {
            true => ScriptedModel::new().error(overloaded()),
            false => ScriptedModel::new().text("half").error(overloaded()),
        };
        let halt: OnError = |_| Emit::Fail(Error::halted("enough"));
        let agent = ServiceBuilder::new()
            .layer(AgentLayer::new(NoTools))
            .layer(TransformLayer::new(move |_: &ChatRequest| {
                Convert(String::new(), halt)
            }))
            .service(model);
        let response = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        let answer = response.collect().await.unwrap();
        let reason = "enough".into();
        assert_eq!(answer.finish.outcome, Outcome::Halted { reason });
        let turns = answer.transcript().unwrap().len();
        assert_eq!(turns, if fails_at_once { 1 } else { 2 });
    }
}

/// In HPD-Agent, the middleware that is registered last is the outermost of `ExecuteLLMCallAsync`.
#[tokio::test]
async fn execute_llm_call_async_has_the_reverse_order() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let wrap = |name: &'static str| {
        let log = Arc::clone(&log);
        from_fn(move |request: ChatRequest, mut next: Next| {
            let log = Arc::clone(&log);
            async move {
                log.lock().unwrap().push(format!("{name} calls"));
                let response = next.run(request).await;
                log.lock().unwrap().push(format!("{name} returns"));
                response
            }
        })
    };
    let registered = ["1", "2", "3"];
    let [third, second, first] = [registered[2], registered[1], registered[0]].map(wrap);
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(NoTools))
        .layer(third)
        .layer(second)
        .layer(first)
        .service(ScriptedModel::new().text("Hi!"));
    let response = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    response.text().await.unwrap();
    let expected = [
        "3 calls",
        "2 calls",
        "1 calls",
        "1 returns",
        "2 returns",
        "3 returns",
    ];
    assert_eq!(*log.lock().unwrap(), expected);
}
