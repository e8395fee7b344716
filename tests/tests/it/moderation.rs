//! The moderation of OpenAI as a classifier of a guardrail around an agent.

use bytes::Bytes;
use concentric_core::{
    AgentLayer, BoxError, BoxModel, ChatRequest, Error, ErrorKind, Media, MediaSource, Message,
    Part, PartKind, Role, Str, Transcript, Turn,
};
use concentric_layers::{
    GuardrailLayer,
    guardrail::{Assessment, BLOCKED, Blocked, FAILED, Input, Output, Subject},
};
use concentric_providers::{
    ApiKey, OpenAiLayer,
    activity::{ActivityResponse, Moderation, ModerationRequest},
};
use concentric_test::{LogCapture, ScriptedModel, ScriptedTools, collect_events, text_of};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::{
    error::Error as _,
    future::pending,
    sync::{Arc, Mutex},
};
use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

/// The inputs that the service received.
type Asked = Arc<Mutex<Vec<Value>>>;

/// The answer of the service to an input.
type Answer = (u16, String);

fn result(is_violent: bool) -> Answer {
    let score = if is_violent { 0.9 } else { 0.1 };
    let result = json!({
        "flagged": false,
        "categories": {"violence": false, "violence/graphic": false},
        "category_scores": {"violence": score, "violence/graphic": 0.3},
    });
    (
        200,
        json!({"id": "modr-1", "results": [result]}).to_string(),
    )
}

/// A service that finds violence in each input with the word `attack`.
fn finds(input: &str) -> Answer {
    result(input.contains("attack"))
}

/// A guardrail with a threshold for violence, at a service that answers as `judge` says.
fn moderation(judge: fn(&str) -> Answer, asked: &Asked) -> GuardrailLayer {
    let asked = Arc::clone(asked);
    let http = service_fn(move |request: http::Request<Full<Bytes>>| {
        let asked = Arc::clone(&asked);
        async move {
            assert_eq!(request.uri(), "https://api.openai.com/v1/moderations");
            let body = request.into_body().collect().await?.to_bytes();
            let mut body: Value = serde_json::from_slice(&body)?;
            assert_eq!(body["model"], "omni-moderation-latest");
            let input = body["input"].take();
            let (status, answer) = judge(&input.to_string());
            asked.lock().unwrap().push(input);
            let response = http::Response::builder().status(status);
            Ok::<_, BoxError>(response.body(Full::<Bytes>::from(answer))?)
        }
    });
    let classifier = ServiceBuilder::new()
        .map_request(|subject: Subject| {
            ModerationRequest::new([subject.text])
                .images(subject.images)
                .with_context(subject.context)
        })
        .map_response(|response: ActivityResponse<Vec<Moderation>>| {
            let threshold = |category: &str| (category == "violence").then_some(0.5);
            let over = |it: &Moderation| it.over(threshold);
            let categories: Vec<Str> = response.output.iter().flat_map(over).collect();
            match categories.is_empty() {
                true => Assessment::Pass,
                false => Assessment::Block(categories),
            }
        })
        .concurrency_limit(4)
        .layer(OpenAiLayer::new("omni-moderation-latest", ApiKey::new("the key")).moderation())
        .service(http);
    GuardrailLayer::new("moderation", classifier)
}

fn agent(guardrail: GuardrailLayer, model: ScriptedModel, tools: ScriptedTools) -> BoxModel {
    let stack = ServiceBuilder::new()
        .layer(guardrail)
        .layer(AgentLayer::new(tools));
    BoxModel::new(stack.service(model))
}

/// The text that a consumer receives, and the error if there is one.
async fn consume(agent: BoxModel, request: ChatRequest) -> (String, Option<Error>) {
    let response = match agent.oneshot(request).await {
        Ok(response) => response,
        Err(error) => return (String::new(), Some(error)),
    };
    let items = collect_events(response.body).await;
    let text = text_of(items.iter().filter_map(|item| item.as_ref().ok()));
    (text, items.into_iter().find_map(Result::err))
}

fn categories(error: &Error) -> &[Str] {
    &error
        .source()
        .unwrap()
        .downcast_ref::<Blocked>()
        .unwrap()
        .categories
}

#[tokio::test]
async fn an_input_that_moderation_blocks_starts_no_run() {
    for input in [Input::Blocking, Input::Parallel] {
        let asked = Asked::default();
        let model = ScriptedModel::new()
            .tool_call("look", json!({}))
            .then()
            .text("Done.");
        let tools = ScriptedTools::new().answers("look", "seen");
        let agent = agent(
            moderation(finds, &asked).input(input),
            model.clone(),
            tools.clone(),
        );
        let blocked = consume(agent.clone(), ChatRequest::user("how to attack"));
        let error = blocked.await.1.unwrap();
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::ContentFilter, Some(BLOCKED))
        );
        assert_eq!(categories(&error), ["violence"]);
        assert!(tools.calls().is_empty());
        assert_eq!(*asked.lock().unwrap(), [json!(["how to attack"])]);
        if input == Input::Blocking {
            assert_eq!(model.calls(), 0);
            let (text, error) = consume(agent, ChatRequest::user("how to look")).await;
            assert_eq!((text.as_str(), error.is_none()), ("Done.", true));
        }
    }
}

