//! Digests of requests.

use concentric_core::{
    Author, CallId, ChatRequest, Context, Executor, Media, MediaSource, Message, MessageId,
    OutputSchema, Part, PartKind, ProviderData, Role, Round, Stability, SystemSegment,
    ToolCallPart, ToolChoice, ToolOutcome, ToolResult, ToolSpec, ToolSpecs, Transcript, Turn,
    digest::Digest, store::Tenant,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

fn of(request: &ChatRequest) -> Digest {
    Digest::of_request(request).unwrap()
}

/// A request in which each field that a model can see has a value.
fn full() -> ChatRequest {
    let data = Arc::new(ProviderData::new("test", json!({"signature": "s"})));
    let media = |source| {
        Media::new(source)
            .with_media_type("image/png")
            .with_name("a.png")
    };
    let call = |id: &str, executor| {
        let call = ToolCallPart::new(CallId::new(id), "look", r#"{"x":1}"#);
        call.with_provider_id(Some("p1".into()))
            .executed_by(executor)
    };
    let outcome = ToolOutcome::done(vec![
        Part::text("seen").by(Author::User),
        Part::new(PartKind::Image(media(MediaSource::Url("u".into())))),
    ]);
    let outcome = outcome
        .with_data(json!({"d": 1}))
        .and_halt("h")
        .free_of_charge();
    let inner = ToolResult::new(CallId::new("c2"), "look", outcome.clone());
    let mut user = Message::user("hi").with_id(MessageId::new("m1"));
    user.parts.extend([
        Part::text("more").with_provider_data(Some(Arc::clone(&data))),
        Part::new(PartKind::Reasoning("r".into())),
        Part::new(PartKind::Refusal("no".into())),
        Part::new(PartKind::Image(media(MediaSource::Base64("b".into())))),
        Part::new(PartKind::Audio(media(MediaSource::Id("i".into())))),
        Part::new(PartKind::File(media(MediaSource::Url("u".into())))),
        Part::new(PartKind::Provider(ProviderData::new("test", json!([1])))),
    ]);
    let calls = Message::new(
        Role::Assistant,
        vec![
            Part::new(PartKind::ToolCall(call("c2", Executor::Provider))),
            Part::new(PartKind::ToolResult(inner)),
            Part::new(PartKind::ToolCall(call("c1", Executor::Loop))),
        ],
    );
    let result = ToolResult::new(CallId::new("c1"), "look", outcome);
    let round = Round::new(calls.with_id(MessageId::new("m2")), vec![result]).unwrap();
    let turns = [
        Turn::message(user).unwrap(),
        round.into(),
        Turn::user("and?"),
    ];
    let mut request = ChatRequest::new(turns.into_iter().collect());
    let segment = SystemSegment::new("Be brief.").stable_for(Stability::Thread);
    request.system.push(segment);
    let mut spec = ToolSpec::new("look", "Looks.", json!({"type": "object"}));
    spec.output_schema = Some(Arc::new(json!({"type": "string"})));
    spec.groups = vec!["g".into()];
    spec.annotations.title = Some("Look".into());
    request.tools = ToolSpecs::new([Arc::new(spec)]);
    let options = request.options_mut();
    options.model = Some("m".into());
    options.tool_choice = Some(ToolChoice::Tool("look".into()));
    options.parallel_tool_calls = Some(true);
    options.output_schema = Some(OutputSchema::new("o", json!({"type": "object"})));
    options.max_output_tokens = Some(10);
    options.temperature = Some(0.5);
    options.top_p = Some(0.5);
    options.frequency_penalty = Some(0.5);
    options.presence_penalty = Some(0.5);
    options.stop = vec!["stop".into()];
    options.seed = Some(7);
    options.reasoning_effort = Some("low".into());
    options.provider.insert("k".into(), json!({"a": 1}));
    options.metadata.insert("user".into(), json!("u1"));
    request
}

/// The parts of a request that a model can see, as JSON.
fn to_json(request: &ChatRequest) -> Value {
    json!({
        "transcript": request.transcript,
        "system": request.system,
        "tools": request.tools,
        "options": *request.options,
    })
}

fn from_json(mut value: Value) -> Option<ChatRequest> {
    let transcript: Transcript = serde_json::from_value(value["transcript"].take()).ok()?;
    let mut request = ChatRequest::new(transcript);
    request.system = serde_json::from_value(value["system"].take()).ok()?;
    request.tools = serde_json::from_value(value["tools"].take()).ok()?;
    request.options = Arc::new(serde_json::from_value(value["options"].take()).ok()?);
    Some(request)
}

/// The pointers of all values in `value` that contain no others.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                leaves(value, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                leaves(item, &format!("{at}/{index}"), found);
            }
        }
        _ => found.push(at.to_owned()),
    }
}

/// Values that differ from `value`, of which at least one is valid in its place.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(value) => vec![json!(!value)],
        Value::Number(number) => vec![
            json!(number.as_f64().unwrap() + 0.25),
            json!(11),
            Value::Null,
        ],
        Value::String(text) => {
            let mut others: Vec<_> = [
                "run",
                "assistant",
                "user",
                "failed",
                "person",
                "agent",
                "client",
            ]
            .into_iter()
            .filter(|name| name != text)
            .map(|name| json!(name))
            .collect();
            others.insert(0, json!(format!("{text}!")));
            others
        }
        _ => vec![json!("x"), json!(1)],
    }
}

