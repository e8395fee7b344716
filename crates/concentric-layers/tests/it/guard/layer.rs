//! One test per statement of [`concentric_layers::guard`] about calls.

use concentric_core::{
    AgentLayer, BoxError, BoxModel, CallId, ChatOptions, ChatRequest, ChatResponse, Error,
    ErrorKind, Event, FinishReason, Message, OutputSchema, Part, PartKind, Role, SideEffects,
    SystemSegment, ToolCallDelta, ToolCallPart, ToolCallStart, ToolStatus, Transcript, Turn, Usage,
};
use concentric_layers::{
    FallbackLayer, GuardLayer, GuardrailLayer, LogLayer, Steering,
    fallback::FailedAttempts,
    guard::{BLOCKED, Found, Parts, Rule, Rules, pii, secrets},
    guardrail::{self, Input},
};
use concentric_test::{
    ScriptedModel, ScriptedTools, assert_fails, assert_finishes, check_layer, collect_events,
    drop_at_each_wait, text_of,
};
use futures_util::stream;
use serde_json::json;
use std::sync::{Arc, Mutex};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

pub(super) const SECRET: &str = "hunter2";

pub(super) fn rules() -> Rules {
    let password = Rule::literals("password", [SECRET]);
    Rules::new([
        password,
        pii::card(),
        Rule::literals("codename", ["Bluebird"]).block(),
    ])
    .unwrap()
}

fn guard() -> GuardLayer {
    GuardLayer::new(rules())
}

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    check_layer(guard()).await;
    check_layer(guard().input(Parts::ALL).output(Parts::ALL)).await;
    check_layer(guard().input(Parts::NONE).output(Parts::NONE)).await;
    check_layer(GuardLayer::new(Rules::new([]).unwrap())).await;
}

#[tokio::test]
async fn the_model_does_not_get_what_the_user_must_not_send() {
    let model = ScriptedModel::new().text("ok").repeat();
    let request = || {
        let mut request = ChatRequest::user("I am hunter2.").with_system("They are hunter2.");
        let mut image = Part::text("x");
        image.kind = concentric_core::PartKind::Image(
            concentric_core::Media::new(concentric_core::MediaSource::Url(
                "https://x/hunter2".into(),
            ))
            .with_name("hunter2.png"),
        );
        let message = Message::new(Role::User, vec![image]);
        request.transcript.push(Turn::message(message).unwrap());
        request
    };
    let seen = async |parts| {
        let guard = guard().input(parts).layer(model.clone());
        guard
            .oneshot(request())
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        format!("{:?}", model.requests().pop().unwrap())
    };
    let debug = seen(Parts::USER).await;
    assert_eq!(debug.matches(SECRET).count(), 1, "{debug}");
    assert!(debug.contains("[password].png"), "{debug}");
    let debug = seen(Parts::USER | Parts::SYSTEM).await;
    assert!(!debug.contains(SECRET), "{debug}");
    let debug = seen(Parts::NONE).await;
    assert_eq!(debug.matches(SECRET).count(), 4, "{debug}");
}

#[tokio::test]
async fn a_system_prompt_keeps_its_stability() {
    let model = ScriptedModel::new().text("ok");
    let mut request = ChatRequest::user("hi");
    let segment = SystemSegment::new(SECRET).stable_for(concentric_core::Stability::Run);
    request.system.push(segment);
    let layer = guard().input(Parts::SYSTEM);
    layer.layer(model.clone()).oneshot(request).await.unwrap();
    let system = model.request(0).system;
    let segment = system.iter().next().unwrap();
    assert_eq!(
        (segment.text.as_str(), segment.stability),
        ("[password]", concentric_core::Stability::Run)
    );
}

