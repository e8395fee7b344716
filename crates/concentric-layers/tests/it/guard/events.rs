//! Every event that can carry text.

use super::layer::{SECRET, rules};
use concentric_core::{
    CallId, ChatRequest, CustomEvent, Error, ErrorKind, Event, Finish, FinishReason, Media,
    MediaSource, Message, MessageId, Outcome, Part, PartEnd, PartKind, ProviderData, Role, Round,
    RunId, StepFinish, StepStart, Str, SubAgentEvent, ToolCallDelta, ToolCallEvent, ToolCallPart,
    ToolCallStart, ToolOutcome, ToolResult, Transcript, Turn, Usage,
};
use concentric_layers::{
    GuardLayer,
    guard::{Parts, Rule, Rules},
};
use concentric_test::{ScriptedModel, collect_events};
use serde_json::json;
use std::sync::Arc;
use tower::{Layer, ServiceExt};

/// The events of a guarded answer.
async fn guarded(output: Parts, events: Vec<Event>) -> Vec<Event> {
    let layer = GuardLayer::new(rules()).output(output);
    let model = ScriptedModel::new().events(events);
    let response = layer.layer(model).oneshot(ChatRequest::user("hi"));
    let items = collect_events(response.await.unwrap().body).await;
    items.into_iter().map(|item| item.unwrap()).collect()
}

fn call() -> ToolCallPart {
    ToolCallPart::new(
        CallId::new("c"),
        SECRET,
        json!({"a": SECRET, SECRET: [SECRET]}),
    )
}

fn outcome() -> ToolOutcome {
    let image = Media::new(MediaSource::Url("https://x/hunter2".into())).with_name(SECRET);
    let parts = vec![Part::text(SECRET), Part::new(PartKind::Image(image))];
    ToolOutcome::done(parts)
        .with_data(json!({SECRET: SECRET}))
        .and_halt(SECRET)
}

fn conversation() -> Transcript {
    let mut call = call();
    call.name = "t".into();
    let message = Message::new(
        Role::Assistant,
        vec![
            Part::text(SECRET),
            Part::new(PartKind::Reasoning(SECRET.into())),
            Part::new(PartKind::Refusal(SECRET.into())),
            Part::new(PartKind::ToolCall(call)),
        ],
    );
    let result = ToolResult::new(CallId::new("c"), "t", outcome());
    let round = Round::new(message, vec![result]).unwrap();
    let mut transcript = Transcript::new();
    transcript.push_user(SECRET);
    transcript.push(Turn::message(Message::new(Role::System, vec![Part::text(SECRET)])).unwrap());
    transcript.push(round);
    transcript
}

fn data() -> ProviderData {
    ProviderData::new("p", json!({"raw": [SECRET]}))
}

/// One event of each kind, with the secret wherever it has text.
fn all() -> Vec<Event> {
    let delta = |index| Event::ToolCallDelta(ToolCallDelta::new(index, SECRET));
    let start = ToolCallStart::new(0, CallId::new("c"), SECRET);
    let mut finish = Finish::new(FinishReason::Stop, Usage::default());
    finish.outcome = Outcome::Halted {
        reason: SECRET.into(),
    };
    finish.transcript = Some(conversation());
    let part = |kind| Event::Part(Box::new(Part::new(kind)));
    vec![
        Event::StepStart(Box::new(StepStart::new(0, MessageId::new("m")))),
        Event::TextDelta("hun".into()),
        Event::TextDelta("ter2 hunt".into()),
        Event::ReasoningDelta(SECRET.into()),
        Event::PartEnd(Box::new(PartEnd::new(Some(Arc::new(data()))))),
        Event::RefusalDelta(SECRET.into()),
        part(PartKind::Text(SECRET.into())),
        part(PartKind::Reasoning(SECRET.into())),
        part(PartKind::Refusal(SECRET.into())),
        part(PartKind::Image(Media::new(MediaSource::Url(
            "https://h/hunter2".into(),
        )))),
        part(PartKind::File(
            Media::new(MediaSource::Id("f".into())).with_name(SECRET),
        )),
        part(PartKind::Provider(data())),
        Event::ToolCallStart(Box::new(start)),
        delta(0),
        Event::ToolCall(Box::new(ToolCallEvent::new(call(), Some(Arc::new(data()))))),
        Event::ToolResult(Box::new(ToolResult::new(
            CallId::new("c"),
            SECRET,
            outcome(),
        ))),
        Event::State(Arc::new(json!({SECRET: [SECRET, 1, null]}))),
        Event::from(CustomEvent::new("x", json!({"a": {SECRET: SECRET}}))),
        Event::TranscriptReplaced(conversation()),
        Event::StepFinish(Box::new(StepFinish::new(
            0,
            FinishReason::Stop,
            Usage::default(),
        ))),
        Event::Resumed,
        Event::Finish(Box::new(finish)),
    ]
}