// Case F051.
#[test]
fn f051_each_field_of_a_request_changes_its_digest() {
    let request = full();
    let value = to_json(&request);
    assert_eq!(of(&from_json(value.clone()).unwrap()), of(&request));
    let mut found = Vec::new();
    leaves(&value, "", &mut found);
    assert!(found.len() > 60, "{found:#?}");
    let is_left_out = |at: &str| {
        let is_id = at.ends_with("/message/id")
            || at.ends_with("/tool_call/id")
            || at.ends_with("/provider_id")
            || at.ends_with("/call_id");
        is_id || at.contains("/author") || at.starts_with("/options/metadata/")
    };
    for at in found {
        let original = value.pointer(&at).unwrap().clone();
        let changed = others(&original).into_iter().find_map(|other| {
            let mut changed = value.clone();
            *changed.pointer_mut(&at).unwrap() = other;
            let changed = from_json(changed)?;
            (to_json(&changed) != value).then_some(changed)
        });
        let Some(changed) = changed else {
            // An id that no other one matches is not a valid history, and an author has a name.
            assert!(is_left_out(&at), "{at} was not changed");
            continue;
        };
        assert_eq!(of(&changed) == of(&request), is_left_out(&at), "{at}");
    }
}

#[test]
fn fields_that_a_model_does_not_see_make_no_difference() {
    let request = full();
    let mut other = full();
    let mut context = Context::builder().agent("other").build();
    context.extensions_mut().insert(Tenant("other".into()));
    other.context = context;
    other.options_mut().metadata.clear();
    // All calls with other ids.
    let text = to_json(&other).to_string();
    let text = text
        .replace("\"c1\"", "\"call_9\"")
        .replace("\"c2\"", "\"call_8\"");
    let mut other = from_json(serde_json::from_str(&text).unwrap()).unwrap();
    assert_eq!(of(&other), of(&request));
    other.tools.retain(|_| false);
    assert_ne!(of(&other), of(&request));
}

#[test]
fn the_order_of_keys_in_a_schema_makes_a_difference() {
    let read = |schema: &str| -> Value { serde_json::from_str(schema).unwrap() };
    let digest = |schema: Value| {
        let mut request = full();
        let spec = ToolSpec::new("look", "Looks.", schema);
        request.tools = ToolSpecs::new([Arc::new(spec)]);
        of(&request)
    };
    let one = read(r#"{"properties":{"a":{},"b":{}}}"#);
    let same = read(r#" {"properties": {"a": {}, "b": {}}}"#);
    let other = read(r#"{"properties":{"b":{},"a":{}}}"#);
    // serde_json sorts the keys unless it has the feature `preserve_order`.
    let [first, second] = [&one, &other].map(Value::to_string);
    let is_sorted = first == second;
    assert_eq!(digest(one.clone()), digest(same));
    assert_eq!(digest(one) == digest(other), is_sorted);
}

#[test]
fn the_digest_of_a_request_does_not_change() {
    // Of this version: stored answers are found by it.
    let request = ChatRequest::user("hi").with_system("Be brief.");
    assert_eq!(
        of(&request).to_string(),
        "NgGU5q_RM3zwIGa9fpCiTlHfm1238TP_SbVT8i9ATs8"
    );
}

fn part() -> impl Strategy<Value = Part> {
    let text = "[ab\u{0}|]{0,3}";
    prop_oneof![
        text.prop_map(Part::text),
        text.prop_map(|text| Part::new(PartKind::Reasoning(text.into()))),
        text.prop_map(|text| Part::text(text).by(Author::User)),
    ]
}

fn request() -> impl Strategy<Value = ChatRequest> {
    let message = (any::<bool>(), prop::collection::vec(part(), 0..3)).prop_map(|(user, parts)| {
        let role = if user { Role::User } else { Role::Assistant };
        Turn::message(Message::new(role, parts)).unwrap()
    });
    let turns = prop::collection::vec(message, 0..3);
    let system = prop::collection::vec("[ab]{0,2}", 0..3);
    let tools = prop::collection::vec(("[ab]{1,2}", "[ab]{0,2}"), 0..3);
    let options = (
        prop::option::of(0_u32..2),
        prop::option::of(0_u8..3),
        prop::collection::vec("[ab]{0,2}", 0..3),
    );
    (turns, system, tools, options).prop_map(|(turns, system, tools, (most, heat, stop))| {
        let mut request = ChatRequest::new(turns.into_iter().collect());
        for text in system {
            request.system.push(SystemSegment::new(text));
        }
        for (name, description) in tools {
            let spec = ToolSpec::new(name, description, json!({}));
            request.tools.push(Arc::new(spec));
        }
        let options = request.options_mut();
        options.max_output_tokens = most;
        options.temperature = heat.map(f32::from);
        options.stop = stop.into_iter().map(Into::into).collect();
        request
    })
}

/// What a model sees of a request.
fn seen(request: &ChatRequest) -> Value {
    let mut value = to_json(request);
    for turn in value["transcript"].as_array_mut().unwrap() {
        for part in turn["message"]["parts"].as_array_mut().unwrap() {
            part.as_object_mut().unwrap().remove("author");
        }
    }
    value
}

proptest! {
    // Case F051.
    #[test]
    fn f051_requests_with_equal_digests_are_equal(one in request(), two in request()) {
        prop_assert_eq!(of(&one) == of(&two), seen(&one) == seen(&two));
        let digest = of(&one);
        prop_assert_eq!(digest, of(&one.with_context(Context::new())));
    }
}