#[tokio::test]
async fn unchanged_turns_stay_shared_over_the_steps_of_a_run() {
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let matches = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&matches);
    let layer = guard()
        .input(Parts::USER | Parts::RESULTS)
        .on_match(move |_: Found<'_>| *counter.lock().unwrap() += 1);
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("look", "It is hunter2."),
        ))
        .layer(layer)
        .service(model.clone());
    let mut transcript = Transcript::new();
    transcript.push_user("first");
    transcript.push_user("I am hunter2.");
    let finish = agent
        .oneshot(ChatRequest::new(transcript.clone()))
        .await
        .unwrap();
    let finish = finish.collect().await.unwrap().finish;
    let requests = model.requests();
    assert!(requests[0].transcript.extends(&transcript.prefix(1)));
    assert!(requests[1].transcript.extends(&requests[0].transcript));
    assert!(requests[2].transcript.extends(&requests[1].transcript));
    for request in &requests {
        assert!(!format!("{:?}", request.transcript).contains(SECRET));
    }
    // The user's message and two results, each once.
    assert_eq!(*matches.lock().unwrap(), 3);
    // Inside the loop, a changed request is a view.
    assert!(finish.transcript.unwrap().extends(&transcript));
}

/// The texts of the messages in a request.
fn texts(request: &ChatRequest) -> Vec<String> {
    let mut texts: Vec<String> = request
        .transcript
        .rev()
        .map(|turn| turn.as_message().text())
        .collect();
    texts.reverse();
    texts
}

#[tokio::test]
async fn a_later_turn_is_edited_among_unchanged_ones() {
    let model = ScriptedModel::new().text("ok").repeat();
    let guard = guard().layer(model.clone());
    let first = ChatRequest::user("first");
    let mut second = first.clone();
    let answer = Message::new(Role::Assistant, vec![Part::text("an answer")]);
    second.transcript.push(Turn::message(answer).unwrap());
    second.transcript.push_user("I am hunter2.");
    for request in [&first, &second, &second] {
        guard.clone().oneshot(request.clone()).await.unwrap();
    }
    assert_eq!(texts(&model.request(0)), ["first"]);
    let edited = ["first", "an answer", "I am [password]."];
    assert_eq!(texts(&model.request(1)), edited);
    assert_eq!(texts(&model.request(2)), edited);
    assert!(model.request(1).transcript.extends(&first.transcript));
}

#[tokio::test]
async fn a_conversation_that_is_not_continued_is_edited_as_a_whole() {
    let model = ScriptedModel::new().text("ok").repeat();
    let guard = guard().layer(model.clone());
    let mut first = ChatRequest::user("I am hunter2.");
    first.transcript.push_user("And you?");
    // Another branch, and one that ends before.
    let mut second = first.clone();
    second.transcript = Transcript::new();
    second.transcript.push_user("You are hunter2.");
    second.transcript.push_user("hunter2!");
    let mut third = first.clone();
    third.transcript = first.transcript.prefix(1);
    for request in [&first, &second, &third] {
        guard.clone().oneshot(request.clone()).await.unwrap();
    }
    assert_eq!(texts(&model.request(0)), ["I am [password].", "And you?"]);
    assert_eq!(
        texts(&model.request(1)),
        ["You are [password].", "[password]!"]
    );
    assert_eq!(texts(&model.request(2)), ["I am [password]."]);
}

#[tokio::test]
async fn two_guards_of_one_run_edit_the_same_turns() {
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let literal = |name: &'static str, text| {
        let rules = Rules::new([Rule::literals(name, [text])]).unwrap();
        GuardLayer::new(rules).input(Parts::USER | Parts::RESULTS)
    };
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("look", "Ann is hunter2."),
        ))
        .layer(literal("none", "nothing"))
        .layer(literal("name", "Ann"))
        .layer(guard().input(Parts::USER | Parts::RESULTS))
        .service(model.clone());
    let answer = agent.oneshot(ChatRequest::user("Is Ann hunter2?")).await;
    answer.unwrap().collect().await.unwrap();
    for request in model.requests() {
        assert_eq!(
            request
                .transcript
                .iter()
                .next()
                .map(|turn| turn.as_message().text())
                .as_deref(),
            Some("Is [name] [password]?")
        );
    }
    let turn = model.request(1).transcript.last().unwrap().clone();
    assert_eq!(
        turn.results()[0].outcome.content.text(),
        "[name] is [password]."
    );
}