fn nested(event: Event) -> Event {
    let agent = Some(Str::from("sub"));
    let event = SubAgentEvent::new(RunId::new("r"), agent, Some(CallId::new("c")), event);
    Event::SubAgent(Box::new(event))
}

#[tokio::test]
async fn every_event_with_text_is_covered() {
    let events = guarded(Parts::ALL, all()).await;
    for event in &events {
        let debug = format!("{event:?}");
        assert!(!debug.contains(SECRET), "{debug}");
    }
    // The part of the provider is removed; of the others, none is.
    assert_eq!(events.len(), all().len() - 1);
}

#[tokio::test]
async fn every_event_of_a_nested_run_is_covered() {
    for depth in 1..3 {
        let mut events = all();
        for _ in 0..depth {
            events = events.into_iter().map(nested).collect();
        }
        events.push(Event::finish(FinishReason::Stop, Usage::default()));
        let events = guarded(Parts::ALL, events).await;
        for event in &events {
            let debug = format!("{event:?}");
            assert!(!debug.contains(SECRET), "{debug}");
        }
        assert_eq!(events.len(), all().len());
        let is_nested = |event: &&Event| matches!(event, Event::SubAgent(_));
        assert_eq!(events.iter().filter(is_nested).count(), events.len() - 1);
    }
}

#[tokio::test]
async fn without_parts_events_pass_unchanged() {
    assert_eq!(guarded(Parts::NONE, all()).await, all());
}

#[tokio::test]
async fn each_part_covers_its_own_events_only() {
    let secrets = |events: &[Event]| format!("{events:?}").matches(SECRET).count();
    let before = secrets(&all());
    for part in [
        Parts::TEXT,
        Parts::REASONING,
        Parts::REFUSAL,
        Parts::ARGUMENTS,
        Parts::RESULTS,
        Parts::CUSTOM,
        Parts::PROVIDER_DATA,
        Parts::TRANSCRIPT,
    ] {
        let after = secrets(&guarded(part, all()).await);
        assert!(0 < after && after < before, "{part:?}: {after} of {before}");
    }
}