#[tokio::test]
async fn a_window_that_moderation_blocks_is_not_shown() {
    let asked = Asked::default();
    let model = ScriptedModel::new().deltas(["All is well. ", "Now att", "ack them. ", "Bye."]);
    let guardrail = moderation(finds, &asked).output(Output::windows(10, 6));
    let agent = agent(guardrail, model, ScriptedTools::new());
    let (text, error) = consume(agent, ChatRequest::user("hi")).await;
    assert_eq!(text, "All is well. ");
    assert_eq!(categories(&error.unwrap()), ["violence"]);
    let asked = asked.lock().unwrap();
    assert_eq!(asked[0], json!(["All is well. "]));
    assert_eq!(asked.len(), 2, "{asked:?}");
}

#[tokio::test]
async fn images_are_moderated_with_the_text_and_alone() {
    let image = || Media::new(MediaSource::Base64("AA==".into())).with_media_type("image/png");
    let image = || Part::new(PartKind::Image(image()));
    let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
    let text = json!({"type": "text", "text": "What is this?"});
    for (parts, input) in [
        (
            vec![Part::text("What is this?"), image()],
            json!([text, part]),
        ),
        (vec![image()], json!([part])),
    ] {
        let asked = Asked::default();
        let guardrail = moderation(|_| result(true), &asked).input(Input::Blocking);
        let model = ScriptedModel::new().text("A cat.");
        let agent = agent(guardrail, model.clone(), ScriptedTools::new());
        let mut request = ChatRequest::user("");
        request.transcript = Transcript::new();
        let message = Message::new(Role::User, parts);
        request.transcript.push(Turn::message(message).unwrap());
        let error = consume(agent, request).await.1.unwrap();
        assert_eq!((error.code(), model.calls()), (Some(BLOCKED), 0));
        assert_eq!(*asked.lock().unwrap(), [input]);
    }
}

#[tokio::test]
async fn moderation_that_fails_blocks_and_is_logged_without_the_text() {
    let (log, _guard) = LogCapture::of_thread("concentric");
    fn limited(input: &str) -> Answer {
        (
            429,
            json!({"error": {"message": format!("slow down: {input}")}}).to_string(),
        )
    }
    fn empty(_: &str) -> Answer {
        (200, json!({"results": []}).to_string())
    }
    for (judge, kind) in [
        (limited as fn(&str) -> Answer, "rate_limited"),
        (empty, "protocol"),
    ] {
        for is_open in [false, true] {
            let mut guardrail = moderation(judge, &Asked::default()).input(Input::Blocking);
            if is_open {
                guardrail = guardrail.fail_open();
            }
            let model = ScriptedModel::new().text("hi");
            let agent = agent(guardrail, model, ScriptedTools::new());
            let (text, error) = consume(agent, ChatRequest::user("a canary")).await;
            assert_eq!(text, if is_open { "hi" } else { "" });
            assert_eq!(
                error.as_ref().and_then(Error::code),
                (!is_open).then_some(FAILED)
            );
            let lines = log.take();
            assert!(lines.len() == 1 && lines[0].contains(kind), "{lines:?}");
            let message = error
                .map(|error| error.message().to_owned())
                .unwrap_or_default();
            assert!(
                !format!("{lines:?} {message}").contains("canary"),
                "{lines:?} {message}"
            );
        }
    }
}

#[tokio::test]
async fn a_run_that_is_dropped_drops_its_moderation() {
    let live = Arc::new(());
    let held = Arc::clone(&live);
    let http = service_fn(move |_: http::Request<Full<Bytes>>| {
        let held = Arc::clone(&held);
        async move {
            let _held = held;
            pending::<Result<http::Response<Full<Bytes>>, BoxError>>().await
        }
    });
    let moderation = OpenAiLayer::new("m", ApiKey::new("k"))
        .moderation()
        .layer(http);
    let classifier = moderation
        .map_request(|subject: Subject| ModerationRequest::new([subject.text]))
        .map_response(|_| Assessment::Pass);
    let guardrail = GuardrailLayer::new("moderation", classifier).input(Input::Parallel);
    let model = ScriptedModel::new().text("hi");
    let agent = agent(guardrail, model.clone(), ScriptedTools::new());
    let idle = Arc::strong_count(&live);
    let mut call = task::spawn(agent.oneshot(ChatRequest::user("hi")));
    assert_pending!(call.poll());
    assert_eq!((Arc::strong_count(&live), model.live()), (idle + 1, 1));
    // With the agent, which has moved into it.
    drop(call);
    assert_eq!((Arc::strong_count(&live), model.live()), (1, 0));
}