#[tokio::test]
async fn a_blocked_input_calls_nothing() {
    let model = ScriptedModel::new().text("hi").repeat();
    let request = || ChatRequest::user("What is Bluebird?");
    let error = guard()
        .layer(model.clone())
        .oneshot(request())
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::ContentFilter, Some(BLOCKED))
    );
    assert_eq!(error.message(), "the rule `codename` blocked the text");
    let layer = guard().block_with("No.");
    let answer = layer.layer(model.clone()).oneshot(request()).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(
        (answer.text().as_str(), answer.finish.reason),
        ("No.", FinishReason::ContentFilter)
    );
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn a_blocked_input_is_blocked_in_every_call_of_the_run() {
    let matches = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&matches);
    let model = ScriptedModel::new().text("hi").repeat();
    let layer = guard().on_match(move |_: Found<'_>| *counter.lock().unwrap() += 1);
    let model_of_run = layer.layer(model.clone());
    let request = ChatRequest::user("What is Bluebird?");
    for _ in 0..3 {
        let error = model_of_run
            .clone()
            .oneshot(request.clone())
            .await
            .unwrap_err();
        assert_eq!(error.code(), Some(BLOCKED));
    }
    assert_eq!((model.calls(), *matches.lock().unwrap()), (0, 3));
}

#[tokio::test]
async fn a_blocked_input_stays_blocked_if_the_run_continues() {
    let model = ScriptedModel::new().text("hi").repeat();
    let steering = Steering::new(1);
    steering.when_idle(Message::user("And now?")).unwrap();
    let matches = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&matches);
    let layer = guard().on_match(move |_: Found<'_>| *counter.lock().unwrap() += 1);
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new()).gate(steering.gate()))
        .layer(layer.block_with("No."))
        .service(model.clone());
    let request = ChatRequest::user("What is Bluebird?");
    let answer = agent.oneshot(request).await.unwrap();
    answer.collect().await.unwrap();
    // In each of two steps.
    assert_eq!((*matches.lock().unwrap(), model.calls()), (2, 0));
}

#[tokio::test]
async fn an_answer_that_is_blocked_before_content_fails_the_future() {
    let model = ScriptedModel::new().deltas(["Blue", "bird", "!"]);
    let error = guard()
        .layer(model)
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(BLOCKED));
}

#[tokio::test]
async fn a_blocked_text_is_replaced_and_the_text_before_it_released() {
    let pieces = ["It ", "is Blue", "bird, in", "deed"];
    for pieces in [&pieces[..], &[&pieces.concat()]] {
        let model = ScriptedModel::new().deltas(pieces.to_vec());
        let layer = guard().block_with("…");
        let body = layer
            .layer(model.clone())
            .oneshot(ChatRequest::user("hi"))
            .await
            .unwrap()
            .body;
        let (events, finish) = assert_finishes(body).await;
        assert_eq!(text_of(&events), "It is …");
        assert_eq!(finish.reason, FinishReason::ContentFilter);
        assert_eq!(model.live(), 0);
    }
}

#[tokio::test]
async fn a_blocked_tool_call_is_not_executed() {
    let model = ScriptedModel::new()
        .text("Wait.")
        .tool_call("look", json!({"at": "Bluebird"}));
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .layer(guard().output(Parts::ARGUMENTS))
        .service(model);
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (events, error) = assert_fails(body).await;
    assert_eq!(error.code(), Some(BLOCKED));
    assert_eq!(error.effects(), SideEffects::None);
    assert_eq!(tools.calls().len(), 0);
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, Event::ToolCall(_)))
    );
}

#[tokio::test]
async fn a_blocked_tool_call_leaves_no_open_round() {
    let model = ScriptedModel::new()
        .tool_call("look", json!({"at": "home"}))
        .then()
        .text("Wait.")
        .tool_call("look", json!({"at": "home"}))
        .tool_call("look", json!({"at": "Bluebird"}))
        .then()
        .text("Done.");
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .layer(guard().output(Parts::ARGUMENTS).block_with("No."))
        .service(model);
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (events, finish) = assert_finishes(body).await;
    assert_eq!(text_of(&events), "Wait.No.Done.");
    let transcript = finish.transcript.unwrap();
    assert!(!format!("{transcript:?}").contains("Bluebird"));
    // Every call of the transcript has a result, and every result of a tool a call.
    let open = transcript.iter().map(|turn| {
        let parts = turn.as_message().parts.iter();
        let calls = parts.filter(|part| matches!(part.kind, PartKind::ToolCall(_)));
        (calls.count(), turn.results().len())
    });
    let open: Vec<_> = open.collect();
    assert!(
        open.iter().all(|(calls, results)| calls == results),
        "{open:?}"
    );
    assert_eq!(
        open.iter().map(|(calls, _)| calls).sum::<usize>(),
        tools.calls().len()
    );
}