#[tokio::test]
async fn a_changed_part_loses_its_signature_and_an_unchanged_one_keeps_it() {
    let end = || {
        Event::PartEnd(Box::new(PartEnd::new(Some(Arc::new(ProviderData::new(
            "p",
            json!("s"),
        ))))))
    };
    let events = vec![
        Event::ReasoningDelta("hunt".into()),
        Event::ReasoningDelta("er2".into()),
        end(),
        Event::ReasoningDelta("hunt".into()),
        end(),
        Event::finish(FinishReason::Stop, Usage::default()),
    ];
    let events = guarded(Parts::REASONING, events).await;
    let ends: Vec<bool> = events
        .iter()
        .filter_map(|event| match event {
            Event::PartEnd(end) => Some(end.provider_data.is_some()),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [false, true]);
}

#[tokio::test]
async fn a_changed_complete_part_loses_its_signature() {
    let signed = |kind| {
        let mut part = Part::new(kind);
        part.provider_data = Some(Arc::new(ProviderData::new("p", json!("s"))));
        part
    };
    let file = Media::new(MediaSource::Id("f".into())).with_name(SECRET);
    let parts = [
        signed(PartKind::Text(SECRET.into())),
        signed(PartKind::Reasoning(SECRET.into())),
        signed(PartKind::File(file)),
        signed(PartKind::Text("hunter3".into())),
        signed(PartKind::Refusal(SECRET.into())),
        signed(PartKind::ToolCall(call())),
    ];
    let expected = [false, false, false, true, true, true];
    let events = parts.iter().map(|part| Event::Part(Box::new(part.clone())));
    let mut events: Vec<Event> = events.collect();
    events.push(Event::finish(FinishReason::Stop, Usage::default()));
    let events = guarded(Parts::TEXT | Parts::REASONING | Parts::ARGUMENTS, events).await;
    let are_signed = events.iter().filter_map(|event| match event {
        Event::Part(part) => Some(part.provider_data.is_some()),
        _ => None,
    });
    assert!(are_signed.eq(expected), "{events:?}");
    // In a request.
    let model = ScriptedModel::new().text("ok");
    let message = Message::new(Role::Assistant, parts[..5].to_vec());
    let mut request = ChatRequest::user("hi");
    request.transcript.push(Turn::message(message).unwrap());
    let layer = GuardLayer::new(rules()).input(Parts::TEXT | Parts::REASONING);
    layer.layer(model.clone()).oneshot(request).await.unwrap();
    let turn = model.request(0).transcript.last().unwrap().clone();
    let are_signed = turn
        .as_message()
        .parts
        .iter()
        .map(|part| part.provider_data.is_some());
    assert!(are_signed.eq(expected.into_iter().take(5)), "{turn:?}");
}

#[tokio::test]
async fn data_of_a_provider_with_a_match_is_removed_from_an_unchanged_part() {
    let mut part = Part::text("unchanged");
    part.provider_data = Some(Arc::new(data()));
    let events = vec![
        Event::ReasoningDelta("unchanged".into()),
        Event::PartEnd(Box::new(PartEnd::new(Some(Arc::new(data()))))),
        Event::Part(Box::new(part)),
        Event::finish(FinishReason::Stop, Usage::default()),
    ];
    let kept = |events: &[Event]| {
        let kept = events.iter().filter(|event| match event {
            Event::PartEnd(end) => end.provider_data.is_some(),
            Event::Part(part) => part.provider_data.is_some(),
            _ => false,
        });
        kept.count()
    };
    assert_eq!(
        kept(&guarded(Parts::PROVIDER_DATA, events.clone()).await),
        0
    );
    assert_eq!(kept(&guarded(Parts::TEXT, events).await), 2);
}

#[tokio::test]
async fn a_reset_drops_held_text() {
    let events = vec![
        Event::TextDelta("a hunt".into()),
        Event::Reset,
        Event::TextDelta("er2".into()),
        Event::finish(FinishReason::Stop, Usage::default()),
    ];
    let events = guarded(Parts::TEXT, events).await;
    assert_eq!(concentric_test::text_of(&events), "a er2");
}

#[tokio::test]
async fn a_reset_drops_held_calls() {
    let start =
        |index| Event::ToolCallStart(Box::new(ToolCallStart::new(index, CallId::new("c"), "t")));
    let call = ToolCallPart::new(CallId::new("c"), "t", json!({}));
    let after = vec![
        start(5),
        Event::tool_call(call),
        Event::finish(FinishReason::Stop, Usage::default()),
    ];
    let delta = Event::ToolCallDelta(ToolCallDelta::new(0, "{"));
    let mut events = vec![start(0), delta, Event::Reset];
    events.extend(after.clone());
    assert_eq!(guarded(Parts::ARGUMENTS, events).await[1..], after);
}

#[tokio::test]
async fn held_text_is_released_before_the_end_of_a_step() {
    let text = Event::TextDelta("a hunt".into());
    let start = StepStart::new(1, MessageId::new("m"));
    let end = StepFinish::new(0, FinishReason::Stop, Usage::default());
    for event in [
        Event::StepFinish(Box::new(end)),
        Event::StepStart(Box::new(start)),
    ] {
        let finish = Event::finish(FinishReason::Stop, Usage::default());
        let events = guarded(Parts::TEXT, vec![text.clone(), event.clone(), finish]).await;
        let texts: Vec<bool> = events
            .iter()
            .map(|it| matches!(it, Event::TextDelta(_)))
            .collect();
        assert_eq!(texts, [true, true, false, false], "{event:?}");
        assert_eq!(concentric_test::text_of(&events), "a hunt");
    }
}

#[tokio::test]
async fn held_text_is_released_at_an_early_end() {
    for is_error in [false, true] {
        let events = vec![
            Event::TextDelta("a hunt".into()),
            nested(Event::TextDelta("hunt".into())),
            nested(nested(Event::ReasoningDelta("hunt".into()))),
        ];
        let model = ScriptedModel::new().events(events);
        let model = match is_error {
            true => model.error(Error::new(ErrorKind::Connection, "lost")),
            false => model.end_early(),
        };
        let guard = GuardLayer::new(rules()).layer(model);
        let answer = guard.oneshot(ChatRequest::user("hi")).await.unwrap();
        let mut items = collect_events(answer.body).await;
        if is_error {
            assert_eq!(items.pop().unwrap().unwrap_err().message(), "lost");
        }
        let mut texts = [String::new(), String::new(), String::new()];
        for item in items {
            let (mut at, mut event) = (0, item.unwrap());
            while let Event::SubAgent(nested) = event {
                (at, event) = (at + 1, nested.event);
            }
            let (Event::TextDelta(text) | Event::ReasoningDelta(text)) = event else {
                panic!("{event:?}");
            };
            texts[at] += &text;
        }
        assert_eq!(texts, ["a hunt", "hunt", "hunt"]);
    }
}

#[tokio::test]
async fn json_with_escapes_is_edited_and_stays_json() {
    let texts = json!({
        "say \"hunter2\"": "x \"hunter2\" y",
        "b": ["back\\slash\\", SECRET, "\\\"", {"c\\": "hunter2\\"}],
    });
    let result = ToolOutcome::of_value(&texts);
    let call = ToolCallPart::new(CallId::new("c"), "t", texts.to_string());
    let events = vec![
        Event::tool_call(call),
        Event::ToolResult(Box::new(ToolResult::new(CallId::new("c"), "t", result))),
        Event::finish(FinishReason::Stop, Usage::default()),
    ];
    let events = guarded(Parts::ALL, events).await;
    let expected = texts.to_string().replace(SECRET, "[password]");
    let (Event::ToolCall(call), Event::ToolResult(result)) = (&events[0], &events[1]) else {
        panic!("{events:?}");
    };
    assert_eq!(call.call.arguments.as_str(), expected);
    assert_eq!(result.outcome.content.text(), expected);
}

#[tokio::test]
async fn held_text_of_a_nested_run_is_released_before_the_result_of_its_call() {
    let result = ToolResult::new(CallId::new("c"), "t", ToolOutcome::done("x"));
    let events = vec![
        nested(Event::TextDelta("hunt".into())),
        Event::ToolResult(Box::new(result)),
        Event::finish(FinishReason::Stop, Usage::default()),
    ];
    assert_eq!(guarded(Parts::TEXT, events.clone()).await, events);
}

#[tokio::test]
async fn a_nested_run_that_goes_on_in_another_call_is_one_of_that_call() {
    let finish = || Event::finish(FinishReason::Stop, Usage::default());
    let event = Event::TextDelta("hunt".into());
    let later = SubAgentEvent::new(RunId::new("r"), None, Some(CallId::new("d")), event);
    let later = Event::SubAgent(Box::new(later));
    let events = vec![nested(finish()), later, finish()];
    assert_eq!(guarded(Parts::TEXT, events.clone()).await, events);
}

#[tokio::test]
async fn a_custom_event_does_not_release_held_text() {
    let events = vec![
        Event::TextDelta("hun".into()),
        Event::from(CustomEvent::new("x", json!(1))),
        Event::TextDelta("ter2".into()),
        Event::finish(FinishReason::Stop, Usage::default()),
    ];
    let events = guarded(Parts::TEXT, events).await;
    assert!(matches!(events[0], Event::Custom(_)));
    assert_eq!(concentric_test::text_of(&events), "[password]");
}

#[tokio::test]
async fn an_interrupt_is_shown_with_its_exact_arguments() {
    let interrupt = || Event::from(CustomEvent::new("interrupt", json!({"arguments": SECRET})));
    let mut events = vec![
        interrupt(),
        Event::finish(FinishReason::Stop, Usage::default()),
    ];
    assert_eq!(guarded(Parts::ALL, events.clone()).await, events);
    events[0] = nested(interrupt());
    assert_eq!(guarded(Parts::ALL, events.clone()).await, events);
}

#[tokio::test]
async fn texts_of_parallel_runs_are_apart() {
    let run = |run: &str, text: &str| {
        let event = Event::TextDelta(text.into());
        Event::SubAgent(Box::new(SubAgentEvent::new(
            RunId::new(run),
            None,
            None,
            event,
        )))
    };
    let events = vec![
        run("a", "hun"),
        run("b", "ter2 hun"),
        Event::TextDelta("ter2 hun".into()),
        run("a", "ter2"),
        run("b", "t"),
        Event::finish(FinishReason::Stop, Usage::default()),
    ];
    let events = guarded(Parts::TEXT, events).await;
    let mut texts = [String::new(), String::new(), String::new()];
    for event in events {
        match event {
            Event::TextDelta(text) => texts[2] += &text,
            Event::SubAgent(nested) => {
                let at = usize::from(nested.run_id.as_str() == "b");
                if let Event::TextDelta(text) = nested.event {
                    texts[at] += &text;
                }
            }
            _ => {}
        }
    }
    assert_eq!(texts, ["[password]", "ter2 hunt", "ter2 hun"]);
}

#[tokio::test]
async fn a_field_and_its_value_match_together() {
    use concentric_layers::guard::{Rules, secrets};
    const KEY: &str = "Zx8kQ2mN7pR4tV1wY6bC3dF9";
    let rules = Rules::new([secrets::generic()]).unwrap();
    let layer = GuardLayer::new(rules).output(Parts::ARGUMENTS | Parts::RESULTS);
    for (arguments, each) in [
        (json!({"password": KEY, "tag": KEY}), 1),
        (json!({"password": [KEY, [KEY]], "tag": [KEY]}), 2),
        (json!({"password": [1, {"x": 2}, KEY], "x": [[], KEY]}), 1),
    ] {
        let call = ToolCallPart::new(CallId::new("c"), "t", arguments.clone());
        let result = ToolOutcome::of_value(&arguments).with_data(arguments);
        let model = ScriptedModel::new().events([
            Event::tool_call(call),
            Event::ToolResult(Box::new(ToolResult::new(CallId::new("c"), "t", result))),
            Event::finish(FinishReason::Stop, Usage::default()),
        ]);
        let response = layer
            .layer(model)
            .oneshot(concentric_core::ChatRequest::user("hi"));
        let events = collect_events(response.await.unwrap().body).await;
        let debug = format!("{events:?}");
        // In the arguments, in the text of the result, and in its data.
        assert_eq!(debug.matches(KEY).count(), 3, "{debug}");
        assert_eq!(debug.matches("[generic]").count(), 3 * each, "{debug}");
    }
}

#[tokio::test]
async fn fields_whose_names_become_the_same_are_kept() {
    let texts = json!({"codename a": 1, "codename b": 2, "codename": {"codename c": 3}, "x": 4});
    let call = ToolCallPart::new(CallId::new("c"), "t", texts.to_string());
    let rules = Rules::new([Rule::pattern("codename", "codename [a-c]").replace("codename")]);
    let events = vec![
        Event::State(Arc::new(texts)),
        Event::tool_call(call),
        Event::finish(FinishReason::ToolCalls, Usage::default()),
    ];
    let model = GuardLayer::new(rules.unwrap())
        .output(Parts::ALL)
        .layer(ScriptedModel::new().events(events));
    let answer = model.oneshot(ChatRequest::user("x")).await.unwrap();
    let events: Vec<_> = collect_events(answer.body).await;
    let expected = json!({"codename 2": 1, "codename 3": 2, "codename": {"codename": 3}, "x": 4});
    let Ok(Event::State(state)) = &events[0] else {
        panic!("{events:?}")
    };
    assert_eq!(**state, expected);
    let Ok(Event::ToolCall(call)) = &events[1] else {
        panic!("{events:?}")
    };
    let arguments = call.call.arguments.as_str();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(arguments).unwrap(),
        expected
    );
}