#[tokio::test]
async fn a_tool_gets_the_changed_call() {
    let model = ScriptedModel::new()
        .tool_call(
            "look",
            "{\"card\":4111111111111111,\"who\": \"h\\u0075nter2\", \"n\": 1e400}",
        )
        .then()
        .text("Done.");
    let tools = ScriptedTools::new().answers("look", "seen");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .layer(guard().output(Parts::ARGUMENTS))
        .service(model);
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (events, finish) = assert_finishes(body).await;
    let changed = "{\"card\":\"[card]\",\"who\": \"[password]\", \"n\": 1e400}";
    let call = events.iter().find_map(|event| match event {
        Event::ToolCall(call) => Some(call.call.arguments.as_str()),
        _ => None,
    });
    assert_eq!(call, Some(changed));
    assert_eq!(tools.calls()[0].arguments.as_str(), changed);
    assert!(!format!("{finish:?}").contains("4111"));
}

#[tokio::test]
async fn the_text_of_an_error_is_redacted() {
    let error = Error::new(ErrorKind::Server, "no answer to hunter2")
        .with_code("not_hunter2")
        .with_type("t")
        .with_source(Error::new(ErrorKind::Other, SECRET));
    let model = ScriptedModel::new()
        .error(error.clone())
        .then()
        .text("a hunter")
        .error(error);
    let guard = guard().layer(model);
    let error = guard
        .clone()
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap_err();
    assert_eq!(format!("{error:#}"), "server: no answer to [password]");
    assert_eq!(
        (error.kind(), error.code(), error.error_type()),
        (ErrorKind::Server, Some("not_[password]"), Some("t"))
    );
    let body = guard.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (events, error) = assert_fails(body).await;
    assert_eq!(text_of(&events), "a hunter");
    assert_eq!(error.message(), "no answer to [password]");
}

#[tokio::test]
async fn errors_of_other_models_are_redacted() {
    let error = Error::new(ErrorKind::Overloaded, "busy for hunter2").with_code("hunter2");
    let other = ScriptedModel::new().text("Hi.");
    let model = FallbackLayer::new("a")
        .or("b", other)
        .layer(ScriptedModel::new().error(error));
    let answer = guard().layer(model).oneshot(ChatRequest::user("hi"));
    let answer = answer.await.unwrap();
    let failed: &FailedAttempts = answer.extensions.get().unwrap();
    assert!(failed.to_string().contains("busy for [password]"));
    assert!(!format!("{failed:?}").contains(SECRET));
}

#[tokio::test]
async fn the_start_of_a_call_does_not_end_a_text() {
    let start = |index, id| {
        let start = ToolCallStart::new(index, CallId::new(id), "t");
        Event::ToolCallStart(Box::new(start))
    };
    let arguments = |index| Event::ToolCallDelta(ToolCallDelta::new(index, "{}"));
    let call = |id| Event::tool_call(ToolCallPart::new(CallId::new(id), "t", "{}"));
    for output in [Parts::TEXT, Parts::TEXT | Parts::ARGUMENTS] {
        let model = ScriptedModel::new().events([
            start(0, "a"),
            arguments(0),
            Event::text("It is hun"),
            start(1, "b"),
            arguments(1),
            Event::text("ter2."),
            call("a"),
            call("b"),
            Event::finish(FinishReason::ToolCalls, Usage::default()),
        ]);
        let layer = guard().output(output);
        let answer = layer.layer(model).oneshot(ChatRequest::user("hi"));
        let (events, _) = assert_finishes(answer.await.unwrap().body).await;
        assert_eq!(text_of(&events), "It is [password].");
        let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
        let starts = count(|it| matches!(it, Event::ToolCallStart(_)));
        let pieces = count(|it| matches!(it, Event::ToolCallDelta(_)));
        let calls = count(|it| matches!(it, Event::ToolCall(_)));
        assert_eq!([starts, pieces, calls], [2; 3], "{events:?}");
    }
}

#[tokio::test]
async fn a_reason_of_the_provider_is_redacted() {
    let reason = FinishReason::Other(SECRET.into());
    let events = [Event::text("Hi."), Event::finish(reason, Usage::default())];
    let model = ScriptedModel::new().events(events).repeat();
    let answer = guard()
        .layer(model.clone())
        .oneshot(ChatRequest::user("hi"));
    let events = assert_finishes(answer.await.unwrap().body).await;
    assert!(!format!("{events:?}").contains(SECRET), "{events:?}");

    // Those of an agent's steps.
    let agent = AgentLayer::new(ScriptedTools::new()).layer(model);
    let answer = guard().layer(agent).oneshot(ChatRequest::user("hi"));
    let (events, finish) = assert_finishes(answer.await.unwrap().body).await;
    let is_step = |event: &Event| matches!(event, Event::StepFinish(_));
    assert!(events.iter().any(is_step));
    let seen = format!("{events:?} {:?}", finish.reason);
    assert!(!seen.contains(SECRET), "{seen}");
}

#[tokio::test]
async fn an_error_is_unchanged_unless_texts_are_covered() {
    let source = Error::new(ErrorKind::Other, "by hunter2");
    let error = Error::new(ErrorKind::Server, "no answer to hunter2").with_source(source);
    let chain = format!("{error:#}");
    let model = ScriptedModel::new().error(error.clone()).then().text("a");
    let model = model.error(error);
    let layer = guard().output(Parts::REASONING | Parts::RESULTS);
    let guard = layer.layer(model);
    let request = || ChatRequest::user("hi");
    let error = guard.clone().oneshot(request()).await.unwrap_err();
    assert_eq!(format!("{error:#}"), chain);
    let body = guard.oneshot(request()).await.unwrap().body;
    let (_, error) = assert_fails(body).await;
    assert_eq!(format!("{error:#}"), chain);
}