#[tokio::test]
async fn a_long_name_is_not_read_again_for_each_element() {
    use concentric_layers::guard::{Rules, secrets};
    const KEY: &str = "Zx8kQ2mN7pR4tV1wY6bC3dF9";
    let name = format!("{}password", "a-".repeat(512 << 10));
    let mut values = vec![json!(1); 20_000];
    values.push(json!(KEY));
    let data = json!({name: values});
    let result = ToolOutcome::of_value(&data).with_data(data);
    let result = ToolResult::new(CallId::new("c"), "t", result);
    let model = ScriptedModel::new().events([
        Event::ToolResult(Box::new(result)),
        Event::finish(FinishReason::Stop, Usage::default()),
    ]);
    let layer = GuardLayer::new(Rules::new([secrets::generic()]).unwrap()).output(Parts::RESULTS);
    // 20 GB if each element were read with the whole name.
    let response = layer
        .layer(model)
        .oneshot(concentric_core::ChatRequest::user("hi"));
    let events = collect_events(response.await.unwrap().body).await;
    let Some(Ok(Event::ToolResult(result))) = events.first() else {
        panic!("no result");
    };
    let outcome = &result.outcome;
    let data = outcome.data.as_ref().unwrap().to_string();
    for text in [outcome.content.text().as_ref(), data.as_str()] {
        assert!(text.ends_with(r#","[generic]"]}"#));
    }
}