#[tokio::test]
async fn a_text_is_put_in_place_of_matches_only() {
    let layer = guard().block_with("No.").limit(4);
    // An error of the model, also one of another guard.
    for code in ["busy", BLOCKED] {
        let error = Error::new(ErrorKind::ContentFilter, "no").with_code(code);
        let model = ScriptedModel::new().error(error.clone()).then();
        let guard = layer.layer(model.text("a ").error(error));
        let request = || ChatRequest::user("hi");
        let error = guard.clone().oneshot(request()).await.unwrap_err();
        assert_eq!(error.code(), Some(code));
        let body = guard.oneshot(request()).await.unwrap().body;
        let (events, error) = assert_fails(body).await;
        assert_eq!(
            (text_of(&events).as_str(), error.code()),
            ("a ", Some(code))
        );
    }
    // The limit of a typed answer.
    let mut request = ChatRequest::user("hi");
    let schema = OutputSchema::new("answer", json!({"type": "object"}));
    request.options_mut().output_schema = Some(schema);
    let guard = layer.layer(ScriptedModel::new().text("{\"a\": 1}"));
    let error = guard.oneshot(request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}

#[tokio::test]
async fn an_error_after_a_tool_reports_its_effects() {
    let run = async |tool: Option<&str>, answer: &str, error: Option<Error>| {
        let mut model = ScriptedModel::new();
        if let Some(tool) = tool {
            model = model.tool_call(tool, json!({})).then();
        }
        model = model.text(answer);
        if let Some(error) = error {
            model = model.error(error);
        }
        let tools = ScriptedTools::new().answers("delete", "deleted");
        let agent = guard().layer(AgentLayer::new(tools).layer(model));
        let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
        let (_, error) = assert_fails(body).await;
        (
            error.code() == Some(BLOCKED),
            error.effects() == SideEffects::None,
        )
    };
    let lost = || Some(Error::new(ErrorKind::Connection, "lost"));
    assert_eq!(
        run(Some("delete"), "It was Bluebird.", None).await,
        (true, false)
    );
    assert_eq!(run(Some("delete"), "It was ", lost()).await, (false, false));
    assert_eq!(run(None, "It was Bluebird.", None).await, (true, true));
    assert_eq!(run(None, "It was ", lost()).await, (false, true));
}

#[tokio::test]
async fn an_error_that_was_replaced_inside_reports_the_effects_of_the_run() {
    let inner = service_fn(async |request: ChatRequest| {
        request.context.count_effect();
        let lost = Error::new(ErrorKind::Connection, "lost");
        let items = [Ok(Event::TextDelta("It was ".into())), Err(lost)];
        Ok::<_, BoxError>(ChatResponse::new(stream::iter(items)))
    });
    let answer = guard().layer(inner).oneshot(ChatRequest::user("hi")).await;
    let (_, error) = assert_fails(answer.unwrap().body).await;
    assert_eq!(error.effects(), SideEffects::Possible);
}

#[tokio::test]
async fn a_source_of_an_error_is_removed_if_a_rule_matches_in_it() {
    let source = |text: &str| Error::new(ErrorKind::Other, text.to_owned());
    let error = |text: &str| {
        let inner = source("outer").with_source(source(text));
        Error::new(ErrorKind::Server, "no answer").with_source(inner)
    };
    let model = ScriptedModel::new()
        .error(error("hunter2"))
        .then()
        .error(error("hunter3"));
    let guard = guard().layer(model);
    let seen = async || {
        let request = ChatRequest::user("hi");
        let error = guard.clone().oneshot(request).await.unwrap_err();
        (format!("{error:#}"), format!("{error:?}").contains(SECRET))
    };
    assert_eq!(seen().await, ("server: no answer".to_owned(), false));
    let (chain, _) = seen().await;
    assert!(chain.contains("hunter3"), "{chain}");
}

#[tokio::test]
async fn half_a_surrogate_pair_hides_nothing() {
    let bad = r#"{"a": "\ud800", "who": "hunt\u0065r2", "n": ["\udc00x", 4111111111111111]}"#;
    let good = r#"{"a": "\ud800", "who": "[password]", "n": ["\udc00x", "[card]"]}"#;
    // A result.
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(ScriptedTools::new().answers("look", bad)))
        .layer(guard().input(Parts::RESULTS))
        .service(model.clone());
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    answer.collect().await.unwrap();
    let turn = model.request(1).transcript.last().unwrap().clone();
    let outcome = &turn.results()[0].outcome;
    assert_eq!(outcome.content.text(), good);
    // A typed answer.
    let mut request = ChatRequest::user("hi");
    let schema = OutputSchema::new("answer", json!({"type": "object"}));
    request.options_mut().output_schema = Some(schema);
    let answer = async |text: &str| {
        let model = ScriptedModel::new().deltas([text.to_owned()]);
        let guarded = guard().layer(model).oneshot(request.clone()).await?;
        guarded.text().await
    };
    assert_eq!(answer(bad).await.unwrap(), good);
    let error = answer(r#"{"a": "\ud800", "b": "Bluebird"}"#)
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(BLOCKED));
}

#[tokio::test]
async fn a_typed_answer_stays_json() {
    let pieces = [
        "{\"card\": 4111",
        "111111111111, \"who\": \"h\\u00",
        "75nter2\"}",
    ];
    let len = pieces.concat().len();
    let mut request = ChatRequest::user("hi");
    let schema = OutputSchema::new("answer", json!({"type": "object"}));
    let options: &mut ChatOptions = request.options_mut();
    options.output_schema = Some(schema);
    let answer = async |layer: GuardLayer| {
        let model = ScriptedModel::new().deltas(pieces);
        layer
            .layer(model)
            .oneshot(request.clone())
            .await?
            .text()
            .await
    };
    let text = answer(guard()).await.unwrap();
    assert_eq!(text, "{\"card\": \"[card]\", \"who\": \"[password]\"}");
    assert_eq!(answer(guard().limit(len)).await.unwrap(), text);
    let error = answer(guard().limit(len - 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(
        answer(guard().output(Parts::NONE)).await.unwrap(),
        pieces.concat()
    );
}

#[tokio::test]
async fn a_reset_drops_the_held_text_of_a_typed_answer() {
    let mut request = ChatRequest::user("hi");
    let schema = OutputSchema::new("answer", json!({"type": "object"}));
    request.options_mut().output_schema = Some(schema);
    let model = ScriptedModel::new().events([
        Event::TextDelta("{\"a\": 1".into()),
        Event::Reset,
        Event::TextDelta("{\"b\": 2}".into()),
        Event::finish(FinishReason::Stop, Usage::default()),
    ]);
    let answer = guard().layer(model).oneshot(request).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "{\"b\": 2}");
}

#[tokio::test]
async fn matches_are_reported_without_their_text() {
    let found = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&found);
    let layer = guard().on_match(move |found: Found<'_>| {
        seen.lock()
            .unwrap()
            .push((found.rule.name().to_owned(), found.part, found.len));
        panic!("an observer that panics");
    });
    let model = ScriptedModel::new()
        .reasoning(SECRET)
        .deltas(["4111 1111 1", "111 1111"]);
    layer
        .layer(model)
        .oneshot(ChatRequest::user(SECRET))
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    let expected = [
        ("password".to_owned(), Parts::USER, 7),
        ("password".to_owned(), Parts::REASONING, 7),
        ("card".to_owned(), Parts::TEXT, 19),
    ];
    assert_eq!(*found.lock().unwrap(), expected);
}

#[tokio::test]
async fn the_name_of_a_field_is_reported_once() {
    let found = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&found);
    let layer = guard().output(Parts::ALL);
    let layer = layer.on_match(move |_: Found<'_>| *seen.lock().unwrap() += 1);
    let value = json!({SECRET: "x", "y": ["z", 1]});
    let model = ScriptedModel::new().events([
        Event::tool_call(ToolCallPart::new(CallId::new("c"), "t", value.clone())),
        Event::State(Arc::new(value)),
        Event::finish(FinishReason::Stop, Usage::default()),
    ]);
    let guard = layer.layer(model);
    let answer = guard.oneshot(ChatRequest::user("hi")).await.unwrap();
    answer.collect().await.unwrap();
    // In the call, and in the state.
    assert_eq!(*found.lock().unwrap(), 2);
}

#[tokio::test]
async fn a_match_that_is_only_flagged_is_reported_and_released() {
    let deltas = ["An ", "ann@example.com ", "and bob@exam", "ple.com."];
    let found = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&found);
    let rules = Rules::new([pii::email().flag()]).unwrap();
    let layer = GuardLayer::new(rules).on_match(move |_: Found<'_>| *seen.lock().unwrap() += 1);
    let model = ScriptedModel::new().deltas(deltas);
    let guard = layer.layer(model);
    let answer = guard.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), deltas.concat());
    assert_eq!(*found.lock().unwrap(), 2);
}

#[tokio::test]
async fn replies_and_messages_that_resume_a_run_are_input() {
    use concentric_core::{InterruptId, Reply};
    let model = ScriptedModel::new().text("ok");
    let reply = Reply::deny(InterruptId::new("i"), "because hunter2");
    let mut request = ChatRequest::replying(vec![reply]);
    let resume = request.resume.take().unwrap();
    request.set_resume(resume.with_messages(vec![Message::user("It is hunter2.")]));
    guard().layer(model.clone()).oneshot(request).await.unwrap();
    let resume = model.request(0).resume.unwrap();
    assert_eq!(resume.messages()[0].text(), "It is [password].");
    let (_, replies) = resume.take().unwrap();
    let payload = replies[0].payload.as_ref().unwrap();
    assert_eq!(payload["reason"], "because [password]");
}

#[tokio::test]
async fn rules_are_a_classifier() {
    let model = ScriptedModel::new().text("ok").repeat();
    let layer = GuardrailLayer::new("rules", rules()).input(Input::Blocking);
    let guard = layer.layer(model.clone());
    for (text, code) in [
        ("hi", None),
        (SECRET, None),
        ("Bluebird", Some(guardrail::BLOCKED)),
    ] {
        let error = guard.clone().oneshot(ChatRequest::user(text)).await.err();
        assert_eq!(error.as_ref().and_then(Error::code), code, "{text}");
    }
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn a_layer_outside_the_guard_logs_what_it_releases() {
    let rules = Rules::new(
        secrets::all()
            .into_iter()
            .chain([Rule::literals("password", [SECRET])]),
    );
    let rules = rules.unwrap();
    let (log, _guard) = crate::log::Lines::of_thread(tracing::Level::TRACE);
    let model = ScriptedModel::new().deltas(["It is hun", "ter2."]);
    let agent = ServiceBuilder::new()
        .layer(LogLayer::verbose().content(1_000))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .layer(GuardLayer::new(rules.clone()))
        .layer(
            LogLayer::standard()
                .content(1_000)
                .redact(move |text| rules.apply(text).into_owned()),
        )
        .service(model);
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert!(!format!("{answer:?}").contains(SECRET));
    let lines = log.take().join("\n");
    assert!(lines.contains("[password]"), "{lines}");
    assert!(!lines.contains("hunter2"), "{lines}");
}

#[tokio::test(start_paused = true)]
async fn dropping_at_each_wait_drops_the_inner_call() {
    let model = ScriptedModel::new()
        .pause()
        .deltas(["hun", "ter"])
        .pause()
        .text("2")
        .pause()
        .repeat();
    let run = || async {
        let guarded = BoxModel::new(guard().layer(model.clone()));
        let response = guarded.oneshot(ChatRequest::user("hi")).await.unwrap();
        collect_events(response.body).await
    };
    let drops = drop_at_each_wait(run, async |_| assert_eq!(model.live(), 0)).await;
    assert!(drops > 2, "{drops}");
}

#[tokio::test]
async fn the_outcome_of_a_failed_tool_is_covered() {
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let agent = ServiceBuilder::new()
        .layer(guard().output(Parts::RESULTS))
        .layer(AgentLayer::new(
            ScriptedTools::new().answers("look", "no: hunter2"),
        ))
        .service(model);
    let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    let (events, finish) = assert_finishes(body).await;
    let result = events.iter().find_map(|event| match event {
        Event::ToolResult(result) => Some(&result.outcome),
        _ => None,
    });
    let result = result.unwrap();
    assert_eq!(
        (result.status, &*result.content.text()),
        (ToolStatus::Done, "no: [password]")
    );
    // The history is that of the agent.
    assert!(format!("{:?}", finish.transcript).contains(SECRET));
}

#[tokio::test]
async fn a_secret_in_json_inside_of_json_is_covered() {
    let rules = Rules::new(secrets::all().into_iter().chain(pii::all())).unwrap();
    let key = "Zx8kQ2mN7pR4tV1wY6bC3dF9";
    let openai = ["sk-proj-", key].concat();
    for (before, secret, after) in [
        ("keys: ", openai.as_str(), ""),
        ("keys:\n", &openai, "\n"),
        ("keys:\t", &openai, "\t"),
        ("keys:\r\n", &openai, "/"),
        ("keys:\\", &openai, "\\"),
        ("card:\n", "4111111111111111", ""),
        ("id\n", "AKIAIOSFODNN7EXAMPLE", ""),
        ("url\npostgres://u:", "hunter2hunter2", "@h/db"),
        ("host\n", "203.0.113.7", ""),
        ("{\"api_key\": \"", key, "\"}"),
        ("[\n\"x\",{\"password\":\"", key, "\"}]"),
    ] {
        let mut text = [before, secret, after].concat();
        for depth in 0..3 {
            text = json!({ "status": 200, "body": text }).to_string();
            let tools = ScriptedTools::new().answers("http_get", text.as_str());
            let calls = ScriptedModel::new().tool_call("http_get", json!({}));
            let model = calls.then().text("ok");
            let agent = ServiceBuilder::new()
                .layer(AgentLayer::new(tools))
                .layer(GuardLayer::new(rules.clone()).input(Parts::ALL))
                .service(model.clone());
            let answer = agent.oneshot(ChatRequest::user("x")).await.unwrap();
            answer.text().await.unwrap();
            let sent = serde_json::to_string(&model.request(1).transcript).unwrap();
            assert!(sent.contains("http_get"), "{sent}");
            assert!(!sent.contains(secret), "{depth}: {sent}");
            // As a text of the model.
            let pieces: Vec<String> = text.chars().map(String::from).collect();
            let pieces = pieces.iter().map(String::as_str);
            let model = GuardLayer::new(rules.clone()).layer(ScriptedModel::new().deltas(pieces));
            let answer = model.oneshot(ChatRequest::user("x")).await.unwrap();
            let shown = answer.text().await.unwrap();
            assert!(!shown.contains(secret), "{depth}: {shown}");
            let is_json = serde_json::from_str::<serde_json::Value>(&shown).is_ok();
            assert!(is_json, "{depth}: {shown}");
        }
    }
}
